"""`.exec_history`: what an agent may see of its own past, one JSON line for each attempt.

A projection of the ledger and never the record itself (A-05): it lies read-only in the workspace, carries
sequence number, hash and previous hash of the ledger entry that closed the attempt, and is made again from
the ledger where it fell behind. How far it has come is kept in the database; after a crash the last lines
may be written twice, and are the same then, sequence number included.
"""

import asyncio
import logging
from typing import Any

import sqlalchemy
from sqlalchemy import Column, Integer, Table

from coldframe.contract.errors import ColdframeError, HostUnreachable
from coldframe.contract.ledger import CallEnded, CallInterrupted, CallRefused, CallStarted, LedgerEntry
from coldframe.contract.ports import Host
from coldframe.control.checkpoints import canonical
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.store import Store, metadata

CLOSING_KINDS = ("call.ended", "call.refused", "call.interrupted")
_BATCH_ENTRIES = 200

history_position = Table(
    "history_position",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, nullable=False),
)
"""One row: the last ledger entry that is in the projection."""

_log = logging.getLogger("coldframe.history")

_ATTEMPTS = {"timed_out": "timed_out", "signalled": "killed", "cancelled": "killed", "limit": "killed", "lost": "lost"}


class History:
    """Writes the projection, in the order of the ledger."""

    def __init__(self, store: Store, ledger: Ledger, host: Host) -> None:
        self._store = store
        self._ledger = ledger
        self._host = host
        self._lock = asyncio.Lock()
        self._position: int | None = None
        self._homes: dict[str, tuple[str | None, str] | None] = {}

    async def project(self, entry: LedgerEntry) -> None:
        """See that *entry* and all before it are in the projection.

        Raises:
            HostUnreachable: it stays behind, and is made up for at the next call.
        """
        async with self._lock:
            while self._reached() < entry.seq and await self._advance():
                pass

    async def catch_up(self) -> None:
        """Bring the projection up to the end of the ledger, as after a restart. Raises HostUnreachable."""
        async with self._lock:
            while await self._advance():
                pass

    async def _advance(self) -> bool:
        batch = self._ledger.entries(after=self._reached(), kinds=CLOSING_KINDS, limit=_BATCH_ENTRIES)
        lines: dict[tuple[str, str | None], bytes] = {}
        for entry in batch:
            home = self._home(entry)
            if home is not None:
                lines[home] = lines.get(home, b"") + history_line(entry, self._started(entry))
        for (owner, session_id), content in lines.items():
            try:
                await self._host.append_history(owner, session_id, content)
            except HostUnreachable:
                raise
            except ColdframeError as error:
                # A workspace that is gone has no projection; the ledger keeps the lines.
                _log.warning("history of `%s` is not shown: %s", owner, error)
        if batch:
            self._move(batch[-1].seq)
        return bool(batch)

    def _home(self, entry: LedgerEntry) -> tuple[str, str | None] | None:
        """Whose projection: by the sandbox as it was made, not by what the call said. None for a foreign or unknown one."""
        sandbox_id = str(entry.body["sandbox_id"])
        if sandbox_id not in self._homes:
            made = self._ledger.entries(kinds=("sandbox.created",), subject=sandbox_id, limit=1)
            if not made:
                return None
            self._homes[sandbox_id] = (made[0].body["agent_id"], made[0].body["session_id"])
        home = self._homes[sandbox_id]
        if home is None or home[0] != entry.body["agent_id"]:
            return None
        return ("background", home[1]) if home[0] is None else (home[0], None)

    def _started(self, entry: LedgerEntry) -> CallStarted | None:
        if entry.kind == "call.refused":
            return None
        started = self._ledger.entry(int(entry.body["started_seq"]))
        return CallStarted.model_validate(started.body) if started is not None else None

    def _reached(self) -> int:
        if self._position is None:
            with self._store.transaction() as connection:
                self._position = connection.execute(sqlalchemy.select(history_position.c.seq)).scalar() or 0
        return self._position

    def _move(self, seq: int) -> None:
        with self._store.transaction() as connection:
            connection.exec_driver_sql("INSERT OR REPLACE INTO history_position (id, seq) VALUES (1, ?)", (seq,))
        self._position = seq


def history_line(entry: LedgerEntry, started: CallStarted | None) -> bytes:
    """The line of one attempt from the entry that closed it, and the one that began it unless it was refused.

    Everything a program or agent chose is inside JSON strings, so no line break of theirs begins a line.
    """
    fields: dict[str, Any] = {
        "sequence": entry.seq,
        "previous_hash": entry.previous,
        "hash": entry.hash,
        "attempt": None,
        "call_id": entry.subject,
        "started_at": None,
        "ended_at": format_time(entry.at),
        "runtime_path": None,
        "exit_code": None,
        "signal": None,
        "duration_us": None,
        "cpu_us": None,
        "peak_memory_bytes": None,
        "disk_change_bytes": None,
        "stdout_bytes": None,
        "stdout_sha256": None,
        "stderr_bytes": None,
        "stderr_sha256": None,
        "endpoints": [],
        "lineage_ids": [],
        "error_code": None,
        "reason": None,
    }
    if entry.kind == "call.refused":
        refused = CallRefused.model_validate(entry.body)
        fields |= _asked(refused)
        fields |= {
            "attempt": refused.outcome,
            "started_at": format_time(entry.at),
            "taint_after": refused.taint_before.value,
            "error_code": refused.code,
            "reason": refused.reason,
        }
    elif started is not None:
        fields |= _asked(started)
        fields["runtime_path"] = started.inputs.runtime_path if started.inputs is not None else None
        if entry.kind == "call.ended":
            fields |= _ended(CallEnded.model_validate(entry.body), started)
        else:
            interrupted = CallInterrupted.model_validate(entry.body)
            fields |= {
                "attempt": "interrupted",
                "taint_after": interrupted.taint_after.value,
                "reason": interrupted.reason,
            }
    return canonical(fields).encode() + b"\n"


def _asked(record: CallStarted | CallRefused) -> dict[str, Any]:
    decision = record.decision
    return {
        "agent": record.agent_id,
        "session": record.session_id,
        "sandbox": record.sandbox_id,
        "caller": record.caller,
        "tool": record.tool,
        "command": record.command,
        "argv": record.argv,
        "cwd": record.cwd,
        "runtime": record.runtime,
        "decision": decision.outcome.value if decision is not None else "deny",
        "rule": decision.rule_id if decision is not None else None,
        "approval_id": record.approval_id,
        "taint_before": record.taint_before.value,
    }


def _ended(record: CallEnded, started: CallStarted) -> dict[str, Any]:
    allowed = "approved" if started.approval_id is not None else "allowed"
    out, err = record.stdout, record.stderr
    return {
        "attempt": _ATTEMPTS.get(record.ended, allowed),
        "started_at": format_time(record.started_at),
        "ended_at": format_time(record.ended_at),
        "exit_code": record.exit_code,
        "signal": record.signal,
        "duration_us": record.duration_us,
        "cpu_us": record.cpu_us,
        "peak_memory_bytes": record.peak_memory_bytes,
        "disk_change_bytes": record.disk_change_bytes,
        "stdout_bytes": out.bytes if out is not None else None,
        "stdout_sha256": out.sha256 if out is not None else None,
        "stderr_bytes": err.bytes if err is not None else None,
        "stderr_sha256": err.sha256 if err is not None else None,
        "endpoints": list(record.endpoints),
        "taint_after": record.taint_after.value,
        "lineage_ids": list(record.lineage_ids),
        "error_code": record.error_code,
        "result_decision": record.decision.outcome.value if record.decision is not None else None,
        "result_rule": record.decision.rule_id if record.decision is not None else None,
    }
