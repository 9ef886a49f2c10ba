"""Promise: a record tells what was written whole, and nothing else; whoever wrote it otherwise does no harm."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.guest import manifest, records
from coldframe.guest.records import Record, end_record, open_record, read_record, record_name

START, END = {"at": "2026-01-01T00:00:00+00:00", "command_line": "echo \udcff\n"}, {"result": {"exit_code": 0}}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield held
    os.close(held)


def test_start_and_end_are_read_back_through_a_descriptor_or_a_path(directory: int, tmp_path: Path) -> None:
    file = open_record(directory, "c", START)
    assert read_record(directory, "c") == Record(START, None)
    end_record(file, END)
    assert read_record(directory, "c") == read_record(str(tmp_path), "c") == Record(START, END)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_there_is_one_record_to_an_id(directory: int) -> None:
    os.close(open_record(directory, "c", START))
    with pytest.raises(FileExistsError):
        open_record(directory, "c", {})
    assert read_record(directory, "c") == Record(START, None)


@pytest.mark.parametrize("cut", range(1, 28))
def test_a_line_that_was_cut_off_is_not_there(directory: int, tmp_path: Path, cut: int) -> None:
    end_record(open_record(directory, "c", START), END)
    path = tmp_path / record_name("c")
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_record(directory, "c") == Record(START, None)


def test_the_most_that_a_command_can_change_is_read_back(directory: int) -> None:
    end = {"result": {"files": "\udcff" * (2 * manifest.PATH_BYTES)}}
    end_record(open_record(directory, "c", START), end)
    is_same = read_record(directory, "c") == Record(START, end)
    assert is_same  # too long to be shown


def test_a_record_whose_first_line_could_not_be_kept_is_not_left_behind(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(records, "_write_line", full)
    with pytest.raises(OSError, match="no space"):
        open_record(directory, "c", START)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]\n", b"[" * 100_000 + b"\n", b"\xff\n", b'{"at":1}'])
def test_damage_is_no_record(directory: int, tmp_path: Path, content: bytes) -> None:
    (tmp_path / record_name("c")).write_bytes(content)
    assert read_record(directory, "c") is None


def test_a_link_is_not_followed_and_a_fifo_does_not_hold_the_reader(directory: int, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b'{"at":"x"}\n')
    os.symlink("secret", tmp_path / record_name("link"))
    os.mkfifo(tmp_path / record_name("fifo"))
    with pytest.raises(OSError, match="symbolic links"):
        read_record(directory, "link")
    assert read_record(directory, "fifo") is None
    assert read_record(directory, "never-was") is None
