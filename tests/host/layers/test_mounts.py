"""A stack is mounted by root and by an ordinary user alike, tells nothing of where it lies, and cannot be tampered with."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coldframe.contract.errors import SnapshotCorrupt
from coldframe.host.layers import offer as offers
from coldframe.host.layers.mounts import (
    OwnPlace,
    Stacking,
    keep_volatile,
    mount_stack,
    unmount_stack,
    was_lost,
)
from coldframe.host.layers.offer import overlay_offered
from coldframe.host.layers.store import LayerStore
from tests.host.forked import in_child
from tests.host.layers.trees import at_work, mounted, require_overlay


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    require_overlay(tmp_path)
    return LayerStore(str(tmp_path / "store"))


def test_the_offer_says_which_way_works_and_leaves_nothing(tmp_path: Path) -> None:
    offer = overlay_offered(str(tmp_path))
    assert offer.way in ("mount", "own_place", "reflink", "copy")
    assert (offer.way == "mount") <= (os.geteuid() == 0)
    assert os.listdir(tmp_path) == []
    with Path("/proc/self/mountinfo").open() as table:
        assert str(tmp_path) not in table.read()


def test_each_rung_that_fails_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "operation not permitted")

    monkeypatch.setattr(offers, "mount_stack", refused)
    monkeypatch.setattr(offers, "OwnPlace", refused)
    offer = overlay_offered(str(tmp_path))
    assert offer.way in ("reflink", "copy")
    assert "operation not permitted" in offer.reasons["mount" if os.geteuid() == 0 else "own_place"]
    assert ("reflink" in offer.reasons) == (offer.way == "copy")


def test_what_is_written_is_in_the_upper_layer_and_in_no_other(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    with at_work(store, stack.id, tmp_path / "merged") as place:
        Path(place, "file").write_text("first")
    store.take_snapshot(stack.id)
    lower = Path(store.stacking(stack.id, "").lower[0])
    with at_work(store, stack.id, tmp_path / "merged") as place:
        Path(place, "file").write_text("second")
        assert (lower / "file").read_text() == "first"
    assert Path(store.stacking(stack.id, "").upper, "file").read_text() == "second"


def test_the_table_of_mounts_tells_nothing_of_the_store(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    for number in range(20):
        Path(store.stacking(stack.id, "").upper, str(number)).write_text("x")
        store.take_snapshot(stack.id)

    def table() -> str:
        with at_work(store, stack.id, tmp_path / "merged") as place:
            assert len(os.listdir(place)) == 20
            return Path("/proc/self/mountinfo").read_text()

    if os.geteuid() == 0:
        (line,) = [line for line in in_child(table).splitlines() if str(tmp_path) in line]
        assert str(tmp_path / "store") not in line
        assert "nosuid" in line
        assert "nodev" in line
        assert "userxattr" in line
    else:
        table()
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("name", ["opaque", "redirect", "metacopy", "whiteout", "origin"])
def test_programs_cannot_make_marks_of_overlayfs(tmp_path: Path, store: LayerStore, name: str) -> None:
    stack = store.create()
    with at_work(store, stack.id, tmp_path / "merged") as place:
        Path(place, "below").mkdir()
        Path(place, "below", "file").write_text("seen")
    store.take_snapshot(stack.id)
    with at_work(store, stack.id, tmp_path / "merged") as place:
        for one in ("below", "below/file"):
            try:
                os.setxattr(Path(place, one), f"user.overlay.{name}", b"y")
            except OSError as error:
                assert error.errno in (errno.EOPNOTSUPP, errno.EPERM)
        with pytest.raises(PermissionError):
            os.mknod(Path(place, "whiteout"), stat.S_IFCHR | 0o600, 0)
    with at_work(store, stack.id, tmp_path / "merged") as place:
        assert Path(place, "below", "file").read_text() == "seen"
    with store.view(stack.id) as view:
        assert view.read("below/file") == b"seen"


def test_an_own_place_is_gone_with_its_holder(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (tmp_path / "merged").mkdir()
    with OwnPlace([store.stacking(stack.id, str(tmp_path / "merged"))]) as place:
        directory = place.directories[0]
        os.mkdir("made", dir_fd=directory)
        assert os.listdir(directory) == ["made"]
        assert os.listdir(tmp_path / "merged") == [], "only in the place of its own"
    assert os.listdir(tmp_path / "merged") == []


def test_an_own_place_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as failed:
        OwnPlace([Stacking(str(tmp_path), (str(tmp_path / "nothing"),), str(tmp_path), str(tmp_path))])
    assert failed.value.errno == errno.ENOENT


def test_more_layers_than_one_mount_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError) as failed:
        mount_stack(Stacking(str(tmp_path), (str(tmp_path),) * 400, str(tmp_path), str(tmp_path)))
    assert failed.value.errno == errno.E2BIG


def test_a_volatile_layer_that_saw_no_end_is_not_used_again(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    (tmp_path / "merged").mkdir()
    stacking = store.stacking(stack.id, str(tmp_path / "merged"), volatile=True)
    with mounted(stacking) as place:
        Path(place, "file").write_text("x")
    assert was_lost(stacking.work)
    with pytest.raises(SnapshotCorrupt, match="without syncs"):
        store.stacking(stack.id, str(tmp_path / "merged"))
    keep_volatile(stacking.work)
    with mounted(store.stacking(stack.id, str(tmp_path / "merged"))) as place:
        assert Path(place, "file").read_text() == "x"


def test_the_keeper_can_use_it_alone() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import runpy, sys; runpy.run_path(sys.argv[1])",
            offers.OwnPlace.__init__.__code__.co_filename,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts in its own namespace")
def test_an_unmounted_place_is_what_it_was(tmp_path: Path, store: LayerStore) -> None:
    stack = store.create()
    target = tmp_path / "merged"
    target.mkdir()
    mount_stack(store.stacking(stack.id, str(target)))
    (target / "file").write_text("x")
    busy = os.open(target / "file", os.O_RDONLY)
    with pytest.raises(OSError) as failed:
        unmount_stack(str(target))
    assert failed.value.errno == errno.EBUSY
    unmount_stack(str(target), lazy=True)
    os.close(busy)
    assert os.listdir(target) == []
