"""The host end of a keeper's socket: typed requests out, hostile frames in.

Connections are kept and used again, one request at a time each. The socket's path is opened relative
to a directory descriptor, since a data directory may be deeper than the 108 bytes a socket name allows.

Frames are taken apart as they arrive. A stream reader waits for prefix, head and body of each, and copies and
counts on every wait, which was a tenth of what a command costs the server.
"""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from coldframe.contract.errors import ColdframeError, GuestLost, from_wire
from coldframe.guest.frames import LONG_BYTES, PREFIX, SENT_AHEAD_BYTES, BadFrame, decode_head, lengths
from coldframe.host.successor import PATIENCE_S

CONNECT_TIMEOUT_S = 10.0
BUSY_AGAIN_S = 0.02
"""How soon a connection is tried again where too many wait for one already."""
KEPT_CONNECTIONS = 16
SOCKET_NAME = "keeper.sock"
DAEMON_SOCKET_NAME = "daemon.sock"
READ_BYTES = 256 * 1024
"""Most bytes taken from the kernel at once."""
WAITING_BYTES = 1024 * 1024
"""With so many bytes of whole frames that nobody has asked for yet, nothing more is read."""
COPIED_BYTES = 64 * 1024
"""A body up to so long is sent as one piece with its head; a longer one is not copied."""
AHEAD_BYTES = 2 * 1024 * 1024
"""Most room that is made for a body before it comes: how long it will be is the word of the far side."""
FRAME_BYTES = 256
"""What a waiting frame takes beside its content, at least."""
_Frame = tuple[bytes, bytes]
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_of_thread = threading.local()


class LinkLost(GuestLost):
    """This process lost the far side, told apart from a GuestLost that the far side sent."""


def connect(directory: str, socket_name: str = SOCKET_NAME, *, timeout_s: float | None = None) -> socket.socket:
    """A connection to the keeper of the box whose directory is *directory*, with that timeout; None: a blocking one.

    Raises:
        LinkLost: nobody listens there.
        BlockingIOError: so many wait there that one more would have to wait longer.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(timeout_s)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD_BYTES)
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            peer.connect(f"/proc/self/fd/{folder}/{socket_name}")
        finally:
            os.close(folder)
    except BlockingIOError:
        peer.close()
        raise
    except OSError as error:
        peer.close()
        raise LinkLost("the keeper of this sandbox does not answer", reason=str(error.strerror)) from None
    return peer


async def connect_soon(directory: str, socket_name: str = SOCKET_NAME) -> socket.socket:
    """As `connect`, not blocking, for an event loop. Waits while too many others do. Raises LinkLost."""
    while True:
        try:
            return connect(directory, socket_name, timeout_s=0)
        except BlockingIOError:  # its keeper is busy: no reason for this process to stand still
            await asyncio.sleep(BUSY_AGAIN_S)


def _read_buffer() -> bytearray:
    """One for all connections of a thread: an event loop fills it and has it emptied before anything else happens."""
    buffer: bytearray | None = getattr(_of_thread, "buffer", None)
    if buffer is None:
        buffer = _of_thread.buffer = bytearray(READ_BYTES)
    return buffer


class Connection(asyncio.BufferedProtocol):
    """One connection, used by one request at a time."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = _read_buffer()
        self._partial = bytearray()
        """The beginning of a frame."""
        self._wanted = PREFIX.size
        """As many bytes of it must be there before it is looked at again."""
        self._head = b""
        self._blocks: list[bytearray] = []
        """Of a long body that has begun. The kernel puts the rest of it there: into the last, behind what is `_there`."""
        self._there = 0
        self._body_missing = 0
        self._frames: deque[_Frame] = deque()
        self._frames_bytes = 0
        self._reading = True
        self._lost: BaseException | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._full = False

    @property
    def usable(self) -> bool:
        """Whether the far side is there, and owes nothing to an earlier request."""
        return self._lost is None and not self._frames and not self._partial and not self._body_missing

    async def send(self, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
        text = _ENCODER.encode(head).encode("ascii")
        start = PREFIX.pack(len(text), len(body)) + text
        if self._lost is not None:
            raise LinkLost("the keeper of this sandbox ended") from self._lost
        if len(body) <= COPIED_BYTES:
            self._transport.write(start + body if body else start)
        else:
            self._transport.writelines((start, body))
        if self._full:
            self._room = self._loop.create_future()
            await self._room
            if self._lost is not None:
                raise LinkLost("the keeper of this sandbox ended") from self._lost

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame.

        Raises:
            LinkLost: the keeper ended, or does not speak the protocol.
            ColdframeError: the error that the keeper sent, from the closed table.
        """
        while not self._frames:
            if self._lost is not None:
                raise LinkLost("the keeper of this sandbox ended") from self._lost
            if not self._reading:
                self._reading = True
                self._transport.resume_reading()
            self._arrival = self._loop.create_future()
            await self._arrival
        text, body = self._frames.popleft()
        self._frames_bytes -= len(text) + len(body) + FRAME_BYTES
        try:
            head = decode_head(text)
        except BadFrame as error:
            raise LinkLost("the keeper of this sandbox ended") from error
        failure = head.get("error")
        if isinstance(failure, dict):
            raise told(failure)
        return head, body

    def close(self) -> None:
        self._transport.close()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop is no subclass

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        if not self._body_missing:
            return self._buffer
        if self._there == len(self._blocks[-1]):
            self._blocks.append(bytearray(min(AHEAD_BYTES, self._body_missing)))
            self._there = 0
        return memoryview(self._blocks[-1])[self._there :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body_missing:
            self._fill(nbytes)
        else:
            with memoryview(self._buffer) as whole, whole[:nbytes] as data:
                try:
                    self._take(data)
                except BadFrame as error:
                    self._end(error)
                    self._transport.abort()
                    return
        if self._frames_bytes > WAITING_BYTES and self._reading:
            self._reading = False
            self._transport.pause_reading()
        if self._frames:
            _wake(self._arrival)

    def _take(self, data: memoryview) -> None:
        if not self._partial:
            used = self._split(data)
            self._partial += data[used:]
            return
        self._partial += data
        if len(self._partial) >= self._wanted:
            with memoryview(self._partial) as partial:
                used = self._split(partial)
            del self._partial[:used]

    def _split(self, data: memoryview) -> int:
        """Put the whole frames at the beginning of *data* where they are waited for; return how many bytes they are."""
        at = 0
        self._wanted = PREFIX.size
        while len(data) - at >= PREFIX.size:
            head_bytes, body_bytes = lengths(bytes(data[at : at + PREFIX.size]))
            middle = at + PREFIX.size + head_bytes
            end = middle + body_bytes
            if len(data) < end:
                if body_bytes < LONG_BYTES or len(data) < middle:
                    self._wanted = end - at if body_bytes < LONG_BYTES else middle - at
                    break
                self._head = bytes(data[at + PREFIX.size : middle])
                self._blocks, self._there = [bytearray(data[middle:])], len(data) - middle
                self._body_missing = body_bytes - self._there
                return len(data)
            self._put(bytes(data[at + PREFIX.size : middle]), bytes(data[middle:end]))
            at = end
        return at

    def _fill(self, count: int) -> None:
        self._there += count
        self._body_missing -= count
        if not self._body_missing:
            self._put(self._head, b"".join(self._blocks))
            self._blocks = []

    def _put(self, head: bytes, body: bytes) -> None:
        self._frames.append((head, body))
        self._frames_bytes += len(head) + len(body) + FRAME_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("closed by the far side"))

    def _end(self, reason: BaseException) -> None:
        self._lost = self._lost or reason
        self._full = False
        _wake(self._arrival)
        _wake(self._room)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        _wake(self._room)


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def told(failure: dict[str, Any]) -> ColdframeError:
    """The error that the far side sent. A GuestLost that it tells of is not that it is lost itself."""
    error = from_wire(failure)
    if not isinstance(error, LinkLost):
        return error
    told = GuestLost(error.message, hint=error.advice)
    told.facts, told.next_actions = error.facts, error.next_actions
    return told


class Link:
    """A small pool of connections to one keeper. *is_coming* says that where nobody listens somebody soon will."""

    def __init__(
        self, directory: str, *, socket_name: str = SOCKET_NAME, is_coming: Callable[[], bool] = lambda: False
    ) -> None:
        self._directory = directory
        self._socket_name = socket_name
        self._is_coming = is_coming
        self._idle: list[Connection] = []
        self._closed = False

    async def _open(self) -> Connection:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                peer = await connect_soon(self._directory, self._socket_name)
                break
            except LinkLost:
                if time.monotonic() > deadline or not self._is_coming():
                    raise
            await asyncio.sleep(BUSY_AGAIN_S)
        _, connection = await asyncio.get_running_loop().create_unix_connection(Connection, sock=peer)
        return connection

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one request. It goes back to the pool only if the request ran to its end."""
        connection = self._take() or await self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._idle) >= KEPT_CONNECTIONS or not connection.usable:
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

    async def open_ahead(self) -> None:
        """Have a connection for the next request, which is told if there can be none."""
        with contextlib.suppress(GuestLost, OSError):
            connection = await self._open()
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
