"""The output of a command is kept whole and in order, and a damaged file ends instead of misleading or costing memory."""

import errno
import hashlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.guest.transcript import (
    CHUNK,
    MOST_CHUNK_BYTES,
    OLD_CHUNK,
    STDERR,
    STDOUT,
    TIMED,
    Chunk,
    StoredTranscript,
    Transcript,
)
from tests.host.forked import in_child


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield held
    os.close(held)


def stored(directory: int, name: str = "c.out") -> list[tuple[int, bytes]]:
    transcript = StoredTranscript(os.open(name, os.O_RDONLY, dir_fd=directory))
    try:
        return [(chunk.stream, chunk.data) for chunk in iter(transcript.next, None)]
    finally:
        transcript.close()


def test_chunks_are_read_back_in_the_order_in_which_they_came(directory: int) -> None:
    transcript = Transcript(directory, "c.out")
    before = time.time_ns() // 1000
    chunks = [(STDOUT, b"one"), (STDERR, b""), (STDOUT, b"\xff" * 70_000), (STDERR, b"three")]
    for stream, data in chunks:
        transcript.append(stream, data)
    found = [transcript.chunk(number) for number in range(len(transcript))]
    assert [(chunk.stream, chunk.data) for chunk in found] == chunks
    times = [chunk.at_us or 0 for chunk in found]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns() // 1000
    transcript.close()
    assert stored(directory) == chunks
    assert transcript.total_bytes == sum(len(data) for _, data in chunks)


def test_a_command_without_output_has_no_file(directory: int) -> None:
    transcript = Transcript(directory, "c.out")
    transcript.close()
    assert os.listdir(directory) == []
    assert transcript.digests[STDOUT].summary()["sha256"] == hashlib.sha256(b"").hexdigest()


def test_digest_and_validity_are_those_of_the_whole_stream(directory: int) -> None:
    transcript = Transcript(directory, "c.out")
    euro = "€".encode()
    transcript.append(STDOUT, b"a" + euro[:1])
    assert transcript.digests[STDOUT].summary()["invalid_utf8"]
    transcript.append(STDERR, b"\xff")
    transcript.append(STDOUT, euro[1:])
    summary = transcript.digests[STDOUT].summary()
    assert summary == {"bytes": 4, "sha256": hashlib.sha256(b"a" + euro).hexdigest(), "invalid_utf8": False}
    assert transcript.digests[STDERR].summary()["invalid_utf8"]
    transcript.close()


def test_a_second_command_of_the_same_name_never_writes_into_the_first(directory: int) -> None:
    first, second = Transcript(directory, "c.out"), Transcript(directory, "c.out")
    first.append(STDOUT, b"first")
    with pytest.raises(FileExistsError):
        second.append(STDOUT, b"second")
    first.close()
    assert stored(directory) == [(STDOUT, b"first")]


def test_without_space_the_transcript_stays_as_it_was(directory: int) -> None:
    def fill() -> tuple[int | None, int, int]:
        transcript = Transcript(directory, "c.out")
        transcript.append(STDOUT, b"kept")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # the kernel then writes a part and refuses the rest
        number = None
        try:
            transcript.append(STDOUT, b"x" * 10_000)
        except OSError as error:
            number = error.errno
        transcript.append(STDERR, b"after")
        return number, len(transcript), transcript.total_bytes

    assert in_child(fill) == (errno.EFBIG, 2, 9)
    assert stored(directory) == [(STDOUT, b"kept"), (STDERR, b"after")]


@pytest.mark.parametrize(
    "damage",
    [
        b"\x01\0\0",
        CHUNK.pack(STDOUT | TIMED, 10, 0) + b"short",
        CHUNK.pack(STDOUT | TIMED, 0, 0)[:-1],
        CHUNK.pack(7 | TIMED, 1, 0) + b"x",
        CHUNK.pack(TIMED, 0, 0),
        OLD_CHUNK.pack(STDOUT, 10) + b"short",
        OLD_CHUNK.pack(7, 1) + b"x",
        OLD_CHUNK.pack(0, 0),
    ],
)
def test_a_damaged_chunk_ends_the_transcript(directory: int, damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.out").write_bytes(CHUNK.pack(STDERR | TIMED, 4, 1) + b"good" + damage)
    assert stored(directory) == [(STDERR, b"good")]


def test_a_stored_file_cannot_claim_a_huge_chunk(directory: int, tmp_path: Path) -> None:
    (tmp_path / "c.out").write_bytes(CHUNK.pack(STDOUT | TIMED, MOST_CHUNK_BYTES + 1, 0))
    os.truncate(tmp_path / "c.out", 1 << 34)
    assert stored(directory) == []


def test_what_was_kept_before_there_were_times_is_read_and_skipped_alike(directory: int, tmp_path: Path) -> None:
    old = OLD_CHUNK.pack(STDOUT, 3) + b"one" + OLD_CHUNK.pack(STDERR, 3) + b"two"
    (tmp_path / "c.out").write_bytes(old + CHUNK.pack(STDOUT | TIMED, 5, 7) + b"three")
    transcript = StoredTranscript(os.open("c.out", os.O_RDONLY, dir_fd=directory))
    assert transcript.next() == Chunk(STDOUT, b"one", None)
    assert transcript.skip()
    assert transcript.next() == Chunk(STDOUT, b"three", 7)
    assert not transcript.skip()
    transcript.close()
