// A client that knows `retryable` and `next_actions`, and nothing of what went wrong: it does one command in whatever sandbox that takes.
import { ColdframeError, CODES } from '../../../typescript/index.js'
import { client, given, tell } from './given.mjs'

let id = given.id
const operations = {
  'sandbox.create': async () => (id = (await client.sandboxes.create({ agent_id: given.agent })).id),
  'sandbox.start': async (args) => (await client.sandboxes.get(args.sandbox_id ?? id)).startAgain(),
  'sandbox.resume': async (args) => (await client.sandboxes.get(args.sandbox_id ?? id)).resume(),
}
const seen = []
async function attempt() {
  try {
    const sandbox = await client.sandboxes.get(id)
    const ran = await sandbox.runCommand(given.command)
    const { status } = await sandbox.command(ran.command_id)
    if (status.state === 'exited' && ran.exit_code === 0) return undefined
    return { ...status, output: ran.stdout + ran.stderr }
  } catch (error) {
    if (!(error instanceof ColdframeError)) throw error
    seen.push(error.code)
    if (!(error.code in CODES)) throw error
    return { state: error.code, message: error.message, retryable: error.retryable, next_actions: error.next_actions, output: '' }
  }
}
let question = 'it does not come to an end'
for (let attempts = 0; attempts < 5; attempts += 1) {
  const told = await attempt()
  if (told === undefined) {
    question = ''
    break
  }
  const action = told.next_actions.find((one) => one.op in operations)
  if (action !== undefined) await operations[action.op](action.args)
  else if (!told.retryable) {
    question = `${told.state}: ${told.message || told.output}`
    break
  }
}
tell({ question, seen, id })
