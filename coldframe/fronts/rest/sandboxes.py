"""Sandboxes: made, looked at, paused, stopped, ended."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError
from starlette.requests import Request

from coldframe.contract.command import Contact
from coldframe.contract.errors import ColdframeError, InvalidArgument
from coldframe.contract.files import ProcessInfo, Runtime
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.model import Model
from coldframe.contract.packages import PackageView
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import (
    EndMany,
    ExtendRequest,
    ManyEnds,
    PauseRequest,
    SandboxEnd,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
)
from coldframe.contract.tool import AllowedOperation
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.sandboxes import Sandboxes
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of

MOST_LISTED = 10_000
LONGEST_QUEUE_S = 86_400.0
LONGEST_WAIT_S = 60.0
"""Of one request; whoever waits on asks again."""
Shown = TypeVar("Shown", bound=SandboxInfo)


class Making(Model):
    """When to make it."""

    queue_s: Annotated[float, Field(gt=0, le=LONGEST_QUEUE_S)] | None = None
    """Where as many run as may, wait for a turn for so long, in state `queued`, instead of being refused."""


async def create_sandbox(request: Request, making: Making, spec: SandboxSpec) -> SandboxInfo:
    """Create a sandbox and measure its walls; nothing is left behind if one is missing."""
    spec = as_the_operator_says(request, spec)
    key = request.headers.get("idempotency-key")
    creation = control_of(request).creation
    made = await creation.create(caller_of(request), spec, idempotency_key=key, queue_s=making.queue_s)
    return _shown(request, made)


def _faults_beside(request: Request, content: dict[str, Any], left_out: frozenset[str]) -> list[tuple[str, str]]:
    try:
        spec = SandboxSpec.model_validate(content)
        return control_of(request).creation.faults_beside(caller_of(request), spec, left_out)
    except (ValidationError, ColdframeError):
        return []  # what is told already stands in the way of looking any further


def as_the_operator_says(request: Request, spec: SandboxSpec) -> SandboxSpec:
    """A caller may be stricter about what is missing, never laxer."""
    return spec.model_copy(update={"on_missing": "refuse"}) if request.app.on_missing == "refuse" else spec


class Listed(Model):
    """Which sandboxes."""

    state: tuple[SandboxState, ...] = ()
    agent_id: str | None = None
    label: Literal["PUBLIC", "INTERNAL", "CONFIDENTIAL", "RESTRICTED"] | None = None
    """Of the workspace."""
    created_by: str | None = None
    """Name of the token that asked for it."""
    min_age_s: Annotated[float, Field(ge=0)] | None = None
    min_idle_s: Annotated[float, Field(ge=0)] | None = None
    """So long nothing was done in it, as timers count."""
    after: str | None = None
    """Those that come after this one, the last of the page before."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] | None = None
    sort: Literal["age", "idle", "stored", "owner"] | None = None
    """The oldest, the longest idle or those with most stored first, or owner by owner; not with `after`. `stored` adds up what is
    on disk, which takes a while."""


async def list_sandboxes(request: Request, listed: Listed) -> list[SandboxInfo]:
    """Sandboxes that the caller may see, newest first."""
    if listed.sort is not None and listed.after is not None:
        raise InvalidArgument("a list that is sorted has no pages, so `after` says nothing", argument="after")
    roster = control_of(request).roster
    found = roster.list(
        caller_of(request),
        states=listed.state,
        agent_id=listed.agent_id,
        label=None if listed.label is None else Label(listed.label),
        created_by=listed.created_by,
        min_age_s=listed.min_age_s,
        min_idle_s=listed.min_idle_s,
        after=listed.after,
        limit=listed.limit if listed.sort is None else None,
    )
    return found if listed.sort is None else await roster.sort(found, listed.sort, listed.limit)


async def terminate_sandboxes(request: Request, which: EndMany) -> ManyEnds:
    """End all that fit: by state, agent, maker, age and idle time. One that cannot be ended holds up no other."""
    return await control_of(request).roster.end(caller_of(request), which)


class Waiting(Model):
    """How long to wait."""

    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 0
    """While it is `queued`, and so long at most."""


async def get_sandbox(request: Request, waiting: Waiting) -> SandboxInfo:
    caller, sandbox_id = caller_of(request), request.path_params["sandbox_id"]
    info = await control_of(request).creation.wait(caller, sandbox_id, waiting.wait_s)
    return control_of(request).roster.shown(info)


async def pause_sandbox(request: Request, asked: PauseRequest) -> SandboxEnd:
    """Hold its processes still with their memory and connections, or end them and keep its files."""
    sandbox_id = request.path_params["sandbox_id"]
    return _shown(request, await _lifecycle(request).pause(caller_of(request), sandbox_id, asked.kind))


async def resume_sandbox(request: Request) -> SandboxInfo:
    """Let a paused one go on where it was; start a stopped one."""
    return _shown(request, await _lifecycle(request).resume(caller_of(request), request.path_params["sandbox_id"]))


class Ending(Model):
    """How to end it."""

    dry_run: bool = False
    """Do nothing, and say what would be lost."""


class Termination(Ending):
    snapshot: bool = False
    """Take a snapshot of its files before."""
    discard: bool = False
    """End it also if a temporary workspace has work that no commit has."""


async def stop_sandbox(request: Request, ending: Ending) -> SandboxEnd:
    """End its processes, and keep its files, records and session for `start`. The answer says what was lost."""
    sandbox_id = request.path_params["sandbox_id"]
    endings = control_of(request).endings
    return _shown(request, await endings.stop(caller_of(request), sandbox_id, dry_run=ending.dry_run))


async def start_sandbox(request: Request) -> SandboxInfo:
    """Build a stopped one anew on the same workspace."""
    return _shown(request, await _lifecycle(request).start(caller_of(request), request.path_params["sandbox_id"]))


async def extend_sandbox(request: Request, asked: ExtendRequest) -> SandboxInfo:
    """Have no timer act on it for a while. Nothing else gives it more time."""
    sandbox_id = request.path_params["sandbox_id"]
    return _shown(request, await _lifecycle(request).extend(caller_of(request), sandbox_id, asked.for_s))


async def terminate_sandbox(request: Request, ending: Termination) -> SandboxEnd:
    """End a sandbox and everything that runs in it. The workspace of its agent stays, a temporary one is gone, unless as a
    snapshot. The answer says what was lost."""
    return await control_of(request).endings.terminate(
        caller_of(request),
        request.path_params["sandbox_id"],
        dry_run=ending.dry_run,
        discard=ending.discard,
        snapshot=ending.snapshot,
    )


async def measure_isolation(request: Request) -> IsolationReport:
    """The walls, measured now."""
    return await _sandboxes(request).report(caller_of(request), request.path_params["sandbox_id"])


async def list_allowed(request: Request) -> list[AllowedOperation]:
    """What this caller may do here; what is not listed is denied."""
    return control_of(request).gate.allowed(caller_of(request), request.path_params["sandbox_id"])


async def list_contacts(request: Request) -> list[Contact]:
    """Attempts to reach out."""
    return list(await _sandboxes(request).contacts(caller_of(request), request.path_params["sandbox_id"]))


async def list_processes(request: Request) -> list[ProcessInfo]:
    """What runs inside now."""
    return await _sandboxes(request).processes(caller_of(request), request.path_params["sandbox_id"])


class Against(Model):
    """What to compare with."""

    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """By default the newest of this workspace."""


async def view_packages(request: Request, against: Against) -> PackageView:
    """Packages of pip, npm and apt: installed, cached, in the template, in a snapshot, and what has drifted since."""
    caller, sandbox_id = caller_of(request), request.path_params["sandbox_id"]
    return await control_of(request).packages.view(caller, sandbox_id, against.snapshot)


class Measuring(Model):
    """How to look."""

    measure: bool = False
    """Start those whose version is not known, by a command, since somebody inside may have changed them."""


async def list_runtimes(request: Request, measuring: Measuring) -> list[Runtime]:
    """Languages and managers of packages found inside, whether the rules let this caller start them, and how to get the
    others."""
    caller, sandbox_id = caller_of(request), request.path_params["sandbox_id"]
    return await control_of(request).runtimes.find(caller, sandbox_id, measure=measuring.measure)


def _sandboxes(request: Request) -> Sandboxes:
    return control_of(request).sandboxes


def _lifecycle(request: Request) -> Lifecycle:
    return control_of(request).lifecycle


def _shown(request: Request, info: Shown) -> Shown:
    return control_of(request).timers.shown(info)


_ALL = "/v1/sandboxes"
_ONE = _ALL + "/{sandbox_id}"
_KEY = ("Idempotency-Key", "With the same key the same sandbox is answered, and only one is made.")
ROUTES = (
    JsonRoute(
        "POST",
        _ALL,
        create_sandbox,
        SandboxInfo,
        query=Making,
        body=SandboxSpec,
        headers=(_KEY,),
        beside=_faults_beside,
    ),
    JsonRoute("GET", _ALL, list_sandboxes, list[SandboxInfo], query=Listed),
    JsonRoute("POST", _ALL + "/terminate", terminate_sandboxes, ManyEnds, body=EndMany),
    JsonRoute("GET", _ONE, get_sandbox, SandboxInfo, query=Waiting),
    JsonRoute("DELETE", _ONE, terminate_sandbox, SandboxEnd, query=Termination),
    JsonRoute("POST", _ONE + "/pause", pause_sandbox, SandboxEnd, body=PauseRequest),
    JsonRoute("POST", _ONE + "/resume", resume_sandbox, SandboxInfo),
    JsonRoute("POST", _ONE + "/stop", stop_sandbox, SandboxEnd, query=Ending),
    JsonRoute("POST", _ONE + "/start", start_sandbox, SandboxInfo),
    JsonRoute("POST", _ONE + "/extend", extend_sandbox, SandboxInfo, body=ExtendRequest),
    JsonRoute("GET", _ONE + "/report", measure_isolation, IsolationReport),
    JsonRoute("GET", _ONE + "/allowed", list_allowed, list[AllowedOperation]),
    JsonRoute("GET", _ONE + "/contacts", list_contacts, list[Contact]),
    JsonRoute("GET", _ONE + "/processes", list_processes, list[ProcessInfo]),
    JsonRoute("GET", _ONE + "/packages", view_packages, PackageView, query=Against),
    JsonRoute("GET", _ONE + "/runtimes", list_runtimes, list[Runtime], query=Measuring),
)
