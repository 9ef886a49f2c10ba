"""Files anywhere in the box, by absolute paths: looked at, listed, read, written, made, moved and removed.

The keeper has joined the box's mounts, so what it opens is what a command of the same user would open, and the kernel alone
says what that user may. Whoever is asked for as another user is served in a child that becomes that user first. Nothing of
the machine is mounted there that a command does not see as well; /proc, in which the keeper would find itself, is left out
(`BoxRoot`). The workspace is part of the box: it is reached by its place there.

Names of users are read from the box's own /etc/passwd and /etc/group by hand, since the C library would load what the box
has told it to.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from coldframe.guest.facts import Named, failure_of, kind_of, text_of, time_of, version_of
from coldframe.guest.files import FileWriter, open_range, read_file
from coldframe.guest.frames import Body
from coldframe.guest.paths import (
    DIRECTORY,
    BoxRoot,
    drop_directories,
    follow_links,
    make_directories,
    open_beneath,
    open_parent,
    open_unlinked,
    read_name,
    rename_new,
)
from coldframe.guest.trees import list_directory, remove_path
from coldframe.guest.verbs import Answer, Failure, verb

METADATA = b"user.e2b."
"""Extended attributes of this prefix are what a caller noted of a file."""
MOST_METADATA_BYTES = 16 * 1024
"""Of one file; commands may note more, of which only so much is told."""
MOST_NOTES_BYTES = 8 * 1024 * 1024
"""Of all files in one answer, with where links among them lead."""
MOST_USERS_BYTES = 1024 * 1024
COPY_BYTES = 1024 * 1024


@contextmanager
def absolute() -> Iterator[None]:
    """What is refused inside tells its path as the caller knows it: from the root on."""
    try:
        yield
    except Failure as failure:
        told = failure.facts.get("path")
        if isinstance(told, str) and not told.startswith("/"):
            failure.facts["path"] = f"/{told}"
            failure.message = failure.message.replace(f"`{told or '.'}`", f"`/{told}`", 1)
        raise


def from_root(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


# -- looking ---------------------------------------------------------------------------------------


class Users:
    """Names of users and groups as the box has them, read once they are asked for."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._read: dict[bytes, dict[int, str]] = {}

    def owner(self, uid: int) -> str:
        return self._names(b"etc/passwd").get(uid, str(uid))

    def group(self, gid: int) -> str:
        return self._names(b"etc/group").get(gid, str(gid))

    def _names(self, table: bytes) -> dict[int, str]:
        if table not in self._read:
            self._read[table] = dict(self._lines(table))
        return self._read[table]

    def _lines(self, table: bytes) -> Iterator[tuple[int, str]]:
        try:
            held = open_beneath(self._root, table, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, Failure):
            return
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                return
            text = os.pread(held, MOST_USERS_BYTES, 0)
        finally:
            os.close(held)
        for line in reversed(text.splitlines()):  # the first of a number counts
            parts = line.split(b":")
            if len(parts) > 2 and parts[2].isdigit() and len(parts[2]) < 11:
                yield int(parts[2]), text_of(parts[0])[:64]


def describe(
    root: int, name: bytes, users: Users, *, parent: int, leaf: bytes, status: os.stat_result | None = None
) -> dict[str, Any]:
    """Fields of a PathInfo for *leaf* in the open directory *parent*, which is at *name*. Raises OSError."""
    if status is None:
        status = os.stat(leaf or b".", dir_fd=parent, follow_symlinks=False)
    target = os.readlink(leaf, dir_fd=parent) if stat.S_ISLNK(status.st_mode) else None
    regular = stat.S_ISREG(status.st_mode)
    told = {
        "path": from_root(text_of(name)),
        "name": text_of(leaf) or "/",
        "kind": kind_of(status.st_mode),
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "modified_at": time_of(status.st_mtime_ns),
        "target": None if target is None else text_of(target),
        "version": version_of(status) if regular else None,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "owner": users.owner(status.st_uid),
        "group": users.group(status.st_gid),
        "accessed_at": time_of(status.st_atime_ns),
        "changed_at": time_of(status.st_ctime_ns),
        "metadata": read_metadata(parent, leaf) if target is None else {},
        "leads_to": None,
        "leads_to_kind": None,
    }
    if target is not None:
        _follow(root, name, told)
    return told


def _follow(root: int, name: bytes, told: dict[str, Any]) -> None:
    try:
        place = follow_links(root, name)
        held = open_unlinked(root, place, os.O_PATH)
    except (OSError, Failure):
        return  # to nothing, in a circle, or where its user may not look
    try:
        told.update(leads_to=from_root(text_of(place)), leads_to_kind=kind_of(os.fstat(held).st_mode))
    finally:
        os.close(held)


def read_metadata(parent: int, leaf: bytes) -> dict[str, str]:
    """What was noted of *leaf*, up to MOST_METADATA_BYTES; nothing where the file system keeps no such thing. The working directory
    is back at the root."""
    try:
        os.fchdir(parent)  # there is no call that takes a descriptor and a name
    except OSError:
        return {}
    place = b"./" + leaf
    found: dict[str, str] = {}
    size = 0
    try:
        for name in os.listxattr(place, follow_symlinks=False):
            if os.fsencode(name).startswith(METADATA):
                value = os.getxattr(place, name, follow_symlinks=False)
                size += len(os.fsencode(name)) + len(value)
                if size > MOST_METADATA_BYTES:
                    break
                found[os.fsencode(name)[len(METADATA) :].decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    except OSError:  # it keeps none, or the file is gone or another
        pass
    finally:
        os.chdir("/")
    return found


def notes_bytes(told: dict[str, Any]) -> int:
    """What its metadata and, of a link, its places add to an answer, about."""
    places = len(told["target"] or "") + len(told["leads_to"] or "")
    return places + sum(len(name) + len(value) for name, value in told["metadata"].items())


@verb("stat_path", anywhere=True)
def stat_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a StatPath. A link is looked at itself; where it leads is told beside."""
    with absolute():
        name = read_name(root, request["path"])
        with Named(name):
            return _described(root, name), b""


def _described(root: int, name: bytes) -> dict[str, Any]:
    parent, leaf = open_parent(root, name)
    try:
        status = os.stat(leaf or b".", dir_fd=parent, follow_symlinks=False)
        return describe(root, name, Users(root), parent=parent, leaf=leaf, status=status)
    finally:
        os.close(parent)


@verb("list_path", slow=True, anywhere=True)
def list_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ListPath: as ListDirectory, with what StatPath tells of each entry, as far as their metadata fit into one answer."""
    with absolute():
        answer, _ = list_directory(root, request, content)
        users, size = Users(root), 0
        described: list[dict[str, Any]] = []
        for entry in sorted(answer["entries"], key=lambda entry: _bytes(entry["path"])):  # as pages go on
            if size > MOST_NOTES_BYTES:
                last = None if request.get("recursive", False) else described[-1]["name"]
                answer.update(complete=False, truncated_because="max_entries", next_after=last)
                break
            name = _bytes(entry["path"])
            try:
                parent, leaf = open_parent(root, name)
                try:
                    described.append(describe(root, name, users, parent=parent, leaf=leaf))
                    size += notes_bytes(described[-1])
                finally:
                    os.close(parent)
            except (OSError, Failure):
                continue  # gone meanwhile
        answer["errors"] = [(from_root(path), reason) for path, reason in answer["errors"]]
        described.sort(key=lambda entry: str(entry["path"]))
        return {**answer, "path": from_root(answer["path"]), "entries": described}, b""


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


# -- content ---------------------------------------------------------------------------------------


@verb("read_path", anywhere=True)
def read_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ReadPath."""
    with absolute():
        answer, found = read_file(root, request, content)
    return {**answer, "path": from_root(answer["path"])}, found


def open_path_range(root: int, request: dict[str, Any]) -> tuple[dict[str, Any], int, int, int]:
    """As `open_range`, for a ReadPath."""
    with absolute():
        answer, held, place, wanted = open_range(root, request)
    return {**answer, "path": from_root(answer["path"])}, held, place, wanted


class PathWriter:
    """A FileWriter anywhere in the box, which notes what the caller has to say of the file."""

    def __init__(self, root: int, request: dict[str, Any]) -> None:
        noted = checked_metadata(request.get("metadata") or {})
        with absolute():
            self._writer = FileWriter(root, {**request, "attributes": noted})

    def write(self, content: Body) -> None:
        with absolute():
            self._writer.write(content)

    def commit(self) -> dict[str, Any]:
        with absolute():
            answer = self._writer.commit()
        return {**answer, "path": from_root(answer["path"])}

    def abort(self) -> None:
        self._writer.abort()


def checked_metadata(metadata: dict[str, Any]) -> dict[bytes, bytes]:
    """As extended attributes. Raises Failure for what none can hold."""
    noted = {METADATA + _bytes(name): _bytes(value) for name, value in metadata.items()}
    if sum(len(name) + len(value) for name, value in noted.items()) > MOST_METADATA_BYTES:
        raise Failure(
            "TOO_LARGE", f"what is noted of a file has more than {MOST_METADATA_BYTES} bytes", limit=MOST_METADATA_BYTES
        )
    if any(len(name) > 255 or len(name) == len(METADATA) or b"\0" in name for name in noted):
        raise Failure("INVALID_ARGUMENT", "a name in `metadata` is empty, too long or holds a NUL", argument="metadata")
    return noted


class Spool:
    """Content for a writer that is another process, since it is another user: kept without a name until it is whole."""

    def __init__(self, root: int, request: dict[str, Any]) -> None:
        self.request = request
        self.file = os.open(b".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=root)

    def write(self, content: Body) -> None:
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self.file, rest) :]
        except OSError as error:
            self.abort()
            raise failure_of(error, _bytes(self.request["path"])) from error

    def abort(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


@verb("write_path", anywhere=True)
def write_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a WritePath whose content came whole."""
    return write_pieces(root, request, iter((content,)))


def write_spooled(root: int, request: dict[str, Any], file: int) -> Answer:
    """The same with what a Spool holds."""

    def pieces() -> Iterator[bytes]:
        place = 0
        while piece := os.pread(file, COPY_BYTES, place):
            place += len(piece)
            yield piece

    return write_pieces(root, request, pieces())


def write_pieces(root: int, request: dict[str, Any], pieces: Iterator[bytes]) -> Answer:
    writer = PathWriter(root, request)
    try:
        for piece in pieces:
            writer.write(piece)
    except BaseException:
        writer.abort()
        raise
    return writer.commit(), b""


# -- places ----------------------------------------------------------------------------------------


@verb("make_path", anywhere=True)
def make_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a MakePath: its parents are made as well, and whether it was there is told."""
    with absolute():
        name = read_name(root, request["path"])
        with Named(name):
            made = make_directories(root, name)
            os.close(open_beneath(root, name, DIRECTORY))
            return {"created": bool(made), "info": _described(root, name)}, b""


@verb("move_path", slow=True, anywhere=True)
def move_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a MovePath. In one step where both places are on one file system; a file goes to another by a copy."""
    with absolute():
        source, target = read_name(root, request["path"]), read_name(root, request["target"])
        if not source or not target:
            raise Failure("INVALID_ARGUMENT", "the root of the box stays where it is", argument="path")
        with Named(source):
            parent, leaf = open_parent(root, source)
            try:
                status = os.stat(leaf, dir_fd=parent, follow_symlinks=False)
                with Named(target):
                    _move(root, parent, leaf, status, target, only_new=not request.get("replace", True))
            finally:
                os.close(parent)
        with Named(target):
            return {"info": _described(root, target)}, b""


def _move(root: int, parent: int, leaf: bytes, status: os.stat_result, target: bytes, *, only_new: bool) -> None:
    made = make_directories(root, target.rpartition(b"/")[0])
    above, name = open_parent(root, target)
    try:
        if only_new and _is_there(above, name):  # also where it would be moved onto itself
            raise failure_of(FileExistsError(errno.EEXIST, ""), target)
        rename = rename_new if only_new else _rename
        try:
            rename(parent, leaf, above, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if not stat.S_ISREG(status.st_mode):
                message = f"`/{text_of(target)}` is on another file system, to which only a file is moved"
                raise Failure("CONFLICT", message, path=text_of(target)) from error
            _copy_over(parent, leaf, status, above, name, rename)
            os.unlink(leaf, dir_fd=parent)
    except BaseException:
        drop_directories(root, made)
        raise
    finally:
        os.close(above)


def _rename(parent: int, leaf: bytes, above: int, name: bytes) -> None:
    os.rename(leaf, name, src_dir_fd=parent, dst_dir_fd=above)


def _is_there(parent: int, leaf: bytes) -> bool:
    try:
        os.stat(leaf, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy_over(
    parent: int,
    leaf: bytes,
    status: os.stat_result,
    above: int,
    name: bytes,
    rename: Callable[[int, bytes, int, bytes], None],
) -> None:
    """To another file system, whole or not at all."""
    source = os.open(leaf, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    draft = b".coldframe-write-" + os.urandom(8).hex().encode()
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise Failure("CONFLICT", "the file became something else while it was moved")
        held = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=above)
        try:
            place = 0
            while piece := os.pread(source, COPY_BYTES, place):
                place += len(piece)
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(held, rest) :]
            os.fchmod(held, stat.S_IMODE(status.st_mode))
            for attribute in os.listxattr(source):
                if os.fsencode(attribute).startswith(METADATA):
                    os.setxattr(held, attribute, os.getxattr(source, attribute))
            os.utime(held, ns=(status.st_atime_ns, status.st_mtime_ns))
            rename(above, draft, above, name)
        except BaseException:
            os.unlink(draft, dir_fd=above)
            raise
        finally:
            os.close(held)
    finally:
        os.close(source)


@verb("remove_box_path", slow=True, anywhere=True)
def remove_box_path(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a RemoveAny. The root of the box, and what it has mounted, are left."""
    with absolute():
        if not read_name(root, request["path"]):
            raise Failure("INVALID_ARGUMENT", "the root of the box cannot be removed", argument="path")
        return remove_path(root, {**request, "contents_only": False}, content)


def open_root() -> BoxRoot:
    """Descriptor of the root of the box that this process is in."""
    return BoxRoot(os.open(b"/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
