"""Previews: ports of sandboxes that are shared, and how what they show stands."""

from typing import Any

from pydantic import Field
from starlette.requests import Request

from coldframe.contract.errors import Unavailable
from coldframe.contract.model import Model
from coldframe.contract.preview import (
    LOG_LINES,
    PreviewChange,
    PreviewCreated,
    PreviewInfo,
    PreviewLink,
    PreviewLinkRequest,
    PreviewRebuild,
    PreviewRebuilt,
    PreviewRequest,
    VariableName,
)
from coldframe.fronts.previews.pages import ENTER
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of


class Tail(Model):
    lines: int = Field(default=LOG_LINES, ge=1, le=1000)


class PreviewRestart(Model):
    """What a new start needs."""

    env: dict[VariableName, str] = Field(default_factory=dict, max_length=256)
    """Values of its variables, which are not kept."""


class PreviewLog(Model):
    lines: tuple[str, ...]


async def create_preview(request: Request, asked: PreviewRequest) -> PreviewCreated:
    """Share a port of a sandbox, and start what serves on it if that is said."""
    return await control_of(request).previews.create(caller_of(request), request.path_params["sandbox_id"], asked)


async def list_sandbox_previews(request: Request) -> list[PreviewInfo]:
    """Previews that a sandbox serves, newest first, those that were taken back too."""
    return control_of(request).previews.list(caller_of(request), request.path_params["sandbox_id"])


async def list_previews(request: Request) -> list[PreviewInfo]:
    """All previews that the caller may see."""
    return control_of(request).previews.list(caller_of(request))


async def get_preview(request: Request) -> PreviewInfo:
    """One of them, with how it stands now, why, and the end of its log."""
    return await control_of(request).previews.get(caller_of(request), _id(request))


async def change_preview(request: Request, asked: PreviewChange) -> PreviewInfo:
    """Share it otherwise. Whoever would not be let in now is sent away at once."""
    return await control_of(request).previews.change(caller_of(request), _id(request), asked)


async def revoke_preview(request: Request) -> PreviewInfo:
    """Take it back. What serves goes on."""
    return await control_of(request).previews.revoke(caller_of(request), _id(request))


async def link_preview(request: Request, asked: PreviewLinkRequest) -> PreviewLink:
    """A link that opens it in one browser, once, within ten minutes."""
    info, secret, until = control_of(request).previews.link(caller_of(request), _id(request), asked)
    if info.url is None:
        raise Unavailable("this installation has no edge, so nothing leads to the preview", hint="start `coldframe up`")
    return PreviewLink(url=f"{info.url.rstrip('/')}{ENTER}?link={secret}", expires_at=until)


async def stop_preview(request: Request) -> PreviewInfo:
    """End what serves; the address stays."""
    return await control_of(request).previews.stop(caller_of(request), _id(request))


async def restart_preview(request: Request, asked: PreviewRestart) -> PreviewInfo:
    """Wake its sandbox, and start what serves again; answers when it does."""
    return await control_of(request).previews.restart(caller_of(request), _id(request), asked.env)


async def rebuild_preview(request: Request, asked: PreviewRebuild) -> PreviewRebuilt:
    """Make it again on another sandbox from what is on record, and have the address lead there."""
    return await control_of(request).preview_rebuilds.rebuild(caller_of(request), _id(request), asked)


async def read_preview_log(request: Request, tail: Tail) -> PreviewLog:
    """The end of what it has printed."""
    lines = await control_of(request).previews.log(caller_of(request), _id(request), tail.lines)
    return PreviewLog(lines=lines)


def _id(request: Request) -> str:
    found: Any = request.path_params["preview_id"]
    return str(found)


_ALL = "/v1/previews"
_ONE = _ALL + "/{preview_id}"
_OF_SANDBOX = "/v1/sandboxes/{sandbox_id}/previews"
ROUTES = (
    JsonRoute("POST", _OF_SANDBOX, create_preview, PreviewCreated, body=PreviewRequest),
    JsonRoute("GET", _OF_SANDBOX, list_sandbox_previews, list[PreviewInfo]),
    JsonRoute("GET", _ALL, list_previews, list[PreviewInfo]),
    JsonRoute("GET", _ONE, get_preview, PreviewInfo),
    JsonRoute("PATCH", _ONE, change_preview, PreviewInfo, body=PreviewChange),
    JsonRoute("DELETE", _ONE, revoke_preview, PreviewInfo),
    JsonRoute("POST", _ONE + "/link", link_preview, PreviewLink, query=PreviewLinkRequest),
    JsonRoute("POST", _ONE + "/stop", stop_preview, PreviewInfo),
    JsonRoute("POST", _ONE + "/restart", restart_preview, PreviewInfo, body=PreviewRestart),
    JsonRoute("POST", _ONE + "/rebuild", rebuild_preview, PreviewRebuilt, body=PreviewRebuild),
    JsonRoute("GET", _ONE + "/log", read_preview_log, PreviewLog, query=Tail),
)
