"""Whatever tree an agent leaves goes away whole, and nothing that it points to or is moved to."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldframe.host import removal
from coldframe.host.machine import Machine
from coldframe.host.removal import remove_tree
from tests.host import boxes
from tests.host.forked import in_child
from tests.host.machines import on_a_machine


def deep(parent: Path, levels: int) -> None:
    held = os.open(parent, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=held)
        below = os.open("d", os.O_RDONLY, dir_fd=held)
        os.close(held)
        held = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=held))
    os.close(held)


def test_a_tree_of_three_thousand_levels_goes(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    deep(tmp_path / "tree", 3000)
    remove_tree(str(tmp_path / "tree"))
    assert os.listdir(tmp_path) == []


def test_what_is_missing_is_fine_and_a_file_or_link_goes_by_itself(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "missing"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "inside").touch()
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "file").touch()
    remove_tree(str(tmp_path / "link"))
    remove_tree(str(tmp_path / "file"))
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["inside"]


def test_no_link_of_any_kind_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "absolute").symlink_to(outside)
    (tree / "relative").symlink_to("../outside")
    (tree / "dangling").symlink_to("nowhere")
    os.link(outside / "file", tree / "hard")
    os.mkfifo(tree / "pipe")
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "file").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o750


def test_directories_without_any_permission_go_even_without_root(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)

    def as_ordinary() -> list[str]:
        boxes.become_ordinary()
        base = os.open("/tmp", os.O_RDONLY)  # the way to tmp_path may be closed to others
        os.fchdir(base)
        name = f"cf-removal-{os.getpid()}"
        os.makedirs(f"{name}/a/b/c")
        for path in ("a/b/c", "a/b", "a", "."):
            os.chmod(f"{name}/{path}", 0)
        remove_tree(f"/tmp/{name}")
        return [entry for entry in os.listdir("/tmp") if entry == name]

    assert in_child(as_ordinary) == []


def test_a_directory_moved_meanwhile_ends_the_walk_below_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`..` of a directory that was moved up would lead above the tree, with names that an agent chose."""
    shelf = tmp_path / "shelf"
    for name in ("neighbour", "victim/x/victim/d/e"):
        (shelf / name).mkdir(parents=True)
    (shelf / "neighbour" / "file").touch()
    entered = removal._enter
    moved = threading.Event()

    def enter(parent: int, name: str) -> int:
        here = entered(parent, name)
        if name == "e" and not moved.is_set():
            moved.set()
            os.rename(shelf / "victim/x/victim/d", shelf / "victim/d")
        return here

    monkeypatch.setattr(removal, "_enter", enter)
    with pytest.raises(OSError, match="moved"):
        remove_tree(str(shelf / "victim"))
    assert moved.is_set()
    assert (shelf / "neighbour" / "file").exists()
    monkeypatch.undo()
    remove_tree(str(shelf / "victim"))
    assert os.listdir(shelf) == ["neighbour"]


def test_two_who_remove_the_same_tree_are_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sweep does with what is being removed; the other one is done before each step of ours in turn."""
    tree = tmp_path / "tree"
    steps = ("_enter", "_next_directory", "_identity")
    for turn in range(1, 30):
        (tree / "one" / "deeper").mkdir(parents=True)
        (tree / "two").mkdir()
        left = turn
        with monkeypatch.context() as patch:

            def counted(name: str) -> Callable[..., Any]:
                step = getattr(removal, name)

                def count(*arguments: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        shutil.rmtree(tree)
                    return step(*arguments)

                return count

            for name in steps:
                patch.setattr(removal, name, counted(name))
            remove_tree(str(tree))
        assert not tree.exists()
        if left > 0:
            return
    pytest.fail("each step was met")


def test_what_cannot_be_removed_is_told_and_keeps_a_sweep_from_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = removal._enter

    def enter_good_ones(parent: int, name: str) -> int:
        if "bad" in name:
            raise OSError(errno.EIO, "as the test wants it", name)
        return enter(parent, name)

    async def steps(machine: Machine) -> None:
        places = {"boxes": ".gone-1", "settings": "", "background": "", "workspace": ".gone-1"}
        for place, tail in places.items():
            for name in ("a-bad", "good", "z-bad"):
                os.makedirs(os.path.join(machine._data, place, name + tail, "deep"))
        with monkeypatch.context() as patch:
            patch.setattr(removal, "_enter", enter_good_ones)
            removed = await machine.sweep(keep_boxes=set(), keep_sessions=set())
        assert "workspace/good.gone-1" in removed
        assert not any("bad" in name for name in removed)
        for place in places:
            left = sorted(os.listdir(os.path.join(machine._data, place)))
            assert [name.partition(".")[0] for name in left] == ["a-bad", "z-bad"], place
        assert sum("as the test wants it" in line for line in caplog.messages) == 2 * len(places)
        await machine.sweep(keep_boxes=set(), keep_sessions=set())
        assert [os.listdir(os.path.join(machine._data, place)) for place in places] == [[]] * len(places)

    on_a_machine(steps)
