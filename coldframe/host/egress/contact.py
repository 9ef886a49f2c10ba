"""One attempt of a box to reach something, as the lineage keeps it: what was wanted, what was decided, what came of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from coldframe.contract.policy import Label, Outcome


@dataclass
class EgressContact:
    """Written twice if it was allowed: before anything is dialled for it, and at its end.

    Where requests are read, the journal hears of it before the first of them, which may be denied; the lineage has it from
    the first one that is let through. At the end the outcome is ALLOW if any was.
    """

    id: str
    """Unique within the installation."""
    sandbox_id: str
    protocol: Literal["tcp", "udp"]
    address: str
    """That the program used: one of the pool if it asked for a name."""
    port: int
    began_at: datetime
    name: str | None = None
    scheme: str | None = None
    """What was spoken, as far as it was looked at."""
    mode: str | None = None
    outcome: Outcome = Outcome.DENY
    rule_id: str = ""
    reason: str = ""
    label: Label = Label.PUBLIC
    """Of what comes from there."""
    dialled: str | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    ended_at: datetime | None = None
    ended: str | None = None
    """`closed`, `denied`, `fault` (ours), or what broke it."""
    is_partial: bool = False
    """Its end was not told by the broker: it carried as many bytes as are written here, or more."""
    requests: list["EgressRequest"] = field(default_factory=list)
    times: int = 1
    """Of an attempt that was denied: for how many equal ones it stands, from `began_at` to `ended_at`."""


@dataclass(frozen=True)
class EgressRequest:
    """One HTTP request within a connection whose requests are read."""

    method: str
    """Empty, as the path, if the request could not be read."""
    path: str
    """Without the query, which may hold secrets."""
    outcome: Outcome
    rule_id: str
    at: datetime
    reason: str = ""
    label: Label = Label.PUBLIC
    """Of what comes back."""
    status: int | None = None
    """That the server answered with; None before that, and if it never did."""


class JournalLost(Exception):
    """The decision is not on record, so nothing may follow from it."""


@dataclass(frozen=True)
class Journal:
    """Where contacts are kept. What is awaited raises JournalLost, and nothing goes out before it returns."""

    begin: Callable[[EgressContact], Awaitable[None]]
    request: Callable[[EgressContact, EgressRequest], Awaitable[None]]
    """A request of a contact that has begun was decided. Once it returns, the session has the label of the answer."""
    end: Callable[[EgressContact], None]
    """The end of what has begun, or attempts that were denied, of which one may stand for several."""
