"""One connection at the edge, as the HTTP server speaks it.

`Edge` answers whole requests. What is for a port of a sandbox is never made one: the head of each request is looked at
before anything is made of it, and is handed with the connection to a relay (`relay.py`), which gives the connection back
when the answer is over. Web sockets and bodies of any size pass there as they come.
"""

import asyncio
import re
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.server import ServerState

from coldframe.contract.errors import ColdframeError
from coldframe.fronts.corked import CorkedProtocol, CorkedTransport
from coldframe.fronts.edge.relay import HIGH_BYTES, PageOf, Passage, Relay, plain_refusal
from coldframe.fronts.edge.relay_heads import MAX_HEAD_BYTES, HeadInvalid, Names, RequestHead, parse_request

KEEP_ALIVE_S = 660
"""SDKs keep an idle connection for 300 s, and proxies up to 600 s: one closed earlier here breaks under a request."""
HEAD_S = 60.0
"""The first head of a connection, and any that has begun, is whole by then."""
_END = b"\r\n\r\n"
_BARE = re.compile(rb"(?<!\r)\n")
"""Ends a line as none ends: the server says so, since no end of such a head would be found here."""
_MAY_BE = re.compile(rb"\r\n(?:host:[ \t]*[0-9]{1,5}-|e2b-sandbox-port:)", re.IGNORECASE)
"""What a request for a port of a sandbox has in its head; the other way round it need not hold."""


class Porter(Protocol):
    """Says of each request whether it is for a port of a sandbox, and lets it in or not."""

    def find(self, head: RequestHead, names: Names) -> bool:
        """Whether it is for one, and not for the front of previews itself. Raises ColdframeError, as for a foreign host."""
        ...

    def admit(self, head: RequestHead, names: Names, visitor: str) -> tuple[Passage, Names]:
        """Raises ColdframeError: it is not let in."""
        ...

    @property
    def page_of(self) -> PageOf: ...


class EdgeProtocol(CorkedProtocol):
    """To be named as `http` to uvicorn."""

    raw: asyncio.Transport
    """The connection itself."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        porter: Porter | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._porter = porter
        self._start = b""
        """Of a head that is not whole."""
        self._within = False
        """Whether the server is in the middle of a request, and what comes is of it."""
        self._relay: Relay | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._held = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.raw = transport
        if self._porter is not None:
            self._head_timer = self.loop.call_later(HEAD_S, self.raw.close)  # after a TLS handshake nothing may follow

    # -- what comes ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._relay is not None and self._relay.is_busy:
            self._relay.data_received(data)
        elif self._porter is None or self._within or (self.cycle is not None and not self.cycle.response_complete):
            super().data_received(data)
        else:
            self._between(self._start + data if self._start else data)

    def _between(self, data: bytes) -> None:
        """Nothing is under way: *data* begins a head."""
        end = data.find(_END)
        if end < 0 and len(data) <= MAX_HEAD_BYTES and _BARE.search(data) is None:
            self._start = data
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_S, self.raw.close)
            return
        self._start = b""
        self._stop_head_timer()
        if (len(data) if end < 0 else end) > MAX_HEAD_BYTES:
            self._refuse(HeadInvalid("the head is too long", 431))
            return
        if end >= 0 and _MAY_BE.search(data, 0, end + 2) is not None and self._take_over(data, end + 4):
            return
        super().data_received(data)

    def _take_over(self, data: bytes, end: int) -> bool:
        """Whether it was for a port of a sandbox, and is dealt with."""
        assert self._porter is not None
        names = Names(self.scheme or "http", "", 0)
        head: RequestHead | None = None
        visitor = self.client[0] if self.client else "unknown"
        try:
            head = parse_request(data[:end])
            names = names._replace(host=(head.get(b"host") or b"").decode("latin-1"))
            if not self._porter.find(head, names):
                return False
            self._begin_relay()
            passage, names = self._porter.admit(head, names, visitor)
            assert self._relay is not None
            self._relay.begin(head, names, passage, visitor, data[end:])
        except HeadInvalid as error:
            self._refuse(error)
        except ColdframeError as error:
            self._answer(self._porter.page_of(error, head, names))
        return True

    def _begin_relay(self) -> None:
        assert self._porter is not None
        self._unset_keepalive_if_required()
        if isinstance(self.transport, CorkedTransport):
            self.transport.let_go()
        if self._relay is None:
            self._relay = Relay(self, self._porter.page_of)
            self.raw.set_write_buffer_limits(HIGH_BYTES)

    def _refuse(self, error: HeadInvalid) -> None:
        self._answer(plain_refusal(error))

    def _answer(self, whole: bytes) -> None:
        """In place of whoever is asked, and close: what comes behind it is not looked at."""
        self._begin_relay()
        self.raw.write(whole)
        self.raw.close()

    def relay_done(self, ahead: bytes) -> None:
        """The relay has carried its request to the end."""
        self.go_on_reading()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if ahead:
            self._start = ahead  # where what comes before its turn is put behind it
            self.loop.call_soon(self._next)

    def _next(self) -> None:
        ahead, self._start = self._start, b""
        if ahead and not self.raw.is_closing():
            self._between(ahead)

    def on_message_begin(self) -> None:
        self._within = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._within = False
        super().on_message_complete()

    # -- how it flows --------------------------------------------------------------------------

    def hold_reading(self) -> None:
        if not self._held and not self.raw.is_closing():
            self._held = True
            self.raw.pause_reading()

    def go_on_reading(self) -> None:
        if self._held and not self.raw.is_closing():
            self._held = False
            self.raw.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._relay is not None:
            self._relay.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._relay is not None:
            self._relay.resume_writing()

    # -- ends ----------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._relay is not None:
            self._relay.client_lost()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._relay is not None and self._relay.is_busy:
            self._relay.cut()  # a web socket would last for ever
        else:
            super().shutdown()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
