"""Lines of a history that are given once more are not there twice, and nothing that is new is left out."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.host.history_tail import LOOK_BACK_BYTES, unseen


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / ".exec_history"
    path.touch()
    yield path


def line(sequence: int, command: str = "true") -> bytes:
    return json.dumps({"command": command, "sequence": sequence}).encode() + b"\n"


def append(path: Path, lines: bytes) -> None:
    with open(path, "a+b") as file:
        file.write(unseen(file.fileno(), lines))


def test_lines_are_appended_as_they_are(history: Path) -> None:
    append(history, line(1) + line(2))
    append(history, line(5))
    assert history.read_bytes() == line(1) + line(2) + line(5)


def test_what_is_given_once_more_is_there_once(history: Path) -> None:
    append(history, b"".join(line(number) for number in range(1, 8)))
    append(history, b"".join(line(number) for number in range(3, 11)))
    append(history, line(10))
    append(history, b"")
    assert history.read_bytes() == b"".join(line(number) for number in range(1, 11))


def test_a_ledger_that_was_begun_anew_counts_from_one_again_and_is_shown(history: Path) -> None:
    append(history, line(1, "old") + line(2, "old"))
    append(history, line(1, "new") + line(2, "new"))
    assert history.read_bytes() == line(1, "old") + line(2, "old") + line(1, "new") + line(2, "new")


def test_half_a_line_that_a_full_disk_left_stays_a_line_of_its_own_and_is_given_whole_again(history: Path) -> None:
    history.write_bytes(line(1) + line(2)[:-5])
    append(history, line(1) + line(2) + line(3))
    assert history.read_bytes() == line(1) + line(2)[:-5] + b"\n" + line(2) + line(3)


@pytest.mark.parametrize("size", [20_000, LOOK_BACK_BYTES // 2])
def test_a_long_line_at_the_end_is_known_again(history: Path, size: int) -> None:
    long = line(2, "x" * size)
    append(history, line(1) + long)
    append(history, line(1) + long + line(3))
    assert history.read_bytes() == line(1) + long + line(3)


@pytest.mark.parametrize("odd", [b"\n", b"no json\n", b"[1]\n", b'{"sequence":"x"}\n', b"[" * 100_000 + b"\n"])
def test_whatever_stands_there_new_lines_are_written(history: Path, odd: bytes) -> None:
    history.write_bytes(odd)
    append(history, line(7))
    append(history, line(7) + line(8))
    assert history.read_bytes() == odd + line(7) + line(8)
