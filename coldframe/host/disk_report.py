"""What the isolation report says of the disk limit: measured at the mount that the box sees."""

from coldframe.contract.isolation import LimitReport
from coldframe.contract.sandbox import Limits
from coldframe.guest.usage import LEFTOVERS_CHECK_S, USAGE_CHECK_S
from coldframe.host.isolation.namespaces import HOME
from coldframe.host.own_disk import own_disk_of
from coldframe.host.quota import REST_FACTOR, SURE_FACTOR, SURE_S

LOOKING_BOUND = (
    f"what can be written in {USAGE_CHECK_S:g} s ({LEFTOVERS_CHECK_S:g} s by processes that outlive their command) and in "
    f"{REST_FACTOR} times the time of adding the workspace up, about 4 µs for each file in it; in {SURE_S:g} s and "
    f"{SURE_FACTOR} times that time while somebody else frees as much"
)
_DIRECTORY = (
    'the workspace is a directory, so it is added up instead; as root `workspace_disk = "image"` gives new workspaces '
    "a disk of their own"
)


def judge_disk(limits: Limits, process: int, *, told: bool) -> LimitReport:
    """*process* is the first one of the box, *told* whether its keeper says that it looks."""
    disk = own_disk_of(process, HOME)
    if disk is not None and disk.capacity <= limits.disk_mib << 20:
        return LimitReport(
            kind="disk",
            limit=limits.disk_mib,
            unit="MiB",
            strength="hard",
            enforced_by="the kernel: the workspace is a file system of its own",
            bound=f"it holds {disk.capacity} bytes and {disk.files} files, measured at its mount in the box",
        )
    reason = _DIRECTORY
    if disk is not None:
        reason = f"the workspace is a disk of its own, but a larger one, of {disk.capacity >> 20} MiB"
    return LimitReport(
        kind="disk",
        limit=limits.disk_mib,
        unit="MiB",
        strength="best_effort" if told else "unsupported",
        enforced_by="the keeper, which looks at the free space and adds up the workspace when it has fallen"
        if told
        else "nothing on this host",
        bound=f"{LOOKING_BOUND}; a single file ends at {min(limits.file_mib, limits.disk_mib)} MiB",
        reason=reason,
    )


def disk_sentence(disk: LimitReport | None) -> str:
    if disk is not None and disk.strength == "hard":
        return (
            "the disk limit counts what the workspace holds; its image takes about a thirtieth more of the host, and the "
            "images together may promise more than the host has"
        )
    return f"the disk limit is kept by looking, so a workspace can overrun it by {LOOKING_BOUND if disk is None else disk.bound}"
