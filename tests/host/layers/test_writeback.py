"""A copy is on disk before anybody names it, and what others have written is not waited for with it where that can be."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from coldframe.host.layers import writeback
from coldframe.host.layers.store import LayerStore

OWNER = os.geteuid(), os.getegid()
LARGE = os.urandom(writeback.LARGE_BYTES) * 3 + b"the end"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Numbers of what was synced by itself, and the name of each snapshot that was put down; "all" for a whole file system."""
    found: list[object] = []
    fsync, rename, sync_all = os.fsync, os.rename, writeback.sync_all

    def noted(file: int) -> None:
        found.append(os.fstat(file).st_ino)
        fsync(file)

    def put(source: str, target: str) -> None:
        found.append(os.path.basename(target))
        rename(source, target)

    def noted_all(path: str) -> None:
        found.append("all")
        sync_all(path)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "rename", put)
    monkeypatch.setattr(writeback, "sync_all", noted_all)
    return found


def take(store: LayerStore, path: Path) -> tuple[str, Path]:
    taken = store.take_directory(str(path), owner=OWNER, frozen=nullcontext(), workspace="workspace/a")
    return taken.id, Path(store.stacking(store.fork(taken.id).id, "/nowhere").lower[0])


@pytest.mark.req("T4.66")
def test_of_few_files_each_is_on_disk_before_the_snapshot_and_nobody_elses(
    tmp_path: Path, synced: list[object]
) -> None:
    work = tmp_path / "work"
    (work / "below" / "deeper").mkdir(parents=True)
    (work / "large").write_bytes(LARGE)
    (work / "below" / "deeper" / "small").write_text("small\n")
    (work / "below" / "empty").touch()
    store = LayerStore(str(tmp_path / "layers"))
    try:
        snapshot_id, layer = take(store, work)
        assert (layer / "large").read_bytes() == LARGE
        before = synced[: synced.index(f"{snapshot_id}.json")]
        names = [layer, *layer.rglob("*")]
        assert len(names) == 6 and {name.stat().st_ino for name in names} <= set(before)
        assert layer.parent.stat().st_ino in before and "all" not in synced
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["many", "links"])
def test_what_is_many_or_no_plain_file_is_waited_for_with_the_file_system(
    tmp_path: Path, synced: list[object], kind: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(writeback.MOST_FILES + 1 if kind == "many" else 1):
        (work / str(number)).write_text("one\n")
    if kind == "links":
        (work / "link").symlink_to("0")
    store = LayerStore(str(tmp_path / "layers"))
    try:
        snapshot_id, layer = take(store, work)
        assert sorted(os.listdir(layer)) == sorted(os.listdir(work))
        assert "all" in synced[: synced.index(f"{snapshot_id}.json")]
    finally:
        store.close()


def test_a_draft_that_breaks_off_leaves_no_thread_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "large").write_bytes(LARGE)
    store = LayerStore(str(tmp_path / "layers"))

    def refuse(file: int) -> None:
        raise OSError(5, "input/output error")

    try:
        before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="input/output"):
            take(store, work)
        assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before
        assert store.snapshots() == [] and os.listdir(tmp_path / "layers" / "trees") == []
    finally:
        store.close()
