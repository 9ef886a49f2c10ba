"""Held here: timers count activity and nothing else, warn, do what the sandbox says, go on after a restart of the server,
and give more time to nobody who does not ask for it."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import EndedWith
from coldframe.contract.errors import (
    HostUnreachable,
    LedgerUnavailable,
    LimitReached,
    PauseKindUnsupported,
    SandboxExpired,
    WrongState,
)
from coldframe.contract.files import AtStake
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.ledger import Ledger
from coldframe.control.retention import Retention
from coldframe.control.sandbox_specs import Longest
from tests.control.bench import AGENT, OWNER, UNTIL_GO, Bench, opened, until
from tests.fakes import box as fake
from tests.fakes.host import FakeHost


def state(bench: Bench, info: SandboxInfo) -> str:
    return bench.control.sandboxes.find(info.sandbox_id).state.state


async def after(bench: Bench, seconds: float) -> None:
    bench.pass_time(timedelta(seconds=seconds))
    await bench.control.timers.turn()


def left_s(bench: Bench, info: SandboxInfo) -> float:
    shown = bench.control.timers.shown(bench.control.sandboxes.find(info.sandbox_id))
    assert shown.expires_at is not None
    return (shown.expires_at - bench.clock()).total_seconds()


@pytest.mark.req("T4.60")
@pytest.mark.parametrize(("action", "becomes"), [("stop", "stopped"), ("pause", "paused"), ("terminate", "terminated")])
@pytest.mark.parametrize("which", ["idle_timeout_s", "max_age_s"])
def test_a_sandbox_becomes_what_it_says_in_time_and_somebody_is_warned(
    tmp_path: Path, which: str, action: str, becomes: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada", **{which: 300, "on_timeout": action})
            untouched = await bench.sandbox()
            await after(bench, 235)
            assert "sandbox.expiring" not in bench.kinds()
            assert 60 < left_s(bench, info) < 66
            await after(bench, 10)
            await bench.control.timers.turn()
            [warning] = [entry for entry in bench.entries() if entry.kind == "sandbox.expiring"]
            assert (warning.subject, warning.body["action"]) == (info.sandbox_id, action)
            await after(bench, 52)
            assert state(bench, info) == "running"
            await after(bench, 5)
            assert state(bench, info) == becomes
            acted = bench.entries(sandbox_id=info.sandbox_id, kinds=(f"sandbox.{becomes}",))[-1]
            assert acted.body["caller"] == "timer"
            assert acted.body["reason"] == ("idle" if which == "idle_timeout_s" else "age")
            await after(bench, 10_000)
            assert (state(bench, info), state(bench, untouched)) == (becomes, "running")
            assert bench.kinds().count(f"sandbox.{becomes}") == 1

    asyncio.run(scenario())


@pytest.mark.req("T4.30", "T4.60")
@pytest.mark.parametrize(("action", "ended"), [("stop", "lost"), ("terminate", "cancelled")])
def test_while_a_command_runs_it_is_said_twice_and_the_command_tells_what_ended_it(
    tmp_path: Path, action: str, ended: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox(max_age_s=1000, on_timeout=action, idle_timeout_s=30)
            job = await bench.call(info, "run_command", command=UNTIL_GO, background=True)
            seen = []
            for seconds in (300, 150, 400, 100, 20):  # 700, 550, 150, 50 and 30 before
                await after(bench, seconds)
                await bench.control.timers.turn()
                warnings = bench.entries(kinds=("sandbox.expiring",))
                seen.append([(one.body["within_s"], one.body["reason"], one.body["action"]) for one in warnings])
            early, late = (600, "age", action), (60, "age", action)
            assert seen == [[], [early], [early], [early, late], [early, late]]
            await after(bench, 31)
            told = await bench.control.outputs.command(OWNER, info.sandbox_id, str(job.value["command_id"]))
            assert told.result is not None
            assert told.result.ended == ended
            assert told.result.ended_with == EndedWith(act="stop" if action == "stop" else "terminate", timer="age")
            assert told.status is not None
            assert "max_age_s" in told.status.message

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
def test_only_what_is_done_in_a_sandbox_is_activity(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox(idle_timeout_s=1000)
            for tool, arguments in (("run_command", {"command": "true"}), ("write_file", {"path": "a", "content": ""})):
                bench.pass_time(timedelta(seconds=500))
                await bench.call(info, tool, AGENT, **arguments)
                assert left_s(bench, info) > 999
            bench.pass_time(timedelta(seconds=500))
            await bench.call(info, "read_file", path="a")
            await bench.call(info, "list_directory")
            bench.control.sandboxes.get(OWNER, info.sandbox_id)
            bench.control.sandboxes.list(OWNER)
            await bench.control.outputs.commands(OWNER, info.sandbox_id)
            await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            assert 490 < left_s(bench, info) < 501
            # A command that runs is one all the time, and its end.
            await bench.call(info, "run_command", command=UNTIL_GO, background=True)
            await after(bench, 5000)
            assert state(bench, info) == "running"
            bench.go()
            await until(lambda: bench.kinds(sandbox_id=info.sandbox_id).count("call.ended") == 5)
            await until(lambda: not bench.control.gate.is_busy(info.sandbox_id))
            assert 990 < left_s(bench, info) <= 1000
            await after(bench, 1001)
            assert state(bench, info) == "stopped"

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
@pytest.mark.parametrize("way", ["restart", "kill"])
def test_timers_go_on_after_a_restart_and_fire_if_they_were_due(tmp_path: Path, way: str) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:

            async def again() -> None:
                if way == "kill":
                    bench.kill()
                    await bench.start()
                else:
                    await bench.restart()

            info = await bench.sandbox(idle_timeout_s=1000)
            old = await bench.sandbox(max_age_s=1500)
            bench.pass_time(timedelta(seconds=600))
            await bench.call(info, "write_file", path="a", content="")
            bench.pass_time(timedelta(seconds=300))
            await bench.call(info, "read_file", path="a")
            await bench.control.lifecycle.extend(OWNER, old.sandbox_id, 800)
            await after(bench, 40)
            await again()
            assert 640 < left_s(bench, info) < 661  # from the write, and not from what was read since
            assert 740 < left_s(bench, old) < 761
            await after(bench, 620)
            assert bench.kinds().count("sandbox.expiring") == 1
            await again()
            await bench.control.timers.turn()
            assert bench.kinds().count("sandbox.expiring") == 1
            bench.pass_time(timedelta(seconds=3600))
            await again()
            await until(lambda: (state(bench, info), state(bench, old)) == ("stopped", "stopped"))

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
def test_nothing_but_being_asked_for_more_gives_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox(max_age_s=100, idle_timeout_s=50)
            acts = bench.control.lifecycle
            await acts.extend(OWNER, info.sandbox_id, 500)
            await acts.extend(OWNER, info.sandbox_id, 10)  # takes nothing away
            assert bench.kinds().count("sandbox.extended") == 1
            await after(bench, 490)
            assert state(bench, info) == "running"
            await after(bench, 11)
            assert state(bench, info) == "stopped"
            for act in (acts.start, acts.resume):
                with pytest.raises(SandboxExpired) as refused:
                    await act(OWNER, info.sandbox_id)
                assert refused.value.next_actions[0]["op"] == "sandbox.extend"
            await acts.extend(OWNER, info.sandbox_id, 60)
            await acts.start(OWNER, info.sandbox_id)
            await after(bench, 59)
            assert state(bench, info) == "running"
            await after(bench, 2)
            assert state(bench, info) == "stopped"
            await acts.terminate(OWNER, info.sandbox_id)
            with pytest.raises(WrongState):
                await acts.extend(OWNER, info.sandbox_id, 60)

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
def test_the_operators_longest_holds_for_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.control.lifecycle.extend(OWNER, info.sandbox_id, 5000)
            bench.longest = Longest(age_s=1000, idle_s=200)
            await bench.restart()
            bench.pass_time(timedelta(seconds=100))
            new = await bench.sandbox()
            assert (new.spec.idle_timeout_s, new.spec.max_age_s) == (200, 1000)
            await after(bench, 201)
            assert state(bench, new) == "stopped"
            assert state(bench, info) == "running"  # it was given more time, and that counts
            await after(bench, 700)
            assert state(bench, info) == "stopped"  # but not beyond what the operator gives now

    asyncio.run(scenario())


def test_a_timer_that_would_pause_is_refused_where_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create = FakeHost.create

            async def without(self: FakeHost, *args: Any, **more: Any) -> IsolationReport:
                return (await create(self, *args, **more)).model_copy(update={"pause_kinds": ("files",)})

            with monkeypatch.context() as patch:
                patch.setattr(FakeHost, "create", without)
                with pytest.raises(PauseKindUnsupported):
                    await bench.sandbox(idle_timeout_s=10, on_timeout="pause")
            assert bench.control.sandboxes.list(OWNER) == []
            assert await bench.host.boxes() == []
            for why in (PauseKindUnsupported("not any more"), WrongState("a process in it is not to be held")):
                info = await bench.sandbox(idle_timeout_s=10, on_timeout="pause")

                async def cannot(_: object, why: Exception = why) -> None:
                    raise why

                with monkeypatch.context() as patch:
                    patch.setattr(fake.FakeBox, "pause", cannot)
                    await after(bench, 11)
                assert state(bench, info) == "stopped"

    asyncio.run(scenario())


def test_a_pause_that_fails_leaves_timer_and_probe_of_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox(idle_timeout_s=10)

            async def looked_at_meanwhile(_: object) -> None:
                assert state(bench, info) == "pausing"
                await bench.control.timers.turn()
                await bench.control.probe.turn()
                raise WrongState("a process in it is not to be held")

            monkeypatch.setattr(fake.FakeBox, "pause", looked_at_meanwhile)
            with pytest.raises(WrongState):
                await bench.control.lifecycle.pause(OWNER, info.sandbox_id)
            assert state(bench, info) == "running"
            assert info.sandbox_id in bench.control.sandboxes.used
            await after(bench, 11)
            assert state(bench, info) == "stopped"

    asyncio.run(scenario())


def test_what_begins_while_an_end_is_counted_is_not_ended_by_a_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox(idle_timeout_s=10)
            count = fake.FakeBox.at_stake

            async def slowly(box: fake.FakeBox, ending: EndedWith | None = None, *, ends: bool) -> AtStake:
                await bench.call(info, "write_file", AGENT, path="a", content="")
                return await count(box, ending)

            with monkeypatch.context() as patch:
                patch.setattr(fake.FakeBox, "at_stake", slowly)
                await after(bench, 11)
            assert state(bench, info) == "running"
            await after(bench, 11)
            assert state(bench, info) == "stopped"

    asyncio.run(scenario())


def test_a_warning_that_could_not_be_recorded_takes_no_timer_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            infos = [await bench.sandbox(idle_timeout_s=100) for _ in range(2)]
            append = Ledger.append

            def full(ledger: Ledger, kind: str, *args: Any, **more: Any) -> LedgerEntry:
                if kind == "sandbox.expiring":
                    raise LedgerUnavailable("no room")
                return append(ledger, kind, *args, **more)

            with monkeypatch.context() as patch:
                patch.setattr(Ledger, "append", full)
                await after(bench, 50)
            await after(bench, 51)
            await until(lambda: {state(bench, info) for info in infos} == {"stopped"})

    asyncio.run(scenario())


def test_one_that_cannot_be_ended_keeps_no_other_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            infos = [await bench.sandbox(idle_timeout_s=10) for _ in range(2)]
            end = fake.FakeBox.end
            failed: list[str] = []

            async def first_fails(box: fake.FakeBox, **more: bool) -> None:
                if not failed:
                    failed.append(box.sandbox_id)
                    raise OSError("no such device")
                await end(box, **more)

            monkeypatch.setattr(fake.FakeBox, "end", first_fails)
            await after(bench, 11)
            assert failed
            await until(lambda: "stopped" in {state(bench, info) for info in infos if info.sandbox_id not in failed})
            await bench.control.timers.turn()
            await until(lambda: {state(bench, info) for info in infos} == {"stopped"})

    asyncio.run(scenario())


def test_what_could_not_be_done_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            infos = [await bench.sandbox(idle_timeout_s=10) for _ in range(2)]
            bench.host.unreachable = HostUnreachable("gone")
            await after(bench, 11)
            bench.host.unreachable = None
            assert {state(bench, info) for info in infos} == {"stopping"}
            await bench.control.timers.turn()
            assert {state(bench, info) for info in infos} == {"stopped"}

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
def test_it_happens_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            began = time.monotonic()
            start = bench.clock()
            bench.clock = lambda: start + timedelta(seconds=time.monotonic() - began)  # type: ignore[method-assign]
            await bench.restart()
            info = await bench.sandbox(idle_timeout_s=0.2)
            await until(lambda: state(bench, info) == "stopped")

    asyncio.run(scenario())


@pytest.mark.req("T4.60", "T4.64")
@pytest.mark.parametrize("spec", [{"agent_id": "ada"}, {"agent_id": None, "background": True}])
def test_a_sandbox_that_nobody_comes_to_is_abandoned_its_files_are_kept_and_it_ends(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.retention = Retention(stopped_s=1000)
            await bench.restart()
            info = await bench.sandbox(**{**spec, "idle_timeout_s": 300, "on_timeout": "snapshot"})
            await bench.call(info, "write_file", OWNER, path="a.txt", content="kept")
            await bench.call(info, "run_command", OWNER, command="printf 12345")
            await after(bench, 250)
            [warning] = bench.entries(sandbox_id=info.sandbox_id, kinds=("sandbox.expiring",))
            assert warning.body["action"] == "snapshot"
            assert (warning.body["used"]["calls"], warning.body["used"]["output_bytes"]) == (2, 5)
            await after(bench, 100)
            [abandoned] = bench.entries(sandbox_id=info.sandbox_id, kinds=("sandbox.abandoned",))
            assert abandoned.body["action"] == "snapshot" and abandoned.body["used"]["age_s"] in range(350, 360)
            assert state(bench, info) == "terminated"
            shown = bench.control.roster.shown(bench.control.sandboxes.find(info.sandbox_id))
            assert shown.abandoned_at == abandoned.at
            [ended] = bench.entries(sandbox_id=info.sandbox_id, kinds=("sandbox.terminated",))
            [kept] = bench.control.snapshots.list(OWNER)
            assert (kept.snapshot_id, kept.taken_by, ended.body["reason"]) == (
                ended.body["snapshot_id"],
                "timer",
                "idle",
            )
            assert kept.expires_at is not None  # as long as what is stopped is kept
            assert (Path(bench.host.snapshots._kept(kept.snapshot_id)) / "a.txt").read_text() == "kept"
            bench.pass_time(timedelta(seconds=1001))
            await bench.control.snapshot_upkeep.turn()
            assert bench.control.snapshots.list(OWNER) == [] and bench.host.snapshots.facts == {}

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
@pytest.mark.parametrize("fault", ["not to be held", "full"])
def test_where_no_snapshot_can_be_taken_in_time_nothing_is_lost(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox(agent_id=None, background=True, max_age_s=300, on_timeout="snapshot")  # type: ignore[arg-type]
            take = type(bench.host.snapshots).take

            async def fails(snapshots: Any, *arguments: Any) -> Any:
                if fault == "full":
                    raise LimitReached("there is no room", kind="disk")
                if state(bench, info) == "running":
                    raise WrongState("a process could not be held")
                return await take(snapshots, *arguments)

            with monkeypatch.context() as patch:
                patch.setattr(type(bench.host.snapshots), "take", fails)
                await after(bench, 301)
            [stopped] = bench.entries(sandbox_id=info.sandbox_id, kinds=("sandbox.stopped",))
            assert stopped.body["not_kept"] == ("WRONG_STATE" if fault == "not to be held" else "LIMIT")
            if fault == "full":
                assert state(bench, info) == "stopped" and bench.control.snapshots.list(OWNER) == []
            else:
                assert state(bench, info) == "terminated" and len(bench.control.snapshots.list(OWNER)) == 1

    asyncio.run(scenario())


@pytest.mark.req("T4.60")
def test_what_goes_on_while_its_snapshot_is_taken_goes_on_and_the_snapshot_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada", idle_timeout_s=300, on_timeout="snapshot")
            bench.host.snapshots.meanwhile = lambda: bench.control.sandboxes.note_activity(info.sandbox_id)
            await after(bench, 301)
            assert state(bench, info) == "running" and bench.control.snapshots.list(OWNER) == []

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_what_is_taken_up_again_is_not_abandoned_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox("ada", idle_timeout_s=300)

            def shown(one: SandboxInfo) -> SandboxInfo:
                return bench.control.roster.shown(one)

            await after(bench, 301)
            assert shown(bench.control.sandboxes.find(info.sandbox_id)).abandoned_at is not None
            await bench.restart()
            assert shown(bench.control.sandboxes.find(info.sandbox_id)).abandoned_at is not None
            await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            assert shown(bench.control.sandboxes.find(info.sandbox_id)).abandoned_at is None
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            assert shown(bench.control.sandboxes.find(info.sandbox_id)).abandoned_at is None

    asyncio.run(scenario())
