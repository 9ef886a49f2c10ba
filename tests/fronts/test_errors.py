"""Whatever goes wrong, the answer is one JSON object with a stable code, a hint and the right status; never a trace."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from coldframe.contract.errors import catalogue
from tests.fronts.served import Served


def check_error(status: int, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    assert headers["content-type"] == "application/json"
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"code", "message", "family", "retry", "hint", "facts", "next_actions"}
    assert catalogue()[error["code"]].status == status
    assert error["hint"] and not error["message"].endswith(".")
    assert b"Traceback" not in body and b'File "' not in body
    return error


@pytest.mark.req("T1.37")
@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/", b"", "NOT_FOUND"),
        ("GET", "/v1/nothing", b"", "NOT_FOUND"),
        ("PATCH", "/v1/sandboxes", b"", "NOT_FOUND"),
        ("GET", "/v1/sandboxes/", b"", "NOT_FOUND"),
        ("GET", "/v1/sandboxes/sbx_none", b"", "NOT_FOUND"),
        ("POST", "/v1/sandboxes", b"{", "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b"[]", "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b"", "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b"{}", "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b'{"agent_id": "a", "colour": 1}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b'{"agent_id": "../x"}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b'{"agent_id": "a", "limits": {"pids": -1}}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b'{"agent_id": "a", "limits": {"pids": 100000000000000}}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b'{"agent_id": "a", "limits": {"cpu_s": 1e999}}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes", b'{"agent_id": "a", "limits": {"cpus": 1e300}}', "INVALID_ARGUMENT"),
        ("POST", "/v1/agents", b'{"agent_id": "background"}', "INVALID_ARGUMENT"),
        ("GET", "/v1/agents/none", b"", "NOT_FOUND"),
        ("PUT", "/v1/agents/none/label", b'{"label": "SECRET", "reason": "x"}', "INVALID_ARGUMENT"),
        ("GET", "/v1/ledger/entries?limit=0", b"", "INVALID_ARGUMENT"),
        ("GET", "/v1/ledger/entries?after=x", b"", "INVALID_ARGUMENT"),
        ("GET", "/v1/policy/replay/999999", b"", "NOT_FOUND"),
        ("GET", "/v1/policy/replay/x", b"", "INVALID_ARGUMENT"),
        ("PUT", "/v1/policy", b"rules: [", "RULES_INVALID"),
        ("PUT", "/v1/policy", b"\xff\xfe", "INVALID_ARGUMENT"),
        ("POST", "/v1/tokens", b'{"role": "king", "name": "x"}', "INVALID_ARGUMENT"),
        ("DELETE", "/v1/tokens/none", b"", "NOT_FOUND"),
        ("GET", "/v1/receipts/none", b"", "NOT_FOUND"),
        ("GET", "/v1/sessions/none", b"", "NOT_FOUND"),
        ("POST", "/v1/sandboxes/sbx_none/tools/read_file", b"{}", "NOT_FOUND"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/no_tool", b"{}", "UNKNOWN_TOOL"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/read_file", b"not json", "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/read_file", b"[" * 100_000, "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/read_file", b'{"path": "none"}', "FILE_NOT_FOUND"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/read_file", b'{"path": "../../etc/passwd"}', "OUTSIDE_WORKSPACE"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/read_file", b'{"path": "\\udc80"}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/read_file", b'{"path": "a", "lenght": 1}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes/SANDBOX/tools/run_command", b'{"command": "sudo id"}', "DENIED_BY_RULE"),
        ("GET", "/v1/sandboxes/SANDBOX/files/none", b"", "FILE_NOT_FOUND"),
        ("GET", "/v1/sandboxes/SANDBOX/files/%FF", b"", "INVALID_ARGUMENT"),
        ("GET", "/v1/sandboxes/SANDBOX/files/..%2F..%2Fetc%2Fpasswd", b"", "OUTSIDE_WORKSPACE"),
        ("GET", "/v1/sandboxes/SANDBOX/files/a?offset=-5", b"", "INVALID_ARGUMENT"),
        ("GET", "/v1/sandboxes/SANDBOX/files/a?offset=--5", b"", "INVALID_ARGUMENT"),
        ("GET", "/v1/sandboxes/SANDBOX/commands/none/events?after_seq=1-", b"", "INVALID_ARGUMENT"),
        ("PUT", "/v1/sandboxes/SANDBOX/files/../../etc/passwd", b"x", "OUTSIDE_WORKSPACE"),
        ("GET", "/v1/sandboxes/SANDBOX/commands/none", b"", "NOT_FOUND"),
        ("GET", "/v1/sandboxes/SANDBOX/commands/none/output?stream=both", b"", "INVALID_ARGUMENT"),
        ("GET", "/v1/sandboxes/SANDBOX/commands/none/events", b"", "NOT_FOUND"),
        ("POST", "/v1/sandboxes/SANDBOX/commands/none/signal", b'{"signal": "9"}', "INVALID_ARGUMENT"),
        ("POST", "/v1/sandboxes/SANDBOX/commands/none/resize", b'{"columns": 1}', "INVALID_ARGUMENT"),
    ],
)
def test_every_failure_is_typed(
    served: Served, standing_sandbox: str, method: str, path: str, body: bytes, code: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = served.request(method, path.replace("SANDBOX", standing_sandbox), body=body, headers=headers)
    assert check_error(*answer)["code"] == code


@pytest.fixture(scope="module")
def standing_sandbox(served: Served) -> Iterator[str]:
    with served.sync_client() as client, client.sandboxes.create("errors") as sandbox:
        yield sandbox.id


def test_a_fault_of_ours_tells_a_reference_and_nothing_else(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(type(served.control.sandboxes), "list", burst)
    answer = served.request("GET", "/v1/sandboxes")
    error = check_error(*answer)
    assert (answer[0], error["code"]) == (500, "INTERNAL")
    assert b"secret detail" not in answer[2]
    assert error["facts"]["reference"] in caplog.text
    assert served.owner_token not in caplog.text


@pytest.mark.parametrize("path", ["/v1/sandboxes/SANDBOX/tools/run_command", "/v1/policy"])
def test_a_caller_that_leaves_within_its_request_is_no_fault_of_ours(
    served: Served, standing_sandbox: str, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    left = threading.Event()
    stream = Request.stream

    async def watched(request: Request) -> AsyncIterator[bytes]:
        try:
            async for part in stream(request):
                yield part
        except ClientDisconnect:
            left.set()
            raise

    address = served.url.removeprefix("http://").split(":")
    method = "PUT" if path == "/v1/policy" else "POST"
    head = f"{method} {path.replace('SANDBOX', standing_sandbox)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Authorization: Bearer {served.owner_token}\r\nContent-Length: 100\r\n\r\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "stream", watched)
        with socket.create_connection((address[0], int(address[1]))) as connection:
            connection.sendall(head.encode() + b"{")
        assert left.wait(20)
        served.request("GET", "/v1/tools")  # the one before it is through
    assert "request failed" not in caplog.text


def test_a_body_that_is_no_json_is_told_as_such(served: Served) -> None:
    headers = {"Content-Type": "application/json"}
    answer = served.request("POST", "/v1/sandboxes", body=b'{"agent_id":', headers=headers)
    error = check_error(*answer)
    assert (error["code"], error["facts"]["argument"]) == ("INVALID_ARGUMENT", "body")
    assert "not JSON" in error["message"]


def test_a_body_over_the_cap_is_refused_without_being_kept(served: Served) -> None:
    status, headers, body = served.request("PUT", "/v1/policy", body=b"#" * (5 * 1024 * 1024))
    assert (status, check_error(status, headers, body)["code"]) == (413, "TOO_LARGE")
    status, _, _ = served.request("PUT", "/v1/agents/tools/label", body=b"#" * (5 * 1024 * 1024))
    assert status == 413
    padding = b'{"agent_id": "a", "x": "' + b"y" * (5 * 1024 * 1024) + b'"}'
    headers = {"Content-Type": "application/json"}
    status, headers, body = served.request("POST", "/v1/sandboxes", body=padding, headers=headers)
    assert (status, check_error(status, headers, body)["code"]) == (413, "TOO_LARGE")


def test_bytes_that_are_no_request_end_the_connection(served: Served) -> None:
    address = served.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall(b"\x00\xff not http\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400") and b"Traceback" not in answer
    assert served.json("GET", "/v1/health")[0] == 200


def test_a_refused_call_changes_nothing(served: Served, standing_sandbox: str) -> None:
    ran = len(served.host.ran)
    path = f"/v1/sandboxes/{standing_sandbox}/tools/run_command"
    assert served.json("POST", path, {"command": "sudo touch scratch/x"})[0] == 403
    assert served.json("POST", path, {"command": "touch scratch/x", "colour": "red"})[0] == 400
    assert len(served.host.ran) == ran
