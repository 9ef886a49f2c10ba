"""The target of requests to previews: what is passed on is read by another parser as the same, or nothing is passed on."""

import random
from typing import Any

import h11

from coldframe.fronts.edge.relay_bodies import Body, BodyInvalid
from coldframe.fronts.edge.relay_heads import (
    COOKIE,
    PREVIEW_TOKEN,
    TRAFFIC_TOKEN,
    HeadInvalid,
    Names,
    is_ours,
    parse_request,
    parse_response,
    request_for_box,
    response_for_visitor,
)
from tests.fuzz.target import Fault, spoil, within_processor_time

WORDS = (
    "\r\n", "\n", "\r", "\0", "\t", " ", ":", ";", ",", "=", "é", "\x0b", "\x7f", "Content-Length: 5", "Content-Length: 05", "content-length:\t5",
    "Transfer-Encoding: chunked", "transfer-encoding: Chunked", "Transfer-Encoding: identity", "Host: other", "Connection: close, cookie",
    "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "Cookie: coldframe_preview=secret", "Cookie: a=1; coldframe_preview = secret",
    "Authorization: Bearer cfp_secret", "authorization: bearer\tcf_secret", "Coldframe-Preview-Token: secret", "E2b-Traffic-Access-Token: secret",
    "X-Forwarded-For: secret", "HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "GET ", "POST ", "* ", "http://x/", "5\r\nhello\r\n", "0\r\n", "0\r\n\r\n",
    "5;a=b\r\nhello\r\n", "-5", "0x5", "fffffffffffff", "Set-Cookie: coldframe_preview=x", "Location: http://localhost:8000/x", "304", "101", "204",
)  # fmt: skip
REQUEST = (
    "POST /a?b HTTP/1.1\r\nHost: 8000-x.localhost\r\nCookie: a=1; coldframe_preview=secret; b=2\r\n"
    "Authorization: Bearer cf_secret\r\nTransfer-Encoding: chunked\r\n\r\n"
)
RESPONSE = "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=localhost\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
CHUNKS = "5\r\nhello\r\n1;x\r\n \r\n0\r\n\r\nbehind"
NAMES = Names("http", "8000-x.localhost:4561", 8000)
SECRETS = (PREVIEW_TOKEN, TRAFFIC_TOKEN, b"x-api-key", b"x-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port")
FORWARDED = (b"127.0.0.1", b"8000-x.localhost:4561", b"http", b"4561")


class Relays:
    name = "relays"

    def make(self, random: random.Random) -> str:
        """Its first line says what it is, and where a body is cut."""
        kind, seed = random.choice((("request", REQUEST), ("response", RESPONSE), ("chunks", CHUNKS)))
        return f"{kind} {random.randrange(1, 40)}\n{spoil(random, seed, WORDS)}"

    def check(self, value: Any) -> None:
        head, _, text = value.partition("\n")
        kind, _, size = head.partition(" ")
        step = int(size) if size.isdigit() and int(size) > 0 else 1
        data = text.encode("utf-8", "surrogatepass")
        try:
            with within_processor_time():
                if kind == "chunks":
                    _check_chunks(data, step)
                elif (end := data.find(b"\r\n\r\n")) >= 0:
                    (_check_request if kind == "request" else _check_response)(data[: end + 4])
        except Fault:
            raise
        except BaseException as error:
            raise Fault(f"{type(error).__name__}: {error}") from error


def _check_request(data: bytes) -> None:
    try:
        head = parse_request(data)
        sent = request_for_box(head, NAMES, "127.0.0.1")
    except HeadInvalid:
        return
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(sent)
    seen = reader.next_event()
    if not isinstance(seen, h11.Request) or (seen.method, seen.target) != (head.method, head.target):
        raise Fault("another parser reads another request")
    for name, value in seen.headers:
        cookies = [one.partition(b"=")[0].strip() for one in value.split(b";")] if name == b"cookie" else []
        ours = name == b"authorization" and b"cf" in value.partition(b" ")[2].strip()[:2]
        if name in SECRETS or COOKIE.encode() in cookies or (ours and is_ours(value)):
            raise Fault("what lets a visitor in is passed on")
        if name.startswith(b"x-forwarded-") and value not in FORWARDED:
            raise Fault("a visitor says of itself who it is")
    told = dict(seen.headers)
    if told.get(b"host") != b"localhost:8000":
        raise Fault("it is asked by another name")
    framing = (
        "chunked" if b"transfer-encoding" in told else "length" if int(told.get(b"content-length", b"0")) else "none"
    )
    if framing != head.framing or (framing == "length" and int(told[b"content-length"]) != head.length):
        raise Fault("another parser reads another body")


def _check_response(data: bytes) -> None:
    try:
        head = parse_response(data, b"GET")
        sent = response_for_visitor(head, NAMES, keeps=True)
        again = parse_response(sent, b"GET")
    except HeadInvalid:
        return
    if (again.status, again.framing, again.length) != (head.status, head.framing, head.length):
        raise Fault("what is passed on is read as something else")
    for name, value in again.headers:
        first, *rest = value.split(b";")
        if name == b"set-cookie" and (
            first.partition(b"=")[0].strip() == COOKIE.encode()
            or any(one.partition(b"=")[0].strip().lower() == b"domain" for one in rest)
        ):
            raise Fault("the box sets what is ours, or what others get")


def _check_chunks(data: bytes, step: int) -> None:
    whole, pieces = _read(data, len(data) or 1), _read(data, step)
    if whole != pieces:
        raise Fault("the same bytes in other pieces are read as something else")
    if whole is None or not whole[2]:
        return
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + whole[0])
    reader.next_event()
    content = b""
    while isinstance(event := reader.next_event(), h11.Data):
        content += bytes(event.data)
    if not isinstance(event, h11.EndOfMessage) or content != whole[1]:
        raise Fault("another parser reads another body")


def _read(data: bytes, step: int) -> tuple[bytes, bytes, bool] | None:
    """What is passed on, the content, and whether it is over; None for what is refused."""
    passed, plain = Body("chunked", trailers=False), Body("chunked", plain=True, trailers=False)
    out = content = b""
    try:
        for at in range(0, len(data), step):
            out += passed.take(data[at : at + step])[0]
            content += plain.take(data[at : at + step])[0]
    except BodyInvalid:
        return None
    return out, content, passed.is_over
