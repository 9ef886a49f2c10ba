"""The wire to a keeper: whole frames out of any pieces, and an end to whoever does not speak it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.guest.frames import (
    LONG_BYTES,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    PREFIX,
    BadFrame,
    Reader,
    decode_head,
    encode,
    is_whole,
)

HEADS = st.dictionaries(st.text(), st.integers() | st.text(alphabet=st.characters()) | st.booleans(), max_size=4)


@given(st.lists(st.tuples(HEADS, st.binary(max_size=200)), max_size=5), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[tuple[dict, bytes]], size: int) -> None:
    stream = b"".join(encode(head, body) for head, body in frames)
    reader = Reader()
    out = [frame for start in range(0, len(stream), size) for frame in reader.feed(stream[start : start + size])]
    assert out == frames


@pytest.mark.parametrize("size", [1000, 100_000, 1_000_000])
def test_a_long_body_is_read_to_where_it_stays(size: int) -> None:
    frames = [({"a": 1}, b"x"), ({"b": 2}, b"y" * 500_000), ({}, b""), ({"c": 3}, b"z" * LONG_BYTES), ({"d": 4}, b"")]
    stream, reader, out = b"".join(encode(head, body) for head, body in frames), Reader(), []
    while stream:
        room = reader.room
        piece = stream[: size if room is None else min(size, len(room))]
        stream = stream[len(piece) :]
        if room is None:
            out += reader.feed(piece)
        else:
            room[: len(piece)] = piece
            out += reader.filled(len(piece))
    assert out == frames and reader.room is None


def test_a_name_that_is_no_unicode_survives() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert Reader().feed(encode({"path": name})) == [({"path": name}, b"")]


@pytest.mark.parametrize("prefix", [PREFIX.pack(MAX_HEAD_BYTES + 1, 0), PREFIX.pack(0, MAX_BODY_BYTES + 1)])
def test_a_frame_over_the_caps_is_refused_by_its_first_eight_bytes(prefix: bytes) -> None:
    with pytest.raises(BadFrame):
        Reader().feed(prefix)


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"\xff", b'{"a":' * 100_000, b"[" * 100_000])
def test_a_head_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_head(text)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
def test_a_number_that_no_limit_bounds_is_refused(number: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_head(b'{"op":"ask","limits":{"wall_s":' + number + b"}}")
    assert decode_head(b'{"timeout_s":1e308}') == {"timeout_s": 1e308}


def test_only_exactly_one_frame_is_whole() -> None:
    frame = encode({"answer": {}}, b"body")
    assert is_whole(frame)
    assert is_whole(bytearray(frame))
    assert not any(is_whole(frame[:length]) for length in range(len(frame)))
    assert not is_whole(frame + b"x")
    assert json.loads(frame[PREFIX.size : -4]) == {"answer": {}}
