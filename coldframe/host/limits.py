"""What the keeper does about the limits of each command, with no privilege left and rooted in the box.

With control groups: a sub-group per command (``groups.py``) through directory descriptors handed over by the
daemon (``cgroups.py``); kill, CPU time, peak memory and OOM kills are then exact for a whole process tree. A process
inside a box cannot leave its group, since no cgroup file system is mounted there.

Permission facts: the kernel judges a write to ``cgroup.procs`` or ``tasks`` by the credentials with which the file was
*opened*; the keeper opens all of them itself, as the sandbox's uid, so nothing here carries the daemon's
rights. Pids read from or written to these files are numbers of the pid namespace of the process that reads
or writes, which for the keeper is the host's, also after it has joined the box.

Without control groups: resource limits per process, and a *mark*. RLIMIT_RTTIME is inherited, cannot be
raised again and bounds only real-time scheduling, which a box has no right to; so a value that belongs to
one command marks all its descendants, however they detach, readable by anyone in ``/proc/PID/limits``.
A process can lower its own mark: to a value that is nobody's (it is reported as unattributed) or to that of
another command, so this is best effort and says so; ending the whole box is exact in any case.
RLIMIT_NPROC is exact: the kernel counts it per user namespace. RLIMIT_AS is not used by default: it counts
reservations, which break node, Go and sanitizers, and says nothing about a tree.
"""

import ctypes
import os
import resource
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from coldframe.guest.rows import Call

MARK_BASE = 1 << 50
"""RLIMIT_RTTIME in µs: 35 years, so the limit itself never bites."""
RLIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
    "pids": resource.RLIMIT_NPROC,
    "cpu_s": resource.RLIMIT_CPU,
    "address_space_bytes": resource.RLIMIT_AS,
}
PlannedLimit = tuple[int, tuple[int, int]]
"""Kind, and its soft and hard limit: as setrlimit takes them."""
SPARE_PROCESSES = 8
"""Where RLIMIT_NPROC limits a box the first process, the keeper and helpers count too: one user, one user namespace."""
_RLIMIT_RTTIME = 15
_ITSELF = ctypes.c_char(b"0")
"""In the files of a group: whoever writes it."""
_Pair = ctypes.c_uint64 * 2
"""A struct rlimit64: soft and hard."""
_READ_BYTES = 1 << 16


class GroupDescriptors(NamedTuple):
    """Directory descriptors, each with the name of its hierarchy (`unified` or a version 1 controller)."""

    per_command: tuple[tuple[str, int], ...]
    """Where a sub-group is made for every command."""
    attach_only: tuple[tuple[str, int], ...]
    """Groups of the whole box that a command is put into as well."""

    def named(self) -> list[tuple[str, int]]:
        """As the keeper is given them."""
        kinds = ("per_command", self.per_command), ("attach_only", self.attach_only)
        return [(f"{kind}:{name}", file) for kind, groups in kinds for name, file in groups]


def forbid_core_files() -> None:
    """For this process and all that it starts. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def plan_rlimits(limits: Mapping[str, int]) -> tuple[PlannedLimit, ...]:
    """A value above the hard limit that is in force already is lowered to it."""
    planned = []
    for name, value in limits.items():
        kind = RLIMITS[name]
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        planned.append((kind, (value, value)))
    return tuple(planned)


def plan_mark(number: int) -> PlannedLimit:
    """What marks a process, and all it will start, as those of command `number` (> 0)."""
    return _RLIMIT_RTTIME, (MARK_BASE + number, MARK_BASE + number)


def group_steps(procs: Iterable[int]) -> tuple[Call, ...]:
    """For a child, before exec: into the groups behind these open files."""
    return tuple(Call("write", descriptor, ctypes.addressof(_ITSELF), 1, kept=_ITSELF) for descriptor in procs)


def rlimit_steps(planned: Iterable[PlannedLimit]) -> tuple[Call, ...]:
    """For a child, before exec: be held to these, with all that it will start."""
    steps = []
    for kind, values in planned:
        pair = _Pair(*(value % (1 << 64) for value in values))  # no limit is -1 in Python
        steps.append(Call("prlimit64", 0, kind, ctypes.addressof(pair), 0, kept=pair))
    return tuple(steps)


class MarkedProcesses(NamedTuple):
    marked: tuple[int, ...]
    """Carry the mark asked for."""
    unattributed: tuple[int, ...]
    """Carry a mark that belongs to no command: they changed it."""


def read_marks(proc: int) -> dict[int, int]:
    """Process to the number of its mark, through the /proc behind descriptor `proc`, which numbers the processes.

    0 or less for a mark that was lowered below any. Processes without one (the box's first) are left out.
    About 15 µs per process.
    """
    marks = {}
    for entry in os.listdir(proc):
        if entry.isdecimal() and (mark := _mark_of(proc, entry)) is not None:
            marks[int(entry)] = mark
    return marks


def sort_marks(marks: Mapping[int, int], number: int, known: Set[int] = frozenset()) -> MarkedProcesses:
    """Who carries the mark `number`, and who one of nobody; `known` are the numbers of all commands that may live."""
    return MarkedProcesses(
        tuple(pid for pid, mark in marks.items() if mark == number),
        tuple(pid for pid, mark in marks.items() if mark != number and (mark <= 0 or mark not in known)),
    )


def read_text(path: str) -> str:
    """The whole of one small kernel file."""
    with open(path, encoding="ascii", errors="surrogateescape") as file:
        return file.read()


def write_text(path: str, text: str) -> None:
    """One write, as kernel files want it. The OSError names the path."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def _mark_of(proc: int, pid: str) -> int | None:
    """Number of the mark, 0 or less if it was lowered below any; None without a mark or process."""
    try:
        descriptor = os.open(f"{pid}/limits", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return None
    try:
        text = read_all(descriptor)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    _, _, rest = text.partition(b"Max realtime timeout")
    words = rest.split(None, 2)[:2]
    if len(words) < 2 or words[1] == b"unlimited":
        return None
    return int(words[1]) - MARK_BASE  # the hard limit; the soft one may be lowered and raised at will


def read_file(proc: int, name: str) -> bytes | None:
    """One that the kernel gives in one piece, below the /proc behind descriptor `proc`; None if its process is gone."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return None
    try:
        return os.read(file, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(file)


def stat_fields(proc: int, pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the state on; the name before it may hold anything. None if it is gone."""
    text = read_file(proc, f"{pid}/stat")
    return text.rpartition(b")")[2].split() if text else None


def read_all(descriptor: int) -> bytes:
    """To the end of an open kernel file."""
    parts = []
    while part := os.read(descriptor, _READ_BYTES):
        parts.append(part)  # a kernel file may answer short before its end
    return b"".join(parts)
