"""Whether anything may have changed in a workspace since its last scan. Never what: that takes a scan.

Every directory of the tree is watched (inotify), so the answer "unchanged" costs nothing. Whatever is not known
for certain is called changed:

- more than MOST_DIRECTORIES, no watch left (they count against the box's user, whose processes can use them up),
  events that were lost, a directory that could not be opened;
- an opened file, too: who maps it into memory writes without an event, and may keep it open beyond its end;
- a file with a name outside the tree, since writing to it by that name is not told here;
- a file system that others may write to (network, FUSE) or whose events are not known to be complete.

What one process writes through a file that another has opened earlier is not told either: whoever asks
must scan as long as such others live.
"""

import ctypes
import os
import struct

from coldframe.guest.paths import kind_of_system
from coldframe.guest.trees import HISTORY

MOST_DIRECTORIES = 2_000
BUFFER_BYTES = 65536

_MODIFY, _ATTRIB, _CLOSE_WRITE, _OPEN, _MOVED, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x20, 0xC0, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ONLY_DIRECTORY, _DIRECTORY = (
    0x400,
    0x800,
    0x4000,
    0x8000,
    1 << 24,
    1 << 30,
)
_WANTED = _MODIFY | _ATTRIB | _CLOSE_WRITE | _OPEN | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_LOCAL = {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010}
"""File systems by their magic numbers: ext2 to ext4, xfs, btrfs, f2fs."""
_MEMORY = {0x01021994, 0x858458F6}
"""tmpfs and ramfs: all content is read at each scan there, and to open a file counts as a change."""
_EVENT = struct.Struct("=iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class TreeWatch:
    """One inotify instance. `unchanged` speaks of the time between the last whole scan and the last `read`."""

    def __init__(self, *, most_directories: int = MOST_DIRECTORIES) -> None:
        self.file: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        """-1 where none could be had; then everything counts as changed."""
        self.unchanged = False
        self._most = most_directories
        self._by_inode: dict[int, int] = {}
        self._inodes: dict[int, int] = {}
        """By number of the watch."""
        self._root = -1
        self._complete = False
        self._local: bool | None = None

    def begin_scan(self, root: int) -> None:
        """Before the first directory is read: what was told up to now is part of what the scan finds."""
        self.read()
        self.unchanged = False
        if self._local is None:
            self._local = self.file >= 0 and _is_local(root)
        self._complete = self._local

    def add(self, directory: int, *, is_root: bool) -> None:
        """Watch a directory that is open for reading; to be called before it is read."""
        if not self._complete:
            return
        inode = os.fstat(directory).st_ino
        watch = self._by_inode.get(inode, -1)
        if watch < 0:
            if len(self._by_inode) >= self._most:
                self._give_up()
                return
            watch = self._add_open(directory)
            if watch < 0:
                self._give_up()
                return
            self._by_inode[inode] = watch
            self._inodes[watch] = inode
        if is_root:
            self._root = watch

    def _add_open(self, directory: int) -> int:
        """-1 without a watch. The working directory is the only name of an open one that cannot lead elsewhere."""
        try:
            os.fchdir(directory)
        except OSError:  # may be read, but not entered
            return -1
        try:
            return int(_libc.inotify_add_watch(self.file, b".", _WANTED | _ONLY_DIRECTORY))
        finally:
            os.chdir("/")

    def miss(self) -> None:
        """Something in the tree cannot be watched: the scan that runs tells nothing about later."""
        self._complete = False

    def end_scan(self) -> None:
        """The whole tree was read. What came meanwhile is not known to be in it."""
        self.unchanged = self._complete
        self.read()

    def read(self) -> None:
        """Take what was told up to now."""
        while self.file >= 0:
            try:
                data = os.read(self.file, BUFFER_BYTES)
            except BlockingIOError:
                return
            self._take(data)
            if len(data) < BUFFER_BYTES // 2:  # less than there is room for: it was all
                return

    def _take(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, place)
            name = data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
            place += _EVENT.size + length
            if mask & _OVERFLOW:
                self._give_up()
            elif mask & _IGNORED:
                inode = self._inodes.pop(watch, None)
                if inode is not None and self._by_inode.get(inode) == watch:
                    del self._by_inode[inode]
                self.unchanged = False
            elif watch == self._root and name == HISTORY and not mask & _DIRECTORY:
                continue  # no part of a manifest
            elif mask & _OPEN and mask & _DIRECTORY:
                continue  # listing changes nothing
            else:
                self.unchanged = False

    def _give_up(self) -> None:
        """Let go of all watches; the next scan begins anew."""
        for watch in self._inodes:
            _libc.inotify_rm_watch(self.file, watch)
        self._inodes.clear()
        self._by_inode.clear()
        self._root = -1
        self.unchanged = self._complete = False


def is_memory(root: int) -> bool:
    """Whether the file system of *root* is one in memory, where what is written through a map changes no time."""
    return kind_of_system(root) in _MEMORY


def _is_local(root: int) -> bool:
    return kind_of_system(root) in _LOCAL
