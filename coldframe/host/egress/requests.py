"""Reads the head of an HTTP/1 request as a box sent it, and writes the one that goes on.

Nothing of the box's bytes is passed on as it came: the head is read strictly, judged, and written anew from what was
read, so that no server finds another request in it. Refused is whatever programs are known to read in two ways: a
line without CR, a folded line, two lengths or a length beside chunks, a name of a header with odd signs, more than one
host; also a target that names another host, and headers by which a server would take another method, host or path than
those that were judged.

h11 reads heads too, but heals some of these (folded lines, bare LF, a length said twice), so they are looked for before.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import h11

from coldframe.policy.addresses import read_address
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.targets import Target, TargetInvalid, read_target

MAX_HEAD_BYTES = 64 * 1024
"""With all headers. Common servers take 8 to 32 KiB."""
MAX_HEADERS = 200

_END = b"\r\n\r\n"
_ODD_BYTES = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)")
_FOLDED = re.compile(rb"\r\n[ \t]")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})
HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
        *(b"te", b"trailer", b"upgrade", b"http2-settings", b"expect"),
    }
)
_OVERRIDES = frozenset(
    {
        *(b"x-http-method-override", b"x-http-method", b"x-method-override"),
        *(b"x-original-url", b"x-rewrite-url", b"x-original-uri", b"x-rewrite-uri"),
        *(b"x-forwarded-host", b"x-forwarded-server", b"x-original-host", b"x-host", b"x-http-host-override"),
    }
)


class RequestFault(StrEnum):
    """Why a head is refused."""

    TOO_LARGE = "too-large"
    MALFORMED = "malformed"
    VERSION = "version"
    FRAMING = "framing"
    """Where the body ends could be read in two ways."""
    HOST = "host"
    """Not exactly one, or none that is a host."""
    TARGET = "target"
    OVERRIDE = "override"
    """A header names another method, host or path."""


class RequestInvalid(Exception):
    """The connection is of no use any more: nobody can tell where the next request begins."""

    def __init__(self, fault: RequestFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class RequestHead(NamedTuple):
    """One head, in the form in which it is judged."""

    method: str
    target: Target
    host: str
    """A name in its one form, or an address."""
    port: int | None
    """As the host said it; None if it said none."""
    headers: tuple[tuple[bytes, bytes], ...]
    """What is meant for the server, names in lower case, without host, framing and what concerns the connection."""
    length: int | None
    """Bytes of the body; None if it comes in chunks."""
    upgrade: bool
    """Whether it asks to go on as a websocket. Other upgrades are left out: a server that does not do them goes on so."""
    expects_continue: bool
    closes: bool
    """Whether no other request follows."""
    is_old: bool
    """By HTTP/1.0."""

    def is_for(self, destination: str, port: int) -> bool:
        """Whether the host is the destination of the connection."""
        return self.host == destination and self.port in (None, port)


class HeadReader:
    """Takes bytes as they come until a head is there. One head; the next request has a new reader, which gets `rest`."""

    __slots__ = ("_buffer", "_searched", "rest")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self.rest = b""
        """What came behind the head: the beginning of the body."""

    def feed(self, data: bytes) -> RequestHead | None:
        """The head once it is whole, None before. Raises RequestInvalid."""
        self._buffer += data
        start = self._searched
        end = self._buffer.find(_END, start)
        self._searched = max(0, len(self._buffer) - len(_END) + 1)
        if (end if end >= 0 else len(self._buffer)) > MAX_HEAD_BYTES:
            raise RequestInvalid(RequestFault.TOO_LARGE, f"the head is larger than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            if self._buffer.find(b"\n\n", start) >= 0:
                raise RequestInvalid(RequestFault.MALFORMED, "a line ends without CR")
            return None
        self.rest = bytes(self._buffer[end + len(_END) :])
        return read_head(bytes(self._buffer[: end + len(_END)]))


def read_head(data: bytes) -> RequestHead:
    """Read one head with the empty line at its end. Raises RequestInvalid."""
    lines = data.removesuffix(_END)
    if _ODD_BYTES.search(lines):
        raise RequestInvalid(RequestFault.MALFORMED, "there is a control character, or half of an end of line")
    if _FOLDED.search(lines):
        raise RequestInvalid(RequestFault.MALFORMED, "a header goes on in a second line")
    if lines.count(b"\r\n") > MAX_HEADERS:
        raise RequestInvalid(RequestFault.TOO_LARGE, f"there are more than {MAX_HEADERS} headers")
    first, *others = lines.split(b"\r\n")
    if not first.endswith((b" HTTP/1.1", b" HTTP/1.0")):
        raise RequestInvalid(RequestFault.VERSION, "it is neither HTTP/1.1 nor HTTP/1.0")
    fields = [_read_field(line) for line in others]
    check_names(name for name, _ in fields)
    host, port = read_host([value for name, value in fields if name == b"host"])
    length = _read_length(fields)
    request = _read_request(data)
    is_old = request.http_version == b"1.0"
    if is_old and length is None:
        raise RequestInvalid(RequestFault.FRAMING, "HTTP/1.0 has no chunks")
    target = read_path(request.target)
    options = _tokens(request, b"connection")
    dropped = _FRAMING | HOP_BY_HOP | options
    expectations = _tokens(request, b"expect")
    if not expectations <= {b"100-continue"}:
        raise RequestInvalid(RequestFault.MALFORMED, "it expects something that nobody does")
    return RequestHead(
        request.method.decode("ascii"),
        target,
        host,
        port,
        tuple((bytes(name), bytes(value)) for name, value in request.headers if name not in dropped),
        length,
        not is_old and b"upgrade" in options and _tokens(request, b"upgrade") == {b"websocket"},
        bool(expectations) and not is_old,
        b"close" in options or (is_old and b"keep-alive" not in options),
        is_old,
    )


def write_head(head: RequestHead, *, added: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    """The head that goes to the server. `added` takes the place of headers with the same name, in lower case."""
    host = f"[{head.host}]" if ":" in head.host else head.host
    lines = [
        f"{head.method} {head.target.text} HTTP/1.1".encode("ascii"),
        b"host: " + (host if head.port is None else f"{host}:{head.port}").encode("ascii"),
    ]
    replaced = {name for name, _ in added}
    lines += [name + b": " + value for name, value in head.headers if name not in replaced]
    lines += [name + b": " + value for name, value in added]
    if head.length is None:
        lines.append(b"transfer-encoding: chunked")
    elif head.length or head.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
        lines.append(b"content-length: %d" % head.length)
    if head.expects_continue:
        lines.append(b"expect: 100-continue")
    if head.upgrade:
        lines += [b"connection: upgrade", b"upgrade: websocket"]
    elif head.closes:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + _END


def _read_request(data: bytes) -> h11.Request:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES + len(_END))
    try:
        connection.receive_data(data)
        event = connection.next_event()
    except h11.RemoteProtocolError:
        raise RequestInvalid(RequestFault.MALFORMED, "it is no request that can be read") from None
    if not isinstance(event, h11.Request):
        raise RequestInvalid(RequestFault.MALFORMED, "it is no request")
    return event


def _read_field(line: bytes) -> tuple[bytes, bytes]:
    """A header as it stands there; h11 joins lengths that are said twice, and is what refuses a name that is none."""
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")


def _tokens(request: h11.Request, name: bytes) -> frozenset[bytes]:
    values = b",".join(value for given, value in request.headers if given == name)
    return frozenset(token.strip().lower() for token in values.split(b",") if token.strip())


def check_names(names: Iterable[bytes]) -> None:
    """Refuse what makes a server see another request. Names in lower case. Raises RequestInvalid."""
    for name in names:
        plain = name.replace(b"_", b"-")
        if plain in _OVERRIDES:
            shown = name.decode("ascii", "replace")
            raise RequestInvalid(RequestFault.OVERRIDE, f"header `{shown}` names another method, host or path")
        if plain != name and plain in _FRAMING | HOP_BY_HOP | {b"authorization", b"cookie"}:
            raise RequestInvalid(RequestFault.MALFORMED, "some servers read `_` in the name of a header as `-`")


def read_path(text: bytes) -> Target:
    """The target of a request. Raises RequestInvalid."""
    try:
        return read_target(text.decode("ascii"))
    except (TargetInvalid, UnicodeDecodeError) as error:
        raise RequestInvalid(RequestFault.TARGET, f"its target is refused: {error}") from None


def read_number(value: bytes) -> int:
    """The length of a body. Raises RequestInvalid."""
    if _LENGTH.fullmatch(value) is None:
        raise RequestInvalid(RequestFault.FRAMING, "the length of the body is no number")
    return int(value)


def _read_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    """What the fields say of the body: its length, or None for chunks."""
    said = [(name, value) for name, value in fields if name in (b"content-length", b"transfer-encoding")]
    if len(said) > 1:
        raise RequestInvalid(RequestFault.FRAMING, "the length of the body is said more than once")
    if not said:
        return 0
    name, value = said[0]
    if name == b"transfer-encoding":
        if value.lower() != b"chunked":
            raise RequestInvalid(RequestFault.FRAMING, "the only encoding of a body that is passed on is `chunked`")
        return None
    return read_number(value)


def read_host(values: list[bytes]) -> tuple[str, int | None]:
    """Name or address, and port if it says one. Raises RequestInvalid."""
    if len(values) != 1:
        raise RequestInvalid(RequestFault.HOST, "not exactly one host")
    invalid = RequestInvalid(RequestFault.HOST, "what it names is no host")
    found = re.fullmatch(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?", values[0])
    if found is None:
        raise invalid
    text = found.group(1).decode("ascii")
    port = None if found.group(2) is None else int(found.group(2))
    if port is not None and not 0 < port < 65536:
        raise invalid
    address = read_address(text.strip("[]"))
    if address is not None:
        if (address.version == 6) != text.startswith("["):
            raise invalid
        return str(address), port
    try:
        name = read_name(text)
    except NameInvalid:
        raise invalid from None
    if text.endswith("."):
        raise invalid
    return name, port
