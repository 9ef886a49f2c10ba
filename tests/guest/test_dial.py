"""A connection to a port of the box is one to whoever listens there, and to nobody else."""

import socket
from typing import Any

import pytest

from coldframe.guest.dial import Dial
from coldframe.guest.loop import Loop
from coldframe.guest.verbs import Failure


class GivenThatPort(socket.socket):
    """As where the system gives an attempt, out of those that it gives by itself, the very port that it asks for."""

    def connect_ex(self, address: Any) -> int:
        self.bind(address)
        return super().connect_ex(address)


def test_where_nobody_listens_an_attempt_is_not_connected_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(socket, "socket", GivenThatPort)
    loop, told = Loop(), list[socket.socket | Failure]()

    def done(how: socket.socket | Failure) -> None:
        told.append(how)
        loop.stop()

    dial = Dial(loop, port, done)
    loop.soon(dial.begin)
    loop.run()
    loop._epoll.close()
    for one in told:
        if isinstance(one, socket.socket):
            one.close()
    assert [one.code for one in told if isinstance(one, Failure)] == ["PREVIEW_NOT_LISTENING"]
