"""The index of a Git repository, read as data: which files are tracked, and what was known of each when it was.

Nothing of Git is run, and no setting of the repository is looked at: those are its author's, and may name programs.
"""

import hashlib
import os
from collections.abc import Callable
from typing import NamedTuple

MOST_BYTES = 128 * 1024 * 1024
MOST_LISTED_BYTES = 128 * 1024 * 1024
"""Of the paths of all entries, of which each may repeat all but a byte of the one before."""
SYMLINK, GITLINK, TREE = 0o120000, 0o160000, 0o040000
_FIXED = 40
"""Bytes of an entry before the id."""


class Unreadable(Exception):
    """What is there is no repository as Git would have left it, or of a kind that is not read."""


class Entry(NamedTuple):
    path: bytes
    mode: int
    id: bytes
    stage: int
    """Over 0: a merge is not resolved."""
    size: int
    """Of the file, modulo 2 to the 32."""
    mtime: tuple[int, int]
    ctime: tuple[int, int]
    skipped: bool
    """It need not be there: a sparse checkout."""
    intended: bool
    """Only its name was added."""


def read_index(content: bytes, check_time: Callable[[], None]) -> tuple[list[Entry], str]:
    """The entries, and the name of the hash that the repository uses. Raises Unreadable, and what *check_time* does."""
    algorithm = _algorithm(content)
    width = hashlib.new(algorithm).digest_size
    version, count = int.from_bytes(content[4:8], "big"), int.from_bytes(content[8:12], "big")
    if content[:4] != b"DIRC" or version not in (2, 3, 4):
        raise Unreadable("its index is of a form that is not read")
    entries: list[Entry] = []
    at, end, before, size = 12, len(content) - width, b"", 0
    for _ in range(count):
        check_time()
        entry, at = _entry(content, at, end, width, version, before)
        before = entry.path
        size += len(before)
        if size > MOST_LISTED_BYTES:
            raise Unreadable("its files are too many")
        entries.append(entry)
    _check_extensions(content, at, end)
    return entries, algorithm


def _algorithm(content: bytes) -> str:
    """By the digest at its end. One that was written without (`index.skipHash`) has zeros there."""
    for name in ("sha1", "sha256"):
        width = hashlib.new(name).digest_size
        if len(content) >= 12 + width:
            said = content[-width:]
            if said == hashlib.new(name, content[:-width]).digest():
                return name
    if content[-20:] == bytes(20) and content[-32:] != bytes(32):
        return "sha1"
    raise Unreadable("its index is damaged")


def _entry(content: bytes, at: int, end: int, width: int, version: int, before: bytes) -> tuple[Entry, int]:
    begun = at
    if at + _FIXED + width + 2 > end:
        raise Unreadable("its index ends too early")
    numbers = [int.from_bytes(content[at + n : at + n + 4], "big") for n in range(0, _FIXED, 4)]
    at += _FIXED
    object_id, at = content[at : at + width], at + width
    flags, at = int.from_bytes(content[at : at + 2], "big"), at + 2
    more = 0
    if flags & 0x4000:
        if version < 3:
            raise Unreadable("its index is of a form that is not read")
        more, at = int.from_bytes(content[at : at + 2], "big"), at + 2
    kept = b""
    if version == 4:
        cut, at = _varint(content, at, end)
        if cut > len(before):
            raise Unreadable("its index is damaged")
        kept = before[: len(before) - cut]
    close = content.find(b"\0", at, end)
    if close < 0:
        raise Unreadable("its index ends too early")
    path, at = kept + content[at:close], close + 1
    if version != 4:
        at = begun + (close - begun + 8) // 8 * 8
    _check_path(path)
    found = Entry(
        path=path.rstrip(b"/"),
        mode=numbers[6],
        id=object_id,
        stage=flags >> 12 & 3,
        size=numbers[9],
        mtime=(numbers[2], numbers[3]),
        ctime=(numbers[0], numbers[1]),
        skipped=bool(more & 0x4000),
        intended=bool(more & 0x2000),
    )
    return found, at


def _check_path(path: bytes) -> None:
    parts = path.rstrip(b"/").split(b"/")
    if any(part in (b"", b".", b"..") for part in parts) or len(path) > os.pathconf("/", "PC_PATH_MAX"):
        raise Unreadable("its index names a place that is none")


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """As the offsets of packs: each byte but the last adds one."""
    value = -1
    while True:
        if at >= end or value > 1 << 40:
            raise Unreadable("its index is damaged")
        byte, at = content[at], at + 1
        value = (value + 1) << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, at


def _check_extensions(content: bytes, at: int, end: int) -> None:
    """Those in small letters have to be understood: of them only the one of a sparse index is."""
    while at + 8 <= end:
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "big")
        if not name[:1].isupper() and name != b"sdir":
            raise Unreadable("its index is in parts, which are not read")
        at += 8 + size
