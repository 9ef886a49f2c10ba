"""How what a preview shows stands: looked at when somebody asks, so there is nothing to be out of date.

The sandbox is asked first, then the command that serves, then the port. A port where nobody listens is explained by what
is known: the command has ended, with its code; it listens elsewhere; it has only just begun.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from coldframe.contract.command import CommandInfo, OutputChunk
from coldframe.contract.errors import (
    ColdframeError,
    NotFound,
    PreviewNotListening,
    PreviewOutOfMemory,
    PreviewPortMoved,
    PreviewProcessExited,
    PreviewStarting,
    PreviewStopped,
    PreviewUnavailable,
    PreviewUnhealthy,
    next_action,
)
from coldframe.contract.files import ProcessInfo
from coldframe.contract.preview import LOG_LINES, PreviewState, PreviewStatus
from coldframe.contract.state import StateObject
from coldframe.control.outputs import Outputs
from coldframe.control.preview_access import PreviewAccess, led_on, standing
from coldframe.control.preview_rows import PreviewRow
from coldframe.control.sandboxes import Sandboxes

HEALTH_S = 5.0
"""For an answer at the health path."""
MOST_BODY_BYTES = 16 << 20
"""Of an answer whose digest is taken."""
MOST_HEADERS = 200
_PART_BYTES = 1 << 16
LOG_BYTES = 64 * 1024
LINE_CHARACTERS = 2000
_STATES: dict[str, PreviewState] = {
    "PREVIEW_STARTING": "starting",
    "PREVIEW_STOPPED": "stopped",
    "PREVIEW_PROCESS_EXITED": "stopped",
    "PREVIEW_OUT_OF_MEMORY": "stopped",
    "PREVIEW_ASLEEP": "asleep",
    "PREVIEW_ENDED": "ended",
}


class Answer(NamedTuple):
    """Of the server, at its health path."""

    status: int
    body_sha256: str | None
    """None if it was longer than MOST_BODY_BYTES."""


class PreviewStates:
    def __init__(
        self, access: PreviewAccess, sandboxes: Sandboxes, outputs: Outputs, clock: Callable[[], datetime]
    ) -> None:
        self._access = access
        self._sandboxes = sandboxes
        self._outputs = outputs
        self._clock = clock

    async def status(self, row: PreviewRow) -> PreviewStatus:
        """Look now."""
        now = self._clock()
        if row.revoked_at is not None:
            return PreviewStatus(state="revoked", cause="it was taken back", checked_at=now)
        if row.expires_at is not None and row.expires_at <= now:
            return PreviewStatus(state="expired", cause="its time is over", checked_at=now)
        error: ColdframeError | None = None
        http_status = None
        try:
            answer = await self.ask(row)
            http_status = answer.status
            if answer.status >= 500:
                error = PreviewUnhealthy(f"`{row.terms.get('health_path', '/')}` is answered with {answer.status}")
        except ColdframeError as found:
            error = await self.why(row, row.port, found)
        state: PreviewState = "healthy" if error is None else _STATES.get(error.code, "unhealthy")
        facts: dict[str, Any] = {} if error is None else error.facts
        log = facts.get("log_lines") if error is not None else None
        return PreviewStatus(
            state=state,
            code=None if error is None else error.code,
            cause="" if error is None else error.message,
            command_id=row.command_id,
            exit_code=facts.get("exit_code"),
            signal=facts.get("signal"),
            http_status=http_status,
            ports=tuple(facts.get("ports") or ()),
            log_lines=tuple(log) if log is not None else await self._shown_log(row),
            status=StateObject(
                state=state,
                since=row.started_at or row.created_at,
                code=None if error is None else error.code,
                family=None if error is None else error.family,
                message="" if error is None else error.message,
                retryable=error is not None and error.retry_now == "later",
                next_actions=() if error is None else tuple(dict(one) for one in error.next_actions),
                evidence=() if row.command_id is None else (row.command_id,),
            ),
            checked_at=now,
        )

    async def ask(self, row: PreviewRow) -> Answer:
        """What it answers at its health path. Raises ColdframeError: it does not serve."""
        if (error := standing(self._sandboxes.find(row.sandbox_id))) is not None:
            raise error
        one = await self._access.connect(row.sandbox_id, row.port)
        try:
            async with asyncio.timeout(HEALTH_S):
                reader, writer = await asyncio.open_connection(sock=one, limit=1 << 16)
                try:
                    host = "localhost" if row.port == 80 else f"localhost:{row.port}"
                    path = row.terms.get("health_path", "/")
                    writer.write(
                        f"GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: text/html, */*\r\n"
                        "Connection: close\r\nUser-Agent: coldframe-health\r\n\r\n".encode("ascii")
                    )
                    return await _answer(reader)
                finally:
                    writer.close()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError) as error:
            one.close()
            why = f"not within {HEALTH_S:g} s" if isinstance(error, TimeoutError) else "in no form of HTTP"
            raise PreviewUnhealthy(f"what listens on port {row.port} answers {why}", port=row.port) from None

    async def why(self, row: PreviewRow, port: int, error: ColdframeError) -> ColdframeError:
        """The same, or a better explanation of it, with the end of the log."""
        found = error
        if not isinstance(error, PreviewUnavailable):
            return error
        if error.code in ("PREVIEW_NOT_LISTENING", "PREVIEW_UNHEALTHY", "PREVIEW_UNAVAILABLE"):
            if row.stopped_by is not None:
                found = PreviewStopped(f"`{row.stopped_by}` has stopped it", port=port)
            elif isinstance(error, PreviewNotListening):
                found = await self._of_nobody(row, port, error)
        if "log_lines" not in found.facts and row.command_id is not None:
            found.facts["log_lines"] = list(await self._shown_log(row))
        led_on(found, row)
        return found

    async def _of_nobody(self, row: PreviewRow, port: int, error: ColdframeError) -> ColdframeError:
        """Nothing listens."""
        if row.command_id is None:
            return error
        command, processes = await self.inside(row)
        if command is not None and command.state == "running":
            elsewhere = ports_of(processes, row.command_id)
            if elsewhere:
                where = ", ".join(map(str, elsewhere))
                return PreviewPortMoved(
                    f"nothing listens on port {port}; what was started listens on {where}",
                    next_actions=[
                        next_action("preview.create", "shares it", sandbox_id=row.sandbox_id, port=elsewhere[0])
                    ],
                    port=port,
                    ports=[*elsewhere],
                )
            start = row.start
            if start is not None and row.started_at is not None:
                age_s = (self._clock() - row.started_at).total_seconds()
                if age_s < start.ready_timeout_s:
                    return PreviewStarting(f"it was started {age_s:.0f} s ago, and does not listen yet", port=port)
            return error
        result = None if command is None else command.result
        if result is None:
            return PreviewProcessExited(
                "the command that served is gone, as its sandbox was stopped or lost", port=port
            )
        if result.out_of_memory:
            return PreviewOutOfMemory(
                "the command that served was ended, since the memory of the sandbox was used up",
                exit_code=result.exit_code,
                signal=result.signal,
                port=port,
            )
        how = f"exit code {result.exit_code}" if result.exit_code is not None else f"signal {result.signal}"
        if result.timed_out:
            how = "its time limit"
        if result.ended_with is not None:
            how = "the end of its box"
        return PreviewProcessExited(
            f"the command that served has ended by {how}", exit_code=result.exit_code, signal=result.signal, port=port
        )

    async def inside(self, row: PreviewRow) -> tuple[CommandInfo | None, list[ProcessInfo]]:
        """The command that serves, and all processes; nothing where there is no box."""
        with contextlib.suppress(ColdframeError):
            return await self._sandboxes.seen_inside(self._sandboxes.find(row.sandbox_id), row.command_id)
        return None, []

    async def _shown_log(self, row: PreviewRow) -> tuple[str, ...]:
        """The same for whoever comes: nothing of what a rule withholds."""
        if row.command_id is None or self._outputs.is_withheld(row.sandbox_id, row.command_id):
            return ()
        return await self.log(row)

    async def log(self, row: PreviewRow, lines: int = LOG_LINES) -> tuple[str, ...]:
        """The end of what it has printed, of both streams as they came."""
        if row.command_id is None:
            return ()
        kept = bytearray()
        with contextlib.suppress(ColdframeError, NotFound):
            stored = await self._access.host.stored(row.sandbox_id, row.command_id)
            async for event in stored:
                if isinstance(event, OutputChunk):
                    kept += event.data
                    if len(kept) > 2 * LOG_BYTES:
                        del kept[:-LOG_BYTES]
        text = kept[-LOG_BYTES:].decode("utf-8", "replace")
        found = [one.rstrip("\r")[:LINE_CHARACTERS] for one in text.split("\n")]
        if found and not found[-1]:
            found.pop()
        return tuple(found[-lines:])


def ports_of(processes: Iterable[ProcessInfo], command_id: str | None) -> list[int]:
    """Where processes of a command listen; None for those of all."""
    return sorted(
        {
            one.port
            for process in processes
            if command_id is None or process.command_id == command_id
            for one in process.ports
            if one.protocol == "tcp"
        }
    )


async def _answer(reader: asyncio.StreamReader) -> Answer:
    line = await reader.readuntil(b"\n")
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise ValueError("no status line")
    headers: dict[bytes, bytes] = {}
    while header := (await reader.readuntil(b"\n")).strip():
        name, _, value = header.partition(b":")
        headers[name.lower()] = value.strip()
        if len(headers) > MOST_HEADERS:
            raise ValueError("too many headers")
    status, digest, size = int(rest[:3]), hashlib.sha256(), 0
    async for part in _body(reader, headers):
        size += len(part)
        if size > MOST_BODY_BYTES:
            return Answer(status, None)
        digest.update(part)
    return Answer(status, digest.hexdigest())


async def _body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> AsyncIterator[bytes]:
    """Many servers keep the connection whatever is said, and some send chunks to whoever has not asked for them."""
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        while length := int((await reader.readuntil(b"\n")).partition(b";")[0], 16):
            if length > MOST_BODY_BYTES:
                yield bytes(MOST_BODY_BYTES + 1)
                return
            yield await reader.readexactly(length)
            await reader.readuntil(b"\n")
        return
    left = int(headers.get(b"content-length", b"-1"))
    while left and (part := await reader.read(_PART_BYTES if left < 0 else min(left, _PART_BYTES))):
        yield part
        left -= len(part) if left > 0 else 0
