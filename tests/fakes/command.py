"""One command of the fake: a plain subprocess whose events are kept."""

import asyncio
import contextlib
import os
import signal as signals
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from coldframe.contract.command import (
    CommandEvent,
    CommandInfo,
    CommandResult,
    CommandSpec,
    Ended,
    EndedWith,
    FileChange,
    FileChanges,
    OutputChunk,
    Started,
    StreamInfo,
)
from coldframe.contract.errors import GuestLost
from tests.fakes.files import digests, sha256


class FakeCommand:
    """One command with all its events; runs to its end whoever watches."""

    def __init__(self, spec: CommandSpec, workspace: str) -> None:
        self.spec = spec
        self.workspace = workspace
        self.events: list[CommandEvent] = []
        self.result: CommandResult | None = None
        self.lost = False
        self.pid: int | None = None
        self.cancelled = False
        self._ending: EndedWith | None = None
        self.sent = b""
        """To its input; it never reads it."""
        self._timed_out = False
        self._changed = asyncio.Condition()
        self._task = asyncio.ensure_future(self._run())

    async def _emit(self, event: CommandEvent) -> None:
        async with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    async def watch(self, after_seq: int, *, attached: bool) -> AsyncIterator[CommandEvent]:
        position = 0
        while True:
            async with self._changed:
                while position == len(self.events) and not self.lost:
                    await self._changed.wait()
            if position == len(self.events):
                raise GuestLost("the keeper of the sandbox ended")
            event = self.events[position]
            position += 1
            if isinstance(event, OutputChunk) and event.seq <= after_seq:
                continue
            if isinstance(event, Started) and attached:
                event = event.model_copy(update={"attached": True})
            yield event
            if isinstance(event, Ended):
                return

    def end_tree(self, number: int) -> None:
        if self.pid is not None and self.result is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def lose(self) -> None:
        """What a killed keeper leaves: processes gone, no result."""
        self.end_tree(signals.SIGKILL)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        async with self._changed:
            self.lost = self.result is None
            self._changed.notify_all()

    async def end_with(self, ending: EndedWith) -> None:
        """What a keeper leaves that knew of the end."""
        self._ending = ending
        async with self._changed:
            await self._changed.wait_for(lambda: self.events)
        self.end_tree(signals.SIGKILL)
        await asyncio.wait({self._task}, timeout=1)
        await self.lose()  # of what left its group, and holds the output open

    async def _run(self) -> None:
        spec, started_at = self.spec, datetime.now(UTC)
        before = digests(self.workspace) if spec.track_files else {}
        argv = list(spec.argv) if spec.argv is not None else ["bash", "-c", spec.shell or ""]
        cwd = os.path.join(self.workspace, spec.cwd)
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": self.workspace, "LANG": "C.UTF-8", **spec.env}
        buffers = {"stdout": b"", "stderr": b""}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            await self._emit(Started(command_id=spec.command_id, pid=None, at=started_at))
            unstarted = 127 if isinstance(error, FileNotFoundError) else 126
            await self._end("not_started", unstarted, None, started_at, buffers, before, start_error=str(error))
            return
        self.pid = process.pid
        await self._emit(Started(command_id=spec.command_id, pid=process.pid, at=started_at))
        seq = 0

        async def pump(name: str, reader: asyncio.StreamReader) -> None:
            nonlocal seq
            while data := await reader.read(65536):
                buffers[name] += data
                number, seq = seq, seq + 1
                await self._emit(OutputChunk(seq=number, stream="stdout" if name == "stdout" else "stderr", data=data))

        async def feed(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                writer.write(spec.stdin)
                await writer.drain()
                writer.close()
                await writer.wait_closed()

        def time_out() -> None:
            self._timed_out = True
            self.end_tree(signals.SIGKILL)

        timer = asyncio.get_running_loop().call_later(spec.timeout_s, time_out)
        try:
            if process.stdin is None or process.stdout is None or process.stderr is None:
                raise AssertionError("all three streams were asked for")
            await asyncio.gather(
                pump("stdout", process.stdout), pump("stderr", process.stderr), feed(process.stdin), process.wait()
            )
        finally:
            timer.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signals.SIGKILL)
                await process.wait()
        code = await process.wait()
        ended_by = -code if code < 0 else None
        kind = (
            "timed_out" if self._timed_out else "cancelled" if self.cancelled else "signalled" if ended_by else "exited"
        )
        await self._end(kind, 128 + ended_by if ended_by else code, ended_by, started_at, buffers, before)

    async def _end(
        self,
        kind: Any,
        exit_code: int,
        number: int | None,
        started_at: datetime,
        buffers: dict[str, bytes],
        before: dict[str, str],
        *,
        start_error: str | None = None,
    ) -> None:
        now = datetime.now(UTC)
        ending = self._ending if kind == "signalled" else None
        if ending is not None:
            kind = "cancelled" if ending.act == "terminate" else "lost"
        lost = kind == "lost"
        self.result = CommandResult(
            command_id=self.spec.command_id,
            ended=kind,
            exit_code=None if lost else exit_code,
            signal=None if lost else number,
            ended_with=ending,
            timed_out=kind == "timed_out",
            cancelled=kind == "cancelled",
            start_error=start_error,
            started_at=started_at,
            ended_at=now,
            duration_ms=(now - started_at).total_seconds() * 1000,
            stdout=_stream(buffers["stdout"]),
            stderr=_stream(buffers["stderr"]),
            order="approximate",
            files=self._changes(before),
            artifact_id=self.spec.command_id,
        )
        await self._emit(Ended(result=self.result))

    def _changes(self, before: dict[str, str]) -> FileChanges:
        if not self.spec.track_files:
            return FileChanges(recorded=False, reason="switched off")
        after = digests(self.workspace)
        changes = [
            FileChange(
                path=path,
                change="created" if path not in before else "deleted" if path not in after else "changed",
                kind="file",
                sha256_before=before.get(path),
                sha256_after=after.get(path),
            )
            for path in sorted(before.keys() | after.keys())
            if before.get(path) != after.get(path)
        ]
        return FileChanges(recorded=True, changes=tuple(changes))

    def info(self) -> CommandInfo:
        state: Any = "ended" if self.result else "lost" if self.lost else "running"
        line = self.spec.shell if self.spec.shell is not None else " ".join(self.spec.argv or ())
        return CommandInfo(
            command_id=self.spec.command_id, state=state, pid=self.pid, command_line=line, result=self.result
        )


def _stream(data: bytes) -> StreamInfo:
    try:
        data.decode()
        broken = False
    except UnicodeDecodeError:
        broken = True
    return StreamInfo(bytes=len(data), sha256=sha256(data), invalid_utf8=broken)
