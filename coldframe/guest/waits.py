"""What the processes of a command wait for, as the kernel says it, so that one that hangs is told from one that works.

Looked at only when somebody asks. A process chooses what it does, so this is a diagnosis and never a reason to act.
"""

import contextlib
import os
import platform
from collections.abc import Iterable
from typing import Literal

Waiting = Literal["stdin", "lock", "child", "none"]
"""`none`: it computes, or is stopped, and waits for nothing."""
Reason = Literal["busy", "stdin", "lock", "child", "stopped", "other"]

MOST_PROCESSES = 32
MOST_THREADS = 8
"""Of one process. More are not looked at, since nobody else is served meanwhile: 40 µs each."""

_NUMBERS: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {
        "read": (0, 17, 19, 295, 327),
        "select": (23, 270),
        "lock": (65, 73, 202, 220, 449),
        "fcntl": (72,),
        "child": (61, 247),
    },
    "aarch64": {
        "read": (63, 65, 67, 69, 286),
        "select": (72,),
        "lock": (32, 98, 192, 193, 449),
        "fcntl": (25,),
        "child": (95, 260),
    },
}
"""System calls by machine: read, pread and readv; select; flock, semop, semtimedop and futex; fcntl; wait4 and waitid."""
_calls = {number: kind for kind, numbers in _NUMBERS.get(platform.machine(), {}).items() for number in numbers}
_PLACES: dict[str, Reason] = {
    "do_wait": "child",
    "futex": "lock",
    "locks": "lock",
    "flock": "lock",
    "posix_lock": "lock",
}
"""The same by where in the kernel it waits, as that begins, for a process whose calls we may not see."""
_READING = ("pipe_read", "anon_pipe_read", "n_tty_read", "wait_woken")
_LOCKING = {7, 38}
"""F_SETLKW and F_OFD_SETLKW: any other fcntl does not wait."""


def find_reason(pids: Iterable[int], input_name: str) -> Waiting | None:
    """What they wait for altogether; None for time, the network, each other, or what cannot be seen.

    *input_name* is how descriptors of the command's open input read in /proc; empty if it has none. Numbers are those
    of the /proc that this process has.
    """
    found: set[Reason] = set()
    for pid, _ in zip(pids, range(MOST_PROCESSES), strict=False):
        found.add(_of_process(pid, input_name))
    if "busy" in found:
        return "none"
    if "stdin" in found:
        return "stdin"
    if "lock" in found:
        return "lock"
    if "other" in found or not found:
        return None
    return "child" if "child" in found else "none"


def _of_process(pid: int, input_name: str) -> Reason:
    """One thread that waits for time or the network may wake the others, which then wait for it and for no lock."""
    found: set[Reason] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]:
            with contextlib.suppress(OSError):
                found.add(_of_thread(f"/proc/{pid}", thread, input_name))
    for reason in ("busy", "stdin", "other", "lock", "child"):
        if reason in found:
            return reason
    return "stopped"


def _of_thread(process: str, thread: str, input_name: str) -> Reason:
    state = _text(f"{process}/task/{thread}/stat").rpartition(")")[2].split()[0]
    if state in ("R", "D"):
        return "busy"
    if state in ("T", "t", "Z", "X"):
        return "stopped"
    try:
        words = _text(f"{process}/task/{thread}/syscall").split()
    except PermissionError:
        return _of_place(process, _text(f"{process}/task/{thread}/wchan"), input_name)
    if words and words[0] == "running":
        return "busy"
    call = _calls.get(int(words[0])) if words else None
    if call == "read":
        return "stdin" if _is_input(process, int(words[1], 16), input_name) else "other"
    if call == "select":  # of descriptors below 1: of the input alone
        return "stdin" if int(words[1], 16) == 1 and _is_input(process, 0, input_name) else "other"
    if call == "fcntl":
        return "lock" if int(words[2], 16) in _LOCKING else "other"
    if call == "lock":
        return "lock"
    return "child" if call == "child" else "other"


def _of_place(process: str, place: str, input_name: str) -> Reason:
    if place in _READING:
        return "stdin" if _is_input(process, 0, input_name) else "other"
    return next((reason for begins, reason in _PLACES.items() if place.startswith(begins)), "other")


def _is_input(process: str, file: int, input_name: str) -> bool:
    """By the name alone: nothing that a program has open is touched."""
    if not input_name:
        return False
    name = os.readlink(f"{process}/fd/{file}")
    return name == input_name or (name == "/dev/tty" and input_name.startswith("/dev/pts/"))


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as source:
        return source.read()
