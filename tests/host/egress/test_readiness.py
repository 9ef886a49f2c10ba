"""What the broker waits with tells of every descriptor what the selector of the standard library tells of it."""

import os
import selectors
import socket
from collections.abc import Iterator

import pytest

from coldframe.host.egress.readiness import Readiness

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def told(selector: selectors.BaseSelector, timeout_s: float | None = 10) -> list[tuple[int, int, object]]:
    return [(key.fd, events, key.data) for key, events in selector.select(timeout_s)]


@pytest.mark.parametrize("kind", [Readiness, selectors.EpollSelector])
def test_it_tells_what_the_standard_one_tells(
    kind: type[selectors.BaseSelector], ends: tuple[socket.socket, socket.socket]
) -> None:
    here, there = ends
    number = here.fileno()
    with kind() as selector:
        assert selector.register(number, WRITE, "write").fd == number
        assert told(selector) == [(number, WRITE, "write")]
        selector.modify(number, READ, "read")
        assert told(selector, 0.001) == []
        there.send(b"x")
        assert told(selector) == [(number, READ, "read")]
        selector.modify(number, READ | WRITE, "both")
        assert told(selector) == [(number, READ | WRITE, "both")]
        selector.modify(number, WRITE, "the end of the other side")
        there.close()
        assert told(selector) == [(number, WRITE, "the end of the other side")]
        with pytest.raises(KeyError):
            selector.register(number, READ)
        assert selector.get_key(number).data == "the end of the other side"
        assert selector.unregister(number).data == "the end of the other side"
        for ask in (selector.get_key, selector.unregister):
            with pytest.raises(KeyError):
                ask(number)
        assert told(selector, 0.001) == []


def test_a_descriptor_that_was_closed_can_be_given_back(ends: tuple[socket.socket, socket.socket]) -> None:
    with Readiness() as selector:
        number = os.dup(ends[0].fileno())
        selector.register(number, READ)
        os.close(number)
        selector.unregister(number)
        assert number not in selector.get_map()


def test_while_there_is_work_at_hand_the_kernel_is_asked_every_other_time(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    with Readiness() as selector:
        selector.register(ends[0].fileno(), WRITE)
        assert [len(selector.select(0)) for _ in range(5)] == [1, 0, 1, 0, 1]
        assert [len(selector.select(None)) for _ in range(3)] == [1, 1, 1]
