"""The way out of one box: its sockets, its names and its open connections, each of which is judged before anything leaves."""

import asyncio
import contextlib
import errno
import select
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, ip_address
from typing import Any

from coldframe.contract.policy import Outcome
from coldframe.host.egress.arrivals import Arrivals, Destination, original_destination
from coldframe.host.egress.carry import (
    AGAIN_S,
    bound_memory,
    break_if_dropped,
    close_orderly,
    keep_alive,
    reset,
)
from coldframe.host.egress.contact import EgressContact, EgressRequest, Journal, JournalLost
from coldframe.host.egress.denied_attempts import SUM_S, DeniedAttempts
from coldframe.host.egress.kept_servers import KeptServers
from coldframe.host.egress.look_ups import LookUps, describe
from coldframe.host.egress.names import (
    IPV4_POOL,
    IPV6_POOL,
    POOL_SIZE,
    Answers,
    Lookup,
    LookupOutcome,
    NamePool,
    fail,
    frame,
    split_stream,
)
from coldframe.host.egress.passage import Denied, Passage
from coldframe.host.egress.resolver import Resolver
from coldframe.host.egress.shared import Shared
from coldframe.host.egress.turns import give_way, receive, send_all
from coldframe.policy.addresses import Address
from coldframe.policy.network import NetworkVerdict, Origin, judge_connection, judge_lookup, judge_request
from coldframe.policy.network_rules import NetworkRules, Scheme
from coldframe.policy.targets import Target

MOST_INTERCEPTED = 256
"""Of these: TLS on both sides takes some hundred KiB of memory for each."""
MOST_LONG_LOOK_UPS = 64
MOST_REPLIES = 1024
"""Of one box to look-ups, that wait for the record. Whoever asks beyond that hears nothing, and asks again."""
MOST_VERDICTS = 1024
"""About destinations, that are remembered of one box."""
BATCH = 64
"""Look-ups of one socket before others have their turn."""
LOOK_UP_S = 10.0
"""How long a look-up over TCP may take."""
REST_S = 0.2
"""How long nothing is taken from a box of which too much had to be said."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PASSING = (
    *(errno.EAGAIN, errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM, errno.ETIMEDOUT),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
)
"""Of one connection that was not accepted; the next one may be."""

Source = tuple[str, int]
"""Address and port in the box that something comes from."""


class BoxWay:
    """What one box has: its sockets, its names, and its open connections."""

    def __init__(
        self, shared: Shared, origin: Origin, arrivals: Arrivals, names: Mapping[str, int] | None, start: int
    ) -> None:
        self.origin = origin
        self._shared = shared
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._pool = NamePool(names=names, start=start, on_new=self._tell_name)
        self._answers = Answers(self._pool, self._is_known)
        self._passages: set[Passage] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._intercepted = self._long_look_ups = 0
        self._servers = KeptServers()
        self._resolver = Resolver(lambda name: shared.resolve(name), shared.questions)
        self._denials = DeniedAttempts(shared.journal.end, self._loop.time)
        self._journal = Journal(
            self._begin,
            self._request,
            shared.journal.secret,
            self._end,
            known=self._await_known,
            arrived=self._arrive,
        )
        self._arrived: set[str] = set()
        """Of which the daemon has heard, and that have not begun."""
        self._begun: set[str] = set()
        self._unknown: set[str] = set()
        """Denied attempts that were told, of which nobody has asked yet whether it is known whose they are."""
        self._look_ups = LookUps(self._tell_look_up, self._loop.time, self._renew_look_up)
        self._replies = 0
        self._summing: asyncio.TimerHandle | None = None
        self._judged_by: tuple[NetworkRules | None, Origin] = (None, origin)
        self._verdicts: dict[object, NetworkVerdict] = {}
        self._is_closed = False
        self._listens = asyncio.Event()
        """Cleared while nothing is taken from the box."""
        self._served: dict[socket.socket, Callable[[socket.socket], None]] = {
            **dict.fromkeys(arrivals.connections, partial(self._accept, self._take)),
            **dict.fromkeys(arrivals.long_look_ups, partial(self._accept, self._take_long_look_up)),
            **dict.fromkeys(arrivals.look_ups, self._answer),
        }

    def listen(self) -> None:
        self._listens.set()
        for one, serve in self._served.items():
            self._loop.add_reader(one.fileno(), serve, one)

    def judge_again(self) -> None:
        self._servers.drop_all()
        for passage in tuple(self._passages):
            passage.judge_again()

    def withdraw_credential(self, name: str) -> None:
        for passage in tuple(self._passages):
            if passage.is_using(name):
                passage.end("its credential was revoked")

    def close(self) -> None:
        self._is_closed = True
        for one in self._arrivals.sockets():
            self._loop.remove_reader(one.fileno())
        self._arrivals.close()
        self._servers.close()
        for passage in tuple(self._passages):
            passage.end("the box has no way out any more")
        for task in tuple(self._tasks):
            task.cancel()

    def carried(self) -> Iterator[tuple[str, int, int]]:
        for passage in self._passages:
            yield passage.contact.id, *passage.carried()

    async def finished(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tell_sums()
        await self._look_ups.tell_rest()

    # -- connections ---------------------------------------------------------------------------

    def _accept(self, take: Callable[[socket.socket, Source], None], listener: socket.socket) -> None:
        """One, and only if it is there for sure: whoever holds a copy of the listener can make it block."""
        try:
            listener.setblocking(False)
            if not _poll(listener):
                return
            connection, whom = listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                # Whoever connects waits; asked again at once, the loop would do nothing else.
                self._servers.drop_all()
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(AGAIN_S, self._serve_again, listener)
            elif error.errno not in _PASSING:
                self._give_up(listener, error)
            return
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            break_if_dropped(connection)
            keep_alive(connection)
            bound_memory(connection)
        except OSError:
            connection.close()
            return
        take(connection, (str(whom[0]).partition("%")[0], int(whom[1])))

    def _serve_again(self, one: socket.socket) -> None:
        if not self._is_closed and self._listens.is_set() and one in self._served:
            self._loop.add_reader(one.fileno(), self._served[one], one)

    def _give_up(self, one: socket.socket, error: OSError) -> None:
        """This way out of the box is broken, as by who holds a copy of the socket. It stays the only one that is."""
        self._loop.remove_reader(one.fileno())
        self._served.pop(one, None)
        self._shared.tell_fault(f"a socket of sandbox {self.origin.sandbox_id} is of no use any more", error)

    def _take(self, connection: socket.socket, source: Source) -> None:
        try:
            target = original_destination(connection, self._arrivals.mechanism)
            address = ip_address(target.address)
        except (OSError, ValueError):
            reset(connection)  # it ended before it could be told where it was for
            return
        contact = self._contact("tcp", str(address), target.port, source)
        name = self._pool.name_of(address)
        most = self._shared.most_connections
        if len(self._passages) >= most:
            self._deny(connection, contact, f"more than {most} connections at once", "network:connections")
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
            journal=self._journal,
            pipes=self._shared.pipes,
            resolve=self._resolver,
            proxies=self._shared.proxies,
            servers=self._servers,
            clock=self._shared.clock,
            intercept=self._intercept,
        )
        self._passages.add(passage)
        self._start(passage.run(), lambda: self._forget(passage, name))

    async def _intercept(self, passage: Passage, first: bytes) -> str:
        intercept = self._shared.intercept
        if intercept is None:
            raise Denied("network:intercept", "requests cannot be read here, which the rule asks for")
        if self._intercepted >= MOST_INTERCEPTED:
            raise Denied("network:connections", f"more than {MOST_INTERCEPTED} connections at once are read")
        self._intercepted += 1
        try:
            return await intercept(passage, first)
        finally:
            self._intercepted -= 1

    def _judge(self, destination: str | Address, port: int, scheme: Scheme | None) -> NetworkVerdict:
        verdict = self._recall(
            (destination, port, scheme),
            lambda: judge_connection(self._shared.rules, self.origin, destination, port, scheme),
        )
        narrow = self._shared.narrow
        if narrow is None or scheme is None:  # it is judged again once its first bytes are seen
            return verdict
        return narrow(verdict, self.origin, destination, port, scheme)

    def _recall(self, asked: object, judge: Callable[[], NetworkVerdict]) -> NetworkVerdict:
        """The same question has the same answer as long as rules and box are the same; it is asked several times each."""
        known = self._shared.rules, self.origin
        if known[0] is not self._judged_by[0] or known[1] != self._judged_by[1] or len(self._verdicts) >= MOST_VERDICTS:
            self._verdicts.clear()
            self._judged_by = known
        verdict = self._verdicts.get(asked)
        if verdict is None:
            verdict = self._verdicts[asked] = judge()
        return verdict

    def _judge_request(
        self, destination: str | Address, port: int, scheme: Scheme, method: str, target: Target
    ) -> NetworkVerdict:
        verdict = judge_request(self._shared.rules, self.origin, destination, port, scheme, method, target)
        narrow = self._shared.narrow
        return verdict if narrow is None else narrow(verdict, self.origin, destination, port, scheme, (method, target))

    def _forget(self, passage: Passage, name: str | None) -> None:
        self._passages.discard(passage)
        if name is not None:
            self._pool.release(name)

    def _deny(self, connection: socket.socket, contact: EgressContact, reason: str, rule_id: str) -> None:
        denied = replace(contact, rule_id=rule_id, reason=reason)
        self._record(denied)
        if denied.id in self._unknown:
            self._start(self._await_known(denied), lambda: reset(connection))
        else:
            reset(connection)

    # -- look-ups ------------------------------------------------------------------------------

    def _answer(self, resolver: socket.socket) -> None:
        # Sent together: programs ask for both kinds of address at once, and wait for both.
        replies: list[tuple[bytes, tuple[Any, ...]]] = []
        for number in range(BATCH):
            try:
                question, whom = resolver.recvfrom(4096, socket.MSG_DONTWAIT)
            except BlockingIOError as error:
                # Ready, and has nothing: somebody has shut it down, and it stays like that.
                if number == 0 and _poll(resolver) & select.POLLRDHUP:
                    self._give_up(resolver, error)
                break
            except OSError:
                break
            if self._replies >= MOST_REPLIES:
                continue  # whoever asked asks again
            found = self._answers.find(question)
            if found.reply is None:
                continue
            source = str(whom[0]).partition("%")[0], int(whom[1])
            waits_for = self._look_up(found, "udp", Destination("", 53), source)
            if waits_for is None:
                replies.append((found.reply, whom))
            else:
                self._replies += 1
                self._start(self._reply_later(resolver, found.reply, whom, waits_for), self._end_reply)
        for reply, whom in replies:
            _reply_now(resolver, reply, whom)

    def _look_up(
        self, found: Lookup, protocol: str, server: Destination, source: Source
    ) -> Callable[[], Awaitable[None]] | None:
        """Put it on record. What has to be awaited before it is answered; that raises JournalLost: it may not be."""
        if found.name is None or found.outcome is LookupOutcome.INVALID:
            return None
        lookup = describe(found)
        is_answered = found.outcome in (LookupOutcome.ANSWERED, LookupOutcome.NO_DATA)
        if is_answered and self._look_ups.is_on_record(found.name, lookup):
            return None
        contact = self._contact(protocol, server.address, server.port, source)
        contact.name, contact.lookup = found.name, lookup
        verdict = judge_lookup(self._shared.rules, self.origin, found.name)
        contact.rule_id, contact.reason = verdict.rule_id, verdict.reason
        if is_answered:
            contact.outcome, contact.ended, contact.ended_at = Outcome.ALLOW, "closed", contact.began_at
            return partial(self._look_ups.put_on_record, contact)
        if found.outcome is LookupOutcome.FULL:
            contact.rule_id = "network:names"
            contact.reason = "every name that can be remembered has an open connection"
        self._record(contact)
        return partial(self._await_known, contact) if contact.id in self._unknown else None

    async def _reply_later(
        self, resolver: socket.socket, reply: bytes, whom: tuple[Any, ...], waits_for: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await waits_for()
        except JournalLost:
            reply = fail(reply)
        if not self._is_closed:
            _reply_now(resolver, reply, whom)

    def _end_reply(self) -> None:
        self._replies -= 1

    def _renew_look_up(self, contact: EgressContact) -> EgressContact:
        now = self._shared.clock()
        return replace(contact, id=self._shared.new_id(), began_at=now, ended_at=now, source=None)

    async def _tell_look_up(self, contact: EgressContact) -> None:
        self._denials.spend()
        self._rest_if_spent()
        await self._shared.journal.looked_up(contact)

    def _is_known(self, name: str) -> bool:
        verdict = self._recall(name, lambda: judge_lookup(self._shared.rules, self.origin, name))
        return verdict.outcome is not Outcome.DENY

    def _take_long_look_up(self, connection: socket.socket, source: Source) -> None:
        if self._long_look_ups >= MOST_LONG_LOOK_UPS:
            reset(connection)
            return
        try:
            server = original_destination(connection, self._arrivals.mechanism)
        except OSError:
            reset(connection)
            return
        self._long_look_ups += 1
        self._start(self._answer_stream(connection, server, source), lambda: self._end_long_look_up(connection))

    def _end_long_look_up(self, connection: socket.socket) -> None:
        self._long_look_ups -= 1
        close_orderly(connection)

    async def _answer_stream(self, connection: socket.socket, server: Destination, source: Source) -> None:
        buffer = bytearray()
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(LOOK_UP_S):
                while data := await receive(connection, 4096):
                    buffer += data
                    for question in split_stream(buffer):
                        await give_way()
                        await self._listens.wait()
                        found = self._answers.find(question)
                        if found.reply is not None:
                            waits_for = self._look_up(found, "tcp", server, source)
                            reply = found.reply
                            try:
                                if waits_for is not None:
                                    await waits_for()
                            except JournalLost:
                                reply = fail(reply)
                            await send_all(connection, frame(reply))

    # -- records -------------------------------------------------------------------------------

    def _contact(self, protocol: str, address: str, port: int, source: Source) -> EgressContact:
        return EgressContact(
            id=self._shared.new_id(),
            sandbox_id=self.origin.sandbox_id,
            protocol="udp" if protocol == "udp" else "tcp",
            address=address,
            port=port,
            began_at=self._shared.clock(),
            source=source,
        )

    def _record(self, contact: EgressContact) -> None:
        contact.ended, contact.ended_at = "denied", self._shared.clock()
        self._end(contact)

    def _arrive(self, contact: EgressContact) -> None:
        self._arrived.add(contact.id)
        self._shared.journal.arrived(contact)

    async def _begin(self, contact: EgressContact, request: EgressRequest | None) -> None:
        self._arrived.discard(contact.id)
        await self._spend(request)
        self._begun.add(contact.id)  # also if no answer comes: it may be on record
        await self._shared.journal.begin(contact, request)

    async def _request(self, contact: EgressContact, request: EgressRequest) -> None:
        await self._spend(request)
        await self._shared.journal.request(contact, request)

    async def _spend(self, request: EgressRequest | None) -> None:
        if request is not None and request.outcome is not Outcome.ALLOW:
            self._denials.spend()
            self._rest_if_spent()
            await self._listens.wait()

    def _end(self, contact: EgressContact) -> None:
        if contact.id in self._begun:
            self._begun.discard(contact.id)
            self._shared.journal.end(contact)
            return
        if contact.id in self._arrived:
            self._arrived.discard(contact.id)
            self._denials.spend()
        if self._denials.add(contact) and contact.ended == "denied":
            self._unknown.add(contact.id)
        if self._denials.has_sums and self._summing is None:
            self._summing = self._loop.call_later(SUM_S, self._tell_sums)
        self._rest_if_spent()

    async def _await_known(self, contact: EgressContact) -> None:
        if contact.id in self._unknown:
            self._unknown.discard(contact.id)
            await self._shared.journal.known(contact)

    def _tell_sums(self) -> None:
        if self._summing is not None:
            self._summing.cancel()
            self._summing = None
        self._denials.tell_sums()

    def _tell_name(self, name: str, place: int, forgotten: str | None) -> None:
        self._denials.spend()
        self._shared.on_name(self.origin.sandbox_id, name, place, forgotten)
        self._rest_if_spent()

    def _rest_if_spent(self) -> None:
        if self._denials.is_spent and self._listens.is_set() and not self._is_closed:
            self._listens.clear()
            for one in self._served:
                self._loop.remove_reader(one.fileno())
            self._loop.call_later(REST_S, self._go_on)

    def _go_on(self) -> None:
        if self._is_closed:
            return
        if self._denials.is_spent:
            self._loop.call_later(REST_S, self._go_on)
        else:
            self.listen()

    def _start(self, work: Coroutine[object, object, None], after: Callable[[], None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)

        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            after()
            if not done.cancelled() and (error := done.exception()) is not None:
                self._shared.tell_fault(f"a connection of sandbox {self.origin.sandbox_id} failed", error)

        task.add_done_callback(end)


def _reply_now(resolver: socket.socket, reply: bytes, whom: tuple[Any, ...]) -> None:
    with contextlib.suppress(OSError):  # it does not wait for it, or asks faster than it reads
        resolver.sendto(reply, socket.MSG_DONTWAIT, whom)


def _poll(one: socket.socket) -> int:
    """What can be said of it now; 0 if it has nothing."""
    ready = select.poll()
    ready.register(one, select.POLLIN | select.POLLRDHUP)
    return next((events for _, events in ready.poll(0)), 0)


def _is_pooled(address: Address) -> bool:
    start = int(IPV4_POOL if isinstance(address, IPv4Address) else IPV6_POOL)
    return start <= int(address) < start + POOL_SIZE
