"""Previews: a server in a sandbox that people open in a browser, started and looked after by a client that need not wait for it."""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from coldframe.contract.errors import ColdframeError, Unavailable
from coldframe.contract.model import Model
from coldframe.contract.policy import Label
from coldframe.contract.preview import (
    LOG_LINES,
    Line,
    Port,
    PreviewCreated,
    PreviewInfo,
    PreviewLink,
    PreviewLinkRequest,
    PreviewRebuild,
    PreviewRebuilt,
    PreviewRequest,
    ServerStart,
    VariableName,
    WebPath,
)
from coldframe.contract.sandbox import LONGEST_TIMER_S
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import Asked, offer
from coldframe.fronts.mcp.workspace_tools import WhichSandbox
from coldframe.fronts.previews.pages import ENTER

HANDLE_WITHIN_S = 1.5
"""A client that calls for what takes longer gets a handle by then."""
LONGEST_WAIT_S = 600.0
LOOK_AGAIN_S = 0.02
SETTLED_WITHIN_S = 2.0
MOST_FAILURES = 200
_beginning: set[asyncio.Task[Any]] = set()
_on_their_way: dict[str, asyncio.Task[Any]] = {}
_failures: "OrderedDict[str, ColdframeError]" = OrderedDict()
"""Why previews did not come about whose clients had gone on with a handle: told to whoever asks for them."""
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)]


class NewPreview(WhichSandbox):
    port: Port
    command: Line | tuple[str, ...] | None = None
    """What to start. None for a server that runs or will run."""
    cwd: str = ""
    env: dict[VariableName, str] = Field(default_factory=dict, max_length=256)
    """Given to it. Only the names are on record."""
    setup: tuple[Line, ...] = Field(default=(), max_length=20)
    """Lines that make the workspace ready before, as `npm ci`."""
    ready_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    health_path: WebPath = "/"
    """What is asked for to see whether it serves."""
    name: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    public: bool = False
    """Whoever knows the address may open it."""
    up_to: Literal["PUBLIC", "INTERNAL", "CONFIDENTIAL", "RESTRICTED"] | None = None
    """How high what it shows may be labelled."""
    expires_in_s: float | None = Field(default=None, gt=0, le=LONGEST_TIMER_S)
    record: bool | None = None
    """Record what it is made from, so that it can be rebuilt elsewhere."""
    wait_s: Wait = HANDLE_WITHIN_S
    """How long to wait until it serves. If that takes longer the answer is its handle, and `get_preview` tells how it stands."""


class StartedPreview(PreviewCreated):
    is_ready: bool
    """It serves. If not, it is on its way."""


@offer(arguments=NewPreview, answer=StartedPreview, right="preview.create")
async def start_preview(asked: Asked, wanted: NewPreview) -> StartedPreview:
    """Start a server in a sandbox and share its port: it gets an address that stays, which people open in a browser. Answers with
    `preview_id` when it serves, or after a moment if that takes longer; `command_id` is for `read_logs`."""
    sandbox_id = choose_sandbox(asked.control, asked.caller, wanted.sandbox_id, wanted.workspace)
    previews, start = asked.control.previews, None
    if wanted.command is not None:
        start = ServerStart(
            command=wanted.command, cwd=wanted.cwd, env=wanted.env, ready_timeout_s=wanted.ready_timeout_s
        )
    request = PreviewRequest(
        port=wanted.port,
        name=wanted.name,
        public=wanted.public,
        up_to=None if wanted.up_to is None else Label(wanted.up_to),
        expires_in_s=wanted.expires_in_s,
        start=start,
        setup=wanted.setup,
        record=wanted.record,
        health_path=wanted.health_path,
    )
    before = {one.preview_id for one in previews.list(asked.caller, sandbox_id)}
    work = _begin(previews.create(asked.caller, sandbox_id, request))
    await asyncio.wait([work], timeout=wanted.wait_s)
    while not work.done():
        found = previews.list(asked.caller, sandbox_id)
        new = [one for one in found if one.preview_id not in before and one.port == wanted.port]
        if new:
            preview_id = new[0].preview_id
            _on_their_way[preview_id] = work
            work.add_done_callback(partial(_arrived, preview_id))
            return StartedPreview(is_ready=False, **dict(await previews.get(asked.caller, preview_id)))
        await asyncio.wait([work], timeout=LOOK_AGAIN_S)
    return StartedPreview(is_ready=True, **dict(work.result()))


def _begin(work: Coroutine[Any, Any, PreviewInfo]) -> "asyncio.Task[PreviewInfo]":
    """Have it go on whether or not anybody waits for it."""
    task = asyncio.get_running_loop().create_task(work)
    _beginning.add(task)
    task.add_done_callback(_over)
    return task


def _over(task: "asyncio.Task[PreviewInfo]") -> None:
    _beginning.discard(task)
    if not task.cancelled():
        task.exception()  # whoever waited has it, or asks for the preview


def _arrived(preview_id: str, done: "asyncio.Task[PreviewInfo]") -> None:
    _on_their_way.pop(preview_id, None)
    error = None if done.cancelled() else done.exception()
    if isinstance(error, ColdframeError):
        _failures[preview_id] = error
        while len(_failures) > MOST_FAILURES:
            _failures.popitem(last=False)


class WhichPreview(Model):
    preview_id: Annotated[str, Field(max_length=100)]


@offer(arguments=WhichPreview, answer=PreviewInfo, right="preview.read", reads=True)
async def get_preview(asked: Asked, which: WhichPreview) -> PreviewInfo:
    """How a preview stands now: its address, whether it serves, why not, and the end of its log. One that did not come about is
    answered with the error that it failed with."""
    info = await asked.control.previews.get(asked.caller, which.preview_id)
    if info.status is not None and info.status.state == "healthy" and which.preview_id in _on_their_way:
        await _settled(
            which.preview_id
        )  # whoever started it sees the same in a moment, and only then it is there to stay
        info = await asked.control.previews.get(asked.caller, which.preview_id)
    failure = _failures.get(which.preview_id)
    if failure is not None and info.revoked_at is not None:
        raise failure
    return info


async def _settled(preview_id: str) -> None:
    work = _on_their_way.get(preview_id)
    if work is not None:
        await asyncio.wait([work], timeout=SETTLED_WITHIN_S)


class WhosePreviews(Model):
    sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    """All that this token may see without one."""


class ManyPreviews(Model):
    previews: tuple[PreviewInfo, ...]


@offer(arguments=WhosePreviews, answer=ManyPreviews, right="preview.read", reads=True)
async def list_previews(asked: Asked, which: WhosePreviews) -> ManyPreviews:
    """Previews that this token may see, newest first, those that were taken back too."""
    return ManyPreviews(previews=tuple(asked.control.previews.list(asked.caller, which.sandbox_id)))


class PreviewTail(WhichPreview):
    lines: int = Field(default=LOG_LINES, ge=1, le=1000)


class PreviewLog(Model):
    preview_id: str
    lines: tuple[str, ...]


@offer(arguments=PreviewTail, answer=PreviewLog, right="preview.read", reads=True)
async def preview_log(asked: Asked, which: PreviewTail) -> PreviewLog:
    """The end of what the server of a preview has printed."""
    lines = await asked.control.previews.log(asked.caller, which.preview_id, which.lines)
    return PreviewLog(preview_id=which.preview_id, lines=lines)


@offer(arguments=WhichPreview, answer=PreviewLink, right="preview.link")
async def link_preview(asked: Asked, which: WhichPreview) -> PreviewLink:
    """A link for a person that opens a preview in one browser, once, within ten minutes."""
    info, secret, until = asked.control.previews.link(asked.caller, which.preview_id, PreviewLinkRequest())
    if info.url is None:
        raise Unavailable("this installation has no edge, so nothing leads to the preview", hint="start `coldframe up`")
    return PreviewLink(url=f"{info.url.rstrip('/')}{ENTER}?link={secret}", expires_at=until)


@offer(arguments=WhichPreview, answer=PreviewInfo, right="preview.stop", destroys=True, repeats=True)
async def stop_preview(asked: Asked, which: WhichPreview) -> PreviewInfo:
    """End the server of a preview. Its address stays, and says so."""
    await _settled(which.preview_id)
    return await asked.control.previews.stop(asked.caller, which.preview_id)


class Restarted(WhichPreview):
    env: dict[VariableName, str] = Field(default_factory=dict, max_length=256)
    """Values of its variables, which are not kept."""
    wait_s: Wait = HANDLE_WITHIN_S


@offer(arguments=Restarted, answer=PreviewInfo, right="preview.restart")
async def restart_preview(asked: Asked, wanted: Restarted) -> PreviewInfo:
    """Wake the sandbox of a preview and start its server again, under the same address. If that takes longer, `get_preview` tells
    how it stands."""
    previews = asked.control.previews
    work = _begin(previews.restart(asked.caller, wanted.preview_id, wanted.env))
    await asyncio.wait([work], timeout=wanted.wait_s)
    if work.done():
        return work.result()
    return await previews.get(asked.caller, wanted.preview_id)


@offer(arguments=WhichPreview, answer=PreviewInfo, right="preview.revoke", destroys=True, repeats=True)
async def revoke_preview(asked: Asked, which: WhichPreview) -> PreviewInfo:
    """Take a preview back: nobody is let in any more. What serves goes on."""
    return await asked.control.previews.revoke(asked.caller, which.preview_id)


class Rebuilt(WhichPreview):
    new_sandbox_id: Annotated[str | None, Field(max_length=100)] = None
    """One whose workspace is empty; None for a new sandbox."""
    new_workspace: str | None = None
    env: dict[VariableName, str] = Field(default_factory=dict, max_length=256)


@offer(arguments=Rebuilt, answer=PreviewRebuilt, right="preview.rebuild")
async def rebuild_preview(asked: Asked, wanted: Rebuilt) -> PreviewRebuilt:
    """Make a preview again on another sandbox from what is on record, and have its address lead there."""
    request = PreviewRebuild(sandbox_id=wanted.new_sandbox_id, agent_id=wanted.new_workspace, env=wanted.env)
    return await asked.control.preview_rebuilds.rebuild(asked.caller, wanted.preview_id, request)
