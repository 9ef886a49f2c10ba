"""The isolation report of a box: read from the kernel after the box stands, never derived from settings.

Evidence comes from outside wherever it can be read there: ``/proc/PID`` of the box's first process, and the
box's own /proc seen through it, with every process that is in it. What only the keeper can read it sends as
text (`evidence`), and the report says so (`told by the keeper`); the keeper has no interest of its own, but
it sits at the edge of the box, so its word is only taken where there is no other.

What cannot be read counts as absent. `refuse_unless_enforced` turns a missing wall into an error that names
the property, the reason and the remedy; limits never refuse, they say `hard` or `best_effort`.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.isolation import IsolationReport, LimitReport, MountInfo, Property
from coldframe.contract.sandbox import Limits
from coldframe.guest.command import LEFTOVERS_CHECK_S, USAGE_CHECK_NEAR_S, USAGE_CHECK_S
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import NAMESPACES, ConfineError
from coldframe.host.isolation.namespaces import TOOLS
from coldframe.host.quota import REST_FACTOR

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
SENTENCES = (
    "the kernel is shared with the host: a hole in one of its allowed system calls is a way out of this level",
    "kernel version, processor, memory size and uptime of the host are visible inside",
    "the host paths of what is mounted into the box are visible inside, in /proc/self/mountinfo",
    "users who distrust each other should not share a host at this level",
)
_REMEDY_NAMESPACES = (
    "allow unprivileged user namespaces for /usr/bin/bwrap (on Ubuntu: install an AppArmor profile for bwrap with the "
    "`userns` permission), then create the sandbox again"
)
_REMEDY_BUG = "report this with the server log; no setting of yours turns this wall off"
_DISK_BOUND = (
    f"what can be written in {USAGE_CHECK_S:g} s ({LEFTOVERS_CHECK_S:g} s by processes that outlive their command) and in "
    f"{REST_FACTOR} times the time of adding the workspace up, about 4 µs for each file in it"
)
_VIRTUAL_INTERFACE = re.compile(r"^\s*([^\s:]+):", re.MULTILINE)
_ESCAPE = re.compile(r"\\([0-7]{3})")


class _Seen(NamedTuple):
    """One process as it was read."""

    name: str
    status: Mapping[str, str]
    namespaces: Mapping[str, int] | None
    """None where the right to read them is missing."""
    outside: bool
    """Read from the host's side, so that its uid is that of the host."""


@dataclass(frozen=True)
class _View:
    """All that was read, before it is judged."""

    processes: tuple[_Seen, ...]
    """Those of the box."""
    whole: bool
    """Whether these are all of them."""
    keeper: _Seen | None
    keeper_dumpable: bool | None
    namespaces: Mapping[str, int]
    """Of the first process."""
    own: Mapping[str, int]
    interfaces: tuple[str, ...] | None
    mounts: tuple[MountInfo, ...]
    source: str


def measure(
    init: int,
    keeper: int,
    evidence: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    groups: BoxGroups | None = None,
    runtimes: Sequence[str] | None = None,
) -> IsolationReport:
    """Read everything about the box whose first process is `init` and judge it. Pids are the caller's.

    `evidence` is what the keeper sent: `processes` (pid inside -> status text), `mountinfo`, `net_dev`, and
    `namespaces` (name -> inode), each optional. Limits are reported only if they are given, and the wall `programs`
    only for a box that was restricted to `runtimes`. Never raises for what it cannot read. About 0.2 ms and 0.1 ms more per process.
    """
    view = _look(init, keeper, evidence)
    return IsolationReport(
        level="namespaces",
        kernel="shared",
        kernel_release=os.uname().release,
        measured_at=datetime.now(UTC),
        properties=(*_judge(view), *([_judge_programs(view, runtimes)] if runtimes is not None else [])),
        limits=tuple(_judge_limits(limits, groups, init, evidence)) if limits is not None else (),
        mounts=view.mounts,
        namespaces=dict(view.namespaces),
        sentences=(*SENTENCES, _kill_sentence(groups), _disk_sentence(limits)),
    )


def refuse_unless_enforced(report: IsolationReport) -> None:
    """Raise IsolationUnavailable if a required wall does not stand; facts name each one."""
    missing = [one for one in report.properties if one.required and one.state != "enforced"]
    if not missing:
        return
    first = missing[0]
    raise IsolationUnavailable(
        f"the isolation level `{report.level}` is not whole here: {', '.join(one.name for one in missing)}",
        hint=first.remedy,
        property=first.name,
        reason=first.evidence,
        remedy=first.remedy,
        missing=[{"property": one.name, "reason": one.evidence, "remedy": one.remedy} for one in missing],
    )


def refuse_unless_hard(report: IsolationReport) -> None:
    """Raise IsolationUnavailable if a limit is kept by less than a hard mechanism; facts name each one."""
    soft = [one for one in report.limits if one.strength != "hard"]
    if soft:
        raise IsolationUnavailable(
            f"limits that this host cannot keep hard: {', '.join(one.kind for one in soft)}",
            hint="accept best effort with `on_missing: degrade`, or give the host daemon control groups and quotas",
            property=f"limit:{soft[0].kind}",
            reason=soft[0].enforced_by,
            missing=[{"property": f"limit:{one.kind}", "reason": one.enforced_by, "bound": one.bound} for one in soft],
        )


# -- reading ---------------------------------------------------------------------------------------


def _look(init: int, keeper: int, evidence: Mapping[str, Any]) -> _View:
    processes: tuple[_Seen, ...] = ()
    first: tuple[_Seen, ...] = ()
    namespaces: dict[str, int] = {}
    mountinfo, net_dev = "", ""
    source = "read from the host"
    with contextlib.suppress(OSError):
        # one descriptor for all, so that a pid used again cannot answer for the box
        proc = os.open(f"/proc/{init}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            first = (_Seen("the first process", _fields(_read(proc, "status")), None, True),)
            with contextlib.suppress(OSError):
                mountinfo = _read(proc, "mountinfo")
            with contextlib.suppress(OSError):
                net_dev = _read(proc, "net/dev")
            namespaces = _namespaces_of(proc, "") or {}
            processes = tuple(_processes_of(proc))
        finally:
            os.close(proc)
    whole = bool(processes)
    if not whole:
        source = "told by the keeper"
        texts = evidence.get("processes")
        told = texts if isinstance(texts, Mapping) else {}
        processes = (*first, *(_Seen(str(pid), _fields(str(text)), None, False) for pid, text in told.items()))
        whole = bool(told)
        inodes = evidence.get("namespaces")
        if not namespaces and isinstance(inodes, Mapping):
            namespaces = {str(name): int(inode) for name, inode in inodes.items() if isinstance(inode, int)}
    return _View(
        processes=processes,
        whole=whole,
        keeper=_keeper(keeper),
        keeper_dumpable=_is_dumpable(keeper),
        namespaces=namespaces,
        own=_namespaces_of(None, "/proc/self/") or {},
        interfaces=_interfaces(net_dev or str(evidence.get("net_dev") or "")),
        mounts=tuple(_mounts(mountinfo or str(evidence.get("mountinfo") or ""))),
        source=source,
    )


def _processes_of(init_proc: int) -> Iterator[_Seen]:
    """Everything in the box's own /proc, seen from the host; a process that ends meanwhile is left out."""
    inside = os.open("root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=init_proc)
    try:
        for name in os.listdir(inside):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    status = _fields(_read(inside, f"{name}/status"))
                    if not status.get("State", "").startswith(("Z", "X")):
                        yield _Seen(f"{name} of the box", status, _namespaces_of(inside, f"{name}/"), True)
    finally:
        os.close(inside)


def _keeper(pid: int) -> _Seen | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return _Seen("the keeper", _fields(file.read()), None, True)
    except OSError:
        return None


def _is_dumpable(pid: int) -> bool | None:
    """The kernel gives the files below /proc/PID to root if it is not dumpable (the directory itself never)."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            uid = _fields(file.read()).get("Uid", "").split()[1:2]
        return bool(uid) and os.stat(f"/proc/{pid}/status").st_uid == int(uid[0])
    return None


def _namespaces_of(directory: int | None, prefix: str) -> dict[str, int] | None:
    try:
        return {name: os.stat(f"{prefix}ns/{name}", dir_fd=directory).st_ino for name in NAMESPACES}
    except OSError:
        return None


def _read(directory: int, name: str) -> str:
    with open(
        os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), encoding="utf-8", errors="surrogateescape"
    ) as file:
        return file.read()


def _fields(status: str) -> dict[str, str]:
    return {key: value.strip() for key, found, value in (line.partition(":") for line in status.splitlines()) if found}


def _interfaces(net_dev: str) -> tuple[str, ...] | None:
    return tuple(sorted(_VIRTUAL_INTERFACE.findall(net_dev))) if net_dev else None


def _mounts(mountinfo: str) -> Iterator[MountInfo]:
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if len(fields) < 6 or len(source) < 3:
            continue
        options = fields[5].split(",")
        yield MountInfo(
            target=_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4]).encode("utf-8", "replace").decode(),
            filesystem=source[0],
            writable="rw" in options and "rw" in source[2].split(","),
            nosuid="nosuid" in options,
            nodev="nodev" in options,
            noexec="noexec" in options,
        )


# -- judging ---------------------------------------------------------------------------------------


def _judge(view: _View) -> Iterator[Property]:
    for name in NAMESPACES:
        yield _judge_namespace(view, name)
    everyone = (*view.processes, *((view.keeper,) if view.keeper is not None else ()))
    complete = view.whole and view.keeper is not None

    def wall(name: str, mechanism: str, wrong: list[str], right: str, *, remedy: str = _REMEDY_BUG) -> Property:
        if not complete:
            wrong = ["the processes of the box could not be read", *wrong]
        return Property(
            name=name,
            state="absent" if wrong else "enforced",
            mechanism=mechanism,
            evidence="; ".join(wrong[:5]) if wrong else f"{right}, {view.source}",
            required=True,
            remedy=remedy if wrong else None,
        )

    count = f"{len(view.processes)} processes of the box and the keeper"
    yield wall(
        "host_uid",
        "an unprivileged host user",
        [
            f"uid {one.status.get('Uid', 'unknown')} of {one.name}"
            for one in everyone
            if one.outside and not _is_unprivileged(one)
        ]
        + ([] if any(one.outside for one in view.processes) else ["no uid could be read from outside"]),
        f"Uid of {count} is never 0, the keeper's is {_uid_of(view)}",
        remedy="give the host daemon an unprivileged user range to run boxes as",
    )
    yield wall(
        "capabilities",
        "empty capability sets",
        [
            f"{key}: {one.status.get(key)} of {one.name}"
            for one in everyone
            for key in CAPABILITY_SETS
            if not _is_zero(one.status.get(key))
        ],
        f"{' '.join(CAPABILITY_SETS)}: 0 of {count}",
    )
    for name, mechanism, key, wanted in (
        ("no_new_privileges", "no_new_privs", "NoNewPrivs", "1"),
        ("seccomp", "system call filter, profile default", "Seccomp", "2"),
    ):
        wrong = [f"{key}: {one.status.get(key)} of {one.name}" for one in everyone if one.status.get(key) != wanted]
        yield wall(name, mechanism, wrong, f"{key}: {wanted} of {count}")
    yield wall(
        "keeper",
        "PR_SET_DUMPABLE 0: no process of the box can trace the keeper or its unstarted children",
        [] if view.keeper_dumpable is False else ["the keeper is dumpable, or it could not be read"],
        "/proc of the keeper belongs to root",
    )
    only_lo = view.interfaces == ("lo",)
    shown = "could not be read" if view.interfaces is None else ", ".join(view.interfaces)
    yield Property(
        name="network",
        state="enforced" if only_lo else "absent",
        mechanism="own network namespace without a way out; attempts are refused and recorded",
        evidence=f"interfaces: {shown}",
        required=True,
        remedy=None if only_lo else _REMEDY_BUG,
    )
    yield from _judge_mounts(view)


def _judge_namespace(view: _View, name: str) -> Property:
    inode, own = view.namespaces.get(name), view.own.get(name)
    strays = [
        one.name for one in view.processes if one.namespaces is not None and one.namespaces.get(name) in (None, own)
    ]
    if inode is None or own is None:
        wrong = "the namespace could not be read"
    elif inode == own:
        wrong = f"{name}:[{inode}] is that of the host daemon"
    else:
        wrong = f"{', '.join(strays[:5])} in the namespace of the host daemon" if strays else ""
    return Property(
        name=f"{'mount' if name == 'mnt' else name}_namespace",
        state="absent" if wrong else "enforced",
        mechanism=f"own {name} namespace, made by bubblewrap",
        evidence=wrong or f"{name}:[{inode}], the host daemon's is {name}:[{own}], {view.source}",
        required=True,
        remedy=_REMEDY_NAMESPACES if wrong else None,
    )


def _judge_mounts(view: _View) -> Iterator[Property]:
    root = next((one for one in reversed(view.mounts) if one.target == "/"), None)
    root_held = root is not None and not root.writable
    yield Property(
        name="system_read_only",
        state="enforced" if root_held else "absent",
        mechanism="read-only mounts; only the workspace and private memory file systems are writable",
        evidence="no mount of / was found" if root is None else f"/ is {'rw' if root.writable else 'ro'}",
        required=True,
        remedy=None if root_held else _REMEDY_BUG,
    )
    writable = [one for one in view.mounts if one.writable]
    # /dev holds single device nodes bound from the host, so nodev cannot be on them
    loose = [one.target for one in writable if not one.nosuid or not (one.nodev or one.target.startswith("/dev"))]
    yield Property(
        name="mount_flags",
        state="enforced" if view.mounts and not loose else "partial" if view.mounts else "absent",
        mechanism="nosuid and nodev on every writable mount",
        evidence=f"without: {', '.join(loose)}" if loose else f"{len(writable)} writable mounts",
        caveat="no_new_privs takes the effect of set-uid files in any case" if loose else None,
    )
    sysctl = [one for one in view.mounts if one.target == "/proc/sys"]
    held = bool(sysctl) and not sysctl[-1].writable
    yield Property(
        name="kernel_settings",
        state="enforced" if held else "absent",
        mechanism="/proc/sys is a read-only mount",
        evidence="/proc/sys is ro" if held else "/proc/sys is not covered",
        required=True,
        remedy=None if held else _REMEDY_BUG,
    )


def _judge_programs(view: _View, runtimes: Sequence[str]) -> Property:
    """Whether /usr is covered and everything else noexec, but the programs themselves and what they load."""
    allowed = {f"{TOOLS}/{name}" for name in runtimes}
    covered = next((place for place, one in reversed(list(enumerate(view.mounts))) if one.target == "/usr"), -1)
    cover = view.mounts[covered] if covered >= 0 else None
    loose = [
        one.target
        for place, one in enumerate(view.mounts)
        if not one.noexec
        and one.target not in allowed
        and not (one.target.startswith("/usr") and (place < covered or not one.writable))
    ]
    wrong = []
    if cover is None or cover.filesystem != "tmpfs" or cover.writable or not cover.noexec:
        wrong.append("/usr is not covered")
    if loose:
        wrong.append(f"programs can be started from {', '.join(loose[:5])}")
    return Property(
        name="programs",
        state="absent" if wrong else "enforced",
        mechanism=f"nothing but {', '.join(runtimes) or 'nothing'} and its libraries is there; every other mount is noexec",
        evidence="; ".join(wrong) or f"/usr is a covering tmpfs, {len(view.mounts)} mounts looked at",
        required=True,
        caveat="a runtime told to load machine code (`deno run --allow-ffi`) runs it in its own process",
        remedy=_REMEDY_BUG if wrong else None,
    )


def _is_unprivileged(one: _Seen) -> bool:
    uids = one.status.get("Uid", "").split()
    return len(uids) == 4 and "0" not in uids


def _uid_of(view: _View) -> str:
    return (view.keeper.status.get("Uid", "").split() or ["unknown"])[0] if view.keeper is not None else "unknown"


def _is_zero(value: str | None) -> bool:
    return value is not None and value.strip("0") == "" and value != ""


def _judge_limits(
    built: Limits, groups: BoxGroups | None, init: int, evidence: Mapping[str, Any]
) -> Iterator[LimitReport]:
    read, held = _read_groups(groups, init)
    limits = _in_force(built, evidence.get("limits"))

    def where(control: str) -> str:
        return groups.controllers.where(control) if groups is not None else "none"

    looking = f"{USAGE_CHECK_S:g} s"
    yield LimitReport(
        kind="wall", limit=limits.wall_s, unit="s", strength="hard", enforced_by="timer of the keeper"
    )  # fmt: skip
    counted = where("cpu_time") != "none"
    yield LimitReport(
        kind="cpu",
        limit=limits.cpu_s,
        unit="s",
        strength="hard" if counted else "best_effort",
        enforced_by=f"{where('cpu_time')}, counted over the whole tree" if counted else "RLIMIT_CPU and summing",
        bound=f"what all cores do in {USAGE_CHECK_NEAR_S:g} s, near the limit"
        if counted
        else "each process may use the limit; the sum is looked at every " + looking,
    )
    memory_held = held and read.get("memory_bytes") == built.memory_mib << 20
    by_command = ", and lower for each command" if limits.memory_mib < built.memory_mib else ""
    yield LimitReport(
        kind="memory",
        limit=limits.memory_mib,
        unit="MiB",
        strength="hard" if memory_held else "best_effort",
        enforced_by=f"{where('memory')}, read back{by_command}"
        if memory_held
        else "looking at resident memory and ending commands",
        bound=None if memory_held else f"what can be touched in {looking}",
    )
    pids_held = held and read.get("pids") == limits.pids
    yield LimitReport(
        kind="pids",
        limit=limits.pids,
        unit="processes",
        strength="hard",
        enforced_by=f"{where('pids')}, read back" if pids_held else "RLIMIT_NPROC, counted per user namespace",
        bound=None if pids_held else "8 more, for the box's own processes",
    )
    if limits.cpus:
        cpus_held = held and abs(read.get("cpus", 0) - limits.cpus) < 0.01
        yield LimitReport(
            kind="cpus",
            limit=limits.cpus,
            unit="cores",
            strength="hard" if cpus_held else "unsupported",
            enforced_by=f"{where('cpu')}, read back" if cpus_held else "nothing on this host",
        )
    for kind, limit, unit, name in (
        ("open_files", limits.open_files, "files per process", "RLIMIT_NOFILE"),
        ("file", limits.file_mib, "MiB", "RLIMIT_FSIZE"),
        ("output", limits.output_mib, "MiB per command", "the keeper, which reads every byte"),
    ):
        yield LimitReport(kind=kind, limit=limit, unit=unit, strength="hard", enforced_by=name)
    told = "disk_used_bytes" in evidence
    yield LimitReport(
        kind="disk",
        limit=limits.disk_mib,
        unit="MiB",
        strength="best_effort" if told else "unsupported",
        enforced_by="the keeper, which looks at the free space and adds up the workspace when it has fallen"
        if told
        else "nothing on this host",
        bound=f"{_DISK_BOUND}; a single file ends at {min(limits.file_mib, limits.disk_mib)} MiB",
    )


def _in_force(built: Limits, told: object) -> Limits:
    """What the keeper says it holds commands to; never more than what the box was built with."""
    if not isinstance(told, Mapping):
        return built
    own = built.model_dump()
    lower = {
        name: value
        for name, value in told.items()
        if name in own and isinstance(value, int | float) and value < own[name]
    }
    try:
        return Limits.model_validate({**own, **lower})
    except ValidationError:
        return built


def _read_groups(groups: BoxGroups | None, init: int) -> tuple[dict[str, int | float], bool]:
    """The limits read back, and whether the box's first process is under them."""
    if groups is None:
        return {}, False
    try:
        return groups.read_limits(), groups.holds(init)
    except (OSError, ConfineError, ValueError):
        return {}, False


def _kill_sentence(groups: BoxGroups | None) -> str:
    exact = groups is not None and groups.controllers.where("kill") != "none"
    if exact:
        return "ending one command is exact: every process of it is in a control group of its own"
    return "ending one command is best effort: its processes carry a mark that they can change; ending the whole box is exact"


def _disk_sentence(limits: Limits | None) -> str:
    single = f"; a single file ends at {min(limits.file_mib, limits.disk_mib)} MiB" if limits is not None else ""
    return f"the disk limit is kept by looking, so a workspace can overrun it by {_DISK_BOUND}{single}"
