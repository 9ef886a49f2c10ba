"""Credentials: write-only for secrets, and what each may be used for and was."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.credential import CredentialInfo, CredentialUse, HandleInfo, NewCredential, NewSecret
from coldframe.contract.model import Model
from coldframe.contract.sandbox import ENDED
from coldframe.fronts.rest.governance import MAX_ENTRIES, MAX_SEQ
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


class WhichUses(Model):
    after: Annotated[int, Field(ge=0, le=MAX_SEQ)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES)] = 100


async def list_credentials(request: Request) -> list[CredentialInfo]:
    """All credentials without their secrets, those that were revoked too."""
    return list(control_of(request).credentials.list(caller_of(request)))


async def add_credential(request: Request, body: NewCredential) -> CredentialInfo:
    """Keep a secret for sandboxes to use without seeing it. Nothing gives it out again."""
    return control_of(request).credentials.add(body, caller=caller_of(request))


async def get_credential(request: Request) -> CredentialInfo:
    """One credential, without its secret."""
    return control_of(request).credentials.get(request.path_params["name"], caller_of(request))


async def rotate_credential(request: Request, body: NewSecret) -> CredentialInfo:
    """Put another secret in place of the one before, from the next request on; handles stay."""
    control, caller = control_of(request), caller_of(request)
    return control.credentials.rotate(request.path_params["name"], body.secret, caller=caller)


async def revoke_credential(request: Request) -> CredentialInfo:
    """Take it back at once: the secret is removed, and what was under way with it is broken off."""
    return await control_of(request).credentials.revoke(request.path_params["name"], caller=caller_of(request))


async def list_credential_uses(request: Request, which: WhichUses) -> list[CredentialUse]:
    """What it was used for, and what for in vain, in order."""
    control, caller = control_of(request), caller_of(request)
    return list(control.credentials.uses(request.path_params["name"], caller, after=which.after, limit=which.limit))


async def list_handles(request: Request) -> list[HandleInfo]:
    """What commands of the sandbox have in place of secrets. Nothing in one without network, or that has ended."""
    control = control_of(request)
    info = control.sandboxes.get(caller_of(request), request.path_params["sandbox_id"])
    return [] if info.network is None or info.state.state in ENDED else list(control.credentials.handles(info))


ROUTES = (
    JsonRoute("GET", "/v1/credentials", list_credentials, list[CredentialInfo]),
    JsonRoute("POST", "/v1/credentials", add_credential, CredentialInfo, body=NewCredential),
    JsonRoute("GET", "/v1/credentials/{name}", get_credential, CredentialInfo),
    JsonRoute("DELETE", "/v1/credentials/{name}", revoke_credential, CredentialInfo),
    JsonRoute("POST", "/v1/credentials/{name}/rotate", rotate_credential, CredentialInfo, body=NewSecret),
    JsonRoute("GET", "/v1/credentials/{name}/uses", list_credential_uses, list[CredentialUse], query=WhichUses),
    JsonRoute("GET", "/v1/sandboxes/{sandbox_id}/credentials", list_handles, list[HandleInfo]),
)
