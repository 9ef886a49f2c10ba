"""What a visitor of `app.py` finds, asked in the same words from beside it and through its preview.

A program of the standard library alone, so that it runs in the box as well: `python3 carried.py PORT HOST BYTES`, or
`requests` for how long they take.
"""

import gzip
import hashlib
import http.client
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urljoin

PATIENCE_S = 60.0
Found = dict[str, Any]


class Asker:
    """Of one server, by the name *host*, with *own* headers in each request."""

    def __init__(self, port: int, host: str, own: dict[str, str]) -> None:
        self._port, self._host, self._own = port, host, own

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)

    def begin(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """An answer of which the head is there. Its connection ends with it."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": self._host, "Connection": "close", **self._own, **named})
        return connection.getresponse()

    def own_place(self, text: str) -> str:
        return text.replace(f"http://{self._host}", "(here)")

    # -- what a preview has to carry -----------------------------------------------------------

    def web_socket(self) -> Found:
        with self.connect() as one:
            lines = [f"{name}: {value}" for name, value in self._own.items()]
            lines += [
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: eHh4",
            ]
            one.sendall("\r\n".join(["GET /ws HTTP/1.1", f"Host: {self._host}", *lines, "", ""]).encode())
            head = _until(one, b"\r\n\r\n").lower()
            accept = re.search(rb"sec-websocket-accept: (\S+)", head)
            one.sendall(b"Reload")
            return {
                "status": head[:12].decode(),
                "accept": accept and accept[1].decode(),
                "said": _until(one, b"D").decode(),
            }

    def events(self) -> Found:
        with self.begin("/events") as answer:
            first = answer.readline() + answer.readline()  # before the second is made
            self.begin("/step").close()
            return {"kind": answer.getheader("Content-Type"), "first": first.decode(), "rest": answer.read().decode()}

    def redirect(self) -> Found:
        places = [f"http://localhost:{APP_PORT}/a?b=c", "/a", "a", "http://other.test/x"]
        answers = [self.begin(f"/redirect?to={place.replace('?', '%3F')}") for place in places]
        return {"found": [[one.status, self.own_place(one.getheader("Location") or "")] for one in answers]}

    def cookie(self) -> Found:
        with self.begin("/cookies") as answer:
            pairs = [value.partition(";")[0] for value in answer.headers.get_all("Set-Cookie") or ()]
        kept = "; ".join(pair for pair in pairs if not pair.startswith("coldframe_"))
        with self.begin("/echo", Cookie=kept) as answer:
            told = dict(json.load(answer)["headers"])
        return {"kept": kept, "sent": {name.lower(): value for name, value in told.items()}["cookie"]}

    def byte_range(self) -> Found:
        with self.begin("/range", Range="bytes=10-19") as answer:
            return {"status": answer.status, "which": answer.getheader("Content-Range"), "body": answer.read().hex()}

    def large(self) -> Found:
        block, count = bytes(range(256)) * 4096, LARGE_BYTES >> 20
        sent = hashlib.sha256()

        def parts() -> Iterator[bytes]:
            for _ in range(count):
                sent.update(block)
                yield block

        with self.begin("/upload", "PUT", parts(), Content_Length=str(count << 20)) as answer:
            up = json.load(answer)
        got, size = hashlib.sha256(), 0
        with self.begin(f"/bytes?n={count << 20}") as answer:
            while part := answer.read(1 << 20):
                got.update(part)
                size += len(part)
        return {"up": [up["bytes"], up["sha256"] == sent.hexdigest()], "down": [size, got.digest() == sent.digest()]}

    def compressed(self) -> Found:
        with self.begin("/gzip", Accept_Encoding="gzip") as answer:
            body = answer.read()
            told = [answer.getheader(name) for name in ("Content-Encoding", "Content-Length", "Vary")]
        return {"told": told, "body": hashlib.sha256(gzip.decompress(body)).hexdigest(), "bytes": len(body)}

    def head(self) -> Found:
        with self.begin("/bytes?n=12345", "HEAD") as answer:
            return {
                "status": answer.status,
                "length": answer.getheader("Content-Length"),
                "body": answer.read().decode(),
            }

    def long_poll(self) -> Found:
        """The answer begins when something has happened, here as soon as the server has the question."""
        found: list[bytes] = []

        def wait() -> None:
            with self.begin("/poll") as answer:
                found.append(answer.read())

        waiting = threading.Thread(target=wait)
        waiting.start()
        with self.begin("/polled") as answer:
            asked = answer.read()
        self.begin("/step").close()
        waiting.join(PATIENCE_S)
        return {"asked": asked.decode(), "told": [one.decode() for one in found]}

    def foreign_host(self) -> Found:
        """The server refuses whoever calls it by another name than its own."""
        with self.begin("/own-name") as answer:
            return {"status": answer.status, "body": answer.read().decode()}

    def absolute_links(self) -> Found:
        """Those from the root, and those with the whole address in them, lead back to the server."""
        with self.begin("/deep/links") as answer:
            page = answer.read().decode()
        links = re.findall(r'href="([^"]+)"', page)
        found = []
        for link in links:
            here = self.own_place(link)
            with self.begin(urljoin("/deep/links", here.removeprefix("(here)"))) as answer:
                found.append([here, answer.status])
        return {"links": found}

    # -- how soon ------------------------------------------------------------------------------

    def ticks_ms(self, count: int) -> list[float]:
        """How long after it was sent each event is here."""
        late = []
        with self.begin(f"/ticks?n={count}") as answer:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    late.append((time.monotonic_ns() - int(line[6:])) / 1e6)
        return late

    def requests_ms(self, count: int) -> list[float]:
        """Of one connection, one after the other."""
        connection, took = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S), []
        for _ in range(count):
            began = time.monotonic_ns()
            connection.request("GET", "/own-name", headers={"Host": self._host, **self._own})
            connection.getresponse().read()
            took.append((time.monotonic_ns() - began) / 1e6)
        connection.close()
        return took


KINDS: dict[str, Callable[[Asker], Found]] = {
    "web socket": Asker.web_socket,
    "events": Asker.events,
    "redirect": Asker.redirect,
    "cookie": Asker.cookie,
    "range": Asker.byte_range,
    "large bodies": Asker.large,
    "gzip": Asker.compressed,
    "HEAD": Asker.head,
    "long poll": Asker.long_poll,
    "host check": Asker.foreign_host,
    "absolute links": Asker.absolute_links,
}
APP_PORT = 8000
LARGE_BYTES = 16 << 20


def observe(port: int, host: str, own: dict[str, str], large_bytes: int) -> dict[str, Found]:
    global LARGE_BYTES
    LARGE_BYTES = large_bytes
    asker = Asker(port, host, own)
    return {name: kind(asker) for name, kind in KINDS.items()}


def _until(one: socket.socket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        part = one.recv(1 << 16)
        if not part:
            break
        found += part
    return found


if __name__ == "__main__":
    if sys.argv[3] == "requests":
        print(json.dumps(Asker(int(sys.argv[1]), sys.argv[2], {}).requests_ms(100)))
    else:
        print(json.dumps(observe(int(sys.argv[1]), sys.argv[2], {}, int(sys.argv[3]))))
