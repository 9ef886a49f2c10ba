"""Held here: a snapshot is taken, found, read, gone back to, forked from and carried away by whoever may, on record, under a
label that never falls, and no crash between host and table loses one or does anything twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    DeniedByRule,
    FileMissing,
    GrantMissing,
    HostUnreachable,
    InvalidArgument,
    IsolationUnavailable,
    LimitReached,
    NotFound,
    PendingApproval,
    SnapshotCorrupt,
    WrongState,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import ResetRequest, SnapshotInfo, SnapshotRequest, SnapshotWish, WorkspacePoint
from coldframe.control import comparisons
from coldframe.control.lineage import WantedItems
from coldframe.control.snapshots import SnapshotLimits
from tests.control.bench import AGENT, OTHER, OWNER, SECRETS, VIEWER, Bench, opened, until
from tests.fakes.templates import place_of

MEMBER = OWNER.model_copy(update={"token_id": "tok_member", "role": Role.MEMBER})


async def take(bench: Bench, info: SandboxInfo, name: str = "", **more: Any) -> SnapshotInfo:
    caller = more.pop("caller", OWNER)
    return await bench.control.snapshots.take(
        caller, info.sandbox_id, SnapshotRequest(name=name, **more), idempotency_key=None
    )


async def write(bench: Bench, info: SandboxInfo, path: str, content: str) -> None:
    assert (await bench.call(info, "write_file", path=path, content=content)).error is None


async def read(bench: Bench, info: SandboxInfo, path: str, **more: Any) -> str:
    result = await bench.control.gate.call(OWNER, info.sandbox_id, "read_file", {"path": path}, **more)
    if result.error is not None:
        raise FileMissing(result.error["message"])
    return str(result.value["content"])


async def reset(bench: Bench, info: SandboxInfo, to: str, **more: Any) -> Any:
    key = more.pop("key", None)
    asked = ResetRequest(to=to, **more)
    return await bench.control.resets.reset(OWNER, info.sandbox_id, asked, idempotency_key=key)


def last(bench: Bench, kind: str) -> dict[str, Any]:
    return bench.entries(kinds=(kind,))[-1].body


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


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


def test_who_may_and_what_rules_say(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, info = bench.control, await bench.sandbox()
            await write(bench, info, "scratch/a.txt", "one\n")
            own = await take(bench, info, caller=AGENT)
            assert control.snapshots.list(AGENT) == [own] and control.snapshots.list(OTHER) == []
            assert control.snapshots.rename(AGENT, own.snapshot_id, "mine").name == "mine"
            with pytest.raises(NotFound):
                control.snapshots.get(OTHER, own.snapshot_id)
            with pytest.raises(NotFound):
                await take(bench, info, caller=OTHER)
            bob = await bench.sandbox("bob")
            with pytest.raises(NotFound):  # by way of a sandbox of one's own
                await control.gate.call(
                    OTHER, bob.sandbox_id, "read_file", {"path": "scratch/a.txt"}, snapshot_id=own.snapshot_id
                )
            assert bench.kinds()[-1] == "call.refused"
            with pytest.raises(NotFound):
                await control.comparisons.compare(OTHER, own.snapshot_id, bob.sandbox_id)
            for caller, act in (
                (AGENT, control.resets.reset(AGENT, info.sandbox_id, ResetRequest(to="empty"))),
                (AGENT, control.forks.fork(AGENT, info.sandbox_id, SandboxSpec(background=True))),
                (AGENT, control.snapshots.remove(AGENT, own.snapshot_id)),
                (VIEWER, take(bench, info, caller=VIEWER)),
                (VIEWER, control.comparisons.compare(VIEWER, own.snapshot_id, info.sandbox_id)),
                (VIEWER, control.archives.take_in(VIEWER, once(b""))),
            ):
                with pytest.raises(GrantMissing):
                    await act
                assert caller.role in (Role.AGENT, Role.VIEWER)
            refused = bench.control.ledger.entries(kinds=("act.refused",))
            assert [(one.body["act"], one.body["code"], one.body["agent_id"]) for one in refused] == [
                ("reset_sandbox", "GRANT_MISSING", AGENT.agent_id),
                ("fork_sandbox", "GRANT_MISSING", AGENT.agent_id),
            ]
            with pytest.raises(GrantMissing):
                await control.archives.export(MEMBER, own.snapshot_id)
            await control.rulebook.load(
                "version: 1\nrules:\n"
                "  - {id: no-copies, hook: PRE_TOOL_CALL, when: {tool: [take_snapshot, fork_sandbox]}, then: deny}\n"
                "  - {id: ask-first, hook: PRE_TOOL_CALL, when: {tool: reset_sandbox}, then: ask}\n",
                caller=OWNER,
            )
            allowed = {one.operation: one for one in control.gate.allowed(OWNER, info.sandbox_id)}
            assert (allowed["snapshot.take"].answer, allowed["snapshot.take"].rule_id) == ("deny", "no-copies")
            assert allowed["sandbox.reset"].answer == "ask"
            with pytest.raises(DeniedByRule):
                await take(bench, info)
            assert last(bench, "act.refused")["decision"]["rule_id"] == "no-copies"
            with pytest.raises(DeniedByRule):
                await control.creation.create(OWNER, SandboxSpec(background=True, snapshot=own.snapshot_id))
            with pytest.raises(PendingApproval):
                await reset(bench, info, own.snapshot_id)
            assert "sandbox.stopped" not in bench.kinds()
            await control.rulebook.load(
                "version: 1\nrules:\n"
                "  - {id: marker, hook: POST_TOOL_RESPONSE, when: {output: {contains: TOP-SECRET}}, then: deny}\n",
                caller=OWNER,
            )
            with pytest.raises(DeniedByRule):  # whole archives cannot be looked through
                await control.archives.export(OWNER, own.snapshot_id)
            await write(bench, info, "scratch/marked", "TOP-SECRET\n")
            marked = await take(bench, info)
            with pytest.raises(DeniedByRule):
                await control.comparisons.text(OWNER, own.snapshot_id, marked.snapshot_id, "scratch/marked")

    asyncio.run(scenario())


def test_two_points_are_compared_and_a_file_line_by_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, info = bench.control, await bench.sandbox()
            lines = [f"line {n}" for n in range(5000)]
            await write(bench, info, "scratch/long", "\n".join(lines) + "\n")
            before = await take(bench, info)
            lines[2500:2501] = ["another", "line"]
            await write(bench, info, "scratch/long", "\n".join(lines) + "\n")
            await write(bench, info, "scratch/new", "no end")
            page = await control.comparisons.compare(AGENT, before.snapshot_id, info.sandbox_id, limit=1)
            assert [(one.path, one.change) for one in page.changes] == [("scratch/long", "changed")]
            page = await control.comparisons.compare(
                AGENT, before.snapshot_id, info.sandbox_id, next_after=page.next_after
            )
            assert [(one.path, one.change) for one in page.changes] == [("scratch/new", "added")]
            assert page.next_after is None
            told = await control.comparisons.text(AGENT, before.snapshot_id, info.sandbox_id, "scratch/long")
            assert told.diff == (
                "--- scratch/long\n+++ scratch/long\n@@ -2498,7 +2498,8 @@\n line 2497\n line 2498\n line 2499\n"
                "-line 2500\n+another\n+line\n line 2501\n line 2502\n line 2503\n"
            )
            told = await control.comparisons.text(AGENT, info.sandbox_id, before.snapshot_id, "scratch/new")
            assert told.diff == "--- scratch/new\n+++ /dev/null\n@@ -1 +0,0 @@\n-no end\n\\ No newline at end of file\n"
            assert told.sha256_after is None
            same = await control.comparisons.text(AGENT, before.snapshot_id, before.snapshot_id, "scratch/long")
            assert same.diff == "" and same.sha256_before == same.sha256_after
            with pytest.raises(FileMissing):
                await control.comparisons.text(AGENT, before.snapshot_id, info.sandbox_id, "scratch/none")
            kinds = [(one.kind, one.body["tool"]) for one in bench.calls()[-6:]]
            assert set(kinds) == {("call.started", "read_file"), ("call.ended", "read_file")}

    asyncio.run(scenario())


def test_lines_that_come_again_and_again_are_compared_all_the_same() -> None:
    def applied(before: list[str], diff: str) -> list[str]:
        after, at = [], 0
        for line in diff.splitlines(keepends=True)[2:]:
            if line.startswith("@@"):
                start, _, length = line.split()[1][1:].partition(",")
                first = int(start) - (length != "0")
                after += before[at:first]
                at = first
            elif line[0] == "+":
                after.append(line[1:])
            else:
                assert before[at] == line[1:]
                after += [line[1:]] * (line[0] == " ")
                at += 1
        return after + before[at:]

    # Without a bound on pairs of equal lines this takes the better part of a minute.
    before, after = ([line for n in range(999) for line in ("}\n", f"{side} {n}\n")] for side in ("old", "new"))
    assert applied(before, comparisons._unified("file", before, after)) == after
    before, after = before[:50], after[:30] + before[20:50]
    assert applied(before, comparisons._unified("file", before, after)) == after


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


@pytest.mark.req("T3.73")
def test_a_key_takes_one_snapshot_however_often_it_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            async def ask(name: str = "one") -> SnapshotInfo:
                return await bench.control.snapshots.take(
                    OWNER, info.sandbox_id, SnapshotRequest(name=name), idempotency_key="k"
                )

            found = await asyncio.gather(ask(), ask(), ask())
            assert len({one.snapshot_id for one in found}) == len(bench.host.snapshots.facts) == 1
            await bench.restart()
            assert await ask() == found[0]
            with pytest.raises(Conflict):
                await ask("two")
            # Whoever leaves in the middle stops nothing.
            task = asyncio.ensure_future(
                bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest(), idempotency_key="left")
            )
            bench.host.snapshots.meanwhile = lambda: task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: len(bench.control.snapshots.list(OWNER)) == 2)

    asyncio.run(scenario())


def test_a_crash_at_any_step_is_settled_by_what_the_host_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, facts = await bench.sandbox(), bench.host.snapshots.facts
            kept = await take(bench, info, "kept")
            gone = await take(bench, info, "gone")
            short = await take(bench, info, "short", expires_in_s=1)

            async def asked(key: str) -> SnapshotInfo:
                return await bench.control.snapshots.take(
                    OWNER, info.sandbox_id, SnapshotRequest(name=key), idempotency_key=key
                )

            class Crash(BaseException):
                pass

            def die() -> None:
                bench.kill()
                raise Crash

            # Before the host has done anything: nothing was taken, and the key may be used again.
            bench.host.snapshots.meanwhile = die
            with pytest.raises((Crash, ColdframeError)):
                await asked("early")
            bench.host.snapshots.meanwhile = lambda: None
            del facts[gone.snapshot_id], facts[short.snapshot_id]
            stranger = await bench.host.snapshots.take(WorkspacePoint(agent_id="ada"), SnapshotWish(name="whose"))
            bench.pass_time(timedelta(seconds=5))
            await bench.start()
            states = {one.name: one.state for one in bench.control.snapshots.list(OWNER)}
            assert states == {"kept": "ready", "gone": "lost", "whose": "ready"}
            found = bench.control.snapshots.get(OWNER, stranger.snapshot_id)
            assert found.taken_by == "server" and found.expires_at is not None
            with pytest.raises(WrongState):
                await reset(bench, info, gone.snapshot_id)
            early = await asked("early")
            assert early.snapshot_id in facts

            # After the host has, and before it is recorded: it is found, under its key.
            done = bench.host.snapshots.take

            async def late(*arguments: Any) -> Any:
                await done(*arguments)
                die()

            bench.host.snapshots.take = late  # type: ignore[assignment,method-assign]
            with pytest.raises((Crash, ColdframeError)):
                await asked("late")
            bench.host.snapshots.take = done  # type: ignore[method-assign]
            there = len(facts)
            await bench.start()
            assert (await asked("late")).name == "late" and len(facts) == there

            # The same for a reset, whose record then says so.
            go_back = bench.host.snapshots.reset

            async def late_reset(*arguments: Any, **more: Any) -> Any:
                await go_back(*arguments, **more)
                die()

            bench.host.snapshots.reset = late_reset  # type: ignore[method-assign]
            with pytest.raises((Crash, ColdframeError)):
                await reset(bench, info, kept.snapshot_id, key="back")
            bench.host.snapshots.reset = go_back  # type: ignore[method-assign]
            await bench.start()
            assert last(bench, "sandbox.reset")["note"] == "found so afterwards"
            again = await reset(bench, info, kept.snapshot_id, key="back")
            assert again.kept is not None and again.kept.snapshot_id in facts
            assert bench.control.ledger.verify().intact

    asyncio.run(scenario())


@pytest.mark.req("T3.73")
def test_what_became_of_an_act_whose_host_went_away_is_told_under_its_key_once_the_host_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart of the server, which has not gone anywhere."""

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, facts = await bench.sandbox(), bench.host.snapshots.facts
            kept = await take(bench, info, "kept")
            genuine_take, genuine_reset = bench.host.snapshots.take, bench.host.snapshots.reset
            resets = 0

            async def counted(*arguments: Any, **more: Any) -> Any:
                nonlocal resets
                resets += 1
                return await genuine_reset(*arguments, **more)

            def broken(act: Any, *, is_done: bool) -> Any:
                async def away(*arguments: Any, **more: Any) -> Any:
                    if is_done:
                        await act(*arguments, **more)
                    raise HostUnreachable("the host has gone away")

                return away

            async def asked(key: str) -> SnapshotInfo:
                return await bench.control.snapshots.take(
                    OWNER, info.sandbox_id, SnapshotRequest(name=key), idempotency_key=key
                )

            for is_done in (True, False):
                there = len(facts)
                with monkeypatch.context() as away:
                    away.setattr(bench.host.snapshots, "take", broken(genuine_take, is_done=is_done))
                    with pytest.raises(HostUnreachable):
                        await asked(f"taken-{is_done}")
                assert (await asked(f"taken-{is_done}")).name == f"taken-{is_done}"
                assert len(facts) == there + 1

            for discard in (True, False):
                for is_done in (True, False):
                    key, resets = f"reset-{discard}-{is_done}", 0
                    await bench.control.lifecycle.start(OWNER, info.sandbox_id)
                    with monkeypatch.context() as away:
                        away.setattr(bench.host.snapshots, "reset", broken(counted, is_done=is_done))
                        with pytest.raises(HostUnreachable):
                            await reset(bench, info, kept.snapshot_id, key=key, discard=discard)
                        assert bench.control.sandboxes.find(info.sandbox_id).state.state == "stopped"
                    with monkeypatch.context() as back:
                        back.setattr(bench.host.snapshots, "reset", counted)
                        again = await reset(bench, info, kept.snapshot_id, key=key, discard=discard)
                    assert (again.kept is None) is discard
                    # What keeps what was before is not done twice; what leaves no trace may be, as nothing has run since.
                    assert resets == (1 if is_done and not discard else 1 + is_done)
                    assert again.state.state == "running"

            # Where something has run since, a reset that left no trace is not done over: it would take that away.
            with monkeypatch.context() as away:
                away.setattr(bench.host.snapshots, "reset", broken(genuine_reset, is_done=True))
                with pytest.raises(HostUnreachable):
                    await reset(bench, info, kept.snapshot_id, key="late", discard=True)
            await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            with pytest.raises(WrongState, match="not known"):
                await reset(bench, info, kept.snapshot_id, key="late", discard=True)
            assert bench.control.ledger.verify().intact

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


def test_rules_are_asked_about_snapshots_that_no_sandbox_was_there_for(tmp_path: Path) -> None:
    rules = (
        "version: 1\nrules:\n"
        "  - {id: kept-in, hook: PRE_TOOL_CALL, when: {tool: [export_snapshot, fork_sandbox], "
        "workspace_label: {at_least: CONFIDENTIAL}}, then: deny}\n"
    )

    async def scenario() -> None:
        async with opened(tmp_path, rules) as bench:
            control, info = bench.control, await bench.sandbox()
            taken = await take(bench, info)
            archive = b"".join([part async for part in await control.archives.export(OWNER, taken.snapshot_id)])
            open_one = await control.archives.take_in(OWNER, once(archive))
            assert b"".join([part async for part in await control.archives.export(OWNER, open_one.snapshot_id)])
            secret = await control.archives.take_in(OWNER, once(archive), label=Label.CONFIDENTIAL)
            with pytest.raises(DeniedByRule):
                await control.archives.export(OWNER, secret.snapshot_id)
            refused = bench.entries(kinds=("act.refused",))[-1]
            assert (refused.subject, refused.body["decision"]["rule_id"]) == (secret.snapshot_id, "kept-in")
            stored, again = control.gate.replay(refused.seq)
            assert stored == again
            with pytest.raises(DeniedByRule):
                await control.creation.create(OWNER, SandboxSpec(agent_id="eve", snapshot=secret.snapshot_id))

    asyncio.run(scenario())


def test_there_are_no_more_than_the_operator_lets_be(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.snapshot_limits = SnapshotLimits(number=2)
            await bench.restart()
            info = await bench.sandbox()
            await take(bench, info)
            second = await take(bench, info)
            with pytest.raises(LimitReached) as caught:
                await take(bench, info)
            assert caught.value.facts["limit"] == 2
            await reset(bench, info, second.snapshot_id)  # what was is kept in any case
            await take(bench, await bench.sandbox("bob"))
            bench.snapshot_limits = SnapshotLimits(mib=0)
            await bench.restart()
            with pytest.raises(LimitReached):
                await take(bench, info)
            # What is said of the sizes is what the host says now, and not what it said first.
            bench.snapshot_limits = SnapshotLimits(mib=3)
            await bench.restart()
            info, facts = await bench.sandbox("carl"), bench.host.snapshots.facts
            first = await take(bench, info)
            shown = bench.control.snapshots.get(OWNER, first.snapshot_id)
            facts[first.snapshot_id] = facts[first.snapshot_id].model_copy(
                update={"own_bytes": 0, "added_bytes": 2 << 20}
            )
            second = await take(bench, info)
            await bench.control.snapshot_upkeep.turn()
            assert shown.own_bytes is not None
            assert bench.control.snapshots.get(OWNER, first.snapshot_id).own_bytes == 0
            facts[second.snapshot_id] = facts[second.snapshot_id].model_copy(update={"added_bytes": 1 << 20})
            with pytest.raises(LimitReached) as caught:
                await take(bench, info)
            assert (caught.value.facts["kind"], caught.value.facts["used"]) == ("snapshot_mib", 3)
            await bench.control.snapshots.remove(OWNER, second.snapshot_id)
            await take(bench, info)

    asyncio.run(scenario())


def test_a_host_that_does_not_answer_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            taken = await take(bench, info)
            bench.host.unreachable = HostUnreachable("gone")
            with pytest.raises(HostUnreachable):
                await bench.control.snapshots.remove(OWNER, taken.snapshot_id)
            assert bench.control.snapshots.list(OWNER) == [] and taken.snapshot_id in bench.host.snapshots.facts
            bench.host.unreachable = None
            await bench.restart()
            await bench.control.snapshot_upkeep.turn()
            assert not bench.host.snapshots.facts
            assert bench.kinds().count("snapshot.removed") == 1
            assert json.dumps(last(bench, "snapshot.removed"))

    asyncio.run(scenario())


KEEP = """version: 1
rules:
  - {id: before-rm, hook: PRE_TOOL_CALL, when: {program: rm}, snapshot: true}
"""


@pytest.mark.req("T4.66")
def test_a_rule_has_one_taken_before_what_it_matches_and_without_it_nothing_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, KEEP) as bench:
            bench.snapshot_limits = SnapshotLimits(number=3)
            await bench.restart()
            info, kept = await bench.sandbox(), bench.host.snapshots
            await write(bench, info, "scratch/a.txt", "one\n")
            assert not kept.facts
            result = await bench.call(info, "run_command", command="rm -r scratch")
            assert result.value["exit_code"] == 0
            (taken,) = bench.control.snapshots.list(OWNER, reason="automatic")
            assert taken.name == f"before {result.call_id}" and taken.taken_by == "rule before-rm"
            assert taken.expires_at is not None and taken.expires_at - taken.created_at <= timedelta(
                hours=24, seconds=1
            )
            assert last(bench, "snapshot.taken")["before_call"] == result.call_id
            assert await read(bench, info, "scratch/a.txt", snapshot_id=taken.snapshot_id) == "one\n"
            await reset(bench, info, taken.snapshot_id, discard=True)
            assert await read(bench, info, "scratch/a.txt") == "one\n"
            for _ in range(4):  # the oldest makes room
                await bench.call(info, "run_command", command="rm -f none")
            assert len(bench.control.snapshots.list(OWNER, reason="automatic")) == 3
            with pytest.raises(NotFound):
                bench.control.snapshots.get(OWNER, taken.snapshot_id)
            ran = len(bench.host.ran)

            async def full(*_: Any) -> Any:
                raise LimitReached("no room", kind="disk")

            kept.take = full  # type: ignore[assignment,method-assign]
            failed = await bench.call(info, "run_command", command="rm -r scratch", key="k")
            assert failed.error is not None and failed.error["code"] == "LIMIT"
            assert len(bench.host.ran) == ran and (await read(bench, info, "scratch/a.txt")) == "one\n"
            bench.pass_time(timedelta(hours=25))
            await bench.control.snapshot_upkeep.turn()
            assert bench.control.snapshots.list(OWNER) == []
            started = bench.entries(kinds=("call.started",))
            (with_rm,) = [one for one in started if one.body["call_id"] == result.call_id]
            stored, again = bench.control.gate.replay(with_rm.seq)
            assert stored == again and stored.snapshot_by == "before-rm"

    asyncio.run(scenario())
