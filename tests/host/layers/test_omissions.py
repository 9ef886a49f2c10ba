"""A snapshot holds nothing by which its copies could pass for the original, and the original keeps all of it."""

import io
import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from coldframe.host.layers.archive import Caps
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.omissions import OF_HOME, OF_SYSTEM, omitted, patterns_of
from coldframe.host.layers.records import StackKind
from coldframe.host.layers.store import LayerStore

CANARY = b"canary-7f3a91c2"
GIVEN: dict[StackKind, list[str]] = {
    "home": [
        ".exec_history",
        ".config/chromium/Default/Cookies",
        ".config/chromium/Default/Cookies-journal",
        ".config/chromium/Profile 1/Network/Cookies",
        ".config/google-chrome/Default/Login Data",
        ".mozilla/firefox/abc.default/cookies.sqlite-wal",
        ".mozilla/firefox/abc.default/key4.db",
        ".given/token",
    ],
    "system": [
        "etc/machine-id",
        "etc/ssh/ssh_host_ed25519_key",
        "etc/dropbear/dropbear_ed25519_host_key",
        "var/lib/systemd/random-seed",
        ".given/token",
    ],
}


def holds_canary(top: Path) -> bool:
    return any(CANARY in path.read_bytes() for path in top.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.mark.parametrize("kind", ["home", "system"])
@pytest.mark.parametrize("way", ["sealed", "copied", "forked", "reset", "exported", "from a directory", "recovered"])
def test_no_way_of_taking_a_snapshot_takes_them_along(tmp_path: Path, kind: StackKind, way: str) -> None:
    store = LayerStore(str(tmp_path / "store"), more_omissions=[b".given/*"])
    stack = store.create(kind)
    top = Path(store.stacking(stack.id, "").upper)
    for name in GIVEN[kind]:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(CANARY)
    (top / "kept").write_text("kept")
    if way == "sealed":
        point = store.take_snapshot(stack.id).id
    elif way == "copied":
        point = store.copy_snapshot(stack.id, nullcontext()).id
    elif way == "forked":
        point = store.fork(stack.id).id
    elif way == "reset":
        kept = store.reset(stack.id)
        assert kept is not None
        point = kept.id
    elif way == "from a directory":
        point = store.take_directory(str(top), kind=kind, owner=(os.geteuid(), os.getegid())).id
    elif way == "exported":
        archive = io.BytesIO()
        store.export(stack.id, archive.write)
        assert CANARY not in archive.getvalue()
        point = store.take_in(io.BytesIO(archive.getvalue()), Caps(1 << 20, 100), kind=kind)[0].id
    else:  # killed between the moment at which it holds and that at which it is rid of them
        point = store.take_snapshot(stack.id).id
        (tmp_path / "store" / "trees" / store.snapshot(point).layers[0] / "sealed").unlink()
        (top / ".given").mkdir(exist_ok=True)
        (top / ".given" / "token").write_bytes(CANARY)
        store.close()
        store = LayerStore(str(tmp_path / "store"), more_omissions=[b".given/*"])
    with store.view(point) as view:
        assert view.read("kept") == b"kept"
        assert list(view.search(CANARY)) == []
    layers = (store.stack(point) if way == "forked" else store.snapshot(point)).layers
    assert layers
    assert not any(holds_canary(tmp_path / "store" / "trees" / tree) for tree in layers)
    if way in ("sealed", "copied", "forked", "exported", "from a directory"):
        with store.view(stack.id) as view:
            assert {os.fsdecode(match.path) for match in view.search(CANARY)} == set(GIVEN[kind])
    store.close()


def test_a_reset_keeps_the_record_of_what_was_done_and_no_login(tmp_path: Path) -> None:
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    top = Path(store.stacking(stack.id, "").upper)
    (top / ".exec_history").write_text("record")
    (top / ".config/chromium/Default").mkdir(parents=True)
    (top / ".config/chromium/Default/Cookies").write_text("login")
    store.reset(stack.id)
    with store.view(stack.id) as view:
        assert [place.path for place in view.walk()] == [b".exec_history"]
    store.close()


def test_links_of_an_agent_lead_the_search_nowhere(tmp_path: Path) -> None:
    outside, layer = tmp_path / "outside", tmp_path / "layer"
    (outside / "chromium" / "Default").mkdir(parents=True)
    (outside / "chromium" / "Default" / "Cookies").write_text("of the host")
    layer.mkdir()
    (layer / ".config").symlink_to(outside)
    (layer / ".exec_history").symlink_to(outside / "chromium")
    with Branch(str(layer)) as branch:
        assert omitted(branch, patterns_of(OF_HOME)) == [b".exec_history"]
    store = LayerStore(str(tmp_path / "store"))
    store.take_directory(str(layer), owner=(os.geteuid(), os.getegid()))
    assert (outside / "chromium" / "Default" / "Cookies").read_text() == "of the host"
    store.close()


def test_an_agent_makes_nobody_wait_by_many_names_that_are_left_out(tmp_path: Path) -> None:
    """To look for them takes as long for each of many as for each of few, since processes stand still meanwhile."""
    looked = []

    class Counting(Branch):
        def status(self, path: bytes) -> os.stat_result | None:
            looked.append(path)
            return super().status(path)

    folder = tmp_path / "root/.config/chromium/Default"
    folder.mkdir(parents=True)
    for number in range(20_000):
        (folder / f"Cookies{number}").touch()
    for number in range(300):
        (tmp_path / f"home/{number}").mkdir(parents=True)
    (tmp_path / "home/7/.config/chrome/one/Sessions/below").mkdir(parents=True)
    with Counting(str(tmp_path)) as branch:
        began = time.monotonic()
        found = omitted(branch, (*patterns_of(OF_SYSTEM), b"home/7/.config/chrome/one/Sessions/below"))
        assert time.monotonic() - began < 20  # minutes, if each is compared with each
    assert len(found) == 20_001 and b"home/7/.config/chrome/one/Sessions" in found
    assert len(looked) < 300 * 10
