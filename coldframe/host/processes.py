"""Processes told by id and start time, so that a reused id is not mistaken, and their ends."""

import asyncio
import contextlib
import os
import select
import signal

END_TIMEOUT_S = 10.0
GONE_WITHIN_S = 4.0
"""After KILL. What takes longer waits in the kernel, as for a file system that does not answer, and no signal ends that."""


_EXITING = 0x4
"""PF_EXITING of the kernel."""


def process_start(pid: int) -> str | None:
    """Start time of a live process in clock ticks since boot; None if there is none (or a zombie)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def is_exiting(pid: int) -> bool:
    """Whether it runs nothing of its own any more: it closes its sockets a while before it is a zombie."""
    fields = _stat(pid)
    return fields is None or int(fields[6]) & _EXITING != 0


def _stat(pid: int) -> list[str] | None:
    """What follows the name in `/proc/PID/stat`, from the state on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as source:
            return source.read().rpartition(")")[2].split()
    except OSError:
        return None


def come_of(pid: int) -> set[int] | None:
    """The live processes below one that stands still; None if that cannot be told here, or if any process of the machine began
    meanwhile: one that begins another and ends could be missed by that."""
    newest = _newest()
    found: set[int] = set()
    left = [pid]
    while left:
        one = left.pop()
        try:
            for thread in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{thread}/children", encoding="ascii") as source:
                    below = {int(word) for word in source.read().split()} - found
                found |= below
                left += below
        except OSError:
            if one == pid or process_start(one) is not None:
                return None
    return {one for one in found if process_start(one) is not None} if newest == _newest() else None


def _newest() -> str:
    """Id of the process that this namespace, or one within it, had last."""
    with open("/proc/loadavg", encoding="ascii") as source:
        return source.read().split()[-1]


def kill_if_same(pid: int, started: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            if process_start(pid) == started:
                kill(process)
        finally:
            os.close(process)


async def end_process(pid: int, started: str, *, at_once: bool) -> None:
    """Return when it is gone: killed now, or END_TIMEOUT_S from now if it does not end by itself.

    Raises:
        TimeoutError: it is there still, GONE_WITHIN_S after it was killed.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if process_start(pid) != started:
            return
        if at_once or not await _ended(process, END_TIMEOUT_S):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not await _ended(process, GONE_WITHIN_S):
                raise TimeoutError(f"process {pid}, or one below it, was killed and waits in the kernel")
    except ProcessLookupError:
        return
    finally:
        os.close(process)


async def _ended(process: int, timeout_s: float) -> bool:
    """Whether the process behind the descriptor ends within the time."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(process, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), timeout_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(process)
    return True


def kill(process: int) -> bool:
    """KILL the process behind the descriptor; whether it is gone, after END_TIMEOUT_S at most."""
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return True
    gone = select.poll()  # select() takes no descriptor past 1023
    gone.register(process, select.POLLIN)
    return bool(gone.poll(END_TIMEOUT_S * 1000))
