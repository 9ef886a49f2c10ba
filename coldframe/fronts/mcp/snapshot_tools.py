"""Snapshots: points of time of a workspace that are gone back to, forked from and compared."""

from typing import Annotated

from pydantic import Field

from coldframe.contract.model import Model
from coldframe.contract.sandbox import AgentId, SandboxSpec
from coldframe.contract.snapshot import (
    Comparison,
    Part,
    ResetRequest,
    SandboxReset,
    SnapshotInfo,
    SnapshotRequest,
    TextChange,
)
from coldframe.control.comparisons import MOST_CHANGES
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer
from coldframe.fronts.mcp.workspace_tools import WhichSandbox, Workspace, shown
from coldframe.tools.registry import relative_path

Key = Annotated[str, Field(min_length=1, max_length=200)]


class NewSnapshot(SnapshotRequest):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: Annotated[str | None, Field(max_length=63)] = None
    idempotency_key: Key | None = None


@offer(arguments=NewSnapshot, answer=SnapshotInfo, right="snapshot.take")
async def take_snapshot(asked: Asked, wanted: NewSnapshot) -> SnapshotInfo:
    """Take a snapshot of the files of a sandbox. Its processes stand still meanwhile and go on."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, wanted.sandbox_id, wanted.workspace)
    return await asked.control.snapshots.take(
        asked.caller,
        sandbox_id,
        SnapshotRequest(name=wanted.name, expires_in_s=wanted.expires_in_s),
        idempotency_key=wanted.idempotency_key,
    )


class WhichSnapshots(Model):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    """Through which they were taken."""
    workspace: AgentId | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class Snapshots(Model):
    snapshots: tuple[SnapshotInfo, ...]


@offer(arguments=WhichSnapshots, answer=Snapshots, right="snapshot.read", reads=True)
async def list_snapshots(asked: Asked, which: WhichSnapshots) -> Snapshots:
    """Snapshots that this token may see, newest first."""
    found = asked.control.snapshots.list(
        asked.caller, sandbox_id=which.sandbox_id, agent_id=which.workspace, after=which.after, limit=which.limit
    )
    return Snapshots(snapshots=tuple(found))


class Reset(ResetRequest):
    sandbox_id: Annotated[str, Field(max_length=100)]
    idempotency_key: Key | None = None


@offer(arguments=Reset, answer=SandboxReset, right="sandbox.reset", destroys=True)
async def reset_sandbox(asked: Asked, wanted: Reset) -> SandboxReset:
    """Take the files of a sandbox back to a snapshot, or to nothing. What was before is kept for a day unless it is discarded."""
    done = await asked.control.resets.reset(
        asked.caller,
        wanted.sandbox_id,
        ResetRequest(to=wanted.to, discard=wanted.discard, dry_run=wanted.dry_run),
        idempotency_key=wanted.idempotency_key,
    )
    return asked.control.timers.shown(done)


class Fork(WhichSandbox):
    """Of which one, and what the new one shall be."""

    new_workspace: AgentId | None = None
    """Name of the workspace of the new one, which must not be there yet; a temporary one without."""
    idempotency_key: Key | None = None


@offer(arguments=Fork, answer=Workspace, right="sandbox.create")
async def fork_sandbox(asked: Asked, wanted: Fork) -> Workspace:
    """Make another sandbox that begins with the files of this one as they are now. Nothing else goes along."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, wanted.sandbox_id, wanted.workspace)
    spec = SandboxSpec(agent_id=wanted.new_workspace, background=wanted.new_workspace is None)
    if asked.operator_refuses:
        spec = spec.model_copy(update={"on_missing": "refuse"})
    made = await asked.control.forks.fork(asked.caller, sandbox_id, spec, idempotency_key=wanted.idempotency_key)
    return shown(asked, made)


class Compared(Model):
    before: Annotated[str, Field(max_length=100)]
    """A snapshot, or a sandbox for what it has now."""
    after: Annotated[str, Field(max_length=100)]
    part: Part = "workspace"
    next_after: str | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_CHANGES)] = 1000


@offer(arguments=Compared, answer=Comparison, right="snapshot.read", reads=True)
async def compare(asked: Asked, which: Compared) -> Comparison:
    """What differs between two points of time, path by path: ids of snapshots, or of sandboxes for what they have now."""
    return await asked.control.comparisons.compare(
        asked.caller, which.before, which.after, next_after=which.next_after, limit=which.limit, part=which.part
    )


class ComparedFile(Model):
    before: Annotated[str, Field(max_length=100)]
    after: Annotated[str, Field(max_length=100)]
    path: str


@offer(arguments=ComparedFile, answer=TextChange, right="snapshot.read", reads=True)
async def compare_file(asked: Asked, which: ComparedFile) -> TextChange:
    """What differs in one file between two points of time, line by line."""
    return await asked.control.comparisons.text(asked.caller, which.before, which.after, relative_path(which.path))
