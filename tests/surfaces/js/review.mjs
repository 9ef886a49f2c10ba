import { sandbox, tell } from './given.mjs'

const codeOf = (call) => call.then(() => 'no error', (error) => error.code)
tell({ upload: await codeOf(sandbox.upload('python/new', '')), write: await codeOf(sandbox.writeFile('python/new', '')) })
