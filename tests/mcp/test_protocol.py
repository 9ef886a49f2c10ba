"""The words on the wire, in both eras: what is refused, with which code and status, and what every answer carries."""

import asyncio
import json
from typing import Any

import mcp_types.methods as wire
import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.policy import Role
from coldframe.fronts.mcp.sessions import Sessions
from tests.fronts.served import Served
from tests.mcp.speaking import CURRENT, PREVIOUS, Raw

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": CURRENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def request(method: str = "tools/list", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


@pytest.fixture
def current(served: Served) -> Raw:
    return Raw(served)


def test_answers_are_what_the_official_types_take(raw: Raw, sandbox_id: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("tools/list", {}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": f"coldframe://sandboxes/{sandbox_id}/contract"}),
        ("tools/call", {"name": "list_sandboxes", "arguments": {}}),
        ("tools/call", {"name": "run_command", "arguments": {"command": "true", "sandbox_id": sandbox_id}}),
        ("tools/call", {"name": "run_command", "arguments": {}}),
    ]
    if raw.revision == CURRENT:
        asked.append(("server/discover", {}))
    for method, params in asked:
        status, answer = raw.ask(method, params)
        assert (status, answer["jsonrpc"]) == (200, "2.0")
        wire.validate_server_result(method, raw.revision, answer["result"])
        if raw.revision == CURRENT:
            assert answer["result"]["resultType"] == "complete"
            assert answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "coldframe"


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        pytest.param(b"{", {}, 400, -32700, id="no JSON"),
        pytest.param(b"[]", {}, 400, -32600, id="a batch"),
        pytest.param({"jsonrpc": "1.0", "id": 1, "method": "ping"}, {}, 400, -32600, id="another JSON-RPC"),
        pytest.param({"jsonrpc": "2.0", "id": None, "method": "ping"}, {}, 400, -32600, id="an id of nothing"),
        pytest.param({"jsonrpc": "2.0", "id": True, "method": "ping"}, {}, 400, -32600, id="an id of true"),
        pytest.param({**request(), "params": [1]}, {}, 400, -32602, id="parameters in a list"),
        pytest.param(request(_meta=META), {}, 400, -32020, id="no header of the revision"),
        pytest.param(
            request(_meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "ping"},
            400,
            -32020,
            id="another method in the header",
        ),
        pytest.param(
            request("tools/call", name="run_command", _meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "tools/call", "Mcp-Name": "read_file"},
            400,
            -32020,
            id="another tool in the header",
        ),
        pytest.param(
            request(_meta={"io.modelcontextprotocol/protocolVersion": CURRENT}),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "tools/list"},
            400,
            -32602,
            id="nothing about the client",
        ),
        pytest.param(
            request(), {"Mcp-Protocol-Version": "2031-01-01"}, 400, -32022, id="a revision that is not spoken"
        ),
        pytest.param(
            request("no/such", _meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "no/such"},
            404,
            -32601,
            id="no such method",
        ),
        pytest.param(
            request("initialize", _meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "initialize"},
            404,
            -32601,
            id="a handshake where there is none",
        ),
        pytest.param(
            request("tools/call", name="no_such", arguments={}, _meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "tools/call", "Mcp-Name": "no_such"},
            400,
            -32602,
            id="no such tool",
        ),
        pytest.param(
            request("resources/read", uri="file:///etc/passwd", _meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "resources/read", "Mcp-Name": "file:///etc/passwd"},
            400,
            -32602,
            id="no such resource",
        ),
        pytest.param(
            request("tasks/get", taskId="cmd_x", _meta=META),
            {"Mcp-Protocol-Version": CURRENT, "Mcp-Method": "tasks/get"},
            400,
            -32021,
            id="a task for a client that knows none",
        ),
    ],
)
def test_a_request_that_is_wrong_itself_gets_an_error_of_the_protocol(
    current: Raw, content: object, headers: dict[str, str], status: int, code: int
) -> None:
    found, _, answer = current.post(content, headers=headers)
    assert (found, answer["error"]["code"]) == (status, code)
    assert answer["id"] in (7, None, 1, True)


def test_a_name_that_no_header_can_carry_is_compared_decoded(current: Raw, sandbox_id: str) -> None:
    uri = f"coldframe://sandboxes/{sandbox_id}/files/ä"
    headers = {"Mcp-Name": "=?base64?" + __import__("base64").b64encode(uri.encode()).decode() + "?="}
    status, answer = current.ask("resources/read", {"uri": uri}, headers=headers)
    assert status == 400 and "FILE_NOT_FOUND" in answer["error"]["message"]
    status, answer = current.ask("resources/read", {"uri": uri}, headers={"Mcp-Name": "=?base64?!!?="})
    assert (status, answer["error"]["code"]) == (400, -32020)


def test_a_handshake_agrees_on_a_revision_that_both_speak_and_begins_a_session(served: Served) -> None:
    for asked_for, agreed in ((PREVIOUS, PREVIOUS), ("2025-06-18", "2025-06-18"), ("2031-01-01", PREVIOUS)):
        client = Raw(served, revision=PREVIOUS)
        params = {"protocolVersion": asked_for, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        status, answer = client.ask("initialize", params)
        assert (status, answer["result"]["protocolVersion"]) == (200, agreed)
        assert client.session is not None
        assert client.ask("ping") == (200, {"jsonrpc": "2.0", "id": 2, "result": {}})


def test_a_session_that_its_client_has_ended_is_over_and_one_that_the_server_forgot_is_not(served: Served) -> None:
    client = Raw(served, revision=PREVIOUS)
    client.initialize()
    assert client.session is not None
    headers = {"Mcp-Session-Id": client.session}
    assert served.request("DELETE", "/mcp", headers=headers)[0] == 204
    assert client.ask("ping")[0] == 404
    client.session = "0" * 32  # as after a restart
    assert client.ask("ping")[0] == 200
    client.session = "no name"
    assert client.ask("ping")[0] == 404


def test_however_many_sessions_a_token_begins_those_of_others_stay_and_of_its_own_those_in_use() -> None:
    async def scenario() -> None:
        sessions = Sessions()
        mine, other = (Caller(token_id=name, role=Role.OWNER, surface="mcp") for name in ("tok_mine", "tok_other"))
        subscribed, unused, quiet = "0" * 32, "1" * 32, "2" * 32
        kept = sessions.find(mine, quiet)
        first, second = sessions.find(other, subscribed), sessions.find(other, unused)
        assert first is not None
        first.subscriptions["uri"] = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        for _ in range(1100):
            sessions.find(other, sessions.new_name())
        assert sessions.find(other, subscribed) is first and sessions.find(other, unused) is not second
        assert sessions.find(mine, quiet) is kept

    asyncio.run(scenario())


def test_what_wants_no_answer_gets_none(raw: Raw) -> None:
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/unheard"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        status, _, body = raw.post(message)
        assert (status, body) == (202, b"")


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("PUT", {}, 405),
        ("GET", {}, 405),
        ("GET", {"Mcp-Session-Id": "no name"}, 404),
        ("POST", {"Content-Type": "text/plain"}, 415),
        ("POST", {"Content-Type": "application/json", "Accept": "image/png"}, 406),
    ],
)
def test_other_ways_to_ask_are_refused(served: Served, method: str, headers: dict[str, str], status: int) -> None:
    assert served.request(method, "/mcp", body=b"{}" if method == "POST" else b"", headers=headers)[0] == status


@pytest.mark.req("T3.79")
def test_without_a_good_token_in_its_header_nobody_comes_in(served: Served) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    headers = {"Content-Type": "application/json"}
    for token in ("", "cf_wrong"):
        status, answered, _ = served.request("POST", "/mcp", token=token, body=body, headers=headers)
        assert (status, answered["www-authenticate"]) == (401, "Bearer")
    secret = served.token(Role.OWNER)
    for query in (f"token={secret}", f"access_token={secret}", f"API_KEY={secret}"):
        assert served.request("POST", f"/mcp?{query}", token="", body=body, headers=headers)[0] == 401
        status, _, answer = served.request("POST", f"/mcp?{query}", body=body, headers=headers)
        assert status == 400 and json.loads(answer)["error"]["code"] == "INVALID_ARGUMENT"
    assert served.request("POST", "/mcp", body=body, headers={**headers, "Origin": "https://evil.example"})[0] == 403
    assert served.request("POST", "/mcp", body=body, headers={**headers, "Host": "evil.example"})[0] == 403
