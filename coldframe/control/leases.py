"""Leases: sandboxes that were given for a time, with what whoever took one said about it.

A lease ends at a moment that whoever has it may move either way, unlike the timers of a spec, which only ever give more
time. What happens then is part of it. Beside that it keeps the words of the taker (metadata), variables that every
command of that sandbox is started with, and what a protocol wants to hear again. The sandbox itself knows nothing of it.
"""

import json
from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from pydantic import Field

from coldframe.contract.caller import Caller
from coldframe.contract.model import Model
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Kept, Store, metadata

HOST = r"^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?(?::(?:[0-9]{1,5}|\$\{PORT\}))?$"
AtEnd = Literal["terminate", "pause", "stop"]

leases_table = sa.Table(
    "leases",
    metadata,
    sa.Column("sandbox_id", sa.Text, primary_key=True),
    sa.Column("token_id", sa.Text, nullable=False),
    sa.Column("ends_at", sa.Text),
    sa.Column("terms", sa.Text, nullable=False),
)
_SELECT = "SELECT sandbox_id, token_id, ends_at, terms FROM leases"
_ENDED = (
    "SELECT sandbox_id FROM leases WHERE sandbox_id NOT IN (SELECT sandbox_id FROM sandboxes "
    "WHERE json_extract(state, '$.state') NOT IN ('failed', 'lost', 'terminated'))"
)
_SET = "INSERT OR REPLACE INTO leases (sandbox_id, token_id, ends_at, terms) VALUES (?, ?, ?, ?)"


class LeaseEgress(Model):
    """What its sandbox reaches, as far as the rules let it."""

    everything: bool = True
    """Every name by HTTPS and HTTP; without it what follows alone."""
    names: tuple[str, ...] = ()
    """`NAME`, or `*.NAME` for all below it."""
    addresses: tuple[str, ...] = ()
    """Addresses and ranges, of which nobody looks into what is sent there."""

    @property
    def reaches_nothing(self) -> bool:
        return not self.everything and not self.names and not self.addresses

    def is_within(self, other: "LeaseEgress") -> bool:
        """Whether it reaches nothing that the other does not."""
        if self.everything and not other.everything:
            return False
        if not other.everything and not all(any(_has(known, name) for known in other.names) for name in self.names):
            return False
        known_ranges = [ip_network(one) for one in other.addresses]
        return all(any(_contains(known, ip_network(one)) for known in known_ranges) for one in self.addresses)


class LeaseTerms(Model):
    """What was agreed when it was taken."""

    at_end: AtEnd = "terminate"
    resumes_by_itself: bool = False
    """Whether a call to a paused one makes it go on."""
    resume_s: int = 300
    """How long it runs then."""
    needs_token: bool = True
    """Whether its ports are shown to nobody without a token."""
    host: Annotated[str, Field(pattern=HOST)] | None = None
    """As what servers in it are asked by visitors of their ports, `${PORT}` for the port; None for `localhost` with its port."""
    metadata: dict[str, str] = {}
    environment: dict[str, str] = {}
    egress: LeaseEgress | None = None
    """None for what the network profile of the sandbox says."""
    network: str | None = None
    """The profile that was made for it, if it was made with one."""
    asked: dict[str, Any] = {}
    """What else was asked for, in the words of the protocol, to be told again."""


class Lease(Model):
    sandbox_id: str
    token_id: str
    """Whose it is."""
    ends_at: datetime | None
    """None: when somebody ends it."""
    terms: LeaseTerms


class Leases:
    """Those of this installation."""

    def __init__(self, store: Store, ledger: Ledger, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._kept: Kept[Lease] = Kept(store, self._load, absent_too=True)
        self.moved: Callable[[str], None] = lambda _: None
        """Told of each whose end was set."""

    def find(self, sandbox_id: str) -> Lease | None:
        return self._kept.get(sandbox_id)

    def end_of(self, info: SandboxInfo) -> tuple[datetime, AtEnd] | None:
        """When the lease of a sandbox ends, and what happens then."""
        lease = self.find(info.sandbox_id)
        return None if lease is None or lease.ends_at is None else (lease.ends_at, lease.terms.at_end)

    def environment(self, sandbox_id: str) -> dict[str, str]:
        """Variables that each of its commands is started with."""
        lease = self.find(sandbox_id)
        return {} if lease is None else lease.terms.environment

    def take(
        self,
        sandbox_id: str,
        caller: Caller,
        ends_at: datetime | None,
        terms: LeaseTerms,
        connection: sa.Connection | None = None,
    ) -> Lease:
        """Give *caller* a sandbox that is theirs to use, as has been checked. Raises GrantMissing."""
        require(caller, "sandbox.extend")
        self._forget_ended()
        lease = Lease(sandbox_id=sandbox_id, token_id=caller.token_id, ends_at=ends_at, terms=terms)
        self._write(lease, caller.name, "sandbox.leased", connection)
        return lease

    def set_end(self, lease: Lease, ends_at: datetime | None, caller: Caller) -> Lease:
        """Move its end, also to before. Raises GrantMissing."""
        return self._change(lease, caller, ends_at=ends_at)

    def set_terms(self, lease: Lease, terms: LeaseTerms, caller: Caller) -> Lease:
        """Raises GrantMissing."""
        return self._change(lease, caller, terms=terms)

    def living(self) -> list[Lease]:
        """All whose sandbox is on record as more than ended, oldest first."""
        rows = self._store.read(
            f"{_SELECT} JOIN sandboxes USING (sandbox_id) WHERE json_extract(sandboxes.state, '$.state') "
            "NOT IN ('failed', 'lost', 'terminated') ORDER BY sandboxes.created_at, sandbox_id"
        )
        return [_lease(row) for row in rows]

    def _change(self, lease: Lease, caller: Caller, **more: Any) -> Lease:
        require(caller, "sandbox.extend")
        changed = lease.model_copy(update=more)
        self._write(changed, caller.name, "sandbox.lease_changed", None)
        return changed

    def _write(self, lease: Lease, by: str, kind: str, connection: sa.Connection | None) -> None:
        ends_at = None if lease.ends_at is None else format_time(lease.ends_at)
        body = {
            "sandbox_id": lease.sandbox_id,
            "caller": by,
            "ends_at": ends_at,
            "at_end": lease.terms.at_end,
            "metadata": json.dumps(lease.terms.metadata, sort_keys=True),
            "variables": sorted(lease.terms.environment),
            "egress": None if lease.terms.egress is None else lease.terms.egress.model_dump(mode="json"),
        }
        with self._store.transaction() as own:
            self._kept.forget(lease.sandbox_id)
            row = (lease.sandbox_id, lease.token_id, ends_at, lease.terms.model_dump_json())
            self._store.raw.execute(_SET, row)
            self._ledger.append(kind, lease.sandbox_id, body, connection=connection or own)
            self._store.after(lambda _: self.moved(lease.sandbox_id), lambda: None)

    def forget_variables(self, sandbox_id: str) -> None:
        """Its sandbox has ended: nothing is started there with them any more, and they may be secrets."""
        lease = self.find(sandbox_id)
        if lease is None or not lease.terms.environment:
            return
        terms = lease.terms.model_copy(update={"environment": {}})
        with self._store.transaction():
            self._kept.forget(sandbox_id)
            self._store.raw.execute(
                "UPDATE leases SET terms = ? WHERE sandbox_id = ?", (terms.model_dump_json(), sandbox_id)
            )

    def _forget_ended(self) -> None:
        """Those of sandboxes that have ended, with the variables in them, which may be secrets."""
        with self._store.transaction():
            for (sandbox_id,) in self._store.raw.execute(_ENDED).fetchall():
                self._kept.forget(sandbox_id)
                self._store.raw.execute("DELETE FROM leases WHERE sandbox_id = ?", (sandbox_id,))
                self._store.raw.execute("DELETE FROM access_tokens WHERE sandbox_id = ?", (sandbox_id,))

    def _load(self, sandbox_id: str) -> Lease | None:
        rows = self._store.read(f"{_SELECT} WHERE sandbox_id = ?", (sandbox_id,))
        return _lease(rows[0]) if rows else None


def _has(known: str, name: str) -> bool:
    """`*.NAME` has all names below that one, and not the name itself."""
    known, name = known.lower(), name.lower()
    return known == name or (
        known.startswith("*.") and name.removeprefix("*").endswith(known[1:]) and name != known[2:]
    )


def _contains(known: IPv4Network | IPv6Network, other: IPv4Network | IPv6Network) -> bool:
    if isinstance(known, IPv4Network) and isinstance(other, IPv4Network):
        return other.subnet_of(known)
    return isinstance(known, IPv6Network) and isinstance(other, IPv6Network) and other.subnet_of(known)


def _lease(row: Any) -> Lease:
    sandbox_id, token_id, ends_at, terms = row
    return Lease(
        sandbox_id=sandbox_id,
        token_id=token_id,
        ends_at=None if ends_at is None else parse_time(ends_at),
        terms=LeaseTerms.model_validate_json(terms),
    )
