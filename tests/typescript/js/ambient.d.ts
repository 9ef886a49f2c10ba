// Of Node what the SDK uses, so that its modules can be checked without Node's own types.
declare module 'node:crypto' {
  export interface Hash {
    update(data: string | Uint8Array): Hash
    digest(encoding: 'hex'): string
    copy(): Hash
  }
  export function createHash(algorithm: 'sha256'): Hash
}
declare module 'node:fs' {
  export function readFileSync(path: string, encoding: 'utf8'): string
}
declare module 'node:fs/promises' {
  export interface FileHandle {
    read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>
    writeFile(data: Uint8Array): Promise<void>
    close(): Promise<void>
  }
  export function open(path: string, flags: string): Promise<FileHandle>
  export function rename(from: string, to: string): Promise<void>
  export function rm(path: string, options: { force: boolean }): Promise<void>
}
declare module 'node:os' {
  export function homedir(): string
}
declare module 'node:path' {
  export function join(...parts: string[]): string
}
declare module 'node:process' {
  const process: { env: Record<string, string | undefined>; geteuid?: () => number }
  export default process
}
