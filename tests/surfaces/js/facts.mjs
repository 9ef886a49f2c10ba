import { given, hex, sandbox, tell } from './given.mjs'

const told = {}
for (const [name, id] of Object.entries(given.commands)) {
  const job = sandbox.job(id)
  told[name] = { info: await job.info(), stdout: hex(await job.output()), stderr: hex(await job.output('stderr')) }
}
tell(told)
