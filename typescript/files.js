import { base64Of, bytesOf } from './commands.js'
import { Watch } from './operations.js'

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
  constructor(sandbox) {
    this._sandbox = sandbox
  }

  /**
   * All that is known of a path; of a link, of itself.
   *
   * @param {string} path
   * @param {Whose} [options]
   * @returns {Promise<Schemas['PathEntry']>}
   */
  stat(path, options = {}) {
    return this._value('stat_path', { path, ...options })
  }

  /**
   * A directory, and with `depth` what is below it.
   *
   * @param {string} [path]
   * @param {Listing} [options]
   * @returns {Promise<Schemas['ListPathAnswer']>}
   */
  list(path = '', options = {}) {
    const { depth = 1, ...others } = options
    return this._value('list_path', { path, recursive: depth > 1, max_depth: depth > 1 ? depth : undefined, ...others })
  }

  /**
   * A file, or `length` bytes of it; `bytesOfFile` gives bytes in any case.
   *
   * @param {string} path
   * @param {Range} [options]
   * @returns {Promise<Schemas['ReadFileAnswer']>}
   */
  read(path, options = {}) {
    return this._value('read_path', { path, ...options })
  }

  /**
   * Write or replace a file atomically.
   *
   * @param {string} path
   * @param {string | Uint8Array} content
   * @param {Writing} [options]
   * @returns {Promise<Schemas['WriteFileAnswer']>}
   */
  write(path, content, options = {}) {
    return this._value('write_path', { path, ...contentOf(content), ...options })
  }

  /**
   * With its parents; `created` of the answer is false if it was there already.
   *
   * @param {string} path
   * @param {Whose} [options]
   * @returns {Promise<Schemas['MakeDirectoryAnswer']>}
   */
  makeDirectory(path, options = {}) {
    return this._value('make_directory', { path, ...options })
  }

  /**
   * Rename, or move to another place, whose parents are made. Unless `replace` is false what is there goes.
   *
   * @param {string} path
   * @param {string} target
   * @param {{ replace?: boolean, user?: 'user' | 'root' }} [options]
   * @returns {Promise<Schemas['PathEntry']>}
   */
  async move(path, target, options = {}) {
    return (await this._value('move_path', { path, target, replace: true, ...options })).entry
  }

  /**
   * A file or link, or with `recursive` a directory with all that is in it.
   *
   * @param {string} path
   * @param {{ recursive?: boolean, user?: 'user' | 'root' }} [options]
   * @returns {Promise<void>}
   */
  async remove(path, options = {}) {
    await this._value('remove_path', { path, ...options })
  }

  /**
   * Note from now on what happens in a directory, with `recursive` in all below. It goes on until it is ended, or nobody has asked
   * for ten minutes.
   *
   * @param {string} [path]
   * @param {{ recursive?: boolean, with_info?: boolean }} [options]
   * @returns {Promise<Watch>}
   */
  async watch(path = '', options = {}) {
    const { watch_id } = await this._value('watch_path', { path, ...options })
    return new Watch(this._sandbox._transport, { sandbox_id: this._sandbox.id, watch_id })
  }

  /**
   * @param {string} tool
   * @param {Record<string, unknown>} given
   * @returns {Promise<any>}
   */
  async _value(tool, given) {
    return (await this._sandbox.call(tool, given)).value
  }
}

/**
 * @param {string | Uint8Array} content
 * @returns {{ content: string } | { content_base64: string }}
 */
export function contentOf(content) {
  return typeof content === 'string' ? { content } : { content_base64: base64Of(content) }
}

/**
 * The content of a file that was read, as bytes, whatever form it came in.
 *
 * @param {Schemas['ReadFileAnswer']} found
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function bytesOfFile(found) {
  return found.content === null ? bytesOf(found.content_base64 ?? '') : new TextEncoder().encode(found.content)
}
