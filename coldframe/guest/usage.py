"""What a command uses while it runs, held against its limits.

The kernel enforces most of them by itself; here is what has to be looked at, and how each one that was met is told.
"""

import os
import signal
from typing import Any, NamedTuple, Protocol

from coldframe.guest.spawn import Steps

USAGE_CHECK_S = 0.1
"""How often CPU time, disk use, and memory without a controller, are looked at; CPU time more often near its limit."""
USAGE_CHECK_NEAR_S = 0.01
LEFTOVERS_CHECK_S = 1.0
"""The same for processes that outlive their command."""


class Usage(NamedTuple):
    """Counted over a whole tree, ended processes included."""

    cpu_s: float
    peak_memory_bytes: int | None
    """None where nothing counts it."""
    oom_kills: int


class Tree(Protocol):
    """All processes of one command, however they were forked."""

    def birth(self) -> tuple[int, Steps] | None:
        """The group that a child can be born in, and what it does there before exec to be held to its limits; None if it has
        to be forked.
        """

    def fork(self) -> tuple[int, Steps]:
        """As os.fork: the child's id, and 0 in the child; with it what makes the child part of the tree and holds it to its
        limits. It takes these steps, and then execs or ends. Raises OSError.
        """

    def claim(self, command_id: str) -> None:
        """Say before the fork whose it is, for whoever finds a process of it. Raises OSError: nothing may run then."""

    def empty(self) -> bool: ...

    def members(self) -> list[dict[str, Any]]:
        """Fields of Leftover for each live process."""

    def processes(self) -> list[dict[str, Any]]:
        """Fields of ProcessInfo, but for command and ports, for each process; also of one that ended and was not waited for."""

    def signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def cpu_s(self) -> float: ...

    def usage(self) -> Usage:
        """All figures at once, when it is over."""

    def polled_memory_bytes(self, limit_bytes: int) -> int:
        """Memory held now, or more, where no controller enforces the limit; 0 where one does."""

    def disk_overrun(self) -> tuple[int, int] | None:
        """Bytes used and the limit, once the workspace has grown over its limit while the command ran."""

    def disk_full(self) -> tuple[int, int] | None:
        """Bytes used and the limit, if it was the disk limit because of which a file could not grow."""

    def forks_refused(self) -> bool:
        """Whether the box had all the processes that it may have when somebody in it wanted one more, since this began."""

    def disk_exhausted(self) -> dict[str, Any] | None:
        """The LimitHit if the workspace is a disk of its own that has no more room."""

    def close(self) -> None: ...


def limit_hit(kind: str, limit: float, used: float | None = None, *, unit: str = "bytes") -> dict[str, Any]:
    """A LimitHit."""
    return {"kind": kind, "limit": float(limit), "used": used, "unit": unit}


def limit_met(spec: dict[str, Any], tree: Tree, cpu_s: float) -> dict[str, Any] | None:
    """The LimitHit of what the tree is over now."""
    if cpu_s >= spec["cpu_s"]:
        return limit_hit("cpu", spec["cpu_s"], cpu_s, unit="s")
    memory_bytes = tree.polled_memory_bytes(spec["memory_bytes"])
    if memory_bytes > spec["memory_bytes"]:
        return limit_hit("memory", spec["memory_bytes"], float(memory_bytes))
    return _disk_hit(tree.disk_overrun())


def next_check_s(spec: dict[str, Any], cpu_s: float) -> float:
    """How long the tree cannot be over its CPU time, on all processors at once, and may be left alone."""
    left_s = (spec["cpu_s"] - cpu_s) / len(os.sched_getaffinity(0))
    return float(min(USAGE_CHECK_S, max(USAGE_CHECK_NEAR_S, left_s)))


def limit_behind(
    spec: dict[str, Any], tree: Tree, usage: Usage, *, code: int, signal_number: int | None
) -> dict[str, Any] | None:
    """The LimitHit because of which a command that nobody ended has ended as it did, if there is one."""
    if usage.oom_kills > 0:
        return limit_hit("memory", spec.get("memory_bytes", 0), usage.peak_memory_bytes)
    found = None
    if signal_number == signal.SIGXFSZ or code == 128 + signal.SIGXFSZ:
        found = _disk_hit(tree.disk_full())
    if found is None and code != 0:
        found = tree.disk_exhausted()
    if found is None and code != 0 and tree.forks_refused():
        found = limit_hit("pids", spec.get("pids", 0), unit="processes")
    return found


def _disk_hit(found: tuple[int, int] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    used, limit = found
    return limit_hit("disk", limit, float(used))
