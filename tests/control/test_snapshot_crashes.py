"""Held here: no crash between host and table, and no host that goes away, loses a snapshot or does anything twice."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    HostUnreachable,
    WrongState,
)
from coldframe.contract.snapshot import SnapshotInfo, SnapshotRequest, SnapshotWish, WorkspacePoint
from tests.control.bench import OWNER, opened, until
from tests.control.points import last, reset, take


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
