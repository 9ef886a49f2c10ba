"""Code cells: pieces of code that a kernel of a sandbox runs one after the other, and what they show."""

import base64
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.outputs import Patterns
from coldframe.contract.policy import Label
from coldframe.contract.ports import Box
from coldframe.contract.template import HOST, TemplateRef

DRIVER = "/opt/coldframe/code/coldframe/kernel"
"""In every box: the program that keeps a kernel."""
LENT = "/opt/coldframe/interpreter"
"""In a box, where the machine lends it: packages for code cells, by version of Python."""
MOST_CODE_BYTES = 4 * 1024 * 1024
INLINE_BYTES = 1024 * 1024
"""A value that is longer is a file of the workspace, unless the call says otherwise."""
OUTPUT_BYTES = 32 * 1024 * 1024
"""Most that one cell writes and shows together, or twice as much as one value may be. One that goes on is ended."""

BINARY_KINDS = frozenset({"image/png", "image/jpeg", "image/gif", "application/pdf"})
"""Base64 in Jupyter's messages."""

Language = Literal["python", "javascript", "typescript", "bash", "r"]
ContextId = Annotated[str, Field(pattern=r"^ctx_[0-9a-f]{20}$")]


def keeps_kernel(argv: tuple[str, ...] | None) -> bool:
    """Whether a command waits for cells as long as its sandbox lives, and is no work by itself."""
    return argv is not None and argv[:2] == ("python3", DRIVER)


def cell_id_of(command_id: str) -> str:
    """The name of a cell, which is that of its call in another form."""
    return f"cell_{command_id.partition('_')[2]}"


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

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def png(self) -> bytes | None:
        return self.content("image/png")

    def content(self, kind: str) -> bytes | None:
        """The bytes of a form, of one that Jupyter has in base64 those that are meant; None if it is not shown in it."""
        text = self._text(kind)
        if text is None:
            return None
        return base64.b64decode(text) if kind in BINARY_KINDS else text.encode()

    def _text(self, kind: str) -> str | None:
        value = self.data.get(kind)
        return value if isinstance(value, str) else None


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


class CellAnswer(Model):
    """What a cell came to, whole."""

    cell_id: str
    context_id: str
    language: Language
    status: CellStatus
    code: str | None
    """Why it did not end by itself; see `CellEnded`."""
    message: str | None
    execution_count: int | None
    """None for a cell that never began."""
    stdout: str
    stderr: str
    complete: bool
    """Both texts are here in full."""
    results: tuple[CellResult, ...]
    error: CellError | None
    exit_code: int | None
    duration_ms: float
    kernel_restarted: bool
    lost: tuple[str, ...]
    lost_count: int


CellEvent = CellBegun | CellText | CellResult | CellError | CellEnded


class Attachment(Model):
    """A file that was attached to a conversation."""

    path: str
    """In the workspace, to be read and not written."""
    name: str
    """As it was attached."""
    bytes: int
    sha256: str
    source: str | None = None
    note: str | None = None
    """What is to be known of it, as that its name was taken."""


InputName = Annotated[str, Field(pattern=r"^[^/\x00-\x1f\x7f]+$", min_length=1, max_length=255)]


class OnceRequest(Model):
    """One run in a sandbox of its own, which is gone when it is answered."""

    code: Annotated[str, Field(max_length=MOST_CODE_BYTES)]
    language: Language = "python"
    files: dict[InputName, bytes] = Field(default_factory=dict, max_length=100)
    """In base64; found as `inputs/NAME`, to be read and not written."""
    outputs: Patterns = ()
    """Files that it makes, as `chart.png`, to be given back."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    template: TemplateRef = HOST
    keep: Literal["nothing", "io"] = "nothing"
    """`io`: which inputs there were, by their digests, and the outputs are kept under the id of the run."""
    source: dict[InputName, str] = Field(default_factory=dict)
    """Where files are from, for the record."""
    again: Annotated[str, Field(pattern=r"^once_[0-9a-f]{24}$")] | None = None
    """The run of before that this one repeats: with other inputs than it had, nothing runs."""


class OnceFile(Model):
    """A file that went in or came out."""

    path: str
    bytes: int
    sha256: str
    source: str | None = None


class OnceOutput(OnceFile):
    content: bytes
    """In base64."""


class OnceAnswer(Model):
    """What a run came to. Nothing of it is left but what is on record, and what was to be kept."""

    once_id: str
    sandbox_id: str
    outcome: CellAnswer
    inputs: tuple[OnceFile, ...]
    outputs: tuple[OnceOutput, ...]
    missing: tuple[str, ...]
    """Patterns of outputs that nothing fits."""
    receipt_id: str | None
    label: Label


class OnceRecord(Model):
    """What is kept of one that was to be kept."""

    once_id: str
    sandbox_id: str
    at: datetime
    code_sha256: str
    language: Language
    inputs: tuple[OnceFile, ...]
    outputs: tuple[OnceFile, ...]
    receipt_id: str | None


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
