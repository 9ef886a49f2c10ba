"""One end of the socket between host daemon and broker, in an event loop: messages go out in their order.

While the other side does not read, they wait here. What may happen then differs: the daemon gives a broker up that does
not answer; the broker stands still, which slows down whoever floods it instead of losing a record.
"""

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence

from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import Arrivals, hand_over

BATCH = 64
"""Messages that are read before others have their turn."""
_AGAIN_S = 0.05


class Channel:
    """Owns the socket. What cannot be sent since the other side is gone is dropped: reading tells that it is."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], object]] = deque()
        self._files: set[int] = set()
        self._is_watched = False

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def listen(self, on_ready: Callable[[socket.socket], None]) -> None:
        """Call *on_ready* whenever there is something to read."""
        self._loop.add_reader(self._end, on_ready, self._end)

    def send(self, message: bytes, files: Sequence[int] = ()) -> None:
        """*files* are closed once they are on their way."""
        self._files.update(files)

        def put() -> None:
            if files:
                socket.send_fds(self._end, [message], list(files))
                self._close_files(files)
            else:
                self._end.send(message)

        self._put(put)

    def send_arrivals(self, arrivals: Arrivals) -> None:
        self._put(lambda: hand_over(arrivals, self._end))

    def stand_still(self, timeout_s: float) -> bool:
        """Block until nothing waits; False if that takes too long."""
        writable = select.poll()
        writable.register(self._end, select.POLLOUT)
        while self._waiting:
            if not writable.poll(timeout_s * 1000):
                return False
            self._go_on()
        return True

    def close(self) -> None:
        if self._end.fileno() < 0:
            return
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._waiting.clear()
        self._close_files(tuple(self._files))
        self._end.close()

    def _put(self, step: Callable[[], object]) -> None:
        self._waiting.append(step)
        if len(self._waiting) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._end.fileno() >= 0:
            try:
                self._waiting[0]()
            except BlockingIOError:
                if not self._is_watched:
                    self._is_watched = True
                    self._loop.add_writer(self._end, self._go_on)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # files on their way; they arrive when the other side reads
                    self._loop.call_later(_AGAIN_S, self._go_on)
                    return
                self._waiting.clear()
                break
            self._waiting.popleft()
        if self._is_watched and self._end.fileno() >= 0:
            self._is_watched = False
            self._loop.remove_writer(self._end)

    def _close_files(self, files: Sequence[int]) -> None:
        for file in files:
            self._files.discard(file)
            with contextlib.suppress(OSError):
                os.close(file)


def receive(end: socket.socket) -> tuple[bytes, list[int]] | None:
    """One message and the files that came along; empty at the end, None if nothing is there yet.

    Raises MessageInvalid: it is longer than it may be. The files of such a one are closed.
    """
    while True:
        try:
            message, files, flags, _ = socket.recv_fds(end, messages.MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            break
        except BlockingIOError:
            return None
        except ConnectionResetError:  # told once; what was sent before is still there
            continue
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for file in files:
            os.close(file)
        raise messages.MessageInvalid("a message that is too long")
    return message, files
