"""Reading and writing files of the workspace: bytes in, bytes out, old content or new but never a mix.

A write goes to a temporary file beside its target and is renamed over it. So a killed write leaves the
old file (and a name that begins with `.coldframe-write-`), a reader never sees half of it, and another
name of the same file (a hard link) keeps the old content. A file without write permission is refused
although renaming over it would work: the caller asked for what the shell's `>` may do. Nothing is
synced to disk; the workspace survives this process, not a power cut.
"""

import errno
import hashlib
import os
import stat
from typing import Any

import coldframe.guest.trees  # noqa: F401  registers list, remove and make, so that one import has all file verbs
from coldframe.guest.edits import EDIT_CAP_BYTES, apply_edits
from coldframe.guest.facts import Named, failure_of, require_regular, text_of, version_of
from coldframe.guest.frames import Body
from coldframe.guest.paths import (
    drop_directories,
    follow_links,
    make_directories,
    open_beneath,
    open_parent,
    open_unlinked,
    read_name,
    rename_new,
    require_writable,
)
from coldframe.guest.verbs import Answer, Failure, verb

MOST_PIECES = 8
READ_CAP_BYTES = 64 * 1024 * 1024
"""Most bytes of one answer, and of a replaced file that is still digested."""

TEMPORARY_PREFIX = b".coldframe-write-"
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
DIGESTED_BYTES = 1 << 18
"""At once: what was just read is still in the cache of the processor."""

_open_writers: set[bytes] = set()


def temporary_names() -> frozenset[bytes]:
    """Names of the temporary files that this process is writing now; a manifest leaves them out."""
    return frozenset(_open_writers)


# -- reading ---------------------------------------------------------------------------------------


@verb("read_file")
def read_file(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ReadFile. Special files are recognised before they are opened, so nothing blocks or is drained."""
    answer, held, place, wanted = open_range(root, request)
    try:
        with Named(answer["path"].encode("utf-8", "surrogateescape")):
            found = read_range(held, place, wanted)
    finally:
        os.close(held)
    answer["complete"] = answer["offset"] == 0 and len(found) == answer["total_bytes"]
    return answer, found


def open_range(root: int, request: dict[str, Any]) -> tuple[dict[str, Any], int, int, int]:
    """The answer to a ReadFile but for what is there, with a descriptor, the place in it and how many bytes are wanted."""
    name = read_name(root, request["path"])
    with Named(name):
        held = open_regular(root, name)
        try:
            status = os.fstat(held)
            version = version_of(status)
            if request.get("if_version") not in (None, version):
                raise _changed(name, version)
            offset: int = request.get("offset", 0)
            rest = max(0, status.st_size - offset)
            asked = request.get("length")
            wanted = rest if asked is None else min(asked, rest)
            if wanted > READ_CAP_BYTES:
                raise Failure(
                    "TOO_LARGE",
                    f"{wanted} bytes of `{text_of(name)}` are more than one answer holds; read ranges",
                    path=text_of(name),
                    size=status.st_size,
                    limit=READ_CAP_BYTES,
                )
        except BaseException:
            os.close(held)
            raise
    answer = {
        "path": text_of(name),
        "offset": offset,
        "total_bytes": status.st_size,
        "version": version,
        "mode": stat.S_IMODE(status.st_mode),
    }
    return answer, held, min(offset, status.st_size), wanted  # nothing is behind the end, however far


def open_regular(root: int, name: bytes) -> int:
    """Descriptor for reading a regular file, links followed. Refuses everything else."""
    looked = open_beneath(root, name, os.O_PATH)
    try:
        require_regular(os.fstat(looked), name)
    finally:
        os.close(looked)
    held = open_beneath(root, name, READ)
    try:
        require_regular(os.fstat(held), name)  # again: another file may have taken the name
    except Failure:
        os.close(held)
        raise
    return held


def read_range(held: int, offset: int, length: int) -> bytes:
    """At most *length* bytes, however long the file grows meanwhile. A disk gives them at once: of a file that is cut short and
    written on in small pieces no more than a few are waited for, or whoever writes would hold the reader for as long as he likes."""
    pieces = [os.pread(held, length, offset)]
    there = len(pieces[0])
    while there < length and len(pieces) < MOST_PIECES and (piece := os.pread(held, length - there, offset + there)):
        pieces.append(piece)
        there += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def digest_file(held: int, length: int) -> tuple[str, int]:
    """SHA-256 of at most *length* bytes from the beginning, and of how many. They are read to the same memory each time."""
    digest, buffer, at = hashlib.sha256(), bytearray(min(length, DIGESTED_BYTES)), 0
    with memoryview(buffer) as room:
        while at < length and (count := os.preadv(held, (room[: length - at],), at)):
            digest.update(room[:count])
            at += count
    return digest.hexdigest(), at


def _changed(name: bytes, version: str | None) -> Failure:
    what = "changed since it was read" if version else "is not there any more"
    return Failure("CONFLICT", f"`{text_of(name)}` {what}", path=text_of(name), version=version)


# -- writing ---------------------------------------------------------------------------------------


class FileWriter:
    """One file being written. Takes its target in hand at once, so that a refusal comes before the bytes.

    `write` any number of times, then `commit` or `abort`; `abort` may be called at any time and again.

    Raises:
        Failure: from the constructor and from `commit`, by code; from `write` LIMIT_DISK alone.
    """

    def __init__(self, root: int, request: dict[str, Any]) -> None:
        self._root = root
        self._asked: str = request["path"]
        self._if_version: str | None = request.get("if_version")
        self._create_only: bool = request.get("create_only", False)
        self._sha256: str | None = request.get("sha256")
        self._name = read_name(root, self._asked)
        self._made: list[bytes] = []
        self._parent = self._file = -1
        self._temporary = b""
        self._digest = hashlib.sha256()
        self._size = 0
        if not self._name or self._asked.endswith("/"):
            raise Failure("IS_A_DIRECTORY", f"`{self._asked or '.'}` names a directory", path=text_of(self._name))
        try:
            with Named(self._name):
                self._prepare(request.get("mode"))
                for name, value in request.get("attributes", {}).items():
                    os.setxattr(self._file, name, value)
        except BaseException:
            self.abort()
            raise

    def _prepare(self, mode: int | None) -> None:
        above = self._name.rpartition(b"/")[0]
        try:
            self._parent, self._leaf = open_parent(self._root, self._name)
        except FileNotFoundError:
            self._made = make_directories(self._root, above)
            self._parent, self._leaf = open_parent(self._root, self._name)
        before = self._present()
        if before is not None and stat.S_ISLNK(before.st_mode):
            self._follow()
            before = self._present()
        if before is not None:
            require_regular(before, self._name)
        self._check(before)
        if before is not None:
            self._require_writable()
        self._temporary = TEMPORARY_PREFIX + os.urandom(8).hex().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file = os.open(self._temporary, flags, 0o600, dir_fd=self._parent)
        _open_writers.add(self._temporary)
        made = os.fstat(self._file)
        if before is not None and (before.st_uid, before.st_gid) != (made.st_uid, made.st_gid):
            os.fchown(self._file, before.st_uid, before.st_gid)
        if mode is None:
            mode = 0o644 if before is None else stat.S_IMODE(before.st_mode)
        os.fchmod(self._file, mode & 0o7777)

    def _follow(self) -> None:
        """Take the file that a link names as the target, so that the link stays."""
        name = follow_links(self._root, self._name)
        above, _, leaf = name.rpartition(b"/")
        try:
            parent = open_unlinked(self._root, above, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            self._made += make_directories(self._root, above)
            parent = open_unlinked(self._root, above, os.O_PATH | os.O_DIRECTORY)
        os.close(self._parent)
        self._parent, self._leaf = parent, leaf

    def _present(self) -> os.stat_result | None:
        try:
            return os.stat(self._leaf, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _check(self, present: os.stat_result | None) -> None:
        if self._create_only and present is not None:
            raise failure_of(FileExistsError(errno.EEXIST, ""), self._name)
        if self._if_version is not None:
            version = None if present is None else version_of(present)
            if version != self._if_version:
                raise _changed(self._name, version)

    def _require_writable(self) -> None:
        held = os.open(self._leaf, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._parent)
        try:
            require_regular(os.fstat(held), self._name)
            require_writable(held)
        finally:
            os.close(held)

    def write(self, content: Body) -> None:
        """Add bytes. On failure everything is taken back."""
        if self._file < 0:
            raise Failure("WRONG_STATE", f"the writing of `{self._asked}` has ended", path=text_of(self._name))
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self.abort()
            raise failure_of(error, self._name) from error
        self._digest.update(content)
        self._size += len(content)

    def commit(self) -> dict[str, Any]:
        """Put the new file in place and return a WriteAnswer."""
        if self._file < 0:
            raise Failure("WRONG_STATE", f"the writing of `{self._asked}` has ended", path=text_of(self._name))
        try:
            with Named(self._name):
                return self._put_in_place()
        finally:
            self.abort()

    def _put_in_place(self) -> dict[str, Any]:
        if self._sha256 not in (None, self._digest.hexdigest()):
            raise Failure(
                "INVALID_ARGUMENT",
                f"what arrived for `{text_of(self._name)}` has another digest than it should: nothing was changed",
                argument="sha256",
                sha256=self._digest.hexdigest(),
                bytes=self._size,
            )
        present = self._present()
        digest_before = None if present is None else self._digest_present(present)
        written = os.fstat(self._file)
        self._check(self._present())
        if self._create_only:
            rename_new(self._parent, self._temporary, self._parent, self._leaf)
        else:
            os.rename(self._temporary, self._leaf, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._forget_temporary()
        self._made = []
        placed = os.fstat(self._file)
        touched = (placed.st_size, placed.st_mtime_ns) != (written.st_size, written.st_mtime_ns)
        return {
            "path": text_of(self._name),
            "bytes_written": self._size,
            "created": present is None,
            # If a command wrote to it already, give a token that conflicts: what is there now is not what was sent.
            "version": version_of(written if touched else placed),
            "sha256": self._digest.hexdigest(),
            "sha256_before": digest_before,
        }

    def _digest_present(self, present: os.stat_result) -> str | None:
        if not stat.S_ISREG(present.st_mode) or present.st_size > READ_CAP_BYTES:
            return None
        try:
            held = os.open(self._leaf, READ | os.O_NOFOLLOW, dir_fd=self._parent)
        except OSError:
            return None  # writable but not readable, or just gone
        try:
            return digest_file(held, present.st_size)[0]
        finally:
            os.close(held)

    def _forget_temporary(self) -> None:
        _open_writers.discard(self._temporary)
        self._temporary = b""

    def abort(self) -> None:
        """Leave everything as it was before, and free what is held."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._temporary:
            try:
                os.unlink(self._temporary, dir_fd=self._parent)
            except OSError:
                pass  # a command took it away, or it was never made
            self._forget_temporary()
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1
        drop_directories(self._root, self._made)
        self._made = []


@verb("write_file")
def write_file(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a WriteFile whose content came whole."""
    writer = FileWriter(root, request)
    writer.write(content)
    return writer.commit(), b""


# -- editing ---------------------------------------------------------------------------------------


@verb("edit_file")
def edit_file(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer an EditFile. A file that a command changes meanwhile is edited once more as it then is."""
    try:
        return _edit(root, request)
    except Failure as failure:
        if failure.code != "CONFLICT" or request.get("if_version") is not None:
            raise
    return _edit(root, request)


def _edit(root: int, request: dict[str, Any]) -> Answer:
    name = read_name(root, request["path"])
    with Named(name):
        held = open_regular(root, name)
        try:
            status = os.fstat(held)
            if status.st_size > EDIT_CAP_BYTES:
                raise Failure(
                    "TOO_LARGE",
                    f"`{text_of(name)}` has {status.st_size} bytes, more than can be edited",
                    path=text_of(name),
                    size=status.st_size,
                    limit=EDIT_CAP_BYTES,
                )
            version = version_of(status)
            if request.get("if_version") not in (None, version):
                raise _changed(name, version)
            before = read_range(held, 0, status.st_size)
        finally:
            os.close(held)
    after, replacements = apply_edits(before, request["edits"], text_of(name))
    writer = FileWriter(root, {"path": request["path"], "if_version": version})
    writer.write(after)
    written = writer.commit()
    answer = {
        "path": written["path"],
        "replacements": replacements,
        "bytes_written": written["bytes_written"],
        "version": written["version"],
        "sha256": written["sha256"],
        "sha256_before": hashlib.sha256(before).hexdigest(),
    }
    return answer, after
