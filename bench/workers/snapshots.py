"""What snapshot, reset and fork of a sandbox cost over HTTP, by the number of files: row P2 as a caller has it.

The sandbox is stopped, since a reset of one that runs is a stop and a start as well. Each is done in turn, each snapshot
has something new, and is taken once upkeep has looked at the one before: its digests would take the processor else.
"""

import time
from pathlib import Path
from typing import Any

from bench.workers.layers import stopwatch
from bench.workers.product import AGENT, connected
from bench.workers.wire import expect
from coldframe.client.sync import SyncColdframe

FILES = """
import os
for number in range({count}):
    folder = f"folder-{{number // 200}}"
    number % 200 or os.mkdir(folder)
    with open(f"{{folder}}/{{number}}", "wb") as file:
        file.write(os.urandom(400))
"""
UPKEEP_S = 300.0


async def snapshots(request: dict[str, Any]) -> dict[str, float]:
    """Medians of each, in milliseconds, the first snapshot of a workspace too; and the growth from the fewest to the most."""
    sizes, repetitions = [int(size) for size in request["sizes"]], int(request["repetitions"])
    figures: dict[str, float] = {}
    with connected() as (installation, client):
        trees = Path(installation.data_dir, "layers", "trees")
        for size in sizes:
            for name, values in _steps(client, trees, f"{AGENT}-{size}", size, repetitions).items():
                figures[f"{name} at {size}"] = sorted(values)[len(values) // 2]
    for name in ("first", "snapshot", "reset", "fork", "live"):
        figures[name] = max(figures[f"{name} at {size}"] for size in sizes)
    figures["ratio"] = max(
        figures[f"{name} at {sizes[-1]}"] / figures[f"{name} at {sizes[0]}"] for name in ("snapshot", "reset", "fork")
    )
    return figures


def _steps(client: SyncColdframe, trees: Path, agent: str, files: int, repetitions: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ("first", "snapshot", "reset", "fork", "live")}
    sandbox = client.sandboxes.create(agent_id=agent)
    made = sandbox.run_command(["python3", "-c", FILES.format(count=files)])
    expect(made.exit_code == 0, "the files could not be made")
    sandbox.stop()
    with stopwatch(found["first"]):
        snapshot = sandbox.take_snapshot()
    _await_upkeep(trees)
    for number in range(repetitions):
        sandbox.start_again()
        sandbox.run_command(f"echo {number} > changed")
        with stopwatch(found["live"]):
            live = sandbox.take_snapshot()
        sandbox.stop()
        _await_upkeep(trees)
        with stopwatch(found["snapshot"]):
            taken = sandbox.take_snapshot()
        _await_upkeep(trees)
        with stopwatch(found["fork"]):
            fork = client.sandboxes.create(background=True, snapshot=snapshot.snapshot_id)
        fork.terminate()
        with stopwatch(found["reset"]):
            sandbox.reset(snapshot.snapshot_id, discard=True)
        for one in (live, taken):
            client.snapshots.remove(one.snapshot_id)
    sandbox.terminate()
    client.agents.delete(agent)
    return found


def _await_upkeep(trees: Path) -> None:
    """Until every layer is digested."""
    deadline = time.monotonic() + UPKEEP_S
    while any((tree / "sealed").exists() and not (tree / "manifest").exists() for tree in trees.iterdir()):
        expect(time.monotonic() < deadline, "upkeep does not come to an end")
        time.sleep(0.05)
