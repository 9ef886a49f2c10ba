"""Whether a PNG is whole, and how large its picture is, from bytes that go by once. Nothing is decoded.

What is hostile in one is its pixels, which may unpack to any size: they are never unpacked here. What is checked is its
frame: each part with its length and check sum, the header first, some pixels, the end last and nothing behind it.
"""

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_SIDE = 2**31 - 1
HEADER = struct.Struct(">IIBBBBB")
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a sample that there are for each kind of colour."""


class PngFrame:
    """Of one file: give it all bytes in order, then ask."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._need = len(SIGNATURE)
        self._read = self._read_signature
        self._name = b""
        self._left = 0
        """Bytes of the content of a part that are still to come."""
        self._crc = 0
        self._header = bytearray()
        self._has_pixels = False
        self._is_over = False
        self._is_broken = False
        self._size: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels; None unless the whole file was given and is a whole PNG."""
        return self._size if self._is_over and not self._is_broken else None

    def feed(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest and not self._is_broken:
            if self._is_over:
                self._is_broken = True  # something hangs on behind its end
            elif self._left:
                part = rest[: self._left]
                self._crc = zlib.crc32(part, self._crc)
                if self._name == b"IHDR":
                    self._header += part
                self._left -= len(part)
                rest = rest[len(part) :]
            else:
                part = rest[: self._need - len(self._held)]
                self._held += part
                rest = rest[len(part) :]
                if len(self._held) == self._need:
                    told = bytes(self._held)
                    self._held.clear()
                    self._is_broken = not self._read(told)

    def _read_signature(self, told: bytes) -> bool:
        self._read = self._read_head
        return told == SIGNATURE

    def _read_head(self, told: bytes) -> bool:
        length, name = int.from_bytes(told[:4]), told[4:]
        is_header = name == b"IHDR"
        if is_header != (not self._name) or (is_header and length != HEADER.size) or not name.isalpha():
            return False
        if length > MOST_SIDE or (name == b"IEND" and (length or not self._has_pixels)):
            return False
        self._has_pixels = self._has_pixels or (name == b"IDAT" and length > 0)
        self._name, self._left, self._crc = name, length, zlib.crc32(name)
        self._need, self._read = 4, self._read_sum
        return True

    def _read_sum(self, told: bytes) -> bool:
        if int.from_bytes(told) != self._crc:
            return False
        if self._name == b"IHDR" and not self._take_header():
            return False
        self._is_over = self._name == b"IEND"
        self._need, self._read = 8, self._read_head
        return True

    def _take_header(self) -> bool:
        width, height, depth, colour, packing, sieve, order = HEADER.unpack(self._header)
        self._size = width, height
        return (
            0 < width <= MOST_SIDE
            and 0 < height <= MOST_SIDE
            and depth in _DEPTHS.get(colour, ())
            and (packing, sieve) == (0, 0)
            and order in (0, 1)
        )
