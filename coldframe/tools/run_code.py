"""run_code: run one cell of code in the kernel of a context, and tell all that it shows."""

import json
from typing import Annotated, Any

from pydantic import Field, StrictFloat, StrictInt

from coldframe.contract.cell import (
    INLINE_BYTES,
    MOST_CODE_BYTES,
    OUTPUT_BYTES,
    CellAnswer,
    CellBegun,
    CellEnded,
    CellError,
    CellOrder,
    CellResult,
    CellText,
    Language,
    cell_id_of,
)
from coldframe.contract.errors import GuestLost, InvalidArgument
from coldframe.contract.profile import find_install, require_capability, require_install
from coldframe.contract.sandbox import SandboxSpec
from coldframe.tools.registry import Answer, Arguments, CallFacts, Ran, Text, ToolCall, check_limits, tool

MOST_INLINE_BYTES = 64 * 1024 * 1024
TEXT_CAP = 8 * 1024 * 1024
"""Most characters of one stream in the answer; its events have all."""


class RunCodeArguments(Arguments):
    code: Text = Field(max_length=MOST_CODE_BYTES)
    language: Language = "python"
    context_id: str = Field(description="The context in whose kernel it runs.")
    timeout_s: Annotated[StrictFloat | StrictInt, Field(gt=0)] | None = Field(
        default=None, description="Wall time in seconds; by default, and at most, that of a command of the sandbox."
    )
    env: dict[Text, Text] = Field(default_factory=dict, description="Variables of the environment for this cell alone.")
    inline_bytes: Annotated[StrictInt, Field(ge=1024, le=MOST_INLINE_BYTES)] = Field(
        default=INLINE_BYTES, description="A value that is longer is kept as a file of the workspace."
    )

    def facts(self) -> CallFacts:
        """As if a program were called with the code: that is what rules know how to read."""
        return CallFacts(
            command=self.code if self.language == "bash" else None,
            argv={
                "python": ("python3", "-c", self.code),
                "javascript": ("deno", "eval", self.code),
                "typescript": ("deno", "eval", self.code),
                "r": ("Rscript", "-e", self.code),
            }.get(self.language),
            timeout_s=None if self.timeout_s is None else float(self.timeout_s),
            environment=tuple(self.env.items()),
            in_kernel=True,
        )

    def fit(self, spec: SandboxSpec) -> None:
        if self.language == "bash":
            require_capability(spec.profile, "shell")
        if (manager := find_install(self.code)) is not None:
            require_install(spec.profile, manager)
        check_limits(spec.limits, timeout_s=self.timeout_s)


class RunCodeAnswer(CellAnswer, Answer):
    """As on every surface."""


class _Gathered:
    """What a cell has told so far."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self.sizes = {"stdout": 0, "stderr": 0}
        self.results: list[CellResult] = []
        self.error: CellError | None = None

    def add(self, event: CellBegun | CellText | CellResult | CellError) -> None:
        if isinstance(event, CellBegun):
            self.count = event.execution_count
        elif isinstance(event, CellText):
            room = TEXT_CAP - self.sizes[event.event]
            self.sizes[event.event] += len(event.text)
            if room > 0:
                self.texts[event.event].append(event.text[:room])
        elif isinstance(event, CellResult):
            self.results.append(event)
        else:
            self.error = event

    def judged(self) -> bytes:
        """All that the caller would see."""
        parts: list[Any] = [*self.texts["stdout"], *self.texts["stderr"]]
        parts += [json.dumps(one.data, ensure_ascii=False) for one in self.results]
        if self.error is not None:
            parts += [self.error.name, self.error.value, self.error.traceback]
        return "\0".join(parts).encode("utf-8", "replace")


@tool(arguments=RunCodeArguments, answer=RunCodeAnswer, writes=True, listed=False)
async def run_code(call: ToolCall[RunCodeArguments]) -> Ran:
    """Run code in a context that keeps its variables from cell to cell. Returns what it printed, what it showed in each
    form that there is of it, and the error that it raised."""
    arguments, kernel = call.arguments, call.kernel
    if kernel is None:
        raise InvalidArgument(
            "a code cell needs the kernel of its context",
            hint="send it to `POST /v1/sandboxes/{id}/cells`, which finds or starts that",
            argument="context_id",
        )
    order = CellOrder(
        cell_id=cell_id_of(call.command_id),
        code=arguments.code,
        timeout_s=arguments.timeout_s or call.spec.limits.wall_s,
        env=arguments.env,
        inline_bytes=arguments.inline_bytes,
        output_bytes=max(OUTPUT_BYTES, 2 * arguments.inline_bytes),
    )
    gathered = _Gathered()
    async for event in kernel.run(call.box, order):
        call.show(event)
        if isinstance(event, CellEnded):
            answer = _answer(kernel.context_id, arguments.language, order.cell_id, gathered, event)
            return Ran(answer, gathered.judged, len(gathered.judged()))
        gathered.add(event)
    raise GuestLost(f"cell `{order.cell_id}` ended without a result", cell_id=order.cell_id)


def _answer(context_id: str, language: Language, cell_id: str, gathered: _Gathered, end: CellEnded) -> RunCodeAnswer:
    return RunCodeAnswer(
        cell_id=cell_id,
        context_id=context_id,
        language=language,
        status=end.status,
        code=end.code,
        message=end.message,
        execution_count=gathered.count,
        stdout="".join(gathered.texts["stdout"]),
        stderr="".join(gathered.texts["stderr"]),
        complete=max(gathered.sizes.values()) <= TEXT_CAP and end.status != "output_limit",
        results=tuple(gathered.results),
        error=gathered.error,
        exit_code=end.exit_code,
        duration_ms=end.duration_ms,
        kernel_restarted=end.kernel_restarted,
        lost=end.lost,
        lost_count=end.lost_count,
    )
