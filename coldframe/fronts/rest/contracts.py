"""Contracts: of sandboxes, in each of their versions, and planned ones."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.document import ContractDocument, ContractPlan
from coldframe.contract.inputs import InputsPage
from coldframe.contract.model import Model
from coldframe.contract.outputs import DeclaredOutputs
from coldframe.contract.persistence import ItemNow, Whereabouts
from coldframe.contract.result import FetchedResult, SandboxResult
from coldframe.contract.sandbox import SandboxSpec
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of
from coldframe.fronts.rest.sandboxes import as_the_operator_says

MOST_VERSIONS = 10**9


class Which(Model):
    version: Annotated[int, Field(ge=1, le=MOST_VERSIONS)] | None = None
    """An earlier one, as it was issued; without it the walls are measured and the newest is given."""


async def get_contract(request: Request, which: Which) -> ContractDocument:
    """Inputs, what is executed, outputs, and what remains at the end."""
    control, caller, sandbox_id = control_of(request), caller_of(request), request.path_params["sandbox_id"]
    if which.version is None:
        return await control.sandboxes.contract(caller, sandbox_id)
    return control.contracts.version(control.sandboxes.get(caller, sandbox_id), which.version)


async def plan_contract(request: Request, spec: SandboxSpec) -> ContractPlan:
    """The contract that a sandbox would have. Nothing is started; its digest is what creation takes as `contract_sha256`."""
    return control_of(request).plans.plan(caller_of(request), as_the_operator_says(request, spec))


async def list_items(request: Request) -> list[ItemNow]:
    """What remains when, whose it is, and how much of it there is now."""
    return await control_of(request).persistence.table(caller_of(request), request.path_params["sandbox_id"])


async def list_inputs(request: Request) -> InputsPage:
    """What went in: each version with its source, digest, label, and the time it held."""
    return await control_of(request).inputs.list(caller_of(request), request.path_params["sandbox_id"])


async def find_outputs(request: Request) -> DeclaredOutputs:
    """What there is of the outputs that the sandbox was made for, and what was made beside them."""
    return await control_of(request).declared.find(caller_of(request), request.path_params["sandbox_id"])


async def get_result(request: Request) -> SandboxResult:
    """How it stands with the result of a sandbox that is deleted when it was fetched."""
    return control_of(request).results.get(caller_of(request), request.path_params["sandbox_id"])


async def offer_result(request: Request) -> SandboxResult:
    """Take down what the result is: the declared outputs as they are now."""
    return await control_of(request).results.offer(caller_of(request), request.path_params["sandbox_id"])


async def confirm_result(request: Request, fetched: FetchedResult) -> SandboxResult:
    """Delete all that is left of the sandbox, for the digest of what was fetched."""
    sandbox_id = request.path_params["sandbox_id"]
    return await control_of(request).results.confirm(caller_of(request), sandbox_id, fetched.sha256)


class Where(Model):
    path: str
    """As commands see it; a relative one is of the workspace."""


async def find_item(request: Request, where: Where) -> Whereabouts:
    """What a place inside belongs to."""
    return control_of(request).persistence.where(caller_of(request), request.path_params["sandbox_id"], where.path)


_ONE = "/v1/sandboxes/{sandbox_id}"
ROUTES = (
    JsonRoute("POST", "/v1/contracts/plan", plan_contract, ContractPlan, body=SandboxSpec),
    JsonRoute("GET", _ONE + "/contract", get_contract, ContractDocument, query=Which),
    JsonRoute("GET", _ONE + "/persistence", list_items, list[ItemNow]),
    JsonRoute("GET", _ONE + "/inputs", list_inputs, InputsPage),
    JsonRoute("GET", _ONE + "/outputs", find_outputs, DeclaredOutputs),
    JsonRoute("GET", _ONE + "/result", get_result, SandboxResult),
    JsonRoute("POST", _ONE + "/result", offer_result, SandboxResult),
    JsonRoute("POST", _ONE + "/result/confirm", confirm_result, SandboxResult, body=FetchedResult),
    JsonRoute("GET", _ONE + "/where", find_item, Whereabouts, query=Where),
)
