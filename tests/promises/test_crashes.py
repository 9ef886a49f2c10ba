"""`kill -9` of the server loses nothing that had completed, and what runs goes on."""

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.client.sync import SyncColdframe
from coldframe.contract.errors import ColdframeError
from coldframe.contract.policy import Label
from tests.installation import CHECKOUT, Installation, wait_until, waits_for_a_box


@pytest.fixture
def own_installation() -> Iterator[Installation]:
    """One that may be killed."""
    started = Installation()
    try:
        started.start()
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


@pytest.mark.req("T1.44", "T1.87")
def test_a_command_goes_on_while_the_server_is_killed(own_installation: Installation) -> None:
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.create(agent_id="survivor")
        started = sandbox.run_command(
            "echo first; until [ -e go ]; do sleep 0.05; done; seq 1 200000; exit 5", background=True
        )
        wait_until(lambda: sandbox.output(started.command_id).data, "the command writes")
    own_installation.kill()
    own_installation.start()
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.get(sandbox.id)
        assert sandbox.command(started.command_id).state == "running"
        sandbox.write_file("go", "")
        *_, last = sandbox.follow(started.command_id)
        assert last.result.exit_code == 5  # type: ignore[union-attr]
        whole = b"first\n" + b"".join(b"%d\n" % i for i in range(1, 200_001))
        assert sandbox.output(started.command_id).data == whole
        wait_until(
            lambda: any(
                e.body.get("command_id", "") == started.command_id or started.command_id in str(e.body)
                for e in client.ledger.entries(kinds=["call.ended"], limit=1000)
            ),
            "the ledger has the end",
        )
        assert client.ledger.verify().intact
        history = sandbox.read_file(".exec_history").content or ""
        assert "until [ -e go ]" in history


@pytest.mark.req("T1.44")
def test_what_starts_after_a_kill_and_a_change_of_the_program_knows_all_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon outlives its server, and one of an earlier version refuses what it does not know."""
    own = Installation()
    program = os.path.join(own.folder, "program")
    shutil.copytree(CHECKOUT / "coldframe", os.path.join(program, "coldframe"))
    monkeypatch.setattr("tests.installation.CHECKOUT", program)
    try:
        before = daemon_of(own.start())
        with SyncColdframe(own.url, own.token) as client:
            sandbox = client.sandboxes.create(agent_id="upgraded")
            started = sandbox.run_command("until [ -e go ]; do sleep 0.05; done; exit 5", background=True)
        own.kill()
        assert daemon_of(own.start()) == before
        own.kill()
        os.utime(os.path.join(program, "coldframe", "config.py"))
        own.start()
        wait_until(lambda: daemon_of(own) != before, "another daemon has taken its place")
        with SyncColdframe(own.url, own.token) as client:
            sandbox = client.sandboxes.get(sandbox.id)
            sandbox.write_file("go", "")
            wait_until(lambda: sandbox.command(started.command_id).state == "ended", "the command ends")
            result = sandbox.command(started.command_id).result
            assert result is not None and result.exit_code == 5
    finally:
        left = own.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


def daemon_of(installation: Installation) -> int:
    """Its process id, when there is one alone that answers: another takes its place while the server is there already."""
    program = b"coldframe.assembly\0daemon\0"

    def found() -> list[int]:
        commands = {}
        for pid in installation.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        with socket.socket(socket.AF_UNIX) as link:
            if link.connect_ex(os.path.join(installation.data_dir, "host", "daemon.sock")) != 0:
                return []
        return [pid for pid, command in commands.items() if program in command]

    (pid,) = wait_until(lambda: len(found()) == 1 and found(), "one daemon runs")
    return int(pid)


@pytest.mark.req("T1.44")
def test_a_command_that_ends_while_no_server_runs_is_whole_afterwards(own_installation: Installation) -> None:
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.create(agent_id="meanwhile")
        started = sandbox.run_command("echo begun; sleep 1; seq 1 100000; echo end >&2; exit 9", background=True)
        wait_until(lambda: sandbox.output(started.command_id).data, "the command writes")
    own_installation.kill()
    own_installation.start()
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.get(sandbox.id)
        wait_until(lambda: sandbox.command(started.command_id).state == "ended", "the command is over", timeout_s=20)
        result = sandbox.command(started.command_id).result
        assert result is not None
        assert result.exit_code == 9
        assert sandbox.output(started.command_id).data == b"begun\n" + b"".join(b"%d\n" % i for i in range(1, 100_001))
        assert sandbox.output(started.command_id, "stderr").data == b"end\n"


@pytest.mark.req("T1.44", "T1.87")
def test_a_command_whose_result_was_delivered_just_before_a_kill_is_in_ledger_and_history_once_with_its_numbers(
    own_installation: Installation,
) -> None:
    """The end of a command may wait for its commit; the box has the result, so no kill takes it away."""
    told = []
    for number in range(3):
        with SyncColdframe(own_installation.url, own_installation.token) as client:
            sandbox = client.sandboxes.create(agent_id=f"told{number}")
            result = sandbox.run_command(f"echo out{number}; echo err >&2; echo > new{number}; exit {number}")
            own_installation.kill()
        told.append((sandbox.id, result))
        own_installation.start()
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        wait_until(lambda: not open_calls(client), "every call has its end in the ledger")
        assert client.ledger.verify().intact
        for number, (sandbox_id, result) in enumerate(told):
            entries = client.ledger.entries(sandbox_id=sandbox_id, kinds=["call.ended"])
            (ended,) = [entry for entry in entries if entry.body["command_id"] == result.command_id]
            assert (ended.body["exit_code"], ended.body["ended"]) == (number, "exited")
            assert (ended.body["stdout"]["bytes"], ended.body["stderr"]["bytes"]) == (5, 4)
            assert ended.body["duration_us"] == round((result.duration_ms or 0) * 1000)
            assert [change["path"] for change in ended.body["files"]["changes"]] == [f"new{number}"]
            history = client.sandboxes.get(sandbox_id).read_file(".exec_history").content or ""
            (line,) = [one for one in map(json.loads, history.splitlines()) if one["call_id"] == ended.subject]
            assert (line["sequence"], line["hash"], line["exit_code"]) == (ended.seq, ended.hash, number)


def open_calls(client: SyncColdframe) -> set[str]:
    """Calls without an end."""
    calls: dict[str, set[str]] = {"call.started": set(), "call.ended": set()}
    for entry in client.ledger.entries(kinds=list(calls), limit=1000):
        calls[entry.kind].add(entry.subject)
    return calls["call.started"] - calls["call.ended"]


@pytest.mark.req("TP.11")
def test_taint_survives_the_crash_of_the_server(own_installation: Installation) -> None:
    rules = (
        "version: 1\nrules:\n  - id: crm-is-confidential\n    hook: POST_TOOL_RESPONSE\n"
        "    when: {tool: read_file, path: {glob: 'crm/*'}}\n    label: CONFIDENTIAL\n    reason: customer data\n"
    )
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        client.policy.load(rules)
        sandbox = client.sandboxes.create(agent_id="tainted")
        sandbox.write_file("crm/a", "x")
        sandbox.read_file("crm/a")
        session = sandbox.info.session_id
        assert client.sessions.get(session).taint is Label.CONFIDENTIAL
    own_installation.kill()
    own_installation.start()
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        assert client.sessions.get(session).taint is Label.CONFIDENTIAL
        fresh = client.sessions.reset(session)
        assert fresh.taint is Label.PUBLIC
        assert client.sandboxes.get(sandbox.id).info.workspace_label is Label.CONFIDENTIAL


@pytest.fixture
def without_ready_boxes() -> Iterator[Installation]:
    """One in which every box is a sandbox's."""
    started = Installation(COLDFRAME_READY_BOXES="0")
    try:
        started.start()
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


def test_terminating_leaves_nothing_of_a_sandbox(without_ready_boxes: Installation) -> None:
    """Processes, mounts and groups of the box are gone when the answer comes; files of the agent stay."""
    with SyncColdframe(without_ready_boxes.url, without_ready_boxes.token) as client:
        with client.sandboxes.create(agent_id="brief"):
            pass  # the first one starts what all share
        before = set(without_ready_boxes.leftovers())
        sandbox = client.sandboxes.create(agent_id="brief")
        sandbox.run_command("sleep 300 & (setsid sleep 300 &); echo kept > file")
        assert new_ones(without_ready_boxes, before)
        sandbox.terminate()
        wait_until(lambda: not new_ones(without_ready_boxes, before), "the box is gone")
        with client.sandboxes.create(agent_id="brief") as again:
            assert again.read_file("file").content == "kept\n"


def new_ones(installation: Installation, before: set[str]) -> list[str]:
    """What is there of boxes since *before*. What waits for the next one is in none."""
    found = [one for one in installation.leftovers() if one not in before]
    return [
        one for one in found if not (one.startswith("process ") and waits_for_a_box(int(one[8:].partition(":")[0])))
    ]


def test_a_killed_keeper_is_said_to_be_lost_and_the_files_stay(own_installation: Installation) -> None:
    """Its box dies with it; the command is lost and not guessed, and the next sandbox has the agent's files."""
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.create(agent_id="bereft")
        started = sandbox.run_command("echo data > kept; echo begun; sleep 300", background=True)
        wait_until(lambda: sandbox.output(started.command_id).data == b"begun\n", "the command writes")
        kill_keeper(own_installation, sandbox.id)
        wait_until(lambda: sandbox.command(started.command_id).state == "lost", "the command is said to be lost")
        status = sandbox.command(started.command_id).status
        assert status is not None
        assert status.code == "PROCESS_LOST"
        with pytest.raises(ColdframeError) as failure:
            sandbox.run_command("true")
        # The first if this call notices the loss before the one in the background does.
        assert failure.value.code in ("GUEST_LOST", "WRONG_STATE")
        assert failure.value.next_actions
        assert sandbox.refresh().state.state == "lost"
        with client.sandboxes.create(agent_id="bereft") as again:
            assert again.read_file("kept").content == "data\n"
        assert client.ledger.verify().intact


@pytest.mark.parametrize("tool", ["run_command", "write_file"])
def test_the_call_that_is_the_first_to_find_a_killed_keeper_is_told_that_the_box_is_lost(
    own_installation: Installation, tool: str
) -> None:
    """Not to send it again, which would be refused from then on.

    No turn of the probe can come first: a box that does not answer it is left to the next call to find.
    """
    arguments = {"run_command": {"command": "true"}, "write_file": {"path": "new", "content": "x"}}[tool]
    with SyncColdframe(own_installation.url, own_installation.token) as client:
        sandbox = client.sandboxes.create(agent_id="finder")
        assert sandbox.run_command("true").exit_code == 0  # over the connection that the next call takes
        kill_keeper(own_installation, sandbox.id)
        try:
            error = sandbox.call(tool, arguments, idempotency_key="one").error
        except ColdframeError as raised:
            error = raised.to_wire()
        assert error is not None
        assert (error["code"], error["next_actions"][0]["op"]) == ("GUEST_LOST", "sandbox.create")
        with pytest.raises(ColdframeError) as later:
            sandbox.run_command("true")
        assert later.value.code == "WRONG_STATE"
        assert client.ledger.verify().intact


def kill_keeper(installation: Installation, sandbox_id: str) -> None:
    with open(os.path.join(installation.data_dir, "boxes", sandbox_id, "keeper.json"), encoding="utf-8") as mark:
        os.kill(json.load(mark)["pid"], signal.SIGKILL)
