"""A connection to what listens in the box, made inside its network and handed out of it.

The keeper is in the network namespace of its box and nowhere else, so a port of the machine cannot be meant: what
listens on the same number outside does not exist for it. The box needs no way out for this, and gets none by it.

Servers stand on 127.0.0.1, on ::1 or on every address. The second family is tried only where the first one was
refused, as a connection that was made is never made again: whoever took it may have acted on it.
"""

import errno
import socket
import time
from collections.abc import Callable

from coldframe.guest.loop import HANGUP, OUT, Loop, Timer
from coldframe.guest.verbs import Failure

ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
PATIENCE_S = 5.0
"""For a server whose queue is full. On loopback all else is told at once."""
LARGEST_PORT = 65535
_ABSENT = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.EHOSTUNREACH)
"""Nobody is there, or the box has no such family."""


class Dial:
    """One attempt. *done* is called once, perhaps at once: with a connected socket, which is then its own, or why there is none."""

    def __init__(self, loop: Loop, port: int, done: Callable[[socket.socket | Failure], None]) -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= LARGEST_PORT:
            raise Failure("INVALID_ARGUMENT", f"a port is a number of 1 to {LARGEST_PORT}")
        self._loop = loop
        self._port = port
        self._done = done
        self._left = list(ADDRESSES)
        self._until_s = time.monotonic() + PATIENCE_S
        self._trying: socket.socket | None = None
        self._timer: Timer | None = None

    def begin(self) -> None:
        while self._left:
            family, address = self._left.pop(0)
            try:
                one = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno in _ABSENT:
                    continue
                self._end(Failure("INTERNAL", f"no socket can be made in the box: {error.strerror}"))
                return
            one.setblocking(False)
            code = one.connect_ex((address, self._port))
            if code == errno.EINPROGRESS:
                self._wait(one)
                return
            if not self._settled(one, code):
                return
        self._end(_nobody(self._port))

    def _wait(self, one: socket.socket) -> None:
        self._trying = one
        try:
            self._loop.watch(one.fileno(), OUT, self._on_event)
        except OSError:  # the box's user has no event watch left, which its processes can bring about
            self._give_up()
            return
        self._timer = self._loop.after(max(0.0, self._until_s - time.monotonic()), self._give_up, while_held=True)

    def _on_event(self, events: int) -> None:
        assert self._trying is not None
        assert events & (OUT | HANGUP)
        one = self._take()
        assert one is not None
        if self._settled(one, one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            self.begin()

    def _settled(self, one: socket.socket, code: int) -> bool:
        """Whether another address is to be tried; if not, it has been told."""
        if code == 0 and _is_own_end(one):
            one.close()
            return True
        if code == 0:
            self._end(one)
            return False
        one.close()
        if code in _ABSENT:
            return True
        self._end(
            Failure("PREVIEW_UNHEALTHY", f"port {self._port} cannot be connected: {errno.errorcode.get(code, code)}")
        )
        return False

    def _give_up(self) -> None:
        one = self._take()
        if one is not None:
            one.close()
            self._end(
                Failure(
                    "PREVIEW_UNHEALTHY",
                    f"what listens on port {self._port} takes no connection: its queue is full",
                    port=self._port,
                )
            )

    def _take(self) -> socket.socket | None:
        one, self._trying = self._trying, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if one is not None:
            self._loop.forget(one.fileno())
        return one

    def withdraw(self) -> None:
        """Whoever asked is gone."""
        self._done = _unwanted
        self._give_up()

    def _end(self, how: socket.socket | Failure) -> None:
        done, self._done = self._done, _unwanted
        done(how)


def _is_own_end(one: socket.socket) -> bool:
    """Whether it is connected to itself: where nobody listens, the system may have given it the very port that it asks for."""
    try:
        return bool(one.getsockname() == one.getpeername())
    except OSError:  # ended meanwhile, as whoever reads it will see
        return False


def _unwanted(how: socket.socket | Failure) -> None:
    if isinstance(how, socket.socket):
        how.close()


def _nobody(port: int) -> Failure:
    return Failure("PREVIEW_NOT_LISTENING", f"nothing listens on port {port} of the sandbox", port=port)
