"""One connection on an event loop. With `blocking_sockets.py` the only hand-written pair of the client.

Everything above it is written once, asynchronously, and turned into the blocking form by
`scripts/generate_sync`.
"""

import asyncio
import socket
import ssl

from coldframe.client.blocking_sockets import READ_BYTES


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
        """False once an idle connection has something to read, be it the end, or if it belongs to another
        event loop."""
        return (
            self._loop is asyncio.get_running_loop()
            and not self._writer.is_closing()
            and self._reader.exception() is None
            and not self._has_unread()
        )

    def _has_unread(self) -> bool:
        """Whether a read would return at once. It takes what it returns: the connection is of no use then."""
        reading = self._reader.read(1)
        try:
            reading.send(None)
        except StopIteration:
            return True
        reading.close()
        return False

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
