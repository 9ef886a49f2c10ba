"""Snapshots: points of time of a workspace that can be gone back to, forked from, compared, read and carried away."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import LONGEST_TIMER_S, AgentId, Loss, SandboxInfo

SnapshotId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]

SnapshotReason = Literal["asked", "automatic", "discarded", "imported"]
"""`automatic`: a rule had it taken, or a fork needed it. `discarded`: what a reset took away, kept for a day."""

ChangeKind = Literal["added", "changed", "deleted", "metadata"]

Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]

AUTOMATIC_S = 24 * 3600.0
"""How long an automatic one is kept, and what a reset took away."""


class WorkspacePoint(Model):
    """The files of a workspace as they are now: of an agent, or, without one, of the session of a background sandbox."""

    agent_id: AgentId | None = None
    session_id: str | None = None


class SnapshotPoint(Model):
    snapshot_id: SnapshotId


class SystemPoint(Model):
    """The system of its own that a workspace has now, or that a snapshot holds, from its root on."""

    of: WorkspacePoint | SnapshotPoint | None
    """None, in a comparison: the template that the other side stands on."""


Point = WorkspacePoint | SnapshotPoint | SystemPoint

Part = Literal["workspace", "system"]
"""Of what a snapshot holds: the files of the workspace, or the system of its own that the workspace had."""

LeftOut = Literal["history", "logins", "identity", "system_logins", "volumes"]
"""What is never in one. `history`: the record of commands. `logins`: logins and cookies of browsers in the workspace, and
`system_logins` in the home folders of the system. `identity`: machine id, host keys and random seeds of the system. `volumes`:
what the volumes of the sandbox hold, which are no part of it."""


class SnapshotSystem(Model):
    """The system that a snapshot holds, as what was changed in it since it began."""

    template_sha256: str
    """Digest of the template that it stands on, without which nothing can begin as it."""


class SnapshotWish(Model):
    """How one shall be taken."""

    name: Name = ""
    label: Label = Label.PUBLIC
    """Of the data in it; it travels with the snapshot, and with what is exported of it."""
    reason: SnapshotReason = "asked"
    expires_at: datetime | None = None
    """None: kept until somebody removes it."""


class SnapshotFacts(Model):
    """What the machine knows of one. Who took it, and of which sandbox, is the server's to know."""

    snapshot_id: SnapshotId
    workspace: WorkspacePoint | None
    """Where it was taken; None for one that was imported."""
    name: str
    label: Label
    reason: SnapshotReason
    created_at: datetime
    expires_at: datetime | None
    bytes: int | None = None
    """Of all files together; None while it is not counted."""
    files: int | None = None
    own_bytes: int | None = None
    """On disk, and for this snapshot alone; None while it is not counted."""
    added_bytes: int | None = None
    """On disk, beside what older ones of the same workspace have: together they are all that these take."""
    was_live: bool = False
    """Taken while processes ran: what they had not written yet is not in it."""
    frozen_ms: float | None = None
    """How long processes stood still for it; None if none had to."""
    system: SnapshotSystem | None = None
    """Taken in the same moment; None if it holds the files of the workspace alone."""
    left_out: tuple[LeftOut, ...] = ()


class Change(Model):
    """One path that differs; what is below an added or deleted folder is told too."""

    path: str
    """Empty for the top itself. Surrogate escapes for what is not UTF-8."""
    change: ChangeKind
    """`metadata`: the same content with another mode, owner, time of change or attributes."""
    kind: str
    """What it is now, what it was if it is deleted: `file`, `directory`, `symlink`, `fifo`, `socket`, `device`."""
    bytes_before: int
    bytes_after: int


class ChangesPage(Model):
    changes: tuple[Change, ...]
    next_after: str | None = None
    """Ask again with it for what follows; None at the end."""


class SnapshotContents(Model):
    """What an archive holds, told by whoever wrote or read it."""

    sha256: str
    """Of the list of everything in it; it stays the same from export to import."""
    files: int
    bytes: int


class SnapshotInfo(Model):
    """A snapshot as people and agents see it."""

    snapshot_id: SnapshotId
    state: Literal["ready", "lost"]
    """`lost`: it is not on the machine any more, and nobody has removed it."""
    name: str
    label: Label
    """Whatever begins as it, or reads it, is labelled no lower."""
    reason: SnapshotReason
    created_at: datetime
    expires_at: datetime | None = None
    """None: kept until somebody removes it."""
    agent_id: str | None = None
    """Whose workspace it was taken of; None for a temporary one, and for one that was imported."""
    sandbox_id: str | None = None
    """Through which it was taken."""
    taken_by: str
    """Surface and token, `timer`, or `server` for what was found after a crash."""
    bytes: int | None = None
    """Of all files together; None while it is not counted."""
    files: int | None = None
    own_bytes: int | None = None
    """On disk, and for this snapshot alone; None while it is not counted."""
    was_live: bool = False
    """Taken while processes ran: what they had not written yet is not in it."""
    frozen_ms: float | None = None
    """How long processes stood still for it; None if none had to."""
    system: SnapshotSystem | None = None
    """The system of its own that the workspace had, taken in the same moment; None if it holds the files of the workspace
    alone."""
    left_out: tuple[LeftOut, ...] = ()
    """What is never in it, so that it is safe to use again."""
    sha256: str | None = None
    """Of the list of everything in it, the same from export to import; None until it was exported or imported."""


class SnapshotRequest(Model):
    """How one shall be taken."""

    name: Name = ""
    expires_in_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    """None: kept until somebody removes it."""


class SnapshotPlan(Model):
    """What a snapshot taken now would have, and leave out."""

    paths: tuple[str, ...]
    """Below the workspace, folders included."""
    temporary: tuple[str, ...]
    """Absolute: what lies in memory, and is not in it."""
    bytes: int
    """Of the files."""
    complete: bool
    """False: there are more paths, or some could not be read."""
    kept: tuple[Loss, ...]
    left_out: tuple[Loss, ...]
    label: Label
    """Of what is told here."""


class RenameRequest(Model):
    name: Name


class ResetRequest(Model):
    to: SnapshotId | Literal["empty"]
    """`empty`: as the workspace of a new agent."""
    discard: bool = False
    """Do not keep for a day what it was like before."""
    dry_run: bool = False
    """Do nothing, and say what would be lost and what would change."""


class SandboxReset(SandboxInfo):
    """How the sandbox is after a reset, or would be before one."""

    lost: tuple[Loss, ...] = ()
    changes: ChangesPage | None = None
    """With `dry_run`: what differs from now, at most the first 20,000 paths."""
    system_changes: ChangesPage | None = None
    """With `dry_run`: the same of the system of its own, by paths from its root on; None if it has none and gets none."""
    kept: SnapshotInfo | None = None
    """What it was like before; None if that was discarded."""
    dry_run: bool = False


class Comparison(ChangesPage):
    """What differs between two points, a page of it."""

    label: Label
    """Of what is told here."""


class TextChange(Model):
    """One file at two points, line by line."""

    path: str
    binary: bool
    """At one of them it is no text; then there is no `diff`."""
    diff: str
    """In unified form; empty if both are the same."""
    sha256_before: str | None
    """None: there is no such file."""
    sha256_after: str | None
    label: Label
