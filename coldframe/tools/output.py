"""What a command printed, as far as one answer holds it: the collector, windows and the ordered transcript."""

import base64
import codecs
from collections import deque
from typing import Literal

from coldframe.contract.diagnosis import READ_BYTES
from coldframe.contract.model import Model
from coldframe.tools.registry import STREAM_CAP_BYTES

OVER_CAP_VIEW_BYTES = 2 * 1024 * 1024
"""What is shown of each stream past the cap: half from its head, half from its tail."""
TRANSCRIPT_TEXT_BYTES = 1024 * 1024
"""Past this much output the transcript gives only the order and the lengths; the text is in the streams."""

LAST_BYTES = READ_BYTES
"""Of the end of each stream, which are kept for a diagnosis whatever is handed over."""

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


class Segment(Model):
    """Bytes of one stream, up to the next ones of the other."""

    stream: Stream
    bytes: int
    text: str | None
    """None with `base64`, or past 1 MiB of output, where the text is in the streams only."""
    base64: str | None


class OutputCollector:
    """Keeps both streams in order up to the cap; past it only the head and tail of each.

    Memory stays below the cap plus one chunk, whatever the command prints.
    """

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.whole = True
        self.total: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self.segments: list[tuple[Stream, bytearray]] = []
        self._heads: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._tails: dict[Stream, deque[bytes]] = {"stdout": deque(), "stderr": deque()}
        self._tail_bytes: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._last: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, stream: Stream, data: bytes) -> None:
        self.total[stream] += len(data)
        last = self._last[stream]
        last += data[-LAST_BYTES:]
        if len(last) > 2 * LAST_BYTES:
            del last[:-LAST_BYTES]
        if not self.keep:
            return
        if self.whole and max(self.total.values()) > STREAM_CAP_BYTES:
            self.whole = False
            kept, self.segments = self.segments, []
            for name, segment in kept:
                self._add_clipped(name, segment)
        if not self.whole:
            self._add_clipped(stream, data)
        elif self.segments and self.segments[-1][0] == stream:
            self.segments[-1][1].extend(data)
        else:
            self.segments.append((stream, bytearray(data)))

    def _add_clipped(self, stream: Stream, data: bytes | bytearray) -> None:
        half = OVER_CAP_VIEW_BYTES // 2
        head, tail = self._heads[stream], self._tails[stream]
        room = half - len(head)
        head.extend(data[:room])
        rest = data[max(room, len(data) - half, 0) :]
        if rest:
            tail.append(bytes(rest))
            self._tail_bytes[stream] += len(rest)
        while tail and self._tail_bytes[stream] - len(tail[0]) >= half:
            self._tail_bytes[stream] -= len(tail.popleft())

    def kept(self, stream: Stream) -> tuple[bytes, bytes]:
        """Return head and tail; the tail is empty if all of the stream is in the head."""
        if self.whole:
            return b"".join(bytes(data) for name, data in self.segments if name == stream), b""
        return bytes(self._heads[stream]), b"".join(self._tails[stream])

    def last(self, stream: Stream) -> bytes:
        """Return the end of a stream, also where the chunks were handed over."""
        return bytes(self._last[stream][-LAST_BYTES:])

    def judged(self) -> bytes:
        """Return what rules that read output look at: each stream whole, and both in the order of their writes.

        All three, since a caller sees a text that is split across the streams in one, and one that is
        interrupted by the other stream in another.
        """
        stdout, stderr = (b"".join(self.kept(name)) for name in STREAMS)
        if not stdout or not stderr:
            return stdout or stderr
        return b"\0".join((stdout, stderr, b"".join(bytes(data) for _, data in self.segments)))

    def view(self, stream: Stream, max_bytes: int | None) -> tuple[bytes, bytes]:
        """Return the head and the tail to show: all there is, or a window of *max_bytes*."""
        head, tail = self.kept(stream)
        if max_bytes is None:
            return head, tail
        if not tail:
            return window(head, max_bytes)
        half = max_bytes // 2
        return head[: _boundary_before(head, half)], tail[_boundary_after(tail, max(len(tail) - half, 0)) :]


def _boundary_before(data: bytes, at: int) -> int:
    """Return the last place at or up to three bytes before *at* that does not split a UTF-8 character."""
    cut = min(at, len(data))
    for _ in range(3):
        if not 0 < cut < len(data) or data[cut] & 0xC0 != 0x80:
            break
        cut -= 1
    return cut


def _boundary_after(data: bytes, at: int) -> int:
    for _ in range(3):
        if at >= len(data) or data[at] & 0xC0 != 0x80:
            break
        at += 1
    return at


def window(data: bytes, max_bytes: int) -> tuple[bytes, bytes]:
    """Cut *data* to a head and a tail of at most half of *max_bytes* each, without splitting a character."""
    if len(data) <= max_bytes:
        return data, b""
    half = max_bytes // 2
    return data[: _boundary_before(data, half)], data[_boundary_after(data, len(data) - half) :]


def joined_text(head: bytes, tail: bytes, omitted: int) -> str:
    if not omitted:
        return (head + tail).decode("utf-8", "replace")
    gap = f"\n[{omitted} bytes left out here]\n"
    return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")


def transcript_of(segments: list[tuple[Stream, bytearray]], *, encoding: str) -> tuple[Segment, ...]:
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
    short = sum(len(data) for _, data in segments) <= TRANSCRIPT_TEXT_BYTES
    last = {name: index for index, (name, _) in enumerate(segments)}
    found = []
    for index, (name, data) in enumerate(segments):
        text = exact = None
        if short and encoding == "base64":
            exact = base64.b64encode(data).decode()
        elif short:
            text = decoders[name].decode(data, final=index == last[name])
        found.append(Segment(stream=name, bytes=len(data), text=text, base64=exact))
    return tuple(found)
