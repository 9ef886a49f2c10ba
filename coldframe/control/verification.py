"""Checking a ledger: entries against each other, and against the head and checkpoints kept apart.

Works on a data directory alone, with the server running or not; everything is opened for reading. Each
fault names the entry at which it shows. What each attack looks like:

- an entry was changed: its hash does not fit; or, with hashes made anew, the next entry or a checkpoint
- entries were swapped: a hash fits the number of another damaged entry
- entries were taken out of the middle: a gap in the numbers
- the tail was cut, or the database replaced or emptied: the head or a checkpoint knows more
- entries were added by somebody else: the database is further than the head by more than a crash explains
- a checkpoint was changed or removed: signature, numbers, the digest of the one before, or the head
- everything was removed: what the installation has beside the ledger (`traces.py`)
"""

import hashlib
import itertools
import json
import os
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from coldframe.contract.ledger import LedgerFault, LedgerVerdict
from coldframe.control.checkpoints import (
    ZERO,
    Checkpoint,
    Head,
    Seal,
    read_checkpoint,
    read_checkpoint_lines,
    read_head,
    read_seal,
)
from coldframe.control.traces import find_traces

FAULT_FOUND = "ledger.fault_found"
"""Kind of the entry that keeps what was found on opening."""
MAX_FAULTS = 100
"""More are not listed; the ledger is broken anyway."""
HEAD_LAG_ENTRIES = 64
"""Most entries that one transaction commits before the head moves; a crash between leaves that many unvouched."""
_NUL = "\\u0000"
"""As it stands in JSON. SQLite reads a text up to there, so whoever has one is compared here."""
_LEDGER = "ledger NOT INDEXED"
"""Where entries are read: an index may have been made to keep what the table had before it was changed."""
INDEXED = ("sandbox_id", "agent_id", "session_id", "call_id")
"""Keys of a body that have a column of their own, for queries."""

Kind = Literal["changed", "reordered", "missing", "tail_missing", "checkpoint_invalid", "checkpoint_missing"]


class _Row(NamedTuple):
    seq: int
    at: str
    kind: str
    subject: str
    body: str
    previous: str
    hash: str
    sandbox_id: str | None
    agent_id: str | None
    session_id: str | None
    call_id: str | None

    def fits(self, seq: int) -> bool:
        """Whether its hash is that of an entry with number *seq*. Where a column holds no text, it is none."""
        try:
            digest = entry_hash(seq, self.at, self.kind, self.subject, self.body, self.previous)
        except TypeError:
            return False
        return isinstance(self.body, str) and digest == self.hash


def entry_hash(seq: int, at: str, kind: str, subject: str, body: str, previous: str) -> str:
    """SHA-256 of the canonical JSON of an entry; *body* is canonical already, so it is put in as it is."""
    text = (
        f'{{"at":{quoted(at)},"body":{body},"kind":{quoted(kind)},'
        f'"previous":{quoted(previous)},"seq":{seq},"subject":{quoted(subject)}}}'
    )
    return hashlib.sha256(text.encode()).hexdigest()


class _Faults:
    """Collects faults, each once."""

    def __init__(self) -> None:
        self.found: list[LedgerFault] = []
        self._known: set[tuple[str, int]] = set()

    def add(self, kind: Kind, seq: int, message: str) -> None:
        if (kind, seq) not in self._known and len(self.found) < MAX_FAULTS:
            self._known.add((kind, seq))
            self.found.append(LedgerFault(kind=kind, seq=seq, message=message))

    @property
    def full(self) -> bool:
        return len(self.found) >= MAX_FAULTS


def verify_directory(database_path: str, directory: str) -> LedgerVerdict:
    """Check the ledger in the database at *database_path* against *directory*.

    Without the private key (another user's copy) the head file cannot be checked; the checkpoints can.
    About 4 µs an entry of a call, on two processors: SQLite compares columns with bodies beside the rest.
    """
    faults = _Faults()
    seal = read_seal(directory)
    head = _head(directory, seal, faults)
    lines = read_checkpoint_lines(directory)
    points = _check_points(lines, seal, head, faults)
    chain = _Chain(points, head, faults)
    try:
        with ThreadPoolExecutor(1) as beside:
            misfits = beside.submit(_find_misfits, database_path, chain.vouched)
            chain.take_all(_entries(database_path, after=0))
        _check_columns(database_path, misfits.result(), chain.vouched, faults)
    except sqlite3.Error as error:
        faults.add("changed", chain.last_seq + 1, f"the database cannot be read after entry {chain.last_seq}: {error}")
        chain.readable = False
    chain.finish(_head(directory, seal, _Faults()), has_marks=head is not None or bool(lines))
    if chain.count == 0 and not faults.found:
        _check_beginning(database_path, faults)
    found = sorted(faults.found, key=lambda fault: fault.seq)
    return LedgerVerdict(
        intact=not found,
        entries=chain.count,
        head_seq=chain.last_seq,
        head_hash=chain.last_hash,
        checkpoints=len(lines),
        faults=tuple(found),
    )


def find_opening_faults(database_path: str, directory: str, seal: Seal) -> list[LedgerFault]:
    """What can be told at start without reading the whole ledger: the tail and the last checkpoint."""
    faults = _Faults()
    head = _head(directory, seal, faults)
    lines = read_checkpoint_lines(directory)
    points = _check_points(lines[-2:], seal, head, faults, whole=False)
    known = len(lines) - (1 if lines and _is_torn(directory) else 0)
    if head is not None and known < head.checkpoint:
        faults.add("checkpoint_missing", 0, f"{known} of {head.checkpoint} checkpoints are left")
    start = head.seq if head is not None else 0
    chain = _Chain(points, head, faults, first=max(1, start))
    for row in _rows(database_path, after=max(0, start - 1)):
        chain.take(row)
    if chain.count == 0 and start == 0:
        chain.last_seq = 0
    elif chain.count == 0:
        chain.last_seq = _last_seq(database_path)
    chain.finish(head, has_marks=head is not None or bool(lines))
    if chain.last_seq == 0 and not faults.found:
        _check_beginning(database_path, faults)
    return faults.found


def _check_beginning(database_path: str, faults: _Faults) -> None:
    """Look whether a ledger without entries and without marks is a new one."""
    connection = _connect(database_path)
    try:
        traces = find_traces(connection, os.path.dirname(os.path.dirname(os.path.abspath(database_path))))
    finally:
        if connection is not None:
            connection.close()
    # Asked after that: a server that has just begun makes both in one transaction.
    if traces and _last_seq(database_path) == 0:
        faults.add("missing", 1, f"the ledger begins anew, although there are {', '.join(traces)} of before")


def _is_torn(directory: str) -> bool:
    with open(os.path.join(directory, "checkpoints.jsonl"), "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _head(directory: str, seal: Seal, faults: _Faults) -> Head | None:
    try:
        return read_head(directory, seal)
    except ValueError as error:
        faults.add("checkpoint_invalid", 0, str(error))
        return None


def _check_points(
    lines: list[bytes], seal: Seal, head: Head | None, faults: _Faults, *, whole: bool = True
) -> dict[int, Checkpoint]:
    """The checkpoints that can be trusted, by entry. With *whole*, all of them are there and must connect."""
    trusted: dict[int, Checkpoint] = {}
    number, digest = (0, ZERO) if whole else (None, None)
    for line in lines:
        try:
            point = read_checkpoint(line)
        except ValueError:
            if line is lines[-1] and number == (head.checkpoint if head else -1):
                break  # Unfinished by a power cut, and nothing the head vouches for.
            faults.add("checkpoint_invalid", 0, f"the line after checkpoint {number or 0} is no checkpoint")
            number, digest = None, None
            continue
        if not seal.is_signed(point.signed, point.signature):
            faults.add("checkpoint_invalid", point.seq, f"the signature of checkpoint {point.number} does not fit")
            number, digest = None, None
            continue
        if number is not None and (point.number, point.previous) != (number + 1, digest):
            faults.add(
                "checkpoint_missing", point.seq, f"checkpoint {point.number} does not follow checkpoint {number}"
            )
        number, digest = point.number, point.digest
        trusted[point.seq] = point
        if head is not None and point.number == head.checkpoint and point.digest != head.checkpoint_digest:
            faults.add("checkpoint_invalid", point.seq, f"checkpoint {point.number} is not the one the head names")
    if whole and head is not None and (number or 0) < head.checkpoint and len(trusted) < head.checkpoint:
        faults.add(
            "checkpoint_missing", 0, f"{len(trusted)} checkpoints can be trusted; the head names {head.checkpoint}"
        )
    return trusted


class _Chain:
    """Walks the entries in order."""

    def __init__(self, points: dict[int, Checkpoint], head: Head | None, faults: _Faults, *, first: int = 1) -> None:
        self._points = points
        self._head = head
        self._faults = faults
        self._expected = first
        self._damaged: list[_Row] = []
        self._missing: list[int] = []
        self.count = 0
        self.last_seq = first - 1
        self.last_hash = ZERO
        self._previous: str | None = ZERO if first == 1 else None
        self.readable = True
        self.vouched = max([head.seq if head is not None else 0, *points])
        """The last entry that the head or a checkpoint knows: as long as no fault is found, all up to it are ours."""

    def take_all(self, entries: Iterable[tuple[Any, ...]]) -> None:
        """Take what is in *entries*. Up to number `vouched` it is left to SQLite to compare columns with bodies.

        Only there: of a body that somebody made up, with a key twice or a number for a text, it makes something else.

        Nearly every entry continues the one before and fits its hash, is neither signed nor the head, and has nothing
        to say of faults; that is all that is asked of it here.
        """
        apart = {*self._points, *(() if self._head is None else (self._head.seq,))}
        expected, before = self._expected, self._previous
        try:
            for fields in entries:
                seq, at, kind, subject, body, previous, digest, _, _, _, _ = fields
                try:
                    usual = (
                        seq == expected
                        and previous == before
                        and seq <= self.vouched
                        and kind != FAULT_FOUND
                        and seq not in apart
                        and _NUL not in body
                        and entry_hash(seq, at, kind, subject, body, previous) == digest
                    )
                except TypeError:  # a column holds no text
                    usual = False
                if usual:
                    expected, before = seq + 1, digest
                    continue
                self._pass_over(expected, before)
                self.take(_Row._make(fields))
                expected, before = self._expected, self._previous
        finally:  # also where the rest cannot be read
            self._pass_over(expected, before)

    def _pass_over(self, expected: int, previous: str | None) -> None:
        """Count the usual entries that stand before number *expected*, the last of which has the hash *previous*."""
        if previous is not None and expected > self._expected:
            self.count += expected - self._expected
            self.last_seq, self.last_hash = expected - 1, previous
            self._expected, self._previous = expected, previous

    def take(self, row: _Row) -> None:
        if not isinstance(row.seq, int):
            raise sqlite3.DataError("the number of an entry is no number")
        if row.seq != self._expected:
            gap = range(self._expected, row.seq)
            self._faults.add("missing", self._expected, f"{_span(gap.start, gap.stop - 1)} missing")
            self._missing.extend(gap[:MAX_FAULTS])
            self._previous = None
        if not row.fits(row.seq):
            self._damaged.append(row)
        elif not _columns_fit(row):
            self._faults.add("changed", row.seq, f"the query columns of entry {row.seq} do not fit its body")
        if self._previous is not None and row.previous != self._previous and row.fits(row.seq):
            self._faults.add(
                "changed", self.last_seq, f"entry {row.seq} continues another entry {self.last_seq} than the one there"
            )
        point = self._points.get(row.seq)
        if point is not None and point.hash != row.hash:
            self._faults.add(
                "changed", row.seq, f"entry {row.seq} is not the one that checkpoint {point.number} signed"
            )
        if self._head is not None and self._head.seq == row.seq and self._head.hash != row.hash:
            self._faults.add("changed", row.seq, f"entry {row.seq} is not the one that the head names")
        if row.kind == FAULT_FOUND:
            self._recall(row)
        self.count += 1
        self.last_seq, self.last_hash = row.seq, row.hash if isinstance(row.hash, str) else ""
        self._expected, self._previous = row.seq + 1, row.hash

    def _recall(self, row: _Row) -> None:
        """Faults found at an earlier start stay faults: the entries behind them are still lost."""
        try:
            for fields in json.loads(row.body)["faults"]:
                fault = LedgerFault.model_validate(fields)
                self._faults.add(fault.kind, fault.seq, f"{fault.message} (found at start, entry {row.seq})")
        except (ValueError, KeyError, TypeError, ValidationError):
            self._faults.add("changed", row.seq, f"entry {row.seq} cannot be read")

    def finish(self, newer_head: Head | None, *, has_marks: bool) -> None:
        """Sort out damaged entries, then compare the end. *newer_head* was read after the entries."""
        places = {row.seq for row in self._damaged[:MAX_FAULTS]} | set(self._missing)
        for row in self._damaged[:MAX_FAULTS]:
            origin = next((seq for seq in places if seq != row.seq and row.fits(seq)), None)
            if origin is not None:
                self._faults.add("reordered", row.seq, f"entry {origin} stands in the place of entry {row.seq}")
            else:
                self._faults.add("changed", row.seq, f"entry {row.seq} does not fit its hash")
        if not self.readable:
            return
        if self.vouched > self.last_seq:
            span = _span(self.last_seq + 1, self.vouched)
            self._faults.add("tail_missing", self.last_seq + 1, f"{span} missing at the end")
        if self.last_seq > 0 and not has_marks:
            self._faults.add("checkpoint_missing", 0, "there is neither a head nor a checkpoint")
        elif self._head is None and has_marks:
            self._faults.add("checkpoint_missing", 0, "there are checkpoints but no head that can be trusted")
        elif newer_head is not None and self.last_seq > newer_head.seq + HEAD_LAG_ENTRIES:
            span = _span(newer_head.seq + 1, self.last_seq)
            self._faults.add("changed", newer_head.seq + 1, f"{span} unknown to the head: somebody else added them")


def _span(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _columns_fit(row: _Row) -> bool:
    try:
        body = json.loads(row.body)
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and all(getattr(row, name) == body.get(name) for name in INDEXED)


def _find_misfits(database_path: str, last_seq: int) -> list[int] | None:
    """Entries up to *last_seq* whose columns may not fit their body, by SQLite's own reading of JSON.

    It reads several times as fast as Python, and without Python's lock, but a text only up to a NUL. None if there is a
    body that it cannot read. Whatever type or collation somebody gave a column, texts are compared as they stand.
    """
    fits = " AND ".join(f"json_extract(body, '$.{name}') IS +{name} COLLATE BINARY" for name in INDEXED)
    connection = _connect(database_path)
    if connection is None:
        return []
    try:
        query = f"SELECT seq FROM {_LEDGER} WHERE seq <= ? AND NOT ({fits}) ORDER BY seq"  # noqa: S608  names of ours
        return [int(row[0]) for row in connection.execute(query, (last_seq,))]
    except sqlite3.Error:
        return None
    finally:
        connection.close()


def _check_columns(database_path: str, misfits: list[int] | None, last_seq: int, faults: _Faults) -> None:
    """Look at *misfits* again, or at all entries up to *last_seq* if they are not known."""
    if misfits is None:
        rows: Iterator[_Row] = itertools.takewhile(lambda row: row.seq <= last_seq, _rows(database_path, after=0))
    elif misfits:
        wanted = frozenset(misfits)
        rows = (row for row in _rows(database_path, after=misfits[0] - 1) if row.seq in wanted)
    else:
        return
    for row in rows:
        if faults.full:
            break
        if row.fits(row.seq) and not _columns_fit(row):
            faults.add("changed", row.seq, f"the query columns of entry {row.seq} do not fit its body")


def _connect(database_path: str) -> sqlite3.Connection | None:
    """Open for reading only, or None if there is no database with a ledger. A view is none: it may say anything."""
    if not os.path.exists(database_path):
        return None
    # Without a WAL nobody has it open; `immutable` then spares making one, which a reader may have no right to.
    mode = "mode=ro" if os.path.exists(database_path + "-wal") else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{urllib.parse.quote(os.path.abspath(database_path))}?{mode}", uri=True)
    try:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger' AND type = 'table'").fetchone():
            return connection
    except sqlite3.Error:
        connection.close()
        raise
    connection.close()
    return None


def _rows(database_path: str, *, after: int) -> Iterator[_Row]:
    return map(_Row._make, _entries(database_path, after=after))


def _entries(database_path: str, *, after: int) -> Iterator[tuple[Any, ...]]:
    """The fields of a row each, as plain tuples."""
    connection = _connect(database_path)
    if connection is None:
        return
    try:
        columns = ", ".join(_Row._fields)
        query = f"SELECT {columns} FROM {_LEDGER} WHERE seq > ? ORDER BY seq"  # noqa: S608  only names of ours
        yield from connection.execute(query, (after,))
    finally:
        connection.close()


def _last_seq(database_path: str) -> int:
    connection = _connect(database_path)
    if connection is None:
        return 0
    try:
        return int(connection.execute("SELECT coalesce(max(seq), 0) FROM ledger NOT INDEXED").fetchone()[0])
    finally:
        connection.close()
