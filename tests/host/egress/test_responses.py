"""An answer of a server is read in one way, and reaches the box with an end that is as clear."""

import http.client
import io
import json
from http import HTTPStatus

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.host.egress.requests import RequestHead, read_head
from coldframe.host.egress.responses import MOST_INTERIM, Response, ResponseInvalid, refuse

END = b"\r\n\r\n"


def asked(method: str = "GET", *headers: str) -> RequestHead:
    return read_head("\r\n".join([f"{method} / HTTP/1.1", "Host: api.example.com", *headers, "", ""]).encode())


def passed(data: bytes, head: RequestHead | None = None, *, is_old: bool = False, closes: bool = False) -> bytes:
    response = Response(head or asked(), is_old=is_old, closes=closes)
    found = response.feed(data)
    return found if response.is_over or response.has_switched else found + response.feed(b"")


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"nonsense\r\n\r\n",
            b"HTTP/2 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
            b"HTTP/1.1 20 OK\r\n\r\n",
        ),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhalf",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_answer_or_half_of_one_is_none(data: bytes) -> None:
    with pytest.raises(ResponseInvalid) as caught:
        passed(data)
    assert not any(word in str(caught.value) for word in ("nonsense", "colon", "Length", "zz", "HTTP/2"))


@pytest.mark.parametrize("is_old", [False, True])
def test_a_server_that_says_too_much_before_its_answer_gives_none(is_old: bool) -> None:
    hint, answer = b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert b" 200 OK" in passed(hint * MOST_INTERIM + answer, is_old=is_old)
    with pytest.raises(ResponseInvalid):
        passed(hint * (MOST_INTERIM + 1), is_old=is_old)


def test_only_a_websocket_that_was_asked_for_is_switched_to() -> None:
    head = asked("GET", "Connection: upgrade", "Upgrade: websocket")
    response = Response(head, is_old=False, closes=False)
    found = response.feed(b"HTTP/1.1 101 Switching\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\nX: 1\r\n\r\nframes")
    assert found == b"HTTP/1.1 101 Switching\r\nx: 1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert (response.has_switched, response.rest, response.leaves_open) == (True, b"frames", False)
    with pytest.raises(ResponseInvalid):
        passed(b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", head)


def test_of_a_length_beside_chunks_only_the_chunks_are_passed_on() -> None:
    found = passed(
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0\r\nX: y\r\n\r\n"
    )
    assert found == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"


@pytest.mark.parametrize("is_old", [False, True])
def test_an_answer_without_a_length_gets_an_end_that_the_box_can_see(is_old: bool) -> None:
    found = passed(b"HTTP/1.1 200 OK\r\n\r\nsome text", is_old=is_old)
    assert found.endswith(END + (b"some text" if is_old else b"9\r\nsome text\r\n0\r\n\r\n"))
    assert (b"connection: close\r\n" in found) == is_old


def test_a_server_s_connection_is_used_again_only_when_nothing_is_left_in_it() -> None:
    for data, good in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", False),
    ):
        response = Response(asked(), is_old=False, closes=False)
        response.feed(data)
        assert (response.is_over, response.leaves_open) == (True, good), data


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans(), st.integers(1, 50))
def test_a_body_arrives_as_it_was_whatever_pieces_it_comes_in(body: bytes, chunked: bool, size: int) -> None:
    data = b"HTTP/1.1 200 OK\r\n" + (
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        if chunked
        else b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    response = Response(asked(), is_old=False, closes=False)
    found = b"".join(response.feed(data[start : start + size]) for start in range(0, len(data), size))
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(found)
    heard = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Response | h11.Data)
        heard += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert heard == body and response.leaves_open


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_no_bytes_of_a_server_break_the_reader_in_another_way(data: bytes) -> None:
    try:
        passed(b"HTTP/1.1 200 OK\r\n" + data)
    except ResponseInvalid:
        pass


def test_an_answer_of_our_own_says_why() -> None:
    class Heard(io.BytesIO):
        def makefile(self, *_: object) -> "Heard":
            return self

    data = refuse(HTTPStatus.FORBIDDEN, "DENIED_BY_RULE", "crm-read", "no `é`\r\nX: y", closes=True)
    answer = http.client.HTTPResponse(Heard(data))  # type: ignore[arg-type]
    answer.begin()
    assert (answer.status, answer.getheader("connection"), answer.getheader("x")) == (403, "close", None)
    error = json.loads(answer.read())["error"]
    assert error == {"code": "DENIED_BY_RULE", "message": "no `é`\r\nX: y", "rule": "crm-read", "by": "coldframe"}
    assert refuse(HTTPStatus.FORBIDDEN, "x", "y", "z", closes=False, bodiless=True).endswith(END)
