// Words that the modules of the SDK share: how an operation of the API becomes the arguments and the answer of a method.
import type { components, operations } from './coldframe.d.ts'

export type Schemas = components['schemas']
export type OperationId = keyof operations

type Unless<T> = [T] extends [never] ? unknown : NonNullable<T>
type Parameters<O extends OperationId> = operations[O] extends { parameters: infer P } ? P : unknown

/** What may be said of an operation besides its body. */
export type Query<O extends OperationId> = Parameters<O> extends { query?: infer Q } ? Unless<NonNullable<Q>> : unknown

interface Told {
  /** With the same key the same answer is given, and the call carried out once; by default every call has a key of its own. */
  idempotency_key?: string
  /** Session whose label counts; the sandbox's own by default. */
  session_id?: string
  /** Version that the file must still have; CONFLICT otherwise. */
  if_version?: string
  /** Where the content is from, in your words; kept on record with it. */
  source?: string
  /** Digest of the whole content. */
  sha256?: string
  upload_length?: number
  upload_offset?: number
}

/** What may be said of every call. */
export interface Calling {
  /** Stops waiting for the answer. What was asked for may be done all the same. */
  signal?: AbortSignal
}

export type Options<O extends OperationId, H extends keyof Told = never> = Query<O> & Pick<Told, H> & Calling

/** The JSON that an operation takes. */
export type Body<O extends OperationId> = NonNullable<operations[O] extends { requestBody?: infer B } ? B : never> extends {
  content: { 'application/json': infer Sent }
}
  ? Sent
  : never

/** The JSON that an operation answers with. */
export type Answer<O extends OperationId> = operations[O] extends { responses: { 200: { content: { 'application/json': infer A } } } } ? A : never

/** An event of an operation that tells them one by one. */
export type Event<O extends OperationId> = operations[O] extends { responses: { 200: { content: { 'application/x-ndjson': infer E } } } } ? E : never

/** Bytes of any size: whole, or as they come. */
export type Content = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>

export interface Route {
  method: string
  path: string
  query?: readonly string[]
  headers?: readonly string[]
  /** Media type of what it takes. */
  body?: string
  repeatable?: boolean
}

export interface Wish {
  query?: Record<string, unknown>
  payload?: unknown
  body?: Content
  headers?: Record<string, string>
  repeatable?: boolean
  signal?: AbortSignal
}

export interface NextAction {
  op: string
  args: Record<string, unknown>
  effect: string
}

export interface WireError {
  code: string
  message: string
  family: string
  retry: 'never' | 'later' | 'after_approval' | 'after_change'
  hint: string
  facts: Record<string, unknown>
  next_actions: NextAction[]
}

/** What a program wrote, by the sequence number of its chunk. */
export interface Output {
  event: 'output'
  seq: number
  stream: 'stdout' | 'stderr'
  data: Uint8Array<ArrayBuffer>
  at: string | null
}

export type CommandEvent = Schemas['Started'] | Output | Schemas['Ended'] | { event: 'result'; result: Result<'run_command'> }

interface Tools {
  run_command: { arguments: Schemas['RunCommandArguments']; answer: Schemas['RunCommandAnswer'] }
  read_file: { arguments: Schemas['ReadFileArguments']; answer: Schemas['ReadFileAnswer'] }
  write_file: { arguments: Schemas['WriteFileArguments']; answer: Schemas['WriteFileAnswer'] }
  edit_file: { arguments: Schemas['EditFileArguments']; answer: Schemas['EditFileAnswer'] }
  list_directory: { arguments: Schemas['ListDirectoryArguments']; answer: Schemas['ListDirectoryAnswer'] }
  search_files: { arguments: Schemas['SearchFilesArguments']; answer: Schemas['SearchFilesAnswer'] }
}

export type ToolName = keyof Tools
export type Arguments<T extends ToolName> = Tools[T]['arguments']

/** The result of a call: what the tool answered is its `value`. */
export type Result<T extends ToolName> = Omit<Schemas['ToolResult'], 'value'> & { value: Tools[T]['answer'] }

/** What a tool answered, with the whole result of the call, which no list of keys shows, as `result`. */
export type Answered<T> = T & { readonly result: Schemas['ToolResult'] }
