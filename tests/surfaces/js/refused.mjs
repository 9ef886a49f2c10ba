import { given, sandbox, tell } from './given.mjs'

tell(await sandbox.command(given.command_id).then(() => 'no error', (error) => error.code))
