import { createHash } from 'node:crypto'
import { bytesOfFile, collect } from '../../../typescript/index.js'
import { given, sandbox, tell } from './given.mjs'

const digest = (bytes) => createHash('sha256').update(bytes).digest('hex')
const told = { listed: {}, read: {}, downloaded: {} }
for (const one of (await sandbox.listDirectory(given.folder)).entries) told.listed[one.name] = [one.type, one.mode & 0o777, one.target]
for (const name of given.names) {
  told.read[name] = digest(bytesOfFile(await sandbox.readFile(`${given.folder}/${name}`)))
  told.downloaded[name] = digest(await collect(sandbox.download(`${given.folder}/${name}`)))
}
tell(told)
