"""What the isolation report says of the limits of a box: how each is kept, read back from the kernel where it can be.

A limit never refuses a box by itself: it is `hard`, or `best_effort` with its bound, or `unsupported`.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from coldframe.contract.isolation import LimitReport
from coldframe.contract.sandbox import Limits
from coldframe.guest.usage import USAGE_CHECK_NEAR_S, USAGE_CHECK_S
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.disk_report import judge_disk
from coldframe.host.io_limit import judge_io

OWN_PROCESSES = 8
"""What RLIMIT_NPROC leaves room for beside a command's own."""


def judge_limits(
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
    if built.io_mib_s:
        yield judge_io(built.io_mib_s, groups, init)
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


def kill_sentence(groups: BoxGroups | None) -> str:
    exact = groups is not None and groups.controllers.where("kill") != "none"
    if exact:
        return "ending one command is exact: every process of it is in a control group of its own"
    return "ending one command is best effort: its processes carry a mark that they can change; ending the whole box is exact"
