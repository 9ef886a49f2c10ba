"""One connection at the edge: what a slow, a silent or a hasty visitor, and a hostile box, can bring about."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from coldframe.contract.errors import ColdframeError
from coldframe.fronts.edge import protocol as edge
from coldframe.fronts.edge.relay import HIGH_BYTES, READ_BYTES, PageOf, Passage
from coldframe.fronts.edge.relay_heads import Names, RequestHead

PATIENCE_S = 30.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ToOneServer:
    """Lets everybody in, to one server."""

    answer_timeout_s = PATIENCE_S

    def __init__(self, port: int) -> None:
        self.key = ("sbx_1", port)
        self.page_of: PageOf = lambda error, head, names: b"HTTP/1.1 503 Refused\r\nconnection: close\r\n\r\n"

    def find(self, head: RequestHead, names: Names) -> bool:
        return True

    def admit(self, head: RequestHead, names: Names, visitor: str) -> tuple[Passage, Names]:
        return self, names._replace(port=self.key[1])

    async def connect(self) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self.key[1]))
        one.setblocking(False)
        return one

    async def explain(self, error: ColdframeError) -> ColdframeError:
        return error

    def enter(self, cut: Callable[[], None]) -> None:
        pass

    def leave(self, cut: Callable[[], None], bytes_in: int, bytes_out: int) -> None:
        pass


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[tuple[edge.EdgeProtocol, socket.socket]]:
    """A visitor's connection to a server that does *serve* on each connection of its own."""
    loop = asyncio.get_running_loop()
    serving: set[asyncio.Task[None]] = set()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await serve(reader, writer)
            while await reader.read(1 << 16):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has gone
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    config = uvicorn.Config("none:app", http=edge.EdgeProtocol, log_config=None)
    config.load_app = lambda: None  # type: ignore[method-assign]
    config.load()
    porter = ToOneServer(server.sockets[0].getsockname()[1])
    inner, visitor = socket.socketpair()
    for one in (inner, visitor):
        one.setblocking(False)
    transport, made = await loop.connect_accepted_socket(
        lambda: edge.EdgeProtocol(config, ServerState(), {}, porter=porter), inner
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made, visitor
    finally:
        transport.abort()
        visitor.close()
        server.close()
        await asyncio.gather(*serving)
        await asyncio.sleep(0)  # transports close in the next turn


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 8000-x.localhost\r\n\r\n".encode()


async def all_of(visitor: socket.socket) -> bytes:
    loop, found = asyncio.get_running_loop(), b""
    try:
        while part := await loop.sock_recv(visitor, 1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_a_visitor_that_does_not_read_holds_back_every_connection_of_the_server() -> None:
    body = bytes(READ_BYTES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def steps() -> None:
        loop, most, count = asyncio.get_running_loop(), 0, 40
        async with connected(serve) as (made, visitor):
            await loop.sock_sendall(visitor, request("/") * count)
            left = count * len(body)
            while left > 0:
                most = max(most, made.raw.get_write_buffer_size())
                left -= len(await loop.sock_recv(visitor, 1 << 16))
                for _ in range(20):
                    await asyncio.sleep(0)  # the server is quicker than the visitor
        assert most <= HIGH_BYTES + 2 * READ_BYTES

    asyncio.run(steps())


def test_what_comes_before_the_turn_of_a_request_that_was_sent_ahead_is_put_behind_it() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        async with connected(serve) as (made, visitor):
            await loop.sock_sendall(visitor, request("/1"))
            await loop.sock_recv(visitor, 1 << 16)
            made.relay_done(request("/2") + request("/3")[:9])
            made.data_received(request("/3")[9:])
            while asked != [b"/1", b"/2", b"/3"]:
                assert asked == [b"/1", b"/2", b"/3"][: len(asked)]
                await loop.sock_recv(visitor, 1 << 16)

    asyncio.run(steps())


def test_a_server_that_sends_news_and_no_answer_is_cut_off() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def steps() -> None:
        async with connected(serve) as (_, visitor):
            await asyncio.get_running_loop().sock_sendall(visitor, request("/"))
            found = await all_of(visitor)
        assert found.count(b"HTTP/1.1 103 ") <= 17
        assert b" 200 " not in found

    asyncio.run(steps())


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "HEAD_S", 0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def steps() -> None:
        async with connected(serve) as (_, visitor):
            assert await all_of(visitor) == b""

    asyncio.run(steps())


@pytest.mark.req("T4.44")
def test_a_long_poll_of_ten_minutes_is_answered_if_the_preview_gives_its_server_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ToOneServer, "answer_timeout_s", 660.0)
    monkeypatch.setitem(globals(), "PATIENCE_S", 3600.0)  # by the clock that is turned

    async def steps(turned_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        asked, happened, true_time = asyncio.Event(), asyncio.Event(), loop.time

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await happened.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()

        async with connected(serve) as (_, visitor):
            await loop.sock_sendall(visitor, request("/poll"))
            await asked.wait()
            loop.time = lambda: true_time() + turned_s  # type: ignore[method-assign]
            for _ in range(3):
                await asyncio.sleep(0)  # whatever is due is done
            happened.set()
            return await all_of(visitor)

    assert asyncio.run(steps(600)).endswith(b"ok")
    assert asyncio.run(steps(700)).startswith(b"HTTP/1.1 503 ")
