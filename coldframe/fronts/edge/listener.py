"""TLS and plain HTTP on one port: the first byte of a connection tells which it is, and is left to whoever reads next.

So `http://` and `https://` addresses of one sandbox both work, and there is one port to open and to explain.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable

_HANDSHAKE = 0x16
"""The first byte of a TLS connection, and of no HTTP request."""
FIRST_BYTE_S = 60.0
"""How long a connection may say nothing: browsers and SDKs open some ahead."""
HANDSHAKE_S = 20.0
MOST_SILENT = 2048
"""Connections that have said nothing yet; the one that has been silent the longest makes room for another."""
AT_ONCE = 64
"""Connections taken in one turn of the loop."""
AGAIN_S = 1.0
"""After there were no descriptors left."""
_log = logging.getLogger("coldframe.fronts")


class EdgeListener:
    """Takes connections of a socket that listens, and gives each to a protocol of its own."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        make_context: Callable[[], ssl.SSLContext],
    ) -> None:
        """*make_context* is asked at the first TLS connection, and not before: most installations see none."""
        self._listener = listener
        self._make_protocol = make_protocol
        self._make_context = make_context
        self._context: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Take no more. What was handed on is the server's to end."""
        self._loop.remove_reader(self._listener)
        for connection in tuple(self._silent):
            self._drop(connection)
        for task in self._opening:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                _log.error("no connection can be taken at the edge: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(AGAIN_S, self._again)
                return
            connection.setblocking(False)
            self._look(connection)

    def _again(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            self._loop.add_reader(self._listener, self._accept)

    def _look(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if connection not in self._silent:
                if len(self._silent) >= MOST_SILENT:
                    self._drop(next(iter(self._silent)))
                self._silent[connection] = self._loop.call_later(FIRST_BYTE_S, self._drop, connection)
                self._loop.add_reader(connection, self._look, connection)
            return
        except OSError:
            first = b""
        if not first:
            self._drop(connection)
            return
        self._forget(connection)
        task = self._loop.create_task(self._open(connection, is_tls=first[0] == _HANDSHAKE))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, *, is_tls: bool) -> None:
        try:
            if is_tls and self._context is None:
                self._context = self._make_context()
            context = self._context if is_tls else None
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            connection.close()  # whoever it was has left, or does not trust us
        except Exception:  # noqa: BLE001  one connection; the others go on
            connection.close()
            _log.exception("a connection at the edge could not be opened")

    def _forget(self, connection: socket.socket) -> None:
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()
