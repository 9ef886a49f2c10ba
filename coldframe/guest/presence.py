"""Who else serves the workspace: an agent may have several sandboxes, each with a keeper of its own.

Each keeper holds a read lock on the workspace, at the second since which it does so, and asks whose locks there are.
A box can neither break such a lock nor keep a keeper from it, since nobody opens a directory for writing; with locks
of its own it only makes its keeper look more often.
"""

import fcntl
import os
import struct
import time

from coldframe.guest.paths import open_up

MOST_LOCKS = 16
"""That are looked at for the oldest; with more, anything may be older."""

_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FLOCK = struct.Struct("=hh4xqqi4x")


class Presence:
    """One keeper's own lock, and its view of the others."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._file = -1

    @property
    def shown(self) -> bool:
        return self._file >= 0

    def show(self) -> None:
        """Be seen, from the first command on. A workspace whose owner may not read it becomes readable to him.

        Raises:
            OSError: it cannot be opened all the same.
        """
        if self._file < 0:
            try:
                file = os.open(".", _READ, dir_fd=self._root)
            except PermissionError:
                open_up(self._root, b".")
                file = os.open(".", _READ, dir_fd=self._root)
            try:
                _ask(file, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, int(time.time()), 1)
            except OSError:
                os.close(file)
                raise
            self._file = file

    def is_alone(self) -> bool:
        """Whether nobody else is there now; asked without being seen. Raises OSError."""
        file = self._file if self._file >= 0 else os.open(".", _READ, dir_fd=self._root)
        try:
            return _ask(file, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, 0)[0] == fcntl.F_UNLCK
        finally:
            if file != self._file:
                os.close(file)

    def others_since_s(self) -> int | None:
        """Since when, by the system's clock, somebody else may be there; None if nobody is. Nobody before `show`: 0."""
        if self._file < 0:
            return 0
        oldest = None
        for _ in range(MOST_LOCKS):
            kind, _, start, _, _ = _ask(self._file, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, oldest or 0)
            if kind == fcntl.F_UNLCK:
                return oldest
            if start <= 0:
                return 0
            oldest = start
        return 0


def _ask(file: int, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
    """`length` 0: to the end of all numbers."""
    answer = fcntl.fcntl(file, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    return _FLOCK.unpack(answer)
