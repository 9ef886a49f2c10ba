"""The /etc of boxes, made ready as one directory: each mount less saves a creation a tenth of a millisecond and more.

It holds what `namespaces.HOST_SETTINGS` names of the machine's own, and what is made up. That is a copy, so it has to
stay true: everything copied is watched (inotify), and what has changed is copied anew before the next box is built.
A box keeps what it began with, as a process keeps the files it has opened. Each copy is named by what was seen of its
sources (number, size and times of each file), so the next start uses it again if nothing changed; not after a boot,
since a power failure may have left its files without their content. What has changed just now may change once more
within the same tick of the file system's clock, so such a copy is used by this process alone.

Where the machine gives no watch there is no copy, and the box is given every setting by a mount of its own.
What is told to nobody is not seen either: changes on another machine, if /etc is on a network file system, and what is
mounted over a source later.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

from coldframe.host.isolation.namespaces import HOST_SETTINGS, LINKS, SETTINGS
from coldframe.host.removal import remove_tree, try_removal

_CHANGES = 0x2 | 0x4 | 0x8 | 0xC0 | 0x100 | 0x200 | 0x400 | 0x800
"""Written, changed, closed after writing, moved, made, deleted; also the directory itself."""
_EVENT = struct.Struct("=iIII")
_BUFFER_BYTES = 65536
MOST_LINKS = 40
UNSURE_NS = 2_000_000_000
"""How old a change must be to tell by its time that there was no later one; some file systems count whole seconds."""
_OTHERS_READ, _OTHERS_PASS, _OTHERS_ENTER = 0o004, 0o001, 0o005

_libc = ctypes.CDLL(None, use_errno=True)


class HostSettings:
    """Copies in `directory`, which sandbox users can enter. Everything here blocks for some milliseconds at most."""

    def __init__(self, directory: str, *, root: str = "/etc", paths: Sequence[str] = HOST_SETTINGS) -> None:
        """`root` is what boxes call /etc; `paths` are the settings to be copied, below it."""
        self._directory = directory
        self._root = root
        self._paths = paths
        self._watch = -1
        self._watched: dict[int, set[str] | None] = {}
        """Names that matter in each watched directory; None for all."""
        self._current: str | None = None
        self._lock = threading.Lock()
        """Held while a copy is made or removed."""

    def current(self) -> str | None:
        """A directory to be mounted as /etc, true at the time of the call; None where none can be had."""
        with self._lock:
            if self._current is None or self._is_changed() or not os.path.isdir(self._current):
                self._current = self._make()
            return self._current

    def remove_unused(self, used: set[str]) -> None:
        """All but the current one and `used`, as far as they can be removed."""
        with self._lock:
            for name in os.listdir(self._directory):
                path = os.path.join(self._directory, name)
                if path != self._current and path not in used:
                    try_removal(f"settings/{name}", partial(remove_tree, path))

    def close(self) -> None:
        if self._watch >= 0:
            os.close(self._watch)
        self._watch, self._current = -1, None

    def _make(self) -> str | None:
        self.close()
        self._watched = {}
        self._watch = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._watch < 0:
            return None
        try:
            found = [entry for path in self._paths for entry in self._look(path)]
            seen = hashlib.sha256(repr((_boot(), "times", found, SETTINGS, LINKS)).encode("utf-8", "surrogateescape"))
            newest = max((entry[3][-1] for entry in found), default=0)
            own = f"-{secrets.token_hex(4)}" if newest > time.time_ns() - UNSURE_NS else ""
            whole = os.path.join(self._directory, seen.hexdigest()[:32] + own)
            if not os.path.isdir(whole):
                draft = os.path.join(self._directory, f"new-{secrets.token_hex(4)}")
                try:
                    _copy(found, self._root, draft)
                    if self._is_changed():  # then it may be neither what was nor what is
                        return None
                    os.rename(draft, whole)
                finally:
                    remove_tree(draft)
            return whole
        except OSError:
            self.close()
            return None

    def _look(self, path: str) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
        """Of a setting and all below it: place in the copy, source, target if it is a link, and what tells a change.

        One that is a link itself counts as what it leads to. What not everybody can get to is passed over, since
        everybody can get to the copy.
        """
        source = self._followed(path)
        if source is None:
            return
        folders = [(path, source)]
        try:
            status = os.lstat(source)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            self._watch_file(source, status)  # by its own name as well: it may be mounted there
            yield path, source, "", _told(status)
            return
        if status.st_mode & _OTHERS_ENTER != _OTHERS_ENTER:
            return
        for place, folder in folders:
            self._add_watch(folder, None)
            yield place, folder, "", _told(os.lstat(folder))
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    status = entry.stat(follow_symlinks=False)
                    below = f"{place}/{entry.name}"
                    if stat.S_ISDIR(status.st_mode):
                        if status.st_mode & _OTHERS_ENTER == _OTHERS_ENTER:
                            folders.append((below, entry.path))
                    elif stat.S_ISLNK(status.st_mode):
                        yield below, entry.path, os.readlink(entry.path), _told(status)
                    else:
                        if status.st_nlink > 1:  # it may be changed by another name
                            self._watch_file(entry.path, status)
                        yield below, entry.path, "", _told(status)

    def _followed(self, path: str) -> str | None:
        """Where it leads to, with a watch on each step of the way, as far as it is there.

        None if a directory on the way lets not everybody pass. Raises OSError.
        """
        here, rest, links = "/", path.split("/"), 0
        while rest:
            name = rest.pop(0)
            if name == "..":
                here = os.path.dirname(here)
            elif name not in ("", "."):
                if os.path.isdir(here):
                    self._add_watch(here, name)
                    if not os.stat(here).st_mode & _OTHERS_PASS:
                        return None
                step = os.path.join(here, name)
                if os.path.islink(step):
                    links += 1
                    if links > MOST_LINKS:
                        raise OSError(errno.ELOOP, "too many links", path)
                    target = os.readlink(step)
                    rest = target.split("/") + rest
                    here = "/" if target.startswith("/") else here
                else:
                    here = step
        return here

    def _watch_file(self, path: str, status: os.stat_result) -> None:
        if _is_copied(status.st_mode):
            self._add_watch(path, None)

    def _add_watch(self, directory: str, name: str | None) -> None:
        watch = _libc.inotify_add_watch(self._watch, os.fsencode(directory), ctypes.c_uint32(_CHANGES))
        if watch < 0:
            raise OSError(ctypes.get_errno(), "no watch", directory)
        names = self._watched.setdefault(watch, set())
        if name is None or names is None:
            self._watched[watch] = None
        else:
            names.add(name)

    def _is_changed(self) -> bool:
        changed = False
        while True:
            try:
                told = os.read(self._watch, _BUFFER_BYTES)
            except BlockingIOError:
                return changed
            while told:
                watch, _, _, length = _EVENT.unpack_from(told)
                name = os.fsdecode(told[_EVENT.size : _EVENT.size + length].rstrip(b"\0"))
                told = told[_EVENT.size + length :]
                names = self._watched.get(watch)  # none for events that were lost
                changed = changed or names is None or not name or name in names


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
        return source.read()


def _told(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_copied(mode: int) -> bool:
    return stat.S_ISREG(mode) and bool(mode & _OTHERS_READ)


def _copy(found: list[tuple[str, str, str, tuple[int, ...]]], root: str, target: str) -> None:
    """What others may read alone: a copy gives a file to whoever can enter here. Raises OSError.

    Files keep the times of their changes, by which programs tell whether what they made of them is still true: Python
    would else compile `sitecustomize` of /etc at each start, for a millisecond.
    """
    os.mkdir(target, 0o755)
    for place, source, link, status in found:
        copy = target + place.removeprefix(root)
        os.makedirs(os.path.dirname(copy), 0o755, exist_ok=True)
        if link:
            os.symlink(link, copy)
        elif stat.S_ISDIR(status[2]):
            if status[2] & _OTHERS_ENTER == _OTHERS_ENTER:
                os.makedirs(copy, 0o755, exist_ok=True)
        elif _is_copied(status[2]):
            with contextlib.suppress(FileNotFoundError):  # its end is told
                _write(copy, _content(source))
                os.utime(copy, ns=(status[4], status[4]))
    for path, text in SETTINGS.items():
        os.makedirs(os.path.dirname(target + path.removeprefix("/etc")), 0o755, exist_ok=True)
        _write(target + path.removeprefix("/etc"), text.encode())
    for path, leads_to in LINKS.items():
        os.makedirs(os.path.dirname(target + path.removeprefix("/etc")), 0o755, exist_ok=True)
        os.symlink(leads_to, target + path.removeprefix("/etc"))
    for folder, _, _ in os.walk(target):
        os.chmod(folder, 0o755)  # whatever our umask


def _content(source: str) -> bytes:
    with open(os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read()


def _write(path: str, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o444)
