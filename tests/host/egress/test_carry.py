"""Bytes pass although descriptors or turns are short, and a connection that nobody uses ends."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coldframe.host.egress import carry
from coldframe.host.egress.carry import Carrier, Pipe, Pipes, bound_memory, keep_alive
from coldframe.host.egress.turns import CALLS_AT_ONCE, receive, send_all


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a TCP connection; the first one never blocks."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as other:
        one, _ = listener.accept()
        with one:
            one.setblocking(False)
            other.settimeout(30)
            yield one, other


class ShortPipes(Pipes):
    """There is no descriptor left, a few times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def take(self) -> Pipe:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().take()


def test_without_a_descriptor_bytes_wait_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "AGAIN_S", 0.001)

    async def steps() -> None:
        pipes = ShortPipes(3)
        with connected() as (inner, program), connected() as (outer, server):
            carrier = Carrier(inner, outer, pipes)
            program.sendall(b"question")
            carrier.start()
            assert await asyncio.to_thread(server.recv, 100) == b"question"
            server.sendall(b"answer")
            server.shutdown(socket.SHUT_WR)
            program.shutdown(socket.SHUT_WR)
            assert await carrier.ended == "closed"
            assert program.recv(100) == b"answer" and pipes.times == 0
        pipes.close()

    asyncio.run(steps())


def test_a_connection_of_which_one_side_has_ended_ends_once_nothing_passes_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carry, "HALF_IDLE_S", 0.01)

    async def steps() -> None:
        pipes = Pipes()
        with connected() as (inner, program), connected() as (outer, server):
            carrier = Carrier(inner, outer, pipes)
            carrier.start()
            program.shutdown(socket.SHUT_WR)
            assert await carrier.ended == "nothing passed any more after one side had ended"
            with pytest.raises(ConnectionResetError):
                program.recv(1)
            assert await asyncio.to_thread(server.recv, 1) == b""
        pipes.close()

    asyncio.run(steps())


def test_who_always_has_something_to_say_leaves_others_their_turn() -> None:
    async def steps() -> None:
        passed = 0

        async def other() -> None:
            nonlocal passed
            while True:
                await asyncio.sleep(0)
                passed += 1

        counting = asyncio.create_task(other())
        with connected() as (one, program):
            program.sendall(b"x" * 50 * CALLS_AT_ONCE)
            for _ in range(25 * CALLS_AT_ONCE):
                assert await receive(one, 1) == b"x"
                await send_all(one, b"y")
        counting.cancel()
        assert passed >= 48

    asyncio.run(steps())


def test_the_kernel_holds_a_bounded_part_of_a_connection_and_asks_whether_the_other_side_lives() -> None:
    with connected() as (one, _):
        bound_memory(one)
        keep_alive(one)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == carry.MOST_WAITING_BYTES
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 120
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
