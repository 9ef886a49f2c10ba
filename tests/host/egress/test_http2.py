"""Requests by HTTP/2 are judged one by one as strictly as others, and nobody ties the broker up by the protocol itself."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress import docket
from coldframe.host.egress.http2 import connection as http2_connection
from coldframe.host.egress.http2.frames import FrameCutter, Goaway, Http2Invalid, write_goaway
from coldframe.host.egress.responses import MOST_INTERIM
from tests.host.egress.brokered import ORIGIN, Brokered, with_link
from tests.host.egress.http2_client import Client, Heard
from tests.host.egress.intercepted import Scene, peak_kib, with_interception
from tests.host.egress.site import PIECE
from tests.host.egress.test_broker import network
from tests.host.egress.test_credentials import HANDLE, SECRET, Vaulted
from tests.host.egress.world import OTHER, SITE
from tests.host.machines import as_root_and_ordinary

RULES = (
    f"{{id: read, to: {SITE}, ports: [9443, 8443], methods: [GET, HEAD], paths: [/v1/]}}",
    f"{{id: write, to: {SITE}, ports: [9443, 8443], methods: [POST], paths: [/v1/store, /v1/sink, /v1/echo, /v1/early]}}",
)
both_versions = pytest.mark.parametrize("port", [9443, 8443], ids=["to HTTP/2", "to HTTP/1.1"])


def with_http2(steps: Callable[[Scene], Any], *rules: str, who: str = "root") -> None:
    with_interception(steps, *(rules or RULES), who=who)


def error_of(heard: Heard) -> tuple[int, str, str]:
    error = json.loads(heard.body)["error"]
    assert error["by"] == "coldframe" and error["message"]
    return heard.status, error["code"], error["rule"]


async def seen(scene: Scene) -> list[str]:
    def ask() -> Any:
        with Client() as client:
            return json.loads(client.get("/v1/seen").body)

    return await scene.inside(ask)


# -- what is allowed -------------------------------------------------------------------------------


@both_versions
@as_root_and_ordinary
def test_a_request_that_a_rule_allows_is_passed_on_and_is_on_record(port: int, who: str) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> Heard:
            with Client(port) as client:
                return client.get("/v1/what?x=1&y=%2f", (b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"x-mine", b"yes"))

        heard = await scene.inside(ask)
        what = json.loads(heard.body)
        assert heard.status == 200 and [pair for pair in heard.headers if pair[0] == "set-cookie"] == [
            *(("set-cookie", "a=1"), ("set-cookie", "b=2")),
        ]
        assert what["headers"]["cookie"] == "a=1; b=2" and what["headers"]["x-mine"] == "yes"
        if port == 9443:
            assert what["headers"][":path"] == "/v1/what?x=1&y=%2f"
            assert what["headers"][":authority"] == f"{SITE}:{port}"
        contact = await scene.contact()
        assert (contact.mode, contact.scheme, contact.outcome, contact.rule_id, contact.ended) == (
            *("intercept", "https", Outcome.ALLOW, "read", "closed"),
        )
        assert contact.sent_bytes > 50 and contact.received_bytes > len(heard.body)
        (request,) = contact.requests
        assert (request.method, request.path, request.status) == ("GET", "/v1/what", 200)

    with_http2(steps, who=who)


@both_versions
def test_many_requests_at_once_have_each_its_answer(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[tuple[int, Any]]:
            with Client(port) as client:
                numbers = [client.begin(client.head(f"/v1/what?number={number}")) for number in range(50)]
                found = client.wait_all(numbers)
                return [(one.status, json.loads(one.body)["connection"]) for one in found]

        found = await scene.inside(ask)
        assert {status for status, _ in found} == {200}
        assert len({connection for _, connection in found}) <= (1 if port == 9443 else 6)
        contact = await scene.contact()
        assert len(contact.requests) == 50 and {one.status for one in contact.requests} == {200}
        assert len(scene.log.begun) == 1

    with_http2(steps)


@both_versions
@pytest.mark.parametrize("length", [0, 1, 300_000])
@pytest.mark.parametrize("says_length", [True, False])
def test_a_body_arrives_whole_and_comes_back_whole(port: int, length: int, says_length: bool) -> None:
    data = os.urandom(length)

    async def steps(scene: Scene) -> None:
        def send() -> tuple[tuple[int, bytes], tuple[int, bytes]]:
            with Client(port) as client:
                said = [(b"content-length", b"%d" % length)] if says_length else []
                first = client.post("/v1/echo", data, *said)
                return first.answer, client.get("/v1/what").answer

        first, second = await scene.inside(send)
        assert first == (200, data) and second[0] == 200

    with_http2(steps)


def test_what_grpc_needs_passes_trailers_behind_the_body_and_the_wish_for_them() -> None:
    async def steps(scene: Scene) -> None:
        def call() -> tuple[Heard, Any]:
            with Client() as client:
                heard = client.post(
                    "/v1/echo", b"\0\0\0\0\1x", (b"te", b"trailers"), (b"content-type", b"application/grpc")
                )
                return heard, json.loads(client.get("/v1/what", (b"te", b"trailers")).body)["headers"]

        heard, headers = await scene.inside(call)
        assert heard.body == b"\0\0\0\0\1x" and ("grpc-status", "0") in heard.trailers
        assert headers["te"] == "trailers"

    with_http2(steps)


@both_versions
def test_answers_in_all_their_forms_are_passed_back(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[Any]:
            with Client(port) as client:
                hints = client.get("/v1/hints")
                head = client.wait(client.begin(client.head("/v1/what", "HEAD")))
                nothing = client.get("/v1/nothing")
                early_number = client.begin(client.head("/v1/early", "POST"), ends=False)
                client.send(early_number, b"x" * 10, ends=False)
                early = client.wait(early_number)
                missing = client.get("/v1/no/such")
                return [
                    (hints.interim, *hints.answer),
                    (head.answer, bool(dict(head.headers)["content-length"])),
                    nothing.answer,
                    early.answer,
                    missing.status,
                ]

        assert await scene.inside(ask) == [
            ([103], 200, b"after hints"),
            ((200, b""), True),
            (204, b""),
            (413, b"too large"),
            404,
        ]

    with_http2(steps)


@both_versions
def test_a_server_that_hints_without_end_is_left(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[Heard]:
            with Client(port) as client:
                counts = (MOST_INTERIM, MOST_INTERIM + 1, 3000, 0)
                return [client.get(f"/v1/many-hints?count={count}") for count in counts]

        most, *too_many, none = await scene.inside(ask)
        assert (most.interim, most.answer) == ([103] * MOST_INTERIM, (200, b"after hints"))
        assert [error_of(one)[:2] for one in too_many] == [(502, "SERVER_FAILED")] * 2
        assert none.answer == (200, b"after hints")

    with_http2(steps)


@both_versions
def test_with_room_for_one_thing_on_its_way_all_go_one_after_another(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_connection, "MOST_AHEAD_BYTES", 0)

    async def steps(scene: Scene) -> None:
        def ask() -> list[tuple[int, bytes]]:
            with Client(port) as client:
                numbers = [client.begin(client.head("/v1/hints")) for _ in range(30)]
                return [one.answer for one in client.wait_all(numbers)]

        assert await scene.inside(ask) == [(200, b"after hints")] * 30

    with_http2(steps)


def test_half_an_answer_is_not_taken_for_a_whole_one() -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> tuple[Heard, int]:
            with Client() as client:
                return client.get("/v1/reset"), client.get("/v1/what").status

        heard, after = await scene.inside(ask)
        assert (heard.status, heard.error) == (200, http2_connection.Reset.INTERNAL) and after == 200

    with_http2(steps)


def test_a_server_that_leaves_is_asked_again_over_another_connection() -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[tuple[int, bytes]]:
            with Client() as client:
                return [client.get("/v1/leave").answer for _ in range(3)]

        assert await scene.inside(ask) == [(200, b"bye")] * 3

    with_http2(steps)


def test_events_pass_while_others_are_served() -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[tuple[int, bytes]]:
            with Client() as client:
                waiting = client.begin(client.head("/v1/wait"))
                others = [client.get("/v1/what").status for _ in range(3)]
                assert others == [200] * 3 and not client.heard[waiting].is_over
                go = client.get("/v1/go")
                return [go.answer, client.wait(waiting).answer]

        assert await scene.inside(ask) == [(200, b"gone on"), (200, b"at last")]

    with_http2(steps)


@both_versions
def test_a_request_that_is_broken_off_is_broken_off_at_the_server_too(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> int:
            with Client(port) as client:
                number = client.begin(client.head("/v1/never"))
                client.get("/v1/what")
                client.h2.reset_stream(number, 8)
                client.flush()
                return client.get("/v1/what").status

        assert await scene.inside(ask) == 200
        if port == 9443:
            while "gone" not in await seen(scene):
                pass

    with_http2(steps)


def test_a_large_answer_passes_in_little_memory_also_to_a_program_that_does_not_read() -> None:
    pieces = 32 * (1 << 20) // len(PIECE)

    async def steps(scene: Scene) -> None:
        def fetch() -> int:
            with Client(window=1 << 20) as client:
                return len(client.get(f"/v1/large?pieces={pieces}").body)

        def stand_still() -> tuple[int, int]:
            with Client(window=1 << 20) as client:
                slow = [client.begin(client.head(f"/v1/large?pieces={pieces}")) for _ in range(20)]
                client.unread = set(slow)
                fast = client.get("/v1/what")
                return fast.status, len(slow)

        assert await scene.inside(fetch) == pieces * len(PIECE)
        before = peak_kib()
        assert await scene.inside(stand_still) == (200, 20)
        assert peak_kib() - before < 16 * 1024  # the window of all of them, and what is on its way

    with_http2(steps)


# -- what is refused -------------------------------------------------------------------------------


def test_what_is_denied_says_so_and_the_next_request_of_the_connection_is_served() -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[Heard]:
            with Client() as client:
                return [
                    client.get("/v2/what"),
                    client.post("/v1/what", b"x" * 100_000),
                    client.wait(client.begin(client.head("/v1/what", "DELETE"))),
                    client.wait(client.begin(client.head("/v2/", "HEAD"))),
                    client.get("/v1/what"),
                ]

        *denied, head, served = await scene.inside(ask)
        assert [error_of(one) for one in denied] == [(403, "DENIED_BY_RULE", "network:default")] * 3
        assert head.answer == (403, b"") and served.status == 200
        assert await seen(scene) == ["GET /v1/what"]
        contact = await scene.contact()
        assert [one.outcome for one in contact.requests] == [*[Outcome.DENY] * 4, Outcome.ALLOW]

    with_http2(steps)


@both_versions
@pytest.mark.parametrize(
    ("changed", "more", "status", "rule"),
    [
        ({"scheme": None, "path": None}, [], 400, "network:request"),
        ({}, [], 403, "floor:method"),
        ({"authority": f"{OTHER}:443".encode(), "scheme": None, "path": None}, [], 400, "network:request"),
        ({}, [(b":protocol", b"websocket")], 400, "network:request"),
        ({}, [(b":protocol", b"connect-udp")], 400, "network:request"),
    ],
    ids=["plain", "with a path", "of another host", "websocket", "udp"],
)
def test_a_tunnel_is_refused_whichever_version_its_server_speaks_and_whatever_a_rule_allows(
    port: int, changed: dict[str, bytes | None], more: list[tuple[bytes, bytes]], status: int, rule: str
) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> tuple[Heard, int, str]:
            with Client(port) as client:
                usual: dict[str, bytes | None] = {"authority": f"{SITE}:{port}".encode(), "method": b"CONNECT"}
                denied = client.wait(client.begin([*_pairs(**{**usual, **changed}), *more], ends=False))
                return denied, client.get("/v1/what").status, client.get("/v1/seen").body.decode()

        heard, after, asked = await scene.inside(ask)
        assert (heard.status, error_of(heard)[2], after) == (status, rule, 200)
        assert "CONNECT" not in asked and asked.count("/v1/what") == 1

    with_http2(steps, f"{{id: all, to: {SITE}, ports: [9443, 8443], mode: intercept}}")


def _pairs(**changed: bytes | None) -> list[tuple[bytes, bytes]]:
    usual: dict[str, bytes | None] = {
        "method": b"GET",
        "scheme": b"https",
        "authority": f"{SITE}:9443".encode(),
        "path": b"/v1/what",
    }
    return [(f":{name}".encode(), value) for name, value in {**usual, **changed}.items() if value is not None]


BAD = {
    "another host": (_pairs(authority=OTHER.encode()), 421, "network:host"),
    "another port": (_pairs(authority=f"{SITE}:444".encode()), 421, "network:host"),
    "two hosts": ([*_pairs(), (b"host", OTHER.encode())], 400, "network:request"),
    "user in host": (_pairs(authority=f"me@{SITE}".encode()), 400, "network:request"),
    "no authority": (_pairs(authority=None), 400, "network:request"),
    "no path": (_pairs(path=None), 400, "network:request"),
    "no scheme": (_pairs(scheme=None), 400, "network:request"),
    "plain scheme": (_pairs(scheme=b"http"), 400, "network:request"),
    "connect": (_pairs(method=b"CONNECT", scheme=None, path=None), 400, "network:request"),
    "whole connect": (_pairs(method=b"CONNECT"), 403, "floor:method"),
    "trace": (_pairs(method=b"TRACE"), 403, "floor:method"),
    "websocket": ([*_pairs(method=b"CONNECT"), (b":protocol", b"websocket")], 400, "network:request"),
    "twice": ([*_pairs(), (b":path", b"/v1/x")], 400, "network:request"),
    "late": ([*_pairs(path=None), (b"x", b"y"), (b":path", b"/v1/what")], 400, "network:request"),
    "unknown pseudo": ([*_pairs(), (b":status", b"200")], 400, "network:request"),
    "odd method": (_pairs(method=b"GET /v1/x HTTP/1.1\r\nX:"), 400, "network:request"),
    "odd path": (_pairs(path=b"/v1/what HTTP/1.1\r\nX: y"), 400, "network:request"),
    "dots": (_pairs(path=b"/v1/../v2/"), 400, "network:request"),
    "whole target": (_pairs(path=f"https://{OTHER}/v1/".encode()), 400, "network:request"),
    "override": ([*_pairs(), (b"x-http-method-override", b"DELETE")], 403, "network:request"),
    "override with _": ([*_pairs(), (b"x_http_method_override", b"DELETE")], 403, "network:request"),
    "forwarded host": ([*_pairs(), (b"x-forwarded-host", OTHER.encode())], 403, "network:request"),
    "line in value": ([*_pairs(), (b"x", b"a\r\ny: b")], 400, "network:request"),
    "line in name": ([*_pairs(), (b"x: a\r\ny", b"b")], 400, "network:request"),
    "nul": ([*_pairs(), (b"x", b"a\0b")], 400, "network:request"),
    "capitals": ([*_pairs(), (b"X-Mine", b"a")], 400, "network:request"),
    "blank": ([*_pairs(), (b"x", b" a")], 400, "network:request"),
    "empty name": ([*_pairs(), (b"", b"a")], 400, "network:request"),
    "connection": ([*_pairs(), (b"connection", b"x-mine")], 400, "network:request"),
    "chunks": ([*_pairs(), (b"transfer-encoding", b"chunked")], 400, "network:request"),
    "upgrade": ([*_pairs(), (b"upgrade", b"websocket")], 400, "network:request"),
    "te": ([*_pairs(), (b"te", b"gzip")], 400, "network:request"),
    "length with _": ([*_pairs(), (b"content_length", b"5")], 400, "network:request"),
    "expects": ([*_pairs(), (b"expect", b"something")], 400, "network:request"),
    "many": ([*_pairs(), *((b"x%d" % number, b"y") for number in range(201))], 431, "network:request"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_servers_could_read_in_another_way_is_refused_and_on_record(what: str) -> None:
    pairs, status, rule = BAD[what]

    async def steps(scene: Scene) -> None:
        def ask() -> tuple[Heard, int]:
            with Client() as client:
                return client.wait(client.begin(pairs)), client.get("/v1/what").status

        heard, after = await scene.inside(ask)
        assert (heard.status, error_of(heard)[2], after) == (status, rule, 200)
        assert await seen(scene) == ["GET /v1/what"]
        denied, served = (await scene.contact()).requests
        assert (denied.outcome, denied.rule_id, served.outcome) == (Outcome.DENY, rule, Outcome.ALLOW)

    with_http2(steps)


def test_a_get_with_a_body_and_a_length_that_is_none_are_refused() -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[int]:
            with Client() as client:
                number = client.begin(client.head("/v1/what"), ends=False)
                client.send(number, b"body")
                body = client.wait(number).status
            with Client() as client:
                nothing = client.wait(client.begin(client.head("/v1/store", "POST", (b"content-length", b"5")))).status
            return [body, nothing]

        body, nothing = await scene.inside(ask)
        assert body == 400 and nothing in (0, 400)
        assert await seen(scene) == []

    with_http2(steps)


def test_a_change_of_the_rules_ends_what_they_forbid() -> None:
    async def steps(scene: Scene) -> None:
        told, tell = os.pipe()

        def hold() -> tuple[int, bool]:
            with Client() as client:
                number = client.begin(client.head("/v1/wait"))
                client.get("/v1/what")
                os.write(tell, b"x")
                heard = client.wait(number)
                return heard.status, heard.is_over

        holding = scene.world.box.start(hold, files=scene.files())
        await asyncio.to_thread(os.read, told, 1)
        scene.broker.use_rules(network(RULES[1]))
        assert await asyncio.to_thread(holding.result) == (0, False)
        contact = await scene.contact()
        assert contact.ended == "ended by a change of the rules"
        os.close(told)
        os.close(tell)

    with_http2(steps)


def test_without_a_record_nothing_goes_out() -> None:
    async def steps(scene: Scene) -> None:
        scene.log.lost = True

        def ask() -> Heard:
            with Client() as client:
                return client.get("/v1/what")

        assert error_of(await scene.inside(ask)) == (503, "LEDGER_UNAVAILABLE", "network:journal")
        scene.log.lost = False
        assert await seen(scene) == []

    with_http2(steps)


@both_versions
def test_a_secret_takes_the_place_of_its_handle_and_is_scrubbed_from_the_answer(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> tuple[Heard, Heard]:
            with Client(port) as client:
                heard = client.get("/v1/what", (b"authorization", f"Bearer {HANDLE}".encode()))
                more = (b"accept-encoding", b"gzip"), (b"x-text", SECRET.encode())
                return heard, client.get("/v1/what", *more)  # as of a server that remembers it

        heard, later = await scene.inside(ask)
        shown = json.loads(later.body)["headers"]
        assert (shown["x-text"], shown["accept-encoding"]) == (HANDLE, "identity")
        headers = json.loads(heard.body)["headers"]
        assert heard.status == 200 and headers["authorization"] == f"Bearer {HANDLE}"
        assert headers["accept-encoding"] == "identity" and "content-length" not in dict(heard.headers)
        assert isinstance(scene.log, Vaulted) and [use.is_verified for use in scene.log.uses] == [True]
        assert [one.credential for one in (await scene.contact()).requests] == ["crm", None]

    with_interception(steps, *RULES, log_of=Vaulted)


def test_a_secret_in_trailers_is_scrubbed_and_one_that_is_refused_goes_nowhere() -> None:
    async def steps(scene: Scene) -> None:
        sent = (b"authorization", f"Bearer {HANDLE}".encode())

        def ask() -> list[Heard]:
            with Client() as client:
                shown = client.post("/v1/show", b"", (b"te", b"trailers"), sent)
                two = client.get("/v1/what", sent, (b"x-key", HANDLE.encode()))
                return [shown, two]

        shown, two = await scene.inside(ask)
        assert dict(shown.trailers)["x-shown"] == f"Bearer {HANDLE}" and SECRET not in repr(shown.body)
        assert error_of(two) == (403, "DENIED_BY_RULE", "floor:credential")
        assert await seen(scene) == ["POST /v1/show"]

    with_interception(steps, *RULES, f"{{id: show, to: {SITE}, ports: [9443], methods: [POST]}}", log_of=Vaulted)


@as_root_and_ordinary
def test_the_process_of_the_broker_speaks_it_although_it_has_little_left(who: str) -> None:
    async def steps(made: Brokered) -> None:
        certificate = made.link.certificate_of(ORIGIN.sandbox_id).decode()

        def ask() -> list[Heard]:
            with Client(trusting=certificate) as client:
                return [client.get("/v1/what"), client.get("/v2/what")]

        # The server of this world is not vouched for by the host.
        failed, denied = await made.inside(ask)
        assert error_of(failed)[:2] == (502, "SERVER_FAILED") and error_of(denied)[:2] == (403, "DENIED_BY_RULE")
        lines = await made.lines_until("ended", 1)
        assert [line.event for line in lines] == ["begun", "request", "request", "ended"]

    with_link(steps, rules=RULES[:1], who=who)


# -- what could tie it up --------------------------------------------------------------------------


def test_a_connection_ends_in_order_before_its_record_grows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docket, "MOST_REQUESTS", 5)

    async def steps(scene: Scene) -> None:
        def ask() -> tuple[list[int], int | None, int | None]:
            with Client() as client:
                numbers = [client.begin(client.head("/v1/what")) for _ in range(5)]
                found = [one.status for one in client.wait_all(numbers)]
                client.listen_to_the_end()
                return found, client.ended, client.last_stream

        assert await scene.inside(ask) == ([200] * 5, 0, 9)

    with_http2(steps)


def test_requests_that_are_broken_off_at_once_count_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docket, "MOST_REQUESTS", 20)

    async def steps(scene: Scene) -> None:
        def attack() -> int | None:
            with Client() as client, contextlib.suppress(OSError):
                for _ in range(1000):
                    number = client.begin(client.head("/v1/never"))
                    client.h2.reset_stream(number, 8)
                client.flush()
                return client.listen_to_the_end()
            return None

        await scene.inside(attack)
        assert len((await scene.contact()).requests) <= 20

    with_http2(steps)


def _frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


FLOODS = {
    "pings": _frame(6, b"12345678"),
    "settings": _frame(4),
    "priorities": _frame(2, b"\0\0\0\0\1", stream=3),
    "windows": _frame(8, b"\0\0\0\1"),
    "empty data": _frame(0, stream=1),
    "continuations": _frame(9, stream=1),
    "unknown": _frame(99),
}


@pytest.mark.parametrize("what", FLOODS)
def test_frames_that_carry_nothing_are_borne_a_thousand_times(what: str) -> None:
    async def steps(scene: Scene) -> None:
        def attack() -> int | None:
            with Client() as client:
                if what in ("empty data", "continuations"):
                    number = client.h2.get_next_available_stream_id()
                    client.h2.send_headers(number, client.head("/v1/store", "POST"))
                    head = client.h2.data_to_send()
                    if what == "continuations":
                        head = head[:4] + b"\0" + head[5:]  # it does not end there
                    client.socket.sendall(head)
                with contextlib.suppress(OSError):
                    for _ in range(20):
                        client.socket.sendall(FLOODS[what] * 200)
                    return client.listen_to_the_end()
                return -1

        code = await scene.inside(attack)
        assert code in (11, 1, -1, None)
        contact = await scene.contact()
        assert contact.ended != "closed" and contact.ended != "fault"

    with_http2(steps)


def test_a_server_that_floods_or_pushes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> list[int]:
            with Client() as client:
                return [client.get(path).status for path in ("/v1/ping", "/v1/push", "/v1/what")]

        assert await scene.inside(ask) == [502, 502, 200]

    with_http2(steps)


def test_whoever_reads_nothing_is_not_read_from_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pings are answered as long as the answers go somewhere."""
    monkeypatch.setattr(http2_connection, "MOST_OWED_BYTES", 1)

    async def steps(scene: Scene) -> None:
        def ask() -> int:
            with Client() as client:
                client.socket.sendall(_frame(6, b"12345678") * 100)
                return client.get("/v1/what").status

        assert await scene.inside(ask) == 200

    with_http2(steps)


# -- frames ----------------------------------------------------------------------------------------


def test_frames_are_cut_however_they_come_and_ends_taken_out() -> None:
    stream = _frame(0, b"abc", stream=1) + write_goaway(5, 2) + _frame(0, b"de", stream=1) + _frame(1, b"x")
    for size in (1, 2, 7, 9, 100):
        cutter = FrameCutter(has_preface=False, now=0)
        found = [one for start in range(0, len(stream), size) for one in cutter.feed(stream[start : start + size], 0)]
        goaways = [one for one in found if isinstance(one, Goaway)]
        assert goaways == [Goaway(5, 2)]
        joined = b"".join(one for one in found if isinstance(one, bytes))
        assert joined == _frame(0, b"abc", stream=1) + _frame(0, b"de", stream=1) + _frame(1, b"x")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/1.0", b"\0"])
def test_what_does_not_begin_as_http2_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(Http2Invalid):
        list(FrameCutter(has_preface=True, now=0).feed(data, 0))


def test_a_frame_that_is_too_long_is_refused_by_its_head() -> None:
    with pytest.raises(Http2Invalid):
        list(FrameCutter(has_preface=False, now=0).feed(b"\x01\x00\x01\0\0\0\0\0\1", 0))


# -- real programs ---------------------------------------------------------------------------------

NODE = """
const http2 = require('http2'), fs = require('fs');
const client = http2.connect('https://%s:9443', {ca: fs.readFileSync('/etc/ssl/certs/ca-certificates.crt')});
client.on('error', error => { console.log('failed', error.message); process.exit(1); });
let left = 3;
for (const path of ['/v1/what', '/v1/what', '/v2/x']) {
  const stream = client.request({':path': path});
  let status, body = '';
  stream.on('response', headers => { status = headers[':status']; });
  stream.on('data', part => { body += part; });
  stream.on('end', () => { console.log(status, body.length > 0); if (!--left) client.close(); });
  stream.end();
}
"""


def run(*command: str) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout, done.stderr


@both_versions
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(port: int) -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> Any:
            return run(
                "curl", "-sS", "--http2", "-w", " %{http_version} %{http_code}", f"https://{SITE}:{port}/v1/what"
            )

        code, out, error = await scene.inside(ask)
        assert (code, out[-6:], error) == (0, " 2 200", "")

    with_http2(steps)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node() -> None:
    async def steps(scene: Scene) -> None:
        code, out, error = await scene.inside(lambda: run("node", "-e", NODE % SITE))
        assert code == 0, error
        assert sorted(out.splitlines()) == ["200 true", "200 true", "403 true"]

    with_http2(steps)


@pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp is not installed")
def test_nghttp() -> None:
    async def steps(scene: Scene) -> None:
        address = f"https://{SITE}:9443/v1/large?pieces=16"
        code, out, error = await scene.inside(lambda: run("nghttp", "-n", "-s", "-m", "10", address))
        assert code == 0 and out.count(" 200 ") == 10, error

    with_http2(steps)


def test_a_program_that_does_not_know_http2_has_http1() -> None:
    async def steps(scene: Scene) -> None:
        def ask() -> str | None:
            with socket.create_connection((SITE, 8443), timeout=30) as plain:
                context = ssl.create_default_context()
                context.set_alpn_protocols(["http/1.1"])
                with context.wrap_socket(plain, server_hostname=SITE) as client:
                    return client.selected_alpn_protocol()

        assert await scene.inside(ask) == "http/1.1"

    with_http2(steps)
