"""Code cells: each waits for its turn in its context, is judged and run by the gate, and can be fetched again by its id.

The queue is ours, and not the kernel's: a cell whose caller has left before its turn never runs. What becomes of one that runs
when its caller leaves, the caller has said before: it goes on and is fetched later, or it is interrupted.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import Literal

from coldframe.contract.caller import Caller
from coldframe.contract.cell import CellEvent, CellRequest
from coldframe.contract.errors import (
    CellNotBegun,
    ColdframeError,
    InvalidArgument,
    NotFound,
    ResultExpired,
    SessionExpired,
    WrongState,
)
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.contract.tool import ToolResult
from coldframe.control.contexts import Context, Contexts
from coldframe.control.gate import Gate
from coldframe.control.kernels import LiveKernel
from coldframe.control.ledger import Ledger
from coldframe.control.retention import ResultRetention
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.taints import Taints

MOST_KEPT = 256
MOST_KEPT_BYTES = 64 * 1024 * 1024
MOST_QUEUED = 64
"""Cells that wait in one context."""
MOST_EVENTS = 10_000
"""That wait for a slow reader; past these it gets the result, and no more events."""

OnLeave = Literal["go_on", "interrupt"]


class Cells:
    """See the module."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        sessions: Sessions,
        taints: Taints,
        contexts: Contexts,
        gate: Gate,
        retention: ResultRetention,
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._taints = taints
        self._contexts = contexts
        self._gate = gate
        self._retention = retention
        self._kept: OrderedDict[str, ToolResult] = OrderedDict()
        self._kept_bytes: dict[str, int] = {}
        self._running: dict[str, _Work] = {}
        self._tasks: set[asyncio.Task[ToolResult]] = set()

    async def close(self) -> None:
        """Let go of the cells that wait or run; what runs goes on in its kernel."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run(
        self,
        caller: Caller,
        sandbox_id: str,
        request: CellRequest,
        *,
        on_leave: OnLeave = "go_on",
        session_id: str | None = None,
    ) -> ToolResult:
        """Run a cell to its end. Raises as `stream` does."""
        async with contextlib.aclosing(
            self.stream(caller, sandbox_id, request, on_leave=on_leave, session_id=session_id)
        ) as events:
            async for event in events:
                if isinstance(event, ToolResult):
                    return event
        raise AssertionError("a stream of events ends with its result")

    async def stream(
        self,
        caller: Caller,
        sandbox_id: str,
        request: CellRequest,
        *,
        on_leave: OnLeave = "go_on",
        session_id: str | None = None,
        admitted: Callable[[str], None] | None = None,
    ) -> AsyncGenerator[CellEvent | ToolResult, None]:
        """Yield what a cell shows as it does, and its result last. Whoever leaves before its turn takes it back. *admitted* is
        told its id once it will run, also where a rule about results holds back what it shows.

        Raises:
            NotFound: no such sandbox or context.
            CellNotBegun: its turn did not come in the time that it was given, or as many wait as may; it will not run.
            Refused: the gate is against it; recorded.
        """
        info = self._sandboxes.get(caller, sandbox_id)
        context = self._context(caller, info, request)
        if context.queued >= MOST_QUEUED:
            raise CellNotBegun(
                f"{MOST_QUEUED} cells wait in context `{context.info.context_id}` already", sandbox_id=sandbox_id
            )
        events: asyncio.Queue[CellEvent | None] = asyncio.Queue(MOST_EVENTS)
        work = _Work(self, caller, info, context, request, session_id, events, admitted)
        task = work.task = asyncio.get_running_loop().create_task(work.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.tell_end())
        try:
            while (event := await events.get()) is not None:
                yield event
            yield await task
        finally:
            if not task.done():
                await self._left(work, task, on_leave)

    async def _left(self, work: "_Work", task: asyncio.Task[ToolResult], on_leave: OnLeave) -> None:
        """Whoever waited for it has gone."""
        work.has_left = True
        if not work.has_turn:
            task.cancel()
            await asyncio.wait({task})
        elif on_leave == "interrupt":
            await asyncio.shield(work.interrupt())
        else:
            await work.is_settled(task)

    def _context(self, caller: Caller, info: SandboxInfo, request: CellRequest) -> Context:
        require(caller, "tool.call")
        if info.state.state in ENDED:
            raise SessionExpired(
                f"sandbox `{info.sandbox_id}` has ended, and what its cells have defined with it",
                sandbox_id=info.sandbox_id,
                state=info.state.state,
            )
        self._sandboxes.require_running(info)
        if request.context_id is None:
            return self._contexts.default(info, request.language or "python")
        context, _ = self._contexts.find(caller, info.sandbox_id, request.context_id)
        if request.language not in (None, context.info.language):
            raise InvalidArgument(
                f"context `{request.context_id}` is of `{context.info.language}`, and the cell of `{request.language}`",
                hint="name the context or the language, not both",
                argument="language",
            )
        return context

    async def kernel(self, caller: Caller, info: SandboxInfo, context: Context) -> LiveKernel:
        return await self._contexts.kernel(caller, info, context)

    @property
    def gate(self) -> Gate:
        return self._gate

    # -- by id -------------------------------------------------------------------------------------

    async def get(self, caller: Caller, sandbox_id: str, cell_id: str, *, wait_s: float = 0) -> ToolResult:
        """The result of a cell of before, or of one that runs once it has ended.

        Raises:
            NotFound: there is no such cell. ResultExpired: the last few hundred alone are kept, and none past their time.
            WrongState: it runs.
        """
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        if not self._is_of(cell_id, sandbox_id):
            raise NotFound(f"there is no cell `{cell_id[:80]}` in this sandbox", cell_id=cell_id[:80])
        work = self._running.get(cell_id)
        if work is not None and work.task is not None:
            await asyncio.wait({work.task}, timeout=wait_s)
        if cell_id in self._running:
            raise WrongState(f"cell `{cell_id}` runs", hint="wait for it with `wait_s`", cell_id=cell_id)
        ended = self._ledger.course(_call_of(cell_id)).get("call.ended")
        gone_at = self._retention.gone_at(info, None if ended is None else ended.seq)
        if gone_at is not None:
            self._drop(cell_id)
            raise ResultExpired(
                f"the result of cell `{cell_id}` was removed at {gone_at.isoformat(timespec='seconds')}",
                hint="its receipt has what is on record",
                cell_id=cell_id,
                removed_at=gone_at.isoformat(),
            )
        result = self._kept.get(cell_id)
        if result is not None and result.sandbox_id == sandbox_id:
            self._sessions.raise_taint(self._sandboxes.session(info).session_id, result.label)
            await self._taints.settle(info)
            return result
        raise ResultExpired(
            f"the result of cell `{cell_id}` is not kept any more",
            hint="its kernel's output has it; see `command_id` of the context",
            cell_id=cell_id,
        )

    def forget(self, sandbox_id: str) -> None:
        """What is kept of the cells of a sandbox whose result was deleted."""
        for cell_id in [one for one, result in self._kept.items() if result.sandbox_id == sandbox_id]:
            self._drop(cell_id)

    def _drop(self, cell_id: str) -> None:
        if self._kept.pop(cell_id, None) is not None:
            del self._kept_bytes[cell_id]

    async def interrupt(self, caller: Caller, sandbox_id: str, cell_id: str) -> None:
        """Stop a cell that runs; its result says so. Recorded. Raises NotFound, and WrongState if it does not run."""
        require(caller, "command.signal")
        info = self._sandboxes.get(caller, sandbox_id)
        if not self._is_of(cell_id, sandbox_id):
            raise NotFound(f"there is no cell `{cell_id[:80]}` in this sandbox", cell_id=cell_id[:80])
        kernels = [context.kernel for context in self._contexts.of(info) if context.kernel is not None]
        body = {"sandbox_id": sandbox_id, "agent_id": info.agent_id, "cell_id": cell_id, "caller": caller.name}
        self._ledger.append("cell.interrupted", cell_id, body)
        for kernel in kernels:
            if await kernel.interrupt(cell_id):
                return
        if (work := self._running.get(cell_id)) is not None and not work.has_begun:
            work.is_unwanted = True
            return
        raise WrongState(f"cell `{cell_id}` does not run", cell_id=cell_id)

    def _is_of(self, cell_id: str, sandbox_id: str) -> bool:
        started = self._ledger.course(_call_of(cell_id)).get("call.started")
        return started is not None and (started.body["sandbox_id"], started.body["tool"]) == (sandbox_id, "run_code")

    def admitted(self, cell_id: str, work: "_Work") -> None:
        assert work.task is not None
        self._running[cell_id] = work
        work.task.add_done_callback(lambda _: self._running.pop(cell_id, None))

    def keep(self, result: ToolResult) -> None:
        """For whoever asks again."""
        cell_id = result.value.get("cell_id")
        if not isinstance(cell_id, str):
            return
        size = len(result.value["stdout"]) + len(result.value["stderr"])
        size += sum(len(str(value)) for one in result.value["results"] for value in one["data"].values())
        self._kept[cell_id], self._kept_bytes[cell_id] = result, size
        while len(self._kept) > MOST_KEPT or (sum(self._kept_bytes.values()) > MOST_KEPT_BYTES and len(self._kept) > 1):
            gone, _ = self._kept.popitem(last=False)
            del self._kept_bytes[gone]


def _call_of(cell_id: str) -> str:
    return f"call_{cell_id.partition('_')[2]}"


class _Work:
    """One cell on its way."""

    def __init__(
        self,
        cells: Cells,
        caller: Caller,
        info: SandboxInfo,
        context: Context,
        request: CellRequest,
        session_id: str | None,
        events: "asyncio.Queue[CellEvent | None]",
        admitted: Callable[[str], None] | None,
    ) -> None:
        self._cells = cells
        self._caller = caller
        self._info = info
        self._context = context
        self._request = request
        self._session_id = session_id
        self._events = events
        self._tell_admitted = admitted
        self._kernel: LiveKernel | None = None
        self.task: asyncio.Task[ToolResult] | None = None
        self.has_turn = False
        self.has_left = False
        self.has_begun = False
        self.is_unwanted = False
        """To be interrupted as soon as it has begun."""
        self._is_judged = False
        self._is_admitted = asyncio.Event()
        self._is_cut = False
        self._interrupting: asyncio.Task[None] | None = None

    async def run(self) -> ToolResult:
        context = self._context
        context.queued += 1
        try:
            async with asyncio.timeout(self._request.queue_s):
                await context.turn.acquire()
        except TimeoutError:
            raise CellNotBegun(
                f"its turn did not come within {self._request.queue_s:g} s",
                sandbox_id=self._info.sandbox_id,
                context_id=context.info.context_id,
            ) from None
        finally:
            context.queued -= 1
        try:
            self.has_turn = True
            self._kernel = await self._cells.kernel(self._caller, self._info, context)
            if self.has_left:
                raise CellNotBegun("whoever sent it has left before its kernel had started")
            self._is_judged = True
            result = await self._cells.gate.run_cell(
                self._caller,
                self._info.sandbox_id,
                self._arguments(),
                self._kernel,
                show=self._show,
                admitted=self._admitted,
                begun=self._begun,
                session_id=self._session_id,
            )
            context.cells = self._kernel.cells
            self._cells.keep(result)
            return result
        finally:
            context.turn.release()

    def _arguments(self) -> dict[str, object]:
        request = self._request
        given = {"timeout_s": request.timeout_s, "inline_bytes": request.inline_bytes}
        return {
            "code": request.code,
            "language": self._context.info.language,
            "context_id": self._context.info.context_id,
            "env": dict(request.env),
            **{name: value for name, value in given.items() if value is not None},
        }

    def _admitted(self, cell_id: str) -> None:
        self._cells.admitted(cell_id, self)
        self._is_admitted.set()
        if self._tell_admitted is not None:
            self._tell_admitted(cell_id)

    def _begun(self) -> None:
        self.has_begun = True
        if self.is_unwanted:
            self._interrupting = asyncio.get_running_loop().create_task(self.interrupt())

    async def is_settled(self, task: "asyncio.Task[ToolResult]") -> None:
        """Return once it is known whether it will run, for one that the gate looks at in this moment."""
        if not self._is_judged or self._is_admitted.is_set():
            return
        admitted = asyncio.ensure_future(self._is_admitted.wait())
        try:
            await asyncio.wait({task, admitted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            admitted.cancel()

    def _show(self, event: CellEvent) -> None:
        if self._events.qsize() >= MOST_EVENTS - 1:
            self._is_cut = True
        if not self._is_cut:
            self._events.put_nowait(event)

    def tell_end(self) -> None:
        self._events.put_nowait(None)

    async def interrupt(self) -> None:
        self.is_unwanted = True
        kernel = self._kernel
        if kernel is not None and kernel.cell_id is not None:
            with contextlib.suppress(ColdframeError):
                await kernel.interrupt(kernel.cell_id)
