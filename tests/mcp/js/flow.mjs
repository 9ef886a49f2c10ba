// What a client of the official TypeScript libraries does from an empty workspace to a server that answers. Prints what it saw
// as JSON. Argument: {"client": "current" | "previous", "revision", "url", "token"} or, in place of url, {"command", "args", "env"}.
import { readFileSync } from "node:fs";

const asked = JSON.parse(process.argv[2]);
const files = JSON.parse(readFileSync(asked.files, "utf8"));
const info = { name: "coldframe-tests", version: "1" };

async function connect() {
  const headers = { Authorization: `Bearer ${asked.token}` };
  if (asked.client === "previous") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const client = new Client(info);
    const transport = asked.url
      ? new StreamableHTTPClientTransport(new URL(asked.url), { requestInit: { headers } })
      : new StdioClientTransport({ command: asked.command, args: asked.args, env: asked.env });
    await client.connect(transport);
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = asked.revision === "2026-07-28" ? { pin: asked.revision } : "legacy";
  const client = new Client(info, { versionNegotiation: { mode } });
  const transport = asked.url
    ? new StreamableHTTPClientTransport(new URL(asked.url), { requestInit: { headers } })
    : new StdioClientTransport({ command: asked.command, args: asked.args, env: asked.env });
  await client.connect(transport);
  return client;
}

const client = await connect();
const seen = {};
const { tools } = await client.listTools(); // from here on answers are checked against the schemas
seen.tools = tools.map((one) => one.name);
seen.without_schema = tools.filter((one) => !one.inputSchema || !one.outputSchema).map((one) => one.name);

async function call(name, args) {
  const result = await client.callTool({ name, arguments: args });
  if (result.isError) throw new Error(`${name}: ${JSON.stringify(result.structuredContent)}`);
  return result.structuredContent;
}

const made = await call("create_workspace", { workspace: asked.workspace });
const here = { sandbox_id: made.sandbox_id };
seen.sandbox_id = made.sandbox_id;
for (const [path, content] of Object.entries(files)) await call("write_file", { ...here, path, content });
const started = await call("start_preview", { ...here, command: "node server.js", port: asked.port, health_path: "/health", wait_s: 0 });
seen.preview = started;
let shown = started;
for (let tries = 0; shown.status?.state !== "healthy" && tries < 400; tries++) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  shown = await call("get_preview", { preview_id: started.preview_id });
}
seen.state = shown.status.state;
seen.http_status = shown.status.http_status;
seen.log = (await call("read_logs", { command_id: shown.command_id, offset: 0 })).text;
const failed = await client.callTool({ name: "read_file", arguments: { ...here, path: "nothing" } });
seen.error = failed.structuredContent.error;
const contract = await client.readResource({ uri: made.contract });
seen.contract = JSON.parse(contract.contents[0].text).sandbox_id;
const log = await client.readResource({
  uri: `coldframe://sandboxes/${made.sandbox_id}/commands/${shown.command_id}/stdout`,
});
seen.log_as_resource = log.contents[0].text;
await call("stop_preview", { preview_id: started.preview_id });
const end = await call("terminate_sandbox", here);
seen.ended = end.sandbox.state.state;
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
