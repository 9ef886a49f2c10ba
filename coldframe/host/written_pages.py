"""Pages that a keeper writes between its fork and its first command, so that the next ones copy them ahead of need.

After a fork each page is copied when it is first written: some 800 for a new sandbox and its first command, one fault each, a
quarter of the keeper's processor time and all of it waited for. All keepers are forked from one zygote and do much the same, so
what one has written the next will write, at the same addresses. The machine reads that from the kernel once one has
worked, which takes root, and tells the zygote; each keeper asks for these pages in a few calls, as a rule while it waits for
its order. It has no more memory by that, only sooner. Standard library only.
"""

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterable, Iterator

Ranges = list[tuple[int, int]]
"""First page and how many, by their numbers."""
MOST_RANGES = 2048
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14."""
_OWN = 1 << 63 | 1 << 56
"""Of a page that is there, and mapped by nobody else."""
_SIZE = mmap.PAGESIZE
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def written_pages(keeper: int, zygote: int) -> Ranges:
    """Those that the keeper has to itself, of memory that its zygote has as well. Raises OSError: they cannot be read."""
    with open(f"/proc/{zygote}/maps", encoding="ascii", errors="replace") as source:
        areas = list(_writable(source))
    ranges: Ranges = []
    file = os.open(f"/proc/{keeper}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for first, end in areas:
            entries = os.pread(file, 8 * (end - first), 8 * first)
            found = struct.unpack(f"={len(entries) // 8}Q", entries)
            ranges += _joined(first + at for at, entry in enumerate(found) if entry & _OWN == _OWN)
    finally:
        os.close(file)
    return ranges[:MOST_RANGES]


def _writable(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Private memory that may be written, but for the stack, which grows."""
    for line in maps:
        fields = line.split()
        if fields[1] == "rw-p" and fields[-1] != "[stack]":
            first, _, end = fields[0].partition("-")
            yield int(first, 16) // _SIZE, int(end, 16) // _SIZE


def _joined(pages: Iterable[int]) -> Ranges:
    found: Ranges = []
    for page in pages:
        if found and page == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((page, 1))
    return found


def copy_ahead(ranges: Ranges) -> None:
    """In a keeper: have them now. What cannot be had so is copied when it is written."""
    for first, count in ranges:
        if _madvise(first * _SIZE, count * _SIZE, _POPULATE_WRITE) != 0 and ctypes.get_errno() == errno.EINVAL:
            return  # this kernel knows no such wish
