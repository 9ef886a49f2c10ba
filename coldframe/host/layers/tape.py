"""The tar format of exports, written and read by ourselves, and as little of it as they need.

Any tar program can read what is written: POSIX headers with extended ones (pax) for long names, exact times,
attributes and sparse files (GNU form 1.0). Reading is for our own exports alone and takes nothing else, since general
readers (`tarfile` too) hold extended headers of whatever size in memory, and know ten forms of what we need one of.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from coldframe.contract.errors import SnapshotCorrupt

BLOCK = 512
FILE, HARD_LINK, SYMBOLIC_LINK, DIRECTORY, FIFO, _EXTENDED = b"0", b"1", b"2", b"5", b"6", b"x"
MOST_EXTENDED_BYTES = 1024 * 1024
MOST_RANGES = 1_000_000
_PIECE_BYTES = 1024 * 1024
_LARGEST = 0o77777777777
_ATTRIBUTE = b"SCHILY.xattr."

Range = tuple[int, int]
"""From, to."""


class Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass
class Member:
    """One entry of an archive."""

    name: bytes
    type: bytes
    mode: int = 0o644
    mtime_ns: int = 0
    target: bytes = b""
    size: int = 0
    """Of the file as it will be, holes included."""
    ranges: list[Range] = field(default_factory=list)
    """Where a file has data; whole files have one."""
    attributes: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def data_bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def head_of(member: Member) -> bytes:
    """Everything of an entry before its data. The data of its ranges follow one another, then `padding`."""
    extended: dict[bytes, bytes] = {_ATTRIBUTE + name: value for name, value in member.attributes.items()}
    seconds, rest = divmod(member.mtime_ns, 1_000_000_000)
    if rest or not 0 <= seconds <= _LARGEST:
        whole = seconds if rest == 0 or seconds >= 0 else seconds + 1
        part = rest if seconds >= 0 else (1_000_000_000 - rest) % 1_000_000_000
        sign = b"-" if seconds < 0 and whole == 0 else b""
        extended[b"mtime"] = sign + b"%d.%09d" % (whole, part)
    name, stored, map_text = member.name, member.data_bytes, b""
    if member.type == FILE and member.ranges != ([(0, member.size)] if member.size else []):
        pieces = [b"%d\n" % len(member.ranges), *(b"%d\n%d\n" % (start, end - start) for start, end in member.ranges)]
        map_text = b"".join(pieces)
        map_text += padding(len(map_text))
        extended[b"GNU.sparse.major"], extended[b"GNU.sparse.minor"] = b"1", b"0"
        extended[b"GNU.sparse.name"], extended[b"GNU.sparse.realsize"] = name, b"%d" % member.size
        name, stored = b"GNUSparseFile.0/file", stored + len(map_text)
    if len(name) > 100:
        extended[b"path"] = name
    if len(member.target) > 100:
        extended[b"linkpath"] = member.target
    if stored > _LARGEST:
        extended[b"size"] = b"%d" % stored
    before = b""
    if extended:
        text = b"".join(_record(key, value) for key, value in sorted(extended.items()))
        if not _is_text(text):
            text = _record(b"hdrcharset", b"BINARY") + text
        before = _header(b"pax/" + name[:80], _EXTENDED, 0o644, len(text), 0, b"") + text + padding(len(text))
    mtime = min(max(seconds, 0), _LARGEST)
    return before + _header(name, member.type, member.mode, min(stored, _LARGEST), mtime, member.target) + map_text


END = bytes(2 * BLOCK)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d" % length + rest


def _header(name: bytes, kind: bytes, mode: int, size: int, mtime: int, target: bytes) -> bytes:
    head = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            *(b"%0*o\0" % (digits, number) for digits, number in ((7, mode), (7, 0), (7, 0), (11, size), (11, mtime))),
            b" " * 8,
            kind,
            target[:100].ljust(100, b"\0"),
            b"ustar\x0000",
            bytes(64),
            b"0000000\x000000000\0",
        )
    ).ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


class Reader:
    """Reads entries one after the other. After each its data has to be taken with `copy_data` or `data`.

    Everything that is not as `head_of` writes it is SnapshotCorrupt.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = 0

    def members(self) -> Iterator[Member]:
        while True:
            block = self._exactly(BLOCK)
            if block == bytes(BLOCK):
                if self._exactly(BLOCK) != bytes(BLOCK):
                    raise SnapshotCorrupt("the archive goes on behind its end")
                return
            yield self._member(block)
            if self._left:
                raise SnapshotCorrupt("an entry of the archive holds data that it may not")

    def copy_data(self, member: Member, write: Callable[[bytes, int], None]) -> None:
        """Give the data of a file piece by piece, each with its place in the file."""
        total = member.data_bytes
        for start, end in member.ranges:
            while start < end:
                piece = self._exactly(min(end - start, _PIECE_BYTES))
                write(piece, start)
                start += len(piece)
        self._exactly(-total % BLOCK)
        self._left -= total

    def _exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            piece = self._source.read(size)
            if not piece:
                raise SnapshotCorrupt("the archive is cut off")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _member(self, block: bytes) -> Member:
        extended: dict[bytes, bytes] = {}
        kind, size = self._checked(block)
        if kind == _EXTENDED:
            if size > MOST_EXTENDED_BYTES:
                raise SnapshotCorrupt("an extended header of the archive is too large")
            extended = _records(self._exactly(size))
            self._exactly(-size % BLOCK)
            block = self._exactly(BLOCK)
            kind, size = self._checked(block)
        if kind not in (FILE, HARD_LINK, SYMBOLIC_LINK, DIRECTORY, FIFO):
            raise SnapshotCorrupt(f"the archive holds an entry of type {kind!r}, which no export has")
        size = _number(extended.pop(b"size", None), size)
        member = Member(
            name=extended.pop(b"path", block[:100].rstrip(b"\0")),
            type=kind,
            mode=_octal(block[100:108]) & 0o7777,
            mtime_ns=_nanoseconds(extended.pop(b"mtime", None), _octal(block[136:148])),
            target=extended.pop(b"linkpath", block[157:257].rstrip(b"\0")),
        )
        extended.pop(b"hdrcharset", None)
        if kind == FILE:
            self._left = size
            self._take_ranges(member, extended, size)
        elif size:
            raise SnapshotCorrupt("an entry of the archive that is no file has content")
        for key in [key for key in extended if key.startswith(_ATTRIBUTE)]:
            member.attributes[key[len(_ATTRIBUTE) :]] = extended.pop(key)
        if extended:
            raise SnapshotCorrupt("the archive has an extended header that no export has")
        return member

    def _checked(self, block: bytes) -> tuple[bytes, int]:
        head = block[:148] + b" " * 8 + block[156:]
        if block[257:265] != b"ustar\x0000" or block[148:156] != b"%06o\0 " % sum(head):
            raise SnapshotCorrupt("a header of the archive is damaged")
        return block[156:157], _octal(block[124:136])

    def _take_ranges(self, member: Member, extended: dict[bytes, bytes], size: int) -> None:
        if extended.pop(b"GNU.sparse.major", None) is None:
            member.size = size
            member.ranges = [(0, size)] if size else []
            return
        if extended.pop(b"GNU.sparse.minor", None) != b"0":
            raise SnapshotCorrupt("a sparse file of the archive has another form than exports have")
        member.name = extended.pop(b"GNU.sparse.name", b"")
        member.size = _number(extended.pop(b"GNU.sparse.realsize", None), -1)
        read = 0
        lines: list[bytes] = []
        rest, wanted = b"", 1
        while len(lines) < wanted:
            block = self._exactly(BLOCK)
            read += BLOCK
            *whole, rest = (rest + block).split(b"\n")
            lines += whole
            if len(lines) >= 1 and wanted == 1:
                count = _number(lines[0], -1)
                if not 0 <= count <= MOST_RANGES:
                    raise SnapshotCorrupt("a sparse file of the archive has too many parts")
                wanted = 1 + 2 * count
            if len(rest) > BLOCK:
                raise SnapshotCorrupt("a sparse file of the archive has a damaged map")
        numbers = [_number(line, -1) for line in lines[1:wanted]]
        member.ranges = [(start, start + length) for start, length in zip(numbers[::2], numbers[1::2], strict=True)]
        at = 0
        for start, end in member.ranges:
            if not at <= start < end <= member.size:
                raise SnapshotCorrupt("a sparse file of the archive has a damaged map")
            at = end
        self._left = size - read
        if self._left != member.data_bytes:
            raise SnapshotCorrupt("a sparse file of the archive has another size than its map")


def _octal(text: bytes) -> int:
    digits = text.rstrip(b"\0 ")
    if not digits.isdigit() or digits.strip(b"01234567"):
        raise SnapshotCorrupt("a header of the archive is damaged")
    return int(digits, 8)


def _number(text: bytes | None, otherwise: int) -> int:
    if text is None:
        if otherwise < 0:
            raise SnapshotCorrupt("a header of the archive lacks a number")
        return otherwise
    if not text.isdigit() or len(text) > 19:
        raise SnapshotCorrupt("a header of the archive is damaged")
    return int(text)


def _nanoseconds(text: bytes | None, seconds: int) -> int:
    if text is None:
        return seconds * 1_000_000_000
    whole, dot, part = text.removeprefix(b"-").partition(b".")
    if not whole.isdigit() or len(whole) > 12 or not (part.isdigit() or not dot) or len(part) > 9:
        raise SnapshotCorrupt("a time in the archive is damaged")
    found = int(whole) * 1_000_000_000 + int(part.ljust(9, b"0") or b"0")
    return -found if text.startswith(b"-") else found


def _records(text: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(text):
        space = text.find(b" ", at, at + 12)
        digits = text[at:space] if space > at else b""
        end = at + int(digits) if digits.isdigit() else at
        key, equals, value = text[space + 1 : end].partition(b"=")
        if not equals or end > len(text) or not value.endswith(b"\n") or key in found:
            raise SnapshotCorrupt("an extended header of the archive is damaged")
        found[key] = value[:-1]
        at = end
    return found
