"""A point of time as one tar file, and back: for another installation, or for a backup.

`coldframe.json` says what it is, `files/` holds the tree as it looks (not layer by layer), `manifest.jsonl` at the end
has every name with its digest: at the end, so that nothing is read twice. An import makes its own manifest of what it
wrote and compares. What has no place in a file is left out: owners (all belongs to whoever imports it), sockets, and
attributes that are not the programs' own (`user.`): file capabilities and access lists name users of this machine.

An archive is hostile: its names are taken apart, made one after the other beneath a descriptor, and no link in it is
ever followed. A symbolic link may point anywhere, since that is a thing of the box's: `python` of a virtual environment
points to /usr/bin.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Collection
from typing import NamedTuple

from coldframe.contract.errors import LimitReached, SnapshotCorrupt
from coldframe.host.layers import tape
from coldframe.host.layers.branch import MOST_LEVELS, OVERLAY, require_few, split
from coldframe.host.layers.draft import Draft, Facts, data_ranges
from coldframe.host.layers.manifest import ContentDigest, Record
from coldframe.host.layers.merged import MergedView, Place

FORMAT = 1
_HEAD, _FILES, _MANIFEST = b"coldframe.json", b"files", b"manifest.jsonl"
_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 1024 * 1024
_LARGEST_FILE = 1 << 44
"""What ext4 can hold; a hole costs nothing and says nothing."""
_LARGEST_ATTRIBUTE = 64 * 1024
_LONGEST_TARGET = 4095
_MOST_HELD_BYTES = 256 * 1024 * 1024
"""Of names, and of attributes of directories, which are kept in memory up to the end of an import."""
_TYPES = {
    stat.S_IFREG: tape.FILE,
    stat.S_IFDIR: tape.DIRECTORY,
    stat.S_IFLNK: tape.SYMBOLIC_LINK,
    stat.S_IFIFO: tape.FIFO,
}
_KINDS = {tape.FILE: "file", tape.DIRECTORY: "directory", tape.SYMBOLIC_LINK: "symlink", tape.FIFO: "fifo"}


class Contents(NamedTuple):
    """What an archive holds."""

    sha256: str
    """Of its manifest, and so of all that it holds."""
    entries: int
    data_bytes: int
    """Of files, without holes."""


class Caps(NamedTuple):
    """What an import may bring at most."""

    data_bytes: int
    entries: int


def write_archive(
    view: MergedView,
    write: Callable[[bytes], object],
    *,
    spool: str,
    label: str = "",
    without: Collection[bytes] = (),
) -> Contents:
    """Write what a view shows. *without* are paths to leave out; the manifest is kept in the directory *spool* meanwhile.

    Raises:
        SnapshotCorrupt: a file changed meanwhile, or it holds a device.
        OSError: of reading or writing.
    """
    head = json.dumps({"coldframe": FORMAT, "label": label}).encode() + b"\n"
    _write_text(write, _HEAD, head)
    with tempfile.TemporaryFile(dir=spool) as lines:
        tally = _Tally(lines.write)
        first_names: dict[tuple[int, int], bytes] = {}
        left_out = set(without)
        top = view.top()
        _write_name(view, top, write, tally, first_names)
        ahead = view.children(top)[::-1]
        while ahead:
            place = ahead.pop()
            if place.path in left_out:
                continue
            _write_name(view, place, write, tally, first_names)
            if place.is_directory:
                ahead += reversed(view.children(place))
                require_few(len(ahead))
        size = lines.tell()
        lines.seek(0)
        write(tape.head_of(tape.Member(_MANIFEST, tape.FILE, size=size, ranges=[(0, size)])))
        while piece := lines.read(_PIECE_BYTES):
            write(piece)
        write(tape.padding(size) + tape.END)
    return tally.contents()


def read_archive(
    source: tape.Source, target: str, *, owner: tuple[int, int] | None, caps: Caps, expected: str | None = None
) -> tuple[Contents, str]:
    """Unpack an archive into an empty directory; returns what it holds, and its label. On any error that is rubbish.

    Args:
        owner: whom everything is to belong to; None for this process's user.
        expected: the digest that the exporter told.

    Raises:
        SnapshotCorrupt: cut off, altered, or no export of ours.
        LimitReached: more than *caps* allow.
    """
    reader = tape.Reader(source)
    members = reader.members()
    label = _head(reader, next(members, None))
    unpacking = _Unpacking(reader, target, owner, caps)
    try:
        for member in members:
            if member.name == _MANIFEST:
                break
            unpacking.take(member)
        else:
            raise SnapshotCorrupt("the archive has no manifest")
        unpacking.compare(member)
        if next(members, None) is not None:
            raise SnapshotCorrupt("the archive goes on behind its manifest")
        contents = unpacking.tally.contents()
        if expected is not None and contents.sha256 != expected:
            raise SnapshotCorrupt("the archive is another one than was expected", sha256=contents.sha256)
        unpacking.draft.finish()
    finally:
        unpacking.draft.close()
    return contents, label


def _travels(attribute: bytes) -> bool:
    """Whether an attribute is one that a program in a box can set and read."""
    return attribute.startswith(b"user.") and not attribute.startswith(OVERLAY)


class _Tally:
    """Counts entries, and digests their lines."""

    def __init__(self, keep: Callable[[bytes], object]) -> None:
        self._keep = keep
        self._digest = hashlib.sha256()
        self.entries = 0
        self.data_bytes = 0
        self.line_bytes = 0

    def add(self, record: Record, data_bytes: int) -> None:
        line = record.line()
        self._digest.update(line)
        self._keep(line)
        self.entries += 1
        self.data_bytes += data_bytes
        self.line_bytes += len(line)

    def contents(self) -> Contents:
        return Contents(self._digest.hexdigest(), self.entries, self.data_bytes)


# -- writing -------------------------------------------------------------------------------------------


def _write_text(write: Callable[[bytes], object], name: bytes, text: bytes) -> None:
    member = tape.Member(name, tape.FILE, size=len(text), ranges=[(0, len(text))])
    write(tape.head_of(member) + text + tape.padding(len(text)))


def _write_name(
    view: MergedView,
    place: Place,
    write: Callable[[bytes], object],
    tally: _Tally,
    first_names: dict[tuple[int, int], bytes],
) -> None:
    status = place.status
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFSOCK:
        return
    if kind not in _TYPES:
        raise SnapshotCorrupt(f"`{os.fsdecode(place.path)}` is a device, which no sandbox can make")
    name = _FILES + b"/" + place.path if place.path else _FILES
    mode, identity = stat.S_IMODE(status.st_mode), (status.st_dev, status.st_ino)
    if (
        kind == stat.S_IFREG
    ):  # no box heeds them, and root who unpacks it elsewhere would make a program of root's of what is here
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    if kind != stat.S_IFDIR and identity in first_names:
        first = first_names[identity]
        write(tape.head_of(tape.Member(name, tape.HARD_LINK, target=_FILES + b"/" + first)))
        tally.add(Record(place.path, "file", 0, 0, 0, None, first, {}), 0)
        return
    if kind == stat.S_IFREG and status.st_nlink > 1:
        first_names[identity] = place.path
    attributes = {one: value for one, value in view.attributes(place).items() if _travels(one)}
    member = tape.Member(name, _TYPES[kind], mode, status.st_mtime_ns, attributes=attributes)
    digest = None
    if kind == stat.S_IFREG:
        digest = _write_file(view, place, member, write)
    else:
        if kind == stat.S_IFLNK:
            member.target = view.link_target(place)
        write(tape.head_of(member))
    tally.add(_record(place.path, member, digest), member.data_bytes)


def _write_file(view: MergedView, place: Place, member: tape.Member, write: Callable[[bytes], object]) -> str:
    file = view.open_file(place)
    try:
        member.size = os.fstat(file).st_size
        member.ranges = data_ranges(file, member.size)
        if len(member.ranges) > tape.MOST_RANGES:
            member.ranges = [(0, member.size)]
        write(tape.head_of(member))
        digest = ContentDigest()
        for start, end in member.ranges:
            at = start
            while at < end:
                piece = os.pread(file, min(end - at, _PIECE_BYTES), at)
                if not piece:
                    raise SnapshotCorrupt(f"`{os.fsdecode(place.path)}` changed while it was exported")
                digest.add(piece, at)
                write(piece)
                at += len(piece)
        write(tape.padding(member.data_bytes))
    finally:
        os.close(file)
    return digest.finish(member.size)


def _record(path: bytes, member: tape.Member, digest: str | None) -> Record:
    target = member.target if member.type == tape.SYMBOLIC_LINK else None
    return Record(
        path, _KINDS[member.type], member.mode, member.mtime_ns, member.size, digest, target, member.attributes
    )


# -- reading -------------------------------------------------------------------------------------------


def _head(reader: tape.Reader, member: tape.Member | None) -> str:
    if member is None or member.name != _HEAD or member.type != tape.FILE or member.size > _HEAD_BYTES:
        raise SnapshotCorrupt("this is no export of a sandbox")
    text = bytearray(member.size)

    def put(piece: bytes, at: int) -> None:
        text[at : at + len(piece)] = piece

    reader.copy_data(member, put)
    try:
        head = json.loads(text)
        version, label = head["coldframe"], str(head["label"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotCorrupt("this is no export of a sandbox") from error
    if version != FORMAT:
        raise SnapshotCorrupt(f"the archive has format {version}, and only {FORMAT} is known here")
    return label


class _Unpacking:
    def __init__(self, reader: tape.Reader, target: str, owner: tuple[int, int] | None, caps: Caps) -> None:
        self._reader = reader
        self._owner = owner
        self._caps = caps
        self._kinds: dict[bytes, bytes] = {}
        """Type of everything that was made, by its path."""
        self._held_bytes = 0
        self.draft = Draft(target)
        self.tally = _Tally(lambda line: None)

    def take(self, member: tape.Member) -> None:
        path = self._path_of(member.name)
        if path in self._kinds:
            raise SnapshotCorrupt(f"the archive has `{os.fsdecode(path)}` twice")
        if bool(path) == (not self._kinds) or (path and self._kinds.get(split(path)[0]) != tape.DIRECTORY):
            raise SnapshotCorrupt(f"the archive has `{os.fsdecode(path)}` before its directory")
        if not path and member.type != tape.DIRECTORY:
            raise SnapshotCorrupt("the archive has no directory at its top")
        self._kinds[path] = member.type
        self._hold_to_caps(member)
        self._hold_to_attributes(path, member)
        facts = Facts(member.mode, self._owner, (member.mtime_ns, member.mtime_ns), member.attributes)
        digest = None
        if member.type == tape.DIRECTORY:
            self.draft.directory(path, facts)
        elif member.type == tape.FILE:
            digest = self._make_file(path, member, facts)
        elif member.type == tape.SYMBOLIC_LINK:
            if not 0 < len(member.target) <= _LONGEST_TARGET or b"\0" in member.target:
                raise SnapshotCorrupt(f"`{os.fsdecode(path)}` is a link that no file system holds")
            self.draft.symbolic_link(path, member.target, facts)
        elif member.type == tape.FIFO:
            self.draft.special(path, stat.S_IFIFO, facts)
        else:
            first = self._path_of(member.target)
            if self._kinds.get(first) != tape.FILE:
                raise SnapshotCorrupt(f"`{os.fsdecode(path)}` is another name of no file in the archive")
            self.draft.hard_link(path, first)
            self.tally.add(Record(path, "file", 0, 0, 0, None, first, {}), 0)
            return
        self.tally.add(_record(path, member, digest), member.data_bytes)

    def compare(self, manifest: tape.Member) -> None:
        """Hold what was made against the manifest that came with it."""
        digest = hashlib.sha256()
        if manifest.type != tape.FILE or manifest.size != self.tally.line_bytes:
            raise SnapshotCorrupt("the archive does not hold what its manifest says")
        self._reader.copy_data(manifest, lambda piece, at: digest.update(piece))
        if digest.hexdigest() != self.tally.contents().sha256:
            raise SnapshotCorrupt("the archive does not hold what its manifest says")

    def _path_of(self, name: bytes) -> bytes:
        if name == _FILES:
            return b""
        parts = name.split(b"/")
        if parts[0] != _FILES or b"\0" in name or len(parts) > MOST_LEVELS:
            raise SnapshotCorrupt(f"the archive has a name that no export has: {os.fsdecode(name)[:200]!r}")
        if any(part in (b"", b".", b"..") or len(part) > 255 for part in parts):
            raise SnapshotCorrupt(f"the archive has a name that leaves its place: {os.fsdecode(name)[:200]!r}")
        return b"/".join(parts[1:])

    def _hold_to_caps(self, member: tape.Member) -> None:
        entries, data = self.tally.entries + 1, self.tally.data_bytes + member.data_bytes
        if entries > self._caps.entries:
            raise _too_much("entries", self._caps.entries, entries)
        if data > self._caps.data_bytes:
            raise _too_much("bytes", self._caps.data_bytes, data)
        self._held_bytes += len(member.name)
        if member.type == tape.DIRECTORY:
            self._held_bytes += sum(len(name) + len(value) for name, value in member.attributes.items())
        if self._held_bytes > _MOST_HELD_BYTES:
            raise _too_much("bytes of names and attributes", _MOST_HELD_BYTES, self._held_bytes)
        if member.size > _LARGEST_FILE:
            raise SnapshotCorrupt("a file of the archive is larger than any file system holds")

    def _hold_to_attributes(self, path: bytes, member: tape.Member) -> None:
        if member.attributes and member.type not in (tape.FILE, tape.DIRECTORY):
            raise SnapshotCorrupt(f"`{os.fsdecode(path)}` has attributes, and is neither a file nor a directory")
        for name, value in member.attributes.items():
            if (
                not _travels(name)
                or name == b"user."
                or b"\0" in name
                or len(name) > 255
                or len(value) > _LARGEST_ATTRIBUTE
            ):
                raise SnapshotCorrupt(f"`{os.fsdecode(path)}` has an attribute that no export has")

    def _make_file(self, path: bytes, member: tape.Member, facts: Facts) -> str:
        digest = ContentDigest()
        file = self.draft.open_file(path)

        def put(piece: bytes, at: int) -> None:
            digest.add(piece, at)
            rest = memoryview(piece)
            while rest:
                done = os.pwrite(file, rest, at)
                rest, at = rest[done:], at + done

        try:
            os.ftruncate(file, member.size)
            self._reader.copy_data(member, put)
            self.draft.finish_file(file, facts)
        finally:
            os.close(file)
        return digest.finish(member.size)


def _too_much(unit: str, limit: int, used: int) -> LimitReached:
    return LimitReached(
        f"the archive holds more than {limit:,} {unit}", kind="import", limit=limit, used=used, unit=unit
    )
