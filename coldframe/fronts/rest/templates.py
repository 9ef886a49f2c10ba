"""Templates: built, followed while they are, looked at, marked, withdrawn and removed."""

import re
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.model import Model
from coldframe.contract.template import (
    BuildInfo,
    BuildLogPage,
    BuildRequest,
    MarkRequest,
    MissingInputs,
    TagRequest,
    TemplateDetails,
    TemplateName,
    TemplateRecord,
    TemplateRef,
    TemplateTag,
    WithdrawRequest,
)
from coldframe.control.template_builds import MOST_LOOKED
from coldframe.fronts.answers import json_response
from coldframe.fronts.rest.commands import MOST_WAIT_S
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of
from coldframe.fronts.rest.schema import BYTES, PLAIN_JSON, RawRoute

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ListedTemplates(Model):
    """Which ones."""

    name: TemplateName | None = None


class One(Model):
    """Which one: `name` for the newest of that name, `name:version`, or `sha256:DIGEST`."""

    template: TemplateRef


class OfName(Model):
    """Which name."""

    template: Annotated[str, Field(max_length=200)]
    """Looked up once the role is known to have that right: nobody else is told what is wrong with it."""


class Looked(Model):
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0
    """Wait so long for its end."""


class LookedLog(Model):
    after_seq: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_LOOKED)] = MOST_LOOKED
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0
    """Wait so long for something to tell."""


async def find_missing_inputs(request: Request, asked: MissingInputs) -> MissingInputs:
    """Which of these bytes have to be uploaded before a build."""
    return MissingInputs(sha256=await control_of(request).template_builds.missing(caller_of(request), asked.sha256))


async def upload_input(request: Request) -> Response:
    """Keep bytes for builds, under their digest; for an hour at least, and as long as a build goes on with them."""
    sha256 = str(request.path_params["sha256"])
    if not _DIGEST.fullmatch(sha256):
        raise InvalidArgument("the digest in the path is 64 hexadecimal digits", argument="sha256")
    size = await control_of(request).template_builds.put(caller_of(request), sha256, request.stream())
    return json_response({"sha256": sha256, "bytes": size})


async def build_template(request: Request, asked: BuildRequest) -> BuildInfo:
    """Begin to build a template; answers at once. Its files have to be uploaded before."""
    key = request.headers.get("idempotency-key")
    return await control_of(request).template_builds.begin(caller_of(request), asked, idempotency_key=key)


async def list_builds(request: Request, listed: ListedTemplates) -> list[BuildInfo]:
    """The newest hundred builds, newest first."""
    return control_of(request).template_builds.list(caller_of(request), name=listed.name)


async def get_build(request: Request, looked: Looked) -> BuildInfo:
    """How a build stands; with `wait_s`, as soon as it is over, or after that time as it is then."""
    return await control_of(request).template_builds.get(caller_of(request), _build(request), wait_s=looked.wait_s)


async def read_build_log(request: Request, looked: LookedLog) -> BuildLogPage:
    """What a build has said after line `after_seq`; with `wait_s`, as soon as there is something, or it is over."""
    return await control_of(request).template_builds.log(
        caller_of(request), _build(request), after_seq=looked.after_seq, limit=looked.limit, wait_s=looked.wait_s
    )


async def cancel_build(request: Request) -> BuildInfo:
    """End a build. The steps that are whole are kept for the next one."""
    return await control_of(request).template_builds.cancel(caller_of(request), _build(request))


async def list_templates(request: Request, listed: ListedTemplates) -> list[TemplateRecord]:
    """All templates, or those of a name, newest first."""
    return await control_of(request).templates.list(caller_of(request), name=listed.name)


async def get_template(request: Request, one: One) -> TemplateDetails:
    """One template with its packages, and the recipe that builds just that again."""
    return await control_of(request).templates.get(caller_of(request), one.template)


async def verify_template(request: Request, one: One) -> TemplateRecord:
    """Read all of it, and refuse if it is not what was built."""
    return await control_of(request).templates.verify(caller_of(request), one.template)


async def mark_template(request: Request, one: One, asked: MarkRequest) -> TemplateRecord:
    """Run a check in a fresh sandbox of it, and mark it as known good if that passes."""
    return await control_of(request).template_checks.mark_known_good(
        caller_of(request), one.template, asked.check, timeout_s=asked.timeout_s, network=asked.network
    )


async def withdraw_template(request: Request, one: One, asked: WithdrawRequest) -> TemplateRecord:
    """Let nothing new start from it. Sandboxes that run on it go on, and are told."""
    return await control_of(request).templates.withdraw(caller_of(request), one.template, asked.why)


async def list_template_tags(request: Request, one: OfName) -> list[TemplateTag]:
    """Names of versions that move, of one template."""
    return control_of(request).template_tags.list(caller_of(request), one.template)


async def tag_template(request: Request, one: One, asked: TagRequest) -> list[TemplateTag]:
    """Have tags stand for this version from now on, in place of those that they stood for. Returns all tags of the name."""
    control, caller = control_of(request), caller_of(request)
    row = await control.template_tags.assign(caller, one.template, asked.tags)
    return control.template_tags.list(caller, row.name)


async def untag_template(request: Request, one: OfName, asked: TagRequest) -> list[TemplateTag]:
    """Take tags away; those that are not there are gone already. Returns those that are left."""
    control, caller = control_of(request), caller_of(request)
    await control.template_tags.remove(caller, one.template, asked.tags)
    return control.template_tags.list(caller, one.template)


async def remove_template(request: Request, one: One) -> dict[str, Any]:
    """Forget one that nothing stands on. Its version stays taken."""
    await control_of(request).templates.remove(caller_of(request), one.template)
    return {"ok": True}


def _build(request: Request) -> str:
    return str(request.path_params["build_id"])


_INPUTS = "/v1/template-inputs"
_BUILDS = "/v1/template-builds"
_BUILD = _BUILDS + "/{build_id}"
_ALL = "/v1/templates"
_ONE = _ALL + "/{template}"
_KEY = (("Idempotency-Key", "The same key is the same build."),)
ROUTES = (
    JsonRoute("POST", _INPUTS + "/missing", find_missing_inputs, MissingInputs, body=MissingInputs),
    RawRoute("PUT", _INPUTS + "/{sha256}", upload_input, "Upload an input of a build", PLAIN_JSON, body=BYTES),
    JsonRoute("POST", _BUILDS, build_template, BuildInfo, body=BuildRequest, headers=_KEY),
    JsonRoute("GET", _BUILDS, list_builds, list[BuildInfo], query=ListedTemplates),
    JsonRoute("GET", _BUILD, get_build, BuildInfo, query=Looked),
    JsonRoute("GET", _BUILD + "/log", read_build_log, BuildLogPage, query=LookedLog),
    JsonRoute("POST", _BUILD + "/cancel", cancel_build, BuildInfo),
    JsonRoute("GET", _ALL, list_templates, list[TemplateRecord], query=ListedTemplates),
    JsonRoute("GET", _ONE, get_template, TemplateDetails, path_values=One),
    JsonRoute("DELETE", _ONE, remove_template, Any, path_values=One),
    JsonRoute("GET", _ONE + "/tags", list_template_tags, list[TemplateTag], path_values=OfName),
    JsonRoute("POST", _ONE + "/tags", tag_template, list[TemplateTag], path_values=One, body=TagRequest),
    JsonRoute("POST", _ONE + "/untag", untag_template, list[TemplateTag], path_values=OfName, body=TagRequest),
    JsonRoute("POST", _ONE + "/verify", verify_template, TemplateRecord, path_values=One),
    JsonRoute("POST", _ONE + "/mark", mark_template, TemplateRecord, path_values=One, body=MarkRequest),
    JsonRoute("POST", _ONE + "/withdraw", withdraw_template, TemplateRecord, path_values=One, body=WithdrawRequest),
)
