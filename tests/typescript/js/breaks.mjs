// What the SDK does where connections break; the server is a function. Ends with an error where one thing is not as it should be.
import assert from 'node:assert/strict'
import { Coldframe, ColdframeError, CODES, Sandbox } from '../../../typescript/index.js'

const json = (content, status = 200) => new Response(JSON.stringify(content), { status, headers: { 'Content-Type': 'application/json' } })
const broken = () => Object.assign(new TypeError('fetch failed'), { cause: { code: 'ECONNRESET' } })
const frame = (event, data = new Uint8Array()) => {
  const head = new TextEncoder().encode(JSON.stringify(event))
  const all = new Uint8Array(8 + head.length + data.length)
  new DataView(all.buffer).setUint32(0, head.length)
  new DataView(all.buffer).setUint32(4, data.length)
  all.set(head, 8)
  all.set(data, 8 + head.length)
  return all
}
const frames = (parts, end) =>
  new Response(
    new ReadableStream({
      pull(controller) {
        const part = parts.shift()
        if (part) controller.enqueue(part)
        else if (end) controller.error(end)
        else controller.close()
      },
    }),
    { headers: { 'Content-Type': 'application/x-coldframe-frames' } },
  )
const output = (seq, text) => frame({ event: 'output', seq, stream: 'stdout', at: null }, new TextEncoder().encode(text))
function clientOf(...answers) {
  const asked = []
  const fetch = async (url, settings) => {
    asked.push({ url: String(url), ...settings })
    const answer = answers.shift()
    if (answer instanceof Error) throw answer
    return answer
  }
  return [new Coldframe({ url: 'http://127.0.0.1:9', token: 'secret', fetch }), asked]
}
const EMPTY = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
const refusal = (code) => (error) => error instanceof ColdframeError && error.code === code

// What may be repeated is, under the same key; what may not is not.
{
  const [client, asked] = clientOf(broken(), json({ sandbox_id: 'sbx_1', state: { state: 'running' } }))
  assert.equal((await client.sandboxes.create({ background: true })).id, 'sbx_1')
  assert.equal(asked.length, 2)
  const keys = asked.map((one) => one.headers.get('Idempotency-Key'))
  assert.match(keys[0], /^[0-9a-f]{32}$/)
  assert.equal(keys[0], keys[1])
  assert.equal(asked[0].headers.get('Authorization'), 'Bearer secret')
}
{
  const [client, asked] = clientOf(broken(), json({}))
  await assert.rejects(client.agents.create({ agent_id: 'a' }), refusal('HOST_UNREACHABLE'))
  assert.equal(asked.length, 1)
}
{
  const [client, asked] = clientOf(Object.assign(new TypeError('fetch failed'), { cause: { code: 'ECONNREFUSED' } }))
  await assert.rejects(client.sandboxes.list(), refusal('UNAVAILABLE'))
  assert.equal(asked.length, 1)
}

// A refusal says all that it said on the wire; a code of a newer server is one all the same.
{
  const action = { op: 'sandbox.start', args: { sandbox_id: 'sbx_1' }, effect: 'it runs' }
  const wire = { code: 'WRONG_STATE', message: 'it is stopped', family: 'conflict', retry: 'later', hint: 'start it', facts: { state: 'stopped' }, next_actions: [action] }
  const [client] = clientOf(json({ error: wire }, 409), json({ error: { ...wire, code: 'OF_TOMORROW' } }, 409))
  const error = await client.sandboxes.get('sbx_1').catch((thrown) => thrown)
  assert.ok(error instanceof ColdframeError)
  assert.deepEqual({ code: error.code, message: error.message, family: error.family, retry: error.retry, hint: error.hint, facts: error.facts, next_actions: error.next_actions }, wire)
  assert.equal(error.retryable, true)
  await assert.rejects(client.sandboxes.get('sbx_1'), refusal('OF_TOMORROW'))
  assert.equal(CODES.WRONG_STATE.family, 'state')
}

// Output is followed over a connection that breaks, behind the last chunk, and nobody notices.
{
  const [client, asked] = clientOf(
    frames([frame({ event: 'started', command_id: 'cmd_1', pid: 1, at: '' }), output(0, 'a'), output(1, 'b').slice(0, 12)], new Error('reset')),
    broken(), broken(), broken(),
    frames([frame({ event: 'started', command_id: 'cmd_1', pid: 1, at: '' }), output(1, 'b'), frame({ event: 'ended', result: { exit_code: 0 } })]),
  )
  const sandbox = new Sandbox(client._transport, { sandbox_id: 'sbx_1' })
  const seen = []
  for await (const event of sandbox.run('echo ab')) seen.push(event.event === 'output' ? new TextDecoder().decode(event.data) : event.event)
  assert.deepEqual(seen, ['started', 'a', 'b', 'ended'])
  assert.match(asked.at(-1).url, /\/v1\/sandboxes\/sbx_1\/commands\/cmd_1\/events\?after_seq=0$/)
}

// Nothing that is given as a name leads to another route.
{
  const [client, asked] = clientOf(json({ ok: true }), json({ ok: true }))
  const sandbox = new Sandbox(client._transport, { sandbox_id: 'sbx_1' })
  await assert.rejects(async () => sandbox.removeFile('../commands'), refusal('OUTSIDE_WORKSPACE'))
  await assert.rejects(async () => client.agents.get('..'), refusal('INVALID_ARGUMENT'))
  assert.equal(asked.length, 0)
  await sandbox.removeFile('a/./b/../\udcff ?#%\n')
  assert.equal(new URL(asked[0].url).pathname, '/v1/sandboxes/sbx_1/files/a/%ff%20%3F%23%25%0A')
  await client.agents.get('a/b').catch(() => undefined)
  assert.equal(new URL(asked[1].url).pathname, '/v1/agents/a%2Fb')
}

// A download that is not what was sent is no download.
{
  const [client] = clientOf(frames([frame({ event: 'bytes', offset: 0, sha256: '0'.repeat(64) }, new Uint8Array([1]))]))
  const sandbox = new Sandbox(client._transport, { sandbox_id: 'sbx_1' })
  await assert.rejects(async () => { for await (const _ of sandbox.download('a')); }, refusal('HOST_UNREACHABLE'))
}

// Where an address leads elsewhere nobody follows, and nobody asks three times.
{
  const [client, asked] = clientOf(new Response(null, { status: 302, headers: { Location: 'http://127.0.0.1:8/v1/sandboxes' } }))
  const error = await client.sandboxes.list().catch((thrown) => thrown)
  assert.equal(error.code, 'UNAVAILABLE')
  assert.match(error.message, /leads to another address/)
  assert.deepEqual([asked.length, asked[0].redirect], [1, 'manual'])
}

// A name that was left out is no name, and an address holds no password that an error could tell.
{
  const [client, asked] = clientOf()
  for (const name of [undefined, null, 7]) await assert.rejects(async () => client.agents.get(name), refusal('INVALID_ARGUMENT'))
  assert.equal(asked.length, 0)
  for (const url of ['http://me:hunter2@127.0.0.1:9', 'me:hunter2@127.0.0.1', 'http://me:hunter/2@127.0.0.1:9']) {
    const error = await (async () => new Coldframe({ url, token: 'secret' }))().catch((thrown) => thrown)
    assert.equal(error.code, 'INVALID_ARGUMENT')
    assert.ok(!`${error.message} ${error.hint} ${error.stack}`.includes('hunter'))
  }
}

// Who leaves is not told that something broke, also while the answer is read; and nothing stays behind on a signal that lives on.
{
  const leaving = new AbortController()
  const counted = { added: 0, removed: 0 }
  const { addEventListener, removeEventListener } = leaving.signal
  leaving.signal.addEventListener = (...given) => (counted.added++, addEventListener.apply(leaving.signal, given))
  leaving.signal.removeEventListener = (...given) => (counted.removed++, removeEventListener.apply(leaving.signal, given))
  const { signal } = leaving
  const asked = []
  const slow = (headers = {}) => new Response(new ReadableStream({ start: (one) => one.enqueue(new Uint8Array([123])) }), { headers })
  const answers = [json([]), json({ error: { code: 'NOT_FOUND', message: 'no' } }, 404), broken(), json([]), frames([frame({ event: 'end', sha256: EMPTY })])]
  const fetch = async (url, settings) => {
    asked.push(settings.signal)
    const answer = answers.shift() ?? slow({ 'Content-Type': url.includes('/files/') ? 'application/x-coldframe-frames' : 'application/json' })
    if (answer instanceof Error) throw answer
    if (!answer.body || answers.length) return answer
    // As `fetch` does: the body breaks off when its signal says so.
    const reader = answer.body.getReader()
    const body = new ReadableStream({
      start: (one) => settings.signal.addEventListener('abort', () => one.error(settings.signal.reason)),
      async pull(one) {
        const { done, value } = await reader.read()
        if (done) one.close()
        else one.enqueue(value)
      },
    })
    return new Response(body, answer)
  }
  const client = new Coldframe({ url: 'http://127.0.0.1:9', token: 'secret', fetch })
  const sandbox = new Sandbox(client._transport, { sandbox_id: 'sbx_1' })
  await client.agents.list({ signal })
  await assert.rejects(client.agents.list({ signal }), refusal('NOT_FOUND'))
  await client.agents.list({ signal })
  for await (const _ of sandbox.download('a', { signal }));
  assert.equal(counted.added, 5)
  assert.equal(counted.removed, counted.added)
  const reason = new Error('enough')
  const whole = client.agents.list({ signal }).catch((thrown) => thrown)
  const parts = (async () => { for await (const _ of sandbox.download('a', { signal })); })().catch((thrown) => thrown)
  while (asked.length < 7) await new Promise((resolve) => setImmediate(resolve))
  setImmediate(() => leaving.abort(reason))
  assert.deepEqual([await whole, await parts], [reason, reason])
  assert.equal(asked.length, 7) // neither was sent again
  assert.equal(counted.removed, counted.added)
}

// Patience is with the server: not shorter than what it was asked to wait, and not spent on what is sent.
{
  const timers = []
  const { setTimeout: before } = globalThis
  globalThis.setTimeout = (run, wait, ...given) => {
    timers.push(wait)
    return before(run, wait, ...given)
  }
  let came = 0
  const fetch = async (url, settings) => {
    if (settings.signal.aborted) throw settings.signal.reason
    if (settings.body instanceof ReadableStream) for await (const part of settings.body) came += part.length
    else came += settings.body?.length ?? 0
    settings.signal.throwIfAborted()
    return json(url.includes('/commands/') ? { state: 'ended' } : { value: { sha256: digest } })
  }
  const client = new Coldframe({ url: 'http://127.0.0.1:9', token: 'secret', timeout_s: 0.05, fetch })
  const sandbox = new Sandbox(client._transport, { sandbox_id: 'sbx_1' })
  await sandbox.wait('cmd_1')
  assert.deepEqual(timers.splice(0), [30_050])
  globalThis.setTimeout = before
  const { createHash } = await import('node:crypto')
  const part = new Uint8Array(1000)
  const digest = createHash('sha256').update(part).update(part).digest('hex')
  // What is slow here is the file, four times as slow as the server may be.
  const slow = async function* () {
    yield part
    await new Promise((resolve) => setTimeout(resolve, 200))
    yield part
  }
  await sandbox.upload('a', slow())
  assert.equal(came, 2000)
  // Of a large body it is seen that it is taken.
  const whole = new Uint8Array(200_000)
  came = 0
  await sandbox.upload('a', whole).catch((error) => assert.match(error.message, /not what was sent/))
  assert.equal(came, 200_000)
}
console.log('all well')
