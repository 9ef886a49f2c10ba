"""Reads and writes the heads of HTTP/2: as strictly as those of HTTP/1, and into the same form, in which they are judged.

Refused is whatever could be another request to a server that speaks HTTP/1 behind the one that is asked: a pseudo header
that is missing, stands twice or stands late, a host beside `:authority` that differs, odd signs, headers that concern a
connection, a second length.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from coldframe.host.egress.requests import (
    HOP_BY_HOP,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    RequestFault,
    RequestHead,
    RequestInvalid,
    check_names,
    read_host,
    read_number,
    read_path,
)
from coldframe.host.egress.responses import HOP_BY_HOP as RESPONSE_HOP_BY_HOP
from coldframe.host.egress.responses import ResponseInvalid

Pairs = list[tuple[bytes, bytes]]

_PSEUDO = (b":method", b":scheme", b":authority", b":path")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_STATUS = re.compile(rb"[1-9][0-9]{2}")
_MOST_OF_FIELD = 32
"""That a header counts beside its letters (RFC 9113, 6.5.2)."""


class Http2Request(NamedTuple):
    head: RequestHead
    takes_trailers: bool


def read_request(pairs: Iterable[tuple[bytes, bytes]], *, ends: bool) -> Http2Request:
    """*ends*: no body follows. Raises RequestInvalid."""
    pseudo: dict[bytes, bytes] = {}
    fields: Pairs = []
    size = 0
    for name, value in pairs:
        name, value = bytes(name), bytes(value)
        size += len(name) + len(value) + _MOST_OF_FIELD
        if name.startswith(b":"):
            if fields or name in pseudo or name not in _PSEUDO:
                # With `:protocol` a CONNECT asks for a websocket; who does is told to use HTTP/1.1 by not being offered it.
                raise RequestInvalid(RequestFault.MALFORMED, "a pseudo header stands twice, late, or is unknown")
            pseudo[name] = value
        else:
            fields.append((name, value))
    if size > MAX_HEAD_BYTES or len(fields) > MAX_HEADERS:
        raise RequestInvalid(RequestFault.TOO_LARGE, f"the head has more than {MAX_HEADERS} headers or 64 KiB")
    _check_fields(fields)
    if len(pseudo) != len(_PSEUDO):
        raise RequestInvalid(RequestFault.MALFORMED, "a pseudo header is missing")
    if pseudo[b":scheme"] != b"https":
        raise RequestInvalid(RequestFault.TARGET, "its scheme is not that of the connection")
    if _METHOD.fullmatch(pseudo[b":method"]) is None:
        raise RequestInvalid(RequestFault.MALFORMED, "its method is none")
    host, port = read_host([pseudo[b":authority"]])
    if any(value != pseudo[b":authority"] for name, value in fields if name == b"host"):
        raise RequestInvalid(RequestFault.HOST, "it names two hosts")
    expects = [value.lower() for name, value in fields if name == b"expect"]
    if expects not in ([], [b"100-continue"]):
        raise RequestInvalid(RequestFault.MALFORMED, "it expects something that nobody does")
    method = pseudo[b":method"].decode("ascii")
    head = RequestHead(
        method,
        read_path(pseudo[b":path"]),
        host,
        port,
        tuple(_join_cookies([one for one in fields if one[0] not in _LEFT_OUT])),
        _read_length([value for name, value in fields if name == b"content-length"], ends=ends),
        upgrade=False,
        expects_continue=bool(expects) and not ends,
        closes=False,
        is_old=False,
    )
    return Http2Request(head, (b"te", b"trailers") in fields)


_LEFT_OUT = HOP_BY_HOP | {b"host", b"content-length"}
_OF_CONNECTIONS = (HOP_BY_HOP | {b"transfer-encoding"}) - {b"te", b"trailer", b"expect", b"proxy-authorization"}


def _check_fields(fields: Pairs) -> None:
    for name, value in fields:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise RequestInvalid(RequestFault.MALFORMED, "there is an odd sign in a header")
        if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise RequestInvalid(RequestFault.FRAMING, "a header is about a connection of HTTP/1")
    check_names(name for name, _ in fields)


def _read_length(values: list[bytes], *, ends: bool) -> int | None:
    if len(values) > 1:
        raise RequestInvalid(RequestFault.FRAMING, "the length of the body is said more than once")
    length = read_number(values[0]) if values else None
    if ends and length:
        raise RequestInvalid(RequestFault.FRAMING, "it has a length and no body")
    return 0 if ends else length


def _join_cookies(fields: Pairs) -> Pairs:
    """HTTP/2 may cut them into several headers."""
    cookies = [value for name, value in fields if name == b"cookie"]
    if len(cookies) < 2:
        return fields
    return [*(one for one in fields if one[0] != b"cookie"), (b"cookie", b"; ".join(cookies))]


def write_request(head: RequestHead, *, takes_trailers: bool) -> Pairs:
    host = f"[{head.host}]" if ":" in head.host else head.host
    pairs = [
        (b":method", head.method.encode("ascii")),
        (b":scheme", b"https"),
        (b":authority", (host if head.port is None else f"{host}:{head.port}").encode("ascii")),
        (b":path", head.target.text.encode("ascii")),
        *head.headers,
    ]
    if head.length or (head.length == 0 and head.method not in ("GET", "HEAD", "OPTIONS", "DELETE")):
        pairs.append((b"content-length", b"%d" % head.length))
    if head.expects_continue:
        pairs.append((b"expect", b"100-continue"))
    if takes_trailers:
        pairs.append((b"te", b"trailers"))
    return pairs


class Answer(NamedTuple):
    """The head of an answer, or what comes before it (1xx)."""

    status: int
    headers: Pairs

    @property
    def is_interim(self) -> bool:
        return self.status < 200


def read_answer(pairs: Iterable[tuple[bytes, bytes]]) -> Answer:
    """What a server said by HTTP/2. Raises ResponseInvalid."""
    (first, status), *fields = [(bytes(name), bytes(value)) for name, value in pairs] or [(b"", b"")]
    if first != b":status" or _STATUS.fullmatch(status) is None or status == b"101":
        raise ResponseInvalid("its first header is no status")
    return Answer(int(status), read_trailers(fields))


def read_trailers(pairs: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """Headers that go on to the box, of what a server said. Raises ResponseInvalid."""
    fields = [(bytes(name), bytes(value)) for name, value in pairs]
    for name, value in fields:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value.strip(b" \t")) is None:
            raise ResponseInvalid("there is an odd sign in a header")
    return [(name, value.strip(b" \t")) for name, value in fields if name not in RESPONSE_HOP_BY_HOP]


def write_answer(answer: Answer) -> Pairs:
    return [(b":status", b"%d" % answer.status), *answer.headers]
