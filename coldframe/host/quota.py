"""How much of its disk limit a workspace has used, as its keeper can know it: by best effort, and it says so.

Nothing is watched. A look asks the file system for its free space (one call) and adds up every fall; when these
falls could have carried the workspace over its limit the tree is walked and added up for certain. A neighbour's
writing causes walks, never a verdict. A neighbour's freeing in the same moment hides a fall, so the tree is walked
without any reason as well, now and then while commands run (SURE_S). The walk also finds files that were deleted and are still held
open by a process of the box. It is bounded: what it cannot see to the end (MOST_ENTRIES, MOST_DEPTH, a directory
closed to its owner) is estimated from all falls since the last walk that saw everything, so that nothing is hidden from it; the
price is that a neighbour's writing counts then. For processes that cannot be looked at (an agent for keys is such a one) it is
how much less is free than at that walk, of which a neighbour's freeing hides some.

What counts: the blocks that are allocated, each file once whatever its names, and ENTRY_BYTES for every file and
directory, so that a flood of empty files ends as well. A sparse file counts for what it holds.

Once over, the commands that run are ended (`overruns` counts up), and what starts meanwhile may read and delete, but
not grow a file (`full`), until a walk finds the workspace below again. Only growth past the most that was found ends
commands again.

Rejected here: a file system image per workspace, mounted by root (hard in bytes and inodes): the next rung, for
when workspaces may become mounts that outlive the daemon. Project quotas: not in every kernel.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from coldframe.host.limits import stat_fields

ENTRY_BYTES = 1024
"""What one file, directory or link counts for beside its blocks."""
MOST_ENTRIES = 1_000_000
"""Of one walk: about four seconds, during which the keeper serves nobody else of its sandbox."""
MOST_DEPTH = 200
"""Each level holds a descriptor while it is walked."""
MOST_OPEN_FILES = 20_000
"""Descriptors of the box's processes that are looked at for deleted files."""
MOST_HIDDEN = 500_000
"""Names of layers that are held in memory for one walk. With more, what lies below these is estimated."""
_OPAQUE = "user.overlay.opaque"
FIRST_PROCESS = "1"
"""Of a box: closed to everybody, and with no file of a workspace."""
REST_FACTOR = 10
"""Between two walks that nobody waits for: this many times what the last one took, so a tenth of the time at most."""
SURE_S = 1.0
SURE_FACTOR = 100
"""Of what the last walk took; the longer of the two passes between walks without a reason: a hundredth of the time."""


class Free(NamedTuple):
    """Free space of the file system, in bytes; files that can still be made count ENTRY_BYTES each."""

    blocks: int
    files: int

    def fallen_to(self, later: "Free") -> int:
        return max(0, self.blocks - later.blocks) + max(0, self.files - later.files)


class Usage(NamedTuple):
    """What a walk found."""

    used: int
    whole: bool
    """Whether it saw all files that have a name."""
    closed: bool = False
    """Whether some processes, or open files, were not looked at, which may hold files without a name."""


class Layer(NamedTuple):
    """The private layer of a box with a system of its own, which counts with the workspace."""

    files: int
    """A descriptor of what it has written."""
    device: int
    """Which the box sees its files on."""
    lift: Callable[[], AbstractContextManager[None]]
    """Within, everything of the box can be looked at, whichever of its users it belongs to."""
    below: tuple[int, ...] = ()
    """Descriptors of what it wrote until the last snapshots, the highest first. What it sees no more does not count."""


class DiskQuota:
    """The limit of one workspace. `root` is a descriptor of it, `proc` one of the box's own /proc."""

    def __init__(
        self,
        root: int,
        proc: int,
        limit_bytes: int,
        *,
        layer: Layer | None = None,
        apart: frozenset[tuple[int, int]] = frozenset(),
        most_entries: int = MOST_ENTRIES,
        clock: Callable[[], float] = time.monotonic,
        free: Callable[[int], Free] | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.used: int | None = None
        """Bytes at the last walk; None before the first."""
        self.overruns = 0
        """How often a walk found the workspace over its limit and grown past the most that was known."""
        self.walks = 0
        self._root = root
        self._proc = proc
        self._layer = layer
        self._apart = apart
        self._most_entries = most_entries
        self._clock = clock
        self._free = free or free_of
        self._last_free: Free | None = None
        self._fallen = 0
        """Since the last walk."""
        self._granted = 0
        """By `refuses` since the last walk: counted for itself, since what others free can hide the fall."""
        self._sure_used = 0
        """At the last walk that saw everything, or the first of all."""
        self._sure_free: Free | None = None
        self._fallen_since = 0
        """Since that one."""
        self._highest = 0
        self._next_walk = 0.0
        self._next_sure_walk = 0.0

    def hold_to(self, limit_bytes: int) -> None:
        """Change the limit. What runs already is not ended for what was there before, only for growing it."""
        if self.used is not None and self.used > limit_bytes:
            self._highest = max(self._highest, self.used)
        self.limit_bytes = limit_bytes

    def look(self, *, begins: bool = False) -> None:
        """Note what was written meanwhile; walk if that may have been too much and the last walk is not too recent.

        Before a command *begins* in a full workspace that is no reason: somebody may just have cleaned up.
        """
        self._note_free()
        now = self._clock()
        wanted = not self._may_hold(0) and (now >= self._next_walk or (begins and self.full()))
        if wanted or now >= self._next_sure_walk:
            self._walk()

    def full(self) -> bool:
        """Whether the workspace was over its limit at the last look."""
        return self.used is not None and self.used > self.limit_bytes

    def exhausted(self) -> dict[str, Any] | None:
        """The LimitHit if the file system itself has no more room and is this workspace's alone: not known here."""
        return None

    def refuses(self, more_bytes: int) -> bool:
        """Whether `more_bytes` more are too much; what is not counts as written. Walks to be sure, if it has to."""
        self._note_free()
        if not self._may_hold(more_bytes):
            self._walk()
        if not self._may_hold(more_bytes):
            return True
        self._granted += more_bytes
        return False

    def _may_hold(self, more_bytes: int) -> bool:
        return self.used is not None and self.used + max(self._fallen, self._granted) + more_bytes <= self.limit_bytes

    def _note_free(self) -> None:
        free = self._free(self._root)
        if self._last_free is not None:
            fallen = self._last_free.fallen_to(free)
            self._fallen += fallen
            self._fallen_since += fallen
        self._last_free = free

    def _walk(self) -> None:
        began = self._clock()
        found = self._measured()
        used = found.used
        if self.used is None or (found.whole and not found.closed):
            self._sure_used, self._sure_free, self._fallen_since = used, self._last_free, 0
        elif not found.whole:
            used = max(used, self._sure_used + self._fallen_since)
        elif self._sure_free is not None and self._last_free is not None:
            used = max(used, self._sure_used + self._sure_free.fallen_to(self._last_free))
        self.used, self._fallen, self._granted = used, 0, 0
        self.walks += 1
        if used <= self.limit_bytes:
            self._highest = 0
        elif used > self._highest:
            self._highest = used
            self.overruns += 1
        ended = self._clock()
        self._next_walk = ended + REST_FACTOR * (ended - began)
        self._next_sure_walk = ended + max(SURE_S, SURE_FACTOR * (ended - began))

    def _measured(self) -> Usage:
        with nullcontext() if self._layer is None else self._layer.lift():
            return measure(
                self._root, self._proc, layer=self._layer, most_entries=self._most_entries, apart=self._apart
            )


def free_of(root: int) -> Free:
    """Free space of the file system behind a descriptor."""
    status = os.fstatvfs(root)
    return Free(status.f_bfree * status.f_frsize, status.f_ffree * ENTRY_BYTES)


def measure(
    root: int,
    proc: int,
    *,
    layer: Layer | None = None,
    most_entries: int = MOST_ENTRIES,
    apart: frozenset[tuple[int, int]] = frozenset(),
) -> Usage:
    """Add up everything below `root`, and `layer`, on its own file system, and what the processes in `proc` hold deleted.

    `apart` are directories, by device and inode, that are mounted there and count for themselves.
    """
    tops = (root,) if layer is None else (root, layer.files)
    devices = {os.fstat(one).st_dev for one in tops}
    walk = _Walk(most_entries, devices, apart)
    if layer is not None and layer.below:
        tops = (root,)
        walk.add_layers((layer.files, *layer.below))
    for one in tops:
        try:
            top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=one)
        except OSError:
            return Usage(walk.used, whole=False)
        try:
            walk.add_directory(top, depth=0)
        finally:
            os.close(top)
    walk.add_deleted(proc, devices if layer is None else devices | {layer.device})
    return Usage(walk.used, walk.whole, walk.closed)


def measure_tree(root: int) -> tuple[Usage, int]:
    """What is below a descriptor that no box has in use, and how many files, directories and links."""
    walk = _Walk(MOST_ENTRIES, {os.fstat(root).st_dev})
    walk.add_directory(root, depth=0)
    return Usage(walk.used, walk.whole), walk.entries


class _Walk:
    def __init__(self, most_entries: int, devices: set[int], apart: frozenset[tuple[int, int]] = frozenset()) -> None:
        self._left = most_entries
        self._devices = devices
        self._apart = apart
        self._linked: set[tuple[int, int]] = set()
        """Inodes with more than one name, or none: counted once."""
        self.used = 0
        self.entries = 0
        self.whole = True
        self.closed = False

    def add_directory(self, directory: int, *, depth: int) -> None:
        try:
            names = os.listdir(directory)
        except OSError:
            self.whole = False
            return
        for name in names:
            self._left -= 1
            if self._left < 0:
                self.whole = False
                return
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue  # gone meanwhile
            if status.st_dev not in self._devices or (status.st_dev, status.st_ino) in self._apart:
                continue
            self.entries += 1
            self._add(status)
            if stat.S_ISDIR(status.st_mode):
                self._descend(directory, name, depth=depth)

    def _descend(self, parent: int, name: str, *, depth: int) -> None:
        if depth >= MOST_DEPTH:
            self.whole = False
            return
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            self.whole = False
            return
        try:
            self.add_directory(below, depth=depth + 1)
        finally:
            os.close(below)

    def add_layers(self, layers: Sequence[int]) -> None:
        """Layers of an overlay, the highest first: what one hides of those below it does not count."""
        hidden: set[str] = set()
        for number, layer in enumerate(layers):
            found: set[str] = set()
            self._add_layer(layer, ".", "", hidden, found, depth=0)
            hidden |= found
            if number + 1 < len(layers) and len(hidden) > MOST_HIDDEN:
                self.whole = False
                return

    def _add_layer(self, parent: int, name: str, path: str, hidden: set[str], found: set[str], *, depth: int) -> None:
        if depth > MOST_DEPTH:
            self.whole = False
            return
        try:
            directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            self.whole = False
            return
        try:
            for inner in os.listdir(directory):
                self._left -= 1
                if self._left < 0:
                    self.whole = False
                    return
                here = f"{path}/{inner}"
                try:
                    status = os.stat(inner, dir_fd=directory, follow_symlinks=False)
                except OSError:
                    continue
                if here in hidden or status.st_dev not in self._devices:
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    found.add(here)
                    if not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0):  # that it is deleted takes no room
                        self._add(status)
                    continue
                self._add(status)
                self._add_layer(directory, inner, here, hidden, found, depth=depth + 1)
            if _is_opaque(directory):
                found.add(path)
        except OSError:
            self.whole = False
        finally:
            os.close(directory)

    def add_deleted(self, proc: int, devices: set[int]) -> None:
        for file in self._open_files(proc):
            try:
                status = os.stat(file, dir_fd=proc)
            except OSError:
                continue
            if status.st_nlink == 0 and status.st_dev in devices and stat.S_ISREG(status.st_mode):
                self._add(status)

    def _open_files(self, proc: int) -> Iterator[str]:
        left = MOST_OPEN_FILES
        for pid in os.listdir(proc):
            if not pid.isdecimal() or pid == FIRST_PROCESS:
                continue
            try:
                files = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
            except PermissionError:  # it has made itself, or its program, closed to its user
                self.closed = self.closed or not _has_ended(proc, pid)
                continue
            except OSError:
                continue
            try:
                numbers = os.listdir(files)
            except OSError:
                continue
            finally:
                os.close(files)
            for number in numbers:
                left -= 1
                if left < 0:
                    self.closed = True
                    return
                yield f"{pid}/fd/{number}"

    def _add(self, status: os.stat_result) -> None:
        if status.st_nlink != 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in self._linked:
                return
            self._linked.add((status.st_dev, status.st_ino))
        self.used += status.st_blocks * 512 + ENTRY_BYTES


def _is_opaque(directory: int) -> bool:
    """Whether it hides the same directory of the layers below."""
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:
        return False


def _has_ended(proc: int, pid: str) -> bool:
    """Whether nothing of it is left but its number: such a one is closed to everybody. Its other threads may go on."""
    fields = stat_fields(proc, int(pid))
    return fields is None or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1)
