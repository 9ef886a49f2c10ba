"""Promise: what a keeper says arrives whole and in order, costs a bounded amount of memory, and is never mixed up."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import CommandSpec
from coldframe.contract.errors import Conflict, GuestLost, NotFound, WrongState, next_action
from coldframe.guest.frames import MAX_BODY_BYTES, PREFIX, encode
from coldframe.host.box import KeeperBox
from coldframe.host.link import SOCKET_NAME, WAITING_BYTES, Connection, Link, LinkLost, told

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Transport(asyncio.Transport):
    """Stands in for the event loop's."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.paused_and_resumed = False
        self.aborted = False
        self.written: list[Any] = []

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.paused_and_resumed = not self.reading
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: Any) -> None:
        self.written.append(data)


def feed(connection: Connection, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        piece, data = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))


def connected() -> tuple[Connection, Transport]:
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)
    return connection, transport


@pytest.mark.parametrize("piece", [1, 7, 9, 100, 1_000_000])
def test_frames_arrive_whole_in_whatever_pieces_they_come(piece: int) -> None:
    sent: list[tuple[dict[str, Any], bytes]] = [
        ({"a": 1}, b""),
        ({}, b"x" * 300),
        ({"b": "\udcff"}, b"\0\xff"),
        ({"c": []}, b"y" * 700_000),
    ]

    async def steps() -> None:
        connection, _ = connected()
        data = b"".join(encode(head, body) for head, body in sent)
        for start in range(0, len(data), piece):
            if piece < 100 and start > 1000:
                feed(connection, data[start:])
                break
            feed(connection, data[start : start + piece])
        assert [await connection.receive() for _ in sent] == sent
        assert connection.usable

    asyncio.run(steps())


@pytest.mark.parametrize(
    "data",
    [PREFIX.pack(2**32 - 1, 0), PREFIX.pack(2, MAX_BODY_BYTES + 1), PREFIX.pack(1, 0) + b"x", encode({}) + b"\xff" * 8],
)
def test_whoever_does_not_speak_the_protocol_is_lost(data: bytes) -> None:
    async def steps() -> None:
        connection, _ = connected()
        feed(connection, data)
        with pytest.raises(LinkLost):
            await connection.receive()
            await connection.receive()
        assert not connection.usable or data.startswith(PREFIX.pack(1, 0))

    asyncio.run(steps())


@pytest.mark.parametrize("body", [b"", b"x" * 10_000])
def test_what_nobody_asks_for_is_not_read_on_and_on(body: bytes) -> None:
    async def steps() -> None:
        connection, transport = connected()
        frame, count = encode({}, body), 0
        while transport.reading and count * len(frame) <= WAITING_BYTES:
            feed(connection, frame)
            count += 1
        assert not transport.reading
        for _ in range(count):
            assert (await connection.receive())[1] == body
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        assert transport.paused_and_resumed
        feed(connection, frame)
        assert (await waiting)[1] == body

    asyncio.run(steps())


def test_a_sender_waits_for_a_far_side_that_does_not_read() -> None:
    async def steps() -> None:
        connection, _ = connected()
        connection.pause_writing()
        sending = asyncio.ensure_future(connection.send({}))
        await asyncio.sleep(0)
        assert not sending.done()
        connection.resume_writing()
        await sending
        connection.pause_writing()
        sending = asyncio.ensure_future(connection.send({}))
        await asyncio.sleep(0)
        connection.connection_lost(None)
        with pytest.raises(LinkLost):
            await sending

    asyncio.run(steps())


def with_a_keeper(folder: Path, serve: Serve, steps: Callable[[Link], Awaitable[None]]) -> int:
    """Run *steps* against a socket that *serve* answers; return how many connections were made."""
    answering: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.ensure_future(serve(reader, writer)))
        await answering[-1]
        writer.close()
        await writer.wait_closed()

    async def whole() -> None:
        server = await asyncio.start_unix_server(answer, os.path.join(folder, SOCKET_NAME))
        link = Link(str(folder))
        try:
            async with asyncio.timeout(20):
                await steps(link)
        finally:
            link.close()
            server.close()
            await server.wait_closed()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=20)
            await asyncio.sleep(0)

    asyncio.run(whole())
    return len(answering)


async def take_request(reader: asyncio.StreamReader) -> bool:
    try:
        head, body = PREFIX.unpack(await reader.readexactly(PREFIX.size))
        await reader.readexactly(head + body)
    except asyncio.IncompleteReadError:
        return False
    return True


def test_one_connection_serves_request_after_request(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await take_request(reader):
            writer.write(encode({"answer": {"n": 1}}, b"body"))

    async def steps(link: Link) -> None:
        for _ in range(3):
            assert await link.request({"op": "x"}, b"y" * 100_000) == ({"n": 1}, b"body")

    assert with_a_keeper(tmp_path, serve, steps) == 1


def test_a_connection_that_was_opened_ahead_serves_the_first_request(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await take_request(reader):
            writer.write(encode({"answer": {"n": 1}}))

    async def steps(link: Link) -> None:
        await link.open_ahead()
        assert (await link.request({"op": "x"}))[0] == {"n": 1}

    assert with_a_keeper(tmp_path, serve, steps) == 1
    os.unlink(tmp_path / SOCKET_NAME)
    asyncio.run(Link(str(tmp_path)).open_ahead())  # that there is no keeper is told to the request


def test_a_connection_that_says_more_than_was_asked_is_not_used_again(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await take_request(reader):
            writer.write(encode({"answer": {"n": 1}}) + encode({"answer": {"forged": True}}))

    async def steps(link: Link) -> None:
        for _ in range(3):
            assert (await link.request({"op": "x"}))[0] == {"n": 1}

    assert with_a_keeper(tmp_path, serve, steps) == 3


def test_a_connection_that_was_closed_while_it_was_idle_is_replaced(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(encode({"answer": {}}))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async def steps(link: Link) -> None:
        for _ in range(2):
            await link.request({})
            await closed.wait()
            closed.clear()
            while any(one.usable for one in link._idle):  # noqa: ASYNC110  until the loop has seen it
                await asyncio.sleep(0)

    assert with_a_keeper(tmp_path, serve, steps) == 2


def test_an_error_of_the_keeper_is_raised_as_what_it_is(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await take_request(reader):
            writer.write(encode({"error": NotFound("nothing there").to_wire()}))

    async def steps(link: Link) -> None:
        with pytest.raises(NotFound):
            await link.request({})

    with_a_keeper(tmp_path, serve, steps)


def test_too_many_who_wait_for_one_keeper_hold_up_nobody_else(tmp_path: Path) -> None:
    async def whole() -> None:
        loop = asyncio.get_running_loop()
        folder = os.open(tmp_path, os.O_PATH)
        name = f"/proc/self/fd/{folder}/{SOCKET_NAME}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
            listener.listen(0)
            listener.setblocking(False)
            waiting = []
            while True:
                one = socket.socket(socket.AF_UNIX)
                one.setblocking(False)
                try:
                    one.connect(name)
                except BlockingIOError:
                    one.close()
                    break
                waiting.append(one)
            link = Link(str(tmp_path))
            asking = asyncio.create_task(link.request({"op": "report"}))
            await asyncio.sleep(0)
            assert not asking.done()
            for one in waiting:
                peer, _ = await loop.sock_accept(listener)
                peer.close()
                one.close()
            peer, _ = await loop.sock_accept(listener)
            with peer:
                assert await loop.sock_recv(peer, 4096)
                await loop.sock_sendall(peer, encode({"answer": {"ok": True}}))
                assert await asking == ({"ok": True}, b"")
                link.close()
        os.close(folder)

    asyncio.run(whole())


@pytest.mark.parametrize("asked", [{"stdin_open": True}, {"shell_session": "build"}, {"idle_timeout_s": 1.0}])
def test_what_a_keeper_of_an_earlier_version_would_leave_out_is_not_begun(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    began: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head_bytes, body_bytes = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                began.append(json.loads(await reader.readexactly(head_bytes))["op"])
                await reader.readexactly(body_bytes)
                said = {"code": "INVALID_ARGUMENT", "message": "unknown verb `list_shells`", "facts": {}}
                if began[-1] == "run":
                    said = {"code": "CONFLICT", "message": "begun", "facts": {}}
                writer.write(encode({"error": said}))

    async def steps(link: Link) -> None:
        box = KeeperBox("box", str(tmp_path))
        with pytest.raises(WrongState, match="earlier version"):
            async for _ in box.run(CommandSpec(command_id="c1", shell="true", **asked)):
                pass
        assert began == ["ask"]
        with pytest.raises(Conflict):
            async for _ in box.run(CommandSpec(command_id="c1", shell="true")):
                pass
        assert began == ["ask", "run"]
        box.close()

    with_a_keeper(tmp_path, serve, steps)


def test_what_the_far_side_says_of_a_keeper_that_is_lost_comes_with_its_own_hint_and_is_no_loss_of_the_link() -> None:
    sent = GuestLost(
        "the keeper ended", hint="start it again", next_actions=[next_action("sandbox.start", "does")], a=1
    )
    error = told(sent.to_wire())
    assert type(error) is GuestLost and (error.message, error.advice) == ("the keeper ended", "start it again")
    assert error.facts == {"a": 1} and [one["op"] for one in error.next_actions] == ["sandbox.start"]
