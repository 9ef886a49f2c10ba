"""Sandboxes and their sessions."""

from typing import Annotated

from fastapi import APIRouter, Header, Request

from coldframe.contract.command import Contact
from coldframe.contract.document import ContractDocument
from coldframe.contract.files import ProcessInfo, Runtime
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.tool import AllowedOperation
from coldframe.fronts.rest.request import OneCaller, TheControl

router = APIRouter(prefix="/v1")
KEY = "With the same key the same sandbox is answered, and only one is made."


@router.post("/sandboxes")
async def create_sandbox(
    request: Request,
    spec: SandboxSpec,
    caller: OneCaller,
    control: TheControl,
    idempotency_key: Annotated[str | None, Header(description=KEY)] = None,
) -> SandboxInfo:
    """Create a sandbox and measure its walls; nothing is left behind if one is missing."""
    if request.app.state.on_missing == "refuse":  # the operator's word; a caller may be stricter, never laxer
        spec = spec.model_copy(update={"on_missing": "refuse"})
    return await control.sandboxes.create(caller, spec, idempotency_key=idempotency_key)


@router.get("/sandboxes")
async def list_sandboxes(caller: OneCaller, control: TheControl) -> list[SandboxInfo]:
    """Sandboxes that the caller may see."""
    return control.sandboxes.list(caller)


@router.get("/sandboxes/{sandbox_id}")
async def get_sandbox(sandbox_id: str, caller: OneCaller, control: TheControl) -> SandboxInfo:
    return control.sandboxes.get(caller, sandbox_id)


@router.delete("/sandboxes/{sandbox_id}")
async def terminate_sandbox(sandbox_id: str, caller: OneCaller, control: TheControl) -> SandboxInfo:
    """End a sandbox and everything that runs in it. The workspace of its agent stays."""
    return await control.sandboxes.terminate(caller, sandbox_id)


@router.get("/sandboxes/{sandbox_id}/contract")
async def get_contract(sandbox_id: str, caller: OneCaller, control: TheControl) -> ContractDocument:
    """Inputs, what is executed, outputs, and what remains at the end."""
    return await control.sandboxes.contract(caller, sandbox_id)


@router.get("/sandboxes/{sandbox_id}/report")
async def measure_isolation(sandbox_id: str, caller: OneCaller, control: TheControl) -> IsolationReport:
    """The walls, measured now."""
    return await control.sandboxes.report(caller, sandbox_id)


@router.get("/sandboxes/{sandbox_id}/allowed")
async def list_allowed(sandbox_id: str, caller: OneCaller, control: TheControl) -> list[AllowedOperation]:
    """What this caller may do here; what is not listed is denied."""
    return control.gate.allowed(caller, sandbox_id)


@router.get("/sandboxes/{sandbox_id}/contacts")
async def list_contacts(sandbox_id: str, caller: OneCaller, control: TheControl) -> list[Contact]:
    """Attempts to reach out."""
    return list(await control.sandboxes.contacts(caller, sandbox_id))


@router.get("/sandboxes/{sandbox_id}/processes")
async def list_processes(sandbox_id: str, caller: OneCaller, control: TheControl) -> list[ProcessInfo]:
    """What runs inside now."""
    return await control.sandboxes.processes(caller, sandbox_id)


@router.get("/sandboxes/{sandbox_id}/runtimes")
async def list_runtimes(sandbox_id: str, caller: OneCaller, control: TheControl) -> list[Runtime]:
    """Runtimes found inside, and whether the rules let this caller start them."""
    return await control.sandboxes.runtimes(caller, sandbox_id)
