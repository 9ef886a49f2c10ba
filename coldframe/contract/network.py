"""What a sandbox reached and tried to reach, and what the host asks about it while it waits.

The host keeps one record for each sandbox, in order and only appended to; these are its words. A name, an address and a
path are what a box said, so they are data and never instructions. The broker has dataclasses of its own for contacts, which
change while one goes on; what leaves it is checked as what is here, field by field, since it is believed no more than a box.
"""

from datetime import datetime
from typing import Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label, Outcome, Role


class NetworkAccess(Model):
    """How a new sandbox is to be joined to the network; a box without one has no way out at all."""

    asked: str | None
    """Profile that the sandbox was created with; None if it takes what the rule file gives."""
    role: Role
    """Of whoever made the sandbox: rules may give a profile to a role."""
    taint: Label
    """Of its session now."""
    ceiling: Label | None = None
    """The highest label of what it may get."""


class NetworkPackage(Model):
    """What the view of a package registry handed over for one request."""

    kind: str
    """`python` or `npm`."""
    name: str
    version: str = ""
    """This, the file and its digest are empty for what only tells of a package."""
    file: str = ""
    digest: str = ""
    """`sha256:…`, as the registry published it; what was found where it publishes none."""
    source: Literal["registry", "cache", "stale"] = "registry"
    """`stale`: the registry could not be reached, and this is what it said before."""


class NetworkRequest(Model):
    """One HTTP request within a connection whose requests are read."""

    method: str
    """Empty, as the path, if the request could not be read."""
    path: str
    """Without the query, which may hold secrets."""
    outcome: Outcome
    rule_id: str
    reason: str = ""
    label: Label = Label.PUBLIC
    """What came back has this label at least."""
    status: int | None = None
    """That the server answered with; None before that, and if it never did."""
    credential: str | None = None
    """Name of the credential that was put into it."""
    package: NetworkPackage | None = None
    """What came of it, in a second record of the same request."""
    omitted: tuple[Literal["query", "headers"], ...] = ()
    """What it had that is not kept here, since it may hold secrets. Its body never is: only how long it was, and its digest."""
    body_bytes: int = 0
    """Of its body that were sent on; told, as its digest, when the connection has ended."""
    body_sha256: str | None = None
    """Of these bytes, without chunks or frames around them; None while there are none."""
    at: datetime


class NetworkLookup(Model):
    """A name that was looked up. Nobody outside hears of it: the answer is made up here."""

    kind: str
    """Type of record, as `A`; `TYPE65` for one that is seldom asked for."""
    answer: Literal["address", "no-data", "no-name", "failed"]
    """`no-data`: the name is known, and has nothing of this type. `no-name`: no rule knows it."""


class NetworkContact(Model):
    """One attempt to reach something, allowed or denied."""

    contact_id: str
    protocol: Literal["tcp", "udp"]
    address: str
    """That the program used: a stand-in if it asked for a name."""
    port: int
    name: str | None = None
    scheme: str | None = None
    """What was spoken, as far as it was looked at: `https`, `http` or `tcp`."""
    mode: str | None = None
    """How much was looked at: `sni`, `intercept` or `raw`."""
    lookup: NetworkLookup | None = None
    """For one that looked a name up, and went nowhere."""
    outcome: Outcome
    rule_id: str
    reason: str = ""
    label: Label = Label.PUBLIC
    """What came from there has this label at least."""
    dialled: str | None = None
    """The address that was checked and dialled."""
    via: str | None = None
    """The proxy of the host's network that was asked for `dialled`, or for the name where there is none."""
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_sha256: str | None = None
    """Digest of what was sent, once the connection has ended; None if nothing was, or nobody could add it up."""
    sent_sha256_of: Literal["stream", "body"] | None = None
    """`stream`: of all that the program sent, which under `sni` is TLS as it went by. `body`: of the body of the one request
    that had one; where several had, each has its own."""
    began_at: datetime
    ended_at: datetime | None = None
    ended: str | None = None
    """`closed`, `denied`, `fault` (ours), or what broke it."""
    is_partial: bool = False
    """Its end was not told by the broker: it carried as many bytes as are written here, or more."""
    times: int = 1
    """For how many equal denied attempts it stands, or equal look-ups since the one before it on record."""
    program: str | None = None
    """Path in the box of the program whose process held the connection when it was decided, as the kernel tells it;
    `unknown` if nobody did any more, or it could not be told. None where nobody has looked."""
    pid: int | None = None
    """Of that process, as it is numbered in the box."""
    command_id: str | None = None
    """The command that made it, by the control group of that process; else the one that ran, if it can only have been one.
    None rather than a guess."""
    requests: tuple[NetworkRequest, ...] = ()


class NetworkRecord(Model):
    """One line of the record of a sandbox."""

    seq: int
    """From 1, without a gap."""
    event: Literal["begun", "request", "ended", "denied", "looked-up", "torn"]
    """`request`: the contact as it began, with this request alone. `looked-up`: a look-up that was answered. `torn`: a line
    was lost here in a crash."""
    at: datetime
    """By the host's clock."""
    contact: NetworkContact | None
    """None for `torn`."""


class DeniedSum(Model):
    """Equal denied attempts beyond those that are written one by one."""

    protocol: str
    """This, what was wanted and the rule are empty for the kinds that are added up together."""
    wanted: str
    port: int
    rule_id: str
    times: int
    first_at: datetime
    last_at: datetime


class NetworkPage(Model):
    records: tuple[NetworkRecord, ...]
    more: bool
    """Whether there are records behind these."""
    denied_sums: tuple[DeniedSum, ...] = ()


class NetworkQuestion(Model):
    """What waits for an answer of the control side; without one within seconds it is denied."""

    question_id: str
    sandbox_id: str
    kind: Literal["reach", "secret"]
    """`reach`: raise the label of the session to `label`, of every sandbox in it, before the first byte comes back.
    `secret`: may `credential` be put into this request?"""
    label: Label = Label.PUBLIC
    contact: NetworkContact
    request: NetworkRequest | None = None
    """The one it is about; None if it is about the connection."""
    handle: str | None = None
    """The stand-in that the request holds, for `secret`."""
    header: str | None = None
    """Where it holds it: `name: value` with `{secret}` in place of the handle, for `secret`."""
    is_verified: bool = False
    """Whether the server has proven by TLS who it is, for `secret`."""


class NetworkNews(Model):
    """Something was put on the record of this sandbox."""

    sandbox_id: str


class NetworkAnswer(Model):
    """The answer to a question. A refusal denies what waits, and is told to whoever made the request."""

    refusal: str | None = None
    code: str | None = None
    """Of the refusal, from the table of errors."""
    secret: str | None = Field(default=None, repr=False)
    """What takes the place of the handle. Never recorded, never logged."""
    credential: str | None = None
    """Name of the credential, for the record."""


class LoggedContact(Model):
    """A contact as control has it on record, in its newest form."""

    number: int
    """In the order in which contacts came on record, over all sandboxes. Pages go by it."""
    change: int
    """Grows with whatever becomes known of any contact. Whoever follows goes by it."""
    sandbox_id: str
    agent_id: str | None
    session_id: str
    """In which it began."""
    contact: NetworkContact


class NetworkLog(Model):
    """A page of contacts."""

    contacts: tuple[LoggedContact, ...]
    next_after: int | None
    """What to ask for to read on; None if there is nothing more."""
    denied_sums: tuple[DeniedSum, ...] = ()
    """What is not among the contacts, since equal ones are. Of one sandbox, whatever was asked for beyond that."""


class ReachedBy(Model):
    """A sandbox that reached something, or tried to."""

    sandbox_id: str
    agent_id: str | None
    allowed: int
    """Contacts that were let through. A name that was only looked up is none: nobody outside hears of it."""
    denied: int
    first_at: datetime
    last_at: datetime
