"""What comes out of a box: the sockets made inside its network namespace (`capture.py`), as the broker gets them.

They are handed over as one message of a unix socket, which is checked like one from the box itself: the keeper that
sends it lives at the box's edge. Where a connection was meant to go is read from the kernel by whoever holds it, in
whatever network namespace that is.
"""

import json
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from coldframe.host.confine import ConfineError

Mechanism = Literal["nftables", "anyip"]

_STEP = "capture the traffic of the box"
_MESSAGE_BYTES = 65536
_MOST_FILES = 253
"""What one message of a unix socket carries."""
_ORIGINAL_DST = 80
NETLINK_SOCK_DIAG = 4
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_PROTOCOLS: dict[int, int] = {socket.SOCK_STREAM: socket.IPPROTO_TCP, socket.SOCK_DGRAM: socket.IPPROTO_UDP}


class CaptureFailed(ConfineError):
    """A step did not take. The box has no way out, and must not be served as one that has."""


class Destination(NamedTuple):
    """Where a program of the box wanted to go."""

    address: str
    port: int


class Arrivals(NamedTuple):
    """What comes out of a box, as the broker gets it. Non-blocking; accepted connections inherit TCP_NODELAY."""

    mechanism: Mechanism
    reason: str
    """Why it is not `nftables`; empty if it is."""
    ports: tuple[int, ...]
    """TCP ports that arrive; empty for all."""
    connections: tuple[socket.socket, ...]
    """Listeners of captured connections."""
    look_ups: tuple[socket.socket, ...]
    """UDP sockets of the resolver: the reply to whoever is told by `recvfrom` arrives with the right source."""
    long_look_ups: tuple[socket.socket, ...]
    """Listeners for look-ups over TCP."""
    diagnosis: tuple[socket.socket, ...] = ()
    """One at most, by which the kernel tells who in the box holds a connection (`holders.py`). None of the broker's."""

    def sockets(self) -> tuple[socket.socket, ...]:
        return (*self.connections, *self.look_ups, *self.long_look_ups, *self.diagnosis)

    def with_sockets(self, sockets: Sequence[socket.socket]) -> "Arrivals":
        """The same with others, in the order of `sockets`."""
        first = len(self.connections)
        second = first + len(self.look_ups)
        third = second + len(self.long_look_ups)
        return self._replace(
            connections=tuple(sockets[:first]),
            look_ups=tuple(sockets[first:second]),
            long_look_ups=tuple(sockets[second:third]),
            diagnosis=tuple(sockets[third:]),
        )

    def close(self) -> None:
        for one in self.sockets():
            one.close()


def original_destination(connection: socket.socket, mechanism: Mechanism) -> Destination:
    """Where an accepted connection was meant to go, read from the kernel in whatever process holds it.

    Raises OSError: it has ended and is forgotten, or was not captured. Whoever cannot tell must refuse.
    """
    if mechanism == "anyip":
        address, port = connection.getsockname()[:2]
        return Destination(address.partition("%")[0], port)
    if connection.family == socket.AF_INET6:
        told = connection.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, 28)
        (port,) = struct.unpack_from("!H", told, 2)
        return Destination(socket.inet_ntop(socket.AF_INET6, told[8:24]), port)
    told = connection.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DST, 16)
    (port,) = struct.unpack_from("!H", told, 2)
    return Destination(socket.inet_ntop(socket.AF_INET, told[4:8]), port)


def hand_over(arrivals: Arrivals, channel: socket.socket) -> None:
    """Send a copy of every socket, as one message. *channel* is a unix socket; on a stream nothing else is under way.

    Raises OSError.
    """
    told = {
        "mechanism": arrivals.mechanism,
        "reason": arrivals.reason,
        "ports": arrivals.ports,
        "sockets": [len(arrivals.connections), len(arrivals.look_ups), len(arrivals.long_look_ups)],
        "diagnosis": len(arrivals.diagnosis),
    }
    socket.send_fds(channel, [json.dumps(told).encode()], [one.fileno() for one in arrivals.sockets()])


def receive(channel: socket.socket) -> Arrivals:
    """What `hand_over` sent. The message is checked like one from the box itself, since a keeper lives at its edge.

    Raises:
        CaptureFailed: it is not what it should be; what came along is closed.
        OSError: from the channel.
    """
    with ExitStack() as opened:
        message, ancillary, flags, _ = channel.recvmsg(
            _MESSAGE_BYTES, socket.CMSG_SPACE(4 * _MOST_FILES), socket.MSG_CMSG_CLOEXEC
        )
        files = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files += [number for (number,) in struct.iter_unpack("=i", data[: len(data) // 4 * 4])]
        for number in files:
            opened.callback(partial(os.close, number))
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise CaptureFailed(_STEP, "the message about it was too long")
        try:
            arrivals = _told(json.loads(message), files)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, OSError) as error:
            raise CaptureFailed(_STEP, f"the message about it was damaged: {type(error).__name__}") from error
        opened.pop_all()
        return arrivals


def _told(message: dict[str, Any], files: list[int]) -> Arrivals:
    """Raises what a wrong message brings about; leaves the files to the caller then."""
    connections, look_ups, long_look_ups = (int(count) for count in message["sockets"])
    diagnosis = int(message.get("diagnosis", 0))  # an older keeper has none
    kinds: list[tuple[int | None, int]] = [
        *((socket.SOCK_STREAM, connections), (socket.SOCK_DGRAM, look_ups), (socket.SOCK_STREAM, long_look_ups)),
        (None, diagnosis),
    ]
    if message["mechanism"] not in get_args(Mechanism) or not isinstance(message["reason"], str):
        raise ValueError("mechanism")
    if min(count for _, count in kinds) < 0 or sum(count for _, count in kinds) != len(files) or diagnosis > 1:
        raise ValueError("sockets")
    ports = tuple(_port(port) for port in message["ports"])
    wanted = [kind for kind, count in kinds for _ in range(count)]
    sockets: list[socket.socket] = []
    try:
        for number, kind in zip(files, wanted, strict=True):
            sockets.append(_checked_diagnosis(number) if kind is None else _checked(number, kind))
    except BaseException:
        for one in sockets:
            one.detach()
        raise
    place = connections + look_ups
    return Arrivals(
        mechanism=message["mechanism"],
        reason=message["reason"][:1000],
        ports=ports,
        connections=tuple(sockets[:connections]),
        look_ups=tuple(sockets[connections:place]),
        long_look_ups=tuple(sockets[place : place + long_look_ups]),
        diagnosis=tuple(sockets[place + long_look_ups :]),
    )


def _port(number: object) -> int:
    if not isinstance(number, int) or not 0 < number < 65536:
        raise ValueError("port")
    return number


def _checked_diagnosis(number: int) -> socket.socket:
    one = socket.socket(fileno=number)
    try:
        if one.family != socket.AF_NETLINK or one.proto != NETLINK_SOCK_DIAG:
            raise ValueError("kind of a socket")
        one.setblocking(False)
    except BaseException:
        one.detach()
        raise
    return one


def _checked(number: int, kind: int) -> socket.socket:
    one = socket.socket(fileno=number)
    try:
        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        # Of others than TCP and UDP, as of MPTCP, nobody has tried what the kernel tells about them.
        is_known = one.family in _FAMILIES and one.type == kind and one.proto == _PROTOCOLS[kind]
        if not is_known or bool(listens) != (kind == socket.SOCK_STREAM):
            raise ValueError("kind of a socket")
        one.setblocking(False)
    except BaseException:
        one.detach()
        raise
    return one
