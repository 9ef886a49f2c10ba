"""Sees every attempt of a box without network to reach outward, and keeps count of it.

All addresses of the box are local (`host/routes.py`), so an attempt crosses `lo`, is refused there by the
kernel, and a packet socket sees it. A filter in the kernel lets through only what begins a contact: TCP
SYN, UDP, ICMP echo requests and other protocols, towards addresses that are not loopback, each packet once
(on its way out; the way in is the same packet). Names come from look-ups on UDP 53.

`refused` means that nothing left the box. A server inside that listens on all addresses also answers on
any outer one, so such a contact may have met the box itself.

Not seen: attempts that the kernel ends before a packet exists, such as ping without the right to it, or a
protocol that the system call filter refuses (raw sockets, SCTP, other families). Broadcast and multicast
are UDP and are seen. A flood costs at most `BATCH` packets per wake-up; what overflows the socket's buffer
is counted by the kernel and told as `dropped`.

Everything here is written by the box: the parser takes any bytes and never raises.
"""

import ctypes
import socket
import struct
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

MAX_CONTACTS = 1000
"""Distinct contacts of one log; further ones are counted together as `other`."""
BATCH = 256
"""Packets taken per wake-up."""
SNAP_BYTES = 512
"""Enough for headers and the longest name."""

_ETH_P_ALL, _SO_ATTACH_FILTER, _SO_LOCK_FILTER, _SOL_PACKET, _PACKET_STATISTICS = 3, 26, 44, 263, 6
_PACKET_OUTGOING = 4
_PACKET_TYPE = 0xFFFFF000 + 4
"""SKF_AD_OFF + SKF_AD_PKTTYPE: what kind of packet it is, to a socket filter."""
_TCP, _UDP, _ICMP, _ICMP6 = 6, 17, 1, 58
_EXTENSIONS = frozenset({0, 43, 44, 60, 135})
"""IPv6 headers that may stand before the protocol's own."""

_LDW, _LDH, _LDB, _LDX_IP, _LDB_X = 0x20, 0x28, 0x30, 0xB1, 0x50
_JEQ, _JSET, _AND, _RSH, _RET = 0x15, 0x45, 0x54, 0x74, 0x06


def _filter() -> bytes:
    """(code, value, target if true, target if false); a target is a label or None for the next line."""
    lines: list[tuple[int, int, str | None, str | None] | str] = [
        (_LDW, _PACKET_TYPE, None, None),
        (_JEQ, _PACKET_OUTGOING, None, "drop"),
        (_LDB, 0, None, None),
        (_RSH, 4, None, None),
        (_JEQ, 4, "v4", None),
        (_JEQ, 6, "v6", "drop"),
        "v4",
        (_LDB, 16, None, None),
        (_JEQ, 127, "drop", None),
        (_LDH, 6, None, None),
        (_JSET, 0x1FFF, "drop", None),  # a later fragment of what was seen already
        (_LDX_IP, 0, None, None),
        (_LDB, 9, None, None),
        (_JEQ, _UDP, "take", None),
        (_JEQ, _TCP, "tcp4", None),
        (_JEQ, _ICMP, None, "take"),
        (_LDB_X, 0, None, None),
        (_JEQ, 8, "take", "drop"),
        "tcp4",
        (_LDB_X, 13, None, None),
        (_AND, 0x12, None, None),
        (_JEQ, 0x02, "take", "drop"),  # SYN without ACK
        "v6",
        (_LDW, 24, None, None),
        (_JEQ, 0, None, "outer6"),
        (_LDW, 28, None, None),
        (_JEQ, 0, None, "outer6"),
        (_LDW, 32, None, None),
        (_JEQ, 0, None, "outer6"),
        (_LDW, 36, None, None),
        (_JEQ, 1, "drop", None),
        "outer6",
        (_LDB, 6, None, None),
        (_JEQ, _UDP, "take", None),
        (_JEQ, _TCP, "tcp6", None),
        (_JEQ, _ICMP6, None, "take"),
        (_LDB, 40, None, None),
        (_JEQ, 128, "take", "drop"),
        "tcp6",
        (_LDB, 53, None, None),
        (_AND, 0x12, None, None),
        (_JEQ, 0x02, "take", "drop"),
        "take",
        (_RET, SNAP_BYTES, None, None),
        "drop",
        (_RET, 0, None, None),
    ]
    places: dict[str, int] = {}
    program: list[tuple[int, int, str | None, str | None]] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(program)
        else:
            program.append(line)
    out = b""
    for index, (code, value, true, false) in enumerate(program):
        steps = [0 if target is None else places[target] - index - 1 for target in (true, false)]
        out += struct.pack("HBBI", code, *steps, value)
    return out


def open_capture() -> socket.socket:
    """The socket that sees the attempts in this network namespace; needs CAP_NET_RAW over it and `lo` up.

    Non-blocking, close-on-exec, its filter locked. Reading it later needs no right. Raises OSError.
    """
    capture = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    try:
        program = _filter()
        lines = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("@HP", len(program) // 8, ctypes.addressof(lines))
        capture.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
        capture.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
        capture.bind(("lo", _ETH_P_ALL))  # only now does it receive, so nothing passes unfiltered
    except OSError:
        capture.close()
        raise
    return capture


class Attempt(NamedTuple):
    protocol: str
    address: str
    port: int
    name: str | None


class _Count(NamedTuple):
    attempts: int
    first_at: str
    last_at: str


class Seen(Protocol):
    """What a box was refused to reach, as it comes (see refusals.py)."""

    def read_ready(self) -> tuple[list[Attempt], bool]: ...

    def newly_dropped(self) -> int: ...


class ContactLog:
    """Attempts added up by protocol, address, port and name, within `MAX_CONTACTS` entries."""

    def __init__(self, rule: str = "network:none") -> None:
        """*rule*: what refuses them."""
        self._rule = rule
        self._counts: dict[Attempt, _Count] = {}
        self._beyond: _Count | None = None
        self.dropped = 0
        """Packets that came faster than they were read: attempts that are not in the list."""

    def take(self, refusals: "Seen") -> bool:
        """Count what was refused since the last time, by whichever log; whether more may wait."""
        attempts, more = refusals.read_ready()
        self.record(attempts)
        lost = refusals.newly_dropped()
        if lost:
            self.dropped += lost
            self._beyond = _again(self._beyond, datetime.now(UTC).isoformat(), times=lost)
        return more

    def record(self, attempts: list[Attempt]) -> None:
        """Count attempts that were read through another log."""
        if not attempts:
            return
        now = datetime.now(UTC).isoformat()
        for attempt in attempts:
            known = self._counts.get(attempt)
            if known is not None:
                self._counts[attempt] = _again(known, now)
            elif len(self._counts) < MAX_CONTACTS:
                self._counts[attempt] = _Count(1, now, now)
            else:
                self._beyond = _again(self._beyond, now)

    def contacts(self) -> list[dict[str, Any]]:
        """Fields of `Contact`, in order of first sight; an overflow comes last, as `other` to no address."""
        entries = [(attempt, count) for attempt, count in self._counts.items()]
        if self._beyond is not None:
            entries.append((Attempt("other", "", 0, None), self._beyond))
        return [
            {
                "protocol": attempt.protocol,
                "address": attempt.address,
                "port": attempt.port,
                "name": attempt.name,
                "verdict": "refused",
                "rule": self._rule,
                "attempts": count.attempts,
                "first_at": count.first_at,
                "last_at": count.last_at,
            }
            for attempt, count in entries
        ]


def parse_packet(packet: bytes) -> Attempt | None:
    """What a packet from its IP header on tries to reach; None if it is too damaged to tell."""
    try:
        return _parse(packet)
    except (IndexError, struct.error, ValueError):
        return None


def _again(count: _Count | None, now: str, *, times: int = 1) -> _Count:
    return _Count(times, now, now) if count is None else _Count(count.attempts + times, count.first_at, now)


def _parse(packet: bytes) -> Attempt | None:
    version = packet[0] >> 4
    if version == 4:
        protocol, body = packet[9], packet[(packet[0] & 0xF) * 4 :]
        address = socket.inet_ntop(socket.AF_INET, packet[16:20])
    elif version == 6:
        protocol, body = packet[6], packet[40:]
        address = socket.inet_ntop(socket.AF_INET6, packet[24:40])
        for _ in range(8):
            if protocol not in _EXTENSIONS:
                break
            length = 8 if protocol == 44 else (body[1] + 1) * 8
            protocol, body = body[0], body[length:]
    else:
        return None
    if protocol in (_TCP, _UDP):
        (port,) = struct.unpack_from("!H", body, 2)
        name = _looked_up(body[8:]) if protocol == _UDP and port == 53 else None
        return Attempt("tcp" if protocol == _TCP else "udp", address, port, name)
    return Attempt("icmp" if protocol in (_ICMP, _ICMP6) else "other", address, 0, None)


def _looked_up(query: bytes) -> str | None:
    """The name a look-up asks for, lower case, with odd bytes escaped; None if there is none to read."""
    try:
        if query[2] & 0x80 or struct.unpack_from("!H", query, 4)[0] < 1:
            return None
        labels: list[str] = []
        place = 12
        while (length := query[place]) != 0:
            if length > 63 or len(labels) > 127 or place + 1 + length > len(query):
                return None
            labels.append("".join(_shown(byte) for byte in query[place + 1 : place + 1 + length]))
            place += 1 + length
    except (IndexError, struct.error):
        return None
    return ".".join(labels).lower() or "."


def _shown(byte: int) -> str:
    return chr(byte) if 0x21 <= byte < 0x7F and byte not in b".\\" else f"\\{byte:03}"
