"""A client whose connection breaks at a random point: within the request, while it waits, or within the answer."""

import json
import random
import socket
import time
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 30.0


def call_and_vanish(
    url: str, token: str, sandbox_id: str, tool: str, arguments: dict[str, Any], *, key: str, chance: random.Random
) -> str:
    """Send a call under *key* and cut the connection somewhere. Returns where."""
    place = urlsplit(url)
    body = json.dumps(arguments).encode()
    head = (
        f"POST /v1/sandboxes/{sandbox_id}/tools/{tool} HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {token}\r\nIdempotency-Key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    where = chance.choice(["request", "last byte", "wait", "wait", "answer"])
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80), timeout=TIMEOUT_S) as peer:
        if where == "request":
            peer.sendall(request[: chance.randrange(len(request))])
        elif where == "last byte":
            peer.sendall(request[:-1])
            time.sleep(chance.uniform(0, 0.02))
            peer.sendall(request[-1:])
        else:
            peer.sendall(request)
            if where == "wait":
                time.sleep(chance.uniform(0, 0.1))
            else:
                peer.recv(chance.randrange(1, 200))
        if chance.random() < 0.5:  # a reset in place of an orderly end
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    return where
