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
from typing import Any

import pytest

from coldframe.contract.policy import Label, Outcome
from coldframe.host.egress import docket, streams
from coldframe.host.egress.kept_servers import MOST_KEPT
from tests.host.egress.intercepted import (
    ROOTS,
    RULES,
    Scene,
    ask,
    connect,
    get,
    peak_kib,
    raw,
    request,
    with_interception,
)
from tests.host.egress.site import PIECE
from tests.host.egress.test_broker import code_of, network
from tests.host.egress.world import OTHER, SITE
from tests.host.machines import as_root_and_ordinary

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
        assert len(os.listdir("/proc/self/fd")) <= before + MOST_KEPT
        await scene.broker.end_box("sb-1")
        assert len(os.listdir("/proc/self/fd")) <= before

    with_interception(steps)


@pytest.mark.parametrize("port", [8443, 8080])
@pytest.mark.parametrize("has_said_all", [True, False], ids=["nothing more to say", "more to say"])
def test_an_answer_arrives_whole_although_it_is_read_after_the_connection_was_ended(
    monkeypatch: pytest.MonkeyPatch, port: int, has_said_all: bool
) -> None:
    monkeypatch.setattr(streams, "FAREWELL_S", 0.05)

    async def steps(scene: Scene) -> None:
        reading, writing = os.pipe()

        def read_late() -> int:
            with contextlib.ExitStack() as stack:
                plain = client = stack.enter_context(socket.socket())
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that most of it has to wait
                plain.settimeout(30)
                plain.connect((SITE, port))
                if port != 8080:
                    client = ssl.create_default_context().wrap_socket(plain, server_hostname=SITE)
                    stack.enter_context(client)
                client.sendall(request("Connection: close", first="GET /v1/large?pieces=1 HTTP/1.1"))
                if has_said_all and port == 8080:
                    client.shutdown(socket.SHUT_WR)
                os.read(reading, 1)
                return len(b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")[2])

        asked = asyncio.create_task(scene.inside(read_late))
        assert (await scene.contact()).ended == "closed"
        os.write(writing, b"x")
        assert await asked == len(PIECE)

    with_interception(steps)
