"""The walls of sandboxes in use are measured again and again; what has fallen is recorded, told, and lets nothing start."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError, GuestLost
from coldframe.contract.isolation import SERVICES, IsolationReport, Property
from coldframe.control import probe
from coldframe.control.probe import Probe
from tests.control.bench import OWNER, Bench, opened, until
from tests.fakes.box import FakeBox, fake_report

STANDS = Property(name="seccomp", state="enforced", mechanism="filter", evidence="Seccomp: 2", required=True)
FELL = STANDS.model_copy(update={"state": "absent", "evidence": "Seccomp: 0"})


class Measured:
    """What each look finds, in turn; the last one for good. Counts the looks."""

    def __init__(self, *found: Property, processes: int = 1) -> None:
        self.found = list(found)
        self.processes = processes
        self.looks = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "Measured":
        async def report(_: FakeBox) -> IsolationReport:
            self.looks += 1
            wall = self.found.pop(0) if len(self.found) > 1 else self.found[0]
            return fake_report().model_copy(update={"properties": (wall,), "processes": self.processes})

        monkeypatch.setattr(FakeBox, "report", report)
        return self


async def told(bench: Bench, sandbox_id: str) -> str | None:
    """Code with which a call is refused, or None."""
    try:
        result = await bench.control.gate.call(OWNER, sandbox_id, "run_command", {"command": "true"})
    except ColdframeError as error:
        return error.code
    assert result.error is None
    return None


def test_a_sandbox_at_rest_is_let_alone_and_one_in_use_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            measured = Measured(STANDS).install(monkeypatch)
            await bench.control.probe.turn()
            assert measured.looks == 0
            assert await told(bench, info.sandbox_id) is None
            await bench.control.probe.turn()
            assert measured.looks == 1
            await bench.control.probe.turn()
            assert measured.looks == 1  # nothing was started since, and nothing runs
            measured.processes = 3
            assert await told(bench, info.sandbox_id) is None
            for looks in (2, 3, 4):
                await bench.control.probe.turn()
                assert measured.looks == looks
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await bench.control.probe.turn()
            assert measured.looks == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["probe", "report", "contract"])
def test_a_wall_that_fell_is_recorded_and_contracted_and_nothing_more_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control = bench.control.sandboxes
            info = await bench.sandbox()
            assert await told(bench, info.sandbox_id) is None
            before = await control.contract(OWNER, info.sandbox_id)
            Measured(FELL).install(monkeypatch)

            look: Callable[[], Awaitable[object]] = {
                "probe": bench.control.probe.turn,
                "report": lambda: control.report(OWNER, info.sandbox_id),
                "contract": lambda: control.contract(OWNER, info.sandbox_id),
            }[way]
            await look()
            changed = [one for one in bench.control.ledger.entries(limit=1000) if one.kind == "isolation.changed"]
            assert [one.body["degraded"] for one in changed] == [["seccomp"]]
            assert "seccomp" in control.get(OWNER, info.sandbox_id).degraded
            after = await control.contract(OWNER, info.sandbox_id)
            assert after.version > before.version
            line = next(one for one in after.isolation if one.id == "isolation.control.seccomp")
            assert line.value["enforced"] is False
            ran = len(bench.host.ran)
            assert await told(bench, info.sandbox_id) == "ISOLATION_UNAVAILABLE"
            assert len(bench.host.ran) == ran
            assert bench.kinds()[-1] == "call.refused"
            Measured(STANDS).install(monkeypatch)
            await bench.control.probe.turn()
            assert await told(bench, info.sandbox_id) is None

    asyncio.run(scenario())


def test_a_key_gives_the_answer_of_its_call_also_after_a_wall_fell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            first = await bench.call(info, "run_command", key="k", command="true")
            Measured(FELL).install(monkeypatch)
            await bench.control.probe.turn()
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).degraded != first.degraded
            assert await bench.call(info, "run_command", key="k", command="true") == first

    asyncio.run(scenario())


def test_a_sandbox_that_does_not_answer_holds_up_no_other_and_none_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            ids = [(await bench.sandbox(agent)).sandbox_id for agent in ("mute", "broken", "well")]
            for one in ids:
                assert await told(bench, one) is None
            looked: list[str] = []

            async def report(self: FakeBox) -> IsolationReport:
                looked.append(self.sandbox_id)
                if self.sandbox_id == ids[0]:
                    await asyncio.Event().wait()
                if self.sandbox_id == ids[1]:
                    raise GuestLost("as the test wants it")
                return fake_report().model_copy(update={"processes": 1})

            monkeypatch.setattr(FakeBox, "report", report)
            monkeypatch.setattr(probe, "MEASURE_TIMEOUT_S", 0.01)
            await bench.control.probe.turn()
            assert sorted(looked) == sorted(ids)
            looked.clear()
            await bench.control.probe.turn()
            assert sorted(looked) == sorted(ids[:2])

    asyncio.run(scenario())


def test_what_is_started_while_it_is_measured_counts_for_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            assert await told(bench, info.sandbox_id) is None
            looks = 0

            async def report(_: FakeBox) -> IsolationReport:
                nonlocal looks
                looks += 1
                if looks == 1:
                    assert await told(bench, info.sandbox_id) is None
                return fake_report().model_copy(update={"processes": 1})

            monkeypatch.setattr(FakeBox, "report", report)
            for seen in (1, 2, 2):
                await bench.control.probe.turn()
                assert looks == seen

    asyncio.run(scenario())


def test_what_a_second_look_does_not_find_is_no_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            Measured(FELL, STANDS).install(monkeypatch)
            await bench.control.sandboxes.report(OWNER, info.sandbox_id)
            assert "isolation.changed" not in bench.kinds()
            assert await told(bench, info.sandbox_id) is None

    asyncio.run(scenario())


def test_the_turns_go_on_after_one_that_failed_and_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            turns = 0

            async def turn(_: Probe) -> None:
                nonlocal turns
                turns += 1
                if turns == 1:
                    raise OSError("stands for any failure")

            monkeypatch.setattr(Probe, "turn", turn)
            hurried = Probe(bench.control.sandboxes, every_s=0.001)
            hurried.start()
            await until(lambda: turns >= 3)
            await hurried.close()
            seen = turns
            await asyncio.sleep(0)
            assert turns == seen

    asyncio.run(scenario())


@pytest.mark.req("T3.22")
def test_a_sandbox_that_goes_on_is_measured_before_anything_is_started_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.control.lifecycle.pause(OWNER, info.sandbox_id)
            measured = Measured(FELL).install(monkeypatch)
            resumed = await bench.control.lifecycle.resume(OWNER, info.sandbox_id)
            assert measured.looks > 0 and resumed.state.state == "running"
            assert resumed.degraded == ("seccomp",)
            assert await told(bench, info.sandbox_id) == "ISOLATION_UNAVAILABLE"

    asyncio.run(scenario())


@pytest.mark.req("T3.22")
def test_a_sandbox_that_cannot_be_measured_goes_on_all_the_same_and_is_measured_by_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.control.lifecycle.pause(OWNER, info.sandbox_id)

            async def fails(_: FakeBox) -> IsolationReport:
                raise GuestLost("as the test wants it")

            monkeypatch.setattr(FakeBox, "report", fails)
            resumed = await bench.control.lifecycle.resume(OWNER, info.sandbox_id)
            assert resumed.state.state == "running"
            measured = Measured(STANDS).install(monkeypatch)
            await bench.control.probe.turn()
            assert measured.looks == 1

    asyncio.run(scenario())


@pytest.mark.req("T3.22")
@pytest.mark.parametrize("service", SERVICES)
def test_without_what_serves_its_network_a_sandbox_goes_on_and_every_receipt_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            ended = Property(name=service, state="absent", mechanism="broker", evidence="it ended")
            served = ended.model_copy(update={"state": "enforced"})
            measured = Measured(ended).install(monkeypatch)
            first = await bench.call(info, "run_command", command="true")
            assert first.degraded == ()
            await bench.control.probe.turn()
            second = await bench.call(info, "run_command", command="true")
            assert second.degraded == (service,)
            receipt = bench.control.receipts.get(OWNER, second.receipt_id)
            assert tuple(receipt.degraded) == (service,)
            await bench.control.probe.turn()
            measured.found = [served]
            await bench.control.probe.turn()  # also of one at rest, until it is served again
            assert (await bench.call(info, "run_command", command="true")).degraded == ()

    asyncio.run(scenario())
