"""Sandboxes and the workspaces that they stand on: made, listed, paused, ended."""

from typing import Annotated, Any

from pydantic import Field

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.model import Model
from coldframe.contract.sandbox import AgentId, Loss, SandboxInfo, SandboxSpec, SandboxState
from coldframe.contract.state import StateObject
from coldframe.contract.tool import AllowedOperation
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer
from coldframe.fronts.mcp.uris import contract_uri, files_uri
from coldframe.tools.registry import HOME

LONGEST_QUEUE_S = 3600.0
MOST_LISTED = 1000


class Workspace(Model):
    """A sandbox with what it stands on."""

    sandbox_id: str
    workspace: str | None
    """Its name, under which files are found again later; None for a temporary one, which is gone with the sandbox."""
    session_id: str
    state: StateObject
    directory: str
    label: str
    """Of the data in it."""
    template: str
    isolation: str
    network: tuple[str, ...] | None
    degraded: tuple[str, ...]
    warnings: tuple[str, ...]
    created_at: str
    created_by: str | None
    expires_at: str | None
    contract: str
    """Resource that says what it may do, what is enforced, and by what."""
    files: str
    """Resource of its files."""


def shown(asked: Asked, info: SandboxInfo) -> Workspace:
    info = asked.control.timers.shown(info)
    return Workspace(
        sandbox_id=info.sandbox_id,
        workspace=info.agent_id,
        session_id=info.session_id,
        state=info.state,
        directory=HOME,
        label=info.workspace_label.value,
        template=str(info.spec.template),
        isolation=info.spec.isolation,
        network=info.network,
        degraded=info.degraded,
        warnings=info.warnings,
        created_at=info.created_at.isoformat(),
        created_by=info.created_by,
        expires_at=None if info.expires_at is None else info.expires_at.isoformat(),
        contract=contract_uri(info.sandbox_id),
        files=files_uri(info.sandbox_id, ""),
    )


class NewWorkspace(SandboxSpec):
    """What it shall be. What this host cannot give is refused, never quietly left out."""

    workspace: AgentId | None = None
    """Name of a durable workspace, new or there already: lower-case letters, digits and hyphens. Without one it is temporary."""
    queue_s: Annotated[float, Field(gt=0, le=LONGEST_QUEUE_S)] | None = None
    """Where as many run as may, wait for a turn for so long."""
    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """With the same key the same one is answered, and only one is made."""


_NOT_OF_A_SPEC = frozenset({"workspace", "queue_s", "idempotency_key"})


@offer(arguments=NewWorkspace, answer=Workspace, right="sandbox.create")
async def create_workspace(asked: Asked, wanted: NewWorkspace) -> Workspace:
    """Make a sandbox: a computer of its own with files and commands, on the workspace of that name or on a temporary one. All
    arguments are optional. The other tools take its `sandbox_id`, or its `workspace`."""
    given: dict[str, Any] = {name: getattr(wanted, name) for name in wanted.model_fields_set - _NOT_OF_A_SPEC}
    if wanted.workspace is not None:
        if wanted.agent_id not in (None, wanted.workspace):
            raise InvalidArgument("`workspace` and `agent_id` name two workspaces", argument="workspace")
        given["agent_id"] = wanted.workspace
    if given.get("agent_id") is None:
        given["background"] = True
    spec = SandboxSpec(**given)
    if asked.operator_refuses:
        spec = spec.model_copy(update={"on_missing": "refuse"})
    made = await asked.control.creation.create(
        asked.caller, spec, idempotency_key=wanted.idempotency_key, queue_s=wanted.queue_s
    )
    return shown(asked, made)


class WhichSandboxes(Model):
    state: tuple[SandboxState, ...] = ()
    workspace: AgentId | None = None
    after: str | None = None
    """Those that come after this one, the last of the page before."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 100


class Sandboxes(Model):
    sandboxes: tuple[Workspace, ...]
    next_after: str | None
    """Ask again with it as `after` for more; None if these are all."""


@offer(arguments=WhichSandboxes, answer=Sandboxes, right="sandbox.read", reads=True)
async def list_sandboxes(asked: Asked, which: WhichSandboxes) -> Sandboxes:
    """Sandboxes that this token may use, newest first, with their workspaces and states."""
    found = asked.control.sandboxes.list(
        asked.caller, states=which.state, agent_id=which.workspace, after=which.after, limit=which.limit + 1
    )
    page = found[: which.limit]
    return Sandboxes(
        sandboxes=tuple(shown(asked, one) for one in page),
        next_after=page[-1].sandbox_id if len(found) > len(page) else None,
    )


class WhichSandbox(Model):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    workspace: Annotated[str | None, Field(max_length=63)] = None


@offer(arguments=WhichSandbox, answer=Workspace, right="sandbox.read", reads=True)
async def get_sandbox(asked: Asked, which: WhichSandbox) -> Workspace:
    """One sandbox as it is now."""
    return shown(asked, asked.control.sandboxes.get(asked.caller, _chosen(asked, which)))


class Ended(Model):
    """What became of it."""

    sandbox: Workspace
    lost: tuple[Loss, ...]
    kept: tuple[Loss, ...]
    snapshot_id: str | None
    dry_run: bool


class Ending(Model):
    sandbox_id: Annotated[str, Field(max_length=100)]
    dry_run: bool = False
    """Do nothing, and say what would be lost."""
    snapshot: bool = False
    """Take a snapshot of its files before."""
    discard: bool = False
    """End it also if a temporary workspace has work that no commit has."""


@offer(arguments=Ending, answer=Ended, right="sandbox.terminate", destroys=True, repeats=True)
async def terminate_sandbox(asked: Asked, which: Ending) -> Ended:
    """End a sandbox and everything that runs in it. The files of a named workspace stay; a temporary one is gone, unless as a
    snapshot."""
    end = await asked.control.endings.terminate(
        asked.caller, which.sandbox_id, dry_run=which.dry_run, discard=which.discard, snapshot=which.snapshot
    )
    return Ended(
        sandbox=shown(asked, end), lost=end.lost, kept=end.kept, snapshot_id=end.snapshot_id, dry_run=end.dry_run
    )


@offer(arguments=WhichSandbox, answer=Workspace, right="sandbox.pause", repeats=True)
async def pause_sandbox(asked: Asked, which: WhichSandbox) -> Workspace:
    """Hold the processes of a sandbox still, with their memory."""
    paused = await asked.control.lifecycle.pause(asked.caller, _chosen(asked, which), "memory")
    return shown(asked, paused)


class Resumed(Model):
    sandbox_id: Annotated[str, Field(max_length=100)]


@offer(arguments=Resumed, answer=Workspace, right="sandbox.resume", repeats=True)
async def resume_sandbox(asked: Asked, which: Resumed) -> Workspace:
    """Let a paused sandbox go on where it was; start a stopped one."""
    return shown(asked, await asked.control.lifecycle.resume(asked.caller, which.sandbox_id))


class AllowedOperations(Model):
    sandbox_id: str
    operations: tuple[AllowedOperation, ...]


@offer(arguments=WhichSandbox, answer=AllowedOperations, right="sandbox.read", reads=True)
async def allowed_operations(asked: Asked, which: WhichSandbox) -> AllowedOperations:
    """What this token may do in a sandbox now: allowed, denied, or to be approved by a person. What is not listed is denied."""
    sandbox_id = _chosen(asked, which)
    found = asked.control.gate.allowed(asked.caller, sandbox_id)
    return AllowedOperations(sandbox_id=sandbox_id, operations=tuple(found))


@offer(arguments=WhichSandbox, answer=IsolationReport, right="sandbox.read", reads=True)
async def isolation_report(asked: Asked, which: WhichSandbox) -> IsolationReport:
    """The walls of a sandbox, measured now: what holds, by what, and what by best effort only."""
    return await asked.control.sandboxes.report(asked.caller, _chosen(asked, which))


def _chosen(asked: Asked, which: WhichSandbox) -> str:
    return choose_sandbox(asked.control, asked.caller, which.sandbox_id, which.workspace)
