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

MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What code that trusts a request's fields raises where one is missing, of another kind or out of range."""


class BadFrame(Exception):
    """The far side does not speak the protocol; the connection ends."""


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def write_json(value: dict[str, Any]) -> bytes:
    """One line of ASCII, the shortest."""
    return _encoder.encode(value).encode("ascii")


def encode(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = write_json(head)
    return PREFIX.pack(len(text), len(body)) + text + body


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
    """Puts frames together from whatever pieces arrive on a non-blocking socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Take *data* in and return the frames that are complete now.

        Raises:
            BadFrame: the caps or the form are violated.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= PREFIX.size:
            head_bytes, body_bytes = lengths(bytes(self._buffer[: PREFIX.size]))
            end = PREFIX.size + head_bytes + body_bytes
            if len(self._buffer) < end:
                break
            head = decode_head(bytes(self._buffer[PREFIX.size : PREFIX.size + head_bytes]))
            body = bytes(self._buffer[PREFIX.size + head_bytes : end])
            del self._buffer[:end]
            frames.append((head, body))
        return frames
