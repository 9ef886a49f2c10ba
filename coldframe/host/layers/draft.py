"""A tree that is being made: a copied layer, one merged of several, one from an archive.

Directories are open to us alone while they are filled; what they are to be like comes at the end, from the deepest up.
Nothing is visible in the store until its draft is renamed into it.
"""

import ctypes
import errno
import fcntl
import os
import stat
from typing import NamedTuple

from coldframe.guest.paths import DIRECTORY, open_unlinked
from coldframe.host.layers.branch import split
from coldframe.host.layers.writeback import Writeback

_HERE, _EXCHANGE = -100, 2
_libc = ctypes.CDLL(None, use_errno=True)
FICLONE = 0x40049409
_PIECE_BYTES = 8 * 1024 * 1024
_NO_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
_NO_CLONE = (*_NO_RANGE, errno.ENOTTY, errno.EPERM, errno.ETXTBSY)


class Facts(NamedTuple):
    """What a name is like, apart from what it holds."""

    mode: int
    """Permission bits."""
    owner: tuple[int, int] | None
    """User and group; None for whoever makes it."""
    times_ns: tuple[int, int]
    """Last read, last changed."""
    attributes: dict[bytes, bytes]


def facts_of(status: os.stat_result, attributes: dict[bytes, bytes]) -> Facts:
    owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
    return Facts(stat.S_IMODE(status.st_mode), owner, (status.st_atime_ns, status.st_mtime_ns), attributes)


class Draft:
    """The files of a layer to be, below an empty directory. Parents have to be made before what they hold."""

    def __init__(self, path: str | bytes, written: Writeback | None = None) -> None:
        self.written = written
        """Who is told what was copied into files, to begin with it."""
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._parent = b""
        self._held = self._root
        self._directories: list[tuple[bytes, Facts]] = []

    def close(self) -> None:
        if self._held != self._root:
            os.close(self._held)
        os.close(self._root)

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def directory(self, path: bytes, facts: Facts) -> None:
        """Make the directory *path*; the top, empty, is there already."""
        if path:
            parent, name = self._above(path)
            os.mkdir(name, 0o700, dir_fd=parent)
        self._directories.append((path, facts))

    def open_file(self, path: bytes) -> int:
        """A new file, to be filled, finished with `finish_file` and closed by the caller."""
        parent, name = self._above(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=parent)

    def finish_file(self, file: int, facts: Facts) -> None:
        _dress(file, facts)

    def hard_link(self, path: bytes, target: bytes) -> None:
        """A second name for the file *target* of this draft."""
        parent, name = self._above(path)
        above, target_name = split(target)
        source = open_unlinked(self._root, above, DIRECTORY)
        try:
            os.link(target_name, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def adopt(self, path: bytes, source_directory: int, source_name: bytes) -> None:
        """A second name for a file of another layer. Raises OSError, EMLINK or EXDEV where that cannot be."""
        parent, name = self._above(path)
        os.link(source_name, name, src_dir_fd=source_directory, dst_dir_fd=parent, follow_symlinks=False)

    def symbolic_link(self, path: bytes, target: bytes, facts: Facts) -> None:
        parent, name = self._above(path)
        os.symlink(target, name, dir_fd=parent)
        self._dress_name(parent, name, facts)

    def special(self, path: bytes, kind: int, facts: Facts) -> None:
        """A pipe or a socket, by the kind bits of its mode."""
        parent, name = self._above(path)
        os.mknod(name, kind | 0o600, dir_fd=parent)
        os.chmod(f"/proc/self/fd/{parent}/{os.fsdecode(name)}", facts.mode)  # made just now by us, in a place of ours
        self._dress_name(parent, name, facts)

    def whiteout(self, path: bytes) -> None:
        parent, name = self._above(path)
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)

    def finish(self) -> None:
        """Give all directories their modes, owners and times. Nothing can be added any more."""
        for path, facts in reversed(self._directories):
            held = open_unlinked(self._root, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                _dress(held, facts)
            finally:
                os.close(held)

    def _above(self, path: bytes) -> tuple[int, bytes]:
        parent, name = split(path)
        if parent != self._parent:
            held = open_unlinked(self._root, parent, DIRECTORY) if parent else self._root
            if self._held != self._root:
                os.close(self._held)
            self._parent, self._held = parent, held
        return self._held, name

    def _dress_name(self, parent: int, name: bytes, facts: Facts) -> None:
        place = os.fsencode(f"/proc/self/fd/{parent}/") + name
        if facts.owner is not None:
            os.chown(name, *facts.owner, dir_fd=parent, follow_symlinks=False)
        for attribute, value in facts.attributes.items():
            os.setxattr(place, attribute, value, follow_symlinks=False)
        os.utime(name, ns=facts.times_ns, dir_fd=parent, follow_symlinks=False)


def _dress(held: int, facts: Facts) -> None:
    if facts.owner is not None:
        os.fchown(held, *facts.owner)
    for attribute, value in facts.attributes.items():
        os.setxattr(held, attribute, value)
    os.fchmod(held, facts.mode)  # after the owner, whose change takes setuid away
    os.utime(held, ns=facts.times_ns)


def exchange(one: str, other: str) -> None:
    """Two directories of one file system change places, in one step. Raises OSError, EINVAL where that cannot be had."""
    if _libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)


def copy_content(source: int, target: int, written: Writeback | None = None) -> bool:
    """Copy a file into an empty one, holes kept. Whether its blocks are shared, which costs neither time nor space."""
    try:
        fcntl.ioctl(target, FICLONE, source)
        return True
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    for start, end in data_ranges(source, size):
        _copy_range(source, target, start, end, written)
    return False


def data_ranges(file: int, size: int) -> list[tuple[int, int]]:
    """Where a file has data, as (from, to); the rest are holes."""
    found = []
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                break
            raise
        at = min(os.lseek(file, start, os.SEEK_HOLE), size)
        if start < at:
            found.append((start, at))
    return found


def _copy_range(source: int, target: int, start: int, end: int, written: Writeback | None) -> None:
    at, by_kernel = start, True
    while at < end:
        wanted = min(end - at, _PIECE_BYTES)
        if by_kernel:
            try:
                done = os.copy_file_range(source, target, wanted, at, at)
            except OSError as error:
                if error.errno not in _NO_RANGE:
                    raise
                by_kernel = False
                continue
        else:
            done = os.pwrite(target, os.pread(source, wanted, at), at)
        if done == 0:
            raise OSError(errno.EIO, "a file became shorter while it was copied")
        if written is not None:
            written.wrote(target, at, done)
        at += done
