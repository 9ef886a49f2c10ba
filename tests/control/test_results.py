"""Held here: what is deleted for a confirmed result is deleted whole, whoever leaves and whatever breaks off meanwhile."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import Conflict, GrantMissing, HostUnreachable
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.control import results
from tests.control.bench import AGENT, OWNER, VIEWER, WITHHOLD, Bench, opened, until

ASKED: dict[str, Any] = {
    "background": True,
    "outputs": ("made.txt",),
    "max_age_s": 600.0,
    "on_timeout": "terminate",
    "on_result": "delete",
}


async def worked(bench: Bench) -> SandboxInfo:
    info = await bench.control.creation.create(OWNER, SandboxSpec(**ASKED))
    await bench.call(info, "run_command", OWNER, command="echo made > made.txt; echo printed")
    return info


@pytest.mark.req("T3.39")
def test_a_deletion_that_broke_off_is_carried_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await worked(bench)
            offered = await bench.control.results.offer(OWNER, info.sandbox_id)
            genuine = bench.host.forget_stored

            async def gone(*_: object) -> None:
                raise HostUnreachable("the host is gone")

            monkeypatch.setattr(bench.host, "forget_stored", gone)
            with pytest.raises(HostUnreachable):
                await bench.control.results.confirm(OWNER, info.sandbox_id, str(offered.sha256))
            assert bench.control.results.get(OWNER, info.sandbox_id).state == "deleting"
            assert bench.control.store.read("SELECT count(*) FROM judged_outputs") == [(1,)]
            monkeypatch.setattr(bench.host, "forget_stored", genuine)
            await bench.restart()
            await until(lambda: bench.control.results.get(OWNER, info.sandbox_id).state == "deleted")
            assert bench.control.store.read("SELECT count(*) FROM judged_outputs") == [(0,)]
            assert bench.kinds(kinds=["result.deleting", "result.deleted"]) == ["result.deleting", "result.deleted"]
            await bench.restart()
            assert (await bench.control.results.confirm(OWNER, info.sandbox_id, str(offered.sha256))).state == "deleted"
            assert len(bench.entries(kinds=["result.deleted"])) == 1

    asyncio.run(scenario())


def test_a_deletion_that_broke_off_goes_on_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(results, "AGAIN_S", 0.01)
        async with opened(tmp_path) as bench:
            info = await worked(bench)
            offered = await bench.control.results.offer(OWNER, info.sandbox_id)
            genuine, failures = bench.host.forget_stored, 3

            async def gone(sandbox_id: str, *more: Any) -> None:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise HostUnreachable("the host is gone")
                await genuine(sandbox_id, *more)

            monkeypatch.setattr(bench.host, "forget_stored", gone)
            with pytest.raises(HostUnreachable):
                await bench.control.results.confirm(OWNER, info.sandbox_id, str(offered.sha256))
            await until(lambda: bench.control.results.get(OWNER, info.sandbox_id).state == "deleted")
            assert failures == -1

    asyncio.run(scenario())


@pytest.mark.req("T3.39")
@pytest.mark.parametrize("breaks_off", [False, True])
@pytest.mark.parametrize("is_offered", [False, True])
def test_where_nobody_confirms_in_time_what_commands_have_written_goes_with_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_offered: bool, breaks_off: bool
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await worked(bench)
            keeps = await bench.control.creation.create(OWNER, SandboxSpec(**{**ASKED, "on_result": "keep"}))
            await bench.call(keeps, "run_command", OWNER, command="echo printed")
            if is_offered:
                await bench.control.results.offer(OWNER, info.sandbox_id)
            forgotten: list[str] = []
            genuine = bench.host.forget_stored

            async def forget(sandbox_id: str, *more: Any) -> None:
                if breaks_off and bench.starts == 1:
                    raise HostUnreachable("the host is gone")
                forgotten.append(sandbox_id)
                await genuine(sandbox_id, *more)

            monkeypatch.setattr(bench.host, "forget_stored", forget)
            bench.pass_time(timedelta(seconds=599))
            await bench.control.timers.turn()
            assert bench.control.results.get(OWNER, info.sandbox_id).state == (
                "awaiting_fetch" if is_offered else "open"
            )
            bench.pass_time(timedelta(seconds=2))
            await bench.control.timers.turn()
            if breaks_off:
                await bench.restart()
            await until(lambda: bench.control.results.get(OWNER, info.sandbox_id).deleted_at is not None)
            assert forgotten == [info.sandbox_id]
            result = bench.control.results.get(OWNER, info.sandbox_id)
            assert result.state == "expired" and (result.sha256 is not None) == is_offered
            assert bench.control.store.read("SELECT count(*) FROM judged_outputs") == [
                (1,)
            ]  # of the one that keeps them
            (record,) = bench.entries(kinds=["result.deleting"])
            assert (record.body["caller"], record.body["sha256"]) == ("timer", None)
            if is_offered:
                again = await bench.control.results.confirm(OWNER, info.sandbox_id, str(result.sha256))
                assert again == result
            await bench.restart()
            assert bench.kinds(kinds=["result.deleting", "result.deleted"]) == ["result.deleting", "result.deleted"]

    asyncio.run(scenario())


def test_of_one_that_somebody_ended_before_its_time_the_rest_can_be_deleted_still(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await worked(bench)
            offered = await bench.control.results.offer(OWNER, info.sandbox_id)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            bench.pass_time(timedelta(seconds=601))
            await bench.control.timers.turn()
            await bench.restart()
            assert bench.control.results.get(OWNER, info.sandbox_id).state == "expired"
            with pytest.raises(Conflict):
                await bench.control.results.confirm(OWNER, info.sandbox_id, "0" * 64)
            assert bench.kinds(kinds=["result.deleting", "result.deleted"]) == []
            await bench.control.results.confirm(OWNER, info.sandbox_id, str(offered.sha256))
            assert bench.kinds(kinds=["result.deleting", "result.deleted"]) == ["result.deleting", "result.deleted"]

    asyncio.run(scenario())


def test_two_who_confirm_delete_once_and_whoever_may_not_end_it_deletes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await worked(bench)
            offered = await bench.control.results.offer(OWNER, info.sandbox_id)
            for caller in (VIEWER, AGENT):
                with pytest.raises(GrantMissing):
                    await bench.control.results.confirm(caller, info.sandbox_id, str(offered.sha256))
            with pytest.raises(GrantMissing):
                bench.control.results.get(AGENT, info.sandbox_id)
            both = [bench.control.results.confirm(OWNER, info.sandbox_id, str(offered.sha256)) for _ in range(2)]
            assert [one.state for one in await asyncio.gather(*both)] == ["deleted"] * 2
            assert bench.kinds(kinds=["result.deleting", "result.deleted"]) == ["result.deleting", "result.deleted"]

    asyncio.run(scenario())
