"""One call under way: its outcome for whoever waits, and its output for whoever watches.

The task that runs a call never waits for a watcher: chunks go into a queue of fixed length, and a watcher
that falls behind reads on from where the box keeps the output. So a slow or vanished reader delays neither
the command nor its record, and memory does not grow with the output.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime

from coldframe.contract.cell import CellEvent, Kernel
from coldframe.contract.command import CommandEvent, Ended, OutputChunk, Started
from coldframe.contract.ledger import CallStarted, Shown
from coldframe.contract.policy import Decision, Label
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.tool import ToolResult
from coldframe.control.call_records import CallIds
from coldframe.policy.rules import RuleSet
from coldframe.tools.registry import Answer, Arguments, CallFacts, Ran, ToolSpec

QUEUE_CHUNKS = 64
"""Chunks kept for a watcher. A chunk of the host holds at most 64 KiB."""

Follow = Callable[[int], AsyncIterator[CommandEvent]]


class Watch:
    """The live output of one call for one watcher."""

    def __init__(self) -> None:
        self._waiting: deque[CommandEvent] = deque()
        self._wake = asyncio.Event()
        self._lagging = False
        self._closed = False
        self._newest_seq = -1
        self._begun = False

    def put(self, event: CommandEvent) -> None:
        """Take the next event. What has been here before, after a reconnection, is dropped."""
        if isinstance(event, OutputChunk):
            if event.seq <= self._newest_seq:
                return
            self._newest_seq = event.seq
        elif isinstance(event, Started):
            if self._begun:
                return
            self._begun = True
        if len(self._waiting) >= QUEUE_CHUNKS:
            self._lagging = True
        elif not self._lagging:
            self._waiting.append(event)
        self._wake.set()

    def close(self) -> None:
        """Say that nothing more comes."""
        self._closed = True
        self._wake.set()

    async def events(self, follow: Follow) -> AsyncGenerator[CommandEvent, None]:
        """Yield every event once, in order; read on with *follow* where the queue was too short."""
        last_seq = -1
        while True:
            while self._waiting:
                event = self._waiting.popleft()
                if isinstance(event, OutputChunk):
                    last_seq = event.seq
                yield event
                if isinstance(event, Ended):
                    return
            if self._lagging:
                break
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()
        async for event in follow(last_seq):
            if not isinstance(event, Started):
                yield event


@dataclass
class Flight:
    """One call that was let through."""

    ids: CallIds
    started: CallStarted
    started_seq: int
    started_at: datetime
    info: SandboxInfo
    spec: ToolSpec
    arguments: Arguments
    facts: CallFacts
    rules: RuleSet
    decision: Decision
    box: Box
    taint: Label
    """Of the session, once the call had started."""
    lost: list[bool] = field(default_factory=list)
    """Not empty if its start waited for a commit that failed: it is not on record then, and nothing of it may be told."""
    recovered: bool = False
    """Taken over from a server that stopped."""
    attach: bool = False
    keep_output: bool = True
    watch: Watch | None = None
    _watch_free: bool = True
    aborted: bool = False
    deliver: Callable[[bytes], None] | None = None
    """Takes the content of a file that is read, for a caller that gets it once the result has been judged."""
    tell_shown: Callable[[Shown], None] | None = None
    """Takes what is put on record of that content."""
    kernel: Kernel | None = None
    """Of a code cell."""
    show: Callable[[CellEvent], None] = lambda _: None
    """Of a code cell: takes its events as they happen."""
    work: "asyncio.Task[Ran] | None" = None
    running: "Callable[[], Answer] | None" = None
    """Makes the answer for a caller who waits no longer, once a command runs."""
    left: bool = False
    """Whoever called waits no longer for its end."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _outcome: ToolResult | BaseException | None = None
    _waiting: "list[asyncio.Future[None]]" = field(default_factory=list)
    _ends: "list[asyncio.Future[None]]" = field(default_factory=list)
    _has_ended: bool = False

    async def landed(self) -> ToolResult:
        """Return, or raise, what the call came to. Whoever stops waiting stops nothing else.

        A future for each who waits, and not a shield around a common one: that costs a turn of the loop more.
        """
        if self._outcome is None:
            waiter = self.loop.create_future()
            self._waiting.append(waiter)
            await waiter
        if isinstance(self._outcome, ToolResult):
            return self._outcome
        if self._outcome is None:
            raise RuntimeError("the call has not landed")
        raise self._outcome

    async def over(self, wait_s: float) -> None:
        """Return when the call has its end, which for one in the background is after it was answered; or after *wait_s*."""
        if not self._has_ended:
            waiter = self.loop.create_future()
            self._ends.append(waiter)
            try:
                await asyncio.wait([waiter], timeout=wait_s)
            finally:
                self._ends.remove(waiter)

    def end(self) -> None:
        """Nothing more is done for the call."""
        self._has_ended = True
        for waiter in self._ends:
            if not waiter.done():
                waiter.set_result(None)

    def take_watch(self) -> Watch | None:
        """Return the live output, once: it has room for one watcher."""
        taken, self._watch_free = self.watch if self._watch_free else None, False
        return taken

    def settle(self, result: ToolResult | BaseException) -> None:
        """Hand the outcome to whoever waits. Only the first one counts: a background call has its early answer."""
        if self._outcome is not None:
            return
        self._outcome = result
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def emit(self, event: CommandEvent) -> None:
        if self.watch is not None:
            self.watch.put(event)
