"""A process that gives up files has only those left that it named, and says what its kernel cannot hold."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.host import confine, landlock
from tests.host.forked import in_child

needs_landlock = pytest.mark.skipif(landlock.version() < 1, reason="the kernel has no Landlock")


def is_refused(step: Callable[[], object]) -> bool:
    try:
        step()
    except PermissionError:
        return True
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("read", "change", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


@needs_landlock
def test_only_what_is_named_can_be_read_or_changed_also_by_root(folder: Path) -> None:
    read, change, other = (folder / name for name in ("read", "change", "other"))
    held = os.open(other / "file", os.O_RDONLY)

    def child() -> list[object]:
        directory = os.open(change, os.O_RDONLY | os.O_DIRECTORY)
        confine.set_no_new_privs()
        landlock.restrict([str(read), str(folder / "absent")], [directory])
        made = os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
        os.write(made, b"x")
        os.rename("made", "moved", src_dir_fd=directory, dst_dir_fd=directory)
        refused = [
            lambda: (read / "file").write_text("x"),
            lambda: (read / "new").write_text("x"),
            lambda: (read / "file").unlink(),
            lambda: (other / "file").read_text(),
            lambda: os.listdir(folder),
            lambda: (other / "new").mkdir(),
            lambda: os.rename(change / "moved", other / "moved"),
            lambda: os.link(change / "moved", read / "linked"),
            lambda: os.symlink("/etc", change / "link"),
            lambda: os.mkfifo(change / "pipe"),
            lambda: os.execv("/bin/true", ["true"]),
        ]
        return [
            (read / "file").read_text(),
            (change / "moved").read_text(),
            os.read(held, 100),
            *(is_refused(step) for step in refused),
        ]

    assert in_child(child) == ["read", "x", b"other", *[True] * 11]
    os.close(held)


@needs_landlock
def test_a_single_file_is_readable_by_its_name(folder: Path) -> None:
    def child() -> list[object]:
        confine.set_no_new_privs()
        landlock.restrict([str(folder / "read" / "file")])
        return [(folder / "read" / "file").read_text(), is_refused(lambda: os.listdir(folder / "read"))]

    assert in_child(child) == ["read", True]


@pytest.mark.skipif(landlock.version() < 6, reason="the kernel's Landlock knows no scopes")
def test_processes_and_abstract_sockets_that_are_not_its_own_are_out_of_reach() -> None:
    name = f"\0cf-landlock-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        parent = os.getpid()

        def child() -> list[bool]:
            confine.set_no_new_privs()
            landlock.restrict([])
            return [
                is_refused(lambda: os.kill(parent, 0)),
                is_refused(lambda: socket.socket(socket.AF_UNIX).connect(name)),
                is_refused(lambda: socket.socket().bind(("127.0.0.1", 0))),
                is_refused(lambda: os.kill(os.getpid(), 0)),
            ]

        assert in_child(child) == [True, True, True, False]


def test_a_kernel_without_it_is_told_and_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    (gap,) = landlock.restrict([])
    assert "every file of its user is open" in gap
    assert (folder / "read" / "file").read_text() == "read"
    assert landlock.describe_gaps(2) and not landlock.describe_gaps(3)
