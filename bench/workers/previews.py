"""A server through a preview and the same server beside it, asked in turn on kept connections; bulk both ways."""

import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.workers.product import AGENT, connected
from bench.workers.wire import expect, timed

UNCOUNTED = 5
ENOUGH_MIB_S = 300.0
SERVER = """
import socket, sys, threading
BLOCK = bytes(1 << 20)
def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = b""
    while part := peer.recv(1 << 20):
        head += part
        if b"\\r\\n\\r\\n" not in head:
            continue
        first = head.split(b" ")
        if first[0] == b"PUT":
            length = int(head.lower().split(b"content-length: ")[1].split(b"\\r\\n")[0])
            left = length - len(head.split(b"\\r\\n\\r\\n", 1)[1])
            while left > 0:
                left -= len(peer.recv(min(left, 1 << 20)))
        mib = int(first[1].rpartition(b"/")[2] or 0)
        peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % (mib << 20))
        for _ in range(mib):
            peer.sendall(BLOCK)
        head = b""
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


async def previews(request: dict[str, Any]) -> dict[str, float]:
    """What one small GET takes more through a preview, and how fast bodies of some size pass, against direct."""
    repetitions, bulk_mib = int(request["repetitions"]), int(request["bulk_mib"])
    with connected() as (_, client), client.sandboxes.create(agent_id=AGENT) as sandbox, _beside() as beside:
        sandbox.write_file("server.py", SERVER)
        preview = client.previews.create(sandbox.id, 8000, start="exec python3 server.py 8000", record=False)
        place = urlsplit(str(preview.url))
        head = f"Host: {place.netloc}\r\nColdframe-Preview-Token: {preview.token}\r\n"
        with (
            socket.create_connection(("127.0.0.1", place.port or 80), 60) as through,
            socket.create_connection(("127.0.0.1", beside), 60) as direct,
        ):
            ways = {"through": through, "direct": direct}
            small: dict[str, list[float]] = {"through": [], "direct": []}
            for _ in range(UNCOUNTED + repetitions):
                for name, way in ways.items():
                    small[name].append(_get(way, head, 0))
            down = {name: min(_get(way, head, bulk_mib) for _ in range(3)) for name, way in ways.items()}
            up = {name: min(_put(way, head, bulk_mib) for _ in range(3)) for name, way in ways.items()}
    took = {name: 1000 * statistics.median(seconds[UNCOUNTED:]) for name, seconds in small.items()}
    return {
        "more": took["through"] - took["direct"],
        "direct": took["direct"],
        "down": bulk_mib / down["through"],
        "down enough": _enough(bulk_mib, down),
        "up": bulk_mib / up["through"],
        "up enough": _enough(bulk_mib, up),
    }


def _enough(bulk_mib: int, seconds: dict[str, float]) -> float:
    """Against 300 MiB/s or half of direct, the lower."""
    return bulk_mib / seconds["through"] / min(ENOUGH_MIB_S, bulk_mib / seconds["direct"] / 2)


def _get(way: socket.socket, head: str, mib: int) -> float:
    with timed() as watch:
        way.sendall(f"GET /{mib} HTTP/1.1\r\n{head}\r\n".encode())
        _read(way, mib << 20)
    return watch.seconds


def _put(way: socket.socket, head: str, mib: int) -> float:
    block = bytes(1 << 20)
    with timed() as watch:
        way.sendall(f"PUT /0 HTTP/1.1\r\n{head}Content-Length: {mib << 20}\r\n\r\n".encode())
        for _ in range(mib):
            way.sendall(block)
        _read(way, 0)
    return watch.seconds


def _read(way: socket.socket, size: int) -> None:
    got = b""
    while b"\r\n\r\n" not in got:
        part = way.recv(1 << 16)
        expect(bool(part), "the connection ended")
        got += part
    start, _, body = got.partition(b"\r\n\r\n")
    expect(start.startswith(b"HTTP/1.1 200 "), start[:200].decode("latin-1"))
    left, room = size - len(body), bytearray(1 << 20)
    while left > 0:
        count = way.recv_into(room)
        expect(count > 0, "the connection ended")
        left -= count


@contextmanager
def _beside() -> Iterator[int]:
    """The same server outside of every sandbox; its port."""
    with subprocess.Popen([sys.executable, "-c", SERVER, "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()
