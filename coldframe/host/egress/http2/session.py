"""Serves a program that speaks HTTP/2: each of its streams is a request, judged and on record before a byte of it goes out.

Their number on one connection is bounded as with HTTP/1.1, so a program that begins requests only to break them off again
comes to the end of its connection soon. Websockets are not offered here and stay with HTTP/1.1, as do packages.
"""

import asyncio
import ssl
from dataclasses import replace
from http import HTTPStatus

from coldframe.host.egress.bodies import BodySent
from coldframe.host.egress.destination import Destination, Question
from coldframe.host.egress.docket import Docket, Entry, Refusal
from coldframe.host.egress.forwarding import ServerFailed
from coldframe.host.egress.handles import Scrubber, SentSecrets, ask_legibly, is_legible
from coldframe.host.egress.http2.connection import Exchange, ExchangeBroken, Held, Http2Connection, Reset
from coldframe.host.egress.http2.frames import Http2Invalid
from coldframe.host.egress.http2.heads import Answer, Http2Request, read_request, write_answer
from coldframe.host.egress.passage import Denied, Passage
from coldframe.host.egress.requests import RequestInvalid
from coldframe.host.egress.responses import MOST_INTERIM, explain
from coldframe.host.egress.streams import TlsStream

FAREWELL_S = 5.0
"""How long what waits to go may take at the end."""
_REPEATABLE = ("GET", "HEAD", "OPTIONS")


class Http2Session:
    """One connection of a box."""

    def __init__(
        self, passage: Passage, client: TlsStream, trust: ssl.SSLContext, held: tuple[Held, Held], *, idle_s: float
    ) -> None:
        """*held*: what comes from the box, and from servers."""
        self._passage = passage
        self._docket = Docket(passage)
        self._secrets = SentSecrets()
        self._destination = Destination(passage, trust, held[1])
        self._connection = Http2Connection(client, is_client=False, held=held[0], on_exchange=self._begin)
        self._idle_s = idle_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._is_over = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None

    async def serve(self) -> str:
        """Until the connection is of no use any more. How it ended."""
        self._rest()
        running = asyncio.create_task(self._connection.run())
        over = asyncio.create_task(self._is_over.wait())
        ended = ""
        try:
            await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
            if self._fault is not None:
                raise self._fault
            if running.done():
                running.result()
            else:
                await self._take_leave()
        except Http2Invalid as error:
            ended = error.strerror or "broken"
        finally:
            if self._idle is not None:
                self._idle.cancel()
            for task in (running, over, *self._tasks):
                task.cancel()
            await asyncio.gather(running, over, *self._tasks, return_exceptions=True)
            self._connection.drop()
            await self._destination.close()
        return ended or ("denied" if self._docket.has_denied_all else "closed")

    async def _take_leave(self) -> None:
        self._connection.leave()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._connection.flush()
        except (OSError, TimeoutError):
            pass

    # -- its requests --------------------------------------------------------------------------

    def _begin(self, exchange: Exchange) -> None:
        self._docket.announce()
        if self._docket.is_full:
            self._connection.leave()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        task = asyncio.create_task(self._serve_one(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = error
            self._is_over.set()
        if not self._tasks:
            self._rest()

    def _rest(self) -> None:
        """Nothing is served now."""
        if self._docket.is_full or self._connection.is_leaving:
            self._is_over.set()
        elif not self._is_over.is_set():
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._is_over.set)

    async def _serve_one(self, exchange: Exchange) -> None:
        code = Reset.NO_ERROR
        try:
            pairs, ends = await exchange.receive_head()
            try:
                request = read_request(pairs, ends=ends)
            except RequestInvalid as fault:
                await self._answer(exchange, await self._docket.refuse_unread(fault), has_body=True)
            else:
                code = await self._judge(exchange, request)
        except OSError:
            code = Reset.CANCEL  # nobody waits for the answer any more
        finally:
            self._passage.asked.pop(exchange.number, None)
            if self._docket.is_full:
                self._connection.leave()
            exchange.reset(code)

    async def _judge(self, exchange: Exchange, request: Http2Request) -> Reset:
        """How the stream ends, if it has not. Raises OSError."""
        head = request.head
        has_body = head.method != "HEAD"
        entry = self._docket.judge(head)
        if entry.refusal is None:
            self._passage.asked[exchange.number] = head.method, head.target, False
        try:
            await self._docket.record(entry)
            if entry.refusal is not None:
                raise entry.refusal
            if entry.verdict.by_registry:  # by a rule that is younger than this connection
                return Reset.HTTP1_REQUIRED
            return await self._pass_on(exchange, request, entry)
        except (Refusal, Denied) as denial:
            await self._answer(exchange, self._docket.deny(entry, denial), has_body=has_body)
        except ServerFailed as failure:
            refusal = Refusal(HTTPStatus.BAD_GATEWAY, "SERVER_FAILED", "", str(failure))
            await self._answer(exchange, refusal, has_body=has_body)
        return Reset.NO_ERROR

    async def _answer(self, exchange: Exchange, refusal: Refusal, *, has_body: bool) -> None:
        body = explain(refusal.code, refusal.rule_id, str(refusal))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        await exchange.send_head(write_answer(Answer(int(refusal.status), headers)), ends=not has_body)
        if has_body:
            await exchange.send(body)
            await exchange.finish()

    # -- those that were let through -----------------------------------------------------------

    async def _pass_on(self, exchange: Exchange, request: Http2Request, entry: Entry) -> Reset:
        """Raises Denied, ServerFailed, OSError."""
        can_repeat = request.head.method in _REPEATABLE and request.head.length == 0
        while True:
            question = await self._ask(exchange, request, entry)
            try:
                return await self._exchange(exchange, request, question, entry)
            except ServerFailed as failure:
                if not (can_repeat and failure.again and question.is_repeated_use):
                    raise
            finally:
                exchange.on_break = _nothing
                question.close()

    async def _ask(self, exchange: Exchange, request: Http2Request, entry: Entry) -> Question:
        """From here on the box may break it off at any time; before, it would leave half a record."""
        task = asyncio.current_task()
        assert task is not None
        exchange.on_break = task.cancel
        if exchange.is_broken:
            raise ExchangeBroken("nobody waits for the answer")
        head = request.head
        if entry.swap is not None:  # the destination has to prove by TLS who it is, always
            self._secrets.add(entry.swap)
            request = request._replace(head=head._replace(headers=entry.swap.put_in(head.headers)))
        elif self._secrets:
            request = request._replace(head=head._replace(headers=ask_legibly(head.headers)))
        return await self._destination.ask(request, entry.verdict)

    async def _exchange(self, exchange: Exchange, request: Http2Request, question: Question, entry: Entry) -> Reset:
        upload, body = None, BodySent()
        if request.head.length != 0:
            upload = asyncio.create_task(self._send_body(exchange, question, body))
        scrubber = self._secrets.scrubber()
        try:
            answer, ends = await _receive_answer(question, scrubber)
            interim = 0
            while answer.is_interim:
                interim += 1
                if interim > MOST_INTERIM:
                    raise ServerFailed("the server's answer is none: it says too much before it")
                await exchange.send_head(write_answer(answer))
                answer, ends = await _receive_answer(question, scrubber)
            self._note_status(entry, answer.status)
            await exchange.send_head(write_answer(answer), ends=ends)
            if not ends:
                await self._pass_body(exchange, question, scrubber)
            return Reset.NO_ERROR
        except _HalfAnswer:
            return Reset.INTERNAL
        finally:
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)
                assert entry.place is not None
                self._passage.note_body(entry.place, body)

    async def _pass_body(self, exchange: Exchange, question: Question, scrubber: Scrubber | None) -> None:
        try:
            while part := await question.receive():
                scrubber = self._secrets.renewed(scrubber)  # another stream may have sent one meanwhile
                await exchange.send(part if scrubber is None else scrubber.feed(part))
        except ServerFailed as failure:
            raise _HalfAnswer from failure
        trailers, scrubber = question.trailers, self._secrets.renewed(scrubber)
        if scrubber is not None:
            await exchange.send(scrubber.finish())
            trailers = scrubber.scrub_headers(trailers)
        await exchange.finish(trailers)

    async def _send_body(self, exchange: Exchange, question: Question, body: BodySent) -> None:
        """What goes wrong is left for the one who reads the answer to find."""
        try:
            while part := await exchange.receive():
                await question.send(part)
                body.add(part)
            await question.finish()
        except (OSError, ServerFailed):
            pass  # the server may have answered before it ended

    def _note_status(self, entry: Entry, status: int) -> None:
        assert entry.place is not None
        requests = self._passage.contact.requests
        requests[entry.place] = replace(requests[entry.place], status=status)


class _HalfAnswer(Exception):
    """It is not to be taken for a whole one."""


async def _receive_answer(question: Question, scrubber: Scrubber | None) -> tuple[Answer, bool]:
    """Raises ServerFailed."""
    answer, ends = await question.receive_answer()
    if scrubber is None:
        return answer, ends
    if not answer.is_interim and not is_legible(answer.headers):
        raise ServerFailed("it is packed, so that nobody can see whether it shows the credential")
    headers = [pair for pair in answer.headers if pair[0] != b"content-length"]
    return Answer(answer.status, scrubber.scrub_headers(headers)), ends


def _nothing() -> None:
    return
