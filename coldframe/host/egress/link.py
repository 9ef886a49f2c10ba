"""The host daemon's side of the broker: starts its process, tells it rules and boxes, and records what it says.

Here is what should be so: the rules, the boxes with copies of their sockets, the names they know. A broker that dies is
started again and told all of it; nobody else has to be asked. Until then connections wait in the kernel's queue, and
nothing leaves. What had begun is ended on record, so that there is no gap.

The broker reads what boxes send, and is believed as little as a box: it may speak of boxes that it was given, end what it
began, and call allowed only what is on record. One that says anything else, or does not answer, is ended.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.broker import MOST_CONNECTIONS
from coldframe.host.egress.channel import BATCH, Channel, receive
from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.lineage import Lineage, LineageLost
from coldframe.host.egress.messages import Begun, Command, Done, Ended, Fault, MessageInvalid, Named, Requested
from coldframe.host.egress.names import MAX_NAMES, POOL_SIZE
from coldframe.policy import labels
from coldframe.policy.document import read_document
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.network import Origin
from coldframe.policy.network_rules import Registry
from coldframe.policy.network_section import load_network

ANSWER_S = 30.0
"""How long the broker may take for what it is told, its start included; then it is ended, and another one started."""
REACH_S = 8.0
"""How long the session's label may take to be raised. Less than the broker waits."""
FLUSH_S = 5.0
"""How often sums of denied attempts are written."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 10.0
"""Between the end of a broker and the start of the next. Doubled each time, until one has lived for STEADY_S."""
STEADY_S = 30.0
MOST_PENDING = 10_000
"""Contacts that begin at once and are not on record yet."""
MOST_WAITING = 100_000
"""Messages that a broker has not read, before it is given up."""

Reach = Callable[[EgressContact], Awaitable[None]]
"""Raises the label of the session to that of the contact. Whatever it raises denies the contact."""

_log = logging.getLogger(__name__)


@dataclass
class _Box:
    origin: Origin
    arrivals: Arrivals
    names: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Names and their places in the pool, the newest last."""


class BrokerLink:
    """The broker of one machine.

    *user* is whom it becomes if this process is root. Without *reach* nothing above PUBLIC is reached.
    """

    def __init__(
        self,
        lineage: Lineage,
        *,
        user: int | None = None,
        reach: Reach | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if os.geteuid() == 0 and not user:
            raise InvalidArgument("the broker of root needs a user to become")
        self._lineage = lineage
        self._user = user or 0
        self._reach = reach
        self._pause = pause
        self._text = ""
        self._registries: tuple[Registry, ...] = ()
        self._boxes: dict[str, _Box] = {}
        self._life: _Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._rest: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the broker's process; None while there is none."""
        return None if self._life is None else self._life.process.pid

    def start(self) -> None:
        """Start the broker, and start it again whenever it is gone, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._keep_alive())

    async def close(self) -> None:
        """Break everything off and record it; the broker is gone then."""
        self._closing.set()
        life = self._life
        if life is not None and not life.is_over.is_set():
            await life.tell(messages.Stop)
            life.give_up("")
        if self._rest is not None:
            self._rest.cancel()
        if self._task is not None:
            await self._task
        for sandbox_id in list(self._boxes):
            self._forget(sandbox_id)

    # -- what should be so ---------------------------------------------------------------------

    async def use_rules(self, text: str, registries: Sequence[Registry] = ()) -> None:
        """Judge by the section `network` in *text* from now on. Returns when the broker does, or there is none.

        Raises RulesInvalid, InvalidArgument, NameInvalid and TargetInvalid: nothing has changed then.
        """
        if len(text.encode()) > messages.MAX_ATTACHED_BYTES:
            raise InvalidArgument("the rules are too long")
        load_network(read_document(text) if text.strip() else None).for_registries(registries)
        self._text, self._registries = text, tuple(registries)
        if self._life is not None:
            await self._tell_rules(self._life)

    async def open(self, origin: Origin, arrivals: Arrivals) -> None:
        """Serve a box. Copies of its sockets are kept; the caller closes its own. Returns when it is served.

        Raises OSError: its record cannot be written, or there are no descriptors. It has no way out then.
        """
        await self.shut(origin.sandbox_id)
        if not await asyncio.to_thread(self._lineage.open, origin.sandbox_id):  # it may have much to read
            _log.warning("the last line of the lineage of sandbox %s was torn, and is dropped", origin.sandbox_id)
        try:
            box = _Box(origin, messages.duplicate(arrivals))
        except OSError:
            self._lineage.close(origin.sandbox_id)
            raise
        self._boxes[origin.sandbox_id] = box
        if self._life is not None:
            await self._tell_box(self._life, box)

    async def shut(self, sandbox_id: str) -> None:
        """The box has no way out any more. Returns when all of it is broken off and on record."""
        box = self._boxes.pop(sandbox_id, None)
        if box is None:
            return
        life = self._life
        if life is not None:
            life.leaving.add(sandbox_id)
            await life.tell(messages.ShutBox, sandbox_id=sandbox_id)
            life.leaving.discard(sandbox_id)
        box.arrivals.close()
        if sandbox_id not in self._boxes:
            self._lineage.close(sandbox_id)

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        """The session of the box is labelled *taint* at least. What may not go on is ended when this returns.

        A new session, which starts lower, opens the box again.
        """
        box = self._boxes.get(sandbox_id)
        if box is None:
            return
        taint = labels.join(box.origin.taint, taint)
        box.origin = box.origin._replace(taint=taint)
        if self._life is not None:
            await self._life.tell(messages.RaiseTaint, sandbox_id=sandbox_id, taint=taint)

    def _forget(self, sandbox_id: str) -> None:
        box = self._boxes.pop(sandbox_id, None)
        if box is not None:
            box.arrivals.close()
            self._lineage.close(sandbox_id)

    # -- one broker after the other ------------------------------------------------------------

    async def _keep_alive(self) -> None:
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            began = loop.time()
            try:
                reason = await self._live()
            except OSError as error:
                reason = f"it could not be started: {error.strerror}"
            if self._closing.is_set():
                return
            if loop.time() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            _log.error("the egress broker ended, another one starts in %.2f s: %s", pause_s, reason)
            self._rest = asyncio.ensure_future(self._pause(pause_s))
            await asyncio.wait({self._rest})
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self) -> str:
        """From the start of a broker to its end; why it ended."""
        life = self._life = _Life(self._user, self._boxes, self._lineage, self._reach)
        try:
            told = [self._tell_rules(life), *(self._tell_box(life, box) for box in self._boxes.values())]
            telling = asyncio.gather(*told)
            while not life.is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S):
                        await life.is_over.wait()
                self._lineage.flush()
            await telling
        finally:
            self._life = None
            await life.end()
        return life.reason or f"it ended with code {life.process.returncode}"

    def _tell_rules(self, life: "_Life") -> Awaitable[None]:
        text = self._text.encode()
        return life.tell(messages.UseRules, attached=text, registries=self._registries)

    def _tell_box(self, life: "_Life", box: _Box) -> Awaitable[None]:
        names = json.dumps(box.names).encode()
        return life.tell(messages.OpenBox, attached=names, arrivals=box.arrivals, origin=box.origin)


class _Life:
    """One process of the broker, from its start to its end."""

    def __init__(self, user: int, boxes: dict[str, _Box], lineage: Lineage, reach: Reach | None) -> None:
        """Raises OSError."""
        self.leaving: set[str] = set()
        """Boxes that are being shut: it may still end what it began there."""
        self.is_over = asyncio.Event()
        self.reason = ""
        self._boxes = boxes
        self._lineage = lineage
        self._reach = reach
        self._begun: dict[str, EgressContact] = {}
        self._beginning: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._number = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = _start(theirs, user)
        except OSError:
            ours.close()
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
        **said: object,
    ) -> Awaitable[None]:
        """Say it now. What is returned ends when it holds, or the broker is over: one that does not answer is ended."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        if self.is_over.is_set():
            answer.set_result(None)
            return asyncio.ensure_future(self._answered(self._number, answer))
        try:
            files = [] if attached is None else [messages.attach(attached)]
            self._channel.send(messages.write_command(kind(number=self._number, **said)), files)
            if arrivals is not None:
                self._channel.send_arrivals(arrivals)
        except OSError as error:
            self.give_up(f"it could not be told: {error.strerror}")
        return asyncio.ensure_future(self._answered(self._number, answer))

    async def _answered(self, number: int, answer: "asyncio.Future[str | None]") -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                failure = await answer
            if failure is not None:
                self.give_up(f"it could not do what it was told: {failure}")
        except TimeoutError:
            self.give_up(f"it did not answer within {ANSWER_S:.0f} s")
        finally:
            self._answers.pop(number, None)

    def give_up(self, reason: str) -> None:
        """It is over: nothing is taken from it any more, and what it had begun is ended on record."""
        if self.is_over.is_set():
            return
        self.reason = reason
        self.process.kill()
        self._channel.close()
        self.is_over.set()
        for task in self._beginning.values():
            task.cancel()
        now = datetime.now(UTC)
        for contact in self._begun.values():
            self._close(replace(contact, ended="the broker ended", ended_at=now))
        self._begun.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)

    async def end(self) -> None:
        """Wait until it is gone."""
        self.give_up("")
        await asyncio.gather(*self._beginning.values(), return_exceptions=True)
        await asyncio.to_thread(self.process.wait)

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
            case Begun(contact):
                self._begin(contact)
            case Requested() as requested:
                self._request(requested)
            case Ended(contact):
                self._end(contact)
            case Named() as named:
                self._name(named)
            case Fault(text):
                _log.warning("the egress broker tells: %r", text[:1000])

    def _begin(self, contact: EgressContact) -> None:
        if contact.id in self._begun or contact.id in self._beginning:
            raise MessageInvalid("a contact begins twice")
        if contact.ended is not None:
            raise MessageInvalid("a contact begins that has ended")
        if len(self._begun) > 2 * MOST_CONNECTIONS * (1 + len(self._boxes) + len(self.leaving)):
            raise MessageInvalid("more contacts than there can be connections")
        if contact.sandbox_id not in self._boxes:
            if contact.sandbox_id not in self.leaving:
                raise MessageInvalid("a contact of a box that it was not given")
            self._acknowledge(contact.id, "the box has no way out any more")
            return

        def record() -> None:
            self._lineage.begin(contact)
            self._begun[contact.id] = contact

        self._put_on_record(contact.id, contact, record)

    def _request(self, requested: Requested) -> None:
        contact = self._begun.get(requested.contact_id)
        if contact is None:
            raise MessageInvalid("a request of a contact that has not begun")
        if requested.id in self._beginning:
            raise MessageInvalid("a request begins twice")
        reached = replace(contact, label=requested.request.label)
        self._put_on_record(requested.id, reached, lambda: self._lineage.request(contact, requested.request))

    def _put_on_record(self, key: str, contact: EgressContact, record: Callable[[], None]) -> None:
        if contact.label is Label.PUBLIC:
            self._record(key, record)
        elif len(self._beginning) >= MOST_PENDING:
            self._acknowledge(key, "too much begins at once")
        else:
            task = asyncio.get_running_loop().create_task(self._reach_and_record(key, contact, record))
            self._beginning[key] = task

    async def _reach_and_record(self, key: str, contact: EgressContact, record: Callable[[], None]) -> None:
        """Raise the label first: what comes from there may be read as soon as this is acknowledged."""
        try:
            if self._reach is None:
                raise LineageLost("nobody here can raise the label of the session")
            async with asyncio.timeout(REACH_S):
                await self._reach(contact)
        except Exception as error:  # noqa: BLE001 - whatever it is: the label was not raised
            self._acknowledge(key, f"the label of the session could not be raised: {error}")
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
        beginning = self._beginning.pop(contact.id, None)
        if beginning is not None:
            beginning.cancel()
        begun = self._begun.get(contact.id)
        if begun is None:
            if contact.outcome is Outcome.ALLOW:
                raise MessageInvalid("a contact was allowed that is not on record")
            if contact.sandbox_id not in self._boxes and contact.sandbox_id not in self.leaving:
                raise MessageInvalid("a contact of a box that it was not given")
        elif _wanted(begun) != _wanted(contact):
            raise MessageInvalid("a contact ends as another one")
        self._begun.pop(contact.id, None)
        self._close(contact)

    def _close(self, contact: EgressContact) -> None:
        if not self._lineage.end(contact):
            _log.error("the end of contact %s of sandbox %s is not on record yet", contact.id, contact.sandbox_id)

    def _name(self, named: Named) -> None:
        box = self._boxes.get(named.sandbox_id)
        if box is None:
            if named.sandbox_id not in self.leaving:
                raise MessageInvalid("a name of a box that it was not given")
            return
        try:
            name = read_name(named.name)
        except NameInvalid:
            raise MessageInvalid("a name that is none") from None
        if not 0 <= named.place < POOL_SIZE:
            raise MessageInvalid("an address that is not in the pool")
        box.names.pop(name, None)
        box.names[name] = named.place
        if len(box.names) > MAX_NAMES:
            box.names.popitem(last=False)


def _wanted(contact: EgressContact) -> tuple[object, ...]:
    return contact.sandbox_id, contact.protocol, contact.address, contact.port, contact.name, contact.began_at


def _start(theirs: socket.socket, user: int) -> "subprocess.Popen[bytes]":
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    return subprocess.Popen(
        [sys.executable, "-I", program, str(theirs.fileno()), str(user)],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
