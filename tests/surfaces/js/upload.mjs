import { readFile } from 'node:fs/promises'
import { given, sandbox, tell } from './given.mjs'

for (const [number, name] of given.names.entries()) {
  const local = `${given.folder}/${name}`
  if (number % 2) await sandbox.uploadFile(local, `${given.into}/${name}`)
  else await sandbox.upload(`${given.into}/${name}`, await readFile(local))
}
tell()
