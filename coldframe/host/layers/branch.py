"""One layer as it lies on disk, in the form that overlayfs with `userxattr` reads and writes.

A name that is gone is a whiteout: a character device 0/0, which everybody may make. A directory that hides what lies
below it is opaque: an extended attribute. Nothing else of overlayfs is used: `redirect_dir` and `metacopy` are off
wherever `userxattr` is on.

All that an agent made is hostile: names are opened beneath a descriptor, one by one, and no link is ever followed.
"""

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from coldframe.contract.errors import TooLarge
from coldframe.guest.paths import DIRECTORY, open_unlinked
from coldframe.host.layers.mapping import Users

OPAQUE = b"user.overlay.opaque"
OVERLAY = b"user.overlay."
"""Attributes of overlayfs itself. What programs in a box set under this name it keeps as `user.overlay.overlay.`."""
NOT_OURS = (b"trusted.", b"security.selinux")
"""Attributes of the host's, which no box can set and which say nothing about its files."""

MOST_LEVELS = 10_000
"""Of directories. Each is opened from the top when it is not at hand, so that more would cost minutes."""
MOST_WAITING = 500_000
"""Names that a walk knows and has not come to, as in one directory: of each it holds a kilobyte, and an agent may make
millions of them."""
_AT_HAND = 24
_READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEEDED = stat.S_IRUSR | stat.S_IXUSR


def is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def same_status(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def split(path: bytes) -> tuple[bytes, bytes]:
    above, _, name = path.rpartition(b"/")
    return above, name


def require_few(waiting: int) -> None:
    """Raises TooLarge over MOST_WAITING."""
    if waiting > MOST_WAITING:
        raise TooLarge(f"directories hold more than {MOST_WAITING:,} names at once")


class Branch:
    """The files of one layer. Descriptors are borrowed: good until some other directories were asked for.

    For one thread at a time.
    """

    def __init__(self, path: str | bytes, *, users: Users | None = None) -> None:
        self._root, self._top_opened_up = _enter(None, path)
        self.users = users
        """Whom the users inside are in it; None where that is not known, and the owner of its top is the only one."""
        self._at_hand: OrderedDict[bytes, int] = OrderedDict()
        self._opened_up: set[bytes] = set()
        """Those of them that are closed to us by rights."""
        top = os.fstat(self._root)
        self.owner = top.st_uid, top.st_gid
        """User and group of its top, whose the layer is."""

    def close(self) -> None:
        while self._at_hand:
            self._put_away()
        if self._root >= 0:
            if self._top_opened_up:
                _closed.leave(self._root)
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> "Branch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def top(self) -> os.stat_result:
        return _closed.by_rights(os.fstat(self._root))

    def directory(self, path: bytes) -> int:
        """A borrowed descriptor of the directory *path*, which can be listed.

        Raises:
            OSError: as open(2) gives it, ELOOP for a link.
            TooLarge: it is nested deeper than MOST_LEVELS.
        """
        if not path:
            return self._root
        held = self._at_hand.get(path)
        if held is not None:
            self._at_hand.move_to_end(path)
            return held
        if path.count(b"/") >= MOST_LEVELS:
            raise TooLarge(f"directories are nested deeper than {MOST_LEVELS:,} levels")
        above, name = split(path)
        try:
            held, opened_up = self._open_below(above, name)
        except PermissionError:
            if os.geteuid() == 0:
                raise
            for end in (at for at, byte in enumerate(path) if byte == ord("/")):
                self.directory(path[:end])  # what is closed on the way is opened up no longer than the next step takes
            held, opened_up = self._open_below(above, name)
        self._at_hand[path] = held
        if opened_up:
            self._opened_up.add(path)
        if len(self._at_hand) > _AT_HAND:
            self._put_away()
        return held

    def _open_below(self, above: bytes, name: bytes) -> tuple[int, bool]:
        """A descriptor, and whether the directory was opened up for it."""
        near = self._at_hand.get(above) if above else self._root
        if near is not None:
            return _enter(near, name)
        parent = open_unlinked(self._root, above, DIRECTORY)
        try:
            return _enter(parent, name)
        finally:
            os.close(parent)

    def _put_away(self) -> None:
        """What was asked for least recently."""
        path, held = self._at_hand.popitem(last=False)
        try:
            if path in self._opened_up:
                self._opened_up.remove(path)
                _closed.leave(held)
        finally:
            os.close(held)

    def status(self, path: bytes) -> os.stat_result | None:
        """Of the name itself; None if there is none, also where something else than a directory is in the way."""
        if not path:
            return self.top()
        above, name = split(path)
        try:
            return _closed.by_rights(os.stat(name, dir_fd=self.directory(above), follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise

    def names(self, path: bytes) -> list[bytes]:
        """Names of what the directory *path* holds, whiteouts too, sorted."""
        return sorted(map(os.fsencode, os.listdir(self.directory(path))))

    def entries(self, path: bytes) -> list[tuple[bytes, os.stat_result]]:
        """The same with what each of them is. Raises TooLarge over MOST_WAITING."""
        here = self.directory(path)
        names = self.names(path)
        require_few(len(names))
        found = []
        for name in names:
            try:
                found.append((name, _closed.by_rights(os.stat(name, dir_fd=here, follow_symlinks=False))))
            except FileNotFoundError:
                continue  # the layer of a sandbox that runs
        return found

    def holds_more_than(self, names: Collection[bytes]) -> bool:
        """Whether there is anything at its top but these names. Looks no further than it has to."""
        with os.scandir(self._root) as entries:
            return any(os.fsencode(entry.name) not in names for entry in entries)

    def walk(self) -> Iterator[tuple[bytes, os.stat_result]]:
        """Every name below, each directory before what it holds."""
        ahead: list[tuple[bytes, os.stat_result]] = [(b"", self.top())]
        while ahead:
            path, status = ahead.pop()
            if path:
                yield path, status
            if stat.S_ISDIR(status.st_mode):
                ahead += [(join(path, name), found) for name, found in reversed(self.entries(path))]
                require_few(len(ahead))

    def is_opaque(self, path: bytes) -> bool:
        """Whether the directory *path* hides the same directory of the layers below."""
        try:
            return os.getxattr(self.directory(path), OPAQUE) == b"y"
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return False
            raise

    def open_file(self, path: bytes) -> int:
        """A descriptor of a regular file, to be closed by the caller."""
        above, name = split(path)
        return _open_even_if_closed(
            self.directory(above), name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )

    def link_target(self, path: bytes) -> bytes:
        above, name = split(path)
        return os.readlink(name, dir_fd=self.directory(above))

    def attributes(self, path: bytes, *, of_overlay: bool = False) -> dict[bytes, bytes]:
        """Extended attributes of a name; those of overlayfs itself only if *of_overlay*."""
        above, name = split(path)
        place = os.fsencode(f"/proc/self/fd/{self.directory(above)}/") + (name or b".")
        try:
            names = sorted(map(os.fsencode, os.listxattr(place, follow_symlinks=False)))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return {}
            raise
        found = {}
        for attribute in names:
            if attribute.startswith(NOT_OURS) or (not of_overlay and attribute.startswith(OVERLAY)):
                continue
            found[attribute] = self._attribute(place, path, attribute)
        return found

    def _attribute(self, place: bytes, path: bytes, attribute: bytes) -> bytes:
        try:
            return os.getxattr(place, attribute, follow_symlinks=False)
        except PermissionError:  # closed to its owner, who is us
            status = self.status(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                return os.getxattr(self.directory(path), attribute)
            above, name = split(path)
            with _readable(self.directory(above), name):
                return os.getxattr(place, attribute, follow_symlinks=False)


class _Closed:
    """Directories closed to their owner, opened up for as long as somebody here reads in them.

    Without root an agent is the same user as this process, and a directory of mode 000 cannot be looked into.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._open: dict[tuple[int, int], tuple[int, int]] = {}
        """Device and inode -> the mode it has by rights, how many read in it."""

    def enter(self, directory: int) -> bool:
        """Whether it has to be left again. Gives its owner the rights that lack."""
        status = os.fstat(directory)
        if status.st_uid != os.geteuid():
            return False
        key = status.st_dev, status.st_ino
        with self.lock:
            mode, readers = self._open.get(key, (stat.S_IMODE(status.st_mode), 0))
            if mode & _NEEDED == _NEEDED:
                return False
            if not readers:
                os.chmod(f"/proc/self/fd/{directory}", mode | _NEEDED)
            self._open[key] = mode, readers + 1
            return True

    def by_rights(self, status: os.stat_result) -> os.stat_result:
        """What it would be if nobody read in it now."""
        if not self._open:
            return status
        with self.lock:
            mode, _ = self._open.get((status.st_dev, status.st_ino), (None, 0))
        if mode is None:
            return status
        parts: Any = status.__reduce__()[1]  # with the exact times, which its numbers alone do not have
        return os.stat_result((stat.S_IFMT(status.st_mode) | mode, *parts[0][1:]), parts[1])

    def leave(self, directory: int) -> None:
        status = os.fstat(directory)
        key = status.st_dev, status.st_ino
        with self.lock:
            mode, readers = self._open.pop(key)
            if readers > 1:
                self._open[key] = mode, readers - 1
            else:
                os.chmod(f"/proc/self/fd/{directory}", mode)


_closed = _Closed()


def _enter(parent: int | None, name: str | bytes) -> tuple[int, bool]:
    """A descriptor of a directory that can be listed, and whether the directory was opened up for it."""
    if os.geteuid() == 0:
        return os.open(name, _READ_DIRECTORY, dir_fd=parent), False
    held = os.open(name, DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        opened_up = _closed.enter(held)
        try:
            return os.open(b".", _READ_DIRECTORY, dir_fd=held), opened_up
        except BaseException:
            if opened_up:
                _closed.leave(held)
            raise
    finally:
        os.close(held)


def _open_even_if_closed(parent: int, name: bytes, flags: int) -> int:
    """Open the file *name*, also if it is closed to its owner."""
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        if os.geteuid() == 0:
            raise
    with _readable(parent, name):
        return os.open(name, flags, dir_fd=parent)


@contextmanager
def _readable(parent: int, name: bytes) -> Iterator[None]:
    """A file of ours can be read meanwhile, whatever its mode says. Raises PermissionError for all else."""
    with _closed.lock:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            status = os.fstat(held)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode) | stat.S_IRUSR)
            try:
                yield
            finally:
                os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode))
        finally:
            os.close(held)
