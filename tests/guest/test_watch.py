"""Promise: "unchanged" is said of a workspace only if a scan would find what the last one found."""

import ctypes
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldframe.guest import watch
from coldframe.guest.manifest import scan
from coldframe.guest.trees import HISTORY
from coldframe.guest.watch import TreeWatch
from tests.guest.workspace import Workspace


@pytest.fixture
def tree(workspace: Workspace) -> Iterator[Workspace]:
    (workspace.path / "dir" / "below").mkdir(parents=True)
    (workspace.path / "dir" / "file").write_text("old")
    (workspace.path / HISTORY.decode()).touch()
    here = os.getcwd()
    yield workspace
    os.chdir(here)  # a keeper's own working directory is the root of its box


@pytest.fixture
def watching(tree: Workspace) -> Iterator[TreeWatch]:
    made = TreeWatch()
    if made.file < 0:
        pytest.skip("no event queue can be had here")
    if not watch._is_local(tree.root):
        pytest.skip("events of this file system are not trusted")
    settle(tree, made)
    assert still(made)
    yield made
    os.close(made.file)


def still(made: TreeWatch) -> bool:
    """Whether nothing has changed."""
    return made.unchanged


def settle(tree: Workspace, made: TreeWatch) -> None:
    """Scan until no file has to be opened for its digest, which counts as a change."""
    known = None
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        known = scan(tree.root, known, watch=made)
        if made.unchanged:
            return


def write_by_map(path: Path) -> None:
    with open(path / "dir" / "file", "r+b") as file, mmap.mmap(file.fileno(), 3) as held:
        held[:3] = b"new"


def move_a_directory_away_and_back(path: Path) -> None:
    (path / "dir").rename(path / "other")
    (path / "other").rename(path / "dir")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda path: (path / "new").touch(),
    "a new file below": lambda path: (path / "dir" / "below" / "new").touch(),
    "a write": lambda path: (path / "dir" / "file").write_text("new"),
    "a write through a map": write_by_map,
    "a mode": lambda path: (path / "dir" / "file").chmod(0o600),
    "the mode of the root": lambda path: path.chmod(0o700),
    "a time": lambda path: os.utime(path / "dir" / "file", (1, 1)),
    "a deletion": lambda path: (path / "dir" / "file").unlink(),
    "a deleted directory": lambda path: (path / "dir" / "below").rmdir(),
    "a move": lambda path: (path / "dir" / "file").rename(path / "file"),
    "a move there and back": move_a_directory_away_and_back,
    "a link": lambda path: os.symlink("x", path / "link"),
    "a second name": lambda path: os.link(path / "dir" / "file", path / "again"),
    "a directory called like the history": lambda path: (path / "dir" / HISTORY.decode()).mkdir(),
    "a truncation": lambda path: os.truncate(path / "dir" / "file", 0),
    "an attribute": lambda path: os.setxattr(path / "dir" / "file", "user.x", b"y"),
    "by another process": lambda path: subprocess.run(
        [sys.executable, "-c", f"open({str(path / 'dir' / 'file')!r}, 'w').write('x')"], check=True
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_change_is_noticed(tree: Workspace, watching: TreeWatch, what: str) -> None:
    try:
        CHANGES[what](tree.path)
    except OSError as error:
        pytest.skip(f"this file system does not take it: {error}")
    watching.read()
    assert not still(watching)


def test_without_a_change_nothing_is_noticed_though_directories_are_listed(
    tree: Workspace, watching: TreeWatch
) -> None:
    for path in (tree.path, tree.path / "dir"):
        os.listdir(path)
    os.stat(tree.path / "dir" / "file")
    watching.read()
    assert still(watching)


def test_the_history_in_the_root_is_no_change(tree: Workspace, watching: TreeWatch) -> None:
    with open(tree.path / HISTORY.decode(), "ab") as file:
        file.write(b"{}\n")
    watching.read()
    assert still(watching)


def test_a_directory_that_is_made_is_watched_from_the_next_scan_on(tree: Workspace, watching: TreeWatch) -> None:
    (tree.path / "made" / "deep").mkdir(parents=True)
    watching.read()
    assert not still(watching)
    settle(tree, watching)
    assert still(watching)
    (tree.path / "made" / "deep" / "file").touch()
    watching.read()
    assert not still(watching)


def test_a_change_between_reading_a_directory_and_the_end_of_the_scan_is_noticed(
    tree: Workspace, watching: TreeWatch
) -> None:
    watching.begin_scan(tree.root)
    held = os.open(tree.path, os.O_RDONLY)
    watching.add(held, is_root=True)
    os.close(held)
    (tree.path / "late").touch()
    watching.end_scan()
    assert not still(watching)


def test_more_directories_than_may_be_watched_always_count_as_changed(tree: Workspace) -> None:
    made = TreeWatch(most_directories=2)
    known = None
    for _ in range(3):
        known = scan(tree.root, known, watch=made)
        assert known.recorded
        assert not still(made)
    os.close(made.file)


def test_without_a_queue_everything_counts_as_changed(tree: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def inotify_init1(self, _: int) -> int:
            return -1

    monkeypatch.setattr(watch, "_libc", Refusing())
    made = TreeWatch()
    known = scan(tree.root, watch=made)
    assert known.recorded
    made.read()
    assert not still(made)


def test_a_watch_that_cannot_be_had_counts_as_changed_and_the_next_scan_tries_again(
    tree: Workspace, watching: TreeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ctypes.CDLL(None, use_errno=True)

    class Full:
        """As the kernel when the user's watches are used up."""

        def inotify_add_watch(self, *_: object) -> int:
            return -1

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    (tree.path / "one more").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(watch, "_libc", Full())
        for _ in range(2):
            scan(tree.root, watch=watching)
            assert not still(watching)
    settle(tree, watching)
    assert still(watching)


def test_lost_events_count_as_a_change(tree: Workspace, watching: TreeWatch) -> None:
    watching._take(watch._EVENT.pack(-1, watch._OVERFLOW, 0, 0))
    assert not still(watching)
    settle(tree, watching)
    assert still(watching)
    (tree.path / "dir" / "new").touch()
    watching.read()
    assert not still(watching)


def test_a_file_with_a_name_elsewhere_is_never_called_unchanged(tree: Workspace, watching: TreeWatch) -> None:
    outside = tree.path.parent / f"outside-{os.getpid()}"
    os.link(tree.path / "dir" / "file", outside)
    try:
        known = None
        for _ in range(3):
            known = scan(tree.root, known, watch=watching)
            assert not still(watching)
    finally:
        outside.unlink()
    settle(tree, watching)
    assert still(watching)
    os.link(tree.path / "dir" / "file", tree.path / "second")
    settle(tree, watching)
    assert still(watching)  # both names are watched


def test_a_socket_and_a_fifo_are_no_obstacle(tree: Workspace, watching: TreeWatch) -> None:
    os.mkfifo(tree.path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        held = os.open(tree.path, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{held}/sock")
        os.close(held)
        settle(tree, watching)
        assert still(watching)
