"""Workspaces are taken back, forked, compared, read and carried away with their boxes as they are, and nothing is left."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    FileMissing,
    HostUnreachable,
    InvalidArgument,
    IsolationUnavailable,
    LimitReached,
    NotFound,
    OutsideWorkspace,
    SnapshotCorrupt,
    TooLarge,
    WrongState,
)
from coldframe.contract.files import ListDirectory, MakeDirectory, ReadFile, Request, SearchFiles, WriteFile
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.ports import Box, Snapshots
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.snapshot import Change, SnapshotContents, SnapshotPoint, SnapshotWish, WorkspacePoint
from coldframe.host import stillness
from coldframe.host.layers import branch
from coldframe.host.layers.offer import Offer
from coldframe.host.link import LinkLost
from coldframe.host.machine import Machine
from coldframe.host.remote import RemoteHost
from coldframe.host.remote_snapshots import RemoteSnapshots
from coldframe.host.stacks import Stacks
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.test_daemon import with_a_daemon

pytestmark = needs_bubblewrap

HOME = WorkspacePoint(agent_id="agent")
FORK = WorkspacePoint(agent_id="fork")
PLAIN = SnapshotWish()
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(autouse=True)
def _nothing_stays_mounted() -> Iterator[None]:
    def ours() -> list[str]:
        return [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if "/cf-machine-" in line or "/cf-daemon-" in line
        ]

    before = ours()
    yield
    assert ours() == before


def at(snapshot_id: str) -> SnapshotPoint:
    return SnapshotPoint(snapshot_id=snapshot_id)


async def content(machine: Machine, point: WorkspacePoint | SnapshotPoint) -> dict[str, str]:
    """Every file of a point but the history, as it is read at rest."""
    listed = await machine.snapshots.ask(point, ListDirectory(recursive=True))
    found = {}
    for entry in listed.entries:
        if entry.kind == "file" and entry.path != ".exec_history":
            found[entry.path] = (await machine.snapshots.ask(point, ReadFile(path=entry.path))).content.decode()
    return found


async def exported(machine: Machine, snapshot_id: str) -> list[bytes | SnapshotContents]:
    return [part async for part in machine.snapshots.export(at(snapshot_id))]


async def forked(machine: Machine, snapshot_id: str, agent: str = "fork") -> Box:
    spec = SandboxSpec(agent_id=agent, snapshot=snapshot_id, on_missing="degrade")
    await machine.create(f"box-{agent}", spec, session_id=f"session-{agent}")
    return await machine.box(f"box-{agent}")


def inside(changes: tuple[Change, ...]) -> dict[str, str]:
    return {one.path: one.change for one in changes if one.change != "metadata" and one.kind == "file"}


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


@as_root_and_ordinary
def test_forks_do_not_see_what_the_others_write_and_have_users_of_their_own(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "mkdir -m 700 folder; echo one > folder/file; chmod 600 folder/file; git init -q repo")
        await machine.end_box("box")
        snapshot = await machine.snapshots.take(HOME, PLAIN)
        boxes = {"agent": await new_box(machine, "original")}
        for name in ("fork", "other"):
            boxes[name] = await forked(machine, snapshot.snapshot_id, name)
        for name, box in boxes.items():
            done = await run(
                box, f"echo {name} >> folder/file; echo {name} > {name}; rm -r repo; ls -A; stat -c %u folder/file"
            )
            assert done.stderr == ""
            assert done.stdout.split()[-1] == "1000", "all of it is the user's"
        for name in boxes:
            found = await content(machine, WorkspacePoint(agent_id=name))
            assert found == {"folder/file": f"one\n{name}\n", name: f"{name}\n"}
        assert (await content(machine, at(snapshot.snapshot_id)))["folder/file"] == "one\n"
        users = {os.stat(os.path.join(machine.workspaces.of_agent(name), "folder/file")).st_uid for name in boxes}
        assert len(users) == (3 if who == "root" else 1)
        again = (
            await forked(machine, (await machine.snapshots.take(FORK, PLAIN)).snapshot_id, "second")
            if who == "root"
            else None
        )
        if again is not None:
            assert (
                await run(again, "cat folder/file; echo deeper >> folder/file; cat folder/file")
            ).stdout.split() == [
                *("one", "fork"),
                *("one", "fork", "deeper"),
            ], "a fork of a fork"
        with pytest.raises(NotFound):
            await forked(machine, "0" * 16, "nothing")
        assert not os.path.exists(machine.workspaces.of_agent("nothing"))

    on_a_machine(steps, who=who)


@as_root
def test_what_is_taken_while_processes_write_is_whole_and_they_go_on() -> None:
    writer = """
import os, sqlite3, subprocess
base = sqlite3.connect("base.db", isolation_level=None)
base.execute("pragma journal_mode=wal")
base.execute("create table if not exists rows (number integer, twice integer)")
subprocess.run(["git", "init", "-q", "repo"], check=True)
number = 0
while not os.path.exists("enough"):
    number += 1
    base.execute("begin"); base.execute("insert into rows values (?, ?)", (number, 2 * number)); base.execute("commit")
    if number % 40 == 1:
        open("repo/file", "w").write(str(number))
        subprocess.run("git add -A && git -c user.name=n -c user.email=e commit --allow-empty -qm x", shell=True, cwd="repo", check=True)
    open("ready", "w").close()
"""

    def look_at(place: str) -> int:
        checked = subprocess.run(
            ["git", "-c", "safe.directory=*", "fsck", "--strict"], cwd=f"{place}/repo", check=False, capture_output=True
        )
        assert checked.returncode == 0, checked.stderr
        with sqlite3.connect(f"{place}/base.db") as base:
            assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
            rows = base.execute("select number, twice from rows order by number").fetchall()
        base.close()
        assert rows == [(number, 2 * number) for number in range(1, len(rows) + 1)], "no hole in what was committed"
        return len(rows)

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        path = machine.workspaces.of_agent("agent")
        await box.write(WriteFile(path="writer.py"), _stream(writer.encode()))
        running = asyncio.ensure_future(run(box, "python3 writer.py"))
        await until(lambda: _there(f"{path}/ready"), "the writer writes")
        first = await machine.snapshots.take(HOME, PLAIN)
        assert first.was_live and first.frozen_ms is not None
        assert [status.state for status in await machine.boxes()] == ["running"]
        os.unlink(f"{path}/ready")
        await until(lambda: _there(f"{path}/ready"), "it goes on")
        assert not machine.workspaces.stacks.exists("workspace/agent"), "nothing is switched beneath a box that runs"
        Path(path, "enough").touch()
        assert (await running).result.exit_code == 0
        await machine.end_box("box")
        await until(lambda: _is_stack(machine), "it becomes a stack once nobody uses it")
        box = await new_box(machine, "again")
        os.unlink(f"{path}/enough")
        Path(path, "ready").unlink()
        running = asyncio.ensure_future(run(box, "python3 writer.py"))
        await until(lambda: _there(f"{path}/ready"), "the writer writes")
        second = await machine.snapshots.take(HOME, PLAIN)
        Path(path, "enough").touch()
        await running
        numbers = []
        for number, one in enumerate((first, second)):
            await forked(machine, one.snapshot_id, f"fork-{number}")
            numbers.append(await asyncio.to_thread(look_at, machine.workspaces.of_agent(f"fork-{number}")))
        assert numbers[0] > 0

    # the second writer counts from 1 again, so it starts on a new base
    writer = writer.replace(
        '"create table if not exists rows', '"drop table if exists rows"); base.execute("create table rows'
    )
    on_a_machine(steps)


@as_root
def test_a_paused_box_stays_paused_and_one_that_was_held_goes_on_after_a_kill() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "echo one > file")
        life = await machine.life("box")
        await life.pause()
        assert (await machine.snapshots.take(HOME, PLAIN)).was_live
        assert [status.state for status in await machine.boxes()] == ["paused"]
        await life.resume()
        held = machine.occupants(HOME)[0].box
        stillness.Stillness([held]).__enter__()  # and nobody leaves it: the machine was killed
        assert [status.state for status in await machine.boxes()] == ["running"]
        stillness.go_on(held)  # what a machine does with each box when it starts
        assert (await run(box, "cat file")).stdout == "one\n"
        assert stillness.NOTE not in os.listdir(held.directory)
        await life.pause()
        Path(held.directory, stillness.NOTE).touch()  # killed before it could be written who stands still
        stillness.go_on(held)
        assert [status.state for status in await machine.boxes()] == ["paused"]
        assert stillness.NOTE not in os.listdir(held.directory)

    on_a_machine(steps)


@as_root
def test_one_that_cannot_be_let_go_on_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        await new_box(machine, "other")
        held = [one.box for one in machine.occupants(HOME)]
        assert len(held) == 2
        last = held[-1].groups
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no such device"):
            with stillness.Stillness(held):
                patch.setattr(last, "thaw", lambda: (_ for _ in ()).throw(OSError(5, "no such device")))
        assert not held[0].groups.is_frozen() and last.is_frozen()
        stillness.go_on(held[-1])
        assert [status.state for status in await machine.boxes()] == ["running"] * 2

    on_a_machine(steps)


@as_root_and_ordinary
def test_what_is_asked_at_rest_is_answered_as_the_box_does(who: str) -> None:
    requests: list[Request[Any]] = [
        ListDirectory(),
        ListDirectory(recursive=True),
        ListDirectory(recursive=True, max_entries=3),
        ListDirectory(path="folder", max_depth=1, recursive=True),
        ListDirectory(path="missing"),
        ListDirectory(path="folder/file"),
        ListDirectory(path="closed"),
        ReadFile(path="folder/file"),
        ReadFile(path="folder/file", offset=2, length=3),
        ReadFile(path="/home/user/folder/file"),
        ReadFile(path="inner"),
        ReadFile(path="passwd"),
        ReadFile(path="up"),
        ReadFile(path="loop"),
        ReadFile(path="../../etc/passwd"),
        ReadFile(path="folder"),
        ReadFile(path="pipe"),
        ReadFile(path="secret"),
        ReadFile(path="huge"),
        SearchFiles(pattern="o.e"),
        SearchFiles(pattern="root:"),
        SearchFiles(pattern="one", glob="*.txt", max_matches=1),
        SearchFiles(pattern="("),
        SearchFiles(pattern="(a+)+$", path="slow", budget_s=1),
        SearchFiles(pattern="x" * 5),
    ]

    async def answer(asked: Callable[[Request[Any]], Awaitable[Model]], request: Request[Any]) -> object:
        try:
            return (await asked(request)).model_dump()
        except ColdframeError as error:
            return type(error), error.message, error.facts

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        made = await run(
            box,
            "mkdir -p folder/deep closed .git; echo one > folder/file; echo one > folder/deep/a.txt; echo one > b.txt;"
            "ln -s folder/file inner; ln -s /etc/passwd passwd; ln -s ../.. up; ln -s loop loop; mkfifo pipe;"
            "echo secret > secret; chmod 0 secret closed; truncate -s 100M huge; echo one > .git/config;"
            "printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' > slow; printf 'xxxxx\\0' > binary",
        )
        assert made.stderr == ""
        expected = [await answer(box.ask, request) for request in requests]
        found = [await answer(lambda one: machine.snapshots.ask(HOME, one), request) for request in requests]
        assert found == expected
        assert {FileMissing, OutsideWorkspace, InvalidArgument} <= {
            one[0] for one in expected if isinstance(one, tuple)
        }
        await machine.end_box("box")
        taken = await machine.snapshots.take(HOME, PLAIN)
        for request, one in zip(requests, expected, strict=True):
            there = await answer(lambda asked: machine.snapshots.ask(at(taken.snapshot_id), asked), request)
            assert _without_versions(there) == _without_versions(one)
        with pytest.raises(InvalidArgument):
            await machine.snapshots.ask(HOME, MakeDirectory(path="new"))

    on_a_machine(steps, who=who)


def _without_versions(answer: object) -> object:
    """What two trees cannot have in common: the version of a file, the sizes of folders, and that there is no history."""
    if isinstance(answer, tuple):
        return answer[:2]
    assert isinstance(answer, dict)
    answer = {**answer, "version": None}
    entries = [one for one in answer.get("entries", ()) if one["name"] != ".exec_history"]
    for one in entries:
        one.update(version=None, size=one["size"] if one["kind"] != "directory" else 0)
    kept = [one for one in answer.get("directories_skipped", ()) if one != ".exec_history"]
    if answer.get("truncated_because"):
        entries = []  # the history was one of them
    return {**answer, "entries": entries, "directories_skipped": kept, "complete": None, "truncated_because": None}


@as_root_and_ordinary
def test_an_archive_comes_back_the_same_and_half_a_one_is_nothing(who: str) -> None:
    async def steps(machine: Machine) -> None:
        snapshots = machine.snapshots
        box = await new_box(machine)
        await run(
            box,
            "mkdir folder; echo one > folder/file; ln folder/file second; ln -s /etc out; head -c 3M /dev/zero | tr '\\0' x > big",
        )
        await machine.end_box("box")
        first = await snapshots.take(HOME, SnapshotWish(label=Label.CONFIDENTIAL))
        parts = [part async for part in snapshots.export(at(first.snapshot_id))]
        contents = parts.pop()
        assert isinstance(contents, SnapshotContents) and len(parts) > 3
        whole = b"".join(part for part in parts if isinstance(part, bytes))
        back, again = await snapshots.take_in(
            _stream(whole), PLAIN, expected=contents.sha256, most_bytes=1 << 24, most_files=100
        )
        assert again == contents
        assert (back.label, back.reason, back.workspace) == (Label.CONFIDENTIAL, "imported", None)
        box = await forked(machine, back.snapshot_id)
        done = await run(
            box,
            "stat -c %h second; cat folder/file; echo more >> folder/file; cat second; wc -c < big; cat out/hostname",
        )
        assert done.stdout.split()[:3] == ["2", "one", "one"]
        of_workspace = [part async for part in snapshots.export(FORK)]
        assert isinstance(of_workspace[-1], SnapshotContents) and of_workspace[-1] != contents
        left, _ = await snapshots.take_in(
            _stream(b"".join(one for one in of_workspace if isinstance(one, bytes))),
            PLAIN,
            most_bytes=1 << 24,
            most_files=100,
        )
        assert left.label is Label.RESTRICTED, "nobody said what a workspace holds"

        before = {one.snapshot_id for one in await snapshots.all()}
        for cut in (0, 1000, len(whole) // 2, len(whole) - 1024):
            with pytest.raises(SnapshotCorrupt):
                await snapshots.take_in(_stream(whole[:cut]), PLAIN, most_bytes=1 << 24, most_files=100)
        with pytest.raises(LimitReached):
            await snapshots.take_in(_stream(whole), PLAIN, most_bytes=1 << 20, most_files=100)
        with pytest.raises(SnapshotCorrupt):
            await snapshots.take_in(_stream(whole), PLAIN, expected="0" * 64, most_bytes=1 << 24, most_files=100)
        with pytest.raises(RuntimeError, match="left"):
            await snapshots.take_in(_broken(whole[:5000]), PLAIN, most_bytes=1 << 24, most_files=100)
        async with aclosing(snapshots.export(at(first.snapshot_id))) as leaving:
            assert await anext(leaving)
        assert {one.snapshot_id for one in await snapshots.all()} == before

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_pages_of_changes_are_what_a_walk_finds(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(
            box,
            "for n in 1 2 3 4 5; do mkdir d$n; for m in 1 2 3 4; do echo $n$m > d$n/f$m; done; done; git init -q repo",
        )
        await machine.end_box("box")
        first = await machine.snapshots.take(HOME, PLAIN)
        before = await content(machine, HOME)
        box = await new_box(machine, "again")
        await run(
            box,
            "rm -r d1; rm d2/f1; echo x > d2/f2; mv d3 d6; rm -r d4; echo file > d4; rm d5/f1; mkdir d5/f1; echo y > d5/f1/z; chmod 700 d5/f2; touch -d 2001-01-01 d2/f4; rm -r repo/.git/hooks",
        )
        after = await content(machine, HOME)
        found: list[Change] = []
        page = await machine.snapshots.changes(at(first.snapshot_id), HOME, limit=4)
        found += page.changes
        while page.next_after is not None:
            page = await machine.snapshots.changes(at(first.snapshot_id), HOME, after_path=page.next_after, limit=4)
            found += page.changes
        paths = [one.path for one in found]
        assert len(paths) == len(set(paths))
        files = {one.path: one.change for one in found if one.kind == "file" and one.change != "metadata"}
        added = dict.fromkeys(after.keys() - before.keys(), "added")
        deleted = dict.fromkeys(before.keys() - after.keys(), "deleted")
        changed = {path: "changed" for path in after.keys() & before.keys() if before[path] != after[path]}
        assert deleted.pop("d5/f1") and {one.kind for one in found if one.path == "d5/f1"} == {"directory"}
        assert files == {**added, **deleted, **changed, "d4": "changed"}
        assert {one.path for one in found if one.change == "metadata" and one.kind == "file"} == {"d2/f4", "d5/f2"}
        back = await machine.snapshots.changes(HOME, at(first.snapshot_id), limit=1000)
        assert {one.path for one in back.changes if one.change == "added"} >= deleted.keys()

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


def test_the_server_has_all_of_it_through_the_daemon() -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        spec = SandboxSpec(agent_id="agent", on_missing="degrade")
        await host.create("box", spec, session_id="session")
        box = await host.box("box")
        await run(box, "echo one > file; head -c 3M /dev/zero | tr '\\0' x > big")
        await host.end("box")
        first = await host.snapshots.take(HOME, SnapshotWish(name="first", label=Label.INTERNAL))
        assert [one.snapshot_id for one in await host.snapshots.all()] == [first.snapshot_id]
        await host.append_history("agent", None, b"line\n")
        await host.create("again", spec, session_id="session")
        await run(await host.box("again"), "echo two > file; rm big")
        await host.end("again")
        changes = (await host.snapshots.changes(at(first.snapshot_id), HOME, limit=10)).changes
        assert inside(changes) == {"file": "changed", "big": "deleted"}
        assert (await host.snapshots.ask(HOME, ReadFile(path="file"))).content == b"two\n"
        with pytest.raises(FileMissing):
            await host.snapshots.ask(HOME, ReadFile(path="big"))
        parts = [part async for part in host.snapshots.export(at(first.snapshot_id))]
        contents = parts.pop()
        assert isinstance(contents, SnapshotContents)
        whole = b"".join(part for part in parts if isinstance(part, bytes))
        facts, again = await host.snapshots.take_in(
            _stream(whole), PLAIN, expected=contents.sha256, most_bytes=1 << 24, most_files=100
        )
        assert (again, facts.label) == (contents, Label.INTERNAL)
        before = len(await host.snapshots.all())
        with pytest.raises(SnapshotCorrupt):
            await host.snapshots.take_in(_stream(whole[: len(whole) // 2]), PLAIN, most_bytes=1 << 24, most_files=100)
        with pytest.raises(LimitReached):
            await host.snapshots.take_in(_stream(whole), PLAIN, most_bytes=1 << 20, most_files=100)
        with pytest.raises(RuntimeError, match="left"):
            await host.snapshots.take_in(_broken(whole[:300_000]), PLAIN, most_bytes=1 << 24, most_files=100)
        with pytest.raises(NotFound):
            [part async for part in host.snapshots.export(at("0" * 16))]
        async with aclosing(host.snapshots.export(at(first.snapshot_id))) as leaving:
            assert await anext(leaving)
        assert len(await host.snapshots.all()) == before
        kept = await host.snapshots.reset(HOME, first.snapshot_id)
        assert kept is not None and await host.snapshots.reset(HOME, None, discard=True) is None
        await host.snapshots.remove(kept.snapshot_id)
        await host.delete_workspace("agent")
        await host.close()

    with_a_daemon(steps)


@as_root_and_ordinary
def test_a_fork_that_finds_a_workspace_is_refused_and_not_given_other_files(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await run(await new_box(machine), "echo one > file")
        await machine.end_box("box")
        snapshot = await machine.snapshots.take(HOME, PLAIN)
        spec = SandboxSpec(agent_id="fork", on_missing="degrade")
        await machine.create("faster", spec, session_id="faster")
        with pytest.raises(Conflict):
            await forked(machine, snapshot.snapshot_id)
        assert await content(machine, FORK) == {}
        again = spec.model_copy(update={"agent_id": "other", "snapshot": snapshot.snapshot_id})
        await machine.create("third", again, session_id="third")
        await machine.end_box("third")
        await machine.create("third", again, session_id="third", anew=True)
        assert await content(machine, WorkspacePoint(agent_id="other")) == {"file": "one\n"}

    on_a_machine(steps, who=who)


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


@as_root_and_ordinary
def test_a_question_too_long_for_the_reader_is_the_fault_of_whoever_asks(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await run(await new_box(machine), "echo one > file")
        await machine.end_box("box")
        with pytest.raises(InvalidArgument, match="bytes"):
            await machine.snapshots.ask(HOME, SearchFiles(pattern="x", glob="*" * 300_000))
        assert (await machine.snapshots.ask(HOME, SearchFiles(pattern="\U0001f9ca" * 10_000))).matches == ()

    on_a_machine(steps, who=who)


def test_a_refusal_is_told_also_where_sending_broke_first() -> None:
    class Connection:
        def __init__(self, told: ColdframeError) -> None:
            self._told = told
            self._sent = 0

        async def send(self, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
            self._sent += 1
            if self._sent > 1:
                raise LinkLost("closed by the far side")

        async def receive(self) -> tuple[dict[str, Any], bytes]:
            for _ in range(3):
                await asyncio.sleep(0)
            raise self._told

    class Link:
        def __init__(self, told: ColdframeError) -> None:
            self._told = told

        @asynccontextmanager
        async def connection(self) -> AsyncIterator[Connection]:
            yield Connection(self._told)

    async def steps() -> None:
        for told, expected in ((SnapshotCorrupt("cut off"), SnapshotCorrupt), (LinkLost("ended"), HostUnreachable)):
            remote = RemoteSnapshots(cast("Any", Link(told)))
            with pytest.raises(expected):
                await remote.take_in(_stream(bytes(300_000)), PLAIN, most_bytes=1, most_files=1)

    asyncio.run(steps())


@as_root_and_ordinary
def test_the_machine_goes_on_while_looks_and_archives_wait(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "echo one > file")
        await machine.end_box("box")
        silent, over = asyncio.Event(), asyncio.Event()

        async def archive() -> AsyncIterator[bytes]:
            silent.set()
            await over.wait()
            yield b""

        sending = [
            asyncio.ensure_future(machine.snapshots.take_in(archive(), PLAIN, most_bytes=1, most_files=1))
            for _ in range(40)
        ]
        await silent.wait()
        assert (await run(await new_box(machine, "again"), "cat file")).stdout == "one\n"
        assert (await content(machine, HOME))["file"] == "one\n"
        await machine.end_box("again")
        over.set()
        assert all(isinstance(one, SnapshotCorrupt) for one in await asyncio.gather(*sending, return_exceptions=True))

    on_a_machine(steps, who=who)


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


async def _stream(whole: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(whole), 100_000):
        yield whole[start : start + 100_000]


async def _broken(part: bytes) -> AsyncIterator[bytes]:
    yield part
    raise RuntimeError("whoever sent it has left")


async def _there(path: str) -> bool:
    return os.path.exists(path)


async def _is_stack(machine: Machine) -> bool:
    return machine.workspaces.stacks.exists("workspace/agent") and machine.workspaces.stacks.mounted("workspace/agent")
