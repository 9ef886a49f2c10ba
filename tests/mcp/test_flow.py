"""What the third founding text asks for: a client makes a workspace, writes files, prepares a preview and reads its log. With the
official clients of two languages, over both transports, in both eras, and with the inspector's command line."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from coldframe.client.sync import SyncColdframe
from coldframe.contract.policy import Role
from tests.installation import Installation
from tests.mcp.speaking import CURRENT, PREVIOUS, REVISIONS, TRANSPORTS, Raw, Server, connected

JS = Path(__file__).with_name("js")
PORT = 8080
APP = {
    "package.json": json.dumps({"name": "app", "type": "module", "scripts": {"start": "node server.js"}}),
    "server.js": """
import { createServer } from "node:http";
import { greeting } from "./src/greeting.js";
createServer((request, response) => {
  const found = request.url === "/health";
  console.log(`${request.method} ${request.url}`);
  response.writeHead(found ? 200 : 404, { "Content-Type": "text/plain" });
  response.end(found ? greeting() : "nothing here");
}).listen(PORT, "127.0.0.1", () => console.log("listening"));
""".replace("PORT", str(PORT)),
    "src/greeting.js": 'export const greeting = () => "well";\n',
}
needs_javascript = pytest.mark.skipif(
    not (JS / "node_modules").is_dir() or shutil.which("node") is None,
    reason="the official clients in JavaScript are not installed (`scripts/setup --tests`)",
)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The official client holds what comes back against the tool's schema."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    value: dict[str, Any] = result.structured_content
    return value


@pytest.mark.req("T3.78")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_client_comes_from_an_empty_workspace_to_a_server_that_answers(
    installation: Installation, revision: str, transport: str
) -> None:
    workspace = f"flow-{transport}-{revision}"

    async def flow() -> None:
        async with connected(installation.url, installation.token, revision=revision, transport=transport) as client:
            tools = (await client.list_tools()).tools
            assert all(one.input_schema and one.output_schema for one in tools)
            made = await call(client, "create_workspace", workspace=workspace)
            here = {"sandbox_id": made["sandbox_id"]}
            try:
                await look_after_an_app(client, made)
            finally:
                await call(client, "terminate_sandbox", **here)

    asyncio.run(flow())


async def look_after_an_app(client: Client, made: dict[str, Any]) -> None:
    here = {"sandbox_id": made["sandbox_id"]}
    for path, content in APP.items():
        await call(client, "write_file", **here, path=path, content=content)
    started = await call(
        client, "start_preview", **here, command="node server.js", port=PORT, health_path="/health", wait_s=0
    )
    shown = started
    while (shown.get("status") or {}).get("state") != "healthy":
        shown = await call(client, "get_preview", preview_id=started["preview_id"])
    assert shown["status"]["http_status"] == 200
    log = await call(client, "read_logs", command_id=shown["command_id"], offset=0)
    assert log["text"].startswith("listening\n") and "GET /health" in log["text"]
    uri = f"coldframe://sandboxes/{made['sandbox_id']}/commands/{shown['command_id']}/stdout"
    assert (await client.read_resource(uri)).contents[0].text.startswith("listening\n")
    contract = json.loads((await client.read_resource(made["contract"])).contents[0].text)
    assert contract["sandbox_id"] == made["sandbox_id"]
    assert (await client.read_resource(made["files"] + "src/greeting.js")).contents[0].text == APP["src/greeting.js"]
    missing = await client.call_tool("read_file", {**here, "path": "nothing"})
    assert missing.is_error and missing.structured_content["error"]["code"] == "FILE_NOT_FOUND"
    assert missing.structured_content["error"]["next_actions"][0]["op"]
    await call(client, "stop_preview", preview_id=started["preview_id"])
    over = await call(client, "get_preview", preview_id=started["preview_id"])
    assert over["status"]["state"] == "stopped"


@pytest.mark.req("T3.82")
def test_a_preview_that_takes_its_time_is_a_handle_which_another_client_goes_on_with(
    installation: Installation,
) -> None:
    """Both have the token of the same agent, and nothing else in common."""
    owner = Raw(Server(installation.url, installation.token))
    here = {"sandbox_id": owner.value("create_workspace", workspace="two-clients")["sandbox_id"]}
    with SyncColdframe(installation.url, installation.token) as client:
        token, info = client.tokens.create(Role.AGENT, "two clients", agent_id="two-clients")

    async def begin() -> str:
        async with connected(installation.url, token, transport="stdio") as first:
            for path, content in APP.items():
                await call(first, "write_file", path=path, content=content)
            line = "echo waiting; while [ ! -e go ]; do sleep 0.05; done; exec node server.js"
            started = await call(first, "start_preview", command=line, port=PORT, health_path="/health")
            assert started["is_ready"] is False
            return str(started["preview_id"])

    async def go_on(preview_id: str) -> None:
        async with connected(installation.url, token, revision=PREVIOUS) as second:
            shown = await call(second, "get_preview", preview_id=preview_id)
            assert shown["status"]["state"] == "starting"
            handle = {"command_id": shown["command_id"]}
            known = await call(second, "list_commands")
            assert handle["command_id"] in [one["command_id"] for one in known["commands"]]
            read = await call(second, "read_logs", **handle, offset=0)
            assert read["text"] == "waiting\n"
            await call(second, "write_file", path="go", content="")
            while shown["status"]["state"] != "healthy":
                shown = await call(second, "get_preview", preview_id=preview_id)
            assert (await call(second, "read_logs", **handle, offset=8))["text"].startswith("listening\n")
            await call(second, "signal_command", **handle)
            assert (await call(second, "wait_command", **handle))["result"]["cancelled"] is True

    try:
        asyncio.run(go_on(asyncio.run(begin())))
    finally:
        owner.value("terminate_sandbox", **here)
        with SyncColdframe(installation.url, installation.token) as client:
            client.tokens.revoke(info.token_id)


@pytest.fixture(scope="module")
def app_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("app") / "files.json"
    path.write_text(json.dumps(APP))
    return str(path)


def stdio_of(installation: Installation) -> dict[str, Any]:
    line = installation.line("--data-dir", installation.data_dir, "mcp")
    return {"command": line[0], "args": line[1:], "env": installation.environment}


@needs_javascript
@pytest.mark.req("T3.78")
@pytest.mark.once
@pytest.mark.parametrize(
    ("client", "revision", "transport"),
    [
        ("current", CURRENT, "http"),
        ("current", CURRENT, "stdio"),
        ("current", PREVIOUS, "http"),
        ("previous", PREVIOUS, "http"),
        ("previous", PREVIOUS, "stdio"),
    ],
)
def test_the_same_with_the_clients_in_typescript(
    installation: Installation, app_file: str, client: str, revision: str, transport: str
) -> None:
    asked = {"client": client, "revision": revision, "files": app_file, "port": PORT}
    asked["workspace"] = f"js-{client}-{transport}-{revision}"
    if transport == "http":
        asked |= {"url": f"{installation.url}/mcp", "token": installation.token}
    else:
        asked |= stdio_of(installation)
    done = subprocess.run(
        ["node", JS / "flow.mjs", json.dumps(asked)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["state"], seen["http_status"], seen["without_schema"]) == ("healthy", 200, [])
    assert seen["log"].startswith("listening\n") and seen["log_as_resource"].startswith("listening\n")
    assert seen["contract"] == seen["sandbox_id"]
    assert (seen["error"]["code"], seen["ended"]) == ("FILE_NOT_FOUND", "terminated")


@pytest.fixture
def workspace_id(installation: Installation) -> Iterator[str]:
    made = installation.cli("sandbox", "create", "--background", "--json")
    sandbox_id = str(json.loads(made.stdout)["sandbox_id"])
    yield sandbox_id
    installation.cli("sandbox", "terminate", sandbox_id)


@needs_javascript
@pytest.mark.req("T3.78")
@pytest.mark.once
def test_the_inspector_finds_nothing_wrong_and_calls_tools_over_both_transports(
    installation: Installation, workspace_id: str
) -> None:
    program = (
        JS / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
    )
    header = f"Authorization: Bearer {installation.token}"
    server = stdio_of(installation)
    http = [f"{installation.url}/mcp", "--transport", "http", "--header", header]
    stdio = [server["command"], *server["args"]]
    for target in (http, stdio):
        for words, seen in (
            (["--method", "tools/list", "--strict"], "outputSchema"),
            (["--method", "resources/templates/list"], "coldframe://sandboxes/{sandbox_id}"),
            (
                [
                    *("--method", "tools/call", "--tool-name", "run_command"),
                    *("--tool-arg", "command=echo inspected", f"sandbox_id={workspace_id}"),
                ],
                "inspected",
            ),
        ):
            done = subprocess.run(
                ["node", program, "--cli", *target, *words],
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
                env={**installation.environment, "HOME": installation.home},
            )
            assert done.returncode == 0 and seen in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("revision", REVISIONS)
def test_without_a_server_the_program_serves_its_client_itself_and_leaves_nothing(revision: str) -> None:
    home = Installation()
    mode: Any = {"mode": "legacy"} if revision == PREVIOUS else {}
    server = StdioServerParameters(**stdio_of(home), cwd=home.checkout)

    async def flow() -> None:
        async with Client(stdio_client(server), **mode) as client:
            await call(client, "create_workspace")
            ran = await call(client, "run_command", command="echo here")
            assert (ran["stdout"], ran["exit_code"]) == ("here\n", 0)

    try:
        asyncio.run(flow())
    finally:
        assert home.close() == []


def test_a_server_that_is_named_and_not_there_is_told_to_the_client() -> None:
    home = Installation()
    question = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {}}
    try:
        done = subprocess.run(
            home.line("--url", "http://127.0.0.1:9", "mcp"),
            input=json.dumps(question).encode() + b"\nno JSON\n[]\n",
            capture_output=True,
            env=home.environment,
            cwd=home.checkout,
            timeout=60,
            check=False,
        )
    finally:
        home.close()
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert (first["id"], first["error"]["data"]["code"]) == (7, "UNAVAILABLE")
    assert (second["error"]["code"], third["error"]["code"]) == (-32700, -32600)


def test_what_is_printed_for_a_client_starts_a_server_for_it(installation: Installation) -> None:
    shown = installation.cli("--data-dir", installation.data_dir, "mcp", "config", "cursor")
    entry = json.loads(shown.stdout)["mcpServers"]["coldframe"]
    assert entry["args"][-1] == "mcp"
    line = [entry["command"], *entry["args"]]
    question = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    question["params"] = {
        "protocolVersion": PREVIOUS,
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    environment = {name: value for name, value in installation.environment.items() if name != "COLDFRAME_DATA_DIR"}
    done = subprocess.run(
        line,
        input=json.dumps(question).encode() + b"\n",
        capture_output=True,
        env=environment,
        cwd=installation.checkout,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "coldframe"
    for client in ("claude-code", "codex", "gemini", "vscode", "inspector"):
        told = installation.cli("mcp", "config", client, "--http", "--json")
        assert f"{installation.url}/mcp" in json.loads(told.stdout)["line"]
        assert installation.token not in told.stdout.decode()
    assert installation.cli("mcp", "config", "nobody").returncode == 2
