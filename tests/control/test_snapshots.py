"""Held here: a snapshot is taken, found, read, forked from and carried away, on record, under a label that never falls."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    SnapshotCorrupt,
    WrongState,
)
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import SnapshotWish, WorkspacePoint
from coldframe.control.lineage import WantedItems
from tests.control.bench import AGENT, OTHER, OWNER, SECRETS, opened
from tests.control.points import last, once, read, reset, take, write


def test_one_is_taken_listed_read_renamed_and_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            snapshots, info = bench.control.snapshots, await bench.sandbox()
            await write(bench, info, "scratch/a.txt", "one\n")
            first = await take(bench, info, "configured")
            await write(bench, info, "scratch/a.txt", "two\n")
            second = await take(bench, info, expires_in_s=60)
            assert (first.state, first.agent_id, first.sandbox_id) == ("ready", "ada", info.sandbox_id)
            assert first.was_live and first.files == 1 and first.taken_by == OWNER.name
            assert [one.snapshot_id for one in snapshots.list(OWNER)] == [second.snapshot_id, first.snapshot_id]
            assert snapshots.list(OWNER, after=second.snapshot_id, limit=5) == [first]
            assert snapshots.list(OWNER, agent_id="bob") == []
            assert snapshots.list(OWNER, label=Label.PUBLIC, reason="asked", sandbox_id=info.sandbox_id, limit=1) == [
                second
            ]
            assert await read(bench, info, "scratch/a.txt", snapshot_id=first.snapshot_id) == "one\n"
            assert await read(bench, info, "scratch/a.txt") == "two\n"
            body = bench.entries(kinds=("call.started",))[-2].body
            assert body["snapshot_ids"] == [first.snapshot_id] and body["tool"] == "read_file"
            assert "snapshot_ids" not in bench.entries(kinds=("call.started",))[-1].body
            last_written = bench.entries(kinds=("call.ended",))[1].subject
            (item,) = (
                await bench.control.lineage.items(OWNER, WantedItems(path="scratch/a.txt"), after=0, limit=9)
            ).items[-1:]
            assert item.call_id == last_written and item.retention == "kept"  # what is read is no file of now
            with pytest.raises(InvalidArgument):  # they never change
                await bench.control.gate.call(
                    OWNER, info.sandbox_id, "write_file", {"path": "b", "content": ""}, snapshot_id=first.snapshot_id
                )
            assert snapshots.rename(OWNER, first.snapshot_id, "before it").name == "before it"
            await snapshots.remove(OWNER, first.snapshot_id)
            await snapshots.remove(OWNER, first.snapshot_id)
            with pytest.raises(NotFound):
                await snapshots.remove(OWNER, "0" * 16)
            assert list(bench.host.snapshots.facts) == [second.snapshot_id]
            bench.pass_time(timedelta(seconds=61))
            await bench.control.snapshot_upkeep.turn()
            assert snapshots.list(OWNER) == [] and not bench.host.snapshots.facts
            kinds = [kind for kind in bench.kinds() if kind.startswith("snapshot.")]
            assert kinds == [f"snapshot.{one}" for one in ("taken", "taken", "renamed", "removed", "expired")]
            assert last(bench, "snapshot.expired")["caller"] == "timer"

    asyncio.run(scenario())


def test_files_are_read_where_nothing_runs_and_nothing_is_started(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            lifecycle, info = bench.control.lifecycle, await bench.sandbox()
            spare = await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            await write(bench, info, "scratch/a.txt", "one\n")
            await bench.control.gate.call(OWNER, spare.sandbox_id, "write_file", {"path": "b", "content": "two\n"})
            for one in (info, spare):
                await lifecycle.stop(OWNER, one.sandbox_id)
            started = len(bench.host.ran)
            assert await read(bench, info, "scratch/a.txt") == "one\n"
            assert await read(bench, spare, "b") == "two\n"
            found = await bench.call(info, "search_files", pattern="one")
            assert [one["path"] for one in found.value["matches"]] == ["scratch/a.txt"]
            allowed = {one.operation: one.answer for one in bench.control.gate.allowed(AGENT, info.sandbox_id)}
            assert (allowed["tool.read_file"], allowed["tool.write_file"]) == ("allow", "deny")
            with pytest.raises(WrongState):
                await bench.call(info, "write_file", path="c", content="")
            with pytest.raises(NotFound):
                await bench.call(info, "read_file", caller=OTHER, path="scratch/a.txt")
            snapshot = await take(bench, info)
            assert not snapshot.was_live
            for one in (info, spare):
                await lifecycle.terminate(OWNER, one.sandbox_id)
            assert await read(bench, info, "scratch/a.txt") == "one\n"
            with pytest.raises(WrongState):  # its files are gone
                await read(bench, spare, "b")
            await bench.control.agents.delete("ada", caller=OWNER)
            with pytest.raises(WrongState):
                await read(bench, info, "scratch/a.txt")
            await bench.control.snapshot_upkeep.turn()
            assert not bench.host.snapshots.facts  # they go with their agent
            assert last(bench, "snapshot.removed")["reason"] == "its agent was deleted"
            assert len(bench.host.ran) == started and not await bench.host.boxes()

    asyncio.run(scenario())


def test_labels_travel_with_the_data_and_never_fall(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            control, info = bench.control, await bench.sandbox()
            clean = await take(bench, info)
            await write(bench, info, "secrets/key", "s\n")
            secret = await take(bench, info)
            assert (clean.label, secret.label) == (Label.PUBLIC, Label.CONFIDENTIAL)
            await reset(bench, info, clean.snapshot_id)
            assert control.sandboxes.find(info.sandbox_id).workspace_label is Label.CONFIDENTIAL
            for spec in (SandboxSpec(agent_id="eve"), SandboxSpec(background=True)):
                fork = await control.creation.create(OWNER, spec.model_copy(update={"snapshot": secret.snapshot_id}))
                assert fork.workspace_label is control.sandboxes.session(fork).taint is Label.CONFIDENTIAL
                assert await read(bench, fork, "secrets/key") == "s\n"
            assert control.agents.get("eve").workspace_label is Label.CONFIDENTIAL
            bob = await bench.sandbox("bob")
            result = await control.gate.call(
                OWNER, bob.sandbox_id, "list_directory", {}, snapshot_id=secret.snapshot_id
            )
            assert result.label is control.sandboxes.session(bob).taint is Label.CONFIDENTIAL
            carl = await bench.sandbox("carl")
            await reset(bench, carl, secret.snapshot_id)
            assert control.sandboxes.find(carl.sandbox_id).workspace_label is Label.CONFIDENTIAL
            # What rises while one is taken is in it.
            dora = await bench.sandbox("dora")
            bench.host.snapshots.meanwhile = lambda: control.agents.raise_label("dora", Label.RESTRICTED)
            taken = await take(bench, dora)
            assert taken.label is bench.host.snapshots.facts[taken.snapshot_id].label is Label.RESTRICTED
            archive = b"".join([part async for part in await control.archives.export(OWNER, secret.snapshot_id)])
            back = await control.archives.take_in(OWNER, once(archive), label=Label.INTERNAL)
            assert back.label is Label.CONFIDENTIAL
            higher = await control.archives.take_in(OWNER, once(archive), label=Label.RESTRICTED)
            assert higher.label is Label.RESTRICTED

    asyncio.run(scenario())


def test_a_fork_has_the_files_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, info = bench.control, await bench.sandbox()
            await write(bench, info, "scratch/a.txt", "one\n")
            fork = await control.forks.fork(
                OWNER, info.sandbox_id, SandboxSpec(agent_id="eve"), idempotency_key="fork it"[:4]
            )
            again = await control.forks.fork(
                OWNER, info.sandbox_id, SandboxSpec(agent_id="eve"), idempotency_key="fork"
            )
            assert again.sandbox_id == fork.sandbox_id != info.sandbox_id and fork.session_id != info.session_id
            assert len(bench.host.snapshots.facts) == 1
            await write(bench, info, "scratch/a.txt", "two\n")
            assert await read(bench, fork, "scratch/a.txt") == "one\n"
            assert bench.history("eve") == [] or all("write_file" not in line for line in bench.history("eve"))
            with pytest.raises(Conflict):  # her workspace is there now
                await control.forks.fork(OWNER, info.sandbox_id, SandboxSpec(agent_id="eve"))
            with pytest.raises(NotFound):
                await control.creation.create(OWNER, SandboxSpec(agent_id="new", snapshot="0" * 16))
            body = last(bench, "snapshot.forked")
            assert (body["from_agent_id"], body["agent_id"]) == ("ada", "eve")
            taken = control.snapshots.list(OWNER, reason="automatic")
            assert taken and all(one.expires_at is not None for one in taken)
            # A fork that fails leaves neither agent nor workspace.
            bench.host.snapshots.facts.clear()

            async def broken(*_: Any, **__: Any) -> Any:
                raise SnapshotCorrupt("a layer is gone")

            create, bench.host.create = bench.host.create, broken  # type: ignore[method-assign]
            with pytest.raises(SnapshotCorrupt):
                await control.creation.create(
                    OWNER, SandboxSpec(agent_id="new", snapshot=taken[0].snapshot_id), idempotency_key="n"
                )
            bench.host.create = create  # type: ignore[method-assign]
            with pytest.raises(NotFound):
                control.agents.get("new")
            assert not (tmp_path / "workspace" / "new").exists()

    asyncio.run(scenario())


def test_an_archive_comes_back_with_its_digest_and_not_altered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, info = bench.control, await bench.sandbox()
            await write(bench, info, "scratch/a.txt", "one\n")
            taken = await take(bench, info)
            archive = b"".join([part async for part in await control.archives.export(OWNER, taken.snapshot_id)])
            sha256 = control.snapshots.get(OWNER, taken.snapshot_id).sha256
            assert sha256 == last(bench, "snapshot.export_ended")["sha256"] is not None
            back = await control.archives.take_in(
                OWNER, once(archive), name="back", expected=sha256, idempotency_key="in"
            )
            assert (back.sha256, back.agent_id, back.reason, back.name) == (sha256, None, "imported", "back")
            assert back == await control.archives.take_in(
                OWNER, once(b""), name="back", expected=sha256, idempotency_key="in"
            )
            page = await control.comparisons.compare(
                OWNER, taken.snapshot_id, back.snapshot_id, sandbox_id=info.sandbox_id
            )
            assert page.changes == ()
            with pytest.raises(InvalidArgument):  # in whose session?
                await control.comparisons.compare(OWNER, back.snapshot_id, back.snapshot_id)
            for content, expected in ((archive[: len(archive) // 3], None), (archive, "0" * 64)):
                with pytest.raises(SnapshotCorrupt):
                    await control.archives.take_in(OWNER, once(content), expected=expected)

            async def broken() -> AsyncIterator[bytes]:
                yield archive[:100]
                raise ConnectionResetError

            with pytest.raises(InvalidArgument):
                await control.archives.take_in(OWNER, broken(), idempotency_key="in2")
            assert len(control.snapshots.list(OWNER)) == len(bench.host.snapshots.facts) == 2

    asyncio.run(scenario())


def test_an_agent_made_again_under_the_same_id_shares_nothing_with_the_one_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, old = bench.control, await bench.sandbox()
            before = await take(bench, old)
            crashed = await bench.host.snapshots.take(WorkspacePoint(agent_id="ada"), SnapshotWish(name="crashed"))
            taken_at = bench.clock()
            bench.host.snapshots.facts[crashed.snapshot_id] = crashed.model_copy(update={"created_at": taken_at})
            await control.lifecycle.stop(OWNER, old.sandbox_id)
            await control.agents.delete("ada", caller=OWNER)
            bench.pass_time(timedelta(seconds=5))
            new = await bench.sandbox()
            await write(bench, new, "scratch/b.txt", "new\n")
            await control.lifecycle.stop(OWNER, new.sandbox_id)
            # The sandbox that the former agent left has no way to the files of this one.
            for act in (
                take(bench, old),
                reset(bench, old, "empty"),
                reset(bench, old, "empty", dry_run=True),
                control.forks.fork(OWNER, old.sandbox_id, SandboxSpec(background=True)),
                control.snapshots.take_automatic(old.sandbox_id, rule_id="r", call_id="c"),
            ):
                with pytest.raises(WrongState):
                    await act
            await bench.restart()
            control = bench.control
            assert await read(bench, new, "scratch/b.txt") == "new\n"
            # Nor has this one to what a crash left of that one: people alone see it, under the highest label.
            found = control.snapshots.get(OWNER, crashed.snapshot_id)
            assert (found.label, found.created_at) == (Label.RESTRICTED, taken_at)
            assert control.snapshots.list(AGENT) == []
            with pytest.raises(NotFound):
                control.snapshots.get(OWNER, before.snapshot_id)

    asyncio.run(scenario())
