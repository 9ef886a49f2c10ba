"""Pipelines: what succeeded stays, what did not is run again and nothing else, whatever ended in between."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    Conflict,
    GrantMissing,
    HostUnreachable,
    InvalidArgument,
    LimitReached,
    NotFound,
    WrongState,
)
from coldframe.contract.pipeline import PipelineInfo, PipelineSpec, RerunRequest
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control import pipelines
from tests.control.bench import AGENT, OTHER, OWNER, UNTIL_GO, VIEWER, Bench, opened, until

COUNT = "echo x >> count-{0}"
"""What leaves a mark each time it runs."""
DENY = """version: 1
rules:
  - id: no-deploy
    hook: PRE_TOOL_CALL
    when: {tool: run_command, command: {contains: deploy}}
    then: deny
    reason: nobody deploys from here
"""


def spec(*steps: dict[str, Any], on_failure: str = "stop") -> PipelineSpec:
    return PipelineSpec.model_validate({"steps": steps, "on_failure": on_failure})


def step(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": command, **more}


async def ended(bench: Bench, info: SandboxInfo, pipeline_id: str) -> PipelineInfo:
    found = await bench.control.pipelines.get(OWNER, info.sandbox_id, pipeline_id, wait_s=20)
    assert found.state != "running"
    return found


async def run(bench: Bench, info: SandboxInfo, steps: PipelineSpec) -> PipelineInfo:
    return await ended(bench, info, bench.control.pipelines.start(OWNER, info.sandbox_id, steps).pipeline_id)


async def rerun(bench: Bench, info: SandboxInfo, pipeline: PipelineInfo, **request: Any) -> PipelineInfo:
    wanted = RerunRequest.model_validate(request)
    await bench.control.pipelines.rerun(OWNER, info.sandbox_id, pipeline.pipeline_id, wanted)
    return await ended(bench, info, pipeline.pipeline_id)


def states(pipeline: PipelineInfo) -> str:
    return " ".join(one.state for one in pipeline.steps)


def files(bench: Bench) -> Path:
    return bench.root / "workspace" / "ada"


def counted(bench: Bench, *names: str) -> list[int]:
    marks = [files(bench) / f"count-{name}" for name in names]
    return [len(one.read_text().splitlines()) if one.exists() else 0 for one in marks]


@pytest.mark.req("T4.28")
def test_of_ten_steps_two_fail_the_outputs_of_the_others_stay_and_only_these_two_are_run_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            names = [f"s{number}" for number in range(1, 11)]
            ready = {"s3": " && test -e mended", "s7": " && test -e mended"}
            steps = [step(name, COUNT.format(name) + ready.get(name, "") + f" && echo {name}") for name in names]
            first = await run(bench, info, spec(*steps, on_failure="continue"))
            assert first.state == "failed"
            failed = [one.name for one in first.steps if one.state == "failed"]
            assert failed == ["s3", "s7"]
            assert {one.exit_code for one in first.steps if one.name in failed} == {1}
            before = {one.name: one.command_id for one in first.steps}
            (files(bench) / "mended").touch()
            again = await rerun(bench, info, first)
            assert (again.state, again.ended_at is not None) == ("succeeded", True)
            assert counted(bench, *names) == [2 if name in failed else 1 for name in names]
            assert {one.name for one in again.steps if one.command_id != before[one.name]} == set(failed)
            for one in again.steps:
                assert one.command_id is not None
                window = await bench.control.outputs.output(OWNER, info.sandbox_id, one.command_id, "stdout")
                assert window.data == f"{one.name}\n".encode()
            with pytest.raises(WrongState):
                await rerun(bench, info, again)

    asyncio.run(scenario())


@pytest.mark.req("T4.28")
def test_a_migration_goes_on_from_the_step_at_which_it_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            # From step to step only if the one before has left its checkpoint.
            migrate = "test $(cat checkpoint) = {0} && {1} echo {2} > checkpoint && " + COUNT.format("{2}")
            steps = [step("zero", "echo 0 > checkpoint")]
            for number in range(1, 6):
                hurdle = "test -e mended &&" if number == 3 else ""
                steps.append(step(f"to-{number}", migrate.format(number - 1, hurdle, number)))
            first = await run(bench, info, spec(*steps))
            assert states(first) == "succeeded succeeded succeeded failed skipped skipped"
            assert first.steps[4].message == "`to-3` did not succeed"
            (files(bench) / "mended").touch()
            assert (await rerun(bench, info, first)).state == "succeeded"
            assert counted(bench, "1", "2", "3", "4", "5") == [1, 1, 1, 1, 1]
            assert (files(bench) / "checkpoint").read_text() == "5\n"

    asyncio.run(scenario())


@pytest.mark.req("T4.28")
def test_a_step_whose_needs_failed_is_skipped_and_the_others_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            steps = (
                step("a", "false"),
                step("b", "true", needs=["a"]),
                step("c", "true"),
                step("d", "true", needs=["b"]),
            )
            found = await run(bench, info, spec(*steps, on_failure="continue"))
            assert states(found) == "failed skipped succeeded skipped"

    asyncio.run(scenario())


@pytest.mark.req("T4.28")
def test_inputs_that_have_changed_since_are_told_before_anything_is_run_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="in.csv", content="1,2\n")
            steps = (
                step("load", COUNT.format("load") + "; cat in.csv", inputs=["in.csv"]),
                step("check", COUNT.format("check") + "; test -e mended"),
            )
            first = await run(bench, info, spec(*steps))
            assert states(first) == "succeeded failed"
            (files(bench) / "in.csv").write_text("1,3\n")
            with pytest.raises(Conflict) as told:
                await rerun(bench, info, first)
            assert told.value.facts["changed"] == ["load"]
            assert counted(bench, "load", "check") == [1, 1]
            (files(bench) / "mended").touch()
            assert (await rerun(bench, info, first, changed="keep")).state == "succeeded"
            assert counted(bench, "load", "check") == [1, 2]
            (files(bench) / "in.csv").unlink()
            with pytest.raises(Conflict):
                await rerun(bench, info, first, steps=["check"])
            gone = await rerun(bench, info, first, steps=["check"], changed="rerun")
            assert (gone.steps[0].state, gone.steps[1].state) == ("failed", "skipped")
            assert "in.csv" in gone.steps[0].message

    asyncio.run(scenario())


@pytest.mark.req("T4.28", "T3.73")
@pytest.mark.parametrize("ends", ["kill", "restart"])
def test_a_server_that_ends_takes_the_pipeline_up_where_it_was_and_starts_nothing_twice(
    tmp_path: Path, ends: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            steps = (
                step("first", COUNT.format("first")),
                step("long", COUNT.format("long") + "; " + UNTIL_GO),
                step("last", COUNT.format("last")),
            )
            pipeline = bench.control.pipelines.start(OWNER, info.sandbox_id, spec(*steps))
            await until(lambda: counted(bench, "long") == [1])
            if ends == "kill":
                bench.kill()
                await bench.start()
            else:
                await bench.restart()
            halfway = await bench.control.pipelines.get(OWNER, info.sandbox_id, pipeline.pipeline_id)
            assert states(halfway) in ("succeeded running pending", "succeeded pending pending")
            bench.go()
            assert states(await ended(bench, info, pipeline.pipeline_id)) == "succeeded succeeded succeeded"
            assert counted(bench, "first", "long", "last") == [1, 1, 1]

    asyncio.run(scenario())


@pytest.mark.req("T4.28")
def test_when_its_sandbox_is_lost_the_step_that_ran_is_lost_and_what_was_finished_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            steps = (step("first", "echo kept"), step("long", "touch begun; " + UNTIL_GO), step("last", "true"))
            pipeline = bench.control.pipelines.start(OWNER, info.sandbox_id, spec(*steps))
            await until((files(bench) / "begun").exists)
            await bench.host.lose(info.sandbox_id)
            await bench.restart()
            found = await ended(bench, info, pipeline.pipeline_id)
            assert states(found) == "succeeded lost skipped", found
            assert found.steps[1].code == "PROCESS_LOST"
            assert found.steps[0].command_id is not None
            kept = await bench.control.outputs.output(OWNER, info.sandbox_id, found.steps[0].command_id, "stdout")
            assert kept.data == b"kept\n"
            with pytest.raises(WrongState):
                await rerun(bench, info, found)

    asyncio.run(scenario())


@pytest.mark.req("T4.28")
def test_cancelling_ends_the_step_that_runs_and_starts_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            steps = (step("long", "touch begun; " + UNTIL_GO), step("last", "true"))
            pipeline = bench.control.pipelines.start(OWNER, info.sandbox_id, spec(*steps, on_failure="continue"))
            await until((files(bench) / "begun").exists)
            with pytest.raises(WrongState):
                await rerun(bench, info, pipeline)
            await bench.control.pipelines.cancel(OWNER, info.sandbox_id, pipeline.pipeline_id)
            found = await ended(bench, info, pipeline.pipeline_id)
            assert (found.state, states(found)) == ("cancelled", "cancelled cancelled")
            again = await bench.control.pipelines.cancel(OWNER, info.sandbox_id, pipeline.pipeline_id)
            assert again == found
            assert bench.kinds(kinds=("command.signalled",)) == ["command.signalled"]
            bench.go()
            assert (await rerun(bench, info, found)).state == "succeeded"

    asyncio.run(scenario())


def test_a_step_that_cannot_start_fails_with_its_code(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            found = await run(bench, info, spec(step("elsewhere", "true", cwd="nowhere"), step("next", "true")))
            assert states(found) == "failed skipped"
            assert found.steps[0].code is not None

    asyncio.run(scenario())


def test_each_step_is_a_call_through_the_gate_as_whoever_started_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, DENY) as bench:
            info = await bench.sandbox()
            steps = (step("build", "true"), step("ship", "deploy now"), step("tell", "true"))
            found = await run(bench, info, spec(*steps))
            assert states(found) == "succeeded refused skipped"
            assert found.steps[1].code == "DENIED_BY_RULE"
            (refused,) = bench.entries(kinds=("call.refused",))
            assert refused.body["caller"] == OWNER.name
            with pytest.raises(NotFound):
                await bench.control.pipelines.list(OTHER, info.sandbox_id)
            with pytest.raises(GrantMissing):
                bench.control.pipelines.start(VIEWER, info.sandbox_id, spec(*steps))
            assert [one.pipeline_id for one in await bench.control.pipelines.list(AGENT, info.sandbox_id)] == [
                found.pipeline_id
            ]
            with pytest.raises(NotFound):
                await bench.control.pipelines.get(OWNER, info.sandbox_id, "pip_0")

    asyncio.run(scenario())


def test_a_token_that_is_revoked_starts_no_further_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            secret, token = bench.control.tokens.create(Role.MEMBER, "builder", caller=OWNER)
            caller = bench.control.tokens.authenticate(secret, surface="rest")
            steps = (step("long", "touch begun; " + UNTIL_GO), step("last", "true"))
            pipeline = bench.control.pipelines.start(caller, info.sandbox_id, spec(*steps))
            await until((files(bench) / "begun").exists)
            bench.control.tokens.revoke(token.token_id, caller=OWNER)
            bench.go()
            found = await ended(bench, info, pipeline.pipeline_id)
            assert states(found) == "succeeded refused"
            assert found.steps[1].code == "UNAUTHENTICATED"

    asyncio.run(scenario())


def test_only_so_many_run_in_one_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(pipelines, "MOST_RUNNING", 1)
        async with opened(tmp_path) as bench:
            info, other = await bench.sandbox(), await bench.sandbox("bob")
            failed = await run(bench, info, spec(step("bad", "false")))
            first = bench.control.pipelines.start(OWNER, info.sandbox_id, spec(step("long", UNTIL_GO)))
            with pytest.raises(LimitReached):
                bench.control.pipelines.start(OWNER, info.sandbox_id, spec(step("more", "true")))
            with pytest.raises(LimitReached):
                await rerun(bench, info, failed)
            assert (await run(bench, other, spec(step("more", "true")))).state == "succeeded"
            bench.go()
            await ended(bench, info, first.pipeline_id)
            assert (await run(bench, info, spec(step("more", "true")))).state == "succeeded"

    asyncio.run(scenario())


def test_the_same_key_is_the_same_pipeline_and_another_one_under_it_a_conflict(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            steps = spec(step("once", COUNT.format("once")))
            start = bench.control.pipelines.start
            made = {start(OWNER, info.sandbox_id, steps, idempotency_key="k").pipeline_id for _ in range(20)}
            await ended(bench, info, made.pop())
            assert not made
            assert counted(bench, "once") == [1]
            with pytest.raises(Conflict):
                start(OWNER, info.sandbox_id, spec(step("other", "true")), idempotency_key="k")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (step("a", "true"), step("a", "true")),
        (step("a", "true", needs=["b"]), step("b", "true")),
        (step("Not a name", "true"),),
        (step("a", ""),),
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused_as_a_whole(steps: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(ValueError, match="step"):
        spec(*steps)


def test_a_step_that_is_not_there_cannot_be_run_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            found = await run(bench, info, spec(step("only", "false")))
            with pytest.raises(InvalidArgument):
                await rerun(bench, info, found, steps=["other"])

    asyncio.run(scenario())


def test_what_another_token_does_under_the_key_of_a_step_is_not_the_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            steps = spec(step("a", "touch begun; " + UNTIL_GO), step("b", COUNT.format("b")))
            pipeline = bench.control.pipelines.start(OWNER, info.sandbox_id, steps)
            await until((files(bench) / "begun").exists)
            await bench.control.pipelines.close()
            bench.go()
            await until(lambda: "call.ended" in bench.kinds())
            # Whatever the server had noted by then, a call of somebody else under the next key comes behind it.
            run = bench.control.pipelines._load(pipeline.pipeline_id)
            bench.control.pipelines._note(run, run.info.steps[0], "succeeded", exit_code=0)
            forged = await bench.call(info, "run_command", AGENT, f"{pipeline.pipeline_id}.b.1", command="true")
            assert forged.error is None
            bench.control.pipelines.take_up()
            found = await ended(bench, info, pipeline.pipeline_id)
            assert (states(found), counted(bench, "b")) == ("succeeded succeeded", [1])
            assert found.steps[1].command_id != forged.value["command_id"]

    asyncio.run(scenario())


def test_a_step_that_was_let_through_before_a_crash_is_ended_by_a_cancellation_behind_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            pipelines_ = bench.control.pipelines
            pipeline = pipelines_.start(OWNER, info.sandbox_id, spec(step("a", "touch begun; " + UNTIL_GO)))
            await pipelines_.close()  # before it has begun anything
            key, started = f"{pipeline.pipeline_id}.a.1", {"command": "touch begun; " + UNTIL_GO, "background": True}
            result = await bench.call(info, "run_command", OWNER, key, **started)
            await pipelines_.cancel(OWNER, info.sandbox_id, pipeline.pipeline_id)
            found = await ended(bench, info, pipeline.pipeline_id)
            assert states(found) == "cancelled"
            assert (found.steps[0].command_id, found.steps[0].attempt) == (result.value["command_id"], 1)
            assert "command.signalled" in bench.kinds()

    asyncio.run(scenario())


def test_an_end_that_the_host_could_not_be_told_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(pipelines, "LOOK_S", 0.01)
        monkeypatch.setattr(pipelines, "AGAIN_S", 0.01)
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            pipeline = bench.control.pipelines.start(
                OWNER, info.sandbox_id, spec(step("a", "touch begun; " + UNTIL_GO))
            )
            await until((files(bench) / "begun").exists)
            signal, refusals = bench.control.outputs.signal, 2

            async def unreachable(*arguments: Any, **more: Any) -> Any:
                nonlocal refusals
                if refusals:
                    refusals -= 1
                    raise HostUnreachable("nobody is there")
                return await signal(*arguments, **more)

            monkeypatch.setattr(bench.control.outputs, "signal", unreachable)
            await bench.control.pipelines.cancel(OWNER, info.sandbox_id, pipeline.pipeline_id)
            assert states(await ended(bench, info, pipeline.pipeline_id)) == "cancelled"
            assert not bench.control.pipelines._cancelled

    asyncio.run(scenario())


def test_a_large_input_does_not_keep_a_pipeline_from_being_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            with (files(bench) / "vast").open("wb") as file:
                file.truncate(1 << 20)
            monkeypatch.setattr(pipelines, "PART_BYTES", 16)
            pipeline = bench.control.pipelines.start(
                OWNER, info.sandbox_id, spec(step("a", COUNT.format("a"), inputs=["vast"]))
            )
            await until(lambda: bench.kinds(kinds=("call.ended",)).count("call.ended") > 2)
            await bench.control.pipelines.cancel(OWNER, info.sandbox_id, pipeline.pipeline_id)
            assert states(await ended(bench, info, pipeline.pipeline_id)) == "cancelled"
            assert counted(bench, "a") == [0]

    asyncio.run(scenario())


def test_the_newest_are_listed_and_no_more_than_one_answer_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(pipelines, "MOST_LISTED", 2)
        async with opened(tmp_path) as bench:
            info, other = await bench.sandbox(), await bench.sandbox("bob")
            made = [(await run(bench, info, spec(step("a", "true")))).pipeline_id for _ in range(3)]
            await run(bench, other, spec(step("a", "true")))
            listed = await bench.control.pipelines.list(OWNER, info.sandbox_id)
            assert [one.pipeline_id for one in listed] == made[1:]

    asyncio.run(scenario())


def test_after_a_reset_of_the_session_it_is_run_again_in_the_new_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            first = await run(bench, info, spec(step("a", "test -e mended")))
            fresh = bench.control.sessions.reset(info.session_id, caller=OWNER)
            (files(bench) / "mended").touch()
            again = await rerun(bench, info, first)
            assert (again.state, again.session_id) == ("succeeded", fresh.session_id), again
            (_, last) = bench.entries(kinds=("call.started",))
            assert last.body["session_id"] == fresh.session_id

    asyncio.run(scenario())
