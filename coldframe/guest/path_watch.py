"""What happens in a directory of the box, noted as it happens and fetched when somebody asks.

A watch belongs to no connection: whoever asks by its id gets what came since the last answer, so that a server that was
started again goes on. The kernel's events (inotify) come by directory. A directory that is made below one that is watched
whole is added when its making is told; what was put into it before that is found by listing it, and told as if it had been
seen. So the names in each directory are kept, and none is told twice as made.

What the keeper itself writes comes under a draft's name and is renamed over its target: that is told as what it means,
made or written, and the draft is not. A keeper sees what the box's user may see. Bounded are the watches of a box, the
directories and names of each, and the events that nobody has fetched: past that something is missing, and the next answer
says so.
"""

import contextlib
import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coldframe.guest.box_paths import MOST_NOTES_BYTES, Users, absolute, describe, from_root, notes_bytes
from coldframe.guest.facts import Named, text_of
from coldframe.guest.files import TEMPORARY_PREFIX
from coldframe.guest.loop import IN, Loop, Timer
from coldframe.guest.paths import BoxRoot, open_beneath, open_parent, open_unlinked, read_name
from coldframe.guest.trees import READ_DIRECTORY
from coldframe.guest.verbs import Failure

MOST_WATCHES, MOST_WATCHED, MOST_EVENTS, KEPT_S = 64, 4096, 10_000, 600.0
MOST_NAMES = 200_000
MOST_EVENT_BYTES = 8 * 1024 * 1024
BUFFER_BYTES = 65536
READS_AT_ONCE = 8
"""Buffers read for one answer: whoever writes faster than is read holds up nothing else, and the next answer has the rest."""
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ONLY_DIRECTORY, _DIRECTORY = (
    0x400,
    0x800,
    0x4000,
    0x8000,
    1 << 24,
    1 << 30,
)
_WANTED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("=iIII")
_ID = re.compile(r"wch_[0-9a-z]{1,40}")
_libc = ctypes.CDLL(None, use_errno=True)


class _Place(NamedTuple):
    path: bytes
    """Below the directory of the watch; empty for that itself."""
    names: set[bytes]


class PathWatch:
    """One watch."""

    def __init__(self, loop: Loop, root: BoxRoot, request: dict[str, Any]) -> None:
        self._loop = loop
        self._root = root
        self._recursive = bool(request.get("recursive"))
        self._with_info = bool(request.get("with_info"))
        self._events: list[tuple[str, bytes]] = []
        self._bytes = 0
        """Of the names in them."""
        self._places: dict[int, _Place] = {}
        self._numbers: dict[bytes, int] = {}
        self._names = 0
        self._drafts: set[int] = set()
        """Cookies of drafts that are being renamed."""
        self._overflowed = self.ended = self._is_watched = False
        self.on_event: Callable[[], None] | None = None
        self.read_at = loop.time()
        with absolute():
            self.name = read_name(root, request["path"])
            with Named(self.name):
                held = open_beneath(root, self.name, READ_DIRECTORY & ~os.O_NOFOLLOW)
        self._identity = _identity(held)
        os.close(held)  # while it is open, that it is removed is not told
        self._file: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._file < 0:
            raise Failure(
                "LIMIT", "the user of the box has no watch left; end what watches files there", kind="watches"
            )
        try:
            if not self._add(b"", told=False):
                raise Failure("LIMIT", "the user of the box has no watch left", kind="watches")
        except BaseException:
            self.close()
            raise
        loop.watch(self._file, IN, self._read)
        self._is_watched = True

    @property
    def waiting(self) -> bool:
        """Whether there is something to be fetched."""
        return bool(self._events) or self._overflowed or self.ended

    def take(self) -> dict[str, Any]:
        """Fields of WatchEvents: all since the last answer."""
        for _ in range(READS_AT_ONCE):
            if not self._read_buffer():
                break
        self.read_at = self._loop.time()
        events, self._events, self._bytes = self._events, [], 0
        overflowed, self._overflowed = self._overflowed, False
        infos = self._described(events) if self._with_info else [None] * len(events)
        told = [
            {"kind": kind, "name": text_of(name), "info": info}
            for (kind, name), info in zip(events, infos, strict=True)
        ]
        return {"events": told, "overflowed": overflowed, "ended": self.ended}

    def close(self) -> None:
        if self._file >= 0 and self._is_watched:
            self._loop.forget(self._file)
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._is_watched = False

    def _described(self, events: list[tuple[str, bytes]]) -> list[dict[str, Any] | None]:
        """One for each event. With more notes than one answer holds, nothing is told of what comes behind."""
        users, known, size = Users(self._root), dict[bytes, dict[str, Any] | None](), 0
        infos: list[dict[str, Any] | None] = []
        for _, name in events:
            if size > MOST_NOTES_BYTES:
                infos.append(None)
                continue
            if name not in known:
                known[name] = self._describe(name, users)
            info = known[name]
            infos.append(info)
            size += 0 if info is None else notes_bytes(info)
        return infos

    def _describe(self, name: bytes, users: Users) -> dict[str, Any] | None:
        whole = b"/".join(part for part in (self.name, name) if part)
        try:
            parent, leaf = open_parent(self._root, whole)
            try:
                return describe(self._root, whole, users, parent=parent, leaf=leaf)
            finally:
                os.close(parent)
        except (OSError, Failure):
            return None

    # -- directories ---------------------------------------------------------------------------

    def _add(self, path: bytes, *, told: bool) -> bool:
        """Watch the directory *path*, and with *recursive* all below; whether that itself could be. *told*: what is there is news."""
        ahead = [path]
        while ahead:
            here = ahead.pop()
            if len(self._places) >= MOST_WATCHED:
                self._overflowed = True
                return True
            try:
                held = self._open(here)
            except OSError:
                if here == path and not told:
                    return False
                continue  # gone again, another thing by now, or closed to the user of the box
            try:
                number = _watch(self._file, held)
                if number < 0:
                    self._overflowed = True
                    if not here:
                        return False
                    continue
                known = self._places.get(number)
                place = _Place(here, set() if known is None else known.names)
                self._places[number], self._numbers[here] = place, number
                entries, is_whole = _entries(held, MOST_NAMES - self._names)
                self._overflowed |= not is_whole
                for entry, is_directory in entries:
                    below = b"/".join(part for part in (here, entry) if part)
                    if entry not in place.names and not entry.startswith(TEMPORARY_PREFIX):
                        self._keep(place, entry)
                        if told:
                            self._tell("create", below)
                            if not is_directory:
                                self._tell("write", below)
                    if is_directory and self._recursive:
                        ahead.append(below)
            except OSError:
                self._overflowed = True
            finally:
                os.close(held)
        return True

    def _open(self, path: bytes) -> int:
        """A directory of the watch. Raises OSError, also where another has taken the place of the one that is watched."""
        with _gone():
            top = open_beneath(self._root, self.name, READ_DIRECTORY & ~os.O_NOFOLLOW)
        if _identity(top) != self._identity:
            os.close(top)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not path:
            return top
        try:
            return open_unlinked(top, path, READ_DIRECTORY)
        finally:
            os.close(top)

    def _keep(self, place: _Place, name: bytes) -> None:
        if self._names < MOST_NAMES:
            self._names += 1
            place.names.add(name)

    def _drop(self, place: _Place, name: bytes) -> None:
        if name in place.names:
            self._names -= 1
            place.names.discard(name)

    # -- events --------------------------------------------------------------------------------

    def _read(self, _: int) -> None:
        """One buffer: the loop calls again while there is more, and does what else is to be done before."""
        self._read_buffer()
        if self.waiting and self.on_event is not None:
            self.on_event()

    def _read_buffer(self) -> bool:
        """Whether there may be more."""
        if self._file < 0 or self.ended:
            return False
        try:
            data = os.read(self._file, BUFFER_BYTES)
        except BlockingIOError:
            return False
        at = 0
        while at < len(data):
            number, mask, cookie, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            self._take(number, mask, cookie, name)
        return len(data) >= BUFFER_BYTES // 2

    def _take(self, number: int, mask: int, cookie: int, name: bytes) -> None:
        if mask & _OVERFLOW:
            self._overflowed = True
            return
        place = self._places.get(number)
        if place is None:
            return
        if mask & _IGNORED:
            self._names -= len(place.names)
            del self._places[number]
            if self._numbers.get(place.path) == number:
                del self._numbers[place.path]
            if not place.path:
                self._end()
            return
        if mask & (_DELETE_SELF | _MOVE_SELF):
            if not place.path:  # of others the directory above tells
                self._tell("remove" if mask & _DELETE_SELF else "rename", b"")
            return
        if name.startswith(TEMPORARY_PREFIX):
            if mask & _MOVED_FROM:
                self._drafts.add(cookie)
            return
        below = b"/".join(part for part in (place.path, name) if part)
        if mask & (_CREATE | _MOVED_TO):
            self._take_in(place, name, below, mask, is_written=cookie in self._drafts)
            self._drafts.discard(cookie)
        elif mask & (_DELETE | _MOVED_FROM):
            self._drop(place, name)
            if mask & _DIRECTORY and mask & _MOVED_FROM:
                self._forget_below(below)
            self._tell("remove" if mask & _DELETE else "rename", below)
        elif mask & _MODIFY:
            self._tell("write", below)
        elif mask & _ATTRIB:
            self._tell("chmod", below)

    def _take_in(self, place: _Place, name: bytes, below: bytes, mask: int, *, is_written: bool) -> None:
        known = name in place.names
        self._keep(place, name)
        if is_written:
            for kind in ("write",) if known else ("create", "chmod", "write"):
                self._tell(kind, below)
            return
        if not known or mask & _MOVED_TO:
            self._tell("create", below)
        if mask & _DIRECTORY and self._recursive:
            self._add(below, told=True)

    def _forget_below(self, path: bytes) -> None:
        """A directory that was moved away: what happens there is nothing to this watch any more, nor its name true."""
        for known, number in list(self._numbers.items()):
            if known == path or known.startswith(path + b"/"):
                _libc.inotify_rm_watch(self._file, number)
                place = self._places.pop(number, None)
                self._names -= 0 if place is None else len(place.names)
                del self._numbers[known]

    def _tell(self, kind: str, name: bytes) -> None:
        if self._events and self._events[-1] == (kind, name):
            return
        if len(self._events) >= MOST_EVENTS or self._bytes > MOST_EVENT_BYTES:
            self._overflowed = True
            return
        self._events.append((kind, name))
        self._bytes += len(name)

    def _end(self) -> None:
        self.ended = True
        if self._is_watched:
            self._is_watched = False
            self._loop.forget(self._file)


class PathWatches:
    """All of one box."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._watches: dict[str, PathWatch] = {}
        self._timer: Timer | None = None

    def begin(self, root: BoxRoot, request: dict[str, Any]) -> dict[str, Any]:
        """Fields of WatchStarted. Raises Failure: it is no directory, or there are too many."""
        watch_id = request["watch_id"]
        if not isinstance(watch_id, str) or not _ID.fullmatch(watch_id):
            raise Failure("INVALID_ARGUMENT", "malformed id of a watch")
        if watch_id in self._watches:  # asked again over a broken connection
            return {"watch_id": watch_id, "path": from_root(text_of(self._watches[watch_id].name))}
        if len(self._watches) >= MOST_WATCHES:
            self._drop_old()
        if len(self._watches) >= MOST_WATCHES:
            raise Failure(
                "LIMIT",
                f"there are {MOST_WATCHES} watches in this sandbox already; end some",
                kind="watches",
                limit=MOST_WATCHES,
            )
        watch = PathWatch(self._loop, root, request)
        self._watches[watch_id] = watch
        if self._timer is None:
            self._timer = self._loop.after(KEPT_S, self._on_timer, while_held=True)
        return {"watch_id": watch_id, "path": from_root(text_of(watch.name))}

    def find(self, watch_id: object) -> PathWatch:
        found = self._watches.get(str(watch_id))
        if found is None:
            raise Failure("NOT_FOUND", f"there is no watch `{str(watch_id)[:40]}`; those that nobody asks about end")
        return found

    def end(self, watch_id: object) -> None:
        watch = self.find(watch_id)
        del self._watches[str(watch_id)]
        watch.ended = True
        if watch.on_event is not None:  # whoever waits is told
            watch.on_event()
        watch.close()

    def _drop_old(self) -> None:
        before = self._loop.time() - KEPT_S
        for watch_id, watch in list(self._watches.items()):
            if watch.read_at < before and watch.on_event is None:
                watch.close()
                del self._watches[watch_id]

    def _on_timer(self) -> None:
        self._timer = None
        self._drop_old()
        if self._watches:
            self._timer = self._loop.after(KEPT_S, self._on_timer, while_held=True)


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """What is refused there for what it has become since is as good as gone."""
    try:
        yield
    except Failure as failure:
        raise FileNotFoundError(errno.ENOENT, failure.message) from failure


def _identity(held: int) -> tuple[int, int]:
    status = os.fstat(held)
    return status.st_dev, status.st_ino


def _watch(file: int, directory: int) -> int:
    """Number of the watch, or -1. The working directory is the only name of an open one that cannot lead elsewhere."""
    try:
        os.fchdir(directory)
    except OSError:
        return -1
    try:
        return int(_libc.inotify_add_watch(file, b".", _WANTED | _ONLY_DIRECTORY))
    finally:
        os.chdir("/")


def _entries(directory: int, most: int) -> tuple[list[tuple[bytes, bool]], bool]:
    """At most so many names, each with whether it is a directory; and whether that is all of them."""
    found: list[tuple[bytes, bool]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(found) >= most:
                return sorted(found), False
            with contextlib.suppress(OSError):  # gone meanwhile
                found.append((os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)))
    return sorted(found), True
