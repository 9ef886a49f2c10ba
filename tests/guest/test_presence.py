"""Promise: a keeper knows of every other keeper of its workspace, and since when; what a box does hides none."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldframe.guest import presence
from coldframe.guest.presence import Presence
from tests.guest.workspace import unprivileged


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    held = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield held
    os.close(held)


@pytest.fixture
def made(root: int) -> Iterator[Callable[[], Presence]]:
    all_made = []

    def make() -> Presence:
        all_made.append(Presence(root))
        all_made[-1].show()
        return all_made[-1]

    yield make
    for one in all_made:
        leave(one)


def leave(one: Presence) -> None:
    if one._file >= 0:
        os.close(one._file)
        one._file = -1


def lock(path: Path, start: int) -> int:
    """As somebody in a box may."""
    file = os.open(path, os.O_RDONLY)
    presence._ask(file, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, start, 1)
    return file


def test_another_keeper_is_seen_as_long_as_it_is_there(made: Callable[[], Presence]) -> None:
    first = made()
    assert first.others_since_s() is None
    before = int(time.time())
    second = made()
    since = first.others_since_s()
    assert since is not None
    assert before <= since <= time.time()
    assert second.others_since_s() is not None
    leave(second)
    assert first.others_since_s() is None


def test_the_oldest_of_the_others_counts(made: Callable[[], Presence], monkeypatch: pytest.MonkeyPatch) -> None:
    for second in (500, 300, 400):
        monkeypatch.setattr(time, "time", lambda second=second: float(second))
        made()
    monkeypatch.setattr(time, "time", lambda: 200.0)
    assert made().others_since_s() == 300


def test_locks_of_a_box_neither_hide_a_keeper_nor_keep_one_away(made: Callable[[], Presence], tmp_path: Path) -> None:
    first = made()
    second = made()
    since = first.others_since_s()
    assert since is not None
    held = [lock(tmp_path, start) for start in range(1000, 1000 - 2 * presence.MOST_LOCKS, -1)]
    assert first.others_since_s() in range(since + 1)
    made()
    for file in held:
        os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):  # nobody can lock everybody else out
        presence._ask(first._file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, 0, 0)
    assert second.others_since_s() is not None


def test_a_keeper_that_cannot_be_seen_says_so_and_sees_others_everywhere(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    no_directory = os.open(tmp_path / "file", os.O_PATH)
    one = Presence(no_directory)
    with pytest.raises(NotADirectoryError):
        one.show()
    assert one.others_since_s() == 0
    os.close(no_directory)


def test_a_workspace_that_its_owner_may_not_read_is_served_all_the_same(root: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o300)
    assert unprivileged(tmp_path, lambda: first_look(root)) is None


def first_look(root: int) -> int | None:
    one = Presence(root)
    one.show()
    return one.others_since_s()


def test_whether_somebody_else_is_there_is_asked_without_being_seen(made: Callable[[], Presence], root: int) -> None:
    asking = Presence(root)
    assert asking.is_alone()
    other = made()
    assert not asking.is_alone()
    assert other.others_since_s() is None
    asking.show()
    assert not asking.is_alone()
    leave(other)
    assert asking.is_alone()
    leave(asking)
