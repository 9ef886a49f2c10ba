"""What can be seen of a box, before anybody judges it: its processes, namespaces, mounts and sockets.

Read from outside, through the directory of its first process in /proc; what cannot be read there the keeper tells, and the
view says so (`source`). Nothing here raises: what could not be read is empty, and whoever judges takes that for absent.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from coldframe.contract.isolation import FirstProcess, MountInfo
from coldframe.host import openings
from coldframe.host.confine import NAMESPACES

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
REMEDY_BUG = "report this with the server log; no setting of yours turns this wall off"


class Seen(NamedTuple):
    """One process as it was read."""

    name: str
    status: Mapping[str, str]
    namespaces: Mapping[str, int] | None
    """None where the right to read them is missing."""
    outside: bool
    """Read from the host's side, so that its uid is that of the host."""


@dataclass(frozen=True)
class View:
    """All that was read, before it is judged."""

    processes: tuple[Seen, ...]
    """Those of the box."""
    whole: bool
    """Whether these are all of them."""
    keeper: Seen | None
    keeper_dumpable: bool | None
    namespaces: Mapping[str, int]
    """Of the first process."""
    own: Mapping[str, int]
    first: FirstProcess
    tables: Mapping[str, str]
    """Of its network namespace."""
    mounts: tuple[MountInfo, ...]
    source: str


class Processes(NamedTuple):
    """Of a box, and its keeper's, as they could be read from outside."""

    seen: tuple[Seen, ...]
    first: Seen | None
    keeper: Seen | None
    keeper_dumpable: bool | None


class Surroundings(NamedTuple):
    """What lies around the processes of a box. From when the keeper says that it is `placed` nobody changes it any more but
    what is started there, so that much of a new box is measured while its keeper gives its rights away."""

    mountinfo: str = ""
    mounts: tuple[MountInfo, ...] = ()
    """The same, taken apart."""
    tables: Mapping[str, str] = {}
    """Of its network namespace."""
    maps: Mapping[str, str] = {}
    namespaces: Mapping[str, int] = {}
    """Of the first process."""
    own: Mapping[str, int] = {}
    processes: Processes | None = None
    """If they have been looked at as well, which is to be done when they have given their rights away."""


def look_around(init: int) -> Surroundings | None:
    """As far as it can be read from outside; None where nothing can."""
    with contextlib.suppress(OSError), _directory_of(init) as proc:
        return _around(proc)
    return None


@contextlib.contextmanager
def _directory_of(init: int) -> Iterator[int]:
    """One descriptor for all, so that a pid used again cannot answer for the box."""
    proc = os.open(f"/proc/{init}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield proc
    finally:
        os.close(proc)


def _around(proc: int) -> Surroundings:
    mountinfo, maps = "", {}
    with contextlib.suppress(OSError):
        mountinfo = _read(proc, "mountinfo")
    for name in ("uid_map", "gid_map"):
        with contextlib.suppress(OSError):
            maps[name] = _read(proc, name)
    return Surroundings(
        mountinfo,
        tuple(openings.mounts(mountinfo)),
        openings.network_tables(lambda name: _read(proc, f"net/{name}")),
        maps,
        _namespaces_of(proc, "") or {},
        _namespaces_of(None, "/proc/self/") or {},
    )


def _is_still(proc: int, around: Surroundings) -> bool:
    """Since then its keeper has given its rights away: what it did with them meanwhile shows."""
    try:
        return _read(proc, "mountinfo") == around.mountinfo and (_namespaces_of(proc, "") or {}) == around.namespaces
    except OSError:
        return False


def look_closer(init: int, keeper: int, around: Surroundings | None = None) -> Surroundings:
    """The same with the processes. Where it is not as it was *around* any more that is looked at again."""
    processes: tuple[Seen, ...] = ()
    first: Seen | None = None
    with contextlib.suppress(OSError), _directory_of(init) as proc:
        with contextlib.suppress(OSError):
            processes = tuple(_processes_of(proc))
        first = next((one for one in processes if one.name == _name_of("1")), None)
        first = first or Seen("the first process", fields_of(_read(proc, "status")), None, True)
        if around is None or not _is_still(proc, around):
            around = _around(proc)
    return (around or Surroundings())._replace(processes=Processes(processes, first, *_keeper(keeper)))


def look(init: int, keeper: int, evidence: Mapping[str, Any], around: Surroundings | None = None) -> View:
    """With what the keeper tells. *around*, if that was looked at already."""
    if around is None or around.processes is None:
        around = look_closer(init, keeper, around)
    assert around.processes is not None
    processes, first, seen_keeper, keeper_dumpable = around.processes
    source = "read from the host"
    namespaces = around.namespaces
    whole = bool(processes)
    if not whole:
        source = "told by the keeper"
        statuses = evidence.get("processes")
        told = statuses if isinstance(statuses, Mapping) else {}
        processes = tuple(Seen(str(pid), fields_of(str(text)), None, False) for pid, text in told.items())
        processes = processes if first is None else (first, *processes)
        whole = bool(told)
        inodes = evidence.get("namespaces")
        if not namespaces and isinstance(inodes, Mapping):
            namespaces = {str(name): int(inode) for name, inode in inodes.items() if isinstance(inode, int)}
    return View(
        processes=processes,
        whole=whole,
        keeper=seen_keeper,
        keeper_dumpable=keeper_dumpable,
        namespaces=namespaces,
        own=around.own,
        first=_first_process({} if first is None else first.status, around.maps, evidence.get("filter_sha256")),
        tables={**around.tables, "dev": around.tables.get("dev") or str(evidence.get("net_dev") or "")},
        mounts=around.mounts or tuple(openings.mounts(str(evidence.get("mountinfo") or ""))),
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


def _processes_of(init_proc: int) -> Iterator[Seen]:
    """Everything in the box's own /proc, seen from the host; a process that ends meanwhile is left out."""
    inside = os.open("root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=init_proc)
    try:
        for name in os.listdir(inside):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    status = fields_of(_read(inside, f"{name}/status"))
                    if not status.get("State", "").startswith(("Z", "X")):
                        yield Seen(_name_of(name), status, _namespaces_of(inside, f"{name}/"), True)
    finally:
        os.close(inside)


def _name_of(pid: str) -> str:
    return f"{pid} of the box"


def _keeper(pid: int) -> tuple[Seen | None, bool | None]:
    """Beside it whether it is dumpable: if not, the kernel gives the files below /proc/PID to root (the directory itself never)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        owner = os.fstat(file.fileno()).st_uid
        keeper = Seen("the keeper", fields_of(file.read()), None, True)
        uid = keeper.status.get("Uid", "").split()[1:2]
        return keeper, bool(uid) and owner == int(uid[0])
    return None, None


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


def fields_of(status: str) -> dict[str, str]:
    return {key: value.strip() for key, found, value in (line.partition(":") for line in status.splitlines()) if found}
