"""Held here: who may take, read, fork and remove a snapshot, what rules say of it, and how many there may be."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    DeniedByRule,
    GrantMissing,
    LimitReached,
    NotFound,
    PendingApproval,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import ResetRequest
from coldframe.control.snapshots import SnapshotLimits
from tests.control.bench import AGENT, OTHER, OWNER, VIEWER, opened
from tests.control.points import MEMBER, last, once, read, reset, take, write


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
            compared = await control.comparisons.compare(VIEWER, own.snapshot_id, info.sandbox_id)
            assert compared.label is not None  # whoever reads files reads in what they differ
            assert bench.kinds()[-1] == "call.ended"
            for caller, act in (
                (AGENT, control.resets.reset(AGENT, info.sandbox_id, ResetRequest(to="empty"))),
                (AGENT, control.forks.fork(AGENT, info.sandbox_id, SandboxSpec(background=True))),
                (AGENT, control.snapshots.remove(AGENT, own.snapshot_id)),
                (VIEWER, take(bench, info, caller=VIEWER)),
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
