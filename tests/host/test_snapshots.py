"""Workspaces are taken and go back with their boxes as they are, on every kind of file system, and nothing is left."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from coldframe.contract.errors import (
    IsolationUnavailable,
    NotFound,
    TooLarge,
    WrongState,
)
from coldframe.contract.files import ListDirectory
from coldframe.contract.policy import Label
from coldframe.contract.ports import Snapshots
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.snapshot import SnapshotWish, WorkspacePoint
from coldframe.host.layers import branch
from coldframe.host.layers.offer import Offer
from coldframe.host.machine import Machine
from coldframe.host.stacks import Stacks
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.points import (
    FORK,
    HOME,
    PLAIN,
    as_root,
    at,
    content,
    exported,
    forked,
    inside,
    nothing_stays_mounted,
)

pytestmark = [needs_bubblewrap, pytest.mark.usefixtures(nothing_stays_mounted.__name__)]


@as_root_and_ordinary
def test_a_workspace_goes_back_and_what_it_was_before_is_kept_for_a_day(who: str) -> None:
    async def steps(machine: Machine) -> None:
        snapshots: Snapshots = machine.snapshots
        box = await new_box(machine)
        await run(box, "mkdir -p folder; echo one > folder/file; echo gone > gone; ln file link; ln -s /etc/passwd out")
        await machine.append_history("agent", None, b'{"line": 1}\n')
        kept = machine.workspaces.history_to_keep("agent", None)
        assert kept is not None
        with pytest.raises(WrongState):
            await snapshots.reset(HOME, None)
        await machine.end_box("box")
        first = await snapshots.take(HOME, SnapshotWish(name="first", label=Label.INTERNAL))
        assert (first.workspace, first.name, first.label, first.was_live) == (HOME, "first", Label.INTERNAL, False)
        before = await content(machine, HOME)
        assert before["folder/file"] == "one\n"
        os.write(kept, b'{"line": 2}\n')
        await machine.append_history("agent", None, b'{"line": 3}\n')

        box = await new_box(machine, "again")
        seen = await run(
            box, "cat .exec_history; echo two > folder/file; rm gone; echo new > new; (echo x >> .exec_history)"
        )
        assert [line[-2] for line in seen.stdout.splitlines()] == ["1", "2", "3"], "no line of the history was lost"
        assert seen.stderr, "and none can be written in the box"
        await machine.end_box("again")
        changes = (await snapshots.changes(at(first.snapshot_id), HOME, limit=100)).changes
        assert inside(changes) == {"folder/file": "changed", "gone": "deleted", "new": "added"}
        assert await content(machine, at(first.snapshot_id)) == before

        discarded = await snapshots.reset(HOME, first.snapshot_id)
        assert discarded is not None and discarded.reason == "discarded" and discarded.label is Label.RESTRICTED
        assert discarded.expires_at is not None and discarded.expires_at > discarded.created_at
        assert await content(machine, HOME) == before
        assert (await content(machine, at(discarded.snapshot_id)))["new"] == "new\n"
        assert (await snapshots.changes(at(first.snapshot_id), HOME, limit=100)).changes == ()

        box = await new_box(machine, "third")
        assert [line[-2] for line in (await run(box, "cat .exec_history")).stdout.splitlines()] == ["1", "2", "3"]
        assert (await run(box, "echo after > folder/file; cat folder/file")).stdout == "after\n"
        await machine.end_box("third")
        assert await snapshots.reset(HOME, None, discard=True) is None
        assert await content(machine, HOME) == {}
        listed = await snapshots.ask(HOME, ListDirectory())
        assert {"scratch", "integrations", "skills"} <= {entry.name for entry in listed.entries}
        assert {one.snapshot_id for one in await snapshots.all()} == {first.snapshot_id, discarded.snapshot_id}
        for one in (first, discarded, discarded):
            await snapshots.remove(one.snapshot_id)
        with pytest.raises(NotFound):
            await snapshots.reset(HOME, first.snapshot_id)
        os.close(kept)
        await machine.delete_workspace("agent")
        with pytest.raises(NotFound):
            await snapshots.take(HOME, PLAIN)

    on_a_machine(steps, who=who)


@as_root
def test_where_overlayfs_cannot_be_had_workspaces_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stacks, "offer", lambda self: Offer("copy", {"mount": "for a test"}))

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "echo one > file")
        await machine.end_box("box")
        first = await machine.snapshots.take(HOME, PLAIN)
        fork = await forked(machine, first.snapshot_id)
        assert (await run(fork, "cat file; echo two > file; stat -c %u file")).stdout == "one\n1000\n"
        box = await new_box(machine, "again")
        await run(box, "echo three > file")
        await machine.end_box("again")
        kept = await machine.snapshots.reset(HOME, first.snapshot_id)
        assert kept is not None and await content(machine, at(kept.snapshot_id)) == {"file": "three\n"}
        assert (await content(machine, HOME), await content(machine, FORK)) == ({"file": "one\n"}, {"file": "two\n"})
        assert not machine.workspaces.stacks.names()

    on_a_machine(steps)


@as_root
def test_the_limit_counts_what_the_agent_sees_and_layers_are_no_disk_of_its_own() -> None:
    async def steps(machine: Machine) -> None:
        limits = Limits(disk_mib=64)
        box = await new_box(machine, limits=limits)
        await run(box, "head -c 40M /dev/zero > big")
        await machine.end_box("box")
        await machine.snapshots.take(HOME, PLAIN)
        box = await new_box(machine, "again", limits=limits)
        report = await (await machine.life("again")).report()
        assert {one.kind: one.strength for one in report.limits}["disk"] == "best_effort"
        over = await run(box, "head -c 40M /dev/zero > more; sleep 20")
        assert over.result.limit is not None and over.result.limit.kind == "disk", "what lies in a sealed layer counts"
        assert (await run(box, "rm more big; head -c 40M /dev/zero > other; sleep 1.5; echo fine")).stdout == "fine\n"

    on_a_machine(steps)


@as_root
def test_a_temporary_workspace_is_taken_and_goes_with_its_box(tmp_path: Path) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create("box", SandboxSpec(background=True, on_missing="degrade"), session_id="one")
        await run(await machine.box("box"), "echo one > file")
        point = WorkspacePoint(session_id="one")
        snapshot = await machine.snapshots.take(point, PLAIN)
        await machine.end_box("box")
        assert not os.path.exists(machine.workspaces.of_session("one"))
        spec = SandboxSpec(background=True, on_missing="degrade", snapshot=snapshot.snapshot_id)
        await machine.create("second", spec, session_id="two")
        assert (await run(await machine.box("second"), "cat file")).stdout == "one\n"
        assert machine.workspaces.stacks.names() == ["background/two"]
        await machine.end_box("second")
        assert machine.workspaces.stacks.names() == []
        assert os.listdir(machine.workspaces.of_session("two").removesuffix("/two")) == []

    on_a_machine(steps)


@as_root
def test_after_a_restart_workspaces_stand_where_they_stood_and_users_of_layers_stay_theirs() -> None:
    async def steps(other: Machine) -> None:
        data = f"{os.path.dirname(other.workspaces.of_agent('x'))}/../../data-again"
        machine = Machine(data, embedded=True)
        box = await new_box(machine)
        await run(box, "echo one > file")
        await machine.end_box("box")
        snapshot = await machine.snapshots.take(HOME, PLAIN)
        uid = os.stat(machine.workspaces.of_agent("agent")).st_uid
        place = machine.workspaces.of_agent("agent")
        await machine.close()
        assert not os.path.ismount(place), "an orderly end leaves no mount of what nobody uses"
        again = Machine(data, embedded=True)
        try:
            await again.sweep(keep_boxes=set(), keep_sessions=set())
            assert Path(place, "file").read_text() == "one\n"
            await again.delete_workspace("agent")
            assert not os.path.exists(place)
            await again.create_workspace("new")
            assert os.stat(again.workspaces.of_agent("new")).st_uid != uid, "a layer is still that user's"
            fork = await forked(again, snapshot.snapshot_id)
            assert (await run(fork, "cat file")).stdout == "one\n"
            await again.end_box("box-fork")
            await again.delete_workspace("fork")
            await again.snapshots.remove(snapshot.snapshot_id)
            again.layers.collect()
            trees = os.listdir(f"{data}/layers/trees")
            assert trees == [] and os.listdir(f"{data}/history") == []
        finally:
            await again.close()

    on_a_machine(steps)


@as_root
def test_a_workspace_with_a_disk_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    async def steps(machine: Machine) -> None:
        machine.workspaces.own_disks = True
        await asyncio.to_thread(os.makedirs, machine.workspaces.of_agent("agent"))
        Path(machine.workspaces.of_agent("agent"), "file").touch()
        for step in (machine.snapshots.take(HOME, PLAIN), machine.snapshots.reset(HOME, None)):
            with pytest.raises(IsolationUnavailable) as caught:
                await step
            assert caught.value.facts["property"] == "snapshots"
        machine.workspaces.own_disks = False
        shutil.rmtree(machine.workspaces.of_agent("agent"))

    on_a_machine(steps)


@as_root
@pytest.mark.parametrize(
    ("bound", "number", "made"),
    [("MOST_LEVELS", 5, "mkdir -p 1/2/3/4/5/6/7/8/9"), ("MOST_WAITING", 9, "mkdir many; touch many/{1..20}")],
)  # in place of 10,000 and 500,000
def test_what_one_agent_has_in_its_files_keeps_no_other_from_being_counted(
    monkeypatch: pytest.MonkeyPatch, bound: str, number: int, made: str
) -> None:
    async def steps(machine: Machine) -> None:
        for agent, command in (
            ("agent", made),
            ("bob", "mkdir -p folder/deep; ln -s file link; echo one > folder/deep/file"),
        ):
            await machine.create(agent, SandboxSpec(agent_id=agent, on_missing="degrade"), session_id=agent)
            await run(await machine.box(agent), command)
            await machine.end_box(agent)
        monkeypatch.setattr(branch, bound, number)
        deep = await machine.snapshots.take(HOME, PLAIN)
        other = await machine.snapshots.take(WorkspacePoint(agent_id="bob"), PLAIN)

        async def is_counted() -> bool:
            facts = {one.snapshot_id: one for one in await machine.snapshots.all()}
            assert facts[deep.snapshot_id].files is None
            return facts[other.snapshot_id].files is not None and facts[other.snapshot_id].added_bytes is not None

        await until(is_counted, "it is counted")
        facts = {one.snapshot_id: one for one in await machine.snapshots.all()}
        assert facts[other.snapshot_id].files == 2, "the file and the link; directories are none"
        for act in (
            machine.snapshots.changes(at(deep.snapshot_id), at(other.snapshot_id), limit=100),
            exported(machine, deep.snapshot_id),
        ):
            with pytest.raises(TooLarge):
                await act
        spec = SandboxSpec(agent_id="agent", on_missing="degrade")
        await machine.create("again", spec, session_id="again")
        await machine.snapshots.take(HOME, PLAIN)  # of what has changed since, which is little
        await machine.end_box("again")
        assert await machine.snapshots.reset(HOME, None) is not None, "there is a way back"

    on_a_machine(steps)


@as_root
def test_what_snapshots_take_of_the_disk_is_counted_also_where_nobody_else_counts_it() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        ids = []
        for _ in range(3):
            await run(box, "head -c 4M /dev/urandom > big")
            ids.append((await machine.snapshots.take(HOME, PLAIN)).snapshot_id)
            await run(box, "rm big")
        facts = {one.snapshot_id: one for one in await machine.snapshots.all()}
        assert all((facts[one].added_bytes or 0) >= 4 << 20 for one in ids), "at once, and not when there is time"
        await machine.end_box("box")
        await machine.snapshots.remove(ids[0])
        await machine.snapshots.take(HOME, PLAIN)
        left = {one.snapshot_id: one for one in await machine.snapshots.all()}
        assert ids[0] not in left and (left[ids[1]].added_bytes or 0) >= 4 << 20

    on_a_machine(steps)
