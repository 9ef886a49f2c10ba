"""Killed at whatever step of whatever is done to layers, the next start finds the old state or the new one, whole."""

import errno
import io
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError
from coldframe.host.layers.archive import Caps
from coldframe.host.layers.moves import Wish
from coldframe.host.layers.store import LayerStore

STEPS = ("open", "os.rename", "os.mkdir", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.truncate", "os.chmod")
"""What the interpreter announces before it does it (`sys.addaudithook`): each is a place to die at."""


def killed_at(step: int, work: Callable[[], object], *, steps: Collection[str] = STEPS) -> bool:
    """Whether *work* in a child of ours was killed before its step of that number; False if it had fewer."""
    child = os.fork()
    if child == 0:
        left = step

        def hook(event: str, arguments: object) -> None:
            nonlocal left
            if event in steps:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the step itself failed"
    return False


State = tuple[dict[str, bytes], list[dict[str, bytes]]]


def state(store: LayerStore, stack_id: str) -> State:
    """What the stack and every snapshot look like."""

    def content(point: str) -> dict[str, bytes]:
        with store.view(point) as view:
            return {
                os.fsdecode(place.path): view.read(os.fsdecode(place.path))
                for place in view.walk()
                if stat.S_ISREG(place.status.st_mode)
            }

    snapshots = [content(snapshot.id) for snapshot in store.snapshots()]
    return content(stack_id), sorted(snapshots, key=lambda one: sorted(one.items()))


def upper(store: LayerStore, stack_id: str) -> Path:
    return Path(store.stacking(stack_id, "").upper)


def prepared(directory: Path) -> tuple[str, str]:
    """A stack with a snapshot and something on top of it; the ids of both."""
    store = LayerStore(str(directory))
    stack = store.create()
    for number in range(3):
        top = upper(store, stack.id)
        (top / "folder").mkdir()
        (top / "folder" / f"file-{number}").write_text(f"content {number}")
        if number:
            os.mknod(top / "folder" / "file-0", stat.S_IFCHR, 0)
        snapshot = store.take_snapshot(stack.id, Wish(name=str(number)))
    (upper(store, stack.id) / "late").write_text("late")
    (upper(store, stack.id) / ".exec_history").write_text("record")
    store.close()
    return stack.id, snapshot.id


def archived(directory: Path) -> bytes:
    store = LayerStore(str(directory))
    stack = store.create()
    for name in ("one", "two"):
        (upper(store, stack.id) / name).write_text(name)
    target = io.BytesIO()
    store.export(stack.id, target.write)
    store.close()
    return target.getvalue()


class Frozen:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


ACTIONS: dict[str, Callable[[LayerStore, str, str, bytes], object]] = {
    "snapshot": lambda store, stack, snapshot, archive: store.take_snapshot(stack),
    "live snapshot": lambda store, stack, snapshot, archive: store.copy_snapshot(stack, Frozen()),
    "fork": lambda store, stack, snapshot, archive: store.fork(stack),
    "reset": lambda store, stack, snapshot, archive: store.reset(stack, snapshot),
    "discarding reset": lambda store, stack, snapshot, archive: store.reset(stack, snapshot, discard=True),
    "flatten": lambda store, stack, snapshot, archive: store.flatten(stack, at=2),
    "import": lambda store, stack, snapshot, archive: store.take_in(io.BytesIO(archive), Caps(1 << 20, 100)),
    "remove snapshot": lambda store, stack, snapshot, archive: store.remove_snapshot(snapshot),
    "digest": lambda store, stack, snapshot, archive: store.digest(),
    "collect": lambda store, stack, snapshot, archive: store.collect(),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_killed_at_any_step_it_is_as_before_or_as_after(tmp_path: Path, action: str) -> None:
    archive = archived(tmp_path / "archive")
    stack, snapshot = prepared(tmp_path / "original")
    subprocess.run(["cp", "-a", tmp_path / "original", tmp_path / "whole"], check=True)
    store = LayerStore(str(tmp_path / "whole"))
    before = state(store, stack)
    ACTIONS[action](store, stack, snapshot, archive)
    after = state(store, stack)
    store.close()
    step = killed = 0
    outcomes: set[str] = set()
    while True:
        directory = tmp_path / f"step-{step}"
        subprocess.run(["cp", "-a", tmp_path / "original", directory], check=True)

        def work(directory: Path = directory) -> None:
            opened = LayerStore(str(directory))
            ACTIONS[action](opened, stack, snapshot, archive)

        died = killed_at(step, work)
        again = LayerStore(str(directory))
        found = state(again, stack)
        assert found in (before, after), f"killed before step {step}"
        outcomes |= {name for name, one in (("before", before), ("after", after)) if found == one}
        again.collect()
        assert state(again, stack) == found, f"collecting lost something after step {step}"
        left = {name: os.listdir(directory / name) for name in ("drafts", "gone")}
        assert left == {"drafts": [], "gone": []}, f"left over from step {step}"
        named = {tree for one in again.stacks() for tree in (*one.layers, one.upper)}
        named |= {tree for one in again.snapshots() for tree in one.layers}
        assert set(os.listdir(directory / "trees")) == named, f"left over from step {step}"
        assert not [
            name for folder in ("stacks", "snapshots") for name in os.listdir(directory / folder) if "new" in name
        ]
        assert again.take_snapshot(stack), "and it goes on"
        again.close()
        if not died:
            break
        killed += 1
        step += 1
    assert killed > 3
    assert outcomes == {"before", "after"}


def test_a_disk_that_is_full_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, snapshot = prepared(tmp_path)
    store = LayerStore(str(tmp_path))
    before = state(store, stack)
    rename = os.rename
    left = 0

    def failing(source: str, target: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        rename(source, target)

    for number in range(1, 4):
        for action in (store.take_snapshot, lambda one: store.reset(one, snapshot), store.fork):
            left = number
            with monkeypatch.context() as patched:
                patched.setattr(os, "rename", failing)
                try:
                    action(stack)
                except (OSError, ColdframeError):
                    assert state(store, stack) == before
                    store.collect()
                    assert state(store, stack) == before
                    continue
            before = state(store, stack)
    store.close()


def paired(directory: Path) -> tuple[str, str, str]:
    """A workspace and its system, with a snapshot of both and something on top of each; the ids of all three."""
    store = LayerStore(str(directory))
    home, system = store.create(), store.create("system", mode=0o755, template="digest")
    for stack in (home, system):
        (upper(store, stack.id) / "file").write_text("then")
    snapshot = store.take_snapshot(home.id, Wish(), system=system.id)
    for stack in (home, system):
        (upper(store, stack.id) / "file").write_text("now")
    store.close()
    return home.id, system.id, snapshot.id


PAIRED: dict[str, Callable[[LayerStore, str, str, str], object]] = {
    "snapshot": lambda store, home, system, snapshot: store.take_snapshot(home, system=system),
    "live snapshot": lambda store, home, system, snapshot: _live(store, home, system),
    "reset": lambda store, home, system, snapshot: store.reset(home, snapshot, system=system),
    "discarding reset": lambda store, home, system, snapshot: store.reset(home, None, discard=True, system=system),
}


def _live(store: LayerStore, home: str, system: str) -> None:
    held = store.hold(system)
    try:
        store.copy_snapshot(home, Frozen(), system=system)
    finally:
        os.close(held)


@pytest.mark.req("T4.65", "T4.69")
@pytest.mark.once
@pytest.mark.parametrize("action", PAIRED)
def test_a_workspace_and_its_system_go_on_together_or_not_at_all(tmp_path: Path, action: str) -> None:
    home, system, snapshot = paired(tmp_path / "original")

    def looks(store: LayerStore) -> tuple[object, ...]:
        return state(store, home)[0], state(store, system)[0], len(store.snapshots())

    def opened(name: str) -> LayerStore:
        subprocess.run(["cp", "-a", tmp_path / "original", tmp_path / name], check=True)
        return LayerStore(str(tmp_path / name))

    store = opened("whole")
    before = looks(store)
    PAIRED[action](store, home, system, snapshot)
    after = looks(store)
    store.close()
    found = []
    for step in range(1000):
        opened(f"step-{step}").close()

        def work(name: str = f"step-{step}") -> None:
            PAIRED[action](LayerStore(str(tmp_path / name)), home, system, snapshot)

        died = killed_at(step, work)
        again = LayerStore(str(tmp_path / f"step-{step}"))
        seen = looks(again)
        assert seen in (before, after), f"killed before step {step}"
        found += [] if seen in found else [seen]
        again.collect()
        assert looks(again) == seen and not os.listdir(tmp_path / f"step-{step}" / "moves")
        assert again.take_snapshot(home, system=system).system is not None, "and it goes on"
        again.close()
        subprocess.run(["rm", "-r", tmp_path / f"step-{step}"], check=True)
        if not died:
            break
    assert found == [before, after]


def test_what_has_gone_on_together_does_so_for_whoever_starts_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, system, snapshot = paired(tmp_path)

    def looks(store: LayerStore) -> tuple[State, State]:
        return state(store, home), state(store, system)

    store = LayerStore(str(tmp_path))
    rename = os.rename

    def failing(source: str, target: str) -> None:
        if os.path.basename(os.path.dirname(target)) in ("stacks", "snapshots"):
            raise OSError(errno.ENOSPC, "no space left on device")
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        store.reset(home, snapshot, system=system)
        after = looks(store)
        store.close()
        full = LayerStore(str(tmp_path))
        assert looks(full) == after and os.listdir(tmp_path / "moves")
        with pytest.raises(OSError, match="no space"):
            full.reset(home, snapshot, system=system)
        full.close()
    again = LayerStore(str(tmp_path))
    assert looks(again) == after and not os.listdir(tmp_path / "moves")
    again.close()
