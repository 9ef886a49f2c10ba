"""Ten commands are on record, and every surface tells the same of them; whoever starts one can be followed by any other."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import ColdframeError
from tests.installation import Installation
from tests.mcp.speaking import Raw, Server
from tests.promises.raw import rest
from tests.surfaces.conftest import Lines, Script

pytestmark = pytest.mark.req("T4.34")
COMMANDS: dict[str, dict[str, Any]] = {
    "output": {"command": "echo out; echo err >&2"},
    "no output": {"command": ["true"]},
    "exit code": {"command": "echo before; exit 7"},
    "signal": {"command": "kill -9 $$"},
    "wall time": {"command": "echo begun; sleep 100", "timeout_s": 0.4},
    "silence": {"command": ["sleep", "100"], "idle_timeout_s": 0.4},
    "no such program": {"command": ["no-such-program"]},
    "bytes": {"command": "printf '\\377\\000x'; printf 'y\\r\\n' >&2"},
    "input": {"command": ["cat"], "stdin": "given\n"},
    "background": {"command": "echo later; exit 3", "background": True},
}
FACTS = ("stdout", "stderr", "exit_code", "signal", "time_out", "duration_ms", "handle", "cancelled")
Told = dict[str, dict[str, Any]]
"""By command: its facts."""


def facts(info: dict[str, Any], stdout: bytes, stderr: bytes) -> dict[str, Any]:
    result = info["result"]
    kind = (info.get("status") or {}).get("code") if result["timed_out"] else None
    return {
        "stdout": stdout.hex(),
        "stderr": stderr.hex(),
        "exit_code": result["exit_code"],
        "signal": result["signal"],
        "time_out": kind,
        "duration_ms": result["duration_ms"],
        "handle": info["command_id"],
        "cancelled": result["cancelled"],
    }


@pytest.fixture(scope="module")
def recorded(sandbox: SyncSandbox) -> dict[str, str]:
    """By name: the id of the command."""
    made = {name: str(sandbox.call("run_command", given).value["command_id"]) for name, given in COMMANDS.items()}
    sandbox.wait(made["background"])
    return made


def by_rest(installation: Installation, sandbox_id: str, recorded: dict[str, str], script: Script, cli: Lines) -> Told:
    told = {}
    for name, command_id in recorded.items():
        route = f"/v1/sandboxes/{sandbox_id}/commands/{command_id}"
        streams = [rest(installation, "GET", f"{route}/output?stream={one}").body for one in ("stdout", "stderr")]
        told[name] = facts(rest(installation, "GET", route).json, *streams)
    return told


def by_python(
    installation: Installation, sandbox_id: str, recorded: dict[str, str], script: Script, cli: Lines
) -> Told:
    with SyncColdframe(installation.url, installation.token) as client:
        sandbox = client.sandboxes.get(sandbox_id)
        return {
            name: facts(
                sandbox.command(one).model_dump(mode="json"),
                sandbox.job(one).output(),
                sandbox.job(one).output("stderr"),
            )
            for name, one in recorded.items()
        }


def by_python_without_blocking(
    installation: Installation, sandbox_id: str, recorded: dict[str, str], script: Script, cli: Lines
) -> Told:
    async def ask() -> Told:
        async with Coldframe(installation.url, installation.token) as client:
            sandbox = await client.sandboxes.get(sandbox_id)
            told = {}
            for name, one in recorded.items():
                info = (await sandbox.command(one)).model_dump(mode="json")
                told[name] = facts(info, await sandbox.job(one).output(), await sandbox.job(one).output("stderr"))
            return told

    return asyncio.run(ask())


def by_typescript(
    installation: Installation, sandbox_id: str, recorded: dict[str, str], script: Script, cli: Lines
) -> Told:
    told = script("facts", sandbox_id=sandbox_id, commands=recorded)
    return {
        name: facts(one["info"], bytes.fromhex(one["stdout"]), bytes.fromhex(one["stderr"]))
        for name, one in told.items()
    }


def by_command_line(
    installation: Installation, sandbox_id: str, recorded: dict[str, str], script: Script, cli: Lines
) -> Told:
    listed = json.loads(cli("job", "list", sandbox_id, "--json").stdout)
    known = {one["command_id"]: one for one in listed}
    told = {}
    for name, command_id in recorded.items():
        logs = cli("job", "logs", sandbox_id, command_id)
        told[name] = facts(known[command_id], logs.stdout, logs.stderr)
    return told


def by_mcp(installation: Installation, sandbox_id: str, recorded: dict[str, str], script: Script, cli: Lines) -> Told:
    client = Raw(Server(installation.url, installation.token))
    told = {}
    for name, command_id in recorded.items():
        streams = []
        for stream in ("stdout", "stderr"):
            read = client.value("read_logs", command_id=command_id, stream=stream, offset=0, encoding="base64")
            streams.append(_decoded(read))
        told[name] = facts(client.value("command_status", command_id=command_id), *streams)
    return told


def _decoded(read: dict[str, Any]) -> bytes:
    import base64

    return base64.urlsafe_b64decode(next((read[key] for key in ("base64", "data_base64", "data") if read.get(key)), ""))


SURFACES = (by_python, by_python_without_blocking, by_typescript, by_command_line, by_mcp)


@pytest.mark.parametrize("surface", SURFACES, ids=lambda one: one.__name__.removeprefix("by_"))
def test_eight_facts_of_ten_commands_are_those_that_rest_tells(
    installation: Installation,
    sandbox: SyncSandbox,
    recorded: dict[str, str],
    script: Script,
    cli: Lines,
    surface: Callable[[Installation, str, dict[str, str], Script, Lines], Told],
) -> None:
    known = by_rest(installation, sandbox.id, recorded, script, cli)
    assert [set(one) for one in known.values()] == [set(FACTS)] * 10
    assert known["exit code"]["exit_code"] == 7 and known["signal"]["signal"] == 9
    assert known["bytes"]["stdout"] == "ff0078" and known["bytes"]["stderr"] == "790d0a"
    assert (known["wall time"]["time_out"], known["silence"]["time_out"]) == ("TIMED_OUT_WALL", "TIMED_OUT_IDLE")
    assert surface(installation, sandbox.id, recorded, script, cli) == known


def test_the_command_line_ends_as_the_command_does(installation: Installation, sandbox: SyncSandbox) -> None:
    for line, code in (("exit 7", 7), ("kill -9 $$", 137), ("true", 0)):
        assert installation.cli("exec", sandbox.id, "-c", line).returncode == code
    job = sandbox.start("exit 5")
    assert installation.cli("job", "wait", sandbox.id, job.id).returncode == 5


def test_a_handle_of_one_surface_is_one_of_each_and_any_calls_it_off(
    installation: Installation, sandbox: SyncSandbox, script: Script, cli: Lines
) -> None:
    mcp = Raw(Server(installation.url, installation.token))
    started = {
        "python": sandbox.start(["sleep", "100"]).id,
        "typescript": script("start", sandbox_id=sandbox.id, command=["sleep", "100"]),
        "command line": cli("job", "start", sandbox.id, "--", "sleep", "100").stdout.decode().strip(),
        "mcp": mcp.value("start_command", sandbox_id=sandbox.id, command=["sleep", "100"])["command_id"],
    }
    running = {one.command_id for one in sandbox.commands() if one.state == "running"}
    assert set(started.values()) <= running
    # Each ends that of another one.
    script("cancel", sandbox_id=sandbox.id, command_id=started["python"])
    assert cli("job", "stop", sandbox.id, started["typescript"]).returncode == 0
    mcp.value("signal_command", command_id=started["command line"])
    sandbox.job(started["mcp"]).cancel()
    for command_id in started.values():
        ended = sandbox.wait(command_id).model_dump(mode="json")
        assert ended["result"]["cancelled"] is True and ended["status"]["code"] == "CANCELLED"
        route = f"/v1/sandboxes/{sandbox.id}/commands/{command_id}"
        assert rest(installation, "GET", route).json["result"] == ended["result"]


def test_a_command_that_there_is_none_of_has_the_same_code_everywhere(
    installation: Installation, sandbox: SyncSandbox, script: Script, cli: Lines
) -> None:
    assert rest(installation, "GET", f"/v1/sandboxes/{sandbox.id}/commands/cmd_none").code == "NOT_FOUND"
    with pytest.raises(ColdframeError) as raised:
        sandbox.command("cmd_none")
    assert raised.value.code == "NOT_FOUND"
    assert script("refused", sandbox_id=sandbox.id, command_id="cmd_none") == "NOT_FOUND"
    told = cli("--json", "job", "show", sandbox.id, "cmd_none")
    assert (told.returncode, json.loads(told.stderr)["error"]["code"]) == (4, "NOT_FOUND")
