"""A copied layer is what the original was, to the last hole, and a flattened stack looks as it did before."""

import io
import os
import random
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from coldframe.contract.errors import SnapshotCorrupt, WrongState
from coldframe.host.layers.archive import Caps
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.copies import copy_branch
from coldframe.host.layers.manifest import layer_records
from coldframe.host.layers.moves import Wish
from coldframe.host.layers.store import LayerStore
from tests.host.layers.trees import at_work, disturb, look, look_through, require_overlay


def lines(path: Path) -> list[bytes]:
    with Branch(str(path)) as branch:
        return [record.line() for record in layer_records(branch)]


def test_a_copied_layer_keeps_all_that_makes_it_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "hiding" / "deep").mkdir(parents=True)
    target.mkdir()
    os.setxattr(source / "hiding", "user.overlay.opaque", b"y")
    os.mknod(source / "gone", stat.S_IFCHR, 0)
    with (source / "sparse").open("wb") as file:
        file.seek(1 << 40)
        file.write(b"end")
        file.truncate(1 << 41)
    (source / "one").write_text("content")
    os.setxattr(source / "one", "user.note", b"\0\xff")
    (source / "one").chmod(0o4755)
    os.utime(source / "one", ns=(1, 123_456_789_012_345_678))
    os.link(source / "one", source / "hiding" / "two")
    (source / "link").symlink_to("../../outside")
    os.utime(source / "link", ns=(1, 5), follow_symlinks=False)
    os.mkfifo(source / "pipe")
    (source / "closed").mkdir(mode=0o500)
    os.utime(source / "hiding", ns=(1, 42))
    with Branch(str(source)) as branch:
        copy_branch(branch, str(target))
    assert lines(target) == lines(source)
    assert (target / "one").samefile(target / "hiding" / "two")
    assert (target / "sparse").stat().st_blocks <= (source / "sparse").stat().st_blocks
    assert os.lstat(target / "gone").st_rdev == 0


def test_what_is_left_out_is_not_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "c").write_text("kept")
    (source / "a" / "b" / "secret").write_text("secret")
    target.mkdir()
    with Branch(str(source)) as branch:
        copy_branch(branch, str(target), without=[b"a/b"])
    assert sorted(path.name for path in target.rglob("*")) == ["a", "c"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_in_a_layer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    os.mknod(tmp_path / "source" / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    with Branch(str(tmp_path / "source")) as branch, pytest.raises(SnapshotCorrupt, match="disk"):
        copy_branch(branch, str(tmp_path / "target"))


@pytest.mark.parametrize("seed", range(4))
def test_a_flattened_stack_looks_as_before_also_to_the_kernel(tmp_path: Path, seed: int) -> None:
    require_overlay(tmp_path)
    chance = random.Random(seed)
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    for _ in range(8):
        with at_work(store, stack.id, tmp_path / "merged") as place:
            disturb(place, chance)
        store.take_snapshot(stack.id)
    base = store.stack(stack.id).layers[0]
    with at_work(store, stack.id, tmp_path / "merged") as place:
        before = look(place)
    assert store.flatten(stack.id, at=4)
    assert store.stack(stack.id).layers[0] == base
    assert len(store.stack(stack.id).layers) == 2
    with store.view(stack.id) as view:
        assert look_through(view) == before, f"seed {seed}"
    with at_work(store, stack.id, tmp_path / "merged") as place:
        assert look(place) == before, f"seed {seed}"
        disturb(place, chance)
        after = look(place)
    with store.view(stack.id) as view:
        assert look_through(view) == after, f"seed {seed}"
    store.close()


def test_flattening_copies_no_data_and_waits_for_enough_layers(tmp_path: Path) -> None:
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    for number in range(4):
        upper = Path(store.stacking(stack.id, "").upper)
        (upper / f"file-{number}").write_bytes(bytes(range(256)) * 1000)
        store.take_snapshot(stack.id)
    inode = os.stat(Path(store.stacking(stack.id, "").lower[0]) / "file-3").st_ino
    assert not store.flatten(stack.id)
    assert store.flatten(stack.id, at=4)
    assert os.stat(Path(store.stacking(stack.id, "").lower[0]) / "file-3").st_ino == inode
    assert not store.flatten(stack.id, at=2), "one layer above the lowest is flat already"
    store.close()


def test_a_snapshot_of_a_stack_in_use_is_taken_while_it_is_frozen(tmp_path: Path) -> None:
    require_overlay(tmp_path)
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    going_on = threading.Event()
    going_on.set()
    events: list[str] = []

    @contextmanager
    def frozen() -> Iterator[None]:
        events.append("frozen")
        yield
        events.append("thawed")

    with at_work(store, stack.id, tmp_path / "merged") as place:
        Path(place, "early").write_text("in the snapshot")
        Path(place, ".exec_history").write_text("not in it")
        with pytest.raises(WrongState):
            store.take_snapshot(stack.id)
        snapshot = store.copy_snapshot(stack.id, frozen(), Wish(name="while it runs", label="internal"))
        assert events == ["frozen", "thawed"]
        Path(place, "late").write_text("after it")
    fork = store.fork(snapshot.id)
    with at_work(store, fork.id, tmp_path / "fork") as place:
        assert os.listdir(place) == ["early"]
    with store.view(stack.id) as view:
        assert [path.path for path in view.walk()] == [b".exec_history", b"early", b"late"]
    assert (snapshot.name, snapshot.label) == ("while it runs", "internal")
    store.close()


def test_a_stack_is_copied_out_for_a_host_without_overlayfs(tmp_path: Path) -> None:
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    upper = Path(store.stacking(stack.id, "").upper)
    (upper / "a").mkdir()
    (upper / "a" / "one").write_text("one")
    store.take_snapshot(stack.id)
    upper = Path(store.stacking(stack.id, "").upper)
    (upper / "a").mkdir()
    os.mknod(upper / "a" / "one", stat.S_IFCHR, 0)
    (upper / "a" / "two").write_text("two")
    (tmp_path / "out").mkdir()
    store.copy_out(stack.id, str(tmp_path / "out"))
    assert [path.name for path in sorted((tmp_path / "out").rglob("*"))] == ["a", "two"]
    store.close()


def test_what_an_agent_closed_to_itself_is_copied_and_stays_closed(tmp_path: Path) -> None:
    require_overlay(tmp_path)
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    with at_work(store, stack.id, tmp_path / "merged") as place:
        folder = Path(place, "closed")
        (folder / "deeper").mkdir(parents=True)
        (folder / "deeper" / "file").write_text("content")
        for name in ("closed/deeper/file", "closed/deeper", "closed"):
            os.setxattr(Path(place, name), "user.note", b"x")
            Path(place, name).chmod(0)
        Path(place).chmod(0)
        snapshot = store.copy_snapshot(stack.id, nullcontext())
    store.digest()
    archive = io.BytesIO()
    store.export(snapshot.id, archive.write)
    imported, _ = store.take_in(io.BytesIO(archive.getvalue()), Caps(1 << 20, 100))
    for point in (stack.id, snapshot.id, imported.id):
        with store.view(point) as view:
            places = list(view.walk())
            assert [stat.S_IMODE(place.status.st_mode) for place in (view.top(), *places)] == [0, 0, 0, 0]
            assert [view.attributes(place) for place in places] == [{b"user.note": b"x"}] * 3
            assert view.read("closed/deeper/file") == b"content"
    assert store.verify(snapshot.id) == 1
    store.remove_stack(stack.id)
    for one in store.snapshots():
        store.remove_snapshot(one.id)
    store.collect()
    assert os.listdir(tmp_path / "store" / "trees") == os.listdir(tmp_path / "store" / "gone") == []
    store.close()
