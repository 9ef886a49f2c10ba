"""A process that has loaded ipykernel and becomes a kernel whenever one is wanted, by a fork.

It has no thread and no socket of messages; the kernels have theirs. It says how each of them ended.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn


class Nursery:
    """As the context sees it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._pid = 0
        self._kernel = 0
        self._heard = b""
        self._ended: str | None = None
        self._open()

    def bear(self, connection_file: str) -> None:
        """Have a kernel made. Another one must have ended."""
        self._ended = None
        if self._socket is None:
            self._open()
        assert self._socket is not None
        self._kernel = 0
        try:
            self._socket.sendall(json.dumps({"connection_file": connection_file}).encode() + b"\n")
        except OSError:
            self._ended = "what starts it is gone"
            self._close()

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def ended(self) -> str | None:
        """How the kernel ended, once."""
        self._hear()
        ended, self._ended = self._ended, None
        return ended

    def signal(self, number: int) -> None:
        self._hear()
        if self._kernel:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._kernel, number)

    def kill(self) -> None:
        """Gone when this returns, and nothing more is told of it."""
        if self._kernel == 0 and self._socket is not None:
            self._wait(1.0)
        self.signal(signal.SIGKILL)
        while self._socket is not None and self._ended is None:
            self._wait(None)
        self._ended = None

    def _wait(self, wait_s: float | None) -> None:
        assert self._socket is not None
        select.select([self._socket.fileno()], [], [], wait_s)
        self._hear()

    def _hear(self) -> None:
        while self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            part = self._socket.recv(65_536)
            if not part:
                self._close()
                self._ended = "what started it was killed with it"
                return
            *lines, self._heard = (self._heard + part).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "pid" in told:
                    self._kernel = int(told["pid"])
                else:
                    self._kernel, self._ended = 0, str(told["ended"])

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        self._socket = ours

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        with contextlib.suppress(ProcessLookupError):
            if self._kernel:
                os.killpg(self._kernel, signal.SIGKILL)
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._heard = b""


def how_it_ended(code: int) -> str:
    """For people."""
    if code == -signal.SIGKILL:
        return "it was killed, as for want of memory"
    if code < 0:
        return f"it was ended by signal {-code}"
    return f"it exited with {code}"


def _serve(ours: socket.socket) -> NoReturn:
    """Its own life. Ends with whoever made it."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(null, stream)
        from coldframe.kernel import ipython

        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([ours.fileno(), woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                while True:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if pid == 0:
                        break
                    how = how_it_ended(os.waitstatus_to_exitcode(status))
                    ours.sendall(json.dumps({"ended": how}).encode() + b"\n")
            if ours.fileno() in ready:
                line = ours.recv(65_536)
                if not line:
                    code = 0
                    break
                connection_file = json.loads(line)["connection_file"]
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.setsid()
                    ours.close()
                    os.dup2(null, 2)
                    ipython.run(connection_file)
                    code = 0
                    break
                ours.sendall(json.dumps({"pid": pid}).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001  it may not come back into the loop of the context
        if not isinstance(error, SystemExit):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201  the command's standard error
    finally:
        sys.stderr.flush()
        os._exit(code)
