"""What was derived from what, as an index made from the ledger alone: it can be thrown away and made again, with equal ids.

A *step* is a call, a contact, or input that was sent to a running command. It takes in and gives *items*. Which item a step
took in is seldom on record, so it is assumed from where both were. A step may have taken in

* all that calls of its session gave which started before it,
* all that was left where it ran (workspace, box, printed output, contacts) by steps that started before it ended,

and of these inputs only those that the record names are `known`. No edge is written for what is assumed: it follows from
the numbers `started` and `ended`, which are numbers of ledger entries (`closure.py`).

A label is the join of what the gate said and of everything that session and place held. An item may come on record with a
higher label than a step has that may have taken it in meanwhile; then that step is raised, and whatever it may have given
from then on. So no item is ever labelled lower than an input. A person who lowers the label of a workspace changes what the gate does
and not where things came from: here they keep the label of their origin.

It is brought up to date when somebody asks, so that a call costs nothing.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.errors import LedgerUnavailable, UnknownTool
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.policy import Label
from coldframe.control.call_records import ids_of
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.store import Store, metadata
from coldframe.policy.labels import join, parse
from coldframe.tools.registry import find_tool

FORM = 1
"""Of the index. Another one than the database has makes it anew."""
UNFINISHED = 0
"""The form of an index that has a part of an entry."""
AT_ONCE = 100
"""Entries and changed files in one transaction, in which nobody else is served: some milliseconds."""
LOOKED_THROUGH_AT_ONCE = 10_000
"""Entries, of which most may be of no interest."""
MOST_METHODS = 20
"""Of one contact. A box decides how many there are."""
NEVER = 2**62
"""The end of a step that goes on."""
_LABELS = tuple(Label)

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
_HEARD_IT = "session_id = ? AND started > ?"
_SAW_IT = "place = ? AND ended > ?"
_OVERLAPS = (
    "SELECT 1 FROM lineage_steps WHERE place = ? AND ended > ? AND +started < ? AND number != ? AND kind = 'call' AND leaves "
    "LIMIT 1"
)
_LEFT_RUNNING = "SELECT 1 FROM lineage_steps WHERE place = ? AND +started < ? AND left_running LIMIT 1"
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


class Given(NamedTuple):
    """An item, beside what it shares with its step."""

    kind: str
    sha256: str | None = None
    bytes: int | None = None
    path: str | None = None
    heard: bool = False
    """Whether the session takes it in."""
    left: bool = False
    """Whether it is at the place from then on."""
    certainty: str = "known"
    retention: str = "not_kept"
    host: str | None = None
    port: int | None = None
    methods: str | None = None
    outcome: str = "allow"


def given_by(body: Mapping[str, Any]) -> list[Given]:
    """What a call gave, by the body of `call.ended`."""
    files = body.get("files") or {}
    given = _streams(body) if _runs(body) else _result(body)
    if files.get("recorded"):
        given += [
            Given("file", one["sha256_after"], None, one["path"], left=True, retention="kept")
            for one in _changes(body)
            if one["change"] != "deleted"
        ]
    elif body["ended"] == "lost" or (_runs(body) and body["ended"] != "not_started"):
        given.append(Given("changes", sha256=files.get("tree_sha256_after"), left=True, certainty="assumed"))
    return given


def ids_of_given(call_id: str, given: Sequence[Given]) -> list[str]:
    """Two paths may read alike here, where their bytes are no text: then they are counted."""
    times = Counter[tuple[str, str]]()
    found = []
    for one in given:
        name = (one.kind, one.path or "")
        found.append(_item_id(call_id, *name, *([str(times[name])] if times[name] else [])))
        times[name] += 1
    return found


def _item_id(*parts: str) -> str:
    return "lin_" + hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def rank_of(*labels: object) -> int:
    return join(*(parse(label) for label in labels)).rank


def label_of(rank: int) -> Label:
    return _LABELS[rank]


class Derivation:
    """Keeps the index. One per store."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._lock = asyncio.Lock()
        self._generations: dict[str, int] = {}
        self._under_way: Iterator[None] | None = None
        self._take: dict[str, Callable[[LedgerEntry], Iterable[None] | None]] = {
            "agent.created": self._take_agent,
            "agent.deleted": self._take_deletion,
            "call.started": self._take_start,
            "call.ended": self._take_end,
            "call.interrupted": self._take_interruption,
            "command.input": self._take_input,
            "network.contact": self._take_contact,
            "network.denied": self._take_contact,
            "sandbox.lost": self._take_sandbox_end,
            "sandbox.stopped": self._take_sandbox_end,
            "sandbox.terminated": self._take_sandbox_end,
        }

    async def catch_up(self) -> int:
        """Bring the index up to the end of the ledger; the number of the last entry in it.

        Raises:
            LedgerUnavailable: it cannot be read, or the index not be written.
        """
        async with self._lock:
            while True:
                self._ledger.settle()
                if self._under_way is None:
                    seq = self._begun_at()
                    last = self._ledger.committed_seq
                    if seq >= last:
                        return seq
                    self._under_way = self._take_on(seq, min(last, seq + LOOKED_THROUGH_AT_ONCE))
                try:
                    with self._store.transaction():
                        is_over = next(self._under_way, self) is self
                except BaseException:
                    self._under_way = None
                    self._generations.clear()
                    raise
                if is_over:
                    self._under_way = None
                await asyncio.sleep(0)  # whoever gives up here leaves the rest to the next one

    def _take_on(self, after: int, upto: int) -> Iterator[None]:
        """Take the entries past *after* up to *upto*. Comes up where a transaction may end, in the midst of an entry too."""
        marks = ", ".join("?" * len(self._take))
        query = f"SELECT seq FROM ledger WHERE seq > ? AND seq <= ? AND kind IN ({marks}) ORDER BY seq"  # noqa: S608
        taken = 0
        for (seq,) in self._store.read(query, (after, upto, *self._take)):
            entry = self._ledger.entry(seq)  # one by one: each may be megabytes
            if entry is None:
                raise LedgerUnavailable(f"entry {seq} of the ledger is missing", hint="run `coldframe ledger verify`")
            for _ in self._take[entry.kind](entry) or ():
                self._store.raw.execute("UPDATE lineage_position SET form = ?", (UNFINISHED,))
                yield
            self._store.raw.execute("UPDATE lineage_position SET seq = ?, form = ?", (seq, FORM))
            taken += 1 + len(_changes(entry.body))
            if taken >= AT_ONCE:
                taken = 0
                yield
        self._store.raw.execute("UPDATE lineage_position SET seq = ?", (upto,))

    def _begun_at(self) -> int:
        rows = self._store.read("SELECT seq, form FROM lineage_position")
        if rows and rows[0][1] == FORM:
            return int(rows[0][0])
        self._generations.clear()
        with self._store.transaction():
            for table in ("position", "heights", "steps", "items", "edges"):
                self._store.raw.execute(f"DELETE FROM lineage_{table}")  # noqa: S608
            self._store.raw.execute("INSERT INTO lineage_position VALUES (1, 0, ?)", (FORM,))
        return 0

    # -- entries ---------------------------------------------------------------------------------------------------

    def _take_agent(self, entry: LedgerEntry) -> None:
        self._generations[entry.subject] = entry.seq

    def _take_deletion(self, entry: LedgerEntry) -> None:
        """What is on record stays, and says that the content is gone."""
        self._store.raw.execute(_EMPTY_PLACE, (self._place(entry.subject, "", entry.seq),))

    def _take_sandbox_end(self, entry: LedgerEntry) -> None:
        self._store.raw.execute("UPDATE lineage_steps SET left_running = 0 WHERE sandbox_id = ?", (entry.subject,))
        if entry.kind != "sandbox.stopped":
            self._store.raw.execute(_EMPTY_PLACE, (entry.subject,))  # if its workspace was its own

    def _take_start(self, entry: LedgerEntry) -> None:
        body = entry.body
        step = self._add_step(
            Step(
                number=entry.seq,
                kind="call",
                step_id=entry.subject,
                started=entry.seq,
                ended=NEVER,
                ended_at=None,
                place=self._place(body["agent_id"], body["sandbox_id"], entry.seq),
                sandbox_id=body["sandbox_id"],
                session_id=body["session_id"],
                leaves=_writes(body["tool"]),
                left_running=False,
                rank=self._height(body["session_id"]),
            )
        )
        if step.leaves:
            self._raise_height(step.place, step.rank)

    def _take_end(self, entry: LedgerEntry) -> Iterator[None]:
        """May be broken off after each of AT_ONCE files."""
        body, step = entry.body, self._find_step(entry.subject)
        if step is None:
            return
        step = self._end(entry, step, rank_of(body["label"], body["taint_after"]), bool(body.get("leftovers")))
        step = self._name_inputs(entry, step)
        yield from self._replace_files(step, body)
        reason = body["label_reason"] if rank_of(body["label"]) >= step.rank else _by_inputs(step.rank)
        # What a command changed is found by comparing, and others may have written meanwhile.
        has_company = _runs(body) and self._had_company(step)
        given = given_by(body)
        for number, (one, name) in enumerate(zip(given, ids_of_given(entry.subject, given), strict=True), 1):
            is_assumed = has_company and one.kind == "file"
            self._give(entry, step, one._replace(certainty="assumed") if is_assumed else one, reason, name)
            if number % AT_ONCE == 0:
                yield
        self._raise_derived(entry, step)

    def _take_interruption(self, entry: LedgerEntry) -> None:
        step = self._find_step(entry.subject)
        if step is None:
            return
        if not entry.body.get("began", True):
            self._store.raw.execute("DELETE FROM lineage_steps WHERE number = ?", (step.number,))
            return
        step = self._end(entry, step, rank_of(entry.body["taint_after"]), entry.body["command_id"] is not None)
        unknown = [Given("result", heard=True, left=step.leaves, certainty="assumed")]
        if step.leaves:
            unknown.append(Given("changes", left=True, certainty="assumed"))
        for one, name in zip(unknown, ids_of_given(entry.subject, unknown), strict=True):
            self._give(entry, step, one, f"{label_of(step.rank).value} by session", name)
        self._raise_derived(entry, step)

    def _take_input(self, entry: LedgerEntry) -> None:
        body, command = entry.body, self._find_step(entry.body["call_id"])
        place = self._place(body["agent_id"], body["sandbox_id"], entry.seq)
        step = self._add_step(
            Step(
                number=entry.seq,
                kind="input",
                step_id=f"{body['call_id']}/{entry.seq}",
                started=entry.seq,
                ended=entry.seq,
                ended_at=None,
                place=place,
                sandbox_id=body["sandbox_id"],
                session_id=body["session_id"],
                leaves=True,
                left_running=False,
                rank=max(rank_of(body["taint_before"]), self._height(body["session_id"]), self._height(place)),
            )
        )
        given = Given("input", sha256=body["sha256"], bytes=body["bytes"], left=True)
        reason = f"{label_of(step.rank).value} by session"
        item = self._give(entry, step, given, reason, _item_id(body["call_id"], "input", str(entry.seq)))
        if command is not None:
            self._add_edge(command, item, "known")
        self._raise_derived(entry, step)

    def _take_contact(self, entry: LedgerEntry) -> None:
        body = entry.body
        if body.get("lookup") is not None:
            return  # it went nowhere, and nothing came of it
        is_allowed = body["outcome"] == "allow"
        key = f"{body['sandbox_id']}/{body['contact_id']}"
        requests = [one for one in body.get("requests") or () if one["outcome"] == "allow"]
        rank = rank_of(body["label"], *(one["label"] for one in requests)) if is_allowed else 0
        step = self._find_step(key)
        if step is None:
            place = self._place(body["agent_id"], body["sandbox_id"], entry.seq)
            step = self._add_step(
                Step(
                    number=entry.seq,
                    kind="contact",
                    step_id=key,
                    started=self._entry_before(place, body["began_at"], entry.seq),
                    ended=entry.seq,
                    ended_at=None,
                    place=place,
                    sandbox_id=body["sandbox_id"],
                    session_id=body["session_id"],
                    leaves=is_allowed,
                    left_running=False,
                    rank=max(rank, self._height(body["session_id"]), self._height(place)),
                )
            )
            given = Given(
                "contact",
                host=(body.get("name") or body["address"]).lower(),
                port=body["port"],
                left=is_allowed,
                outcome=body["outcome"],
            )
            reason = _of_contact(body, rank, step.rank)
            item = self._give(entry, step, given, reason, _item_id(body["sandbox_id"], "contact", body["contact_id"]))
            command = self._find_step(ids_of(body["command_id"]).call_id) if body.get("command_id") else None
            if command is not None:
                self._store.raw.execute("UPDATE lineage_items SET call = ? WHERE number = ?", (command.number, item))
                if is_allowed and step.started < command.ended:  # otherwise of what has outlived the command
                    self._add_edge(command, item, "known")
            self._raise_derived(entry, step)
        else:
            risen = max(step.rank, rank, self._height(step.session_id), self._height(step.place))
            if risen > step.rank:
                reason = _of_contact(body, rank, risen)
                self._store.raw.execute(_RAISE_ITEMS, (risen, reason, format_time(entry.at), step.number, risen))
            self._store.raw.execute(
                "UPDATE lineage_steps SET rank = ?, ended = ? WHERE number = ?", (risen, entry.seq, step.number)
            )
            if risen > step.rank:
                self._raise_derived(entry, step._replace(rank=risen, ended=entry.seq))
        self._note_contact(entry, step, requests)

    def _note_contact(self, entry: LedgerEntry, step: Step, requests: list[dict[str, Any]]) -> None:
        """What became known of a contact since it began."""
        (known,) = self._store.read("SELECT methods, bytes, sha256 FROM lineage_items WHERE step = ?", (step.number,))
        methods = dict.fromkeys([*(known[0] or "").split(", "), *(one["method"] for one in requests)])
        body = entry.body
        self._store.raw.execute(
            "UPDATE lineage_items SET methods = ?, bytes = ?, sha256 = ?, seq = ? WHERE step = ?",
            (
                ", ".join(list(filter(None, methods))[:MOST_METHODS]) or None,
                max(known[1] or 0, body.get("received_bytes") or 0),
                body.get("sent_sha256") or known[2],
                entry.seq,
                step.number,
            ),
        )

    # -- what a call took in and gave ------------------------------------------------------------------------------

    def _name_inputs(self, entry: LedgerEntry, step: Step) -> Step:
        """The one file that a tool was asked about, in the version that was there; the step, labelled no lower than that."""
        body = entry.body
        call = (body.get("context") or {}).get("call") or {}
        shown, changes = body.get("shown"), list((body.get("files") or {}).get("changes") or [])
        if body.get("error_code") is not None:
            return step
        if body["tool"] == "read_file" and shown is not None and call.get("path"):
            path, sha256, size = call["path"], shown["sha256"] if shown["whole"] else None, shown["bytes"]
        elif body["tool"] == "edit_file" and len(changes) == 1:
            path, sha256, size = changes[0]["path"], changes[0]["sha256_before"], None
        else:
            return step
        there = self._store.read(_IN_FORCE, (step.place, path))
        if there and (sha256 is None or there[0][1] == sha256):
            self._add_edge(step, there[0][0], "known" if sha256 is not None else "assumed")
            return step
        self._store.raw.execute(_REPLACE, ("superseded", step.place, path))
        started = self._ledger.entry(step.number)
        labels = [one["decision"]["label"] for one in (body, started.body if started else {}) if one.get("decision")]
        found = self._add_step(
            step._replace(
                number=entry.seq,
                kind="found",
                step_id=f"{entry.subject}/found",
                ended=step.started,
                ended_at=None,
                session_id=None,
                leaves=True,
                left_running=False,
                rank=max(rank_of(*labels), self._height(step.place)),
            )
        )
        given = Given("file", sha256, size if sha256 else None, path, left=True, certainty="assumed", retention="kept")
        reason = f"{label_of(found.rank).value} by workspace and rules"
        item = self._give(entry, found, given, reason, _item_id(entry.subject, "found"))
        self._add_edge(step, item, "known")
        self._raise_derived(entry, found)
        return step._replace(rank=max(step.rank, found.rank))

    def _replace_files(self, step: Step, body: Mapping[str, Any]) -> Iterator[None]:
        """What was there in place of what is there now."""
        for number, one in enumerate(_changes(body), 1):
            retention = "removed" if one["change"] == "deleted" else "superseded"
            self._store.raw.execute(_REPLACE, (retention, step.place, one["path"]))
            if number % AT_ONCE == 0:
                yield

    def _had_company(self, step: Step) -> bool:
        read = self._store.read
        return bool(
            read(_OVERLAPS, (step.place, step.started, step.ended, step.number))
            or read(_LEFT_RUNNING, (step.place, step.started))
        )

    # -- rows ------------------------------------------------------------------------------------------------------

    def _find_step(self, step_id: str) -> Step | None:
        rows = self._store.read(_FIND_STEP, (step_id,))
        return Step._make(rows[0]) if rows else None

    def _add_step(self, step: Step) -> Step:
        self._store.raw.execute(_INSERT_STEP, step)
        return step

    def _end(self, entry: LedgerEntry, step: Step, rank: int, left_running: bool) -> Step:
        """With all that it may have taken in by now."""
        text = entry.body.get("ended_at")
        ended_at = format_time(entry.at if text is None else parse_time(text))
        rank = max(rank, step.rank, self._height(step.session_id), self._height(step.place))
        self._store.raw.execute(
            "UPDATE lineage_steps SET ended = ?, ended_at = ?, left_running = ?, rank = ? WHERE number = ?",
            (entry.seq, ended_at, left_running, rank, step.number),
        )
        return step._replace(ended=entry.seq, ended_at=ended_at, left_running=left_running, rank=rank)

    def _give(self, entry: LedgerEntry, step: Step, given: Given, reason: str, item_id: str) -> int:
        body = entry.body
        whose = (step.place, step.sandbox_id, body["agent_id"], body["session_id"])
        call = step.number if step.kind == "call" else None
        if step.kind in ("input", "found"):
            call = self._number_of(body["call_id"])
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

    def _number_of(self, call_id: str) -> int | None:
        step = self._find_step(call_id)
        return None if step is None else step.number

    def _add_edge(self, step: Step, item: int, certainty: str) -> None:
        self._store.raw.execute("INSERT OR IGNORE INTO lineage_edges VALUES (?, ?, ?)", (step.number, item, certainty))

    # -- labels ----------------------------------------------------------------------------------------------------

    def _height(self, scope: str | None) -> int:
        rows = self._store.read("SELECT rank FROM lineage_heights WHERE scope = ?", (scope,))
        return int(rows[0][0]) if rows else 0

    def _raise_derived(self, entry: LedgerEntry, step: Step) -> None:
        """See that session, place, and every step that may have taken in what this one gave, are labelled no lower.

        What one of those gave before it can have taken this in has nothing to do with it, so each goes with a number.
        """
        rank, reached = step.rank, dict[str, int]()
        todo = [(_HEARD_IT, step.session_id, step.started)] if step.kind == "call" else []
        todo += [(_SAW_IT, step.place, step.started)] if step.leaves else []
        while rank and todo:
            took, scope, since = todo.pop()
            if scope is None:
                continue
            self._raise_height(scope, rank)
            if since >= reached.get(scope, NEVER):  # it was gone through from further back
                continue
            reached[scope] = since
            values = (rank, scope, since, rank)
            self._store.raw.execute(f"UPDATE lineage_steps SET rank = ? WHERE {took} AND rank < ?", values)  # noqa: S608
            self._store.raw.execute(
                f"UPDATE lineage_items SET rank = ?, reason = ?, assigned_at = ? WHERE rank < ? AND step IN "  # noqa: S608
                f"(SELECT number FROM lineage_steps WHERE {took})",
                (rank, _by_inputs(rank), format_time(entry.at), rank, scope, since),
            )
            # What took it in gives it on: calls of a session at places, and what was at a place to sessions.
            gives, to, went = (
                (_SAW_IT, "place", "leaves") if took is _HEARD_IT else (_HEARD_IT, "session_id", "kind = 'call'")
            )
            query = f"SELECT {to}, min(max(started, ?)) FROM lineage_steps WHERE {took} AND {went} GROUP BY {to}"  # noqa: S608
            todo += [(gives, name, begun) for name, begun in self._store.read(query, (since, scope, since))]

    def _raise_height(self, scope: str, rank: int) -> None:
        self._store.raw.execute(_RAISE_HEIGHT, (scope, rank))

    # -- places ----------------------------------------------------------------------------------------------------

    def _place(self, agent_id: str | None, sandbox_id: str, seq: int) -> str:
        if agent_id is None:
            return sandbox_id
        if agent_id not in self._generations:
            made = self._ledger.entries(kinds=("agent.created",), subject=agent_id, limit=10_000)
            self._generations[agent_id] = max((one.seq for one in made if one.seq < seq), default=0)
        return f"{agent_id}@{self._generations[agent_id]}"

    def _entry_before(self, place: str, began_at: str, seq: int) -> int:
        """The last entry that is surely older than what began then: whatever ended later may have seen it."""
        rows = self._store.read(_ENDED_SINCE, (place, format_time(parse_time(began_at))))
        return seq if rows[0][0] is None else min(seq, int(rows[0][0]) - 1)


def _writes(tool: str) -> bool:
    try:
        return find_tool(tool).writes
    except UnknownTool:  # of another version
        return True


def _runs(body: Mapping[str, Any]) -> bool:
    return body.get("stdout") is not None


def _changes(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of content. That of a directory is in its files."""
    changes = (body.get("files") or {}).get("changes") or ()
    return [one for one in changes if one["change"] != "metadata" and one["kind"] != "directory"]


def _streams(body: Mapping[str, Any]) -> list[Given]:
    """What was printed is kept, and every session of the agent may read it there."""
    found = [(name, body.get(name) or {}) for name in ("stdout", "stderr")]
    return [
        Given(name, one["sha256"], one["bytes"], heard=True, left=True, retention="with_sandbox")
        for name, one in found
        if one.get("bytes")
    ]


def _result(body: Mapping[str, Any]) -> list[Given]:
    shown = body.get("shown") or {}
    if not shown and body.get("files") is not None:
        return []  # it says what it has written, and no more
    return [Given("result", shown.get("sha256"), shown.get("bytes"), heard=True)]


def _by_inputs(rank: int) -> str:
    return f"{label_of(rank).value} by what it may be derived from"


def _of_contact(body: Mapping[str, Any], rank: int, risen: int) -> str:
    return f"{label_of(risen).value} by rule {body['rule_id']}" if rank == risen else _by_inputs(risen)
