"""Nothing that could be read in two ways passes, nobody gets to another preview, and a preview gives nothing else away."""

import json
import re
import socket

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from tests.installation import Installation
from tests.previews.visiting import Visitor, read_until, serve

AMBIGUOUS = {
    "two lengths": ("Content-Length: 5", "Content-Length: 5"),
    "two lengths that differ": ("Content-Length: 5", "Content-Length: 6"),
    "a list of lengths": ("Content-Length: 5, 5",),
    "length and chunks": ("Content-Length: 5", "Transfer-Encoding: chunked"),
    "chunks and length": ("Transfer-Encoding: chunked", "Content-Length: 5"),
    "chunks twice": ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunks by another name": ("Transfer-Encoding: xchunked",),
    "chunks and more": ("Transfer-Encoding: chunked, identity",),
    "gzip and chunks": ("Transfer-Encoding: gzip, chunked",),
    "chunks behind a tab": ("Transfer-Encoding:\x0bchunked",),
    "a signed length": ("Content-Length: +5",),
    "a negative length": ("Content-Length: -5",),
    "a length of hex": ("Content-Length: 0x5",),
    "a length with a blank inside": ("Content-Length: 5 5",),
    "a blank before the colon": ("Content-Length : 5",),
    "a folded line": ("X-A: b", " Content-Length: 5"),
    "a name with a control character": ("Content-Len\x01gth: 5",),
    "a lone carriage return": ("X-A: b\rContent-Length: 5",),
    "a lone line feed": ("X-A: b\nContent-Length: 5",),
    "a null": ("X-A: b\0c",),
    "no colon": ("Content-Length",),
    "a second host": ("Host: other.localhost",),
    "a length that is a matter of the connection": ("Content-Length: 5", "Connection: close, Content-Length"),
    "a host that is a matter of the connection": ("Connection: Host",),
}


@pytest.mark.parametrize("what", sorted(AMBIGUOUS))
def test_a_request_that_could_end_in_two_places_never_reaches_the_server(served: Visitor, what: str) -> None:
    smuggled = served.head("GET /echo/smuggled HTTP/1.1", "Connection: close")
    answer = served.raw(served.head("POST /upload HTTP/1.1", *AMBIGUOUS[what]) + b"0\r\n\r\n" + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:300]
    assert b"smuggled" not in answer
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "line",
    [
        "GET http://127.0.0.1/ HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/2.0",
        "GET / HTTP/1.1 ",
        "GET / http/1.1",
        "G@T / HTTP/1.1",
        "GET /\x7f HTTP/1.1",
        "GET * HTTP/1.1",
        "GET /",
    ],
)
def test_a_first_line_that_is_no_plain_request_is_refused(served: Visitor, line: str) -> None:
    answer = served.raw(served.head(line, "Connection: close"))
    assert answer[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 405 "), answer[:200]


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\r\nhello0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 ;a\x00\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nGET /echo/smuggled HTTP/1.1\r\n\r\n",
        b"fffffffffffffffff\r\nhello",
        b"\r\n5\r\nhello\r\n0\r\n\r\n",
        b"5" + b" " * 2000 + b"\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_chunks_that_could_end_in_two_places_end_the_request(served: Visitor, chunks: bytes) -> None:
    head = served.head("POST /upload HTTP/1.1", "Transfer-Encoding: chunked")
    answer = served.raw(head + chunks)
    assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert b"smuggled" not in answer


def test_a_head_without_end_is_refused_before_it_fills_the_memory(served: Visitor) -> None:
    with served.connect() as one:
        one.sendall(served.head("GET / HTTP/1.1")[:-2])
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(100_000):
                one.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")


def test_what_follows_a_web_socket_that_was_refused_is_no_tunnel(served: Visitor) -> None:
    """A relay that believed the request and not the answer would carry a second request unseen."""
    with served.connect() as one:
        more = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eHh4", "Sec-WebSocket-Version: 13")
        one.sendall(served.head("GET /echo/first HTTP/1.1", *more))
        read_until(one, b"}")
        second = served.head("GET /echo/second HTTP/1.1", "X-Forwarded-Host: forged", "Connection: close")
        one.sendall(second)
        answer = b""
        while part := one.recv(1 << 16):
            answer += part
    assert b"forged" not in answer
    assert b"second" in answer


@pytest.mark.parametrize("upgrade", ["h2c", "websocket, h2c", "TLS/1.0"])
def test_no_other_protocol_is_switched_to(served: Visitor, upgrade: str) -> None:
    more = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": upgrade, "HTTP2-Settings": "AAMAAABk"}
    got = {name.lower() for name, _ in served.ask("/echo", headers=more).json["headers"]}
    assert not got & {"upgrade", "http2-settings", "connection"}


# Other previews, other sandboxes, the machine.


@pytest.mark.req("T4.43")
def test_two_sandboxes_on_one_port_have_two_addresses_and_no_token_opens_the_other(
    client: SyncColdframe, served: Visitor, sandbox: SyncSandbox
) -> None:
    mine = Visitor(serve(client, sandbox, 8000))
    assert mine.host != served.host
    assert mine.ask("/echo").status == served.ask("/echo").status == 200
    assert served.ask("/echo", headers=mine.own, as_visitor=False).status == 401
    answer = mine.ask("/echo", host=served.host)
    assert answer.status == 401


@pytest.mark.req("T4.45")
def test_a_cookie_of_one_preview_opens_no_other(client: SyncColdframe, served: Visitor, sandbox: SyncSandbox) -> None:
    mine = serve(client, sandbox, 8000)
    visitor = Visitor(mine)
    link = client.previews.link(mine.preview_id).url
    cookie = visitor.ask(link.partition(visitor.host)[2], as_visitor=False).get("Set-Cookie")
    assert cookie is not None
    value = cookie.partition(";")[0]
    assert visitor.ask("/echo", headers={"Cookie": value}, as_visitor=False).status == 200
    assert served.ask("/echo", headers={"Cookie": value}, as_visitor=False).status == 401
    both = {"Cookie": f"{value}; {value}"}
    assert visitor.ask("/echo", headers=both, as_visitor=False).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "own"}, 200),
        ({"Origin": "https://evil.test"}, 401),
        ({"Origin": "null"}, 401),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 401),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 401),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
    ],
)
def test_a_cookie_counts_for_pages_of_the_preview_alone(
    client: SyncColdframe, served: Visitor, headers: dict[str, str], status: int
) -> None:
    found = next(one for one in client.previews.list() if one.url == served.url)
    link = client.previews.link(found.preview_id).url
    cookie = served.ask(link.partition(served.host)[2], as_visitor=False).get("Set-Cookie")
    assert cookie is not None
    sent = {name: f"http://{served.host}" if value == "own" else value for name, value in headers.items()}
    answer = served.ask("/echo", headers={"Cookie": cookie.partition(";")[0], **sent}, as_visitor=False)
    assert answer.status == status
    if status == 401:
        with served.upgrade(
            f"Cookie: {cookie.partition(';')[0]}", *(f"{a}: {b}" for a, b in sent.items()), own=False
        ) as one:
            assert read_until(one, b"\r\n\r\n").startswith(b"HTTP/1.1 401 ")


def test_a_page_of_a_preview_does_not_reach_the_api(served: Visitor, installation: Installation) -> None:
    import urllib.error
    import urllib.request

    asked = {"Origin": f"http://{served.host}", "Authorization": f"Bearer {installation.token}"}
    for url in (f"{installation.url}/v1/sandboxes", f"http://127.0.0.1:{served.port}/sandboxes"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, headers=asked))
        assert caught.value.code in (401, 403)
        assert caught.value.headers.get("Access-Control-Allow-Origin") is None
        caught.value.close()


@pytest.mark.parametrize(
    "host", ["evil.test", "8000-x.evil.test", "127.0.0.1.evil.test", "8000-zz.localhost.evil.test"]
)
def test_a_foreign_name_is_no_way_in(served: Visitor, host: str) -> None:
    answer = served.ask("/echo", host=f"{host}:{served.port}")
    assert answer.status in (400, 401, 403)
    assert b"headers" not in answer.body


def test_a_port_of_the_machine_is_not_reached_through_a_sandbox(client: SyncColdframe, sandbox: SyncSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        visitor = Visitor(client.previews.create(sandbox.id, port))
        answer = visitor.ask("/")
        assert (answer.status, answer.json["error"]["code"]) == (503, "PREVIEW_NOT_LISTENING")
        ours.settimeout(0)
        with pytest.raises(BlockingIOError):
            ours.accept()


def test_sharing_a_port_opens_no_way_out(client: SyncColdframe, served: Visitor, sandbox: SyncSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        visitor = Visitor(serve(client, sandbox, 8000))
        assert visitor.ask("/echo").status == 200
        port = ours.getsockname()[1]
        code = f"""
import socket
for place in (("127.0.0.1", {port}), ("10.0.0.1", 80), ("192.0.2.1", 443)):
    try:
        socket.create_connection(place, 2)
        print("reached")
    except OSError:
        print("no")
"""
        assert sandbox.run_command(["python3", "-c", code]).stdout == "no\nno\nno\n"


def test_who_asks_for_what_is_not_shared_learns_nothing_of_what_there_is(
    client: SyncColdframe, served: Visitor, sandbox: SyncSandbox
) -> None:
    """A sandbox without previews, and none at all, are the same."""
    there = served.ask("/", host=f"9000-{sandbox.id.removeprefix('sbx_')}.localhost:{served.port}")
    not_there = served.ask("/", host=f"9000-{'0' * 20}.localhost:{served.port}")
    assert there.status == not_there.status == 502
    assert {**there.json, "sandboxId": ""} == {**not_there.json, "sandboxId": ""}


@pytest.mark.req("T4.45")
def test_an_agent_of_another_workspace_sees_no_preview_of_it(
    client: SyncColdframe, served: Visitor, sandbox: SyncSandbox, installation: Installation
) -> None:
    client.agents.create("stranger")
    token, _ = client.tokens.create("agent", "stranger", agent_id="stranger")
    with SyncColdframe(installation.url, token) as stranger:
        assert stranger.previews.list() == []
        found = next(one for one in client.previews.list() if one.url == served.url)
        with pytest.raises(Exception) as caught:
            stranger.previews.get(found.preview_id)
        assert getattr(caught.value, "code", "") == "NOT_FOUND"
        assert served.ask("/echo", headers={"Authorization": f"Bearer {token}"}, as_visitor=False).status == 401
    told = json.dumps(served.ask("/echo", as_visitor=False).json)
    assert set(re.findall(r"prv_\w+", told)) <= {found.preview_id}
