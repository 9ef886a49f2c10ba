// npm @anthropic-ai/sandbox-runtime: a fresh bwrap for each command, with proxies of its own beside.
// Speaks the protocol of wire.py: a line of JSON in, a line of JSON out; times are seconds.
import { spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, folder] = process.argv.slice(2);
process.chdir(folder);
console.log = console.info = console.error; // what a system prints is not an answer
const say = (answer) => fs.writeSync(1, JSON.stringify(answer) + "\n");

const BULK_BYTES = 50_000_000;
const STREAM_BYTES = 100_000_000;
const upTo = (count) => Buffer.from(Array.from({ length: count }, (_, n) => n));
const KIB = Buffer.alloc(1024, upTo(256));
const BULK = Buffer.alloc(BULK_BYTES, upTo(250));

let manager;

async function run(line, wanted, data) {
  const begun = process.hrtime.bigint();
  const wrapped = await manager.wrapWithSandbox(line);
  const child = spawn(wrapped, { shell: true, stdio: [data ? "pipe" : "ignore", "pipe", "pipe"] });
  const pieces = [];
  const errors = [];
  child.stdout.on("data", (piece) => pieces.push(piece));
  child.stderr.on("data", (piece) => errors.push(piece));
  if (data) child.stdin.end(data);
  const code = await new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", resolve);
  });
  const output = Buffer.concat(pieces);
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  if (code !== 0) throw new Error(`exit code ${code}: ${Buffer.concat(errors).toString().slice(-200)}`);
  if (typeof wanted === "number" ? output.length !== wanted : !output.equals(wanted)) {
    throw new Error(`${output.length} bytes`);
  }
  return seconds;
}

const nothing = Buffer.alloc(0);
const ok = Buffer.from("ok\n");
const actions = {
  exec_true: () => run("true", nothing),
  exec_python: () => run("python3 -c 'print(1)'", Buffer.from("1\n")),
  stream: () => run(`head -c ${STREAM_BYTES} /dev/zero`, STREAM_BYTES),
  write_1k: () => run("cat > kib", nothing, KIB),
  read_1k: () => run("cat kib", KIB),
  write_50m: () => run("cat > bulk", nothing, BULK),
  read_50m: () => run("cat bulk", BULK),
  tti: () => run("echo ok", ok),
  burst: async ({ count }) => {
    const begun = process.hrtime.bigint();
    await Promise.all(Array.from({ length: count }, () => run("echo ok", ok)));
    return Number(process.hrtime.bigint() - begun) / 1e9;
  },
};

async function main() {
  const entry = path.join(packages, "node_modules/@anthropic-ai/sandbox-runtime/dist/index.js");
  ({ SandboxManager: manager } = await import(pathToFileURL(entry)));
  await manager.initialize({
    network: { allowedDomains: [], deniedDomains: [] },
    filesystem: { denyRead: [], allowWrite: [folder], denyWrite: [] },
  });
  say({ can: Object.keys(actions).sort() });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    try {
      say({ value: await actions[request.do](request) });
    } catch (error) {
      say({ error: String(error.message ?? error).slice(0, 300) });
    }
  }
  await manager.reset();
}

main().then(
  () => process.exit(0),
  (error) => {
    say({ error: String(error.message ?? error).slice(0, 300) });
    process.exit(1);
  },
);
