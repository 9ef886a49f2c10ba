"""inspect-ai's local sandbox: a temporary directory in the same process, no isolation. It cuts output at 10 MiB."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from inspect_ai.util._sandbox.local import LocalSandboxEnvironment  # type: ignore[import-not-found]

from bench.workers.wire import (
    BULK,
    KIB,
    PYTHON_COMMAND,
    RATE_SANDBOXES,
    STREAM_BYTES,
    STREAM_COMMAND,
    Action,
    at_once,
    expect,
    timed,
)


@contextlib.asynccontextmanager
async def open_inspect(path: str, **_: str) -> AsyncIterator[dict[str, Action]]:
    live = LocalSandboxEnvironment()
    more: list[LocalSandboxEnvironment] = []

    async def run(sandbox: LocalSandboxEnvironment, command: list[str], wanted: str = "") -> float:
        with timed() as watch:
            done = await sandbox.exec(command)
        expect(done.returncode == 0 and done.stdout == wanted, f"{done.returncode}, {len(done.stdout)} characters")
        return watch.seconds

    async def stream(_: dict[str, Any]) -> float:
        with timed() as watch:
            done = await live.exec(STREAM_COMMAND)
        expect(len(done.stdout) == STREAM_BYTES, f"cut: {len(done.stdout)} of {STREAM_BYTES} bytes")
        return watch.seconds

    async def write(name: str, data: bytes) -> float:
        with timed() as watch:
            await live.write_file(name, data)
        return watch.seconds

    async def read(name: str, data: bytes) -> float:
        with timed() as watch:
            found = await live.read_file(name, text=False)
        expect(found == data, f"{len(found)} bytes")
        return watch.seconds

    async def create_and_echo(_: dict[str, Any]) -> float:
        with timed() as watch:
            fresh = LocalSandboxEnvironment()
            await run(fresh, ["echo", "ok"], "ok\n")
        fresh.directory.cleanup()
        return watch.seconds

    async def burst(request: dict[str, Any]) -> float:
        return await at_once(create_and_echo({}) for _ in range(int(request["count"])))

    async def rate(request: dict[str, Any]) -> float:
        while len(more) < RATE_SANDBOXES:
            more.append(LocalSandboxEnvironment())

        async def some(sandbox: LocalSandboxEnvironment) -> None:
            for _ in range(int(request["commands"]) // RATE_SANDBOXES):
                await run(sandbox, ["true"])

        return await at_once(some(sandbox) for sandbox in more)

    async def destroy(_: dict[str, Any]) -> float:
        fresh = LocalSandboxEnvironment()
        await run(fresh, ["true"])
        with timed() as watch:
            fresh.directory.cleanup()
        return watch.seconds

    try:
        yield {
            "exec_true": lambda _: run(live, ["true"]),
            "exec_python": lambda _: run(live, PYTHON_COMMAND, "1\n"),
            "stream": stream,
            "write_1k": lambda _: write("kib", KIB),
            "read_1k": lambda _: read("kib", KIB),
            "write_50m": lambda _: write("bulk", BULK),
            "read_50m": lambda _: read("bulk", BULK),
            "tti": create_and_echo,
            "burst": burst,
            "rate": rate,
            "destroy": destroy,
        }
    finally:
        for sandbox in (live, *more):
            sandbox.directory.cleanup()
