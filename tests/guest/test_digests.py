"""Promise: a digest of a large file is found again by the next sandbox, and nothing that is no digest is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.guest import digests
from coldframe.guest.digests import LEAST_BYTES, KeptDigests

LARGE = (7, LEAST_BYTES, 1_700_000_000_123_456_789, 1_700_000_001_000_000_000)
SMALL = (8, LEAST_BYTES - 1, 1, 1)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "digests", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    yield opened
    os.close(opened)


def test_what_one_keeper_adds_the_next_one_reads(file: int) -> None:
    one, other = KeptDigests(file), KeptDigests(file)
    one.add({LARGE: "a" * 64, SMALL: "b" * 64})
    other.add({(9, *LARGE[1:]): "c" * 64})
    assert KeptDigests(file).read() == {LARGE: "a" * 64, (9, *LARGE[1:]): "c" * 64}


def test_a_digest_is_written_once(file: int) -> None:
    kept = KeptDigests(file)
    kept.add({LARGE: "a" * 64})
    size = os.fstat(file).st_size
    kept.add({LARGE: "a" * 64})
    KeptDigests(file).add({LARGE: "a" * 64})
    assert os.fstat(file).st_size == size


def test_what_is_no_whole_line_is_passed_over(file: int) -> None:
    line = b"%d %d %d %d " % LARGE + b"a" * 64
    for odd in (
        b"\n",
        b"1 2 3\n",
        b"x %d 3 4 " % LARGE[1] + b"a" * 64 + b"\n",
        line[:-1] + b"\n",
        b"\xff\xff\n",
        line[5:],
    ):
        os.write(file, odd)
    os.write(file, b"\n" + line + b"\n" + line)  # the last is still being written
    assert KeptDigests(file).read() == {LARGE: "a" * 64}


def test_without_a_file_nothing_is_kept_and_nothing_fails(file: int) -> None:
    kept = KeptDigests(-1)
    kept.add({LARGE: "a" * 64})
    assert kept.read() == {}
    closed = os.dup(file)
    os.close(closed)
    lost = KeptDigests(closed)
    lost.add({LARGE: "a" * 64})
    assert os.fstat(file).st_size == 0


def test_a_file_does_not_grow_without_end(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MOST_BYTES", 1000)
    for number in range(100):
        KeptDigests(file).add({(number, *LARGE[1:]): "a" * 64})
    assert os.fstat(file).st_size <= 1000
