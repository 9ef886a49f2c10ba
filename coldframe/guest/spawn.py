"""Starts one command: from the keeper by fork, straight into the box.

The keeper has joined the box's namespaces, holds no right and is filtered, so a fork of it *is* a
process of the box: there is nothing to enter and no helper inside that the payload could kill, stop or
imitate. Between fork and exec the child is not dumpable, so no neighbour can trace it or read its memory.

The child reports over a pipe that closes on exec: its process id inside the box, then, only if the
start fails, which step failed and why. A start that fails is a result (126, 127), not an error.
"""

import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable
from typing import NamedTuple

PIPE_PACKET_BYTES = 4096
"""Smallest pipe: one write at a time and per stream, which makes the order of writes observable."""
PIPE_BULK_BYTES = 1024 * 1024
F_SETPIPE_SZ = 1031
SHELL = "/bin/bash"
SHELL_ARGUMENT_BYTES = 100_000
"""Linux caps one argument at 128 KiB; longer text goes to the shell as a script on a descriptor."""

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441


class Output(NamedTuple):
    """The keeper's read end of one stream and, until bulk mode, its hold on the write end."""

    read: int
    write: int


class Child(NamedTuple):
    pid: int
    """In the keeper's own process namespace, for waiting."""
    pidfd: int
    report: int
    """Read end of the start report; end of file means that exec succeeded or the child died."""


def open_output() -> Output:
    """A pipe in packet mode with room for one write, so that each read is one write."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.fcntl(read, F_SETPIPE_SZ, PIPE_PACKET_BYTES)
    # Non-blocking for us alone would be wrong for the child: clear it on its end, set packets.
    fcntl.fcntl(write, fcntl.F_SETFL, os.O_DIRECT)
    return Output(read, write)


def make_bulk(output: Output) -> None:
    """Trade the exact order for throughput: a large pipe, and writes that merge."""
    try:
        fcntl.fcntl(output.read, F_SETPIPE_SZ, PIPE_BULK_BYTES)
    except OSError:  # over the user's pipe budget: stays small, only slower
        pass
    fcntl.fcntl(output.write, fcntl.F_SETFL, 0)


def open_terminal(columns: int, rows: int) -> tuple[int, int]:
    """A pseudo-terminal of the box's own devpts: (keeper's end, child's end)."""
    controller = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(controller, _TIOCSPTLCK, struct.pack("i", 0))
    terminal = fcntl.ioctl(controller, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    resize_terminal(controller, columns, rows)
    return controller, terminal


def resize_terminal(controller: int, columns: int, rows: int) -> None:
    fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def shell_arguments(text: bytes) -> tuple[list[bytes], int]:
    """Arguments that run *text* in bash as it is, and a descriptor to inherit for long text, or -1."""
    if len(text) <= SHELL_ARGUMENT_BYTES:
        return [b"bash", b"--noprofile", b"--norc", b"-c", text], -1
    script = os.memfd_create("command")  # inherited: bash opens it by name
    os.write(script, text) if len(text) < 1 << 20 else _write_all(script, text)
    return [b"bash", b"--noprofile", b"--norc", b"/dev/fd/3"], script


def open_input(data: bytes, *, sealed: bool = False) -> int:
    """A descriptor that yields *data* and then end of file. Nothing has to be pumped, nothing can block.

    *sealed*: a nameless file of the box's /tmp, which is noexec there, instead of one in memory, which never is.
    """
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    if sealed:
        file = os.open("/tmp", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)  # noqa: S108
    else:
        file = os.memfd_create("stdin", os.MFD_CLOEXEC)
    _write_all(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def start(
    arguments: list[bytes],
    *,
    environment: dict[bytes, bytes],
    directory: int,
    streams: tuple[int, int, int],
    script: int,
    terminal: bool,
    prepare: Callable[[], None],
) -> Child:
    """Fork and exec. *prepare* runs in the child with no descriptor closed yet: groups, limits, mark.

    Raises:
        OSError: no process could be made (the box is at its process limit).
    """
    report_read, report_write = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(report_read)
        os.close(report_write)
        raise
    if pid == 0:
        _become(arguments, environment, directory, streams, script, terminal, prepare, report_write)
    os.close(report_write)
    os.set_blocking(report_read, False)
    try:
        return Child(pid, os.pidfd_open(pid), report_read)
    except OSError:  # no descriptor left: what cannot be watched may not run
        os.close(report_read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _become(
    arguments: list[bytes],
    environment: dict[bytes, bytes],
    directory: int,
    streams: tuple[int, int, int],
    script: int,
    terminal: bool,
    prepare: Callable[[], None],
    report: int,
) -> None:
    """The child's side. Never returns."""
    step = "report"
    try:
        os.write(report, b"pid %d\n" % os.getpid())
        step = "limits"
        prepare()
        step = "session"
        os.setsid()
        os.fchdir(directory)
        step = "streams"
        # Everything that is kept goes above the target numbers first, so that no dup2 hits a source.
        kept = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 16) for file in (*streams, report)]
        extra = fcntl.fcntl(script, fcntl.F_DUPFD_CLOEXEC, 16) if script >= 0 else -1
        for number in range(3):
            os.dup2(kept[number], number)
        first_free = 3
        if script >= 0:
            os.dup2(extra, 3)
            first_free = 4
        os.dup2(kept[3], first_free, inheritable=False)
        report = first_free
        os.closerange(first_free + 1, 1 << 20)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        step = "signals"
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "exec"
        _exec(arguments, environment)
    except OSError as error:
        _tell(report, step, error)
    except BaseException as error:  # noqa: BLE001 - the edge of a process: told over the pipe, then it ends
        _tell(report, step, OSError(0, repr(error)))
    finally:
        os._exit(127)


def _tell(report: int, step: str, error: OSError) -> None:
    try:
        os.write(report, b"fail %s %d %s\n" % (step.encode(), error.errno or 0, str(error.strerror)[:200].encode()))
    except OSError:
        pass


def _exec(arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
    """execve by the environment's own PATH; the first real obstacle is the one that is told."""
    program = arguments[0]
    if b"/" in program:
        os.execve(program, arguments, environment)
    obstacle: OSError | None = None
    for folder in environment.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            os.execve(os.path.join(folder or b".", program), arguments, environment)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) and obstacle is None:
                obstacle = error
    raise obstacle or FileNotFoundError(errno.ENOENT, "command not found")
