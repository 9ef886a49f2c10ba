"""The only hand-written pair of the client: one connection, asynchronous and blocking, with the same verbs.

Everything above it is written once, asynchronously, and turned into the blocking form by
`scripts/generate_sync`.
"""

import asyncio
import select
import socket
import ssl

READ_BYTES = 256 * 1024
"""Most bytes taken from the kernel at once; keeps memory flat for answers of any size."""


class AsyncSocket:
    """A connection on the running event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None, timeout_s: float) -> "AsyncSocket":
        """Connect. Raises OSError (TimeoutError included) if nothing answers within *timeout_s*."""
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=READ_BYTES)
        plain = writer.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer)

    @property
    def usable(self) -> bool:
        """False once the far side has closed, or if the connection belongs to another event loop."""
        return (
            not self._reader.at_eof()
            and not self._writer.is_closing()
            and self._reader.exception() is None
            and self._loop is asyncio.get_running_loop()
        )

    async def read(self, timeout_s: float | None) -> bytes:
        """Return some bytes, or none at the end. Raises OSError."""
        if timeout_s is None:
            return await self._reader.read(READ_BYTES)
        async with asyncio.timeout(timeout_s):
            return await self._reader.read(READ_BYTES)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            self._writer.close()


class SyncSocket:
    """The same, blocking."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._closed = False

    @classmethod
    def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None, timeout_s: float) -> "SyncSocket":
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
        self._socket.settimeout(timeout_s)
        return self._socket.recv(READ_BYTES)

    def write(self, data: bytes) -> None:
        self._socket.settimeout(None)
        self._socket.sendall(data)

    def close(self) -> None:
        self._closed = True
        self._socket.close()
