"""A program is started without a copy of this process's memory, by a child that shares it and can do no harm there."""

import ctypes
import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import pytest

from coldframe.guest import rows
from coldframe.guest.rows import Attempt, Call, Progress, Row
from coldframe.host import confine
from coldframe.host.syscalls import SYSCALLS
from tests.host.boxes import become_ordinary
from tests.host.forked import in_child

PR_SET_DUMPABLE = 4
BYTE = ctypes.c_char(b"x")
TRUE = Attempt(b"/bin/true", [b"true"], {})


def write(file: int) -> Call:
    return Call("write", file, ctypes.addressof(BYTE), 1, kept=BYTE)


def run(*attempts: Attempt, steps: Sequence[tuple[str, Sequence[Call]]] = ()) -> tuple[int, Progress]:
    """Exit code, and how far it came."""
    row = Row(steps, attempts)
    pid, process = row.start(-1)
    os.close(process)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), row.progress()


class Hold:
    """Two steps: it tells that it has come so far, and waits for a word that never comes."""

    def __init__(self) -> None:
        self._told, telling = os.pipe2(os.O_CLOEXEC)
        word, self._giving = os.pipe2(os.O_CLOEXEC)
        wait = Call("getpid", kept=BYTE)
        wait.words = (SYSCALLS[os.uname().machine]["read"], word, ctypes.addressof(BYTE), 1, 0, 0, 0)
        self.steps = [("held", [write(telling), wait])]

    def reached(self) -> None:
        assert os.read(self._told, 1) == b"x"


@pytest.fixture(autouse=True)
def needs_code() -> None:
    if os.uname().machine not in rows.CODE:
        pytest.skip("there is no code for this machine: it forks")


@pytest.mark.skipif(shutil.which("as") is None, reason="binutils are missing")
def test_the_code_is_what_is_said_beside_it(tmp_path: Path) -> None:
    source = Path(rows.__file__).read_text(encoding="utf-8")
    lines = re.findall(r'^ +"[0-9a-f]+"  # (.+)$', source, re.MULTILINE)
    program = tmp_path / "code.s"
    program.write_text(".intel_syntax noprefix\n" + "\n".join(re.split(" {2,}", line)[0] for line in lines) + "\n")
    subprocess.run(["as", "-o", tmp_path / "code.o", program], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", tmp_path / "code.o", tmp_path / "code"], check=True)
    assert (tmp_path / "code").read_bytes() == rows.CODE["x86_64"]


def test_the_calls_have_the_numbers_that_the_filter_knows_them_by() -> None:
    for machine, numbers in rows.NUMBERS.items():
        assert numbers == {name: SYSCALLS[machine][name] for name in numbers}


def test_the_program_gets_its_arguments_and_variables_and_what_the_calls_made() -> None:
    read, end = os.pipe2(os.O_CLOEXEC)
    text = "import os, sys; print(sys.argv[1:], os.environ['A'], os.getpid())"
    program = Attempt(
        os.fsencode(sys.executable), [b"python", b"-I", b"-c", text.encode(), b"", b"b c"], {b"A": b"1=2"}
    )
    code, progress = run(program, steps=[("streams", [Call("dup3", end, 1, 0)])])
    assert code == 0
    assert os.read(read, 4096).decode() == f"['', 'b c'] 1=2 {progress.pid}\n"
    assert progress[1:] == (None, 0)
    for file in (read, end):
        os.close(file)


@pytest.mark.parametrize(
    "places, error",
    [
        ([b"/no/such", b"/bin/true/x"], errno.ENOENT),
        ([b"/no/such", b"/etc/passwd", b"/no/other"], errno.EACCES),
    ],
    ids=["nowhere", "an obstacle on the way"],
)
def test_what_cannot_be_the_program_is_told_by_the_first_real_obstacle(places: list[bytes], error: int) -> None:
    code, progress = run(*(TRUE._replace(program=place) for place in places))
    assert (code, progress.failed, progress.error) == (127, "exec", error)


def test_the_first_place_that_has_the_program_is_taken() -> None:
    code, progress = run(TRUE._replace(program=b"/no/such"), TRUE)
    assert (code, progress.failed) == (0, None)


def test_nothing_is_called_after_a_call_that_failed() -> None:
    read, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    steps = [("first", [write(end)]), ("second", [Call("fchdir", 1 << 20), write(end)]), ("third", [write(end)])]
    assert run(TRUE, steps=steps) == (127, Progress(None, "second", errno.EBADF))
    assert os.read(read, 16) == b"x"
    for file in (read, end):
        os.close(file)


def test_a_word_with_a_nul_character_starts_nothing() -> None:
    with pytest.raises(ValueError):
        Row((), [TRUE._replace(arguments=[b"true", b"a\0b"])])


def test_no_page_is_copied_here() -> None:
    def copies(start: Callable[[], None]) -> float:
        start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            start()
            [str(number) for number in range(2000)]  # as whoever goes on writes to its memory
        return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

    def go() -> None:
        assert run(TRUE)[0] == 0

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    in_row, in_fork = in_child(lambda: (copies(go), copies(fork)))
    assert in_row < 10 < in_fork


def test_whoever_is_held_before_it_is_the_program_holds_nobody_and_is_ended_alone() -> None:
    """As a neighbour in the box may hold it; and no handler of this process runs in it."""
    called = []

    def note(number: int, _: FrameType | None) -> None:
        called.append(number)

    def started() -> tuple[int, Progress, list[int]]:
        signal.signal(signal.SIGUSR1, note)
        hold = Hold()
        row = Row(hold.steps, [TRUE])
        pid, process = row.start(-1)
        hold.reached()
        held = row.progress()
        signal.pidfd_send_signal(process, signal.SIGUSR1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), held, called

    assert in_child(started) == (-signal.SIGUSR1, Progress(None, None, 0), [])


@pytest.mark.parametrize("dumpable", [False, True])
def test_nobody_looks_into_a_child_that_shares_what_may_not_be_looked_at(dumpable: bool) -> None:
    """The second case is the control: the same process can be looked into if nothing forbids it."""
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    if dumpable and yama.exists() and yama.read_text().strip() != "0":
        pytest.skip("this machine lets nobody look into another process")

    def opened(pid: int) -> bool:
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        except PermissionError:
            return False
        return True

    def whole() -> bool:
        if os.geteuid() == 0:
            become_ordinary()
        confine.prctl("say who may look", PR_SET_DUMPABLE, int(dumpable))
        hold = Hold()
        row = Row(hold.steps, [TRUE])
        pid, process = row.start(-1)
        hold.reached()
        try:
            return in_child(lambda: opened(pid))
        finally:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.waitpid(pid, 0)

    assert in_child(whole) == dumpable


def test_where_memory_may_not_be_executed_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_code", lambda: None)
    with pytest.raises(OSError) as refused:
        run(TRUE)
    assert refused.value.errno in rows.UNAVAILABLE
