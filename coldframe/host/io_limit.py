"""The limit of disk bandwidth of a box: on which disks it reads and writes, what the kernel is told of each, what it gives back.

The kernel holds a control group to a rate by disk, and only by whole disk: partitions stand for the one that they are on. Which
disks these are, the table of mounts of the box tells. A workspace on a disk of its own is a loop device, see `whole_disk`.
A system of the box's own is put together of layers, which lie with the data of the installation.

- version 1, `blkio.throttle.*_bps_device`: reads, and writes that a process waits for (`O_DIRECT`). What lies in the memory of the
  machine first is written by the kernel later, in nobody's name.
- version 2, `io.max`: where version 2 has the memory as well, the kernel knows whose memory it writes, for the file systems in
  `_ATTRIBUTING`.

The keeper is in no group that is held: what file tools read and write is not slowed.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coldframe.contract.isolation import LimitReport
from coldframe.host.cgroups import BoxGroups, Controllers
from coldframe.host.confine import ConfineError
from coldframe.host.isolation.namespaces import HOME
from coldframe.host.limits import read_text, write_text

UNIT = "MiB/s, read and written each"
_IN_MEMORY = frozenset(
    [
        *("tmpfs", "ramfs", "devtmpfs", "devpts", "mqueue", "hugetlbfs", "proc", "sysfs", "cgroup", "cgroup2"),
        *("securityfs", "debugfs", "tracefs", "bpf", "pstore", "configfs", "binfmt_misc", "efivarfs", "nsfs"),
    ]
)
_ATTRIBUTING = frozenset(["ext2", "ext4", "btrfs", "f2fs", "xfs"])
"""File systems that tell in whose name they write what lay in memory."""
_OUR_LAYERS = "=/proc/self/fd/"
"""In the options of an overlay that this product put together."""
_FILE_TOOLS = "what file tools read and write is not slowed"
_log = logging.getLogger(__name__)


class Disks(NamedTuple):
    """Behind the mounts of a box."""

    numbers: frozenset[str]
    """`MAJOR:MINOR` of each whole disk."""
    unknown: Mapping[str, str]
    """Place in the box -> file system, where no disk was found."""
    filesystems: frozenset[str]
    """Kinds of those that lie on disks."""
    has_layers: bool
    """Whether there is something that this product put together of layers, which its table of mounts does not place."""


class _Mount(NamedTuple):
    number: str
    place: str
    kind: str
    source: str
    options: str


def disks_of(mountinfo: str) -> Disks:
    """Of a box with this table of mounts. Blocks: it looks into /sys."""
    numbers, unknown, kinds = set[str](), dict[str, str](), set[str]()
    has_layers = False
    for mount in _mounts(mountinfo):
        if mount.kind in _IN_MEMORY:
            continue
        if mount.kind == "overlay" and _OUR_LAYERS in mount.options:
            has_layers = True
            continue
        disk = _disk_of(mount)
        if disk is None:
            unknown[mount.place] = mount.kind
        else:
            numbers.add(disk)
            kinds.add(mount.kind)
    return Disks(frozenset(numbers), unknown, frozenset(kinds), has_layers)


def _mounts(mountinfo: str) -> Iterable[_Mount]:
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split(" ", 2)
        if len(fields) > 4 and len(kinds) == 3:
            yield _Mount(fields[2], fields[4], kinds[0], kinds[1], kinds[2])


def _disk_of(mount: _Mount) -> str | None:
    if not mount.number.startswith("0:"):
        return whole_disk(mount.number)
    try:  # a file system that numbers its parts itself, as btrfs does, is known by what was mounted
        status = os.stat(mount.source) if mount.source.startswith("/dev/") else None
    except OSError:
        return None
    if status is None or not status.st_rdev:
        return None
    return whole_disk(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")


def whole_disk(number: str) -> str | None:
    """The disk of a block device, which may be one of its partitions; None if this machine shows none.

    A loop device that goes around the memory of the machine is the disk that its file lies on, which the kernel counts in the name
    of whoever began: capped as well, each of its bytes would wait twice. Any other one counts itself.
    """
    place = os.path.realpath(f"/sys/dev/block/{number}")
    if os.path.exists(f"{place}/partition"):
        place = os.path.dirname(place)
    try:
        if os.path.exists(f"{place}/loop") and read_text(f"{place}/loop/dio").strip() == "1":
            beneath = whole_disk(_number_of(read_text(f"{place}/loop/backing_file").rstrip("\n")))
            if beneath is not None:
                return beneath
    except OSError:  # it is gone, or its file is not to be found from here
        pass
    try:
        return read_text(f"{place}/dev").strip()
    except OSError:
        return None


def _number_of(path: str) -> str:
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def slow(controllers: Controllers, groups: Mapping[str, str], mib_s: int, init: int, workspace: str) -> None:
    """Cap reads and writes of the box whose first process is *init*, in its *groups*, on each disk that it has to do with, those
    of its *workspace* and of the layers beside it included. What fails is logged; whoever reads back finds it missing."""
    data = os.path.dirname(os.path.dirname(workspace))
    try:
        numbers = {*disks_of(read_text(f"/proc/{init}/mountinfo")).numbers}
        for place in (workspace, f"{data}/layers", f"{data}/templates"):
            if os.path.exists(place):
                disk = whole_disk(_number_of(place))
                numbers |= set() if disk is None else {disk}
        if "io" in controllers.unified:
            # Not earlier, and not for commands apart: each group with this controller costs, and few boxes are capped.
            write_text(f"{groups['unified']}/cgroup.subtree_control", "+io")
    except (OSError, KeyError) as error:
        _log.warning("the disk bandwidth of a box could not be capped: %s", error)
        return
    for number in sorted(numbers):
        try:
            _tell(controllers, groups, number, mib_s << 20)
        except OSError as error:
            _log.warning("the disk bandwidth of a box on disk %s could not be capped: %s", number, error)


def _tell(controllers: Controllers, groups: Mapping[str, str], number: str, rate: int) -> None:
    if "io" in controllers.unified:
        write_text(f"{groups['unified']}/box/io.max", f"{number} rbps={rate} wbps={rate}")
    elif "blkio" in groups:
        for way in ("read", "write"):
            write_text(f"{groups['blkio']}/blkio.throttle.{way}_bps_device", f"{number} {rate}")


def read_rates(controllers: Controllers, groups: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Disk -> bytes a second of reads and of writes, as the kernel gives them back; disks without both are left out. Raises OSError."""
    if "io" in controllers.unified:
        found = {}
        for line in read_text(f"{groups['unified']}/box/io.max").splitlines():
            number, *words = line.split()
            rates = dict(word.partition("=")[::2] for word in words)
            if rates.get("rbps", "max") != "max" and rates.get("wbps", "max") != "max":
                found[number] = int(rates["rbps"]), int(rates["wbps"])
        return found
    if "blkio" not in groups:
        return {}
    read, written = (
        dict(line.split() for line in read_text(f"{groups['blkio']}/blkio.throttle.{way}_bps_device").splitlines())
        for way in ("read", "write")
    )
    return {number: (int(rate), int(written[number])) for number, rate in read.items() if number in written}


def judge_io(mib_s: int, groups: BoxGroups | None, init: int) -> LimitReport:
    """What holds the box whose first process is *init* to this rate, read back."""

    def unsupported(reason: str) -> LimitReport:
        return LimitReport(
            kind="io",
            limit=mib_s,
            unit=UNIT,
            strength="unsupported",
            enforced_by="nothing on this host",
            reason=reason,
        )

    if groups is None or groups.controllers.where("io") == "none":
        why = "" if groups is None else f" ({groups.controllers.missing.get('io', 'not found')})"
        return unsupported(
            f"the host daemon has no control group with a controller of disk bandwidth that it may write{why}"
        )
    version_2 = "io" in groups.controllers.unified
    try:
        disks = disks_of(read_text(f"/proc/{init}/mountinfo"))
        rates = read_rates(groups.controllers, groups.paths)
        is_inside = groups.holds(init, frozenset({"unified" if version_2 else "blkio"}))
    except (OSError, KeyError, ValueError, ConfineError) as error:
        return unsupported(f"the limit could not be read back: {error}")
    if HOME in disks.unknown or not (disks.numbers or (disks.has_layers and rates)):
        kind = disks.unknown.get(HOME, "no file system on a disk")
        return unsupported(f"no disk of this machine was found behind the workspace: {kind}")
    loose = [number for number in sorted(disks.numbers) if max(rates.get(number, (mib_s << 21,) * 2)) > mib_s << 20]
    if loose or not is_inside:
        what = f"on disk {', '.join(loose)}" if loose else "for its first process"
        return unsupported(f"the control group of the box holds no such limit {what}")
    return _kept(mib_s, groups.controllers, disks)


def _kept(mib_s: int, controllers: Controllers, disks: Disks) -> LimitReport:
    gaps, reasons = [_FILE_TOOLS], []
    if "io" not in controllers.unified:
        reasons.append("version 1 of control groups does not know whose memory the kernel writes to disk")
    elif "memory" not in controllers.unified:
        reasons.append(
            "version 2 of control groups counts no memory here, so it does not know whose the kernel writes to disk"
        )
    elif others := sorted(disks.filesystems - _ATTRIBUTING):
        reasons.append(f"{', '.join(others)} does not tell in whose name it writes what lay in memory")
    if reasons:
        gaps.insert(0, "writes that the kernel carries out later are not slowed")
    if disks.unknown:
        places = ", ".join(f"`{place}` ({kind})" for place, kind in sorted(disks.unknown.items()))
        reasons.append(f"no disk was found behind {places}")
        gaps.append(f"nor what lies below {places}")
    return LimitReport(
        kind="io",
        limit=mib_s,
        unit=UNIT,
        strength="best_effort" if reasons else "hard",
        enforced_by=f"{controllers.where('io')}, read back for each disk",
        bound="; ".join(gaps),
        reason="; ".join(reasons) or None,
    )
