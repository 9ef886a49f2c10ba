"""A machine that is killed at any step of what it does to a workspace finds it as it was or as it was to be, history and all."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError
from coldframe.host.layers import store
from coldframe.host.layers.mounts import unmount_stack
from coldframe.host.layers.moves import PLAIN
from coldframe.host.layers.offer import Offer
from coldframe.host.stacks import Stacks
from coldframe.host.workspaces import PARTS, Workspaces
from tests.host.layers.test_crashes import killed_at

NAMES = ("os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir")
"""The steps after which something is another thing than before."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def opened(directory: Path) -> Workspaces:
    for parent in ("workspace", "background", "host"):
        (directory / parent).mkdir(parents=True, exist_ok=True, mode=0o711)
    return Workspaces(str(directory))


def place(directory: Path, agent: str = "agent") -> str:
    return str(directory / "workspace" / agent)


def let_go(directory: Path) -> None:
    """Of a process that was killed: all its mounts."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((one for one in points if one.startswith(f"{directory}/")), reverse=True):
        unmount_stack(point)


Seen = tuple[dict[str, dict[str, str] | None], list[dict[str, str]], dict[str, str]]


def state(workspaces: Workspaces, directory: Path) -> Seen:
    """Files of each workspace, of each snapshot, and the histories."""
    workspaces.mount_all()
    for name in workspaces.strays(keep_sessions=set()):
        workspaces.remove_stray(name)
    found: dict[str, dict[str, str] | None] = {}
    histories: dict[str, str] = {}
    for agent in ("agent", "fork"):
        top = place(directory, agent)
        is_there = workspaces.is_whole(top)
        found[agent] = files_of(top) if is_there else None
        if is_there:
            histories[agent] = Path(workspaces.history_of(top)).read_text()
    snapshots = []
    if workspaces.stacks.any():
        layers = workspaces.stacks.store
        for one in layers.snapshots():
            with layers.view(one.id) as view:
                snapshots.append(
                    {
                        os.fsdecode(each.path): view.read(os.fsdecode(each.path)).decode()
                        for each in view.walk()
                        if not each.is_directory
                    }
                )
    return found, sorted(snapshots, key=lambda one: sorted(one.items())), histories


def files_of(top: str) -> dict[str, str]:
    found = {}
    for folder, _, names in os.walk(top):
        for name in names:
            if name != ".exec_history":
                found[os.path.relpath(os.path.join(folder, name), top)] = Path(folder, name).read_text()
    return found


def latest(workspaces: Workspaces) -> str:
    return workspaces.stacks.store.snapshots()[-1].id


ACTIONS: dict[str, Callable[[Workspaces, Path], object]] = {
    "snapshot": lambda workspaces, data: workspaces.take_snapshot(place(data), PLAIN, None),
    "reset": lambda workspaces, data: workspaces.reset(place(data), latest(workspaces), parts=PARTS, discard=False),
    "fork": lambda workspaces, data: workspaces.make(place(data, "fork"), snapshot_id=latest(workspaces)),
    "removal": lambda workspaces, data: workspaces.remove(place(data)),
}


@pytest.mark.parametrize(
    ("way", "action"),
    [
        *(pytest.param("layers", one, marks=as_root) for one in ("first snapshot", *ACTIONS)),
        ("copies", "snapshot"),
        ("copies", "reset"),
    ],
)
def test_killed_at_any_step_a_workspace_is_as_before_or_as_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, action: str
) -> None:
    if way == "copies":
        monkeypatch.setattr(Stacks, "offer", lambda self: Offer("copy", {"mount": "for a test"}))
    work = ACTIONS[action.removeprefix("first ")]
    original = tmp_path / "original"
    workspaces = opened(original)
    workspaces.make(place(original))
    Path(place(original), "file").write_text("one")
    workspaces.append_history("agent", None, b"line\n")
    if action != "first snapshot":
        workspaces.take_snapshot(place(original), PLAIN, None)
        Path(place(original), "file").write_text("two")
        Path(place(original), "more").write_text("more")
    let_go(original)
    workspaces.stacks.close()

    def after(directory: Path, step: int | None) -> tuple[Seen, bool]:
        subprocess.run(["cp", "-a", original, directory], check=True)

        def once() -> None:
            opening = opened(directory)
            opening.mount_all()
            if step is not None:
                work(opening, directory)

        try:
            died = killed_at(10**9 if step is None else step, once, steps=NAMES)
            again = opened(directory)
            seen = state(again, directory)
            if again.stacks.any():
                again.stacks.store.collect()
                assert state(again, directory) == seen, "collecting lost something"
                assert not os.listdir(directory / "layers" / "drafts") and not os.listdir(directory / "layers" / "gone")
            for agent in ("agent", "fork"):
                if seen[0][agent] is not None:
                    again.take_snapshot(place(directory, agent), PLAIN, None)
            again.stacks.close()
        finally:
            let_go(directory)
        return seen, died

    before, _ = after(tmp_path / "before", None)
    whole, _ = after(tmp_path / "after", 10**6)
    assert before != whole and before[2] == {"agent": "line\n"}
    outcomes = set()
    step = 0
    died = True
    while died:
        seen, died = after(tmp_path / f"step-{step}", step)
        assert seen in (before, whole), f"killed before step {step}"
        outcomes.add(seen == whole)
        step += 1
    assert step > 3 and outcomes == {False, True}


@as_root
def test_many_layers_become_few_and_a_fork_keeps_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces = opened(tmp_path)
    workspaces.make(place(tmp_path))
    try:
        for agent, most in (("agent", 2), ("fork", 18)):
            for number in range(17):
                Path(place(tmp_path, agent), f"{agent}-{number}").write_text(str(number))
                Path(place(tmp_path, agent), f"{agent}-{number - 1}").unlink(missing_ok=True)
                workspaces.take_snapshot(place(tmp_path, agent), PLAIN, None)
            before = files_of(place(tmp_path, agent))
            stack = workspaces.stacks.find(f"workspace/{agent}")
            workspaces.flatten(place(tmp_path, agent))
            flat = workspaces.stacks.find(f"workspace/{agent}")
            assert stack is not None and flat is not None
            assert len(flat.layers) <= most < len(stack.layers), "those of another user stay"
            assert files_of(place(tmp_path, agent)) == before
            if agent == "agent":
                workspaces.make(place(tmp_path, "fork"), snapshot_id=latest(workspaces))
            monkeypatch.setattr(store, "FLATTEN_OTHERS_AT", 18)
        workspaces.flatten(place(tmp_path, "fork"))
        flat = workspaces.stacks.find("workspace/fork")
        assert flat is not None and len(flat.layers) == 2, "but for very many"
        assert files_of(place(tmp_path, "fork")) == before == {"agent-16": "16", "fork-16": "16"}
        assert len({os.stat(place(tmp_path, agent)).st_uid for agent in ("agent", "fork")}) == 2
        assert {os.stat(os.path.join(place(tmp_path, "fork"), name)).st_uid for name in before} == {
            os.stat(place(tmp_path, "fork")).st_uid
        }
    finally:
        workspaces.stacks.close()
        let_go(tmp_path)


def test_a_step_that_fails_leaves_the_workspace_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces = opened(tmp_path)
    workspaces.make(place(tmp_path))
    Path(place(tmp_path), "file").write_text("one")
    rename = os.rename

    def failing(source: str, target: str, **more: int) -> None:
        if source == place(tmp_path) or "drafts" in source:
            raise OSError(28, "no space left on device")
        rename(source, target, **more)

    before = state(workspaces, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        with pytest.raises((OSError, ColdframeError)):
            workspaces.take_snapshot(place(tmp_path), PLAIN, None)
    assert state(workspaces, tmp_path) == before
    assert workspaces.take_snapshot(place(tmp_path), PLAIN, None)
    workspaces.stacks.close()
    let_go(tmp_path)
