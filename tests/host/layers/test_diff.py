"""The difference of two points is all that differs and nothing else, and layers that both have are not looked at."""

import os
import random
from pathlib import Path

import pytest

from coldframe.host.layers.branch import Branch
from coldframe.host.layers.diff import Change
from coldframe.host.layers.store import LayerStore
from tests.host.layers.trees import Seen, at_work, disturb, look_through, require_overlay


def difference(store: LayerStore, before: str, after: str) -> dict[str, str]:
    with store.changes(before, after) as found:
        listed = [(os.fsdecode(change.path), change.change) for change in found]
    assert len(listed) == len(dict(listed)), "no path is told twice"
    return dict(listed)


def expected(before: Seen, after: Seen) -> dict[str, str]:
    found = dict.fromkeys(before.keys() - after.keys(), "deleted")
    found |= dict.fromkeys(after.keys() - before.keys(), "added")
    for path in before.keys() & after.keys():
        old, new = before[path], after[path]
        if (old[0], old[4]) != (new[0], new[4]):
            found[path] = "changed"
        elif old != new:
            found[path] = "metadata"
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_difference_is_what_a_comparison_of_everything_finds(tmp_path: Path, seed: int) -> None:
    require_overlay(tmp_path)
    chance = random.Random(seed)
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    points = []
    for _ in range(4):
        with at_work(store, stack.id, tmp_path / "merged") as place:
            disturb(place, chance, steps=25)
        points.append(store.take_snapshot(stack.id).id)
    with at_work(store, stack.id, tmp_path / "merged") as place:
        disturb(place, chance, steps=25)
    fork = store.fork(points[1])
    with at_work(store, fork.id, tmp_path / "fork") as place:
        disturb(place, chance, steps=25)
    points += [stack.id, fork.id]
    seen = {}
    for point in points:
        with store.view(point) as view:
            seen[point] = look_through(view)
    for before in points:
        for after in points:
            assert difference(store, before, after) == expected(seen[before], seen[after]), f"seed {seed}"
    store.flatten(stack.id, at=3)
    assert difference(store, points[3], stack.id) == expected(seen[points[3]], seen[stack.id]), f"seed {seed}"
    store.close()


def test_layers_that_both_points_have_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    lowest = store.stack(stack.id).upper
    base = Path(store.stacking(stack.id, "").upper)
    (base / "large").mkdir()
    for number in range(50):
        (base / "large" / str(number)).write_text("x")
    before = store.take_snapshot(stack.id)
    (Path(store.stacking(stack.id, "").upper) / "new").write_text("twelve bytes")
    after = store.take_snapshot(stack.id)
    listed = []
    names = Branch.names

    def counted(self: Branch, path: bytes) -> list[bytes]:
        listed.append((os.readlink(f"/proc/self/fd/{self.directory(b'')}"), path))
        return names(self, path)

    monkeypatch.setattr(Branch, "names", counted)
    with store.changes(before.id, after.id) as found:
        assert list(found) == [Change(b"new", "added", "file", 0, 12)]
    assert listed
    assert all(lowest not in place for place, _ in listed)
    with store.changes(after.id, before.id) as found:
        assert list(found) == [Change(b"new", "deleted", "file", 12, 0)]
    with store.changes(after.id, after.id) as found:
        assert list(found) == []
    store.close()


def test_what_the_top_itself_is_like_is_told(tmp_path: Path) -> None:
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    before = store.take_snapshot(stack.id)
    Path(store.stacking(stack.id, "").upper).chmod(0o750)
    with store.changes(before.id, stack.id) as found:
        assert [(change.path, change.change) for change in found] == [(b"", "metadata")]
    store.close()
