import { given, sandbox, tell } from './given.mjs'

await sandbox.job(given.command_id).cancel()
tell()
