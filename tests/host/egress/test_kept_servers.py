"""A connection to a server serves the next one of its box, and carries nothing over: no body, no secret, no name of who asks."""

import asyncio
import json
import os
import socket
from typing import Any

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import forwarding, kept_servers, passage
from coldframe.policy.addresses import AddressKind
from coldframe.policy.network_rules import Scheme
from tests.host.egress.intercepted import RULES, Scene, ask, connect, get, request, with_interception
from tests.host.egress.test_broker import network
from tests.host.egress.world import OTHER, SITE


def number(method: str = "GET", path: str = "/v1/what", *, port: int = 8443, **more: Any) -> int:
    """Which connection of the server it came by. Ours ends behind it."""
    client = connect(port=port)
    try:
        status, body = ask(client, method, path, **more)
        assert status == 200, body
        return json.loads(body)["connection"]  # type: ignore[no-any-return]
    finally:
        client.close()


@pytest.mark.parametrize("port", [8443, 8080])
def test_connections_of_a_box_to_one_place_are_asked_over_one_and_each_is_on_record(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def several() -> set[int]:
            return {number(port=port) for _ in range(4)}

        assert len(await scene.inside(several)) == 1
        contacts = await scene.log.of(4)
        assert len(scene.log.begun) == 4 and len(scene.log.requests) == 4
        assert {(one.outcome, one.ended, one.dialled) for one in contacts} == {
            (Outcome.ALLOW, "closed", "93.184.215.14")
        }
        assert [one.requests[0].status for one in contacts] == [200] * 4
        assert all(0 < one.sent_bytes < 2000 and 0 < one.received_bytes < 4000 for one in contacts)
        if port == 8080:  # each has its own bytes, and no others
            assert len({(one.sent_bytes, one.received_bytes) for one in contacts}) == 1

    with_interception(steps)


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("POST", "/v1/store", {"body": b"x"}),
        ("GET", "/v1/what", {"headers": {"Authorization": "Negotiate x"}}),
        ("GET", "/v1/what", {"headers": {"Expect": "100-continue"}}),
        ("HEAD", "/v1/what", {}),
    ],
    ids=["a body", "who asks", "an expectation", "a body that must not come"],
)
def test_what_leaves_something_behind_neither_takes_nor_leaves_a_connection(
    method: str, path: str, more: dict[str, Any]
) -> None:
    async def steps(scene: Scene) -> None:
        def between() -> tuple[int, int, int]:
            first = number()
            client = connect()
            assert ask(client, method, path, **more)[0] == 200
            own = json.loads(ask(client, "GET", "/v1/what")[1])["connection"]  # may follow on its own one
            client.close()
            return first, own, number()

        first, own, last = await scene.inside(between)
        assert own != first and last == first

    with_interception(steps)


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/same"])
def test_a_connection_is_not_lent_behind_an_answer_that_has_no_body(path: str) -> None:
    async def steps(scene: Scene) -> None:
        def around() -> tuple[int, int, int]:
            return number(), get(path)[0], number()

        first, status, last = await scene.inside(around)
        assert status in (204, 304) and last != first

    with_interception(steps)


def test_a_server_that_ended_meanwhile_is_asked_on_another_connection() -> None:
    async def steps(scene: Scene) -> None:
        assert await scene.inside(lambda: [get("/v1/idle") for _ in range(4)]) == [(200, b"once")] * 4

    with_interception(steps)


def test_what_a_server_sends_without_being_asked_is_no_answer_to_another_connection() -> None:
    async def steps(scene: Scene) -> None:
        def both() -> tuple[int, bytes]:
            status, _ = get("/v1/more?pieces=1")
            assert status == 200
            return get("/v1/text")

        assert await scene.inside(both) == (200, b"some text")

    with_interception(steps)


@pytest.mark.parametrize("change", ["rules", "taint"])
def test_after_a_change_of_rules_or_label_nothing_is_kept(change: str) -> None:
    async def steps(scene: Scene) -> None:
        first = await scene.inside(number)
        await scene.log.of(1)
        if change == "rules":
            scene.broker.use_rules(network(*RULES))
        else:
            scene.broker.raise_taint("sb-1", Label.PUBLIC)
        assert await scene.inside(number) != first

    with_interception(steps)


def test_what_is_in_use_at_a_change_of_the_rules_is_not_kept_behind_it() -> None:
    async def steps(scene: Scene) -> None:
        asked, asking = os.pipe()
        leave, leaving = os.pipe()

        def ask_and_stay() -> int:
            client = connect()
            found = json.loads(ask(client, "GET", "/v1/what")[1])["connection"]
            os.write(asking, b"x")
            os.read(leave, 1)
            client.close()
            return found  # type: ignore[no-any-return]

        stays = asyncio.create_task(scene.inside(ask_and_stay))
        await asyncio.to_thread(os.read, asked, 1)
        scene.broker.use_rules(network(*RULES))
        os.write(leaving, b"x")
        first = await stays
        await scene.log.of(1)
        assert await scene.inside(number) != first

    with_interception(steps)


def test_what_is_open_leads_only_where_it_was_opened_to_and_where_the_next_request_may_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(scene: Scene) -> None:
        first = await scene.inside(number)
        await scene.log.of(1)
        (way,) = scene.broker._boxes.values()
        for place in [(OTHER, 8443, Scheme.HTTPS), (SITE, 8080, Scheme.HTTPS), (SITE, 8443, Scheme.HTTP)]:
            assert way._servers.take(place, lambda kept: True) is None
        with monkeypatch.context() as patch:  # as where a rule with `within` allowed the first request alone
            patch.setattr(passage, "judge_dialled", lambda verdict, address: AddressKind.PRIVATE)
            assert await scene.inside(number) != first
        assert len(way._servers._kept) == 2

    with_interception(steps)


def test_few_are_kept_and_none_beyond_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_servers, "MOST_KEPT", 2)

    async def steps(scene: Scene) -> None:
        def at_once() -> list[int]:
            clients = [connect() for _ in range(5)]
            for client in clients:
                client.request("GET", "/v1/what")
            found = [json.loads(client.getresponse().read())["connection"] for client in clients]
            for client in clients:
                client.close()
            return found

        assert len(set(await scene.inside(at_once))) == 5
        await scene.log.of(5)
        (way,) = scene.broker._boxes.values()
        streams = [kept.stream for kept in way._servers._kept]
        assert len(streams) == 2
        await scene.broker.end_box("sb-1")
        assert [stream._connection.fileno() for stream in streams] == [-1, -1]

    with_interception(steps)


def test_nobody_uses_it_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_servers, "KEPT_S", 0.0)

    async def steps(scene: Scene) -> None:
        assert len(await scene.inside(lambda: {number() for _ in range(3)})) == 3

    with_interception(steps)


def test_a_websocket_is_not_kept() -> None:
    async def steps(scene: Scene) -> None:
        def talk() -> None:
            client = connect(port=8443)
            client.connect()
            plain = client.sock
            assert isinstance(plain, socket.socket)
            upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
            plain.sendall(f"GET /v1/socket HTTP/1.1\r\nHost: {SITE}\r\n{upgrade}\r\n".encode())
            assert b"101" in plain.recv(65536)
            client.close()

        await scene.inside(talk)
        await scene.log.of(1)
        (way,) = scene.broker._boxes.values()
        assert not way._servers._kept

    with_interception(steps)


def test_the_patience_with_a_program_that_has_left_ends_before_another_one_uses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(scene: Scene) -> None:
        loop, waits = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
        genuine = loop.call_later

        def noted(delay: float, *call: Any) -> asyncio.TimerHandle:
            handle = genuine(delay, *call)
            if delay == forwarding.HALF_ENDED_S:
                waits.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_later", noted)

        def leave_after_two() -> bytes:
            with socket.create_connection((SITE, 8080), timeout=30) as client:
                client.sendall(2 * request(first="GET /v1/large?pieces=64 HTTP/1.1"))
                client.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: client.recv(65536), b""))

        assert (await scene.inside(leave_after_two)).count(b"200 OK") == 2
        await scene.log.of(1)
        (way,) = scene.broker._boxes.values()
        assert len(way._servers._kept) == 1
        assert len(waits) == 2 and all(one.cancelled() for one in waits)

    with_interception(steps)
