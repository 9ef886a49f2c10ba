"""Reads the first message of a TLS client as it comes: which name it asks for, and what else matters to policy.

The bytes are a box's own choice and go on to a server unchanged, so whatever a server might read differently is
refused: data after the message, an extension that stands twice, a list of names that is not exactly one. Not checked is
what leads a server to an error of its own, such as cipher suites.

A server may ask for the message once more (HelloRetryRequest), and then chooses the site by the second one or the first,
as it likes. So the second has to ask for the same: see `asks_again` and `SecondHelloReader`.

Encrypted Client Hello: what a client sends to a server that does not have it (GREASE) looks the same as the real one to
everybody but the server; that is its purpose. Both are OUTER here. A name beside OUTER is the one that the server
shows to the world and need not be the one that is asked for.
"""

from enum import StrEnum
from typing import NamedTuple

from coldframe.policy.hostnames import NameInvalid, read_name

MAX_HELLO_BYTES = 16 * 1024
"""About what one record holds. Clients send 0.3 to 2 KiB; a post-quantum key is 1.2 KiB of that, a ticket may be more."""
MAX_RECORDS = 64
"""A message may be cut into pieces as small as a byte; nobody who means well needs so many."""

_HANDSHAKE, _CHANGE_CIPHER, _DATA = 22, 20, 23
_MAX_RECORD_BYTES = 16 * 1024
_CLIENT_HELLO, _SERVER_HELLO = 1, 2
_SERVER_NAME, _ALPN, _EARLY_DATA, _VERSIONS, _ECH, _ECH_INSIDE = 0, 16, 42, 43, 0xFE0D, 0xFD00
_OLD_ECH = frozenset({0xFFCE, *range(0xFE08, 0xFE0D)})
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The `random` of a HelloRetryRequest (RFC 8446, 4.1.3)."""
_RANDOM_AT = 5 + 4 + 2
"""Of a ServerHello: after the heads of record and message, and the version."""


class HelloFault(StrEnum):
    """Why something is no ClientHello that is let through."""

    NOT_TLS = "not-tls"
    """Perhaps plain text; the bytes may mean something else."""
    SSL2 = "ssl2"
    """By its first byte."""
    RECORD = "record"
    """Another kind of record, an empty one, or too many."""
    VERSION = "version"
    """SSL 3 or older, or unknown."""
    NOT_HELLO = "not-hello"
    TOO_LARGE = "too-large"
    MALFORMED = "malformed"
    DUPLICATE = "duplicate"
    """An extension stands twice."""
    NAME = "name"
    """Not exactly one name, or none that is a host name in its one form."""


class HelloInvalid(Exception):
    """The bytes are refused, whatever follows."""

    def __init__(self, fault: HelloFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Ech(StrEnum):
    """Encrypted Client Hello, as far as it shows."""

    ABSENT = "absent"
    OUTER = "outer"
    """Real, or GREASE."""
    INNER = "inner"
    """The form that belongs inside the encrypted part and means nothing in the open."""
    OLD = "old"
    """An earlier draft."""


class Hello(NamedTuple):
    """What was read."""

    server_name: str | None
    """Normalised; None if there is none."""
    alpn: tuple[bytes, ...]
    ech: Ech
    versions: tuple[int, ...]
    """As offered: 0x0304 is TLS 1.3."""
    early_data: bool
    raw: bytes
    """The records that hold the message, to be sent on as they are."""


class HelloReader:
    """Takes bytes as they come until the message is there. After an error it stays broken."""

    __slots__ = ("_buffer", "_message", "_place", "_records", "rest")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._message = bytearray()
        self._place = 0
        self._records = 0
        self.rest = b""
        """What came behind the message: early data, or nothing."""

    def feed(self, data: bytes) -> Hello | None:
        """The message once it is whole, None before. Raises HelloInvalid as soon as it cannot become one.

        Holds no more than `MAX_HELLO_BYTES` and the heads of `MAX_RECORDS` records beside `data`.
        """
        self._buffer += data
        while True:
            _check_start(self._buffer)
            head = self._buffer[self._place : self._place + 5]
            _check_record(head)
            if len(head) < 5:
                return None
            self._check_size(int.from_bytes(head[3:5], "big"))
            end = self._place + 5 + int.from_bytes(head[3:5], "big")
            if len(self._buffer) < end:
                _check_message(self._message[:4] + self._buffer[self._place + 5 : self._place + 9])
                return None
            self._message += self._buffer[self._place + 5 : end]
            self._place = end
            self._records += 1
            _check_message(self._message)
            length = int.from_bytes(self._message[1:4], "big")
            if len(self._message) >= 4 and len(self._message) >= 4 + length:
                if len(self._message) > 4 + length:
                    raise HelloInvalid(HelloFault.MALFORMED, "there is more in the record than one message")
                self.rest = bytes(self._buffer[end:])
                return _read_hello(bytes(self._message[4:]), bytes(self._buffer[:end]))

    def _check_size(self, length: int) -> None:
        if self._records >= MAX_RECORDS:
            raise HelloInvalid(HelloFault.RECORD, f"the message is cut into more than {MAX_RECORDS} records")
        if len(self._message) + length > 4 + MAX_HELLO_BYTES:
            raise HelloInvalid(HelloFault.TOO_LARGE, f"the message is larger than {MAX_HELLO_BYTES} bytes")


def asks_again(answer: bytes) -> bool | None:
    """Whether the beginning of a server's answer asks for a second hello; None if more of it has to be read.

    True also where it cannot be told. Until this is known, nothing behind the first hello may be sent on.
    """
    if not answer:
        return None
    if answer[0] != _HANDSHAKE:
        return False
    if len(answer) < 6:
        return None
    if int.from_bytes(answer[3:5], "big") < _RANDOM_AT - 5 + len(_RETRY):
        return True  # cut into small pieces
    if answer[5] != _SERVER_HELLO:
        return False
    if len(answer) < _RANDOM_AT + len(_RETRY):
        return None
    return answer[_RANDOM_AT : _RANDOM_AT + len(_RETRY)] == _RETRY


class SecondHelloReader:
    """Takes what a client sends after a server asked again, and holds that it asks for the same site."""

    __slots__ = ("_first", "_has_begun", "_reader", "_skipping", "_waiting")

    def __init__(self, first: Hello) -> None:
        self._first = first
        self._reader = HelloReader()
        self._has_begun = False
        self._skipping = 0
        self._waiting = b""

    def feed(self, data: bytes) -> bool:
        """True once the second hello was seen; all bytes may be sent on then, and not earlier. Raises HelloInvalid.

        Before it, the mark of a middlebox and early data may stand, which the server throws away.
        """
        data = self._waiting + data
        self._waiting = b""
        while data and not self._has_begun:
            if self._skipping:
                gone = min(self._skipping, len(data))
                self._skipping -= gone
                data = data[gone:]
            elif data[0] not in (_CHANGE_CIPHER, _DATA):
                self._has_begun = True
            elif len(data) < 5:
                self._waiting = data
                return False
            else:
                self._skipping = int.from_bytes(data[3:5], "big")
                if not 0 < self._skipping <= _MAX_RECORD_BYTES + 256:
                    raise HelloInvalid(HelloFault.RECORD, "a record is empty or too long")
                data = data[5:]
        second = self._reader.feed(data)
        if second is None:
            return False
        if not same_site(self._first, second):
            raise HelloInvalid(HelloFault.NAME, "the second hello asks for another site than the first")
        return True


def same_site(first: Hello, second: Hello) -> bool:
    """Whether two hellos of one connection ask for the same site, as far as that shows."""
    return (first.server_name, first.ech) == (second.server_name, second.ech)


def _check_start(data: bytes | bytearray) -> None:
    """Tell what is no TLS from its first bytes, as the answer to the box differs."""
    if not data or data[0] == _HANDSHAKE:
        return
    if data[0] & 0x80:
        raise HelloInvalid(HelloFault.SSL2, "it begins like a hello of SSL 2")
    raise HelloInvalid(HelloFault.NOT_TLS, "it is no TLS")


def _check_record(head: bytes | bytearray) -> None:
    if head and head[0] != _HANDSHAKE:
        raise HelloInvalid(HelloFault.RECORD, "the message is interrupted by another kind of record")
    if len(head) > 1 and head[1] != 3:
        raise HelloInvalid(HelloFault.NOT_TLS, "its record is of no version of TLS")
    if len(head) == 5 and not 0 < int.from_bytes(head[3:5], "big") <= _MAX_RECORD_BYTES:
        raise HelloInvalid(HelloFault.RECORD, "a record is empty or too long")


def _check_message(message: bytes | bytearray) -> None:
    if message and message[0] != _CLIENT_HELLO:
        raise HelloInvalid(HelloFault.NOT_HELLO, "the first message is no ClientHello")
    if len(message) >= 4 and int.from_bytes(message[1:4], "big") > MAX_HELLO_BYTES:
        raise HelloInvalid(HelloFault.TOO_LARGE, f"the message is larger than {MAX_HELLO_BYTES} bytes")


class _Bytes:
    """Takes lengths and values off; whatever is too short is malformed."""

    __slots__ = ("_data", "_place")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def is_empty(self) -> bool:
        return self._place == len(self._data)

    def take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._data):
            raise HelloInvalid(HelloFault.MALFORMED, "a length reaches beyond its end")
        taken = self._data[self._place : end]
        self._place = end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int, low: int = 0, high: int = 0xFFFF) -> bytes:
        count = self.number(width)
        if not low <= count <= high:
            raise HelloInvalid(HelloFault.MALFORMED, "a list is shorter or longer than it may be")
        return self.take(count)

    def end(self) -> None:
        if not self.is_empty:
            raise HelloInvalid(HelloFault.MALFORMED, "something stands behind the end of a part")


def _read_hello(body: bytes, raw: bytes) -> Hello:
    reader = _Bytes(body)
    version = reader.number(2)
    if not 0x0301 <= version <= 0x0303:
        raise HelloInvalid(HelloFault.VERSION, f"version {version:04x} is none that is let through")
    reader.take(32)
    reader.vector(1, 0, 32)
    if len(reader.vector(2, 2)) % 2:
        raise HelloInvalid(HelloFault.MALFORMED, "half a cipher suite")
    reader.vector(1, 1, 255)
    extensions = {} if reader.is_empty else _read_extensions(reader.vector(2))
    reader.end()
    return Hello(
        _read_server_name(extensions.get(_SERVER_NAME)),
        _read_alpn(extensions.get(_ALPN)),
        _read_ech(extensions),
        _read_versions(extensions.get(_VERSIONS), version),
        _EARLY_DATA in extensions,
        raw,
    )


def _read_extensions(block: bytes) -> dict[int, bytes]:
    reader = _Bytes(block)
    found: dict[int, bytes] = {}
    while not reader.is_empty:
        kind = reader.number(2)
        if kind in found:
            raise HelloInvalid(HelloFault.DUPLICATE, f"extension {kind:#06x} stands twice")
        found[kind] = reader.vector(2)
    return found


def _read_server_name(data: bytes | None) -> str | None:
    if data is None:
        return None
    reader = _Bytes(data)
    names = _Bytes(reader.vector(2, 1))
    reader.end()
    kind, value = names.number(1), names.vector(2, 1)
    if kind != 0 or not names.is_empty:
        raise HelloInvalid(HelloFault.NAME, "not exactly one host name")
    try:
        text = value.decode("ascii")
        name = read_name(text)
    except (UnicodeDecodeError, NameInvalid):
        raise HelloInvalid(HelloFault.NAME, "what is asked for is no host name") from None
    if text.endswith("."):
        raise HelloInvalid(HelloFault.NAME, "a name in a handshake has no dot at its end")
    return name


def _read_alpn(data: bytes | None) -> tuple[bytes, ...]:
    if data is None:
        return ()
    reader = _Bytes(data)
    protocols = _Bytes(reader.vector(2, 2))
    reader.end()
    found = []
    while not protocols.is_empty:
        found.append(protocols.vector(1, 1, 255))
    return tuple(found)


def _read_versions(data: bytes | None, legacy: int) -> tuple[int, ...]:
    if data is None:
        return (legacy,)
    reader = _Bytes(data)
    listed = reader.vector(1, 2, 254)
    reader.end()
    if len(listed) % 2:
        raise HelloInvalid(HelloFault.MALFORMED, "half a version")
    return tuple(int.from_bytes(listed[place : place + 2], "big") for place in range(0, len(listed), 2))


def _read_ech(extensions: dict[int, bytes]) -> Ech:
    if _ECH_INSIDE in extensions:
        raise HelloInvalid(HelloFault.MALFORMED, "a part that belongs inside an encrypted hello")
    data = extensions.get(_ECH)
    if data is None:
        return Ech.ABSENT if _OLD_ECH.isdisjoint(extensions) else Ech.OLD
    reader = _Bytes(data)
    kind = reader.number(1)
    if kind == 1:
        reader.end()
        return Ech.INNER
    if kind != 0:
        raise HelloInvalid(HelloFault.MALFORMED, "an encrypted hello of no known kind")
    reader.take(5)  # key derivation, cipher, which configuration
    reader.vector(2)
    reader.vector(2, 1)
    reader.end()
    return Ech.OUTER
