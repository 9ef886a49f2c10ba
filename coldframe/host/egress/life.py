"""One process of the broker as the host daemon sees it, from its start to its end: what it says is checked and recorded.

The broker reads what boxes send, and is believed as little as a box: it may speak of boxes that it was given, end what it
began, and call allowed only what is on record. One that says anything else, or does not answer, is ended.
"""

import asyncio
import fcntl
import logging
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeVar

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.channel import BATCH, Channel, receive
from coldframe.host.egress.contact import EgressContact, EgressRequest, HandleUse, SecretAnswer
from coldframe.host.egress.holders import UNKNOWN_PROGRAM, Holder, Holders
from coldframe.host.egress.lineage import Lineage, LineageLost
from coldframe.host.egress.messages import (
    Answered,
    Arrived,
    Asked,
    Begun,
    Carried,
    Command,
    Done,
    Ended,
    Fault,
    LookedUp,
    MessageInvalid,
    Named,
    Requested,
)
from coldframe.host.egress.names import MAX_NAMES, POOL_SIZE
from coldframe.host.egress.shared import MOST_CONNECTIONS
from coldframe.policy import labels
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.network import Origin

ANSWER_S = 30.0
"""How long the broker may take for what it is told, its start included; then it is ended, and another one started. A box
may keep it busy for some seconds; one that stands still is found by a ping."""
REACH_S = 8.0
"""How long the session's label may take to be raised. Less than the broker waits."""
MOST_PENDING = 10_000
"""Contacts that begin at once and are not on record yet."""
MOST_ARRIVED = 4096
"""Connections that have come and neither begun nor ended, of which is kept whose they are. That of a further one is found
out once more."""
MOST_WAITING = 100_000
"""Messages that a broker has not read, before it is given up."""
MOST_FAULTS = 50
"""Of one broker, that are logged; boxes and servers may bring them about."""
STDERR_BYTES = 16 * 1024
"""Of what a broker writes to its standard error, which is logged when it has ended."""

Reach = Callable[[EgressContact], Awaitable[None]]
"""Raises the label of the session to that of the contact, and returns when `raise_taint` has returned for every box of that
session: not before may the answer be read, and until then a box could send to where the new label may not go. Whatever it
raises denies the contact."""

Secrets = Callable[[EgressContact, EgressRequest, HandleUse], Awaitable[SecretAnswer]]
"""Decides whether a secret takes the place of a handle. Whatever it raises is a refusal."""

_log = logging.getLogger(__name__)


@dataclass
class Box:
    origin: Origin
    arrivals: Arrivals
    start: int = 0
    """The first place of the pool that may be given: those before may belong to names that an earlier daemon knew."""
    on_place: Callable[[int], None] = lambda place: None
    """Hears of each place that is given."""
    holders: Holders | None = None
    """Who tells whose a connection is; None if nobody can."""
    names: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Names and their places in the pool, the newest last: the same as the broker has, which tells what it forgets."""
    places: set[int] = field(default_factory=set)
    """Those that a name holds."""
    server: "Life | None" = None
    """The broker that said last that it serves it."""
    failure: str = ""
    """Why it is served by none: what the broker said that refused it."""
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a broker has said that it serves it, or none will any more."""

    def find_holder(self, protocol: str, source: tuple[str, int] | None, target: tuple[str, int]) -> Holder:
        diagnosis = next(iter(self.arrivals.diagnosis), None)
        return Holder() if self.holders is None else self.holders.find(diagnosis, protocol, source, target)

    def take_name(self, named: Named) -> None:
        """Raises MessageInvalid."""
        try:
            name = read_name(named.name)
        except NameInvalid:
            raise MessageInvalid("a name that is none") from None
        if named.forgotten is not None:
            if named.forgotten not in self.names:
                raise MessageInvalid("a name is forgotten that was not known")
            self.places.discard(self.names.pop(named.forgotten))
        if name in self.names or len(self.names) >= MAX_NAMES:
            raise MessageInvalid("a name that is known, or one too many")
        if not 0 <= named.place < POOL_SIZE or named.place in self.places:
            raise MessageInvalid("an address that is not in the pool, or of another name")
        self.names[name] = named.place
        self.places.add(named.place)
        self.on_place(named.place)


class _Pending(NamedTuple):
    """What is not on record yet, since a label has to be raised first."""

    contact: EgressContact
    request: EgressRequest | None
    """None: the contact begins, with its first request or without."""
    task: "asyncio.Task[None]"


class _Arrival(NamedTuple):
    """Whose a connection is, found out when it came."""

    whence: tuple[object, ...]
    holder: Holder


class Life:
    """One process of the broker, from its start to its end."""

    def __init__(
        self,
        user: int,
        boxes: dict[str, Box],
        lineage: Lineage,
        reach: Reach | None,
        secrets: Secrets | None,
        packages: int | None = None,
    ) -> None:
        """*packages*: descriptor of the directory where it keeps packages, which stays the caller's. Raises OSError."""
        self.leaving: dict[str, Box] = {}
        """Boxes that are being shut: it may still end what it began there."""
        self.is_over = asyncio.Event()
        self.reason = ""
        self._boxes = boxes
        self._lineage = lineage
        self._reach = reach
        self._secrets = secrets
        self._asking: set[asyncio.Task[None]] = set()
        self._arrived: OrderedDict[str, _Arrival] = OrderedDict()
        self._begun: dict[str, EgressContact] = {}
        self._beginning: dict[str, _Pending] = {}
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._number = 0
        self._faults = 0
        self._errors = _open_errors()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = _start(theirs, user, self._errors, packages)
        except OSError:
            ours.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._channel.listen(self._read)

    def tell(
        self,
        kind: Callable[..., Command],
        *,
        attached: bytes | None = None,
        arrivals: Arrivals | None = None,
        may_fail: bool = False,
        **said: object,
    ) -> Awaitable[str | None]:
        """Say it now. What is returned ends when it holds, or the broker is over: one that does not answer is ended.

        So is one that could not do it, unless it *may_fail*: the reason is returned then.
        """
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        if self.is_over.is_set():
            answer.set_result(None)
            return asyncio.ensure_future(self._answered(self._number, answer, may_fail=may_fail))
        try:
            files = [] if attached is None else [messages.attach(attached)]
            self._channel.send(messages.write_command(kind(number=self._number, **said)), files)
            if arrivals is not None:
                self._channel.send_arrivals(arrivals)
        except OSError as error:
            self.give_up(f"it could not be told: {error.strerror}")
        return asyncio.ensure_future(self._answered(self._number, answer, may_fail=may_fail))

    async def _answered(self, number: int, answer: "asyncio.Future[str | None]", *, may_fail: bool) -> str | None:
        failure = None
        try:
            async with asyncio.timeout(ANSWER_S):
                failure = await answer
            if failure is not None and not may_fail:
                self.give_up(f"it could not do what it was told: {failure[:1000]}")
        except TimeoutError:
            self.give_up(f"it did not answer within {ANSWER_S:.0f} s")
        finally:
            self._answers.pop(number, None)
        return failure

    def give_up(self, reason: str) -> None:
        """It is over: nothing is taken from it any more, and what it had begun is ended on record."""
        if self.is_over.is_set():
            return
        self.reason = reason
        self.process.kill()
        self._channel.close()
        self.is_over.set()
        now = datetime.now(UTC)
        for pending in self._beginning.values():
            pending.task.cancel()
            self._deny(pending, now)
        for task in self._asking:
            task.cancel()
        for contact in self._begun.values():
            self._close(replace(contact, ended="the broker ended", ended_at=now, is_partial=True))
        self._begun.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)

    async def end(self) -> None:
        """Wait until it is gone."""
        self.give_up("")
        waiting = [*(pending.task for pending in self._beginning.values()), *self._asking]
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.to_thread(self.process.wait)
        written = os.pread(self._errors, STDERR_BYTES, 0).rstrip(b"\0")
        os.close(self._errors)
        if written:
            _log.error("the egress broker has written: %r", written.decode(errors="replace"))

    # -- what it says --------------------------------------------------------------------------

    def _read(self, end: socket.socket) -> None:
        try:
            for _ in range(BATCH):
                heard = receive(end)
                if heard is None:
                    return
                message, files = heard
                for file in files:
                    os.close(file)
                if not message:
                    self.give_up("")
                    return
                self._take(message)
                if self.is_over.is_set():
                    return
            if len(self._channel) > MOST_WAITING:
                raise MessageInvalid("it does not read what it is told")
        except MessageInvalid as error:
            self.give_up(f"it said what it may not say: {error}")
        except OSError as error:
            self.give_up(f"it cannot be heard: {error.strerror}")

    def _take(self, message: bytes) -> None:
        match messages.read_event(message):
            case Done() as done:
                answer = self._answers.get(done.number)
                if answer is not None and not answer.done():
                    answer.set_result(done.failure)
            case Arrived() as arrived:
                self._arrive(arrived)
            case Begun(contact, request):
                self._begin(contact, request)
            case Requested() as requested:
                self._request(requested)
            case Asked() as asked:
                self._ask(asked)
            case Ended(contact):
                self._end(contact)
            case LookedUp(contact):
                self._look_up(contact)
            case Carried(counts):
                self._count(counts)
            case Named() as named:
                self._name(named)
            case Fault(text):
                self._faults += 1
                if self._faults <= MOST_FAULTS:
                    last = " (no more of it is logged)" if self._faults == MOST_FAULTS else ""
                    _log.warning("the egress broker tells%s: %r", last, text[:1000])

    def _arrive(self, arrived: Arrived) -> None:
        box = self._boxes.get(arrived.sandbox_id)
        if box is None:
            if arrived.sandbox_id not in self.leaving:
                raise MessageInvalid("a connection of a box that it was not given")
        elif box.holders is not None:
            holder = box.find_holder("tcp", arrived.source, arrived.target)
            self._arrived[arrived.contact_id] = _Arrival((arrived.sandbox_id, arrived.source, arrived.target), holder)
            if len(self._arrived) > MOST_ARRIVED:
                self._arrived.popitem(last=False)

    def _begin(self, contact: EgressContact, request: EgressRequest | None) -> None:
        if contact.id in self._begun or contact.id in self._beginning:
            raise MessageInvalid("a contact begins twice")
        if contact.ended is not None or contact.times != 1:
            raise MessageInvalid("a contact begins that has ended, or several at once")
        if len(self._begun) > 2 * MOST_CONNECTIONS * (1 + len(self._boxes) + len(self.leaving)):
            raise MessageInvalid("more contacts than there can be connections")
        if contact.sandbox_id not in self._boxes:
            if contact.sandbox_id not in self.leaving:
                raise MessageInvalid("a contact of a box that it was not given")
            self._acknowledge(contact.id, "the box has no way out any more")
            return
        self._find_holder(contact)
        contact.requests = []  # each has a line of its own

        def record() -> None:
            self._lineage.begin(contact)
            self._begun[contact.id] = contact
            if request is not None:
                self._lineage.request(contact, request)

        reached = contact
        if request is not None:
            reached = replace(contact, label=labels.join(contact.label, request.label), requests=[request])
        waiting = contact if request is None else replace(contact, requests=[request])
        self._put_on_record(contact.id, reached, record, waiting, None)

    def _request(self, requested: Requested) -> None:
        contact = self._begun.get(requested.contact_id)
        if contact is None:
            raise MessageInvalid("a request of a contact that has not begun")
        if requested.id in self._beginning:
            raise MessageInvalid("a request begins twice")
        request = requested.request
        reached = replace(contact, label=request.label, requests=[request])
        record = partial(self._lineage.request, contact, request)
        self._put_on_record(requested.id, reached, record, contact, request)

    def _ask(self, asked: Asked) -> None:
        contact = self._begun.get(asked.contact_id)
        if contact is None:
            raise MessageInvalid("a secret is asked for by a contact that has not begun")
        if len(self._asking) >= MOST_PENDING:
            self._channel.send(
                messages.write_command(Answered(asked.id, SecretAnswer(refusal="too much is asked at once")))
            )
            return
        task = asyncio.get_running_loop().create_task(self._answer(asked, contact))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, asked: Asked, contact: EgressContact) -> None:
        try:
            if self._secrets is None:
                raise LineageLost("nobody here has any secrets")
            async with asyncio.timeout(REACH_S):
                answer = await self._secrets(contact, asked.request, asked.use)
        except (OSError, LineageLost) as error:
            answer = SecretAnswer(refusal=f"{error}" or "there was no answer in time")
        except Exception as fault:  # noqa: BLE001 - whatever it is: there is no secret
            # Without its text, in which a secret might be.
            _log.error("whether contact %s gets a secret was not decided: %s", contact.id, type(fault).__name__)
            answer = SecretAnswer(refusal="a fault of ours")
        if not self.is_over.is_set():
            self._channel.send(messages.write_command(Answered(asked.id, answer)))

    def _put_on_record(
        self,
        key: str,
        reached: EgressContact,
        record: Callable[[], None],
        contact: EgressContact,
        request: EgressRequest | None,
    ) -> None:
        """*reached*: what the label is raised for. *contact* and *request* are what waits until then."""
        if reached.label is Label.PUBLIC:
            self._record(key, record)
        elif len(self._beginning) >= MOST_PENDING:
            self._acknowledge(key, "too much begins at once")
        else:
            task = asyncio.get_running_loop().create_task(self._reach_and_record(key, reached, record))
            self._beginning[key] = _Pending(contact, request, task)

    async def _reach_and_record(self, key: str, contact: EgressContact, record: Callable[[], None]) -> None:
        """Raise the label first: what comes from there may be read as soon as this is acknowledged."""
        try:
            if self._reach is None:
                raise LineageLost("nobody here can raise the label of the session")
            async with asyncio.timeout(REACH_S):
                await self._reach(contact)
        except (OSError, LineageLost) as error:
            self._acknowledge(key, f"the label of the session could not be raised: {error}")
        except Exception:  # noqa: BLE001 - whatever it is: the label was not raised
            _log.exception("the label of contact %s was not raised", contact.id)
            self._acknowledge(key, "the label of the session could not be raised: a fault of ours")
        else:
            self._record(key, record)
        finally:
            self._beginning.pop(key, None)

    def _record(self, key: str, record: Callable[[], None]) -> None:
        if self.is_over.is_set():
            return
        try:
            record()
        except LineageLost as error:
            self._acknowledge(key, f"{error}")
        else:
            self._acknowledge(key, None)

    def _acknowledge(self, key: str, refusal: str | None) -> None:
        if not self.is_over.is_set():
            self._channel.send(messages.write_command(messages.Acknowledge(key, refusal)))

    def _end(self, contact: EgressContact) -> None:
        if contact.ended is None or contact.ended_at is None:
            raise MessageInvalid("a contact ends without an end")
        pending = self._beginning.pop(contact.id, None)
        if pending is not None:
            pending.task.cancel()
        begun = self._begun.get(contact.id)
        if begun is None:
            if contact.outcome is Outcome.ALLOW:
                raise MessageInvalid("a contact was allowed that is not on record")
            if contact.sandbox_id not in self._boxes and contact.sandbox_id not in self.leaving:
                raise MessageInvalid("a contact of a box that it was not given")
            if pending is None:
                self._find_holder(contact)
            else:
                _hold_as(contact, pending.contact)
        elif _wanted(begun) != _wanted(contact) or contact.times != 1:
            raise MessageInvalid("a contact ends as another one")
        else:
            _hold_as(contact, begun)
        self._begun.pop(contact.id, None)
        self._close(contact)
        if begun is None and contact.times == 1:
            self._acknowledge(contact.id, None)

    def _look_up(self, contact: EgressContact) -> None:
        if contact.lookup is None or contact.ended_at is None or contact.outcome is not Outcome.ALLOW:
            raise MessageInvalid("a look-up that is none, or was not answered")
        if contact.dialled is not None or contact.sent_bytes or contact.received_bytes or contact.requests:
            raise MessageInvalid("a look-up that went somewhere")
        if contact.sandbox_id not in self._boxes and contact.sandbox_id not in self.leaving:
            raise MessageInvalid("a look-up of a box that it was not given")
        self._find_holder(contact)
        self._record(contact.id, lambda: self._lineage.look_up(contact))

    def _find_holder(self, contact: EgressContact) -> None:
        """Whose it is, whatever the broker says. Of several at once nobody can tell."""
        arrival = self._arrived.pop(contact.id, None)
        box = self._boxes.get(contact.sandbox_id)
        if (contact.times > 1 and contact.lookup is None) or box is None or box.holders is None:
            contact.program = contact.pid = contact.command_id = None
            return
        target = (contact.address, contact.port)
        holder = Holder()
        if arrival is not None and arrival.whence == (contact.sandbox_id, contact.source, target):
            holder = arrival.holder
        if holder.program == UNKNOWN_PROGRAM:
            holder = box.find_holder(contact.protocol, contact.source, target)
        contact.program, contact.pid, contact.command_id = holder

    def _close(self, contact: EgressContact) -> None:
        if not self._lineage.end(contact):
            _log.error("the end of contact %s of sandbox %s is not on record yet", contact.id, contact.sandbox_id)

    def _deny(self, pending: _Pending, now: datetime) -> None:
        """It waited when the broker ended, so nothing has come of it."""
        if pending.request is None:
            contact = replace(pending.contact, requests=[_unrecorded(one) for one in pending.contact.requests])
            self._close(replace(_unrecorded(contact), ended="denied", ended_at=now))
            return
        try:
            self._lineage.request(pending.contact, _unrecorded(pending.request))
        except LineageLost as error:
            _log.error("a denied request of contact %s is not on record: %s", pending.contact.id, error)

    def _count(self, counts: list[tuple[str, int, int]]) -> None:
        for contact_id, sent_bytes, received_bytes in counts:
            begun = self._begun.get(contact_id)
            if begun is None:
                raise MessageInvalid("bytes of a contact that has not begun")
            self._begun[contact_id] = replace(begun, sent_bytes=sent_bytes, received_bytes=received_bytes)

    def _name(self, named: Named) -> None:
        box = self._boxes.get(named.sandbox_id) or self.leaving.get(named.sandbox_id)
        if box is None:
            raise MessageInvalid("a name of a box that it was not given")
        box.take_name(named)


_Decided = TypeVar("_Decided", EgressContact, EgressRequest)


def _unrecorded(one: _Decided) -> _Decided:
    reason = "the broker ended before it was on record"
    return replace(one, outcome=Outcome.DENY, rule_id="network:journal", reason=reason)


def _hold_as(contact: EgressContact, known: EgressContact) -> None:
    contact.program, contact.pid, contact.command_id = known.program, known.pid, known.command_id


def _wanted(contact: EgressContact) -> tuple[object, ...]:
    return contact.sandbox_id, contact.protocol, contact.address, contact.port, contact.name, contact.began_at


def _open_errors() -> int:
    """A file that cannot grow, for what a broker writes to its standard error. Raises OSError."""
    file = os.memfd_create("errors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, STDERR_BYTES)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(file)
        raise
    return file


def _start(theirs: socket.socket, user: int, errors: int, packages: int | None) -> "subprocess.Popen[bytes]":
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            program,
            str(theirs.fileno()),
            str(user),
            *([] if packages is None else [str(packages)]),
        ],
        pass_fds=[theirs.fileno(), *([] if packages is None else [packages])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
