"""Finds and ends what bubblewrap left of boxes whose keepers died while it was at work.

Its own process dies with the keeper, but the first process of the box may wait for it in vain, and for ever. Whose
child that is then depends on who else died: the zygote's, the daemon's, or that of the machine's first process. So it
is not told by its parent, but by two things that no other program has: the installation's *mark* where only a zygote,
its forks and the bubblewraps of its boxes carry it, and a session whose leader, the keeper, is gone. (The kernel gives
the number of a session to no other process while one is still in it.)

A keeper that has just been forked looks like that as well if its zygote dies: it is in the zygote's session until it has
its own. So a fork counts only once it has the name that keepers give themselves after that.
"""

import contextlib
import os

from coldframe.host.birth import KEEPER_NAME
from coldframe.host.isolation.namespaces import marked_name
from coldframe.host.processes import kill

CLEAN_LOOKS, MOST_LOOKS = 2, 100
"""A process may end while we look, and what it started then was not there when the look began; that starts nothing.

Other users of the machine can read the mark and give it to processes of theirs, one after the other.
"""
_GONE = "ZX"


def mark_of(installation: str) -> str:
    """What the processes that are forked from a zygote of *installation* are told by."""
    return f"coldframe-{installation}"


def kill_strays(mark: str) -> list[int]:
    """Kill them all, whoever's children they are now; returns their process ids. Blocking."""
    killed: list[int] = []
    tried: set[int] = set()
    clean = 0
    for _ in range(MOST_LOOKS):
        if clean == CLEAN_LOOKS:
            break
        clean += 1
        for pid in _strays(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # not ours, whatever it calls itself
                process = os.pidfd_open(pid)
                try:
                    # Still that one, so what is held is no other that got its id; what cannot be killed is tried once.
                    if pid not in tried and _is_stray(pid, mark):
                        tried.add(pid)
                        clean = 0
                        kill(process)
                        killed.append(pid)
                finally:
                    os.close(process)
    return killed


def _strays(mark: str) -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and _is_stray(int(entry), mark)]


def _is_stray(pid: int, mark: str) -> bool:
    if not _carries(pid, mark):
        return False
    own = _state_and_session(pid)
    if own is None or own[0] in _GONE or own[1] in (0, pid):
        return False
    keeper = _state_and_session(own[1])
    return keeper is None or keeper[0] in _GONE


def _carries(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as source:
            words = source.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return False
    if words[0] == os.fsencode(marked_name(mark)):
        return True
    # Its name is read before its session, which it has by then.
    return words[-1] == os.fsencode(mark) and words[1:4] == [b"-I", b"-S", b"-c"] and _name(pid) == KEEPER_NAME


def _name(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as source:
            return source.read().rstrip("\n")
    except OSError:
        return None


def _state_and_session(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as source:
            fields = source.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[3])
