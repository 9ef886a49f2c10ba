"""A file that was there before it got its name is one that was made for it: empty, of that name alone, and in nobody's place."""

import ctypes
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.guest import ready_files
from coldframe.guest.ready_files import MOST_READY, ReadyFiles
from tests.host.forked import in_child


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield held
    os.close(held)


def write(file: int, text: bytes) -> None:
    os.write(file, text)
    os.close(file)


def test_each_has_its_own_name_and_content_whether_one_was_ready_or_not(directory: int, tmp_path: Path) -> None:
    files = ReadyFiles(directory)
    names = [f"file-{number}" for number in range(3 * MOST_READY)]
    for name in names:
        if name != names[1]:
            files.prepare()
        write(files.make(name), name.encode())
    for _ in range(MOST_READY + 1):
        write(files.make(f"late-{len(names)}"), b"late")
        names.append(f"late-{len(names)}")
    there = [name for name in os.listdir(tmp_path) if not name.startswith(".")]
    assert sorted(there) == sorted(names)
    assert all((tmp_path / name).read_text() in (name, "late") for name in names)


def test_nothing_is_replaced_and_what_was_ready_is_there_for_the_next_one(directory: int, tmp_path: Path) -> None:
    files = ReadyFiles(directory)
    files.prepare()
    write(files.make("a"), b"first")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            files.make("a")
    write(files.make("b"), b"second")
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"first", b"second"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_file_that_cannot_be_opened_does_not_keep_its_name(directory: int, tmp_path: Path) -> None:
    files = ReadyFiles(directory)
    files.prepare()

    def whole() -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        try:
            files.make("a")
        except OSError as error:
            return str(error.strerror)
        return "made"

    assert in_child(whole) == "Too many open files"
    assert not (tmp_path / "a").exists()
    write(files.make("a"), b"a")


def test_what_is_ready_is_taken_once_also_where_two_have_the_same_directory(directory: int, tmp_path: Path) -> None:
    earlier, later = ReadyFiles(directory), ReadyFiles(directory)
    earlier.prepare()
    later.prepare()
    write(later.make("a"), b"later")
    write(earlier.make("b"), b"earlier")
    write(earlier.make("c"), b"earlier")
    assert {name: (tmp_path / name).read_bytes() for name in "abc"} == {"a": b"later", "b": b"earlier", "c": b"earlier"}


def test_what_a_keeper_of_before_has_left_is_nobodys_record(directory: int, tmp_path: Path) -> None:
    left = [tmp_path / f".ready-{number}" for number in range(MOST_READY)]
    held = [os.open(path, os.O_RDWR | os.O_CREAT, 0o400) for path in left]
    files = ReadyFiles(directory)
    files.prepare()
    write(files.make("a"), b"a")
    for file in held:
        write(file, b"of another one")
    write(files.make("b"), b"b")
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"a", b"b"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_where_none_can_get_another_name_each_is_made_when_it_is_asked_for(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Without:
        def renameat2(self, *_: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(ready_files, "_libc", Without())
    files = ReadyFiles(directory)
    for name in ("a", "b", "c"):
        files.prepare()
        write(files.make(name), name.encode())
    with pytest.raises(FileExistsError):
        files.make("a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_a_directory_that_is_full_or_gone_tells_it_when_a_file_is_asked_for(directory: int, tmp_path: Path) -> None:
    files = ReadyFiles(directory)
    os.rmdir(tmp_path)
    files.prepare()
    with pytest.raises(FileNotFoundError):
        files.make("a")
