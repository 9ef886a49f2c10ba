"""Held here: who looks after an installation finds what is old, idle or somebody's, and ends it in one call."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, HostUnreachable, LimitReached
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import EndMany, Limits, SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import SnapshotRequest
from coldframe.control import makers, sandbox_rows
from coldframe.control.makers import Maxima
from coldframe.control.retention import Retention
from coldframe.control.roster import SortedBy
from coldframe.control.usage import COUNT_HOLDS
from tests.control.bench import AGENT, OWNER, VIEWER, opened
from tests.fakes.box import FakeBox

ADMIN = Caller(token_id="tok_admin", role=Role.ADMIN, surface="rest")


def test_who_made_what_is_known_of_all_and_kept_in_memory_of_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(makers, "MOST_KNOWN", 2)

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            made = [await bench.control.creation.create(ADMIN, SandboxSpec(agent_id=f"ada-{one}")) for one in range(5)]
            for one in made:
                assert bench.control.roster.shown(one).created_by == ADMIN.name
            kept = bench.control.creation.makers
            assert kept is not None and len(kept._known) == 2

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_what_is_old_idle_or_somebodys_is_listed_and_ended_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create = bench.control.creation.create
            old = await create(OWNER, SandboxSpec(agent_id="ada"))
            busy = await create(OWNER, SandboxSpec(agent_id="ada"))
            bench.pass_time(timedelta(hours=2))
            theirs = await create(ADMIN, SandboxSpec(agent_id="bob"))
            await bench.call(busy, "run_command", command="true")
            bench.pass_time(timedelta(minutes=5))

            def found(**which: Any) -> set[str]:
                return {one.sandbox_id for one in bench.control.roster.list(OWNER, **which)}

            def ids(*infos: SandboxInfo) -> set[str]:
                return {one.sandbox_id for one in infos}

            assert found() == ids(old, busy, theirs)
            assert found(min_age_s=3600) == ids(old, busy)
            assert found(min_idle_s=3600) == ids(old)
            assert found(min_idle_s=200) == ids(old, busy, theirs)
            assert found(created_by=ADMIN.name) == ids(theirs)
            assert found(created_by=ADMIN.name, min_age_s=3600) == set()
            assert len(found(min_age_s=0, limit=2)) == 2
            shown = bench.control.roster.shown(bench.control.sandboxes.get(OWNER, busy.sandbox_id))
            assert shown.created_by == OWNER.name
            assert shown.active_at is not None
            assert shown.active_at - busy.created_at > timedelta(hours=1)
            for caller in (VIEWER, AGENT):
                with pytest.raises(GrantMissing):
                    await bench.control.roster.end(caller, EndMany(min_age_s=0))
            with pytest.raises(ValidationError):
                EndMany(dry_run=True)
            tried = await bench.control.roster.end(ADMIN, EndMany(min_age_s=3600, dry_run=True))
            assert {one.sandbox_id for one in tried.ended} == ids(old, busy)
            assert len(await bench.host.boxes()) == 3
            end = FakeBox.end

            async def holds(box: FakeBox, **more: bool) -> None:
                if box.sandbox_id == old.sandbox_id:
                    raise HostUnreachable("the host does not answer")
                await end(box, **more)

            with monkeypatch.context() as patch:
                patch.setattr(FakeBox, "end", holds)
                done = await bench.control.roster.end(ADMIN, EndMany(min_age_s=3600))
            assert {one.sandbox_id for one in done.ended} == ids(busy)
            assert [one["sandbox_id"] for one in done.failed] == [old.sandbox_id]
            again = await bench.control.roster.end(ADMIN, EndMany(min_age_s=3600))
            assert {one.sandbox_id for one in again.ended} == ids(old)
            assert {one.sandbox_id for one in await bench.host.boxes()} == ids(theirs)

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_a_list_reads_the_page_that_is_asked_for_and_gives_each_sandbox_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_rows, "ROWS_AT_ONCE", 3)

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            made = [
                await bench.control.creation.create(OWNER, SandboxSpec(agent_id=("ada", "bob")[number % 2]))
                for number in range(10)
            ]
            for info in made[:6]:
                await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            ids = [info.sandbox_id for info in made]
            listed = bench.control.roster.list

            def told(caller: Caller = OWNER, **which: Any) -> list[str]:
                return [one.sandbox_id for one in listed(caller, **which)]

            newest = told()
            assert sorted(newest) == sorted(ids)
            for size in (1, 2, 3, 4, 10, 11):
                pages: list[str] = []
                while page := told(limit=size, after=pages[-1] if pages else None):
                    assert len(page) <= size
                    pages += page
                assert pages == newest
            assert set(told(states=("running",))) == set(ids[6:])
            assert set(told(states=("terminated", "running"))) == set(ids)
            assert set(told(states=("terminated",), agent_id="ada", limit=2)) <= set(ids[:6:2])
            assert set(told(AGENT)) == set(ids[::2])
            assert told(AGENT, agent_id="bob") == []
            assert {info.sandbox_id for info in bench.control.sandboxes.living()} == set(ids[6:])

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_lists_are_sorted_by_age_idle_time_what_is_stored_and_owner(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create, roster = bench.control.creation.create, bench.control.roster
            old = await create(OWNER, SandboxSpec(background=True))
            bench.pass_time(timedelta(hours=1))
            theirs = await create(ADMIN, SandboxSpec(background=True))
            bench.pass_time(timedelta(hours=1))
            new = await create(OWNER, SandboxSpec(background=True))
            await bench.call(old, "write_file", OWNER, path="a", content="x" * 5000)
            await bench.call(theirs, "write_file", OWNER, path="a", content="x" * 9000)

            async def by(order: SortedBy) -> list[str]:
                return [one.sandbox_id for one in await roster.sort(roster.list(OWNER), order)]

            assert await by("age") == [old.sandbox_id, theirs.sandbox_id, new.sandbox_id]
            assert (await by("idle"))[0] == new.sandbox_id
            assert await by("stored") == [theirs.sandbox_id, old.sandbox_id, new.sandbox_id]
            assert (await by("owner"))[-1] == theirs.sandbox_id or (await by("owner"))[0] == theirs.sandbox_id
            first = await roster.sort(roster.list(OWNER), "stored", 1)
            assert 9000 <= (first[0].stored_bytes or 0) < 15_000  # with the record of its commands

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_an_owner_has_no_more_than_the_operator_lets_and_that_is_on_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.maxima = Maxima(number=3, stored_mib=2)
            await bench.restart()
            create = bench.control.creation.create
            tries = [create(OWNER, SandboxSpec(background=True)) for _ in range(8)]
            made = await asyncio.gather(*tries, return_exceptions=True)
            sandboxes = [one for one in made if isinstance(one, SandboxInfo)]
            assert len(sandboxes) == 3
            assert {type(one) for one in made} == {SandboxInfo, LimitReached}
            other_surface = OWNER.model_copy(update={"surface": "rest"})
            with pytest.raises(LimitReached) as refused:
                await create(other_surface, SandboxSpec(background=True))
            assert refused.value.facts == {"kind": "owner_sandboxes", "limit": 3, "used": 3}
            assert bench.kinds().count("sandbox.create_refused") == 6
            await create(ADMIN, SandboxSpec(background=True))
            await bench.restart()
            create = bench.control.creation.create
            with pytest.raises(LimitReached):
                await create(OWNER, SandboxSpec(background=True))
            await bench.control.lifecycle.terminate(OWNER, sandboxes[0].sandbox_id)
            await bench.call(sandboxes[1], "write_file", OWNER, path="a", content="x" * (2 << 20))
            with pytest.raises(LimitReached) as full:
                await create(OWNER, SandboxSpec(background=True))
            assert full.value.facts["kind"] == "owner_stored_mib"
            await bench.call(sandboxes[1], "write_file", OWNER, path="a", content="x")
            await create(OWNER, SandboxSpec(background=True))

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_what_an_owner_has_is_added_up_again_only_where_something_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.maxima = Maxima(stored_mib=100)
            await bench.restart()
            looks = []
            ask = type(bench.host.snapshots).ask

            async def counting(self: Any, point: Any, request: Any) -> Any:
                looks.append(point)
                return await ask(self, point, request)

            monkeypatch.setattr(type(bench.host.snapshots), "ask", counting)
            made = [await bench.control.creation.create(OWNER, SandboxSpec(background=True)) for _ in range(5)]
            assert len(looks) == 4, "each is looked at once, though there were four creations after the first"
            await bench.call(made[0], "write_file", OWNER, path="a", content="x")
            await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            assert len(looks) == 6, "the fifth, and the one that was written to"
            bench.pass_time(COUNT_HOLDS)
            await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            assert len(looks) == 6 + 6, "what runs without a record writes too"

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_neither_many_files_nor_an_end_makes_what_an_owner_has_stored_look_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.maxima = Maxima(stored_mib=100)
            await bench.restart()
            create = bench.control.creation.create
            info = await create(OWNER, SandboxSpec(background=True, limits=Limits(disk_mib=200)))
            await create(OWNER, SandboxSpec(background=True))
            place = bench.root / "background" / info.session_id
            for number in range(20):
                (place / f"file{number}").write_text("x")
            bench.pass_time(COUNT_HOLDS)  # nothing of this is on record
            with monkeypatch.context() as patch:
                patch.setattr("coldframe.control.usage.MOST_FILES", 10)
                with pytest.raises(LimitReached) as full:
                    await create(OWNER, SandboxSpec(background=True))
                assert full.value.facts["used"] == 200
            snapshot = await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            await bench.control.endings.terminate(OWNER, info.sandbox_id, discard=True)
            await create(OWNER, SandboxSpec(background=True))
            measured = f'{{"own_bytes": {100 << 20}}}'
            with bench.control.store.transaction():
                bench.control.store.raw.execute(
                    "UPDATE snapshots SET measured = ? WHERE snapshot_id = ?", (measured, snapshot.snapshot_id)
                )
            with pytest.raises(LimitReached):
                await create(OWNER, SandboxSpec(background=True))
            await create(ADMIN, SandboxSpec(background=True))

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_after_90_days_nothing_is_stored_that_nobody_asked_to_keep(tmp_path: Path) -> None:
    """200 sandboxes, of which nobody ends one: they are abandoned, kept for their time, and gone."""

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            day = 86_400
            bench.retention = Retention(stopped_s=7 * day)
            await bench.restart()
            create = bench.control.creation.create
            for number in range(200):
                action = ("stop", "snapshot", "terminate")[number % 3]
                spec = SandboxSpec(background=True, idle_timeout_s=3600, on_timeout=action)  # type: ignore[arg-type]
                info = await create(OWNER, spec)
                place = bench.root / "background" / info.session_id
                (place / "file").write_text("x" * 100)
                if number % 5 == 0:
                    rules = {"rule_id": "before-risk", "call_id": f"call{number}"}
                    await bench.control.snapshots.take_automatic(info.sandbox_id, **rules)
            for _ in range(90):
                bench.pass_time(timedelta(days=1))
                await bench.control.timers.turn()
                await bench.control.snapshot_upkeep.turn()
            states = {one.state.state for one in bench.control.roster.list(OWNER)}
            assert states == {"terminated"}
            assert bench.control.snapshots.list(OWNER) == [] and bench.host.snapshots.facts == {}
            assert not any((bench.root / "background").iterdir())
            assert not any((bench.root / "snapshots").iterdir())

    asyncio.run(scenario())
