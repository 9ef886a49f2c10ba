"""What the isolation report says of the volumes of a box: how they are mounted, and how the limit of each is kept."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from coldframe.contract.isolation import LimitReport, MountInfo, Property
from coldframe.contract.volume import VolumeAttachment
from coldframe.host.box_view import REMEDY_BUG
from coldframe.host.disk_report import LOOKING_BOUND
from coldframe.host.own_disk import own_disk_of

_DIRECTORY = (
    'the volume is a directory, so it is added up instead; as root `workspace_disk = "image"` gives new volumes a disk of '
    "their own"
)


def named(mounts: Sequence[MountInfo], volumes: Sequence[VolumeAttachment]) -> tuple[MountInfo, ...]:
    """With the places of volumes told as such."""
    places = {one.at for one in volumes}
    return tuple(one.model_copy(update={"source": "volume"}) if one.target in places else one for one in mounts)


def judge_volumes(mounts: Sequence[MountInfo], volumes: Sequence[VolumeAttachment]) -> Property:
    """Whether each stands where it was asked for, can be written to if it may be, and gives no rights."""
    wrong = []
    for one in volumes:
        mount = next((mount for mount in reversed(mounts) if mount.target == one.at), None)
        if mount is None:
            wrong.append(f"`{one.name}` is not mounted at {one.at}")
        elif mount.writable and one.mode == "ro":
            wrong.append(f"`{one.name}` can be written to")
        elif not mount.nosuid or not mount.nodev:
            wrong.append(f"`{one.name}` is not nosuid and nodev")
    seen = ", ".join(f"{one.at} is {one.mode}" for one in volumes)
    return Property(
        name="volumes",
        state="absent" if wrong else "enforced",
        mechanism="a mount of its own for each, with the flags of the kernel",
        evidence="; ".join(wrong) or seen,
        required=True,
        remedy=f"stop the sandbox and start it again; {REMEDY_BUG}" if wrong else None,
    )


def judge_volume_limits(volumes: Sequence[VolumeAttachment], process: int, now: datetime) -> Iterator[LimitReport]:
    """Of those that can be written to. *process* is the first one of the box."""
    for one in volumes:
        if one.mode == "ro":
            continue
        disk = own_disk_of(process, one.at)
        hard = disk is not None and disk.capacity <= one.size_mib << 20
        yield LimitReport(
            kind=f"volume:{one.name}",
            limit=one.size_mib,
            unit="MiB",
            strength="hard" if hard else "best_effort",
            enforced_by="the kernel: the volume is a file system of its own"
            if hard
            else "the keeper, which looks at the free space and adds up the volume when it has fallen",
            bound=f"it holds {disk.capacity} bytes and {disk.files} files, measured at its mount in the box"
            if hard and disk is not None
            else LOOKING_BOUND,
            supported=hard,
            reason=None if hard else _DIRECTORY,
            verified_at=now,
        )
