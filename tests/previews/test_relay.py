"""What a visitor sends reaches the server in the sandbox as it was sent, and so does what it answers."""

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from coldframe.client.sync import SyncColdframe
from tests.installation import Installation
from tests.previews.app import BLOCK
from tests.previews.visiting import Visitor, read_until, sha256

LARGE_BYTES = 100 * 1024 * 1024


def seen(visitor: Visitor, **headers: str) -> dict[str, str]:
    told = visitor.ask("/echo", headers={name.replace("_", "-"): value for name, value in headers.items()}).json
    return {name.lower(): value for name, value in told["headers"]}


@pytest.mark.req("T4.43")
def test_the_server_is_asked_by_the_name_that_it_knows_and_told_the_one_that_the_visitor_typed(served: Visitor) -> None:
    got = seen(served, Origin=f"http://{served.host}", Referer=f"http://{served.host}/a?b")
    assert got["host"] == "localhost:8000"
    assert got["origin"] == "http://localhost:8000"
    assert got["referer"] == "http://localhost:8000/a?b"
    assert got["x-forwarded-host"] == served.host
    assert got["x-forwarded-proto"] == "http"
    assert got["x-forwarded-port"] == str(served.port)
    assert got["x-forwarded-for"] == "127.0.0.1"


def test_a_foreign_origin_stays_what_it_is(served: Visitor) -> None:
    assert seen(served, Origin="https://elsewhere.test")["origin"] == "https://elsewhere.test"


def test_nothing_by_which_a_visitor_is_let_in_reaches_the_server(served: Visitor, installation: Installation) -> None:
    got = seen(
        served,
        Authorization=f"Bearer {installation.token}",
        Cookie="x=1; coldframe_preview=abc; y=2",
        E2b_Traffic_Access_Token="secret",
        E2b_Sandbox_Id="x",
        X_API_KEY="e2b_1",
        X_Access_Token="t",
        X_Forwarded_For="6.6.6.6",
        Forwarded="for=6.6.6.6",
        X_Real_IP="6.6.6.6",
        Connection="keep-alive, X-Mine",
        X_Mine="only for the next one",
    )
    assert got["cookie"] == "x=1; y=2"
    whole = json.dumps(got)
    for secret in (installation.token, served.token, "secret", "e2b_", "6.6.6.6", "only for", "coldframe_preview"):
        assert str(secret) not in whole, secret


def test_a_token_of_the_application_itself_passes(served: Visitor) -> None:
    assert seen(served, Authorization="Bearer of-the-app")["authorization"] == "Bearer of-the-app"
    assert seen(served, Authorization="Basic eDp5")["authorization"] == "Basic eDp5"


@pytest.mark.parametrize(
    "path", ["/echo/a%2Fb", "/echo//x", "/echo/..;/y", "/echo/%E2%82%AC?q=%20a+b&&c=#".rstrip("#"), "/echo?x=/../y"]
)
def test_a_path_reaches_the_server_unchanged(served: Visitor, path: str) -> None:
    with served.connect() as one:
        one.sendall(served.head(f"GET {path} HTTP/1.1", "Connection: close"))
        answer = read_until(one, b"}")
    assert json.loads(answer[answer.index(b"{") :])["line"] == f"GET {path} HTTP/1.1"


def test_requests_of_one_connection_go_to_one_connection_of_the_server(served: Visitor) -> None:
    connection = served.keep()
    first, second = (served.ask("/echo", on=connection).json["connection"] for _ in range(2))
    assert first == second
    connection.close()


def test_requests_that_are_sent_ahead_are_answered_in_turn(served: Visitor) -> None:
    lines = [f"GET /echo/{number} HTTP/1.1" for number in range(5)]
    ahead = b"".join(served.head(line, *(["Connection: close"] if line == lines[-1] else [])) for line in lines)
    answer = served.raw(ahead)
    assert [line for line in lines if line.encode() in answer] == lines
    assert sorted(lines, key=lambda line: answer.index(line.encode())) == lines


def test_bodies_of_each_kind_arrive_whole(served: Visitor) -> None:
    assert served.ask("/bytes?n=1000000").body == (BLOCK * 16)[:1000000]
    assert served.ask("/chunks?n=3").body == BLOCK * 3
    assert served.ask("/until-closed").body == b"until closed"
    assert served.ask("/bytes?n=0").body == b""


def test_a_visitor_of_http_1_0_gets_the_content_without_chunks(served: Visitor) -> None:
    answer = served.raw(served.head("GET /chunks?n=2 HTTP/1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == BLOCK * 2
    assert b"chunked" not in head.lower()


def test_head_204_304_and_ranges_are_as_the_server_said(served: Visitor) -> None:
    answer = served.ask("/bytes?n=12345", method="HEAD")
    assert (answer.get("Content-Length"), answer.body) == ("12345", b"")
    connection = served.keep()
    for status in (204, 304):
        answer = served.ask(f"/status/{status}", on=connection)
        assert (answer.status, answer.get("ETag"), answer.body) == (status, '"x"', b"")
    answer = served.ask("/range", headers={"Range": "bytes=10-19"}, on=connection)
    assert (answer.status, answer.body) == (206, BLOCK[10:20])
    assert answer.get("Content-Range") == f"bytes 10-19/{len(BLOCK)}"
    connection.close()


def test_a_redirect_to_the_server_itself_leads_to_the_preview_and_others_stay(served: Visitor) -> None:
    def to(place: str) -> str | None:
        return served.ask(f"/redirect?to={place}").get("Location")

    assert to("http://localhost:8000/x%3Fy") == f"http://{served.host}/x?y"
    assert to("http://127.0.0.1:8000/x") == f"http://{served.host}/x"
    for other in (
        "/login",
        "//other.test/",
        "http://localhost:8001/x",
        "http://localhost:80000/x",
        "https://other.test/",
    ):
        assert to(other) == other


def test_cookies_of_the_server_are_for_its_own_origin_and_none_is_ours(served: Visitor) -> None:
    answer = served.ask("/cookies")
    assert answer.all("Set-Cookie") == ["a=1; Path=/", "b=2; HttpOnly"]
    assert answer.get("Alt-Svc") is None
    assert answer.get("Clear-Site-Data") is None


def test_uploads_of_each_kind_arrive_whole(served: Visitor) -> None:
    data = os.urandom(3_000_000)

    def parts() -> Iterator[bytes]:
        for start in range(0, len(data), 70_000):
            yield data[start : start + 70_000]

    headers = {"Transfer-Encoding": "chunked"}
    for body, more in ((data, {}), (parts(), headers)):
        assert served.ask("/upload", method="POST", body=body, headers=more).json["sha256"] == sha256(data)


def test_a_body_of_100_mib_passes_both_ways_without_being_collected(served: Visitor) -> None:
    block = BLOCK * 16
    digest = hashlib.sha256()

    def parts() -> Iterator[bytes]:
        for _ in range(LARGE_BYTES // len(block)):
            digest.update(block)
            yield block

    told = served.ask("/upload", method="PUT", body=parts(), headers={"Content-Length": str(LARGE_BYTES)}).json
    assert (told["bytes"], told["sha256"]) == (LARGE_BYTES, digest.hexdigest())
    with served.connect() as one:
        one.sendall(served.head(f"GET /bytes?n={LARGE_BYTES} HTTP/1.1", "Connection: close"))
        part = read_until(one, b"\r\n\r\n").partition(b"\r\n\r\n")[2]  # of the body perhaps nothing yet
        got, size = hashlib.sha256(part), len(part)
        while part := one.recv(1 << 20):
            got.update(part)
            size += len(part)
    assert (size, got.hexdigest()) == (LARGE_BYTES, digest.hexdigest())


def test_an_expectation_is_answered_by_the_server(served: Visitor) -> None:
    with served.connect() as one:
        one.sendall(served.head("POST /upload HTTP/1.1", "Content-Length: 3", "Expect: 100-continue"))
        assert read_until(one, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        one.sendall(b"abc")
        assert b'"bytes": 3' in read_until(one, b"}")


def test_events_come_as_they_happen(served: Visitor) -> None:
    with served.connect() as one:
        one.sendall(served.head("GET /events HTTP/1.1"))
        assert b"two" not in read_until(one, b"data: one\n\n")
        assert served.ask("/step").body == b"ok"
        read_until(one, b"data: two\n\n")


def test_a_web_socket_carries_bytes_both_ways_until_one_side_ends(served: Visitor) -> None:
    with served.upgrade() as one:
        head = read_until(one, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-accept: " in head.lower()
        for word in (b"abc", b"x" * 1_000_000):
            writer = threading.Thread(target=one.sendall, args=(word,))
            writer.start()
            got = b""
            while len(got) < len(word):
                got += one.recv(1 << 16)
            writer.join()
            assert got == word.swapcase()
        one.shutdown(socket.SHUT_WR)


def test_a_visitor_that_leaves_is_noticed_by_the_server(served: Visitor) -> None:
    """Else its thread would wait for ever, and so would the next request of that connection."""
    with served.connect() as one:
        one.sendall(served.head("GET /hang HTTP/1.1"))
    assert served.ask("/echo").status == 200


def test_news_before_the_answer_pass_and_the_answer_follows(served: Visitor) -> None:
    answer = served.raw(served.head("GET /raw?name=news HTTP/1.1", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 103 ")
    assert answer.endswith(b"ok")


@pytest.mark.parametrize("name", ["two-lengths", "length-and-chunks", "folded", "no-status", "unasked-switch"])
def test_an_answer_that_can_be_read_in_two_ways_is_not_passed_on(served: Visitor, name: str) -> None:
    answer = served.ask(f"/raw?name={name}")
    assert (answer.status, answer.json["error"]["code"]) == (503, "PREVIEW_UNAVAILABLE")


@pytest.mark.parametrize("name", ["bad-chunk", "cut"])
def test_an_answer_that_breaks_off_does_not_look_whole(served: Visitor, name: str) -> None:
    answer = served.raw(served.head(f"GET /raw?name={name} HTTP/1.1"))
    assert b"0\r\n\r\n" not in answer.partition(b"\r\n\r\n")[2]


def test_the_same_address_speaks_tls(served: Visitor, client: SyncColdframe, installation: Installation) -> None:
    import urllib.request

    request = urllib.request.Request(
        f"{installation.url}/v1/edge", headers={"Authorization": f"Bearer {installation.token}"}
    )
    with urllib.request.urlopen(request) as answer:
        certificate = json.load(answer)["certificate"]
    with served.tls(certificate) as one:
        one.sendall(served.head("GET /echo HTTP/1.1", f"Origin: https://{served.host}", "Connection: close"))
        told = json.loads(read_until(one, b"}").partition(b"\r\n\r\n")[2])
    got = {name.lower(): value for name, value in told["headers"]}
    assert (got["x-forwarded-proto"], got["origin"]) == ("https", "http://localhost:8000")
