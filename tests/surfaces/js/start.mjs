import { given, sandbox, tell } from './given.mjs'

tell((await sandbox.start(given.command)).id)
