"""The rows of the lineage: steps, items, the edges between them, and how high each scope was ever labelled.

Written inside the transaction of whoever derives them (`derivation.py`), read by whoever asks (`lineage.py`, `closure.py`).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from coldframe.contract.ledger import LedgerEntry
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.lineage_items import Given, by_inputs
from coldframe.control.store import Store, metadata

FORM = 3
"""Of the index. Another one than the database has makes it anew."""
UNFINISHED = 0
"""The form of an index that has a part of an entry."""
NEVER = 2**62
"""The end of a step that goes on."""

MOST_METHODS = 20
"""Of one contact. A box decides how many there are."""

position_table = sa.Table(
    "lineage_position",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("form", sa.Integer, nullable=False),
)
heights_table = sa.Table(
    "lineage_heights",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("rank", sa.Integer, nullable=False),
)
"""The highest label that a session or a place ever held."""
steps_table = sa.Table(
    "lineage_steps",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("step_id", sa.Text, nullable=False),
    sa.Column("started", sa.Integer, nullable=False),
    sa.Column("ended", sa.Integer, nullable=False),
    sa.Column("ended_at", sa.Text),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("sandbox_id", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text),
    sa.Column("leaves", sa.Boolean, nullable=False),
    sa.Column("left_running", sa.Boolean, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
)
sa.Index("lineage_steps_step_id", steps_table.c.step_id, unique=True)
sa.Index("lineage_steps_session", steps_table.c.session_id, steps_table.c.started)
sa.Index("lineage_steps_place", steps_table.c.place, steps_table.c.started)
sa.Index("lineage_steps_ended", steps_table.c.place, steps_table.c.ended)
sa.Index("lineage_steps_ended_at", steps_table.c.place, steps_table.c.ended_at)
sa.Index("lineage_steps_left_running", steps_table.c.place, sqlite_where=sa.text("left_running"))
sa.Index("lineage_steps_sandbox", steps_table.c.sandbox_id)
items_table = sa.Table(
    "lineage_items",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("item_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("call", sa.Integer),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("sandbox_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("session_id", sa.Text),
    sa.Column("heard", sa.Boolean, nullable=False),
    sa.Column("left", sa.Boolean, nullable=False),
    sa.Column("path", sa.Text),
    sa.Column("sha256", sa.Text),
    sa.Column("bytes", sa.Integer),
    sa.Column("host", sa.Text),
    sa.Column("port", sa.Integer),
    sa.Column("methods", sa.Text),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("assigned_at", sa.Text, nullable=False),
    sa.Column("certainty", sa.Text, nullable=False),
    sa.Column("retention", sa.Text, nullable=False),
)
sa.Index("lineage_items_item_id", items_table.c.item_id, unique=True)
sa.Index("lineage_items_file", items_table.c.place, items_table.c.path)
for _name in ("step", "place", "path", "sha256", "host", "sandbox_id", "agent_id", "session_id"):
    sa.Index(f"lineage_items_{_name}", items_table.c[_name])
edges_table = sa.Table(
    "lineage_edges",
    metadata,
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("item", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("certainty", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("lineage_edges_item", edges_table.c.item)
shared_table = sa.Table(
    "lineage_shared",
    metadata,
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("shared", sa.Text, primary_key=True),
    sa.Column("writes", sa.Boolean, nullable=False),
    sqlite_with_rowid=False,
)
"""Volumes and snapshots that a step had beside its place: what it gave may be there if it `writes`."""
sa.Index("lineage_shared_shared", shared_table.c.shared)

_INSERT_STEP = "INSERT INTO lineage_steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_STEP = "number, kind, step_id, started, ended, ended_at, place, sandbox_id, session_id, leaves, left_running, rank"
_FIND_STEP = f"SELECT {_STEP} FROM lineage_steps WHERE step_id = ?"  # noqa: S608  names of ours, here and below
_INSERT_ITEM = (
    "INSERT INTO lineage_items (item_id, kind, step, call, seq, place, sandbox_id, agent_id, session_id, heard, left, path, "
    "sha256, bytes, host, port, methods, outcome, rank, reason, assigned_at, certainty, retention) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_IN_FORCE = (
    "SELECT number, sha256 FROM lineage_items WHERE place = ? AND path = ? AND kind = 'file' AND retention = 'kept' "
    "ORDER BY number DESC LIMIT 1"
)
_REPLACE = (
    "UPDATE lineage_items SET retention = ? WHERE place = ? AND path = ? AND kind = 'file' AND retention = 'kept'"
)
_EMPTY_PLACE = "UPDATE lineage_items SET retention = 'removed' WHERE place = ? AND retention = 'kept'"
_RAISE_HEIGHT = "INSERT INTO lineage_heights VALUES (?, ?) ON CONFLICT (scope) DO UPDATE SET rank = excluded.rank WHERE rank < excluded.rank"
_RAISE_ITEMS = "UPDATE lineage_items SET rank = ?, reason = ?, assigned_at = ? WHERE step = ? AND rank < ?"
_TOOK = {
    "session": "session_id = ? AND started > ?",
    "place": "place = ? AND ended > ?",
    "shared": "number IN (SELECT step FROM lineage_shared WHERE shared = ?) AND ended > ?",
}
"""Who took in what is in a scope from a number on."""
_GAVE_ON = {
    "session": "SELECT session_id, min(max(started, ?)) FROM lineage_steps WHERE {took} AND kind = 'call' GROUP BY session_id",
    "place": "SELECT place, min(max(started, ?)) FROM lineage_steps WHERE {took} AND leaves GROUP BY place",
    "shared": "SELECT x.shared, min(max(started, ?)) FROM lineage_steps JOIN lineage_shared x ON x.step = number "
    "WHERE {took} AND x.writes GROUP BY x.shared",
}
_OVERLAPS = (
    "SELECT 1 FROM lineage_steps WHERE place = ? AND ended > ? AND +started < ? AND number != ? AND kind = 'call' AND leaves "
    "LIMIT 1"
)
_LEFT_RUNNING = "SELECT 1 FROM lineage_steps WHERE place = ? AND +started < ? AND left_running LIMIT 1"
_SHARED_BY = "SELECT shared, writes FROM lineage_shared WHERE step = ? ORDER BY shared"
_ENDED_SINCE = "SELECT min(ended) FROM lineage_steps WHERE place = ? AND ended_at >= ?"


class Step(NamedTuple):
    number: int
    """Of its first entry in the ledger; of a found file, of the entry by which it was found."""
    kind: str
    step_id: str
    started: int
    """What was recorded before this entry may be heard by it; what it gives may be heard from here on."""
    ended: int
    ended_at: str | None
    place: str
    """The workspace of one generation of an agent, or a sandbox with a workspace of its own."""
    sandbox_id: str
    session_id: str | None
    leaves: bool
    """Whether it may leave anything at the place."""
    left_running: bool
    rank: int


class LineageRows:
    """Of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- how far the index is ----------------------------------------------------------------------------------------

    def position(self) -> int | None:
        """The number of the last entry in it; None if it is of another form, or has a part of an entry."""
        rows = self._store.read("SELECT seq, form FROM lineage_position")
        return int(rows[0][0]) if rows and rows[0][1] == FORM else None

    def begin_anew(self) -> None:
        with self._store.transaction():
            for table in ("position", "heights", "steps", "items", "edges", "shared"):
                self._store.raw.execute(f"DELETE FROM lineage_{table}")  # noqa: S608
            self._store.raw.execute("INSERT INTO lineage_position VALUES (1, 0, ?)", (FORM,))

    def reach(self, seq: int) -> None:
        self._store.raw.execute("UPDATE lineage_position SET seq = ?, form = ?", (seq, FORM))

    def leave_unfinished(self) -> None:
        self._store.raw.execute("UPDATE lineage_position SET form = ?", (UNFINISHED,))

    # -- steps -------------------------------------------------------------------------------------------------------

    def find_step(self, step_id: str) -> Step | None:
        rows = self._store.read(_FIND_STEP, (step_id,))
        return Step._make(rows[0]) if rows else None

    def add_step(self, step: Step) -> Step:
        self._store.raw.execute(_INSERT_STEP, step)
        return step

    def remove_step(self, step: Step) -> None:
        self._store.raw.execute("DELETE FROM lineage_steps WHERE number = ?", (step.number,))
        self._store.raw.execute("DELETE FROM lineage_shared WHERE step = ?", (step.number,))

    def share(self, step: Step, shared: str, *, writes: bool) -> None:
        """Note that *step* has a volume or a snapshot before it."""
        self._store.raw.execute("INSERT OR IGNORE INTO lineage_shared VALUES (?, ?, ?)", (step.number, shared, writes))

    def is_shared(self, shared: str) -> bool:
        return bool(self._store.read("SELECT 1 FROM lineage_shared WHERE shared = ? LIMIT 1", (shared,)))

    def shared_by(self, number: int) -> list[tuple[str, bool]]:
        """What a step shares with others, and whether it writes there."""
        return shared_by(self._store, number)

    def end_step(self, entry: LedgerEntry, step: Step, rank: int, left_running: bool) -> Step:
        """With all that it may have taken in by now."""
        text = entry.body.get("ended_at")
        ended_at = format_time(entry.at if text is None else parse_time(text))
        rank = max(rank, step.rank, self.height_around(step))
        self._store.raw.execute(
            "UPDATE lineage_steps SET ended = ?, ended_at = ?, left_running = ?, rank = ? WHERE number = ?",
            (entry.seq, ended_at, left_running, rank, step.number),
        )
        return step._replace(ended=entry.seq, ended_at=ended_at, left_running=left_running, rank=rank)

    def move_end(self, step: Step) -> None:
        self._store.raw.execute(
            "UPDATE lineage_steps SET rank = ?, ended = ? WHERE number = ?", (step.rank, step.ended, step.number)
        )

    def end_left_running(self, sandbox_id: str) -> None:
        self._store.raw.execute("UPDATE lineage_steps SET left_running = 0 WHERE sandbox_id = ?", (sandbox_id,))

    def had_company(self, step: Step) -> bool:
        """Whether anything else may have written at its place meanwhile."""
        read = self._store.read
        return bool(
            read(_OVERLAPS, (step.place, step.started, step.ended, step.number))
            or read(_LEFT_RUNNING, (step.place, step.started))
        )

    def first_end_since(self, place: str, moment: datetime) -> int | None:
        """The number at which the first step ended that ended then or later."""
        found = self._store.read(_ENDED_SINCE, (place, format_time(moment)))[0][0]
        return None if found is None else int(found)

    # -- items and edges ---------------------------------------------------------------------------------------------

    def give(self, entry: LedgerEntry, step: Step, given: Given, reason: str, item_id: str) -> int:
        """The number of the new item."""
        body = entry.body
        whose = (step.place, step.sandbox_id, body["agent_id"], body["session_id"])
        call = step.number if step.kind == "call" else None
        if step.kind in ("input", "found"):
            of_call = self.find_step(body["call_id"])
            call = None if of_call is None else of_call.number
        cursor = self._store.raw.execute(
            _INSERT_ITEM,
            (
                *(item_id, given.kind, step.number, call, entry.seq, *whose, given.heard, given.left),
                *(given.path, given.sha256, given.bytes, given.host, given.port, given.methods, given.outcome),
                *(step.rank, reason, format_time(entry.at), given.certainty, given.retention),
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def belongs_to(self, item: int, call: Step) -> None:
        self._store.raw.execute("UPDATE lineage_items SET call = ? WHERE number = ?", (call.number, item))

    def note_contact(self, entry: LedgerEntry, step: Step, methods: Iterable[str]) -> None:
        """What became known of a contact since it began."""
        (known,) = self._store.read("SELECT methods, bytes, sha256 FROM lineage_items WHERE step = ?", (step.number,))
        body, names = entry.body, dict.fromkeys([*(known[0] or "").split(", "), *methods])
        self._store.raw.execute(
            "UPDATE lineage_items SET methods = ?, bytes = ?, sha256 = ?, seq = ? WHERE step = ?",
            (
                ", ".join(list(filter(None, names))[:MOST_METHODS]) or None,
                max(known[1] or 0, body.get("received_bytes") or 0),
                body.get("sent_sha256") or known[2],
                entry.seq,
                step.number,
            ),
        )

    def file_in_force(self, place: str, path: str) -> tuple[int, str | None] | None:
        """The number and the digest of the item that is there now."""
        rows = self._store.read(_IN_FORCE, (place, path))
        return (rows[0][0], rows[0][1]) if rows else None

    def replace_file(self, place: str, path: str, retention: str) -> None:
        self._store.raw.execute(_REPLACE, (retention, place, path))

    def empty(self, place: str) -> None:
        """What is on record stays, and says that the content is gone."""
        self._store.raw.execute(_EMPTY_PLACE, (place,))

    def add_edge(self, step: Step, item: int, certainty: str) -> None:
        self._store.raw.execute("INSERT OR IGNORE INTO lineage_edges VALUES (?, ?, ?)", (step.number, item, certainty))

    # -- labels ------------------------------------------------------------------------------------------------------

    def height(self, scope: str | None) -> int:
        """The highest label that a session or a place ever held."""
        rows = self._store.read("SELECT rank FROM lineage_heights WHERE scope = ?", (scope,))
        return int(rows[0][0]) if rows else 0

    def height_around(self, step: Step) -> int:
        """Of all that it may have taken in by now."""
        scopes = (step.session_id, step.place, *(shared for shared, _ in self.shared_by(step.number)))
        return max(map(self.height, scopes))

    def raise_height(self, scope: str, rank: int) -> None:
        self._store.raw.execute(_RAISE_HEIGHT, (scope, rank))

    def raise_items(self, entry: LedgerEntry, step: Step, reason: str) -> None:
        values = (step.rank, reason, format_time(entry.at), step.number, step.rank)
        self._store.raw.execute(_RAISE_ITEMS, values)

    def raise_derived(self, entry: LedgerEntry, step: Step) -> None:
        """See that session, place, and every step that may have taken in what this one gave, are labelled no lower.

        What one of those gave before it can have taken this in has nothing to do with it, so each goes with a number.
        """
        rank, reached = step.rank, dict[str, int]()
        todo = [("session", step.session_id, step.started)] if step.kind == "call" else []
        todo += [("place", step.place, step.started)] if step.leaves else []
        todo += [("shared", shared, step.started) for shared, writes in self.shared_by(step.number) if writes]
        targets = tuple(_GAVE_ON) if is_any_shared(self._store) else ("session", "place")
        while rank and todo:
            kind, scope, since = todo.pop()
            if scope is None:
                continue
            self.raise_height(scope, rank)
            if since >= reached.get(scope, NEVER):  # it was gone through from further back
                continue
            reached[scope] = since
            took = _TOOK[kind]
            values = (rank, scope, since, rank)
            self._store.raw.execute(f"UPDATE lineage_steps SET rank = ? WHERE {took} AND rank < ?", values)  # noqa: S608
            self._store.raw.execute(
                f"UPDATE lineage_items SET rank = ?, reason = ?, assigned_at = ? WHERE rank < ? AND step IN "  # noqa: S608
                f"(SELECT number FROM lineage_steps WHERE {took})",
                (rank, by_inputs(rank), format_time(entry.at), rank, scope, since),
            )
            # What took it in gives it on: calls of a session at places, and what was at a place to sessions.
            for to in targets:
                query = _GAVE_ON[to].format(took=took)
                todo += [(to, name, begun) for name, begun in self._store.read(query, (since, scope, since))]


def shared_by(store: Store, number: int) -> list[tuple[str, bool]]:
    """The volumes and snapshots that a step had, and whether it writes there."""
    return [(shared, bool(writes)) for shared, writes in store.read(_SHARED_BY, (number,))]


def is_any_shared(store: Store) -> bool:
    return bool(store.read("SELECT 1 FROM lineage_shared LIMIT 1"))
