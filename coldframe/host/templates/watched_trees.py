"""Which trees of templates nobody has touched since this process looked over them, so that most starts need not look again.

The kernel tells of every change below a directory that is watched. What it does not tell (a file that is changed by another
name of it from elsewhere, or as mapped memory) is found by the look that is due once in LOOK_AGAIN_S. Where directories cannot be
watched, every start looks.
"""

import contextlib
import ctypes
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

LOOK_AGAIN_S = 60.0
MOST_TREES = 24
_CHANGES = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""Content, attributes, closed after writing, moved, made, removed; also of the directory itself."""
_DIRECTORIES_ALONE = 0x01000000 | 0x02000000  # no other thing under that name, and no link

_libc = ctypes.CDLL(None, use_errno=True)


class WatchedTrees:
    """Of one process. May be used in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Descriptor of the watch, and when the tree was looked over."""
        self._touched: set[str] = set()
        """Those that were, and have not passed since."""

    def look(self, directory: str, check: Callable[[bool], None]) -> None:
        """Have *check* look over a tree, unless that is known to be needless. Raises what it raises.

        It is told whether the tree was touched since it passed: then sizes and times, which can be set back, are not enough.
        """
        with self._lock:
            watch, looked = self._known.get(directory, (-1, 0.0))
            was_touched = directory in self._touched or (watch >= 0 and not _is_quiet(watch))
            if watch >= 0 and not was_touched and time.monotonic() - looked < LOOK_AGAIN_S:
                self._known.move_to_end(directory)
                return
            if watch >= 0:  # what it has told is not told again
                del self._known[directory]
                os.close(watch)
            if was_touched:
                self._touched.add(directory)
        began = time.monotonic()
        watch = _watch(directory)  # first: what changes meanwhile is seen by one of the two
        try:
            check(was_touched)
        except BaseException:
            if watch >= 0:
                os.close(watch)
            raise
        with self._lock:
            self._touched.discard(directory)
        if watch >= 0:
            self._keep(directory, watch, began)

    def _keep(self, directory: str, watch: int, looked: float) -> None:
        with self._lock:
            former, _ = self._known.pop(directory, (-1, 0.0))
            self._known[directory] = watch, looked
            gone = [former] if former >= 0 else []
            while len(self._known) > MOST_TREES:
                gone.append(self._known.popitem(last=False)[1][0])
        for one in gone:
            os.close(one)

    def close(self) -> None:
        with self._lock:
            for watch, _ in self._known.values():
                os.close(watch)
            self._known.clear()


def _watch(directory: str) -> int:
    """A descriptor that can be read once anything below has changed; -1 where that cannot be had."""
    watch: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if watch < 0:
        return -1
    ahead = [directory]
    try:
        while ahead:
            folder = ahead.pop()
            mask = ctypes.c_uint32(_CHANGES | _DIRECTORIES_ALONE)
            if _libc.inotify_add_watch(watch, os.fsencode(folder), mask) < 0:
                raise OSError(ctypes.get_errno(), "no watch", folder)
            with os.scandir(folder) as entries:
                ahead += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        os.close(watch)
        return -1
    return watch


def _is_quiet(watch: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        os.read(watch, 65_536)
        return False
    return True
