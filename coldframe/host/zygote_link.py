"""The machine's end of its zygote: started when it is first wanted, and again when it has died."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from coldframe.host.conversation import fitting
from coldframe.host.strays import kill_strays, mark_of

END_S = 2.0
"""For the zygote to end by itself."""


class ZygoteLink:
    """Hands orders to the zygote of one machine. Whoever calls a method holds `turn`, and every method may block."""

    def __init__(self, installation: str) -> None:
        self._installation = installation
        self.turn = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._closed = False

    def send(self, order: bytes, files: Sequence[int]) -> None:
        """To be answered by the keeper that is forked for it. A zygote that died meanwhile is started again, once.

        Raises:
            ValueError: it is too long.
            OSError: there is no zygote to be had.
        """
        order = fitting(order)
        try:
            socket.send_fds(self.start(), [order], files)
        except OSError:
            self._end()
            socket.send_fds(self.start(), [order], files)

    def start(self) -> socket.socket:
        """Its socket; it is started unless it runs."""
        if self._channel is not None and self.process is not None and self.process.poll() is None:
            return self._channel
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "this machine builds no more")
        self._end()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = (
            "import os, sys; "
            f"given = {theirs.fileno()}; given == 3 or (os.dup2(given, 3), os.close(given)); sys.path.append({home!r}); "
            "from coldframe.host.zygote import main; main()"
        )
        mine.setblocking(True)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, mark_of(self._installation)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        theirs.close()
        self._channel = mine
        return mine

    def close(self) -> None:
        """End the zygote; it is not started again."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.process is not None:
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:  # stopped by somebody, say
                self.process.kill()
                self.process.wait()
            self.process = None
            kill_strays(mark_of(self._installation))  # those that were its children are nobody's now
