"""Listing, making and removing directories of the workspace. No recursion: a tree may be any number of levels deep.

Listing goes level by level, so that a cut listing still shows the top. Removing climbs back through
`..`, and only if it finds the very directory it came from; neither ever follows a link below the
directory that was named.
"""

import errno
import os
import stat
from typing import Any

from coldframe.guest.facts import Named, failure_of, kind_of, text_of, time_of, version_of
from coldframe.guest.paths import (
    DIRECTORY,
    make_directories,
    open_beneath,
    open_parent,
    open_unlinked,
    open_up,
    read_name,
)
from coldframe.guest.verbs import Answer, Failure, verb

HISTORY = b".exec_history"
"""Projection of the ledger in the workspace root: mounted read-only, never removed, no part of a manifest."""

READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
ANSWER_PATH_BYTES = 32 * 1024 * 1024
"""Most bytes of names in one listing."""
REMOVE_ROUNDS = 16
"""How often a directory is emptied again that a command keeps filling."""

_LISTED = ("path", "name", "kind", "size", "mode", "modified_at", "target", "version")


def entry_names(directory: int) -> list[bytes]:
    """The names in an open directory, sorted."""
    return sorted(map(os.fsencode, os.listdir(directory)))


# -- listing ---------------------------------------------------------------------------------------


@verb("list_directory", slow=True)
def list_directory(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ListDirectory, sorted by path. What cannot be read is told in `errors`; what vanished is left out."""
    name = read_name(root, request.get("path", ""))
    recursive = request.get("recursive", False)
    depth = (request.get("max_depth") or None) if recursive else 1
    after = request.get("after")
    if after is not None and recursive:
        raise Failure("INVALID_ARGUMENT", "pages are of one directory: leave out `recursive` or `after`")
    listing = _Listing(name, request.get("max_entries", 10_000), b"" if after is None else os.fsencode(after))
    with Named(name):
        top = open_beneath(root, name, READ_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        level = [b""]
        reached = 0
        while level and listing.cut is None and (depth is None or reached < depth):
            level = [found for path in level for found in listing.add(top, path)]
            reached += 1
        if recursive and listing.cut is None and any(_holds_something(top, path) for path in level):
            listing.cut = "max_depth"
    finally:
        os.close(top)
    answer = {
        "path": text_of(name),
        "entries": sorted(listing.entries, key=lambda entry: str(entry["path"])),
        "complete": listing.cut is None,
        "truncated_because": listing.cut,
        "next_after": None if recursive or listing.cut != "max_entries" else text_of(listing.last),
        "errors": listing.errors,
    }
    return answer, b""


class _Listing:
    def __init__(self, name: bytes, most_entries: int, after: bytes = b"") -> None:
        self._name = name
        self._after = after
        self.last = b""
        """Name of the last entry taken in."""
        self._most_entries = most_entries
        self._bytes = 0
        self.entries: list[dict[str, Any]] = []
        self.errors: list[tuple[str, str]] = []
        self.cut: str | None = None

    def add(self, top: int, path: bytes) -> list[bytes]:
        """Take in the directory *path* below *top*; returns its subdirectories."""
        if self.cut is not None:
            return []
        try:
            held = open_unlinked(top, path, READ_DIRECTORY)
        except OSError as error:
            self._note(path, error)
            return []
        below = []
        try:
            for name in entry_names(held):
                if name <= self._after:
                    continue
                child = path + b"/" + name if path else name
                try:
                    status = os.stat(name, dir_fd=held, follow_symlinks=False)
                    target = os.readlink(name, dir_fd=held) if stat.S_ISLNK(status.st_mode) else None
                except OSError as error:
                    self._note(child, error)
                    continue
                self._bytes += len(child)
                if len(self.entries) >= self._most_entries or self._bytes > ANSWER_PATH_BYTES:
                    self.cut = "max_entries"
                    break
                self.entries.append(_describe(self._full(child), name, status, target))
                self.last = name
                if stat.S_ISDIR(status.st_mode):
                    below.append(child)
        finally:
            os.close(held)
        return below

    def _full(self, path: bytes) -> bytes:
        return self._name + b"/" + path if self._name and path else self._name or path

    def _note(self, path: bytes, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL):  # gone, or another thing by now
            self.errors.append((text_of(self._full(path)), str(error.strerror).lower()))


def _describe(path: bytes, name: bytes, status: os.stat_result, target: bytes | None) -> dict[str, Any]:
    regular = stat.S_ISREG(status.st_mode)
    values = (
        text_of(path),
        text_of(name),
        kind_of(status.st_mode),
        status.st_size,
        stat.S_IMODE(status.st_mode),
        time_of(status.st_mtime_ns),
        None if target is None else text_of(target),
        version_of(status) if regular else None,
    )
    return dict(zip(_LISTED, values, strict=True))


def _holds_something(top: int, path: bytes) -> bool:
    try:
        held = open_unlinked(top, path, READ_DIRECTORY)
    except OSError:
        return True  # not known, so not called complete
    try:
        with os.scandir(held) as entries:
            return next(entries, None) is not None
    finally:
        os.close(held)


# -- making ----------------------------------------------------------------------------------------


@verb("make_directory")
def make_directory(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a MakeDirectory: like `mkdir -p`, so a directory that is there already is fine."""
    name = read_name(root, request["path"])
    with Named(name):
        make_directories(root, name)
        os.close(open_beneath(root, name, DIRECTORY))
    return {"ok": True}, b""


# -- removing --------------------------------------------------------------------------------------


@verb("remove_path", slow=True)
def remove_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a RemovePath. A link is removed, never what it names. Emptying the workspace spares `.exec_history`."""
    name = read_name(root, request["path"])
    shown = text_of(name)
    if request.get("contents_only", False):
        with Named(name):
            top = open_beneath(root, name, DIRECTORY)
            _empty(top, name, spared=() if name else (HISTORY,))
        return {"ok": True}, b""
    if not name:
        raise Failure("INVALID_ARGUMENT", "the workspace itself cannot be removed; empty it with `contents_only`")
    with Named(name):
        parent, leaf = open_parent(root, name)
        try:
            status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(leaf, dir_fd=parent)
            elif not request.get("recursive", False):
                raise Failure("IS_A_DIRECTORY", f"`{shown}` is a directory; remove it with `recursive`", path=shown)
            else:
                _empty(_enter(parent, leaf), name)
                os.rmdir(leaf, dir_fd=parent)
        finally:
            os.close(parent)
    return {"ok": True}, b""


class _Level:
    """A directory on the way down: who it is, its name in the one above, what is left to descend into."""

    __slots__ = ("identity", "left", "name", "rounds")

    def __init__(self, name: bytes, directory: int) -> None:
        status = os.fstat(directory)
        self.name = name
        self.identity = (status.st_dev, status.st_ino)
        self.left: list[bytes] = []
        self.rounds = 0


def _empty(here: int, name: bytes, spared: tuple[bytes, ...] = ()) -> None:
    """Remove everything in the directory *here*, and close it. Holds two descriptors however deep it goes."""
    levels = [_Level(b"", here)]
    try:
        levels[0].left = _unlink_files(here, spared)
        while True:
            level = levels[-1]
            if level.left:
                child = level.left.pop()
                try:
                    below = _enter(here, child)
                except FileNotFoundError:
                    continue
                except NotADirectoryError:  # swapped for a file or a link meanwhile
                    os.unlink(child, dir_fd=here)
                    continue
                os.close(here)
                here = below
                levels.append(_Level(child, here))
                levels[-1].left = _unlink_files(here)
                continue
            if len(levels) == 1:
                return
            above = os.open(b"..", DIRECTORY, dir_fd=here)
            os.close(here)
            here = above
            levels.pop()
            _require_same(here, levels[-1], name)
            _remove_emptied(here, level, levels[-1])
    finally:
        os.close(here)


def _require_same(here: int, level: _Level, name: bytes) -> None:
    status = os.fstat(here)
    if (status.st_dev, status.st_ino) != level.identity:
        shown = text_of(name)
        raise Failure("CONFLICT", f"a directory in `{shown}` was moved while it was removed", path=shown)


def _remove_emptied(parent: int, level: _Level, above: _Level) -> None:
    try:
        os.rmdir(level.name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or above.rounds >= REMOVE_ROUNDS:
            raise
        above.rounds += 1
        above.left.append(level.name)


def _enter(parent: int, name: bytes) -> int:
    """Open a directory for removing what is in it, giving the owner the rights that takes."""
    held = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    if os.fstat(held).st_mode & 0o700 != 0o700:
        try:
            open_up(parent, name)
        except OSError as error:
            os.close(held)
            raise failure_of(error, name) from error
    return held


def _unlink_files(directory: int, spared: tuple[bytes, ...] = ()) -> list[bytes]:
    """Unlink all but directories; returns those."""
    directories = []
    readable = os.open(b".", READ_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(readable) as entries:
            found = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(readable)
    for name, is_directory in found:
        if name in spared:
            continue
        if is_directory:
            directories.append(name)
            continue
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            directories.append(name)
    return directories
