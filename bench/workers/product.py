"""Coldframe itself: a real installation, always through the public SDK over HTTP on loopback, nothing switched off.

The blocking SDK where one thing is done after the other, the asynchronous one where many are under way.
"""

import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.workers.processes import TREE_MATCHES, TREE_SCRIPT
from bench.workers.wire import (
    BULK,
    BULK_BYTES,
    KIB,
    PYTHON_COMMAND,
    RATE_SANDBOXES,
    STREAM_BYTES,
    STREAM_COMMAND,
    Action,
    Wrong,
    at_once,
    expect,
    plain,
    timed,
)
from coldframe.client.api import Coldframe
from coldframe.client.sandbox import Sandbox
from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.command import OutputChunk
from tests.installation import Installation, wait_until

AGENT = "bench"
GONE_TIMEOUT_S = 20.0


@contextlib.contextmanager
def installed(**environment: str) -> Iterator[Installation]:
    """One that runs, with nothing left of it afterwards. Each box is built when it is asked for, unless *environment* says otherwise."""
    installation = Installation(**environment)
    try:
        yield installation.start()
    finally:
        end(installation)


@contextlib.contextmanager
def connected(**environment: str) -> Iterator[tuple[Installation, SyncColdframe]]:
    with installed(**environment) as installation, SyncColdframe(installation.url, installation.token) as client:
        yield installation, client


@contextlib.asynccontextmanager
async def open_product(**_: str) -> AsyncIterator[dict[str, Action]]:
    with connected() as (installation, client), contextlib.ExitStack() as opened:
        async with Coldframe(installation.url, installation.token) as concurrent:
            with client.sandboxes.create(agent_id=AGENT) as sandbox:
                many = Many(concurrent)
                yield {
                    **one_by_one(client, sandbox, installation.data_dir),
                    "exec_true_async": many.exec_true,
                    "rate": many.rate,
                    "burst": many.burst,
                    "tti_ready": plain(Ready(opened).create_and_echo),
                }
                await many.close()


def end(installation: Installation) -> None:
    """Close it, in a thread since closing runs an event loop of its own. Raises Wrong if something is left."""
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(installation.close).result()
    expect(not left, "left behind: " + "; ".join(left))


class Ready:
    """Another installation, in which boxes stand ready. It starts when it is first asked for."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        self._opened = opened
        self._client: SyncColdframe | None = None

    def create_and_echo(self) -> float:
        """With one that does, which is waited for before the time runs."""
        if self._client is None:
            _, self._client = self._opened.enter_context(connected(COLDFRAME_READY_BOXES="2"))
            for _ in range(3):  # boxes like the last sandboxes are what stands ready
                _create_and_echo(self._client)
        for _ in range(10):
            wait_until(lambda: self._client and self._client.pool().ready == 2, "boxes stand ready", timeout_s=60)
            used = self._client.pool().used
            taken = _create_and_echo(self._client)
            if self._client.pool().used == used + 1:
                return taken
        raise Wrong("no box that stood ready was used")


def _create_and_echo(client: SyncColdframe) -> float:
    with timed() as watch:
        made = client.sandboxes.create(agent_id=AGENT)
        done = made.run_command(["echo", "ok"])
    made.terminate()
    expect(done.exit_code == 0 and done.stdout == "ok\n", f"exit code {done.exit_code}")
    return watch.seconds


def run_true(sandbox: SyncSandbox) -> float:
    with timed() as watch:
        done = sandbox.run_command(["true"])
    expect(done.exit_code == 0 and done.stdout == "" and done.stderr == "", f"exit code {done.exit_code}")
    return watch.seconds


def session_true(sandbox: SyncSandbox) -> float:
    """In a session that a command before has moved: where it stands shows that it is the same one."""
    if "bench" not in {shell.name for shell in sandbox.shells()}:
        sandbox.run_command("mkdir -p moved && cd moved && export BENCH=kept", shell_session="bench")
    with timed() as watch:
        done = sandbox.run_command("true", shell_session="bench")
    told = done.shell_session
    expect(done.exit_code == 0 and done.stdout == "" and told is not None and told.kept, f"exit code {done.exit_code}")
    return watch.seconds


def one_by_one(client: SyncColdframe, sandbox: SyncSandbox, data_dir: str) -> dict[str, Action]:
    def python() -> float:
        with timed() as watch:
            done = sandbox.run_command(PYTHON_COMMAND)
        expect(done.exit_code == 0 and done.stdout == "1\n", f"exit code {done.exit_code}")
        return watch.seconds

    def write_small() -> float:
        with timed() as watch:
            sandbox.write_file("kib", KIB)
        return watch.seconds

    def read_small() -> float:
        with timed() as watch:
            data = sandbox.read_file("kib").data
        expect(data == KIB, f"{len(data)} bytes")
        return watch.seconds

    def write_bulk() -> float:
        with timed() as watch:
            sandbox.upload("bulk", BULK)
        return watch.seconds

    def read_bulk() -> float:
        with timed() as watch:
            size = sum(len(part) for part in sandbox.download("bulk"))
        expect(size == BULK_BYTES, f"{size} bytes")
        return watch.seconds

    def stream() -> float:
        with timed() as watch:
            size = chunks = 0
            for event in sandbox.run(STREAM_COMMAND):
                if isinstance(event, OutputChunk):
                    expect(event.seq == chunks, f"chunk {event.seq} in place of {chunks}")
                    chunks += 1
                    size += len(event.data)
        expect(size == STREAM_BYTES, f"{size} bytes")
        return watch.seconds

    def destroy(*, until_gone: bool) -> float:
        made = client.sandboxes.create(agent_id=AGENT)
        expect(made.run_command(["true"]).exit_code == 0, "`true` failed")
        traces = traces_of(data_dir, made.id)
        deadline = time.perf_counter() + GONE_TIMEOUT_S
        with timed() as watch:
            made.terminate()
            while until_gone and (left := [trace for trace in traces if os.path.exists(trace)]):
                expect(time.perf_counter() < deadline, f"left: {left}")
        return watch.seconds

    async def search(request: dict[str, Any]) -> float:
        files = int(request["files"])
        if f"tree{files}" not in {entry.path for entry in sandbox.list_directory().entries}:
            made = sandbox.run_command(["python3", "-c", TREE_SCRIPT, str(files), str(TREE_MATCHES)])
            expect(made.exit_code == 0, f"exit code {made.exit_code}")
        with timed() as watch:
            found = sandbox.search_files("needle", f"tree{files}", regex=False)
        expect(len(found.matches) == TREE_MATCHES and found.complete, f"{len(found.matches)} matches")
        return watch.seconds

    return {
        "exec_true": plain(lambda: run_true(sandbox)),
        "exec_python": plain(python),
        "session_true": plain(lambda: session_true(sandbox)),
        "tti": plain(lambda: _create_and_echo(client)),
        "write_1k": plain(write_small),
        "read_1k": plain(read_small),
        "write_50m": plain(write_bulk),
        "read_50m": plain(read_bulk),
        "stream": plain(stream),
        "destroy": plain(lambda: destroy(until_gone=False)),
        "destroy_gone": plain(lambda: destroy(until_gone=True)),
        "search": search,
    }


def traces_of(data_dir: str, sandbox_id: str) -> list[str]:
    """Paths that exist while anything of a running sandbox does: keeper, pid 1 of the box, control groups."""
    with open(os.path.join(data_dir, "boxes", sandbox_id, "keeper.json"), encoding="utf-8") as file:
        mark = json.load(file)
    return [f"/proc/{mark['pid']}", f"/proc/{mark['init']}", *mark["groups"].values()]


class Many:
    """Many calls under way at the same time, through the asynchronous SDK."""

    def __init__(self, client: Coldframe) -> None:
        self._client = client
        self._sandboxes: list[Sandbox] = []

    async def exec_true(self, _: dict[str, Any]) -> float:
        sandbox = (await self._live(1))[0]
        with timed() as watch:
            done = await sandbox.run_command(["true"])
        expect(done.exit_code == 0, f"exit code {done.exit_code}")
        return watch.seconds

    async def rate(self, request: dict[str, Any]) -> float:
        sandboxes = await self._live(RATE_SANDBOXES)
        each = int(request["commands"]) // RATE_SANDBOXES

        async def some(sandbox: Sandbox) -> None:
            for _ in range(each):
                done = await sandbox.run_command(["true"])
                expect(done.exit_code == 0, f"exit code {done.exit_code}")

        return await at_once(some(sandbox) for sandbox in sandboxes)

    async def burst(self, request: dict[str, Any]) -> float:
        made: list[Sandbox] = []

        async def one() -> None:
            sandbox = await self._client.sandboxes.create(agent_id=AGENT)
            made.append(sandbox)
            done = await sandbox.run_command(["echo", "ok"])
            expect(done.stdout == "ok\n", f"exit code {done.exit_code}")

        try:
            return await at_once(one() for _ in range(int(request["count"])))
        finally:
            for sandbox in made:
                await sandbox.terminate()

    async def _live(self, count: int) -> list[Sandbox]:
        while len(self._sandboxes) < count:
            self._sandboxes.append(await self._client.sandboxes.create(agent_id=AGENT))
        return self._sandboxes[:count]

    async def close(self) -> None:
        for sandbox in self._sandboxes:
            await sandbox.terminate()
