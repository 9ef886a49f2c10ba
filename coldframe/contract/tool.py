"""What a tool call answers on every surface."""

from typing import Any, Literal

from coldframe.contract.model import Model
from coldframe.contract.policy import Label, Outcome


class ToolInfo(Model):
    """One tool as discovery shows it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]


class ToolResult(Model):
    """The answer of one call. Without a label no result leaves the gate: the field has no default."""

    call_id: str
    tool: str
    sandbox_id: str
    session_id: str
    label: Label
    label_reason: str
    taint: Label
    """Label of the session after the call."""
    decision: Outcome
    rule_id: str
    value: dict[str, Any]
    """The tool's own answer, by its output schema; empty if `error` is set."""
    error: dict[str, Any] | None = None
    """The wire form of a ColdframeError."""
    degraded: tuple[str, ...] = ()
    receipt_id: str | None = None


class AllowedOperation(Model):
    operation: str
    answer: Literal["allow", "ask", "deny"]
    condition: str | None = None
    rule_id: str | None = None


class OutputWindow(Model):
    """A part of one stream of a past or running command, byte for byte."""

    command_id: str
    stream: Literal["stdout", "stderr", "both"]
    """`both`: in the order in which they were read."""
    offset: int
    data: bytes
    next_offset: int | None
    """Where the rest begins; None if the command has ended and this is the last of it."""
    total_bytes: int
    """Of the whole stream; of what there is so far, while the command runs."""
    sha256: str | None
    """Of the whole stream; None while the command runs, or if it was lost."""
    ended: bool
    label: Label
