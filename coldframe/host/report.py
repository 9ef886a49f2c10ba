"""The isolation report of a box: read from the kernel after the box stands, never derived from settings.

Evidence comes from outside wherever it can be read there: ``/proc/PID`` of the box's first process, and the
box's own /proc seen through it, with every process that is in it. What only the keeper can read it sends as
text (`evidence`), and the report says so (`told by the keeper`); the keeper has no interest of its own, but
it sits at the edge of the box, so its word is only taken where there is no other.

What cannot be read counts as absent. `refuse_unless_enforced` turns a missing wall into an error that names
the property, the reason and the remedy; limits never refuse, they say `hard` or `best_effort`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.isolation import SERVICES, IsolationReport, Property
from coldframe.contract.sandbox import Limits
from coldframe.contract.volume import VolumeAttachment
from coldframe.host import landlock, openings
from coldframe.host.box_view import CAPABILITY_SETS, REMEDY_BUG, Seen, Surroundings, View, look
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import NAMESPACES
from coldframe.host.disk_report import disk_sentence
from coldframe.host.isolation.namespaces import LEVEL
from coldframe.host.isolation.own_system import CAPABILITIES
from coldframe.host.limits_report import judge_limits, kill_sentence
from coldframe.host.programs_report import judge_denied, judge_programs
from coldframe.host.system_report import OwnSystem
from coldframe.host.volume_report import judge_volume_limits, judge_volumes, named
from coldframe.host.ways_out import Captured

_FIXED = (f"level:{LEVEL}", "kernel:shared")
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
_REMEDY_SERVICE = "look at the log of the host daemon for why the egress broker ended; it is started again by itself"
_NOBODY = "no broker that lives has said that it serves them, so nothing leaves"
WAY_OUT = "network_access"
"""In the report on a machine: what `network` is in that of a box with a way out."""


def measure(
    init: int,
    keeper: int,
    evidence: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    groups: BoxGroups | None = None,
    runtimes: Sequence[str] | None = None,
    denied: Sequence[str] = (),
    template: str | None = None,
    captured: Captured | None = None,
    volumes: Sequence[VolumeAttachment] = (),
    around: Surroundings | None = None,
) -> IsolationReport:
    """Read everything about the box whose first process is `init` and judge it. Pids are the caller's.

    `evidence` is what the keeper sent: `processes` (pid inside -> status text), `mountinfo`, `net_dev`, `devices`,
    `filter_sha256`, `denied` and `namespaces` (name -> inode), each optional. Limits are reported only if they are given,
    the wall `programs` only for a box that was restricted to `runtimes`, and `denied_programs` only for one in which some
    are `denied`. `template` is the digest of the one that a box with a system of its own stands on. `captured` is the way out of a box that has one, and `volumes` are those that it was given. `around` is what lies around its processes, if that was looked at already. Never raises for what it cannot read. Blocks: about 0.3 ms, 0.1 ms more per process, and with patterns of
    denied programs up to 0.3 ms for each. May be called from any thread.
    """
    view = look(init, keeper, evidence, around)
    if volumes:
        view = replace(view, mounts=named(view.mounts, volumes))
    found, left_out = openings.interfaces(
        view.tables,
        guest_link="unix socket of the keeper, mode 0600",
        ours=captured.sockets if captured else frozenset(),
    )
    now = datetime.now(UTC)
    own = OwnSystem(init, template, view) if template is not None else None
    judged = tuple(judge_limits(limits, groups, init, evidence, now)) if limits is not None else ()
    disk = next((one for one in judged if one.kind == "disk"), None)
    return IsolationReport(
        level="namespaces",
        kernel="shared",
        kernel_release=os.uname().release,
        measured_at=now,
        properties=(
            *_judge(view, captured, own),
            *([judge_programs(view, runtimes)] if runtimes is not None else []),
            *([judge_denied(view, denied, evidence.get("denied"), runtimes)] if denied else []),
            *([judge_volumes(view.mounts, volumes)] if volumes else []),
        ),
        limits=(*judged, *judge_volume_limits(volumes, init, now)),
        mounts=view.mounts,
        namespaces=dict(view.namespaces),
        sentences=(
            *SENTENCES,
            kill_sentence(groups),
            disk_sentence(disk),
            *(own.sentences() if own is not None else ()),
        ),
        first_process=view.first,
        template_sha256=template,
        landlock_abi=landlock.version() or None,
        devices=tuple(openings.devices(evidence.get("devices"))),
        interfaces=found,
        interfaces_left_out=left_out,
        boundary_weakened=tuple(one.target for one in view.mounts if one.source == "other" and one.target != "/"),
        processes=len(view.processes),
        pause_kinds=("memory", "files") if groups is not None and groups.can_freeze else ("files",),
    )


def refuse_unless_enforced(report: IsolationReport) -> None:
    """Raise IsolationUnavailable if a required wall, or what serves its network, does not stand; facts name each one."""
    missing = [one for one in report.properties if (one.required or one.name in SERVICES) and one.state != "enforced"]
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
                {
                    "property": f"limit:{one.kind}",
                    "enforced": False,
                    "reason": one.reason or one.enforced_by,
                    "bound": one.bound,
                }
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
        remedy=error.advice,
    )


# -- judging ---------------------------------------------------------------------------------------


def _judge(view: View, captured: Captured | None, own: OwnSystem | None) -> Iterator[Property]:
    for name in NAMESPACES:
        yield _judge_namespace(view, name)
    everyone = (*view.processes, *((view.keeper,) if view.keeper is not None else ()))
    complete = view.whole and view.keeper is not None

    def wall(name: str, mechanism: str, wrong: list[str], right: str, *, remedy: str = REMEDY_BUG) -> Property:
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
    if own is None:
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
    else:
        mechanism = (
            f"no capability but {', '.join(CAPABILITIES)}, of root and the keeper, over the box's own users alone"
        )
        wrong, right = own.capabilities()
        yield wall("capabilities", mechanism, wrong, right)
        yield own.judge_users()
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
    if captured is not None:
        yield from _judge_services(view, captured)
    yield from _judge_mounts(view, own)


def _judge_namespace(view: View, name: str) -> Property:
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


def _judge_network(view: View, captured: Captured | None) -> Property:
    names = openings.interface_names(view.tables.get("dev", ""))
    shown = f"interfaces: {'could not be read' if names is None else ', '.join(names)}"
    wrong = [] if names == ("lo",) else [shown]
    mechanism = "own network namespace without a way out; attempts are refused and recorded"
    evidence = shown
    gaps: tuple[str, ...] = ()
    if captured is not None:
        gaps = landlock.describe_gaps(landlock.version())
        mechanism = (
            f"own network namespace, of which the egress broker gets every connection and look-up ({captured.mechanism}); "
            "the rest is refused and recorded"
        )
        listening = openings.listening(view.tables) & captured.sockets
        why = f", nftables cannot be had: {captured.reason}" if captured.reason else ""
        evidence = (
            f"{shown}; profile {' and '.join(f'`{name}`' for name in captured.profiles)}; "
            f"{len(listening)} of {len(captured.sockets)} sockets of the capture are there{why}"
        )
        if listening != captured.sockets:
            wrong.append(evidence)
    return Property(
        name="network",
        state="absent" if wrong else "enforced",
        mechanism=mechanism,
        evidence="; ".join(wrong) or evidence,
        required=True,
        caveat=f"of the broker itself: {'; '.join(gaps)}" if gaps else None,
        remedy=REMEDY_BUG if wrong else None,
    )


def _judge_services(view: View, captured: Captured) -> Iterator[Property]:
    """Whether what the box sends is answered. If not it leaves nothing, so these are no walls."""
    listening = openings.listening(view.tables)
    look_ups = captured.look_ups or captured.sockets  # of a box of an earlier version they are not told apart
    served = "the broker has said that it serves them" if captured.is_served else _NOBODY
    for name, mechanism, sockets in (
        ("egress_broker", "a process without rights, which judges every connection", captured.sockets - look_ups),
        ("resolver", "the egress broker, which answers every look-up", look_ups),
    ):
        there = len(listening & sockets)
        stands = captured.is_served and there == len(sockets)
        yield Property(
            name=name,
            state="enforced" if stands else "absent",
            mechanism=mechanism,
            evidence=f"{there} of {len(sockets)} sockets are there; {served}",
            remedy=None if stands else _REMEDY_SERVICE,
        )


def _judge_mounts(view: View, own: OwnSystem | None) -> Iterator[Property]:
    root = next((one for one in reversed(view.mounts) if one.target == "/"), None)
    root_held = root is not None and not root.writable
    yield Property(
        name="system_read_only",
        state="enforced" if root_held else "absent",
        mechanism="read-only mounts; only the workspace and private memory file systems are writable",
        evidence="no mount of / was found" if root is None else f"/ is {'rw' if root.writable else 'ro'}",
        required=own is None,
        remedy=None if root_held or own is not None else REMEDY_BUG,
    )
    if own is not None:
        yield own.judge_layer(root)
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
        remedy=None if held else REMEDY_BUG,
    )


def _is_unprivileged(one: Seen) -> bool:
    uids = one.status.get("Uid", "").split()
    return len(uids) == 4 and "0" not in uids


def _uid_of(view: View) -> str:
    return (view.keeper.status.get("Uid", "").split() or ["unknown"])[0] if view.keeper is not None else "unknown"


def _is_zero(value: str | None) -> bool:
    return value is not None and value.strip("0") == "" and value != ""
