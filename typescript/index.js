// @ts-self-types="./index.d.ts"
import { base64Of, bytesOf, Job, OutputWindow } from './commands.js'
import { CODES } from './codes.js'
import { ColdframeError } from './errors.js'
import { bytesOfFile, Files } from './files.js'
import { findLocation } from './location.js'
import * as operations from './operations.js'
import { Sandbox } from './sandbox.js'
import { joined, Transport } from './transport.js'

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
  constructor(options = {}) {
    const { url, token } = findLocation(options.url, options.token)
    const transport = new Transport(url, token, options)
    transport.makeSandbox = (info) => new Sandbox(transport, info)
    super(transport)
    this.url = url
    this.sandboxes = new operations.Sandboxes(transport)
    this.snapshots = new operations.Snapshots(transport)
    this.templates = new Templates(transport)
    this.agents = new operations.Agents(transport)
    this.ledger = new operations.Ledger(transport)
    this.lineage = new operations.Lineage(transport)
    this.policy = new operations.Policy(transport)
    this.tokens = new operations.Tokens(transport)
    this.credentials = new operations.Credentials(transport)
    this.sessions = new operations.Sessions(transport)
    this.network = new operations.Network(transport)
    this.volumes = new operations.Volumes(transport)
    this.previews = new operations.Previews(transport)
    this.webhooks = new operations.Webhooks(transport)
    this.builds = new operations.Builds(transport)
  }

  /**
   * Run code once, in a sandbox of its own that is gone when this returns, with `files` by name as `inputs/NAME`.
   *
   * @param {string} code
   * @param {Record<string, Uint8Array>} [files]
   * @param {Omit<import('./terms.d.ts').Body<'run_once'>, 'code' | 'files'>} [options]
   * @returns {Promise<import('./terms.d.ts').Answer<'run_once'>>}
   */
  executeOnce(code, files = {}, options = {}) {
    const given = Object.fromEntries(Object.entries(files).map(([name, content]) => [name, base64Of(content)]))
    return this._transport.json('POST', '/v1/once', { payload: { code, files: given, ...options } })
  }
}

/** Systems that sandboxes begin from. */
class Templates extends operations.Templates {
  /**
   * The handle on a build that was started.
   *
   * @param {string} build_id
   */
  getBuild(build_id) {
    return new operations.TemplateBuild(this._transport, { build_id })
  }
}

/**
 * All bytes of a download.
 *
 * @param {AsyncIterable<Uint8Array<ArrayBuffer>>} parts
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function collect(parts) {
  const all = []
  for await (const part of parts) all.push(part)
  return joined(all)
}

export { bytesOf, bytesOfFile, CODES, ColdframeError, Files, Job, operations, OutputWindow, Sandbox }
