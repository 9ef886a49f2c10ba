"""Which calls have begun and not ended, kept beside the ledger now and then, so that a start need not read all of it.

It is written in the transaction of an entry, so it is never ahead of the ledger, and says nothing that the ledger does not.
"""

import json

import sqlalchemy as sa

from coldframe.control.store import Store, metadata

KEEP_EVERY = 256
"""Entries between two records: so many are read again at a start, and for the next record."""
open_calls_position = sa.Table(
    "open_calls_position",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("calls", sa.Text, nullable=False),
)
"""One row: the calls that were open at this entry, each with the number of its first one."""
_KEPT = "SELECT seq, calls FROM open_calls_position WHERE id = 1"
_KEEP = "INSERT OR REPLACE INTO open_calls_position (id, seq, calls) VALUES (1, ?, ?)"
_BEGUN = (
    "SELECT call_id, seq FROM ledger WHERE seq > ? AND kind = 'call.started' AND call_id IN ("
    "SELECT call_id FROM ledger WHERE seq > ? AND kind = 'call.started' EXCEPT "
    "SELECT call_id FROM ledger WHERE seq > ? AND kind IN ('call.ended', 'call.interrupted'))"
)
_ENDED = "SELECT 1 FROM ledger WHERE call_id = ? AND kind IN ('call.ended', 'call.interrupted') LIMIT 1"


class OpenCalls:
    """Those of one ledger."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept_seq: int | None = None

    def find(self) -> list[int]:
        """Numbers of the entries with which they began, in order."""
        return sorted(self._found().values())

    def keep(self, seq: int) -> None:
        """Record them in the transaction under way, if the newest entry *seq* is far beyond the last record."""
        if self._kept_seq is None:
            rows = self._store.read(_KEPT)
            self._kept_seq = int(rows[0][0]) if rows else 0
        if seq - self._kept_seq < KEEP_EVERY:
            return
        self._store.raw.execute(_KEEP, (seq, json.dumps(self._found())))
        self._kept_seq = seq
        self._store.after(lambda _: None, self._undone)

    def _found(self) -> dict[str, int]:
        rows = self._store.read(_KEPT)
        since, before = (int(rows[0][0]), json.loads(rows[0][1])) if rows else (0, {})
        found = {call_id: seq for call_id, seq in before.items() if not self._store.read(_ENDED, (call_id,))}
        return found | dict(self._store.read(_BEGUN, (since, since, since)))

    def _undone(self) -> None:
        self._kept_seq = None
