// What a script is given on its standard input, and the sandbox that it is about.
import { Coldframe } from '../../../typescript/index.js'

let text = ''
for await (const part of process.stdin) text += part
export const given = JSON.parse(text)
export const client = new Coldframe()
export const sandbox = given.sandbox_id === undefined ? undefined : await client.sandboxes.get(given.sandbox_id)
export const tell = (content) => console.log(JSON.stringify(content ?? null))
export const hex = (bytes) => Buffer.from(bytes).toString('hex')
