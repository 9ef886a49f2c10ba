"""Held here: what commands left behind is there for whoever may see it until its time is over, and then said to be over."""

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.build import BuildSpec
from coldframe.contract.caller import Caller
from coldframe.contract.errors import NotFound, ResultExpired
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.control.retention import Retention
from tests.control.bench import AGENT, OTHER, OWNER, UNTIL_GO, Bench, opened, until

DAY_S = 86_400.0
WEEK = timedelta(days=7)
MEMBER = Caller(token_id="tok_another", role=Role.MEMBER, surface="rest")
SEEN = b"x\n" * 1000


async def made(bench: Bench) -> tuple[SandboxInfo, str, str]:
    """A sandbox, a command that ended there, and its receipt."""
    info = await bench.sandbox()
    done = await bench.call(info, "run_command", key="k", command="yes x | head -n 1000; exit 3")
    assert done.receipt_id is not None
    return info, str(done.value["command_id"]), done.receipt_id


def begun(tmp_path: Path, retention: Retention) -> Bench:
    bench = Bench(tmp_path)
    bench.retention = retention
    return bench


@pytest.mark.req("T4.32")
def test_a_week_later_after_the_end_and_a_restart_another_client_gets_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, command_id, receipt_id = await made(bench)
            receipt = bench.control.receipts.get(AGENT, receipt_id)

            async def same(caller: Caller) -> None:
                told = await bench.control.outputs.command(caller, info.sandbox_id, command_id)
                assert told.result is not None
                assert told.result.exit_code == 3
                seen = await bench.control.outputs.output(caller, info.sandbox_id, command_id, "stdout")
                assert seen.data == SEEN
                assert seen.sha256 == told.result.stdout.sha256 == hashlib.sha256(SEEN).hexdigest()
                assert bench.control.receipts.get(caller, receipt_id) == receipt

            await same(MEMBER)
            bench.pass_time(WEEK)
            await same(MEMBER)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await same(MEMBER)
            await bench.restart()
            await same(MEMBER)
            await same(AGENT)
            with pytest.raises(NotFound):
                await same(OTHER)

    asyncio.run(scenario())


async def built(bench: Bench, info: SandboxInfo) -> str:
    """A build that fails behind its first phase, with what that has made."""
    phases = [
        {"name": "make", "command": "echo made | tee out.txt", "outputs": ["out.txt"]},
        {"name": "check", "command": "echo wrong >&2; exit 4"},
    ]
    spec = BuildSpec.model_validate({"phases": phases})
    begun = await bench.control.builds.start(OWNER, info.sandbox_id, spec)
    await bench.control.builds.get(OWNER, begun.build_id, wait_s=20)
    return begun.build_id


@pytest.mark.req("T4.32", "T3.77")
def test_a_week_later_artifacts_and_a_build_with_its_log_are_the_same_for_another_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, _, _ = await made(bench)
            build_id = await built(bench, info)

            async def told(caller: Caller) -> tuple[Any, ...]:
                control, read = bench.control, list[bytes]()
                artifacts = await control.artifacts.list(caller, info.sandbox_id)
                build = await control.builds.get(caller, build_id)
                log = await control.build_logs.read(caller, build_id)
                await control.gate.call(caller, info.sandbox_id, "read_file", {"path": "out.txt"}, deliver=read.append)
                assert [one.sha256 for one in build.artifacts] == [hashlib.sha256(b"".join(read)).hexdigest()]
                receipts = [control.receipts.get(caller, one) for one in build.receipts]
                assert [one.exit_code for one in receipts] == [0, 4]
                return artifacts, build, log, receipts, read

            first = await told(OWNER)
            assert first[2].data.endswith(b"wrong\n")
            assert ("out.txt", "output") in [(one.name, one.kind) for one in first[0].artifacts]
            assert await told(MEMBER) == first
            bench.pass_time(WEEK)
            assert await told(MEMBER) == first
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            assert await told(MEMBER) == first
            await bench.restart()
            assert await told(MEMBER) == first
            assert await told(AGENT) == first
            with pytest.raises(NotFound):
                await told(OTHER)

    asyncio.run(scenario())


@pytest.mark.req("T4.32")
def test_past_their_time_artifacts_keep_their_digests_and_the_log_of_a_build_is_expired(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = begun(tmp_path, Retention(results_s=DAY_S))
        await bench.start()
        info, _, _ = await made(bench)
        build_id = await built(bench, info)
        before = await bench.control.artifacts.list(MEMBER, info.sandbox_id)
        digests = (await bench.control.builds.get(MEMBER, build_id)).artifacts
        bench.pass_time(timedelta(hours=25))
        await bench.control.kept_results.turn()
        with pytest.raises(ResultExpired) as told:
            await bench.control.build_logs.read(MEMBER, build_id)
        assert told.value.facts["stdout"] and told.value.facts["gone_at"]
        assert await bench.control.artifacts.list(MEMBER, info.sandbox_id) == before
        assert (await bench.control.builds.get(MEMBER, build_id)).artifacts == digests != ()
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.32")
@pytest.mark.parametrize("ended", [False, True])
def test_past_its_time_a_result_is_expired_with_its_digest_and_date_and_not_unknown(
    tmp_path: Path, ended: bool
) -> None:
    async def scenario() -> None:
        bench = begun(tmp_path, Retention(results_s=DAY_S))
        await bench.start()
        info, command_id, receipt_id = await made(bench)
        bench.pass_time(timedelta(hours=23))
        kept = await bench.call(info, "run_command", command="echo kept")
        if ended:
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
        for _ in range(2):
            await bench.control.kept_results.turn()
            seen = await bench.control.outputs.output(MEMBER, info.sandbox_id, command_id, "stdout")
            assert seen.data == SEEN
        bench.pass_time(timedelta(hours=2))
        for restarts in range(2):
            for _ in range(2):
                await bench.control.kept_results.turn()
            outputs = bench.control.outputs
            with pytest.raises(ResultExpired) as told:
                await outputs.output(MEMBER, info.sandbox_id, command_id, "stdout")
            with pytest.raises(ResultExpired):
                async for _ in outputs.follow(MEMBER, info.sandbox_id, command_id):
                    pass
            assert told.value.code == "EXPIRED"
            digest = told.value.facts["stdout"]
            assert isinstance(digest, dict)
            assert (digest["bytes"], digest["sha256"]) == (len(SEEN), hashlib.sha256(SEEN).hexdigest())
            (gone,) = bench.control.ledger.entries(kinds=("results.expired",))
            assert (told.value.facts["gone_at"], gone.body["commands"]) == (gone.at.isoformat(), 1)
            shown = [await outputs.command(MEMBER, info.sandbox_id, command_id)]
            shown += [one for one in await outputs.commands(MEMBER, info.sandbox_id) if one.command_id == command_id]
            assert [one.status.code for one in shown if one.status is not None] == ["EXPIRED"] * 2
            assert receipt_id in (shown[0].status.evidence if shown[0].status is not None else ())
            receipt = bench.control.receipts.get(MEMBER, receipt_id)
            assert receipt.stdout is not None
            assert receipt.stdout.sha256 == hashlib.sha256(SEEN).hexdigest()
            still = await outputs.output(MEMBER, info.sandbox_id, str(kept.value["command_id"]), "stdout")
            assert still.data == b"kept\n"
            ran = len(bench.host.ran)
            with pytest.raises(ResultExpired):
                await bench.call(info, "run_command", key="k", command="yes x | head -n 1000; exit 3")
            assert len(bench.host.ran) == ran
            if not restarts:
                await bench.restart()
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.32")
def test_what_one_had_printed_whose_end_nobody_knows_is_not_kept_for_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = begun(tmp_path, Retention(results_s=DAY_S))
        await bench.start()
        info = await bench.sandbox()
        started = await bench.call(info, "run_command", command=f"echo seen; {UNTIL_GO}", background=True)
        command_id = str(started.value["command_id"])
        bench.kill()
        await bench.host.lose(info.sandbox_id)
        await bench.start()
        await until(lambda: bench.kinds(kinds=("call.interrupted",)) == ["call.interrupted"])
        outputs = bench.control.outputs
        shown = await outputs.command(MEMBER, info.sandbox_id, command_id)
        assert (shown.state, shown.status and shown.status.code) == ("lost", "PROCESS_LOST")
        bench.pass_time(timedelta(hours=25))
        await bench.control.kept_results.turn()
        with pytest.raises(ResultExpired) as told:
            await outputs.output(MEMBER, info.sandbox_id, command_id, "stdout")
        assert told.value.facts["stdout"] is None
        shown = await outputs.command(MEMBER, info.sandbox_id, command_id)
        assert shown in await outputs.commands(MEMBER, info.sandbox_id)
        assert (shown.state, shown.status and shown.status.code) == ("lost", "EXPIRED")
        (gone,) = bench.control.ledger.entries(kinds=("results.expired",))
        assert gone.body["commands"] == 1
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
@pytest.mark.parametrize("background", [False, True])
def test_what_has_been_stopped_for_long_is_terminated_after_a_warning(tmp_path: Path, background: bool) -> None:
    async def scenario() -> None:
        bench = begun(tmp_path, Retention(stopped_s=7 * DAY_S))
        await bench.start()
        spec = SandboxSpec(agent_id=None if background else "ada", background=background)
        info, extended = [await bench.control.creation.create(OWNER, spec) for _ in range(2)]
        await bench.call(info, "write_file", OWNER, path="kept", content="x")

        def state(of: SandboxInfo = info) -> str:
            return bench.control.sandboxes.get(OWNER, of.sandbox_id).state.state

        async def after(**much: Any) -> None:
            bench.pass_time(timedelta(**much))
            await bench.control.timers.turn()

        for one in (info, extended):
            await bench.control.lifecycle.stop(OWNER, one.sandbox_id)
        shown = bench.control.timers.shown(bench.control.sandboxes.get(OWNER, info.sandbox_id))
        assert shown.expires_at == shown.state.since + WEEK
        await after(days=6)
        await bench.control.lifecycle.extend(OWNER, extended.sandbox_id, 30 * DAY_S)
        await bench.restart()
        await after(hours=23, minutes=59, seconds=30)
        assert state() == "stopped"
        warned = bench.control.ledger.entries(kinds=("sandbox.expiring",), subject=info.sandbox_id)
        assert [(one.body["reason"], one.body["action"]) for one in warned] == [("kept", "terminate")]
        await after(seconds=31)
        await until(lambda: state() == "terminated")
        assert state(extended) == "stopped"
        ended = bench.control.ledger.entries(kinds=("sandbox.terminated",), subject=info.sandbox_id)
        assert [(one.body["caller"], one.body["reason"]) for one in ended] == [("timer", "kept")]
        assert (tmp_path / "background" / info.session_id).exists() is False
        if not background:
            another = await bench.sandbox()
            assert (await bench.call(another, "read_file", OWNER, path="kept")).value["content"] == "x"
        await bench.control.close()

    asyncio.run(scenario())
