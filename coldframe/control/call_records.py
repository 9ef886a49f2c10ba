"""What the ledger is told about a call at each step. Pure: from the gate's facts to the bodies of entries."""

import hashlib
import secrets
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.command import Contact, FileChanges, StreamInfo
from coldframe.contract.errors import ColdframeError, PendingApproval
from coldframe.contract.ledger import (
    CallEnded,
    CallInterrupted,
    CallRefused,
    CallStarted,
    ExecutionInputs,
    Shown,
    StreamDigest,
)
from coldframe.contract.policy import CallContext, Decision, Label, ResultContext
from coldframe.contract.sandbox import Limits, SandboxInfo, SandboxSpec
from coldframe.tools.registry import CallFacts, Ran

MOST_DEPENDENCIES = 500
"""In the record of one call."""

USER = "user"
"""Name of the user inside every box."""


class CallIds(NamedTuple):
    """The three names of one call; each leads to the others."""

    call_id: str
    command_id: str
    receipt_id: str


def new_ids() -> CallIds:
    return _ids(secrets.token_hex(12))


def ids_of(any_id: str) -> CallIds:
    """Return the ids that belong together with a call, command or receipt id."""
    return _ids(any_id.partition("_")[2])


def _ids(word: str) -> CallIds:
    return CallIds(f"call_{word}", f"cmd_{word}", f"rcp_{word}")


class Subject(NamedTuple):
    """Whom a call is about, as far as that is known when it is refused."""

    sandbox_id: str
    agent_id: str | None
    session_id: str
    taint: Label


def limit_numbers(limits: Limits) -> dict[str, int]:
    """Return the limits in whole numbers, for records that hold no floats."""
    return dict(_limit_numbers(limits))


@lru_cache(maxsize=64)
def _limit_numbers(limits: Limits) -> dict[str, int]:
    return {
        "wall_ms": round(limits.wall_s * 1000),
        "cpu_ms": round(limits.cpu_s * 1000),
        "memory_mib": limits.memory_mib,
        "disk_mib": limits.disk_mib,
        "pids": limits.pids,
        "open_files": limits.open_files,
        "file_mib": limits.file_mib,
        "output_mib": limits.output_mib,
        "cpus_milli": round(limits.cpus * 1000),
        **({"io_mib_s": limits.io_mib_s} if limits.io_mib_s else {}),
    }


def _inputs(facts: CallFacts, spec: SandboxSpec, template_sha256: str | None) -> ExecutionInputs:
    limits = limit_numbers(spec.limits)
    if facts.timeout_s is not None:
        limits["wall_ms"] = round(facts.timeout_s * 1000)
    if facts.idle_timeout_s is not None:
        limits["idle_ms"] = round(facts.idle_timeout_s * 1000)
    if facts.cpu_s is not None:
        limits["cpu_ms"] = round(facts.cpu_s * 1000)
    return ExecutionInputs(
        user=facts.user or USER,
        environment={name: hashlib.sha256(value.encode()).hexdigest() for name, value in facts.environment},
        stdin_bytes=len(facts.stdin),
        stdin_sha256=hashlib.sha256(facts.stdin).hexdigest(),
        runtime_version=facts.runtime_version,
        runtime_path=facts.runtime_path,
        template=spec.template,
        template_sha256=template_sha256,
        isolation=spec.isolation,
        limits=limits,
    )


def started_record(
    ids: CallIds,
    caller: Caller,
    context: CallContext,
    decision: Decision,
    subject: Subject,
    facts: CallFacts,
    info: SandboxInfo,
    key: str | None,
) -> CallStarted:
    runs = facts.command is not None or facts.argv is not None
    is_command = runs and not facts.in_kernel
    return CallStarted(
        call_id=ids.call_id,
        sandbox_id=subject.sandbox_id,
        agent_id=subject.agent_id,
        session_id=subject.session_id,
        caller=caller.name,
        tool=context.tool,
        taint_before=subject.taint,
        role=caller.role.value,
        command=facts.command,
        argv=facts.argv,
        cwd=facts.cwd,
        runtime=facts.runtime,
        shell_session=facts.shell_session,
        command_id=ids.command_id if is_command else None,
        arguments_sha256=context.arguments_sha256,
        idempotency_key=key,
        context=context,
        decision=decision,
        inputs=_inputs(facts, info.spec, info.template_sha256) if runs else None,
        source=facts.source,
        outputs=facts.outputs,
    )


def refused_record(
    ids: CallIds,
    caller: Caller,
    tool: str,
    subject: Subject,
    error: ColdframeError,
    facts: CallFacts,
    arguments_sha256: str,
    context: CallContext | None,
    decision: Decision | None,
) -> CallRefused:
    return CallRefused(
        call_id=ids.call_id,
        sandbox_id=subject.sandbox_id,
        agent_id=subject.agent_id,
        session_id=subject.session_id,
        caller=caller.name,
        tool=tool[:80],
        taint_before=subject.taint,
        outcome="pending" if isinstance(error, PendingApproval) else "denied",
        code=error.code,
        reason=error.message,
        role=caller.role.value,
        command=facts.command,
        argv=facts.argv,
        cwd=facts.cwd,
        runtime=facts.runtime,
        arguments_sha256=arguments_sha256,
        context=context,
        decision=decision,
    )


def ended_record(
    started: CallStarted,
    started_seq: int,
    started_at: datetime,
    ended_at: datetime,
    ran: Ran | None,
    error: ColdframeError | None,
    shown: Shown | None,
    label: Label,
    label_reason: str,
    taint_after: Label,
    context: ResultContext | None,
    decision: Decision | None,
) -> CallEnded:
    command = None if ran is None else ran.command
    lost = error is not None and error.code == "GUEST_LOST"
    how: dict[str, Any]
    if command is None:
        how = {
            "ended": "lost" if lost else "answered" if error is None else "failed",
            "started_at": started_at,
            "ended_at": ended_at,
            "duration_us": round((ended_at - started_at).total_seconds() * 1_000_000),
            "files": None if ran is None else ran.files,
        }
    else:
        how = {
            "ended": command.ended,
            "exit_code": command.exit_code,
            "signal": command.signal,
            "out_of_memory": command.out_of_memory,
            "limit": None if command.limit is None else command.limit.kind,
            "started_at": command.started_at,
            "ended_at": command.ended_at,
            "duration_us": round(command.duration_ms * 1000),
            "cpu_us": round(command.cpu_s * 1_000_000),
            "peak_memory_bytes": command.peak_memory_bytes,
            "stdout": _digest(command.stdout),
            "stderr": _digest(command.stderr),
            "leftovers": len(command.leftovers),
            "endpoints": tuple(f"{endpoint(contact)}:{contact.verdict}" for contact in command.contacts),
            "files": _plain_files(command.files),
            "dependencies": () if ran is None else ran.dependencies[:MOST_DEPENDENCIES],
            "dependencies_omitted": 0 if ran is None else max(0, len(ran.dependencies) - MOST_DEPENDENCIES),
            "outputs": None if ran is None or ran.outputs is None else ran.outputs.renamed(plain_path).for_record(),
            "diagnosis": None if ran is None else ran.diagnosis,
            "disk_change_bytes": command.files.size_change_bytes,
        }
    return CallEnded(
        **_repeated(started, started_seq),
        error_code=None if error is None else error.wire_code or error.code,
        source=started.source,
        shown=shown,
        label=label,
        label_reason=label_reason,
        taint_after=taint_after,
        context=context,
        decision=decision,
        **how,
    )


def interrupted_record(
    started: CallStarted, started_seq: int, reason: str, taint_after: Label, *, began: bool
) -> CallInterrupted:
    return CallInterrupted(**_repeated(started, started_seq), began=began, reason=reason, taint_after=taint_after)


def _repeated(started: CallStarted, started_seq: int) -> dict[str, Any]:
    """What the record of an end repeats of its start."""
    return {
        "call_id": started.call_id,
        "sandbox_id": started.sandbox_id,
        "agent_id": started.agent_id,
        "session_id": started.session_id,
        "caller": started.caller,
        "tool": started.tool,
        "taint_before": started.taint_before,
        "started_seq": started_seq,
        "command_id": started.command_id,
    }


def endpoint(contact: Contact) -> str:
    """Return a contact as `tcp:203.0.113.9:443`, an IPv6 address in brackets; by its name if it came to no address."""
    address = f"[{contact.address}]" if ":" in contact.address else contact.address or contact.name or ""
    return f"{contact.protocol}:{address}:{contact.port}"


def _digest(info: StreamInfo) -> StreamDigest:
    return StreamDigest(bytes=info.bytes, sha256=info.sha256, invalid_utf8=info.invalid_utf8)


def plain_path(path: str) -> str:
    """As it stands on record, whatever bytes it has."""
    return path.encode("utf-8", "backslashreplace").decode()


def _plain_files(files: FileChanges) -> FileChanges:
    if not files.changes:
        return files
    changes = tuple(change.model_copy(update={"path": plain_path(change.path)}) for change in files.changes)
    return files.model_copy(update={"changes": changes})
