"""Held here: a sandbox goes back to a point and keeps what it was before for a day, or stays as it is, whatever refuses it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    Conflict,
    FileMissing,
    IsolationUnavailable,
    NotFound,
    SnapshotCorrupt,
    WrongState,
)
from coldframe.contract.snapshot import WorkspacePoint
from tests.control.bench import OWNER, opened
from tests.control.points import last, read, reset, take, write
from tests.fakes.templates import place_of


def test_a_reset_goes_back_keeps_what_was_for_a_day_and_runs_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, info = bench.control, await bench.sandbox()
            await write(bench, info, "scratch/a.txt", "one\n")
            good = await take(bench, info)
            await write(bench, info, "scratch/a.txt", "two\n")
            await write(bench, info, "scratch/b.txt", "new\n")
            running = await bench.call(info, "run_command", command="sleep 1000", background=True)
            looked = await reset(bench, info, good.snapshot_id, dry_run=True)
            assert looked.dry_run and looked.kept is None and looked.state.state == "running"
            assert looked.lost[0].command_ids == (running.value["command_id"],)
            assert [(one.path, one.change) for one in looked.changes.changes] == [
                ("scratch/a.txt", "changed"),
                ("scratch/b.txt", "deleted"),
            ]
            done = await reset(bench, info, good.snapshot_id, key="k")
            assert (done.state.state, done.sandbox_id, done.session_id) == ("running", info.sandbox_id, info.session_id)
            assert done.lost[0].item == "processes" and done.kept is not None and done.kept.reason == "discarded"
            assert await read(bench, info, "scratch/a.txt") == "one\n"
            with pytest.raises(FileMissing):
                await read(bench, info, "scratch/b.txt")
            assert await read(bench, info, "scratch/b.txt", snapshot_id=done.kept.snapshot_id) == "new\n"
            await write(bench, info, "scratch/c.txt", "later\n")
            again = await reset(bench, info, good.snapshot_id, key="k")  # known, and not done again
            assert again.kept == done.kept and await read(bench, info, "scratch/c.txt") == "later\n"
            with pytest.raises(Conflict):
                await reset(bench, info, "empty", key="k")
            await control.lifecycle.stop(OWNER, info.sandbox_id)
            looked = await reset(bench, info, "empty", dry_run=True)
            assert {one.path for one in looked.changes.changes} == {"scratch/a.txt", "scratch/c.txt"}
            emptied = await reset(bench, info, "empty", discard=True)
            assert emptied.state.state == "stopped" and emptied.kept is None
            assert (await bench.call(info, "list_directory", path="scratch")).value["entries"] == []
            assert bench.history()  # records stay
            await control.lifecycle.start(OWNER, info.sandbox_id)
            other = await bench.sandbox()
            with pytest.raises(WrongState) as caught:
                await reset(bench, info, good.snapshot_id)
            assert caught.value.facts["sandbox_id"] == other.sandbox_id
            await control.lifecycle.terminate(OWNER, info.sandbox_id)
            with pytest.raises(WrongState):
                await reset(bench, info, good.snapshot_id)
            with pytest.raises(NotFound):
                await reset(bench, other, "0" * 16)
            told = [one for one in bench.entries() if one.kind == "sandbox.reset"]
            assert [one.body["to"] for one in told] == [good.snapshot_id, "empty"]
            stored, again_judged = control.gate.replay(bench.entries(kinds=("sandbox.reset_begun",))[0].seq)
            assert stored == again_judged

    asyncio.run(scenario())


def test_a_reset_that_the_host_refuses_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await write(bench, info, "scratch/a.txt", "one\n")
            good = await take(bench, info)

            async def corrupt(*_: Any, **__: Any) -> Any:
                raise SnapshotCorrupt("a layer is gone")

            monkeypatch.setattr(bench.host.snapshots, "reset", corrupt)
            with pytest.raises(SnapshotCorrupt):
                await reset(bench, info, good.snapshot_id, key="k")
            assert bench.control.sandboxes.find(info.sandbox_id).state.state == "running"
            assert await read(bench, info, "scratch/a.txt") == "one\n"
            assert last(bench, "sandbox.reset_failed")["code"] == "SNAPSHOT_CORRUPT"
            monkeypatch.undo()
            assert (await reset(bench, info, good.snapshot_id, key="k")).kept is not None

    asyncio.run(scenario())


def test_a_reset_that_would_leave_a_system_behind_is_refused_before_anything_ends(tmp_path: Path) -> None:
    """As an ordinary user, whose systems have no part in snapshots."""

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            kept = await take(bench, info, "kept")
            bench.host.templates.on[place_of(WorkspacePoint(agent_id=info.agent_id))] = "0" * 64
            for to in (kept.snapshot_id, "empty"):
                for dry_run in (True, False):
                    with pytest.raises(IsolationUnavailable, match="subordinate ids"):
                        await reset(bench, info, to, dry_run=dry_run)
            assert bench.control.sandboxes.find(info.sandbox_id).state.state == "running"
            assert bench.entries(kinds=("sandbox.reset_begun", "sandbox.stopped")) == []

    asyncio.run(scenario())
