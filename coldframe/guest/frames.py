"""The wire between a keeper and whoever holds its socket: frames of a JSON head and a byte body.

    4 bytes  length of the head, big endian
    4 bytes  length of the body
    head     one JSON object in ASCII (lone surrogates escaped, so that any file name passes)
    body     bytes: content of a file, a chunk of output

Both ends treat the other as hostile: a frame over the caps, or a head that is no object, ends the
connection. One connection carries one request at a time; concurrency is more connections, which keeps
both ends free of multiplexing and of head-of-line blocking.
"""

import json
import math
import struct
from typing import Any

PREFIX = struct.Struct(">II")
MAX_HEAD_BYTES = 256 * 1024 * 1024
"""A search may answer 100,000 matches of 2,000 characters."""
MAX_BODY_BYTES = 65 * 1024 * 1024
"""The largest content of one ask (64 MiB) and some slack."""

LONG_BYTES = 64 * 1024
"""A body from this length on is read straight to where it stays."""

SENT_AHEAD_BYTES = 1 << 20
"""What either end may have sent before the other takes it, where the kernel allows so much: with less both wake for each part."""

Body = bytes | bytearray | memoryview
MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What code that trusts a request's fields raises where one is missing, of another kind or out of range."""


class BadFrame(Exception):
    """The far side does not speak the protocol; the connection ends."""


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def write_json(value: dict[str, Any]) -> bytes:
    """One line of ASCII, the shortest."""
    return _encoder.encode(value).encode("ascii")


def encode(head: dict[str, Any] | bytes, body: bytes = b"") -> bytes:
    """*head* may be JSON already."""
    text = head if isinstance(head, bytes) else write_json(head)
    return PREFIX.pack(len(text), len(body)) + text + body


def encode_start(head: dict[str, Any], body_bytes: int) -> bytes:
    """A frame without its body, which is sent behind it."""
    text = write_json(head)
    return PREFIX.pack(len(text), body_bytes) + text


def lengths(prefix: bytes) -> tuple[int, int]:
    """Split an 8-byte prefix into the lengths of head and body, or refuse it."""
    head, body = PREFIX.unpack(prefix)
    if head > MAX_HEAD_BYTES or body > MAX_BODY_BYTES:
        raise BadFrame(f"frame of {head} + {body} bytes is over the cap")
    return head, body


def is_whole(frame: bytes | bytearray) -> bool:
    """Whether this is exactly one frame, by its own lengths."""
    if len(frame) < PREFIX.size:
        return False
    head, body = PREFIX.unpack(frame[: PREFIX.size])
    return len(frame) == PREFIX.size + int(head) + int(body)


def _finite(text: str) -> float:
    """Compared with a limit, what is no number would be under it whatever the limit is."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


_decoder = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)  # not `loads`, which makes one for each text


def decode_head(text: bytes) -> dict[str, Any]:
    try:
        head = _decoder.decode(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise BadFrame("head is not JSON") from error
    if not isinstance(head, dict):
        raise BadFrame("head is not an object")
    return head


class Reader:
    """Puts frames together from whatever pieces arrive on a non-blocking socket.

    A long body is read to where it stays: whoever reads asks for `room` first, and says with `filled` how much came there.
    """

    def __init__(self) -> None:
        self._begun = bytearray()
        """The beginning of a frame."""
        self._wanted = 0
        """As many bytes of it must be there before it is looked at again."""
        self._head: dict[str, Any] = {}
        self._body: bytearray | None = None
        """A long one whose beginning is here, as long as it will be."""
        self._there = 0
        self.spare: bytearray | None = None
        """A body that nobody holds any more: the next one of this length goes there."""

    @property
    def room(self) -> memoryview | None:
        """Where the rest of a long body belongs; None while none is coming."""
        return None if self._body is None else memoryview(self._body)[self._there :]

    def filled(self, count: int) -> list[tuple[dict[str, Any], Body]]:
        """Take in *count* bytes that were put into `room`; the frame, if that was all of it."""
        assert self._body is not None
        self._there += count
        if self._there < len(self._body):
            return []
        body, self._body = self._body, None
        return [(self._head, body)]

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], Body]]:
        """Take *data* in and return the frames that are complete now. A long body may be a view of *data*.

        Raises:
            BadFrame: the caps or the form are violated.
        """
        frames: list[tuple[dict[str, Any], Body]] = []
        at = 0
        if (room := self.room) is not None:
            at = min(len(data), len(room))
            room[:at] = data[:at]
            frames += self.filled(at)
        if self._begun:
            self._begun += data[at:]
            if len(self._begun) < self._wanted:
                return frames
            data, at = bytes(self._begun), 0
            self._begun.clear()
        self._wanted = PREFIX.size
        while len(data) - at >= PREFIX.size:
            head_bytes, body_bytes = lengths(data[at : at + PREFIX.size])
            middle = at + PREFIX.size + head_bytes
            end = middle + body_bytes
            self._wanted = (end if body_bytes < LONG_BYTES else middle) - at
            if len(data) - at < self._wanted:
                break
            self._wanted = PREFIX.size
            head = decode_head(data[at + PREFIX.size : middle])
            if len(data) < end:
                spare, self.spare = self.spare, None
                self._body = spare if spare is not None and len(spare) == body_bytes else bytearray(body_bytes)
                self._head, self._there = head, len(data) - middle
                self._body[: self._there] = memoryview(data)[middle:]
                return frames
            frames.append((head, memoryview(data)[middle:end] if body_bytes >= LONG_BYTES else data[middle:end]))
            at = end
        self._begun += data[at:]
        return frames
