import { writeFile } from 'node:fs/promises'
import { given, sandbox, tell } from './given.mjs'

const codeOf = (call) => call.then(() => 'no error', (error) => error.code)
await writeFile(given.local, 'all of it')
tell({
  upload: await codeOf(sandbox.upload('python/new', '')),
  uploadFile: await codeOf(sandbox.uploadFile(given.local, 'python/new')),
  write: await codeOf(sandbox.writeFile('python/new', '')),
  run: await codeOf(sandbox.runCommand('true')),
})
