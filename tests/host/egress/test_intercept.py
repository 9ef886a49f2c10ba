"""Every request of a connection is read, judged and on record before it goes out, and what was not judged never does."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import broker as broker_of_boxes
from coldframe.host.egress import denied_attempts, docket
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import EgressContact
from coldframe.host.egress.intercept import Interception
from tests.host.egress.site import PIECE
from tests.host.egress.test_broker import ORIGIN, Log, code_of, network
from tests.host.egress.world import INNER, OTHER, RESOLVER, SITE, SSH, World, in_world
from tests.host.machines import as_root_and_ordinary

T = TypeVar("T")
RULES = (
    f"{{id: read, to: {SITE}, ports: [8443], methods: [GET, HEAD], paths: [/v1/]}}",
    f"{{id: write, to: {SITE}, ports: [8443], methods: [POST], paths: [/v1/store, /v1/sink, /v1/echo, /v1/early]}}",
    f"{{id: live, to: {SITE}, ports: [8443], methods: [WEBSOCKET], paths: [/v1/socket]}}",
    f"{{id: plain, to: {SITE}, ports: [8080], scheme: http, paths: [/v1/]}}",
    f"{{id: unproven, to: {SSH}, ports: [8443], mode: intercept}}",
    f"{{id: inner, to: {INNER}, ports: [8443], mode: intercept}}",
    f"{{id: closed, to: {OTHER}, ports: [7], mode: intercept}}",
)
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
"""Where the programs of this system look, without being told to."""


class Scene(NamedTuple):
    world: World
    broker: Broker
    log: Log
    interception: Interception

    async def inside(self, function: Callable[[], T]) -> T:
        return await self.world.inside(function, files=self.files())

    def files(self) -> dict[str, str]:
        return {**RESOLVER, ROOTS: self.interception.authority("sb-1").bundle(b"").decode()}

    async def seen(self) -> list[str]:
        """What the site was asked."""
        return json.loads(await self.inside(lambda: get("/v1/seen")[1]))  # type: ignore[no-any-return]

    async def contact(self) -> EgressContact:
        """The first one that ended."""
        return (await self.log.of(1))[0]


def with_interception(
    steps: Callable[[Scene], Any], *rules: str, who: str = "root", log_of: Callable[[], Log] = Log
) -> None:
    async def whole(world: World) -> None:
        log = log_of()
        interception = Interception(trust=ssl.create_default_context(cafile=world.certificates.authority))
        broker = Broker(network(*(rules or RULES)), log.journal(), resolve=world.resolve, intercept=interception)
        broker.open(ORIGIN, world.box.arrivals)
        try:
            await steps(Scene(world, broker, log, interception))
        finally:
            await broker.close()

    in_world(who, whole)


# -- programs of the box ---------------------------------------------------------------------------


def connect(name: str = SITE, port: int = 8443) -> http.client.HTTPConnection:
    if port == 8080:
        return http.client.HTTPConnection(name, port, timeout=30)
    return http.client.HTTPSConnection(name, port, timeout=30, context=ssl.create_default_context())


def ask(client: http.client.HTTPConnection, method: str, path: str, **more: Any) -> tuple[int, bytes]:
    client.request(method, path, **more)
    answer = client.getresponse()
    return answer.status, answer.read()


def get(path: str, *, name: str = SITE, port: int = 8443) -> tuple[int, bytes]:
    client = connect(name, port)
    try:
        return ask(client, "GET", path)
    finally:
        client.close()


def raw(data: bytes, *, port: int = 8443) -> bytes:
    """All that comes back for these bytes, until the other side ends."""
    with contextlib.ExitStack() as stack:
        client: socket.socket = stack.enter_context(socket.create_connection((SITE, port), timeout=30))
        if port != 8080:
            client = stack.enter_context(ssl.create_default_context().wrap_socket(client, server_hostname=SITE))
        client.sendall(data)
        heard = b""
        while part := client.recv(65536):
            heard += part
    return heard


def error_of(answer: tuple[int, bytes]) -> tuple[int, str, str]:
    error = json.loads(answer[1])["error"]
    assert error["by"] == "coldframe" and error["message"]
    return answer[0], error["code"], error["rule"]


# -- what is allowed -------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [8443, 8080])
@as_root_and_ordinary
def test_a_request_that_a_rule_allows_is_passed_on_and_is_on_record(port: int, who: str) -> None:
    async def steps(scene: Scene) -> None:
        status, body = await scene.inside(lambda: get("/v1/what?x=1&y=%2f", port=port))
        what = json.loads(body)
        assert (status, what["first"]) == (200, "GET /v1/what?x=1&y=%2f HTTP/1.1")
        assert what["headers"]["host"] == f"{SITE}:{port}"
        contact = await scene.contact()
        assert (contact.mode, contact.scheme) == ("intercept", "https" if port == 8443 else "http")
        assert (contact.outcome, contact.rule_id, contact.ended) == (
            *(Outcome.ALLOW, "read" if port == 8443 else "plain", "closed"),
        )
        assert contact.sent_bytes > 50 and contact.received_bytes > len(body)
        (request,) = contact.requests
        assert (request.method, request.path, request.status) == ("GET", "/v1/what", 200)
        assert [one.status for one in scene.log.requests] == [None]
        assert scene.log.begun[0].dialled is None

    with_interception(steps, who=who)


def test_requests_of_one_connection_use_one_connection_to_the_server() -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[int]:
            client = connect()
            return [json.loads(ask(client, "GET", "/v1/what")[1])["connection"] for _ in range(5)]

        assert len(set(await scene.inside(several))) == 1
        assert len((await scene.contact()).requests) == 5 and len(scene.log.begun) == 1

    with_interception(steps)


def test_a_server_that_ends_its_connection_between_two_requests_is_asked_on_another_one() -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[tuple[int, bytes]]:
            client = connect()
            return [ask(client, "GET", "/v1/idle") for _ in range(4)]

        assert await scene.inside(several) == [(200, b"once")] * 4

    with_interception(steps)


def test_a_long_connection_ends_in_order_before_its_record_grows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docket, "MOST_REQUESTS", 3)

    async def steps(scene: Scene) -> None:
        def several() -> list[str | None]:
            client = connect()
            found = []
            for _ in range(3):
                client.request("GET", "/v1/what")
                answer = client.getresponse()
                found.append(answer.getheader("connection"))
                answer.read()
            return found

        assert await scene.inside(several) == [None, None, "close"]

    with_interception(steps)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_arrives_whole_by_length_and_in_chunks(chunked: bool) -> None:
    data = os.urandom(300_000)

    async def steps(scene: Scene) -> None:
        def send() -> list[tuple[int, bytes]]:
            client = connect()
            body: Any = (data[start : start + 7000] for start in range(0, len(data), 7000)) if chunked else data
            first = ask(client, "POST", "/v1/echo", body=body, encode_chunked=chunked)
            return [first, ask(client, "GET", "/v1/text")]

        assert await scene.inside(send) == [(200, data), (200, b"some text")]

    with_interception(steps)


def test_a_program_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async def steps(scene: Scene) -> None:
        def send() -> bytes:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with ssl.create_default_context().wrap_socket(plain, server_hostname=SITE) as client:
                    head = (
                        f"POST /v1/store HTTP/1.1\r\nHost: {SITE}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
                    )
                    client.sendall(head.encode())
                    leave = client.recv(1000)
                    client.sendall(b"body")
                    return leave + client.recv(1000)

        heard = await scene.inside(send)
        assert heard.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n") and b'"bytes": 4' in heard

    with_interception(steps)


def test_what_a_server_says_before_its_answer_is_passed_on_but_to_old_programs() -> None:
    async def steps(scene: Scene) -> None:
        def both() -> list[bytes]:
            host = f"Host: {SITE}\r\n\r\n"
            new = raw(f"GET /v1/hints HTTP/1.1\r\nConnection: close\r\n{host}".encode())
            return [new, raw(f"GET /v1/hints HTTP/1.0\r\n{host}".encode())]

        new, old = await scene.inside(both)
        assert re.findall(rb"HTTP/1\.1 (\d+)", new) == [b"103", b"200"]
        assert re.findall(rb"HTTP/1\.1 (\d+)", old) == [b"200"]

    with_interception(steps)


def test_an_answer_that_comes_before_the_whole_body_is_passed_back() -> None:
    async def steps(scene: Scene) -> None:
        def send() -> bytes:
            return raw(f"POST /v1/early HTTP/1.1\r\nHost: {SITE}\r\nContent-Length: 99999\r\n\r\nx".encode())

        assert (await scene.inside(send)).startswith(b"HTTP/1.1 413 ")

    with_interception(steps)


def test_answers_without_a_body_leave_the_connection_in_order() -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[tuple[int, bytes, str | None]]:
            client = connect()
            found = []
            for method, path in (
                ("GET", "/v1/nothing"),
                ("GET", "/v1/same"),
                ("HEAD", "/v1/text"),
                ("HEAD", "/v1/same"),
                ("GET", "/v1/text"),
            ):
                client.request(method, path)
                answer = client.getresponse()
                found.append((answer.status, answer.read(), answer.headers.get("content-length")))
            return found

        assert await scene.inside(several) == [
            *((204, b"", None), (304, b"", "12"), (200, b"", "9"), (304, b"", "12"), (200, b"some text", "9")),
        ]

    with_interception(steps)


def test_an_answer_without_a_length_is_whole_if_its_server_ended_in_order_and_broken_if_not() -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[tuple[int, bytes] | str | None]:
            def half() -> None:
                get("/v1/half", port=8080)

            old = raw(b"GET /v1/to-the-end HTTP/1.0\r\nHost: " + SITE.encode() + b"\r\n\r\n", port=8080)
            return [get("/v1/to-the-end"), (0, old.partition(b"\r\n\r\n")[2]), code_of(half)]

        assert await scene.inside(several) == [(200, b"until the end"), (0, b"until the end"), "ECONNRESET"]

    with_interception(steps)


def test_what_concerns_one_connection_stays_there_and_the_rest_of_a_head_is_passed_on() -> None:
    async def steps(scene: Scene) -> None:
        def both() -> tuple[dict[str, str], list[tuple[str, str]]]:
            client = connect()
            client.request("GET", "/v1/what", headers={"Connection": "x-private", "X-Private": "1", "X-Mine": "2"})
            answer = client.getresponse()
            return json.loads(answer.read())["headers"], answer.getheaders()

        sent, came = await scene.inside(both)
        assert "x-private" not in sent and "connection" not in sent and sent["x-mine"] == "2"
        names = [name.lower() for name, _ in came]
        assert "alt-svc" not in names and names.count("set-cookie") == 2

    with_interception(steps)


@pytest.mark.parametrize("port", [8443, 8080])
def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def several() -> list[bytes]:
            client = connect(port=port)
            found = []
            for pieces in (0, 1, 2, 3, 0):
                found += [ask(client, "GET", f"/v1/more?pieces={pieces}")[1][-5:], ask(client, "GET", "/v1/text")[1]]
            return found

        found = await scene.inside(several)
        assert found[1::2] == [b"some text"] * 5
        assert found[::2] == [b"", *[PIECE[-5:]] * 3, b""]

    with_interception(steps)


def test_events_pass_at_once() -> None:
    async def steps(scene: Scene) -> None:
        def listen() -> list[bytes]:
            client = connect()
            client.request("GET", "/v1/events")
            answer = client.getresponse()
            first = answer.readline()
            get("/v1/go")  # the second event does not come before this
            return [first, answer.read()]

        first, second = await scene.inside(listen)
        assert (first, second) == (b"data: first\n", b"\ndata: second\n\n")

    with_interception(steps)


def test_a_websocket_that_was_judged_passes_as_bytes_both_ways() -> None:
    async def steps(scene: Scene) -> None:
        def talk() -> tuple[bytes, bytes]:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with ssl.create_default_context().wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(
                        f"GET /v1/socket HTTP/1.1\r\nHost: {SITE}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                        "Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\nahead".encode()
                    )
                    heard = b""
                    while not heard.endswith(b"helloahead"):
                        heard += client.recv(1000)
                    client.sendall(b"\x00\x01DELETE /v1/all HTTP/1.1\r\n\r\n")
                    return heard, client.recv(1000)

        heard, echo = await scene.inside(talk)
        assert heard.startswith(b"HTTP/1.1 101 ") and b"upgrade: websocket\r\n" in heard
        assert echo == b"\x00\x01DELETE /v1/all HTTP/1.1\r\n\r\n"
        contact = await scene.contact()
        assert [(one.path, one.status) for one in contact.requests] == [("/v1/socket", 101)]

    with_interception(steps)


def test_what_a_websocket_has_carried_is_known_while_it_is_open() -> None:
    async def steps(scene: Scene) -> None:
        told, tell = os.pipe()
        leave, let = os.pipe()

        def hold() -> None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                with ssl.create_default_context().wrap_socket(plain, server_hostname=SITE) as client:
                    client.sendall(
                        f"GET /v1/socket HTTP/1.1\r\nHost: {SITE}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                        f"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n{'x' * 5000}".encode()
                    )
                    heard = b""
                    while not heard.endswith(b"x" * 5000):
                        heard += client.recv(1000)
                    os.write(tell, b"x")
                    os.read(leave, 1)

        holding = scene.world.box.start(hold, files=scene.files())
        await asyncio.to_thread(os.read, told, 1)
        ((_, sent_bytes, received_bytes),) = scene.broker.carried()
        assert 5000 < sent_bytes < 10_000 and 5000 < received_bytes < 10_000
        os.write(let, b"x")
        await asyncio.to_thread(holding.result)
        contact = await scene.contact()
        assert contact.sent_bytes >= sent_bytes and contact.received_bytes >= received_bytes
        for end in (told, tell, leave, let):
            os.close(end)

    with_interception(steps)


def peak_kib() -> int:
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmHWM")))


def test_a_large_answer_and_a_large_body_pass_in_little_memory() -> None:
    pieces = 100 * (1 << 20) // len(PIECE)
    expected = hashlib.sha256(PIECE * 16)

    async def steps(scene: Scene) -> None:
        def fetch() -> str:
            client = connect()
            client.request("GET", f"/v1/large?pieces={pieces}")
            answer = client.getresponse()
            count, digest = 0, hashlib.sha256()
            while part := answer.read(len(PIECE)):
                count += len(part)
                if count <= 16 * len(PIECE):
                    digest.update(part)
            return f"{count} {digest.hexdigest()}"

        def send() -> tuple[int, bytes]:
            body = (PIECE for _ in range(pieces))
            return ask(connect(), "POST", "/v1/sink", body=body, headers={"Content-Length": str(pieces * len(PIECE))})

        assert (await scene.inside(lambda: get("/v1/what")))[0] == 200
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = peak_kib()
        assert await scene.inside(fetch) == f"{pieces * len(PIECE)} {expected.hexdigest()}"
        assert await scene.inside(send) == (200, str(pieces * len(PIECE)).encode())
        assert peak_kib() - before < 16 * 1024

    with_interception(steps)


# -- what is not -----------------------------------------------------------------------------------


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


def request(*headers: str, first: str = "GET /v1/text HTTP/1.1", body: str = "") -> bytes:
    return "\r\n".join([first, f"Host: {SITE}", *headers, "", body]).encode("latin-1")


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
    monkeypatch.setattr(broker_of_boxes, "MOST_INTERCEPTED", 2)

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
    monkeypatch.setattr(denied_attempts, "BUDGET", 5.0)
    monkeypatch.setattr(denied_attempts, "BUDGET_PER_S", 0.0)
    monkeypatch.setattr(broker_of_boxes, "REST_S", 0.01)

    async def steps(scene: Scene) -> None:
        def knock() -> list[int]:
            client = connect()
            return [ask(client, "DELETE", "/v1/all")[0] for _ in range(20)]

        running = scene.world.box.start(knock, files=scene.files())
        while len(scene.log.requests) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(scene.log.requests) <= 5
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


# -- labels and changes ----------------------------------------------------------------------------


def test_the_label_of_an_answer_is_told_before_the_request_goes_out() -> None:
    labelled = f"{{id: crm, to: {SITE}, ports: [8443], paths: [/v1/what], label: CONFIDENTIAL}}"
    public = f"{{id: read, to: {SITE}, ports: [8443], methods: [GET], paths: [/v1/text, /v1/seen]}}"

    async def steps(scene: Scene) -> None:
        def several() -> list[int]:
            client = connect()
            return [ask(client, "GET", path)[0] for path in ("/v1/text", "/v1/what")]

        def wrong_host() -> int:
            return ask(connect(), "GET", "/v1/what", headers={"Host": OTHER})[0]

        assert await scene.inside(wrong_host) == 421  # nothing comes, so nothing is labelled
        assert scene.log.requests.pop().label is Label.PUBLIC
        assert await scene.inside(several) == [200, 200]
        assert [one.label for one in scene.log.requests] == [Label.PUBLIC, Label.CONFIDENTIAL]
        assert [one.label for one in await scene.log.of(2)] == [Label.PUBLIC, Label.CONFIDENTIAL]
        scene.broker.raise_taint("sb-1", Label.CONFIDENTIAL)
        assert await scene.inside(several) == [403, 200]

    with_interception(steps, labelled, public)


def test_a_rule_that_is_taken_away_ends_the_request_that_it_allowed() -> None:
    async def steps(scene: Scene) -> None:
        reading, writing = os.pipe()

        def hold() -> str:
            client = connect()
            client.request("GET", "/v1/events")
            answer = client.getresponse()
            os.write(writing, b"x")
            try:
                answer.read()
            except http.client.IncompleteRead:
                return "broken"
            return "whole"

        running = scene.world.box.start(hold, files=scene.files())
        await asyncio.to_thread(os.read, reading, 1)
        scene.broker.use_rules(network(f"{{id: read, to: {SITE}, ports: [8443], paths: [/v1/what]}}"))
        assert await asyncio.to_thread(running.result) == "broken"
        contact = await scene.contact()
        assert (contact.ended, contact.rule_id) == ("ended by a change of the rules", "network:default")
        os.close(reading)
        os.close(writing)

    with_interception(steps)


def test_a_connection_that_nobody_looks_into_ends_when_a_rule_wants_to_see_requests() -> None:
    rule = f"{{id: read, to: {SITE}, ports: [8443]}}"

    async def steps(scene: Scene) -> None:
        reading, writing = os.pipe()
        authority = scene.world.certificates.authority

        def hold() -> str | None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                context = ssl.create_default_context(cafile=authority)
                with context.wrap_socket(plain, server_hostname=SITE, suppress_ragged_eofs=False) as client:
                    os.write(writing, b"x")
                    return code_of(lambda: client.recv(1))

        running = scene.world.box.start(hold, files=scene.files())
        await asyncio.to_thread(os.read, reading, 1)
        scene.broker.use_rules(network(*RULES))
        assert await asyncio.to_thread(running.result) == "no TLS"  # not an end in order
        assert "`intercept` is wanted" in (await scene.contact()).reason
        os.close(reading)
        os.close(writing)

    with_interception(steps, rule)


# -- other programs --------------------------------------------------------------------------------

PROGRAMS = {
    "curl": (f"curl -sS --fail https://{SITE}:8443/v1/text", "some text"),
    "wget": (f"wget -q -O - https://{SITE}:8443/v1/text", "some text"),
    "node": (
        f"node --use-openssl-ca -e \"fetch('https://{SITE}:8443/v1/text').then(r=>r.text()).then(t=>console.log(t))\"",
        "some text",
    ),
    "git": (f"git ls-remote https://{SITE}:8443/v1/store.git; true", ""),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_trust_the_bundle_are_served(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no `{program}`")
    line, expected = PROGRAMS[program]

    async def steps(scene: Scene) -> None:
        def run() -> tuple[str, str]:
            environment = {**os.environ, "HOME": "/nonexistent", "NODE_EXTRA_CA_CERTS": ROOTS}
            done = subprocess.run(
                ["sh", "-c", line],
                capture_output=True,
                text=True,
                timeout=60,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
            return done.stdout.strip(), done.stderr

        heard, error = await scene.inside(run)
        assert heard == expected, error
        contact = await scene.contact()
        assert contact.requests and contact.requests[0].status in (200, 404), (contact, error)

    with_interception(steps)


def test_a_program_that_knows_the_server_by_other_roots_fails_and_that_is_on_record() -> None:
    async def steps(scene: Scene) -> None:
        authority = scene.world.certificates.authority

        def pinned() -> str | None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_verify_locations(authority)
                return code_of(lambda: context.wrap_socket(plain, server_hostname=SITE))

        assert await scene.inside(pinned) == "no TLS"
        contact = await scene.contact()
        assert (contact.outcome, contact.rule_id) == (Outcome.DENY, "network:certificate")

    with_interception(steps)


def test_many_connections_leave_no_descriptor() -> None:
    count = 60

    async def steps(scene: Scene) -> None:
        def together() -> int:
            clients = [connect() for _ in range(count)]
            for client in clients:
                client.request("GET", "/v1/text")
            return sum(client.getresponse().read() == b"some text" for client in clients)

        before = len(os.listdir("/proc/self/fd"))
        assert await scene.inside(together) == count
        await scene.log.of(count)
        assert len(os.listdir("/proc/self/fd")) <= before

    with_interception(steps)
