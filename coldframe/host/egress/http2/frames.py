"""Cuts a stream of HTTP/2 into whole frames before anything reads them: counts those that carry nothing, takes ends out.

Somebody who sends nothing but pings, settings, priorities, pieces of headers, or what belongs to no stream that is open,
makes the other side work for nothing. Each such frame costs patience, which comes back with what is carried and with time. A head that comes in pieces is held until
it is whole, so it is measured here. `h2` keeps each setting that it is told, also those that mean nothing, so it is told
those that it knows. And a GOAWAY is not for `h2`, which takes it for the end of all streams: it is the end of new ones.
"""

from collections.abc import Iterator
from typing import NamedTuple

from coldframe.host.egress.requests import MAX_HEAD_BYTES

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 64 * 1024
"""That the other side may send at once; larger ones save processor time, and each connection may hold one."""
MOST_BLOCK_BYTES = MAX_HEAD_BYTES + 512
"""Of a head as it comes, in all its pieces: with padding and priority, and without what it counts for each header."""
MOST_PATIENCE = 1000.0
PATIENCE_PER_S = 20.0
GOAWAY_NO_ERROR, GOAWAY_CALM_DOWN = 0, 11

_HEAD_BYTES = 9
_DATA, _HEADERS, _SETTINGS, _PUSH_PROMISE, _GOAWAY, _CONTINUATION = 0, 1, 4, 5, 7, 9
_SETTING_BYTES, _LAST_SETTING = 6, 8
_END_STREAM = 1


class Http2Invalid(OSError):
    """The other side does not speak HTTP/2 as it has to, or too much of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


class Goaway(NamedTuple):
    """No stream above this one was looked at, and no other one should be begun."""

    last_stream: int
    code: int


class FrameCutter:
    """Of one direction of a connection."""

    __slots__ = ("_at", "_block_bytes", "_buffer", "_is_preface", "_parts", "patience")

    def __init__(self, *, has_preface: bool, now: float) -> None:
        self._buffer = bytearray()
        self._block_bytes = 0
        self._is_preface = has_preface
        self._at = now
        self._parts = 0
        self.patience = MOST_PATIENCE

    def feed(self, data: bytes, now: float) -> Iterator[bytes | Goaway]:
        """Whole frames, several together where they follow one another. Raises Http2Invalid."""
        self.patience = min(MOST_PATIENCE, self.patience + (now - self._at) * PATIENCE_PER_S)
        self._at = now
        self._buffer += data
        buffer, place, start = self._buffer, 0, 0
        if self._is_preface:
            if not PREFACE.startswith(bytes(buffer[: len(PREFACE)])):
                raise Http2Invalid("it does not begin as HTTP/2 does")
            if len(buffer) < len(PREFACE):
                return
            self._is_preface = False
            place = len(PREFACE)
        while len(buffer) - place >= _HEAD_BYTES:
            length = int.from_bytes(buffer[place : place + 3], "big")
            if length > MAX_FRAME_BYTES:
                raise Http2Invalid("a frame is longer than it may be")
            end = place + _HEAD_BYTES + length
            if len(buffer) < end:
                break
            kind = buffer[place + 3]
            self._weigh(kind, length, buffer[place + 4])
            self._measure(kind, length)
            if kind == _SETTINGS and length and length % _SETTING_BYTES == 0:
                yield bytes(buffer[start:place]) + _known_settings(bytes(buffer[place:end]))
                start = end
            if kind == _GOAWAY:
                if place > start:
                    yield bytes(buffer[start:place])
                if length < 8:
                    raise Http2Invalid("an end is too short")
                last = int.from_bytes(buffer[place + 9 : place + 13], "big") & 0x7FFFFFFF
                yield Goaway(last, int.from_bytes(buffer[place + 13 : place + 17], "big"))
                start = end
            place = end
        whole = bytes(buffer[start:place])
        del buffer[:place]
        if whole:
            yield whole

    def earn(self, patience: float) -> None:
        self.patience = min(MOST_PATIENCE, self.patience + patience)

    def earn_head(self) -> None:
        """A head was one of a stream that is open; else it has cost what all costs that carries nothing."""
        self.earn(2)

    def settle(self, parts: int) -> None:
        """So many parts of bodies were of streams that are open, of those that came. Raises Http2Invalid."""
        lost, self._parts = self._parts - parts, 0
        self._spend(2 * lost)

    def _weigh(self, kind: int, length: int, flags: int) -> None:
        if kind == _DATA and (length or flags & _END_STREAM):
            self._parts += 1
            self.earn(1)
        else:
            self._spend(1)

    def _spend(self, patience: float) -> None:
        self.patience -= patience
        if self.patience < 0:
            raise Http2Invalid("it sends too many frames that carry nothing")

    def _measure(self, kind: int, length: int) -> None:
        """Heads. That the pieces of one follow one another is for `h2` to see."""
        if kind in (_HEADERS, _PUSH_PROMISE):
            self._block_bytes = length
        elif kind == _CONTINUATION:
            self._block_bytes += length
            if self._block_bytes > MOST_BLOCK_BYTES:
                raise Http2Invalid("a head is longer than it may be")


def _known_settings(frame: bytes) -> bytes:
    """The frame without settings that nobody knows. It may be empty then, which is to be acknowledged all the same."""
    body = frame[_HEAD_BYTES:]
    settings = [body[place : place + _SETTING_BYTES] for place in range(0, len(body), _SETTING_BYTES)]
    known = b"".join(one for one in settings if int.from_bytes(one[:2], "big") <= _LAST_SETTING)
    return len(known).to_bytes(3, "big") + frame[3:_HEAD_BYTES] + known


def write_goaway(last_stream: int, code: int) -> bytes:
    return b"\x00\x00\x08\x07\x00" + bytes(4) + last_stream.to_bytes(4, "big") + code.to_bytes(4, "big")
