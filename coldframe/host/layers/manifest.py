"""What a tree holds, one line a name, with the digests of its files: made in the background, and carried by exports.

A line is JSON, so that anybody can read and compare it. The digest of a tree is the SHA-256 of its lines. It tells
that nothing was altered by accident or lost on the way; it is no signature, so whoever gets an archive from strangers
compares it with the digest that the exporter told.
"""

import base64
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from coldframe.host.layers.branch import OPAQUE, OVERLAY, Branch, is_whiteout
from coldframe.host.layers.draft import data_ranges

_PIECE_BYTES = 1024 * 1024
_BLOCK_BYTES = 64 * 1024

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}


class Record(NamedTuple):
    """One name of a tree."""

    path: bytes
    kind: str
    mode: int
    mtime_ns: int
    size: int
    """Of a regular file as stat tells it, 0 for all else."""
    sha256: str | None
    target: bytes | None
    """Of a symbolic link; of a second name of a file, the first."""
    attributes: dict[bytes, bytes]

    def line(self) -> bytes:
        fields = [
            os.fsdecode(self.path),
            self.kind,
            self.mode,
            self.mtime_ns,
            self.size,
            self.sha256,
            None if self.target is None else os.fsdecode(self.target),
            {os.fsdecode(name): base64.b64encode(value).decode() for name, value in sorted(self.attributes.items())},
        ]
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def kind_of(status: os.stat_result) -> str:
    return "whiteout" if is_whiteout(status) else KINDS[stat.S_IFMT(status.st_mode)]


def layer_records(branch: Branch) -> Iterator[Record]:
    """Every name of one layer as it lies there, whiteouts and opaque directories too."""
    yield Record(
        b"", "directory", stat.S_IMODE(branch.top().st_mode), 0, 0, None, None, _lasting(branch.attributes(b""))
    )
    for path, status in branch.walk():
        kind = kind_of(status)
        if kind == "whiteout":
            yield Record(path, kind, 0, 0, 0, None, None, {})
            continue
        size, digest, target = 0, None, None
        if kind == "file":
            size = status.st_size
            digest = file_digest(branch.open_file(path))
        elif kind == "symlink":
            target = branch.link_target(path)
        attributes = _lasting(branch.attributes(path, of_overlay=True))
        yield Record(path, kind, stat.S_IMODE(status.st_mode), status.st_mtime_ns, size, digest, target, attributes)


def _lasting(attributes: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without what overlayfs notes for itself and may note anew (where a file came from, and the like)."""
    return {name: value for name, value in attributes.items() if name == OPAQUE or not name.startswith(OVERLAY)}


class ContentDigest:
    """SHA-256 of a file that may be mostly holes: a hole of a terabyte costs nothing.

    A block of nothing but zeros counts as a hole whether it is one or not, since that changes when a file is copied.
    Of a file without such blocks it is what `sha256sum` tells.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._block = bytearray()
        self._at = 0
        """Where the block begins."""
        self._told = 0

    def add(self, piece: bytes, start: int) -> None:
        """The data at *start*, which is not before what was added up to now."""
        end = self._at + len(self._block)
        if start > end:
            if start // _BLOCK_BYTES == self._at // _BLOCK_BYTES:
                self._block += bytes(start - end)
            else:
                self._tell(bytes(self._block.ljust(_BLOCK_BYTES, b"\0")))
                self._at = start // _BLOCK_BYTES * _BLOCK_BYTES
                self._block = bytearray(start - self._at)
        self._block += piece
        whole = len(self._block) // _BLOCK_BYTES * _BLOCK_BYTES
        for offset in range(0, whole, _BLOCK_BYTES):
            self._tell(bytes(self._block[offset : offset + _BLOCK_BYTES]))
            self._at += _BLOCK_BYTES
        del self._block[:whole]

    def finish(self, size: int) -> str:
        self._tell(bytes(self._block.ljust(min(_BLOCK_BYTES, size - self._at), b"\0")))
        if self._told != size:
            self._digest.update(b"ends at %d\n" % size)
        return self._digest.hexdigest()

    def _tell(self, block: bytes) -> None:
        text = block.rstrip(b"\0")
        if not text:
            return
        if self._told != self._at:
            self._digest.update(b"hole to %d\n" % self._at)
        self._digest.update(block)
        self._told = self._at + len(block)


def file_digest(file: int) -> str:
    """Of the file behind a descriptor, which is closed."""
    digest = ContentDigest()
    try:
        size = os.fstat(file).st_size
        for start, end in data_ranges(file, size):
            while start < end and (piece := os.pread(file, min(end - start, _PIECE_BYTES), start)):
                digest.add(piece, start)
                start += len(piece)
    finally:
        os.close(file)
    return digest.finish(size)
