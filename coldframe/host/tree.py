"""All processes of one command, as the keeper sees and ends them.

With control groups membership, CPU time and killing are exact. Without, every process carries an
inherited mark (see `limits.py`): best effort, since a process may change its own; what changed it is
ended with the last command that could be its parent. Numbers are those inside the box, found through
the box's own /proc; signals go through a descriptor of that very process, so a reused number is not hit.
"""

import contextlib
import os
import signal
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from coldframe.guest.rows import Call
from coldframe.guest.spawn import Steps
from coldframe.guest.usage import Usage
from coldframe.host.birth import Births
from coldframe.host.claims import Claims
from coldframe.host.groups import CommandGroup, Groups
from coldframe.host.held_memory import Walks, held_bytes
from coldframe.host.isolation.namespaces import HOME
from coldframe.host.limits import (
    SPARE_PROCESSES,
    GroupDescriptors,
    MarkedProcesses,
    forbid_core_files,
    plan_mark,
    plan_rlimits,
    read_file,
    read_marks,
    rlimit_steps,
    sort_marks,
    stat_fields,
)
from coldframe.host.own_disk import quota_of
from coldframe.host.quota import Layer
from coldframe.host.seccomp import ReadyFilter
from coldframe.host.volume_quotas import Attached, VolumeQuotas

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "blocked",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "X": "zombie",
}
RECENT_S = 0.01
"""How old a look at all processes may be for what is looked at again and again, by every command of the box."""


class Trees:
    """Makes the tree of each new command of one box."""

    def __init__(
        self,
        groups: GroupDescriptors | None,
        limits: dict[str, Any],
        *,
        memory_enforced: bool,
        root: int,
        program: bytes | None = None,
        births: Births | None = None,
        claims: Claims | None = None,
        layer: Layer | None = None,
        volumes: Attached | None = None,
    ) -> None:
        """`limits` may be lowered later in place: the next command is held to what it says then.

        `program` is a system call filter for whatever is forked here, beside the keeper's own. `claims` say whose which group
        is, where somebody asks. `layer` is that of a system of the box's own, `volumes` what else is mounted in it.
        """
        self._filter = None if program is None else ReadyFilter(program)
        self.sealing: tuple[Call, ...] = () if self._filter is None else (self._filter.call,)
        self.births = births or Births(possible=False)
        self.claims = claims
        self.groups = Groups(groups) if groups is not None else None
        self.live: set[int] = set()
        self.walks = Walks(self.live)
        self._limits = limits
        self._planned: dict[tuple[tuple[str, int], ...], tuple[Call, ...]] = {}
        self._box_memory_mib = limits["memory_mib"]
        self._names = {name for pairs in groups or () for name, _ in pairs}
        self.memory_enforced = memory_enforced
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._marks: dict[int, int] = {}
        self._marks_at = -1.0
        self.looks = 0
        self._pids_events = -1 if groups is None else _open_pids_events(groups)
        forbid_core_files()
        apart = frozenset[tuple[int, int]]() if volumes is None else volumes.apart
        self.quota = quota_of(root, self.proc, limits["disk_mib"] << 20, place=HOME, layer=layer, apart=apart)
        if volumes is not None and volumes.quotas:
            self.quota = VolumeQuotas(self.quota, volumes.quotas)

    def prepare(self) -> None:
        """Make ready what the next command needs, and would otherwise wait for."""
        if self.groups is not None:
            with contextlib.suppress(OSError):  # if it is so again then, the command tells it
                self.groups.prepare()

    def make(self, number: int) -> "CommandTree":
        self.quota.look(begins=True)
        rlimits = self._rlimits()
        group = self.groups.take() if self.groups is not None else None
        capped = True
        if self._limits["memory_mib"] < self._box_memory_mib:
            capped = group is not None and group.limit_memory(self._limits["memory_mib"] << 20)
        self.live.add(number)
        return CommandTree(self, number, group, rlimits, polls_memory=not (self.memory_enforced and capped))

    def seal(self) -> None:
        """In whatever is forked from the keeper: take on the filter of the box. Raises ConfineError."""
        if self._filter is not None:
            self._filter.load()

    def may_share_memory(self) -> bool:
        """Whether a child may be in the memory group of the box while it shares the keeper's memory: when that is used up, the
        kernel may choose it, as the largest there, and ends all whose memory it is."""
        return self.groups is None or self.groups.has_room(self._box_memory_mib << 20)

    def refused_forks(self) -> int:
        """How often somebody in the box could not have another process so far; 0 where nobody counts that."""
        if self._pids_events < 0:
            return 0
        told = os.pread(self._pids_events, 64, 0).split()
        return int(told[1]) if told[:1] == [b"max"] else 0

    def marks(self, *, most_age_s: float = 0.0) -> dict[int, int]:
        """Of all processes, as they were at most `most_age_s` ago."""
        if time.monotonic() - self._marks_at >= most_age_s:
            self.looks += 1
            self._marks = read_marks(self.proc)
            self._marks_at = time.monotonic()
        return self._marks

    def planned(self, rlimits: dict[str, int]) -> tuple[Call, ...]:
        """This process does not change its own limits, so each answer is worked out once."""
        key = tuple(rlimits.items())
        if key not in self._planned:
            self._planned = {key: rlimit_steps(plan_rlimits(rlimits))}
        return self._planned[key]

    def _rlimits(self) -> dict[str, int]:
        limits = self._limits
        file_mib = 0 if self.quota.full() else min(limits["file_mib"], limits["disk_mib"])
        rlimits = {"open_files": limits["open_files"], "file_bytes": file_mib << 20}
        if "pids" not in self._names:
            rlimits["pids"] = limits["pids"] + SPARE_PROCESSES
        if not self._names & {"unified", "cpuacct"}:
            rlimits["cpu_s"] = int(limits["cpu_s"]) + 1
        return rlimits

    def drop(self, number: int, group: CommandGroup | None) -> None:
        self.live.discard(number)
        if group is not None and self.groups is not None:
            self.groups.give(group)


def _open_pids_events(groups: GroupDescriptors) -> int:
    """Of the group that has the limit. In version 2 kernels before 6.11 count where the fork was tried: nothing is told then."""
    for name, group in (*groups.attach_only, *groups.per_command):
        for above in ("",) if name == "pids" else ("", "../") if name == "unified" else ():
            with contextlib.suppress(OSError):  # this hierarchy does not limit them
                most = os.open(f"{above}pids.max", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)
                with open(most, "rb", buffering=0) as file:
                    if file.read(64).strip() != b"max":
                        return os.open(f"{above}pids.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=group)
    return -1


class CommandTree:
    def __init__(
        self,
        trees: Trees,
        number: int,
        group: CommandGroup | None,
        rlimits: dict[str, int],
        *,
        polls_memory: bool,
    ) -> None:
        self._trees = trees
        self._number = number
        self._group = group
        self._rlimits = rlimits
        limiting = (*trees.planned(rlimits), *rlimit_steps((plan_mark(number),)))
        # The filter comes first: nothing is done by a child that may do more than its box.
        beside, entry = ((), ()) if group is None else (group.entry_beside_birth, group.entry)
        self._born: Steps = (*trees.sealing, *beside, *limiting)
        self._unborn: Steps = (*trees.sealing, *entry, *limiting)
        self._polls_memory = polls_memory
        self._overruns = trees.quota.overruns
        self._refused_forks = trees.refused_forks()
        self._seen_cpu_s: dict[tuple[int, bytes], float] = {}
        """By process and its start, ended ones too: a child that was re-parented leaves its time to nobody."""
        self._closed = False

    def birth(self) -> tuple[int, Steps] | None:
        """The group that a child can be born in, and what it does there; None if it has to be forked."""
        if self._group is None or self._group.birthplace < 0 or not self._trees.births.possible:
            return None
        if not self._trees.may_share_memory():
            return None
        return self._group.birthplace, self._born

    def fork(self) -> tuple[int, Steps]:
        """As os.fork, and what the child does then: the filter, the groups, the limits, the mark."""
        pid, born = self._trees.births.fork(-1 if self._group is None else self._group.birthplace)
        return pid, self._born if born else self._unborn

    def claim(self, command_id: str) -> None:
        if self._trees.claims is not None and self._group is not None:
            self._trees.claims.write(self._group.name, command_id)

    def empty(self) -> bool:
        if self._closed:
            return True
        if self._group is not None and self._group.exact:
            return self._group.is_empty()
        # Who is found alive settles it; that nobody is left is never said from an old look.
        looks = self._trees.looks
        if self._find(most_age_s=RECENT_S):
            return False
        return self._trees.looks != looks or not self._find()

    def members(self) -> list[dict[str, Any]]:
        return self._described(self._find())

    def processes(self) -> list[dict[str, Any]]:
        return self._described(() if self._closed else self._marked())

    def _described(self, pids: tuple[int, ...]) -> list[dict[str, Any]]:
        found = (describe_process(self._trees.proc, pid) for pid in pids)
        return [process for process in found if process is not None]

    def signal(self, number: int) -> None:
        if self._group is not None and self._group.exact:
            self._group.signal(number)
        else:
            for pid in self._find():
                signal_process(self._trees.proc, pid, number)

    def kill(self) -> None:
        if self._group is not None and self._group.exact:
            self._group.kill()
            return
        for _ in range(20):  # until a look finds nobody: a fork may slip between look and signal
            found = self._find()
            if not found:
                return
            for pid in found:
                signal_process(self._trees.proc, pid, signal.SIGKILL)

    def cpu_s(self) -> float:
        used = self._group.cpu_s() if self._group is not None and not self._closed else None
        return self._marked_cpu_s() if used is None else used

    def usage(self) -> Usage:
        if self._group is None or self._closed:
            return Usage(self._marked_cpu_s(), None, 0)
        counted = self._group.usage()
        cpu_s = self._marked_cpu_s() if counted.cpu_s is None else counted.cpu_s
        return Usage(cpu_s, counted.peak_memory_bytes, counted.oom_kills or 0)

    def _marked_cpu_s(self) -> float:
        waited_for = 0.0
        for pid in self._find(most_age_s=RECENT_S):
            found = times_of(self._trees.proc, pid)
            if found is not None:
                self._seen_cpu_s[pid, found.started] = found.own_s
                waited_for += found.with_children_s
        return max(waited_for, sum(self._seen_cpu_s.values()))

    def forks_refused(self) -> bool:
        return self._trees.refused_forks() > self._refused_forks

    def disk_overrun(self) -> tuple[int, int] | None:
        """Bytes used and the limit, if the workspace has grown over its limit since this command began."""
        quota = self._trees.quota
        quota.look()
        if quota.overruns == self._overruns:
            return None
        return quota.used or 0, quota.limit_bytes

    def disk_full(self) -> tuple[int, int] | None:
        """Bytes used and the limit, if a file of this command could not grow because of the disk limit: it was begun in a
        full workspace, where none can, or the largest file is the whole disk.
        """
        quota = self._trees.quota
        if self._rlimits["file_bytes"] not in (0, quota.limit_bytes):
            return None
        quota.look()
        return quota.used or 0, quota.limit_bytes

    def disk_exhausted(self) -> dict[str, Any] | None:
        """The LimitHit if the kernel itself has no more room for the workspace, in bytes or in files."""
        return self._trees.quota.exhausted()

    def polled_memory_bytes(self, limit_bytes: int) -> int:
        if not self._polls_memory:
            return 0
        found = self._find(most_age_s=RECENT_S)
        return held_bytes(self._trees.proc, found, limit_bytes, partial(self._trees.walks.pages_for, self._number))

    def close(self) -> None:
        """Let go of the groups."""
        if not self._closed:
            self._closed = True
            self._trees.drop(self._number, self._group)

    def _find(self, *, most_age_s: float = 0.0) -> tuple[int, ...]:
        if self._closed:
            return ()
        return tuple(pid for pid in self._marked(most_age_s=most_age_s) if not _is_zombie(self._trees.proc, pid))

    def _marked(self, *, most_age_s: float = 0.0) -> tuple[int, ...]:
        marks = self._trees.marks(most_age_s=most_age_s)
        found: MarkedProcesses = sort_marks(marks, self._number, self._trees.live)
        alone = self._trees.live == {self._number}
        return found.marked + (found.unattributed if alone else ())


def _is_zombie(proc: int, pid: int) -> bool:
    fields = stat_fields(proc, pid)
    return fields is None or fields[0] in (b"Z", b"X")


class Times(NamedTuple):
    """CPU time of one process, in seconds."""

    started: bytes
    own_s: float
    with_children_s: float
    """Of the process and of the children it has waited for."""


def times_of(proc: int, pid: int) -> Times | None:
    """None if it is gone."""
    fields = stat_fields(proc, pid)
    if fields is None:
        return None
    user, system, *of_children = (int(field) / _TICKS_PER_S for field in fields[11:15])
    return Times(fields[19], user + system, user + system + sum(of_children))


def describe_process(proc: int, pid: int) -> dict[str, Any] | None:
    """Fields of ProcessInfo but for command and ports; None if it is gone."""
    fields = stat_fields(proc, pid)
    if fields is None:
        return None
    words = read_file(proc, f"{pid}/cmdline") or b""
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / _TICKS_PER_S
    return {
        "pid": pid,
        "parent": int(fields[1]),
        "command_line": words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")[:4096],
        "started_at": datetime.fromtimestamp(started, UTC).isoformat(),
        "state": _STATES.get(fields[0].decode(), "sleeping"),
        "cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        "memory_bytes": int(fields[21]) * _PAGE_BYTES,
    }


def signal_process(proc: int, pid: int, number: int) -> None:
    """Signal exactly the process that has *pid* now, or nobody."""
    try:
        process = os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
