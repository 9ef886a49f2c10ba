"""A caller may wait for the end of a command for a while only: the command is not touched by that."""

import asyncio
from pathlib import Path

from tests.control.bench import AGENT, UNTIL_GO, opened, until


def test_a_caller_whose_time_is_over_is_told_that_the_command_runs_and_its_end_is_recorded_all_the_same(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            told: list[str] = []
            result = await bench.control.gate.call(
                AGENT, info.sandbox_id, "run_command", {"command": UNTIL_GO}, within_s=0.05, admitted=told.append
            )
            assert (result.value["state"], result.value["exit_code"]) == ("running", None)
            assert told == [result.value["command_id"]]
            assert bench.kinds()[-1] == "call.started"
            await bench.call(info, "write_file", path="go", content="")
            await until(lambda: not bench.control.ledger.open_calls())
            known = await bench.control.outputs.command(AGENT, info.sandbox_id, told[0])
            assert known.state == "ended" and known.result is not None and known.result.exit_code == 0

    asyncio.run(scenario())


def test_a_command_that_ends_in_time_is_answered_whole_and_no_other_tool_is_left_early(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            gate = bench.control.gate
            whole = await gate.call(AGENT, info.sandbox_id, "run_command", {"command": "echo hi"}, within_s=30)
            assert (whole.value["state"], whole.value["stdout"]) == ("ended", "hi\n")
            written = await gate.call(
                AGENT, info.sandbox_id, "write_file", {"path": "a", "content": "x"}, within_s=0, admitted=print
            )
            assert written.value["bytes_written"] == 1

    asyncio.run(scenario())
