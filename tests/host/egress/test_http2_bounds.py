"""What either side of a connection can make the broker hold by HTTP/2 has a bound: of one head, one connection, one box."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from coldframe.host.egress.http2 import connection as http2_connection
from coldframe.host.egress.http2.connection import (
    EXCHANGE_BYTES,
    MOST_AHEAD_BYTES,
    SMALL_PART_BYTES,
    Exchange,
    ExchangeBroken,
    Held,
    Http2Connection,
    Reset,
)
from coldframe.host.egress.http2.frames import MAX_FRAME_BYTES, MOST_BLOCK_BYTES, FrameCutter, Goaway, Http2Invalid
from coldframe.host.egress.requests import MAX_HEAD_BYTES
from coldframe.host.egress.responses import MOST_INTERIM
from coldframe.host.egress.streams import TlsStream

Pairs = list[tuple[bytes, bytes]]
REQUEST = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"x.example.com"), (b":path", b"/")]
LARGE = (b"x-large", b"y" * 20_000)
DATA, HEADERS, SETTINGS, PUSH_PROMISE, CONTINUATION = 0, 1, 4, 5, 9
END_HEADERS = 4


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Wire:
    """A stream of TLS, whose other end is an `h2` of the test."""

    def __init__(self, *, is_client: bool) -> None:
        self.other = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=is_client,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.other.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.is_blocked = False
        self._coming: asyncio.Queue[bytes] = asyncio.Queue()
        self._goes_on = asyncio.Event()

    async def receive(self) -> bytes:
        return await self._coming.get()

    async def send(self, data: bytes) -> None:
        while self.is_blocked:
            self._goes_on.clear()
            await self._goes_on.wait()
        self.events += self.other.receive_data(data)

    def go_on(self) -> None:
        self.is_blocked = False
        self._goes_on.set()

    def break_off(self) -> None:
        self._coming.put_nowait(b"")

    def push(self, data: bytes = b"") -> None:
        """What the other end has to say, and *data*."""
        data = self.other.data_to_send() + data
        if data:
            self._coming.put_nowait(data)


class Table:
    """A connection of the broker, and the other end of it."""

    def __init__(self, *, is_client: bool, held: Held | None = None) -> None:
        self.wire = Wire(is_client=not is_client)
        self.held = held or Held()
        self.begun: list[Exchange] = []
        self.connection = Http2Connection(
            cast(TlsStream, self.wire), is_client=is_client, held=self.held, on_exchange=self.begun.append
        )

    async def settle(self) -> None:
        """Until both have heard what there was; nothing here waits for anything else."""
        self.wire.push()
        for _ in range(20):
            await asyncio.sleep(0)

    def ask(self, number: int, pairs: Pairs, *, ends: bool = True) -> None:
        self.wire.other.send_headers(number, pairs, end_stream=ends)

    def heard(self, kind: type[h2.events.Event]) -> list[h2.events.Event]:
        return [event for event in self.wire.events if isinstance(event, kind)]


def with_table(steps: Callable[[Table], Awaitable[None]], *, is_client: bool = False, held: Held | None = None) -> None:
    async def whole() -> None:
        table = Table(is_client=is_client, held=held)
        running = asyncio.create_task(table.connection.run())
        try:
            await table.settle()
            await steps(table)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            table.connection.drop()
        assert (table.held._bytes, table.held._head_bytes) == (0, 0)

    asyncio.run(whole())


# -- one head --------------------------------------------------------------------------------------


def cut(*frames: bytes) -> Iterator[bytes | Goaway]:
    yield from FrameCutter(has_preface=False, now=0).feed(b"".join(frames), 0)


@pytest.mark.parametrize("kind", [HEADERS, PUSH_PROMISE])
@pytest.mark.parametrize("piece", [500, 16_384, MAX_FRAME_BYTES])
def test_the_pieces_of_a_head_are_measured_together(kind: int, piece: int) -> None:
    begin, more = frame(kind, b"x" * piece), frame(CONTINUATION, b"x" * piece)
    most = MOST_BLOCK_BYTES // piece - 1
    whole = b"".join((begin, more * most))
    assert b"".join(one for one in cut(whole, whole) if isinstance(one, bytes)) == whole * 2
    with pytest.raises(Http2Invalid, match="a head"):
        list(cut(whole, more))


def test_the_largest_head_that_may_be_sent_is_one_in_any_pieces() -> None:
    """Each header counts 32 bytes beside its letters, and takes fewer on the wire."""

    async def steps(table: Table) -> None:
        spent = sum(len(name) + len(value) + 32 for name, value in REQUEST)
        table.ask(1, [*REQUEST, (b"x-all", b"&" * (MAX_HEAD_BYTES - spent - 32 - 5))])
        await table.settle()
        (exchange,) = table.begun
        pairs, ends = await exchange.receive_head()
        assert ends and len(pairs) == 5

    with_table(steps)


def test_of_the_settings_of_the_other_side_only_those_that_mean_something_are_kept() -> None:
    known = (3).to_bytes(2, "big") + (50).to_bytes(4, "big")
    unknown = [number.to_bytes(2, "big") + bytes(4) for number in range(9, 10_009)]
    assert list(cut(frame(SETTINGS, unknown[0], stream=0))) == [frame(SETTINGS, stream=0)]
    (told,) = cut(frame(SETTINGS, known + b"".join(unknown) + known, stream=0))
    assert told == frame(SETTINGS, known * 2, stream=0)
    assert list(cut(frame(SETTINGS, b"".join(unknown), stream=0))) == [frame(SETTINGS, stream=0)]
    for odd in (frame(SETTINGS, b"1234567", stream=0), frame(SETTINGS, flags=1, stream=0)):
        assert list(cut(odd)) == [odd]

    async def steps(table: Table) -> None:
        table.wire.push(b"".join(frame(SETTINGS, b"".join(unknown[start::10]), stream=0) for start in range(10)))
        await table.settle()
        assert len(table.connection._h2.remote_settings) < 10
        assert len(table.heard(h2.events.SettingsAcknowledged)) == 11  # with the first ones

    with_table(steps)


@pytest.mark.parametrize("size", [0, 100, 4096, 1 << 20, (1 << 32) - 1])
def test_no_more_headers_are_remembered_than_usual_whatever_the_other_side_offers(size: int) -> None:
    async def steps(table: Table) -> None:
        table.wire.other.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
        await table.settle()
        for number in range(1, 41, 2):
            table.ask(number, REQUEST)
            await table.settle()
            await table.begun[-1].send_head([(b":status", b"200"), (b"x-%d" % number, b"y" * 1000)], ends=True)
            await table.settle()
        assert len(table.heard(h2.events.ResponseReceived)) == 20
        kept = table.connection._h2.encoder.header_table
        assert sum(len(name) + len(value) + 32 for name, value in kept.dynamic_entries) <= min(size, 4096)

    with_table(steps)


# -- all heads of a box ----------------------------------------------------------------------------


def test_no_exchange_begins_beyond_the_heads_that_a_box_may_have_held() -> None:
    async def steps(table: Table) -> None:
        for number in (1, 3, 5):
            table.ask(number, [*REQUEST, LARGE], ends=False)
        await table.settle()
        assert [exchange.number for exchange in table.begun] == [1, 3]
        (refused,) = table.heard(h2.events.StreamReset)
        assert isinstance(refused, h2.events.StreamReset)
        assert (refused.stream_id, refused.error_code) == (5, Reset.REFUSED)
        await table.begun[0].receive_head()  # who serves it has it still
        table.ask(7, [*REQUEST, LARGE])
        await table.settle()
        assert len(table.begun) == 2
        table.begun[0].reset(Reset.NO_ERROR)
        table.ask(9, [*REQUEST, LARGE])
        await table.settle()
        assert [exchange.number for exchange in table.begun] == [1, 3, 9]

    with_table(steps, held=Held(most_head_bytes=70_000))


def test_small_exchanges_have_a_bound_too() -> None:
    async def steps(table: Table) -> None:
        for number in range(1, 41, 2):
            table.ask(number, REQUEST, ends=False)
        await table.settle()
        assert len(table.begun) == 9 and len(table.heard(h2.events.StreamReset)) == 11

    with_table(steps, held=Held(most_head_bytes=10 * EXCHANGE_BYTES))


def begin(table: Table) -> Exchange:
    exchange = table.connection.begin()
    assert exchange is not None
    exchange.open(REQUEST, ends=True)
    return exchange


def test_a_server_whose_heads_have_no_room_is_broken_off() -> None:
    async def steps(table: Table) -> None:
        first, second, third = (begin(table) for _ in range(3))
        await table.settle()
        for exchange in (first, second, third):
            table.ask(exchange.number, [(b":status", b"200"), LARGE], ends=False)
        table.ask(first.number, [LARGE])  # trailers
        await table.settle()
        assert (await first.receive_head())[0][0] == (b":status", b"200")
        assert first.is_broken and third.is_broken and not second.is_broken
        with pytest.raises(ExchangeBroken):
            await third.receive_head()
        for exchange in (first, second, third):
            exchange.reset(Reset.CANCEL)

    with_table(steps, is_client=True, held=Held(most_head_bytes=70_000))


def test_what_a_server_says_before_its_answer_waits_in_no_endless_row() -> None:
    async def steps(table: Table) -> None:
        good, bad = begin(table), begin(table)
        await table.settle()
        for exchange, count in ((good, MOST_INTERIM), (bad, MOST_INTERIM + 1)):
            for _ in range(count):
                table.ask(exchange.number, [(b":status", b"103")], ends=False)
            table.ask(exchange.number, [(b":status", b"200")])
        await table.settle()
        found = [(await good.receive_head())[0][0][1] for _ in range(MOST_INTERIM + 1)]
        assert found == [b"103"] * MOST_INTERIM + [b"200"]
        assert bad.is_broken
        for exchange in (good, bad):
            exchange.reset(Reset.CANCEL)

    with_table(steps, is_client=True)


# -- bodies ----------------------------------------------------------------------------------------


def test_a_body_that_comes_byte_by_byte_is_held_in_few_parts() -> None:
    async def steps(table: Table) -> None:
        table.ask(1, REQUEST, ends=False)
        for number in range(10_000):
            table.wire.other.send_data(1, bytes([number % 256]))
        await table.settle()
        (exchange,) = table.begun
        assert len(exchange._parts) <= 10_000 // SMALL_PART_BYTES + 1
        table.wire.other.end_stream(1)
        await table.settle()
        found = b"".join([part async for part in _parts(exchange)])
        assert found == bytes(number % 256 for number in range(10_000))

    with_table(steps)


async def _parts(exchange: Exchange):  # type: ignore[no-untyped-def]
    while part := await exchange.receive():
        yield part


# -- what waits to go ------------------------------------------------------------------------------


def test_heads_and_trailers_wait_for_room_as_all_else_does() -> None:
    async def steps(table: Table) -> None:
        for number in range(1, 61, 2):
            table.ask(number, REQUEST)
        await table.settle()
        table.wire.is_blocked = True

        async def answer(exchange: Exchange) -> None:
            for _ in range(2):
                await exchange.send_head([(b":status", b"103"), LARGE])
            await exchange.send_head([(b":status", b"200"), LARGE])
            await exchange.finish([LARGE])

        tasks = [asyncio.create_task(answer(exchange)) for exchange in table.begun]
        for _ in range(20):
            await asyncio.sleep(0)
        connection = table.connection
        assert sum(not task.done() for task in tasks) > 20
        assert len(connection._out) + connection._going <= MOST_AHEAD_BYTES + 2 * MAX_HEAD_BYTES
        table.wire.go_on()
        await asyncio.gather(*tasks)
        await connection.flush()
        assert len(table.heard(h2.events.InformationalResponseReceived)) == 60
        assert len(table.heard(h2.events.TrailersReceived)) == 30

    with_table(steps)


def test_whoever_waits_for_room_is_told_when_the_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "MOST_AHEAD_BYTES", -1)

    async def steps(table: Table) -> None:
        table.ask(1, REQUEST)
        await table.settle()
        waiting = asyncio.create_task(table.begun[0].send_head([(b":status", b"200")]))
        await table.settle()
        assert not waiting.done()
        table.wire.break_off()
        with pytest.raises(OSError):
            await waiting

    with_table(steps)


# -- patience --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_client", [False, True], ids=["of a program", "of a server"])
@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_what_belongs_to_a_stream_that_is_over_brings_no_patience(kind: int, is_client: bool) -> None:
    useless = {
        DATA: frame(DATA, b"x"),
        HEADERS: frame(HEADERS, b"\x88" if is_client else b"\x82\x87\x84", flags=END_HEADERS),
    }

    async def steps(table: Table) -> None:
        if is_client:
            exchange = table.connection.begin()
            assert exchange is not None
            exchange.open(REQUEST, ends=False)
        else:
            table.ask(1, REQUEST, ends=False)
            await table.settle()
            (exchange,) = table.begun
        await table.settle()
        exchange.reset(Reset.CANCEL)
        await table.settle()
        table.wire.push(useless[kind] * 400)
        await table.settle()
        assert table.connection.is_of_use  # it may have been on its way
        table.wire.push(useless[kind] * 900)
        await table.settle()
        assert not table.connection.is_of_use

    with_table(steps, is_client=is_client)


def test_exchanges_one_after_the_other_cost_none() -> None:
    async def steps(table: Table) -> None:
        for number in range(1, 2 * 1500, 2):
            table.ask(number, REQUEST)
            await table.settle()
            await table.begun[-1].send_head([(b":status", b"204")], ends=True)
            table.begun[-1].reset(Reset.NO_ERROR)
        await table.settle()
        assert table.connection.is_of_use

    with_table(steps)
