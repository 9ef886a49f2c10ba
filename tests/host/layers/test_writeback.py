"""A copy is on disk before anybody names it, and what others have written is not waited for with it where that can be."""

import ctypes
import errno
import io
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from coldframe.host.layers import writeback
from coldframe.host.layers.archive import Caps
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


@pytest.mark.parametrize("kind", ["many", "directories", "links", "names"])
def test_what_is_many_or_no_plain_file_is_waited_for_with_the_file_system(
    tmp_path: Path, synced: list[object], kind: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(writeback.MOST_FILES + 1 if kind == "many" else 1):
        (work / str(number)).write_text("one\n")
    if kind == "directories":
        for number in range(writeback.MOST_DIRECTORIES + 1):
            (work / f"below-{number}").mkdir()
    if kind == "links":
        (work / "link").symlink_to("0")
    if kind == "names":
        (work / "again").hardlink_to(work / "0")
    store = LayerStore(str(tmp_path / "layers"))
    try:
        snapshot_id, layer = take(store, work)
        assert sorted(os.listdir(layer)) == sorted(os.listdir(work))
        assert "all" in synced[: synced.index(f"{snapshot_id}.json")]
    finally:
        store.close()


def test_of_an_archive_of_many_files_none_is_waited_for_by_itself(tmp_path: Path, synced: list[object]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(writeback.MOST_FILES * 3):
        (work / str(number)).write_text("one\n")
    store = LayerStore(str(tmp_path / "layers"))
    try:
        archive = io.BytesIO()
        store.export(take(store, work)[0], archive.write)
        archive.seek(0)
        synced.clear()
        taken, _ = store.take_in(archive, Caps(data_bytes=1 << 20, entries=1000))
        before = synced[: synced.index(f"{taken.id}.json")]
        assert "all" in before and len(before) < writeback.MOST_FILES
    finally:
        store.close()


def test_a_layer_has_its_name_on_disk_before_a_snapshot_names_it(tmp_path: Path, synced: list[object]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "one").write_text("one\n")
    store = LayerStore(str(tmp_path / "layers"))
    try:
        snapshot_id, layer = take(store, work)
        moved = synced.index(layer.parent.name)
        assert (tmp_path / "layers" / "trees").stat().st_ino in synced[moved : synced.index(f"{snapshot_id}.json")]
    finally:
        store.close()


def test_what_the_disk_tells_while_it_is_waited_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An fsync afterwards may not be told of it again."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "one").write_text("one\n")

    class Broken:
        def sync_file_range(self, file: int, start: int, count: int, flags: int) -> int:
            ctypes.set_errno(errno.EIO)
            return -1

    monkeypatch.setattr(writeback, "_libc", Broken())
    store = LayerStore(str(tmp_path / "layers"))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            take(store, work)
        assert store.snapshots() == []
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
