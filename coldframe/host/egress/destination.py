"""The destination of a connection whose requests come by HTTP/2: asked by HTTP/2 if it speaks it, else by HTTP/1.1.

Which of the two is found by asking (ALPN), once, when the first request is let through. Its connections belong to the one
of the box alone. By HTTP/2 there is one, by HTTP/1.1 there are a few, each for one request at a time.
"""

import asyncio
import contextlib
import ssl
from typing import Protocol

import h11

from coldframe.host.egress.bodies import chunk
from coldframe.host.egress.dial import DialFailed
from coldframe.host.egress.forwarding import HANDSHAKE_S, ServerFailed, describe
from coldframe.host.egress.http2.connection import Exchange, ExchangeBroken, Held, Http2Connection, Reset
from coldframe.host.egress.http2.heads import Answer, Http2Request, Pairs, read_answer, read_trailers, write_request
from coldframe.host.egress.passage import Passage
from coldframe.host.egress.requests import MAX_HEAD_BYTES, write_head
from coldframe.host.egress.responses import HOP_BY_HOP, ResponseInvalid
from coldframe.host.egress.streams import Handshake, TlsStream
from coldframe.policy.network import NetworkVerdict

MOST_CONNECTIONS = 6
"""By HTTP/1.1 at once, as browsers have it."""
_HTTP2, _HTTP1 = "h2", "http/1.1"


class Question(Protocol):
    """A request that was sent, and the answer to it. All raise ServerFailed."""

    is_repeated_use: bool
    """Over a connection that was used before, which the server may have ended at that moment."""
    trailers: Pairs
    """Behind the body, once that has ended."""

    async def send(self, data: bytes) -> None: ...

    async def finish(self) -> None:
        """That was the body."""

    async def receive_answer(self) -> tuple[Answer, bool]:
        """The head, or what comes before it; and whether nothing follows."""

    async def receive(self) -> bytes:
        """The next part of the body; none at its end."""

    def close(self) -> None:
        """Break it off, unless it is over."""


class Destination:
    """Of one connection of a box."""

    def __init__(self, passage: Passage, trust: ssl.SSLContext, held: Held) -> None:
        self._held = held
        self._passage = passage
        self._trust = trust
        self._dialling = asyncio.Lock()
        self._protocol: str | None = None
        self._http2: Http2Connection | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._idle: list[TlsStream] = []

    async def ask(self, request: Http2Request, verdict: NetworkVerdict) -> Question:
        """Raises Denied, ServerFailed."""
        while True:
            async with self._dialling:
                if not self._passage.may_go_on(verdict):
                    self._drop()
                if self._protocol is None or (self._protocol == _HTTP2 and not self._has_http2()):
                    await self._open_first(verdict)
            if self._protocol == _HTTP1:
                return await self._ask_plainly(request, verdict)
            connection = self._http2
            if connection is None:
                continue
            if not connection.has_room:
                with contextlib.suppress(OSError):  # then there will be another one
                    await connection.make_room()
                continue
            connection.has_opened.clear()
            is_used = connection.last_begun > 0
            exchange = connection.begin()
            if exchange is not None:
                question = _StreamedQuestion(exchange, is_repeated_use=is_used)
                question.ask(request)
                return question
            if connection.is_of_use:
                await connection.has_opened.wait()

    async def close(self) -> None:
        self._drop()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _has_http2(self) -> bool:
        return self._http2 is not None and self._http2.is_of_use

    def _drop(self) -> None:
        """Nothing more is asked over what is open."""
        self._http2 = None
        while self._idle:
            self.let_go(self._idle.pop())

    # -- connections ---------------------------------------------------------------------------

    async def _open_first(self, verdict: NetworkVerdict) -> None:
        stream = await self._open(verdict, (_HTTP2, _HTTP1))
        if stream.protocol != _HTTP2:
            self._protocol = _HTTP1
            self._idle.append(stream)
            return
        self._protocol = _HTTP2
        self._http2 = connection = Http2Connection(stream, is_client=True, held=self._held)
        task = asyncio.create_task(self._run(connection, stream))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, connection: Http2Connection, stream: TlsStream) -> None:
        try:
            await connection.run()
        except OSError:
            pass  # who waits for an answer is told
        finally:
            self.let_go(stream)

    async def _open(self, verdict: NetworkVerdict, protocols: tuple[str, ...]) -> TlsStream:
        passage = self._passage
        try:
            outer = await passage.open(verdict, is_read=True)
        except DialFailed as failure:
            raise ServerFailed(str(failure)) from failure
        stream = TlsStream(outer, Handshake(self._trust, str(passage.destination), protocols))
        passage.count(stream)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await stream.shake_hands()
        except (OSError, TimeoutError) as error:
            self.let_go(stream)
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ServerFailed(f"the server's certificate does not hold: {error.verify_message}") from error
            raise ServerFailed(f"no handshake with the server: {describe(error)}") from error
        except BaseException:
            self.let_go(stream)
            raise
        return stream

    def let_go(self, stream: TlsStream) -> None:
        self._passage.settle(stream)
        stream.close()

    # -- by HTTP/1.1 ---------------------------------------------------------------------------

    async def _ask_plainly(self, request: Http2Request, verdict: NetworkVerdict) -> Question:
        await self._room.acquire()
        try:
            question = await self._take_line(request, verdict)
        except BaseException:
            self._room.release()
            raise
        try:
            await question.ask()
        except BaseException:
            question.close()
            raise
        return question

    async def _take_line(self, request: Http2Request, verdict: NetworkVerdict) -> "_PlainQuestion":
        while self._idle:
            stream = self._idle.pop()
            if stream.take_now() is None:
                return _PlainQuestion(self, stream, request, is_repeated_use=True)
            self.let_go(stream)
        return _PlainQuestion(self, await self._open(verdict, (_HTTP1,)), request, is_repeated_use=False)

    def give_back(self, stream: TlsStream, *, is_good: bool) -> None:
        self._room.release()
        if is_good:
            self._idle.append(stream)
        else:
            self.let_go(stream)


class _StreamedQuestion:
    """By HTTP/2."""

    def __init__(self, exchange: Exchange, *, is_repeated_use: bool) -> None:
        self.is_repeated_use = is_repeated_use
        self.trailers: Pairs = []
        self._exchange = exchange

    def ask(self, request: Http2Request) -> None:
        """The first that is done with the exchange, as their numbers have to go out in order."""
        pairs = write_request(request.head, takes_trailers=request.takes_trailers)
        try:
            self._exchange.open(pairs, ends=request.head.length == 0)
        except OSError as error:
            self.close()
            raise _failure(error) from error

    async def send(self, data: bytes) -> None:
        try:
            await self._exchange.send(data)
        except OSError as error:
            raise _failure(error) from error

    async def finish(self) -> None:
        try:
            await self._exchange.finish()
        except OSError as error:
            raise _failure(error) from error

    async def receive_answer(self) -> tuple[Answer, bool]:
        try:
            pairs, ends = await self._exchange.receive_head()
            return read_answer(pairs), ends
        except ResponseInvalid as error:
            raise ServerFailed(f"the server's answer is none: {error}") from error
        except OSError as error:
            raise _failure(error) from error

    async def receive(self) -> bytes:
        try:
            data = await self._exchange.receive()
            if not data:
                self.trailers = read_trailers(self._exchange.trailers)
            return data
        except ResponseInvalid as error:
            raise ServerFailed(f"what ends the server's answer is no header: {error}") from error
        except OSError as error:
            raise _failure(error) from error

    def close(self) -> None:
        self._exchange.reset(Reset.CANCEL)


class _PlainQuestion:
    """By HTTP/1.1."""

    def __init__(
        self, destination: Destination, stream: TlsStream, request: Http2Request, *, is_repeated_use: bool
    ) -> None:
        self.is_repeated_use = is_repeated_use
        self.trailers: Pairs = []
        self._destination = destination
        self._stream = stream
        self._head = request.head
        self._has_sent = request.head.length == 0
        self._has_answer = False
        self._is_open = True
        self._reader = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._reader.send(h11.Request(method=request.head.method, target=b"/", headers=[(b"host", b".")]))
        self._reader.send(h11.EndOfMessage())

    async def ask(self) -> None:
        await self._send(write_head(self._head), again=True)

    async def send(self, data: bytes) -> None:
        await self._send(chunk(data) if self._head.length is None else data)

    async def finish(self) -> None:
        if self._head.length is None:
            await self._send(chunk(b""))
        self._has_sent = True

    async def receive_answer(self) -> tuple[Answer, bool]:
        event = await self._next()
        if not isinstance(event, h11.Response | h11.InformationalResponse) or event.status_code == 101:
            raise ServerFailed("the server's answer is none")
        self._has_answer = isinstance(event, h11.Response)
        options = {
            option.strip().lower()
            for name, value in event.headers
            if name == b"connection"
            for option in value.split(b",")
        }
        headers = [(name, value) for name, value in event.headers if name not in HOP_BY_HOP | options]
        if any(name == b"transfer-encoding" for name, _ in event.headers):
            headers = [(name, value) for name, value in headers if name != b"content-length"]
        return Answer(event.status_code, headers), False

    async def receive(self) -> bytes:
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            reader = self._reader
            is_good = self._has_sent and reader.their_state is h11.DONE and reader.trailing_data == (b"", False)
            self._destination.give_back(self._stream, is_good=is_good and not self._stream.is_cut)

    async def _send(self, data: bytes, *, again: bool = False) -> None:
        try:
            await self._stream.send(data)
        except OSError as error:
            raise ServerFailed(describe(error), again=again) from error

    async def _next(self) -> object:
        while True:
            try:
                event = self._reader.next_event()
                if event is not h11.NEED_DATA:
                    return event
                data = await self._stream.receive()
                if not data and self._stream.is_cut:
                    raise ServerFailed("the server ended in the middle", again=not self._has_answer)
                self._reader.receive_data(data)
            except OSError as error:
                raise ServerFailed(describe(error), again=not self._has_answer) from error
            except (h11.RemoteProtocolError, RuntimeError):  # their texts quote what the server sent
                raise ServerFailed(
                    "the server's answer is none: it cannot be read as HTTP/1.1, or ends in the middle",
                    again=not self._has_answer,
                ) from None


def _failure(error: OSError) -> ServerFailed:
    return ServerFailed(describe(error), again=isinstance(error, ExchangeBroken) and error.again)
