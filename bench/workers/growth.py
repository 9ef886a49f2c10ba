"""How figures grow with what there is: sandboxes that run, sandboxes that ever were, files of a workspace.

At each size the machine's own floor is taken beside ours, so that a slower machine is no growth. Figures are named
`what at size`, of which `--curves` makes its tables.
"""

import asyncio
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.workers.processes import bwrap_command, timed_spawn
from bench.workers.product import AGENT, connected, run_true
from bench.workers.wire import KIB, expect, timed
from coldframe.client.api import Coldframe
from coldframe.client.sync import SyncColdframe, SyncSandbox

AT_ONCE = 4
PAGE = 50
RUNNING = 60
FLAT = """
import os
os.makedirs("flat", exist_ok=True)
for number in range({count}):
    open(f"flat/{{number:07d}}", "wb").close()
"""


def milliseconds(values: list[float]) -> float:
    return 1000 * statistics.median(values)


def with_ratios(figures: dict[str, float], sizes: list[int], *names: str) -> dict[str, float]:
    """With how many times the figure of the smallest size that of the largest is."""
    for name in names:
        first, last = figures[f"{name} at {sizes[0]}"], figures[f"{name} at {sizes[-1]}"]
        figures[f"{name} ratio"] = last / first
    return figures


async def live(request: dict[str, Any]) -> dict[str, float]:
    """`true`, and creation with `echo`, with so many sandboxes beside it; plain and bubblewrap at the same time."""
    sizes, repetitions = [int(size) for size in request["sizes"]], int(request["repetitions"])
    figures: dict[str, float] = {}
    with connected() as (installation, client), tempfile.TemporaryDirectory(prefix="cf-bench-") as folder:
        bare = bwrap_command(folder, ["echo", "ok"])
        async with Coldframe(installation.url, installation.token) as concurrent:
            made = [await concurrent.sandboxes.create(agent_id=AGENT)]
            sandbox = client.sandboxes.get(made[0].id)
            run_true(sandbox)
            for size in sizes:
                await _until(size, made, concurrent)
                taken = in_turn(
                    repetitions,
                    {
                        "exec": lambda: run_true(sandbox),
                        "create": lambda: _create(client),
                        "plain": lambda: timed_spawn(["true"], b""),
                        "bwrap": lambda: timed_spawn(bare, b"ok\n"),
                    },
                )
                figures |= {f"{name} at {size}": value for name, value in taken.items()}
            for one in made:
                await one.terminate()
    return with_ratios(figures, sizes, "exec", "create", "plain", "bwrap")


async def _until(size: int, made: list[Any], client: Coldframe) -> None:
    async def some(count: int) -> None:
        for _ in range(count):
            one = await client.sandboxes.create(agent_id=AGENT)
            expect((await one.run_command(["true"])).exit_code == 0, "`true` failed")
            made.append(one)

    missing = max(0, size - len(made))
    await asyncio.gather(*(some(missing // AT_ONCE + (number < missing % AT_ONCE)) for number in range(AT_ONCE)))


def _create(client: SyncColdframe) -> float:
    with timed() as watch:
        made = client.sandboxes.create(agent_id=AGENT)
        done = made.run_command(["echo", "ok"])
    made.terminate()
    expect(done.exit_code == 0 and done.stdout == "ok\n", f"exit code {done.exit_code}")
    return watch.seconds


def in_turn(repetitions: int, acts: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Medians in milliseconds; all in turn, the first of each not counted."""
    found: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(1 + repetitions):
        for name, act in acts.items():
            seconds = act()
            if number:
                found[name].append(seconds)
    return {name: milliseconds(values) for name, values in found.items()}


async def lists(request: dict[str, Any]) -> dict[str, float]:
    """The first page of all sandboxes, and of those that run, which are the first sixty that there were; all others ended.

    Control over a host without walls, in this process: ten thousand boxes do not come and go in reasonable time. What HTTP
    adds is the same for every page. The floor reads fifty rows by their keys.
    """
    from coldframe.contract.sandbox import SandboxSpec
    from tests.control.bench import OWNER, opened

    sizes, repetitions = [int(size) for size in request["sizes"]], int(request["repetitions"])
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cf-bench-") as folder:
        async with opened(Path(folder)) as bench:
            create, ended = bench.control.creation.create, 0
            spec = SandboxSpec(background=True)
            for size in sizes:
                for number in range(ended, size):
                    info = await create(OWNER, spec)
                    if number >= RUNNING:
                        await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
                ended = size

                def page(**which: Any) -> float:
                    with timed() as watch:
                        found = bench.control.roster.list(OWNER, limit=PAGE, **which)
                        told = [one.model_dump_json() for one in found]
                    expect(0 < len(told) <= PAGE, f"{len(told)} sandboxes")
                    return watch.seconds

                acts = {"page": page, "running": lambda: page(states=("running",)), "fifty rows": _rows(folder)}
                taken = in_turn(repetitions, acts)
                figures |= {f"{name} at {size}": value for name, value in taken.items()}
    figures["page"] = figures[f"page at {sizes[-1]}"]
    return with_ratios(figures, sizes, "page", "running")


def _rows(folder: str) -> Callable[[], float]:
    path = os.path.join(folder, "control", "coldframe.db")

    def read() -> float:
        database = sqlite3.connect(path)
        try:
            keys = database.execute("SELECT sandbox_id FROM sandboxes LIMIT ?", (PAGE,)).fetchall()
            with timed() as watch:
                for key in keys:
                    database.execute("SELECT spec, state FROM sandboxes WHERE sandbox_id = ?", key).fetchone()
        finally:
            database.close()
        return watch.seconds

    return read


async def files(request: dict[str, Any]) -> dict[str, float]:
    """Writing and reading 1 KB, and the first fifty names of a directory, with so many files in it; plain files beside."""
    sizes, repetitions = [int(size) for size in request["sizes"]], int(request["repetitions"])
    figures: dict[str, float] = {}
    with connected() as (_, client), tempfile.TemporaryDirectory(prefix="cf-bench-") as folder:
        for size in sizes:
            with client.sandboxes.create(agent_id=f"{AGENT}-{size}") as sandbox:
                made = sandbox.run_command(["python3", "-c", FLAT.format(count=size)])
                expect(made.exit_code == 0, "the files could not be made")
                taken = in_turn(repetitions, _file_acts(sandbox, folder))
                figures |= {f"{name} at {size}": value for name, value in taken.items()}
            client.agents.delete(f"{AGENT}-{size}")
    return with_ratios(figures, sizes, "write", "read", "list", "plain write")


def _file_acts(sandbox: SyncSandbox, folder: str) -> dict[str, Callable[[], float]]:
    def write() -> float:
        with timed() as watch:
            sandbox.write_file("flat/kib", KIB)
        return watch.seconds

    def read() -> float:
        with timed() as watch:
            data = sandbox.read_file("flat/kib").data
        expect(data == KIB, f"{len(data)} bytes")
        return watch.seconds

    def listing() -> float:
        with timed() as watch:
            found = sandbox.list_directory("flat", max_entries=PAGE)
        expect(len(found.entries) == PAGE, f"{len(found.entries)} entries")
        return watch.seconds

    def plain_write() -> float:
        path = os.path.join(folder, "kib")
        with timed() as watch:
            with open(path + ".new", "wb") as file:
                file.write(KIB)
            os.replace(path + ".new", path)
        return watch.seconds

    return {"write": write, "read": read, "list": listing, "plain write": plain_write}
