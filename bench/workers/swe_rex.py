"""SWE-ReX remote: one HTTP server per sandbox, no isolation. Its client makes a new connection for every request."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from swerex.runtime.abstract import (  # type: ignore[import-not-found]
    BashAction,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime  # type: ignore[import-not-found]

from bench.workers.wire import (
    BULK_BYTES,
    PYTHON_COMMAND,
    STREAM_BYTES,
    STREAM_COMMAND,
    Action,
    at_once,
    expect,
    timed,
)

TOKEN = "bench"
START_TIMEOUT_S = 30.0
TEXT = "0123456789abcdef" * (BULK_BYTES // 16)
POLL_S = 0.005


class Server:
    """One server and its client."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.runtime = RemoteRuntime(auth_token=TOKEN, host="http://127.0.0.1", port=port)
        self.runtime.logger.disabled = True

    async def run(self, command: list[str], wanted: str | None = "") -> str:
        done = await self.runtime.execute(Command(command=command))
        expect(done.exit_code == 0, f"exit code {done.exit_code}")
        expect(wanted is None or done.stdout == wanted, f"{len(done.stdout)} characters of output")
        return str(done.stdout)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start(path: str) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = os.path.join(os.path.dirname(sys.executable), "swerex-remote")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program, "--host", "127.0.0.1", "--port", str(port), "--auth-token", TOKEN),
        cwd=path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    server = Server(process, port)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (await server.runtime.is_alive(timeout=1)).is_alive:
        expect(time.monotonic() < deadline and process.returncode is None, "the server does not start")
        await asyncio.sleep(POLL_S)
    return server


@contextlib.asynccontextmanager
async def open_swe_rex(path: str, **_: str) -> AsyncIterator[dict[str, Action]]:
    server = await start(path)
    small, bulk = os.path.join(path, "kib"), os.path.join(path, "bulk")

    async def run(command: list[str], wanted: str | None = "", length: int | None = None) -> float:
        with timed() as watch:
            output = await server.run(command, wanted)
        expect(length is None or len(output) == length, f"{len(output)} characters of output")
        return watch.seconds

    async def write(name: str, text: str) -> float:
        with timed() as watch:
            await server.runtime.write_file(WriteFileRequest(content=text, path=name))
        return watch.seconds

    async def read(name: str, text: str) -> float:
        with timed() as watch:
            answer = await server.runtime.read_file(ReadFileRequest(path=name))
        expect(answer.content == text, f"{len(answer.content)} characters")
        return watch.seconds

    sessions: list[str] = []

    async def session_true(_: dict[str, Any]) -> float:
        if not sessions:
            await server.runtime.create_session(CreateBashSessionRequest())
            sessions.append("default")
        with timed() as watch:
            seen = await server.runtime.run_in_session(BashAction(command="true"))
        expect(seen.exit_code == 0, f"exit code {seen.exit_code}")
        return watch.seconds

    async def create_and_echo(_: dict[str, Any]) -> float:
        with timed() as watch:
            fresh = await start(path)
            await fresh.run(["echo", "ok"], "ok\n")
        await fresh.end()
        return watch.seconds

    async def destroy(_: dict[str, Any]) -> float:
        fresh = await start(path)
        with timed() as watch:
            await fresh.end()
        return watch.seconds

    async def burst(request: dict[str, Any]) -> float:
        made: list[Server] = []

        async def one() -> None:
            made.append(fresh := await start(path))
            await fresh.run(["echo", "ok"], "ok\n")

        try:
            return await at_once(one() for _ in range(int(request["count"])))
        finally:
            for fresh in made:
                await fresh.end()

    try:
        yield {
            "exec_true": lambda _: run(["true"]),
            "session_true": session_true,
            "exec_python": lambda _: run(PYTHON_COMMAND, "1\n"),
            "stream": lambda _: run(STREAM_COMMAND, None, STREAM_BYTES),
            "write_1k": lambda _: write(small, TEXT[:1024]),
            "read_1k": lambda _: read(small, TEXT[:1024]),
            "write_50m": lambda _: write(bulk, TEXT),
            "read_50m": lambda _: read(bulk, TEXT),
            "tti": create_and_echo,
            "burst": burst,
            "destroy": destroy,
        }
    finally:
        await server.end()
