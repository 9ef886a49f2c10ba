// Calls each method that is named on standard input, and writes what it asked the server for.
import { Coldframe, operations, Sandbox } from '../../../typescript/index.js'

let text = ''
for await (const part of process.stdin) text += part
const asked = []
const fetch = async (url, { method }) => {
  asked.push(`${method} ${decodeURIComponent(new URL(url).pathname)}`)
  throw Object.assign(new TypeError('enough'), { cause: { code: 'ECONNREFUSED' } })
}
const client = new Coldframe({ url: 'http://127.0.0.1:9', token: 'token', fetch })
const sandbox = new Sandbox(client._transport, { sandbox_id: 'sbx_1' })
const held = {
  '': client,
  sandbox,
  pipeline: sandbox.pipeline('pip_1'),
  watch: new operations.Watch(client._transport, { sandbox_id: 'sbx_1', watch_id: 'wch_1' }),
  templateBuild: client.templates.getBuild('bld_1'),
}
const found = {}
for (const [group, name] of JSON.parse(text)) {
  const holder = held[group] ?? client[group] ?? sandbox[group]
  asked.length = 0
  const given = { executeOnce: ['a'], sendStdin: ['a', 'b', { offset: 0 }] }[name] ?? ['a', 'b', 'c']
  try {
    const answer = holder[name](...given)
    await (answer[Symbol.asyncIterator] ? answer.next() : answer)
  } catch {} // it was to fail
  found[`${group}.${name}`] = [...asked]
}
console.log(JSON.stringify(found))
