// What a program in TypeScript does with the types: compiled strictly, and run against a server.
import createClient from 'openapi-fetch'
import type { components, paths } from '../../../typescript/coldframe.d.ts'

declare const process: { env: Record<string, string | undefined>; stdout: { write(text: string): void } }

const client = createClient<paths>({
  baseUrl: process.env.COLDFRAME_URL ?? '',
  headers: { Authorization: `Bearer ${process.env.COLDFRAME_TOKEN}` },
})

const made = await client.POST('/v1/sandboxes', { body: { background: true } })
if (made.error !== undefined) throw new Error(JSON.stringify(made.error))
const info: components['schemas']['SandboxInfo'] = made.data
const path = { sandbox_id: info.sandbox_id }

const written = await client.POST('/v1/sandboxes/{sandbox_id}/tools/write_file', {
  params: { path },
  body: { path: 'a.txt', content: 'text' },
})
const ran = await client.POST('/v1/sandboxes/{sandbox_id}/tools/run_command', {
  params: { path },
  body: { command: 'echo hello', timeout_s: 5 },
})
const missing = await client.GET('/v1/sandboxes/{sandbox_id}', { params: { path: { sandbox_id: 'sbx_none' } } })
const code: string | undefined = missing.error?.error.code

// @ts-expect-error a field that there is none of
await client.POST('/v1/sandboxes', { body: { colour: 'blue' } }).catch(() => undefined)

type Result = components['schemas']['ToolResult']
process.stdout.write(
  JSON.stringify({
    state: info.state.state,
    label: (written.data as Result).label,
    value: (ran.data as Result).value,
    code,
  }),
)
