"""Heads of HTTP messages that are relayed: taken apart strictly, and put together anew for whoever is behind.

Visitor and box may each be hostile to the other. So nothing is passed on that two programs could read in two ways: one
way to frame a body, one `Host`, no folded lines, no blanks around names, lines that end as they should. What is of one
connection alone ends here, and so does all by which a visitor is let in: a box sees no cookie and no token of ours.

The server in the box is told that it is asked as `localhost` on its own port, as it was when it was started by hand:
development servers refuse other names. What the visitor has typed is in `X-Forwarded-Host`.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

MAX_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 200
COOKIE = "coldframe_preview"
"""By which a browser is known again; the box neither sees nor sets it."""
OUR_TOKENS = ("cf_", "cfp_", "e2b_")
"""How secrets of ours begin."""
TRAFFIC_TOKEN = b"e2b-traffic-access-token"
PREVIEW_TOKEN = b"coldframe-preview-token"
NOT_INDEXED = b"x-robots-tag: noindex, nofollow\r\n"
"""What a sandbox shows is for those who were given its address, also where it is for everybody."""
Headers = list[tuple[bytes, bytes]]
Framing = Literal["none", "length", "chunked", "close"]

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[\x21-\x7e]*|\*) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"te",
        b"trailer",
    }
    | {b"upgrade", b"http2-settings"}
)
_NEVER_HOP = frozenset(
    {
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"cookie",
        b"set-cookie",
        b"authorization",
        b"origin",
        b"content-type",
    }
)
"""What nobody may have left out by naming it in `Connection`."""
_OURS = frozenset(
    {b"forwarded", b"x-real-ip", b"x-api-key", b"x-access-token", b"via", TRAFFIC_TOKEN, PREVIEW_TOKEN}
    | {b"e2b-sandbox-id", b"e2b-sandbox-port"}
)
_NOT_THE_BOXES = frozenset({b"alt-svc", b"strict-transport-security", b"clear-site-data", b"public-key-pins"})
"""What a server may say of a whole name or of more: a box says nothing of names that it has for a while."""


class HeadInvalid(Exception):
    """Nobody can say for certain what it means. *status* is what its sender is answered."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class RequestHead(NamedTuple):
    method: bytes
    target: bytes
    minor: int
    headers: Headers
    """Names in small letters."""
    framing: Framing
    length: int
    wants_tunnel: bool
    """Asks for a web socket."""
    keeps: bool
    """Whether the visitor's connection may be used again."""

    def get(self, name: bytes) -> bytes | None:
        return next((value for one, value in self.headers if one == name), None)


class ResponseHead(NamedTuple):
    minor: int
    status: int
    reason: bytes
    headers: Headers
    framing: Framing
    length: int
    keeps: bool


class Names(NamedTuple):
    """By which the two sides call the same place."""

    scheme: str
    """The visitor's."""
    host: str
    """The visitor's `Host`, with its port."""
    port: int
    """Of the server in the box."""
    masked: str | None = None
    """As what that server is asked, in place of `localhost` with its port."""

    @property
    def outer(self) -> bytes:
        return f"{self.scheme}://{self.host}".encode("latin-1")

    @property
    def inner(self) -> bytes:
        return b"http://" + self.inner_host

    @property
    def inner_host(self) -> bytes:
        if self.masked is not None:
            return self.masked.encode("latin-1")
        return b"localhost" if self.port == 80 else b"localhost:%d" % self.port


def parse_request(head: bytes) -> RequestHead:
    """Of the bytes up to the empty line, that line included. Raises HeadInvalid."""
    first, headers = _split(head)
    found = _LINE.fullmatch(first)
    if found is None:
        raise HeadInvalid("the first line is no request of HTTP/1.1 for a path")
    method, target, minor = found.group(1), found.group(2), int(found.group(3))
    if method == b"CONNECT" or (target == b"*") != (method == b"OPTIONS" and target == b"*"):
        raise HeadInvalid("this cannot be asked of a preview", 405)
    if sum(name == b"host" for name, _ in headers) != 1:
        raise HeadInvalid("a request has one `Host`")
    framing, length = _framing(headers, minor)
    connection = _tokens(headers, b"connection")
    upgrade = _tokens(headers, b"upgrade")
    wants_tunnel = minor == 1 and b"upgrade" in connection and upgrade == [b"websocket"]
    if wants_tunnel and (method != b"GET" or framing != "none"):
        raise HeadInvalid("a web socket begins with a GET without a body")
    keeps = minor == 1 and b"close" not in connection
    return RequestHead(method, target, minor, headers, framing, length, wants_tunnel, keeps)


def parse_response(head: bytes, method: bytes) -> ResponseHead:
    """The answer to a request of *method*. Raises HeadInvalid."""
    first, headers = _split(head)
    found = _STATUS.fullmatch(first)
    if found is None:
        raise HeadInvalid("the answer does not begin as one of HTTP/1", 502)
    minor, status = int(found.group(1)), int(found.group(2))
    framing, length = _framing(headers, minor, answers=True)
    connection = _tokens(headers, b"connection")
    keeps = b"close" not in connection and (minor == 1 or b"keep-alive" in connection)
    if method == b"HEAD" or status < 200 or status in (204, 304):
        framing = "none"
    elif framing == "none":
        framing, keeps = "close", False
    return ResponseHead(minor, status, found.group(3) or b"", headers, framing, length, keeps)


def _split(head: bytes) -> tuple[bytes, Headers]:
    lines = head[:-4].split(b"\r\n")
    if len(lines) - 1 > MOST_HEADERS:
        raise HeadInvalid(f"there are more than {MOST_HEADERS} headers", 431)
    headers: Headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise HeadInvalid("a line of the head is no header")
        headers.append((name.lower(), value.strip(b" \t")))
    return lines[0], headers


def _framing(headers: Headers, minor: int, *, answers: bool = False) -> tuple[Framing, int]:
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if lengths or minor == 0 or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise HeadInvalid("it does not say in one way where its body ends")
        return "chunked", 0
    if not lengths:
        return "none", 0
    if len(lengths) > 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise HeadInvalid("it does not say in one way where its body ends")
    length = int(lengths[0])
    return ("length" if length or answers else "none"), length


def _tokens(headers: Headers, wanted: bytes) -> list[bytes]:
    found = (value for name, value in headers if name == wanted)
    return [token for value in found for one in value.split(b",") if (token := one.strip(b" \t").lower())]


def request_for_box(head: RequestHead, names: Names, visitor: str) -> bytes:
    """The head as the server in the box gets it. Raises HeadInvalid."""
    dropped = _dropped(head.headers)
    out = [head.method, b" ", head.target, b" HTTP/1.1\r\nHost: ", names.inner_host, b"\r\n"]
    cookies: list[bytes] = []
    for name, value in head.headers:
        if name in dropped or name in _OURS or name == b"host" or name.startswith(b"x-forwarded-"):
            continue
        if name == b"authorization" and is_ours(value):
            continue
        if name == b"cookie":
            cookies += [one for one in value.split(b";") if not _is_our_cookie(one)]
            continue
        if name in (b"origin", b"referer"):
            value = _moved(value, names.outer, names.inner)
        out += [name, b": ", value, b"\r\n"]
    if kept := b"; ".join(one.strip() for one in cookies if one.strip()):
        out += [b"cookie: ", kept, b"\r\n"]
    if head.wants_tunnel:
        out.append(b"connection: Upgrade\r\nupgrade: websocket\r\n")
    public = names.host.encode("latin-1")
    port = names.host.rpartition(":")[2] if ":" in names.host else "443" if names.scheme == "https" else "80"
    out += [b"x-forwarded-for: ", visitor.encode(), b"\r\nx-forwarded-host: ", public]
    out += [b"\r\nx-forwarded-proto: ", names.scheme.encode(), b"\r\nx-forwarded-port: ", port.encode(), b"\r\n\r\n"]
    return b"".join(out)


def response_for_visitor(head: ResponseHead, names: Names, *, keeps: bool, unchunked: bool = False) -> bytes:
    """The head as the visitor gets it. *unchunked*: it speaks HTTP/1.0, and gets the body as it is. Raises HeadInvalid."""
    dropped = _dropped(head.headers)
    out = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    for name, value in head.headers:
        if name in dropped or name in _NOT_THE_BOXES or (unchunked and name == b"transfer-encoding"):
            continue
        if name == b"set-cookie":
            own = _own_cookie(value)
            if own is None:
                continue
            value = own
        elif name in (b"location", b"content-location"):
            value = _back(value, names)
        elif name == b"access-control-allow-origin" and value == names.inner:
            value = names.outer
        out += [name, b": ", value, b"\r\n"]
    if head.status == 101:
        out.append(b"connection: Upgrade\r\nupgrade: websocket\r\n")
    elif head.status >= 200:
        out.append(NOT_INDEXED if keeps else NOT_INDEXED + b"connection: close\r\n")
    out.append(b"\r\n")
    return b"".join(out)


def is_ours(authorization: bytes) -> bool:
    """Whether it is a token of this installation, valid or not: a box learns none of them."""
    scheme, _, secret = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and secret.strip().startswith(tuple(one.encode() for one in OUR_TOKENS))


def cookie_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The value of our cookie; None unless there is just one, since of two somebody may have added the other."""
    found = [
        one.partition(b"=")[2].strip()
        for name, value in headers
        if name == b"cookie"
        for one in value.split(b";")
        if _is_our_cookie(one)
    ]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _is_our_cookie(one: bytes) -> bool:
    return one.partition(b"=")[0].strip() == COOKIE.encode()


def _own_cookie(value: bytes) -> bytes | None:
    """A cookie of the box is for its own origin: without a domain, since others have names in it. None for one of ours."""
    if _is_our_cookie(value):
        return None
    parts = value.split(b";")
    kept = [one for one in parts[1:] if one.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([parts[0], *kept])


def _dropped(headers: Headers) -> frozenset[bytes]:
    named = _tokens(headers, b"connection")
    if _NEVER_HOP.intersection(named):
        raise HeadInvalid("`Connection` names a header that is no matter of one connection")
    return _HOP.union(named)


def _moved(value: bytes, start: bytes, to: bytes) -> bytes:
    if value == start or value.startswith(start + b"/"):
        return to + value[len(start) :]
    return value


def _back(value: bytes, names: Names) -> bytes:
    """A redirect to where the server thinks it is leads to where the visitor is. Others are left as they are."""
    for host in (b"localhost", b"127.0.0.1", b"[::1]", b"0.0.0.0"):
        for scheme in (b"http://", b"https://"):
            start = scheme + host + (b"" if names.port == 80 else b":%d" % names.port)
            moved = _moved(value, start, names.outer)
            if moved is not value:
                return moved
    return value
