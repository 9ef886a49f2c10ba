/**
 * Fill in what the caller left out: from COLDFRAME_URL and COLDFRAME_TOKEN, then `~/.config/coldframe/client.json`, then the file
 * that `coldframe up` leaves for the user it runs for. A token of a file is used for the address in the same file alone.
 *
 * @param {string | undefined} [url]
 * @param {string | undefined} [token]
 * @returns {{ url: string, token: string | undefined }}
 */
export function findLocation(url?: string | undefined, token?: string | undefined): {
    url: string;
    token: string | undefined;
};
