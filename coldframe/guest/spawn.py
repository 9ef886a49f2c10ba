"""Starts one command: as a child of the keeper, straight into the box.

The keeper has joined the box's namespaces, holds no right and is filtered, so a child of it *is* a
process of the box: there is nothing to enter and no helper inside that the payload could kill, stop or
imitate. Until exec the child is not dumpable, so no neighbour can trace it or read its memory.

How far it came, its process id inside the box and, if the start fails, which step failed and why, stands in its row
(`rows.py`), so that nobody has to wait for it; a forked one says it over a pipe that closes on exec. A start that fails is
a result (126, 127), not an error.

A child does nothing but a row of calls, made ready before with all their arguments; what is the same for all
commands is the keeper's own state (`settle_signals`). Where it has to be forked, each page that is touched until exec is
copied, in the keeper too: measured, 2 to 4 µs a page. So what would be looked up by the first call of a function is
looked up before any child is there (`settle_calls`), and the keeper sleeps until a forked child has become the program
(`_await_exec`): after that a page costs a quarter.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable
from typing import NamedTuple

from coldframe.guest import rows
from coldframe.guest.rows import Attempt, Call, Row

PIPE_PACKET_BYTES = 4096
"""Smallest pipe: one write at a time and per stream, which makes the order of writes observable."""
PIPE_BULK_BYTES = 1024 * 1024
F_SETPIPE_SZ = 1031
EXEC_WAIT_S = 0.01
"""How long a fork may hold up everything else that is asked of the keeper."""
REPORT_BYTES = 4096
SHELL = "/bin/bash"
SHELL_ARGUMENT_BYTES = 100_000
"""Linux caps one argument at 128 KiB; longer text goes to the shell as a script on a descriptor."""

NOT_FOUND = "command not found"

_LAST_FILE = 0xFFFF_FFFF
_execve = os.execve  # a child that looks it up in its module touches five pages more
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441


Steps = tuple[Callable[[], object], ...]
"""What a child calls before it is the program; each raises if that fails. Only what is a `Call` can be in a row."""


class BoxUser(NamedTuple):
    """Whom a command can be started as, in a box that has more than one user."""

    become: Steps
    environment: dict[bytes, bytes]
    """What is another's than that of all commands."""


class Output(NamedTuple):
    """The keeper's read end of one stream and, until bulk mode, its hold on the write end."""

    read: int
    write: int


class Child(NamedTuple):
    pid: int
    """In the keeper's own process namespace, for waiting."""
    pidfd: int
    row: Row | None
    """What it is at, to be kept until it is the program or gone. None for one that was forked."""
    report: int = -1
    """Of a forked one: where it says what it is at. Never blocks."""
    said: bytearray = bytearray()
    """What was read there; one of its own where there is a report."""


class Report(NamedTuple):
    """What is known of a start."""

    pid: int | None
    """Inside the box."""
    failure: tuple[str, int, str] | None
    """Which step failed, with the number of the error and its words."""
    ended: bool = False
    """Whether a forked one can tell no more: it is the program, or gone."""


def settle_signals() -> None:
    """In the keeper, once: a command begins with every signal at its default, whatever who started us had us ignore.

    Exec sets back what is handled, and leaves ignored what is ignored.
    """
    for number in signal.valid_signals():
        if number == signal.SIGINT or signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, _note_nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _note_nothing(_: int, __: object) -> None:
    """The call that was hit says EPIPE or EFBIG itself."""


def settle_calls() -> None:
    """In the zygote, once: have the C library find what only children call. Each of them would search for it again."""
    rows.can_start()
    with contextlib.suppress(FileNotFoundError):
        os.execve(b"", (b"-",), {})


def open_output() -> Output:
    """A pipe in packet mode with room for one write, so that each read is one write. Only our end never blocks."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.fcntl(read, F_SETPIPE_SZ, PIPE_PACKET_BYTES)
    # Non-blocking for us alone would be wrong for the child: clear it on its end, set packets.
    fcntl.fcntl(write, fcntl.F_SETFL, os.O_DIRECT)
    return Output(read, write)


class ReadyPipes:
    """Those of the next command, made before it comes."""

    def __init__(self) -> None:
        self._ready: list[Output] = []

    def prepare(self) -> None:
        """What cannot be made now fails when it is asked for."""
        with contextlib.suppress(OSError):
            while len(self._ready) < 2:
                self._ready.append(open_output())

    def take(self) -> Output:
        """As `open_output`."""
        return self._ready.pop() if self._ready else open_output()

    def close(self) -> None:
        """In a child that is no command: as long as it holds them, the end of the command that gets them is not seen."""
        for one in self._ready:
            os.close(one.read)
            os.close(one.write)
        self._ready.clear()


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


class Start(NamedTuple):
    """All that a child needs, made ready before the fork."""

    programs: list[bytes]
    """What may be the program, in the order of the search path."""
    arguments: list[bytes]
    environment: dict[bytes, bytes]
    directory: int
    streams: tuple[int, int, int]
    script: int
    terminal: bool
    become: Steps
    """The last that it does, to be the user that it is to be."""
    enter: Steps
    """What it does as that user: to get to a directory that is not below the workspace."""
    birth: Callable[[], tuple[int, Steps] | None]
    """The group that the child can be born in, if it can, and what it has to do with no descriptor closed yet: filter,
    groups, limits, mark.
    """
    fork: Callable[[], tuple[int, Steps]]
    """As os.fork, and the same for such a child."""


def find_programs(program: bytes, environment: dict[bytes, bytes]) -> list[bytes]:
    """Where execve is to be tried, by the environment's own PATH.

    What is not there is left out, since a failed try costs the child more than a look here. If nothing is found all
    are kept, for the child to tell why.
    """
    if b"/" in program:
        return [program]
    folders = environment.get(b"PATH", b"/usr/bin:/bin").split(b":")
    places = [b"%s/%s" % (folder or b".", program) for folder in folders]
    for index, place in enumerate(places):
        if not place.startswith(b"/") or os.access(place, os.F_OK):  # another is looked up from the child's directory
            return places[index:]
    return places


def start(order: Start) -> Child:
    """A child on its way to be the program.

    Raises:
        OSError: no process could be made (the box is at its process limit).
        ValueError: there is a NUL in an argument.
    """
    sources = order.streams if order.script < 0 else (*order.streams, order.script)
    lifted: dict[int, int] = {}
    try:
        for file in sources:
            if file <= len(sources) and file not in lifted:  # where a program looks for its streams
                lifted[file] = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 16)
        files = [lifted.get(file, file) for file in sources]
        attempts = [Attempt(program, order.arguments, order.environment) for program in order.programs]
        return _give_birth(order, files, attempts) or _fork(order, files, attempts)
    finally:
        for file in lifted.values():
            os.close(file)


def _give_birth(order: Start, files: list[int], attempts: list[Attempt]) -> Child | None:
    """None if it has to be forked."""
    place = order.birth() if rows.can_start() else None
    if place is None:
        return None
    group, joining = place
    whole = (("limits", joining), *_steps(order, files))
    if not all(isinstance(act, Call) for _, acts in whole for act in acts):
        return None
    row = Row([(name, [act for act in acts if isinstance(act, Call)]) for name, acts in whole], attempts)
    try:
        pid, pidfd = row.start(group)
    except OSError as error:
        if error.errno not in rows.UNAVAILABLE:
            raise
        return None
    return Child(pid, pidfd, row)


def _fork(order: Start, files: list[int], attempts: list[Attempt]) -> Child:
    report, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if theirs <= len(files):
            low, theirs = theirs, fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 16)
            os.close(low)
        steps = _steps(order, files, theirs)
        pid, joining = order.fork()
        if pid == 0:
            _become(joining, steps, attempts, theirs)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # no descriptor left: what cannot be watched may not run
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(theirs)
    _await_exec(report)
    return Child(pid, pidfd, None, report, bytearray())


def _await_exec(report: int) -> None:
    """Sleep until the child is its program or gone, or for EXEC_WAIT_S: a neighbour in the box can stop it there."""
    end = select.poll()
    end.register(report, 0)  # its end alone, not what is said before
    end.poll(EXEC_WAIT_S * 1000)


def read_report(child: Child) -> Report:
    """How far it has come. Before it is gone the program may not be there yet, and its start fail after all."""
    if child.row is None:
        ended = child.report < 0
        with contextlib.suppress(BlockingIOError):  # it goes on
            while not ended:
                part = os.read(child.report, REPORT_BYTES)
                child.said.extend(part)
                ended = not part
        return _heard(child.said, ended=ended)
    pid, failed, number = child.row.progress()
    if failed is None:
        return Report(pid, None)
    reason = NOT_FOUND if (failed, number) == ("exec", errno.ENOENT) else os.strerror(number)
    return Report(pid, (failed, number, reason))


def let_go(child: Child) -> Child:
    """Without what it could still be read from: it is gone, or all has been read."""
    if child.report >= 0:
        os.close(child.report)
    return child._replace(report=-1, row=None)


def _heard(said: bytearray, *, ended: bool) -> Report:
    """In the words of a child that was forked."""
    pid, failure = None, None
    for line in said.splitlines():
        word, _, rest = line.partition(b" ")
        if word == b"pid" and rest.isdigit():
            pid = int(rest)
        elif word == b"fail":
            step, code, text = [*rest.decode("utf-8", "replace").split(" ", 2), "", "", ""][:3]
            failure = step, int(code or 0), text
    return Report(pid, failure, ended)


def _steps(order: Start, sources: list[int], report: int = -1) -> tuple[tuple[str, Steps], ...]:
    """What a child does once it has joined its tree, by what it is called if it fails. `sources` are its files in order."""
    streams = [Call("dup3", source, number, 0) for number, source in enumerate(sources)]
    if report > len(sources):
        streams.append(Call("close_range", len(sources), report - 1, 0))
    streams.append(Call("close_range", max(report + 1, len(sources)), _LAST_FILE, 0))
    if order.terminal:
        streams.append(Call("ioctl", 0, termios.TIOCSCTTY, 0))
    session = ("session", (Call("setsid"), Call("fchdir", order.directory)))
    return session, ("streams", tuple(streams)), ("user", order.become), ("directory", order.enter)


def steps_into(directory: bytes) -> Steps:
    """For a child that goes to a directory of the box by its path, where nobody but the kernel says whether it may."""
    path = ctypes.create_string_buffer(directory)
    return (Call("chdir", ctypes.addressof(path), kept=path),)


def _become(joining: Steps, steps: tuple[tuple[str, Steps], ...], attempts: list[Attempt], report: int) -> None:
    """The side of a child that was forked. Never returns."""
    name = "limits"
    try:
        for act in joining:
            act()
        for step, row in steps:
            name = step
            for act in row:
                act()
        os.write(report, b"pid %d\n" % os.getpid())
        name = "exec"
        _exec(attempts)
    except OSError as error:
        _tell(report, name, error)
    except BaseException as error:  # noqa: BLE001 - the edge of a process: told over the pipe, then it ends
        _tell(report, name, OSError(0, repr(error)))
    finally:
        os._exit(127)


def _tell(report: int, step: str, error: OSError) -> None:
    try:
        text = str(error.strerror)[:200].replace("\n", " ").encode("utf-8", "replace")
        os.write(report, b"fail %s %d %s\n" % (step.encode(), error.errno or 0, text))
    except OSError:
        pass


def _exec(attempts: list[Attempt]) -> None:
    """Wherever the program may be; the first real obstacle is the one that is told."""
    obstacle: OSError | None = None
    for attempt in attempts:
        try:
            _execve(*attempt)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) and obstacle is None:
                obstacle = error
    raise obstacle or FileNotFoundError(errno.ENOENT, NOT_FOUND)
