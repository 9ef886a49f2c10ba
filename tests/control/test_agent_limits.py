"""Limits that rules put on an agent reach the box before the next call, once, and again after a restart."""

import asyncio
from pathlib import Path

from coldframe.contract.files import TightenLimits
from tests.control.bench import OWNER, Bench, opened

LOWER = "version: 1\nsettings: {limits: {ada: {cpu_s: 10}, '*': {memory_mib: 512, cpu_s: 20}}}\n"


def told(bench: Bench) -> list[tuple[float, int]]:
    asked = [one for one in bench.host.asked if isinstance(one, TightenLimits)]
    return [(one.limits.cpu_s, one.limits.memory_mib) for one in asked]


def test_a_box_is_told_once_when_its_limits_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "run_command", command="true")
            assert told(bench) == []
            await bench.control.rulebook.load(LOWER, caller=OWNER)
            for _ in range(3):
                await bench.call(info, "run_command", command="true")
            assert told(bench) == [(10.0, 512)]
            await bench.control.rulebook.load("version: 1\n", caller=OWNER)
            await asyncio.gather(*(bench.call(info, "run_command", command="true") for _ in range(3)))
            assert told(bench) == [(10.0, 512), (300.0, 2048)]

    asyncio.run(scenario())


def test_a_new_sandbox_and_a_restarted_server_tell_before_the_first_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, LOWER) as bench:
            info = await bench.sandbox()
            assert told(bench) == [(10.0, 512)]
            assert info.spec.limits.cpu_s == 10
            other = await bench.sandbox("bob")
            assert other.spec.limits.cpu_s == 20
            await bench.restart()
            before = len(told(bench))
            await bench.call(info, "run_command", command="true")
            assert told(bench)[before:] == [(10.0, 512)]

    asyncio.run(scenario())


def test_what_a_command_is_recorded_with_are_the_limits_in_force(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.control.rulebook.load(LOWER, caller=OWNER)
            await bench.call(info, "run_command", command="true")
            started = bench.entries(kinds=["call.started"])[-1]
            assert started.body["inputs"]["limits"]["cpu_ms"] == 10_000

    asyncio.run(scenario())
