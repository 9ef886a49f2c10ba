"""`true` over the Model Context Protocol: by requests as they go over the wire, and with the official client, which takes most of
that time itself. Both in turn with the same through our own SDK."""

import http.client
import json
import statistics
import time
from typing import Any

from bench.workers.product import AGENT, connected, run_true
from bench.workers.wire import expect, timed

UNCOUNTED = 5
REVISION = "2026-07-28"
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": REVISION,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "run_command",
}


async def mcp(request: dict[str, Any]) -> dict[str, float]:
    """A call on a kept connection, the same through the official client, and that client's whole way to a connection."""
    import httpx2
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    repetitions = UNCOUNTED + int(request["repetitions"])
    bare: list[float] = []
    own: list[float] = []
    official: list[float] = []
    connects: list[float] = []
    with connected() as (installation, client), client.sandboxes.create(agent_id=AGENT) as sandbox:
        wire = http.client.HTTPConnection(installation.url.removeprefix("http://"))
        token = {"Authorization": f"Bearer {installation.token}"}
        arguments = {"sandbox_id": sandbox.id, "command": ["true"]}
        for _ in range(repetitions):
            bare.append(_call(wire, {**HEADERS, **token}, arguments))
            own.append(run_true(sandbox))
        wire.close()
        for _ in range(UNCOUNTED + int(request["connects"])):
            begun = time.perf_counter()
            async with httpx2.AsyncClient(headers=token) as carrier:
                async with Client(streamable_http_client(f"{installation.url}/mcp", http_client=carrier)):
                    connects.append(time.perf_counter() - begun)
        async with httpx2.AsyncClient(headers=token) as carrier:
            async with Client(streamable_http_client(f"{installation.url}/mcp", http_client=carrier)) as speaker:
                await speaker.list_tools()  # with their schemas, which answers are held against
                for _ in range(repetitions):
                    with timed() as watch:
                        result = await speaker.call_tool("run_command", arguments)
                    expect(not result.is_error, str(result.content))
                    official.append(watch.seconds)
    return {
        "call": _milliseconds(bare),
        "sdk": _milliseconds(own),
        "official": _milliseconds(official),
        "connect": _milliseconds(connects),
    }


def _milliseconds(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds[UNCOUNTED:])


def _call(wire: http.client.HTTPConnection, headers: dict[str, str], arguments: dict[str, Any]) -> float:
    meta = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "run_command", "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    with timed() as watch:
        wire.request("POST", "/mcp", body, headers)
        answer = json.loads(wire.getresponse().read())
    expect(answer["result"]["structuredContent"].get("exit_code") == 0, str(answer)[:200])
    return watch.seconds
