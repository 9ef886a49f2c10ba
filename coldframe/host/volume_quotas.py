"""The disk limits of one box that has volumes to write to: that of its workspace, and one for each of them.

Each is kept like that of a workspace (see `quota.py`, `own_disk.py`): by the kernel where the volume is a disk of its own, by
looking where it is a directory. Commands know one limit. So the box is over it when one of them is, and what is told then
is of that one.
"""

import os
from typing import Any, NamedTuple

from coldframe.host.isolation.volume_mounts import VolumeOrder
from coldframe.host.own_disk import quota_of
from coldframe.host.quota import DiskQuota

HOME = "/home/user/"


class Attached(NamedTuple):
    """The volumes of a box as its keeper sees them."""

    quotas: tuple[DiskQuota, ...]
    """Of those that it can write to."""
    apart: frozenset[tuple[int, int]]
    """Top directories of all, by device and inode: they do not count for the workspace."""
    closed: frozenset[bytes]
    """Paths below the workspace of those that it can only read: no command changes what is there."""


def look_into(volumes: list[VolumeOrder]) -> Attached:
    """Inside the box, without any right. Raises OSError."""
    quotas, apart, closed = [], set(), set()
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if volumes else -1
    for one in volumes:
        top = os.open(one.at, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(top)
        apart.add((status.st_dev, status.st_ino))
        if one.mode == "rw":
            quotas.append(quota_of(top, proc, one.limit_bytes, place=one.at))
            continue
        os.close(top)
        if one.at.startswith(HOME):
            closed.add(os.fsencode(one.at.removeprefix(HOME)))
    return Attached(tuple(quotas), frozenset(apart), frozenset(closed))


class VolumeQuotas(DiskQuota):
    """All limits of a box as one."""

    def __init__(self, workspace: DiskQuota, volumes: tuple[DiskQuota, ...]) -> None:
        self._workspace = workspace
        self._all = (workspace, *volumes)
        self._told = workspace
        """Whose numbers are told: the one that was over its limit last."""

    @property
    def used(self) -> int | None:  # type: ignore[override]
        return self._told.used

    @property
    def limit_bytes(self) -> int:  # type: ignore[override]
        return self._told.limit_bytes

    @property
    def overruns(self) -> int:  # type: ignore[override]
        return sum(one.overruns for one in self._all)

    def hold_to(self, limit_bytes: int) -> None:
        """That of the workspace: volumes have their own."""
        self._workspace.hold_to(limit_bytes)

    def look(self, *, begins: bool = False) -> None:
        for one in self._all:
            before = one.overruns
            one.look(begins=begins)
            if one.overruns != before:
                self._told = one

    def full(self) -> bool:
        full = next((one for one in self._all if one.full()), None)
        self._told = full or self._told
        return full is not None

    def exhausted(self) -> dict[str, Any] | None:
        return next((found for one in self._all if (found := one.exhausted()) is not None), None)

    def refuses(self, more_bytes: int) -> bool:
        """Nobody has said yet where it is to be written, so each of them has to have room."""
        refusing = next((one for one in self._all if one.refuses(more_bytes)), None)
        self._told = refusing or self._told
        return refusing is not None
