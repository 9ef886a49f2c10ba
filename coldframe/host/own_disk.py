"""A workspace that is a file system of its own: the kernel keeps its limit, in bytes and in files.

Known by its mount, whoever made it: the top of the file system is the workspace. Its limit is hard as far as the
file system is no larger than the limit. A lower one (of the agent, of the next call) is kept by looking, as in a
workspace that is a directory (see `quota.py`), but at how full it is: that needs no walk, and nothing is hidden from it.

Standard library only: it is used in the keeper too.
"""

import os
from typing import Any, NamedTuple

from coldframe.host.quota import ENTRY_BYTES, DiskQuota, Layer, Usage

_NEARLY = 16
"""Blocks: a file system with no more than these free has told somebody that it is full."""


class OwnDisk(NamedTuple):
    """How full it is, in bytes and files, for everybody but root."""

    capacity: int
    free: int
    files: int
    files_free: int
    block: int

    @property
    def used(self) -> int:
        return self.capacity - self.free


def read_disk(workspace: int) -> OwnDisk:
    """What is behind a descriptor of a workspace that is a file system of its own."""
    status = os.fstatvfs(workspace)
    return OwnDisk(
        capacity=(status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        files=status.f_files,
        files_free=status.f_favail,
        block=status.f_frsize,
    )


def is_own_disk(mountinfo: str, place: str) -> bool:
    """Whether the top of a file system is mounted at *place*, by the table of mounts of a process that sees it.

    One that is put together of layers lies on the host's, and is none of its own.
    """
    top = False
    for line in mountinfo.splitlines():
        fields = line.split() if place in line else ()
        if len(fields) > 4 and fields[4] == place:
            top = fields[3] == "/" and " - overlay " not in line  # the last one covers the others
    return top


def own_disk_of(process: int, place: str) -> OwnDisk | None:
    """The disk at *place* in the view of a process, read from outside; None if it has none, or if it cannot be read."""
    try:
        with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="replace") as source:
            if not is_own_disk(source.read(), place):
                return None
        workspace = os.open(f"/proc/{process}/root{place}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return read_disk(workspace)
    except OSError:
        return None
    finally:
        os.close(workspace)


class OwnDiskQuota(DiskQuota):
    """Ends nobody where the kernel refuses by itself, and knows when it has."""

    def hold_to(self, limit_bytes: int) -> None:
        if self._disk() is not None:  # nobody has looked closely up to now
            self._note_free()
            self.used, self._fallen, self._granted = self._measured().used, 0, 0
        super().hold_to(limit_bytes)

    def look(self, *, begins: bool = False) -> None:
        disk = self._disk()
        if disk is None:
            super().look(begins=begins)
        else:
            self.used = disk.used

    def full(self) -> bool:
        return self._disk() is None and super().full()

    def refuses(self, more_bytes: int) -> bool:
        disk = self._disk()
        if disk is None:
            return super().refuses(more_bytes)
        self.used = disk.used
        return more_bytes > disk.free

    def exhausted(self) -> dict[str, Any] | None:
        disk = self._disk()
        if disk is None:
            return None
        if disk.files_free == 0:
            return {"kind": "disk", "limit": float(disk.files), "used": float(disk.files), "unit": "files"}
        if disk.free <= _NEARLY * disk.block:
            return {"kind": "disk", "limit": float(self.limit_bytes), "used": float(disk.used), "unit": "bytes"}
        return None

    def _measured(self) -> Usage:
        """Nothing else is on the disk, so the kernel has added it up, what is closed to us included."""
        disk = read_disk(self._root)
        return Usage(disk.used + ENTRY_BYTES * (disk.files - disk.files_free), whole=True)

    def _disk(self) -> OwnDisk | None:
        """None where the limit is below what the kernel keeps."""
        disk = read_disk(self._root)
        return None if disk.capacity > self.limit_bytes else disk


def quota_of(
    workspace: int,
    proc: int,
    limit_bytes: int,
    *,
    place: str,
    layer: Layer | None = None,
    apart: frozenset[tuple[int, int]] = frozenset(),
) -> DiskQuota:
    """The quota of a workspace, and of the box's own `layer`, which no workspace with a disk has.

    `workspace` is a descriptor of it, `proc` one of the box's own /proc. `apart` is what is mounted in it (see quota.py).
    """
    try:
        mountinfo = os.open("1/mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        with open(mountinfo, encoding="utf-8", errors="replace") as source:
            own = is_own_disk(source.read(), place)
    except OSError:
        own = False
    return (OwnDiskQuota if own else DiskQuota)(workspace, proc, limit_bytes, layer=layer, apart=apart)
