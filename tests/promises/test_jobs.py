"""A command that was started goes on whoever leaves: it is looked at, sent to, held to other limits and ended by its id,
from anywhere, and what it came to is there for as long as its sandbox is on record."""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import pytest

from coldframe.client.commands import PART_BYTES
from coldframe.client.sync import Job, SyncColdframe, SyncSandbox
from coldframe.contract.command import Activity, Ended, OutputChunk, Started
from coldframe.contract.errors import Conflict, DeniedByRule, GrantMissing, InvalidArgument, NotFound, WrongState
from coldframe.contract.files import MOST_SENT_BYTES
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import Limits, SandboxSpec
from tests.chaos.victims import Victims, kill
from tests.installation import Installation, wait_until
from tests.promises.governed import token_of
from tests.promises.raw import own_installation, rest

LATER = 60.0
"""Seconds in which something ends that has a reason to; nothing is said about how fast it is."""


def activity(job: Job) -> Activity:
    found = job.info().activity
    assert found is not None
    return found


def ended(job: Job) -> int | None:
    info = job.wait(LATER)
    assert info.result is not None, info
    return info.result.exit_code


@pytest.fixture
def own() -> Iterator[Installation]:
    """One that may be killed."""
    with own_installation() as started:
        yield started


@pytest.mark.req("T4.26", "T4.28", "T4.32", "T3.73")
def test_a_job_outlives_server_and_daemon_with_its_input_and_is_on_record_after_its_sandbox(own: Installation) -> None:
    with SyncColdframe(own.url, own.token) as client:
        sandbox = client.sandboxes.create("job")
        job = sandbox.start("echo once >> runs; cat; exit 7", stdin="one\n", stdin_open=True, idempotency_key="job")
        job.send_stdin("two\n")
        wait_until(lambda: job.output() == b"one\ntwo\n", "it has read")
        twin = sandbox.start("echo once >> runs; cat; exit 7", stdin="one\n", stdin_open=True, idempotency_key="job")
        assert twin.id == job.id
        steps = [
            {"name": "one", "command": "echo one >> steps"},
            {"name": "two", "command": "echo two >> steps; until test -e go; do sleep 0.05; done"},
            {"name": "three", "command": "echo three >> steps; test -e mended"},
        ]
        pipeline = sandbox.start_pipeline(steps)
        wait_until(lambda: pipeline.info().steps[1].state == "running", "the second step runs")
    seen = Victims(own)
    assert seen.servers
    assert seen.daemons
    for process in (*seen.servers, *seen.daemons):
        kill(process)
    own.kill()
    own.start()
    with SyncColdframe(own.url, own.token) as client:
        job = client.sandboxes.get(sandbox.id).job(job.id)
        assert job.info().state == "running"
        assert job.send_stdin("two\n", end=False).taken == 12
        client.sandboxes.get(sandbox.id).send_stdin(job.id, "two\n", offset=4)  # sent again, as after a lost answer
        job.close_stdin()
        assert ended(job) == 7
        assert job.output() == b"one\ntwo\ntwo\n"
        with pytest.raises(WrongState):
            job.send_stdin("more")
        assert client.sandboxes.get(sandbox.id).read_file("runs").content == "once\n"
        pipeline = client.sandboxes.get(sandbox.id).pipeline(pipeline.id)
        client.sandboxes.get(sandbox.id).write_file("go", "")
        assert [one.state for one in pipeline.wait(LATER).steps] == ["succeeded", "succeeded", "failed"]
        client.sandboxes.get(sandbox.id).write_file("mended", "")
        pipeline.rerun()
        assert pipeline.wait(LATER).state == "succeeded"
        assert client.sandboxes.get(sandbox.id).read_file("steps").content == "one\ntwo\nthree\nthree\n"
        receipt_id = f"rcp_{job.id.partition('_')[2]}"
        receipt = client.receipt(receipt_id)
        assert (receipt["exit_code"], receipt["stdout"]["bytes"]) == (7, 12)
        client.sandboxes.get(sandbox.id).terminate()
        viewer = token_of(client, Role.VIEWER)
    own.kill()
    own.start()
    with SyncColdframe(own.url, viewer) as other:
        late = other.sandboxes.get(sandbox.id).job(job.id)
        info = late.info()
        assert info.result is not None
        assert (info.state, info.result.exit_code) == ("ended", 7)
        assert late.output() == b"one\ntwo\ntwo\n"
        assert info.result.stdout.sha256 == hashlib.sha256(late.output()).hexdigest()
        assert other.receipt(receipt_id) == receipt
        assert [event.data for event in late.follow(after_seq=0) if isinstance(event, OutputChunk)]
        assert other.ledger.verify().intact


@pytest.mark.req("T4.27")
def test_each_chunk_has_its_time_and_is_had_once_however_often_a_follower_comes_again(sandbox: SyncSandbox) -> None:
    job = sandbox.start("for i in $(seq 20); do echo out $i; echo err $i >&2; done; read end", stdin_open=True)
    wait_until(lambda: job.output("stderr").endswith(b"err 20\n"), "it has written all")
    seen: list[OutputChunk] = []
    missing = len(job.output()) + len(job.output("stderr"))
    while missing:
        with closing(job.follow(after_seq=seen[-1].seq if seen else -1)) as events:
            began, chunk = next(events), next(events)
        assert isinstance(began, Started)
        assert isinstance(chunk, OutputChunk)
        seen.append(chunk)
        missing -= len(chunk.data)
    assert [one.seq for one in seen] == list(range(len(seen)))
    for stream in ("stdout", "stderr"):
        assert b"".join(one.data for one in seen if one.stream == stream) == job.output(stream)
    job.close_stdin()
    ended(job)
    begin, *rest_, end = list(job.follow())
    assert isinstance(begin, Started)
    assert isinstance(end, Ended)
    assert [event for event in rest_ if isinstance(event, OutputChunk)] == seen
    times = [one.at for one in seen if one.at is not None]
    assert len(times) == len(seen)
    assert [begin.at, *times, end.result.ended_at] == sorted([begin.at, *times, end.result.ended_at])


WRITER = """
import hashlib, sys, time
digests, written, number = [hashlib.sha256(), hashlib.sha256()], 0, 0
streams = [sys.stdout.buffer, sys.stderr.buffer]
while written < int(sys.argv[1]):
    for digest, stream in zip(digests, streams):
        lines = b"".join(b"%d " % (number + n) + b"x" * 90 + b"\\n" for n in range(500))
        digest.update(lines)
        stream.write(lines)
        written += len(lines)
    number += 500
open("digests", "w").write(" ".join(one.hexdigest() for one in digests))
"""
WRITTEN_BYTES = (200 if os.environ.get("COLDFRAME_SLOW") else 16) << 20
MOST_GROWN_BYTES = 64 << 20
SPEAKER = """
import sys, time
for _ in range(100):
    print(time.monotonic_ns(), flush=True)
    time.sleep(0.005)
"""
MOST_LATE_S = 0.5


def held_bytes(installation: Installation) -> int:
    """Of memory that is its own, by all of its processes together."""
    found = 0
    for pid in installation.processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            found += sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Private_Dirty:", "Swap:")))
    return found


@pytest.mark.req("T4.27")
def test_a_follower_that_does_not_read_neither_slows_much_output_nor_fills_the_memory(
    installation: Installation, sandbox: SyncSandbox
) -> None:
    sandbox.write_file("write.py", WRITER)
    before = held_bytes(installation)
    job = sandbox.start(["python3", "write.py", str(WRITTEN_BYTES)])
    with closing(job.follow()) as slow:
        begun, *seen = itertools.islice(slow, 3)  # and nothing more while it runs
        assert isinstance(begun, Started)
        assert ended(job) == 0
        assert held_bytes(installation) - before <= MOST_GROWN_BYTES
        seen += [event for event in slow if isinstance(event, OutputChunk)]
    assert [one.seq for one in seen if isinstance(one, OutputChunk)] == list(range(len(seen)))
    digests = str(sandbox.read_file("digests").content).split()
    result = job.info().result
    assert result is not None
    assert [result.stdout.sha256, result.stderr.sha256] == digests
    streams: list[Literal["stdout", "stderr"]] = ["stdout", "stderr"]
    for stream, digest in zip(streams, digests, strict=True):
        got = hashlib.sha256()
        for part in job.output_parts(stream):  # by a reader that comes late, from the first byte on
            got.update(part)
        assert got.hexdigest() == digest
        followed = hashlib.sha256(
            b"".join(one.data for one in seen if isinstance(one, OutputChunk) and one.stream == stream)
        )
        assert followed.hexdigest() == digest
    assert held_bytes(installation) - before <= MOST_GROWN_BYTES


@pytest.mark.req("T4.27")
def test_a_follower_sees_a_line_soon_after_it_was_written(sandbox: SyncSandbox) -> None:
    """By the median, which holds on a busy machine too."""
    sandbox.write_file("speak.py", SPEAKER)
    late_s = []
    with closing(sandbox.start(["python3", "speak.py"]).follow()) as events:
        for event in events:
            if isinstance(event, OutputChunk):
                late_s += [(time.monotonic_ns() - int(line)) / 1e9 for line in event.data.split()]
    assert len(late_s) == 100
    assert statistics.median(late_s) <= MOST_LATE_S


def test_input_of_any_size_arrives_whole_and_waits_with_its_sender_while_the_command_does_not_read(
    sandbox: SyncSandbox,
) -> None:
    assert PART_BYTES == MOST_SENT_BYTES
    data = bytes(range(256)) * 16_000
    job = sandbox.start("until [ -e go ]; do sleep 0.02; done; sha256sum", stdin_open=True)
    sender = threading.Thread(target=job.send_stdin, args=(data,), kwargs={"end": True})
    sender.start()

    def taken() -> int:
        state = activity(job).stdin
        assert state is not None
        return state.taken

    wait_until(lambda: taken() > MOST_SENT_BYTES, "as much is taken as there is room for")
    assert taken() <= MOST_SENT_BYTES + 64 * 1024  # and what a pipe holds
    assert sandbox.run_command("true").exit_code == 0
    sandbox.write_file("go", "")
    assert ended(job) == 0
    sender.join()
    assert job.output().split()[0] == hashlib.sha256(data).hexdigest().encode()


def test_what_is_sent_from_one_place_arrives_once_and_two_senders_never_mix(sandbox: SyncSandbox) -> None:
    job = sandbox.start("cat", stdin_open=True)
    for _ in range(3):
        assert sandbox.send_stdin(job.id, "abc\n", offset=0).taken == 4
    assert sandbox.send_stdin(job.id, "c\ndef\n", offset=2).taken == 8
    for data, offset in (("abX\n", 0), ("ghi\n", 9)):
        with pytest.raises(Conflict) as failure:
            sandbox.send_stdin(job.id, data, offset=offset)
        assert failure.value.facts["taken"] == 8
    for _ in range(2):
        assert not sandbox.send_stdin(job.id, "", offset=8, end=True).open
    assert ended(job) == 0
    assert job.output() == b"abc\ndef\n"
    with pytest.raises(WrongState):
        sandbox.start("sleep 60").send_stdin("x")
    with pytest.raises(InvalidArgument):
        sandbox.start("cat", stdin="x" * (MOST_SENT_BYTES + 1), stdin_open=True)


def test_a_terminal_takes_input_sizes_and_the_end_of_input_as_from_a_person(sandbox: SyncSandbox) -> None:
    job = sandbox.start("read a; stty size; cat; echo over", pty=True, columns=90, rows=20)
    job.resize(77, 33)
    job.send_stdin("x\n")
    wait_until(lambda: b"33 77" in job.output(), "it has read, and knows its new size")
    job.send_stdin("last\n", end=True)
    assert ended(job) == 0
    assert job.output().endswith(b"last\r\nover\r\n")


@pytest.mark.req("T3.68")
def test_who_hangs_says_what_it_waits_for_and_each_way_out_of_it_works(sandbox: SyncSandbox) -> None:
    holder = sandbox.start("flock lock -c 'echo held; exec sleep 600'")
    wait_until(holder.output, "the lock is held")
    jobs = {
        "stdin": sandbox.start("cat", stdin_open=True),
        "lock": sandbox.start(["flock", "lock", "true"]),
        "child": sandbox.start("sleep 600 & kill -STOP $!; wait"),
        "none": sandbox.start("while :; do :; done"),
    }
    quiet = sandbox.start("exec sleep 600")
    terminal = sandbox.start("read answer; echo $answer", pty=True)
    for waits, job in jobs.items():
        wait_until(lambda job=job: activity(job).stalled, f"{waits} is found", timeout_s=LATER)  # type: ignore[misc]
        info = job.info()
        assert info.activity is not None
        assert (info.activity.waiting_for, info.state) == (waits, "running")
        assert info.activity.silent_for_s >= 3
        assert info.status is not None
        assert info.status.message.startswith("stalled")
        offered = {action["op"] for action in info.status.next_actions}
        assert {"command.signal", "command.extend", "command.cancel"} <= offered
        assert ("command.send_stdin" in offered) == (waits == "stdin")
    wait_until(lambda: activity(terminal).waiting_for == "stdin", "a terminal is found", timeout_s=LATER)
    assert (activity(quiet).stalled, activity(quiet).waiting_for) == (False, None)
    jobs["stdin"].send_stdin("heard\n")
    wait_until(lambda: jobs["stdin"].output() == b"heard\n", "it goes on")
    jobs["child"].extend(timeout_s=1)
    jobs["none"].signal(9)
    jobs["stdin"].cancel()
    holder.cancel()
    found = {waits: job.wait(LATER).status for waits, job in jobs.items()}
    assert {waits: status.state if status else None for waits, status in found.items()} == {
        "stdin": "cancelled",
        "lock": "exited",
        "child": "timed_out",
        "none": "signalled",
    }
    assert sandbox.run_command("echo next").stdout == "next\n"


@pytest.mark.req("T3.68", "T4.30")
@pytest.mark.parametrize(
    ("limits", "command", "code"),
    [
        ({"idle_timeout_s": 0.5}, "trap '' TERM; echo part; sleep 600 & sleep 600", "TIMED_OUT_IDLE"),
        ({"timeout_s": 0.5}, "echo part; (setsid sleep 600 &) ; sleep 600", "TIMED_OUT_WALL"),
        ({"cpu_s": 0.3}, "echo part; while :; do :; done", "LIMIT_CPU"),
    ],
)
def test_each_limit_of_a_command_ends_its_whole_tree_and_is_told_by_its_name(
    sandbox: SyncSandbox, limits: dict[str, float], command: str, code: str
) -> None:
    job = sandbox.start(command, **limits)  # type: ignore[arg-type]
    info = job.wait(LATER)
    assert info.status is not None
    assert info.status.code == code
    assert job.output() == b"part\n"
    assert not sandbox.processes()


@pytest.mark.req("T4.30")
@pytest.mark.parametrize(
    ("limits", "command", "code"),
    [
        ({"idle_timeout_s": 0.5}, "sleep 600", "TIMED_OUT_IDLE"),
        ({"timeout_s": 0.5}, "while :; do echo; sleep 0.1; done", "TIMED_OUT_WALL"),
        ({"cpu_s": 0.2}, "while :; do :; done", "LIMIT_CPU"),
    ],
)
def test_limits_are_shortened_while_it_runs(
    sandbox: SyncSandbox, limits: dict[str, float], command: str, code: str
) -> None:
    job = sandbox.start(command)
    job.extend(**limits)
    info = job.wait(LATER)
    assert info.status is not None
    assert info.status.code == code


@pytest.mark.req("T4.30")
def test_limits_are_extended_while_it_runs_up_to_those_of_the_sandbox(client: SyncColdframe, agent_id: str) -> None:
    spec = SandboxSpec(agent_id=agent_id, limits=Limits(wall_s=100, cpu_s=50), command_idle_s=0.5)
    with client.sandboxes.create(spec=spec) as sandbox:
        silent = sandbox.start("sleep 600")
        job = sandbox.start("cat", timeout_s=3, idle_timeout_s=3, cpu_s=1, stdin_open=True)
        job.extend(timeout_s=100, idle_timeout_s=90, cpu_s=50)
        assert (activity(job).timeout_s, activity(job).idle_timeout_s, activity(job).cpu_s) == (100, 90, 50)
        for limits in ({"timeout_s": 101.0}, {"idle_timeout_s": 101.0}, {"cpu_s": 51.0}, {"timeout_s": 0.0}, {}):
            with pytest.raises(InvalidArgument):
                job.extend(**limits)
        wait_until(lambda: activity(job).running_for_s > 3.2, "it is past its first limits")
        job.close_stdin()
        assert ended(job) == 0
        status = silent.info().status
        assert status is not None
        assert status.code == "TIMED_OUT_IDLE"
        with pytest.raises(WrongState):
            job.extend(timeout_s=50)
        changed = [one.body for one in client.ledger.entries(sandbox_id=sandbox.id, kinds=["command.limits_changed"])]
        assert changed[0]["timeout_ms"] == 100_000
        assert changed[0]["command_id"] == job.id


@pytest.mark.req("T4.31")
def test_cancelling_ends_every_process_of_the_command_once_and_leaves_its_neighbours_alone(
    client: SyncColdframe, sandbox: SyncSandbox
) -> None:
    neighbour = sandbox.start("exec sleep 600")
    sandbox.write_file("fork.py", "import os, time\nwhile True:\n    os.fork() or os._exit(0)\n    time.sleep(0.001)\n")
    job = sandbox.start(
        "trap '' TERM; echo part; echo made > made; setsid sleep 601 & (sleep 602 &); sleep 603 & kill -STOP $!;"
        " python3 fork.py & sleep 604; while :; do sleep 1; done"
    )
    wait_until(lambda: job.output() and len(sandbox.processes()) >= 6, "all of it runs")
    job.cancel()
    job.cancel()
    info = job.wait(LATER)
    assert info.result is not None
    assert info.status is not None
    assert (info.status.state, info.status.code) == ("cancelled", "CANCELLED")
    assert "rest:tok_" in info.status.message
    assert job.output() == b"part\n"
    assert [change.path for change in info.result.files.changes] == ["made"]
    wait_until(lambda: [one.command_id for one in sandbox.processes()] == [neighbour.id], "only the neighbour is left")
    job.cancel()
    assert job.info() == info
    assert neighbour.info().state == "running"


@pytest.mark.req("T4.29")
def test_what_runs_is_listed_as_it_is_inside_with_ports_and_the_command_that_owns_it(sandbox: SyncSandbox) -> None:
    script = """
import os, signal, socket, sys, time
held = socket.create_server(("127.0.0.1", 0))
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.bind(("::1", 0))
def child(work):
    pid = os.fork()
    if pid == 0:
        held.close(); datagrams.close(); work(); os._exit(0)
    return pid
sleeping = [child(lambda: time.sleep(600)) for _ in range(3)]
apart = child(lambda: (os.setsid(), time.sleep(600)))
stopped = child(lambda: os.kill(os.getpid(), signal.SIGSTOP))
zombie = child(lambda: None)
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOWAIT)
print(os.getpid(), stopped, zombie, apart, held.getsockname()[1], datagrams.getsockname()[1], flush=True)
while time.process_time() < 0.1:
    pass
print("ready", flush=True)
time.sleep(600)
"""
    sandbox.write_file("tree.py", script)
    job = sandbox.start(["python3", "tree.py"])
    left = sandbox.run_command("sleep 601 & echo")
    wait_until(lambda: b"ready" in job.output(), "all are there")
    wait_until(
        lambda: "sleep 601" in {one.command_line for one in sandbox.processes()}, "what was left runs its program"
    )
    main, stopped, zombie, apart, tcp, udp = (int(word) for word in job.output().split()[:-1])
    found = {one.pid: one for one in sandbox.processes()}
    own = [one for one in found.values() if one.command_id == job.id]
    assert len(own) == 7
    assert {one.parent for one in own if one.pid != main} == {main}
    assert (found[stopped].state, found[zombie].state, found[apart].state) == ("stopped", "zombie", "sleeping")
    assert found[main].memory_bytes > 1 << 20
    assert found[main].cpu_s >= 0.09
    listening = {(one.protocol, one.address, one.port) for one in found[main].ports}
    assert listening == {("tcp", "127.0.0.1", tcp), ("udp", "::1", udp)}
    assert [(one.pid, one.command_id) for one in sandbox.ports()] == [(main, job.id)]
    assert [one.command_line for one in found.values() if one.command_id == left.command_id] == ["sleep 601"]
    inside = sandbox.run_command(["bash", "-c", "for p in /proc/[0-9]*; do echo ${p#/proc/}; done; exec true"])
    seen_inside = {int(word) for word in (inside.stdout or "").split()}
    assert set(found) <= seen_inside
    assert all(one.command_id for one in found.values())
    job.cancel()
    ended(job)
    # What was killed is listed until the first process of the box has waited for it.
    wait_until(lambda: [one.command_line for one in sandbox.processes()] == ["sleep 601"], "only the other is left")


def test_input_is_judged_as_a_call_of_the_command_and_recorded_whether_it_goes_or_not(
    governed: Installation, owner: SyncColdframe, box: SyncSandbox, agent_id: str
) -> None:
    job = box.start("cat > heard", stdin_open=True)
    job.send_stdin("ok\n")
    with SyncColdframe(governed.url, token_of(owner, Role.VIEWER)) as viewer, pytest.raises(GrantMissing):
        viewer.sandboxes.get(box.id).send_stdin(job.id, "viewer\n", offset=3)
    owner.agents.create(f"{agent_id}-other")
    other = token_of(owner, Role.AGENT, f"{agent_id}-other")
    answer = rest(governed, "POST", f"/v1/sandboxes/{box.id}/commands/{job.id}/stdin", b"other\n", token=other)
    assert answer.code == "NOT_FOUND"
    deny = (
        "version: 1\nrules:\n  - {id: no-cat, hook: PRE_TOOL_CALL, when: {program: cat}, then: deny, reason: enough}\n"
    )
    owner.policy.load(deny)
    with pytest.raises(DeniedByRule) as failure:
        job.send_stdin("denied\n")
    assert failure.value.facts["rule"] == "no-cat"
    label = "version: 1\nrules:\n  - {id: read, hook: PRE_TOOL_CALL, when: {tool: read_file}, label: CONFIDENTIAL}\n"
    owner.policy.load(label)
    box.read_file("a.txt")
    job.send_stdin("fine\n", end=True)
    assert ended(job) == 0
    assert box.read_file("heard").content == "ok\nfine\n"
    (first, second) = [one for one in owner.lineage.list(sandbox_id=box.id).items if one.kind == "input"]
    assert [one.sha256 for one in (first, second)] == [
        hashlib.sha256(data).hexdigest() for data in (b"ok\n", b"fine\n")
    ]
    assert second.label is Label.CONFIDENTIAL
    (heard,) = owner.lineage.list(sandbox_id=box.id, path="heard").items
    assert {(one.item_id, one.certainty) for one in heard.inputs} >= {
        (first.item_id, "known"),
        (second.item_id, "known"),
    }
    entries = owner.ledger.entries(sandbox_id=box.id, kinds=["call.input", "call.refused", "call.ended"])
    sent = [one.body for one in entries if one.kind == "call.input"]
    assert [(one["offset"], one["bytes"], one["end"]) for one in sent] == [(0, 3, False), (3, 5, True)]
    assert [one["sha256"] for one in sent] == [hashlib.sha256(data).hexdigest() for data in (b"ok\n", b"fine\n")]
    assert "fine" not in json.dumps(sent)
    refused = [one.body["code"] for one in entries if one.kind == "call.refused"]
    assert refused == ["GRANT_MISSING", "NOT_FOUND", "DENIED_BY_RULE"]
    (end,) = [one.body for one in entries if one.kind == "call.ended" and one.body["command_id"] == job.id]
    assert end["label"] == Label.CONFIDENTIAL
    replayed = owner.policy.replay(next(one.seq for one in entries if one.kind == "call.input"))
    assert replayed["stored"] == replayed["recomputed"]
    denied = next(one.seq for one in entries if one.body.get("code") == "DENIED_BY_RULE")
    assert owner.policy.replay(denied)["recomputed"]["rule_id"] == "no-cat"
    with pytest.raises(NotFound):
        box.send_stdin("cmd_" + "0" * 24, "x", offset=0)


@pytest.mark.req("T4.26")
def test_a_person_at_a_terminal_is_at_the_job_and_leaves_it_running(
    installation: Installation, sandbox: SyncSandbox
) -> None:
    job = sandbox.start("stty size; read a; stty size; read b; exit 4", pty=True)
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    seen = bytearray()

    def sees(what: bytes) -> bool:
        with contextlib.suppress(BlockingIOError):
            seen.extend(os.read(ours, 4096))
        return what in seen

    def size(rows: int, columns: int) -> None:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    try:
        before = termios.tcgetattr(theirs)
        size(31, 77)
        with subprocess.Popen(
            [sys.executable, "-m", "coldframe.cli", "job", "attach", sandbox.id, job.id],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=installation.environment,
        ) as attached:
            wait_until(lambda: sees(b"40 120"), "it is attached", timeout_s=LATER)
            os.write(ours, b"one\n")
            wait_until(lambda: sees(b"31 77"), "the job has our size", timeout_s=LATER)
            os.write(ours, b"\x1d")
            wait_until(lambda: sees(b"runs on"), "it has left", timeout_s=LATER)
            assert attached.wait(LATER) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)
    assert job.info().state == "running"
    job.send_stdin("two\n")
    assert ended(job) == 4


def test_a_job_is_used_from_the_command_line(installation: Installation, sandbox: SyncSandbox) -> None:
    def cli(*arguments: str, code: int = 0, **options: object) -> str:
        done = installation.cli("job", *arguments, **options)  # type: ignore[arg-type]
        assert done.returncode == code, done.stderr
        return done.stdout.decode()

    job = cli("start", sandbox.id, "--open-stdin", "-c", "cat; exit 3").strip()
    assert job in cli("list", sandbox.id)
    cli("stdin", sandbox.id, job, "--keep-open", input=b"hello\n")
    wait_until(sandbox.job(job).output, "it has read")
    assert cli("logs", sandbox.id, job) == "hello\n"
    assert f"next: coldframe job stdin {sandbox.id} {job}: " in cli("show", sandbox.id, job)
    cli("extend", sandbox.id, job, "--timeout-s", "300")
    assert cli("attach", sandbox.id, job, code=3, input=b"more\n") == "hello\nmore\n"
    events = [json.loads(line) for line in cli("logs", sandbox.id, job, "-f", "--json").splitlines()]
    assert [event["event"] for event in events][:2] == ["started", "output"]
    assert events[1]["at"]
    other = cli("start", sandbox.id, "--", "sleep", "600").strip()
    cli("wait", sandbox.id, other, "--timeout-s", "0", code=6)
    cli("signal", sandbox.id, other, "KILL")
    assert "is signalled" in cli("stop", sandbox.id, other)
