"""What was not judged never goes out, whatever a box sends, and what is denied is told with its reason and on record."""

import asyncio
import os
import re
import socket
import ssl

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress import box_way, denied_attempts
from tests.host.egress.intercepted import Scene, ask, connect, error_of, get, raw, request, with_interception
from tests.host.egress.test_broker import code_of
from tests.host.egress.world import INNER, OTHER, SITE, SSH
from tests.host.machines import as_root_and_ordinary


@as_root_and_ordinary
def test_a_request_that_no_rule_allows_is_answered_with_the_reason_and_the_next_one_is_judged_anew(who: str) -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[tuple[int, bytes]]:
            client = connect()
            return [
                ask(client, "GET", "/v1/text"),
                ask(client, "DELETE", "/v1/text"),
                ask(client, "GET", "/v2/hints"),
                ask(client, "GET", "/v1/text", headers={"Host": OTHER}),
                ask(client, "GET", "/v1/text"),
            ]

        first, method, path, host, last = await scene.inside(several)
        assert first == last == (200, b"some text")
        assert error_of(method) == error_of(path) == (403, "DENIED_BY_RULE", "network:default")
        assert error_of(host) == (421, "DENIED_BY_RULE", "network:host")
        contact = await scene.contact()
        assert [(one.method, one.outcome, one.status) for one in contact.requests] == [
            ("GET", Outcome.ALLOW, 200),
            ("DELETE", Outcome.DENY, None),
            ("GET", Outcome.DENY, None),
            ("GET", Outcome.DENY, None),
            ("GET", Outcome.ALLOW, 200),
        ]
        assert (contact.outcome, contact.ended) == (Outcome.ALLOW, "closed")
        assert await scene.seen() == ["GET /v1/text HTTP/1.1"] * 2

    with_interception(steps, who=who)


def test_a_denied_upload_is_told_why_although_its_body_is_on_its_way() -> None:
    async def steps(scene: Scene) -> None:
        def send() -> bytes:
            return raw(
                f"PUT /v1/x HTTP/1.1\r\nHost: {SITE}\r\nContent-Length: 3000000\r\n\r\n".encode() + b"x" * 3000000
            )

        heard = await scene.inside(send)
        assert heard.startswith(b"HTTP/1.1 403 ") and b"connection: close\r\n" in heard
        contact = await scene.contact()
        assert (contact.outcome, contact.dialled, contact.ended) == (Outcome.DENY, None, "denied")

    with_interception(steps)


HIDDEN = request(first="DELETE /v1/all HTTP/1.1")
SMUGGLED = {
    "length and chunks": request("Content-Length: 0", "Transfer-Encoding: chunked") + HIDDEN,
    "chunks and length": request("Transfer-Encoding: chunked", "Content-Length: 4", body="0\r\n\r\n") + HIDDEN,
    "two lengths": request("Content-Length: 0", f"Content-Length: {len(HIDDEN)}") + HIDDEN,
    "list of lengths": request("Content-Length: 0, 0") + HIDDEN,
    "length with a sign": request("Content-Length: +0") + HIDDEN,
    "length in a folded line": request("X: 1\r\n Content-Length: 0") + HIDDEN,
    "odd encoding": request("Transfer-Encoding: xchunked") + HIDDEN,
    "encoding in two lines": request("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + HIDDEN,
    "encoding with a tab": request("Transfer-Encoding:\x0bchunked") + HIDDEN,
    "space before the colon": request("Transfer-Encoding : chunked") + HIDDEN,
    "line without CR": request("X: 1\nTransfer-Encoding: chunked") + HIDDEN,
    "null": request("X: \0") + HIDDEN,
    "two hosts": request(f"Host: {OTHER}") + HIDDEN,
    "absolute": request(first=f"GET https://{OTHER}/v1/text HTTP/1.1"),
    "absolute of the same": request(first=f"GET https://{SITE}:8443/v1/text HTTP/1.1"),
    "connect": request(first=f"CONNECT {OTHER}:443 HTTP/1.1"),
    "connect with a path": request("Connection: close", first="CONNECT /v1/text HTTP/1.1"),
    "trace": request("Connection: close", first="TRACE /v1/text HTTP/1.1"),
    "http/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "http/0.9": b"GET /v1/text\r\n\r\n",
    "dots": request(first="GET /v1/../all HTTP/1.1"),
    "encoded dots": request(first="GET /v1/%2e%2e/all HTTP/1.1"),
    "override": request("X-HTTP-Method-Override: DELETE"),
    "rewrite": request("X-Original-URL: /all"),
}


@pytest.mark.parametrize("port", [8443, 8080])
def test_nothing_that_can_be_read_in_two_ways_reaches_the_server(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def all_of_them() -> dict[str, bytes]:
            return {name: raw(data, port=port) for name, data in SMUGGLED.items()}

        for name, heard in (await scene.inside(all_of_them)).items():
            assert re.match(rb"HTTP/1\.1 (400|403|431|505) ", heard), (name, heard)
            assert len(re.findall(rb"HTTP/1\.1 \d", heard)) == 1, (name, heard)
        assert await scene.seen() == []
        denied = {one.outcome for contact in await scene.log.of(len(SMUGGLED)) for one in contact.requests[:1]}
        assert Outcome.DENY in denied

    with_interception(steps)


BROKEN_BODIES = {
    "size is no number": b"zz\r\n",
    "size is negative": b"-1\r\n",
    "size without CR": b"5\nhello\r\n0\r\n\r\n",
    "longer than it says": b"3\r\nhello\r\n0\r\n\r\n",
    "extension with a bare LF": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "hex prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "trailer is none": b"0\r\nGET /v1/all HTTP/1.1\r\n\r\n",
    "endless line": b"5;" + b"a" * 2000,
}


def test_a_body_whose_end_is_not_clear_breaks_the_connection_to_the_server_off() -> None:
    async def steps(scene: Scene) -> None:
        def all_of_them() -> dict[str, bytes]:
            head = f"POST /v1/store HTTP/1.1\r\nHost: {SITE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            return {name: raw(head + body + HIDDEN) for name, body in BROKEN_BODIES.items()}

        for name, heard in (await scene.inside(all_of_them)).items():
            assert heard.startswith(b"HTTP/1.1 400 ") and len(re.findall(rb"HTTP/1\.1 \d", heard)) == 1, (name, heard)
        assert set(await scene.seen()) <= {"POST /v1/store HTTP/1.1"}

    with_interception(steps)


def test_what_is_sent_ahead_is_judged_in_its_turn() -> None:
    async def steps(scene: Scene) -> None:
        ahead = request() + HIDDEN + request("Connection: close")
        heard = await scene.inside(lambda: raw(ahead))
        assert re.findall(rb"HTTP/1\.1 (\d+)", heard) == [b"200", b"403", b"200"]
        assert await scene.seen() == ["GET /v1/text HTTP/1.1"] * 2

    with_interception(steps)


def test_an_upgrade_to_http_2_is_not_asked_for() -> None:
    async def steps(scene: Scene) -> None:
        wanted = ("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")
        heard = await scene.inside(lambda: raw(request(*wanted, first="GET /v1/what HTTP/1.1"), port=8080))
        assert heard.startswith(b"HTTP/1.1 200 ") and b"upgrade" not in heard and b"http2" not in heard

    with_interception(steps)


def test_a_handshake_for_another_name_or_for_none_goes_nowhere() -> None:
    async def steps(scene: Scene) -> None:
        def other() -> str | None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                context = ssl.create_default_context()
                return code_of(lambda: context.wrap_socket(plain, server_hostname=OTHER))

        def nameless() -> str | None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                context = ssl.create_default_context()
                context.check_hostname = False
                return code_of(lambda: context.wrap_socket(plain))

        for handshake in (other, nameless):
            assert await scene.inside(handshake) == "ECONNRESET"
            contact = await scene.contact()
            assert (contact.rule_id, contact.dialled, scene.log.begun) == ("network:sni", None, [])

    with_interception(steps)


def test_a_server_that_cannot_prove_its_name_is_asked_nothing() -> None:
    async def steps(scene: Scene) -> None:
        answer = await scene.inside(lambda: get("/v1/what", name=SSH))
        assert error_of(answer) == (502, "SERVER_FAILED", "")
        assert "certificate does not hold" in answer[1].decode()
        scene.interception.trust = ssl.create_default_context()
        scene.interception.trust.load_verify_locations(cadata=scene.interception.authority("sb-1").certificate.decode())
        assert error_of(await scene.inside(lambda: get("/v1/what")))[0] == 502
        assert await_all_seen_is_empty(scene)

    def await_all_seen_is_empty(scene: Scene) -> bool:
        return all(one.status is None for contact in scene.log.ended for one in contact.requests)

    with_interception(steps)


def test_a_server_that_cannot_be_reached_or_gives_no_answer_is_told_as_such() -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[tuple[int, bytes]]:
            return [get("/", name=OTHER, port=7), get("/v1/none"), get("/v1/text")]

        unreachable, none, good = await scene.inside(several)
        assert error_of(unreachable)[:2] == error_of(none)[:2] == (502, "SERVER_FAILED")
        assert good == (200, b"some text")
        assert b"this is no answer" not in none[1]  # nor is it in the record
        assert all("this is no" not in f"{one.ended} {one.requests}" for one in await scene.log.of(3))

    with_interception(steps)


def test_a_name_at_an_inner_address_is_denied_with_the_reason() -> None:
    async def steps(scene: Scene) -> None:
        assert error_of(await scene.inside(lambda: get("/", name=INNER))) == (403, "DENIED_BY_RULE", "floor:address")
        contact = await scene.contact()
        assert (contact.outcome, contact.rule_id, contact.dialled) == (Outcome.DENY, "floor:address", None)
        assert contact.requests[0].outcome is Outcome.DENY

    with_interception(steps)


def test_without_a_record_nothing_is_dialled() -> None:
    async def steps(scene: Scene) -> None:
        scene.log.lost = True
        assert error_of(await scene.inside(lambda: get("/v1/what"))) == (503, "LEDGER_UNAVAILABLE", "network:journal")
        assert (await scene.contact()).dialled is None

    with_interception(steps)


def test_a_record_that_is_lost_later_stops_the_next_request() -> None:
    async def steps(scene: Scene) -> None:
        reading, writing = os.pipe()
        back, answer = os.pipe()

        def two() -> list[tuple[int, bytes]]:
            client = connect()
            first = ask(client, "GET", "/v1/text")
            os.write(writing, b"x")
            os.read(back, 1)
            return [first, ask(client, "GET", "/v1/what")]

        running = scene.world.box.start(two, files=scene.files())
        await asyncio.to_thread(os.read, reading, 1)
        scene.log.lost = True
        os.write(answer, b"x")
        first, second = await asyncio.to_thread(running.result)
        assert first == (200, b"some text") and second[0] == 503
        scene.log.lost = False
        assert await scene.seen() == ["GET /v1/text HTTP/1.1"]
        for one in (reading, writing, back, answer):
            os.close(one)

    with_interception(steps)


def test_what_may_only_be_read_takes_no_body_and_opens_no_way_back() -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
    attacks = {
        "length": request("Content-Length: 6", body="secret"),
        "chunks": request("Transfer-Encoding: chunked", body="6\r\nsecret\r\n0\r\n\r\n"),
        "head": request("Content-Length: 6", first="HEAD /v1/text HTTP/1.1", body="secret"),
        "websocket": request(*upgrade, first="GET /v1/what HTTP/1.1")
        + request("Connection: close", first="GET /x HTTP/1.1"),
    }

    async def steps(scene: Scene) -> None:
        found = await scene.inside(lambda: {name: raw(data) for name, data in attacks.items()})
        for name in ("length", "chunks", "head"):
            assert found[name].startswith(b"HTTP/1.1 400 "), found[name]
        assert b'"network:body"' in found["length"] and b'"network:body"' in found["chunks"]
        assert found["websocket"].startswith(b"HTTP/1.1 403 ") and b'"network:default"' in found["websocket"]
        assert await scene.seen() == []

    with_interception(steps)


def test_a_box_has_no_more_connections_that_are_read_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_way, "MOST_INTERCEPTED", 2)

    async def steps(scene: Scene) -> None:
        def several() -> tuple[list[int], str | None]:
            clients = [connect() for _ in range(2)]
            found = [ask(client, "GET", "/v1/text")[0] for client in clients]
            third = code_of(lambda: get("/v1/text"))
            for client in clients:
                client.close()
            return found, third

        assert await scene.inside(several) == ([200, 200], "ECONNRESET")
        assert await scene.log.of(3)
        assert {one.rule_id for one in scene.log.ended if one.ended == "denied"} == {"network:connections"}
        assert await scene.inside(lambda: get("/v1/text")[0]) == 200

    with_interception(steps)


def test_denied_requests_without_end_wait_until_they_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denied_attempts, "BUDGET", 8.0)  # look-ups take of it too
    monkeypatch.setattr(denied_attempts, "BUDGET_PER_S", 0.0)
    monkeypatch.setattr(box_way, "REST_S", 0.01)

    async def steps(scene: Scene) -> None:
        def knock() -> list[int]:
            client = connect()
            return [ask(client, "DELETE", "/v1/all")[0] for _ in range(20)]

        running = scene.world.box.start(knock, files=scene.files())
        while len(scene.log.requests) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(scene.log.requests) <= 8
        monkeypatch.setattr(denied_attempts, "BUDGET_PER_S", 1e6)
        assert await asyncio.to_thread(running.result) == [403] * 20
        assert len(scene.log.requests) == 20

    with_interception(steps)


def test_a_program_that_asks_nothing_was_let_through_nowhere() -> None:
    async def steps(scene: Scene) -> None:
        def greet() -> None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with ssl.create_default_context().wrap_socket(plain, server_hostname=SITE):
                    pass

        await scene.inside(greet)
        assert (await scene.contact()).outcome is Outcome.DENY and scene.log.begun == []

    with_interception(steps)


def test_a_program_that_leaves_takes_its_request_with_it() -> None:
    async def steps(scene: Scene) -> None:
        def leave() -> None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with ssl.create_default_context().wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(request(first="GET /v1/never HTTP/1.1"))
                    while not scene_has_it():
                        pass

        def scene_has_it() -> bool:
            return b"/v1/never" in get("/v1/seen")[1]

        await scene.inside(leave)
        contacts = await scene.log.of(2)
        while "/v1/never" not in [one.path for contact in contacts for one in contact.requests]:
            contacts = await scene.log.of(len(contacts) + 1)
        (left,) = (one for one in contacts if one.requests[0].path == "/v1/never")
        assert left.ended == "the program ended before the answer"

    with_interception(steps)
