"""The ledger: one gapless, hash-chained record of everything that was decided and done.

An entry's hash is SHA-256 over the canonical JSON (`contract/canonical.py`) of all its other fields, with
the hash of the entry before among them. The database alone would let the tail be cut off unseen, so every
commit moves a head kept apart and signed (`checkpoints.py`); `verification.py` compares the two.

There is no way to switch it off: a caller that cannot record gets LedgerUnavailable and must not act. Triggers
refuse UPDATE and DELETE as a second net. An entry in a transaction that is put off (`store.py`) is in the chain at
once and under the head with its commit, so the head never knows more than the database. Reading commits it, so that
what was handed out stays true. Should the commit fail, the entry is owed: the next append writes it first, or fails
as well, so that nothing goes on without it.

The append is a hand-kept statement on the store's own connection: through SQLAlchemy it costs three times
as much. Floats are refused, since they have no single canonical form.
"""

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy import Column, Index, Integer, Table, Text

from coldframe.contract.canonical import canonical, text_around, text_of
from coldframe.contract.errors import LedgerUnavailable
from coldframe.contract.ledger import CallRecord, LedgerEntry, LedgerVerdict
from coldframe.contract.policy import CallContext, ResultContext
from coldframe.control.checkpoints import (
    START,
    ZERO,
    Checkpoints,
    Seal,
    has_seal,
    make_seal,
    read_head,
    read_seal,
)
from coldframe.control.open_calls import OpenCalls
from coldframe.control.store import Store, metadata
from coldframe.control.verification import FAULT_FOUND, INDEXED, entry_hash, find_opening_faults, verify_directory

__all__ = ["Ledger", "verify_directory"]

CHECKPOINT_EVERY = 256
"""Entries between two signed checkpoints; a signature and its sync cost about 0.3 ms."""
DURABLE_CHECKPOINT_S = 1.0
"""Durable entries are signed too, but no more often than this."""
MAX_ENTRIES = 10_000
"""Most entries in one answer."""

ledger_table = Table(
    "ledger",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("sandbox_id", Text),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("call_id", Text),
)
for _name in INDEXED:
    Index(f"ledger_{_name}", ledger_table.c[_name])
# Partial, since every index costs each append 2 to 5 µs and most entries are about calls.
Index("ledger_subject", ledger_table.c.subject, sqlite_where=sqlalchemy.text("subject IS NOT call_id"))
_RARE = "call_id IS NULL AND kind NOT LIKE 'network.%'"
"""What there is little of: neither about calls nor about contacts."""
Index("ledger_rare", ledger_table.c.kind, sqlite_where=sqlalchemy.text(_RARE))
Index("ledger_rare_of", ledger_table.c.sandbox_id, ledger_table.c.kind, sqlite_where=sqlalchemy.text(_RARE))

_INSERT = (
    "INSERT INTO ledger (seq, at, kind, subject, body, previous, hash, sandbox_id, agent_id, session_id, call_id) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = "SELECT seq, at, kind, subject, body, previous, hash FROM ledger"
_log = logging.getLogger("coldframe.ledger")


def format_time(at: datetime) -> str:
    """UTC with microseconds and `Z`: as text, in the order of time. Raises TypeError for a time without zone."""
    if at.tzinfo is None:
        raise TypeError("a time without a zone cannot be recorded")
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


class _Owed(NamedTuple):
    kind: str
    subject: str
    columns: tuple[Any, ...]
    """What of its body is looked for, in the order of INDEXED."""
    text: str


class Recorded:
    """An entry as it was written. Its body is made when somebody asks for it."""

    def __init__(self, seq: int, at: datetime, kind: str, subject: str, text: str, previous: str, digest: str) -> None:
        self.seq = seq
        self.at = at
        self.kind = kind
        self.subject = subject
        self.previous = previous
        self.hash = digest
        self._text = text

    @cached_property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self._text)
        return body


class Ledger:
    """The writing and reading side. One per store."""

    def __init__(self, store: Store, directory: str, clock: Callable[[], datetime]) -> None:
        """Open the ledger of *store*, with head, checkpoints and keys in *directory* (made if missing).

        Compares the two first; what does not fit is recorded as an entry `ledger.fault_found`, so that it
        stays visible after new entries have been written over the gap.

        Raises:
            LedgerUnavailable: the directory cannot be written, or its key is gone although there are entries.
        """
        self._store = store
        self._directory = directory
        self._clock = clock
        self._entries_since_checkpoint = 0
        self._signed_at_s = float("-inf")
        self._newest: tuple[int, str] | None = None
        self._owed: list[_Owed] = []
        self._open_calls = OpenCalls(store)
        self._closed = False
        self.on_commit: Callable[[], None] | None = None
        """Told whenever more is committed; not to raise."""
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            seq, digest = self._last()
            seal = self._take_seal()
            faults = find_opening_faults(store.path, directory, seal)
            try:
                head = read_head(directory, seal) or START
            except ValueError:
                head = START
            self._checkpoints = Checkpoints(directory, seal, head)
            if not faults:
                # Forward over what a crash between commit and head left; with faults the next entry moves it,
                # so that a second crash cannot take the evidence away.
                self._checkpoints.move(seq, digest)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise LedgerUnavailable(f"the ledger in `{directory}` cannot be opened: {error}", path=directory) from error
        if faults:
            for fault in faults:
                _log.error("ledger: %s at entry %d: %s", fault.kind, fault.seq, fault.message)
            self.append(FAULT_FOUND, "ledger", {"faults": [fault.model_dump() for fault in faults]}, durable=True)

    @property
    def committed_seq(self) -> int:
        """The last entry that is committed and under the head."""
        return self._checkpoints.head.seq

    def append(
        self,
        kind: str,
        subject: str,
        body: dict[str, Any] | CallRecord,
        *,
        connection: sqlalchemy.Connection | None = None,
        durable: bool = False,
        may_be_lost: bool = False,
    ) -> Recorded:
        """Record, in the transaction under way if there is one, else in its own.

        *connection* says that the caller means its transaction; it is checked. *durable* makes the record
        survive a power cut. An entry in a transaction that was put off is recorded all the same: should its commit
        fail, it is written again, unless it *may_be_lost*: the caller learns of it, and tells nothing of what it is about.

        Raises:
            LedgerUnavailable: it is not recorded; do not act.
            TypeError: the body holds a float or anything else that is not plain JSON: a mistake of ours.
        """
        if self._closed:
            raise LedgerUnavailable("the ledger is closed", hint="start the server again")
        if isinstance(body, CallRecord):
            columns: tuple[Any, ...] = (body.sandbox_id, body.agent_id, body.session_id, body.call_id)
            text = _text_of(body)
        else:
            _check_plain(body)
            text, columns = canonical(body), tuple(body.get(name) for name in INDEXED)
        if "\\ud" in text:
            # Lone surrogates (file names that are no UTF-8) become visible escapes: many JSON readers refuse them.
            plain = _without_surrogates(json.loads(text))
            text, columns = canonical(plain), tuple(plain.get(name) for name in INDEXED)
        new = _Owed(kind, subject, columns, text)
        if connection is not None:
            self._store.join(connection, durable=durable)
            if not self._owed:
                return self._write(new, may_be_lost=may_be_lost)
        with self._store.transaction(durable=durable):
            self._pay()
            return self._write(new, may_be_lost=may_be_lost)

    def _write(self, new: _Owed, *, may_be_lost: bool = False) -> Recorded:
        """One row in the transaction under way."""
        now = self._clock()
        at = format_time(now)
        kind, subject, columns, text = new
        seq, previous = self._last()
        seq += 1
        digest = entry_hash(seq, at, kind, subject, text, previous)
        try:
            self._store.raw.execute(_INSERT, (seq, at, kind, subject, text, previous, digest, *columns))
            self._open_calls.keep(seq)
        except sqlite3.Error as error:
            raise LedgerUnavailable(f"the ledger cannot be written: {error}", reason=str(error)) from error
        self._store.after(self._committed, self._undone, self._undone if may_be_lost else partial(self._lost, new))
        self._newest = seq, digest
        self._entries_since_checkpoint += 1
        return Recorded(seq, now, kind, subject, text, previous, digest)

    def _pay(self) -> None:
        """Write what is owed, before anything else is."""
        if owed := self._owed:
            self._store.after(lambda _: None, lambda: self._owed.extend(owed), lambda: None)
            self._owed = []
            for entry in owed:
                self._write(entry)

    def entries(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        kinds: Collection[str] = (),
        subject: str | None = None,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        session_id: str | None = None,
        call_id: str | None = None,
        before: int | None = None,
        newest_first: bool = False,
    ) -> list[LedgerEntry]:
        """Entries past *after* and short of *before* in order, at most *limit* and never more than MAX_ENTRIES; all filters
        must fit."""
        conditions, values = ["seq > ?"], [after]  # type: tuple[list[str], list[Any]]
        if before is not None:
            conditions.append("seq < ?")
            values.append(before)
        of_calls = not kinds or any(kind.startswith("call.") for kind in kinds)
        if subject is not None:
            # In the words of the partial index; the subject of an entry about a call is the call.
            about, times = "(subject = ? AND subject IS NOT call_id)", 1
            if of_calls:
                about, times = f"({about} OR (call_id = ? AND subject = ?))", 3
            conditions.append(about)
            values.extend([subject] * times)
        for name, value in (
            ("sandbox_id", sandbox_id),
            ("agent_id", agent_id),
            ("session_id", session_id),
            ("call_id", call_id),
        ):
            if value is not None:
                conditions.append(f"{name} = ?")
                values.append(value)
        if kinds:
            conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
            values.extend(kinds)
            if not of_calls and subject is None and not any(kind.startswith("network.") for kind in kinds):
                conditions.append(_RARE)  # Indexed by kind, which would cost every append of the others too much.
        query = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY seq {'DESC ' if newest_first else ''}LIMIT ?"
        return self._read(query, [*values, max(0, min(limit, MAX_ENTRIES))])

    def last(self, sandbox_id: str, *kinds: str, before: int) -> LedgerEntry | None:
        """The newest entry of one of *kinds* about a sandbox, of those with a number under *before*."""
        often = any(kind.startswith(("call.", "network.")) for kind in kinds)
        # Most entries of a sandbox are about calls, so that the others have an index of their own.
        about = "sandbox_id = ?" if often else f"sandbox_id = ? AND {_RARE}"
        marks = ", ".join("?" * len(kinds))
        query = f"{_SELECT} WHERE {about} AND kind IN ({marks}) AND seq < ? ORDER BY seq DESC LIMIT 1"
        found = self._read(query, [sandbox_id, *kinds, before])
        return found[0] if found else None

    def newest(self, sandbox_id: str, kind: str, *, limit: int) -> list[LedgerEntry]:
        """The newest entries of a kind about a sandbox, at most *limit*, the oldest of them first."""
        query = f"{_SELECT} WHERE sandbox_id = ? AND kind = ? ORDER BY seq DESC LIMIT ?"
        return self._read(query, [sandbox_id, kind, limit])[::-1]

    def course(self, call_id: str) -> dict[str, LedgerEntry]:
        """How a call began and ended, by kind; without what was sent to its input meanwhile, which may be much."""
        kinds = ("call.started", "call.refused", "call.ended", "call.interrupted")
        return {entry.kind: entry for entry in self.entries(call_id=call_id, kinds=kinds)}

    def entry(self, seq: int) -> LedgerEntry | None:
        """The one entry of that number."""
        found = self._read(f"{_SELECT} WHERE seq = ?", [seq])
        return found[0] if found else None

    def open_calls(self) -> list[LedgerEntry]:
        """`call.started` without `call.ended` or `call.interrupted`: what was under way when the server stopped."""
        self._commit_what_is_read()
        with contextlib.suppress(LedgerUnavailable), self._store.transaction():
            self._open_calls.keep(self._last()[0])  # else the next entry would look through all of it once more
        numbers = self._open_calls.find()
        return [entry for seq in numbers if (entry := self.entry(seq)) is not None]

    def verify(self) -> LedgerVerdict:
        """Check every entry and checkpoint. Reads through a connection of its own, so it may run in a thread."""
        self.settle()
        return verify_directory(self._store.path, self._directory)

    def export(self) -> Iterator[bytes]:
        """Every entry as one line of canonical JSON with the fields of LedgerEntry."""
        after = 0
        while batch := self.entries(after=after, limit=1000):
            for entry in batch:
                after = entry.seq
                yield export_line(entry)

    def settle(self) -> None:
        """Commit what was put off, and write what is owed.

        Raises:
            LedgerUnavailable: something is not recorded for good yet.
        """
        self._store.settle()
        if self._owed:
            with self._store.transaction():
                self._pay()

    def close(self) -> None:
        """Sign the head and let go. Idempotent; the store stays open."""
        if self._closed:
            return
        self._closed = True
        try:
            self.settle()
        except LedgerUnavailable as error:
            _log.error("ledger: %s; what is missing is made up for at the next start", error.message)
        try:
            if self._checkpoints.head.seq != 0 and self._entries_since_checkpoint:
                self._checkpoints.sign(self._clock())
        except (OSError, LedgerUnavailable) as error:
            _log.error("ledger: the last checkpoint could not be written: %s", error)
        finally:
            self._checkpoints.close()

    def _take_seal(self) -> Seal:
        if has_seal(self._directory):
            return read_seal(self._directory)
        if self._last()[0] or any(
            os.path.exists(os.path.join(self._directory, n)) for n in ("head", "checkpoints.jsonl")
        ):
            raise LedgerUnavailable(
                f"the signing key is missing from `{self._directory}` although the ledger has entries",
                hint="put `signing.key` back from a backup; `coldframe ledger verify` tells what can still be checked",
                path=self._directory,
            )
        return make_seal(self._directory)

    def _last(self) -> tuple[int, str]:
        """Number and hash of the newest entry, committed or not."""
        if self._newest is None:
            rows = self._store.read("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1")
            self._newest = (int(rows[0][0]), str(rows[0][1])) if rows else (0, ZERO)
        return self._newest

    def _committed(self, durable: bool) -> None:
        newest = self._last()
        if self._checkpoints.head[:2] == newest:
            return  # Several entries of one transaction: the first call moved the head past all of them.
        if self.on_commit is not None:
            self.on_commit()
        try:
            self._checkpoints.move(*newest)
            full = self._entries_since_checkpoint >= CHECKPOINT_EVERY
            if full or (durable and time.monotonic() - self._signed_at_s >= DURABLE_CHECKPOINT_S):
                self._checkpoints.sign(self._clock())
                self._signed_at_s = time.monotonic()
                self._entries_since_checkpoint = 0
        except OSError as error:
            # The entries stand, but nothing vouches for them; the action behind them must not go on.
            raise LedgerUnavailable(f"the head of the ledger cannot be written: {error}", reason=str(error)) from error

    def _undone(self) -> None:
        self._newest = None

    def _lost(self, entry: _Owed) -> None:
        _log.error("ledger: `%s` of `%s` was not committed and is written again", entry.kind, entry.subject)
        self._owed.append(entry)
        self._undone()

    def _commit_what_is_read(self) -> None:
        """What is read is committed first, or gone: whoever reads may hand it on, and a crash must not make it untrue.

        Within a transaction it is seen as it stands there.
        """
        if not self._store.is_settled:
            with contextlib.suppress(LedgerUnavailable):  # then it is owed, and not among what is read
                self._store.settle()

    def _read(self, query: str, values: list[Any]) -> list[LedgerEntry]:
        self._commit_what_is_read()
        return [
            LedgerEntry(
                seq=row[0],
                at=parse_time(row[1]),
                kind=row[2],
                subject=row[3],
                body=json.loads(row[4]),
                previous=row[5],
                hash=row[6],
            )
            for row in self._store.read(query, values)
        ]


def export_line(entry: LedgerEntry) -> bytes:
    """The documented form of one entry: without `hash` it is exactly the text that `hash` is taken over."""
    fields = {
        "at": format_time(entry.at),
        "body": entry.body,
        "hash": entry.hash,
        "kind": entry.kind,
        "previous": entry.previous,
        "seq": entry.seq,
        "subject": entry.subject,
    }
    return canonical(fields).encode() + b"\n"


def _text_of(record: CallRecord) -> str:
    """Its canonical text. None of these holds a float, so nobody looks for one (`tests/contract/test_canonical.py`)."""
    context = getattr(record, "context", None)
    if isinstance(context, CallContext):
        return text_around(record, "context", text_of(context))
    if isinstance(context, ResultContext):
        return text_around(record, "context", text_of(context, "call"))
    return canonical(record.model_dump(mode="json"))


_PLAIN = frozenset((str, int, bool, type(None)))


def _check_plain(value: object) -> None:
    """Refuse what JSON would take but not bring back the same."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"a ledger body has text keys only, not {key!r}")
            if type(inner) not in _PLAIN:
                _check_plain(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            if type(inner) not in _PLAIN:
                _check_plain(inner)
    elif type(value) not in _PLAIN and not isinstance(value, str):  # A text enumeration is its text.
        raise TypeError(f"a ledger body holds no {type(value).__name__}: {value!r}")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(inner) for inner in value]
    return value
