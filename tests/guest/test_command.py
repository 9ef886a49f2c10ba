"""A command always comes to an end that is told, whatever it or its neighbours do, and all its output up to then is kept."""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.guest import command as command_module
from coldframe.guest import rows, spawn
from coldframe.guest.command import Command
from coldframe.guest.loop import Loop
from coldframe.guest.rows import Call
from coldframe.guest.transcript import Transcript
from coldframe.guest.usage import Usage
from tests.host.forked import in_child

BYTE = ctypes.c_char(b"x")
NOTHING = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


class SessionTree:
    """Stands for a control group: everything in the session of the main process. `blind` sees nobody at all."""

    def __init__(self, *, blind: bool = False, enter: Callable[[], object] | None = None) -> None:
        self.leader = 0
        self._blind = blind
        self._steps: spawn.Steps = () if enter is None else (enter,)

    def birth(self) -> tuple[int, spawn.Steps] | None:
        return -1, self._steps

    def fork(self) -> tuple[int, spawn.Steps]:
        return os.fork(), self._steps

    def claim(self, command_id: str) -> None:
        return

    def _pids(self) -> list[int]:
        if self._blind or not self.leader:
            return []
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat", "rb") as file:
                        fields = file.read().rpartition(b")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.leader and fields[0] != b"Z":
                    found.append(int(entry))
        return found

    def empty(self) -> bool:
        return not self._pids()

    def members(self) -> list[dict[str, Any]]:
        return [{"pid": pid, "command_line": "", "started_at": ""} for pid in self._pids()]

    def processes(self) -> list[dict[str, Any]]:
        return self.members()

    def signal(self, number: int) -> None:
        for pid in self._pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def cpu_s(self) -> float:
        return 0.0

    def usage(self) -> Usage:
        return Usage(0.0, None, 0)

    def polled_memory_bytes(self, limit_bytes: int) -> int:
        return 0

    def disk_overrun(self) -> tuple[int, int] | None:
        return None

    def disk_full(self) -> tuple[int, int] | None:
        return None

    def forks_refused(self) -> bool:
        return False

    def disk_exhausted(self) -> dict[str, Any] | None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def records(tmp_path: Path) -> Iterator[int]:
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield held
    os.close(held)


def run(
    records: int,
    tree: SessionTree,
    *,
    stdin: bytes = b"",
    until_settled: bool = False,
    search: bytes = b"/usr/bin:/bin",
    news: Callable[[Command], None] = lambda command: None,
    **fields: Any,
) -> Command:
    """In a child (a command is forked from its keeper), so that a loop that does not end is ended by the test's timeout."""
    spawn.settle_signals()
    loop = Loop()
    spec = {"command_id": "c", "timeout_s": 20.0, "cpu_s": 1e9, "memory_bytes": 1 << 60, **fields}

    def changed(command: Command) -> None:
        news(command)
        if command.started is not None and command.started.pid is not None:
            tree.leader = command.started.pid
        if command.result is not None and not until_settled:
            loop.stop()

    command = Command(
        loop,
        spec,
        tree=tree,
        become=(),
        nothing=NOTHING,
        transcript=Transcript(records, "c.out"),
        late=Transcript(records, "c.late"),
        finish=lambda command: command.describe_end(),
        on_change=changed,
    )

    def stop_when_settled() -> None:
        if command.settled:
            loop.stop()
        else:
            loop.after(0.02, stop_when_settled)

    if until_settled:
        stop_when_settled()
    environment = {b"PATH": search}
    command.begin(records, environment, stdin)
    if command.result is None or until_settled:
        loop.run()
    tree.kill()
    return command


def written(command: Command) -> bytes:
    return b"".join(command.transcript.chunk(number)[1] for number in range(len(command.transcript)))


def result_of(records: int, tree: SessionTree, **fields: Any) -> tuple[dict[str, Any], bytes]:
    def whole() -> tuple[dict[str, Any], bytes]:
        command = run(records, tree, **fields)
        assert command.result is not None
        return command.result, written(command)

    return in_child(whole)


def test_an_exit_code_and_both_streams_are_told(records: int) -> None:
    result, output = result_of(records, SessionTree(), shell="echo out; echo err >&2; exit 7")
    assert (result["ended"], result["exit_code"], output) == ("exited", 7, b"out\nerr\n")


def told(
    records: int, *, together_s: float | None = None, until_news: bool = False, **fields: Any
) -> list[tuple[bool, bool, bool]]:
    """What each piece of news was about: a start, some output, an end. *until_news*: the first one ends the command."""

    def whole() -> list[tuple[bool, bool, bool]]:
        if together_s is not None:
            command_module.TOGETHER_S = together_s
        seen = []

        def note(command: Command) -> None:
            seen.append((command.started is not None, len(command.transcript) > 0, command.result is not None))
            if until_news and len(seen) == 1 and command.started is not None and command.started.pid is not None:
                os.kill(command.started.pid, signal.SIGKILL)

        run(records, SessionTree(), news=note, **fields)
        return seen

    return in_child(whole)


def test_a_start_is_told_with_what_follows_at_once(records: int) -> None:
    assert told(records, together_s=60.0, argv=["true"]) == [(True, False, True)]
    first, *_ = told(records, together_s=60.0, shell="echo out; exec sleep 60", until_news=True)
    assert first == (True, True, False)


def test_the_start_of_a_command_that_says_nothing_is_told_all_the_same(records: int) -> None:
    assert told(records, argv=["sleep", "60"], until_news=True) == [(True, False, False), (True, False, True)]


def test_a_step_that_fails_is_a_command_that_did_not_start(records: int) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for enter, reason in ((full, "No space left on device"), (Call("fchdir", 1 << 20), "Bad file descriptor")):
        result, output = result_of(records, SessionTree(enter=enter), argv=["echo", "out"])
        assert (result["ended"], result["exit_code"], output) == ("not_started", 126, b"")
        assert result["start_error"] == f"the command could not be prepared (limits): {reason}"


def test_a_child_that_is_held_before_it_joined_its_tree_ends_by_the_time_limit(records: int) -> None:
    """A neighbour in the box can stop it there; then the tree is empty and nobody else could be killed."""

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    read, full = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(1 << 16))
    os.set_blocking(full, True)
    wait = Call("write", full, ctypes.addressof(BYTE), 1, kept=BYTE)
    for enter in (stop, wait):
        result, _ = result_of(records, SessionTree(blind=True, enter=enter), shell="echo started", timeout_s=0.2)
        assert (result["ended"], result["timed_out"]) == ("timed_out", True)
    for file in (read, full):
        os.close(file)


@pytest.mark.parametrize("born", [True, False], ids=["in a row", "forked"])
def test_a_program_is_looked_for_along_the_search_path(
    records: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, born: bool
) -> None:
    if not born:
        monkeypatch.setattr(rows, "_code", lambda: None)
    (tmp_path / "mine").write_text("#!/bin/sh\necho $0\n", encoding="utf-8")
    search = b"/no/such:%s:/bin" % os.fsencode(tmp_path)
    refused, _ = result_of(records, SessionTree(), argv=["mine"], search=search)
    (tmp_path / "mine").chmod(0o755)
    ran, output = result_of(records, SessionTree(), argv=["mine"], search=search)
    absent, _ = result_of(records, SessionTree(), argv=["none"], search=search)
    assert (refused["exit_code"], absent["exit_code"], ran["exit_code"]) == (126, 127, 0)
    assert output == b"%s\n" % os.fsencode(tmp_path / "mine")


def test_a_main_process_that_left_its_tree_ends_by_the_time_limit(records: int) -> None:
    result, _ = result_of(records, SessionTree(blind=True), argv=["sleep", "60"], timeout_s=0.2)
    assert (result["ended"], result["signal"]) == ("timed_out", signal.SIGTERM)


def test_a_neighbour_that_traces_the_main_process_cannot_keep_its_end_back(records: int) -> None:
    """A traced process stays a zombie that its parent cannot wait for, until the tracer ends."""
    script = (
        "import ctypes, os, time\n"
        "main = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    ctypes.CDLL(None).ptrace(0x4206, main, 0, 0)\n"  # PTRACE_SEIZE
        "    for number in (1, 2): os.close(number)\n"
        "    time.sleep(60)\n"
        "time.sleep(60)\n"
    )

    def whole() -> tuple[dict[str, Any], float]:
        command = run(records, SessionTree(), argv=["/usr/bin/python3", "-c", script], timeout_s=1.0)
        assert command.result is not None
        os.kill(int(written(command).split()[0]), signal.SIGKILL)
        return command.result, sum(os.times()[:2])

    result, cpu_s = in_child(whole)
    assert result["ended"] == "timed_out"
    assert cpu_s < 1.5  # and it is not waited for in a busy loop


def test_long_input_reaches_a_terminal_whole(records: int) -> None:
    """More than the terminal holds at once, for a program that reads late."""
    lines = b"".join(b"%05d\n" % number for number in range(20_000))
    script = "import sys, time; time.sleep(0.3); print(sum(int(sys.stdin.readline()) for _ in range(20000)))"
    result, output = result_of(
        records,
        SessionTree(),
        argv=["bash", "-c", f"stty -echo; exec /usr/bin/python3 -c '{script}'"],
        terminal={"columns": 80, "rows": 24},
        stdin=lines,
    )
    assert result["ended"] == "exited"
    assert output.rstrip().endswith(b"%d" % sum(range(20_000)))  # after what was echoed before the echo was off


def test_a_program_that_never_reads_its_terminal_does_not_hold_the_keeper(records: int) -> None:
    result, _ = result_of(
        records,
        SessionTree(),
        argv=["sleep", "0.2"],
        terminal={"columns": 80, "rows": 24},
        stdin=b"x\n" * 200_000,
    )
    assert (result["ended"], result["exit_code"]) == ("exited", 0)


@pytest.mark.parametrize("text", ["echo \ud800", "\udfff"])
def test_text_that_is_no_command_line_is_a_result(records: int, text: str) -> None:
    result, _ = result_of(records, SessionTree(), shell=text)
    assert (result["ended"], result["exit_code"]) == ("not_started", 126)


def test_what_is_kept_of_a_flood_stays_near_the_cap_also_if_the_flood_ignores_the_end(records: int) -> None:
    result, output = result_of(records, SessionTree(), shell="trap '' TERM; yes", output_bytes=1 << 20)
    assert result["ended"] == "limit"
    assert result["limit"]["kind"] == "output"
    assert 1 << 20 <= len(output) <= 12 << 20


def test_the_last_words_of_an_adopted_process_are_kept_apart(records: int) -> None:
    def whole() -> tuple[dict[str, Any], bytes, bool]:
        command = run(records, SessionTree(), shell="(sleep 0.5; echo late) & echo early", until_settled=True)
        assert command.result is not None
        late = os.open("c.late", os.O_RDONLY, dir_fd=records)
        return command.result, os.read(late, 100), command.settled

    result, late, settled = in_child(whole)
    assert len(result["leftovers"]) >= 1
    assert result["stdout"]["bytes"] == len(b"early\n")
    assert late.endswith(b"late\n")
    assert settled


def test_no_free_descriptor_is_a_result_and_leaves_no_process(records: int) -> None:
    def whole() -> tuple[list[str], int]:
        ends = []
        spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
        highest = max(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
        for free in range(30):
            directory = tempfile.mkdtemp(prefix="cf-command-")
            held = os.open(directory, os.O_RDONLY) if free > 3 else -1
            if held >= 0:
                command = run(held, SessionTree(), argv=["sleep", "0.01"])
                assert command.result is not None
                ends.append(command.result["ended"])
                os.close(held)
            os.rmdir(directory)
            os.close(spare.pop())
        try:
            children = os.waitpid(-1, os.WNOHANG)[0]
        except ChildProcessError:
            children = -1
        return ends, children

    ends, children = in_child(whole)
    assert {"not_started", "exited"} == set(ends)
    assert children == -1


def test_no_free_event_watch_is_a_result_and_leaves_no_process(
    records: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Loop.watch
    left = 0

    def scarce(self: Loop, file: int, events: int, handler: Callable[[int], None]) -> None:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "no space")
        left -= 1
        watch(self, file, events, handler)

    def whole(free: int) -> tuple[str, str | None, bool]:
        nonlocal left
        left = free
        command = run(records, SessionTree(), argv=["sleep", "30"], timeout_s=0.3, until_settled=True)
        assert command.result is not None
        try:
            gone = os.waitpid(-1, os.WNOHANG)[0] == -1
        except ChildProcessError:
            gone = True
        return command.result["ended"], command.result["start_error"], gone

    monkeypatch.setattr(Loop, "watch", scarce)
    needed = 3
    for free in range(needed):
        assert in_child(lambda: whole(free)) == ("not_started", "no process could be made: no space", True)  # noqa: B023
    assert in_child(lambda: whole(needed)) == ("timed_out", None, True)


def test_a_program_is_the_first_of_the_search_path_that_can_be_started(records: int, tmp_path: Path) -> None:
    for folder in ("none", "data", "first", "second"):
        (tmp_path / folder).mkdir()
    for folder in ("data", "first", "second"):
        (tmp_path / folder / "tell").write_text(f"#!/bin/sh\necho {folder}\n")
        (tmp_path / folder / "tell").chmod(0o644 if folder == "data" else 0o755)

    def found(*folders: str) -> tuple[str, int, bytes]:
        search = ":".join(folder if folder in ("", "first") else str(tmp_path / folder) for folder in folders)
        result, output = result_of(records, SessionTree(), argv=["tell"], search=os.fsencode(search))
        (tmp_path / "c.out").unlink(missing_ok=True)
        return result["ended"], result["exit_code"], output

    assert found("none", "data", "first") == ("exited", 0, b"first\n")  # a relative one, from the command's directory
    assert found("none", "second", "first") == ("exited", 0, b"second\n")
    assert found("first", "second") == ("exited", 0, b"first\n")
    assert found("", "none", "second") == ("exited", 0, b"second\n")
    assert found("none", "missing") == ("not_started", 127, b"")
    if os.geteuid() != 0:
        (tmp_path / "second").chmod(0)
        assert found("none", "second") == ("not_started", 126, b"")
        (tmp_path / "second").chmod(0o700)
    assert found("none", "data") == ("not_started", 126, b"")


def test_signals_of_the_keeper_do_not_pass_to_a_command(records: int) -> None:
    """Neither its own, nor what it inherited: who starts the product in the background has it ignore SIGQUIT."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        _, output = result_of(records, SessionTree(), argv=["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"])
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert set(output.split()[1::2]) == {b"0" * 16}
