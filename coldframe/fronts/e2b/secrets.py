"""Secrets of E2B: credentials of ours, which say where they go.

There a secret is a value, and rules of each sandbox say which requests get it. Here whoever adds one says that, once and for
all sandboxes that may use it, so it is said in the metadata; without that a secret would be one that nothing can use, and is refused.
"""

from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from coldframe.contract.credential import CredentialInfo, NewCredential, NewSecret
from coldframe.contract.errors import InvalidArgument, NotFound
from coldframe.control.ledger import format_time
from coldframe.fronts.e2b.pages import Place, next_page, read_page
from coldframe.fronts.e2b.routes import E2bCall, E2bRoute, answer, no_content

_LISTS = ("methods", "paths", "agents", "roles")
"""Terms that are several texts; in metadata they are parted by commas."""
_TERMS = ("base", "variable", "header", "label", "budget", "purpose", *_LISTS)


async def add_secret(call: E2bCall) -> Response:
    """POST /secrets {name, value, metadata}"""
    body = await call.body()
    metadata = _metadata(body)
    unknown = sorted(set(metadata) - set(_TERMS))
    if "base" not in metadata or "variable" not in metadata or unknown:
        raise InvalidArgument(
            "a secret is kept with what it may be used for, and this one does not say"
            + (f"; `{unknown[0][:80]}` is no term" if unknown else " its `base` and `variable`"),
            hint='say it in `metadata`, as {"base": "https://api.example.com", "variable": "API_TOKEN", "roles": "member", '
            '"methods": "GET,POST"}; docs/credentials.md has all terms',
            argument="metadata",
        )
    terms: dict[str, Any] = {
        name: [part.strip() for part in text.split(",")] if name in _LISTS else text for name, text in metadata.items()
    }
    if "agents" not in terms and "roles" not in terms:
        terms["roles"] = [call.caller.role.value]  # whoever adds it by this protocol means the sandboxes that it makes
    try:
        new = NewCredential.model_validate({"name": body.get("name"), "secret": body.get("value"), **terms})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(
            f"`{place}` {str(first['msg']).removeprefix('Value error, ')}", argument=place or "metadata"
        ) from None
    return answer(_body(call.control.credentials.add(new, caller=call.caller)), 201)


async def list_secrets(call: E2bCall) -> Response:
    """GET /secrets"""
    found = sorted((one for one in call.control.credentials.list(call.caller) if one.state != "revoked"), key=_place)
    shown, headers = next_page(found, read_page(call), _place)
    return answer([_body(one) for one in shown], headers=headers)


async def get_secret(call: E2bCall) -> Response:
    """GET /secrets/{id or name}"""
    return answer(_body(_find(call)))


async def rotate_secret(call: E2bCall) -> Response:
    """POST /secrets/{id or name} {value}"""
    found, body = _find(call), await call.body()
    if body.get("metadata") is not None:
        raise InvalidArgument(
            "what a secret may be used for stays as it is", hint="destroy it, and add another one", argument="metadata"
        )
    try:
        secret = NewSecret.model_validate({"secret": body.get("value")}).secret
    except ValidationError as error:
        message = str(error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"])
        raise InvalidArgument(f"`value` {message.removeprefix('Value error, ')}", argument="value") from None
    return answer(_body(call.control.credentials.rotate(found.terms.name, secret, caller=call.caller)))


async def revoke_secret(call: E2bCall) -> Response:
    """DELETE /secrets/{id or name}"""
    await call.control.credentials.revoke(_find(call).terms.name, caller=call.caller)
    return no_content()


def _place(one: CredentialInfo) -> Place:
    return format_time(one.created_at), one.credential_id


def _find(call: E2bCall) -> CredentialInfo:
    wanted = call.values["secret"]
    for one in call.control.credentials.list(call.caller):
        if one.state != "revoked" and wanted in (one.credential_id, one.terms.name):
            return one
    raise NotFound(f"no secret `{wanted[:80]}`", hint="`coldframe credential list` shows those that there are")


def _metadata(body: dict[str, Any]) -> dict[str, str]:
    value = body.get("metadata") or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidArgument("`metadata` is an object of texts", argument="metadata")
    return dict(value)


def _body(info: CredentialInfo) -> dict[str, Any]:
    terms = info.terms
    told = {"base": terms.base, "variable": terms.variable, "header": terms.header, "label": terms.label.value}
    told |= {"methods": ",".join(terms.methods), "paths": ",".join(terms.paths), "agents": ",".join(terms.agents)}
    told |= {"roles": ",".join(role.value for role in terms.roles), "purpose": terms.purpose, "state": info.state}
    changed = info.rotated_at or info.created_at
    return {
        "secretID": info.credential_id,
        "name": terms.name,
        "currentVersion": 1 if info.rotated_at is None else 2,
        "metadata": {name: text for name, text in told.items() if text},
        "createdAt": info.created_at.isoformat(),
        "updatedAt": changed.isoformat(),
    }


ROUTES: tuple[E2bRoute, ...] = (
    E2bRoute("POST", "/secrets", add_secret),
    E2bRoute("GET", "/secrets", list_secrets),
    E2bRoute("GET", "/secrets/{secret}", get_secret),
    E2bRoute("POST", "/secrets/{secret}", rotate_secret),
    E2bRoute("DELETE", "/secrets/{secret}", revoke_secret),
)
