"""Contexts of code cells: which there are in a sandbox, and the kernel of each.

Those of Python and JavaScript are there without being made, and so is one of any other language once a cell names it. Nothing
runs for a context before its first cell, or until somebody makes it on purpose. What there is is read from the ledger, so it
outlives the server; a kernel that runs goes on with the next one.
"""

import asyncio
import builtins
import contextlib
import hashlib
import posixpath
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from coldframe.contract.caller import Caller
from coldframe.contract.cell import ContextInfo, Language, NewContext
from coldframe.contract.errors import ColdframeError, LimitReached, NotFound, from_wire
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.control.gate import Gate
from coldframe.control.kernels import LiveKernel
from coldframe.control.latest import keep_latest
from coldframe.control.ledger import Ledger
from coldframe.control.outputs import Outputs
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.tools.registry import HOME

MOST_CONTEXTS = 32
"""In one sandbox, beside those that are there without being made."""
MOST_SANDBOXES = 1000
"""Whose contexts are kept in memory; of others they are read again."""
OFFERED: tuple[Language, ...] = ("python", "javascript")
KINDS = ("context.opened", "context.restarted", "context.closed", "kernel.started")
_PAGE = 500


@dataclass
class Context:
    """One of them, with its queue."""

    info: ContextInfo
    kernel: LiveKernel | None = None
    is_starting: bool = False
    cells: int = 0
    """Run in kernels that somebody might miss."""
    queued: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One cell at a time."""

    def told(self) -> ContextInfo:
        kernel = self.kernel
        if self.is_starting:
            state = "starting"
        elif kernel is None or kernel.has_ended():
            state = "not_started"
        else:
            state = "idle" if kernel.cell_id is None else "busy"
        command_id = None if kernel is None else kernel.command_id
        return self.info.model_copy(update={"state": state, "command_id": command_id, "queued": self.queued})


class Contexts:
    """See the module."""

    def __init__(
        self, ledger: Ledger, sandboxes: Sandboxes, gate: Gate, outputs: Outputs, clock: Callable[[], datetime]
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._gate = gate
        self._outputs = outputs
        self._clock = clock
        self._held: dict[str, dict[str, Context]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Let go of kernels that are being started, which go on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def list(self, caller: Caller, sandbox_id: str) -> builtins.list[ContextInfo]:
        """Those of a sandbox, those that are there without being made first, and then as they were made."""
        require(caller, "command.read")
        info = self._sandboxes.get(caller, sandbox_id)
        for language in OFFERED:
            self.default(info, language)
        found = [one.told() for one in self._all(info).values()]
        return sorted(found, key=lambda one: not one.is_default)  # in order else

    async def open(self, caller: Caller, sandbox_id: str, wish: NewContext) -> ContextInfo:
        """Make one, and begin to start its kernel. Raises LimitReached, and WrongState if the sandbox has ended."""
        require(caller, "tool.call")
        info = self._sandboxes.get(caller, sandbox_id)
        self._sandboxes.require_running(info)
        held = self._all(info)
        if sum(not one.info.is_default for one in held.values()) >= MOST_CONTEXTS:
            raise LimitReached(
                f"{MOST_CONTEXTS} contexts are open in sandbox `{sandbox_id}`, and no more may",
                hint="close one that is not needed",
                sandbox_id=sandbox_id,
                limit=MOST_CONTEXTS,
            )
        context_id = "ctx_" + secrets.token_hex(10)
        cwd = posixpath.normpath(posixpath.join(HOME, wish.cwd))
        body = {"context_id": context_id, "language": wish.language, "cwd": cwd, "caller": caller.name}
        entry = self._ledger.append("context.opened", context_id, self._about(info, body))
        context = held[context_id] = Context(_info(info, context_id, wish.language, cwd, entry.at))
        self._start_soon(caller, context)
        return context.told()

    async def close_context(self, caller: Caller, sandbox_id: str, context_id: str) -> None:
        """End its kernel, and forget it. One that is there without being made begins anew. Raises NotFound."""
        context, info = self.find(caller, sandbox_id, context_id)
        self._ledger.append("context.closed", context_id, self._about(info, {"caller": caller.name}))
        self._all(info).pop(context_id, None)
        await self._end_kernel(caller, context)

    async def restart(self, caller: Caller, sandbox_id: str, context_id: str) -> ContextInfo:
        """End its kernel, with all that cells have defined, and begin to start another one. Raises NotFound."""
        context, info = self.find(caller, sandbox_id, context_id)
        self._sandboxes.require_running(info)
        self._ledger.append("context.restarted", context_id, self._about(info, {"caller": caller.name}))
        await self._end_kernel(caller, context)
        self._start_soon(caller, context)
        return context.told()

    def find(self, caller: Caller, sandbox_id: str, context_id: str) -> tuple[Context, SandboxInfo]:
        """Raises NotFound."""
        require(caller, "tool.call")
        info = self._sandboxes.get(caller, sandbox_id)
        for language in ("python", "javascript", "typescript", "bash", "r"):
            if context_id == _default_id(sandbox_id, language):
                return self.default(info, language), info
        found = self._all(info).get(context_id)
        if found is None:
            raise NotFound(
                f"there is no context `{context_id[:80]}`",
                hint="list the contexts of the sandbox, or leave it out and name a language",
                context_id=context_id[:80],
            )
        return found, info

    def of(self, info: SandboxInfo) -> builtins.list[Context]:
        """Those that there are in memory or on record."""
        return builtins.list(self._all(info).values())

    def alive(self, sandbox_id: str) -> builtins.list[str]:
        """Languages of the kernels of a sandbox that keep variables now."""
        held = self.of(self._sandboxes.find(sandbox_id))
        return [one.info.language for one in held if one.kernel is not None and not one.kernel.has_ended()]

    def default(self, info: SandboxInfo, language: Language) -> Context:
        """The one of that language that is there without being made."""
        held = self._all(info)
        context_id = _default_id(info.sandbox_id, language)
        if context_id not in held:
            told = _info(info, context_id, language, HOME, info.created_at)
            held[context_id] = Context(told.model_copy(update={"is_default": True}))
        return held[context_id]

    async def kernel(self, caller: Caller, info: SandboxInfo, context: Context) -> LiveKernel:
        """The kernel of a context, started if none runs. For whoever has its turn.

        Raises what a command does that may not run, or cannot be started.
        """
        kernel = context.kernel
        if kernel is not None and not kernel.has_ended():
            return kernel
        lost = None
        if kernel is not None and context.cells:
            lost = kernel.since_restart or "the one before it ended, with its sandbox or by itself"
        context.kernel, context.is_starting = None, True
        try:
            arguments = {"language": context.info.language, "cwd": context.info.cwd}
            result = await self._gate.call(caller, info.sandbox_id, "start_kernel", arguments)
            if result.error is not None:
                raise from_wire(result.error)
            command_id = str(result.value["command_id"])
            body = {"context_id": context.info.context_id, "command_id": command_id, "caller": caller.name}
            self._ledger.append("kernel.started", context.info.context_id, self._about(info, body))
            context.kernel = self._live(context.info, command_id, since_restart=lost)
        finally:
            context.is_starting = False
        return context.kernel

    def _start_soon(self, caller: Caller, context: Context) -> None:
        """Ahead of the first cell, which tells what goes wrong."""

        async def start() -> None:
            async with context.turn:
                with contextlib.suppress(ColdframeError):
                    await self.kernel(caller, self._sandboxes.find(context.info.sandbox_id), context)

        task = asyncio.get_running_loop().create_task(start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_kernel(self, caller: Caller, context: Context) -> None:
        kernel, context.kernel, context.cells = context.kernel, None, 0
        if kernel is not None and not kernel.has_ended():
            with contextlib.suppress(ColdframeError):
                await self._outputs.signal(caller, context.info.sandbox_id, kernel.command_id, 9, cancel=True)

    def _live(self, info: ContextInfo, command_id: str, *, since_restart: str | None) -> LiveKernel:
        return LiveKernel(
            info.context_id,
            info.language,
            command_id,
            since_restart=since_restart,
            ended=lambda: not self._gate.is_under_way(command_id),
        )

    def _all(self, info: SandboxInfo) -> dict[str, Context]:
        held = self._held.get(info.sandbox_id)
        if held is None:
            held = self._load(info)
            if info.state.state not in ENDED:
                keep_latest(self._held, info.sandbox_id, held, MOST_SANDBOXES)
        return held

    def _load(self, info: SandboxInfo) -> dict[str, Context]:
        """As the ledger has it."""
        held: dict[str, Context] = {}
        kernels: dict[str, str] = {}
        after = 0
        while page := self._ledger.entries(after=after, sandbox_id=info.sandbox_id, kinds=KINDS, limit=_PAGE):
            after = page[-1].seq
            for entry in page:
                body = entry.body
                if entry.kind == "context.opened":
                    held[entry.subject] = Context(_info(info, entry.subject, body["language"], body["cwd"], entry.at))
                elif entry.kind == "kernel.started":
                    kernels[entry.subject] = body["command_id"]
                else:
                    kernels.pop(entry.subject, None)
                    if entry.kind == "context.closed":
                        held.pop(entry.subject, None)
        self._held[info.sandbox_id] = held
        for language in ("python", "javascript", "typescript", "bash", "r"):
            if _default_id(info.sandbox_id, language) in kernels:
                self.default(info, language)
        for context_id, command_id in kernels.items():
            if (context := held.get(context_id)) is not None:
                context.kernel = self._live(context.info, command_id, since_restart=None)
                context.cells = 1  # nobody knows
        del self._held[info.sandbox_id]
        return held

    @staticmethod
    def _about(info: SandboxInfo, body: dict[str, str]) -> dict[str, str | None]:
        return {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id, "session_id": info.session_id, **body}


def _default_id(sandbox_id: str, language: str) -> str:
    return "ctx_" + hashlib.sha256(f"{sandbox_id}\0{language}".encode()).hexdigest()[:20]


def _info(info: SandboxInfo, context_id: str, language: Language, cwd: str, created_at: datetime) -> ContextInfo:
    return ContextInfo(
        context_id=context_id,
        sandbox_id=info.sandbox_id,
        language=language,
        cwd=cwd,
        state="not_started",
        is_default=False,
        created_at=created_at,
    )
