"""A web server of the small world that keeps connections, and answers in all the ways in which servers do."""

import asyncio
import base64
import gzip
import hashlib
import json
import os
import socket
import struct
from contextlib import suppress
from urllib.parse import parse_qs

PIECE = bytes(range(256)) * 256
"""64 KiB, of which the large answers are made."""


CANARY = "canary-7Qm2/secret+value"
"""The secret that opens what is guarded here."""
REFS = b"0123456789012345678901234567890123456789\trefs/heads/main\n"


class Site:
    """What all of its connections share."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        """Where it may keep files, which others remove."""
        self.seen: list[str] = []
        """First lines of requests, in their order."""
        self.carried: list[str] = []
        """Of each request that held the secret: method, host and path."""
        self.collected: list[str] = []
        """Of each datagram that came to a neighbour of this site: its port and what it held, for who may only look here."""
        self._connections = 0
        self._go_on = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._answer(number, reader, writer):
                await writer.drain()
        writer.close()

    async def _git(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, list[str], bytes]:
        """What Git's own server says, of a repository that is there from the first question on."""
        plain = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        place = f"{self._folder}/app.git"
        if not os.path.exists(place):
            await _run(["git", "init", "-q", "--bare", "-b", "main", place], plain)
            await _run(["git", "-C", place, "config", "http.receivepack", "true"], plain)
        environment = {
            **plain,
            "GIT_PROJECT_ROOT": self._folder,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path.removeprefix("/v1/git"),
            "QUERY_STRING": query,
            "REQUEST_METHOD": method,
            "CONTENT_TYPE": headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            "REMOTE_USER": "git",
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_PROTOCOL": headers.get("git-protocol", ""),
        }
        told = await _run(["git", "http-backend"], environment, body)
        head, _, answer = told.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = next((line[8:] for line in lines if line.startswith("Status: ")), "200 OK")
        return status, [line for line in lines if not line.startswith("Status: ")], answer

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        path, _, query = target.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if path != "/v1/seen":
            self.seen.append(first)
        said = headers.get("authorization", "")
        basic = base64.b64encode(f"git:{CANARY}".encode()).decode()
        if CANARY in head or basic in head:
            self.carried.append(f"{method} {headers.get('host')} {path}")

        def send(status: str, body: bytes = b"", *more: str) -> None:
            length = f"Content-Length: {len(body)}"
            head = "\r\n".join([f"HTTP/1.1 {status}", length, *more])
            writer.write(head.encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else body))

        if path.startswith("/v1/git/"):
            given = base64.b64decode(said.removeprefix("Basic ") + "==").decode("latin-1").partition(":")[2]
            if given != CANARY:
                send("401 Unauthorized", b"who are you", 'WWW-Authenticate: Basic realm="git"')
            else:
                self.carried.append(f"{method} {headers.get('host')} {path}")
                body = await _read_body(reader, headers)
                status, answer_headers, answer = await self._git(method, path, query, headers, body)
                send(status, answer, *answer_headers)
            return headers.get("connection") != "close"
        if path.startswith("/v1/guarded/"):
            if said not in (f"Bearer {CANARY}", f"Basic {basic}"):
                send("401 Unauthorized", b"who are you", 'WWW-Authenticate: Basic realm="guarded"')
            elif path == "/v1/guarded/away":
                send("302 Found", b"", f"Location: https://other.example.com:8443/v1/what?{said}")
            elif path.endswith("/info/refs"):
                send("200 OK", REFS, "Content-Type: text/plain")
            else:
                send("200 OK", json.dumps({"welcome": said}).encode())
            return headers.get("connection") != "close"
        match path:
            case "/v1/carried":
                send("200 OK", json.dumps(self.carried).encode())
            case "/v1/collected":
                send("200 OK", json.dumps(self.collected).encode())
            case "/v1/seen":
                send("200 OK", json.dumps(self.seen).encode())
            case "/v1/what":
                what = {"first": first, "headers": headers, "connection": number}
                send("200 OK", json.dumps(what).encode(), "Set-Cookie: a=1", "Set-Cookie: b=2", 'Alt-Svc: h3=":443"')
            case "/v1/store":
                if headers.get("expect") == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await _read_body(reader, headers)
                send("200 OK", json.dumps({"bytes": len(body), "headers": headers}).encode())
            case "/v1/sink":
                left = wanted = int(headers["content-length"])
                while left:
                    left -= len(await reader.read(min(left, 1 << 16))) or left
                send("200 OK", str(wanted - left).encode())
            case "/v1/echo":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                body = await _read_body(reader, headers)
                for start in range(0, len(body), 1000):
                    part = body[start : start + 1000]
                    writer.write(b"%x;some=thing\r\n%b\r\n" % (len(part), part))
                writer.write(b"0\r\nX-Trailer: not passed on\r\n\r\n")
            case "/v1/large":
                pieces = int(asked["pieces"])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (pieces * len(PIECE)))
                for _ in range(pieces):
                    writer.write(PIECE)
                    await writer.drain()
            case "/v1/more":  # and an answer that nobody asked for, at once: what comes later looks like the next one
                body, extra = (
                    PIECE * int(asked["pieces"]),
                    b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nnot asked for",
                )
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body + extra)
            case "/v1/events":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: first\n\n")
                await writer.drain()
                await self._go_on.wait()
                writer.write(b"data: second\n\n")
                return False
            case "/v1/go":
                self._go_on.set()
                send("200 OK")
            case "/v1/socket":
                if headers.get("upgrade") != "websocket":
                    send("426 Upgrade Required")
                    return True
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                writer.write(b"hello")
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
                return False
            case "/v1/chat":  # a websocket as browsers want it: each short message comes back
                key = headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
                accept = base64.b64encode(hashlib.sha1(key, usedforsecurity=False).digest()).decode()
                more = ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
                writer.write("\r\n".join(["HTTP/1.1 101 Switching Protocols", *more, "\r\n"]).encode())
                while True:
                    opening, length = await reader.readexactly(2)
                    content = await reader.readexactly(4 + (length & 0x7F))
                    text = bytes(byte ^ content[index % 4] for index, byte in enumerate(content[4:]))
                    writer.write(bytes((opening, len(text))) + text)
                    await writer.drain()
            case "/v1/account":  # says what it was sent, as many do
                more = [f"X-Said: {said}", f"Location: https://other.example.com/?{said}"]
                send("200 OK" if said else "401 Unauthorized", said.encode(), *more)
            case "/v1/slowly":  # the same, cut in the middle
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said))
                for start in range(0, len(said), 3):
                    writer.write(said[start : start + 3].encode())
                    await writer.drain()
                    await asyncio.sleep(0)
            case "/v1/packed":
                send("200 OK", gzip.compress(json.dumps(headers).encode()), "Content-Encoding: gzip")
            case "/v1/nothing":
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            case "/v1/same":
                writer.write(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 12\r\nETag: x\r\n\r\n")
            case "/v1/text":
                send("200 OK", b"some text")
            case "/v1/hints":
                writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
                send("200 OK", b"after hints")
            case "/v1/many-hints":
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * int(asked["count"]))
                send("200 OK", b"after hints")
            case "/v1/to-the-end":
                writer.write(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
                return False
            case "/v1/half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
                await writer.drain()
                _abort(writer)
                return False
            case "/v1/early":
                send("413 Content Too Large", b"too large", "Connection: close")
                return False
            case "/v1/idle":  # answers, and then ends what the other side may want to use again
                send("200 OK", b"once")
                return False
            case "/v1/never":
                await reader.read(1)
                self.seen.append("gone")
                return False
            case "/v1/none":
                writer.write(b"this is no answer\r\n\r\n")
                return False
            case _:
                send("404 Not Found", f"answer to {first}".encode())
        return headers.get("connection") != "close"


async def _run(program: list[str], environment: dict[str, str], given: bytes = b"") -> bytes:
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(*program, env=environment, stdin=pipe, stdout=pipe)
    return (await running.communicate(given))[0]


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _abort(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
