"""Held here: what is asked often costs the same whatever has been before. Steps of the database are counted, not time."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.contract.sandbox import SandboxSpec
from tests.control.bench import AGENT, OWNER, Bench, opened

BEFORE, AFTER = 20, 120
"""Sandboxes that have ended."""
LIVING = 3
PAGE = 5


def steps(bench: Bench, act: Callable[[], object]) -> int:
    """Instructions of the database's own machine that *act* takes."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    raw = bench.control.store.raw
    raw.set_progress_handler(count, 1)
    try:
        act()
    finally:
        raw.set_progress_handler(None, 1)
    return taken


@pytest.mark.req("T4.64")
def test_lists_and_what_looks_for_the_living_cost_the_same_however_many_have_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control = bench.control
            living = [await control.creation.create(OWNER, SandboxSpec(agent_id="ada")) for _ in range(LIVING)]
            acts: dict[str, Callable[[], object]] = {
                "first page": lambda: control.roster.list(OWNER, limit=PAGE),
                "first page of an agent": lambda: control.roster.list(AGENT, limit=PAGE),
                "those that run": lambda: control.roster.list(OWNER, states=("running",)),
                "the living": control.sandboxes.living,
                "last entry of one": lambda: control.ledger.last(
                    living[0].sandbox_id, "sandbox.created", "contract.issued", before=1 << 62
                ),
                "entries of one": lambda: control.ledger.entries(
                    kinds=("sandbox.created", "sandbox.started"), sandbox_id=living[0].sandbox_id
                ),
            }
            counted = []
            ended = 0
            for size in (BEFORE, AFTER):
                while ended < size:
                    info = await control.creation.create(OWNER, SandboxSpec(agent_id=("ada", "bob")[ended % 2]))
                    await control.lifecycle.terminate(OWNER, info.sandbox_id)
                    ended += 1
                assert len(control.roster.list(OWNER, limit=PAGE)) == PAGE
                assert {one.sandbox_id for one in control.sandboxes.living()} == {one.sandbox_id for one in living}
                counted.append({name: steps(bench, act) for name, act in acts.items()})
            few, many = counted
            grown = {name: (few[name], many[name]) for name in acts if many[name] > 1.3 * few[name] + 20}
            assert not grown
            assert min(few.values()) > 0

    asyncio.run(scenario())


@pytest.mark.req("T4.64")
def test_what_a_sandbox_has_used_is_added_up_from_where_it_was_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, used_by = await bench.sandbox("ada"), bench.control.timers.used
            for size in (BEFORE, AFTER):
                for _ in range(size):
                    await bench.call(info, "write_file", path="a", content="x")
                whole = steps(bench, lambda: used_by(info))
            used = used_by(info)
            assert used["calls"] == BEFORE + AFTER and used["call_ms"] >= 0
            again = steps(bench, lambda: used_by(info))
            assert 0 < again < whole / 5
            await bench.call(info, "write_file", path="a", content="x")
            assert used_by(info)["calls"] == used["calls"] + 1

    asyncio.run(scenario())
