"""Builds of workspaces: started, looked at, cancelled, made again, compared, and their logs."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.build import Build, BuildComparison, BuildSpec, BuildSummary, RebuildRequest
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.model import Model
from coldframe.control.builds import MOST_LISTED
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.rest.commands import MOST_WAIT_S, WINDOW_BYTES
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of, number_of
from coldframe.fronts.rest.schema import BYTES, RawRoute


class BuildPage(Model):
    sandbox_id: str | None = None
    agent_id: str | None = None
    """Of this agent's workspace, in whichever sandbox."""
    after: str | None = None
    """Those that are older than this one."""
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 100


class BuildLooked(Model):
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0
    """Wait so long for its end."""


async def start_build(request: Request, spec: BuildSpec) -> Build:
    """Take in the files of a workspace as they are, run the phases on them one after the other, and answer at once."""
    key = request.headers.get("idempotency-key")
    sandbox_id = request.path_params["sandbox_id"]
    return await control_of(request).builds.start(caller_of(request), sandbox_id, spec, idempotency_key=key)


async def list_builds(request: Request, page: BuildPage) -> list[BuildSummary]:
    """Builds that the caller may see, newest first, those of ended sandboxes too."""
    return control_of(request).builds.list(
        caller_of(request), sandbox_id=page.sandbox_id, agent_id=page.agent_id, after=page.after, limit=page.limit
    )


async def get_build(request: Request, looked: BuildLooked) -> Build:
    """How it and each of its phases stands; with `wait_s`, as soon as it is over, or after that time as it is then."""
    return await control_of(request).builds.get(caller_of(request), _id(request), wait_s=looked.wait_s)


async def cancel_build(request: Request) -> Build:
    """Start no further phase, and end the one that runs."""
    return await control_of(request).builds.cancel(caller_of(request), _id(request))


async def rebuild(request: Request, asked: RebuildRequest) -> Build:
    """Make it again in a new sandbox, from what went into it and nothing else; answers when that has begun."""
    return await control_of(request).builds.rebuild(caller_of(request), _id(request), asked)


async def compare_builds(request: Request) -> BuildComparison:
    """In what it differs from another one: commands, template, input, dependencies, output."""
    return await control_of(request).builds.compare(caller_of(request), _id(request), request.path_params["other_id"])


async def read_build_log(request: Request) -> Response:
    """Bytes of the whole log: what the phases have printed, each behind a line that names it; with `phase` of one alone."""
    offset = number_of(request, "offset", 0) or 0
    length = number_of(request, "length", WINDOW_BYTES)
    if offset < 0 or length is None or not 0 < length <= WINDOW_BYTES:
        raise InvalidArgument(f"ask for 1 to {WINDOW_BYTES} bytes from an offset of at least 0", argument="length")
    window = await control_of(request).build_logs.read(
        caller_of(request), _id(request), phase=request.query_params.get("phase"), offset=offset, length=length
    )
    headers = NO_SNIFF | {
        "Coldframe-Offset": str(window.offset),
        "Coldframe-Total-Bytes": str(window.total_bytes),
        "Coldframe-Ended": str(window.ended).lower(),
        "Coldframe-Label": window.label.value,
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    if window.next_offset is not None:
        headers["Coldframe-Next-Offset"] = str(window.next_offset)
    return Response(window.data, 200, headers, "application/octet-stream")


def _id(request: Request) -> str:
    return str(request.path_params["build_id"])


_ALL = "/v1/builds"
_ONE = _ALL + "/{build_id}"
_KEY = (("Idempotency-Key", "The same key is the same build."),)
ROUTES = (
    JsonRoute("POST", "/v1/sandboxes/{sandbox_id}/builds", start_build, Build, body=BuildSpec, headers=_KEY),
    JsonRoute("GET", _ALL, list_builds, list[BuildSummary], query=BuildPage),
    JsonRoute("GET", _ONE, get_build, Build, query=BuildLooked),
    JsonRoute("POST", _ONE + "/cancel", cancel_build, Build),
    JsonRoute("POST", _ONE + "/rebuild", rebuild, Build, body=RebuildRequest),
    JsonRoute("GET", _ONE + "/compare/{other_id}", compare_builds, BuildComparison),
    RawRoute(
        "GET",
        _ONE + "/log",
        read_build_log,
        "Log of a build",
        BYTES,
        query=(
            ("phase", "string", "Of this phase alone, without the line that names it."),
            ("offset", "integer", "First byte wanted."),
            ("length", "integer", f"At most {WINDOW_BYTES}."),
        ),
    ),
)
