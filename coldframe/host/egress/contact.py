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
    via: str | None = None
    """The proxy that was asked for `dialled`, or for the name where there is none."""
    sent_bytes: int = 0
    received_bytes: int = 0
    ended_at: datetime | None = None
    ended: str | None = None
    """`closed`, `denied`, `fault` (ours), or what broke it."""
    is_partial: bool = False
    """Its end was not told by the broker: it carried as many bytes as are written here, or more."""
    requests: list["EgressRequest"] = field(default_factory=list)
    times: int = 1
    """Of an attempt that was denied: for how many equal ones it stands, from `began_at` to `ended_at`. Of a look-up that was
    answered: how many equal ones there were since the one before."""
    lookup: "EgressLookup | None" = None
    sent_sha256: str | None = None
    sent_sha256_of: Literal["stream", "body"] | None = None
    program: str | None = None
    """This, the process and the command are told by the host daemon, whatever a broker says (`holders.py`)."""
    pid: int | None = None
    command_id: str | None = None
    source: tuple[str, int] | None = None
    """Address and port in the box that it comes from, by which the daemon finds who holds it. Not kept."""


@dataclass(frozen=True)
class EgressLookup:
    """What was asked for, and what was said."""

    kind: str
    answer: Literal["address", "no-data", "no-name", "failed"]


@dataclass(frozen=True)
class EgressPackage:
    """What a registry's view handed over, as the answer to one request."""

    kind: str
    """`python` or `npm`."""
    name: str
    version: str = ""
    """This, the file and its digest are empty for what tells of a package."""
    file: str = ""
    digest: str = ""
    """`sha256:…`, as the registry published it; what was found where it publishes none."""
    source: Literal["registry", "cache", "stale"] = "registry"
    """`stale`: the registry could not be reached, and this is what it said before."""


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
    credential: str | None = None
    """Name of the credential that was put into it."""
    package: EgressPackage | None = None
    """What was handed over for it, in the second of its lines."""
    omitted: tuple[Literal["query", "headers"], ...] = ()
    """What it had that is not kept, since it may hold secrets."""
    body_bytes: int = 0
    """Of its body, that were sent on."""
    body_sha256: str | None = None


@dataclass(frozen=True)
class HandleUse:
    """A stand-in for a secret that a request holds."""

    handle: str
    header: str
    """Where: `name: value` with `{secret}` in place of the handle."""
    is_verified: bool
    """Whether nothing is sent before the server has proven by TLS who it is."""


@dataclass(frozen=True)
class SecretAnswer:
    """What takes the place of a handle, or why nothing does."""

    secret: str | None = field(default=None, repr=False)
    """Never recorded, never logged."""
    credential: str | None = None
    """Its name, for the record."""
    refusal: str | None = None
    code: str | None = None
    """Of the refusal, from the table of errors."""


def _nobody_hears(_: EgressContact) -> None:
    return


async def _nobody_asks(_: EgressContact) -> None:
    return


class JournalLost(Exception):
    """The decision is not on record, so nothing may follow from it."""


@dataclass(frozen=True)
class Journal:
    """Where contacts are kept. What is awaited raises JournalLost, and nothing goes out before it returns."""

    begin: Callable[[EgressContact, EgressRequest | None], Awaitable[None]]
    """With its first request where that is known: one question in place of two."""
    request: Callable[[EgressContact, EgressRequest], Awaitable[None]]
    """A request of a contact that has begun was decided. Once it returns, the session has the label of the answer."""
    secret: Callable[[EgressContact, EgressRequest, HandleUse], Awaitable[SecretAnswer]]
    """Before the request of a contact that has begun is decided: what takes the place of a handle in it."""
    end: Callable[[EgressContact], None]
    """The end of what has begun, or attempts that were denied, of which one may stand for several."""
    known: Callable[[EgressContact], Awaitable[None]] = _nobody_asks
    """Returns once it is known whose the denied attempt is that was told just now, or nobody will know: until then whoever
    made it has to hold it. Never raises."""
    looked_up: Callable[[EgressContact], Awaitable[None]] = _nobody_asks
    """A look-up is going to be answered."""
    arrived: Callable[[EgressContact], None] = _nobody_hears
    """A contact that is allowed so far has come, and will begin or end: whose it is may be found out meanwhile."""
