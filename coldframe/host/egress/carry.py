"""Carries bytes between two connected sockets, both ways, without looking at them.

The kernel moves pages from socket to pipe to socket (splice), so neither the memory nor the processor time of the broker
grows with what passes. A pipe is lent to a direction only while it holds bytes on their way: with a thousand idle
connections there is none, and what a slow reader leaves behind is bounded by one pipe each. Only what a box sends is copied
here, where somebody wants its digest: of that there is little, and an upload at 400 MiB/s takes a third of a core for it.

An end of one side is passed on as the end of that direction; a broken side breaks the other one as well, so neither
program takes half an answer for a whole one.
"""

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Protocol

CHUNK_BYTES = 1 << 20
"""Most that is taken at once. A pipe holds 64 KiB in 16 pieces, or more in larger ones."""
FEW_BYTES = 16 * 1024
"""After which it is not asked at once whether there are more."""
READ_BYTES = 256 * 1024
"""Most that is copied here at once."""
TURNS = 16
"""Chunks of one direction before others have their turn."""
MOST_IDLE_PIPES = 16
HALF_IDLE_S = 600.0
"""How long nothing may pass once one side has ended. Whoever waits for an answer that long asks again; a program that is
gone looks the same."""
MOST_WAITING_BYTES = 1 << 20
"""That a side may be ahead of the other, in the kernel, each way: enough for 80 Mbit/s over 100 ms. With a quarter of it
carrying takes a third more processor time."""
AGAIN_S = 0.1
"""When there is no descriptor left: then somebody else may have ended."""
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 120), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 4))
"""Seconds, seconds and times, in place of two hours: whoever is gone without a word is noticed after four minutes."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

_AT_ONCE, _LATER = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
_NOW = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


class Pipe:
    """Two descriptors, and how many bytes lie between them."""

    __slots__ = ("held", "read", "write")

    def __init__(self) -> None:
        self.read, self.write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.held = 0

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


class Pipes:
    """Empty pipes, lent and given back."""

    def __init__(self) -> None:
        self._idle: list[Pipe] = []

    def take(self) -> Pipe:
        """Raises OSError if there is none and none can be made."""
        return self._idle.pop() if self._idle else Pipe()

    def give(self, pipe: Pipe) -> None:
        if pipe.held or len(self._idle) >= MOST_IDLE_PIPES:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Digest(Protocol):
    """As of hashlib."""

    def update(self, data: "bytes | memoryview", /) -> None: ...


class Carrier:
    """Both directions of one connection. Takes the sockets over: it closes them, and says so through `ended`."""

    def __init__(
        self, inner: socket.socket, outer: socket.socket, pipes: Pipes, digest: "Digest | None" = None
    ) -> None:
        """*digest* is of all that passes outward, from now on."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """How: `closed`, or what broke it."""
        self._sockets = (inner, outer)
        self._outward: _Direction
        if digest is None:
            self._outward = _Direction(inner, outer, pipes, self._on_end)
        else:
            self._outward = _DigestedDirection(inner, outer, pipes, self._on_end, digest)
        self._inward = _Direction(outer, inner, pipes, self._on_end)
        self._watch: asyncio.TimerHandle | None = None

    @property
    def sent_bytes(self) -> int:
        """From the box to the world."""
        return self._outward.passed_bytes

    @property
    def received_bytes(self) -> int:
        return self._inward.passed_bytes

    def start(self) -> None:
        self._outward.start()
        self._inward.start()

    def abort(self, reason: str) -> None:
        """Break both sides now."""
        if self.ended.done():
            return
        self._stop_watching()
        self._outward.stop()
        self._inward.stop()
        for one in self._sockets:
            reset(one)
        self.ended.set_result(reason)

    def _on_end(self, broken: str) -> None:
        if broken:
            self.abort(broken)
        elif self.ended.done():
            return
        elif not (self._outward.is_over and self._inward.is_over):
            self._watch_half(-1)
        else:
            self._stop_watching()
            for one in self._sockets:
                close_orderly(one)
            self.ended.set_result("closed")

    def _watch_half(self, passed_bytes: int) -> None:
        """One side has ended. Called again and again, with what had passed the last time."""
        now = self.sent_bytes + self.received_bytes
        if now == passed_bytes:
            self.abort("nothing passed any more after one side had ended")
        else:
            self._watch = asyncio.get_running_loop().call_later(HALF_IDLE_S, self._watch_half, now)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


class _Direction:
    def __init__(self, source: socket.socket, sink: socket.socket, pipes: Pipes, on_end: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source.fileno(), sink.fileno()
        self._end_sink = sink.shutdown
        self._pipes = pipes
        self._pipe: Pipe | None = None
        self._on_end = on_end
        self._waits_for_sink = False
        self.passed_bytes = 0
        self.is_over = False

    def start(self) -> None:
        self._loop.add_reader(self._source, self._move)

    def stop(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self._waits_for_sink:
                self._loop.remove_writer(self._sink)
            else:
                self._loop.remove_reader(self._source)
        if self._pipe is not None:
            self._pipes.give(self._pipe)
            self._pipe = None

    def _move(self) -> None:
        """Called when the source has something, while nothing waits for the sink."""
        try:
            for _ in range(TURNS):
                came = self._fill()
                if not came:
                    return
                if not self._drain():
                    self._waits_for_sink = True
                    self._loop.remove_reader(self._source)
                    self._loop.add_writer(self._sink, self._go_on)
                    return
                if came < FEW_BYTES:
                    return
        except OSError as error:
            self._break(error)

    def _go_on(self) -> None:
        try:
            if self._drain():
                self._waits_for_sink = False
                self._loop.remove_writer(self._sink)
                self._loop.add_reader(self._source, self._move)
        except OSError as error:
            self._break(error)

    def _fill(self) -> int:
        """How many bytes; 0 if nothing is there now, or nothing will come any more."""
        try:
            pipe = self._pipe = self._pipes.take()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            self._loop.remove_reader(self._source)  # what has come waits in the kernel
            self._loop.call_later(AGAIN_S, self._read_again)
            return 0
        try:
            pipe.held = os.splice(self._source, pipe.write, CHUNK_BYTES, flags=_NOW)
        except BlockingIOError:
            self._return_pipe()
            return 0
        if pipe.held == 0:
            self._finish()
        return pipe.held

    def _read_again(self) -> None:
        if not self.is_over:
            self._loop.add_reader(self._source, self._move)

    def _drain(self) -> bool:
        """False if the sink takes no more now."""
        pipe = self._pipe
        assert pipe is not None
        while pipe.held:
            try:
                moved = os.splice(pipe.read, self._sink, pipe.held, flags=_NOW)
            except BlockingIOError:
                return False
            pipe.held -= moved
            self.passed_bytes += moved
        self._return_pipe()
        return True

    def _return_pipe(self) -> None:
        if self._pipe is not None:
            self._pipes.give(self._pipe)
            self._pipe = None

    def _finish(self) -> None:
        self.stop()
        try:
            self._end_sink(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # gone already: its own direction tells how
                self._on_end(error.strerror or "broken")
                return
        self._on_end("")

    def _break(self, error: OSError) -> None:
        self.stop()
        self._on_end(error.strerror or "broken")


class _DigestedDirection(_Direction):
    """One whose bytes come by here."""

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        pipes: Pipes,
        on_end: Callable[[str], None],
        digest: "Digest",
    ) -> None:
        super().__init__(source, sink, pipes, on_end)
        self._digest = digest
        self._left = memoryview(b"")

    def _fill(self) -> int:
        try:
            data = os.read(self._source, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._finish()
        self._left = memoryview(data)
        return len(data)

    def _drain(self) -> bool:
        while self._left:
            try:
                moved = os.write(self._sink, self._left)
            except BlockingIOError:
                return False
            self._digest.update(self._left[:moved])
            self._left = self._left[moved:]
            self.passed_bytes += moved
        return True


def break_if_dropped(connection: socket.socket) -> None:
    """From now on a close that is not `close_orderly` is a break to the other side, also that of a killed process."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def keep_alive(connection: socket.socket) -> None:
    """Notice that the other side is gone although it did not say so."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, name, value)


def bound_memory(connection: socket.socket) -> None:
    """Bound what the kernel holds of it. Not by sizes of buffers, which the kernel would then not fit to the distance."""
    for name in (socket.TCP_WINDOW_CLAMP, socket.TCP_NOTSENT_LOWAT):
        with contextlib.suppress(OSError):  # not every kernel knows both
            connection.setsockopt(socket.IPPROTO_TCP, name, MOST_WAITING_BYTES)


def close_orderly(connection: socket.socket) -> None:
    """Close after both ends were passed on."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LATER)
    connection.close()


def reset(connection: socket.socket) -> None:
    """Close so that the other side cannot take it for an orderly end."""
    with contextlib.suppress(OSError):
        break_if_dropped(connection)
    connection.close()
