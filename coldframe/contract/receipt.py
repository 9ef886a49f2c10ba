"""The receipt: what one act really did, put together from the ledger and never from what a program said."""

from datetime import datetime

from pydantic import Field

from coldframe.contract.command import FileChanges
from coldframe.contract.ledger import ExecutionInputs, StreamDigest
from coldframe.contract.model import Model
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.packages import Dependency
from coldframe.contract.policy import Label, Outcome


class ReceiptDecision(Model):
    """The decision that let the call through; with the ledger it can be replayed."""

    ledger_seq: int
    outcome: Outcome
    rule_id: str
    rules_sha256: str
    context_sha256: str


class ReceiptOutput(Model):
    """One thing that the act left behind, with the digest to check it by."""

    name: str
    """`stdout`, `stderr`, or the path of a file."""
    kind: str
    """`stream`, or how the file was changed."""
    bytes: int | None = None
    sha256_before: str | None = None
    sha256: str | None = None


class Receipt(Model):
    """The record of one call that ran. `digest` is SHA-256 over the canonical JSON of all other fields."""

    receipt_id: str
    call_id: str
    sandbox_id: str
    session_id: str
    agent_id: str | None
    caller: str
    role: str
    tool: str
    previous_receipt_id: str | None
    """The act before it in the same sandbox."""
    contract_version: int | None
    contract_sha256: str | None
    command: str | None
    """Shell text byte for byte, if a shell read it."""
    argv: tuple[str, ...] | None
    cwd: str | None
    runtime: str | None
    arguments_sha256: str
    degraded: tuple[str, ...] = ()
    """What held by less than a hard mechanism when it began, as `limit:disk`."""
    inputs: ExecutionInputs | None
    """User, environment and stdin by digest, template, isolation, limits; None for a tool that starts nothing."""
    decision: ReceiptDecision
    result_decision: ReceiptDecision | None
    started_at: datetime
    ended_at: datetime
    duration_us: int
    """Microseconds of wall time."""
    cpu_us: int | None
    peak_memory_bytes: int | None
    ended: str
    exit_code: int | None
    signal: int | None
    error_code: str | None
    out_of_memory: bool
    limit: str | None
    stdout: StreamDigest | None
    stderr: StreamDigest | None
    files: FileChanges | None
    outputs: tuple[ReceiptOutput, ...]
    declared_outputs: DeclaredOutputs | None = Field(default=None, exclude_if=lambda outputs: outputs is None)
    """What was found of the outputs that the call declared; not there if it declared none."""
    endpoints: tuple[str, ...]
    """Attempts to reach out, as `tcp:203.0.113.9:443:refused`."""
    dependencies: tuple[Dependency, ...] = Field(default=(), exclude_if=lambda dependencies: not dependencies)
    """Files of packages that registries handed over to it, each once, with digest; not there if there are none."""
    dependencies_omitted: int = Field(default=0, exclude_if=lambda omitted: not omitted)
    """How many more there were than have room; the log of the network has all."""
    tree_sha256_before: str | None
    tree_sha256_after: str | None
    label: Label
    taint_before: Label
    taint_after: Label
    ledger_seqs: tuple[int, int]
    """Entries of start and end."""
    digest: str = Field(default="")
