import { createHash } from 'node:crypto'
import { base64Of, commandEvents, Job, OutputWindow, wholeOf } from './commands.js'
import { broken, ColdframeError, errorOf } from './errors.js'
import { contentOf, Files } from './files.js'
import { Git, Pipeline, SandboxOperations } from './operations.js'
import { encodePath, FRAMES, framesOf, headersOf, makeKey, NDJSON, partsOf, pathOf } from './transport.js'

/** @typedef {import('./transport.js').Transport} Transport */
/** @typedef {import('./terms.d.ts').Schemas} Schemas */
/** @typedef {import('./terms.d.ts').Content} Content */
/** @typedef {import('./terms.d.ts').CommandEvent} CommandEvent */
/** @typedef {import('./terms.d.ts').ToolName} ToolName */
/** @typedef {import('./terms.d.ts').Calling} Calling */
/** @template {ToolName} T @typedef {import('./terms.d.ts').Arguments<T>} Arguments */
/** @template {ToolName} T @typedef {import('./terms.d.ts').Result<T>} Result */
/** @template T @typedef {import('./terms.d.ts').Answered<T>} Answered */
/** @typedef {Calling & { session_id?: string, idempotency_key?: string, snapshot?: string }} CallOptions */
/** @typedef {Omit<Arguments<'run_command'>, 'command' | 'stdin_base64' | 'stdin'> & { stdin?: string | Uint8Array } & CallOptions} CommandOptions */

const READING = new Set(['list_directory', 'list_path', 'read_file', 'read_path', 'search_files', 'stat_path'])
/** Tools that change nothing: a call repeated over a broken connection needs no key. */
const WAIT_S = 30
/** How long the server lets one question about an end wait. */
const PART_BYTES = 256 * 1024
/** Most bytes of input in one request; more is sent in several. */
const UPLOAD_PART_BYTES = 32 * 1024 * 1024
/** Of an upload in parts: what is sent at once. */
const MOST_ATTEMPTS = 4
/** How often one transfer takes up again what broke, without anything more having come through. */
const CALLING = ['session_id', 'idempotency_key', 'snapshot', 'signal']

/** One sandbox: its tools, its files as bytes of any size, its commands, its state. */
export class Sandbox extends SandboxOperations {
  /**
   * @param {Transport} transport
   * @param {Schemas['SandboxInfo']} info
   */
  constructor(transport, info) {
    super(transport, { sandbox_id: info.sandbox_id })
    /** What was told of it last; `refresh` asks again. */
    this.info = info
    this.id = info.sandbox_id
    /** Files anywhere in it. */
    this.files = new Files(this)
    /** Git repositories of its workspace. */
    this.git = new Git(transport, { sandbox_id: info.sandbox_id })
    this._path = pathOf('/v1/sandboxes/{sandbox_id}', { sandbox_id: info.sandbox_id })
  }

  /** Ends it where its block ends (`await using`); the agent's workspace stays, and a temporary one goes. */
  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.terminate({ discard: true })
  }

  /**
   * Call any tool by name.
   *
   * @param {string} tool
   * @param {Record<string, unknown>} given its arguments
   * @param {CallOptions} [options] with `snapshot` it reads the files of that in place of those of the sandbox
   * @returns {Promise<Schemas['ToolResult'] & { value: any }>}
   */
  async call(tool, given, options = {}) {
    const reads = READING.has(tool)
    const key = options.idempotency_key ?? (reads ? undefined : makeKey())
    const headers = headersOf(key === undefined ? ['session_id'] : ['session_id', 'idempotency_key'], { ...options, idempotency_key: key })
    const path = `${this._path}/tools/${encodeURIComponent(tool)}`
    const query = { snapshot: options.snapshot }
    const result = await this._transport.json('POST', path, { payload: given, headers, query, repeatable: reads, signal: options.signal })
    if (result.error) throw errorOf(result.error, result)
    return result
  }

  /**
   * @template {ToolName} T
   * @param {T} tool
   * @param {Record<string, unknown>} given
   * @returns {Promise<Answered<Result<T>['value']>>}
   */
  async _answer(tool, given) {
    /** @type {Record<string, unknown>} */
    const sent = {}
    /** @type {CallOptions} */
    const options = {}
    for (const [name, value] of Object.entries(given)) Object.assign(CALLING.includes(name) ? options : sent, { [name]: value })
    const result = await this.call(tool, sent, options)
    return Object.defineProperty(result.value, 'result', { value: result })
  }

  /**
   * Run a shell line (text) or a program with arguments (list) and return how it went, output complete. A failing program is an
   * answer, not an error.
   *
   * @param {string | string[]} command
   * @param {CommandOptions} [options]
   * @returns {Promise<Answered<Schemas['RunCommandAnswer']>>}
   */
  runCommand(command, options = {}) {
    return this._answer('run_command', { ...commandOf(command, options) })
  }

  /**
   * Start a command and return as soon as it runs. It goes on whoever leaves, and its record stays.
   *
   * @param {string | string[]} command
   * @param {CommandOptions} [options]
   * @returns {Promise<Job>}
   */
  async start(command, options = {}) {
    const begun = await this._answer('run_command', { ...commandOf(command, options), background: true })
    return this.job(begun.command_id)
  }

  /**
   * Run a command and yield its events while it runs, then the whole result. Leaving early does not end it. A connection that
   * breaks is taken up again behind the last chunk; the last event is then `ended`, with how it ended.
   *
   * @param {string | string[]} command
   * @param {CommandOptions} [options]
   * @returns {AsyncGenerator<CommandEvent, void, undefined>}
   */
  run(command, options = {}) {
    const { session_id, idempotency_key, snapshot, signal, ...given } = commandOf(command, options)
    const whose = idempotency_key === undefined ? ['session_id'] : ['session_id', 'idempotency_key']
    const headers = { ...headersOf(whose, { session_id, idempotency_key }), Accept: `${FRAMES}, ${NDJSON}` }
    const begin = () => this._transport.request('POST', `${this._path}/tools/run_command`, { payload: given, headers, signal })
    return commandEvents(this._transport, `${this._path}/commands`, { begin, signal })
  }

  /**
   * The events of a command after chunk `after_seq`, until it ends, over connections that break too.
   *
   * @param {string} command_id
   * @param {{ after_seq?: number, signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<CommandEvent, void, undefined>}
   */
  follow(command_id, options = {}) {
    return commandEvents(this._transport, `${this._path}/commands`, { command_id, ...options })
  }

  /**
   * The handle on a command that was started, by whomever and whenever. Nothing is asked yet.
   *
   * @param {string} command_id
   */
  job(command_id) {
    return new Job(this, command_id)
  }

  /**
   * The handle on a pipeline that was started.
   *
   * @param {string} pipeline_id
   */
  pipeline(pipeline_id) {
    return new Pipeline(this._transport, { sandbox_id: this.id, pipeline_id })
  }

  /**
   * A command once its end is recorded, or as it is after `timeout_s`: then its `result` is null.
   *
   * @param {string} command_id
   * @param {{ timeout_s?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Schemas['CommandInfo']>}
   */
  async wait(command_id, options = {}) {
    let left = options.timeout_s ?? Infinity
    for (;;) {
      const wait_s = Math.max(0, Math.min(WAIT_S, Math.ceil(left)))
      const info = await this.command(command_id, { wait_s, signal: options.signal })
      left -= wait_s
      if (info.state !== 'running' || left <= 0) return info
    }
  }

  /**
   * Raw bytes of one stream, at most 16 MiB from `offset`.
   *
   * @param {string} command_id
   * @param {'stdout' | 'stderr'} [stream]
   * @param {{ offset?: number, length?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<OutputWindow>}
   */
  async output(command_id, stream = 'stdout', options = {}) {
    const path = `${this._path}/commands/${encodeURIComponent(command_id)}/output`
    const query = { stream, offset: options.offset, length: options.length }
    const answer = await this._transport.request('GET', path, { query, signal: options.signal })
    return new OutputWindow(command_id, stream, answer.headers, await wholeOf(answer))
  }

  /**
   * Send all of `data` to the open input of a command, and with `end` its end of file; waits while it does not read. `offset` is the
   * place of the first byte in the whole input: what is sent twice from the same place arrives once.
   *
   * @param {string} command_id
   * @param {string | Uint8Array} data
   * @param {{ offset?: number, end?: boolean, signal?: AbortSignal }} [options]
   * @returns {Promise<Schemas['InputState']>}
   */
  async sendStdin(command_id, data, options = {}) {
    const content = typeof data === 'string' ? new TextEncoder().encode(data) : data
    const offset = options.offset ?? (await this.command(command_id)).activity?.stdin?.taken ?? 0
    const path = `${this._path}/commands/${encodeURIComponent(command_id)}/stdin`
    for (let sent = 0; ; ) {
      const part = content.slice(sent, sent + PART_BYTES)
      const isLast = sent + part.length === content.length
      const query = { offset: offset + sent, end: options.end && isLast ? true : undefined }
      const state = await this._transport.json('POST', path, { query, body: part, repeatable: true, signal: options.signal })
      sent = state.taken - offset
      if (sent >= content.length) return state
    }
  }

  /**
   * Write or replace a file atomically. For content of any size see `upload`.
   *
   * @param {string} path
   * @param {string | Uint8Array} content
   * @param {{ if_version?: string, create_only?: boolean, mode?: number } & CallOptions} [options]
   * @returns {Promise<Answered<Schemas['WriteFileAnswer']>>}
   */
  writeFile(path, content, options = {}) {
    return this._answer('write_file', { path, ...contentOf(content), ...options })
  }

  /**
   * Read a file, or `length` bytes of it from `offset`; with `snapshot` as it is in that. So can be read where nothing runs any more.
   * `bytesOfFile` gives what was read as bytes.
   *
   * @param {string} path
   * @param {Omit<Arguments<'read_file'>, 'path'> & CallOptions} [options]
   * @returns {Promise<Answered<Schemas['ReadFileAnswer']>>}
   */
  readFile(path, options = {}) {
    return this._answer('read_file', { path, ...options })
  }

  /**
   * Replace `old`, which must occur exactly once unless `replace_all`, by another text.
   *
   * @param {string} path
   * @param {string} old
   * @param {string} by
   * @param {{ replace_all?: boolean, if_version?: string } & CallOptions} [options]
   * @returns {Promise<Answered<Schemas['EditFileAnswer']>>}
   */
  editFile(path, old, by, options = {}) {
    return this._answer('edit_file', { path, old, new: by, ...options })
  }

  /**
   * Make replacements in order, all or none.
   *
   * @param {string} path
   * @param {{ old: string, new: string }[]} edits
   * @param {{ if_version?: string } & CallOptions} [options]
   * @returns {Promise<Answered<Schemas['EditFileAnswer']>>}
   */
  editFileMany(path, edits, options = {}) {
    return this._answer('edit_file', { path, edits, ...options })
  }

  /**
   * At most `max_entries` of what lies there. A directory is read on by `next_after` of the answer, given as `after`.
   *
   * @param {string} [path]
   * @param {Omit<Arguments<'list_directory'>, 'path'> & CallOptions} [options]
   * @returns {Promise<Answered<Schemas['ListDirectoryAnswer']>>}
   */
  listDirectory(path = '', options = {}) {
    return this._answer('list_directory', { path, ...options })
  }

  /**
   * @param {string} pattern
   * @param {string} [path]
   * @param {Omit<Arguments<'search_files'>, 'path' | 'pattern'> & CallOptions} [options]
   * @returns {Promise<Answered<Schemas['SearchFilesAnswer']>>}
   */
  searchFiles(pattern, path = '', options = {}) {
    return this._answer('search_files', { pattern, path, ...options })
  }

  /**
   * Replace a file by `content`, streamed. A broken upload changes nothing. What is written is compared with what was sent by
   * digest: before the file is replaced where the digest is known, else afterwards.
   *
   * @param {string} path
   * @param {Content} content
   * @param {{ if_version?: string, source?: string, sha256?: string } & Calling} [options]
   * @returns {Promise<Answered<Schemas['WriteFileAnswer']>>}
   */
  async upload(path, content, options = {}) {
    const digest = createHash('sha256')
    /** @type {Content} */
    let body
    let { sha256 } = options
    if (typeof content === 'string' || content instanceof Uint8Array) {
      body = typeof content === 'string' ? new TextEncoder().encode(content) : content
      digest.update(body)
      sha256 ??= digest.copy().digest('hex')
    } else {
      body = counted(content instanceof Blob ? content.stream() : content, digest)
    }
    const headers = headersOf(['if_version', 'source', 'sha256'], { ...options, sha256 })
    const result = await this._transport.json('PUT', this._file(path), { body, headers, signal: options.signal })
    if (result.value.sha256 !== digest.digest('hex')) throw broken(`what is at \`${result.value.path}\` now is not what was sent`)
    return Object.defineProperty(result.value, 'result', { value: result })
  }

  /**
   * Replace a file by a local one of any size. What breaks off is taken up again, now or when the same file is sent to the same place
   * within a day; until all of it has come, with the right digest, nothing is changed.
   *
   * @param {string} local
   * @param {string} path
   * @param {{ if_version?: string, source?: string, progress?: (there: number, all: number) => void } & Calling} [options]
   * @returns {Promise<Answered<Schemas['WriteFileAnswer']>>}
   */
  async uploadFile(local, path, options = {}) {
    const { open } = await import('node:fs/promises')
    const file = await open(local, 'r')
    try {
      const digest = createHash('sha256')
      let upload_length = 0
      for await (const part of piecesOf(file, 0, Infinity)) {
        digest.update(part)
        upload_length += part.length
      }
      const asked = { ...options, sha256: digest.digest('hex'), upload_length }
      let offset = upload_length
      let furthest = -1
      let attempts = 0
      for (;;) {
        // First it is asked what is there already, by a part without content at the end.
        const headers = headersOf(['if_version', 'source', 'sha256', 'upload_length', 'upload_offset'], { ...asked, upload_offset: offset })
        const part = piecesOf(file, offset, Math.min(UPLOAD_PART_BYTES, upload_length - offset))
        try {
          const result = await this._transport.json('PUT', this._file(path), { body: part, headers, signal: options.signal })
          return Object.defineProperty(result.value, 'result', { value: result })
        } catch (error) {
          const code = error instanceof ColdframeError ? error.code : ''
          const taken = error instanceof ColdframeError ? error.facts.taken : undefined
          if (code === 'CONFLICT' && typeof taken === 'number' && taken >= 0 && taken < upload_length) {
            attempts = taken > furthest ? 0 : attempts + 1
            offset = taken
            furthest = Math.max(taken, furthest)
          } else if (code === 'HOST_UNREACHABLE') {
            attempts += 1
            offset = upload_length
          } else {
            throw error
          }
        }
        if (attempts >= MOST_ATTEMPTS) throw new ColdframeError('UNAVAILABLE', `\`${path}\` could not be sent: ${offset} of ${upload_length} bytes are there`)
        if (offset < upload_length) options.progress?.(offset, upload_length)
      }
    } finally {
      await file.close()
    }
  }

  /**
   * The bytes of a file, or of a range; with `snapshot` as they are in that. All are of one version, and compared by digest before
   * they are given; a connection that breaks is taken up again.
   *
   * @param {string} path
   * @param {{ offset?: number, length?: number, snapshot?: string, if_version?: string } & Calling} [options]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  async *download(path, options = {}) {
    let { offset = 0, length, if_version } = options
    for (let attempts = 0; ; ) {
      try {
        const query = { offset: offset || undefined, length, snapshot: options.snapshot }
        const headers = { ...headersOf(['if_version'], { if_version }), Accept: `${FRAMES}, */*` }
        const answer = await this._transport.request('GET', this._file(path), { query, headers, signal: options.signal })
        if_version = answer.headers.get('coldframe-version') ?? if_version
        for await (const part of checked(answer)) {
          offset += part.length
          length = length === undefined ? undefined : length - part.length
          attempts = 0
          yield part
        }
        return
      } catch (error) {
        const isBreak = error instanceof ColdframeError && error.code === 'HOST_UNREACHABLE'
        if (!isBreak || if_version === undefined || options.signal?.aborted || ++attempts >= MOST_ATTEMPTS) throw error
      }
    }
  }

  /**
   * Put a file of any size into a local one as a whole; how many bytes that is. What breaks off leaves nothing behind.
   *
   * @param {string} path
   * @param {string} local
   * @param {{ snapshot?: string, progress?: (there: number) => void } & Calling} [options]
   * @returns {Promise<number>}
   */
  async downloadFile(path, local, options = {}) {
    const { open, rename, rm } = await import('node:fs/promises')
    const draft = `${local}.${makeKey().slice(0, 16)}.part`
    let size = 0
    try {
      const file = await open(draft, 'wx')
      try {
        for await (const part of this.download(path, options)) {
          await file.writeFile(part)
          size += part.length
          options.progress?.(size)
        }
      } finally {
        await file.close()
      }
      await rename(draft, local)
    } catch (error) {
      await rm(draft, { force: true })
      throw error
    }
    return size
  }

  /**
   * Run code in the context that there is for its language, or in one of its own, and return what it came to. An error that it raises is
   * `error` of the outcome, and none here.
   *
   * @param {string} code
   * @param {Omit<import('./terms.d.ts').Body<'run_cell'>, 'code'> & { session_id?: string } & Calling} [options]
   * @returns {Promise<Answered<Schemas['RunCodeAnswer']>>}
   */
  async runCode(code, options = {}) {
    const { session_id, signal, ...given } = options
    const headers = headersOf(['session_id'], { session_id })
    const result = await this._transport.json('POST', `${this._path}/cells`, { payload: { code, ...given }, headers, signal })
    if (result.error) throw errorOf(result.error, result)
    return Object.defineProperty(result.value, 'result', { value: result })
  }

  /**
   * Like `runCode`, yielding what the cell shows as it does, and last `{event: 'tool_result', result}` with what it came to.
   *
   * @param {string} code
   * @param {Omit<import('./terms.d.ts').Body<'run_cell'>, 'code'> & { session_id?: string } & Calling} [options]
   * @returns {AsyncGenerator<{ event: string, [name: string]: any }, void, undefined>}
   */
  async *codeEvents(code, options = {}) {
    const { session_id, signal, ...given } = options
    const route = { method: 'POST', path: '/v1/sandboxes/{sandbox_id}/cells', headers: ['session_id'] }
    let isWhole = false
    for await (const event of this._transport.events(route, this._names, { code, ...given }, { session_id, signal })) {
      isWhole = event.event === 'tool_result'
      if (isWhole && event.result.error) throw errorOf(event.result.error, event.result)
      yield event
    }
    if (!isWhole) throw broken('the events of the cell stopped before its end')
  }

  /** Ask for the state now, and keep it as `info`. */
  async refresh() {
    this.info = (await this._transport.json('GET', this._path))
    return this.info
  }

  /** Return once it is not `queued` any more: it runs, it `failed` because its time was over, or it was terminated. */
  async waitForTurn() {
    do this.info = await this._transport.json('GET', this._path, { query: { wait_s: WAIT_S } })
    while (this.info.state.state === 'queued')
    return this.info
  }

  /** @param {string} path */
  _file(path) {
    return `${this._path}/files/${encodePath(path)}`
  }
}

/**
 * @param {string | string[]} command
 * @param {CommandOptions} options
 * @returns {Arguments<'run_command'> & CallOptions}
 */
function commandOf(command, options) {
  const { stdin, ...others } = options
  if (stdin === undefined) return { command, ...others }
  return { command, ...others, ...(typeof stdin === 'string' ? { stdin } : { stdin_base64: base64Of(stdin) }) }
}

/**
 * @param {AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>} content
 * @param {import('node:crypto').Hash} digest
 * @returns {AsyncGenerator<Uint8Array, void, undefined>}
 */
async function* counted(content, digest) {
  for await (const part of /** @type {AsyncIterable<Uint8Array>} */ (content)) {
    digest.update(part)
    yield part
  }
}

/**
 * @param {import('node:fs/promises').FileHandle} file
 * @param {number} offset
 * @param {number} length
 * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
 */
async function* piecesOf(file, offset, length) {
  while (length > 0) {
    const piece = new Uint8Array(Math.min(1024 * 1024, length))
    const { bytesRead } = await file.read(piece, 0, piece.length, offset)
    if (bytesRead === 0 && length === Infinity) return
    if (bytesRead === 0) throw new ColdframeError('UNFIT', 'the local file became shorter while it was sent')
    yield piece.subarray(0, bytesRead)
    offset += bytesRead
    length -= bytesRead
  }
}

/**
 * The content of a download, each part only if the digest of all so far is as the server says.
 *
 * @param {Response} answer
 * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
 */
async function* checked(answer) {
  if (answer.headers.get('content-type') !== FRAMES) {
    yield* partsOf(answer)
    return
  }
  const digest = createHash('sha256')
  let isWhole = false
  for await (const { event, data } of framesOf(answer)) {
    if (event.event === 'error') throw errorOf(event.error)
    digest.update(data)
    if (event.sha256 !== digest.copy().digest('hex')) throw broken('what arrived is not what was sent')
    isWhole = event.event === 'end'
    if (data.length) yield data
  }
  if (!isWhole) throw broken('the download stopped before its end')
}
