"""What a process waits for is told as the kernel has it, and nothing is told of what cannot be seen."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coldframe.guest import waits
from coldframe.guest.waits import find_reason
from tests.installation import wait_until


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """What is started here is ended."""
    with ExitStack() as stack:
        yield stack


def start(started: ExitStack, code: str, source: int = subprocess.DEVNULL) -> int:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=source, start_new_session=True)
    started.callback(process.wait)
    started.callback(os.killpg, process.pid, signal.SIGKILL)
    return process.pid


def told(pid: int, *others: int, expected: str | None, name: str = "") -> None:
    wait_until(lambda: find_reason([pid, *others], name) == expected, f"it is told to wait for {expected}")


@pytest.mark.parametrize("seen", [True, False], ids=["calls", "places"])
def test_each_way_of_waiting_is_told_also_where_calls_may_not_be_seen(
    started: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    if not seen:
        if not Path("/proc/self/wchan").read_text():
            pytest.skip("this kernel does not tell where a process waits")
        text = waits._text

        def without_calls(path: str) -> str:
            if path.endswith("/syscall"):
                raise PermissionError
            return text(path)

        monkeypatch.setattr(waits, "_text", without_calls)
    lock = tmp_path / "lock"
    held = lock.open("w")
    started.callback(held.close)
    fcntl.flock(held, fcntl.LOCK_EX)
    told(start(started, f"import fcntl; fcntl.flock(open({str(lock)!r}), fcntl.LOCK_EX)"), expected="lock")
    told(start(started, "import _thread; a = _thread.allocate_lock(); a.acquire(); a.acquire()"), expected="lock")
    busy = start(started, "while True: pass")
    told(busy, expected="none")
    stopped = (
        "import os, signal, time; pid = os.fork() or (os.kill(os.getpid(), signal.SIGSTOP), os._exit(0)); os.wait()"
    )
    told(start(started, stopped), expected="child")
    asleep = start(started, "import time; time.sleep(600)")
    wait_until(lambda: b"sleep" in Path(f"/proc/{asleep}/wchan").read_bytes() or seen, "it sleeps")
    told(asleep, expected=None)
    told(asleep, busy, expected="none")
    read_end, write_end = os.pipe()
    started.callback(os.close, write_end)
    name = os.readlink(f"/proc/self/fd/{read_end}")
    told(start(started, "import os; os.read(0, 1)", read_end), expected="stdin", name=name)
    os.close(read_end)


def test_only_the_open_input_of_the_command_is_told_as_such(started: ExitStack) -> None:
    read_end, write_end = os.pipe()
    started.callback(os.close, write_end)
    name = os.readlink(f"/proc/self/fd/{read_end}")
    reader = start(started, "import os; os.read(0, 1)", read_end)
    selecting = start(started, "import select; select.select([0], [], [])", read_end)
    os.close(read_end)
    told(reader, expected="stdin", name=name)
    told(selecting, expected="stdin", name=name)
    told(reader, expected=None)
    told(reader, expected=None, name="pipe:[1]")


def test_nobody_waits_for_nothing() -> None:
    assert find_reason([], "") is None
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert find_reason([gone.pid], "") == "none"
