"""Entries of the ledger, the bodies of entries about calls, and what verification finds.

A body is dumped with ``model_dump(mode="json")`` and holds no floats, which have no single canonical
form: durations are whole microseconds, limits whole numbers of the unit in their name.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from coldframe.contract.command import FileChanges
from coldframe.contract.diagnosis import Diagnosis
from coldframe.contract.model import Model
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.packages import Dependency
from coldframe.contract.policy import CallContext, Decision, InputContext, Label, ResultContext


class LedgerEntry(Model):
    """One record. `hash` is SHA-256 over the canonical JSON of all other fields."""

    seq: int
    at: datetime
    kind: str
    """`call.started`, `call.ended`, `call.refused`, `call.interrupted`, `policy.changed`,
    `sandbox.created`, `token.created` …"""
    subject: str
    """Id of what it is about: a call, sandbox, agent, token."""
    body: dict[str, Any]
    """No floats: they have no single canonical form."""
    previous: str
    hash: str


class LedgerFault(Model):
    kind: Literal["changed", "reordered", "missing", "tail_missing", "checkpoint_invalid", "checkpoint_missing"]
    seq: int
    """Entry at which it shows; 0 if it concerns the ledger as a whole."""
    message: str


class LedgerVerdict(Model):
    intact: bool
    entries: int
    head_seq: int
    head_hash: str
    checkpoints: int
    faults: tuple[LedgerFault, ...] = ()


class ExecutionInputs(Model):
    """What a run was started with, for the receipt: enough for a second person to run it again."""

    user: str
    """Name inside the box."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Name to SHA-256 of the value; values are never recorded."""
    stdin_bytes: int = 0
    stdin_sha256: str
    runtime_version: str | None = None
    runtime_path: str | None = None
    """The program that the named runtime was, as seen inside; None if none was named."""
    template: str
    template_sha256: str | None = None
    isolation: str
    limits: dict[str, int] = Field(default_factory=dict)
    """Whole numbers, unit in the name: `wall_ms`, `cpu_ms`, `memory_mib`, `disk_mib`, `pids`,
    `open_files`, `file_mib`, `cpus_milli`, and `idle_ms` and `io_mib_s` where there is such a limit."""


class StreamDigest(Model):
    bytes: int
    sha256: str
    invalid_utf8: bool = False


class Shown(Model):
    """What a tool that runs nothing handed out."""

    bytes: int
    sha256: str
    whole: bool
    """False for a range of a file."""


class CallRecord(Model):
    """What every entry about a call says. The subject of the entry is `call_id`."""

    call_id: str
    sandbox_id: str
    agent_id: str | None
    session_id: str
    caller: str
    """Surface and token, as `rest:tok_…`."""
    tool: str
    taint_before: Label


class CallStarted(CallRecord):
    """Body of `call.started`: allowed, and about to run. Written before anything happens in the box."""

    role: str
    command: str | None = None
    argv: tuple[str, ...] | None = None
    cwd: str | None = None
    runtime: str | None = None
    shell_session: str | None = None
    command_id: str | None = None
    """For tools that run something."""
    arguments_sha256: str
    idempotency_key: str | None = None
    approval_id: str | None = None
    context: CallContext
    decision: Decision
    inputs: ExecutionInputs | None = None
    snapshot_ids: tuple[str, ...] = Field(default=(), exclude_if=lambda ids: not ids)
    """What was read in place of the files of the sandbox."""
    source: str | None = Field(default=None, exclude_if=lambda source: source is None)
    """Where the file that it writes is from, as the caller says."""
    outputs: tuple[str, ...] = Field(default=(), exclude_if=lambda patterns: not patterns)
    """Patterns of the outputs that it declares."""


class CallEnded(CallRecord):
    """Body of `call.ended`: what came of a started call, decision of POST_TOOL_RESPONSE included."""

    started_seq: int
    command_id: str | None = None
    ended: Literal[
        "answered", "failed", "exited", "signalled", "timed_out", "cancelled", "limit", "lost", "not_started"
    ]
    """`answered` and `failed` for tools that run nothing; otherwise how the command ended."""
    error_code: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    limit: str | None = None
    """Kind of the limit that ended the command."""
    started_at: datetime
    ended_at: datetime
    duration_us: int
    cpu_us: int | None = None
    peak_memory_bytes: int | None = None
    disk_change_bytes: int | None = None
    """Growth of the workspace; negative if it shrank, None where it was not measured."""
    stdout: StreamDigest | None = None
    stderr: StreamDigest | None = None
    leftovers: int = 0
    """Processes that outlived the command and run on."""
    endpoints: tuple[str, ...] = ()
    """Contacts, as `tcp:203.0.113.9:443:refused`."""
    files: FileChanges | None = None
    dependencies: tuple[Dependency, ...] = Field(default=(), exclude_if=lambda dependencies: not dependencies)
    """What registries had handed over to it by its end, the first of it."""
    dependencies_omitted: int = Field(default=0, exclude_if=lambda omitted: not omitted)
    """More of these than have room here; the log of the network has all."""
    source: str | None = Field(default=None, exclude_if=lambda source: source is None)
    """As in the record of the start."""
    outputs: DeclaredOutputs | None = Field(default=None, exclude_if=lambda outputs: outputs is None)
    """None for a call that declared none."""
    diagnosis: Diagnosis | None = Field(default=None, exclude_if=lambda diagnosis: diagnosis is None)
    """What its output says is missing; not of one whose result was withheld."""
    shown: Shown | None = None
    """None for commands, which have `stdout` and `stderr`, and where nothing but what was done is told."""
    label: Label
    label_reason: str
    taint_after: Label
    lineage_ids: tuple[str, ...] = ()
    """Not filled in: they follow from what is here (`derivation.py`), and old entries have this field."""
    context: ResultContext | None = None
    decision: Decision | None = None


class InputSent(CallRecord):
    """Body of `call.input`: bytes for the input of a command that runs, let through and about to be sent. How many of
    them it takes is told to whoever sends, who may send the rest again: what begins at the same byte is the same input.
    Session, caller and taint are of who sends; `call_id` is the call that started the command."""

    role: str
    command_id: str
    offset: int | None
    bytes: int
    sha256: str
    end: bool
    input: InputContext
    decision: Decision


class CallRefused(CallRecord):
    """Body of `call.refused`: nothing was done. `pending` if a rule asks for a person."""

    outcome: Literal["denied", "pending"]
    code: str
    reason: str
    role: str
    command: str | None = None
    argv: tuple[str, ...] | None = None
    cwd: str | None = None
    runtime: str | None = None
    arguments_sha256: str
    approval_id: str | None = None
    context: CallContext | None = None
    """None if the call was refused before any rule was asked, and for input."""
    input: InputContext | None = None
    """For input to a command; None for every other call."""
    decision: Decision | None = None


class CallInterrupted(CallRecord):
    """Body of `call.interrupted`: started, but the server stopped and the end is not known."""

    started_seq: int
    command_id: str | None = None
    began: bool = True
    """False if the command certainly did nothing: it may be sent again."""
    reason: str
    taint_after: Label
