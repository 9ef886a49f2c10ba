/**
 * The events of a command. A connection that breaks is taken up again behind the last chunk that came; while that is to be
 * tried, who reads notices nothing.
 *
 * @param {Transport} transport
 * @param {string} base path of the commands of the sandbox
 * @param {{ command_id?: string, after_seq?: number, begin?: () => Promise<Response>, signal?: AbortSignal }} asked
 *   `begin` makes the first request where that is not one to follow
 * @returns {AsyncGenerator<CommandEvent, void, undefined>}
 */
export function commandEvents(transport: Transport, base: string, asked: {
    command_id?: string;
    after_seq?: number;
    begin?: () => Promise<Response>;
    signal?: AbortSignal;
}): AsyncGenerator<CommandEvent, void, undefined>;
/**
 * @param {string} text base64, of whichever alphabet
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function bytesOf(text: string): Uint8Array<ArrayBuffer>;
/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function base64Of(bytes: Uint8Array): string;
/**
 * @param {Response} answer
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export function wholeOf(answer: Response): Promise<Uint8Array<ArrayBuffer>>;
/** A part of one stream of a command, as it was written. */
export class OutputWindow {
    /**
     * @param {string} command_id
     * @param {'stdout' | 'stderr'} stream
     * @param {Headers} headers
     * @param {Uint8Array<ArrayBuffer>} data
     */
    constructor(command_id: string, stream: "stdout" | "stderr", headers: Headers, data: Uint8Array<ArrayBuffer>);
    command_id: string;
    stream: "stdout" | "stderr";
    data: Uint8Array<ArrayBuffer>;
    offset: number;
    /** Where the rest begins; null if the command has ended and this is the last of it. @type {number | null} */
    next_offset: number | null;
    total_bytes: number;
    /** Of the whole stream; null while the command runs. @type {string | null} */
    sha256: string | null;
    ended: boolean;
    label: string;
}
/** One command that was started. It belongs to its sandbox and not to this handle: any number of them can be had. */
export class Job {
    /**
     * @param {Sandbox} sandbox
     * @param {string} id
     */
    constructor(sandbox: Sandbox, id: string);
    _sandbox: import("./sandbox.js").Sandbox;
    id: string;
    /** @type {number | undefined} */
    _sent: number | undefined;
    /** How it stands: `status` with what can be done, `activity` while it runs, `result` when it has ended. */
    info(): Promise<{
        activity?: import("./coldframe.js").components["schemas"]["Activity"] | null;
        command_id: string;
        command_line?: string;
        diagnosis?: import("./coldframe.js").components["schemas"]["Diagnosis"] | null;
        outputs?: import("./coldframe.js").components["schemas"]["DeclaredOutputs"] | null;
        pid?: number | null;
        result?: import("./coldframe.js").components["schemas"]["CommandResult"] | null;
        started_at?: string | null;
        state: "running" | "ended" | "lost";
        status?: import("./coldframe.js").components["schemas"]["StateObject"] | null;
    }>;
    /**
     * It, once it has ended, or as it is after `timeout_s`.
     *
     * @param {number} [timeout_s]
     */
    wait(timeout_s?: number): Promise<{
        activity?: import("./coldframe.js").components["schemas"]["Activity"] | null;
        command_id: string;
        command_line?: string;
        diagnosis?: import("./coldframe.js").components["schemas"]["Diagnosis"] | null;
        outputs?: import("./coldframe.js").components["schemas"]["DeclaredOutputs"] | null;
        pid?: number | null;
        result?: import("./coldframe.js").components["schemas"]["CommandResult"] | null;
        started_at?: string | null;
        state: "running" | "ended" | "lost";
        status?: import("./coldframe.js").components["schemas"]["StateObject"] | null;
    }>;
    /**
     * All that it has written to one stream until now.
     *
     * @param {'stdout' | 'stderr'} [stream]
     * @returns {Promise<Uint8Array<ArrayBuffer>>}
     */
    output(stream?: "stdout" | "stderr"): Promise<Uint8Array<ArrayBuffer>>;
    /**
     * The same in parts of at most 16 MiB, for more than fits into memory.
     *
     * @param {'stdout' | 'stderr'} [stream]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    outputParts(stream?: "stdout" | "stderr"): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
    /**
     * Its events after chunk `after_seq`, until it ends, over connections that break too.
     *
     * @param {{ after_seq?: number, signal?: AbortSignal }} [options]
     */
    follow(options?: {
        after_seq?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<import("./terms.d.ts").CommandEvent, void, undefined>;
    /**
     * Send input behind what this handle has sent, or else behind all there is.
     *
     * @param {string | Uint8Array} data
     * @param {{ end?: boolean }} [options]
     * @returns {Promise<Schemas['InputState']>}
     */
    sendStdin(data: string | Uint8Array, options?: {
        end?: boolean;
    }): Promise<Schemas["InputState"]>;
    /** Have it read the end of its input. */
    closeStdin(): Promise<{
        open: boolean;
        taken: number;
        waiting: number;
    }>;
    /**
     * Signal its whole process tree.
     *
     * @param {number} [signal]
     */
    signal(signal?: number): Promise<void>;
    /** End its whole process tree: TERM, then KILL. A second time, or after its end, it changes no result. */
    cancel(): Promise<void>;
    /**
     * Give its terminal another size.
     *
     * @param {number} columns
     * @param {number} rows
     */
    resize(columns: number, rows: number): Promise<void>;
    /**
     * Hold it to other limits, each counted from its start.
     *
     * @param {{ timeout_s?: number, idle_timeout_s?: number, cpu_s?: number }} limits
     */
    extend(limits: {
        timeout_s?: number;
        idle_timeout_s?: number;
        cpu_s?: number;
    }): Promise<void>;
}
export type Transport = import("./transport.js").Transport;
export type CommandEvent = import("./terms.d.ts").CommandEvent;
export type Schemas = import("./terms.d.ts").Schemas;
export type Sandbox = import("./sandbox.js").Sandbox;
