"""A kernel that runs as a command of its sandbox: cells go to its input, and what becomes of them is read from its output.

What it says is parsed as hostile. It keeps the time of its cells; should it not, the command is ended a little later, so that
nothing inside can hold a cell, or its queue, for ever.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from coldframe.contract.cell import (
    CellBegun,
    CellEnded,
    CellError,
    CellEvent,
    CellOrder,
    CellResult,
    CellText,
    Language,
)
from coldframe.contract.command import LONGEST_S, CommandEvent, CommandResult, Ended, OutputChunk
from coldframe.contract.errors import ColdframeError, KernelUnavailable, NotFound, WrongState
from coldframe.contract.files import MOST_SENT_BYTES, SendInput, SignalCommand
from coldframe.contract.ports import Box

START_S = 100.0
"""Longest time before a cell begins: a kernel that starts badly is tried three times."""
OVERTIME_S = 5.0
"""Beyond its limit, before the kernel is ended from outside."""
BESIDE_BYTES = 16 * 1024 * 1024
"""What a cell may tell beyond its output, as an error and the names of its lines. The kernel keeps to less."""
MOST_REST_BYTES = 64 * 1024
"""Of a line that is not whole yet, kept from one cell to the next."""
_END_CODES = {
    "timed_out": ("TIMED_OUT_WALL", "it ran longer than {timeout_s:g} s, and was interrupted"),
    "interrupted": ("CANCELLED", "it was interrupted because somebody asked"),
    "output_limit": ("LIMIT_OUTPUT", "it wrote more than {output_bytes} bytes, and was interrupted"),
    "kernel_died": ("KERNEL_RESTARTED", "its kernel ended: {reason}"),
    "withdrawn": ("CANCELLED", "it was taken back before it began"),
}
_INSTALL = "run `coldframe code install` on the machine and make a new sandbox, or take a template that has it"
_REMEDIES: dict[Language, str] = {
    "python": _INSTALL,
    "javascript": _INSTALL,
    "typescript": _INSTALL,
    "r": "take a template that has `r-cran-irkernel`: `coldframe setup --template code-interpreter` builds one",
}
"""Where a kernel is not installed."""
_events: TypeAdapter[CellEvent] = TypeAdapter(CellEvent)


class LiveKernel:
    """One kernel from its start to its end."""

    def __init__(
        self,
        context_id: str,
        language: Language,
        command_id: str,
        *,
        since_restart: str | None,
        ended: Callable[[], bool],
    ) -> None:
        """*ended*: whether its command is over."""
        self.context_id = context_id
        self.language = language
        self.command_id = command_id
        self.since_restart = since_restart
        self.cells = 0
        """That it has begun."""
        self.has_ended = ended
        self._seq = -1
        self._rest = bytearray()
        self._lines: deque[tuple[dict[str, Any], int]] = deque()
        """With the length of each."""
        self._complaint = b""
        self._running: tuple[Box, str] | None = None
        self._sending = asyncio.Lock()
        self._place: int | None = None
        """How far its input has come."""
        self._begun: tuple[str, float] | None = None
        """The cell that it works at as its output has it, which may be one of another server, and the longest that may take."""
        self._most_bytes = BESIDE_BYTES
        """Of what the cell tells, and of one line."""

    async def run(self, box: Box, order: CellOrder) -> AsyncIterator[CellEvent]:
        """See `Kernel`."""
        self._running = box, order.cell_id
        self._most_bytes = order.output_bytes + BESIDE_BYTES
        try:
            await self._send(box, {"op": "run", "cell": order.cell_id, **order.model_dump(exclude={"cell_id"})})
            source = cast("AsyncGenerator[CommandEvent, None]", box.follow(self.command_id, after_seq=self._seq))
            async with aclosing(source) as events:
                async for event in self._told(box, events, order):
                    yield event
                    if isinstance(event, CellEnded):
                        return
        finally:
            self._running = None
            if len(self._rest) > MOST_REST_BYTES:
                self._rest = bytearray()

    async def interrupt(self, cell_id: str) -> bool:
        """Stop the cell that runs, if it is that one."""
        if self._running is None or self._running[1] != cell_id:
            return False
        await self._send(self._running[0], {"op": "interrupt", "cell": cell_id})
        return True

    @property
    def cell_id(self) -> str | None:
        """Of the cell that it works at."""
        return None if self._running is None else self._running[1]

    async def _told(
        self, box: Box, events: AsyncGenerator[CommandEvent, None], order: CellOrder
    ) -> AsyncGenerator[CellEvent, None]:
        loop = asyncio.get_running_loop()
        begun_at: float | None = None
        told_bytes = 0
        deadline = loop.time() + self._begins_within(order)
        while True:
            while self._lines:
                line, size = self._lines.popleft()
                kind = line.get("type")
                if self._note(line) and begun_at is None:
                    deadline = loop.time() + self._begins_within(order)
                if kind == "failed":
                    raise self._unavailable(str(line.get("reason"))[:1000])
                if kind == "lost":
                    self.since_restart = str(line.get("reason"))[:1000]
                if line.get("cell") != order.cell_id:
                    continue  # what a thread of an earlier cell says
                event = self._read(line, order)
                told_bytes += len(event.text) if isinstance(event, CellText) else size
                if told_bytes > self._most_bytes:
                    await self._end(box)
                    yield self._told_too_much(order, 0 if begun_at is None else loop.time() - begun_at)
                    return
                if isinstance(event, CellBegun):
                    self.cells, begun_at = self.cells + 1, loop.time()
                    deadline = begun_at + order.timeout_s + OVERTIME_S
                if event is not None:
                    yield event
            try:
                async with asyncio.timeout_at(deadline):
                    chunk = await anext(events)
            except TimeoutError:
                await self._end(box)
                yield self._never_began() if begun_at is None else self._overdue(order)
                return
            except StopAsyncIteration:
                raise self._unavailable("it ended") from None
            if isinstance(chunk, Ended):
                if begun_at is None or chunk.result.ended_with is not None:
                    raise self._unavailable(_how(chunk.result))
                yield self._died(chunk.result, loop.time() - begun_at)
                return
            self._take(chunk)

    def _note(self, line: dict[str, Any]) -> bool:
        """Take down which cell it works at; whether that is another one now."""
        kind, cell_id, before = line.get("type"), line.get("cell"), self._begun
        if kind == "begun" and isinstance(cell_id, str):
            most_s = line.get("timeout_s")
            if not isinstance(most_s, int | float) or not 0 < most_s < LONGEST_S:
                most_s = LONGEST_S
            self._begun = cell_id, float(most_s)
        elif (kind == "end" and before is not None and before[0] == cell_id) or kind == "ready":
            self._begun = None
        return self._begun != before

    def _begins_within(self, order: CellOrder) -> float:
        """How long it is waited for the beginning of a cell: while there is one before it, as long as that may run."""
        if self._begun is None or self._begun[0] == order.cell_id:
            return START_S
        return self._begun[1] + OVERTIME_S + START_S

    def _take(self, event: CommandEvent) -> None:
        if isinstance(event, OutputChunk):
            self._seq = event.seq
            if event.stream == "stderr":
                self._complaint = (self._complaint + event.data)[-1000:]
                return
            self._rest += event.data
            *lines, rest = self._rest.split(b"\n") if b"\n" in event.data else [self._rest]
            self._rest = rest if len(rest) <= self._most_bytes else bytearray()
            for line in lines:
                if len(line) > self._most_bytes:
                    continue
                try:
                    told = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(told, dict):
                    self._lines.append((told, len(line)))

    def _read(self, line: dict[str, Any], order: CellOrder) -> CellEvent | None:
        kind = line.get("type")
        try:
            if kind == "begun":
                return CellBegun(cell_id=order.cell_id, execution_count=line["execution_count"])
            if kind in ("stdout", "stderr"):
                return CellText(event=kind, text=line["text"], at_ns=line["at"])
            if kind == "result":
                shown = {name: line[name] for name in ("data", "artifacts", "clipped", "is_main")}
                return CellResult.model_validate(shown)
            if kind == "error":
                error = CellError(name=line["name"], value=line["value"], traceback=line["traceback"])
                is_about_input = error.name == "StdinNotImplementedError"
                return error.model_copy(update={"code": "INPUT_NOT_SUPPORTED"}) if is_about_input else error
            if kind == "end":
                return self._ended(line, order)
        except (KeyError, ValidationError):
            return None
        return None

    def _ended(self, line: dict[str, Any], order: CellOrder) -> CellEnded:
        code, text = _END_CODES.get(line["status"], (None, ""))
        reason = str(line.get("reason") or "")[:1000]
        message = text.format(timeout_s=order.timeout_s, output_bytes=order.output_bytes, reason=reason) or None
        ended = CellEnded(
            status=line["status"],
            code=code,
            message=message,
            exit_code=line.get("exit_code"),
            duration_ms=line["duration_ms"],
            kernel_restarted=line.get("restarted", False),
            lost=tuple(line.get("lost", ())),
            lost_count=line.get("lost_count", 0),
        )
        if ended.kernel_restarted:
            if reason and reason not in (message or ""):
                ended = ended.model_copy(update={"message": f"{message}; its kernel {reason.removeprefix('it ')}"})
            return ended
        if self.since_restart is not None:
            reason, self.since_restart = self.since_restart, None
            told = f"the kernel was started anew before this cell, and what earlier cells defined is gone: {reason}"
            more = {"kernel_restarted": True, "code": code or "KERNEL_RESTARTED", "message": message or told}
            return ended.model_copy(update=more)
        return ended

    def _died(self, result: CommandResult, ran_s: float) -> CellEnded:
        """The whole command went under the cell, and what it knew of its variables with it."""
        self.cells = 0  # which is told now
        return CellEnded(
            status="kernel_died",
            code="KERNEL_RESTARTED",
            message=f"its kernel ended: {_how(result)}",
            duration_ms=ran_s * 1000,
            kernel_restarted=True,
        )

    def _overdue(self, order: CellOrder) -> CellEnded:
        self.cells = 0
        return CellEnded(
            status="timed_out",
            code="TIMED_OUT_WALL",
            message=f"it ran longer than {order.timeout_s:g} s and did not let itself be stopped; its kernel was ended",
            duration_ms=(order.timeout_s + OVERTIME_S) * 1000,
            kernel_restarted=True,
        )

    def _never_began(self) -> CellEnded:
        self.cells = 0
        before = None if self._begun is None else self._begun[0]
        why = f"did not begin it within {START_S:g} s" if before is None else f"did not come to an end with `{before}`"
        return CellEnded(
            status="kernel_died",
            code="KERNEL_RESTARTED",
            message=f"it never began: its kernel {why}, and was ended",
            duration_ms=0,
            kernel_restarted=True,
        )

    def _told_too_much(self, order: CellOrder, ran_s: float) -> CellEnded:
        self.cells = 0
        return CellEnded(
            status="output_limit",
            code="LIMIT_OUTPUT",
            message=f"it told more than {order.output_bytes} bytes, and its kernel, which let it, was ended",
            duration_ms=ran_s * 1000,
            kernel_restarted=True,
        )

    def _unavailable(self, reason: str) -> KernelUnavailable:
        complaint = self._complaint.decode("utf-8", "replace").strip().splitlines()
        more = f": {complaint[-1]}" if complaint else ""
        is_missing = any(one in more for one in ("there is no `", "is not installed"))
        return KernelUnavailable(
            f"there is no kernel for `{self.language}`: {reason}{more}",
            hint=_REMEDIES.get(self.language) if is_missing else None,
            language=self.language,
            context_id=self.context_id,
            command_id=self.command_id,
        )

    async def _send(self, box: Box, order: dict[str, Any]) -> None:
        content = b"\n" + json.dumps(order).encode() + b"\n"  # whatever part of another one was sent before it
        async with self._sending:
            try:
                if self._place is None:
                    self._place = (await box.ask(SendInput(command_id=self.command_id))).taken
                end = self._place + len(content)
                while self._place < end:
                    part = content[len(content) - (end - self._place) :][:MOST_SENT_BYTES]
                    state = await box.ask(SendInput(command_id=self.command_id, content=part, offset=self._place))
                    self._place = state.taken
            except (NotFound, WrongState) as error:
                self._place = None
                raise self._unavailable(error.message) from None
            except BaseException:
                self._place = None  # nobody knows; it is asked for again
                raise

    async def _end(self, box: Box) -> None:
        try:
            await box.ask(SignalCommand(command_id=self.command_id, signal=9, cancel=True))
        except ColdframeError:
            pass  # it is gone


def _how(result: CommandResult) -> str:
    if result.limit is not None:
        return f"it was over the sandbox's limit of {result.limit.kind}"
    if result.out_of_memory:
        return "it was killed for want of memory"
    if result.cancelled:
        return "it was ended because somebody asked"
    return f"exit code {result.exit_code}"
