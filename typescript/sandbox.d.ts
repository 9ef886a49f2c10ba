/** One sandbox: its tools, its files as bytes of any size, its commands, its state. */
export class Sandbox extends SandboxOperations {
    /**
     * @param {Transport} transport
     * @param {Schemas['SandboxInfo']} info
     */
    constructor(transport: Transport, info: Schemas["SandboxInfo"]);
    /** What was told of it last; `refresh` asks again. */
    info: {
        abandoned_at?: string | null;
        active_at?: string | null;
        agent_id: string | null;
        created_at: string;
        created_by?: string | null;
        degraded?: string[];
        expires_at?: string | null;
        network?: string[] | null;
        sandbox_id: string;
        session_id: string;
        spec: import("./coldframe.js").components["schemas"]["SandboxSpec"];
        state: import("./coldframe.js").components["schemas"]["StateObject"];
        stored_bytes?: number | null;
        template_sha256?: string | null;
        warnings?: string[];
        workspace_label: import("./coldframe.js").components["schemas"]["Label"];
    };
    id: string;
    /** Files anywhere in it. */
    files: Files;
    /** Git repositories of its workspace. */
    git: Git;
    _path: string;
    /**
     * Call any tool by name.
     *
     * @param {string} tool
     * @param {Record<string, unknown>} given its arguments
     * @param {CallOptions} [options] with `snapshot` it reads the files of that in place of those of the sandbox
     * @returns {Promise<Schemas['ToolResult'] & { value: any }>}
     */
    call(tool: string, given: Record<string, unknown>, options?: CallOptions): Promise<Schemas["ToolResult"] & {
        value: any;
    }>;
    /**
     * @template {ToolName} T
     * @param {T} tool
     * @param {Record<string, unknown>} given
     * @returns {Promise<Answered<Result<T>['value']>>}
     */
    _answer<T extends ToolName>(tool: T, given: Record<string, unknown>): Promise<Answered<Result<T>["value"]>>;
    /**
     * Run a shell line (text) or a program with arguments (list) and return how it went, output complete. A failing program is an
     * answer, not an error.
     *
     * @param {string | string[]} command
     * @param {CommandOptions} [options]
     * @returns {Promise<Answered<Schemas['RunCommandAnswer']>>}
     */
    runCommand(command: string | string[], options?: CommandOptions): Promise<Answered<Schemas["RunCommandAnswer"]>>;
    /**
     * Start a command and return as soon as it runs. It goes on whoever leaves, and its record stays.
     *
     * @param {string | string[]} command
     * @param {CommandOptions} [options]
     * @returns {Promise<Job>}
     */
    start(command: string | string[], options?: CommandOptions): Promise<Job>;
    /**
     * Run a command and yield its events while it runs, then the whole result. Leaving early does not end it. A connection that
     * breaks is taken up again behind the last chunk; the last event is then `ended`, with how it ended.
     *
     * @param {string | string[]} command
     * @param {CommandOptions} [options]
     * @returns {AsyncGenerator<CommandEvent, void, undefined>}
     */
    run(command: string | string[], options?: CommandOptions): AsyncGenerator<CommandEvent, void, undefined>;
    /**
     * The events of a command after chunk `after_seq`, until it ends, over connections that break too.
     *
     * @param {string} command_id
     * @param {{ after_seq?: number, signal?: AbortSignal }} [options]
     * @returns {AsyncGenerator<CommandEvent, void, undefined>}
     */
    follow(command_id: string, options?: {
        after_seq?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<CommandEvent, void, undefined>;
    /**
     * The handle on a command that was started, by whomever and whenever. Nothing is asked yet.
     *
     * @param {string} command_id
     */
    job(command_id: string): Job;
    /**
     * The handle on a pipeline that was started.
     *
     * @param {string} pipeline_id
     */
    pipeline(pipeline_id: string): Pipeline;
    /**
     * A command once its end is recorded, or as it is after `timeout_s`: then its `result` is null.
     *
     * @param {string} command_id
     * @param {{ timeout_s?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<Schemas['CommandInfo']>}
     */
    wait(command_id: string, options?: {
        timeout_s?: number;
        signal?: AbortSignal;
    }): Promise<Schemas["CommandInfo"]>;
    /**
     * Raw bytes of one stream, at most 16 MiB from `offset`.
     *
     * @param {string} command_id
     * @param {'stdout' | 'stderr'} [stream]
     * @param {{ offset?: number, length?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<OutputWindow>}
     */
    output(command_id: string, stream?: "stdout" | "stderr", options?: {
        offset?: number;
        length?: number;
        signal?: AbortSignal;
    }): Promise<OutputWindow>;
    /**
     * Send all of `data` to the open input of a command, and with `end` its end of file; waits while it does not read. `offset` is the
     * place of the first byte in the whole input: what is sent twice from the same place arrives once.
     *
     * @param {string} command_id
     * @param {string | Uint8Array} data
     * @param {{ offset?: number, end?: boolean, signal?: AbortSignal }} [options]
     * @returns {Promise<Schemas['InputState']>}
     */
    sendStdin(command_id: string, data: string | Uint8Array, options?: {
        offset?: number;
        end?: boolean;
        signal?: AbortSignal;
    }): Promise<Schemas["InputState"]>;
    /**
     * Write or replace a file atomically. For content of any size see `upload`.
     *
     * @param {string} path
     * @param {string | Uint8Array} content
     * @param {{ if_version?: string, create_only?: boolean, mode?: number } & CallOptions} [options]
     * @returns {Promise<Answered<Schemas['WriteFileAnswer']>>}
     */
    writeFile(path: string, content: string | Uint8Array, options?: {
        if_version?: string;
        create_only?: boolean;
        mode?: number;
    } & CallOptions): Promise<Answered<Schemas["WriteFileAnswer"]>>;
    /**
     * Read a file, or `length` bytes of it from `offset`; with `snapshot` as it is in that. So can be read where nothing runs any more.
     * `bytesOfFile` gives what was read as bytes.
     *
     * @param {string} path
     * @param {Omit<Arguments<'read_file'>, 'path'> & CallOptions} [options]
     * @returns {Promise<Answered<Schemas['ReadFileAnswer']>>}
     */
    readFile(path: string, options?: Omit<Arguments<"read_file">, "path"> & CallOptions): Promise<Answered<Schemas["ReadFileAnswer"]>>;
    /**
     * Replace `old`, which must occur exactly once unless `replace_all`, by another text.
     *
     * @param {string} path
     * @param {string} old
     * @param {string} by
     * @param {{ replace_all?: boolean, if_version?: string } & CallOptions} [options]
     * @returns {Promise<Answered<Schemas['EditFileAnswer']>>}
     */
    editFile(path: string, old: string, by: string, options?: {
        replace_all?: boolean;
        if_version?: string;
    } & CallOptions): Promise<Answered<Schemas["EditFileAnswer"]>>;
    /**
     * Make replacements in order, all or none.
     *
     * @param {string} path
     * @param {{ old: string, new: string }[]} edits
     * @param {{ if_version?: string } & CallOptions} [options]
     * @returns {Promise<Answered<Schemas['EditFileAnswer']>>}
     */
    editFileMany(path: string, edits: {
        old: string;
        new: string;
    }[], options?: {
        if_version?: string;
    } & CallOptions): Promise<Answered<Schemas["EditFileAnswer"]>>;
    /**
     * At most `max_entries` of what lies there. A directory is read on by `next_after` of the answer, given as `after`.
     *
     * @param {string} [path]
     * @param {Omit<Arguments<'list_directory'>, 'path'> & CallOptions} [options]
     * @returns {Promise<Answered<Schemas['ListDirectoryAnswer']>>}
     */
    listDirectory(path?: string, options?: Omit<Arguments<"list_directory">, "path"> & CallOptions): Promise<Answered<Schemas["ListDirectoryAnswer"]>>;
    /**
     * @param {string} pattern
     * @param {string} [path]
     * @param {Omit<Arguments<'search_files'>, 'path' | 'pattern'> & CallOptions} [options]
     * @returns {Promise<Answered<Schemas['SearchFilesAnswer']>>}
     */
    searchFiles(pattern: string, path?: string, options?: Omit<Arguments<"search_files">, "path" | "pattern"> & CallOptions): Promise<Answered<Schemas["SearchFilesAnswer"]>>;
    /**
     * Replace a file by `content`, streamed. A broken upload changes nothing. What is written is compared with what was sent by
     * digest: before the file is replaced where the digest is known, else afterwards.
     *
     * @param {string} path
     * @param {Content} content
     * @param {{ if_version?: string, source?: string, sha256?: string } & Calling} [options]
     * @returns {Promise<Answered<Schemas['WriteFileAnswer']>>}
     */
    upload(path: string, content: Content, options?: {
        if_version?: string;
        source?: string;
        sha256?: string;
    } & Calling): Promise<Answered<Schemas["WriteFileAnswer"]>>;
    /**
     * Replace a file by a local one of any size. What breaks off is taken up again, now or when the same file is sent to the same place
     * within a day; until all of it has come, with the right digest, nothing is changed.
     *
     * @param {string} local
     * @param {string} path
     * @param {{ if_version?: string, source?: string, progress?: (there: number, all: number) => void } & Calling} [options]
     * @returns {Promise<Answered<Schemas['WriteFileAnswer']>>}
     */
    uploadFile(local: string, path: string, options?: {
        if_version?: string;
        source?: string;
        progress?: (there: number, all: number) => void;
    } & Calling): Promise<Answered<Schemas["WriteFileAnswer"]>>;
    /**
     * The bytes of a file, or of a range; with `snapshot` as they are in that. All are of one version, and compared by digest before
     * they are given; a connection that breaks is taken up again.
     *
     * @param {string} path
     * @param {{ offset?: number, length?: number, snapshot?: string, if_version?: string } & Calling} [options]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    download(path: string, options?: {
        offset?: number;
        length?: number;
        snapshot?: string;
        if_version?: string;
    } & Calling): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
    /**
     * Put a file of any size into a local one as a whole; how many bytes that is. What breaks off leaves nothing behind.
     *
     * @param {string} path
     * @param {string} local
     * @param {{ snapshot?: string, progress?: (there: number) => void } & Calling} [options]
     * @returns {Promise<number>}
     */
    downloadFile(path: string, local: string, options?: {
        snapshot?: string;
        progress?: (there: number) => void;
    } & Calling): Promise<number>;
    /**
     * Run code in the context that there is for its language, or in one of its own, and return what it came to. An error that it raises is
     * `error` of the outcome, and none here.
     *
     * @param {string} code
     * @param {Omit<import('./terms.d.ts').Body<'run_cell'>, 'code'> & { session_id?: string } & Calling} [options]
     * @returns {Promise<Answered<Schemas['RunCodeAnswer']>>}
     */
    runCode(code: string, options?: Omit<import("./terms.d.ts").Body<"run_cell">, "code"> & {
        session_id?: string;
    } & Calling): Promise<Answered<Schemas["RunCodeAnswer"]>>;
    /**
     * Like `runCode`, yielding what the cell shows as it does, and last `{event: 'tool_result', result}` with what it came to.
     *
     * @param {string} code
     * @param {Omit<import('./terms.d.ts').Body<'run_cell'>, 'code'> & { session_id?: string } & Calling} [options]
     * @returns {AsyncGenerator<{ event: string, [name: string]: any }, void, undefined>}
     */
    codeEvents(code: string, options?: Omit<import("./terms.d.ts").Body<"run_cell">, "code"> & {
        session_id?: string;
    } & Calling): AsyncGenerator<{
        event: string;
        [name: string]: any;
    }, void, undefined>;
    /** Ask for the state now, and keep it as `info`. */
    refresh(): Promise<{
        abandoned_at?: string | null;
        active_at?: string | null;
        agent_id: string | null;
        created_at: string;
        created_by?: string | null;
        degraded?: string[];
        expires_at?: string | null;
        network?: string[] | null;
        sandbox_id: string;
        session_id: string;
        spec: import("./coldframe.js").components["schemas"]["SandboxSpec"];
        state: import("./coldframe.js").components["schemas"]["StateObject"];
        stored_bytes?: number | null;
        template_sha256?: string | null;
        warnings?: string[];
        workspace_label: import("./coldframe.js").components["schemas"]["Label"];
    }>;
    /** Return once it is not `queued` any more: it runs, it `failed` because its time was over, or it was terminated. */
    waitForTurn(): Promise<{
        abandoned_at?: string | null;
        active_at?: string | null;
        agent_id: string | null;
        created_at: string;
        created_by?: string | null;
        degraded?: string[];
        expires_at?: string | null;
        network?: string[] | null;
        sandbox_id: string;
        session_id: string;
        spec: import("./coldframe.js").components["schemas"]["SandboxSpec"];
        state: import("./coldframe.js").components["schemas"]["StateObject"];
        stored_bytes?: number | null;
        template_sha256?: string | null;
        warnings?: string[];
        workspace_label: import("./coldframe.js").components["schemas"]["Label"];
    }>;
    /** @param {string} path */
    _file(path: string): string;
}
export type Transport = import("./transport.js").Transport;
export type Schemas = import("./terms.d.ts").Schemas;
export type Content = import("./terms.d.ts").Content;
export type CommandEvent = import("./terms.d.ts").CommandEvent;
export type ToolName = import("./terms.d.ts").ToolName;
export type Calling = import("./terms.d.ts").Calling;
export type Arguments<T extends ToolName> = import("./terms.d.ts").Arguments<T>;
export type Result<T extends ToolName> = import("./terms.d.ts").Result<T>;
export type Answered<T> = import("./terms.d.ts").Answered<T>;
export type CallOptions = Calling & {
    session_id?: string;
    idempotency_key?: string;
    snapshot?: string;
};
export type CommandOptions = Omit<Arguments<"run_command">, "command" | "stdin_base64" | "stdin"> & {
    stdin?: string | Uint8Array;
} & CallOptions;
import { SandboxOperations } from './operations.js';
import { Files } from './files.js';
import { Git } from './operations.js';
import { Job } from './commands.js';
import { Pipeline } from './operations.js';
import { OutputWindow } from './commands.js';
