"""One blocking connection, with the verbs of `sockets.py`.

A file of its own: a program that blocks loads no asyncio.
"""

import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

READ_BYTES = 256 * 1024
"""Most bytes taken from the kernel at once; keeps memory flat for answers of any size."""
FIRST_READ_BYTES = 16 * 1024
"""The same where no more are expected. Room for READ_BYTES is asked of the kernel and given back on each read, which
takes longer than to read a short answer."""


class SyncSocket:
    """A connection that waits where it is used."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._timeout_s = plain.gettimeout()
        self._read_bytes = FIRST_READ_BYTES
        self._closed = False

    @classmethod
    def open(cls, host: str, port: int, *, tls: "ssl.SSLContext | None", timeout_s: float) -> "SyncSocket":
        """Connect. Raises OSError (TimeoutError included) if nothing answers within *timeout_s*."""
        plain = socket.create_connection((host, port), timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            plain = tls.wrap_socket(plain, server_hostname=host)
        return cls(plain)

    @property
    def usable(self) -> bool:
        """False once the far side has closed: an idle connection with something to read is at its end."""
        if self._closed:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def read(self, timeout_s: float | None) -> bytes:
        """Return some bytes, or none at the end. Raises OSError."""
        self._wait_at_most(timeout_s)
        data = self._socket.recv(self._read_bytes)
        self._read_bytes = READ_BYTES if len(data) >= FIRST_READ_BYTES else FIRST_READ_BYTES
        return data

    def write(self, data: bytes) -> None:
        self._wait_at_most(None)
        self._socket.sendall(data)

    def _wait_at_most(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # to set it is a system call, also to what it is
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def close(self) -> None:
        self._closed = True
        self._socket.close()
