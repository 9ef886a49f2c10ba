"""Code cells: pieces of code that a kernel of a sandbox runs one after the other, and what they show."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.ports import Box

DRIVER = "/opt/coldframe/code/coldframe/kernel"
"""In every box: the program that keeps a kernel."""
LENT = "/opt/coldframe/interpreter"
"""In a box, where the machine lends it: packages for code cells, by version of Python."""
MOST_CODE_BYTES = 4 * 1024 * 1024
INLINE_BYTES = 1024 * 1024
"""A value that is longer is a file of the workspace, unless the call says otherwise."""
OUTPUT_BYTES = 64 * 1024 * 1024
"""Most output of one cell. One that writes more is ended."""

Language = Literal["python", "javascript", "typescript", "bash", "r"]
ContextId = Annotated[str, Field(pattern=r"^ctx_[0-9a-f]{20}$")]


def keeps_kernel(argv: tuple[str, ...] | None) -> bool:
    """Whether a command waits for cells as long as its sandbox lives, and is no work by itself."""
    return argv is not None and argv[:2] == ("python3", DRIVER)


class NewContext(Model):
    language: Language = "python"
    cwd: Annotated[str, Field(max_length=4096)] = ""
    """Relative to the workspace, or absolute in the box."""


class ContextInfo(Model):
    """One kernel with its variables, and its own queue of cells."""

    context_id: str
    sandbox_id: str
    language: Language
    cwd: str
    """Absolute in the box."""
    state: Literal["not_started", "starting", "idle", "busy"]
    is_default: bool
    """There without being made: cells that name a language alone go to it."""
    command_id: str | None = None
    """The command that its kernel is, if one was started."""
    queued: int = 0
    """Cells that wait for their turn."""
    created_at: datetime


class CellRequest(Model):
    """One cell as a caller sends it."""

    code: Annotated[str, Field(max_length=MOST_CODE_BYTES)]
    context_id: ContextId | None = None
    """None for the one of the language that is there without being made."""
    language: Language | None = None
    """None for that of the context; Python without one."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """From its beginning on. None for as long as a command of the sandbox may run, which is the most as well."""
    queue_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """How long it waits for its turn, before it is given up; None for as long as it takes."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the environment for this cell alone."""
    inline_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] | None = None
    """A value that is longer is kept as a file of the workspace; None for a MiB."""


class CellOrder(Model):
    """One cell as the kernel gets it."""

    cell_id: str
    code: str
    timeout_s: float
    env: dict[str, str] = Field(default_factory=dict)
    inline_bytes: int = INLINE_BYTES
    output_bytes: int = OUTPUT_BYTES


class CellBegun(Model):
    event: Literal["begun"] = "begun"
    cell_id: str
    execution_count: int
    """How many cells the kernel has begun, this one included."""


class CellText(Model):
    event: Literal["stdout", "stderr"]
    text: str
    at_ns: int
    """Nanoseconds since 1970."""


class CellArtifact(Model):
    """A value that was too large to be shown, as a file of the workspace."""

    path: str | None
    """Relative to the workspace; None if it could not be kept."""
    problem: str | None = None
    """Why not."""
    bytes: int
    sha256: str


class CellResult(Model):
    """One thing that a cell shows, in one or more forms."""

    event: Literal["result"] = "result"
    data: dict[str, Any]
    """By MIME type, as Jupyter has it: bytes in base64. Beside these `e2b/data`, columns of a data frame, and `e2b/chart`."""
    artifacts: dict[str, CellArtifact] = Field(default_factory=dict)
    """Forms that were too large."""
    clipped: dict[str, int] = Field(default_factory=dict)
    """Texts of which `data` has but the beginning, and how many characters they have."""
    is_main: bool = False
    """The value of the cell, and nothing that it displayed."""


class CellError(Model):
    """What the code has raised."""

    event: Literal["error"] = "error"
    name: str
    value: str
    traceback: str
    code: str | None = None
    """`INPUT_NOT_SUPPORTED`: it asked for input, and there is nobody to ask."""


CellStatus = Literal["ok", "error", "timed_out", "interrupted", "output_limit", "kernel_died", "withdrawn"]


class CellEnded(Model):
    event: Literal["ended"] = "ended"
    status: CellStatus
    code: str | None = None
    """`TIMED_OUT_WALL`, `CANCELLED`, `LIMIT_OUTPUT`, or `KERNEL_RESTARTED`; None for a cell that ended by itself."""
    message: str | None = None
    exit_code: int | None = None
    """Of the last command, in bash."""
    duration_ms: float
    kernel_restarted: bool = False
    """The kernel was replaced: nothing that cells have defined is there any more."""
    lost: tuple[str, ...] = ()
    """Variables that are gone with it, the first 200; known of Python."""
    lost_count: int = 0


CellEvent = CellBegun | CellText | CellResult | CellError | CellEnded


class Kernel(Protocol):
    """The kernel of a context, as the tool that runs a cell is handed it."""

    context_id: str
    language: Language
    command_id: str
    since_restart: str | None
    """Why the one before it is gone, if cells had run in that and nobody was told yet."""

    def run(self, box: Box, order: CellOrder) -> AsyncIterator[CellEvent]:
        """The events of a cell up to its end.

        Raises:
            WrongState: the kernel cannot be started; why is in the message.
        """
        ...
