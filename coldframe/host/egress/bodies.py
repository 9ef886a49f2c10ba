"""Takes apart the body of a request that comes in chunks, strictly, so that it can be framed anew.

What is between the chunks is not passed on: extensions mean nothing to those who have not agreed on them, and of
trailers nobody could say which headers they add after the head was judged.
"""

import hashlib
import re

MAX_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 8 * 1024

_END = b"\r\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[\t\x20-\x7e]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class BodySent:
    """How much of a body was sent on, and its digest, without what is around it."""

    __slots__ = ("_digest", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._digest = hashlib.sha256()

    def add(self, part: bytes) -> None:
        self.bytes += len(part)
        self._digest.update(part)

    @property
    def sha256(self) -> str | None:
        """None while there is nothing."""
        return self._digest.hexdigest() if self.bytes else None


class BodyInvalid(Exception):
    """Nobody can tell where the body ends."""


class ChunkReader:
    """Takes bytes as they come until the body is over. After an error it stays broken."""

    __slots__ = ("_buffer", "_ends", "_in_trailers", "_left", "_trailer_bytes", "is_over", "rest")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0
        self._ends = False
        self._in_trailers = False
        self._trailer_bytes = 0
        self.is_over = False
        self.rest = b""
        """What came behind the body."""

    def feed(self, data: bytes) -> bytes:
        """The part of the body that is in it. Raises BodyInvalid."""
        self._buffer += data
        found = bytearray()
        while not self.is_over:
            if self._left:
                part = self._buffer[: self._left]
                if not part:
                    break
                del self._buffer[: len(part)]
                self._left -= len(part)
                found += part
                self._ends = not self._left
                continue
            line = self._take_line()
            if line is None:
                break
            if self._ends:
                self._ends = False
                if line:
                    raise BodyInvalid("a chunk is longer than it says")
            elif self._in_trailers:
                self._take_trailer(line)
            else:
                self._take_size(line)
        return bytes(found)

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(_END, 0, MAX_LINE_BYTES + len(_END))
        if end < 0:
            if len(self._buffer) > MAX_LINE_BYTES or (self._ends and bytes(self._buffer[:2]) not in (b"", b"\r")):
                raise BodyInvalid("a line between chunks does not end, or a chunk is longer than it says")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + len(_END)]
        return line

    def _take_size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise BodyInvalid("the size of a chunk is no number")
        self._left = int(found.group(1), 16)
        self._in_trailers = self._left == 0

    def _take_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if not line:
            self.is_over = True
            self.rest = bytes(self._buffer)
        elif _TRAILER.fullmatch(line) is None or self._trailer_bytes > MAX_TRAILER_BYTES:
            raise BodyInvalid("what follows the last chunk is no header, or too long")


def chunk(data: bytes) -> bytes:
    """One chunk; of no bytes it is the last one, with the end of the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
