"""What the host daemon and the broker's process say to each other: JSON, one message of a SEQPACKET socket each.

The broker parses what boxes send, so what it says is checked like input: types and form here, and in `life.py` whether
it may say that of that box. Texts and lists are cut before they are sent (`cut`), and longer ones are refused.
"""

import os
import re
import socket
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.contact import (
    EgressContact,
    EgressLookup,
    EgressPackage,
    EgressRequest,
    HandleUse,
    SecretAnswer,
)
from coldframe.host.egress.proxy import Proxies
from coldframe.host.registries import RegistryCredential
from coldframe.policy.network import Origin
from coldframe.policy.network_rules import Registry

MESSAGE_BYTES = 64 * 1024
"""Of one message. Of its requests a contact keeps as many as fit."""
MAX_ATTACHED_BYTES = 2 * 1024 * 1024
"""Of what comes along in a file: the rules, or the names of a box. 4,096 of the longest names take 1.1 MiB."""
MOST_CARRIED = 400
"""Contacts in one message about what was carried."""

_LONGEST = {
    "id": 64,
    "sandbox_id": 128,
    "address": 64,
    "name": 512,
    "scheme": 16,
    "mode": 16,
    "rule_id": 256,
    "reason": 1024,
    "dialled": 64,
    "via": 300,
    "ended": 256,
    "program": 4096,
    "command_id": 128,
}
_LONGEST_OF_LOOKUP = {"kind": 16}
_LONGEST_OF_REQUEST = {"method": 64, "path": 4096, "rule_id": 256, "reason": 1024, "credential": 256}
_LONGEST_OF_PACKAGE = dict.fromkeys(("kind", "name", "version", "file", "digest"), 300)
"""As the names of files are checked; none is longer."""
_LONGEST_OF_HANDLE = {"handle": 512, "header": 8192}
_MOST_BYTES = 1 << 62
_SHA256 = re.compile(r"[0-9a-f]{64}")


class MessageInvalid(Exception):
    """The other side says what it cannot say."""


@dataclass(frozen=True)
class UseRules:
    """The rules come along, as `RuleTexts`; none allow nothing."""

    number: int
    registries: tuple[Registry, ...]
    credentials: tuple[RegistryCredential, ...] = ()
    kind: Literal["use-rules"] = "use-rules"


@dataclass(frozen=True)
class UseProxies:
    """The way to the world leads through these."""

    number: int
    proxies: Proxies
    kind: Literal["use-proxies"] = "use-proxies"


@dataclass(frozen=True)
class OpenBox:
    """What the sandbox brings comes along, as `Keepsakes`; the next message is its arrivals.

    A failure is that of this box: it has no way out then.
    """

    number: int
    origin: Origin
    kind: Literal["open-box"] = "open-box"


@dataclass(frozen=True)
class ShutBox:
    number: int
    sandbox_id: str
    kind: Literal["shut-box"] = "shut-box"


@dataclass(frozen=True)
class RaiseTaint:
    number: int
    sandbox_id: str
    taint: Label
    kind: Literal["raise-taint"] = "raise-taint"


@dataclass(frozen=True)
class WithdrawCredential:
    """It was taken back: what was sent with it, and is not answered whole, is broken off."""

    number: int
    name: str
    kind: Literal["withdraw-credential"] = "withdraw-credential"


@dataclass(frozen=True)
class Ping:
    """Asks for nothing but the answer, which shows that its loop still turns."""

    number: int
    kind: Literal["ping"] = "ping"


@dataclass(frozen=True)
class Stop:
    """Break everything off, and end once that is told."""

    number: int
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True)
class Acknowledge:
    """The answer to `Begun`, `Requested` and `LookedUp`, where a refusal is a denial, and to `Ended` for what was denied."""

    id: str
    refusal: str | None
    kind: Literal["acknowledge"] = "acknowledge"


@dataclass(frozen=True)
class Answered:
    """The answer to `Asked`."""

    id: str
    answer: SecretAnswer
    kind: Literal["answered"] = "answered"


@dataclass(frozen=True)
class Done:
    """The answer to what has a number, once it holds."""

    number: int
    failure: str | None = None
    kind: Literal["done"] = "done"


@dataclass(frozen=True)
class Arrived:
    """A connection that is allowed so far has come, so whose it is can be found out while it is looked at. Not answered."""

    contact_id: str
    sandbox_id: str
    source: tuple[str, int]
    """As in `EgressContact`, and where it is for."""
    target: tuple[str, int]
    kind: Literal["arrived"] = "arrived"


@dataclass(frozen=True)
class Begun:
    """Waits for `Acknowledge`: nothing is dialled before."""

    contact: EgressContact
    request: EgressRequest | None = None
    """Its first, if it was decided already."""
    kind: Literal["begun"] = "begun"


@dataclass(frozen=True)
class Requested:
    """Waits for `Acknowledge` too."""

    id: str
    contact_id: str
    request: EgressRequest
    kind: Literal["requested"] = "requested"


@dataclass(frozen=True)
class Asked:
    """May a secret be put into this request? Waits for `Answered`."""

    id: str
    contact_id: str
    request: EgressRequest
    use: HandleUse
    kind: Literal["asked"] = "asked"


@dataclass(frozen=True)
class Ended:
    contact: EgressContact
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True)
class LookedUp:
    """A name was looked up. Waits for `Acknowledge`: the answer does too."""

    contact: EgressContact
    kind: Literal["looked-up"] = "looked-up"


@dataclass(frozen=True)
class Carried:
    """So many bytes until now: id of a contact, sent, received. Only those that have changed, MOST_CARRIED at most."""

    counts: list[tuple[str, int, int]]
    kind: Literal["carried"] = "carried"


@dataclass(frozen=True)
class Named:
    """A box was given an address for a name; said before the box is told."""

    sandbox_id: str
    name: str
    place: int
    forgotten: str | None = None
    """The name that made room for it."""
    kind: Literal["named"] = "named"


@dataclass(frozen=True)
class Fault:
    """Something went wrong, for the log."""

    text: str
    kind: Literal["fault"] = "fault"


@dataclass(frozen=True)
class RuleTexts:
    """What the broker judges by."""

    section: str
    """The section `network`."""
    hooks: str = ""
    """A rule file with the rules of NETWORK_EGRESS alone; empty if there are none."""


@dataclass(frozen=True)
class Keepsakes:
    """What a sandbox brings to the next broker, beside its sockets."""

    names: dict[str, int]
    """Those it knows, with their places in the pool."""
    start: int
    """The first place of the pool that is given, if it knows none."""
    authority: str
    """With its key, so that the bundle in the box goes on being right; see `Authority.saved`."""


Command = (
    UseRules | UseProxies | OpenBox | ShutBox | RaiseTaint | WithdrawCredential | Ping | Stop | Acknowledge | Answered
)
Event = Done | Arrived | Begun | Requested | Asked | Ended | LookedUp | Carried | Named | Fault

_COMMANDS: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="kind")])
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
_CONTACTS: TypeAdapter[EgressContact] = TypeAdapter(EgressContact)
_KEEPSAKES: TypeAdapter[Keepsakes] = TypeAdapter(Keepsakes)
_RULES: TypeAdapter[RuleTexts] = TypeAdapter(RuleTexts)


def write_command(command: Command) -> bytes:
    """At most MESSAGE_BYTES long. A refusal may hold what an error elsewhere says, so it is cut."""
    if isinstance(command, Acknowledge) and command.refusal is not None:
        command = replace(command, refusal=command.refusal[: _LONGEST["reason"]])
    return _COMMANDS.dump_json(command)


def write_rules(texts: RuleTexts) -> bytes:
    return _RULES.dump_json(texts)


def read_rules(text: bytes) -> RuleTexts:
    """Raises MessageInvalid."""
    try:
        return _RULES.validate_json(text, strict=True)
    except ValidationError as error:
        raise MessageInvalid(_told(error)) from None


def write_keepsakes(keepsakes: Keepsakes) -> bytes:
    return _KEEPSAKES.dump_json(keepsakes)


def read_keepsakes(text: bytes) -> Keepsakes:
    """Raises MessageInvalid."""
    try:
        return _KEEPSAKES.validate_json(text, strict=True)
    except ValidationError as error:
        raise MessageInvalid(_told(error)) from None


def read_command(message: bytes) -> Command:
    """Raises MessageInvalid."""
    try:
        return _COMMANDS.validate_json(message, strict=True)
    except ValidationError as error:
        raise MessageInvalid(_told(error)) from None


def write_event(event: Event) -> bytes:
    """At most MESSAGE_BYTES long."""
    if isinstance(event, Begun | Ended | LookedUp):
        contact = cut(event.contact)
        if contact is not event.contact:
            event = replace(event, contact=contact)
        if isinstance(event, Begun) and event.request is not None:
            request = _cut_request(event.request)
            event = event if request is event.request else replace(event, request=request)
        written = _EVENTS.dump_json(event)
        while len(written) > MESSAGE_BYTES:
            kept = event.contact.requests[: len(event.contact.requests) // 2]
            event = replace(event, contact=replace(event.contact, requests=kept))
            written = _EVENTS.dump_json(event)
        return written
    if isinstance(event, Requested | Asked):
        event = replace(event, request=_cut_request(event.request))
    if isinstance(event, Fault):
        event = replace(event, text=event.text[:4000])
    if isinstance(event, Done) and event.failure is not None:
        event = replace(event, failure=event.failure[:4000])
    return _EVENTS.dump_json(event)


def read_event(message: bytes) -> Event:
    """Raises MessageInvalid."""
    try:
        event = _EVENTS.validate_json(message, strict=True)
    except ValidationError as error:
        raise MessageInvalid(_told(error)) from None
    if isinstance(event, Arrived):
        _check_texts(event, {"contact_id": 64, "sandbox_id": 128})
        _check_end(event.source)
        _check_end(event.target)
    if isinstance(event, Begun | Ended | LookedUp):
        _check(event.contact)
    if isinstance(event, Begun) and event.request is not None:
        _check_request(event.request)
    if isinstance(event, Requested | Asked):
        _check_texts(event, {"id": 96, "contact_id": 64})
        _check_request(event.request)
    if isinstance(event, Asked):
        _check_texts(event.use, _LONGEST_OF_HANDLE)
    if isinstance(event, Carried):
        for _, sent_bytes, received_bytes in event.counts:
            _check_bytes(sent_bytes, received_bytes)
    return event


def write_contact(contact: EgressContact) -> bytes:
    """For the record."""
    return _CONTACTS.dump_json(contact, exclude={"source"})


def read_contact(text: bytes) -> EgressContact:
    """Raises MessageInvalid."""
    try:
        return _CONTACTS.validate_json(text, strict=True)
    except ValidationError as error:
        raise MessageInvalid(_told(error)) from None


def cut(contact: EgressContact) -> EgressContact:
    """The same with texts no longer than they may be: names and reasons are in part what a box says."""
    texts = _cut_texts(contact, _LONGEST)
    requests = [_cut_request(one) for one in contact.requests]
    if not texts and all(cut is one for cut, one in zip(requests, contact.requests, strict=True)):
        return contact
    return replace(contact, **texts, requests=requests)  # type: ignore[arg-type]


def _cut_request(request: EgressRequest) -> EgressRequest:
    texts = _cut_texts(request, _LONGEST_OF_REQUEST)
    return replace(request, **texts) if texts else request  # type: ignore[arg-type]


def _cut_texts(one: EgressContact | EgressRequest, longest: dict[str, int]) -> dict[str, str]:
    return {
        name: text[:most]
        for name, most in longest.items()
        if isinstance(text := getattr(one, name), str) and len(text) > most
    }


def attach(data: bytes) -> int:
    """An open file with *data*, to come along with a message. Raises OSError."""
    file = os.memfd_create("attached", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
    except BaseException:
        os.close(file)
        raise
    return file


def read_attached(files: list[int]) -> bytes:
    """What came along; the files are closed. Raises MessageInvalid."""
    try:
        if len(files) != 1:
            raise MessageInvalid(f"{len(files)} files came along, and not one")
        return os.pread(files[0], MAX_ATTACHED_BYTES, 0)
    except OSError as error:
        raise MessageInvalid("what came along cannot be read") from error
    finally:
        for file in files:
            os.close(file)


def duplicate(arrivals: Arrivals) -> Arrivals:
    """The same sockets by other descriptors. Raises OSError."""
    made: list[socket.socket] = []
    try:
        for one in arrivals.sockets():
            made.append(one.dup())
    except OSError:
        for one in made:
            one.close()
        raise
    return arrivals.with_sockets(made)


def _check(contact: EgressContact) -> None:
    _check_texts(contact, _LONGEST)
    for request in contact.requests:
        _check_request(request)
    if contact.lookup is not None:
        _check_texts(contact.lookup, _LONGEST_OF_LOOKUP)
    _check_digest(contact.sent_sha256)
    if contact.source is not None:
        _check_end(contact.source)
    if not contact.id or not 0 <= contact.port <= 65535:
        raise MessageInvalid("a contact without id, or with a port that is none")
    is_one = contact.outcome is Outcome.ALLOW and contact.lookup is None
    if not 0 < contact.times < _MOST_BYTES or (contact.times > 1 and is_one):
        raise MessageInvalid("contacts that are not one, and not equal denied attempts")
    _check_bytes(contact.sent_bytes, contact.received_bytes)


def _check_end(end: tuple[str, int]) -> None:
    if len(end[0]) > 64 or not 0 <= end[1] <= 65535:
        raise MessageInvalid("a contact with an end that is nowhere in a box")


def _check_bytes(*counts: int) -> None:
    if not all(0 <= count < _MOST_BYTES for count in counts):
        raise MessageInvalid("a contact with a number of bytes that cannot be")


def _check_digest(text: str | None) -> None:
    if text is not None and _SHA256.fullmatch(text) is None:
        raise MessageInvalid("a digest that is none")


def _check_request(request: EgressRequest) -> None:
    _check_texts(request, _LONGEST_OF_REQUEST)
    _check_bytes(request.body_bytes)
    _check_digest(request.body_sha256)
    if len(request.omitted) > 2:
        raise MessageInvalid("more is omitted than there is")
    if request.package is not None:
        _check_texts(request.package, _LONGEST_OF_PACKAGE)


def _check_texts(
    one: EgressContact | EgressLookup | EgressRequest | EgressPackage | HandleUse | Arrived | Requested | Asked,
    longest: dict[str, int],
) -> None:
    for name, most in longest.items():
        text = getattr(one, name)
        if isinstance(text, str) and len(text) > most:
            raise MessageInvalid(f"`{name}` is longer than {most} characters")


def _told(error: ValidationError) -> str:
    """Where it is wrong, and none of what was said."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])[:200]}: {first['type']}"
