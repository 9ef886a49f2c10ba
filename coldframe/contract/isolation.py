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


class LimitReport(Model):
    kind: str
    limit: float
    unit: str
    strength: Literal["hard", "best_effort", "unsupported"]
    enforced_by: str
    bound: str | None = None


class MountInfo(Model):
    target: str
    filesystem: str
    writable: bool
    nosuid: bool
    nodev: bool
    noexec: bool


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
