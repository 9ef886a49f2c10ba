import { broken, ColdframeError, errorOf } from './errors.js'

/** @typedef {import('./terms.d.ts').Content} Content */
/** @typedef {import('./terms.d.ts').Route} Route */
/** @typedef {import('./terms.d.ts').Wish} Wish */

const MOST_ATTEMPTS = 3
/** How often a request that may be repeated is sent, the first time included. */
const PAUSE_MS = 100
/** Before the second time; twice as long before the third. */
export const NDJSON = 'application/x-ndjson'
export const FRAMES = 'application/x-coldframe-frames'
const HEADERS = /** @type {Record<string, string>} */ ({
  idempotency_key: 'Idempotency-Key',
  session_id: 'Coldframe-Session',
  sha256: 'Coldframe-Sha256',
  upload_length: 'Coldframe-Upload-Length',
  upload_offset: 'Coldframe-Upload-Offset',
})
/** By their names among the options; `if_version` and `source` are encoded as well. */
const WAITS = ['wait_s', 'queue_s']
/** What of a query asks the server to be silent for so long. */
const PIECE_BYTES = 64 * 1024
/** Of a body that is sent piece by piece, so that it can be seen whether the server takes it. */
/** How what still reads an answer knows whether its caller has left. @type {WeakMap<Response, Ending>} */
const endings = new WeakMap()

/** Whether somebody still waits for an answer: its caller may leave, and its time may be over. */
class Ending {
  /**
   * @param {AbortSignal | undefined} wanted
   * @param {number | undefined} patience_s
   */
  constructor(wanted, patience_s) {
    this._wanted = wanted
    this._patience_s = patience_s
    this._controller = new AbortController()
    this.signal = this._controller.signal
    this.isOver = false
    this._hasBegun = false
    this._leave = () => this._controller.abort(wanted?.reason)
    if (wanted?.aborted) this._leave()
    wanted?.addEventListener('abort', this._leave)
    this.goOn()
  }

  /** The server has something to do from now on. */
  goOn() {
    if (this._patience_s === undefined || this._hasBegun) return
    this.stay()
    this._timer = setTimeout(() => {
      this.isOver = true
      this._controller.abort(new Error(`no answer within ${this._patience_s} s`))
    }, this._patience_s * 1000)
  }

  /** It is not the server that is waited for. */
  stay() {
    clearTimeout(this._timer)
  }

  /** The answer is there, or its first part: what comes of it is read for as long as it takes. */
  begin() {
    this._hasBegun = true
    this.stay()
  }

  /** Nobody waits any more. A signal may live as long as its program, so nothing may be left on it. */
  end() {
    this.begin()
    this._wanted?.removeEventListener('abort', this._leave)
  }

  /**
   * What to throw where reading an answer has failed: who has left is not told that something broke.
   *
   * @param {string} what
   * @param {unknown} error
   */
  failed(what, error) {
    return this._wanted?.aborted ? this._wanted.reason : broken(`${what}: ${causeOf(error)}`)
  }
}

/** Requests to one server, over the `fetch` of the runtime, which keeps connections. */
export class Transport {
  /**
   * @param {string} url
   * @param {string | undefined} token
   * @param {{ timeout_s?: number, fetch?: typeof fetch }} [options] the longest silence before the head of an answer
   */
  constructor(url, token, options = {}) {
    if (url.includes('@')) {
      // It is not repeated: what stands before the sign may be a password.
      throw new ColdframeError('INVALID_ARGUMENT', 'the address of a server takes no user name and no password', {
        hint: 'give an address such as http://127.0.0.1:4560, and a token beside it',
      })
    }
    if (!/^https?:\/\/[^/]/.test(url)) {
      throw new ColdframeError('INVALID_ARGUMENT', `\`${url}\` is no address of a server`, {
        hint: 'give one such as http://127.0.0.1:4560',
      })
    }
    this.url = url
    this.timeout_s = options.timeout_s
    this._fetch = options.fetch ?? fetch
    /** @type {Record<string, string>} */
    this._headers = token ? { Authorization: `Bearer ${token}` } : {}
    /** Makes the object of a sandbox; set by whoever knows its class. @type {(info: any) => any} */
    this.makeSandbox = (info) => info
  }

  /**
   * The answer as soon as its head is there. Throws what it says if it is an error.
   *
   * @param {string} method
   * @param {string} path
   * @param {Wish} [wish]
   * @returns {Promise<Response>}
   */
  async request(method, path, wish = {}) {
    const headers = new Headers({ ...this._headers, ...wish.headers })
    let body = wish.body
    if (wish.payload !== undefined) {
      body = JSON.stringify(wish.payload)
      headers.set('Content-Type', 'application/json')
    }
    const isWhole = body === undefined || typeof body === 'string' || body instanceof Uint8Array || body instanceof Blob
    const safe = wish.repeatable || method === 'GET' || headers.has('Idempotency-Key')
    const patience_s = this.timeout_s === undefined ? undefined : this.timeout_s + waitOf(wish.query)
    for (let attempt = 1; ; attempt += 1) {
      const ending = new Ending(wish.signal, patience_s)
      let isAnswered = false
      try {
        /** @type {Record<string, unknown>} */
        const settings = { method, headers, body: sentOf(body, ending, patience_s !== undefined), redirect: 'manual', signal: ending.signal }
        if (settings.body instanceof ReadableStream) settings.duplex = 'half'
        const answer = await this._fetch(this.url + path + queryOf(wish.query), /** @type {RequestInit} */ (settings))
        ending.begin()
        endings.set(answer, ending)
        if (leadsAway(answer)) throw await elsewhere(this.url, answer)
        if (answer.status >= 400) throw await refusalOf(answer, wish.signal)
        isAnswered = true
        return answer
      } catch (error) {
        if (error instanceof ColdframeError) throw error
        if (wish.signal?.aborted) throw error
        if (nobodyListens(error)) {
          throw new ColdframeError('UNAVAILABLE', `no server answers at ${this.url}: ${causeOf(error)}`, {
            hint: 'start one with `coldframe up`, or set COLDFRAME_URL',
          })
        }
        if (!safe || !isWhole || ending.isOver || attempt >= MOST_ATTEMPTS) {
          throw broken(`the connection to ${this.url} broke before the answer: ${causeOf(error)}`)
        }
      } finally {
        if (!isAnswered) ending.end()
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * attempt))
    }
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {Wish} [wish]
   * @returns {Promise<any>}
   */
  async json(method, path, wish = {}) {
    const answer = await this.request(method, path, wish)
    const ending = endings.get(answer)
    try {
      return await answer.json()
    } catch (error) {
      const what = 'the answer of the server broke off, or is no JSON'
      throw ending?.failed(what, error) ?? broken(`${what}: ${causeOf(error)}`)
    } finally {
      ending?.end()
    }
  }

  /**
   * One call of an operation of the API.
   *
   * @param {Route} route
   * @param {Record<string, string>} names what stands in its path
   * @param {unknown} body
   * @param {Record<string, any>} options
   * @returns {Promise<any>}
   */
  call(route, names, body, options) {
    return this.json(route.method, pathOf(route.path, names), this._wish(route, body, options))
  }

  /**
   * The same where bytes come.
   *
   * @param {Route} route
   * @param {Record<string, string>} names
   * @param {Record<string, any>} options
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  async *bytes(route, names, options) {
    yield* partsOf(await this.request(route.method, pathOf(route.path, names), this._wish(route, undefined, options)))
  }

  /**
   * The same where events come, an object a line.
   *
   * @param {Route} route
   * @param {Record<string, string>} names
   * @param {unknown} body
   * @param {Record<string, any>} options
   * @returns {AsyncGenerator<any, void, undefined>}
   */
  async *events(route, names, body, options) {
    const wish = this._wish(route, body, options)
    wish.headers = { ...wish.headers, Accept: NDJSON }
    for await (const line of linesOf(await this.request(route.method, pathOf(route.path, names), wish))) {
      const event = JSON.parse(line)
      if (event.event === 'error' && typeof event.error === 'object') throw errorOf(event.error)
      yield event
    }
  }

  /**
   * @param {Route} route
   * @param {unknown} body
   * @param {Record<string, any>} options
   * @returns {Wish}
   */
  _wish(route, body, options) {
    /** @type {Record<string, unknown>} */
    const query = {}
    for (const name of route.query ?? []) query[name] = options[name]
    const headers = headersOf(route.headers ?? [], options)
    /** @type {Wish} */
    const wish = { query, headers, repeatable: route.repeatable, signal: options.signal }
    if (body === undefined) return wish
    if (route.body === undefined || route.body === 'application/json') return { ...wish, payload: body }
    return { ...wish, body: /** @type {Content} */ (body), headers: { ...headers, 'Content-Type': route.body } }
  }
}

/**
 * @param {readonly string[]} names
 * @param {Record<string, any>} options
 * @returns {Record<string, string>}
 */
export function headersOf(names, options) {
  /** @type {Record<string, string>} */
  const headers = {}
  for (const name of names) {
    let value = options[name]
    if (name === 'idempotency_key') value ??= makeKey()
    if (value === undefined || value === null) continue
    if (name === 'if_version') headers['If-Match'] = `"${value}"`
    else if (name === 'source') headers['Coldframe-Source'] = encodeURIComponent(value)
    else headers[/** @type {string} */ (HEADERS[name])] = String(value)
  }
  return headers
}

/** An idempotency key that no other call has. */
export function makeKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, '0')).join('')
}

/**
 * @param {string} template
 * @param {Record<string, string>} names
 */
export function pathOf(template, names) {
  return template.replace(/\{(\w+)\}/g, (_, name) => {
    if (typeof names[name] !== 'string') {
      throw new ColdframeError('INVALID_ARGUMENT', `\`${name}\` is left out`, { hint: 'name one that there is' })
    }
    const value = names[name]
    if (name === 'path') return encodePath(value)
    if (value === '' || value === '.' || value === '..') {
      throw new ColdframeError('INVALID_ARGUMENT', `\`${value}\` is no ${name}`, { hint: 'name one that there is' })
    }
    return encodePart(value)
  })
}

/**
 * A path of the workspace as text of an address; its slashes stay. Steps up are taken here, since a runtime would take them in the
 * whole address.
 *
 * @param {string} path
 */
export function encodePath(path) {
  const parts = []
  for (const part of path.split('/')) {
    if (part === '..') {
      if (parts.length === 0) throw new ColdframeError('OUTSIDE_WORKSPACE', `\`${path}\` is outside the workspace`)
      parts.pop()
    } else if (part !== '.') {
      parts.push(encodePart(part))
    }
  }
  return parts.join('/')
}

/**
 * Byte for byte: what is no UTF-8 in a name comes in JSON as lone halves of pairs, U+DC80 to U+DCFF, and goes back as its byte.
 *
 * @param {string} part
 */
function encodePart(part) {
  return Array.from(part, (sign) => {
    const code = /** @type {number} */ (sign.codePointAt(0))
    return code >= 0xdc80 && code <= 0xdcff ? `%${(code - 0xdc00).toString(16)}` : encodeURIComponent(sign)
  }).join('')
}

/** @param {Record<string, unknown> | undefined} query */
function queryOf(query) {
  const pairs = new URLSearchParams()
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) pairs.append(name, String(one))
    }
  }
  const text = pairs.toString()
  return text && `?${text}`
}

/** @param {Record<string, unknown> | undefined} query */
function waitOf(query) {
  return WAITS.reduce((sum, name) => sum + (Number(query?.[name] ?? 0) || 0), 0)
}

/**
 * A body as `fetch` takes it. Where the silence of the server is measured, a large one goes piece by piece: who sends a file for an hour
 * waits for no answer meanwhile.
 *
 * @param {Content | undefined} body
 * @param {Ending} ending
 * @param {boolean} isTimed
 * @returns {BodyInit | ReadableStream<Uint8Array> | undefined}
 */
function sentOf(body, ending, isTimed) {
  if (body === undefined) return undefined
  if (typeof body === 'string' || body instanceof Uint8Array || body instanceof Blob) {
    const size = body instanceof Blob ? body.size : body.length
    if (!isTimed || size <= PIECE_BYTES) return /** @type {BodyInit} */ (body)
    return streamOf(body instanceof Blob ? body.stream() : piecesOf(typeof body === 'string' ? new TextEncoder().encode(body) : body), ending)
  }
  return streamOf(body, ending)
}

/** @param {Uint8Array} bytes */
async function* piecesOf(bytes) {
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield bytes.subarray(at, at + PIECE_BYTES)
}

/**
 * @param {AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>} parts
 * @param {Ending} ending
 * @returns {ReadableStream<Uint8Array>}
 */
function streamOf(parts, ending) {
  const iterator = /** @type {AsyncIterable<Uint8Array>} */ (parts)[Symbol.asyncIterator]()
  return new ReadableStream({
    async pull(controller) {
      ending.stay() // what comes next is waited for here
      const { done, value } = await iterator.next()
      ending.goOn()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    async cancel() {
      await iterator.return?.()
    },
  })
}

/**
 * Whether another address is to be asked. It is not: a token would go there.
 *
 * @param {Response} answer
 */
function leadsAway(answer) {
  return answer.type === 'opaqueredirect' || (answer.status >= 300 && answer.status < 400 && answer.status !== 304)
}

/**
 * @param {string} url
 * @param {Response} answer
 */
async function elsewhere(url, answer) {
  await answer.body?.cancel().catch(() => undefined)
  return new ColdframeError('UNAVAILABLE', `what answers at ${url} leads to another address, which is not followed`, {
    hint: 'is this a Coldframe server? Give the address that it leads to, if that is one',
  })
}

/**
 * @param {Response} answer
 * @param {AbortSignal | undefined} signal
 */
async function refusalOf(answer, signal) {
  const content = await answer.json().catch(() => undefined)
  if (signal?.aborted) throw signal.reason
  if (typeof content?.error !== 'object') {
    return new ColdframeError('UNAVAILABLE', `the server answered ${answer.status} without an error object`, {
      hint: 'is this a Coldframe server?',
    })
  }
  return errorOf(content.error, content.result)
}

/**
 * The body as it arrives. Leaving early gives up the connection.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
 */
export async function* partsOf(answer) {
  const ending = endings.get(answer)
  const reader = answer.body?.getReader()
  try {
    while (reader !== undefined) {
      const { done, value } = await reader.read().catch((error) => {
        const what = 'the connection to the server broke within the answer'
        throw ending?.failed(what, error) ?? broken(`${what}: ${causeOf(error)}`)
      })
      if (done) return
      if (value.length) yield value
    }
  } finally {
    ending?.end()
    await reader?.cancel().catch(() => undefined)
  }
}

/**
 * The body line by line, without line ends.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<string, void, undefined>}
 */
export async function* linesOf(answer) {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const part of partsOf(answer)) {
    const lines = (rest + decoder.decode(part, { stream: true })).split('\n')
    rest = lines.pop() ?? ''
    yield* lines
  }
  if (rest) yield rest
}

/**
 * The body as frames of a head and a body, each after both lengths.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<{ event: any, data: Uint8Array<ArrayBuffer> }, void, undefined>}
 */
export async function* framesOf(answer) {
  /** @type {Uint8Array<ArrayBuffer>[]} */
  let waiting = []
  let there = 0
  let wanted = 8
  for await (const part of partsOf(answer)) {
    waiting.push(part)
    there += part.length
    if (there < wanted) continue
    const all = joined(waiting)
    const view = new DataView(all.buffer, all.byteOffset)
    let at = 0
    wanted = 8
    while (there - at >= 8) {
      const middle = at + 8 + view.getUint32(at)
      const end = middle + view.getUint32(at + 4)
      if (there < end) {
        wanted = end - at
        break
      }
      yield { event: JSON.parse(new TextDecoder().decode(all.subarray(at + 8, middle))), data: all.slice(middle, end) }
      at = end
    }
    waiting = at < there ? [all.subarray(at)] : []
    there -= at
  }
  if (there) throw broken('the answer of the server ended within an event')
}

/**
 * @param {readonly Uint8Array<ArrayBuffer>[]} parts
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function joined(parts) {
  if (parts.length === 1) return /** @type {Uint8Array<ArrayBuffer>} */ (parts[0])
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    all.set(part, at)
    at += part.length
  }
  return all
}

/**
 * @param {unknown} error what `fetch` threw
 * @returns {string}
 */
function causeOf(error) {
  const causes = []
  for (let one = /** @type {any} */ (error); one && causes.length < 4; one = one.cause) causes.push(one.code ?? one.message ?? String(one))
  return [...new Set(causes)].join(': ')
}

/**
 * Whether no connection was made, so that nothing was asked of anybody.
 *
 * @param {unknown} error
 */
function nobodyListens(error) {
  return /ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|UND_ERR_CONNECT_TIMEOUT|onnection refused|dns error/.test(causeOf(error))
}
