"""What it costs to come back: the first command after a pause or an idle time, and creations that come one by one.

Each figure has its floor in the same run: the same command right after another one, or a bare bubblewrap at the same moments.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from typing import Any

from bench.workers.processes import bwrap_command, timed_spawn
from bench.workers.product import AGENT, connected, run_true
from bench.workers.wire import expect, timed
from coldframe.client.api import Coldframe
from coldframe.contract.errors import PauseKindUnsupported

UNCOUNTED = 2


async def first_after_idle(request: dict[str, Any]) -> dict[str, float]:
    """`true` after a pause, its resume included, and after so long without anything; in `true` one after the other."""
    after_pause: list[float] = []
    after_idle: list[float] = []
    at_once: list[float] = []
    with connected() as (_, client), client.sandboxes.create(agent_id=AGENT) as sandbox:
        run_true(sandbox)
        for number in range(UNCOUNTED + int(request["repetitions"])):
            with contextlib.suppress(PauseKindUnsupported):  # then there is no such figure
                sandbox.pause()
                with timed() as watch:
                    sandbox.resume()
                    run_true(sandbox)
                if number >= UNCOUNTED:
                    after_pause.append(watch.seconds)
            run_true(sandbox)
            if number >= UNCOUNTED:
                at_once.append(run_true(sandbox))
        for _ in range(int(request["idles"])):
            await asyncio.sleep(float(request["idle_s"]))
            after_idle.append(run_true(sandbox))
    floor = statistics.median(at_once)
    figures = {"idle": statistics.median(after_idle) / floor, "at once, ms": 1000 * floor}
    if after_pause:
        figures["pause"] = statistics.median(after_pause) / floor
    return figures


async def staggered(request: dict[str, Any]) -> dict[str, float]:
    """So many creations with `echo`, each begun *gap_s* after the one before whether that is done or not; bubblewrap too."""
    count, gap_s = int(request["count"]), float(request["gap_s"])
    with tempfile.TemporaryDirectory(prefix="cf-bench-") as folder:
        command = bwrap_command(folder, ["echo", "ok"])
        await asyncio.to_thread(timed_spawn, command, b"ok\n")
        bare = await _one_by_one(count, gap_s, lambda: asyncio.to_thread(timed_spawn, command, b"ok\n"))
    with connected() as (installation, _):
        async with Coldframe(installation.url, installation.token) as client:
            made = []

            async def create() -> float:
                with timed() as watch:
                    sandbox = await client.sandboxes.create(agent_id=AGENT)
                    done = await sandbox.run_command(["echo", "ok"])
                expect(done.exit_code == 0 and done.stdout == "ok\n", f"exit code {done.exit_code}")
                made.append(sandbox)
                return watch.seconds

            await create()
            try:
                ours = await _one_by_one(count, gap_s, create)
            finally:
                for sandbox in made:
                    await sandbox.terminate()
    return {
        "spread": _p99(ours) / statistics.median(ours),
        "median": 1000 * statistics.median(ours),
        "against bwrap": statistics.median(ours) / statistics.median(bare),
        "spread of bwrap": _p99(bare) / statistics.median(bare),
    }


async def _one_by_one(count: int, gap_s: float, begin: Any) -> list[float]:
    begun = time.monotonic()
    tasks = []
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number * gap_s - time.monotonic()))
        tasks.append(asyncio.ensure_future(begin()))
    return list(await asyncio.gather(*tasks))


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
