"""What `coldframe doctor` tries holds only by the limit it is about, and no slow machine makes it meet another one."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from coldframe.contract.command import (
    CommandEvent,
    CommandResult,
    CommandSpec,
    Ended,
    FileChanges,
    LimitHit,
    OutputChunk,
    StreamInfo,
)
from coldframe.contract.errors import GuestLost
from coldframe.contract.isolation import Trial
from coldframe.contract.ports import Box
from coldframe.host.machine import Machine
from coldframe.host.trials import LIMITED, LIMITS, WALLS, try_promises
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine

SLOWER = 10
"""Times that a machine may be slower than this one, before a trial meets the CPU limit of its box."""


class Watched:
    """Stands in for *box* and keeps the result of every command."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self.results: dict[str, CommandResult] = {}

    async def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        async for event in self._box.run(spec):
            if isinstance(event, Ended):
                self.results[spec.command_id.removeprefix("trial-")] = event.result
            yield event


class Scripted:
    """A box in which every command says *output* and is ended by the limit *kind*."""

    def __init__(self, *, output: bytes = b"", kind: str | None = None, error: Exception | None = None) -> None:
        self._output = output
        self._kind = kind
        self._error = error

    async def run(self, spec: CommandSpec) -> AsyncIterator[CommandEvent]:
        if self._error is not None:
            raise self._error
        now, nothing = datetime.now(UTC), StreamInfo(sha256="")
        limit = None if self._kind is None else LimitHit.model_validate({"kind": self._kind, "limit": 1, "unit": "s"})
        yield OutputChunk(seq=0, stream="stdout", data=self._output)
        yield Ended(
            result=CommandResult(
                command_id=spec.command_id,
                ended="exited" if limit is None else "limit",
                exit_code=0,
                limit=limit,
                started_at=now,
                ended_at=now,
                duration_ms=0,
                stdout=nothing,
                stderr=nothing,
                files=FileChanges(recorded=False),
                artifact_id=spec.command_id,
            )
        )


def tried(box: Scripted) -> dict[str, Trial]:
    return {one.name: one for one in asyncio.run(try_promises(box))}  # type: ignore[arg-type]


@needs_bubblewrap
@as_root_and_ordinary
def test_every_promise_holds_and_nothing_comes_near_the_cpu_time_of_its_box(who: str) -> None:
    async def steps(machine: Machine) -> None:
        watched = Watched(await new_box(machine, limits=LIMITS))
        trials = await try_promises(watched)  # type: ignore[arg-type]
        assert {one.name: one.seen for one in trials if not one.held} == {}
        assert watched.results.keys() == {one.name for one in (*WALLS, *LIMITED)}
        used = {name: result.cpu_s for name, result in watched.results.items() if name != "limit_cpu"}
        assert {name: cpu_s for name, cpu_s in used.items() if cpu_s * SLOWER > LIMITS.cpu_s} == {}

    on_a_machine(steps, who=who)


def test_a_trial_that_meets_another_limit_has_not_held() -> None:
    by_cpu = tried(Scripted(output=b"HELD\n", kind="cpu"))
    assert {one.name for one in LIMITED if by_cpu[one.name].held} == {"limit_cpu"}
    assert by_cpu["limit_memory"].seen == "ended by the limit `cpu`"
    assert tried(Scripted())["limit_memory"].seen == "ended by no limit"


def test_a_trial_holds_only_if_it_ran_to_its_end_without_a_breach() -> None:
    name = WALLS[0].name
    assert tried(Scripted(output=b"HELD\n"))[name].held
    assert (cut := tried(Scripted(output=b"")))[name].seen == "no answer; ended by no limit" and not cut[name].held
    breached = tried(Scripted(output=b"BREACH wrote /etc\nHELD\n"))[name]
    assert (breached.held, breached.seen) == (False, "wrote /etc")
    untried = tried(Scripted(error=GuestLost("the keeper ended")))[name]
    assert (untried.held, untried.seen) == (False, "could not be tried: the keeper ended")
