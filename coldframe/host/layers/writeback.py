"""What was written of a draft goes to the disk while the rest of it is still being copied, and is waited for afterwards.

To wait for the whole file system waits for all that others have written too, and of a sandbox that has just written a
gigabyte for that gigabyte as well as for its copy. So of few files each is waited for by itself. Of many
the whole file system is not slower.

The kernel is asked to begin with a range by a thread, since it lets whoever asks wait where the disk has enough to do, and
processes may stand still for the copy.
"""

import ctypes
import errno
import os
import queue
import stat
import threading
from collections.abc import Callable

from coldframe.contract.errors import TooLarge
from coldframe.host.layers.branch import Branch, is_whiteout
from coldframe.host.layers.records import sync_directory

LARGE_BYTES = 4 * 1024 * 1024
"""From so many on it is begun with at once; what is smaller goes together, which is faster (measured)."""
MOST_FILES = 64
"""More are waited for with the whole file system."""
MOST_DIRECTORIES = 512
"""Likewise."""
_MOST_WAITING = 64
"""Ranges. What is over is begun with when the kernel comes to it."""
_BEGIN, _BEGIN_AND_WAIT = 2, 7
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_libc.syncfs.argtypes = [ctypes.c_int]


class Writeback:
    """Of one draft. To be closed."""

    def __init__(self) -> None:
        self._ranges: queue.SimpleQueue[tuple[int, int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wrote(self, file: int, start: int, count: int) -> None:
        """So many bytes of a file, which its descriptor may be closed after."""
        if count < LARGE_BYTES or self._ranges.qsize() >= _MOST_WAITING:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._begin_all, name="writeback", daemon=True)
            thread.start()
            self._thread = thread
        self._ranges.put((os.dup(file), start, count))

    def settle(self, place: str, files: str) -> None:
        """All of the draft *place*, whose files are below *files*, is on disk afterwards; so is its own name."""
        with Branch(files) as branch:
            try:
                names = _few_plain(branch)
            except TooLarge:
                names = None
            if names is None:
                sync_all(os.path.dirname(place))  # the top of the files may be closed to us
                return
            # The data of all of them first: else each one would wait for an entry of its own in the journal.
            _with_each(branch, names, _begin)
            _with_each(branch, names, _wait)
            _with_each(branch, names, os.fsync)
            for path in [b"", *(path for path, mode in names if stat.S_ISDIR(mode))]:
                os.fsync(branch.directory(path))
        for directory in (place, os.path.dirname(place)):
            sync_directory(directory)

    def close(self) -> None:
        if self._thread is not None:
            self._ranges.put(None)
            self._thread.join()
            self._thread = None

    def _begin_all(self) -> None:
        while (one := self._ranges.get()) is not None:
            file, start, count = one
            _begin(file, start, count)
            os.close(file)


def _few_plain(branch: Branch) -> list[tuple[bytes, int]] | None:
    """Names with their modes; None where they are many, or one is a link, or another name of a file.

    What is there counts, and not what anybody has told: however it got there.
    """
    names: list[tuple[bytes, int]] = []
    files = directories = 0
    for path, status in branch.walk():
        if stat.S_ISDIR(status.st_mode):
            directories += 1
        elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            files += 1
        elif not is_whiteout(status):  # which is no more than its name
            return None
        if files > MOST_FILES or directories > MOST_DIRECTORIES:
            return None
        names.append((path, status.st_mode))
    return names


def _with_each(branch: Branch, names: list[tuple[bytes, int]], action: Callable[[int], object]) -> None:
    """Do it with the descriptor of each file."""
    for path, mode in names:
        if stat.S_ISREG(mode):
            held = branch.open_file(path)
            try:
                action(held)
            finally:
                os.close(held)


def _begin(file: int, start: int = 0, count: int = 0) -> None:
    """Up to the end without a count. What goes wrong is told to whoever waits for the file."""
    _libc.sync_file_range(file, start, count, _BEGIN)


def _wait(file: int) -> None:
    """Raises OSError. The kernel tells of what went wrong once: an fsync by another descriptor would not be told again."""
    if _libc.sync_file_range(file, 0, 0, _BEGIN_AND_WAIT) != 0:
        number = ctypes.get_errno() or errno.EIO
        if number not in (errno.ENOSYS, errno.EINVAL):  # it cannot be had there, and fsync does all of it
            raise OSError(number, os.strerror(number))


def sync_all(path: str) -> None:
    """Everything that was written to the file system of *path* is on disk afterwards."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(held) != 0:
            number = ctypes.get_errno() or errno.EIO
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(held)
