"""What the keeper does about the limits of each command, with no privilege left and rooted in the box.

With control groups: a sub-group per command through directory descriptors handed over by the daemon (see
``cgroups.py``); kill, CPU time, peak memory and OOM kills are then exact for a whole process tree. A process
inside a box cannot leave its group, since no cgroup file system is mounted there.

Permission facts: the kernel judges a write to ``cgroup.procs`` by the credentials with which the file was
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

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Mapping, Set
from typing import NamedTuple

MARK_BASE = 1 << 50
"""RLIMIT_RTTIME in µs: 35 years, so the limit itself never bites."""
RLIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
    "pids": resource.RLIMIT_NPROC,
    "cpu_s": resource.RLIMIT_CPU,
    "address_space_bytes": resource.RLIMIT_AS,
    "core_bytes": resource.RLIMIT_CORE,
}
_RLIMIT_RTTIME = 15
_READ_BYTES = 1 << 16


class GroupDescriptors(NamedTuple):
    """Directory descriptors, each with the name of its hierarchy (`unified` or a version 1 controller)."""

    per_command: tuple[tuple[str, int], ...]
    """Where a sub-group is made for every command."""
    attach_only: tuple[tuple[str, int], ...]
    """Groups of the whole box that a command is put into as well."""


class GroupUsage(NamedTuple):
    cpu_s: float | None
    peak_memory_bytes: int | None
    oom_kills: int | None
    """None, all three, where nothing counts it."""


class CommandGroup:
    """The sub-groups of one command. `name` must be new; made in the parent before the fork."""

    def __init__(self, descriptors: GroupDescriptors, name: str) -> None:
        if "/" in name or name in ("", ".", "..") or len(name) > 200:
            raise ValueError(f"`{name}` cannot name a group")
        self.name = name
        self._parents = dict(descriptors.per_command)
        self._made: list[str] = []
        self._procs: list[int] = []
        try:
            for hierarchy, parent in descriptors.per_command:
                os.mkdir(name, 0o755, dir_fd=parent)
                self._made.append(hierarchy)
                self._procs.append(self._open(hierarchy, "cgroup.procs", os.O_WRONLY))
            for _, group in descriptors.attach_only:
                self._procs.append(os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=group))
        except OSError:
            self.close()
            self.remove()
            raise

    @property
    def exact(self) -> bool:
        """Whether `pids` and `kill` see every process of the command."""
        return bool(self._made)

    def enter(self) -> None:
        """In the forked child, before exec: move this process into all groups. Raises OSError."""
        for descriptor in self._procs:
            os.write(descriptor, b"0")

    def limit_memory(self, limit_bytes: int) -> bool:
        """Cap the memory of this command below that of its box; False where no controller counts it by command.

        The keeper may, since it made the sub-group; it cannot raise what the daemon set above it.
        """
        for hierarchy, file in (("memory", "memory.limit_in_bytes"), ("unified", "memory.max")):
            if hierarchy in self._made:
                try:
                    self._write(hierarchy, file, b"%d" % limit_bytes)
                except FileNotFoundError:
                    continue
                return True
        return False

    def attach(self, pid: int) -> None:
        """From the parent: the same for child `pid`. What the child started before is not moved."""
        for descriptor in self._procs:
            os.write(descriptor, b"%d" % pid)

    def close(self) -> None:
        """Close what only `enter` and `attach` need; to be called in the parent once the child is in."""
        while self._procs:
            os.close(self._procs.pop())

    def pids(self) -> list[int]:
        """Living processes of the command, numbered in the pid namespace of the caller."""
        for hierarchy in self._made:
            with contextlib.suppress(FileNotFoundError):
                return [int(word) for word in self._read(hierarchy, "cgroup.procs").split()]
        return []

    def is_empty(self) -> bool:
        if "unified" in self._made:
            with contextlib.suppress(FileNotFoundError):
                return b"populated 1" not in self._read("unified", "cgroup.events")
            return True
        return not self.pids()

    def open_events(self) -> int | None:
        """A descriptor that polls POLLPRI when the group becomes empty (or frozen); None without version 2."""
        return self._open("unified", "cgroup.events", os.O_RDONLY) if "unified" in self._made else None

    def freeze(self, *, on: bool) -> bool:
        """Ask for freeze or thaw of the whole tree; False where nothing can. Frozen shows in `open_events`."""
        if "unified" in self._made:
            self._write("unified", "cgroup.freeze", b"1" if on else b"0")
        elif "freezer" in self._made:
            self._write("freezer", "freezer.state", b"FROZEN" if on else b"THAWED")
        else:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to every process of the command, frozen ones and those being born included. Does not wait."""
        if "unified" in self._made:
            with contextlib.suppress(FileNotFoundError):  # a kernel before 5.14 has no cgroup.kill
                self._write("unified", "cgroup.kill", b"1")
                return
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> int:
        """Send `number` to every process, with the tree held still meanwhile where possible; how many got it."""
        frozen = number == signal.SIGKILL and self.freeze(on=True)
        try:
            reached: set[int] = set()
            for _ in range(100):  # until a look finds nobody new: a fork may slip between look and signal
                fresh = [pid for pid in self.pids() if pid not in reached]
                if not fresh:
                    break
                reached.update(fresh)
                for pid in fresh:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            return len(reached)
        finally:
            if frozen:
                self.freeze(on=False)

    def usage(self) -> GroupUsage:
        """Counted over the whole tree, ended processes included."""
        cpu_s: float | None = None
        peak: int | None = None
        kills: int | None = None
        with contextlib.suppress(FileNotFoundError):
            if "unified" in self._made:
                cpu_s = _field(self._read("unified", "cpu.stat"), b"usage_usec") / 1e6
            elif "cpuacct" in self._made:
                cpu_s = int(self._read("cpuacct", "cpuacct.usage")) / 1e9
        with contextlib.suppress(FileNotFoundError):
            if "memory" in self._made:
                kills = _field(self._read("memory", "memory.oom_control"), b"oom_kill")
                peak = int(self._read("memory", "memory.max_usage_in_bytes"))
            elif "unified" in self._made:
                kills = _field(self._read("unified", "memory.events"), b"oom_kill")
                peak = int(self._read("unified", "memory.peak"))
        return GroupUsage(cpu_s, peak, kills)

    def remove(self) -> bool:
        """Remove the empty sub-groups; False if a process is still in one, then call again later."""
        self.close()
        for hierarchy in list(self._made):
            try:
                os.rmdir(self.name, dir_fd=self._parents[hierarchy])
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno == errno.EBUSY:
                    continue
                raise
            self._made.remove(hierarchy)
        return not self._made

    def _open(self, hierarchy: str, file: str, flags: int) -> int:
        return os.open(f"{self.name}/{file}", flags | os.O_CLOEXEC, dir_fd=self._parents[hierarchy])

    def _read(self, hierarchy: str, file: str) -> bytes:
        descriptor = self._open(hierarchy, file, os.O_RDONLY)
        try:
            return _read_all(descriptor)
        finally:
            os.close(descriptor)

    def _write(self, hierarchy: str, file: str, data: bytes) -> None:
        descriptor = self._open(hierarchy, file, os.O_WRONLY)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def apply_rlimits(limits: Mapping[str, int]) -> None:
    """In the child, before exec: soft and hard limit of each name of `RLIMITS`; no core files in any case.

    A value above the hard limit that is in force already is lowered to it. Raises OSError.
    """
    for name, value in {"core_bytes": 0, **limits}.items():
        kind = RLIMITS[name]
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def mark_process(number: int) -> None:
    """In the child, before exec: mark this process and all it will start as those of command `number` (> 0)."""
    value = MARK_BASE + number
    resource.setrlimit(_RLIMIT_RTTIME, (value, value))


class MarkedProcesses(NamedTuple):
    marked: tuple[int, ...]
    """Carry the mark asked for."""
    unattributed: tuple[int, ...]
    """Carry a mark that belongs to no command: they changed it."""


def marked_pids(proc: int, number: int, known: Set[int] = frozenset()) -> MarkedProcesses:
    """Look through the /proc behind descriptor `proc`; pids are as that /proc numbers them.

    `known` are the numbers of all commands of the box that may live; everything else with a mark is
    unattributed. Processes without any (the box's first one) are neither. About 15 µs per process.
    """
    marked: list[int] = []
    unattributed: list[int] = []
    for entry in os.listdir(proc):
        if not entry.isdecimal():
            continue
        mark = _mark_of(proc, entry)
        if mark is None:
            continue
        if mark == number:
            marked.append(int(entry))
        elif mark <= 0 or mark not in known:
            unattributed.append(int(entry))
    return MarkedProcesses(tuple(marked), tuple(unattributed))


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
        text = _read_all(descriptor)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    _, _, rest = text.partition(b"Max realtime timeout")
    words = rest.split(None, 2)[:2]
    if len(words) < 2 or words[1] == b"unlimited":
        return None
    return int(words[1]) - MARK_BASE  # the hard limit; the soft one may be lowered and raised at will


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, _READ_BYTES):
        parts.append(part)  # a kernel file may answer short before its end
    return b"".join(parts)


def _field(text: bytes, name: bytes) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value)
    return 0
