"""Stacks, snapshots, forks and resets: what each keeps and gives up, who may, and what is collected when."""

import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coldframe.contract.errors import Conflict, NotFound, SnapshotCorrupt, WrongState
from coldframe.host.layers.moves import DISCARDED_KEPT, Wish
from coldframe.host.layers.store import LayerStore


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(microseconds=1)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> LayerStore:
    return LayerStore(str(tmp_path / "store"), clock=clock)


def upper(store: LayerStore, stack_id: str) -> Path:
    return Path(store.stacking(stack_id, "").upper)


def files(store: LayerStore, point: str) -> list[str]:
    with store.view(point) as view:
        return [os.fsdecode(place.path) for place in view.walk()]


def trees(tmp_path: Path) -> int:
    return len(os.listdir(tmp_path / "store" / "trees"))


def test_a_fork_and_its_origin_do_not_see_each_other(store: LayerStore) -> None:
    one = store.create()
    (upper(store, one.id) / "shared").write_text("shared")
    two = store.fork(one.id)
    (upper(store, one.id) / "mine").write_text("one")
    (upper(store, two.id) / "other").write_text("two")
    os.mknod(upper(store, two.id) / "shared", stat.S_IFCHR, 0)
    assert files(store, one.id) == ["mine", "shared"]
    assert files(store, two.id) == ["other"]
    assert store.stack(one.id).layers == store.stack(two.id).layers


def test_fifty_forks_of_one_snapshot_share_its_layer(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "data").write_bytes(bytes(100_000))
    snapshot = store.take_snapshot(stack.id, Wish(name="before the evaluation"))
    forks = [store.fork(snapshot.id) for _ in range(50)]
    assert {fork.layers for fork in forks} == {snapshot.layers}
    assert trees(tmp_path) == 52
    assert all(files(store, fork.id) == ["data"] for fork in forks[:3])


def test_a_reset_keeps_what_it_takes_away_for_a_day(tmp_path: Path, store: LayerStore, clock: Clock) -> None:
    stack = store.create()
    (upper(store, stack.id) / "good").write_text("good")
    snapshot = store.take_snapshot(stack.id)
    (upper(store, stack.id) / "spoilt").write_text("spoilt")
    os.mknod(upper(store, stack.id) / "good", stat.S_IFCHR, 0)
    kept = store.reset(stack.id, snapshot.id)
    assert kept is not None
    assert kept.reason == "discarded"
    assert kept.expires_at is not None
    assert timedelta(0) <= kept.created_at + DISCARDED_KEPT - kept.expires_at < timedelta(seconds=1)
    assert files(store, stack.id) == ["good"]
    assert store.reset(stack.id, kept.id, discard=True) is None
    assert files(store, stack.id) == ["spoilt"]
    store.reset(stack.id, snapshot.id, discard=True)
    store.collect()
    assert files(store, kept.id) == ["spoilt"]
    clock.now += DISCARDED_KEPT
    with pytest.raises(NotFound):
        store.reset(stack.id, kept.id)
    assert kept not in store.snapshots()
    assert store.collect() == 1, "what only the kept snapshot needed goes with it"
    assert files(store, stack.id) == ["good"]


def test_a_reset_to_nothing_and_one_that_discards_leave_nothing(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    store.take_snapshot(stack.id)
    assert store.reset(stack.id, discard=True) is None
    assert files(store, stack.id) == []
    store.remove_snapshot(store.snapshots()[0].id)
    store.collect()
    assert trees(tmp_path) == 1


def test_a_rollback_goes_to_the_latest_snapshot_that_was_asked_for(store: LayerStore) -> None:
    stack = store.create()
    with pytest.raises(NotFound):
        store.rollback(stack.id)
    for number in range(2):
        (upper(store, stack.id) / str(number)).write_text("x")
        store.take_snapshot(stack.id)
    (upper(store, stack.id) / "bad").write_text("x")
    store.rollback(stack.id)
    assert files(store, stack.id) == ["0", "1"]
    store.rollback(stack.id)
    assert files(store, stack.id) == ["0", "1"], "not to what the first one took away"


def test_snapshots_of_the_same_state_share_their_layers(store: LayerStore) -> None:
    stack = store.create()
    first = store.take_snapshot(stack.id)
    second = store.take_snapshot(stack.id)
    (upper(store, stack.id) / ".exec_history").write_text("the record of what was done is no state")
    third = store.take_snapshot(stack.id)
    assert first.layers == second.layers == third.layers
    upper(store, stack.id).chmod(0o750)
    assert len(store.take_snapshot(stack.id).layers) == 2, "what the top itself is like is"


def test_the_top_of_a_fork_is_like_that_of_its_origin(store: LayerStore) -> None:
    stack = store.create()
    upper(store, stack.id).chmod(0o710)
    os.setxattr(upper(store, stack.id), "user.note", b"x")
    fork = store.fork(store.take_snapshot(stack.id).id)
    for one in (stack, fork):
        assert stat.S_IMODE(upper(store, one.id).stat().st_mode) == 0o710
        assert os.getxattr(upper(store, one.id), "user.note") == b"x"


def test_a_parent_that_is_deleted_leaves_its_children_whole(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    snapshot = store.take_snapshot(stack.id)
    child = store.fork(snapshot.id)
    store.remove_stack(stack.id)
    store.remove_snapshot(snapshot.id)
    assert store.collect() == 1, "the upper layer of the parent, and not what the child stands on"
    assert files(store, child.id) == ["file"]
    store.remove_stack(child.id)
    store.collect()
    assert trees(tmp_path) == 0
    with pytest.raises(NotFound):
        store.stack(child.id)


def test_a_stack_in_use_is_left_alone_whoever_holds_it(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    held = store.hold(stack.id)
    keeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held])
    os.close(held)
    store.close()
    again = LayerStore(str(tmp_path / "store"))
    for step in (again.take_snapshot, again.reset, again.flatten, again.remove_stack, again.fork, again.hold):
        with pytest.raises(WrongState):
            step(stack.id)
    snapshot = again.copy_snapshot(stack.id, nullcontext())
    assert files(again, snapshot.id) == ["file"]
    keeper.communicate(b"\n")
    assert again.take_snapshot(stack.id).layers != snapshot.layers
    again.close()


def test_a_second_process_is_refused(tmp_path: Path, store: LayerStore) -> None:
    with pytest.raises(Conflict):
        LayerStore(str(tmp_path / "store"))
    store.close()
    LayerStore(str(tmp_path / "store")).close()


def test_all_is_as_it_was_after_a_restart(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    snapshot = store.take_snapshot(
        stack.id, Wish(name="n\n\udcff", label="internal", expires_at=datetime(2031, 1, 1, tzinfo=UTC))
    )
    stacks, snapshots = store.stacks(), store.snapshots()
    store.close()
    again = LayerStore(str(tmp_path / "store"), clock=Clock())
    assert (again.stacks(), again.snapshots()) == (stacks, snapshots)
    assert again.snapshot(snapshot.id) == snapshot
    again.close()


@pytest.mark.parametrize("damage", ["altered", "cut", "empty", "another's"])
def test_a_damaged_description_is_named_and_what_it_may_need_is_kept(
    tmp_path: Path, store: LayerStore, damage: str
) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    snapshot = store.take_snapshot(stack.id)
    other = store.take_snapshot(store.create().id)
    store.close()
    path = tmp_path / "store" / "snapshots" / f"{snapshot.id}.json"
    text = path.read_text()
    path.write_text(
        {
            "altered": text.replace("home", "syst"),
            "cut": text[: len(text) // 2],
            "empty": "",
            "another's": path.with_name(f"{other.id}.json").read_text(),
        }[damage]
    )
    again = LayerStore(str(tmp_path / "store"))
    with pytest.raises(SnapshotCorrupt):
        again.fork(snapshot.id)
    before = trees(tmp_path)
    again.remove_stack(stack.id)
    assert again.collect() == 0
    assert trees(tmp_path) == before
    assert files(again, other.id) == []
    again.close()


def test_a_layer_that_is_gone_is_told_before_anything_starts(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    snapshot = store.take_snapshot(stack.id)
    (tmp_path / "store" / "trees" / snapshot.layers[0]).rename(tmp_path / "elsewhere")
    for step in (store.fork, lambda point: store.reset(stack.id, point), lambda _: store.stacking(stack.id, "")):
        with pytest.raises(SnapshotCorrupt):
            step(snapshot.id)
    with pytest.raises(SnapshotCorrupt), store.view(snapshot.id):
        pass


@pytest.mark.parametrize("damage", ["content", "time", "mode", "missing", "more", "target"])
def test_a_layer_that_was_altered_is_found_by_its_digests(store: LayerStore, damage: str) -> None:
    stack = store.create()
    top = upper(store, stack.id)
    (top / "folder").mkdir()
    (top / "folder" / "file").write_text("content")
    (top / "link").symlink_to("folder")
    os.utime(top / "folder" / "file", ns=(1, 1))
    snapshot = store.take_snapshot(stack.id)
    assert store.verify(snapshot.id) == 0
    assert store.digest() == 1
    assert store.digest() == 0
    assert store.verify(snapshot.id) == 1
    file = top / "folder" / "file"
    if damage == "content":
        file.write_text("CONTENT")
        os.utime(file, ns=(1, 1))
    elif damage == "time":
        os.utime(file, ns=(1, 2))
    elif damage == "mode":
        file.chmod(0o4755)
    elif damage == "missing":
        file.unlink()
    elif damage == "more":
        (top / "zz").write_text("")
    else:
        (top / "link").unlink()
        (top / "link").symlink_to("/etc")
    with pytest.raises(SnapshotCorrupt) as told:
        store.verify(snapshot.id)
    assert told.value.facts["layer"] == snapshot.layers[0]


def test_what_is_being_read_is_not_collected(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (upper(store, stack.id) / "file").write_text("x")
    snapshot = store.take_snapshot(stack.id)
    with store.view(snapshot.id) as view:
        store.remove_stack(stack.id)
        store.remove_snapshot(snapshot.id)
        store.collect()
        assert view.read("file") == b"x"
    assert store.collect() == 1
    assert trees(tmp_path) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root shows files as another's")
def test_a_fork_for_another_user_is_refused(store: LayerStore) -> None:
    stack = store.create()
    with pytest.raises(WrongState, match="another user"):
        store.fork(stack.id, owner=(12345, 12345))
    assert store.fork(stack.id, owner=(os.geteuid(), os.getegid())).layers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_as_root_the_top_belongs_to_the_user_of_the_sandbox(store: LayerStore) -> None:
    stack = store.create(owner=(2_000_001, 2_000_001))
    snapshot = store.take_snapshot(stack.id)
    fork, other = store.fork(snapshot.id), store.fork(snapshot.id, owner=(2_000_002, 2_000_002))
    assert {upper(store, one.id).stat().st_uid for one in (stack, fork)} == {2_000_001}
    assert (upper(store, other.id).stat().st_uid, other.owner) == (2_000_002, (2_000_002, 2_000_002))
    store.reset(other.id, snapshot.id)
    assert upper(store, other.id).stat().st_uid == 2_000_002
    assert store.users() == {2_000_001, 2_000_002}


def test_a_plain_directory_becomes_a_snapshot_and_nothing_in_it_passes_for_a_mark(
    tmp_path: Path, store: LayerStore
) -> None:
    plain = tmp_path / "plain"
    (plain / "folder").mkdir(parents=True)
    (plain / "file").write_text("x")
    (plain / ".exec_history").write_text("x")
    os.setxattr(plain / "folder", "user.overlay.opaque", b"y")
    os.setxattr(plain / "folder", "user.overlay.redirect", b"/file")
    os.mknod(plain / "no-file", stat.S_IFCHR, 0)
    snapshot = store.take_directory(str(plain), owner=(os.geteuid(), os.getegid()))
    assert files(store, snapshot.id) == ["file", "folder"]
    with store.view(snapshot.id) as view:
        top = view.branches[0]
        assert top.attributes(b"folder", of_overlay=True) == {}
        assert [name for name, _ in top.entries(b"")] == [b"file", b"folder"]
    assert (plain / ".exec_history").exists()
