"""Code cells: `1 + 1` on a kernel that lives, over our SDK, and the first one of a new sandbox, with its making."""

import statistics
from typing import Any

from bench.workers.product import connected
from bench.workers.wire import expect, timed
from coldframe.client.sync import SyncSandbox

UNCOUNTED = 5


async def cells(request: dict[str, Any]) -> dict[str, float]:
    """In Python, and in bash for what of it is ours alone."""
    warm: list[float] = []
    shell: list[float] = []
    cold: list[float] = []
    first: list[float] = []
    with connected() as (_, client):
        with client.sandboxes.create(background=True) as sandbox:
            for _ in range(UNCOUNTED + int(request["repetitions"])):
                warm.append(_cell(sandbox, "1 + 1", "python"))
                shell.append(_cell(sandbox, "echo 2", "bash"))
        for _ in range(1 + int(request["sandboxes"])):
            with timed() as watch:
                sandbox = client.sandboxes.create(background=True)
                first.append(_cell(sandbox, "1 + 1", "python"))
            cold.append(watch.seconds)
            sandbox.terminate(discard=True)
    return {
        "warm": 1000 * statistics.median(warm[UNCOUNTED:]),
        "shell": 1000 * statistics.median(shell[UNCOUNTED:]),
        "cold": 1000 * statistics.median(cold[1:]),
        "first": 1000 * statistics.median(first[1:]),
    }


def _cell(sandbox: SyncSandbox, code: str, language: str) -> float:
    with timed() as watch:
        outcome = sandbox.run_code(code, language=language)
    expect(outcome.text == "2" or outcome.stdout == "2\n", str(outcome)[:200])
    return watch.seconds
