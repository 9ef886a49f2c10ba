"""The isolation report of a box: read from the kernel after the box stands, never derived from settings.

Evidence comes from outside wherever it can be read there: ``/proc/PID`` of the box's first process, and the
box's own /proc seen through it, with every process that is in it. What only the keeper can read it sends as
text (`evidence`), and the report says so (`told by the keeper`); the keeper has no interest of its own, but
it sits at the edge of the box, so its word is only taken where there is no other.

What cannot be read counts as absent. `refuse_unless_enforced` turns a missing wall into an error that names
the property, the reason and the remedy; limits never refuse, they say `hard` or `best_effort`.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple, NoReturn

from pydantic import ValidationError

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.isolation import FirstProcess, IsolationReport, LimitReport, MountInfo, Property
from coldframe.contract.sandbox import Limits
from coldframe.guest.usage import USAGE_CHECK_NEAR_S, USAGE_CHECK_S
from coldframe.host import openings
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import NAMESPACES, ConfineError
from coldframe.host.disk_report import disk_sentence, judge_disk
from coldframe.host.isolation import denials
from coldframe.host.isolation.namespaces import LEVEL, TOOLS
from coldframe.host.ways_out import Captured

_FIXED = (f"level:{LEVEL}", "kernel:shared")
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
WAY_OUT = "network_access"
"""In the report on a machine: what `network` is in that of a box with a way out."""
OWN_PROCESSES = 8
"""What RLIMIT_NPROC leaves room for beside a command's own."""
_LANDLOCK_CREATE_RULESET, _LANDLOCK_VERSION = 444, 1


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
    first: FirstProcess
    tables: Mapping[str, str]
    """Of its network namespace."""
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
    denied: Sequence[str] = (),
    captured: Captured | None = None,
) -> IsolationReport:
    """Read everything about the box whose first process is `init` and judge it. Pids are the caller's.

    `evidence` is what the keeper sent: `processes` (pid inside -> status text), `mountinfo`, `net_dev`, `devices`,
    `filter_sha256`, `denied` and `namespaces` (name -> inode), each optional. Limits are reported only if they are given,
    the wall `programs` only for a box that was restricted to `runtimes`, and `denied_programs` only for one in which some
    are `denied`. `captured` is the way out of a box that has one. Never raises for what it cannot read. Blocks: about 0.3 ms, 0.1 ms more per process, and with patterns of
    denied programs up to 0.3 ms for each. May be called from any thread.
    """
    view = _look(init, keeper, evidence)
    found, left_out = openings.interfaces(
        view.tables,
        guest_link="unix socket of the keeper, mode 0600",
        ours=captured.sockets if captured else frozenset(),
    )
    now = datetime.now(UTC)
    judged = tuple(_judge_limits(limits, groups, init, evidence, now)) if limits is not None else ()
    disk = next((one for one in judged if one.kind == "disk"), None)
    return IsolationReport(
        level="namespaces",
        kernel="shared",
        kernel_release=os.uname().release,
        measured_at=now,
        properties=(
            *_judge(view, captured),
            *([_judge_programs(view, runtimes)] if runtimes is not None else []),
            *([_judge_denied(view, denied, evidence.get("denied"), runtimes)] if denied else []),
        ),
        limits=judged,
        mounts=view.mounts,
        namespaces=dict(view.namespaces),
        sentences=(*SENTENCES, _kill_sentence(groups), disk_sentence(disk)),
        first_process=view.first,
        landlock_abi=_landlock_abi(),
        devices=tuple(openings.devices(evidence.get("devices"))),
        interfaces=found,
        interfaces_left_out=left_out,
        boundary_weakened=tuple(one.target for one in view.mounts if one.source == "other" and one.target != "/"),
        processes=len(view.processes),
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
        missing=[
            {"property": one.name, "enforced": False, "reason": one.evidence, "remedy": one.remedy} for one in missing
        ],
    )


def is_whole(report: IsolationReport) -> bool:
    """Whether every required wall stands."""
    return all(one.state == "enforced" for one in report.properties if one.required)


def refuse_unless_hard(report: IsolationReport) -> None:
    """Raise IsolationUnavailable if a limit is kept by less than a hard mechanism; facts name each one."""
    soft = [one for one in report.limits if one.strength != "hard"]
    if soft:
        raise IsolationUnavailable(
            f"limits that this host cannot keep hard: {', '.join(one.kind for one in soft)}",
            hint="accept best effort with `on_missing: degrade`, or give the host daemon control groups and, for `disk`, "
            '`workspace_disk = "image"`',
            property=f"limit:{soft[0].kind}",
            reason=soft[0].reason or soft[0].enforced_by,
            missing=[
                {"property": f"limit:{one.kind}", "reason": one.reason or one.enforced_by, "bound": one.bound}
                for one in soft
            ],
        )


def refuse_unless_met(report: IsolationReport, requires: Sequence[str]) -> None:
    """Raise IsolationUnavailable if a property that was asked for does not hold; facts name each one."""
    held = {f"level:{report.level}", f"kernel:{report.kernel}"}
    held |= {one.name for one in report.properties if one.state == "enforced"}
    held |= {f"limit:{one.kind}" for one in report.limits if one.strength == "hard"}
    reasons = {one.name: one.evidence for one in report.properties}
    reasons |= {f"limit:{one.kind}": one.reason or one.enforced_by for one in report.limits}
    missing = [name for name in requires if name not in held]
    if missing:
        _refuse(missing, lambda name: reasons.get(name, f"the level `{report.level}` has no such property"))


def refuse_unoffered(level: str, requires: Sequence[str]) -> None:
    """Raise IsolationUnavailable, before anything is built, for a level that is not here or what no box of it has."""
    if level != LEVEL:
        _refuse([f"level:{level}"], lambda _: f"this host offers the level `{LEVEL}` alone")
    absent = [name for name in requires if name.partition(":")[0] in ("level", "kernel") and name not in _FIXED]
    if absent:
        _refuse(absent, lambda _: f"this host offers the level `{LEVEL}` alone, with the kernel of the host")


def _refuse(missing: Sequence[str], reason: Callable[[str], str]) -> NoReturn:
    remedy = "leave the property out if the code to be run can do without it, or use a host that offers it"
    raise IsolationUnavailable(
        f"not available here: {', '.join(f'`{name}`' for name in missing)}; no lower level was put in its place",
        hint=remedy,
        property=missing[0],
        reason=reason(missing[0]),
        remedy=remedy,
        missing=[{"property": one, "enforced": False, "reason": reason(one), "remedy": remedy} for one in missing],
    )


def without_way_out(error: IsolationUnavailable) -> Property:
    """For the report on a machine on which no box can have one."""
    return Property(
        name=WAY_OUT,
        state="absent",
        mechanism="egress broker",
        evidence=error.message,
        remedy=error.hint,
    )


# -- reading ---------------------------------------------------------------------------------------


def _look(init: int, keeper: int, evidence: Mapping[str, Any]) -> _View:
    processes: tuple[_Seen, ...] = ()
    first: tuple[_Seen, ...] = ()
    namespaces: dict[str, int] = {}
    mountinfo = ""
    tables: dict[str, str] = {}
    maps: dict[str, str] = {}
    source = "read from the host"
    with contextlib.suppress(OSError):
        # one descriptor for all, so that a pid used again cannot answer for the box
        proc = os.open(f"/proc/{init}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            first = (_Seen("the first process", _fields(_read(proc, "status")), None, True),)
            with contextlib.suppress(OSError):
                mountinfo = _read(proc, "mountinfo")
            tables = openings.network_tables(lambda name: _read(proc, f"net/{name}"))
            for name in ("uid_map", "gid_map"):
                with contextlib.suppress(OSError):
                    maps[name] = _read(proc, name)
            namespaces = _namespaces_of(proc, "") or {}
            processes = tuple(_processes_of(proc))
        finally:
            os.close(proc)
    whole = bool(processes)
    if not whole:
        source = "told by the keeper"
        statuses = evidence.get("processes")
        told = statuses if isinstance(statuses, Mapping) else {}
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
        first=_first_process(first[0].status if first else {}, maps, evidence.get("filter_sha256")),
        tables={**tables, "dev": tables.get("dev") or str(evidence.get("net_dev") or "")},
        mounts=tuple(openings.mounts(mountinfo or str(evidence.get("mountinfo") or ""))),
        source=source,
    )


def _first_process(status: Mapping[str, str], maps: Mapping[str, str], digest: object) -> FirstProcess:
    def number(key: str) -> int | None:
        text = status.get(key, "")
        return int(text) if text.isdecimal() else None

    privileges = number("NoNewPrivs")
    return FirstProcess(
        seccomp_mode=number("Seccomp"),
        seccomp_filters=number("Seccomp_filters"),
        filter_sha256=digest if isinstance(digest, str) else None,
        no_new_privileges=None if privileges is None else privileges == 1,
        capabilities={key: status[key] for key in CAPABILITY_SETS if key in status},
        uid_map=_id_map(maps.get("uid_map", "")),
        gid_map=_id_map(maps.get("gid_map", "")),
    )


def _id_map(text: str) -> tuple[tuple[int, int, int], ...]:
    rows = [[int(word) for word in line.split()] for line in text.splitlines()]
    return tuple((row[0], row[1], row[2]) for row in rows if len(row) == 3)


@cache
def _landlock_abi() -> int | None:
    version = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION)
    )
    return int(version) if version > 0 else None


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


# -- judging ---------------------------------------------------------------------------------------


def _judge(view: _View, captured: Captured | None) -> Iterator[Property]:
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
    yield _judge_network(view, captured)
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


def _judge_network(view: _View, captured: Captured | None) -> Property:
    names = openings.interface_names(view.tables.get("dev", ""))
    shown = f"interfaces: {'could not be read' if names is None else ', '.join(names)}"
    wrong = [] if names == ("lo",) else [shown]
    mechanism = "own network namespace without a way out; attempts are refused and recorded"
    evidence = shown
    if captured is not None:
        mechanism = (
            f"own network namespace, of which the egress broker gets every connection and look-up ({captured.mechanism}); "
            "the rest is refused and recorded"
        )
        listening = openings.listening(view.tables) & captured.sockets
        why = f", nftables cannot be had: {captured.reason}" if captured.reason else ""
        served = "the broker serves it" if captured.is_served else "nobody serves it, so nothing leaves"
        evidence = (
            f"{shown}; profile {' and '.join(f'`{name}`' for name in captured.profiles)}; "
            f"{len(listening)} of {len(captured.sockets)} sockets of the capture are there; {served}{why}"
        )
        if listening != captured.sockets:
            wrong.append(evidence)
    return Property(
        name="network",
        state="absent" if wrong else "enforced",
        mechanism=mechanism,
        evidence="; ".join(wrong) or evidence,
        required=True,
        remedy=_REMEDY_BUG if wrong else None,
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


def _judge_denied(view: _View, denied: Sequence[str], told: object, runtimes: Sequence[str] | None) -> Property:
    """Whether each denied program that this machine has now is covered in the box: the keeper tried, /proc shows the mounts.

    The machine is looked at again, since a program may have been installed, or put in place of a covered one, meanwhile.
    One that was removed is nowhere, and neither is its cover.
    """
    names, files, spared = (_texts(told, key) for key in ("names", "files", "spared"))
    uppermost = {one.target: one for one in view.mounts}
    wrong = [] if isinstance(told, Mapping) else ["the keeper said nothing of it"]
    there = [path for path, state in files.items() if state != denials.GONE]
    wrong += [f"{path}: {files[path]}" for path in there if files[path] != denials.COVERED]
    wrong += [
        f"{path} is no sealed mount"
        for path in there
        if path not in uppermost or uppermost[path].writable or not uppermost[path].noexec
    ]
    here: Sequence[str] = ()
    if runtimes is None:  # else nothing of the machine is there
        try:
            named = denials.find_named(denied)
            here = [denials.shown(path) for path in named if not path.startswith(f"{denials.OWN}/")]
        except OSError as error:
            wrong.append(f"the programs of this machine could not be read: {error}")
    for path in dict.fromkeys((*here, *names)):
        real = names.get(path)
        if real is None:
            wrong.append(f"{path} was not there when the box was built")
        elif real not in (denials.NOWHERE, *files) and path not in spared:
            wrong.append(f"{path} leads to {real}")
    left = ", ".join(f"{path} is part of {real}" for path, real in spared.items())
    shown = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return Property(
        name="denied_programs",
        state="absent" if wrong else "partial" if spared else "enforced",
        mechanism="on each of these files lies an empty one that can be neither read nor executed, mounted read-only",
        evidence="; ".join(wrong[:5])
        or f"the keeper could neither open nor execute {shown or 'any, since there is none'}; mounts {view.source}",
        required=bool(wrong) or not spared,
        caveat=f"not covered: {left}" if left else None,
        remedy="terminate the sandbox and create another" if wrong else None,
    )


def _texts(told: object, key: str) -> dict[str, str]:
    found = told.get(key) if isinstance(told, Mapping) else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _is_unprivileged(one: _Seen) -> bool:
    uids = one.status.get("Uid", "").split()
    return len(uids) == 4 and "0" not in uids


def _uid_of(view: _View) -> str:
    return (view.keeper.status.get("Uid", "").split() or ["unknown"])[0] if view.keeper is not None else "unknown"


def _is_zero(value: str | None) -> bool:
    return value is not None and value.strip("0") == "" and value != ""


def _judge_limits(
    built: Limits, groups: BoxGroups | None, init: int, evidence: Mapping[str, Any], now: datetime
) -> Iterator[LimitReport]:
    for one in _limits_by_kind(built, groups, init, evidence):
        missing = None if one.strength == "hard" else one.reason or _missing(one.kind, groups)
        yield one.model_copy(update={"verified_at": now, "supported": missing is None, "reason": missing})


def _missing(kind: str, groups: BoxGroups | None) -> str:
    """Why a limit is not hard, in words."""
    controller = {"memory": "memory", "cpu": "cpu_time", "cpus": "cpu"}.get(kind, kind)
    if groups is None or groups.controllers.where(controller) == "none":
        return f"the host daemon has no control group with the controller for `{kind}` that it may write"
    return "the limit could not be read back from the control group, or the box is not in it"


def _limits_by_kind(
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
    counted = where("cpu_time") != "none" and held
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
    looked = evidence.get("looks_at_memory") is not False
    memory_held = held and read.get("memory_bytes") == built.memory_mib << 20
    by_command = ", and lower for each command" if limits.memory_mib < built.memory_mib else ""
    yield LimitReport(
        kind="memory",
        limit=limits.memory_mib,
        unit="MiB",
        strength="hard" if memory_held else "best_effort" if looked else "unsupported",
        enforced_by=f"{where('memory')}, read back{by_command}"
        if memory_held
        else "looking at the memory that processes hold and ending commands"
        if looked
        else "nothing on this host",
        bound=None if memory_held or not looked else f"what can be touched in {looking}",
    )
    pids_held = held and read.get("pids") == limits.pids
    most = evidence.get("most_processes")
    pids_kept = pids_held or not isinstance(most, int) or most <= limits.pids + OWN_PROCESSES
    yield LimitReport(
        kind="pids",
        limit=limits.pids,
        unit="processes",
        strength="hard" if pids_kept else "unsupported",
        enforced_by=f"{where('pids')}, read back"
        if pids_held
        else "RLIMIT_NPROC, counted per user namespace"
        if pids_kept
        else "nothing on this host",
        bound=None if pids_held or not pids_kept else f"{OWN_PROCESSES} more, for the box's own processes",
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
    yield judge_disk(limits, init, told="disk_used_bytes" in evidence)


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
