"""Passes requests that were let through on to their server, and its answers back, in little memory.

Both are framed anew. One request at a time goes out, over a connection that belongs to the one of the box as long as that
is there, and may serve another one of the box after it (`kept_servers.py`). It is verified before anything is asked, and
used again only if nothing is left in it and its address is one that the rules of the next request allow. Half an answer,
or half a body, ends as a broken connection.
"""

import asyncio
import contextlib
import ssl
from dataclasses import replace
from typing import NamedTuple

from coldframe.host.egress.bodies import BodyInvalid, BodySent, ChunkReader, chunk
from coldframe.host.egress.carry import reset
from coldframe.host.egress.dial import DialFailed
from coldframe.host.egress.handles import SentSecrets, Swap, ask_legibly
from coldframe.host.egress.passage import Denied, Passage
from coldframe.host.egress.requests import RequestHead, write_head
from coldframe.host.egress.responses import BODILESS, Response, ResponseInvalid
from coldframe.host.egress.streams import Handshake, Stream, TlsStream
from coldframe.policy.network import NetworkVerdict
from coldframe.policy.network_rules import Scheme

HANDSHAKE_S = 10.0
HALF_ENDED_S = 60.0
"""How long the answer may take to a program that says nothing more and may be gone: without TLS the two look the same."""
LEFT = "the program ended before the answer"
_REPEATABLE = ("GET", "HEAD", "OPTIONS")


class ServerFailed(Exception):
    """It cannot be reached, cannot prove who it is, or gave no answer. `again`: nothing of it was seen."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class BoxLeft(Exception):
    """Nobody waits for the answer any more, or what it sends cannot be read any more; in the latter case with a reason."""


class Asked(NamedTuple):
    """A request, as it is served."""

    head: RequestHead
    closes: bool
    """Whether the box's connection ends after it."""
    verdict: NetworkVerdict
    place: int
    """In the record of the connection, unless it could not be kept."""
    swap: Swap | None = None
    """The secret that it is sent with, in place of a handle."""


class Forwarding:
    """Of one connection of a box; its connection to the server is kept for the next request."""

    def __init__(self, passage: Passage, client: Stream, trust: ssl.SSLContext) -> None:
        self.rest = b""
        """What the box has sent behind the request that is served."""
        self.has_box_ended = False
        self._passage = passage
        self._client = client
        self._trust = trust
        self._box_left: str | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._secrets = SentSecrets()
        self._handshake: Handshake | None = None
        self._server: Stream | None = None
        self._may_be_kept = False
        """Whether another connection of the box may use the one to the server after this."""

    def prepare(self, verdict: NetworkVerdict) -> None:
        """Make what the first request needs for its connection, in memory alone: while it is put on record."""
        passage = self._passage
        if self._server or self._handshake or passage.has_kept_server:
            return
        passage.prepare(verdict)
        if passage.scheme is not Scheme.HTTPS:
            return
        with contextlib.suppress(ssl.SSLError, ValueError):  # it fails when it is needed, and that is told
            self._handshake = Handshake(self._trust, str(passage.destination))

    def close(self) -> None:
        """Nothing more is asked, and the answer to the last request is over, or of no use."""
        server = self._server
        if server is not None and self._may_be_kept:
            self._server = None
            self._passage.keep_server(server)
        self.drop_server()
        self._client.unwatch()
        if self._patience is not None:
            self._patience.cancel()

    def drop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._passage.settle(server)
            server.close()

    async def pass_on(self, asked: Asked) -> bool:
        """Whether another request may follow on the box's connection. Raises Denied, ServerFailed, BoxLeft, OSError."""
        while True:
            server, is_used = await self._reach_server(asked)
            was_kept, self._may_be_kept = self._may_be_kept, False
            try:
                may_follow = await self._try(asked, server)
                self._may_be_kept = (
                    was_kept and self._server is server and _leaves_nothing(asked) and not self._may_trail(asked)
                )
                return may_follow
            except ServerFailed as failure:
                self.drop_server()
                # It may have ended the connection at the moment when it was used again.
                if not (is_used and failure.again and _can_repeat(asked.head)):
                    raise

    def _may_trail(self, asked: Asked) -> bool:
        """Whether a body may follow that the answer cannot have: some servers send one all the same."""
        return self._passage.contact.requests[asked.place].status in BODILESS

    async def _try(self, asked: Asked, server: Stream) -> bool:
        head = asked.head
        sent = _head_of(asked, self._secrets, is_proven=isinstance(server, TlsStream))
        scrubber = self._secrets.scrubber()
        response = Response(head, is_old=asked.head.is_old, closes=asked.closes, scrubber=scrubber)
        try:
            await server.send(sent)
        except OSError as error:
            raise ServerFailed(describe(error), again=True) from error
        body = BodySent()
        upload = asyncio.create_task(self._send_body(head, server, body)) if head.length != 0 else None
        if upload is None:
            self._watch_box(server)
        try:
            await self._pass_back(asked, server, response)
            is_sent = upload is None or (upload.done() and upload.result())
        finally:
            self._client.unwatch()
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)
                self._passage.note_body(asked.place, body)
        if response.has_switched:
            await self._relay(server, response.rest)
            return False
        if not (is_sent and response.leaves_open) or server.is_cut:
            self.drop_server()
        return is_sent and not response.closes

    async def _pass_back(self, asked: Asked, server: Stream, response: Response) -> None:
        """Until the answer is over."""
        requests = self._passage.contact.requests
        has_begun = False
        while not (response.is_over or response.has_switched):
            try:
                data = await server.receive()
            except OSError as error:
                raise self._failure(describe(error), has_begun=has_begun) from error
            if self._box_left is not None:
                raise self._failure("", has_begun=has_begun)
            if not data and server.is_cut:
                raise self._failure("the server ended in the middle", has_begun=has_begun)
            try:
                found = response.feed(data)
            except ResponseInvalid as error:
                raise self._failure(
                    f"the server's answer is none: {error}", has_begun=has_begun, again=not data
                ) from error
            if response.status is not None and requests[asked.place].status is None:
                requests[asked.place] = replace(requests[asked.place], status=response.status)
            if found:
                has_begun = True
                await self._client.send(found)

    def _failure(self, reason: str, *, has_begun: bool, again: bool = True) -> Exception:
        """The box must not take half an answer for a whole one."""
        if self._box_left is not None:
            return ConnectionResetError(0, self._box_left or LEFT) if has_begun else BoxLeft(self._box_left)
        if has_begun:
            return ConnectionResetError(0, reason)
        return ServerFailed(reason, again=again)

    async def _send_body(self, head: RequestHead, server: Stream, body: BodySent) -> bool:
        """Whether all of it was sent. What goes wrong is left for the one who reads the answer to find."""
        try:
            if head.length is None:
                whole = await self._send_chunks(server, body)
            else:
                whole = await self._send_length(head.length, server, body)
        except BodyInvalid as error:
            self._leave(server, str(error))
            return False
        except OSError:
            return False  # the server may have answered before it ended
        if not whole:
            self._leave(server, "")
            return False
        self._watch_box(server)
        return True

    async def _send_length(self, length: int, server: Stream, body: BodySent) -> bool:
        while length:
            data = await self._receive()
            if not data:
                return False
            part, self.rest = data[:length], data[length:]
            length -= len(part)
            await server.send(part)
            body.add(part)
        return True

    async def _send_chunks(self, server: Stream, body: BodySent) -> bool:
        reader = ChunkReader()
        while not reader.is_over:
            data = await self._receive()
            if not data:
                return False
            part = reader.feed(data)
            if part:
                await server.send(chunk(part))
                body.add(part)
        self.rest = reader.rest
        await server.send(chunk(b""))
        return True

    async def _receive(self) -> bytes:
        data, self.rest = self.rest, b""
        try:
            return data or await self._client.receive()
        except OSError:
            return b""

    # -- when the box leaves -------------------------------------------------------------------

    def _watch_box(self, server: Stream) -> None:
        self._client.watch(lambda: self._on_box_end(server))

    def _on_box_end(self, server: Stream) -> None:
        self.has_box_ended = True
        if isinstance(self._client, TlsStream):
            self._leave(server, "")
        else:
            if self._patience is not None:  # since the request before; its end is told for each
                self._patience.cancel()
            self._patience = asyncio.get_running_loop().call_later(HALF_ENDED_S, self._leave, server, "")

    def _leave(self, server: Stream, reason: str) -> None:
        self._box_left = reason
        server.break_off()

    # -- the server ----------------------------------------------------------------------------

    async def _reach_server(self, asked: Asked) -> tuple[Stream, bool]:
        """A connection to it, and whether it was used before. Raises Denied, ServerFailed."""
        passage, verdict = self._passage, asked.verdict
        if self._server is not None:
            if passage.may_go_on(verdict) and self._server.take_now() is None:
                return self._server, True
            self.drop_server()
        self._may_be_kept = not self._secrets
        if self._may_be_kept and _leaves_nothing(asked):
            self._server = passage.take_server(verdict)
            if self._server is not None:
                return self._server, True
        try:
            outer = await passage.open(verdict)
        except DialFailed as failure:
            raise ServerFailed(str(failure)) from failure
        if passage.scheme is not Scheme.HTTPS:
            self._server = Stream(outer)
            passage.count(self._server)
            return self._server, False
        handshake, self._handshake = self._handshake, None
        try:
            server = TlsStream(outer, handshake or Handshake(self._trust, str(passage.destination)))
        except (ssl.SSLError, ValueError) as error:
            reset(outer)
            raise ServerFailed(f"no handshake with the server: {describe(error)}") from error
        self._server = server
        passage.count(server)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await server.shake_hands()
        except (OSError, TimeoutError) as error:
            self.drop_server()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ServerFailed(f"the server's certificate does not hold: {error.verify_message}") from error
            raise ServerFailed(f"no handshake with the server: {describe(error)}") from error
        return server, False

    async def _relay(self, server: Stream, first: bytes) -> None:
        """Pass what comes, both ways, until one side ends."""
        if first:
            await self._client.send(first)
        ahead, self.rest = self.rest, b""
        ways = [
            asyncio.create_task(way) for way in (_carry(self._client, server, ahead), _carry(server, self._client, b""))
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            results = await asyncio.gather(*ways, return_exceptions=True)
        for result in results:
            if isinstance(result, OSError):
                raise result


def _can_repeat(head: RequestHead) -> bool:
    return head.method in _REPEATABLE and head.length == 0


def _leaves_nothing(asked: Asked) -> bool:
    """Whether nothing of a program, of who it is or of a secret stays behind in the connection to the server."""
    head = asked.head
    is_personal = asked.swap is not None or any(name == b"authorization" for name, _ in head.headers)
    is_plain = _can_repeat(head) and head.method != "HEAD"  # whose answer some servers send a body behind
    return is_plain and not (is_personal or head.upgrade or head.expects_continue)


def _head_of(asked: Asked, secrets: SentSecrets, *, is_proven: bool) -> bytes:
    # Whether the box's connection ends is not the server's business: another request may follow on this one.
    head = asked.head._replace(closes=False)
    if asked.swap is not None:
        if not is_proven:  # it would not have been given a secret
            raise Denied("floor:credential", "a credential goes only where the server has proven by TLS who it is")
        secrets.add(asked.swap)
        head = head._replace(headers=asked.swap.put_in(head.headers))
    elif secrets:
        if head.upgrade:
            reason = "a connection that a credential was sent for does not go on as a websocket, of which nobody sees what comes"
            raise Denied("floor:credential", reason)
        head = head._replace(headers=ask_legibly(head.headers))
    return write_head(head)


async def _carry(source: Stream, sink: Stream, first: bytes) -> None:
    data = first or await source.receive()
    while data:
        await sink.send(data)
        data = await source.receive()


def describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason).lower().replace("_", " ")
    if isinstance(error, TimeoutError):
        return "it took too long"
    return (getattr(error, "strerror", None) or str(error) or "broken").lower()
