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
from functools import partial

from coldframe.host.layers.branch import Branch

LARGE_BYTES = 4 * 1024 * 1024
"""From so many on it is begun with at once; what is smaller goes together, which is faster (measured)."""
MOST_FILES = 64
"""More are waited for with the whole file system."""
_MOST_WAITING = 64
"""Ranges. What is over is begun with when the kernel comes to it."""
_BEGIN, _BEGIN_AND_WAIT = 2, 7
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_libc.syncfs.argtypes = [ctypes.c_int]


class Writeback:
    """Of one draft. To be closed."""

    def __init__(self) -> None:
        self._files = 0
        self._is_plain = True
        self._ranges: queue.SimpleQueue[tuple[int, int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wrote(self, file: int, start: int, count: int) -> None:
        """So many bytes of a file, which its descriptor may be closed after."""
        if count < LARGE_BYTES or self._ranges.qsize() >= _MOST_WAITING:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._begin_all, name="writeback", daemon=True)
            self._thread.start()
        self._ranges.put((os.dup(file), start, count))

    def finished(self) -> None:
        """A file."""
        self._files += 1

    def other(self) -> None:
        """Something was made that is no directory and no file with a name of its own."""
        self._is_plain = False

    def settle(self, place: str, files: str) -> None:
        """All of the draft *place*, whose files are below *files*, is on disk afterwards; so is its own name."""
        if not self._is_plain or self._files > MOST_FILES:
            sync_all(os.path.dirname(place))  # the top of the files may be closed to us
            return
        with Branch(files) as branch:
            names = [(path, status.st_mode) for path, status in branch.walk()]
            # The data of all of them first: else each one would wait for an entry of its own in the journal.
            for flags in (_BEGIN, _BEGIN_AND_WAIT):
                _with_each(branch, names, partial(_sync_range, flags=flags))
            _with_each(branch, names, os.fsync)
            for path in [b"", *(path for path, mode in names if stat.S_ISDIR(mode))]:
                os.fsync(branch.directory(path))
        for directory in (place, os.path.dirname(place)):
            held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(held)
            finally:
                os.close(held)

    def close(self) -> None:
        if self._thread is not None:
            self._ranges.put(None)
            self._thread.join()
            self._thread = None

    def _begin_all(self) -> None:
        while (one := self._ranges.get()) is not None:
            file, start, count = one
            _sync_range(file, start, count, flags=_BEGIN)
            os.close(file)


def _with_each(branch: Branch, names: list[tuple[bytes, int]], action: Callable[[int], object]) -> None:
    """Do it with the descriptor of each file."""
    for path, mode in names:
        if stat.S_ISREG(mode):
            held = branch.open_file(path)
            try:
                action(held)
            finally:
                os.close(held)


def _sync_range(file: int, start: int = 0, count: int = 0, *, flags: int) -> None:
    """Up to the end without a count. What goes wrong is told to whoever waits for the file."""
    _libc.sync_file_range(file, start, count, flags)


def sync_all(path: str) -> None:
    """Everything that was written to the file system of *path* is on disk afterwards."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(held) != 0:
            number = ctypes.get_errno() or errno.EIO
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(held)
