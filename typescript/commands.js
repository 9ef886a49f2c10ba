import { broken, ColdframeError, errorOf } from './errors.js'
import { FRAMES, framesOf, joined, linesOf, NDJSON, partsOf } from './transport.js'

/** @typedef {import('./transport.js').Transport} Transport */
/** @typedef {import('./terms.d.ts').CommandEvent} CommandEvent */
/** @typedef {import('./terms.d.ts').Schemas} Schemas */
/** @typedef {import('./sandbox.js').Sandbox} Sandbox */

const MOST_BREAKS = 4
/** How often one reading is taken up again without anything more having come through. */
const PAUSE_MS = 100

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
export async function* commandEvents(transport, base, asked) {
  let { command_id, after_seq = -1, begin } = asked
  let breaks = 0
  let isFirst = true
  for (;;) {
    try {
      const answer = begin !== undefined && isFirst ? await begin() : await follow(transport, base, String(command_id), after_seq, asked.signal)
      for await (const event of eventsOf(answer)) {
        if (event.event === 'started') command_id = event.command_id
        if (event.event === 'output') after_seq = event.seq
        if (event.event !== 'started' || isFirst) yield event
        breaks = 0
        if (event.event === 'ended' && (begin === undefined || !isFirst)) return
        if (event.event === 'result') return
      }
      throw broken('the events of the command stopped before its end')
    } catch (error) {
      const isBreak = error instanceof ColdframeError && ['HOST_UNREACHABLE', 'UNAVAILABLE'].includes(error.code)
      if (!isBreak || command_id === undefined || asked.signal?.aborted || ++breaks > MOST_BREAKS) throw error
      isFirst = false
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * breaks))
    }
  }
}

/**
 * @param {Transport} transport
 * @param {string} base
 * @param {string} command_id
 * @param {number} after_seq
 * @param {AbortSignal | undefined} signal
 */
function follow(transport, base, command_id, after_seq, signal) {
  const headers = { Accept: `${FRAMES}, ${NDJSON}` }
  return transport.request('GET', `${base}/${encodeURIComponent(command_id)}/events`, { query: { after_seq }, headers, signal })
}

/**
 * @param {Response} answer
 * @returns {AsyncGenerator<CommandEvent, void, undefined>}
 */
async function* eventsOf(answer) {
  if (answer.headers.get('content-type') === FRAMES) {
    for await (const { event, data } of framesOf(answer)) yield told(event.event === 'output' ? { ...event, data } : event)
    return
  }
  for await (const line of linesOf(answer)) {
    const event = JSON.parse(line)
    yield told(event.event === 'output' ? { ...event, data: bytesOf(event.data) } : event)
  }
}

/**
 * @param {any} event
 * @returns {CommandEvent}
 */
function told(event) {
  if (event.event === 'error') throw errorOf(event.error)
  return event
}

/**
 * @param {string} text base64, of whichever alphabet
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function bytesOf(text) {
  const plain = atob(text.replaceAll('-', '+').replaceAll('_', '/'))
  return Uint8Array.from(plain, (sign) => sign.charCodeAt(0))
}

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function base64Of(bytes) {
  let text = ''
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768))
  return btoa(text)
}

/** A part of one stream of a command, as it was written. */
export class OutputWindow {
  /**
   * @param {string} command_id
   * @param {'stdout' | 'stderr'} stream
   * @param {Headers} headers
   * @param {Uint8Array<ArrayBuffer>} data
   */
  constructor(command_id, stream, headers, data) {
    this.command_id = command_id
    this.stream = stream
    this.data = data
    this.offset = Number(headers.get('coldframe-offset'))
    const next = headers.get('coldframe-next-offset')
    /** Where the rest begins; null if the command has ended and this is the last of it. @type {number | null} */
    this.next_offset = next === null ? null : Number(next)
    this.total_bytes = Number(headers.get('coldframe-total-bytes'))
    /** Of the whole stream; null while the command runs. @type {string | null} */
    this.sha256 = headers.get('coldframe-sha256')
    this.ended = headers.get('coldframe-ended') === 'true'
    this.label = headers.get('coldframe-label') ?? ''
  }
}

/** One command that was started. It belongs to its sandbox and not to this handle: any number of them can be had. */
export class Job {
  /**
   * @param {Sandbox} sandbox
   * @param {string} id
   */
  constructor(sandbox, id) {
    this._sandbox = sandbox
    this.id = id
    /** @type {number | undefined} */
    this._sent = undefined
  }

  /** How it stands: `status` with what can be done, `activity` while it runs, `result` when it has ended. */
  info() {
    return this._sandbox.command(this.id)
  }

  /**
   * It, once it has ended, or as it is after `timeout_s`.
   *
   * @param {number} [timeout_s]
   */
  wait(timeout_s) {
    return this._sandbox.wait(this.id, { timeout_s })
  }

  /**
   * All that it has written to one stream until now.
   *
   * @param {'stdout' | 'stderr'} [stream]
   * @returns {Promise<Uint8Array<ArrayBuffer>>}
   */
  async output(stream = 'stdout') {
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const parts = []
    for await (const part of this.outputParts(stream)) parts.push(part)
    return joined(parts)
  }

  /**
   * The same in parts of at most 16 MiB, for more than fits into memory.
   *
   * @param {'stdout' | 'stderr'} [stream]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  async *outputParts(stream = 'stdout') {
    /** @type {number | null} */
    let offset = 0
    while (offset !== null) {
      /** @type {OutputWindow} */
      const found = await this._sandbox.output(this.id, stream, { offset })
      yield found.data
      offset = found.data.length ? found.next_offset : null
    }
  }

  /**
   * Its events after chunk `after_seq`, until it ends, over connections that break too.
   *
   * @param {{ after_seq?: number, signal?: AbortSignal }} [options]
   */
  follow(options = {}) {
    return this._sandbox.follow(this.id, options)
  }

  /**
   * Send input behind what this handle has sent, or else behind all there is.
   *
   * @param {string | Uint8Array} data
   * @param {{ end?: boolean }} [options]
   * @returns {Promise<Schemas['InputState']>}
   */
  async sendStdin(data, options = {}) {
    const state = await this._sandbox.sendStdin(this.id, data, { offset: this._sent, ...options })
    this._sent = state.taken
    return state
  }

  /** Have it read the end of its input. */
  closeStdin() {
    return this.sendStdin('', { end: true })
  }

  /**
   * Signal its whole process tree.
   *
   * @param {number} [signal]
   */
  async signal(signal = 15) {
    await this._sandbox.signal(this.id, { signal })
  }

  /** End its whole process tree: TERM, then KILL. A second time, or after its end, it changes no result. */
  async cancel() {
    await this._sandbox.signal(this.id, { cancel: true })
  }

  /**
   * Give its terminal another size.
   *
   * @param {number} columns
   * @param {number} rows
   */
  async resize(columns, rows) {
    await this._sandbox.resize(this.id, { columns, rows })
  }

  /**
   * Hold it to other limits, each counted from its start.
   *
   * @param {{ timeout_s?: number, idle_timeout_s?: number, cpu_s?: number }} limits
   */
  async extend(limits) {
    await this._sandbox.extendCommand(this.id, limits)
  }
}

/**
 * @param {Response} answer
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function wholeOf(answer) {
  const parts = []
  for await (const part of partsOf(answer)) parts.push(part)
  return joined(parts)
}
