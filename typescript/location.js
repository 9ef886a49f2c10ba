import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import process from 'node:process'

const DEFAULT_URL = 'http://127.0.0.1:4560'

/**
 * Fill in what the caller left out: from COLDFRAME_URL and COLDFRAME_TOKEN, then `~/.config/coldframe/client.json`, then the file
 * that `coldframe up` leaves for the user it runs for. A token of a file is used for the address in the same file alone.
 *
 * @param {string | undefined} [url]
 * @param {string | undefined} [token]
 * @returns {{ url: string, token: string | undefined }}
 */
export function findLocation(url, token) {
  url = url || variable('COLDFRAME_URL')
  token = token || variable('COLDFRAME_TOKEN')
  if (url && token) return { url: bare(url), token }
  for (const path of files()) {
    const found = read(path)
    if (found !== undefined && (url === undefined || bare(url) === found.url)) {
      return { url: found.url, token: token ?? found.token }
    }
  }
  return { url: bare(url ?? DEFAULT_URL), token }
}

/** @returns {string[]} */
function files() {
  const home = homedir() || '/'
  const chosen = variable('COLDFRAME_DATA_DIR')
  const own = join(variable('XDG_DATA_HOME') ?? join(home, '.local', 'share'), 'coldframe')
  const data = chosen ?? (process.geteuid?.() === 0 ? '/var/lib/coldframe' : own)
  const settings = variable('XDG_CONFIG_HOME') ?? join(home, '.config')
  return [join(settings, 'coldframe', 'client.json'), join(data, 'control', 'client.json')]
}

/**
 * @param {string} path
 * @returns {{ url: string, token: string } | undefined}
 */
function read(path) {
  try {
    const content = JSON.parse(readFileSync(path, 'utf8'))
    if (typeof content.url !== 'string' || typeof content.token !== 'string') return undefined
    return { url: bare(content.url), token: content.token }
  } catch {
    return undefined
  }
}

/**
 * @param {string} name
 * @returns {string | undefined}
 */
function variable(name) {
  try {
    return process.env[name] || undefined
  } catch {
    return undefined // Deno, which does not let this program read it
  }
}

/** @param {string} url */
function bare(url) {
  return url.replace(/\/+$/, '')
}
