"""Held here: what was found of declared outputs is on record before anybody is told, and is found after a crash as well."""

import asyncio
from pathlib import Path

import pytest

from coldframe.contract.ledger import CallEnded
from coldframe.contract.outputs import DeclaredOutputs
from tests.control.bench import OWNER, UNTIL_GO, Bench, opened, put_off_ends, until


def on_record(bench: Bench) -> list[DeclaredOutputs | None]:
    return [CallEnded.model_validate(one.body).outputs for one in bench.entries(kinds=["call.ended"])]


def test_outputs_that_were_told_outlive_a_kill_and_a_job_has_its_own_after_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off_ends(monkeypatch)

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            told = await bench.call(info, "run_command", command="echo one > one.txt", outputs=["one.txt", "none"])
            job = await bench.call(
                info, "run_command", command=f"{UNTIL_GO}; echo two > two.txt", outputs=["two.txt"], background=True
            )
            assert job.value["outputs"] is None
            bench.kill()
            await bench.start()
            (kept,) = on_record(bench)
            assert kept == DeclaredOutputs.model_validate(told.value["outputs"])
            assert kept is not None
            assert (kept.code, kept.missing) == ("OUTPUT_MISSING", ("none",))
            bench.go()
            await until(lambda: len(on_record(bench)) == 2)
            later = on_record(bench)[1]
            assert later is not None
            assert ([one.path for one in later.found], later.code, later.problem) == (["two.txt"], None, None)
            shown = await bench.control.outputs.command(OWNER, info.sandbox_id, job.value["command_id"])
            assert shown.outputs == later

    asyncio.run(scenario())


def test_outputs_that_nobody_can_look_for_any_more_are_said_to_be_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "run_command", command=f"{UNTIL_GO}; true", outputs=["a.txt"], background=True)
            bench.kill()
            bench.go()
            (box,) = bench.host._boxes.values()
            await until(lambda: all(one.result is not None for one in box.commands.values()))
            box.state = "lost"
            await bench.start()
            await until(lambda: len(on_record(bench)) == 1)
            (found,) = on_record(bench)
            assert found is not None
            assert (found.code, found.complete) == (None, False)
            assert found.problem

    asyncio.run(scenario())
