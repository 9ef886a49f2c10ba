/**
 * @param {string | Uint8Array} content
 * @returns {{ content: string } | { content_base64: string }}
 */
export function contentOf(content: string | Uint8Array): {
    content: string;
} | {
    content_base64: string;
};
/**
 * The content of a file that was read, as bytes, whatever form it came in.
 *
 * @param {Schemas['ReadFileAnswer']} found
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function bytesOfFile(found: Schemas["ReadFileAnswer"]): Uint8Array<ArrayBuffer>;
/** @typedef {import('./sandbox.js').Sandbox} Sandbox */
/** @typedef {import('./terms.d.ts').Schemas} Schemas */
/** @typedef {{ user?: 'user' | 'root' }} Whose */
/** @typedef {{ offset?: number, length?: number, user?: 'user' | 'root' }} Range */
/** @typedef {{ mode?: number, create_only?: boolean, metadata?: Record<string, string>, user?: 'user' | 'root' }} Writing */
/** @typedef {{ depth?: number, max_entries?: number, after?: string, user?: 'user' | 'root' }} Listing */
/**
 * Files anywhere in a sandbox that runs, with the rights of one of its users; relative paths are from the workspace on. The methods
 * of the sandbox itself are for the workspace, also where nothing runs.
 */
export class Files {
    /** @param {Sandbox} sandbox */
    constructor(sandbox: Sandbox);
    _sandbox: import("./sandbox.js").Sandbox;
    /**
     * All that is known of a path; of a link, of itself.
     *
     * @param {string} path
     * @param {Whose} [options]
     * @returns {Promise<Schemas['PathEntry']>}
     */
    stat(path: string, options?: Whose): Promise<Schemas["PathEntry"]>;
    /**
     * A directory, and with `depth` what is below it.
     *
     * @param {string} [path]
     * @param {Listing} [options]
     * @returns {Promise<Schemas['ListPathAnswer']>}
     */
    list(path?: string, options?: Listing): Promise<Schemas["ListPathAnswer"]>;
    /**
     * A file, or `length` bytes of it; `bytesOfFile` gives bytes in any case.
     *
     * @param {string} path
     * @param {Range} [options]
     * @returns {Promise<Schemas['ReadFileAnswer']>}
     */
    read(path: string, options?: Range): Promise<Schemas["ReadFileAnswer"]>;
    /**
     * Write or replace a file atomically.
     *
     * @param {string} path
     * @param {string | Uint8Array} content
     * @param {Writing} [options]
     * @returns {Promise<Schemas['WriteFileAnswer']>}
     */
    write(path: string, content: string | Uint8Array, options?: Writing): Promise<Schemas["WriteFileAnswer"]>;
    /**
     * With its parents; `created` of the answer is false if it was there already.
     *
     * @param {string} path
     * @param {Whose} [options]
     * @returns {Promise<Schemas['MakeDirectoryAnswer']>}
     */
    makeDirectory(path: string, options?: Whose): Promise<Schemas["MakeDirectoryAnswer"]>;
    /**
     * Rename, or move to another place, whose parents are made. Unless `replace` is false what is there goes.
     *
     * @param {string} path
     * @param {string} target
     * @param {{ replace?: boolean, user?: 'user' | 'root' }} [options]
     * @returns {Promise<Schemas['PathEntry']>}
     */
    move(path: string, target: string, options?: {
        replace?: boolean;
        user?: "user" | "root";
    }): Promise<Schemas["PathEntry"]>;
    /**
     * A file or link, or with `recursive` a directory with all that is in it.
     *
     * @param {string} path
     * @param {{ recursive?: boolean, user?: 'user' | 'root' }} [options]
     * @returns {Promise<void>}
     */
    remove(path: string, options?: {
        recursive?: boolean;
        user?: "user" | "root";
    }): Promise<void>;
    /**
     * Note from now on what happens in a directory, with `recursive` in all below. It goes on until it is ended, or nobody has asked
     * for ten minutes.
     *
     * @param {string} [path]
     * @param {{ recursive?: boolean, with_info?: boolean }} [options]
     * @returns {Promise<Watch>}
     */
    watch(path?: string, options?: {
        recursive?: boolean;
        with_info?: boolean;
    }): Promise<Watch>;
    /**
     * @param {string} tool
     * @param {Record<string, unknown>} given
     * @returns {Promise<any>}
     */
    _value(tool: string, given: Record<string, unknown>): Promise<any>;
}
export type Sandbox = import("./sandbox.js").Sandbox;
export type Schemas = import("./terms.d.ts").Schemas;
export type Whose = {
    user?: "user" | "root";
};
export type Range = {
    offset?: number;
    length?: number;
    user?: "user" | "root";
};
export type Writing = {
    mode?: number;
    create_only?: boolean;
    metadata?: Record<string, string>;
    user?: "user" | "root";
};
export type Listing = {
    depth?: number;
    max_entries?: number;
    after?: string;
    user?: "user" | "root";
};
import { Watch } from './operations.js';
