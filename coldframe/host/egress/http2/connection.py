"""One connection of HTTP/2, from either side, over a stream of TLS: many exchanges at once in bounded memory.

What has come and was not taken yet is bounded twice: each stream by its window, which grows as long as what comes is taken
at once, and all streams of a box together by what they may hold; beyond that nothing is read. So a stream that nobody
reads stops no other one. Heads are held as long as their exchange lasts, and beyond what all of a box may hold no exchange
begins. What waits to go is a few chunks and a head: whoever sends waits until there is room. One that reads nothing while
it makes this side answer (pings, settings) is not read from any more. So a connection itself holds less than 1 MiB: a
frame, a head that is not whole, and what waits to go. The protocol itself is `h2`; what is refused of it before is in
`frames.py`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from enum import IntEnum

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack

from coldframe.host.egress.http2.frames import (
    GOAWAY_CALM_DOWN,
    GOAWAY_NO_ERROR,
    MAX_FRAME_BYTES,
    FrameCutter,
    Goaway,
    Http2Invalid,
    write_goaway,
)
from coldframe.host.egress.http2.heads import Pairs
from coldframe.host.egress.responses import MOST_INTERIM
from coldframe.host.egress.streams import TlsStream

MOST_STREAMS = 100
"""Of one connection at once; what other servers take."""
FIRST_WINDOW_BYTES, MOST_WINDOW_BYTES = 64 * 1024, 1 << 20
"""That may wait here of one stream; the latter is enough for 80 Mbit/s over 100 ms."""
MOST_HELD_BYTES = 64 << 20
"""That may wait here of all streams of one box, each way."""
MOST_HELD_HEAD_BYTES = 32 << 20
"""Of the heads of all exchanges of one box, each way, and of these exchanges themselves."""
EXCHANGE_BYTES = 12 << 10
"""That an exchange takes in memory beside its heads and its body: its task, what is known of it here and in `h2`."""
PAIR_BYTES = 150
"""That a header takes in memory beside its letters."""
SMALL_PART_BYTES = 2048
"""What waits here is put together to parts of so many: each takes memory of its own, and a frame may carry one byte."""
_NO_BOUND_BYTES = 1 << 30
"""The window of all streams together, which is bounded by `Held`: one that is full would stop streams that are read."""
MOST_AHEAD_BYTES = 256 * 1024
"""That waits to go before whoever sends waits too."""
MOST_OWED_BYTES = 512 * 1024
"""That waits to go before nothing is read any more: answers to what the other side sends, as it reads nothing."""
_REMEMBERED_BYTES = 4096
"""Of headers that were written (HPACK), so that they can be referred to; what others use."""
PIECE_BYTES = 16 * 1024
"""That is looked at before patience is."""
_EARNED = 2.0
"""Patience for a frame that was sent: for each the other side may open two windows."""


class Reset(IntEnum):
    """Why a stream is broken off, by the numbers of the wire."""

    NO_ERROR = 0
    INTERNAL = 2
    REFUSED = 7
    CANCEL = 8
    HTTP1_REQUIRED = 13


class ExchangeBroken(OSError):
    """The stream ended before it was over. `again`: the other side has not looked at it."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(0, reason)
        self.again = again


class Held:
    """What waits in memory of one box, one way."""

    def __init__(self, most_bytes: int = MOST_HELD_BYTES, most_head_bytes: int = MOST_HELD_HEAD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._most_head_bytes = most_head_bytes
        self._bytes = 0
        self._head_bytes = 0
        self._has_room = asyncio.Event()

    def take(self, count: int) -> None:
        self._bytes += count

    def give(self, count: int) -> None:
        self._bytes -= count
        self._has_room.set()

    def take_head(self, count: int) -> bool:
        """Whether there is room for it. No stream waits for that: those that hold it may wait for what would not be read."""
        if self._head_bytes + count > self._most_head_bytes:
            return False
        self._head_bytes += count
        return True

    def give_heads(self, count: int) -> None:
        self._head_bytes -= count

    async def make_room(self) -> None:
        """Returns when there is less than that."""
        while self._bytes >= self._most_bytes:
            self._has_room.clear()
            await self._has_room.wait()


class Exchange:
    """A request and its answer."""

    def __init__(self, connection: "Http2Connection", number: int) -> None:
        self.number = number
        self.trailers: Pairs = []
        """Behind the body, once it has ended."""
        self.on_break: Callable[[], object] = lambda: None
        """Called when the other side breaks it off."""
        self._connection = connection
        self._heads: deque[tuple[Pairs, bool]] = deque()
        self._head_bytes = 0
        self._parts: deque[tuple[bytes, int]] = deque()
        self._has_ended = False
        self._broken: ExchangeBroken | None = None
        self._came = asyncio.Event()
        self._has_room = asyncio.Event()
        self._window = FIRST_WINDOW_BYTES
        self._taken = 0

    @property
    def is_broken(self) -> bool:
        """By the other side."""
        return self._broken is not None

    # -- what comes ----------------------------------------------------------------------------

    async def receive_head(self) -> tuple[Pairs, bool]:
        """The next one, and whether nothing follows it. Raises ExchangeBroken."""
        while not self._heads:
            await self._wait()
        return self._heads.popleft()

    async def receive(self) -> bytes:
        """The next part of the body; none at its end. Raises ExchangeBroken."""
        while not self._parts:
            if self._has_ended:
                return b""
            await self._wait()
        data, size = self._parts.popleft()
        self._connection.take_back(self.number, size)
        self._taken += size
        if self._taken >= self._window and not self._parts and self._window < MOST_WINDOW_BYTES:
            self._connection.widen(self.number, self._window)
            self._window, self._taken = 2 * self._window, 0
        return data

    async def _wait(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._came.clear()
        await self._came.wait()

    def put_head(self, pairs: Pairs, *, ends: bool) -> bool:
        """Whether there was room for it: if not, it is broken off."""
        if len(self._heads) > MOST_INTERIM or not self._hold(pairs):
            self.break_off(ExchangeBroken("the other side says too much before its answer, or there is no room for it"))
            return False
        self._heads.append((pairs, ends))
        self._has_ended = self._has_ended or ends
        self._came.set()
        return True

    def put_trailers(self, pairs: Pairs) -> None:
        if self._hold(pairs):
            self.trailers = pairs
            self.end()
        else:
            self.break_off(ExchangeBroken("there is no room for what ends it"))

    def _hold(self, pairs: Pairs) -> bool:
        size = sum(len(name) + len(value) + PAIR_BYTES for name, value in pairs)
        size += 0 if self._head_bytes else EXCHANGE_BYTES
        if not self._connection.held.take_head(size):
            return False
        self._head_bytes += size
        return True

    def put(self, data: bytes, size: int) -> None:
        if self._parts and len(self._parts[-1][0]) < SMALL_PART_BYTES:
            before, known = self._parts.pop()
            data, size = before + data, known + size
        self._parts.append((data, size))
        self._came.set()

    def end(self) -> None:
        self._has_ended = True
        self._came.set()

    def break_off(self, broken: ExchangeBroken) -> None:
        """By the other side."""
        if self._broken is None:
            self._broken = broken
            self.let_room()
            self._came.set()
            self.on_break()

    def let_room(self) -> None:
        self._has_room.set()

    # -- what goes -----------------------------------------------------------------------------

    def open(self, pairs: Pairs, *, ends: bool) -> None:
        """The head of a request, by whoever has looked for room and begun this: their numbers have to go out in order.

        Raises ExchangeBroken, OSError.
        """
        self._check()
        self._connection.send_head(self.number, pairs, ends=ends)

    async def send_head(self, pairs: Pairs, *, ends: bool = False) -> None:
        """As soon as there is room. Raises ExchangeBroken, OSError."""
        await self._find_room()
        self._connection.send_head(self.number, pairs, ends=ends)

    async def _find_room(self) -> None:
        self._check()
        while not self._connection.has_room:
            await self._connection.make_room()
            self._check()

    async def send(self, data: bytes) -> None:
        """Returns once it waits for nobody but the kernel, or nearly. Raises ExchangeBroken, OSError."""
        place = 0
        while place < len(data):
            self._check()
            if not self._connection.has_room:
                await self._connection.make_room()
                continue
            room = self._connection.room_of(self.number)
            if room <= 0:
                self._has_room.clear()
                await self._has_room.wait()
                continue
            part = data[place : place + room]
            place += len(part)
            self._connection.send_part(self.number, part)

    async def finish(self, trailers: Pairs | None = None) -> None:
        """Raises ExchangeBroken, OSError."""
        self._check()
        if trailers:
            await self._find_room()
            self._connection.send_head(self.number, trailers, ends=True)
        else:
            self._connection.send_end(self.number)

    def reset(self, code: Reset) -> None:
        """Break it off, unless it is over. What has come and was not taken is given back, as are the heads."""
        while self._parts:
            self._connection.take_back(self.number, self._parts.popleft()[1])
        self._connection.held.give_heads(self._head_bytes)
        self._head_bytes = 0
        self._connection.forget(self.number, code)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken


class _BoundedEncoder(hpack.Encoder):
    """Remembers no more of the headers that it has written than is usual, whatever the other side asks for."""

    @property
    def header_table_size(self) -> int:
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        self.header_table.maxsize = min(value, _REMEMBERED_BYTES)
        if self.header_table.resized:
            self.table_size_changes.append(self.header_table.maxsize)


class Http2Connection:
    """Owns neither the stream below nor who runs it: `run` is to be awaited as long as there are exchanges."""

    def __init__(
        self,
        stream: TlsStream,
        *,
        is_client: bool,
        held: Held | None = None,
        on_exchange: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        """*held*: what comes here waits there. *on_exchange*: what the other side began."""
        self.is_leaving = False
        """The other side wants no more exchanges."""
        self.has_opened = asyncio.Event()
        """Set whenever there may be room for another exchange."""
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._on_exchange = on_exchange
        self._is_client = is_client
        self.held = held or Held()
        config = h2.config.H2Configuration(
            client_side=is_client,
            header_encoding=False,
            validate_inbound_headers=False,  # more strictly in `heads.py`, so that there is an answer
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        codes = h2.settings.SettingCodes
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=is_client,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                codes.INITIAL_WINDOW_SIZE: FIRST_WINDOW_BYTES,
                codes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                codes.MAX_HEADER_LIST_SIZE: 64 * 1024,
                **({codes.ENABLE_PUSH: 0} if is_client else {}),
            },
        )
        self._h2.max_inbound_frame_size = MAX_FRAME_BYTES
        self._h2.encoder = _BoundedEncoder()
        self._cutter = FrameCutter(has_preface=not is_client, now=self._loop.time())
        self._exchanges: dict[int, Exchange] = {}
        self._last_begun = 0
        self._out = bytearray()
        self._going = 0
        self._has_more = asyncio.Event()
        self._has_gone = asyncio.Event()
        self._broken: OSError | None = None
        self._is_ending = False
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_NO_BOUND_BYTES)
        self._push()

    @property
    def open_exchanges(self) -> int:
        return len(self._exchanges)

    async def run(self) -> None:
        """Until the other side has ended. Raises Http2Invalid and OSError: all exchanges are broken off then."""
        writer = asyncio.create_task(self._write())
        failure: OSError = ExchangeBroken("the connection ended", again=False)
        try:
            await self._read()
        except (OSError, asyncio.CancelledError) as error:
            if isinstance(error, OSError):
                failure = error
            raise
        finally:
            self._broken = failure
            for exchange in list(self._exchanges.values()):
                exchange.break_off(ExchangeBroken(failure.strerror or "the connection broke off"))
            self.has_opened.set()
            self._has_gone.set()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def begin(self) -> Exchange | None:
        """Another exchange, of a client; None if the server wants no more of them at once, or at all."""
        if self._broken is not None or self.is_leaving:
            return None
        if len(self._exchanges) >= min(MOST_STREAMS, self._h2.remote_settings.max_concurrent_streams):
            return None
        try:
            number = self._h2.get_next_available_stream_id()
        except h2.exceptions.NoAvailableStreamIDError:
            return None
        self._last_begun = number
        exchange = self._exchanges[number] = Exchange(self, number)
        return exchange

    @property
    def last_begun(self) -> int:
        """Number of the last exchange; 0 if there was none."""
        return self._last_begun

    @property
    def is_of_use(self) -> bool:
        """Whether it will take another exchange, sooner or later."""
        return self._broken is None and not self.is_leaving

    def leave(self, code: int = GOAWAY_NO_ERROR) -> None:
        """Tell the other side that no exchange beyond those that it has begun is looked at."""
        if not self._is_ending:
            self._is_ending = True
            self._out += write_goaway(self._last_begun, code)
            self._has_more.set()

    def drop(self) -> None:
        """Give up what is open: nobody serves it any more."""
        for exchange in list(self._exchanges.values()):
            exchange.reset(Reset.CANCEL)

    async def flush(self) -> None:
        """Returns when nothing waits to go. Raises OSError."""
        await self._wait_until(0)

    # -- for exchanges -------------------------------------------------------------------------

    def send_head(self, number: int, pairs: Pairs, *, ends: bool) -> None:
        try:
            self._h2.send_headers(number, pairs, end_stream=ends)
        except h2.exceptions.ProtocolError as error:
            raise ExchangeBroken("the stream is over") from error
        self._push()

    def send_part(self, number: int, data: bytes) -> None:
        try:
            self._h2.send_data(number, data)
        except h2.exceptions.ProtocolError as error:
            raise ExchangeBroken("the stream is over") from error
        self._cutter.earn(_EARNED)
        self._push()

    def send_end(self, number: int) -> None:
        try:
            self._h2.end_stream(number)
        except h2.exceptions.ProtocolError as error:
            raise ExchangeBroken("the stream is over") from error
        self._push()

    def room_of(self, number: int) -> int:
        """Bytes that may be sent at once now."""
        try:
            room = self._h2.local_flow_control_window(number)
            return min(room, self._h2.max_outbound_frame_size, MAX_FRAME_BYTES)
        except h2.exceptions.ProtocolError as error:
            raise ExchangeBroken("the stream is over") from error

    def take_back(self, number: int, size: int) -> None:
        """So many bytes were taken: the other side may send as many more."""
        self.held.give(size)
        if self._broken is None and size:
            self._h2.acknowledge_received_data(size, number)
            self._push()

    def widen(self, number: int, size: int) -> None:
        """The other side may be ahead by so many bytes more."""
        if self._broken is None:
            with contextlib.suppress(h2.exceptions.ProtocolError):  # the stream is over
                self._h2.increment_flow_control_window(size, number)
                self._push()

    @property
    def has_room(self) -> bool:
        """Whether little waits to go."""
        return len(self._out) + self._going <= MOST_AHEAD_BYTES

    def forget(self, number: int, code: Reset) -> None:
        if self._exchanges.pop(number, None) is None or self._broken is not None:
            return
        try:
            self._h2.reset_stream(number, int(code))
        except h2.exceptions.ProtocolError:
            pass  # it is over
        self._push()
        self.has_opened.set()

    async def make_room(self) -> None:
        """Returns when there is some. Raises OSError."""
        await self._wait_until(MOST_AHEAD_BYTES)

    async def _wait_until(self, most_bytes: int) -> None:
        while len(self._out) + self._going > most_bytes:
            if self._broken is not None:
                raise self._broken
            self._has_gone.clear()
            await self._has_gone.wait()

    # -- the wire ------------------------------------------------------------------------------

    def _push(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._out += data
            self._has_more.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._has_more.wait()
                self._has_more.clear()
                while self._out:
                    data, self._out = bytes(self._out), bytearray()
                    self._going = len(data)
                    await self._stream.send(data)
                    self._going = 0
                    self._has_gone.set()
        except OSError as error:
            self._broken = error
            self._has_gone.set()
            self._stream.break_off()  # who reads finds out

    async def _read(self) -> None:
        while data := await self._stream.receive():
            for start in range(0, len(data), PIECE_BYTES):
                try:
                    for found in self._cutter.feed(data[start : start + PIECE_BYTES], self._loop.time()):
                        self._take(found)
                except Http2Invalid:
                    await self._say_why(GOAWAY_CALM_DOWN if self._cutter.patience < 0 else 1)
                    raise
                except h2.exceptions.ProtocolError as error:
                    await self._say_why(int(error.error_code or 1))
                    raise Http2Invalid(f"it breaks the rules of HTTP/2 ({type(error).__name__})") from error
            self._push()
            await self._wait_until(MOST_OWED_BYTES)
            await self.held.make_room()

    async def _say_why(self, code: int) -> None:
        self.leave(code)
        try:
            async with asyncio.timeout(1):
                await self.flush()
        except (OSError, TimeoutError):
            pass

    def _take(self, found: bytes | Goaway) -> None:
        if isinstance(found, Goaway):
            self.is_leaving = True
            if self._is_client:
                for number, exchange in list(self._exchanges.items()):
                    if number > found.last_stream:
                        exchange.break_off(ExchangeBroken("the server left before it", again=True))
            self.has_opened.set()
            return
        parts = 0
        for event in self._h2.receive_data(found):
            if isinstance(event, h2.events.DataReceived):
                parts += bool(event.flow_controlled_length or event.stream_ended is not None)
            self._hear(event)
        self._cutter.settle(parts)

    def _hear(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.DataReceived(stream_id=number, data=data, flow_controlled_length=size):
                exchange = self._exchanges.get(number)
                self.held.take(size)
                if exchange is None:
                    self.take_back(number, size)
                elif data:
                    exchange.put(bytes(data), size)
                else:
                    self.take_back(number, size)
                if event.stream_ended is not None and exchange is not None:
                    exchange.end()
            case h2.events.RequestReceived(stream_id=number, headers=headers):
                self._begin(number, list(headers), ends=event.stream_ended is not None)
            case h2.events.ResponseReceived(stream_id=number, headers=headers):
                self._put_head(number, list(headers), ends=event.stream_ended is not None)
            case h2.events.InformationalResponseReceived(stream_id=number, headers=headers):
                self._put_head(number, list(headers), ends=False)
            case h2.events.TrailersReceived(stream_id=number, headers=headers):
                if (exchange := self._exchanges.get(number)) is not None:
                    self._cutter.earn_head()
                    exchange.put_trailers(list(headers))
            case h2.events.StreamReset(stream_id=number, error_code=code):
                if (exchange := self._exchanges.get(number)) is not None:
                    refused = int(code) == Reset.REFUSED
                    exchange.break_off(ExchangeBroken("the other side broke it off", again=refused))
            case h2.events.WindowUpdated(stream_id=number):
                self._let_room(number)
            case h2.events.RemoteSettingsChanged():
                self._let_room(0)
                self.has_opened.set()

    def _put_head(self, number: int, headers: Pairs, *, ends: bool) -> None:
        """What a server says."""
        exchange = self._exchanges.get(number)
        if exchange is not None and exchange.put_head(headers, ends=ends):
            self._cutter.earn_head()

    def _let_room(self, number: int) -> None:
        if not number:
            for exchange in self._exchanges.values():
                exchange.let_room()
        elif (found := self._exchanges.get(number)) is not None:
            found.let_room()

    def _begin(self, number: int, headers: Pairs, *, ends: bool) -> None:
        if self._is_ending:
            self._h2.reset_stream(number, int(Reset.REFUSED))
            self._cutter.earn(-10)
            return
        self._last_begun = number
        exchange = Exchange(self, number)
        if not exchange.put_head(headers, ends=ends):
            self._h2.reset_stream(number, int(Reset.REFUSED))
            self._cutter.earn(-10)
            return
        self._cutter.earn_head()
        self._exchanges[number] = exchange
        self._on_exchange(exchange)
