"""A system from a tar of a root file system, as other tools make them (`docker export`, mmdebstrap, debootstrap).

An archive is hostile. Names are taken apart and made one after the other beneath a descriptor; no link in it is followed, so
that nothing may lie below one; devices are refused; sizes and numbers are held to caps, and so is what a header makes us hold
in memory. What has no meaning in a box is left out: file capabilities, access lists, and other attributes but `user.`.
"""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
from typing import IO, Protocol, cast

from coldframe.contract.errors import InvalidArgument, LimitReached
from coldframe.guest.paths import MOST_LINKS, open_unlinked
from coldframe.host.layers.branch import OVERLAY, Branch, split
from coldframe.host.layers.draft import Draft, Facts
from coldframe.host.templates.debian import EPOCH_S, USER_ID
from coldframe.host.templates.sealing import MOST_LEVELS, MOST_PATH

MOST_ENTRIES = 2_000_000
MOST_BYTES = 64 * 1024**3
"""Of all files, holes included."""
_MOST_AT_ONCE = 1024 * 1024
"""Bytes that a header may be long."""
_MOST_HEADERS = 4 * 1024 * 1024
"""Bytes of all headers of one entry, its list of holes among them."""
_MOST_HELD_BYTES = 256 * 1024 * 1024
"""Of all names, and of the attributes that are given at the end."""
_PIECE_BYTES = 1024 * 1024
_MOST_USERS_BYTES = 1024 * 1024
_ATTRIBUTE = "SCHILY.xattr."
_MOST_ATTRIBUTES = 3 * 1024
"""Bytes that a file may have of them: ext4 holds one block."""
_BASH = b"bin/bash"
_NO_SERVERS = b"#!/bin/sh\nexit 101\n"
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGED = (
    *(tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, UnicodeError),
    *(lzma.LZMAError, gzip.BadGzipFile, KeyError, IndexError, AttributeError, TypeError),
)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_root(source: IO[bytes], target: str, first: tuple[int, int]) -> None:
    """Unpack into *target*, an empty directory. Its users are numbered from *first*. On any error that is rubbish.

    Raises:
        InvalidArgument: no tar, or not of a system that boxes can begin from; LimitReached: more than the caps allow.
    """
    unpacking = _Unpacking(target, first)
    try:
        content = _Forward(_unpressed(source))
        tar = tarfile.open(  # noqa: SIM115 - it holds nothing open
            fileobj=cast("IO[bytes]", content), mode="r:", encoding="utf-8", errors="surrogateescape"
        )
        while (member := content.next_of(tar)) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # else it keeps all of them
            if sum(len(key) + len(value) for key, value in tar.pax_headers.items()) > _MOST_AT_ONCE:
                raise _no_archive("it has headers that are too large")
            unpacking.take(tar, member)
        if content.last != bytes(tarfile.BLOCKSIZE):  # a header that is none is an end as well, for tarfile
            raise _no_archive("it is damaged, or cut off")
        unpacking.draft.finish()
    except _DAMAGED as error:
        if isinstance(error, InvalidArgument | LimitReached):
            raise
        raise _no_archive(f"it cannot be read: {error}") from error
    finally:
        unpacking.draft.close()
    _settle(target, first)


def _unpressed(source: IO[bytes]) -> _Readable:
    start = source.read(6)
    source.seek(0)
    if start[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=source)
    if start == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(source)
    if start[:3] == b"BZh":
        return bz2.BZ2File(source)
    if start[:4] == _ZSTD:
        try:
            from compression import zstd  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise _no_archive("this machine cannot read zstd", "give it as gzip or xz: `zstd -dc … | gzip`") from None
        return zstd.ZstdFile(source)  # type: ignore[no-any-return,unused-ignore]
    return source


class _Forward:
    """What tarfile reads from: only onwards, and never much at once, as it would for a header that says it is long."""

    def __init__(self, source: _Readable) -> None:
        self._source = source
        self._at = 0
        self._left: int | None = _MOST_HEADERS
        """Of the headers that are being read; None for what is content."""
        self.last = b""
        """What was read last."""

    def next_of(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        """The next entry. Its list of holes can be as long as the archive, and tarfile keeps all of it."""
        self._left = _MOST_HEADERS
        member = tar.next()
        self._left = None
        return member

    def read(self, size: int = -1) -> bytes:
        if self._left is not None:
            self._left -= size
        if not 0 <= size <= _MOST_AT_ONCE or (self._left is not None and self._left < 0):
            raise _no_archive("it has a header that is too large")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        pieces = []
        while size and (piece := self._source.read(size)):
            pieces.append(piece)
            size -= len(piece)
            self._at += len(piece)
        self.last = b"".join(pieces)
        return self.last

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> int:
        if offset < self._at:
            raise _no_archive("it leads back to where it has been read")
        while self._at < offset:
            if not self._read(min(offset - self._at, _PIECE_BYTES)):
                raise _no_archive("it is cut off")
        return self._at


class _Unpacking:
    def __init__(self, target: str, first: tuple[int, int]) -> None:
        self._first = first
        self._kinds: dict[bytes, bytes] = {b"": tarfile.DIRTYPE}
        self._has_top = False
        self._bytes = 0
        self._held_bytes = 0
        self.draft = Draft(target)

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = _path_of(member.name)
        kind = tarfile.REGTYPE if member.isreg() else member.type
        if path == b"":
            if kind != tarfile.DIRTYPE or self._has_top or len(self._kinds) > 1:
                raise _no_archive("its top comes late, twice, or is no directory")
        elif path in self._kinds:
            raise _no_archive(f"it has `{os.fsdecode(path)}` twice")
        if len(self._kinds) >= MOST_ENTRIES:
            raise _too_much("entries", MOST_ENTRIES)
        self._hold(len(path))
        if not self._has_top:
            self._has_top = True
            if path != b"":
                times = (EPOCH_S * 1_000_000_000,) * 2
                self.draft.directory(b"", Facts(0o755, self._first, times, {}))
        if path and self._kinds.get(split(path)[0]) != tarfile.DIRTYPE:
            raise _no_archive(
                f"it has `{os.fsdecode(path)}` below something that is no directory, or before that",
                "make it with all directories, each before what it holds, and with nothing below a link",
            )
        self._make(tar, member, path, kind)
        self._kinds[path] = kind

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        if self._held_bytes > _MOST_HELD_BYTES:
            raise _too_much("bytes of names and attributes", _MOST_HELD_BYTES)

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: bytes, kind: bytes) -> None:
        facts = self._facts(member, path)
        if kind == tarfile.DIRTYPE:
            self._hold(sum(len(name) + len(content) for name, content in facts.attributes.items()))
            self.draft.directory(path, facts)
        elif kind == tarfile.REGTYPE:
            self._make_file(tar, member, path, facts)
        elif kind == tarfile.SYMTYPE:
            link = os.fsencode(member.linkname)
            if not 0 < len(link) <= 4095 or b"\0" in link:
                raise _no_archive(f"`{os.fsdecode(path)}` is a link that no file system holds")
            self.draft.symbolic_link(path, link, facts._replace(attributes={}))
        elif kind == tarfile.FIFOTYPE:
            self.draft.special(path, stat.S_IFIFO, facts._replace(attributes={}))
        elif kind == tarfile.LNKTYPE:
            first = _path_of(member.linkname)
            if self._kinds.get(first) != tarfile.REGTYPE:
                raise _no_archive(f"`{os.fsdecode(path)}` is another name of no file that came before")
            self.draft.hard_link(path, first)
        elif kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            raise _no_archive(
                f"`{os.fsdecode(path)}` is a device",
                "leave devices out (`tar --exclude='./dev/*'`): each sandbox has those that it may have",
            )
        else:
            raise _no_archive(f"`{os.fsdecode(path)}` is of a kind that no system has: {kind!r}")

    def _make_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: bytes, facts: Facts) -> None:
        self._bytes += member.size
        if member.size < 0 or self._bytes > MOST_BYTES:
            raise _too_much("bytes", MOST_BYTES)
        content = tar.extractfile(member)
        if content is None:
            raise _no_archive(f"`{os.fsdecode(path)}` cannot be read")
        file = self.draft.open_file(path)
        try:
            left = member.size
            while left:
                piece = content.read(min(left, _PIECE_BYTES))
                if not piece:
                    raise _no_archive("it is cut off")
                left -= len(piece)
                if piece.count(0) == len(piece):
                    os.lseek(file, len(piece), os.SEEK_CUR)  # holes stay holes, and cost nothing
                    continue
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(file, rest) :]
            os.ftruncate(file, member.size)
            self.draft.finish_file(file, facts)
        finally:
            os.close(file)

    def _facts(self, member: tarfile.TarInfo, path: bytes) -> Facts:
        if not (0 <= member.uid < 65_536 and 0 <= member.gid < 65_536):
            raise _no_archive(f"`{os.fsdecode(path)}` belongs to {member.uid}:{member.gid}, and users are 0 to 65535")
        changed = max(0, min(int(member.mtime), EPOCH_S)) * 1_000_000_000
        attributes = {}
        for key, value in member.pax_headers.items():
            name = os.fsencode(key.removeprefix(_ATTRIBUTE))
            if not key.startswith(_ATTRIBUTE) or not name.startswith(b"user.") or name.startswith(OVERLAY):
                continue
            content = value.encode("utf-8", "surrogateescape")
            attributes[name] = content
            if len(name) > 255 or b"\0" in name or name == b"user.":
                raise _no_archive(f"`{os.fsdecode(path)}` has an attribute that no file system holds")
        if sum(len(name) + len(content) for name, content in attributes.items()) > _MOST_ATTRIBUTES:
            raise _no_archive(f"`{os.fsdecode(path)}` has more attributes than every file system holds")
        owner = (self._first[0] + member.uid, self._first[1] + member.gid)
        return Facts(member.mode & 0o7777, owner, (changed, changed), attributes)


def _path_of(name: str) -> bytes:
    asked = os.fsencode(name)
    parts = [part for part in asked.split(b"/") if part not in (b"", b".")]
    if asked.startswith(b"/") or b".." in parts or b"\0" in asked or any(len(part) > 255 for part in parts):
        raise _no_archive(f"it has a name that leaves its place: {name[:200]!r}")
    if len(parts) > MOST_LEVELS or len(asked) > MOST_PATH:
        raise _no_archive(f"it has a name that lies too deep: {name[:200]!r}")
    return b"/".join(parts)


def _settle(target: str, first: tuple[int, int]) -> None:
    """What boxes count on: a bash, and a name for their user. What starts servers is told not to, where dpkg would."""
    with Branch(target) as branch:
        if not _leads_to_file(branch, _BASH):
            raise _no_archive("it holds no `/bin/bash`, by which commands are run", "install bash in it first")
        top = branch.directory(b"")
        for path, line in (
            (b"etc/passwd", f"user:x:{USER_ID}:{USER_ID}::/home/user:/bin/bash\n"),
            (b"etc/group", f"user:x:{USER_ID}:\n"),
        ):
            _name_user(top, path, line)
        policy = branch.status(b"usr/sbin/policy-rc.d") if _is_folder(branch, b"usr/sbin") else None
        if policy is None and _is_folder(branch, b"usr/sbin") and _is_folder(branch, b"var/lib/dpkg"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(b"policy-rc.d", flags, 0o755, dir_fd=branch.directory(b"usr/sbin"))
            try:
                os.write(file, _NO_SERVERS)
                os.fchown(file, *first)
                os.fchmod(file, 0o755)
            finally:
                os.close(file)


def _name_user(top: int, path: bytes, line: str) -> None:
    try:
        file = open_unlinked(top, path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_archive(f"it is no system: `/{os.fsdecode(path)}`: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _no_archive(f"it is no system: `/{os.fsdecode(path)}` is no file")
        text = os.pread(file, _MOST_USERS_BYTES, 0)
        rows = [row.split(b":") for row in text.splitlines()]
        if any(len(row) > 2 and (row[0] == b"user" or row[2] == b"%d" % USER_ID) for row in rows):
            return
        os.write(file, (b"" if text.endswith(b"\n") or not text else b"\n") + line.encode())
    finally:
        os.close(file)


def _is_folder(branch: Branch, path: bytes) -> bool:
    status = branch.status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _leads_to_file(branch: Branch, path: bytes) -> bool:
    """Whether there is a file, with links followed as they would be in a box."""
    ahead, trail, links = path.split(b"/")[::-1], list[bytes](), 0
    while ahead:
        name = ahead.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            trail = trail[:-1]
            continue
        status = branch.status(b"/".join([*trail, name]))
        if status is None:
            return False
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                return False
            link = branch.link_target(b"/".join([*trail, name]))
            trail = [] if link.startswith(b"/") else trail
            ahead += link.split(b"/")[::-1]
            continue
        trail.append(name)
        if not ahead:
            return stat.S_ISREG(status.st_mode)
    return False


def _no_archive(reason: str, hint: str | None = None) -> InvalidArgument:
    return InvalidArgument(
        f"the archive is no root file system that a template can be made of: {reason}",
        hint=hint or "make one with `docker export CONTAINER` or `tar --numeric-owner -C ROOT -c .`",
        argument="archive",
    )


def _too_much(unit: str, limit: int) -> LimitReached:
    return LimitReached(f"the archive holds more than {limit:,} {unit}", kind="import", limit=limit, unit=unit)
