"""Held here: creation is all or nothing, waits for its turn where the operator has set how many may run, and says all that
is wrong with a wish at once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    InvalidArgument,
    IsolationUnavailable,
    LedgerUnavailable,
    TooManySandboxes,
)
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import LARGEST, Limits, SandboxInfo, SandboxSpec
from coldframe.control import slots
from coldframe.control.sandbox_specs import Longest
from tests.control.bench import OWNER, Bench
from tests.fakes.host import FakeHost

LONG_S = 3600.0
MEMBER = Caller(token_id="tok_member", role=Role.MEMBER, surface="rest")


def state(bench: Bench, info: SandboxInfo) -> str:
    return bench.control.sandboxes.get(OWNER, info.sandbox_id).state.state


async def full(tmp_path: Path, most: int = 1) -> Bench:
    bench = Bench(tmp_path)
    bench.most_running = most
    await bench.start()
    return bench


async def queued(bench: Bench, agent_id: str = "ada", queue_s: float = LONG_S, **more: Any) -> SandboxInfo:
    return await bench.control.creation.create(OWNER, SandboxSpec(agent_id=agent_id), queue_s=queue_s, **more)


async def end(bench: Bench, info: SandboxInfo) -> None:
    await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)


@pytest.mark.req("T4.59")
def test_who_waits_is_made_in_turn_is_seen_meanwhile_and_each_state_has_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        running = await bench.sandbox()
        assert list(running.state.reached) == ["starting", "running"]
        with pytest.raises(TooManySandboxes) as refused:
            await bench.sandbox()
        assert refused.value.code == "LIMIT_SANDBOXES"
        assert (refused.value.facts["limit"], refused.value.facts["used"]) == (1, 1)
        assert "queue_s" in refused.value.advice
        waiting = [await queued(bench, f"agent-{number}") for number in range(3)]
        assert [one.state.state for one in waiting] == ["queued"] * 3
        assert [one["op"] for one in waiting[0].state.next_actions] == ["sandbox.get", "sandbox.terminate"]
        listed = bench.control.sandboxes.list(OWNER, states=("queued",))
        assert {one.sandbox_id for one in listed} == {one.sandbox_id for one in waiting}
        with pytest.raises(TooManySandboxes):  # nobody passes those that wait
            await bench.sandbox()
        with pytest.raises(ColdframeError):
            await bench.call(waiting[0], "run_command", OWNER, command="true")
        before = running
        for one in waiting:
            assert state(bench, one) == "queued"
            await end(bench, before)
            made = await bench.control.creation.wait(OWNER, one.sandbox_id, 5)
            assert made.state.state == "running"
            assert list(made.state.reached) == ["queued", "starting", "running"]
            assert sorted(made.state.reached.values()) == list(made.state.reached.values())
            assert (await bench.call(one, "run_command", OWNER, command="true")).error is None
            before = one
        assert [one for one in bench.kinds() if one in ("sandbox.queued", "sandbox.created")] == [
            *("sandbox.created", "sandbox.queued", "sandbox.queued", "sandbox.queued"),
            *("sandbox.created", "sandbox.created", "sandbox.created"),
        ]
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.59", "T4.31")
def test_what_is_taken_out_of_the_queue_or_has_waited_too_long_never_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        running = await bench.sandbox()
        taken, late, next_one = await queued(bench), await queued(bench, queue_s=0.02), await queued(bench)
        for _ in range(2):
            ended = await bench.control.lifecycle.terminate(OWNER, taken.sandbox_id)
            assert ended.state.state == "terminated"
        given_up = await bench.control.creation.wait(OWNER, late.sandbox_id, 5)
        assert given_up.state.state == "failed"
        assert "within 0.02 s" in given_up.state.message
        assert bench.control.sessions.get(late.session_id).closed_at is not None
        await end(bench, running)
        assert (await bench.control.creation.wait(OWNER, next_one.sandbox_id, 5)).state.state == "running"
        assert {box.sandbox_id for box in await bench.host.boxes()} == {next_one.sandbox_id}
        made = bench.control.ledger.entries(kinds=("sandbox.created",))
        assert [one.subject for one in made] == [running.sandbox_id, next_one.sandbox_id]
        assert (state(bench, taken), state(bench, late)) == ("terminated", "failed")
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.59")
def test_stopped_ones_make_room_and_start_again_only_where_there_is_some(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        acts = bench.control.lifecycle
        first, second = await bench.sandbox(), await queued(bench)
        await acts.stop(OWNER, first.sandbox_id)
        await bench.control.creation.wait(OWNER, second.sandbox_id, 5)
        with pytest.raises(TooManySandboxes):
            await acts.start(OWNER, first.sandbox_id)
        assert state(bench, first) == "stopped"
        await bench.restart()  # who runs already is counted
        acts = bench.control.lifecycle
        with pytest.raises(TooManySandboxes):
            await acts.start(OWNER, first.sandbox_id)
        await bench.host.lose(second.sandbox_id)
        await bench.control.sandboxes.check_alive(second.sandbox_id, "its box ended")
        assert (await acts.start(OWNER, first.sandbox_id)).state.state == "running"
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.59")
def test_one_that_cannot_be_made_in_its_turn_fails_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        running = await bench.sandbox()
        broken, deleted, whole = await queued(bench), await queued(bench, "bob"), await queued(bench, "eve")
        create = FakeHost.create

        async def no_wall(host: FakeHost, sandbox_id: str, *args: Any, **more: Any) -> Any:
            if sandbox_id == broken.sandbox_id:
                raise IsolationUnavailable("no user namespaces", property="user_namespace")
            return await create(host, sandbox_id, *args, **more)

        monkeypatch.setattr(FakeHost, "create", no_wall)
        await bench.control.agents.delete("bob", caller=OWNER)
        await end(bench, running)
        assert (await bench.control.creation.wait(OWNER, whole.sandbox_id, 5)).state.state == "running"
        for one, reason in ((broken, "no user namespaces"), (deleted, "agent `bob` was deleted")):
            told = bench.control.sandboxes.get(OWNER, one.sandbox_id).state
            assert told.state == "failed"
            assert reason in told.message
        assert {box.sandbox_id for box in await bench.host.boxes()} == {whole.sandbox_id}
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.59")
def test_a_restart_tells_those_that_waited_and_gives_their_keys_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        running = await bench.sandbox()
        waiting = await queued(bench, idempotency_key="k")
        assert (await queued(bench, idempotency_key="k")).sandbox_id == waiting.sandbox_id
        cut = await queued(bench)
        await bench.restart()
        assert (state(bench, waiting), state(bench, cut)) == ("failed", "failed")
        bench.kill()
        await bench.start()
        await end(bench, running)
        again = await queued(bench, idempotency_key="k")
        assert again.sandbox_id != waiting.sandbox_id
        assert again.state.state == "running"
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.req("T4.59")
def test_all_that_is_wrong_with_a_wish_is_said_at_once_and_nothing_is_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.longest = Longest(idle_s=10, age_s=20)
        await bench.start()
        wrong = SandboxSpec(
            denied_programs=tuple(f"p{number}" for number in range(300)),
            limits=Limits(memory_mib=LARGEST.memory_mib + 1, wall_s=700, pids=400),
            idle_timeout_s=11,
            max_age_s=21,
        )
        with pytest.raises(InvalidArgument) as refused:
            await bench.control.creation.create(MEMBER, wrong)
        faults = refused.value.facts["faults"]
        assert isinstance(faults, list)
        assert {one["argument"] for one in faults} == {
            *("limits.memory_mib", "limits.wall_s", "limits.pids", "denied_programs", "agent_id"),
            *("idle_timeout_s", "max_age_s"),
        }
        assert bench.control.sandboxes.list(OWNER) == []
        assert bench.control.agents.list() == []
        await bench.control.close()

    asyncio.run(scenario())


def test_what_a_token_asked_for_that_was_revoked_meanwhile_is_not_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        running = await bench.sandbox()
        secret, token = bench.control.tokens.create(Role.MEMBER, "builder", caller=OWNER)
        caller = bench.control.tokens.authenticate(secret, surface="rest")
        waiting = await bench.control.creation.create(caller, SandboxSpec(agent_id="bob"), queue_s=LONG_S)
        bench.control.tokens.revoke(token.token_id, caller=OWNER)
        await end(bench, running)
        told = (await bench.control.creation.wait(OWNER, waiting.sandbox_id, 5)).state
        assert (told.state, "token" in told.message) == ("failed", True)
        assert (await bench.sandbox()).state.state == "running"
        await bench.control.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [False, True])
def test_one_that_failed_takes_up_no_room_although_that_could_not_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    async def scenario() -> None:
        bench = await full(tmp_path)
        first = await bench.sandbox() if waits else None
        append = bench.control.ledger.append

        def full_disk(kind: str, *arguments: Any, **more: Any) -> Any:
            if kind in ("sandbox.created", "sandbox.failed"):
                raise LedgerUnavailable("no space is left")
            return append(kind, *arguments, **more)

        with monkeypatch.context() as patch:
            patch.setattr(bench.control.ledger, "append", full_disk)
            if first is None:
                with pytest.raises(LedgerUnavailable):
                    await bench.sandbox()
            else:
                broken = await queued(bench, "bob")
                await end(bench, first)
                await bench.control.creation.wait(OWNER, broken.sandbox_id, 5)
        assert (await bench.sandbox("eve")).state.state == "running"
        await bench.control.close()

    asyncio.run(scenario())


def test_only_so_many_wait_and_the_one_too_many_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(slots, "MOST_WAITING", 1)
        bench = await full(tmp_path)
        running, waiting = await bench.sandbox(), await queued(bench)
        with pytest.raises(TooManySandboxes, match="wait for their turn"):
            await queued(bench, "bob", idempotency_key="k")
        listed = bench.control.sandboxes.list(OWNER)
        assert {one.sandbox_id for one in listed} == {running.sandbox_id, waiting.sandbox_id}
        await end(bench, running)
        await bench.control.creation.wait(OWNER, waiting.sandbox_id, 5)
        assert (await queued(bench, "bob", idempotency_key="k")).state.state == "queued"
        await bench.control.close()

    asyncio.run(scenario())
