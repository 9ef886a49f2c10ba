"""The few rules of HTTP/1.1 that a client of one server needs, without input or output of its own.

A general library keeps every event as an object and every body in a buffer of its own; here, bytes of a body
are handed on as they came from the socket. Rejected: h11, which reads the same; measured beside it in processor
time, a call of 2 KB costs 75 µs in place of 9, a MiB in chunks 0.2 ms or more in place of 0.05, and its import 40 ms
of every start of the command line. There is no answer to HEAD, which says a length and has no body. Whatever is not
plainly right raises ProtocolBroken, and the connection is given up: nothing is repaired by guessing.
"""

import re
from collections.abc import Iterable

from coldframe.contract.errors import InvalidArgument

MAX_HEAD_BYTES = 128 * 1024
MAX_SIZE_LINE_BYTES = 4096
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n\0]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_VALUE = re.compile(r"[^\r\n\0]*")
_LENGTH = re.compile(r"[0-9]{1,15}")
LAST_CHUNK = b"0\r\n\r\n"


class ProtocolBroken(OSError):
    """The far side does not speak HTTP/1.1, or closed before the end."""


def request_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of a request. InvalidArgument for a header that could not be sent as one."""
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            # Not the value: it may be a token, read with the line end of its file.
            raise InvalidArgument(
                f"the header `{name[:40]}` of the request cannot hold what it was given",
                hint="leave out line ends and zero bytes",
                argument=name.lower(),
            )
        lines.append(f"{name}: {value}")
    try:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidArgument("a header of the request holds more than Latin-1", argument="headers") from None


def chunk_of(part: bytes) -> bytes:
    """A part of a body whose length is not known before."""
    return b"%x\r\n%b\r\n" % (len(part), part)


class Answer:
    """Reads one answer from the bytes of a connection, and leaves what follows to the next."""

    def __init__(self, rest: bytes = b"") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case; values of the same name joined by commas."""
        self.complete = False
        self.keeps_connection = False
        self._data = rest
        self._at = 0
        """Where the bytes begin that are not used yet."""
        self._chunked = False
        self._missing: int | None = None
        """Bytes of the body, or of the chunk, that are still to come; None up to the end of the connection."""
        self._between_chunks = False
        self._in_trailer = False
        self._ended = False

    @property
    def rest(self) -> bytes:
        """Bytes that came and are not used yet."""
        return self._data[self._at :]

    def feed(self, data: bytes) -> None:
        """Take in what the socket gave; nothing means that the far side closed."""
        if not data:
            self._ended = True
        self._data = self.rest + data if self._at < len(self._data) else data
        self._at = 0

    def read_head(self) -> bool:
        """Whether the head is there now. Interim answers are passed over."""
        while True:
            end = self._data.find(b"\r\n\r\n", self._at, self._at + MAX_HEAD_BYTES)
            if end < 0:
                if self._ended:
                    raise ProtocolBroken("closed before the answer")
                if len(self._data) - self._at >= MAX_HEAD_BYTES:
                    raise ProtocolBroken("the head of the answer is too long")
                return False
            head = self._data[self._at : end]
            self._at = end + 4
            self._parse(head)
            if self.status >= 200:
                return True

    def _parse(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            raise ProtocolBroken("the answer is no HTTP/1.1")
        self.status = int(found[2])
        if self.status == 101:
            raise ProtocolBroken("the answer changes to a protocol that nobody asked for")
        headers: dict[str, str] = {}
        for line in lines:
            parts = _HEADER.fullmatch(line)
            if parts is None:
                raise ProtocolBroken("the answer has a malformed header")
            name, value = parts[1].decode("ascii").lower(), parts[2].decode("latin-1").rstrip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.headers = headers
        connection = headers.get("connection", "").lower()
        self.keeps_connection = found[1] == b"1" and "close" not in connection
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if self.status < 200 or self.status in (204, 304):
            self.complete = self.status >= 200
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise ProtocolBroken("the answer has a coding of its own")
            self._chunked, self._missing = True, 0
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise ProtocolBroken("the answer has a malformed length")
            self._missing = int(length)
            self.complete = self._missing == 0
        else:
            self.keeps_connection = False

    def read_part(self) -> bytes:
        """Some bytes of the body; none if more has to be fed, or at the end (`complete`)."""
        if self._chunked and self._missing == 0 and not self.complete:
            self._next_chunk()
        there = len(self._data) - self._at
        wanted = there if self._missing is None else min(there, self._missing)
        if self.complete or wanted == 0:
            if self._ended and not self.complete:
                if self._missing is not None:
                    raise ProtocolBroken("closed within the answer")
                self.complete = True
            return b""
        part = self._data if wanted == len(self._data) else self._data[self._at : self._at + wanted]
        self._at += wanted
        if self._missing is not None:
            self._missing -= wanted
            self._between_chunks = self._chunked and self._missing == 0
            self.complete = not self._chunked and self._missing == 0
        return part

    def _next_chunk(self) -> None:
        """Read the line before a chunk, or the lines after the last, as far as they are there."""
        while True:
            end = self._data.find(b"\r\n", self._at)
            if end < 0:
                if len(self._data) - self._at > MAX_SIZE_LINE_BYTES:
                    raise ProtocolBroken("a line of the answer is too long")
                self._missing = 0
                return
            line = self._data[self._at : end]
            self._at = end + 2
            if self._between_chunks:
                if line:
                    raise ProtocolBroken("a chunk of the answer is longer than it says")
                self._between_chunks = False
            elif self._in_trailer:
                if not line:
                    self.complete = True
                    return
                if not _HEADER.fullmatch(line):
                    raise ProtocolBroken("the answer has a malformed trailer")
            else:
                size = _SIZE.fullmatch(line)
                if size is None:
                    raise ProtocolBroken("the answer has a malformed chunk")
                self._missing = int(size[1], 16)
                if self._missing:
                    return
                self._in_trailer = True
