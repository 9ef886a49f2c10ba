"""Promise: an answer is read the same in whatever pieces it comes, and what is not plainly HTTP/1.1 is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.client.http1 import Answer, ProtocolBroken, chunk_of, request_head
from coldframe.contract.errors import InvalidArgument


def read(pieces: list[bytes]) -> tuple[Answer, bytes]:
    """Feed the pieces, then the end of the connection; return the answer and its body."""
    answer = Answer()
    left = [*pieces, b""]
    while not answer.read_head():
        answer.feed(left.pop(0))
    body = b""
    while not answer.complete:
        part = answer.read_part()
        body += part
        if not part and not answer.complete:
            answer.feed(left.pop(0))
    return answer, body


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(at)]


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
_ANSWERS = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  1, 2 \r\n\r\nhello", b"hello", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nx-a: 1, 2\r\n\r\n", b"", True),
    (_CHUNKED + b"5\r\nhello\r\n6;name=value\r\n\r\n you\r\n0\r\n\r\n", b"hello\r\n you", True),
    (_CHUNKED + b"0\r\nTrailer: x\r\n\r\n", b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + _CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789", True),
    (b"HTTP/1.1 200 OK\r\nX-A: 1, 2\r\n\r\nto the end", b"to the end", False),
    (b"HTTP/1.0 200 OK\r\nX-A: 1, 2\r\nContent-Length: 1\r\n\r\nx", b"x", False),
    (b"HTTP/1.1 200 OK\r\nX-A: 1, 2\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", b"x", False),
]


@given(st.sampled_from(_ANSWERS), st.lists(st.integers(0, 300), max_size=20))
def test_an_answer_is_the_same_however_it_is_cut(case: tuple[bytes, bytes, bool], places: list[int]) -> None:
    data, body, keeps = case
    answer, found = read(cut(data, places))
    assert (answer.status, answer.headers["x-a"].replace(",", "").split(), found) == (200, ["1", "2"], body)
    assert (answer.keeps_connection, answer.rest) == (keeps, b"")


def test_what_follows_an_answer_is_left_for_the_next() -> None:
    first, body = read([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 204 No Content\r\n\r\n"])
    assert body == b"x"
    second = Answer(first.rest)
    assert second.read_head() and second.complete and second.status == 204


@pytest.mark.parametrize("code", [204, 304])
def test_an_answer_without_a_body_is_complete_with_its_head(code: int) -> None:
    answer, body = read([b"HTTP/1.1 %d x\r\nContent-Length: 7\r\n\r\n" % code])
    assert (answer.complete, body) == (True, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200\n\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nX-B: b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        _CHUNKED + b"5\r\nhello",
        _CHUNKED + b"5\r\nhello\r\n",
        _CHUNKED + b"5\r\nhello\r\n0\r\n",
        _CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
        _CHUNKED + b"\r\nhello\r\n0\r\n\r\n",
        _CHUNKED + b"4\r\nhello\r\n0\r\n\r\n",
        _CHUNKED + b"0\r\nhello\r\n0\r\n\r\n",
        _CHUNKED + b"5" * 9000,
    ],
)
def test_what_is_no_answer_or_not_a_whole_one_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        read([data])


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\0b", "\u20ac"])
def test_a_header_cannot_smuggle_another(value: str) -> None:
    with pytest.raises(InvalidArgument):
        request_head("GET", "/", [("Idempotency-Key", value)])
    with pytest.raises(InvalidArgument):
        request_head("GET", "/", [(value, "x")])


def test_a_request_and_its_chunks_are_written_as_they_should_be() -> None:
    head = request_head("PUT", "/v1/x", [("Host", "h"), ("A", "b")])
    assert head + chunk_of(b"0123456789") == b"PUT /v1/x HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\na\r\n0123456789\r\n"
