"""bubblewrap as a process: what it is given along, and how it is started straight in the groups of its box.

Standard library only: it runs in the keeper. Only what is handed on goes along, and its environment is empty: bubblewrap's own
reaper would show ours to the box.
"""

import os
import signal
import socket
import uuid
from typing import NamedTuple

from coldframe.guest.rows import UNAVAILABLE, Attempt, Call, Row
from coldframe.host import birth, confine
from coldframe.host.limits import group_steps

BWRAP = "/usr/bin/bwrap"


class Entrance(NamedTuple):
    """Open ways into the control groups of the box, for bubblewrap and with it the first process. Closed once used."""

    birthplace: int
    """Directory of a version 2 group; -1 for none."""
    tasks: tuple[int, ...]
    """Files of version 1 groups."""


class BuildFailed(Exception):
    """The box could not be built; the text is bubblewrap's own or the step's."""


class Channels(NamedTuple):
    """What ties it to its keeper, and what it finds in the box whatever that is."""

    info_read: int
    info_write: int
    filter_read: int
    filter_write: int
    """The first process waits on the other end for its filter."""
    complaint: int
    """What it says when it fails."""
    told: socket.socket
    """Hangs up when it has closed the last file that it is to make in the box."""
    first: int
    """That one: the program of the first process."""
    boot: int
    """The number that the box has in place of the machine's own."""

    def handed(self) -> tuple[int, ...]:
        return self.info_write, self.filter_read, self.first, self.boot

    def hand_over(self) -> None:
        """They are its own now."""
        for file in self.handed():
            os.close(file)

    def close(self) -> None:
        """Those that are left of one that has ended."""
        self.told.close()
        for file in (self.info_read, self.filter_write, self.complaint):
            os.close(file)


def open_channels(first_program: bytes) -> Channels:
    info_read, info_write = os.pipe2(os.O_CLOEXEC)
    filter_read, filter_write = os.pipe2(os.O_CLOEXEC)
    complaint = os.memfd_create("complaint", os.MFD_CLOEXEC)
    told, first = _file_with_end(first_program)
    boot = data_file("setting", f"{uuid.uuid4()}\n".encode())
    return Channels(info_read, info_write, filter_read, filter_write, complaint, told, first, boot)


def start(line: list[str], complaint: int, handed: tuple[int, ...]) -> int:
    """Its process id. Raises OSError."""
    _hand_on(handed)
    # Not `fork`: the pages of this Python would be copied for a process that runs a few lines of it.
    actions = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (0, 1)]
    kept = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        return os.posix_spawn(BWRAP, line, {}, file_actions=[*actions, (os.POSIX_SPAWN_DUP2, complaint, 2)])
    finally:
        signal.signal(signal.SIGCHLD, kept)


def start_in_groups(
    line: list[str],
    complaint: int,
    handed: tuple[int, ...],
    entrance: Entrance,
    *,
    early: tuple[int, int] | None = None,
) -> tuple[int, Row | None]:
    """The same, born or moved by itself into the groups of the box; with its row, which is to be kept until it is at work. One that
    is started *early* becomes that user and group, and ends with its keeper from its first moment on.

    What goes wrong before stands there, or in its complaint where it has to be forked.
    """
    _hand_on(handed)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    steps = [Call("dup3", source, target, 0) for target, source in enumerate((null, null, complaint))]
    steps += group_steps(entrance.tasks)
    if early is not None:
        uid, gid = early
        if os.getuid() == 0:
            steps += [Call("setgroups", 0, 0), Call("setresgid", gid, gid, gid), Call("setresuid", uid, uid, uid)]
        steps.append(Call("prctl", confine.PR_SET_PDEATHSIG, signal.SIGKILL))  # which a change of user would undo
    row = Row([("start", steps)], [Attempt(os.fsencode(BWRAP), [os.fsencode(word) for word in line], {})])
    made: tuple[int, Row | None]
    kept = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        pid, process = row.start(entrance.birthplace)
        os.close(process)
        made = pid, row
    except OSError as error:
        if error.errno not in UNAVAILABLE:
            raise
        made = _fork_bwrap(line, complaint, steps, entrance.birthplace), None
    finally:
        signal.signal(signal.SIGCHLD, kept)
    for file in (null, *entrance.tasks, entrance.birthplace):
        if file >= 0:
            os.close(file)
    return made


def _fork_bwrap(line: list[str], complaint: int, steps: list[Call], birthplace: int) -> int:
    pid, _ = birth.Births(possible=True).fork(birthplace)
    if pid == 0:
        try:
            for act in steps:
                act()
            os.execve(BWRAP, line, {})
        except OSError as error:
            os.write(complaint, f"{BWRAP}: {error.strerror}".encode())
        finally:
            os._exit(127)
    return pid


def _hand_on(files: tuple[int, ...]) -> None:
    confine.close_range(3, on_exec=True)
    for file in files:
        os.set_inheritable(file, True)


def data_file(name: str, content: bytes) -> int:
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _file_with_end(content: bytes) -> tuple[socket.socket, int]:
    """Second, something to be read once like a file; first, what hangs up when nobody holds that any more.

    A socket takes some hundred kilobytes. What is larger comes as a file that tells nobody: the first hangs up at once.
    """
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(content))
    ours.setblocking(False)
    if ours.send(content) != len(content):
        theirs.close()
        return ours, data_file("program", content)
    ours.shutdown(socket.SHUT_WR)
    return ours, theirs.detach()
