"""A program that serves its client without a server ends what is its own, and nothing that a server before has left."""

import asyncio
from pathlib import Path

from coldframe.cli.mcp import ending_its_own
from coldframe.contract.sandbox import SandboxSpec
from tests.control.bench import OWNER, opened


def test_what_was_there_before_keeps_its_files_and_what_was_made_meanwhile_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control = bench.control
            made = [await control.creation.create(OWNER, SandboxSpec(background=True)) for _ in range(2)]
            runs, stopped = (one.sandbox_id for one in made)
            for info in made:
                await bench.call(info, "write_file", OWNER, path="kept.txt", content="mine")
            await control.lifecycle.stop(OWNER, stopped)
            async with ending_its_own(control, OWNER):
                await control.lifecycle.start(OWNER, stopped)
                own = (await control.creation.create(OWNER, SandboxSpec(background=True))).sandbox_id
            states = {one: control.sandboxes.get(OWNER, one).state.state for one in (runs, stopped, own)}
            assert states == {runs: "running", stopped: "stopped", own: "terminated"}
            await control.lifecycle.start(OWNER, stopped)
            for info in made:
                assert (await bench.call(info, "read_file", OWNER, path="kept.txt")).value["content"] == "mine"

    asyncio.run(scenario())
