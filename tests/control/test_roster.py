"""Held here: who looks after an installation finds what is old, idle or somebody's, and ends it in one call."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, HostUnreachable
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import EndMany, SandboxInfo, SandboxSpec
from coldframe.control import sandbox_rows
from tests.control.bench import AGENT, OWNER, VIEWER, opened
from tests.fakes.box import FakeBox

ADMIN = Caller(token_id="tok_admin", role=Role.ADMIN, surface="rest")


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
