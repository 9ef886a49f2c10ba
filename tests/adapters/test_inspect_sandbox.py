"""The provider of Inspect AI passes Inspect's own checks of providers, and ends what it began."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe
from tests.adapters.packages import framework
from tests.installation import Installation

self_check = framework("inspect_ai.util._sandbox.self_check")
adapter = framework("coldframe.adapters.inspect_sandbox")
AT_ONCE = 6
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.once, pytest.mark.req("T4.83")]
NEEDS_ROOT = {"test_exec_as_user"}
"""Another user is made by them, which takes a sandbox with a system of its own."""


@pytest.fixture
def _found(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFRAME_URL", installation.url)
    monkeypatch.setenv("COLDFRAME_TOKEN", installation.token)


@pytest.mark.usefixtures("_found")
@pytest.mark.timeout(240)
def test_it_passes_the_checks_of_inspect() -> None:
    """Beside one another, since some wait for seconds."""
    names = sorted(set(self_check.__all__) - NEEDS_ROOT)
    assert len(names) > 30
    turn = asyncio.Semaphore(AT_ONCE)

    async def check(name: str) -> str | None:
        async with turn:
            environment = await adapter.ColdframeSandbox.begin()
            try:
                await getattr(self_check, name)(environment)
            except Exception as error:
                return f"{name}: {error!r}"
            finally:
                await environment.end()
        return None

    async def all_of_them() -> list[str | None]:
        return await asyncio.gather(*map(check, names))

    assert [one for one in asyncio.run(all_of_them()) if one is not None] == []


@pytest.mark.usefixtures("_found")
def test_an_evaluation_of_inspect_runs_in_it(tmp_path: Path) -> None:
    inspect, dataset, solvers = (framework(f"inspect_ai{name}") for name in ("", ".dataset", ".solver"))
    util = framework("inspect_ai.util")

    @solvers.solver  # type: ignore[untyped-decorator]
    def count() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            await util.sandbox().write_file("numbers", "1\n2\n3\n")
            result = await util.sandbox().exec(["wc", "-l", "numbers"])
            state.output.completion = result.stdout.split()[0]
            return state

        return solve

    task = inspect.Task(
        dataset=[dataset.Sample(input="how many lines?", target="3")],
        solver=count(),
        scorer=framework("inspect_ai.scorer").match(),
        sandbox="coldframe",
    )
    logs = inspect.eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none")
    assert logs[0].status == "success"
    assert logs[0].results.scores[0].metrics["accuracy"].value == 1.0


@pytest.mark.usefixtures("_found")
def test_samples_have_sandboxes_of_their_own_which_end_with_them(installation: Installation) -> None:
    with SyncColdframe(installation.url, installation.token) as client:
        look_at_samples(client)


def look_at_samples(client: SyncColdframe) -> None:
    async def samples() -> tuple[list[str], list[str]]:
        config = adapter.Configuration(limits={"memory_mib": 256})
        first = await adapter.ColdframeSandbox.sample_init("task", config, {})
        second = await adapter.ColdframeSandbox.sample_init("task", None, {})
        ids = [one["default"]._sandbox.id for one in (first, second)]
        running = [client.sandboxes.get(one).info.state.state for one in ids]
        for environments in (first, second):
            await adapter.ColdframeSandbox.sample_cleanup("task", config, environments, False)
        return ids, running

    ids, running = asyncio.run(samples())
    assert running == ["running", "running"]
    assert [client.sandboxes.get(one).info.state.state for one in ids] == ["terminated", "terminated"]
    assert client.sandboxes.get(ids[0]).info.spec.limits.memory_mib == 256
