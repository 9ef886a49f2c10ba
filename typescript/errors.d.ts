/**
 * @param {unknown} content `error` of an answer or of an event
 * @param {unknown} [result]
 * @returns {ColdframeError}
 */
export function errorOf(content: unknown, result?: unknown): ColdframeError;
/** @param {string} message */
export function broken(message: string): ColdframeError;
/** @typedef {import('./terms.d.ts').WireError} WireError */
/** @typedef {import('./terms.d.ts').NextAction} NextAction */
/** What the server refused, or could not do. `code` is stable: match on it. Codes of a newer server come as they are. */
export class ColdframeError extends Error {
    /**
     * @param {string} code
     * @param {string} message
     * @param {Partial<WireError>} [told] the rest of what the server said
     * @param {unknown} [result] the whole result of a tool, where the call came so far
     */
    constructor(code: string, message: string, told?: Partial<WireError>, result?: unknown);
    /** @type {string} */
    code: string;
    /** @type {string} */
    family: string;
    /** When the same call can succeed. @type {'never' | 'later' | 'after_approval' | 'after_change'} */
    retry: "never" | "later" | "after_approval" | "after_change";
    /** What to do about it. @type {string} */
    hint: string;
    /** @type {Record<string, unknown>} */
    facts: Record<string, unknown>;
    /** Operations that may help, with their arguments. @type {NextAction[]} */
    next_actions: NextAction[];
    /** @type {unknown} */
    result: unknown;
    /** Whether the same call, unchanged, may succeed later. */
    get retryable(): boolean;
}
export type WireError = import("./terms.d.ts").WireError;
export type NextAction = import("./terms.d.ts").NextAction;
