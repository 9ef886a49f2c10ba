"""Sandboxes: made, looked at, ended."""

from starlette.requests import Request

from coldframe.contract.command import Contact
from coldframe.contract.document import ContractDocument
from coldframe.contract.files import ProcessInfo, Runtime
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.tool import AllowedOperation
from coldframe.control.sandboxes import Sandboxes
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


async def create_sandbox(request: Request, spec: SandboxSpec) -> SandboxInfo:
    """Create a sandbox and measure its walls; nothing is left behind if one is missing."""
    if request.app.on_missing == "refuse":  # the operator's word; a caller may be stricter, never laxer
        spec = spec.model_copy(update={"on_missing": "refuse"})
    key = request.headers.get("idempotency-key")
    return await _sandboxes(request).create(caller_of(request), spec, idempotency_key=key)


async def list_sandboxes(request: Request) -> list[SandboxInfo]:
    """Sandboxes that the caller may see."""
    return _sandboxes(request).list(caller_of(request))


async def get_sandbox(request: Request) -> SandboxInfo:
    return _sandboxes(request).get(caller_of(request), request.path_params["sandbox_id"])


async def terminate_sandbox(request: Request) -> SandboxInfo:
    """End a sandbox and everything that runs in it. The workspace of its agent stays."""
    return await _sandboxes(request).terminate(caller_of(request), request.path_params["sandbox_id"])


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


_ALL = "/v1/sandboxes"
_ONE = _ALL + "/{sandbox_id}"
_KEY = ("Idempotency-Key", "With the same key the same sandbox is answered, and only one is made.")
ROUTES = (
    JsonRoute("POST", _ALL, create_sandbox, SandboxInfo, body=SandboxSpec, headers=(_KEY,)),
    JsonRoute("GET", _ALL, list_sandboxes, list[SandboxInfo]),
    JsonRoute("GET", _ONE, get_sandbox, SandboxInfo),
    JsonRoute("DELETE", _ONE, terminate_sandbox, SandboxInfo),
    JsonRoute("GET", _ONE + "/contract", get_contract, ContractDocument),
    JsonRoute("GET", _ONE + "/report", measure_isolation, IsolationReport),
    JsonRoute("GET", _ONE + "/allowed", list_allowed, list[AllowedOperation]),
    JsonRoute("GET", _ONE + "/contacts", list_contacts, list[Contact]),
    JsonRoute("GET", _ONE + "/processes", list_processes, list[ProcessInfo]),
    JsonRoute("GET", _ONE + "/runtimes", list_runtimes, list[Runtime]),
)
