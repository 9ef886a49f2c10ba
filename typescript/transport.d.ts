/**
 * @param {readonly string[]} names
 * @param {Record<string, any>} options
 * @returns {Record<string, string>}
 */
export function headersOf(names: readonly string[], options: Record<string, any>): Record<string, string>;
/** An idempotency key that no other call has. */
export function makeKey(): string;
/**
 * @param {string} template
 * @param {Record<string, string>} names
 */
export function pathOf(template: string, names: Record<string, string>): string;
/**
 * A path of the workspace as text of an address; its slashes stay. Steps up are taken here, since a runtime would take them in the
 * whole address.
 *
 * @param {string} path
 */
export function encodePath(path: string): string;
/**
 * The body as it arrives. Leaving early gives up the connection.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
 */
export function partsOf(answer: Response): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
/**
 * The body line by line, without line ends.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<string, void, undefined>}
 */
export function linesOf(answer: Response): AsyncGenerator<string, void, undefined>;
/**
 * The body as frames of a head and a body, each after both lengths.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<{ event: any, data: Uint8Array<ArrayBuffer> }, void, undefined>}
 */
export function framesOf(answer: Response): AsyncGenerator<{
    event: any;
    data: Uint8Array<ArrayBuffer>;
}, void, undefined>;
/**
 * @param {readonly Uint8Array<ArrayBuffer>[]} parts
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function joined(parts: readonly Uint8Array<ArrayBuffer>[]): Uint8Array<ArrayBuffer>;
/** Before the second time; twice as long before the third. */
export const NDJSON: "application/x-ndjson";
export const FRAMES: "application/x-coldframe-frames";
/** Requests to one server, over the `fetch` of the runtime, which keeps connections. */
export class Transport {
    /**
     * @param {string} url
     * @param {string | undefined} token
     * @param {{ timeout_s?: number, fetch?: typeof fetch }} [options] the longest silence before the head of an answer
     */
    constructor(url: string, token: string | undefined, options?: {
        timeout_s?: number;
        fetch?: typeof fetch;
    });
    url: string;
    timeout_s: number | undefined;
    _fetch: typeof fetch;
    /** @type {Record<string, string>} */
    _headers: Record<string, string>;
    /** Makes the object of a sandbox; set by whoever knows its class. @type {(info: any) => any} */
    makeSandbox: (info: any) => any;
    /**
     * The answer as soon as its head is there. Throws what it says if it is an error.
     *
     * @param {string} method
     * @param {string} path
     * @param {Wish} [wish]
     * @returns {Promise<Response>}
     */
    request(method: string, path: string, wish?: Wish): Promise<Response>;
    /**
     * @param {string} method
     * @param {string} path
     * @param {Wish} [wish]
     * @returns {Promise<any>}
     */
    json(method: string, path: string, wish?: Wish): Promise<any>;
    /**
     * One call of an operation of the API.
     *
     * @param {Route} route
     * @param {Record<string, string>} names what stands in its path
     * @param {unknown} body
     * @param {Record<string, any>} options
     * @returns {Promise<any>}
     */
    call(route: Route, names: Record<string, string>, body: unknown, options: Record<string, any>): Promise<any>;
    /**
     * The same where bytes come.
     *
     * @param {Route} route
     * @param {Record<string, string>} names
     * @param {Record<string, any>} options
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    bytes(route: Route, names: Record<string, string>, options: Record<string, any>): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
    /**
     * The same where events come, an object a line.
     *
     * @param {Route} route
     * @param {Record<string, string>} names
     * @param {unknown} body
     * @param {Record<string, any>} options
     * @returns {AsyncGenerator<any, void, undefined>}
     */
    events(route: Route, names: Record<string, string>, body: unknown, options: Record<string, any>): AsyncGenerator<any, void, undefined>;
    /**
     * @param {Route} route
     * @param {unknown} body
     * @param {Record<string, any>} options
     * @returns {Wish}
     */
    _wish(route: Route, body: unknown, options: Record<string, any>): Wish;
}
export type Content = import("./terms.d.ts").Content;
export type Route = import("./terms.d.ts").Route;
export type Wish = import("./terms.d.ts").Wish;
