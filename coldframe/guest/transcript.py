"""The whole output of one command, on disk, in the order in which it was read.

The file is a row of chunks: one byte stream (1 stdout, 2 stderr) and TIMED, three zero bytes, four bytes length, eight
bytes time (microseconds since 1970, when it was read), then the bytes. Chunks of before there were times have neither
TIMED nor time. A chunk's number is its position. Readers follow by number and never miss or repeat one;
what a follower has not fetched yet costs no memory, since it is read back from the file.
"""

import array
import codecs
import hashlib
import os
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from coldframe.guest.ready_files import make_file

CHUNK = struct.Struct(">B3xIQ")
OLD_CHUNK = struct.Struct(">B3xI")
TIMED = 0x10
STREAMS = {1: "stdout", 2: "stderr"}
STDOUT, STDERR = 1, 2
EMPTY_SHA256 = hashlib.sha256().hexdigest()
DECODED_BYTES = 64 * 1024
"""At once: the text is thrown away, and where it was is used again as long as it is small."""
MOST_CHUNK_BYTES = 4 * 1024 * 1024
"""No writer makes a chunk as long as this; a stored file that claims one is damaged, or was made to cost memory."""


class Chunk(NamedTuple):
    stream: int
    data: bytes
    at_us: int | None
    """None for one of before there were times."""


class Place(NamedTuple):
    """Where in the file the bytes of a chunk are."""

    stream: int
    at_us: int | None
    offset: int
    length: int


class StreamDigest:
    """Length, SHA-256 and UTF-8 validity of one stream, kept while it grows."""

    def __init__(self) -> None:
        self.bytes = 0
        self._begun: tuple[hashlib._Hash, codecs.IncrementalDecoder] | None = None
        """None for a stream that stayed empty, as most do."""
        self._invalid = False

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self.bytes += len(data)
        if self._begun is None:
            self._begun = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")("strict")
        sha256, decoder = self._begun
        sha256.update(data)
        if not self._invalid:
            try:
                for start in range(0, len(data), DECODED_BYTES):
                    decoder.decode(data[start : start + DECODED_BYTES])
            except UnicodeDecodeError:
                self._invalid = True

    def summary(self) -> dict[str, Any]:
        """The fields of StreamInfo for the stream so far."""
        if self._begun is None:
            return {"bytes": 0, "sha256": EMPTY_SHA256, "invalid_utf8": False}
        sha256, decoder = self._begun
        unfinished = bool(decoder.getstate()[0])
        return {
            "bytes": self.bytes,
            "sha256": sha256.hexdigest(),
            "invalid_utf8": self._invalid or unfinished,
        }


class Transcript:
    """Appends chunks and reads them back. The file is made with the first byte, by *make* if that is given."""

    def __init__(self, directory: int, name: str, *, make: Callable[[str], int] | None = None) -> None:
        self._directory = directory
        self._name = name
        self._make = make
        self.file = -1
        self._offsets = array.array("Q")
        self._end = 0
        self.digests = {STDOUT: StreamDigest(), STDERR: StreamDigest()}

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._offsets)

    @property
    def total_bytes(self) -> int:
        return self.digests[STDOUT].bytes + self.digests[STDERR].bytes

    def append(self, stream: int, data: bytes | bytearray | memoryview) -> None:
        """Keep one chunk. OSError (no space) leaves the transcript as it was."""
        if self.file < 0:
            make = self._make
            self.file = make_file(self._directory, self._name) if make is None else make(self._name)
        head = CHUNK.pack(stream | TIMED, len(data), time.time_ns() // 1000)
        parts: list[bytes | bytearray | memoryview] = [head, data]
        written = 0
        wanted = CHUNK.size + len(data)
        while written < wanted:
            try:
                step = os.pwritev(self.file, parts, self._end + written)
            except OSError:
                os.ftruncate(self.file, self._end)
                raise
            written += step
            rest = memoryview(b"".join(bytes(part) for part in parts))[step:] if written < wanted else memoryview(b"")
            parts = [rest]
        self._offsets.append(self._end)
        self._end += wanted
        self.digests[stream].update(data)

    def place(self, number: int) -> Place:
        offset = self._offsets[number]
        stream, length, at_us = CHUNK.unpack(os.pread(self.file, CHUNK.size, offset))
        return Place(stream & ~TIMED, at_us, offset + CHUNK.size, length)

    def chunk(self, number: int) -> Chunk:
        place = self.place(number)
        return Chunk(place.stream, os.pread(self.file, place.length, place.offset), place.at_us)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class StoredTranscript:
    """Reads a transcript whose writer is gone. A chunk cut short by a crash ends it."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._offset = 0
        self._size = os.fstat(file).st_size

    def next(self) -> Chunk | None:
        place = self.next_place()
        if place is None:
            return None
        return Chunk(place.stream, os.pread(self.file, place.length, place.offset), place.at_us)

    def next_place(self) -> Place | None:
        place = self._head()
        if place is not None:
            self._offset = place.offset + place.length
        return place

    def skip(self) -> bool:
        """Go past one chunk; whether there was one."""
        return self.next_place() is not None

    def _head(self) -> Place | None:
        prefix = os.pread(self.file, CHUNK.size, self._offset)
        if len(prefix) < OLD_CHUNK.size:
            return None
        stream, length = OLD_CHUNK.unpack(prefix[: OLD_CHUNK.size])
        at_us, start = None, self._offset + OLD_CHUNK.size
        if stream & TIMED:
            if len(prefix) < CHUNK.size:
                return None
            stream, length, at_us = CHUNK.unpack(prefix)
            stream, start = stream & ~TIMED, self._offset + CHUNK.size
        if stream not in STREAMS or length > MOST_CHUNK_BYTES or start + length > self._size:
            return None
        return Place(stream, at_us, start, length)

    def close(self) -> None:
        os.close(self.file)
