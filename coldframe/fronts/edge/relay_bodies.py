"""Where a relayed body ends. It is passed on as it came, so nothing is copied but what stands at a border."""

import re

from coldframe.fronts.edge.relay_heads import Framing

MAX_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 8 * 1024
_END = b"\r\n"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:;[\t\x20-\x7e]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class BodyInvalid(Exception):
    """Nobody can tell where it ends."""


class Body:
    """Takes the bytes of one body as they come, and says how many of them are of it."""

    __slots__ = ("_at", "_left", "_line", "_plain", "_trailer_bytes", "_trailers", "framing", "is_over", "payload")

    def __init__(self, framing: Framing, length: int = 0, *, plain: bool = False, trailers: bool = True) -> None:
        """With *plain*, what `take` returns of a chunked body is its content without the chunks. Without *trailers* nothing may
        follow the last chunk: of a request it would be headers that came after the head was judged."""
        self.framing = framing
        self.is_over = framing == "none" or (framing == "length" and length == 0)
        self.payload = 0
        """Bytes of content so far."""
        self._left = length
        self._at = "size"
        self._line = b""
        self._plain = plain
        self._trailers = trailers
        self._trailer_bytes = 0

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What of *data* is to be passed on, and what comes behind the body. Raises BodyInvalid."""
        if self.is_over:
            return b"", data
        if self.framing == "close":
            self.payload += len(data)
            return data, b""
        if self.framing == "length":
            own = data if len(data) <= self._left else data[: self._left]
            self._left -= len(own)
            self.payload += len(own)
            self.is_over = not self._left
            return own, data[len(own) :]
        return self._take_chunks(data)

    def _take_chunks(self, data: bytes) -> tuple[bytes, bytes]:
        at = 0
        plain: list[bytes] = []
        while at < len(data) and not self.is_over:
            if self._at == "content":
                step = min(self._left, len(data) - at)
                if self._plain:
                    plain.append(data[at : at + step])
                self._left -= step
                self.payload += step
                at += step
                if not self._left:
                    self._at = "border"
                continue
            end = data.find(b"\n", at, at + MAX_LINE_BYTES)
            if end < 0:
                self._line += data[at:]
                at = len(data)
                if len(self._line) > MAX_LINE_BYTES or (self._at == "border" and self._line != b"\r"):
                    raise BodyInvalid("a line between chunks does not end")
                break
            line = self._line + data[at : end + 1]
            self._line = b""
            at = end + 1
            if not line.endswith(_END) or len(line) > MAX_LINE_BYTES:
                raise BodyInvalid("a line between chunks does not end as it should")
            self._take_line(line[:-2])
        rest = data[at:]
        if self._plain:
            return b"".join(plain), rest
        return (data[:at] if rest else data), rest

    def _take_line(self, line: bytes) -> None:
        if self._at == "border":
            if line:
                raise BodyInvalid("a chunk is longer than it says")
            self._at = "size"
        elif self._at == "size":
            found = _SIZE.fullmatch(line)
            if found is None:
                raise BodyInvalid("the size of a chunk is no number")
            self._left = int(found.group(1), 16)
            self._at = "content" if self._left else "trailers"
        elif not line:
            self.is_over = True
        else:
            self._trailer_bytes += len(line)
            if not self._trailers or _TRAILER.fullmatch(line) is None or self._trailer_bytes > MAX_TRAILER_BYTES:
                raise BodyInvalid("what follows the last chunk is no header, or too long")
