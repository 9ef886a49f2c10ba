"""What the SDK's typed methods return: the answers of the tools, by their published schemas.

A newer server may say more: fields unknown here are ignored. Each answer carries the whole ToolResult it
came in, with label, decision and receipt, as `result`.
"""

import base64
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from coldframe.contract.cell import CellError, CellResult
from coldframe.contract.command import Contact, EndedWith, FileChanges, Leftover, LimitHit, ShellSession
from coldframe.contract.diagnosis import Diagnosis
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.tool import ToolResult


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    _result: ToolResult | None = PrivateAttr(default=None)

    @property
    def result(self) -> ToolResult:
        """Label, taint, decision and receipt of the call."""
        if self._result is None:
            raise AttributeError("this answer was not made by a call")
        return self._result


Bytes = bytes
"""The type, where a field of the same name hides it."""


class Written(Answer):
    path: str
    bytes_written: int
    created: bool
    version: str
    sha256: str
    sha256_before: str | None = None


class FileContent(Answer):
    path: str
    content: str | None = None
    """The exact text; None if the file is binary or base64 was asked for."""
    content_base64: str | None = None
    binary: bool
    encoding: Literal["utf-8", "base64"]
    offset: int
    bytes: int
    next_offset: int | None = None
    total_bytes: int
    complete: bool
    version: str
    mode: int

    @property
    def data(self) -> Bytes:
        """The content as bytes, whatever form it came in."""
        if self.content is not None:
            return self.content.encode()
        return base64.b64decode(self.content_base64 or "")


class Edited(Answer):
    path: str
    content: str | None = None
    content_base64: str | None = None
    replacements: int
    bytes_written: int
    version: str
    sha256: str
    sha256_before: str


class DirectoryEntry(Answer):
    path: str
    name: str
    type: str
    size: int
    mode: int
    modified_at: datetime
    target: str | None = None


class Unreadable(Answer):
    path: str
    reason: str


class Listing(Answer):
    path: str
    entries: tuple[DirectoryEntry, ...]
    complete: bool
    truncated_because: str | None = None
    next_after: str | None = None
    errors: tuple[Unreadable, ...] = ()


class PathEntry(Answer):
    path: str
    """From the root of the sandbox on."""
    name: str
    type: str
    size: int
    mode: int
    modified_at: datetime
    target: str | None = None
    leads_to: str | None = None
    """Of a link: the place behind all links, if there is one."""
    leads_to_type: str | None = None
    version: str | None = None
    uid: int
    gid: int
    owner: str
    group: str
    accessed_at: datetime
    changed_at: datetime
    metadata: dict[str, str] = Field(default_factory=dict)


class PathListing(Answer):
    path: str
    entries: tuple[PathEntry, ...]
    complete: bool
    truncated_because: str | None = None
    next_after: str | None = None
    errors: tuple[Unreadable, ...] = ()


class MadeDirectory(Answer):
    created: bool
    entry: PathEntry


class MovedPath(Answer):
    entry: PathEntry


class Match(Answer):
    path: str
    line: int
    text: str
    clipped: bool = False


class Found(Answer):
    matches: tuple[Match, ...]
    complete: bool
    truncated_because: str | None = None
    files_searched: int
    binary_skipped: int
    large_skipped: tuple[str, ...] = ()
    special_skipped: int = 0
    directories_skipped: tuple[str, ...] = ()
    errors: tuple[Unreadable, ...] = ()


class StreamView(Answer):
    bytes: int
    sha256: str
    invalid_utf8: bool
    complete: bool
    omitted_bytes: int
    omitted_at: int | None = None


class Segment(Answer):
    stream: Literal["stdout", "stderr"]
    bytes: int
    text: str | None = None
    base64: str | None = None


class CommandAnswer(Answer):
    """How a command went. A failing program is a result, never an exception."""

    command_id: str
    state: Literal["running", "ended"]
    ended: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    cancelled: bool = False
    ended_with: EndedWith | None = None
    out_of_memory: bool = False
    limit: LimitHit | None = None
    start_error: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    duration_ms: float | None = None
    paused_s: float = 0.0
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    encoding: Literal["utf-8", "base64"] = "utf-8"
    stdout: str | None = None
    stderr: str | None = None
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    invalid_utf8: bool = False
    complete: bool = False
    truncated: bool = False
    streamed: bool = False
    stdout_info: StreamView | None = None
    stderr_info: StreamView | None = None
    transcript: tuple[Segment, ...] | None = None
    order: str | None = None
    leftovers: tuple[Leftover, ...] = ()
    shell_session: ShellSession | None = None
    leftovers_ended: int = 0
    files: FileChanges | None = None
    contacts: tuple[Contact, ...] = ()
    outputs: DeclaredOutputs | None = None
    diagnosis: Diagnosis | None = None
    """What its output says is missing, with an action that may help."""
    artifact_id: str
    pid: int | None = None


class LiveRules(Answer):
    """The rule set in force."""

    text: str
    sha256: str


class CellOutcome(Answer):
    """What a code cell came to. Code that raises an error is an outcome, never an exception."""

    cell_id: str
    context_id: str
    language: str
    status: str
    """`ok`, `error`, or what ended it: `timed_out`, `interrupted`, `output_limit`, `kernel_died`, `withdrawn`."""
    code: str | None = None
    message: str | None = None
    execution_count: int | None = None
    stdout: str
    stderr: str
    complete: bool
    results: tuple[CellResult, ...]
    error: CellError | None = None
    exit_code: int | None = None
    duration_ms: float
    kernel_restarted: bool = False
    """Nothing that cells have defined before is there any more."""
    lost: tuple[str, ...] = ()
    lost_count: int = 0

    @property
    def text(self) -> str | None:
        """Of the value of the cell."""
        return next((one.text for one in self.results if one.is_main), None)
