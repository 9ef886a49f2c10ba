"""A tree that was looked over is looked over again once something below it has changed, and until it passes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.host.templates import watched_trees
from coldframe.host.templates.watched_trees import WatchedTrees

CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda top: (top / "a/b/file").write_text("other"),
    "mode": lambda top: (top / "a/b/file").chmod(0o600),
    "times": lambda top: os.utime(top / "a/b/file"),
    "new": lambda top: (top / "a/new").touch(),
    "gone": lambda top: (top / "a/b/file").unlink(),
    "moved": lambda top: (top / "a/b").rename(top / "c"),
    "all gone": shutil.rmtree,
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed_and_nothing_else_costs_a_look(tmp_path: Path, change: str) -> None:
    top = tmp_path / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/file").write_text("text")
    watched, looks = WatchedTrees(), list[str]()

    def look(passes: bool = True) -> int:
        def check(was_touched: bool) -> None:
            looks.append("touched" if was_touched else "look")
            if not passes:
                raise ValueError

        watched.look(str(top), check)
        return len(looks)

    try:
        assert (look(), look()) == (1, 1)
        assert (top / "a/b/file").read_text() == "text" and look() == 1
        CHANGES[change](top)
        for _ in range(2):  # it stays changed for whoever asks again
            with pytest.raises(ValueError):
                look(passes=False)
        assert look() == 4 and looks == ["look", "touched", "touched", "touched"]
        if top.exists():
            assert look() == 4
    finally:
        watched.close()


def test_a_look_is_due_from_time_to_time_and_trees_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, looks = WatchedTrees(), list[str]()
    monkeypatch.setattr(watched_trees, "MOST_TREES", 2)
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        watched.look(str(tmp_path / name), lambda _: looks.append("new"))
    watched.look(str(tmp_path / "three"), lambda _: looks.append("known"))
    watched.look(str(tmp_path / "one"), lambda _: looks.append("forgotten"))
    monkeypatch.setattr(watched_trees, "LOOK_AGAIN_S", -1.0)
    watched.look(str(tmp_path / "one"), lambda _: looks.append("due"))
    watched.close()
    assert looks == ["new", "new", "new", "forgotten", "due"]
