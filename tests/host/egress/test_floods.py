"""A box that floods the broker, or breaks its own sockets, stops neither other programs nor the broker nor the record."""

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coldframe.host.egress import box_way, denied_attempts
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.messages import duplicate
from tests.host.egress.captured import OWN
from tests.host.egress.hellos import talking
from tests.host.egress.test_broker import ORIGIN, Log, code_of, send_all, with_broker
from tests.host.egress.world import RESOLVER, SITE, SSH, World

ODD_QUERY = struct.pack("!HHHHHH", 7, 0x0800, 0, 0, 0, 0)
"""Answered with NOTIMP, so it costs no rule anything."""


def query(name: str) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


async def is_served(world: World) -> bool:
    return await world.inside(lambda: send_all(SSH, 9000, b"x")) == b"xend"


async def while_flooding(world: World, flood: Callable[[int, int], None]) -> None:
    """Another program of the box is served while *flood* runs. It tells by the second one that it is at work, and ends
    when the first one has something to read."""
    stop, stopping = os.pipe()
    begun, beginning = os.pipe()
    running = world.box.start(lambda: flood(stop, beginning), files=RESOLVER)
    await asyncio.to_thread(os.read, begun, 1)
    for _ in range(3):
        assert await is_served(world)
    os.write(stopping, b"x")
    await asyncio.to_thread(running.result)
    for one in (stop, stopping, begun, beginning):
        os.close(one)


def is_told(stop: int) -> bool:
    return bool(select.select([stop], [], [], 0)[0])


def read_to_the_end(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while client.recv(65536):
            pass


def test_look_ups_without_end_over_tcp_leave_others_their_turn() -> None:
    questions = (len(ODD_QUERY).to_bytes(2, "big") + ODD_QUERY) * 300

    def flood(stop: int, beginning: int) -> None:
        while not is_told(stop):  # the broker ends each after some seconds
            with socket.create_connection((OWN, 53), timeout=30) as client:
                reading = threading.Thread(target=read_to_the_end, args=[client])
                reading.start()
                with contextlib.suppress(OSError):
                    while not is_told(stop):
                        client.sendall(questions)
                        if beginning:
                            os.write(beginning, b"x")
                            beginning = 0
                    client.shutdown(socket.SHUT_RDWR)
                reading.join()

    async def steps(world: World, broker: Broker, log: Log) -> None:
        await while_flooding(world, flood)

    with_broker(steps)


def test_early_data_without_end_before_a_second_hello_is_cut_off() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        def flood() -> str | None:
            tls, sent = talking(SITE)
            with contextlib.suppress(OSError):
                tls.do_handshake()
            with socket.create_connection((SITE, 444), timeout=30) as client:
                client.sendall(sent.read())
                client.recv(65536)  # asks again

                def send() -> None:
                    while True:
                        client.sendall(b"\x17\x03\x03\x40\x00" + b"x" * 0x4000)

                return code_of(send)

        assert await world.inside(flood) == "ECONNRESET"
        contact = (await log.of(1))[0]
        assert (contact.rule_id, contact.reason) == ("network:hello", "it sends too much before its second hello")
        assert await is_served(world)

    with_broker(steps)


def test_bytes_without_end_that_come_back_at_once_leave_others_their_turn() -> None:
    def flood(stop: int, beginning: int) -> None:
        with socket.create_connection((SSH, 9000), timeout=30) as client:
            reading = threading.Thread(target=read_to_the_end, args=[client])
            reading.start()
            while not is_told(stop):
                client.sendall(b"x" * 65536)
                if beginning:
                    os.write(beginning, b"x")
                    beginning = 0
            client.shutdown(socket.SHUT_RDWR)
            reading.join()

    async def steps(world: World, broker: Broker, log: Log) -> None:
        await while_flooding(world, flood)

    with_broker(steps)


def test_a_box_has_few_long_look_ups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_way, "MOST_LONG_LOOK_UPS", 3)

    def ask(client: socket.socket) -> bytes:
        client.sendall(len(ODD_QUERY).to_bytes(2, "big") + ODD_QUERY)
        return client.recv(4, socket.MSG_WAITALL)[2:]

    def further() -> None:
        with socket.create_connection((OWN, 53), timeout=30) as client:
            ask(client)

    def several() -> tuple[list[bytes], str | None]:
        clients = [socket.create_connection((OWN, 53), timeout=30) for _ in range(3)]
        answers = [ask(client) for client in clients]
        refused = code_of(further)
        for client in clients:
            client.close()
        return answers, refused

    async def steps(world: World, broker: Broker, log: Log) -> None:
        answers, refused = await world.inside(several)
        assert answers == [ODD_QUERY[:2]] * 3 and refused == "ECONNRESET"

    with_broker(steps)


# -- what is said of it ----------------------------------------------------------------------------


def test_equal_denied_attempts_are_told_as_one_and_all_of_them_before_the_box_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box_way, "SUM_S", 1000.0)

    async def steps(world: World, broker: Broker, log: Log) -> None:
        def knock() -> set[str | None]:
            return {code_of(partial(send_all, "93.184.215.14", 9000, b"x")) for _ in range(40)}

        assert await world.inside(knock) == {"ECONNRESET"}
        await log.of(denied_attempts.TOLD_EACH)
        await broker.end_box("sb-1")
        assert [one.times for one in log.ended] == [*([1] * denied_attempts.TOLD_EACH), 40 - denied_attempts.TOLD_EACH]
        assert {(one.ended, one.address, one.port) for one in log.ended} == {("denied", "93.184.215.14", 9000)}

    with_broker(steps)


def test_sums_are_told_while_the_box_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_way, "SUM_S", 0.01)

    async def steps(world: World, broker: Broker, log: Log) -> None:
        def knock() -> None:
            for _ in range(40):
                code_of(partial(send_all, "93.184.215.14", 9000, b"x"))

        await world.inside(knock)
        while sum(one.times for one in log.ended) < 40:
            await log.of(len(log.ended) + 1)

    with_broker(steps)


def test_a_box_of_which_too_much_has_to_be_said_is_not_listened_to_until_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(denied_attempts, "BUDGET", 20.0)
    monkeypatch.setattr(denied_attempts, "BUDGET_PER_S", 0.0)
    monkeypatch.setattr(box_way, "REST_S", 0.01)

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for number in range(100):  # fewer than its queue holds
                client.sendto(query(f"n{number}.example.org"), (OWN, 53))

    async def steps(world: World, broker: Broker, log: Log) -> None:
        await world.inside(flood)
        await log.of(20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(log.ended) <= 20 + box_way.BATCH
        monkeypatch.setattr(denied_attempts, "BUDGET_PER_S", 1e6)
        await log.of(100)
        assert await is_served(world)

    with_broker(steps)


def test_what_was_told_of_connections_that_came_and_were_denied_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denied_attempts, "BUDGET", 20.0)
    monkeypatch.setattr(denied_attempts, "BUDGET_PER_S", 0.0)
    monkeypatch.setattr(denied_attempts, "TOLD_EACH", 0)

    async def steps(world: World, broker: Broker, log: Log) -> None:
        def knock() -> None:
            tls, sent = talking("other.example.com")
            with contextlib.suppress(OSError):
                tls.do_handshake()
            hello = sent.read()
            for _ in range(10):
                with socket.create_connection((SITE, 443), timeout=30) as client:
                    client.sendall(hello)
                    assert code_of(lambda: client.recv(1)) == "ECONNRESET"

        await world.inside(knock)
        (way,) = broker._boxes.values()
        assert way._denials._budget <= 20 - 10 and not way._arrived
        await broker.end_box("sb-1")
        assert [(one.rule_id, one.times) for one in log.ended] == [("network:sni", 10)]

    with_broker(steps)


# -- whoever holds a copy of the sockets -----------------------------------------------------------


def test_a_listener_that_was_made_to_block_does_not_stop_the_broker() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        copies = [one.dup() for one in (*world.box.arrivals.connections, *world.box.arrivals.long_look_ups)]
        for _ in range(3):
            for copy in copies:
                os.set_blocking(copy.fileno(), True)
            assert await is_served(world)
        for copy in copies:
            copy.close()

    with_broker(steps)


def test_a_box_that_cannot_be_listened_to_is_not_served_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        came = duplicate(world.box.arrivals)
        loop = asyncio.get_running_loop()
        real = loop.add_reader

        def refuse(one: int, *more: Any) -> None:
            if one == came.look_ups[-1].fileno():
                raise OSError(errno.ENOSPC, "no room to watch it")
            real(one, *more)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "add_reader", refuse)
            with pytest.raises(OSError, match="no room"):
                broker.open(ORIGIN._replace(sandbox_id="sb-2"), came)
        assert {one.fileno() for one in came.sockets()} == {-1}
        assert await is_served(world)

    with_broker(steps)


def test_a_box_has_no_more_connections_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        broker.most_connections = 3

        def several() -> tuple[list[bytes], str | None]:
            clients = [socket.create_connection((SSH, 9000), timeout=30) for _ in range(3)]
            for client in clients:
                client.sendall(b"x")
            answers = [client.recv(1) for client in clients]
            refused = code_of(lambda: send_all(SSH, 9000, b"x"))
            for client in clients:
                client.close()
            return answers, refused

        assert await world.inside(several) == ([b"x"] * 3, "ECONNRESET")
        assert [one.rule_id for one in (await log.of(1))[:1]] == ["network:connections"]

    with_broker(steps)


def test_a_socket_that_was_shut_down_is_left_alone_and_the_others_are_served() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        told: list[str] = []
        heard = asyncio.Event()

        def hear(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            told.append(str(context["message"]))
            heard.set()

        asyncio.get_running_loop().set_exception_handler(hear)
        came = world.box.arrivals
        kinds = {one.family: one for one in came.connections}
        copies = [kinds[socket.AF_INET6].dup(), *(one.dup() for one in came.look_ups if one.family == socket.AF_INET6)]
        for copy in copies:
            with contextlib.suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)
        while len(told) < len(copies):
            heard.clear()
            await heard.wait()
        assert await is_served(world)
        assert told == ["a socket of sandbox sb-1 is of no use any more"] * len(copies)
        for copy in copies:
            copy.close()

    with_broker(steps)
