"""Carries requests of one visitor's connection to a server in a box, and its answers back.

Bytes go from transport to transport: nothing is collected, whatever its size, and whoever is slower makes the other wait.
A web socket is a pair of streams from the moment that the server agrees to one.

The connection to the box belongs to this visitor's connection alone. So whatever one visitor could make the server
misread, no other visitor's request stands behind it.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol, cast

from coldframe.contract.errors import ColdframeError, PreviewUnavailable, PreviewUnhealthy
from coldframe.fronts.auth import internal_error
from coldframe.fronts.edge.relay_bodies import Body, BodyInvalid
from coldframe.fronts.edge.relay_heads import (
    MAX_HEAD_BYTES,
    HeadInvalid,
    Names,
    RequestHead,
    ResponseHead,
    parse_response,
    request_for_box,
    response_for_visitor,
)

READ_BYTES = 512 * 1024
"""Most bytes taken from a box at once."""
HIGH_BYTES = 1024 * 1024
"""With so many waiting to be sent on, nothing more is read."""
MOST_AHEAD_BYTES = 256 * 1024
"""Of what a visitor sends before its request is answered."""
MOST_NEWS = 16
"""Heads of `100 Continue` and its like before one answer."""
_of_thread = threading.local()


class Passage(Protocol):
    """That a visitor was let in to one port."""

    key: tuple[str, int]
    """Sandbox and port."""
    answer_timeout_s: float

    async def connect(self) -> socket.socket:
        """Raises ColdframeError."""
        ...

    async def explain(self, error: ColdframeError) -> ColdframeError:
        """Why it is not served, as far as that can be found out."""
        ...

    def enter(self, cut: Callable[[], None]) -> None:
        """A request begins. *cut* ends it when the passage is closed meanwhile."""
        ...

    def leave(self, cut: Callable[[], None], bytes_in: int, bytes_out: int) -> None: ...


class VisitorEnd(Protocol):
    """The connection of the visitor."""

    raw: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def hold_reading(self) -> None: ...

    def go_on_reading(self) -> None: ...

    def relay_done(self, ahead: bytes) -> None:
        """The exchange is over, and *ahead* begins the next."""
        ...


PageOf = Callable[[ColdframeError, "RequestHead | None", Names], bytes]
"""A whole answer that tells of an error. It closes the connection."""


class Relay:
    """Of one connection of a visitor, for one request after the other."""

    def __init__(self, edge: VisitorEnd, page_of: PageOf) -> None:
        self._edge = edge
        self._page_of = page_of
        self._box: _BoxEnd | None = None
        self._key: tuple[str, int] | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_busy = False
        """Whether an exchange is under way: what comes is for it."""
        self._tunnel = False
        self._ahead = bytearray()
        self._started = False
        """Whether the visitor was sent anything of the answer."""
        self._is_full = False
        """Whether the visitor does not take what it is sent: then nothing is read from any box."""

    @property
    def is_tunnel(self) -> bool:
        """Whether the server has agreed to a web socket."""
        return self._tunnel

    # -- from the visitor ----------------------------------------------------------------------

    def begin(self, head: RequestHead, names: Names, passage: Passage, visitor: str, rest: bytes) -> None:
        """Carry one request, of which *rest* is what came behind its head. Raises HeadInvalid."""
        self._for_box = request_for_box(head, names, visitor)
        self._head, self._names, self._passage = head, names, passage
        self._request_body = Body(head.framing, head.length, trailers=False)
        self._response: ResponseHead | None = None
        self._response_body = Body("none")
        self._response_head = b""
        self._news = 0
        self._ahead += rest
        self._tunnel = self._started = False
        self._out_bytes = 0
        self.is_busy = True
        passage.enter(self.cut)
        box = self._box
        if box is not None and self._key == passage.key and box.is_usable:
            self._send(again=head.framing == "none" and head.method in (b"GET", b"HEAD", b"OPTIONS"))
            return
        self._dial()

    def _dial(self) -> None:
        self._drop_box()
        self._response_head = b""
        self._key = self._passage.key
        self._edge.hold_reading()
        self._dialling = self._edge.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            one = await self._passage.connect()
            try:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _, box = await self._edge.loop.create_connection(lambda: _BoxEnd(self), sock=one)
            except BaseException:
                one.close()
                raise
        except ColdframeError as error:
            await self._tell(error)
            return
        except OSError as error:
            await self._tell(PreviewUnavailable(f"the server could not be reached: {error.strerror}"))
            return
        except Exception as error:  # noqa: BLE001  the edge of a request
            await self._tell(internal_error(error))
            return
        self._dialling = None
        if not self.is_busy:
            box.close()
            return
        self._box = box
        if self._is_full:
            box.hold_reading()
        self._send(again=False)

    async def _tell(self, error: ColdframeError) -> None:
        with contextlib.suppress(ColdframeError):
            error = await self._passage.explain(error)
        self._dialling = None
        if self.is_busy:
            self.refuse(error)

    def _send(self, *, again: bool) -> None:
        assert self._box is not None
        self._may_redial = again
        self._box.write(self._for_box)
        self._timer = self._edge.loop.call_later(self._passage.answer_timeout_s, self._too_slow)
        self._edge.go_on_reading()
        if self._ahead and not self._request_body.is_over:
            data, self._ahead = bytes(self._ahead), bytearray()
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._tunnel:
            if self._box is not None:
                self._passage_in(len(data))
                self._box.write(data)
            return
        if self._box is None or self._dialling is not None or self._request_body.is_over:
            self._ahead += data
            if len(self._ahead) > MOST_AHEAD_BYTES:
                self._edge.hold_reading()
            return
        try:
            own, rest = self._request_body.take(data)
        except BodyInvalid as error:
            self._drop_box()
            self.refuse(HeadInvalid(str(error)))
            return
        if own:
            self._may_redial = False
            self._box.write(own)
            self._push_timer()
        if rest:
            self._ahead += rest

    def _passage_in(self, count: int) -> None:
        self._request_body.payload += count

    def client_lost(self) -> None:
        """The visitor is gone; so is what it asked for."""
        self._end_exchange()
        self._drop_box()
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None

    def cut(self) -> None:
        """What it was let in for holds no more."""
        self.client_lost()
        self._edge.raw.abort()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._box is not None:
            self._box.hold_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._box is not None:
            self._box.go_on_reading()

    # -- from the box --------------------------------------------------------------------------

    def from_box(self, data: bytes) -> None:
        if not self.is_busy:
            self._drop_box()  # an answer to nothing
            return
        if self._tunnel:
            self._write(data)
            return
        if self._response is None:
            self._response_head += data
            if not self._take_heads():
                return
            data, self._response_head = self._response_head, b""
            if self.is_tunnel:
                if data:
                    self._write(data)
                return
        try:
            own, rest = self._response_body.take(data)
        except BodyInvalid:
            self._break_off()
            return
        if own:
            self._write(own)
        if self._response_body.is_over:
            self._finish(keeps_box=not rest)

    def _take_heads(self) -> bool:
        """Whether the head of the answer is there; those before it are only news."""
        came, start = self._response_head, 0
        while (end := came.find(b"\r\n\r\n", start)) >= 0:
            whole, start = came[start : end + 4], end + 4
            if not self._take_head(whole):
                return False
            if self._response is not None:
                self._response_head = came[start:]
                return True
            self._news += 1
            if self._news > MOST_NEWS:
                self._bad_answer("it gives no answer after all that it has sent before one")
                return False
        self._response_head = came[start:]
        if len(self._response_head) > MAX_HEAD_BYTES:
            self._bad_answer("its head is too long")
        return False

    def _take_head(self, whole: bytes) -> bool:
        """Whether to go on with it."""
        try:
            head = parse_response(whole, self._head.method)
            if head.status == 101 and not self._head.wants_tunnel:
                raise HeadInvalid("it switches to a protocol that nobody asked for")
            plain = self._head.minor == 0 and head.framing == "chunked"
            keeps = self._head.keeps and head.framing != "close" and not plain
            if 100 <= head.status < 200 and head.status != 101:
                if self._head.minor == 1:
                    self._write(response_for_visitor(head, self._names, keeps=True))
                return True
            for_visitor = response_for_visitor(head, self._names, keeps=keeps, unchunked=plain)
        except HeadInvalid as error:
            self._bad_answer(str(error))
            return False
        self._stop_timer()
        self._response, self._keeps = head, keeps
        self._write(for_visitor)
        if head.status == 101:
            self._tunnel = True
            self._edge.go_on_reading()
            ahead, self._ahead = bytes(self._ahead), bytearray()
            if ahead and self._box is not None:
                self._box.write(ahead)
        else:
            self._response_body = Body(head.framing, head.length, plain=plain)
        return True

    def _write(self, data: bytes) -> None:
        self._started = True
        self._out_bytes += len(data)
        self._edge.raw.write(data)

    def box_ended(self, error: Exception | None) -> None:
        """The server has closed the connection."""
        self._box = None
        if not self.is_busy:
            return
        if self._tunnel:
            self._end_exchange()
            self._edge.raw.close()
        elif self._response is None and not self._started and self._may_redial:
            self._may_redial = False
            self._stop_timer()
            self._dial()
        elif self._response is not None and self._response.framing == "close" and error is None:
            self._response_body.is_over = True
            self._finish(keeps_box=False)
        elif self._response is None and not self._started:
            self.refuse(
                PreviewUnhealthy(f"what listens on port {self._key[1] if self._key else 0} closed the connection")
            )
        else:
            self._break_off()

    def box_full(self) -> None:
        self._edge.hold_reading()

    def box_drained(self) -> None:
        if self._dialling is None:
            self._edge.go_on_reading()

    # -- ends ----------------------------------------------------------------------------------

    def _finish(self, *, keeps_box: bool) -> None:
        assert self._response is not None
        whole = self._request_body.is_over
        if not (keeps_box and whole and self._response.keeps):
            self._drop_box()
        self._end_exchange()
        if not whole or not self._keeps:
            self._edge.raw.close()
            return
        ahead, self._ahead = bytes(self._ahead), bytearray()
        self._edge.relay_done(ahead)

    def _bad_answer(self, reason: str) -> None:
        self._drop_box()
        if self._started:
            self._break_off()
        else:
            self.refuse(PreviewUnavailable(f"what the server answers is no HTTP that can be passed on: {reason}"))

    def _too_slow(self) -> None:
        self._timer = None
        if self.is_busy and self._response is None:
            self._drop_box()
            limit_s = self._passage.answer_timeout_s
            self.refuse(
                PreviewUnhealthy(
                    f"what listens on port {self._passage.key[1]} gave no answer within {limit_s:g} s",
                    timeout_s=limit_s,
                )
            )

    def refuse(self, error: ColdframeError | HeadInvalid) -> None:
        """Answer in place of the server, and close."""
        page = plain_refusal(error) if isinstance(error, HeadInvalid) else self._page_of(error, self._head, self._names)
        if self._started:
            self._break_off()
            return
        self._end_exchange()
        self._edge.raw.write(page)
        self._edge.raw.close()

    def _break_off(self) -> None:
        """No part of an answer may look whole."""
        self._drop_box()
        self._end_exchange()
        self._edge.raw.abort()

    def _end_exchange(self) -> None:
        self._stop_timer()
        if self.is_busy:
            self.is_busy = False
            self._passage.leave(self.cut, self._request_body.payload, self._out_bytes)

    def _push_timer(self) -> None:
        if self._timer is not None:
            self._stop_timer()
            self._timer = self._edge.loop.call_later(self._passage.answer_timeout_s, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_box(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            box.close()


class _BoxEnd(asyncio.BufferedProtocol):
    """The connection to the server in the box."""

    def __init__(self, relay: Relay) -> None:
        self._relay: Relay | None = relay
        self._transport: asyncio.Transport | None = None
        self._buffer = _read_buffer()
        self._error: Exception | None = None

    @property
    def is_usable(self) -> bool:
        return self._relay is not None and self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        self._relay = None
        if self._transport is not None:
            self._transport.abort()

    def hold_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._relay is not None:
            with memoryview(self._buffer) as whole:
                data = bytes(whole[:nbytes])
            self._relay.from_box(data)

    def eof_received(self) -> bool:
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.box_ended(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.box_ended(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        if self._relay is not None:
            self._relay.box_full()

    def resume_writing(self) -> None:
        if self._relay is not None:
            self._relay.box_drained()


def _read_buffer() -> bytearray:
    """One for all connections of a thread: an event loop fills it and has it emptied before anything else happens."""
    buffer: bytearray | None = getattr(_of_thread, "buffer", None)
    if buffer is None:
        buffer = _of_thread.buffer = bytearray(READ_BYTES)
    return buffer


def plain_refusal(error: HeadInvalid) -> bytes:
    """For a request that is none."""
    text = f"{error}\n".encode("ascii", "replace")
    return (
        b"HTTP/1.1 %d Refused\r\ncontent-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\n"
        b"cache-control: no-store\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
        % (error.status, len(text), text)
    )
