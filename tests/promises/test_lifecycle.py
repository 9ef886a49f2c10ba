"""A sandbox is paused, resumed, stopped, started and ended from outside; what is kept and lost is what its answers and its
contract say, through restarts of server and daemon."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import HostUnreachable, PauseKindUnsupported, SandboxExpired, WrongState
from coldframe.contract.sandbox import WITH_BOX, SandboxSpec
from tests.chaos.victims import Victims, kill
from tests.installation import Installation, wait_until
from tests.lives import ACTS

SERVER = """
import os, socket, sys, time
from pathlib import Path
listener = socket.create_server(("127.0.0.1", 0))
Path("port").write_text(str(listener.getsockname()[1]))
peer = listener.accept()[0]
count = 0
while peer.recv(1):
    count += 1
    peer.send(b"%d\\n" % count)
"""
CLIENT = """
import os, socket, time
from pathlib import Path
while not Path("port").exists():
    time.sleep(0.01)
peer = socket.create_connection(("127.0.0.1", int(Path("port").read_text())))
held = open("held", "w")
while True:
    peer.send(b"x")
    told = peer.recv(64).decode().strip()
    held.seek(0)
    held.write(f"{os.getpid():9} {int(told):9}")
    held.flush()
    time.sleep(0.01)
"""


def pair(sandbox: SyncSandbox) -> tuple[int, int]:
    """Pid of the client and how often its server has answered it over their one connection."""
    words = (sandbox.read_file("held").content or "0 0").split()
    return int(words[0]), int(words[1])


def begin_pair(sandbox: SyncSandbox) -> None:
    for name, program in (("server", SERVER), ("client", CLIENT)):
        sandbox.write_file(f"{name}.py", program)
        sandbox.run_command(f"python3 {name}.py", background=True)
    wait_until(lambda: any(one.name == "held" for one in sandbox.list_directory().entries), "they have met")
    wait_until(lambda: pair(sandbox)[1] > 2, "they talk")


@pytest.fixture
def paused(sandbox: SyncSandbox) -> SyncSandbox:
    """With two programs that talk to each other, standing still. Skips where no sandbox can be paused."""
    if "memory" not in sandbox.report().pause_kinds:
        with pytest.raises(PauseKindUnsupported):
            sandbox.pause()
        pytest.skip("this user has no control group that can be frozen")
    begin_pair(sandbox)
    sandbox.pause()
    return sandbox


@pytest.mark.req("T4.61", "T3.45")
def test_processes_files_and_connections_go_on_after_a_pause(paused: SyncSandbox) -> None:
    sandbox = paused
    assert sandbox.pause().state.state == "paused"
    before = pair(sandbox)
    with pytest.raises(WrongState) as refused:
        sandbox.run_command("true")
    assert refused.value.next_actions[0]["op"] == "sandbox.resume"
    with ThreadPoolExecutor(10) as at_once:
        errors = list(at_once.map(lambda _: error_of(sandbox), range(10)))
    assert {type(error) for error in errors} == {WrongState}
    assert pair(sandbox) == before
    assert {one.command_line for one in sandbox.processes()} == {"python3 server.py", "python3 client.py"}
    assert sandbox.resume().state.state == "running"
    assert sandbox.resume().state.state == "running"
    wait_until(lambda: pair(sandbox)[1] > before[1], "they go on")
    assert pair(sandbox)[0] == before[0]
    assert abs(float(sandbox.run_command("date +%s.%N").stdout or "0") - time.time()) < 1


def error_of(sandbox: SyncSandbox) -> Exception | None:
    try:
        sandbox.run_command("echo x")
    except WrongState as error:
        return error
    return None


@pytest.mark.req("T4.61")
def test_nothing_is_lost_in_many_pauses_with_writes_between(paused: SyncSandbox) -> None:
    sandbox = paused
    for number in range(1, 21):
        sandbox.resume()
        sandbox.run_command(f"echo {number} >> log; rm -f f{number - 1}; echo {number} > f{number}; chmod +x f{number}")
        sandbox.pause()
        assert sandbox.read_file("log").content == "".join(f"{one}\n" for one in range(1, number + 1))
    kept = {one.name: one.mode & 0o777 for one in sandbox.list_directory().entries if one.name.startswith("f")}
    assert kept == {"f20": 0o755}


def is_resumed(sandbox: SyncSandbox) -> bool:
    try:
        return sandbox.resume().state.state == "running"
    except HostUnreachable:
        return False


@pytest.fixture
def own() -> Iterator[Installation]:
    """One that may be killed."""
    started = Installation()
    try:
        started.start()
        yield started
    finally:
        left = started.close()
    assert not left, "the installation left behind:\n" + "\n".join(left)


@pytest.mark.req("T4.61", "T3.45", "T4.60", "T3.41")
def test_life_goes_on_when_server_and_daemon_are_killed(own: Installation) -> None:
    with SyncColdframe(own.url, own.token) as client:
        sandbox = client.sandboxes.create(agent_id="lasting")
        can_pause = "memory" in sandbox.report().pause_kinds
        begin_pair(sandbox)
        if can_pause:
            sandbox.pause()
        before = pair(sandbox)
        stopped = client.sandboxes.create(agent_id="stopped")
        stopped.write_file("a", "x")
        stopped.stop()
        brief = client.sandboxes.create(spec=SandboxSpec(agent_id="brief", max_age_s=3, on_timeout="terminate"))
    own.kill()
    own.start()
    with SyncColdframe(own.url, own.token) as client:
        sandbox = client.sandboxes.get(sandbox.id)
        if can_pause:
            assert sandbox.info.state.state == "paused"
            assert pair(sandbox) == before
            for daemon in Victims(own).daemons:
                kill(daemon)
            wait_until(lambda: is_resumed(sandbox), "it is resumed by another daemon")
        wait_until(lambda: pair(sandbox)[1] > before[1], "they go on")
        assert pair(sandbox)[0] == before[0]
        stopped = client.sandboxes.get(stopped.id)
        assert stopped.info.state.state == "stopped"
        stopped.start_again()
        assert stopped.read_file("a").content == "x"
        wait_until(lambda: client.sandboxes.get(brief.id).info.state.state == "terminated", "its time is over")
        assert client.ledger.verify().intact


@pytest.mark.req("T3.41", "T3.36")
@pytest.mark.parametrize("background", [False, True])
def test_stop_and_start_lose_what_they_said_and_nothing_else(
    client: SyncColdframe, agent_id: str, background: bool
) -> None:
    sandbox = client.sandboxes.create(agent_id=None if background else agent_id, background=background)
    made = "echo told; echo kept > a; echo x > /tmp/b; sleep 1000 & true"
    done = sandbox.call("run_command", {"command": made})
    job = sandbox.run_command("sleep 1000", background=True)
    report = sandbox.report()
    tried = sandbox.stop(dry_run=True)
    assert sandbox.refresh().state.state == "running"
    stopped = sandbox.stop()
    for answer in (tried, stopped):
        lost = {one.item: one for one in answer.lost}
        assert lost["processes"].command_ids == (job.command_id,)
        assert lost["processes"].count == 2
        assert (lost["temporary"].count or 0) >= 1
    with pytest.raises(WrongState):
        sandbox.write_file("a", "")
    assert sandbox.read_file("a").content == "kept\n"
    assert sandbox.output(done.value["command_id"]).data == b"told\n"
    assert done.receipt_id is not None
    assert client.receipt(done.receipt_id)["exit_code"] == 0
    wait_until(lambda: sandbox.command(job.command_id).state != "running", "the end of the job is known")
    again = sandbox.start_again()
    assert (again.sandbox_id, again.session_id, again.spec) == (
        sandbox.id, sandbox.info.session_id, sandbox.info.spec
    )  # fmt: skip
    assert (sandbox.run_command("cat a; ls /tmp; ls -d /proc/[1-9]* | wc -l").stdout or "").split()[0] == "kept"
    assert [one.command_id for one in sandbox.processes()] == []
    now = sandbox.report()
    assert (now.level, now.kernel) == (report.level, report.kernel)
    assert [(one.name, one.state) for one in now.properties] == [(one.name, one.state) for one in report.properties]
    assert sandbox.terminate().state.state == "terminated"
    if not background:
        with client.sandboxes.create(agent_id=agent_id) as another:
            assert another.read_file("a").content == "kept\n"


@pytest.mark.req("T4.59", "T4.61")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(acts=st.lists(st.sampled_from(sorted(set(ACTS) - {"terminate"})), min_size=3, max_size=7))
def test_whatever_is_asked_in_a_row_its_state_is_the_published_one_and_no_file_is_lost(
    client: SyncColdframe, agent_id: str, acts: list[str]
) -> None:
    sandbox = client.sandboxes.create(agent_id=f"{agent_id}-{time.monotonic_ns()}")
    can_pause = "memory" in sandbox.report().pause_kinds
    state, lines = "running", 0
    for act in [*acts, "terminate", "terminate"]:
        if state == "running":
            lines += 1
            assert sandbox.run_command(f"echo {lines} >> log").exit_code == 0
        allowed = ACTS[act].get(state)
        if allowed is None:
            with pytest.raises(WrongState):
                ask(sandbox, act)
        elif act == "pause" and not can_pause:
            with pytest.raises(PauseKindUnsupported):
                ask(sandbox, act)
        else:
            ask(sandbox, act)
            state = allowed
        assert sandbox.refresh().state.state == state
        if state in WITH_BOX:
            assert sandbox.read_file("log").content == "".join(f"{line + 1}\n" for line in range(lines))


def ask(sandbox: SyncSandbox, act: str) -> None:
    if act == "pause_files":
        sandbox.pause("files")
    elif act == "extend":
        sandbox.extend_life(5)
    else:
        getattr(sandbox, {"start": "start_again"}.get(act, act))()


@pytest.mark.req("T4.60")
def test_a_sandbox_whose_client_is_gone_ends_by_its_own_limit(client: SyncColdframe, agent_id: str) -> None:
    spec = SandboxSpec(agent_id=agent_id, idle_timeout_s=0.3, on_timeout="stop", max_age_s=1.5)
    sandbox = client.sandboxes.create(spec=spec)
    assert sandbox.info.expires_at is not None
    wait_until(lambda: sandbox.refresh().state.state == "stopped", "its time is over")
    acted = client.ledger.entries(kinds=["sandbox.stopped"], subject=sandbox.id)
    assert [one.body["caller"] for one in acted] == ["timer"]
    end = sandbox.info.created_at.timestamp() + 1.5
    wait_until(lambda: time.time() > end, "it is too old")
    with pytest.raises(SandboxExpired):
        sandbox.start_again()
    sandbox.extend_life(60)
    assert sandbox.start_again().state.state == "running"
    sandbox.terminate()


@pytest.mark.req("T4.30", "T4.60")
def test_a_command_that_its_sandboxs_timer_held_and_that_went_on_says_so(client: SyncColdframe, agent_id: str) -> None:
    spec = SandboxSpec(agent_id=agent_id, max_age_s=4, on_timeout="pause")
    try:
        sandbox = client.sandboxes.create(spec=spec)
    except PauseKindUnsupported:
        pytest.skip("this user has no control group that can be frozen")
    job = sandbox.start("until [ -e go ]; do sleep 0.05; done; exit 3")
    wait_until(lambda: sandbox.refresh().state.state == "paused", "its time is over")
    sandbox.extend_life(600)
    sandbox.resume()
    after = sandbox.run_command("touch go")
    assert after.paused_s == 0
    done = job.wait().result
    assert done is not None
    assert (done.exit_code, done.timed_out, done.cancelled) == (3, False, False)
    assert done.paused_s > 0
    status = sandbox.command(job.id).status
    assert status is not None
    assert (status.state, status.code) == ("exited", None)
    assert status.message.startswith("its sandbox was paused for ")
    assert "max_age_s" in status.message
    other = sandbox.command(after.command_id).status
    assert other is not None
    assert other.message == ""
    sandbox.terminate()
