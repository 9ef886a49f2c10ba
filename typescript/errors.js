import { CODES } from './codes.js'

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
  constructor(code, message, told = {}, result = undefined) {
    super(message)
    this.name = 'ColdframeError'
    /** @type {string} */
    this.code = code
    const known = CODES[/** @type {keyof typeof CODES} */ (code)]
    /** @type {string} */
    this.family = told.family ?? known?.family ?? 'infrastructure'
    /** When the same call can succeed. @type {'never' | 'later' | 'after_approval' | 'after_change'} */
    this.retry = told.retry ?? known?.retry ?? 'never'
    /** What to do about it. @type {string} */
    this.hint = told.hint ?? known?.fix ?? ''
    /** @type {Record<string, unknown>} */
    this.facts = told.facts ?? {}
    /** Operations that may help, with their arguments. @type {NextAction[]} */
    this.next_actions = told.next_actions ?? []
    /** @type {unknown} */
    this.result = result
  }

  /** Whether the same call, unchanged, may succeed later. */
  get retryable() {
    return this.retry === 'later'
  }
}

/**
 * @param {unknown} content `error` of an answer or of an event
 * @param {unknown} [result]
 * @returns {ColdframeError}
 */
export function errorOf(content, result) {
  const told = /** @type {Partial<WireError>} */ (typeof content === 'object' && content !== null ? content : {})
  const code = typeof told.code === 'string' ? told.code : 'INTERNAL'
  return new ColdframeError(code, typeof told.message === 'string' ? told.message : code, told, result)
}

/** @param {string} message */
export function broken(message) {
  return new ColdframeError('HOST_UNREACHABLE', message)
}
