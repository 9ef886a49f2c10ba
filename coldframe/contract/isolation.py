"""The isolation report: what holds a box, measured after creation and never derived from settings."""

from datetime import datetime
from typing import Literal

from coldframe.contract.model import Model


class Property(Model):
    """One wall or limit."""

    name: str
    state: Literal["enforced", "partial", "absent"]
    mechanism: str
    evidence: str
    """What was read or tried, as `Seccomp: 2 of pid 4242`."""
    required: bool = False
    bound: str | None = None
    """How far a best-effort limit can be overrun."""
    caveat: str | None = None
    remedy: str | None = None
    """What the user can do if it is not enforced."""


WALLS: tuple[str, ...] = (
    *(f"{kind}_namespace" for kind in ("user", "ipc", "uts", "net", "cgroup", "pid", "mount")),
    *("host_uid", "capabilities", "no_new_privileges", "seccomp", "keeper"),
    *("network", "system_read_only", "kernel_settings"),
)
"""Properties without which no sandbox is made, whatever it asks for."""
SERVICES: tuple[str, ...] = ("egress_broker", "resolver")
"""What serves a sandbox with a network. Without one of them it is not made. One that ends later is no hole, since nothing
leaves without it, so the sandbox goes on, and `degraded` names it."""


class LimitReport(Model):
    kind: str
    limit: float
    unit: str
    strength: Literal["hard", "best_effort", "unsupported"]
    enforced_by: str
    bound: str | None = None
    supported: bool = True
    """Whether this host has what keeps it hard here; if not, `reason` says what is missing."""
    reason: str | None = None
    verified_at: datetime | None = None
    """When it was read back or, where nothing can be read back, when the keeper told that it holds it."""


MountSource = Literal[
    "system",
    "layer",
    "settings",
    "workspace",
    "volume",
    "history",
    "tool",
    "memory",
    "kernel",
    "device",
    "mask",
    "other",
]


class MountInfo(Model):
    target: str
    filesystem: str
    source: MountSource = "other"
    """What stands behind it; `layer` is a system of the box's own, and `other` is nothing that this level mounts, and weakens
    the boundary."""
    writable: bool
    nosuid: bool
    nodev: bool
    noexec: bool


class DeviceInfo(Model):
    """One device node below /dev of the box."""

    path: str
    kind: Literal["character", "block"]
    major: int
    minor: int


class InterfaceInfo(Model):
    """One thing through which the box can be met, or can meet something."""

    kind: Literal["network", "tcp", "udp", "unix", "raw", "packet", "guest_link"]
    name: str
    """`lo`, `127.0.0.1:8000`, `@abstract`, a path; what it is for where it has no name."""
    held_by: Literal["box", "product"]


class FirstProcess(Model):
    """What the kernel says of the box's first process, read from outside; None or empty where it cannot be read."""

    seccomp_mode: int | None
    seccomp_filters: int | None
    filter_sha256: str | None
    """Of the program that bubblewrap and the keeper loaded, told by the keeper: no ordinary process can read
    it back."""
    no_new_privileges: bool | None
    capabilities: dict[str, str]
    """Set -> hexadecimal mask, as in /proc/PID/status."""
    uid_map: tuple[tuple[int, int, int], ...]
    """Inside, outside, count."""
    gid_map: tuple[tuple[int, int, int], ...]


class Trial(Model):
    """One promise tried from inside."""

    name: str
    promise: str
    held: bool
    seen: str


class IsolationReport(Model):
    level: Literal["namespaces"]
    kernel: Literal["shared"]
    kernel_release: str
    measured_at: datetime
    properties: tuple[Property, ...]
    limits: tuple[LimitReport, ...]
    mounts: tuple[MountInfo, ...]
    namespaces: dict[str, int]
    """Inode of each namespace of the box."""
    sentences: tuple[str, ...]
    """What this level cannot promise, in words."""
    first_process: FirstProcess | None = None
    template_sha256: str | None = None
    """Of the template on which a system of the box's own stands; None where it has that of the host."""
    landlock_abi: int | None = None
    """What the kernel offers; None for nothing. This level does not use it."""
    devices: tuple[DeviceInfo, ...] = ()
    interfaces: tuple[InterfaceInfo, ...] = ()
    interfaces_left_out: int = 0
    """Sockets of the box beyond those listed."""
    boundary_weakened: tuple[str, ...] = ()
    """Mounts that are nothing of this level's own; empty, since none can be asked for in this version."""
    processes: int = 0
    """Of the box, its first one included."""
    pause_kinds: tuple[Literal["memory", "files"], ...] = ("files",)
    """How it can be paused on this host; `memory` takes a control group that can be frozen."""
    trials: tuple[Trial, ...] = ()
    """What `coldframe doctor` tried inside; empty in the report of a sandbox in use."""
