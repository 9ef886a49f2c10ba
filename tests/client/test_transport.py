"""The SDK's HTTP: connections are reused, a dead one is replaced only where that is safe, and faults are typed."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest

from coldframe.client import sync
from coldframe.client.http1 import LAST_CHUNK, chunk_of
from coldframe.client.replies import read_answers
from coldframe.client.sockets import AsyncSocket
from coldframe.client.transport import Transport, encode_path, encode_query
from coldframe.contract.command import Contact
from coldframe.contract.errors import ColdframeError, GuestLost, HostUnreachable, InvalidArgument, Unavailable

Answer = Callable[[socket.socket, bytes], bool]
"""Handles one request; returns whether the connection stays open."""
SANDBOX = {
    "sandbox_id": "s",
    "agent_id": "a",
    "session_id": "t",
    "spec": {"agent_id": "a"},
    "state": {"state": "running", "since": "2026-01-01T00:00:00Z"},
    "created_at": "2026-01-01T00:00:00Z",
    "workspace_label": "PUBLIC",
}


def ok(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    return True


class Server:
    """A server whose every answer the test chooses, one connection after the other."""

    def __init__(self, answers: list[Answer]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(20)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.settimeout(20)
            with connection:
                stays = True
                while stays and self._answers:
                    request = self._receive(connection)
                    if not request:
                        break
                    self.requests.append(request)
                    stays = self._answers.pop(0)(connection, request)

    @staticmethod
    def _receive(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                return b""
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        missing = int(lengths[0].split(b":")[1]) - len(body) if lengths else 0
        while missing > 0:
            part = connection.recv(65536)
            missing -= len(part)
            data += part
        return data

    def close(self) -> None:
        self._listener.close()
        self._thread.join(20)


@contextmanager
def serving(*answers: Answer) -> Iterator[Server]:
    server = Server(list(answers))
    try:
        yield server
    finally:
        server.close()


def closes(connection: socket.socket, request: bytes) -> bool:
    """Answers properly, and then drops the connection without saying so."""
    ok(connection, request)
    return False


def breaks(connection: socket.socket, request: bytes) -> bool:
    return False


def test_one_connection_serves_many_requests() -> None:
    async def run(url: str) -> None:
        transport = Transport(url, "secret")
        for _ in range(3):
            assert (await transport.request("GET", "/x")).body == b"ok"
        await transport.aclose()

    with serving(ok, ok, ok) as server:
        asyncio.run(run(server.url))
    assert server.connections == 1
    assert b"authorization: bearer secret" in server.requests[0].lower()


def test_the_blocking_form_reuses_connections_too() -> None:
    with serving(ok, ok) as server:
        transport = sync.Transport(server.url, None)
        assert [transport.request("GET", "/x").status for _ in range(2)] == [200, 200]
        transport.close()
    assert server.connections == 1


def test_a_connection_closed_while_idle_is_replaced_for_a_request_that_may_be_repeated() -> None:
    with serving(closes, ok) as server:
        transport = sync.Transport(server.url, None)
        transport.request("GET", "/x")
        headers = {"Idempotency-Key": "k"}
        assert transport.request("POST", "/x", payload={}, headers=headers).body == b"ok"
        transport.close()
    assert server.connections == 2


def test_a_request_that_may_not_be_repeated_is_sent_once_and_its_outcome_is_unknown() -> None:
    with serving(breaks, ok) as server:
        transport = sync.Transport(server.url, None)
        with pytest.raises(HostUnreachable):
            transport.request("POST", "/x", payload={"a": 1})
        assert len(server.requests) == 1
        assert transport.request("GET", "/y").body == b"ok"
        transport.close()


def test_an_answer_that_breaks_off_is_an_error_and_not_a_short_answer() -> None:
    def half(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        return False

    async def run(url: str) -> None:
        transport = Transport(url, None)
        with pytest.raises(HostUnreachable):
            await transport.request("GET", "/x")
        await transport.aclose()

    with serving(half) as server:
        asyncio.run(run(server.url))


def framed(*frames: tuple[bytes, bytes]) -> bytes:
    return b"".join(struct.pack(">II", len(head), len(body)) + head + body for head, body in frames)


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_frames_are_the_same_in_whatever_pieces_they_come(piece: int) -> None:
    frames = [(b"{}", b""), (b'{"a": 1}', b"body" * 20), (b"x", b"\r\n")]
    data = framed(*frames)

    def chunked(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(data), piece):
            connection.sendall(chunk_of(data[start : start + piece]))
        connection.sendall(LAST_CHUNK)
        return True

    with serving(chunked) as server:
        transport = sync.Transport(server.url, None)
        assert list(transport.open("GET", "/x").frames()) == frames
        transport.close()


def test_a_frame_that_breaks_off_is_an_error() -> None:
    def half(connection: socket.socket, request: bytes) -> bool:
        data = framed((b"{}", b"body"))[:-1]
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        return True

    with serving(half) as server:
        transport = sync.Transport(server.url, None)
        with pytest.raises(HostUnreachable):
            list(transport.open("GET", "/x").frames())
        transport.close()


def answering(content: object, content_type: str = "application/json") -> Answer:
    def answer(connection: socket.socket, request: bytes) -> bool:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return True

    return answer


def test_what_a_newer_server_says_beside_the_known_is_passed_over() -> None:
    agent = {
        "agent_id": "a",
        "created_at": "2026-01-01T00:00:00Z",
        "workspace_label": "PUBLIC",
        "mood": "new",
    }
    contact = {"protocol": "tcp", "address": "10.0.0.1", "port": 1, "first_at": "2026-01-01T00:00:00Z", "colour": 3}
    contact["last_at"] = contact["first_at"]
    known = {name: value for name, value in agent.items() if name != "mood"}
    with serving(answering(agent), answering([agent]), answering([contact])) as server:
        client = sync.SyncColdframe(server.url, "t")
        assert client.agents.get("a").model_dump(mode="json", exclude_unset=True) == known
        assert [one.agent_id for one in client.agents.list()] == ["a"]
        reply = client._transport.request("GET", "/contacts")
        assert read_answers(Contact, reply.body)[0].port == 1
        client.close()


def test_a_server_that_knows_no_frames_is_understood_line_by_line() -> None:
    lines = (
        b'{"event":"started","command_id":"c","pid":1,"at":"2026-01-01T00:00:00Z","new":1}\n'
        b'{"event":"output","seq":0,"stream":"stdout","data":"aGk="}\n'
        b'{"event":"error","error":{"code":"GUEST_LOST","message":"gone"}}\n'
    )
    with serving(answering(lines, "application/x-ndjson")) as server:
        transport = sync.Transport(server.url, None)
        events = sync.command_events(transport, "GET", "/x")
        assert next(events).event == "started"  # type: ignore[union-attr]
        assert next(events).data == b"hi"  # type: ignore[union-attr]
        with pytest.raises(GuestLost):
            next(events)
        transport.close()
    assert b"application/x-coldframe-frames, application/x-ndjson" in server.requests[0]


def test_no_server_is_unavailable_and_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable) as found:
        sync.Transport(f"http://127.0.0.1:{port}", None).request("GET", "/x")
    assert "coldframe up" in found.value.advice


def test_silence_past_the_chosen_time_is_an_error() -> None:
    ended = threading.Event()

    def silent(connection: socket.socket, request: bytes) -> bool:
        ended.wait(20)
        return False

    with serving(silent) as server:
        transport = sync.Transport(server.url, None, timeout_s=0.05)
        with pytest.raises(HostUnreachable):
            transport.request("GET", "/x")
        ended.set()


def test_a_call_whose_answer_takes_too_long_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def silent(connection: socket.socket, request: bytes) -> bool:
        ended.wait(20)
        return False

    with serving(ok, silent) as server:
        transport = sync.Transport(server.url, None)
        transport.request("GET", "/x")
        monkeypatch.setattr(transport._idle[0], "_timeout_s", 0.05)
        monkeypatch.setattr(transport, "_connect", lambda: pytest.fail("it was sent again"))
        with pytest.raises(HostUnreachable):
            transport.request("POST", "/x", payload={}, headers={"Idempotency-Key": "k"})
        ended.set()


def test_a_connection_with_an_answer_nobody_asked_for_takes_no_request() -> None:
    async def run(listener: socket.socket) -> None:
        host, port = listener.getsockname()
        ours = await AsyncSocket.open(host, port, tls=None, timeout_s=20)
        theirs, _ = listener.accept()
        with theirs:
            fresh = await AsyncSocket.open(host, port, tls=None, timeout_s=20)
            theirs.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        async with asyncio.timeout(20):
            while ours.usable:  # noqa: ASYNC110  nothing else tells that bytes came
                await asyncio.sleep(0)
        assert fresh.usable
        await ours.close()
        await fresh.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(run(listener))


def test_a_token_that_cannot_be_sent_is_not_shown() -> None:
    transport = sync.Transport("http://127.0.0.1:1", "cf_secret\n")
    with pytest.raises(InvalidArgument) as found:
        transport.request("GET", "/x")
    assert "secret" not in str(found.value.to_wire())
    assert "Authorization" in found.value.message


@pytest.mark.parametrize("content", [b"<html>", [], {"agent_id": 7}, {"agent_id": ["a"], "created_at": "x"}])
def test_an_answer_that_is_none_of_ours_is_a_typed_error(content: object) -> None:
    with serving(answering(content), answering(content), answering(content if content != [] else {})) as server:
        client = sync.SyncColdframe(server.url, "t")
        for ask in (lambda: client.agents.get("a"), client.doctor, client.agents.list):
            with pytest.raises(Unavailable, match="not what this client knows"):
                ask()
        client.close()


@pytest.mark.parametrize(
    "frames",
    [
        [(b"<html>", b"")],
        [(b"7", b"")],
        [(b'{"event":"output"', b"x")],
        [(b'{"event":"result"}', b"")],
        [(b'{"event":"error"}', b"")],
        [(b'{"event":"error","error":"gone"}', b"")],
        [(b'{"event":"mood"}', b"")],
    ],
)
def test_an_event_that_is_none_of_ours_is_a_typed_error(frames: list[tuple[bytes, bytes]]) -> None:
    with serving(answering(framed(*frames), "application/x-coldframe-frames")) as server:
        transport = sync.Transport(server.url, None)
        with pytest.raises(Unavailable, match="not what this client knows"):
            list(sync.command_events(transport, "GET", "/x"))
        transport.close()


def test_a_window_of_output_without_its_place_is_a_typed_error() -> None:
    with serving(answering(SANDBOX), answering(b"output", "application/octet-stream")) as server:
        client = sync.SyncColdframe(server.url, "t")
        with pytest.raises(Unavailable, match="not what this client knows"):
            client.sandboxes.get("s").output("c")
        client.close()


def test_a_refused_call_with_a_broken_body_is_a_typed_error() -> None:
    def broken(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 502 Bad\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{")
        return False

    with serving(answering(SANDBOX), broken) as server:
        client = sync.SyncColdframe(server.url, "t")
        with pytest.raises(Unavailable, match="502"):
            client.sandboxes.get("s").call("read_file", {})
        client.close()


@pytest.mark.parametrize("content", [b"<html>", [], 7])
def test_an_answer_that_is_no_object_is_a_typed_error(content: object) -> None:
    with serving(answering(content)) as server:
        client = sync.SyncColdframe(server.url, "t")
        with pytest.raises(Unavailable, match="not what this client knows"):
            client.health()
        client.close()


def test_a_streamed_body_is_sent_in_chunks() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        yield b""
        yield b"second"

    def chunked(connection: socket.socket, request: bytes) -> bool:
        data = request
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(65536)
        assert b"5\r\nfirst\r\n" in data and b"6\r\nsecond\r\n" in data
        return ok(connection, data)

    async def run(url: str) -> None:
        transport = Transport(url, None)
        assert (await transport.request("PUT", "/x", body=parts())).status == 200
        await transport.aclose()

    with serving(chunked) as server:
        asyncio.run(run(server.url))


def test_an_error_without_an_error_object_is_still_typed() -> None:
    def page(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\n<html>")
        return False

    with serving(page) as server:
        client = sync.SyncColdframe(server.url, "t")
        with pytest.raises(ColdframeError, match="502"):
            client.health()
        client.close()


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:4560", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        Transport(url, None)


def test_paths_and_queries_survive_the_url() -> None:
    assert encode_path("a b/ä?#%") == "a%20b/%C3%A4%3F%23%25"
    assert encode_path("x\udcff") == "x%FF"
    assert encode_query({"a": None, "b": True, "c": [1, 2], "d": "x&y"}) == "b=true&c=1&c=2&d=x%26y"


def test_an_address_holds_no_password_that_an_error_could_tell() -> None:
    for url in ("http://me:hunter2@127.0.0.1:9", "me:hunter2@127.0.0.1", "http://me:hunter/2@127.0.0.1:9"):
        with pytest.raises(InvalidArgument) as caught:
            sync.SyncColdframe(url, "token")
        assert "hunter" not in f"{caught.value.message} {caught.value.advice} {caught.value.facts}"
