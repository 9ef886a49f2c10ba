"""The control groups of commands: made by the keeper below those of its box, kept ready, used again when empty.

A group is made once and its files stay open, since making, reading and removing one for every command cost more
than most commands. Nothing passes from one command to the next:

- a group is used again only after it was found empty; nobody can fork into it then, and only the keeper moves
  processes (no cgroup file system is mounted in a box);
- counters are set back or their last value is subtracted; one that holds memory still (files that a command
  wrote) is not used again, nor is one that was killed, frozen or given a limit of its own;
- what cannot be set back (`memory.peak` before Linux 6.12) is not used again.

A command enters by itself, while it has one thread: in version 1 through `tasks`, whose writer moves himself without
the lock that `cgroup.procs` waits for (see `birth.py`); in version 2 it is born there.
"""

import contextlib
import errno
import os
import signal
from typing import NamedTuple

from coldframe.host.limits import GroupDescriptors, group_steps, read_all

MOST_READY = 4
"""Groups of commands that ended, kept for the next ones; each holds up to seven descriptors."""
MOST_LEFT_BYTES = 1 << 20
"""Memory that a group may still be charged for when it is used again: the kernel's own, by its batches per core."""
LEAST_ROOM_BYTES = 32 << 20
"""What a box has to have left for a start that must not meet the end of its memory, or a quarter of all if that is more:
far above what is used up between the look and the program."""

_SMALL_BYTES = 4096
_ENTRIES = {"unified": "cgroup.procs"}
"""Where a process enters a group, if not through `tasks`."""
_OPENED_TO_WRITE = {
    "cgroup.procs": os.O_WRONLY,
    "tasks": os.O_WRONLY,
    "memory.max_usage_in_bytes": os.O_RDWR,
    "memory.peak": os.O_RDWR,
}


class GroupUsage(NamedTuple):
    cpu_s: float | None
    peak_memory_bytes: int | None
    oom_kills: int | None
    """None, all three, where nothing counts it."""


class _Memory(NamedTuple):
    """Of the whole box: open files, and names in the second."""

    used: int
    parts: int
    of_files: tuple[bytes, ...]


class Groups:
    """Hands out a group for each command of a box."""

    def __init__(self, descriptors: GroupDescriptors) -> None:
        self._descriptors = descriptors
        self._attached = [_open_entry(name, group) for name, group in descriptors.attach_only]
        self._ready: list[CommandGroup] = []
        self._unused: CommandGroup | None = None
        self._unremoved: list[CommandGroup] = []
        self._count = 0
        self._memory = _open_memory(descriptors)

    def has_room(self, limit_bytes: int) -> bool:
        """Whether the box is far from its limit of memory, what is kept of files aside, which makes room at need. True where
        nothing counts it."""
        if self._memory is None:
            return True
        most = limit_bytes - max(limit_bytes // 4, LEAST_ROOM_BYTES)
        used = int(os.pread(self._memory.used, _SMALL_BYTES, 0))
        if used > most:
            parts = os.pread(self._memory.parts, 1 << 16, 0)
            used -= sum(_field(parts, name) for name in self._memory.of_files)
        return used <= most

    def take(self) -> "CommandGroup":
        """One with nobody in it and nothing counted. Raises OSError."""
        unused, self._unused = self._unused, None
        return unused or self._find()

    def prepare(self) -> None:
        """Have the next one at hand, while nobody waits: now and then the kernel takes milliseconds to make one. Raises OSError."""
        if self._unused is None:
            self._unused = self._find()

    def _find(self) -> "CommandGroup":
        while self._ready:
            group = self._ready.pop()
            if group.begin_again():
                return group
            self._remove(group)
        return self._make()

    def _make(self) -> "CommandGroup":
        self._count += 1
        return CommandGroup(self._descriptors, f"c{self._count}", attached=self._attached)

    def give(self, group: "CommandGroup") -> None:
        """Take back the group of a command that is over."""
        if self._unremoved:
            self._unremoved = [one for one in self._unremoved if not one.remove()]
        if len(self._ready) < MOST_READY and group.reusable and group.is_empty():
            self._ready.append(group)
        else:
            self._remove(group)

    def _remove(self, group: "CommandGroup") -> None:
        if not group.remove():
            self._unremoved.append(group)


class CommandGroup:
    """The sub-groups of one command. `name` must be new; made in the parent before the fork."""

    def __init__(self, descriptors: GroupDescriptors, name: str, *, attached: list[int] | None = None) -> None:
        """`attached`: what `_open_entry` gives of the `attach_only` groups; opened here if not given."""
        if "/" in name or name in ("", ".", "..") or len(name) > 200:
            raise ValueError(f"`{name}` cannot name a group")
        self.name = name
        self.reusable = True
        self._parents = dict(descriptors.per_command)
        self._made: list[str] = []
        self._files: dict[tuple[str, str], int] = {}
        self._own: list[int] = []
        self._used = GroupUsage(0.0, None, 0)
        """What was counted when the present command began."""
        try:
            procs = attached
            if procs is None:
                for hierarchy, group in descriptors.attach_only:
                    self._own.append(_open_entry(hierarchy, group))
                procs = self._own
            made = []
            for hierarchy, parent in descriptors.per_command:
                os.mkdir(name, 0o755, dir_fd=parent)
                self._made.append(hierarchy)
                made.append(self._file(hierarchy, _ENTRIES.get(hierarchy, "tasks")))
            self.birthplace = self._file("unified", ".") if "unified" in self._made else -1
            """Directory of the version 2 group, for `fork_into`; -1 without."""
        except OSError:
            self.remove()
            raise
        self.entry = group_steps((*made, *procs))
        """What a process with one thread does to be in all groups."""
        born = self._made.index("unified") if self.birthplace >= 0 else len(made)
        self.entry_beside_birth = group_steps((*made[:born], *made[born + 1 :], *procs))
        """The same for one that was born in `birthplace`."""

    @property
    def exact(self) -> bool:
        """Whether `pids` and `kill` see every process of the command."""
        return bool(self._made)

    def begin_again(self) -> bool:
        """Set the counters back for the next command; False if that cannot be done."""
        try:
            if "memory" in self._made:
                os.pwrite(self._file("memory", "memory.max_usage_in_bytes"), b"0", 0)
            elif "unified" in self._made and self._has("unified", "memory.peak"):
                os.pwrite(self._file("unified", "memory.peak"), b"0", 0)
            counted = self._count()
        except OSError:
            return False
        self._used = GroupUsage(counted.cpu_s, None, counted.oom_kills)
        return (counted.peak_memory_bytes or 0) <= MOST_LEFT_BYTES

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

    def close(self) -> None:
        """Close what is open; all but its entries and `birthplace` works afterwards and opens it again."""
        while self._files:
            os.close(self._files.popitem()[1])
        while self._own:
            os.close(self._own.pop())

    def pids(self) -> list[int]:
        """Living processes of the command, numbered in the pid namespace of the caller; 0 for one that has no number there."""
        for hierarchy in self._made:
            with contextlib.suppress(FileNotFoundError):  # opened anew: version 1 keeps a list for each open file
                file = self._open(hierarchy, "cgroup.procs", os.O_RDONLY)
                try:
                    return [int(word) for word in read_all(file).split()]
                finally:
                    os.close(file)
        return []

    def is_empty(self) -> bool:
        if "unified" in self._made:
            try:
                return b"populated 1" not in self._read("unified", "cgroup.events")
            except FileNotFoundError:
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
                fresh = [pid for pid in self.pids() if pid > 0 and pid not in reached]  # 0 would be ourselves
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

    def cpu_s(self) -> float | None:
        """CPU time of the present command; None where nothing counts it."""
        used, before = self._count_cpu_s(), self._used.cpu_s
        return used if used is None or before is None else max(0.0, used - before)

    def usage(self) -> GroupUsage:
        """Counted over the whole tree of the present command, ended processes included."""
        counted = self._count()
        before = self._used.oom_kills or 0
        kills = None if counted.oom_kills is None else max(0, counted.oom_kills - before)
        cpu_s = counted.cpu_s
        if cpu_s is not None and self._used.cpu_s is not None:
            cpu_s = max(0.0, cpu_s - self._used.cpu_s)
        return GroupUsage(cpu_s, counted.peak_memory_bytes, kills)

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

    def _count_cpu_s(self) -> float | None:
        try:
            if "unified" in self._made:
                return _field(self._read("unified", "cpu.stat"), b"usage_usec") / 1e6
            if "cpuacct" in self._made:
                return int(self._read("cpuacct", "cpuacct.usage")) / 1e9
        except FileNotFoundError:
            pass
        return None

    def _count(self) -> GroupUsage:
        peak: int | None = None
        kills: int | None = None
        try:
            if "memory" in self._made:
                kills = _field(self._read("memory", "memory.oom_control"), b"oom_kill")
                peak = int(self._read("memory", "memory.max_usage_in_bytes"))
            elif "unified" in self._made:
                kills = _field(self._read("unified", "memory.events"), b"oom_kill")
                peak = int(self._read("unified", "memory.peak"))
        except FileNotFoundError:
            pass
        return GroupUsage(self._count_cpu_s(), peak, kills)

    def _has(self, hierarchy: str, file: str) -> bool:
        try:
            self._file(hierarchy, file)
        except FileNotFoundError:
            return False
        return True

    def _file(self, hierarchy: str, file: str) -> int:
        """The open file of that name, which stays open."""
        found = self._files.get((hierarchy, file))
        if found is None:
            try:
                found = self._open(hierarchy, file, _OPENED_TO_WRITE.get(file, os.O_RDONLY))
            except PermissionError:  # one that this kernel does not set back
                found = self._open(hierarchy, file, os.O_RDONLY)
            self._files[hierarchy, file] = found
        return found

    def _open(self, hierarchy: str, file: str, flags: int) -> int:
        return os.open(f"{self.name}/{file}", flags | os.O_CLOEXEC, dir_fd=self._parents[hierarchy])

    def _read(self, hierarchy: str, file: str) -> bytes:
        """A file of a few lines, which the kernel gives in one piece."""
        return os.pread(self._file(hierarchy, file), _SMALL_BYTES, 0)

    def _write(self, hierarchy: str, file: str, data: bytes) -> None:
        """Change the group beyond its counters: it will be no other command's."""
        self.reusable = False
        descriptor = self._open(hierarchy, file, os.O_WRONLY)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def _open_memory(descriptors: GroupDescriptors) -> _Memory | None:
    groups, flags = dict(descriptors.per_command), os.O_RDONLY | os.O_CLOEXEC
    for hierarchy, used, prefix in (("memory", "memory.usage_in_bytes", b"total_"), ("unified", "memory.current", b"")):
        if hierarchy in groups:
            with contextlib.suppress(FileNotFoundError):
                counter = os.open(used, flags, dir_fd=groups[hierarchy])
                of_files = (prefix + b"active_file", prefix + b"inactive_file")
                return _Memory(counter, os.open("memory.stat", flags, dir_fd=groups[hierarchy]), of_files)
    return None


def _open_entry(hierarchy: str, group: int) -> int:
    return os.open(_ENTRIES.get(hierarchy, "tasks"), os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)


def _field(text: bytes, name: bytes) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value)
    return 0
