"""Reads what the kernel of a box refused to let out, where the box has a way out for the rest.

Behind `Refusals` is one of two sockets, opened by `host/egress/capture.py` while it had the right to, and read with
none. With nftables it is the log of the rule that refuses: each refused packet once, and nothing else. Without, it is
the packet socket of `contacts.py`, which sees all that tries to leave; what has its own listener is left out here,
since whoever takes it records it.

Everything here is written by the box: no packet makes it raise.
"""

import errno
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from coldframe.guest.contacts import BATCH, SNAP_BYTES, Attempt, parse_packet

_PACKET, _PAYLOAD = (4 << 8) | 0, 9
_SO_MEMINFO, _DROPS = 55, 8
_MESSAGE_BYTES = 4 * SNAP_BYTES


class Refusals:
    """Attempts that got nowhere, as they come."""

    def __init__(
        self, source: socket.socket, read: Callable[[bytes], Attempt | None], rule: str = "network:protocol"
    ) -> None:
        self.rule = rule
        """What refuses: in a box with a way out everything but TCP and look-ups."""
        self._source = source
        self._read = read
        self._dropped = 0

    def fileno(self) -> int:
        return self._source.fileno()

    def read_ready(self) -> tuple[list[Attempt], bool]:
        """Take what waits, at most `BATCH` messages, and say whether more may wait. Never blocks."""
        attempts: list[Attempt] = []
        for _ in range(BATCH):
            try:
                message = self._source.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return attempts, False
            except OSError as error:
                if error.errno == errno.ENETDOWN:  # told once when `lo` changes; not an end
                    continue
                return attempts, False
            attempt = self._read(message)
            if attempt is not None:
                attempts.append(attempt)
        return attempts, True

    def newly_dropped(self) -> int:
        """Messages that came faster than they were read, since this was asked last."""
        memory = self._source.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4 * (_DROPS + 1))
        (dropped,) = struct.unpack_from("=I", memory, 4 * _DROPS)
        newly, self._dropped = (dropped - self._dropped) & 0xFFFFFFFF, dropped
        return int(newly)

    def close(self) -> None:
        self._source.close()


def logged_attempt(message: bytes) -> Attempt | None:
    """What a message of the kernel's log tells of; None if there is no packet in it that can be read."""
    try:
        packet = _logged_packet(message)
    except struct.error:
        return None
    return None if packet is None else parse_packet(packet)


def _logged_packet(message: bytes) -> bytes | None:
    length, kind = struct.unpack_from("=IH", message)
    if kind != _PACKET:
        return None
    place, end = 20, min(length, len(message))
    while place < end:
        size, kind = struct.unpack_from("=HH", message, place)
        if size < 4:
            return None
        if kind == _PAYLOAD:
            return message[place + 4 : min(place + size, end)]
        place += (size + 3) & ~3
    return None


class Served(NamedTuple):
    """What has a listener of its own, where only named ports have one."""

    ports: frozenset[int]
    """TCP, on every address."""
    own_address: str
    """What goes there, as look-ups and their replies do, is no attempt to leave."""

    def attempt(self, packet: bytes) -> Attempt | None:
        """As `contacts.parse_packet`, without what is served."""
        attempt = parse_packet(packet)
        if attempt is None or attempt.address == self.own_address:
            return None
        return None if attempt.protocol == "tcp" and attempt.port in self.ports else attempt
