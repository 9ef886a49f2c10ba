"""The host end of a keeper's socket: typed requests out, hostile frames in.

Connections are kept and used again, one request at a time each. The socket's path is opened relative
to a directory descriptor, since a data directory may be deeper than the 108 bytes a socket name allows.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from coldframe.contract.errors import ColdframeError, GuestLost, from_wire
from coldframe.guest.frames import PREFIX, BadFrame, decode_head, encode, lengths

CONNECT_TIMEOUT_S = 10.0
KEPT_CONNECTIONS = 16
SOCKET_NAME = "keeper.sock"


class LinkLost(GuestLost):
    """This process lost the far side, told apart from a GuestLost that the far side sent."""


def connect(directory: str, socket_name: str = SOCKET_NAME) -> socket.socket:
    """A blocking connection to the keeper of the box whose directory is *directory*.

    Raises:
        LinkLost: nobody listens there.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            peer.connect(f"/proc/self/fd/{folder}/{socket_name}")
        finally:
            os.close(folder)
    except OSError as error:
        peer.close()
        raise LinkLost("the keeper of this sandbox does not answer", reason=str(error.strerror)) from None
    return peer


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        try:
            self._writer.write(encode(head, body))
            await self._writer.drain()
        except OSError as error:
            raise LinkLost("the keeper of this sandbox ended") from error

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame.

        Raises:
            LinkLost: the keeper ended, or does not speak the protocol.
            ColdframeError: the error that the keeper sent, from the closed table.
        """
        try:
            head_bytes, body_bytes = lengths(await self._reader.readexactly(PREFIX.size))
            head = decode_head(await self._reader.readexactly(head_bytes))
            body = await self._reader.readexactly(body_bytes) if body_bytes else b""
        except (OSError, asyncio.IncompleteReadError, BadFrame) as error:
            raise LinkLost("the keeper of this sandbox ended") from error
        failure = head.get("error")
        if isinstance(failure, dict):
            raise _told(failure)
        return head, body

    def close(self) -> None:
        self._writer.close()


def _told(failure: dict[str, Any]) -> ColdframeError:
    """The error that the far side sent. A GuestLost that it tells of is not that it is lost itself."""
    error = from_wire(failure)
    if not isinstance(error, LinkLost):
        return error
    told = GuestLost(error.message, hint=error.hint)
    told.facts, told.next_actions = error.facts, error.next_actions
    return told


class Link:
    """A small pool of connections to one keeper."""

    def __init__(self, directory: str, *, socket_name: str = SOCKET_NAME) -> None:
        self._directory = directory
        self._socket_name = socket_name
        self._idle: list[Connection] = []
        self._closed = False

    async def _open(self) -> Connection:
        peer = connect(self._directory, self._socket_name)
        peer.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=peer, limit=1 << 20)
        return Connection(reader, writer)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one request. It goes back to the pool only if the request ran to its end."""
        connection = self._idle.pop() if self._idle else await self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._idle) >= KEPT_CONNECTIONS:
            connection.close()
        else:
            self._idle.append(connection)

    async def request(self, head: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """One question, one answer."""
        async with self.connection() as connection:
            await connection.send(head, body)
            answer, content = await connection.receive()
        value = answer.get("answer")
        if not isinstance(value, dict):
            raise GuestLost("the keeper of this sandbox gave a malformed answer")
        return value, content

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
