"""Contacts of all sandboxes in tables, for the questions that a ledger answers slowly: what did this one reach, who reached that?

The ledger is the proof and has every step; here is one row for each contact, in its newest form, written in the same
transaction. How far the host's record of a sandbox has been taken over stands beside it, so that after a crash nothing is
missing and nothing is there twice.
"""

import asyncio
import heapq
import ipaddress
import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import TypeAdapter

from coldframe.contract.network import (
    DeniedSum,
    LoggedContact,
    NetworkContact,
    NetworkPackage,
    NetworkRequest,
    ReachedBy,
)
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
    sa.Column("requests", sa.Text, nullable=False, server_default="[]"),
    sa.Column("looked_up", sa.Boolean, nullable=False, server_default="0"),
)
sa.Index("network_contacts_agent_id", contacts.c.agent_id)
sa.Index("network_contacts_change", contacts.c.sandbox_id, contacts.c.change)
sa.Index("network_contacts_command_id", contacts.c.command_id)
sa.Index("network_contacts_contact_id", contacts.c.sandbox_id, contacts.c.contact_id)
sa.Index("network_contacts_dialled", contacts.c.dialled)
sa.Index("network_contacts_host", contacts.c.host)
sa.Index("network_contacts_sandbox_id", contacts.c.sandbox_id)

LOOKED_AT_ONCE = 10_000
"""Contacts that a search goes through before others are served: some milliseconds."""
PARSED_AT_ONCE = 100
BYTES_AT_ONCE, MOST_BYTES = 256 * 1024, 8 * 1024**2
"""Of contacts that are read: before others are served, and in one page. A box decides how long its requests are."""
CHANGES_AT_ONCE = 20

_REQUESTS = TypeAdapter(tuple[NetworkRequest, ...])
_FIELDS = "number, change, sandbox_id, agent_id, session_id, document, requests"
_READ = f"SELECT {_FIELDS} FROM network_contacts WHERE number = ?"  # noqa: S608
_FIND_COMMAND = (
    "SELECT command_id FROM network_contacts WHERE sandbox_id = ? AND contact_id = ? ORDER BY number DESC LIMIT 1"
)
_WITH_PACKAGES = (
    "SELECT number, command_id, requests FROM network_contacts WHERE sandbox_id = ? AND number > ? AND outcome = 'allow' "
    "AND instr(requests, '\"package\":{') ORDER BY number LIMIT ?"
)
_HANDED_OVER = (
    "SELECT json_extract(one.value, '$.package') FROM network_contacts, json_each(requests) AS one "
    "WHERE command_id = ? AND outcome = 'allow' AND json_extract(one.value, '$.package.file') <> '' ORDER BY number LIMIT ?"
)
_UNREACHED = (
    "SELECT DISTINCT json_extract(one.value, '$.reason') AS reason FROM network_contacts, json_each(requests) AS one "
    "WHERE command_id = ? AND reason LIKE 'REGISTRY_UNREACHABLE: %' LIMIT 5"
)
_OF_COMMAND = "SELECT document FROM network_contacts WHERE command_id = ? AND NOT looked_up ORDER BY number LIMIT ?"
_FIND = f"SELECT {_FIELDS} FROM network_contacts WHERE sandbox_id = ? AND contact_id = ? ORDER BY number DESC LIMIT 1"  # noqa: S608
_INSERT = (
    "INSERT INTO network_contacts (change, sandbox_id, agent_id, session_id, command_id, contact_id, host, dialled, outcome, "
    "began_at, open, looked_up, document, requests) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE network_contacts SET change = ?, dialled = ?, outcome = ?, open = ?, document = ?, requests = ? WHERE number = ?"
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


class Attributed(NamedTuple):
    """Whose a contact is; None for nobody's that is known."""

    command_id: str | None


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
    lookups: bool = False
    """Also names that were looked up and answered; those of which the look-up was denied are here in any case."""


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

    def has_open(self, sandbox_id: str) -> bool:
        """Whether there is any contact of which no end is known."""
        query = "SELECT 1 FROM network_contacts WHERE sandbox_id = ? AND open = 1 LIMIT 1"
        return bool(self._store.read(query, (sandbox_id,)))

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
            _is_answered_look_up(contact),
        )
        self._store.raw.execute(_INSERT, (*values, *_stored(contact)))

    def update(self, known: LoggedContact, contact: NetworkContact, *, is_open: bool) -> None:
        values = (self._next_change(), contact.dialled, contact.outcome.value, is_open, *_stored(contact))
        self._store.raw.execute(_UPDATE, (*values, known.number))

    def _next_change(self) -> int:
        if self._change is None:
            self._change = int(self._store.read("SELECT coalesce(max(change), 0) FROM network_contacts")[0][0])
        self._change += 1
        return self._change

    def command_of(self, sandbox_id: str, contact_id: str) -> Attributed | None:
        """As it was found when the contact came on record; None if that has not come."""
        rows = self._store.read(_FIND_COMMAND, (sandbox_id, contact_id))
        return Attributed(rows[0][0]) if rows else None

    async def of_command(self, command_id: str, *, limit: int) -> list[NetworkContact]:
        """The first contacts of a command, without their requests, of which a box makes as many as it likes, and without
        names that were only looked up."""
        found = []
        for document, *_ in self._store.read(_OF_COMMAND, (command_id, limit)):
            found.append(NetworkContact.model_validate_json(document))
            if len(found) % PARSED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def unreached_registries(self, command_id: str) -> tuple[str, ...]:
        """What the view of packages told a command of registries that it could not reach for it, each sentence once."""
        return tuple(reason.partition(": ")[2] for (reason,) in self._store.read(_UNREACHED, (command_id,)))

    def handed_over(self, command_id: str, *, limit: int) -> list[NetworkPackage]:
        """Files of packages that registries gave a command, in the order in which its contacts came on record."""
        rows = self._store.read(_HANDED_OVER, (command_id, limit))
        return [NetworkPackage.model_validate_json(text) for (text,) in rows]

    async def packages_of(self, sandbox_id: str) -> AsyncIterator[tuple[NetworkPackage, str | None]]:
        """What registries gave a sandbox, in the order in which its contacts came on record, and to which command. Other
        contacts, of which there may be very many, are not read."""
        after, more = 0, True
        while more:
            rows = self._store.read(_WITH_PACKAGES, (sandbox_id, after, PARSED_AT_ONCE))
            more = len(rows) == PARSED_AT_ONCE
            for number, command_id, requests in rows:
                after = number
                for request in _REQUESTS.validate_json(requests):
                    if request.package is not None:
                        yield request.package, command_id
            await asyncio.sleep(0)

    async def page(self, wanted: Wanted, *, after: int, limit: int) -> tuple[list[LoggedContact], bool]:
        """Those behind number *after*, in the order in which they came on record, and whether there are more: no more than
        *limit*, and fewer if they are large."""
        search, found, read, at_once = _Search(wanted), list[LoggedContact](), 0, 0
        query = f"SELECT number FROM network_contacts WHERE {_within(search)} ORDER BY number LIMIT ?"  # noqa: S608
        last = self._last_number()
        while after < last:
            upto = self._end_of_step(search, after, last)
            for (number,) in self._store.read(query, [*search.values, after, upto, limit + 1 - len(found)]):
                if len(found) == limit or read >= MOST_BYTES:
                    return found, True
                (row,) = self._store.read(_READ, (number,))
                found.append(_logged(row))
                read, at_once = read + _size(row), at_once + _size(row)
                if at_once >= BYTES_AT_ONCE:
                    at_once = 0
                    await asyncio.sleep(0)
            after = upto
            await asyncio.sleep(0)
        return found, False

    def changes(self, wanted: Wanted, *, after: int, limit: int) -> list[LoggedContact]:
        """Those of which something became known after change *after*, in the order of it."""
        search = _Search(wanted)
        query = (
            f"SELECT {_FIELDS} FROM network_contacts WHERE {search.condition} AND change > ? ORDER BY change LIMIT ?"  # noqa: S608
        )
        return [_logged(row) for row in self._store.read(query, [*search.values, after, limit])]

    async def reached_by(self, wanted: Wanted, *, limit: int) -> list[ReachedBy]:
        """Which sandboxes, whoever was there last first. A name that was only looked up is no contact here."""
        search, found = _Search(wanted), dict[str, ReachedBy]()
        query = (
            "SELECT sandbox_id, agent_id, sum(outcome = 'allow'), sum(outcome != 'allow'), min(began_at), max(began_at) "  # noqa: S608
            f"FROM network_contacts WHERE {_within(search)} GROUP BY sandbox_id"
        )
        after, end = 0, self._last_number()
        while after < end:
            upto = self._end_of_step(search, after, end)
            rows = self._store.read(query, [*search.values, after, upto])
            for sandbox_id, agent_id, allowed, denied, first_at, last_at in rows:
                known, first, last = found.get(sandbox_id), parse_time(first_at), parse_time(last_at)
                found[sandbox_id] = ReachedBy(
                    sandbox_id=sandbox_id,
                    agent_id=agent_id,
                    allowed=allowed + (known.allowed if known else 0),
                    denied=denied + (known.denied if known else 0),
                    first_at=min(first, known.first_at) if known else first,
                    last_at=max(last, known.last_at) if known else last,
                )
            after = upto
            await asyncio.sleep(0)
        return heapq.nlargest(limit, found.values(), key=attrgetter("last_at"))

    def _last_number(self) -> int:
        return int(self._store.read("SELECT coalesce(max(number), 0) FROM network_contacts")[0][0])

    def _end_of_step(self, search: "_Search", after: int, last: int) -> int:
        """Up to which number to look at once: others are served in between, however much there is."""
        if not search.narrow:
            return after + LOOKED_AT_ONCE
        query = (
            f"SELECT number FROM network_contacts WHERE {search.narrow} AND number > ? ORDER BY number LIMIT 1 OFFSET ?"  # noqa: S608
        )
        rows = self._store.read(query, [*search.narrow_values, after, LOOKED_AT_ONCE - 1])
        return int(rows[0][0]) if rows else last


def _within(search: "_Search") -> str:
    """Of one step."""
    return f"{search.condition or '1'} AND number > ? AND number <= ?"


class _Search:
    """What is wanted, as parts of statements. One condition narrows it down: by an index, of which the entries under one
    value are in the order of numbers. With `+` the others leave their index alone."""

    def __init__(self, wanted: Wanted) -> None:
        self.narrow = ""
        self.narrow_values: list[Any] = []
        self._rest: list[str] = []
        self._rest_values: list[Any] = []
        self._equal("command_id", wanted.command_id)  # it has few contacts, a sandbox many
        self._equal("sandbox_id", wanted.sandbox_id)
        if wanted.host is not None:
            self._host(wanted.host.lower().rstrip("."))
        self._equal("agent_id", wanted.agent_id)
        if wanted.outcome is not None:
            self._want("outcome = ?", wanted.outcome.value)
        if wanted.since is not None:
            self._want("began_at >= ?", format_time(wanted.since))
        if wanted.until is not None:
            self._want("began_at < ?", format_time(wanted.until))
        if not wanted.lookups:
            self._want("NOT looked_up")

    @property
    def condition(self) -> str:
        return " AND ".join([*([self.narrow] if self.narrow else []), *self._rest])

    @property
    def values(self) -> list[Any]:
        return [*self.narrow_values, *self._rest_values]

    def _want(self, condition: str, *values: object) -> None:
        self._rest.append(condition)
        self._rest_values.extend(values)

    def _equal(self, name: str, value: str | None) -> None:
        if value is None:
            return
        if self.narrow:
            self._want(f"+{name} = ?", value)
        else:
            self.narrow, self.narrow_values = f"{name} = ?", [value]

    def _host(self, host: str) -> None:
        if host.startswith("*."):
            self._want("+host LIKE ? ESCAPE '\\'", "%" + host[1:].translate(_LIKE_ESCAPES))
        elif _is_address(host):
            left = "+" if self.narrow else ""
            self._want(f"({left}host = ? OR {left}dialled = ?)", host, host)
        else:
            self._equal("host", host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_of(contact: NetworkContact) -> str:
    return (contact.name or contact.address).lower()


def _is_answered_look_up(contact: NetworkContact) -> bool:
    return contact.lookup is not None and contact.outcome is Outcome.ALLOW


def _size(row: Sequence[Any]) -> int:
    *_, document, requests = row
    return len(document) + len(requests)


def _logged(row: Sequence[Any]) -> LoggedContact:
    number, change, sandbox_id, agent_id, session_id, document, requests = row
    return LoggedContact(
        number=number,
        change=change,
        sandbox_id=sandbox_id,
        agent_id=agent_id,
        session_id=session_id,
        contact=NetworkContact.model_validate_json(f'{document[:-1]},"requests":{requests}}}'),
    )


def _stored(contact: NetworkContact) -> tuple[str, str]:
    """Itself, and its requests."""
    return contact.model_dump_json(exclude={"requests"}), _REQUESTS.dump_json(contact.requests).decode()
