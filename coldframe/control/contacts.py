"""Contacts of all sandboxes in tables, for the questions that a ledger answers slowly: what did this one reach, who reached that?

The ledger is the proof and has every step; here is one row for each contact, in its newest form, written in the same
transaction. How far the host's record of a sandbox has been taken over stands beside it, so that after a crash nothing is
missing and nothing is there twice.
"""

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.network import DeniedSum, LoggedContact, NetworkContact, ReachedBy
from coldframe.contract.policy import Outcome, Role
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.store import Store, metadata

networks = sa.Table(
    "networks",
    metadata,
    sa.Column("sandbox_id", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("closed", sa.Integer, nullable=False),
    sa.Column("denied_sums", sa.Text, nullable=False),
)
contacts = sa.Table(
    "network_contacts",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("change", sa.Integer, nullable=False),
    sa.Column("sandbox_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("command_id", sa.Text),
    sa.Column("contact_id", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("dialled", sa.Text),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("began_at", sa.Text, nullable=False),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
sa.Index("network_contacts_change", contacts.c.sandbox_id, contacts.c.change)
sa.Index("network_contacts_command_id", contacts.c.command_id)
sa.Index("network_contacts_contact_id", contacts.c.sandbox_id, contacts.c.contact_id)
sa.Index("network_contacts_dialled", contacts.c.dialled)
sa.Index("network_contacts_host", contacts.c.host, contacts.c.began_at)
sa.Index("network_contacts_sandbox_id", contacts.c.sandbox_id)

_FIELDS = "number, change, sandbox_id, agent_id, session_id, document"
_FIND = f"SELECT {_FIELDS} FROM network_contacts WHERE sandbox_id = ? AND contact_id = ? ORDER BY number DESC LIMIT 1"  # noqa: S608
_INSERT = (
    "INSERT INTO network_contacts (change, sandbox_id, agent_id, session_id, command_id, contact_id, host, dialled, outcome, "
    "began_at, open, document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE network_contacts SET change = ?, dialled = ?, outcome = ?, open = ?, document = ? WHERE number = ?"
_LIKE_ESCAPES = str.maketrans({"%": "\\%", "_": "\\_", "\\": "\\\\"})


_MORE_MAY_COME, _WHOLE, _FORGOTTEN = range(3)
"""What `closed` says of the host's record: that it is not over, is here, or is here alone."""


class Position(NamedTuple):
    """How far the record of a sandbox has been taken over."""

    seq: int
    closed: bool
    """Whether it is known to be whole, so that nothing more comes."""
    forgotten: bool
    """Whether the host has removed what it had."""
    denied_sums: tuple[DeniedSum, ...]
    """As they were at the end."""


class Wanted(NamedTuple):
    """Which contacts; what is None does not matter."""

    sandbox_id: str | None = None
    agent_id: str | None = None
    command_id: str | None = None
    outcome: Outcome | None = None
    host: str | None = None
    """A name, an address, or `*.NAME` for all names below it."""
    since: datetime | None = None
    until: datetime | None = None


class Contacts:
    """The tables. Whoever writes has a transaction under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._change: int | None = None

    # -- sandboxes with a network ----------------------------------------------------------------------------------

    def open_network(self, sandbox_id: str, role: Role) -> None:
        self._store.raw.execute("INSERT INTO networks VALUES (?, ?, 0, 0, '[]')", (sandbox_id, role.value))

    def role_of(self, sandbox_id: str) -> Role | None:
        """Of whoever made the sandbox; None for one without network."""
        rows = self._store.read("SELECT role FROM networks WHERE sandbox_id = ?", (sandbox_id,))
        return Role(rows[0][0]) if rows else None

    def forget_network(self, sandbox_id: str) -> None:
        """Of a sandbox that could not be made."""
        self._store.raw.execute("DELETE FROM networks WHERE sandbox_id = ?", (sandbox_id,))

    def position(self, sandbox_id: str) -> Position | None:
        """None for a sandbox without network."""
        rows = self._store.read("SELECT seq, closed, denied_sums FROM networks WHERE sandbox_id = ?", (sandbox_id,))
        if not rows:
            return None
        seq, closed, sums = rows[0]
        return Position(
            seq,
            closed >= _WHOLE,
            closed == _FORGOTTEN,
            tuple(DeniedSum.model_validate(one) for one in json.loads(sums)),
        )

    def move(self, sandbox_id: str, seq: int) -> None:
        self._store.raw.execute("UPDATE networks SET seq = ? WHERE sandbox_id = ?", (seq, sandbox_id))

    def close(self, sandbox_id: str, sums: Sequence[DeniedSum]) -> None:
        text = json.dumps([one.model_dump(mode="json") for one in sums])
        values = (_WHOLE, text, sandbox_id)
        self._store.raw.execute("UPDATE networks SET closed = ?, denied_sums = ? WHERE sandbox_id = ?", values)

    def note_forgotten(self, sandbox_id: str) -> None:
        self._store.raw.execute("UPDATE networks SET closed = ? WHERE sandbox_id = ?", (_FORGOTTEN, sandbox_id))

    def unfinished(self) -> list[str]:
        """Sandboxes of which the host may have a record still."""
        query = "SELECT sandbox_id FROM networks WHERE closed != ?"
        return [str(row[0]) for row in self._store.read(query, (_FORGOTTEN,))]

    def open_ones(self, sandbox_id: str) -> list[LoggedContact]:
        """Contacts that have begun and of which no end is known."""
        query = f"SELECT {_FIELDS} FROM network_contacts WHERE sandbox_id = ? AND open = 1 ORDER BY number"  # noqa: S608
        return [_logged(row) for row in self._store.read(query, (sandbox_id,))]

    # -- contacts --------------------------------------------------------------------------------------------------

    def find(self, sandbox_id: str, contact_id: str) -> LoggedContact | None:
        rows = self._store.read(_FIND, (sandbox_id, contact_id))
        return _logged(rows[0]) if rows else None

    def add(
        self, sandbox_id: str, agent_id: str | None, session_id: str, contact: NetworkContact, *, is_open: bool
    ) -> None:
        values = (
            *(self._next_change(), sandbox_id, agent_id, session_id, contact.command_id, contact.contact_id),
            *(_host_of(contact), contact.dialled, contact.outcome.value, format_time(contact.began_at), is_open),
        )
        self._store.raw.execute(_INSERT, (*values, contact.model_dump_json()))

    def update(self, known: LoggedContact, contact: NetworkContact, *, is_open: bool) -> None:
        values = (self._next_change(), contact.dialled, contact.outcome.value, is_open, contact.model_dump_json())
        self._store.raw.execute(_UPDATE, (*values, known.number))

    def _next_change(self) -> int:
        if self._change is None:
            self._change = int(self._store.read("SELECT coalesce(max(change), 0) FROM network_contacts")[0][0])
        self._change += 1
        return self._change

    def page(self, wanted: Wanted, *, after: int, limit: int) -> list[LoggedContact]:
        """Those behind number *after*, in the order in which they came on record."""
        conditions, values = _conditions(wanted)
        conditions.append("number > ?")
        query = f"SELECT {_FIELDS} FROM network_contacts WHERE {' AND '.join(conditions)} ORDER BY number LIMIT ?"  # noqa: S608
        return [_logged(row) for row in self._store.read(query, [*values, after, limit])]

    def changes(self, wanted: Wanted, *, after: int, limit: int) -> list[LoggedContact]:
        """Those of which something became known after change *after*, in the order of it."""
        conditions, values = _conditions(wanted)
        conditions.append("change > ?")
        query = f"SELECT {_FIELDS} FROM network_contacts WHERE {' AND '.join(conditions)} ORDER BY change LIMIT ?"  # noqa: S608
        return [_logged(row) for row in self._store.read(query, [*values, after, limit])]

    def reached_by(self, wanted: Wanted, *, limit: int) -> list[ReachedBy]:
        """Which sandboxes, whoever was there last first."""
        conditions, values = _conditions(wanted)
        query = (
            "SELECT sandbox_id, agent_id, sum(outcome = 'allow'), sum(outcome != 'allow'), min(began_at), max(began_at) "  # noqa: S608
            f"FROM network_contacts WHERE {' AND '.join(conditions) or '1'} GROUP BY sandbox_id ORDER BY 6 DESC LIMIT ?"
        )
        return [
            ReachedBy(
                sandbox_id=row[0],
                agent_id=row[1],
                allowed=row[2],
                denied=row[3],
                first_at=parse_time(row[4]),
                last_at=parse_time(row[5]),
            )
            for row in self._store.read(query, [*values, limit])
        ]


def _conditions(wanted: Wanted) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []

    def want(condition: str, *given: object) -> None:
        conditions.append(condition)
        values.extend(given)

    for name in ("sandbox_id", "agent_id", "command_id"):
        if (value := getattr(wanted, name)) is not None:
            # A command has few contacts, a sandbox many: with `+` the index of the latter is left.
            want(f"{'+' if wanted.command_id is not None and name != 'command_id' else ''}{name} = ?", value)
    if wanted.outcome is not None:
        want("outcome = ?", wanted.outcome.value)
    if wanted.host is not None:
        host = wanted.host.lower().rstrip(".")
        if host.startswith("*."):
            want("host LIKE ? ESCAPE '\\'", "%" + host[1:].translate(_LIKE_ESCAPES))
        else:
            want("(host = ? OR dialled = ?)", host, host)
    if wanted.since is not None:
        want("began_at >= ?", format_time(wanted.since))
    if wanted.until is not None:
        want("began_at < ?", format_time(wanted.until))
    return conditions, values


def _host_of(contact: NetworkContact) -> str:
    return (contact.name or contact.address).lower()


def _logged(row: Collection[Any]) -> LoggedContact:
    number, change, sandbox_id, agent_id, session_id, document = row
    return LoggedContact(
        number=number,
        change=change,
        sandbox_id=sandbox_id,
        agent_id=agent_id,
        session_id=session_id,
        contact=NetworkContact.model_validate_json(document),
    )
