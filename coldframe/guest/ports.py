"""Ports at which processes of the box listen, as its kernel lists them."""

import contextlib
import itertools
import os
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Any

_PLACE = "/proc/1/net"
_TABLES = (("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp"))
_LISTENING = {"tcp": "0A", "udp": "07"}
"""States of the kernel: LISTEN, and that of a UDP socket without a peer."""
MOST_FILES = 65_536
"""Open files of all processes that are looked at; whose socket was not found by then is not told."""
MOST_LINES = 16_384
"""Of each table, where those that listen to TCP come first. A box may have sockets by the hundred thousand, and its keeper
does nothing else while it reads."""
_SOCKET = "socket:["


def find_ports(pids: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    """Fields of ListeningPort by process. All processes of a box share its network, so the first one's tables have all."""
    listening: dict[str, dict[str, Any]] = {}
    for table, protocol in _TABLES:
        with contextlib.suppress(OSError), open(f"{_PLACE}/{table}", encoding="ascii") as source:
            next(source, None)
            for line in itertools.islice(source, MOST_LINES):
                fields = line.split()
                if fields[3] == _LISTENING[protocol]:
                    address, _, port = fields[1].partition(":")
                    listening[fields[9]] = {"protocol": protocol, "address": _address(address), "port": int(port, 16)}
    if not listening:
        return {}
    found: dict[int, list[dict[str, Any]]] = {}
    left = MOST_FILES
    for pid in pids:
        ports = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd")[:left]:
                left -= 1
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    number = target[len(_SOCKET) : -1] if target.startswith(_SOCKET) else ""
                    if number in listening:
                        ports[number] = listening[number]
        if ports:
            found[pid] = list(ports.values())
    return found


def _address(text: str) -> str:
    """Of words in the machine's own order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)
