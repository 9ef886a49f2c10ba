"""What comes out of a call: judged first where a rule is about results, live where none is, and whole."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import Ended, OutputChunk, Started
from coldframe.contract.errors import DeniedByRule
from coldframe.contract.tool import ToolResult
from tests.control.bench import AGENT, UNTIL_GO, WITHHOLD, collect, opened, refused, until


@pytest.mark.req("T1.81")
def test_a_result_that_a_rule_withholds_reaches_nobody_but_the_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            for command in ("echo TOP-SECRET", "printf TOP-; printf x >&2; printf SECRET"):
                error = await refused(bench, info, "run_command", command=command)
                assert isinstance(error, DeniedByRule)
                assert error.facts["rule"] == "marker"
                assert "SECRET" not in json.dumps(error.to_wire())
                got: list[Any] = []
                with pytest.raises(DeniedByRule):
                    async for event in bench.control.gate.stream(
                        AGENT, info.sandbox_id, "run_command", {"command": command}
                    ):
                        got.append(event)
                assert got == []
            await bench.call(info, "write_file", path="a.txt", content="TOP-SECRET")
            assert isinstance(await refused(bench, info, "read_file", path="a.txt"), DeniedByRule)
            ended = [entry for entry in bench.calls() if entry.kind == "call.ended"]
            assert [entry.body["decision"]["outcome"] for entry in ended] == ["deny"] * 4 + ["allow", "deny"]
            assert ended[0].body["stdout"]["bytes"] == 11
            line = json.loads(bench.history()[0])
            assert (line["stdout_bytes"], line["result_rule"], line["exit_code"]) == (11, "marker", 0)

    asyncio.run(scenario())


def test_output_that_no_rule_minds_comes_whole_after_it_was_judged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            got = await collect(
                bench.control.gate.stream(AGENT, info.sandbox_id, "run_command", {"command": "echo fine"})
            )
            assert b"".join(event.data for event in got if isinstance(event, OutputChunk)) == b"fine\n"
            assert isinstance(got[0], Started)
            assert isinstance(got[-2], Ended)
            assert isinstance(got[-1], ToolResult)

    asyncio.run(scenario())


def test_a_stream_is_live_where_no_rule_is_about_results(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            command = f"echo first; {UNTIL_GO}; echo last"
            seen = b""
            async for event in bench.control.gate.stream(AGENT, info.sandbox_id, "run_command", {"command": command}):
                if isinstance(event, OutputChunk):
                    seen += event.data
                    if seen == b"first\n":  # the command waits for us: had it been held back, this would hang
                        bench.go()
                elif isinstance(event, ToolResult):
                    assert event.value["streamed"] is True
                    assert event.value["stdout_info"]["bytes"] == 11
            assert seen == b"first\nlast\n"

    asyncio.run(scenario())


def test_a_slow_reader_of_a_stream_misses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            stream = bench.control.gate.stream(
                AGENT, info.sandbox_id, "run_command", {"command": "for i in $(seq 2000); do echo $i; done; sleep 0.1"}
            )
            first = await anext(stream)
            assert isinstance(first, Started)
            await until(lambda: bench.kinds()[-1] == "call.ended")  # the record does not wait for the reader
            rest = await collect(stream)
            chunks = [event for event in rest if isinstance(event, OutputChunk)]
            assert b"".join(chunk.data for chunk in chunks) == b"".join(b"%d\n" % i for i in range(1, 2001))
            assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))

    asyncio.run(scenario())
