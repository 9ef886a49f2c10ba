"""Files of one directory that are there before they get their names.

To make a file takes the kernel up to a third of a millisecond where many were removed lately (ext4 without a journal looks at
each of them), to give one another name a few microseconds. Whoever waits for a command waits for no more than that.
"""

import contextlib
import ctypes
import errno
import os

MOST_READY = 2
"""For the record and the output of the next command."""

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_REPLACE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ReadyFiles:
    """Of one directory. What nobody took is named `.ready-N` there, and empty. What a keeper of before has left is no file of
    this one, which may be another user's: it is made anew."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._ready: list[str] = []
        self._missing = [f".ready-{number}" for number in range(MOST_READY)] if hasattr(_libc, "renameat2") else []

    def prepare(self) -> None:
        """Make what is missing. What cannot be made now is made, or fails, when it is asked for."""
        with contextlib.suppress(OSError):
            while self._missing:
                try:
                    made = make_file(self._directory, self._missing[-1])
                except FileExistsError:
                    os.unlink(self._missing[-1], dir_fd=self._directory)
                    made = make_file(self._directory, self._missing[-1])
                os.close(made)
                self._ready.append(self._missing.pop())

    def make(self, name: str) -> int:
        """A new empty file, open for both.

        Raises:
            FileExistsError: there is one of that name.
            OSError: it cannot be made.
        """
        if not self._ready:
            return make_file(self._directory, name)
        spare, place = self._ready.pop(), self._directory
        if _libc.renameat2(place, spare.encode(), place, name.encode("ascii"), _NO_REPLACE) != 0:
            number = ctypes.get_errno()
            if number == errno.EEXIST:
                self._ready.append(spare)
            elif number == errno.ENOENT:  # another has taken it
                self._missing.append(spare)
            else:  # this file system does not know how, or cannot be written: never again
                with contextlib.suppress(OSError):
                    os.unlink(spare, dir_fd=place)
            return make_file(place, name)
        self._missing.append(spare)
        try:
            return os.open(name, _FLAGS, dir_fd=place)
        except OSError:
            os.unlink(name, dir_fd=place)
            raise


def make_file(directory: int, name: str) -> int:
    """The same, now."""
    return os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
