"""What a client is told of a command is what every other surface is told of the same one."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.installation import Installation, wait_until
from tests.mcp.speaking import Raw, Server
from tests.promises.raw import rest

RECORDED: dict[str, dict[str, Any]] = {
    "output": {"command": "echo out; echo err >&2"},
    "no output": {"command": ["true"]},
    "exit code": {"command": "exit 7"},
    "signal": {"command": "kill -9 $$"},
    "wall time": {"command": ["sleep", "100"], "timeout_s": 0.3},
    "silence": {"command": ["sleep", "100"], "idle_timeout_s": 0.3},
    "no such program": {"command": ["no-such-program"]},
    "bytes": {"command": "printf '\\377\\000x'"},
    "input": {"command": ["cat"], "stdin": "given"},
}


@pytest.fixture(scope="module")
def client(installation: Installation) -> Raw:
    return Raw(Server(installation.url, installation.token))


@pytest.fixture(scope="module")
def sandbox_id(client: Raw) -> Iterator[str]:
    made = str(client.value("create_workspace")["sandbox_id"])
    yield made
    client.value("terminate_sandbox", sandbox_id=made, discard=True)


@pytest.mark.req("T4.34")
@pytest.mark.parametrize("name", RECORDED)
def test_facts_of_a_command_are_those_that_rest_tells(
    installation: Installation, client: Raw, sandbox_id: str, name: str
) -> None:
    told = client.value("run_command", sandbox_id=sandbox_id, **RECORDED[name])
    route = f"/v1/sandboxes/{sandbox_id}/commands/{told['command_id']}"
    known = rest(installation, "GET", route).json
    for fact in ("exit_code", "signal", "timed_out", "cancelled", "duration_ms", "limit", "ended", "out_of_memory"):
        assert told[fact] == known["result"][fact], fact
    now = client.value("command_status", command_id=told["command_id"])
    assert now["result"] == known["result"] and now["state"] == known["state"] == "ended"
    for stream in ("stdout", "stderr"):
        whole = rest(installation, "GET", f"{route}/output?stream={stream}").body
        assert told[stream] == whole.decode("utf-8", "replace")
        read = client.value("read_logs", command_id=told["command_id"], stream=stream, offset=0, encoding="base64")
        assert read["total_bytes"] == len(whole) and read["sha256"] == told[f"{stream}_info"]["sha256"]
    receipt = client.value("get_receipt", receipt_id=told["call"]["receipt_id"])
    assert (receipt["exit_code"], receipt["signal"]) == (told["exit_code"], told["signal"])


@pytest.mark.req("T4.34")
def test_a_job_has_the_same_handle_everywhere_and_is_called_off_from_anywhere(
    installation: Installation, client: Raw, sandbox_id: str
) -> None:
    handle = client.value("start_command", sandbox_id=sandbox_id, command="cat; sleep 100", stdin_open=True)[
        "command_id"
    ]
    client.value("send_input", command_id=handle, text="heard\n", end=True)
    wait_until(lambda: client.value("read_logs", command_id=handle)["text"] == "heard\n", "it was heard")
    assert installation.cli("job", "stop", sandbox_id, handle).returncode == 0
    ended = client.value("wait_command", command_id=handle)
    assert ended["result"]["cancelled"] is True and ended["status"]["code"] == "CANCELLED"
    shown = json.loads(installation.cli("job", "show", sandbox_id, handle, "--json").stdout)
    assert shown["result"] == ended["result"]
