// The common part of the SDK: each step's name is printed as it is done, and the first that fails ends it with its reason.
// How to reach the server is told by the variables that the SDK reads itself.
import assert from "node:assert/strict";
import dns from "node:dns";
import { CommandExitError, Sandbox, SandboxNotFoundError } from "e2b";

// Names below `localhost` lead to this machine, which not every resolver knows.
const lookUp = dns.lookup;
dns.lookup = (name, options, answer) => lookUp(name.endsWith(".localhost") ? "127.0.0.1" : name, options, answer);

const mark = `é x ${process.pid} ${Date.now()}`;
let sandbox;
const steps = {
  async create() {
    sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { flow: mark }, envs: { A: "1" } });
    assert.match(sandbox.sandboxId, /^[0-9a-f]{20}$/);
  },
  async info() {
    assert.equal(await sandbox.isRunning(), true);
    const info = await sandbox.getInfo();
    assert.deepEqual([info.metadata.flow, info.state], [mark, "running"]);
  },
  async list() {
    const found = await Sandbox.list({ query: { metadata: { flow: mark } } }).nextItems();
    assert.deepEqual(found.map((one) => one.sandboxId), [sandbox.sandboxId]);
  },
  async run() {
    const done = await sandbox.commands.run("echo out $A; echo err >&2");
    assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["out 1\n", "err\n", 0]);
    await assert.rejects(sandbox.commands.run("exit 7"), (error) => error instanceof CommandExitError && error.exitCode === 7);
  },
  async input() {
    const command = await sandbox.commands.run("read line; echo got $line", { background: true, stdin: true });
    assert.ok((await sandbox.commands.list()).some((one) => one.pid === command.pid));
    await sandbox.commands.sendStdin(command.pid, "hello\n");
    assert.equal((await command.wait()).stdout, "got hello\n");
  },
  async files() {
    const path = "folder/file.txt";
    await sandbox.files.write(path, "content");
    assert.equal(await sandbox.files.read(path), "content");
    assert.deepEqual((await sandbox.files.list("folder")).map((one) => one.name), ["file.txt"]);
    await sandbox.files.rename(path, "folder/other.txt");
    assert.deepEqual([await sandbox.files.exists(path), await sandbox.files.exists("folder/other.txt")], [false, true]);
    await sandbox.files.remove("folder/other.txt");
    const large = new Uint8Array(3_000_000).fill(7);
    await sandbox.files.write("large", new Blob([large]));
    assert.equal((await sandbox.files.read("large", { format: "bytes" })).length, large.length);
  },
  async watch() {
    let told;
    const seen = new Promise((resolve) => (told = resolve));
    const handle = await sandbox.files.watchDir("folder", (event) => told(event));
    await sandbox.files.write("folder/new.txt", "x");
    assert.equal((await seen).name, "new.txt");
    await handle.stop();
  },
  async terminal() {
    let output = "";
    const onData = (data) => (output += Buffer.from(data).toString());
    const terminal = await sandbox.pty.create({ rows: 24, cols: 80, onData });
    await sandbox.pty.sendInput(terminal.pid, Buffer.from("echo $((40 + 2)); exit\n"));
    await terminal.wait();
    assert.match(output, /42/);
  },
  async pause() {
    assert.equal(await sandbox.pause(), true);
    assert.equal(await sandbox.isRunning(), false);
    sandbox = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 });
    assert.equal((await sandbox.commands.run("echo back")).stdout, "back\n");
  },
  async snapshot() {
    await sandbox.files.write("kept.txt", "kept");
    let snapshot;
    try {
      snapshot = await sandbox.createSnapshot();
    } catch (error) {
      assert.match(error.message, /held still on this machine/); // as for an ordinary user: without processes it can be
      await sandbox.pause();
      snapshot = await sandbox.createSnapshot();
    }
    const other = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 300_000 });
    assert.equal(await other.files.read("kept.txt"), "kept");
    await other.kill();
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true);
  },
  async kill() {
    assert.deepEqual([await sandbox.kill(), await Sandbox.kill(sandbox.sandboxId)], [true, false]);
    await assert.rejects(sandbox.getInfo(), SandboxNotFoundError);
  },
};
for (const [name, step] of Object.entries(steps)) {
  await step();
  console.log(name);
}
process.exit(0); // the SDK keeps its connections open
