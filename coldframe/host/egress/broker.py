"""The only way out: takes what arrives from the boxes, asks policy about each connection, and carries what is allowed.

Knows a box by the sockets that were made inside its network namespace, so nobody can speak for another. Holds no right
of its own, no key of the product, and nothing that is not told to it again after a restart: while it is gone, what a
box sends waits or fails, and nothing leaves.

The answer to a look-up is made up here (`names.py`), so a connection is known by the name that was asked for. An
address that was never given out for a name is judged as an address.
"""

import asyncio
import contextlib
import errno
import itertools
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, ip_address

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress.arrivals import Arrivals, original_destination
from coldframe.host.egress.carry import Pipes, break_if_dropped, close_orderly, reset
from coldframe.host.egress.contact import EgressContact, Journal
from coldframe.host.egress.dial import Resolve, resolve_by_host
from coldframe.host.egress.names import (
    IPV4_POOL,
    IPV6_POOL,
    POOL_SIZE,
    LookupOutcome,
    NamePool,
    answer_query,
    frame,
    split_stream,
)
from coldframe.host.egress.passage import Interceptor, Passage
from coldframe.policy.addresses import Address
from coldframe.policy.network import NetworkVerdict, Origin, judge_connection, judge_lookup, judge_request
from coldframe.policy.network_rules import NetworkRules, Scheme
from coldframe.policy.targets import Target

MOST_CONNECTIONS = 1024
"""Of one box at once; a further one is reset. A browser opens some hundred."""
BATCH = 64
"""Connections or look-ups of one socket before others have their turn."""
LOOK_UP_S = 10.0
"""How long a look-up over TCP may take."""
_AGAIN_S = 0.1


class Broker:
    """All boxes that have a way out. Runs in one event loop."""

    def __init__(
        self,
        rules: NetworkRules,
        journal: Journal,
        *,
        resolve: Resolve = resolve_by_host,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        intercept: Interceptor | None = None,
        on_name: Callable[[str, str, int], None] = lambda sandbox_id, name, place: None,
    ) -> None:
        """*on_name* hears of each name that a box is given an address for, before the box does; see `open`."""
        self.rules = rules
        self.journal = journal
        self.resolve = resolve
        self.clock = clock
        self.intercept = intercept
        self.on_name = on_name
        self.pipes = Pipes()
        self._boxes: dict[str, _BoxWay] = {}
        self._run = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def open(self, origin: Origin, arrivals: Arrivals, *, names: Mapping[str, int] | None = None) -> None:
        """Serve a box. Its sockets belong to the broker then; those of an earlier call for the same box are closed.

        *names*: what an earlier broker told of it. Programs remember addresses, and connections wait for them.
        """
        self.shut(origin.sandbox_id)
        way = _BoxWay(self, origin, arrivals, names)
        self._boxes[origin.sandbox_id] = way
        way.listen()

    def shut(self, sandbox_id: str) -> None:
        """The box has no way out any more: what is open is broken off."""
        way = self._boxes.pop(sandbox_id, None)
        if way is not None:
            way.close()

    async def end_box(self, sandbox_id: str) -> None:
        """As `shut`, and wait until all of it is on record."""
        way = self._boxes.get(sandbox_id)
        self.shut(sandbox_id)
        if way is not None:
            await way.finished()

    def use_rules(self, rules: NetworkRules) -> None:
        """From the next connection on; open ones that the rules forbid end."""
        self.rules = rules
        for way in self._boxes.values():
            way.judge_again()

    def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        """The session of a box was labelled higher: connections to where that may not go end."""
        way = self._boxes.get(sandbox_id)
        if way is not None:
            way.origin = way.origin._replace(taint=taint)
            way.judge_again()

    async def close(self) -> None:
        """Break everything off, and wait until all of it is on record."""
        ways = list(self._boxes.values())
        self._boxes.clear()
        for way in ways:
            way.close()
        await asyncio.gather(*(way.finished() for way in ways))
        self.pipes.close()

    def new_id(self) -> str:
        return f"{self._run}-{next(self._numbers)}"


class _BoxWay:
    """What one box has: its sockets, its names, and its open connections."""

    def __init__(self, broker: Broker, origin: Origin, arrivals: Arrivals, names: Mapping[str, int] | None) -> None:
        self.origin = origin
        self._broker = broker
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._pool = NamePool(names=names, on_new=lambda name, place: broker.on_name(origin.sandbox_id, name, place))
        self._passages: set[Passage] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        for one in self._arrivals.connections:
            self._loop.add_reader(one, self._accept, one, self._take)
        for one in self._arrivals.long_look_ups:
            self._loop.add_reader(one, self._accept, one, self._take_long_look_up)
        for one in self._arrivals.look_ups:
            self._loop.add_reader(one, self._answer, one)

    def judge_again(self) -> None:
        for passage in tuple(self._passages):
            passage.judge_again()

    def close(self) -> None:
        for one in self._arrivals.sockets():
            self._loop.remove_reader(one)
        self._arrivals.close()
        for passage in tuple(self._passages):
            passage.end("the box has no way out any more")
        for task in tuple(self._tasks):
            task.cancel()

    async def finished(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- connections ---------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        for _ in range(BATCH):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # Whoever connects waits; asked again at once, the loop would do nothing else.
                    self._loop.remove_reader(listener)
                    self._loop.call_later(_AGAIN_S, self._accept_again, listener, take)
                return
            connection.setblocking(False)
            break_if_dropped(connection)
            take(connection)

    def _accept_again(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener, self._accept, listener, take)

    def _take(self, connection: socket.socket) -> None:
        try:
            target = original_destination(connection, self._arrivals.mechanism)
            address = ip_address(target.address)
        except (OSError, ValueError):
            reset(connection)  # it ended before it could be told where it was for
            return
        contact = self._contact("tcp", str(address), target.port)
        name = self._pool.name_of(address)
        if len(self._passages) >= MOST_CONNECTIONS:
            self._deny(connection, contact, f"more than {MOST_CONNECTIONS} connections at once", "network:connections")
            return
        if name is None and _is_pooled(address):
            self._deny(connection, contact, "an address of no name that was asked for", "network:name")
            return
        contact.name = name
        if name is not None:
            self._pool.hold(name)
        destination = address if name is None else name
        passage = Passage(
            connection,
            contact,
            destination,
            lambda scheme: self._judge(destination, target.port, scheme),
            lambda scheme, method, path: self._judge_request(destination, target.port, scheme, method, path),
            journal=self._broker.journal,
            pipes=self._broker.pipes,
            resolve=self._broker.resolve,
            clock=self._broker.clock,
            intercept=self._broker.intercept,
        )
        self._passages.add(passage)
        self._start(passage.run(), lambda: self._forget(passage, name))

    def _judge(self, destination: str | Address, port: int, scheme: Scheme | None) -> NetworkVerdict:
        return judge_connection(self._broker.rules, self.origin, destination, port, scheme)

    def _judge_request(
        self, destination: str | Address, port: int, scheme: Scheme, method: str, target: Target
    ) -> NetworkVerdict:
        return judge_request(self._broker.rules, self.origin, destination, port, scheme, method, target)

    def _forget(self, passage: Passage, name: str | None) -> None:
        self._passages.discard(passage)
        if name is not None:
            self._pool.release(name)

    def _deny(self, connection: socket.socket, contact: EgressContact, reason: str, rule_id: str) -> None:
        reset(connection)
        self._record(replace(contact, rule_id=rule_id, reason=reason))

    # -- look-ups ------------------------------------------------------------------------------

    def _answer(self, resolver: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                question, whom = resolver.recvfrom(4096)
            except OSError:
                return
            reply = self._look_up(question)
            if reply is not None:
                with contextlib.suppress(OSError):  # it does not wait for it, or asks faster than it reads
                    resolver.sendto(reply, whom)

    def _look_up(self, question: bytes) -> bytes | None:
        found = answer_query(question, self._pool, self._is_known)
        if found.outcome in (LookupOutcome.UNKNOWN, LookupOutcome.FULL):
            verdict = judge_lookup(self._broker.rules, self.origin, found.name or "")
            full = found.outcome is LookupOutcome.FULL
            reason = "every name that can be remembered has an open connection" if full else verdict.reason
            contact = self._contact("udp", "", 53)
            contact.name, contact.reason = found.name, reason
            contact.rule_id = "network:names" if full else verdict.rule_id
            self._record(contact)
        return found.reply

    def _is_known(self, name: str) -> bool:
        return judge_lookup(self._broker.rules, self.origin, name).outcome is not Outcome.DENY

    def _take_long_look_up(self, connection: socket.socket) -> None:
        if len(self._tasks) >= 2 * MOST_CONNECTIONS:
            reset(connection)
            return
        self._start(self._answer_stream(connection), lambda: close_orderly(connection))

    async def _answer_stream(self, connection: socket.socket) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(LOOK_UP_S):
                while data := await self._loop.sock_recv(connection, 4096):
                    buffer += data
                    for question in split_stream(buffer):
                        reply = self._look_up(question)
                        if reply is not None:
                            await self._loop.sock_sendall(connection, frame(reply))

    # -- records -------------------------------------------------------------------------------

    def _contact(self, protocol: str, address: str, port: int) -> EgressContact:
        return EgressContact(
            id=self._broker.new_id(),
            sandbox_id=self.origin.sandbox_id,
            protocol="udp" if protocol == "udp" else "tcp",
            address=address,
            port=port,
            began_at=self._broker.clock(),
        )

    def _record(self, contact: EgressContact) -> None:
        contact.ended, contact.ended_at = "denied", self._broker.clock()
        self._broker.journal.end(contact)

    def _start(self, work: Coroutine[object, object, None], after: Callable[[], None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)

        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            after()

        task.add_done_callback(end)


def _is_pooled(address: Address) -> bool:
    start = int(IPV4_POOL if isinstance(address, IPv4Address) else IPV6_POOL)
    return start <= int(address) < start + POOL_SIZE
