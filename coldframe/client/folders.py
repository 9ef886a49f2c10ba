"""A local folder as one tar archive and back. What is unpacked comes out of a sandbox, and is hostile.

Archives are in the POSIX format, as GNU tar writes it too: long names, times to the nanosecond, and files with holes as
their data alone. An archive is looked through before anything of it is made, and unpacked beside its target into a folder
that nobody else may enter, which then is renamed: what is refused, or breaks off, leaves nothing.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from coldframe.contract.errors import Conflict, InvalidArgument, OutsideWorkspace, Unfit

COPY_BYTES = 1024 * 1024
BLOCK_BYTES = 512
MOST_ENTRIES = 1_000_000
"""Of an archive that is unpacked; its names are held in memory."""


def check_folder_name(path: str) -> str:
    """Return *path* relative to the workspace, without `.` and doubled slashes.

    Raises:
        OutsideWorkspace: it is absolute or climbs.
        InvalidArgument: it is the workspace itself.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise OutsideWorkspace(f"`{path}` is no path below the workspace", path=path)
    if not parts or "\0" in path:
        raise InvalidArgument("name a folder below the workspace", argument="path")
    return "/".join(parts)


@contextmanager
def pack_folder(folder: str) -> Iterator[str]:
    """The path of an archive of *folder*, which is gone afterwards. Links stand for themselves.

    Raises:
        Unfit: it holds a device, a socket or a pipe.
        OSError: of reading.
    """
    if not os.path.isdir(folder):
        raise InvalidArgument(f"`{folder}` is no folder", argument="local")
    with tempfile.NamedTemporaryFile(prefix="coldframe-folder-") as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.dereference = False
            for path in _walk(folder):
                _add(archive, path, os.path.relpath(path, folder))
        packed.flush()
        yield packed.name


def _walk(folder: str) -> Iterator[str]:
    yield folder
    for above, folders, files in os.walk(folder, onerror=_fail):
        folders.sort()
        for name in sorted(folders + files):
            yield os.path.join(above, name)


def _fail(error: OSError) -> None:
    raise error


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    info = archive.gettarinfo(path, arcname=name)
    if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        raise Unfit(f"`{path}` is no file, folder or link", hint="leave it out of what is sent")
    status = os.lstat(path)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.pax_headers = {"mtime": f"{status.st_mtime_ns // 10**9}.{status.st_mtime_ns % 10**9:09d}"}
    if not info.isreg():
        archive.addfile(info)
        return
    with open(path, "rb") as file:
        ranges = _data_ranges(file.fileno(), status.st_size) if status.st_blocks * 512 < status.st_size else None
        if ranges is None:
            archive.addfile(info, file)
            return
        numbers = [len(ranges), *(number for one in ranges for number in one)]
        table = "".join(f"{number}\n" for number in numbers).encode()
        table += bytes(-len(table) % BLOCK_BYTES)
        info.size = len(table) + sum(length for _, length in ranges)
        info.pax_headers |= {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": name,
            "GNU.sparse.realsize": str(status.st_size),
        }
        archive.addfile(info, _Holed(file, table, ranges))


class _Holed(io.RawIOBase):
    """A table of ranges, and then what is in them, one after the other."""

    def __init__(self, file: io.BufferedReader, table: bytes, ranges: list[tuple[int, int]]) -> None:
        self._file = file
        self._table = table
        self._ranges = ranges[::-1]

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._table:
            size = min(len(buffer), len(self._table))
            buffer[:size], self._table = self._table[:size], self._table[size:]
            return size
        while self._ranges:
            start, length = self._ranges.pop()
            if not length:
                continue
            size = min(len(buffer), length)
            self._file.seek(start)
            data = self._file.read(size)
            buffer[: len(data)] = data
            if data and len(data) < length:
                self._ranges.append((start + len(data), length - len(data)))
            return len(data)
        return 0

    def read(self, size: int = -1) -> bytes:
        """As many as asked for, unless the file ends."""
        found = bytearray()
        while len(found) < size:
            piece = bytearray(size - len(found))
            got = self.readinto(memoryview(piece))
            if not got:
                break
            found += piece[:got]
        return bytes(found)


def _data_ranges(file: int, size: int) -> list[tuple[int, int]]:
    """Where a file has data, the end of the file as an empty range at least."""
    ranges = []
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        at = os.lseek(file, start, os.SEEK_HOLE)
        ranges.append((start, min(at, size) - start))
    os.lseek(file, 0, os.SEEK_SET)
    if not ranges or sum(ranges[-1]) < size:
        ranges.append((size, 0))
    return ranges


# -- unpacking -----------------------------------------------------------------------------------------------


def unpack_folder(packed: str, target: str, *, skip_foreign_links: bool = False) -> list[str]:
    """Make the folder *target* of an archive that is not trusted; the links that were left out.

    Raises:
        Unfit: the archive is damaged, or holds what is refused.
        Conflict: there is something at *target*.
    """
    above = os.path.dirname(os.path.abspath(target))
    stage = tempfile.mkdtemp(prefix=".coldframe-folder-", dir=above)
    try:
        with tarfile.open(packed, mode="r:") as archive:
            members, skipped = _looked_through(archive, skip_foreign_links=skip_foreign_links)
            inner = os.path.join(stage, "folder")
            os.mkdir(inner, 0o700)
            _make(archive, members, inner)
        if os.path.lexists(target):
            raise Conflict(f"`{target}` exists", hint="name another place, or remove it first")
        os.rename(inner, target)
        if "" in members:
            os.chmod(target, stat.S_IMODE(members[""].mode) & 0o777)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise Unfit(f"the archive is damaged: {error}", hint="nothing was made; try again") from error
    finally:
        _remove(stage)
    return skipped


def _looked_through(
    archive: tarfile.TarFile, *, skip_foreign_links: bool
) -> tuple[dict[str, tarfile.TarInfo], list[str]]:
    members: dict[str, tarfile.TarInfo] = {}
    skipped = []
    for member in archive:
        name = _inner_name(member.name)
        if name in members or len(members) >= MOST_ENTRIES:
            raise _refused(member.name, "comes twice" if name in members else "is one too many")
        above = members.get(posixpath.dirname(name)) if "/" in name else None
        if "/" in name and (above is None or not above.isdir()):
            raise _refused(member.name, "lies in no folder of the archive")
        if member.issym():
            if member.linkname.startswith("/") or _climbs(posixpath.dirname(name), member.linkname):
                if not skip_foreign_links:
                    raise _refused(member.name, f"is a link out of it, to {member.linkname}")
                skipped.append(name)
                continue
        elif member.islnk():
            first = members.get(_inner_name(member.linkname))
            if first is None or not first.isreg():
                raise _refused(member.name, "is another name of what is no file of the archive")
        elif not (member.isreg() or member.isdir()):
            raise _refused(member.name, "is no file, folder or link")
        members[name] = member
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(BLOCK_BYTES) != bytes(BLOCK_BYTES):
        raise tarfile.ReadError("it ends too early")  # which `tarfile` takes for its end
    return members, skipped


def _inner_name(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _refused(name, "leaves the folder")
    return "/".join(parts)


def _climbs(above: str, link: str) -> bool:
    depth = len([part for part in above.split("/") if part])
    for part in link.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def _refused(name: str, why: str) -> Unfit:
    return Unfit(
        f"`{name[:300]}` of the folder {why}",
        hint="nothing was made; take it out of the folder, or have links that point elsewhere left out",
        path=name[:1000],
    )


def _make(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], inner: str) -> None:
    """Files and folders first, links last, so that nothing is ever made behind one; modes and times of folders at the end."""
    for name, member in members.items():
        path = os.path.join(inner, name) if name else inner
        if member.isdir() and name:
            os.mkdir(path, 0o700)
        elif member.isreg():
            content = archive.extractfile(member)
            assert content is not None
            with open(path, "xb") as file:
                _copy_data(content, file, member)
            os.chmod(path, stat.S_IMODE(member.mode) & 0o777)
            _date(path, member)
    for name, member in members.items():
        if member.islnk():
            os.link(os.path.join(inner, _inner_name(member.linkname)), os.path.join(inner, name), follow_symlinks=False)
    for name, member in members.items():
        if member.issym():
            os.symlink(member.linkname, os.path.join(inner, name))
            _date(os.path.join(inner, name), member)
    for name, member in reversed(members.items()):
        if member.isdir():
            path = os.path.join(inner, name) if name else inner
            if name:  # the folder itself is renamed first, which its owner may need to write to it for
                os.chmod(path, stat.S_IMODE(member.mode) & 0o777)
            _date(path, member)


def _copy_data(content: IO[bytes], file: io.BufferedWriter, member: tarfile.TarInfo) -> None:
    sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
    ranges = [(0, member.size)] if sparse is None else sparse
    for start, length in ranges:
        content.seek(start)
        file.seek(start)
        while length > 0:
            piece = content.read(min(COPY_BYTES, length))
            if not piece:
                raise tarfile.ReadError("it ends too early")
            file.write(piece)
            length -= len(piece)
    file.truncate(member.size)


def _date(path: str, member: tarfile.TarInfo) -> None:
    text = member.pax_headers.get("mtime", "")
    whole, _, part = text.partition(".")
    at_ns = int(whole) * 10**9 + int(f"{part:0<9}"[:9]) if whole.isdigit() else int(member.mtime * 10**9)
    os.utime(path, ns=(at_ns, at_ns), follow_symlinks=False)


def _remove(stage: str) -> None:
    for above, folders, _ in os.walk(stage):  # those that are not to be written to are opened up first
        for name in folders:
            if not os.path.islink(os.path.join(above, name)):
                os.chmod(os.path.join(above, name), 0o700)
    shutil.rmtree(stage, ignore_errors=True)
