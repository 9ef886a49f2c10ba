"""Whom steps of a template build reached is in the ledger, once, however often server and host end in between."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import HostUnreachable
from coldframe.contract.network import DeniedSum, NetworkRecord
from coldframe.contract.policy import Outcome
from tests.control.bench import OWNER, Bench, opened, until
from tests.control.test_templates import begin, recipe, run
from tests.fakes.network import contact

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(seq: int, event: Any, outcome: Outcome) -> NetworkRecord:
    return NetworkRecord(seq=seq, event=event, at=NOW, contact=contact(f"c{seq}", outcome=outcome))


def reach(bench: Bench, build_id: str, step: int, *records: NetworkRecord) -> str:
    """A box of a step has left these with the host."""
    name = f"build-{build_id}-{step}-00ff"
    bench.host.records[name] = list(records)

    async def reached() -> tuple[str, ...]:
        bench.host.templates._check_reachable()
        return tuple(one for one in bench.host.records if one.startswith("build-"))

    bench.host.templates.reached = reached  # type: ignore[method-assign]
    return name


def told(bench: Bench, build_id: str) -> list[tuple[str, int, int]]:
    entries = bench.control.ledger.entries(subject=build_id)
    return [
        (one.kind, one.body["step"], one.body["record"])
        for one in entries
        if one.kind.startswith(("template.contact", "template.denied", "template.lookup", "template.missing"))
    ]


@pytest.mark.req("T4.71")
def test_what_a_step_reached_is_on_record_when_the_build_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            begun = await begin(bench, recipe(run("wait"), run("fail")))
            other = f"bld_{'0' * 20}"
            name = reach(
                bench,
                begun.build_id,
                1,
                record(1, "begun", Outcome.ALLOW),
                record(2, "looked-up", Outcome.ALLOW),
                NetworkRecord(seq=3, event="torn", at=NOW, contact=None),
                record(5, "denied", Outcome.DENY),
            )
            reach(bench, other, 2, record(1, "denied", Outcome.DENY))
            bench.host.records["sbx_0"] = [record(1, "denied", Outcome.DENY)]
            bench.host.templates.go.set()
            ended = await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
            assert ended.state == "failed"
            assert told(bench, begun.build_id) == [
                *(("template.contact", 1, 1), ("template.lookup", 1, 2), ("template.missing", 1, 3)),
                *(("template.missing", 1, 4), ("template.denied", 1, 5)),
            ]
            (entry,) = bench.control.ledger.entries(subject=begun.build_id, kinds=("template.denied",))
            assert (entry.body["box"], entry.body["contact_id"], entry.body["outcome"]) == (name, "c5", "deny")
            assert name in bench.host.forgotten and "sbx_0" in bench.host.records
            assert told(bench, other) in ([], [("template.denied", 2, 1)]), "under its own build, by the start"

    asyncio.run(scenario())


@pytest.mark.req("T4.71")
def test_what_was_not_taken_over_is_by_the_next_start_and_nothing_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            begun = await begin(bench, recipe(run("wait")))
            name = reach(bench, begun.build_id, 1, record(1, "begun", Outcome.ALLOW), record(2, "ended", Outcome.ALLOW))

            async def vanish(sandbox_id: str) -> None:
                raise HostUnreachable("it ended before it could forget")

            forget, bench.host.forget_network_records = bench.host.forget_network_records, vanish  # type: ignore[method-assign]
            bench.host.templates.go.set()
            await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
            both = [("template.contact", 1, 1), ("template.contact", 1, 2)]
            assert told(bench, begun.build_id) == both
            bench.host.records[name].append(record(3, "denied", Outcome.DENY))
            bench.host.forget_network_records = forget  # type: ignore[method-assign]
            await bench.restart()
            await until(lambda: name in bench.host.forgotten)
            assert told(bench, begun.build_id) == [*both, ("template.denied", 1, 3)]

    asyncio.run(scenario())


@pytest.mark.req("T4.71")
def test_many_records_and_sums_are_taken_over_once_as_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            bench.host.templates.add_setup()
            begun = await begin(bench, recipe(run("wait")))
            many = [record(seq, "denied", Outcome.DENY) for seq in range(1, 251)]
            name = reach(bench, begun.build_id, 1, *many)
            bench.host.sums[name] = (
                DeniedSum(protocol="tcp", wanted="db.test", port=5432, rule_id="r", times=3, first_at=NOW, last_at=NOW),
            )

            async def vanish(sandbox_id: str) -> None:
                raise HostUnreachable("it ended before it could forget")

            forget, bench.host.forget_network_records = bench.host.forget_network_records, vanish  # type: ignore[method-assign]
            bench.host.templates.go.set()
            await bench.control.template_builds.get(OWNER, begun.build_id, wait_s=30)
            bench.host.forget_network_records = forget  # type: ignore[method-assign]
            await bench.restart()
            await until(lambda: name in bench.host.forgotten)
            kinds = ("template.denied", "template.denied_sums")
            entries = bench.control.ledger.entries(subject=begun.build_id, kinds=kinds, limit=1000)
            assert [one.kind for one in entries] == ["template.denied"] * 250 + ["template.denied_sums"]

    asyncio.run(scenario())
