"""Sandboxes: made, looked at, paused, stopped, ended."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.command import Contact
from coldframe.contract.document import ContractDocument
from coldframe.contract.files import ProcessInfo, Runtime
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import (
    ExtendRequest,
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
Shown = TypeVar("Shown", bound=SandboxInfo)


async def create_sandbox(request: Request, spec: SandboxSpec) -> SandboxInfo:
    """Create a sandbox and measure its walls; nothing is left behind if one is missing."""
    if request.app.on_missing == "refuse":  # the operator's word; a caller may be stricter, never laxer
        spec = spec.model_copy(update={"on_missing": "refuse"})
    key = request.headers.get("idempotency-key")
    return _shown(request, await _sandboxes(request).create(caller_of(request), spec, idempotency_key=key))


class Listed(Model):
    """Which sandboxes."""

    state: tuple[SandboxState, ...] = ()
    agent_id: str | None = None
    label: Literal["PUBLIC", "INTERNAL", "CONFIDENTIAL", "RESTRICTED"] | None = None
    """Of the workspace."""
    after: str | None = None
    """Those that come after this one, the last of the page before."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] | None = None


async def list_sandboxes(request: Request, listed: Listed) -> list[SandboxInfo]:
    """Sandboxes that the caller may see, newest first."""
    found = _sandboxes(request).list(
        caller_of(request),
        states=listed.state,
        agent_id=listed.agent_id,
        label=None if listed.label is None else Label(listed.label),
        after=listed.after,
        limit=listed.limit,
    )
    return [_shown(request, info) for info in found]


async def get_sandbox(request: Request) -> SandboxInfo:
    return _shown(request, _sandboxes(request).get(caller_of(request), request.path_params["sandbox_id"]))


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


async def stop_sandbox(request: Request, ending: Ending) -> SandboxEnd:
    """End its processes, and keep its files, records and session for `start`. The answer says what was lost."""
    sandbox_id = request.path_params["sandbox_id"]
    return _shown(request, await _lifecycle(request).stop(caller_of(request), sandbox_id, dry_run=ending.dry_run))


async def start_sandbox(request: Request) -> SandboxInfo:
    """Build a stopped one anew on the same workspace."""
    return _shown(request, await _lifecycle(request).start(caller_of(request), request.path_params["sandbox_id"]))


async def extend_sandbox(request: Request, asked: ExtendRequest) -> SandboxInfo:
    """Have no timer act on it for a while. Nothing else gives it more time."""
    sandbox_id = request.path_params["sandbox_id"]
    return _shown(request, await _lifecycle(request).extend(caller_of(request), sandbox_id, asked.for_s))


async def terminate_sandbox(request: Request, ending: Ending) -> SandboxEnd:
    """End a sandbox and everything that runs in it. The workspace of its agent stays. The answer says what was lost."""
    sandbox_id = request.path_params["sandbox_id"]
    return await _lifecycle(request).terminate(caller_of(request), sandbox_id, dry_run=ending.dry_run)


async def get_contract(request: Request) -> ContractDocument:
    """Inputs, what is executed, outputs, and what remains at the end."""
    return await _sandboxes(request).contract(caller_of(request), request.path_params["sandbox_id"])


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


async def list_runtimes(request: Request) -> list[Runtime]:
    """Runtimes found inside, and whether the rules let this caller start them."""
    return await _sandboxes(request).runtimes(caller_of(request), request.path_params["sandbox_id"])


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
    JsonRoute("POST", _ALL, create_sandbox, SandboxInfo, body=SandboxSpec, headers=(_KEY,)),
    JsonRoute("GET", _ALL, list_sandboxes, list[SandboxInfo], query=Listed),
    JsonRoute("GET", _ONE, get_sandbox, SandboxInfo),
    JsonRoute("DELETE", _ONE, terminate_sandbox, SandboxEnd, query=Ending),
    JsonRoute("POST", _ONE + "/pause", pause_sandbox, SandboxEnd, body=PauseRequest),
    JsonRoute("POST", _ONE + "/resume", resume_sandbox, SandboxInfo),
    JsonRoute("POST", _ONE + "/stop", stop_sandbox, SandboxEnd, query=Ending),
    JsonRoute("POST", _ONE + "/start", start_sandbox, SandboxInfo),
    JsonRoute("POST", _ONE + "/extend", extend_sandbox, SandboxInfo, body=ExtendRequest),
    JsonRoute("GET", _ONE + "/contract", get_contract, ContractDocument),
    JsonRoute("GET", _ONE + "/report", measure_isolation, IsolationReport),
    JsonRoute("GET", _ONE + "/allowed", list_allowed, list[AllowedOperation]),
    JsonRoute("GET", _ONE + "/contacts", list_contacts, list[Contact]),
    JsonRoute("GET", _ONE + "/processes", list_processes, list[ProcessInfo]),
    JsonRoute("GET", _ONE + "/runtimes", list_runtimes, list[Runtime]),
)
