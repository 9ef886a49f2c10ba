// What a program in TypeScript does with the SDK: compiled strictly, and run against a server.
import { bytesOfFile, CODES, Coldframe, ColdframeError, collect, type Sandbox } from '../../../typescript/index.js'

const client = new Coldframe()
const sandbox: Sandbox = await client.sandboxes.create({ agent_id: 'typed' })
const written = await sandbox.writeFile('a.txt', new TextEncoder().encode('text'))
const label: string = written.result.label
const read: Uint8Array = bytesOfFile(await sandbox.readFile('a.txt'))
const ran = await sandbox.runCommand(['sh', '-c', 'echo hello'], { timeout_s: 5, env: { A: '1' } })
const code: number | null = ran.exit_code
let shown = ''
for await (const event of sandbox.run('echo hello')) {
  if (event.event === 'output') shown += new TextDecoder().decode(event.data)
}
await sandbox.upload('b.bin', new Blob([new Uint8Array([0, 255])]))
const back = await collect(sandbox.download('b.bin'))
const refused = await client.sandboxes.get('sbx_none').catch((error: unknown) => error)
const known: string = refused instanceof ColdframeError ? CODES[refused.code as keyof typeof CODES].retry : ''
const ended = await sandbox.terminate({ discard: true })

// @ts-expect-error a field that there is none of
void client.sandboxes.create({ colour: 'blue' }).catch(() => undefined)
// @ts-expect-error a method that there is none of
void sandbox.paint
// @ts-expect-error a number is no command
void (() => sandbox.runCommand(5))

console.log(
  JSON.stringify({
    label,
    read: [...read],
    stdout: ran.stdout,
    code,
    shown,
    back: [...back],
    known,
    refused: refused instanceof ColdframeError && refused.code,
    state: ended.state.state,
  }),
)
