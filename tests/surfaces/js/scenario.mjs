import { ColdframeError, collect } from '../../../typescript/index.js'
import { client, given, hex, tell } from './given.mjs'

let box
let job
let snapshot
const done = {
  create: async () => (box = await client.sandboxes.create({ agent_id: given.agent })).info.state.state,
  write: async ({ path, content }) => (await box.writeFile(path, content)).sha256,
  edit: async (one) => (await box.editFile(one.path, one.old, one.new)).sha256,
  run: async ({ command }) => {
    const ran = await box.runCommand(command)
    return [ran.exit_code, ran.stdout, ran.stderr]
  },
  read: async ({ path }) => (await box.readFile(path)).content,
  list: async ({ path }) => (await box.listDirectory(path)).entries.map((entry) => entry.path).sort(),
  search: async ({ pattern }) => (await box.searchFiles(pattern)).matches.map((match) => [match.path, match.line]),
  upload: async ({ path, content_base64 }) => (await box.upload(path, Uint8Array.from(Buffer.from(content_base64, 'base64')))).sha256,
  download: async ({ path }) => hex(await collect(box.download(path))),
  snapshot: async ({ name }) => {
    snapshot = (await box.takeSnapshot({ name })).snapshot_id
    return 'taken'
  },
  remove: async ({ path }) => {
    await box.removeFile(path)
    return 'removed'
  },
  start: async ({ command }) => {
    job = await box.start(command)
    return 'started'
  },
  cancel: async () => {
    await job.cancel()
    const ended = await job.wait()
    return [ended.result.cancelled, ended.status.code]
  },
  reset: async () => (await box.reset({ to: snapshot })).state.state,
  pause: async () => (await box.pause()).state.state,
  resume: async () => (await box.resume()).state.state,
  stop: async () => (await box.stop()).state.state,
  terminate: async () => (await box.terminate()).state.state,
}
const answers = []
for (const [name, one] of given.steps) {
  try {
    answers.push([name, await done[name](one)])
  } catch (error) {
    if (!(error instanceof ColdframeError)) throw error
    answers.push([name, { code: error.code }])
  }
}
tell({ sandbox_id: box.id, answers })
