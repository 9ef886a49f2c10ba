"""First figures: Coldframe beside plain `subprocess.run` and a fresh bwrap, interleaved in one run. Prints Markdown.

    .venv/bin/python bench/first_figures.py [--quick]

One machine, one run: good for ratios, not for absolute promises. Numbers go to docs/benchmarks.md by hand, with the
commit they were taken at. Every column does the same work and gets the whole result back into Python.
"""

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.contract.command import OutputChunk
from tests.installation import Installation

FILE_BYTES = 50 * 1024 * 1024
OUTPUT_BYTES = 100_000_000
COLUMNS = ("coldframe", "subprocess", "fresh bwrap")
Action = Callable[[], Awaitable[None]]


def bwrap(folder: str) -> list[str]:
    """The least that gives a comparable view: own namespaces, read-only system, one writable folder."""
    links = [
        part
        for name in ("bin", "lib", "lib64", "sbin")
        if os.path.islink(f"/{name}")
        for part in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", *links),
        *(
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--bind",
            folder,
            "/home/user",
            "--chdir",
            "/home/user",
        ),
        *("--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin"),
    ]


def run_plain(command: list[str], *, expect_bytes: int = 0, **options: object) -> None:
    done = subprocess.run(command, capture_output=True, check=True, **options)  # type: ignore[call-overload]
    assert len(done.stdout) == expect_bytes


def blocking(function: Callable[[], None]) -> Action:
    async def act() -> None:
        function()

    return act


async def measure(actions: dict[str, Action], rounds: int) -> dict[str, list[float]]:
    """Milliseconds per column, one after the other in each round so that disturbances hit all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        await action()
    for _ in range(rounds):
        for name, action in actions.items():
            begun = time.perf_counter()
            await action()
            times[name].append(1000 * (time.perf_counter() - begun))
    return times


def p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def row(what: str, times: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(values) for name, values in times.items()}
    cells = [f"{medians[name]:.2f} / {p99(times[name]):.2f}" for name in COLUMNS]
    ratios = [f"{medians['coldframe'] / medians[name]:.2f}" for name in COLUMNS[1:]]
    return f"| {what} | {len(times['coldframe'])} | {' | '.join(cells)} | {' | '.join(ratios)} |"


async def creation(client: Coldframe, folder: str, rounds: int) -> str:
    async def create() -> None:
        sandbox = await client.sandboxes.create("bench-create")
        done = await sandbox.run_command(["true"])
        assert done.exit_code == 0
        made.append(sandbox)

    made: list[Sandbox] = []
    actions = {
        "coldframe": create,
        "subprocess": blocking(lambda: run_plain(["true"])),
        "fresh bwrap": blocking(lambda: run_plain([*bwrap(folder), "true"])),
    }
    times = await measure(actions, rounds)
    for sandbox in made:
        await sandbox.terminate()
    return row("create to first result", times)


async def execution(sandbox: Sandbox, folder: str, rounds: int) -> str:
    async def run() -> None:
        assert (await sandbox.run_command(["true"])).exit_code == 0

    actions = {
        "coldframe": run,
        "subprocess": blocking(lambda: run_plain(["true"])),
        "fresh bwrap": blocking(lambda: run_plain([*bwrap(folder), "true"])),
    }
    return row("`true`, whole result", await measure(actions, rounds))


async def files(sandbox: Sandbox, folder: str, rounds: int) -> list[str]:
    content = os.urandom(FILE_BYTES)
    plain = os.path.join(folder, "plain.bin")

    async def upload() -> None:
        await sandbox.upload("big.bin", content)

    async def download() -> None:
        size = 0
        async for part in sandbox.download("big.bin"):
            size += len(part)
        assert size == FILE_BYTES

    def write() -> None:
        with open(plain + ".new", "wb") as file:
            file.write(content)
        os.replace(plain + ".new", plain)

    def read() -> None:
        with open(plain, "rb") as file:
            assert len(file.read()) == FILE_BYTES

    writing = {
        "coldframe": upload,
        "subprocess": blocking(write),
        "fresh bwrap": blocking(lambda: run_plain([*bwrap(folder), "sh", "-c", "cat > in.bin"], input=content)),
    }
    reading = {
        "coldframe": download,
        "subprocess": blocking(read),
        "fresh bwrap": blocking(lambda: run_plain([*bwrap(folder), "cat", "in.bin"], expect_bytes=FILE_BYTES)),
    }
    return [
        row("write a file of 50 MiB (subprocess: plain file)", await measure(writing, rounds)),
        row("read a file of 50 MiB (subprocess: plain file)", await measure(reading, rounds)),
    ]


async def output(sandbox: Sandbox, folder: str, rounds: int) -> str:
    command = ["head", "-c", str(OUTPUT_BYTES), "/dev/zero"]

    async def stream() -> None:
        size = 0
        async for event in sandbox.run(command):
            if isinstance(event, OutputChunk):
                size += len(event.data)
        assert size == OUTPUT_BYTES

    actions = {
        "coldframe": stream,
        "subprocess": blocking(lambda: run_plain(command, expect_bytes=OUTPUT_BYTES)),
        "fresh bwrap": blocking(lambda: run_plain([*bwrap(folder), *command], expect_bytes=OUTPUT_BYTES)),
    }
    return row("100 MB of output", await measure(actions, rounds))


async def all_figures(installation: Installation, folder: str, *, quick: bool) -> list[str]:
    few, many = (3, 20) if quick else (10, 300)
    async with Coldframe(installation.url, installation.token) as client:
        rows = [await creation(client, folder, 5 if quick else 30)]
        sandbox = await client.sandboxes.create("bench")
        rows.append(await execution(sandbox, folder, many))
        rows += await files(sandbox, folder, few)
        rows.append(await output(sandbox, folder, few))
        await sandbox.terminate()
        return rows


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    chosen = options.parse_args()
    folder = tempfile.mkdtemp(prefix="cf-bench-")
    installation = Installation()
    try:
        installation.start()
        rows = asyncio.run(all_figures(installation, folder, quick=chosen.quick))
    finally:
        left = installation.close()
        shutil.rmtree(folder, ignore_errors=True)
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    print(
        f"Python {platform.python_version()}, Linux {platform.release().split('-')[0]}, {os.cpu_count()} cores, as {user}. Median / p99 in ms.\n"
    )
    print(
        "| what | n | coldframe | subprocess | fresh bwrap | × subprocess | × bwrap |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    print("\n".join(rows))
    if left:
        print("left behind:\n" + "\n".join(left), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
