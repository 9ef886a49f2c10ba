"""Failures that people reported of other agent sandboxes do not happen here: each case on a real sandbox, through the SDK.

`pytest tests/cases --cases FILE` runs another file of the same form as well.
"""

import asyncio
import itertools
import re
from typing import Any

import pytest

from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.contract.errors import from_wire
from coldframe.contract.sandbox import SandboxSpec
from tests.cases import (  # noqa: F401  their checks register themselves
    interpreter_checks,
    lifecycle_checks,
    network_checks,
    package_checks,
    policy_checks,
    preview_checks,
)
from tests.cases.checks import CHECKS, NotThereYet
from tests.cases.runner import Bench, Case, cannot_run, load_cases, run_case
from tests.conftest import OWN_CASES
from tests.installation import Installation
from tests.reachable import Reachable

_numbers = itertools.count()


class SdkLab:
    """Sandboxes of one case, each on an agent of its own unless named. All end with the case."""

    def __init__(self, client: Coldframe, name: str, installation: Installation) -> None:
        self.installation = installation
        self._client = client
        self._name = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40]
        self._sandboxes: dict[int, Sandbox] = {}
        self._agents: set[str] = set()

    async def bench(self, *, agent_id: str | None = None, window: bool = False, **spec: Any) -> Bench:
        agent_id = self.agent(agent_id or str(next(_numbers)))
        # Machines without control groups keep some limits by best effort; the cases are not about that.
        chosen = SandboxSpec.model_validate({"agent_id": agent_id, "on_missing": "degrade", **spec})
        sandbox = await self._client.sandboxes.create(spec=chosen)

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            result = await sandbox.call(tool, arguments)
            if result.error is not None:
                raise from_wire(result.error)
            return result.value

        bench = Bench(call, window=window)
        self._sandboxes[id(bench)] = sandbox
        return bench

    def agent(self, name: str) -> str:
        agent_id = f"case-{self._name}-{name}"
        self._agents.add(agent_id)
        return agent_id

    def sandbox_of(self, bench: Bench) -> Sandbox:
        return self._sandboxes[id(bench)]

    async def adopt(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._client.sandboxes.get(sandbox_id)
        self._sandboxes[id(sandbox)] = sandbox
        return sandbox

    async def upload(self, bench: Bench, path: str, content: bytes) -> None:
        await self._sandboxes[id(bench)].upload(path, content)

    async def limits(self, bench: Bench) -> dict[str, str]:
        report = await self._sandboxes[id(bench)].report()
        return {limit.kind: limit.strength for limit in report.limits}

    async def ledger(self, bench: Bench) -> list[dict[str, Any]]:
        entries = await self._client.ledger.entries(sandbox_id=self._sandboxes[id(bench)].id, limit=1000)
        return [entry.model_dump(mode="json") for entry in entries]

    async def end(self, bench: Bench) -> None:
        await self._sandboxes[id(bench)].terminate()

    async def close(self) -> None:
        for sandbox in self._sandboxes.values():
            await sandbox.terminate()
        for agent_id in self._agents:
            await self._client.agents.delete(agent_id)


@pytest.mark.timeout(240)
def test_a_field_failure_does_not_happen_here(field_failure: Case, request: pytest.FixtureRequest) -> None:
    reason = cannot_run(field_failure)
    if reason is not None:
        pytest.skip(reason)
    own = CHECKS.get(field_failure["id"])
    if field_failure["check"] is None and own is None:
        pytest.skip("its check is for a person: no function is written for it yet")

    async def whole_case(installation: Installation) -> None:
        async with Coldframe(installation.url, installation.token) as client:
            lab = SdkLab(client, field_failure["id"], installation)
            try:
                if own is not None and field_failure["check"] is None:
                    await own(lab)
                else:
                    bench = await lab.bench(window="truncated" in field_failure["check"])
                    held = await run_case(field_failure, bench)
                    assert held, f"{field_failure['right']}\nchecked: {field_failure['check']}\nseen: {bench.views}"
            finally:
                await lab.close()

    try:
        if own is not None and own.__module__ == network_checks.__name__:
            room: Reachable = request.getfixturevalue("room")
            room.run(lambda installation: asyncio.run(whole_case(installation)))
        else:
            asyncio.run(whole_case(request.getfixturevalue("installation")))
    except NotThereYet as reason:
        pytest.skip(f"{field_failure['id']} {field_failure['title']}: {reason}")


def test_every_case_of_the_project_can_be_judged() -> None:
    cases = load_cases(str(OWN_CASES))
    assert len({case["id"] for case in cases}) == len(cases) == 84
    assert [case["id"] for case in cases if cannot_run(case)] == []
    assert {case["id"] for case in cases if case["check"] is None} == CHECKS.keys()
