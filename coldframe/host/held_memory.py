"""The memory that processes hold, as it is looked at where no controller counts it.

Counted is what no file could give again: anonymous memory, shared memory, and page tables, of which it takes one to read
a byte in each 2 MiB of a mapping. Counters of the kernel tell that of each process at once, but a page once for every
process that shares it. The share of one process is known only from a walk over all that it has mapped, pages of files
too, which takes 25 to 50 ns a page (measured), and whoever looks has one thread for everything. So walks are for commands
that are over their limit by the counters, and go no further than `Walks` allows. Who is past that counts as the counters
say: too much rather than too little.

Standard library only: it is used in the keeper.
"""

import os
import time
from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

from coldframe.host.limits import read_file

WALK_PAGES = 1 << 21
"""What all commands of a box may have walked in a round of looks: 8 GiB, in however many processes; 50 to 120 ms."""
LATELY_S = 2.0
"""Longer than any command goes without a look."""
MOST_PAGE_S = 1e-7
"""A walk counts as this long a page at least: one over many small mappings meets few pages."""
_ENTRY_BYTES = 8
"""Of a page table, which a walk reads entry by entry."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COUNTERS = (b"\nVmRSS:", b"\nRssAnon:", b"\nRssShmem:", b"\nVmPTE:")
"""Lines of /proc/PID/status, since Linux 4.5; a process that has ended has none of them."""
_SHARES = (b"\nPss_Anon:", b"\nPss_Shmem:")
"""Lines of /proc/PID/smaps_rollup, since Linux 5.4."""


class Walks:
    """Divides what may be walked among the commands that need it at the same time: they all wait for one thread."""

    def __init__(self, live: Set[int]) -> None:
        """`live` are the numbers of all commands that may live, also later on."""
        self._live = live
        self._asked: dict[int, float] = {}

    def pages_for(self, number: int) -> int:
        """How many pages command *number*, which is over its limit by the counters, may have walked now."""
        now = time.monotonic()
        self._asked = {one: at for one, at in self._asked.items() if one in self._live and now - at < LATELY_S}
        self._asked[number] = now
        return WALK_PAGES // len(self._asked)


class _Counted(NamedTuple):
    """Of one process, by its counters."""

    memory_bytes: int
    """What is shared counts whole."""
    table_bytes: int
    walk_pages: int
    """What a walk meets, at most."""


def held_bytes(proc: int, pids: Iterable[int], limit_bytes: int, walk_pages: Callable[[], int]) -> int:
    """What processes hold together of what is counted: no less than they do, and exact where that is over *limit_bytes* and
    *walk_pages*, which is asked only then, allows for it.
    """
    counted = {pid: _count(proc, pid) for pid in pids}
    total = sum(one.memory_bytes + one.table_bytes for one in counted.values())
    if total <= limit_bytes:
        return total
    left = walk_pages()
    for pid, one in sorted(counted.items(), key=lambda found: found[1].memory_bytes, reverse=True):
        if total <= limit_bytes:
            break
        if one.walk_pages > left:
            continue
        began = time.thread_time()
        share = _own_share_bytes(proc, pid)
        left -= max(one.walk_pages, int((time.thread_time() - began) / MOST_PAGE_S))
        total -= max(0, one.memory_bytes - share)
    return total


def _count(proc: int, pid: int) -> _Counted:
    found = _sizes(proc, f"{pid}/status", _COUNTERS)
    if found is None:
        return _Counted(0, 0, 0)
    resident, anonymous, shared, tables = found
    return _Counted(anonymous + shared, tables, max(resident // _PAGE_BYTES, tables // _ENTRY_BYTES))


def _own_share_bytes(proc: int, pid: int) -> int:
    """Its share of anonymous and shared memory; all if it cannot be looked at so closely, and 0 if it is gone."""
    found = _sizes(proc, f"{pid}/smaps_rollup", _SHARES)
    return _count(proc, pid).memory_bytes if found is None else sum(found)


def _sizes(proc: int, file: str, lines: tuple[bytes, ...]) -> list[int] | None:
    """What these lines of a file say, in bytes; None if one is missing. Searched for, since most lines are others."""
    text = read_file(proc, file) or b""
    sizes = []
    for line in lines:
        at = text.find(line)
        if at < 0:
            return None
        sizes.append(int(text[at + len(line) : text.index(b"kB", at)]) * 1024)
    return sizes
