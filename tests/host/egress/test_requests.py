"""Promise: a request is read in the only way that it can be read, and what goes on is what was read."""

import http.client
import io

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.host.egress.requests import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    HeadReader,
    RequestFault,
    RequestHead,
    RequestInvalid,
    read_head,
    write_head,
)

HOST = b"Host: api.example.com"


def head(*headers: bytes, first: bytes = b"GET /v1/items?x=1 HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *headers]) + b"\r\n\r\n"


def fault(data: bytes) -> RequestFault:
    with pytest.raises(RequestInvalid) as caught:
        read_head(data)
    return caught.value.fault


def test_a_plain_request_is_read() -> None:
    found = read_head(head(HOST, b"Accept: */*", b"X-Two: a", b"x-two: b", b"Authorization: Bearer handle"))
    assert (found.method, found.target.text, found.host, found.port) == (
        "GET",
        "/v1/items?x=1",
        "api.example.com",
        None,
    )
    assert found.headers == (
        (b"accept", b"*/*"),
        (b"x-two", b"a"),
        (b"x-two", b"b"),
        (b"authorization", b"Bearer handle"),
    )
    assert (found.length, found.upgrade, found.expects_continue, found.closes) == (0, False, False, False)


def test_a_body_is_a_length_or_chunks() -> None:
    assert read_head(head(HOST, b"Content-Length: 12", first=b"POST / HTTP/1.1")).length == 12
    assert read_head(head(HOST, b"Transfer-Encoding: Chunked", first=b"POST / HTTP/1.1")).length is None


def test_the_host_has_to_be_the_destination() -> None:
    assert read_head(head(b"host: API.Example.com:8443")).is_for("api.example.com", 8443)
    assert read_head(head(HOST)).is_for("api.example.com", 8443)
    assert not read_head(head(HOST + b":80")).is_for("api.example.com", 443)
    assert not read_head(head(HOST)).is_for("other.example.com", 443)
    assert read_head(head(b"Host: [2606:4700::1]:443")).is_for("2606:4700::1", 443)
    assert read_head(head(b"Host: 8.8.8.8")).host == "8.8.8.8"


HOSTS = {
    "none": head(b"Accept: */*"),
    "two": head(HOST, HOST),
    "two in one": head(b"Host: a.example.com, b.example.com"),
    "empty": head(b"Host:"),
    "user": head(b"Host: user@api.example.com"),
    "path": head(b"Host: api.example.com/x"),
    "dot at the end": head(HOST + b"."),
    "no port": head(HOST + b":"),
    "port 0": head(HOST + b":0"),
    "port too large": head(HOST + b":65536"),
    "odd address": head(b"Host: 127.1"),
    "address without brackets": head(b"Host: ::1"),
    "name in brackets": head(b"Host: [api.example.com]"),
    "no ASCII": head("Host: bücher.example".encode()),
    "single label": head(b"Host: localhost"),
}


@pytest.mark.parametrize("case", HOSTS)
def test_not_exactly_one_host_is_refused(case: str) -> None:
    assert fault(HOSTS[case]) is RequestFault.HOST


CL, TE = b"Content-Length: 5", b"Transfer-Encoding: chunked"
FRAMINGS = {
    "length and chunks": head(HOST, CL, TE),
    "chunks and length": head(HOST, TE, CL),
    "two lengths": head(HOST, CL, b"Content-Length: 6"),
    "the same twice": head(HOST, CL, CL),
    "a list of lengths": head(HOST, b"Content-Length: 5, 5"),
    "sign": head(HOST, b"Content-Length: +5"),
    "hexadecimal": head(HOST, b"Content-Length: 0x5"),
    "empty length": head(HOST, b"Content-Length:"),
    "huge length": head(HOST, b"Content-Length: 99999999999999999999"),
    "chunks twice": head(HOST, TE, TE),
    "chunked, chunked": head(HOST, b"Transfer-Encoding: chunked, chunked"),
    "gzip": head(HOST, b"Transfer-Encoding: gzip, chunked"),
    "identity": head(HOST, b"Transfer-Encoding: identity"),
    "odd letter": head(HOST, b"Transfer-Encoding: xchunked"),
    "chunks of 1.0": head(HOST, TE, first=b"POST / HTTP/1.0"),
}


@pytest.mark.parametrize("case", FRAMINGS)
def test_an_ambiguous_end_of_the_body_is_refused(case: str) -> None:
    assert fault(FRAMINGS[case]) is RequestFault.FRAMING


MALFORMED = {
    "folded": head(HOST, b"A: b\r\n c"),
    "folded with a tab": head(HOST, b"A: b\r\n\tContent-Length: 1"),
    "folded first": head(b" " + HOST),
    "bare LF": head(HOST, b"A: b\nContent-Length: 5"),
    "bare CR": head(HOST, b"A: b\rContent-Length: 5"),
    "zero": head(HOST, b"A: b\0"),
    "space before the colon": head(HOST, b"Content-Length : 5"),
    "no colon": head(HOST, b"Accept"),
    "no name": head(HOST, b": x"),
    "underscore": head(HOST, b"Content_Length: 5"),
    "underscores": head(HOST, b"transfer_encoding: chunked"),
    "underscore of a credential": head(b"X: y", HOST, b"proxy_authorization: x"),
    "two spaces": head(HOST, first=b"GET  / HTTP/1.1"),
    "space at the front": head(HOST, first=b" GET / HTTP/1.1"),
    "no host beside": head(HOST, b"Host : b.example.com"),
    "two targets": head(HOST, first=b"GET / /x HTTP/1.1"),
    "odd expectation": head(HOST, b"Expect: 200-ok"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_programs_read_in_two_ways_is_refused(case: str) -> None:
    assert fault(MALFORMED[case]) is RequestFault.MALFORMED


@pytest.mark.parametrize(
    "target",
    [
        *(b"http://api.example.com/", b"https://evil.example/", b"//evil.example/", b"*", b"evil.example:443", b"/a#b"),
        *(b"/a/../b", b"/%2e%2e/b", b"/a//b", b"/a\\b", b"/a%5cb", b"/a%00"),
    ],
)
def test_a_target_is_a_plain_path(target: bytes) -> None:
    assert fault(head(HOST, first=b"GET " + target + b" HTTP/1.1")) is RequestFault.TARGET


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1", b"", b"HTTP/1.1 "])
def test_other_versions_are_refused(version: bytes) -> None:
    assert fault(head(HOST, first=b"GET / " + version)) is RequestFault.VERSION
    assert fault(b"\r\n" + head(HOST)) is RequestFault.VERSION
    assert fault(b"PRI * HTTP/2.0\r\n\r\n") is RequestFault.VERSION


@pytest.mark.parametrize(
    "name",
    [
        *(b"X-HTTP-Method-Override", b"x_http_method", b"X-Method-Override", b"X-Original-URL", b"X-Rewrite-Url"),
        *(b"X-Forwarded-Host", b"x_forwarded_host", b"X-Original-Host", b"X-Host"),
    ],
)
def test_a_header_for_another_method_or_path_is_refused(name: bytes) -> None:
    assert fault(head(HOST, name + b": DELETE")) is RequestFault.OVERRIDE


def test_what_concerns_the_connection_stays_here() -> None:
    found = read_head(
        head(
            HOST,
            b"Connection: keep-alive, X-Mine, Upgrade, HTTP2-Settings",
            b"X-Mine: 1",
            b"Keep-Alive: timeout=5",
            b"Proxy-Authorization: Basic x",
            b"TE: trailers",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAA",
            b"X-Kept: 1",
        )
    )
    assert found.headers == ((b"x-kept", b"1"),)
    assert not found.upgrade


def test_a_connection_option_takes_neither_host_nor_length_away() -> None:
    found = read_head(head(HOST, CL, b"Connection: Host, Content-Length", first=b"POST / HTTP/1.1"))
    assert (found.host, found.length) == ("api.example.com", 5)
    assert write_head(found).count(b"content-length: 5\r\n") == 1


def test_a_websocket_is_recognised() -> None:
    upgrade = (b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket", b"Sec-WebSocket-Key: x")
    found = read_head(head(HOST, *upgrade))
    assert found.upgrade
    assert write_head(found).endswith(b"sec-websocket-key: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    assert not read_head(head(HOST, *upgrade, first=b"GET / HTTP/1.0")).upgrade
    assert not read_head(head(HOST, upgrade[1])).upgrade


def test_an_older_client_closes_unless_it_says_otherwise() -> None:
    old = b"GET / HTTP/1.0"
    assert read_head(head(HOST, first=old)).closes
    assert not read_head(head(HOST, b"Connection: Keep-Alive", first=old)).closes
    assert read_head(head(HOST, b"Connection: close")).closes
    assert read_head(head(HOST, b"Expect: 100-Continue")).expects_continue


def test_a_header_that_is_added_replaces_all_of_its_name() -> None:
    found = read_head(head(HOST, b"Authorization: Bearer a", b"authorization: Bearer b"))
    written = write_head(found, added=((b"authorization", b"Bearer real"),))
    assert written.count(b"authorization") == 1
    assert b"authorization: Bearer real\r\n" in written


def test_a_head_has_limits() -> None:
    lines = [b"A: b"] * (MAX_HEADERS - 1)
    assert len(read_head(head(HOST, *lines)).headers) == MAX_HEADERS - 1
    assert fault(head(HOST, *lines, b"A: b")) is RequestFault.TOO_LARGE
    reader = HeadReader()
    with pytest.raises(RequestInvalid) as caught:
        for _ in range(MAX_HEAD_BYTES // 1000 + 1):
            assert reader.feed(b"A" * 1000) is None
    assert caught.value.fault is RequestFault.TOO_LARGE


def test_lines_without_cr_are_not_waited_on() -> None:
    with pytest.raises(RequestInvalid):
        HeadReader().feed(b"GET / HTTP/1.1\nHost: api.example.com\n\n")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_it_makes_no_difference_how_the_bytes_come(step: int) -> None:
    data, body = head(HOST, CL, first=b"POST / HTTP/1.1"), b"hello"
    reader, found, place = HeadReader(), None, 0
    while found is None:
        found = reader.feed((data + body)[place : place + step])
        place += step
    assert found == read_head(data)
    assert reader.rest == (data + body)[len(data) : place]


PIECES = st.lists(
    st.sampled_from(
        [
            *(
                b"GET ",
                b"POST ",
                b"/",
                b"/a",
                b" HTTP/1.1",
                b" HTTP/1.0",
                b"\r\n",
                b"\r\n",
                b"\r\n",
                b"\n",
                b"\r",
                b" ",
            ),
            *(HOST, HOST, b"Host: b.example.com", CL, TE, b"Content-Length: 0", b": ", b"X: y", b"Connection: close"),
            *(b"Expect: 100-continue", b"\0", b"_", b"\xff", b"Transfer-Encoding:", b"Connection: X, te", b"\t"),
        ]
    ),
    max_size=24,
).map(b"".join)


def check_rewritten(data: bytes) -> None:
    """If the head is accepted, others read the same out of what goes on, and reading it again changes nothing."""
    try:
        found = read_head(data + b"\r\n\r\n")
    except RequestInvalid:
        return
    written = write_head(found)
    again = read_head(written)
    assert again == found._replace(is_old=False)  # what goes on is HTTP/1.1
    assert write_head(again) == written
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(written)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method.decode(), event.target.decode()) == (found.method, found.target.text)
    first, _, rest = written.partition(b"\r\n")
    parsed = http.client.parse_headers(io.BytesIO(rest))
    assert parsed.get_all("Host") == [found.host if found.port is None else f"{found.host}:{found.port}"]
    assert len(parsed.get_all("Content-Length", []) + parsed.get_all("Transfer-Encoding", [])) <= 1
    assert first.count(b" ") == 2


@settings(max_examples=300, deadline=None)
@given(PIECES)
def test_what_goes_on_is_read_alike_by_others(data: bytes) -> None:
    check_rewritten(data)


@settings(max_examples=300, deadline=None)
@given(PIECES, st.sampled_from([b"GET /v1 HTTP/1.1\r\n", b"POST /%41?q HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n"]))
def test_what_goes_on_behind_a_good_beginning_is_read_alike_by_others(data: bytes, first: bytes) -> None:
    check_rewritten(first + HOST + b"\r\n" + data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    check_rewritten(data)
    try:
        found = HeadReader().feed(data)
    except RequestInvalid:
        return
    assert found is None or isinstance(found, RequestHead)
