"""Commands of a sandbox that were started: looked at, followed, sent to and ended, by whoever may, at any time."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Literal

from coldframe.client import models
from coldframe.client.replies import read_answer, read_answers, read_object, read_part, unknown_answer
from coldframe.client.transport import Transport, ask, ask_stream, encode_path
from coldframe.contract.errors import HostUnreachable, from_wire

FRAMES = "application/x-coldframe-frames"
"""Events with bytes as they are; without it they come as lines of JSON."""
PART_BYTES = 256 * 1024
"""Most bytes of input in one request; more is sent in several."""
WAIT_S = 30
"""How long the server lets one question about an end wait."""


class Commands:
    """Those of one sandbox."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport = transport
        self._path = path

    def job(self, command_id: str) -> Job:
        """The handle on a command that was started, by whomever and whenever. Nothing is asked yet."""
        return Job(self, command_id)

    async def commands(self) -> list[models.CommandInfo]:
        return read_answers(models.CommandInfo, (await ask(self._transport, "GET", f"{self._path}/commands")).body)

    async def command(self, command_id: str) -> models.CommandInfo:
        reply = await ask(self._transport, "GET", f"{self._path}/commands/{encode_path(command_id)}")
        return read_answer(models.CommandInfo, reply.body)

    async def output(
        self,
        command_id: str,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        offset: int = 0,
        length: int | None = None,
    ) -> models.OutputWindow:
        """Raw bytes of one stream, at most 16 MiB from *offset*."""
        reply = await ask(
            self._transport,
            "GET",
            f"{self._path}/commands/{encode_path(command_id)}/output",
            query={"stream": stream, "offset": offset, "length": length},
        )
        headers = reply.headers
        window = {
            "command_id": command_id,
            "stream": stream,
            "offset": headers.get("coldframe-offset"),
            "data": reply.body,
            "next_offset": headers.get("coldframe-next-offset"),
            "total_bytes": headers.get("coldframe-total-bytes"),
            "sha256": headers.get("coldframe-sha256"),
            "ended": headers.get("coldframe-ended"),
            "label": headers.get("coldframe-label"),
        }
        return read_part(models.OutputWindow, window)

    async def follow(
        self, command_id: str, *, after_seq: int = -1
    ) -> AsyncGenerator[models.CommandEvent | models.ToolResult, None]:
        """Yield the events of a command after chunk *after_seq*, until it ends."""
        path = f"{self._path}/commands/{encode_path(command_id)}/events"
        async with aclosing(command_events(self._transport, "GET", path, query={"after_seq": after_seq})) as events:
            async for event in events:
                yield event

    async def signal(self, command_id: str, signal: int = 15, *, cancel: bool = False) -> None:
        """Signal the whole process tree of a command; with *cancel* TERM, then KILL, counted as cancelled."""
        path = f"{self._path}/commands/{encode_path(command_id)}/signal"
        await ask(self._transport, "POST", path, payload={"signal": signal, "cancel": cancel})

    async def resize(self, command_id: str, columns: int, rows: int) -> None:
        path = f"{self._path}/commands/{encode_path(command_id)}/resize"
        await ask(self._transport, "POST", path, payload={"columns": columns, "rows": rows})

    async def wait(self, command_id: str, *, timeout_s: float | None = None) -> models.CommandInfo:
        """Return a command once its end is recorded, or as it is after *timeout_s*: then its `result` is None."""
        path = f"{self._path}/commands/{encode_path(command_id)}"
        left_s = timeout_s
        while True:
            wait_s = WAIT_S if left_s is None else max(0, min(WAIT_S, math.ceil(left_s)))
            reply = await ask(self._transport, "GET", path, query={"wait_s": wait_s})
            info = read_answer(models.CommandInfo, reply.body)
            left_s = None if left_s is None else left_s - wait_s
            if info.state != "running" or (left_s is not None and left_s <= 0):
                return info

    async def send_stdin(
        self, command_id: str, data: str | bytes, *, offset: int | None = None, end: bool = False
    ) -> models.InputState:
        """Send all of *data* to the open input of a command, and with *end* its end of file; waits while it does not read.

        *offset* is the place of the first byte in the whole input, by default behind all that was taken: what is sent
        twice from the same place arrives once.

        Raises:
            Conflict: the input goes on elsewhere, since somebody else sends too.
            WrongState: the command has ended or takes no input.
        """
        content = data.encode() if isinstance(data, str) else data
        if offset is None:
            activity = (await self.command(command_id)).activity
            offset = 0 if activity is None or activity.stdin is None else activity.stdin.taken
        path = f"{self._path}/commands/{encode_path(command_id)}/stdin"
        sent = 0
        while True:
            part = content[sent : sent + PART_BYTES]
            is_last = sent + len(part) == len(content)
            query = {"offset": offset + sent, "end": "true" if end and is_last else None}
            reply = await ask(self._transport, "POST", path, body=part, query=query, repeatable=True)
            state = read_answer(models.InputState, reply.body)
            sent = state.taken - offset
            if sent >= len(content):
                return state

    async def extend_command(
        self,
        command_id: str,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        cpu_s: float | None = None,
    ) -> None:
        """Hold a running command to other limits, higher or lower, each counted from its start."""
        limits = {"timeout_s": timeout_s, "idle_timeout_s": idle_timeout_s, "cpu_s": cpu_s}
        path = f"{self._path}/commands/{encode_path(command_id)}/limits"
        payload = {name: value for name, value in limits.items() if value is not None}
        await ask(self._transport, "POST", path, payload=payload)


class Job:
    """One command that was started. It belongs to its sandbox and not to this handle: any number of them can be had."""

    def __init__(self, commands: Commands, command_id: str) -> None:
        self._commands = commands
        self.id = command_id
        self._sent: int | None = None
        """How far its input had come when this handle last sent something."""

    async def info(self) -> models.CommandInfo:
        """How it stands: `status` with what can be done, `activity` while it runs, `result` when it has ended."""
        return await self._commands.command(self.id)

    async def wait(self, timeout_s: float | None = None) -> models.CommandInfo:
        """Return it once it has ended, or as it is after *timeout_s*."""
        return await self._commands.wait(self.id, timeout_s=timeout_s)

    async def output(self, stream: Literal["stdout", "stderr"] = "stdout") -> bytes:
        """All that it has written to one stream until now."""
        found = bytearray()
        async for part in self.output_parts(stream):
            found += part
        return bytes(found)

    async def output_parts(self, stream: Literal["stdout", "stderr"] = "stdout") -> AsyncGenerator[bytes, None]:
        """The same in parts of at most 16 MiB, for more than fits into memory."""
        offset: int | None = 0
        while offset is not None:
            window = await self._commands.output(self.id, stream, offset=offset)
            yield window.data
            offset = window.next_offset if window.data else None

    async def follow(self, *, after_seq: int = -1) -> AsyncGenerator[models.CommandEvent | models.ToolResult, None]:
        """Yield its events after chunk *after_seq*, until it ends."""
        async with aclosing(self._commands.follow(self.id, after_seq=after_seq)) as events:
            async for event in events:
                yield event

    async def send_stdin(self, data: str | bytes, *, end: bool = False) -> models.InputState:
        """Send input behind what this handle has sent, or else behind all there is. Raises like `Commands.send_stdin`."""
        state = await self._commands.send_stdin(self.id, data, offset=self._sent, end=end)
        self._sent = state.taken
        return state

    async def close_stdin(self) -> models.InputState:
        """Have it read the end of its input; at a terminal, send what a person types for that."""
        return await self.send_stdin(b"", end=True)

    async def signal(self, signal: int = 15) -> None:
        """Signal its whole process tree."""
        await self._commands.signal(self.id, signal)

    async def cancel(self) -> None:
        """End its whole process tree: TERM, then KILL. A second time, or after its end, it changes no result."""
        await self._commands.signal(self.id, cancel=True)

    async def resize(self, columns: int, rows: int) -> None:
        """Give its terminal another size."""
        await self._commands.resize(self.id, columns, rows)

    async def extend(
        self, *, timeout_s: float | None = None, idle_timeout_s: float | None = None, cpu_s: float | None = None
    ) -> None:
        """Hold it to other limits, each counted from its start."""
        await self._commands.extend_command(self.id, timeout_s=timeout_s, idle_timeout_s=idle_timeout_s, cpu_s=cpu_s)


async def command_events(
    transport: Transport,
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    payload: object = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncGenerator[models.CommandEvent | models.ToolResult, None]:
    accept = {"Accept": f"{FRAMES}, application/x-ndjson"}
    stream = await ask_stream(
        transport, method, path, query=query, payload=payload, headers={**(headers or {}), **accept}
    )
    complete = False
    if stream.headers.get("content-type") == FRAMES:
        async with aclosing(stream.frames()) as frames:
            async for head, body in frames:
                event = _event_of(head, body)
                complete = isinstance(event, (models.Ended, models.ToolResult))
                yield event
    else:  # a server that knows no frames
        async with aclosing(stream.lines()) as lines:
            async for line in lines:
                event = _event_of(line)
                complete = isinstance(event, (models.Ended, models.ToolResult))
                yield event
    if not complete:
        raise HostUnreachable("the events of the command stopped before its end")


def _event_of(line: bytes, body: bytes | None = None) -> models.CommandEvent | models.ToolResult:
    if body is not None and line.startswith(b'{"event":"output"'):
        return read_part(models.OutputChunk, {**read_object(line), "data": body})
    if line.startswith(b'{"event":"output"'):
        return read_answer(models.OutputChunk, line)
    if line.startswith(b'{"event":"started"'):
        return read_answer(models.Started, line)
    if line.startswith(b'{"event":"ended"'):
        return read_answer(models.Ended, line)
    content = read_object(line)
    if content.get("event") == "result":
        return read_part(models.ToolResult, content.get("result"))
    if isinstance(error := content.get("error"), dict):
        raise from_wire(error)
    raise unknown_answer("an event without a meaning here")
