"""One captured connection, from its first byte to its end: decide, look at as much as the rules want, dial, carry.

It was accepted before it could be judged, so whatever is denied is reset. What a program sends first shows what it
speaks: TLS, HTTP or something else. Under `sni` the name in the handshake has to be the one that was asked for, and the
bytes then pass as they are; under `intercept` somebody else reads the requests (`intercept.py`). Nothing goes to the
destination before the decision is on record.
"""

import asyncio
import contextlib
import hashlib
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from coldframe.contract.policy import Outcome
from coldframe.host.egress.bodies import BodySent
from coldframe.host.egress.carry import Carrier, Pipes, reset
from coldframe.host.egress.contact import EgressContact, EgressRequest, HandleUse, Journal, JournalLost, SecretAnswer
from coldframe.host.egress.dial import DialDenied, DialFailed, Prepared, dial
from coldframe.host.egress.hello import Ech, Hello, HelloInvalid, HelloReader, SecondHelloReader, asks_again
from coldframe.host.egress.kept_servers import Kept, KeptServers
from coldframe.host.egress.proxy import Proxies, dial_by_proxy
from coldframe.host.egress.resolver import Resolver
from coldframe.host.egress.streams import Stream
from coldframe.host.egress.turns import receive, send_all
from coldframe.policy import labels
from coldframe.policy.addresses import Address
from coldframe.policy.network import NetworkVerdict, judge_dialled
from coldframe.policy.network_rules import Mode, Scheme
from coldframe.policy.targets import Target

FIRST_BYTES_S = 10.0
"""How long a program may wait before it says something, where its first bytes have to be seen."""
GREET_S = 30.0
"""From the hello on its way to the server until it is clear whether it asks for a second one, with the second one."""
MOST_BEFORE_SECOND_BYTES = 64 * 1024
"""Of early data and the second hello. Servers take 16 KiB of early data or so."""
WEBSOCKET = "WEBSOCKET"
"""Stands in rules for what a GET turns into by an upgrade: a connection both ways, of which nobody sees a request."""
_READ_BYTES = 16 * 1024
_REQUEST = re.compile(rb"[A-Z][A-Z-]{0,31} ")
_LONGEST_METHOD_BYTES = 33

Judge = Callable[[Scheme | None], NetworkVerdict]
JudgeRequest = Callable[[Scheme, str, Target], NetworkVerdict]


class Denied(Exception):
    """Why a connection does not go on, for the record; the program sees a reset."""

    def __init__(self, rule_id: str, reason: str) -> None:
        super().__init__(reason)
        self.rule_id = rule_id


class Interceptor(Protocol):
    """Reads the requests of a connection and passes on those that are allowed."""

    async def __call__(self, passage: "Passage", first: bytes) -> str:
        """Serve it, `first` being what was read of it already. How it ended; raises Denied, OSError."""


class Counted(Protocol):
    """A connection to a server, and what has passed there."""

    @property
    def sent_bytes(self) -> int: ...

    @property
    def received_bytes(self) -> int: ...


class Passage:
    """Owns the connection of the box, and closes it."""

    def __init__(
        self,
        inner: socket.socket,
        contact: EgressContact,
        destination: str | Address,
        judge: Judge,
        judge_request: JudgeRequest,
        *,
        journal: Journal,
        pipes: Pipes,
        resolve: Resolver,
        proxies: Proxies,
        servers: KeptServers,
        clock: Callable[[], datetime],
        intercept: Interceptor,
    ) -> None:
        self.contact = contact
        self.destination = destination
        self.inner = inner
        self.scheme = Scheme.TCP
        """What is spoken, once its first bytes were seen."""
        self.asked: dict[int, tuple[str, Target, bool]] = {}
        """Of the requests that are being served: method and target, and whether it upgrades."""
        self.has_begun = False
        """Whether it is on record."""
        self._judge = judge
        self._judge_request = judge_request
        self._journal = journal
        self._pipes = pipes
        self._resolve = resolve
        self._proxies = proxies
        self._kept_servers = servers
        self._clock = clock
        self._intercept = intercept
        self._mode: Mode | None = None
        self._loss: Denied | None = None
        self._asking_secrets = 0
        self._carrier: Carrier | None = None
        self._servers: list[Counted] = []
        self._sent = hashlib.sha256()
        """Of what was sent as it came. Of requests that are read, each has its own."""
        self._dialled: set[Address] = set()
        self._reached: Address | None = None
        """Where the newest connection leads; None if a proxy was asked for the name."""
        self._era = servers.era
        self._prepared: Prepared | None = None
        self._broken = ""
        self._is_watched = False
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """From here to the end of the connection, which is on record then.

        Raises only what nobody foresaw, for whoever logs it; it is on record as `fault`.
        """
        self._task = asyncio.current_task()
        contact = self.contact
        try:
            contact.ended = await self._pass_on()
        except Denied as denial:
            contact.outcome, contact.rule_id, contact.reason = Outcome.DENY, denial.rule_id, str(denial)
            contact.ended = "denied"
        except DialFailed as failure:
            contact.ended = str(failure)
        except OSError as error:
            contact.ended = (error.strerror or "broken").lower()
        except asyncio.CancelledError:
            if not self._broken:
                contact.ended = "the broker ended"
                raise
            contact.ended = self._broken
        except Exception:
            contact.ended = "fault"
            raise
        finally:
            if self._prepared is not None:
                self._prepared.close()
            if self._carrier is not None:
                self._carrier.abort("broken")
                contact.sent_bytes += self._carrier.sent_bytes
                contact.received_bytes += self._carrier.received_bytes
            if not self.has_begun and contact.outcome is Outcome.ALLOW:  # which only what is on record may be
                contact.outcome, contact.reason = Outcome.DENY, "it ended before anything was let through"
            contact.ended_at = self._clock()
            self._add_up_sent()
            try:
                self._journal.end(contact)
                if contact.ended == "denied" and not self.has_begun:
                    await self._journal.known(contact)  # who is denied holds it until then
            finally:
                reset(self.inner)

    def note_body(self, place: int, body: BodySent) -> None:
        """What was sent of the body of the request at *place*, for the end of the record."""
        requests = self.contact.requests
        requests[place] = replace(requests[place], body_bytes=body.bytes, body_sha256=body.sha256)

    def _add_up_sent(self) -> None:
        contact = self.contact
        if self._mode is Mode.INTERCEPT:
            with_body = [request for request in contact.requests if request.body_bytes]
            if len(with_body) == 1:
                contact.sent_sha256, contact.sent_sha256_of = with_body[0].body_sha256, "body"
        elif contact.sent_bytes:
            contact.sent_sha256, contact.sent_sha256_of = self._sent.hexdigest(), "stream"

    def judge_again(self) -> None:
        """The rules or the label of the session changed: end it if it is not allowed any more."""
        denial = self._find_denial()
        if denial is not None:
            self.contact.outcome, self.contact.rule_id, self.contact.reason = denial
            self.end("ended by a change of the rules")

    def _find_denial(self) -> tuple[Outcome, str, str] | None:
        verdict = self._judge(None if self._mode is None else self.scheme)
        if verdict.outcome is not Outcome.ALLOW:
            return _decision(verdict)
        if self._mode is not None and verdict.mode is not None and verdict.mode.strictness > self._mode.strictness:
            return (
                Outcome.DENY,
                verdict.rule_id,
                f"it was let through as `{self._mode}`, and `{verdict.mode}` is wanted",
            )
        if self._mode is not Mode.INTERCEPT:
            return self._find_denial_of_use(verdict)
        for method, target, upgrades in self.asked.values():
            verdict = self.judge_request(method, target, upgrades=upgrades)
            denial = _decision(verdict) if verdict.outcome is not Outcome.ALLOW else self._find_denial_of_use(verdict)
            if denial is not None:
                return denial
        return None

    def _find_denial_of_use(self, verdict: NetworkVerdict) -> tuple[Outcome, str, str] | None:
        """Of what is allowed, but otherwise than it goes on."""
        known = self.contact.label
        if self._mode is not None and verdict.label.rank > known.rank:
            reason = f"what comes from there was {known}, and is {verdict.label} now"
            return Outcome.DENY, verdict.rule_id, reason
        for address in self._dialled:
            kind = judge_dialled(verdict, address)
            if kind is not None:
                return Outcome.DENY, "floor:address", f"{address} is {kind}"
        return None

    def carried(self) -> tuple[int, int]:
        """Bytes sent and received until now."""
        sent_bytes, received_bytes = self.contact.sent_bytes, self.contact.received_bytes
        if self._carrier is not None and self.contact.ended is None:
            sent_bytes, received_bytes = (
                sent_bytes + self._carrier.sent_bytes,
                received_bytes + self._carrier.received_bytes,
            )
        for one in self._servers:
            sent_bytes, received_bytes = sent_bytes + one.sent_bytes, received_bytes + one.received_bytes
        return sent_bytes, received_bytes

    def count(self, server: Counted) -> None:
        """What passes there belongs to this connection, until `settle`."""
        self._servers.append(server)

    def settle(self, server: Counted) -> None:
        """Nothing more passes there."""
        self._servers.remove(server)
        self.contact.sent_bytes += server.sent_bytes
        self.contact.received_bytes += server.received_bytes

    def end(self, reason: str) -> None:
        """Break it off."""
        self._broken = reason
        if self._carrier is not None:
            self._carrier.abort(reason)
        elif self._task is not None:
            self._task.cancel()

    # -- deciding ------------------------------------------------------------------------------

    async def _pass_on(self) -> str:
        verdict = self._decide(None)
        first = b""
        hello: Hello | None = None
        if verdict.mode is not Mode.RAW:  # else the server may have to speak first
            self._journal.arrived(self.contact)
            self.scheme, first, hello = await self._listen()
        verdict = self._decide(self.scheme)
        self._mode = verdict.mode
        self.contact.scheme = self.scheme.value
        self.contact.mode = None if verdict.mode is None else verdict.mode.value
        if verdict.mode is Mode.INTERCEPT:
            if hello is not None:
                self._check_name(hello.server_name)
            self.contact.outcome, self.contact.rule_id, self.contact.reason = _decision(verdict)
            return await self._intercept(self, first)
        if verdict.mode is Mode.SNI:
            self._check_hello(hello)
        asyncio.get_running_loop().call_soon(self.prepare, verdict)
        await self.begin(verdict)
        with self._watched():
            outer = await self.open(verdict, is_read=True)
            try:
                if hello is not None:
                    await self._greet(outer, hello, first[len(hello.raw) :])
                elif first:
                    await self._send(outer, first)
            except BaseException:
                reset(outer)
                raise
        self._carrier = Carrier(self.inner, outer, self._pipes, self._sent)
        self._carrier.start()
        return await self._carrier.ended

    @property
    def is_to_registry(self) -> bool:
        """Whether packages may be asked for here."""
        return self._judge(self.scheme).by_registry

    def judge_request(self, method: str, target: Target, *, upgrades: bool) -> NetworkVerdict:
        """*upgrades*: it asks to go on as a websocket, which has to be allowed too."""
        verdict = self._judge_request(self.scheme, method, target)
        if not upgrades:
            return verdict
        other = self._judge_request(self.scheme, WEBSOCKET, target)
        strictest = max(verdict, other, key=lambda each: each.outcome.strictness)
        return strictest._replace(label=labels.join(verdict.label, other.label))

    def _decide(self, scheme: Scheme | None) -> NetworkVerdict:
        verdict = self._judge(scheme)
        if verdict.outcome is Outcome.DENY:
            raise Denied(verdict.rule_id, verdict.reason)
        if verdict.outcome is Outcome.ASK:  # nobody can be asked yet
            raise Denied(verdict.rule_id, f"a person has to decide: {verdict.reason}")
        return verdict

    def _check_hello(self, hello: Hello | None) -> None:
        if hello is None:
            raise Denied("network:sni", "it speaks no TLS, and a rule wants to see a name")
        if hello.ech is not Ech.ABSENT:
            raise Denied(
                "network:sni",
                "an encrypted hello may ask for another name than it shows: turn it off in the client, or use `intercept`",
            )
        self._check_name(hello.server_name)

    def _check_name(self, name: str | None) -> None:
        if name != (self.destination if isinstance(self.destination, str) else None):
            raise Denied("network:sni", f"the handshake asks for `{name}`, the connection is to `{self.destination}`")

    async def begin(self, verdict: NetworkVerdict, request: EgressRequest | None = None) -> None:
        """Put it on record, once, with its first *request* if that is known; nothing may be dialled before. Raises Denied."""
        contact = self.contact
        if request is not None:
            contact.requests.append(request)
        if self._loss is not None:  # it may be on record for all that, and begins only once
            raise self._loss
        contact.label = verdict.label
        contact.outcome, contact.rule_id, contact.reason = _decision(verdict)
        try:
            await self._journal.begin(contact, request)
        except JournalLost as loss:
            self._loss = Denied("network:journal", f"the decision could not be recorded: {loss}")
            raise self._loss from loss
        self.has_begun = True

    async def tell(self, request: EgressRequest) -> None:
        """Put a request on record. Raises Denied."""
        self.contact.label = labels.join(self.contact.label, request.label)
        self.contact.requests.append(request)
        try:
            await self._journal.request(self.contact, request)
        except JournalLost as loss:
            raise Denied("network:journal", f"the decision could not be recorded: {loss}") from loss

    async def tell_outcome(self, place: int, request: EgressRequest) -> None:
        """Put on record what came of the request at *place*. Raises Denied."""
        self.contact.requests[place] = request
        try:
            await self._journal.request(self.contact, request)
        except JournalLost as loss:
            raise Denied("network:journal", f"what came of it could not be recorded: {loss}") from loss

    async def ask_secret(self, request: EgressRequest, use: HandleUse) -> SecretAnswer:
        """What takes the place of the handle in a request that is not on record yet. Raises Denied."""
        self._asking_secrets += 1
        try:
            return await self._journal.secret(self.contact, request, use)
        except JournalLost as loss:
            raise Denied("network:journal", f"nobody could be asked for the secret: {loss}") from loss
        finally:
            self._asking_secrets -= 1

    def is_using(self, credential: str) -> bool:
        """Whether a request with it is under way, or may be: while one is asked for, nobody knows which it will be."""
        used = any(request.credential == credential for request in self.contact.requests)
        return self._asking_secrets > 0 or (used and bool(self.asked))

    def now(self) -> datetime:
        return self._clock()

    def prepare(self, verdict: NetworkVerdict) -> None:
        """Make what dialling needs of this machine, while the decision is put on record. What is amiss shows later."""
        if self._prepared is not None or self.contact.ended is not None:
            return
        destination = self.destination
        known = self._resolve.recall(destination) if isinstance(destination, str) else [destination]
        if known and self._proxies.choose(destination, self.contact.port, self.scheme) is None:
            with contextlib.suppress(DialDenied, OSError):
                self._prepared = Prepared(verdict, destination, known)

    async def open(self, verdict: NetworkVerdict, *, is_read: bool = False) -> socket.socket:
        """A connection to the destination. *is_read*: somebody reads from the box meanwhile. Raises Denied and DialFailed."""
        assert self.has_begun
        try:
            with contextlib.nullcontext() if is_read else self._watched():
                return await self._dial(verdict)
        except DialDenied as denial:
            raise Denied("floor:address", str(denial)) from denial

    async def _dial(self, verdict: NetworkVerdict) -> socket.socket:
        destination, port = self.destination, self.contact.port
        address: Address | None
        proxy = self._proxies.choose(destination, port, self.scheme)
        if proxy is None:
            outer, address = await dial(verdict, destination, port, resolve=self._resolve, prepared=self._prepared)
        else:
            self.contact.via = f"{proxy.host}:{proxy.port}"
            outer, address = await dial_by_proxy(proxy, verdict, destination, port, resolve=self._resolve)
        self._note_reached(address)
        return outer

    def _note_reached(self, address: Address | None) -> None:
        self._reached, self._era = address, self._kept_servers.era
        self.contact.dialled = None if address is None else str(address)
        if address is not None:
            self._dialled.add(address)

    @property
    def _place(self) -> tuple[str | Address, int, Scheme]:
        return self.destination, self.contact.port, self.scheme

    @property
    def has_kept_server(self) -> bool:
        """Whether the box has a connection to the destination that nobody uses."""
        return self._kept_servers.has(self._place)

    def take_server(self, verdict: NetworkVerdict) -> Stream | None:
        """One that is such as this verdict allows; what passes there is counted. None if there is none."""
        assert self.has_begun
        kept = self._kept_servers.take(self._place, lambda one: judge_dialled(verdict, one.address) is None)
        if kept is None:
            return None
        self.contact.via = kept.via
        self._note_reached(kept.address)
        self.count(kept.stream)
        return kept.stream

    def keep_server(self, stream: Stream) -> None:
        """Nobody here uses the newest connection any more, and another one of the box may."""
        self.settle(stream)
        if self._broken or self._reached is None or self._era != self._kept_servers.era:
            stream.close()
            return
        stream.count_anew()
        self._kept_servers.keep(self._place, Kept(stream, self._reached, self.contact.via))

    def may_go_on(self, verdict: NetworkVerdict) -> bool:
        """Whether connections to the destination that are open are such as this verdict allows."""
        return all(judge_dialled(verdict, address) is None for address in self._dialled)

    # -- first bytes ---------------------------------------------------------------------------

    async def _listen(self) -> tuple[Scheme, bytes, Hello | None]:
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                return await self._read_first()
        except TimeoutError:
            raise Denied("network:first-bytes", f"it said nothing for {FIRST_BYTES_S:.0f} s") from None
        except HelloInvalid as error:
            raise Denied("network:hello", str(error)) from error

    async def _read_first(self) -> tuple[Scheme, bytes, Hello | None]:
        data = await self._receive()
        if data[0] == 0x16:
            return await self._read_hello(data)
        while len(data) < _LONGEST_METHOD_BYTES and re.fullmatch(rb"[A-Z][A-Z-]*", data):
            data += await self._receive()
        return (Scheme.HTTP if _REQUEST.match(data) else Scheme.TCP), data, None

    async def _read_hello(self, data: bytes) -> tuple[Scheme, bytes, Hello | None]:
        reader = HelloReader()
        hello = reader.feed(data)
        while hello is None:
            hello = reader.feed(await self._receive())
        return Scheme.HTTPS, hello.raw + reader.rest, hello

    async def _receive(self) -> bytes:
        data = await receive(self.inner, _READ_BYTES)
        if not data:
            raise Denied("network:first-bytes", "it ended before it said what it speaks")
        return data

    async def _greet(self, outer: socket.socket, hello: Hello, rest: bytes) -> None:
        """Pass the hello on, and nothing behind it before it is clear that the server took it for the one."""
        try:
            async with asyncio.timeout(GREET_S):
                await self._pass_hello(outer, hello, rest)
        except TimeoutError:
            raise DialFailed(f"the handshake did not go on within {GREET_S:.0f} s") from None

    async def _pass_hello(self, outer: socket.socket, hello: Hello, rest: bytes) -> None:
        answer = b""
        again: bool | None = None
        await self._send(outer, hello.raw)
        while again is None:
            more = await receive(outer, _READ_BYTES)
            if not more:
                break
            answer += more
            again = asks_again(answer)
        self._unwatch()
        if answer:
            await send_all(self.inner, answer)
            self.contact.received_bytes += len(answer)
        if again:
            rest = await self._read_second(hello, rest)
        if rest:
            await self._send(outer, rest)

    async def _read_second(self, hello: Hello, rest: bytes) -> bytes:
        reader = SecondHelloReader(hello)
        whole = bytearray(rest)
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                seen = reader.feed(rest)
                while not seen:
                    more = await self._receive()
                    whole += more
                    if len(whole) > MOST_BEFORE_SECOND_BYTES:
                        raise Denied("network:hello", "it sends too much before its second hello")
                    seen = reader.feed(more)
        except TimeoutError:
            raise Denied("network:first-bytes", "it did not go on with its handshake") from None
        except HelloInvalid as error:
            raise Denied("network:hello", str(error)) from error
        return bytes(whole)

    async def _send(self, outer: socket.socket, data: bytes) -> None:
        await send_all(outer, data)
        self.contact.sent_bytes += len(data)
        self._sent.update(data)

    # -- while nobody reads --------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Break it off if the program leaves meanwhile, as far as that shows while it is not read from."""
        asyncio.get_running_loop().add_reader(self.inner.fileno(), self._look)
        self._is_watched = True
        try:
            yield
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        """From here on somebody reads from it."""
        if self._is_watched:
            self._is_watched = False
            asyncio.get_running_loop().remove_reader(self.inner.fileno())

    def _look(self) -> None:
        try:
            has_more = bool(self.inner.recv(1, socket.MSG_PEEK))
            has_left = not has_more and self.scheme is Scheme.HTTPS  # else it may have said all that it wants to say
        except BlockingIOError:
            return
        except OSError:
            has_left = True
        self._unwatch()
        if has_left:
            self.end("the program left before it was connected")


def _decision(verdict: NetworkVerdict) -> tuple[Outcome, str, str]:
    return verdict.outcome, verdict.rule_id, verdict.reason
