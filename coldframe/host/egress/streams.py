"""A connected socket as something to read from and to write to, plain or through TLS, without a buffer of its own.

Not asyncio's own streams: those cannot take a connection over whose first bytes were read already, and read ahead as
they like. Here a byte is taken when somebody asks for it, so what a slow side leaves behind stays in the kernel.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from coldframe.host.egress.carry import close_orderly
from coldframe.host.egress.turns import receive, send_all

READ_BYTES = 64 * 1024
FAREWELL_S = 2.0
"""How long what is still coming is thrown away at an end, so that it does not break off the last answer."""


class Stream:
    """A plain one. Owns the socket."""

    def __init__(self, connection: socket.socket, first: bytes = b"") -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        """On the wire."""
        self.is_cut = False
        """It ended without saying that this is the end, where it could have said so."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._ahead = first
        self._is_watched = False

    async def receive(self) -> bytes:
        """The next bytes, at most about `READ_BYTES`; none at the end. One caller at a time."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        return await self._read()

    async def send(self, data: bytes) -> None:
        await self._write(data)

    def take_now(self) -> bytes | None:
        """What can be had without waiting; None if there is nothing, empty at the end."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        return self._open_up(self._receive_now())

    def watch(self, on_end: Callable[[], None]) -> None:
        """Until `unwatch`, while nobody reads: call *on_end* once the other side has ended."""
        if not self._ahead:
            self._is_watched = True
            self._loop.add_reader(self._connection.fileno(), self._look, on_end)

    def unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._connection.fileno())

    def break_off(self) -> None:
        """Both sides see an end, also who is reading here now."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is broken already

    async def finish(self) -> None:
        """End it so that what was sent arrives, also where it is not read before this returns."""
        self.unwatch()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._say_end()
                self._connection.shutdown(socket.SHUT_WR)
                while await receive(self._connection, READ_BYTES):
                    pass
        except (OSError, TimeoutError):
            pass  # it has ended in another way
        close_orderly(self._connection)

    def close(self) -> None:
        self.unwatch()
        self._connection.close()

    def count_anew(self) -> None:
        self.sent_bytes = self.received_bytes = 0

    def _look(self, on_end: Callable[[], None]) -> None:
        data = self.take_now()
        if data is None:
            return
        self.unwatch()
        if data:
            self._ahead = data  # more than this is not taken before somebody asks
        else:
            on_end()

    async def _read(self) -> bytes:
        data = await receive(self._connection, READ_BYTES)
        self.received_bytes += len(data)
        return data

    async def _write(self, data: bytes) -> None:
        await send_all(self._connection, data)
        self.sent_bytes += len(data)

    def _receive_now(self) -> bytes | None:
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self.received_bytes += len(data)
        return data

    def _open_up(self, data: bytes | None) -> bytes | None:
        return data

    async def _say_end(self) -> None:
        return


class Handshake:
    """The side of a client, whose first message is made before there is a connection."""

    def __init__(self, context: ssl.SSLContext, server_name: str, protocols: tuple[str, ...] = ("http/1.1",)) -> None:
        """*protocols* are offered. Raises ssl.SSLError, ValueError: it can be no client of that."""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context.set_alpn_protocols(list(protocols))  # what is made of it from here on has its own copy
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=server_name)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()


class TlsStream(Stream):
    """One through TLS. `shake_hands` comes first."""

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext | Handshake,
        *,
        first: bytes = b"",
    ) -> None:
        """By a *context* this is the server, which has read *first* already; by a handshake, the client."""
        super().__init__(connection)
        if isinstance(context, Handshake):
            self._in, self._out, self._tls = context.incoming, context.outgoing, context.tls
        else:
            self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._in.write(first)
            self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._sending = asyncio.Lock()

    @property
    def protocol(self) -> str | None:
        """What both sides have agreed on."""
        return self._tls.selected_alpn_protocol()

    async def shake_hands(self) -> None:
        """Raises ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._flush()  # says why
                raise
        if self._tls.server_side:
            await self._flush()
            self._connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1
            )  # else who waits for it has to, 40 ms
        # A client's last words go out together with what it asks.

    async def _read(self) -> bytes:
        while True:
            data = self._decrypt()
            if self._out.pending:
                await self._flush()
            if data is not None:
                return data
            await self._fill()

    async def _write(self, data: bytes) -> None:
        self._tls.write(data)
        await self._flush()

    def _open_up(self, data: bytes | None) -> bytes | None:
        if data:
            self._in.write(data)
        elif data is not None:
            self._in.write_eof()
        try:
            return self._decrypt()  # also what was read before and not asked for
        except ssl.SSLError:
            return b""

    def _decrypt(self) -> bytes | None:
        parts: list[bytes] = []
        room = READ_BYTES
        try:
            while room > 0 and (part := self._tls.read(room)):
                parts.append(part)
                room -= len(part)
        except ssl.SSLWantReadError:
            return b"".join(parts) if parts else None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as end:
            self.is_cut = isinstance(end, ssl.SSLEOFError)
        return b"".join(parts)

    async def _fill(self) -> None:
        data = await super()._read()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        async with self._sending:  # records go out in the order in which they were made
            while self._out.pending:
                await super()._write(self._out.read())

    async def _say_end(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other side has not said so yet
        await self._flush()
