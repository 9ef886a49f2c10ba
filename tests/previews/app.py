"""A server that runs in a sandbox, with nothing but the standard library, and says what reached it."""

import base64
import gzip
import hashlib
import http.server
import json
import os
import socket
import socketserver
import sys
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit

BLOCK = bytes(range(256)) * 256
step = threading.Event()
polled = threading.Event()
RAW = {
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "length-and-chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "no-status": b"hello\r\n\r\n",
    "unasked-switch": b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "news": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: bytes, status: int = 200, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        name = "do_" + url.path.strip("/").replace("-", "_").partition("/")[0]
        getattr(self, name, self.do_echo)(query)

    do_HEAD = do_OPTIONS = do_DELETE = do_GET  # noqa: N815  names of the library

    def do_echo(self, _: dict[str, str]) -> None:
        told = {
            "line": self.requestline,
            "headers": [[one, value] for one, value in self.headers.items()],
            "connection": id(self.connection),
        }
        self.answer(json.dumps(told).encode(), 200, ("Content-Type", "application/json"))

    def do_bytes(self, query: dict[str, str]) -> None:
        left = int(query["n"])
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        while left > 0 and self.command != "HEAD":
            self.wfile.write(BLOCK[:left])
            left -= min(left, len(BLOCK))

    def do_chunks(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(int(query["n"])):
            self.wfile.write(b"%x;note=%d\r\n%b\r\n" % (len(BLOCK), number, BLOCK))
        self.wfile.write(b"0\r\nX-Trailer: end\r\n\r\n")

    def do_until_closed(self, _: dict[str, str]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"until closed")

    def do_events(self, _: dict[str, str]) -> None:
        step.clear()
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: one\n\n")
        step.wait(60)
        self.wfile.write(b"data: two\n\n")

    def do_ticks(self, query: dict[str, str]) -> None:
        """Events with the time at which each was sent, by a clock that the whole machine has."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(int(query["n"])):
            self.wfile.write(b"data: %d\n\n" % time.monotonic_ns())
            time.sleep(0.005)

    def do_step(self, _: dict[str, str]) -> None:
        step.set()
        self.answer(b"ok")

    def do_poll(self, _: dict[str, str]) -> None:
        step.clear()
        polled.set()
        step.wait(60)
        self.answer(b"something has happened")

    def do_polled(self, _: dict[str, str]) -> None:
        self.answer(b"asked" if polled.wait(60) else b"nobody asks")
        polled.clear()

    def do_gzip(self, _: dict[str, str]) -> None:
        packed = gzip.compress(BLOCK, mtime=0)
        self.answer(packed, 200, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))

    def do_own_name(self, _: dict[str, str]) -> None:
        own = self.headers["Host"] == f"localhost:{self.connection.getsockname()[1]}"
        self.answer(b"welcome" if own else b"who is that?", 200 if own else 403)

    def do_deep(self, _: dict[str, str]) -> None:
        name = self.headers.get("X-Forwarded-Host") or self.headers["Host"]
        links = ("/echo", "../echo", f"{self.headers.get('X-Forwarded-Proto', 'http')}://{name}/echo")
        self.answer("".join(f'<a href="{link}">' for link in links).encode(), 200, ("Content-Type", "text/html"))

    def do_status(self, _: dict[str, str]) -> None:
        status = int(self.path.rpartition("/")[2])
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.end_headers()

    def do_redirect(self, query: dict[str, str]) -> None:
        self.answer(b"", 302, ("Location", unquote(query["to"])))

    def do_cookies(self, _: dict[str, str]) -> None:
        more = (("Set-Cookie", "coldframe_preview=mine; Path=/"), ("Alt-Svc", 'h2=":1"'), ("Clear-Site-Data", '"*"'))
        self.answer(b"", 200, ("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Domain=localhost; HttpOnly"), *more)

    def do_range(self, _: dict[str, str]) -> None:
        if self.headers.get("Range") == "bytes=10-19":
            self.answer(BLOCK[10:20], 206, ("Content-Range", f"bytes 10-19/{len(BLOCK)}"))
        else:
            self.answer(BLOCK)

    def do_hang(self, _: dict[str, str]) -> None:
        self.connection.recv(1)

    def do_exit(self, _: dict[str, str]) -> None:
        print("the last words", flush=True)
        os._exit(3)

    def do_raw(self, query: dict[str, str]) -> None:
        self.wfile.write(RAW[query["name"]])
        self.close_connection = True

    def do_ws(self, _: dict[str, str]) -> None:
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        while data := self.connection.recv(65536):
            self.connection.sendall(data.swapcase())

    def do_POST(self) -> None:
        digest, size = hashlib.sha256(), 0
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while length := int(self.rfile.readline().partition(b";")[0], 16):
                digest.update(self.rfile.read(length))
                size += length
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            left = int(self.headers.get("Content-Length", "0"))
            while left:
                part = self.rfile.read(min(left, 1 << 20))
                digest.update(part)
                size += len(part)
                left -= len(part)
        told = {"bytes": size, "sha256": digest.hexdigest(), "origin": self.headers.get("Origin")}
        self.answer(json.dumps(told).encode())

    do_PUT = do_POST  # noqa: N815


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Server6(Server):
    address_family = socket.AF_INET6


if __name__ == "__main__":
    address, port = sys.argv[1], int(sys.argv[2])
    print("begins", flush=True)
    (Server6 if ":" in address else Server)((address, port), Handler).serve_forever()
