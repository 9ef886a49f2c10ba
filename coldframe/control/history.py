"""`.exec_history`: what an agent may see of its own past, one JSON line for each attempt.

A projection of the ledger and never the record itself (A-05): it lies read-only in the workspace, carries
sequence number, hash and previous hash of the ledger entry that closed the attempt, and is made again from
the ledger where it fell behind. How far it has come is kept in the database now and then. After a crash the lines
since then are given to the host once more, which leaves out those that are there already.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy import Column, Integer, Table

from coldframe.contract.canonical import canonical
from coldframe.contract.errors import ColdframeError, HostUnreachable, LedgerUnavailable
from coldframe.contract.ledger import CallRefused, CallStarted, LedgerEntry
from coldframe.contract.ports import Host
from coldframe.control.latest import keep_latest
from coldframe.control.ledger import Ledger, Recorded, format_time, parse_time
from coldframe.control.lineage_items import given_by, ids_of_given
from coldframe.control.store import Store, metadata

CLOSING_KINDS = ("call.ended", "call.refused", "call.interrupted")
_BATCH_ENTRIES = 200
PUT_OFF_S = 0.1
"""Longest that the end of a command waits for its commit: more than a program needs from one command to the next."""
RETRY_S = 1.0
KEEP_EVERY = 64
"""Entries between two records of the position: each costs a page of the log, and a restart reads these entries again."""
MOST_HOMES = 1000
"""Sandboxes whose place is kept in memory."""
MOST_LINEAGE_IDS = 100
"""In one line. Lineage has all."""
_KEEP = "INSERT OR REPLACE INTO history_position (id, seq) VALUES (1, ?)"
_GONE = (
    "SELECT 1 FROM ledger WHERE subject = ? AND subject IS NOT call_id AND seq > ? "
    "AND kind IN ('agent.deletion_started', 'agent.created') LIMIT 1"
)
"""In the words of the partial index. Unlike the ledger's own reading, it leaves what was put off as it is."""

history_position = Table(
    "history_position",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, nullable=False),
)
"""One row: the last ledger entry that is in the projection."""

_TIME_CHARACTERS = len("2026-05-04T03:02:01.000000Z")
_log = logging.getLogger("coldframe.history")
Entry = LedgerEntry | Recorded

_ATTEMPTS = {"timed_out": "timed_out", "signalled": "killed", "cancelled": "killed", "limit": "killed", "lost": "lost"}


class _Home(NamedTuple):
    """Where the attempts of one sandbox are shown."""

    made_seq: int
    agent_id: str | None
    session_id: str


class History:
    """Writes the projection, in the order of the ledger, and only what is committed.

    Whoever records the end of a call notes it here, so that it need not be read again. Whenever that does not hold,
    at the start or after any failure, the projection is behind, and is made up from the ledger itself.
    """

    def __init__(self, store: Store, ledger: Ledger, host: Host) -> None:
        self._store = store
        self._ledger = ledger
        self._host = host
        self._lock = asyncio.Lock()
        self._position: int | None = None
        self._kept_position: int | None = None
        self._behind = True
        self._noted: deque[tuple[Entry, CallStarted | None]] = deque()
        self._lines: dict[int, bytes] = {}
        """Of those that were noted, by number, as far as they are made ahead."""
        self._homes: dict[str, _Home] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since_s: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, entry: Entry, started: CallStarted | None) -> None:
        """Say that *entry* is the end of an attempt; inside the transaction that records it."""
        if not self._behind:
            self._noted.append((entry, started))
            self._store.after(lambda _: None, self._lose_track)

    def move(self, sandbox_id: str) -> None:
        """Its files are those of an agent from now on: what it did before was shown where they were."""
        self._homes.pop(sandbox_id, None)

    def keep_position(self) -> None:
        """Record how far the projection is, in the transaction under way, if it has come further by much."""
        if self._reached() - (self._kept_position or 0) >= KEEP_EVERY:
            self._keep()

    def _keep(self) -> None:
        position = self._reached()
        if position != self._kept_position:
            self._store.raw.execute(_KEEP, (position,))
            self._store.after(lambda _: self._kept(position), lambda: None)

    async def show(self) -> None:
        """See that every attempt whose end is committed is in the projection.

        Raises:
            HostUnreachable: it stays behind, and is made up for at the next call.
            LedgerUnavailable: the ledger cannot be read or settled; the same.
        """
        if self._store.is_settled:
            self._waits_since_s = None
        if not self._noted and not self._behind:
            return
        async with self._lock:
            if self._behind:
                await self._catch_up()
                return
            committed = self._ledger.committed_seq
            batch = list(takewhile(lambda noted: noted[0].seq <= committed, self._noted))
            if not batch:
                return
            try:
                await self._write(batch)
            except BaseException:
                self._lose_track()
                raise
            self._position = batch[-1][0].seq  # also if track was lost meanwhile: what is written is not given again
            if not self._behind:
                for _ in batch:
                    self._lines.pop(self._noted.popleft()[0].seq, None)

    def show_soon(self) -> None:
        """Commit and show what was put off, within PUT_OFF_S at the latest.

        The timer is left to run when the next call has done so first: one that is set and stopped for each call is dear.
        """
        if self._waits_since_s is None:
            self._waits_since_s = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PUT_OFF_S, self._wake)

    @property
    def has_unshown(self) -> bool:
        """Whether something has ended that is not shown yet."""
        return bool(self._noted) and not self._behind

    def make_lines(self) -> None:
        """Of what was put off, while nobody waits: the next call would, since it shows them before it runs."""
        for entry, started in () if self._behind else self._noted:
            if entry.seq not in self._lines:
                self._lines[entry.seq] = history_line(entry, started)

    async def catch_up(self) -> None:
        """Bring the projection up to the end of the ledger, as after a restart. Raises HostUnreachable."""
        async with self._lock:
            await self._catch_up()

    async def close(self) -> None:
        """Commit and show what is left, as far as that can be done."""
        self._stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            self._ledger.settle()
            await self.show()
            with self._store.transaction():
                self._keep()
        except ColdframeError as error:
            _log.warning("history is behind: %s", error.message)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        if self._waits_since_s is None:
            return
        loop = asyncio.get_running_loop()
        rest_s = self._waits_since_s + PUT_OFF_S - time.monotonic()
        if rest_s > 0:
            self._timer = loop.call_later(rest_s, self._wake)
            return
        task = loop.create_task(self._settle_and_show())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_and_show(self) -> None:
        try:
            self._ledger.settle()
        except LedgerUnavailable as error:
            _log.error("the end of a call is not recorded yet: %s", error.message)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._wake)
            return
        try:
            await self.show()
        except ColdframeError as error:
            _log.warning("history is behind: %s", error.message)

    def _lose_track(self) -> None:
        """From any thread that settles; so what was noted is left to catching up."""
        self._behind = True

    async def _catch_up(self) -> None:
        self._lines.clear()  # of entries, some of which may be gone
        while True:
            self._ledger.settle()
            batch = self._ledger.entries(after=self._reached(), kinds=CLOSING_KINDS, limit=_BATCH_ENTRIES)
            if not batch:
                break  # and nothing is waited for before whatever ends next is noted
            shown = [entry for entry in batch if self._home(entry) is not None and self._is_of_now(entry)]
            await self._write([(entry, self._started(entry)) for entry in shown])
            self._position = batch[-1].seq
            with self._store.transaction():
                self._keep()
        self._noted.clear()
        self._behind = False

    async def _write(self, batch: Sequence[tuple[Entry, CallStarted | None]]) -> None:
        homes: dict[tuple[str, str | None], list[tuple[Entry, CallStarted | None]]] = {}
        for entry, started in batch:
            home = self._home(entry)
            if home is not None:
                homes.setdefault(home, []).append((entry, started))
        for (owner, session_id), ended in homes.items():
            # Asked for each anew: an agent may be deleted, and made again, while another's lines are waited for.
            content = b"".join(
                self._lines.get(one[0].seq) or history_line(*one) for one in ended if self._belongs(one[0])
            )
            try:
                if content:
                    await self._host.append_history(owner, session_id, content)
            except HostUnreachable:
                raise
            except ColdframeError as error:
                # A workspace that is gone has no projection; the ledger keeps the lines.
                _log.warning("history of `%s` is not shown: %s", owner, error)

    def _home(self, entry: Entry) -> tuple[str, str | None] | None:
        """Whose projection: by the sandbox as it was made, or promoted, not by what the call said. None for a foreign or unknown one."""
        sandbox_id = str(entry.body["sandbox_id"])
        if sandbox_id not in self._homes:
            made = self._ledger.last(sandbox_id, "sandbox.created", "sandbox.promoted", before=1 << 62)
            if made is None:
                return None
            found = _Home(made.seq, made.body["agent_id"], made.body["session_id"])
            keep_latest(self._homes, sandbox_id, found, MOST_HOMES)
        home = self._homes[sandbox_id]
        if home.agent_id != entry.body["agent_id"]:
            return None
        return ("background", home.session_id) if home.agent_id is None else (home.agent_id, None)

    def _belongs(self, entry: Entry) -> bool:
        """Whether what ended is of the workspace of now.

        A workspace is removed after one entry and the next one made after two, so it is seldom asked.
        """
        return self._ledger.committed_seq - entry.seq < 2 or self._is_of_now(entry)

    def _is_of_now(self, entry: Entry) -> bool:
        """Whether the workspace is still the one of that time: with the deletion of an agent it is gone, and the next
        one is there before it is recorded."""
        self._home(entry)  # it may have been forgotten, for others that came since
        home = self._homes.get(str(entry.body["sandbox_id"]))
        if home is None or home.agent_id is None:
            return True
        return not self._store.read(_GONE, (home.agent_id, home.made_seq))

    def _started(self, entry: Entry) -> CallStarted | None:
        if entry.kind == "call.refused":
            return None
        started = self._ledger.entry(int(entry.body["started_seq"]))
        return CallStarted.model_validate(started.body) if started is not None else None

    def _reached(self) -> int:
        if self._position is None:
            with self._store.transaction() as connection:
                self._position = connection.execute(sqlalchemy.select(history_position.c.seq)).scalar() or 0
            self._kept_position = self._position
        return self._position

    def _kept(self, position: int) -> None:
        self._kept_position = position


def history_line(entry: Entry, started: CallStarted | None) -> bytes:
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
            fields |= _ended(entry.subject, entry.body, started)
        else:
            fields |= {
                "attempt": "interrupted",
                "taint_after": entry.body["taint_after"],
                "reason": entry.body["reason"],
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


def _ended(call_id: str, body: dict[str, Any], started: CallStarted) -> dict[str, Any]:
    """From the body of `call.ended` as it was written."""
    allowed = "approved" if started.approval_id is not None else "allowed"
    out, err, decision = body.get("stdout") or {}, body.get("stderr") or {}, body.get("decision") or {}
    return {
        "attempt": _ATTEMPTS.get(body["ended"], allowed),
        "started_at": _same_form(body["started_at"]),
        "ended_at": _same_form(body["ended_at"]),
        "exit_code": body.get("exit_code"),
        "signal": body.get("signal"),
        "duration_us": body.get("duration_us"),
        "cpu_us": body.get("cpu_us"),
        "peak_memory_bytes": body.get("peak_memory_bytes"),
        "disk_change_bytes": body.get("disk_change_bytes"),
        "stdout_bytes": out.get("bytes"),
        "stdout_sha256": out.get("sha256"),
        "stderr_bytes": err.get("bytes"),
        "stderr_sha256": err.get("sha256"),
        "endpoints": body.get("endpoints", []),
        "taint_after": body["taint_after"],
        "lineage_ids": ids_of_given(call_id, given_by(body)[:MOST_LINEAGE_IDS]),
        "error_code": body.get("error_code"),
        "result_decision": decision.get("outcome"),
        "result_rule": decision.get("rule_id"),
    }


def _same_form(at: str) -> str:
    """A time as `format_time` writes it. Most are: bodies leave out microseconds that are zero, and nothing else."""
    return at if len(at) == _TIME_CHARACTERS and at[-1] == "Z" else format_time(parse_time(at))
