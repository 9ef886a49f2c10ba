"""A body in chunks is read in the only way in which it can be read, whatever pieces it comes in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.host.egress.bodies import MAX_TRAILER_BYTES, BodyInvalid, ChunkReader, chunk


def read(pieces: list[bytes]) -> tuple[bytes, ChunkReader]:
    reader = ChunkReader()
    return b"".join(reader.feed(piece) for piece in pieces), reader


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(1, 7), st.binary(max_size=9))
def test_what_was_put_into_chunks_comes_out_and_what_follows_is_kept(
    parts: list[bytes], size: int, behind: bytes
) -> None:
    data = b"".join(chunk(part) for part in parts) + chunk(b"")
    found, reader = read([data[start : start + size] for start in range(0, len(data), size)])
    assert (found, reader.is_over) == (b"".join(parts), True)
    found, reader = read([data + behind])
    assert (found, reader.is_over, reader.rest) == (b"".join(parts), True, behind)


def test_extensions_and_trailers_are_left_out() -> None:
    found, reader = read([b"3 ; a=b\r\nabc\r\n0;x\r\nX-Checksum: 1\r\n\r\nnext"])
    assert (found, reader.is_over, reader.rest) == (b"abc", True, b"next")


@pytest.mark.parametrize(
    "data",
    [
        *(b"\r\n", b" 3\r\nabc", b"3 \r\nabc\r\n", b"+3\r\nabc", b"0x3\r\nabc", b"3\nabc\n", b"3_0\r\n", b"g\r\n"),
        *(b"3\r\nabcd\r\n", b"3\r\nabc\n\r\n", b"3\r\nabcX", b"3\rabc", b"3;\x00\r\nabc", b"3;a\nb\r\nabc"),
        *(
            b"1" * 13 + b"\r\n",
            b"3;" + b"a" * 2000,
            b"0\r\nno header\r\n\r\n",
            b"0\r\n: x\r\n\r\n",
            b"0\r\n folded: x\r\n",
        ),
        b"0\r\n" + b"A: b\r\n" * MAX_TRAILER_BYTES,
    ],
)
@pytest.mark.parametrize("size", [1, 3, 10_000_000])
def test_whatever_could_be_read_in_two_ways_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(BodyInvalid):
        read([data[start : start + size] for start in range(0, len(data), size)] + [b"\r\n" * 2])


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader_in_another_way(data: bytes) -> None:
    try:
        found, _ = read([data])
    except BodyInvalid:
        return
    assert len(found) <= len(data)
