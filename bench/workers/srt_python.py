"""PyPI sandbox-runtime: a fresh bwrap for each command, with proxies of its own beside. Nothing lives in between."""

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sandbox_runtime.config import SandboxRuntimeConfig  # type: ignore[import-not-found]
from sandbox_runtime.manager import SandboxManager  # type: ignore[import-not-found]

from bench.workers.wire import (
    BULK,
    KIB,
    PYTHON_COMMAND,
    STREAM_BYTES,
    STREAM_COMMAND,
    Action,
    at_once,
    expect,
    timed,
)


@contextlib.asynccontextmanager
async def open_srt_python(path: str, **_: str) -> AsyncIterator[dict[str, Action]]:
    os.chdir(path)
    await SandboxManager.initialize(
        SandboxRuntimeConfig(
            network={"allowed_domains": [], "denied_domains": []},
            filesystem={"deny_read": [], "allow_write": [path], "deny_write": []},
        )
    )

    async def run(command: Sequence[str] | str, wanted: bytes | int, data: bytes | None = None) -> float:
        line = command if isinstance(command, str) else shlex.join(command)
        with timed() as watch:
            wrapped = await SandboxManager.wrap_with_sandbox(line)
            process = await asyncio.create_subprocess_shell(
                wrapped,
                stdin=asyncio.subprocess.DEVNULL if data is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=2**20,
            )
            output, said = await process.communicate(data)
        expect(process.returncode == 0, f"exit code {process.returncode}: {said[-200:].decode(errors='replace')}")
        expect(output == wanted if isinstance(wanted, bytes) else len(output) == wanted, f"{len(output)} bytes")
        return watch.seconds

    async def burst(request: dict[str, Any]) -> float:
        return await at_once(run(["echo", "ok"], b"ok\n") for _ in range(int(request["count"])))

    try:
        yield {
            "exec_true": lambda _: run(["true"], b""),
            "exec_python": lambda _: run(PYTHON_COMMAND, b"1\n"),
            "stream": lambda _: run(STREAM_COMMAND, STREAM_BYTES),
            "write_1k": lambda _: run("cat > kib", b"", KIB),
            "read_1k": lambda _: run(["cat", "kib"], KIB),
            "write_50m": lambda _: run("cat > bulk", b"", BULK),
            "read_50m": lambda _: run(["cat", "bulk"], BULK),
            "tti": lambda _: run(["echo", "ok"], b"ok\n"),
            "burst": burst,
        }
    finally:
        await SandboxManager.reset()
