"""The control groups of a sandbox, as the host daemon makes and removes them; version 1, version 2 or both.

What works is found by doing: a group is made, every limit is written, the group is removed. Rights, kernels
and delegations are too many to derive it from anything else.

A sandbox has one group ``coldframe-INSTALLATION/SANDBOX`` per hierarchy, below the daemon's own group, so
that caps put on the daemon from outside hold for everything it starts.

- version 1 (memory, pids, cpu): limits on that group; the box is in it, the keeper is not, since a keeper
  inside the memory group was killed together with the payload (measured).
- version 2: ``keeper`` and ``box`` below it, limits on ``box``. The kernel lets the keeper put a child there only
  if it may write ``cgroup.procs`` of the nearest common ancestor, so that file of the sandbox's group is the
  keeper's too. Useful without any controller: freeze, kill and CPU time need none.

Nobody is moved where that can be avoided, since it takes the kernel long (see ``birth.py``): the keeper is born in
its group, and so is what becomes bubblewrap, with the first process as its child. What bubblewrap keeps beside that is
in the groups of the box too, which is why the limit on processes has room for one more. `enter` and `settle` look
where they are, and move who is not where it belongs. Where systemd mounts version 2 with ``nsdelegate`` that is
everybody: the box's cgroup namespace must have been made in the sandbox's own group, as long as nothing is limited.

A sub-group per command (made by the keeper, see ``limits.py``) exists only where it tells something: in
version 2 (kill, CPU time, membership) and with the memory controller (whose OOM kill was it); version 1
cpuacct and freezer stand in where version 2 is missing. Version 1 pids and cpu need the box's group alone.
Measured on Linux 6.18 for unified + memory + pids: make 0.06, attach 0.04, remove 0.04 ms.

Limits are in the files of ``box`` and stay the daemon's; the sandbox's uid owns the directory (to make
sub-groups) and ``cgroup.procs``. No process of the box can reach either: no cgroup file system is mounted there.
"""

import contextlib
import errno
import logging
import os
import re
import signal
import time
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from coldframe.host.confine import ConfineError
from coldframe.host.limits import GroupDescriptors, read_text, write_text

V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer", "blkio")
V2_CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD_US = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_log = logging.getLogger(__name__)
_REMOVE_DEADLINE_S = 5.0
_FREEZE_DEADLINE_S = 5.0
_BESIDE = 1
"""Processes of ours in the groups of the box that are none of the box: bubblewrap's own."""
_SPARED = "-1000"
"""Somebody else ends when the memory of the box is used up: the end of these two, who are small, is that of the box."""


class GroupLimits(NamedTuple):
    memory_bytes: int
    pids: int
    cpus: float = 0.0
    """Cores; 0 for no cap."""
    io_bytes_s: int = 0
    """Of reads and of writes each; 0 for no cap. Written by `io_limit.py`, once it is known on which disks."""


@dataclass(frozen=True)
class Hierarchy:
    name: str
    """A version 1 controller, or `unified`."""
    base: str
    """Directory of the daemon's own group."""


@dataclass(frozen=True)
class Controllers:
    """What this host gives. The controls are memory, pids, cpu, io, freeze, kill and cpu_time."""

    hierarchies: Mapping[str, Hierarchy]
    """The usable ones by name."""
    unified: frozenset[str]
    """Which of memory, pids, cpu and io version 2 manages here."""
    controls: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Control that is not there -> why."""
    delegated: bool = False
    """Whether version 2 is mounted with `nsdelegate`."""

    def where(self, control: str) -> str:
        """`cgroup v1`, `cgroup v2` or `none`: what would enforce `control`."""
        if control not in self.controls:
            return "none"
        if control in ("kill", "freeze", "cpu_time"):
            return "cgroup v2" if "unified" in self.hierarchies else "cgroup v1"
        return "cgroup v2" if control in self.unified else "cgroup v1"


def detect_controllers(installation: str) -> Controllers:
    """Try everything once. Leaves only the empty directory ``coldframe-INSTALLATION`` in each usable hierarchy.

    In version 2 with controllers it may move this process into ``coldframe-INSTALLATION/daemon``, since a group
    that hands controllers down must hold no process.
    """
    mark = _mark(installation)
    usable: dict[str, Hierarchy] = {}
    reasons: dict[str, str] = {}
    unified: frozenset[str] = frozenset()
    for hierarchy in _mounted():
        try:
            if hierarchy.name == "unified":
                unified = _probe_unified(hierarchy, mark)
            else:
                _probe_v1(hierarchy, mark)
        except OSError as error:
            reasons[hierarchy.name] = f"{error.strerror} at `{error.filename or hierarchy.base}`"
        else:
            usable[hierarchy.name] = hierarchy
    has_unified = "unified" in usable
    sources = {
        "memory": "memory" in usable or "memory" in unified,
        "pids": "pids" in usable or "pids" in unified,
        "cpu": "cpu" in usable or "cpu" in unified,
        "io": "blkio" in usable or "io" in unified,
        "freeze": has_unified or "freezer" in usable,
        "kill": has_unified or "freezer" in usable,
        "cpu_time": has_unified or "cpuacct" in usable,
    }
    v1_name = {"freeze": "freezer", "kill": "freezer", "cpu_time": "cpuacct", "io": "blkio"}
    missing = {
        control: reasons.get(v1_name.get(control, control))
        or reasons.get("unified")
        or "no hierarchy with this controller is mounted or delegated"
        for control, there in sources.items()
        if not there
    }
    if has_unified:  # version 2 does what these would stand in for, and each group costs time and kernel memory
        for name in ("cpuacct", "freezer"):
            spare = usable.pop(name, None)
            if spare is not None:
                with contextlib.suppress(OSError):  # an older box has its group there
                    os.rmdir(f"{spare.base}/{mark}")
    there = frozenset(control for control, is_there in sources.items() if is_there)
    return Controllers(usable, unified, there, missing, _is_delegated_by_namespace())


def _is_delegated_by_namespace() -> bool:
    return any(
        " - cgroup2 " in line and "nsdelegate" in line.rpartition(" ")[2].split(",")
        for line in read_text("/proc/self/mountinfo").splitlines()
    )


class BoxGroups:
    """The groups of one sandbox. Order: `create`, `enter` (the keeper), build the box, `settle`, `remove`."""

    def __init__(self, controllers: Controllers, installation: str, sandbox_id: str) -> None:
        if not _NAME.fullmatch(sandbox_id):
            raise ValueError(f"`{sandbox_id}` cannot name a group")
        self.controllers = controllers
        self.name = sandbox_id
        mark = _mark(installation)
        self.paths = {name: f"{h.base}/{mark}/{sandbox_id}" for name, h in controllers.hierarchies.items()}
        """Hierarchy -> directory of the sandbox's own group."""
        self._made: set[str] = set()
        self._limits: GroupLimits | None = None
        self.endangered: tuple[int, ...] = ()
        """Who `let_out` is for; known after `settle`."""

    @property
    def _keeper_place(self) -> str:
        """Of whoever builds the box, in version 2."""
        return "" if self.controllers.delegated else "/keeper"

    def create_ahead(self) -> None:
        """Make the groups, those that a keeper is born below among them, for whoever will be their owner. Raises OSError."""
        for name in self.paths.keys() - {"cpu", "blkio"}:  # which only a box with a cap has
            self._make(name)
        if "unified" in self.paths and not self.controllers.delegated:
            self._hand_on(self.paths["unified"])  # once somebody is in them, this would wait for the machine

    def _make(self, name: str) -> None:
        path = self.paths[name]
        os.makedirs(path, exist_ok=False)
        self._made.add(name)
        for part in ("keeper", "box", "box/init") if name == "unified" else ():
            os.mkdir(f"{path}/{part}")

    def create(self, limits: GroupLimits, *, owner_uid: int) -> None:
        """Make the groups, and limit them but for the processor, which is `settle`'s.

        Raises ConfineError and leaves nothing behind.
        """
        self._limits = limits
        if not limits.cpus:
            self.paths.pop("cpu", None)
        if not limits.io_bytes_s:
            self.paths.pop("blkio", None)
        try:
            for name, path in self.paths.items():
                if name not in self._made:
                    self._make(name)
                if name == "unified":
                    for part in ("", "/keeper", "/box", "/box/init"):
                        _give(f"{path}{part}", owner_uid, threads="cgroup.threads")
                    if not self.controllers.delegated:
                        self._limit_unified(path)
                else:
                    if name != "cpu":
                        _write_limits(path, _v1_limits(name, limits))
                    _give(path, owner_uid, threads="tasks")
        except OSError as error:
            self.remove()
            raise ConfineError("make the control groups", f"{error.strerror} at `{error.filename}`") from error

    def birthplaces(self) -> list[tuple[str, int]]:
        """Directories of version 2 groups to be born in: `birthplace`, the keeper's, and `first`, of the first process.

        Where that one has to be moved there is no `first`, and without version 2 none. The caller closes them.
        """
        if "unified" not in self.paths:
            return []
        places = [("birthplace", self._keeper_place)]
        if not self.controllers.delegated:
            places.append(("first", "/box/init"))
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return [(name, os.open(f"{self.paths['unified']}{part}", flags)) for name, part in places]

    def enter(self, pid: int) -> None:
        """See that the keeper (or whoever builds the box) is in its version 2 group; nothing without it."""
        self._place(pid, self._keeper_place, only=("unified",))

    def settle(self, first_pid: int, *beside: int) -> None:
        """With the box built: see that its first process, and those of ours *beside* it, are under its limits.

        Raises ConfineError: it is not; nothing may run in the box then.
        """
        assert self._limits is not None
        for pid in (first_pid, *beside):
            self._place(pid, "/box/init", only=self.paths)
            try:
                write_text(f"/proc/{pid}/oom_score_adj", _SPARED)
            except OSError:  # it takes CAP_SYS_RESOURCE
                self.endangered = beside
        try:
            if "cpu" in self.paths:
                _write_limits(self.paths["cpu"], _v1_limits("cpu", self._limits))
            if "unified" in self.paths and self.controllers.delegated:
                path = self.paths["unified"]
                for line in read_text(f"{path}/cgroup.procs").split():
                    with contextlib.suppress(ProcessLookupError):
                        write_text(f"{path}/keeper/cgroup.procs", line)
                self._limit_unified(path)
            if "cpu" in self.controllers.unified:
                _write_limits(f"{self.paths['unified']}/box", _v2_limits("cpu", self._limits))
        except OSError as error:
            raise ConfineError("limit the box", f"{error.strerror} at `{error.filename}`") from error

    def let_out(self) -> None:
        """Where nobody may be spared, take those beside the first process out of the memory of the box.

        Bubblewrap is larger than a small program and would be the one to end. To move it waits for the machine, so this
        is for a thread that nobody waits for. Who has ended meanwhile is let be.
        """
        if "memory" in self.controllers.unified:
            inside, outside = f"{self.paths['unified']}/box/init", f"{self.paths['unified']}/keeper"
        elif "memory" in self.paths:
            inside, outside = self.paths["memory"], self.controllers.hierarchies["memory"].base
        else:
            return
        for pid in self.endangered:
            with contextlib.suppress(OSError):
                if str(pid) in read_text(f"{inside}/cgroup.procs").split():
                    write_text(f"{outside}/cgroup.procs", str(pid))

    def _limit_unified(self, path: str) -> None:
        """No process may be in the sandbox's group or `box` itself. Raises OSError."""
        assert self._limits is not None
        self._hand_on(path)
        for control in sorted(self.controllers.unified - {"cpu", "io"}):
            _write_limits(f"{path}/box", _v2_limits(control, self._limits))

    def _hand_on(self, path: str) -> None:
        """Have the controllers of version 2 counted for keeper, box and commands apart, but for `io`. Raises OSError."""
        for control in sorted(self.controllers.unified - {"io"}):
            for group in (path, f"{path}/box"):
                write_text(f"{group}/cgroup.subtree_control", f"+{control}")

    def descriptors(self) -> GroupDescriptors:
        """Directories of those that are made, for the keeper, close-on-exec; the caller closes its own copies."""
        wanted = ["unified", "memory"] if "unified" in self.paths else ["memory", "cpuacct", "freezer"]
        per_command = [name for name in wanted if name in self._made]
        attach_only = [name for name in ("pids", "cpu", "blkio") if name in self._made]

        def opened(name: str) -> int:
            path = self.paths[name] + ("/box" if name == "unified" else "")
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

        return GroupDescriptors(
            tuple((name, opened(name)) for name in per_command), tuple((name, opened(name)) for name in attach_only)
        )

    def kill(self) -> None:
        """End every process of the box; the keeper stays."""
        for name, path in self.paths.items():
            _kill_group(path, with_kill=f"{path}/box" if name == "unified" else None)

    @property
    def can_freeze(self) -> bool:
        return "unified" in self.paths or "freezer" in self.paths

    def freeze(self) -> None:
        """Hold every process of the box still, those being born included; the keeper goes on. Blocking.

        Raises ConfineError: this host cannot, or one of them could not be held; all go on then.
        """
        if not self.can_freeze:
            raise ConfineError("freeze the box", self.controllers.missing.get("freeze", "there is no freezer"))
        try:
            self._ask_freezer("1", "FROZEN")
            if self._is_still():
                return
        except OSError as error:
            self.thaw()
            raise ConfineError("freeze the box", f"{error.strerror} at `{error.filename}`") from error
        self.thaw()
        raise ConfineError("freeze the box", f"a process in it was not to be held within {_FREEZE_DEADLINE_S:g} s")

    def thaw(self) -> None:
        """Let them go on; nothing if they do. Raises OSError, but not for a group that is not there any more."""
        try:
            self._ask_freezer("0", "THAWED")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def is_frozen(self) -> bool:
        """Whether it was asked for: a box whose processes are about to stand still counts as frozen."""
        try:
            if "unified" in self.paths:
                return read_text(f"{self.paths['unified']}/box/cgroup.freeze").strip() == "1"
            return (
                "freezer" in self.paths and read_text(f"{self.paths['freezer']}/freezer.self_freezing").strip() == "1"
            )
        except OSError:  # its group is gone, or about to be
            return False

    def _ask_freezer(self, wanted: str, wanted_v1: str) -> None:
        if "unified" in self.paths:
            write_text(f"{self.paths['unified']}/box/cgroup.freeze", wanted)
        elif "freezer" in self.paths:
            write_text(f"{self.paths['freezer']}/freezer.state", wanted_v1)

    def _is_still(self) -> bool:
        """Whether all of them are, or become so before the deadline.

        It is looked at and not waited for: the kernel tells of it no more often than every 10 ms.
        """
        file, sign = f"{self.paths.get('unified')}/box/cgroup.events", "frozen 1"
        if "unified" not in self.paths:
            file, sign = f"{self.paths['freezer']}/freezer.state", "FROZEN"
        deadline = time.monotonic() + _FREEZE_DEADLINE_S
        pause_s = 0.0001
        while sign not in read_text(file).splitlines():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.01)
        return True

    def read_limits(self) -> dict[str, int | float]:
        """The limits as the kernel gives them back: `memory_bytes`, `pids`, `cpus`; absent where unlimited."""
        found: dict[str, int | float] = {}
        unified, v2 = self.controllers.unified, self.paths.get("unified", "")
        for key, control, v1_file, v2_file in (
            ("memory_bytes", "memory", "memory.limit_in_bytes", "memory.max"),
            ("pids", "pids", "pids.max", "pids.max"),
            ("cpus", "cpu", "cpu.cfs_quota_us", "cpu.max"),
        ):
            if control in unified:
                text = read_text(f"{v2}/box/{v2_file}")
            elif control in self.paths:
                text = read_text(f"{self.paths[control]}/{v1_file}")
            else:
                continue
            value = text.split()[0]
            if value not in ("max", "-1"):
                found[key] = int(value) / CPU_PERIOD_US if key == "cpus" else int(value)
        if "pids" in found:
            found["pids"] -= _BESIDE
        return found

    def holds(self, pid: int, hierarchies: Set[str] = frozenset({"memory", "pids", "unified"})) -> bool:
        """Whether `pid` is in this sandbox's groups (or below), as far as these are: by default where they limit or kill."""
        return hierarchies.isdisjoint(self._outside(pid, "/box"))

    def _outside(self, pid: int, part: str) -> list[str]:
        """In which hierarchies `pid` is not in this sandbox's group, and in version 2 in that `part` of it, or below."""
        own: dict[str, str] = {}
        for line in read_text(f"/proc/{pid}/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(",") if controllers else ["unified"], f"{path}/"))
        return [
            name
            for name, path in self.paths.items()
            if "/".join(["", *path.split("/")[-2:]]) + (f"{part}/" if name == "unified" else "/")
            not in own.get(name, "")
        ]

    def remove(self) -> None:
        """Remove the groups; waits at most 5 s for processes that are being killed to be gone, then raises."""
        for name in self.paths:
            _remove_tree(self.paths[name])

    def _place(self, pid: int, part: str, *, only: Collection[str]) -> None:
        """Move `pid` where it is not: into these of the sandbox's groups, in version 2 into that `part`."""
        try:
            for name in self._outside(pid, part):
                if name in only:
                    write_text(f"{self.paths[name]}{part if name == 'unified' else ''}/cgroup.procs", str(pid))
        except OSError as error:
            raise ConfineError(f"put process {pid} into its control group", error.strerror or "") from error


def remove_groups(
    controllers: Controllers,
    installation: str,
    *,
    keep: Set[str],
    ahead: Set[str] = frozenset(),
    former_bases: Iterable[str] = (),
) -> list[str]:
    """Kill and remove the groups of this installation's sandboxes that are not in `keep`; returns their names.

    Nor in `ahead`, which may be added to meanwhile. What cannot be ended is logged and keeps nothing else from it.
    `former_bases` are group directories under which an earlier run of the daemon lived. Groups without
    this installation's mark are never touched.
    """
    mark = _mark(installation)
    bases = [h.base for h in controllers.hierarchies.values()]
    removed: set[str] = set()
    failed: set[str] = set()
    for base in [*bases, *former_bases]:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(f"{base}/{mark}"):
                if entry.is_dir(follow_symlinks=False) and not (
                    entry.name == "daemon" or entry.name in keep or entry.name in ahead
                ):
                    removed.add(entry.name)
                    try:
                        _kill_group(entry.path, with_kill=entry.path)
                        _remove_tree(entry.path)
                    except (OSError, ConfineError) as error:
                        failed.add(entry.name)
                        _log.error("sandbox `%s` should have ended and may still run: %s", entry.name, error)
            if not keep:
                with contextlib.suppress(OSError):  # something is in it still
                    os.rmdir(f"{base}/{mark}")
    return sorted(removed - failed)


def _mark(installation: str) -> str:
    if not _NAME.fullmatch(installation):
        raise ValueError(f"`{installation}` cannot name a group")
    return f"coldframe-{installation}"


def _mounted() -> list[Hierarchy]:
    """The daemon's own group in each hierarchy that matters, as far as it is visible here."""
    own: dict[str, str] = {}
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if controllers else ["unified"]:
            own[name] = path
    found: dict[str, Hierarchy] = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        root, target = left.split()[3:5]
        kind, _, options = right.split()[:3]
        names = ["unified"] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            wanted = name == "unified" or name in V1_CONTROLLERS
            inside = own.get(name, "").removeprefix(root.rstrip("/")) if wanted and name in own else None
            if inside is not None and name not in found and os.path.isdir(base := (target + inside).rstrip("/")):
                found[name] = Hierarchy(name, base)
    return list(found.values())


def _probe_v1(hierarchy: Hierarchy, mark: str) -> None:
    path = f"{hierarchy.base}/{mark}/probe-{os.getpid()}"
    os.makedirs(path)
    try:
        _write_limits(path, _v1_limits(hierarchy.name, GroupLimits(1 << 30, 100, 1.0)))
        if hierarchy.name == "freezer":
            write_text(f"{path}/freezer.state", "THAWED")
        if hierarchy.name == "cpuacct":
            read_text(f"{path}/cpuacct.usage")
        if hierarchy.name == "blkio":
            for name in ("read", "write"):
                os.close(os.open(f"{path}/blkio.throttle.{name}_bps_device", os.O_WRONLY | os.O_CLOEXEC))
    finally:
        os.rmdir(path)


def _probe_unified(hierarchy: Hierarchy, mark: str) -> frozenset[str]:
    base, marked = hierarchy.base, f"{hierarchy.base}/{mark}"
    path = f"{marked}/probe-{os.getpid()}"
    os.makedirs(path)
    working = set()
    try:
        write_text(f"{path}/cgroup.freeze", "0")
        for control in V2_CONTROLLERS:
            if control not in read_text(f"{base}/cgroup.controllers").split():
                continue
            with contextlib.suppress(OSError):
                _hand_down(base, marked, control)
                _write_limits(path, _v2_limits(control, GroupLimits(1 << 30, 100, 1.0)))
                working.add(control)
        if "io" in read_text(f"{base}/cgroup.controllers").split():
            with contextlib.suppress(OSError):
                _hand_down(base, marked, "io")
                os.close(os.open(f"{path}/io.max", os.O_WRONLY | os.O_CLOEXEC))
                working.add("io")
    finally:
        os.rmdir(path)
    return frozenset(working)


def _hand_down(base: str, marked: str, control: str) -> None:
    try:
        write_text(f"{base}/cgroup.subtree_control", f"+{control}")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        os.makedirs(f"{marked}/daemon", exist_ok=True)
        write_text(f"{marked}/daemon/cgroup.procs", "0")
        write_text(f"{base}/cgroup.subtree_control", f"+{control}")
    write_text(f"{marked}/cgroup.subtree_control", f"+{control}")


def _v1_limits(controller: str, limits: GroupLimits) -> list[tuple[str, int]]:
    """Files and values; `?` marks those that a kernel may not have.

    Kernel memory counts towards the main limit since 4.5. TCP buffers of version 1 are counted only once they
    have a limit of their own, so they get the same one. Memory plus swap equals memory: a box does not swap.
    """
    if controller == "memory":
        return [
            ("memory.limit_in_bytes", limits.memory_bytes),
            ("?memory.memsw.limit_in_bytes", limits.memory_bytes),
            ("?memory.kmem.tcp.limit_in_bytes", limits.memory_bytes),
        ]
    if controller == "pids":
        return [("pids.max", limits.pids + _BESIDE)]
    if controller == "cpu" and limits.cpus:
        return [("cpu.cfs_period_us", CPU_PERIOD_US), ("cpu.cfs_quota_us", int(limits.cpus * CPU_PERIOD_US))]
    return []


def _v2_limits(controller: str, limits: GroupLimits) -> list[tuple[str, int | str]]:
    if controller == "memory":
        return [("memory.max", limits.memory_bytes), ("?memory.swap.max", 0)]
    if controller == "pids":
        return [("pids.max", limits.pids + _BESIDE)]
    return [("cpu.max", f"{int(limits.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}")] if limits.cpus else []


def _write_limits(path: str, limits: Iterable[tuple[str, int | str]]) -> None:
    for name, value in limits:
        target = f"{path}/{name.lstrip('?')}"
        if not name.startswith("?") or os.path.exists(target):
            write_text(target, str(value))


def _give(path: str, uid: int, *, threads: str) -> None:
    os.chown(path, uid, -1)
    for name in ("cgroup.procs", threads):
        with contextlib.suppress(FileNotFoundError):
            os.chown(f"{path}/{name}", uid, -1)


def _groups_below(path: str) -> list[str]:
    """`path` and all groups in it, deepest first. A group tree is ours and shallow, so walking it is safe."""
    return [directory for directory, _, _ in os.walk(path, topdown=False)]


def _kill_group(path: str, *, with_kill: str | None) -> None:
    if with_kill is not None:
        with contextlib.suppress(OSError):
            write_text(f"{with_kill}/cgroup.kill", "1")
            return
    for group in _groups_below(path):
        if os.path.basename(group) != "keeper":
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile: nobody was in it
                for pid in read_text(f"{group}/cgroup.procs").split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(OSError):  # of another hierarchy, as a rule
        write_text(f"{path}/freezer.state", "THAWED")  # a frozen process ends only then


def _remove_tree(path: str) -> None:
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    for group in _groups_below(path):
        while True:
            try:
                os.rmdir(group)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise ConfineError("remove a control group", f"{error.strerror} at `{group}`") from error
                time.sleep(0.002)  # a killed process leaves its group when it is reaped
                continue
            break
