// Declarations of the SDK. Made of: sha256 876ac2e8eb1ea559892355097a4afcc3eef3074378a01e79886af4aa02fbc487
/**
 * All bytes of a download.
 *
 * @param {AsyncIterable<Uint8Array<ArrayBuffer>>} parts
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export function collect(parts: AsyncIterable<Uint8Array<ArrayBuffer>>): Promise<Uint8Array<ArrayBuffer>>;
/** @typedef {import('./terms.d.ts').Schemas} Schemas */
/**
 * A client of one installation.
 *
 *     const coldframe = new Coldframe()
 *     const sandbox = await coldframe.sandboxes.create({ agent_id: 'builder' })
 *     await sandbox.writeFile('hello.py', "print('hello')")
 *     console.log((await sandbox.runCommand('python3 hello.py')).stdout)
 *
 * What the server refuses is thrown as a ColdframeError with its code. Over a connection that breaks only that is sent again which can be
 * carried out but once: what reads, and what carries an idempotency key, as calls of tools and whatever takes `idempotency_key` among its
 * options do by themselves. All else (Git, cells, web hooks, tokens and more) fails with HOST_UNREACHABLE then, and may have been done.
 */
export class Coldframe extends operations.ColdframeOperations {
    /**
     * What is left out comes from COLDFRAME_URL and COLDFRAME_TOKEN, or from the local installation's file.
     *
     * @param {{ url?: string, token?: string, timeout_s?: number, fetch?: typeof fetch }} [options] `timeout_s` is the longest silence before
     *   an answer begins, while nothing is sent and beyond what the server was asked to wait (`wait_s`, `queue_s`); by default any, since
     *   a command may be silent
     */
    constructor(options?: {
        url?: string;
        token?: string;
        timeout_s?: number;
        fetch?: typeof fetch;
    });
    url: string;
    sandboxes: operations.Sandboxes;
    snapshots: operations.Snapshots;
    templates: Templates;
    agents: operations.Agents;
    ledger: operations.Ledger;
    lineage: operations.Lineage;
    policy: operations.Policy;
    tokens: operations.Tokens;
    credentials: operations.Credentials;
    sessions: operations.Sessions;
    network: operations.Network;
    volumes: operations.Volumes;
    previews: operations.Previews;
    webhooks: operations.Webhooks;
    builds: operations.Builds;
    /**
     * Run code once, in a sandbox of its own that is gone when this returns, with `files` by name as `inputs/NAME`.
     *
     * @param {string} code
     * @param {Record<string, Uint8Array>} [files]
     * @param {Omit<import('./terms.d.ts').Body<'run_once'>, 'code' | 'files'>} [options]
     * @returns {Promise<import('./terms.d.ts').Answer<'run_once'>>}
     */
    executeOnce(code: string, files?: Record<string, Uint8Array>, options?: Omit<import("./terms.d.ts").Body<"run_once">, "code" | "files">): Promise<import("./terms.d.ts").Answer<"run_once">>;
}
export type Schemas = import("./terms.d.ts").Schemas;
import * as operations from './operations.js';
/** Systems that sandboxes begin from. */
declare class Templates extends operations.Templates {
    /**
     * The handle on a build that was started.
     *
     * @param {string} build_id
     */
    getBuild(build_id: string): operations.TemplateBuild;
}
import { bytesOf } from './commands.js';
import { bytesOfFile } from './files.js';
import { CODES } from './codes.js';
import { ColdframeError } from './errors.js';
import { Files } from './files.js';
import { Job } from './commands.js';
import { OutputWindow } from './commands.js';
import { Sandbox } from './sandbox.js';
export { bytesOf, bytesOfFile, CODES, ColdframeError, Files, Job, operations, OutputWindow, Sandbox };
