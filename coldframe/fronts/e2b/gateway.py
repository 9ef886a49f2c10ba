"""The way to one sandbox: which one it is, who calls, and whether it can answer now.

Stands before what answers for files, processes and code of a sandbox. A sandbox that has ended, or is paused and does not wake
by itself, is told as E2B tells it: 502, with the words by which SDKs know it. Whoever is let through is put as `access`
into the state of the request; whoever brings nothing to be known by is not, and what answers for signed addresses
looks itself.
"""

import logging

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coldframe.contract.errors import ColdframeError, NotFound
from coldframe.control.access_tokens import Access
from coldframe.control.control import Control
from coldframe.fronts.auth import internal_error
from coldframe.fronts.e2b.routes import answer, error_answer, no_content
from coldframe.fronts.edge.routing import Target, label_of

_log = logging.getLogger("coldframe.fronts")
_COMES_UP = ("queued", "starting", "pausing", "resuming")


class Gone(Exception):
    """The sandbox that is called has ended, or is paused: told in the words of E2B, by status 502."""


class Gateway:
    """An ASGI application before another one, which finds `access` in the state of a request, or None."""

    def __init__(self, control: Control, app: ASGIApp) -> None:
        self._control = control
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = finished = False

        async def sent(message: Message) -> None:
            nonlocal started, finished
            started = True
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        request = Request(scope, receive)
        target: Target = scope["state"]["target"]
        sandbox_id = target.sandbox_id
        try:
            access = self._access(request, sandbox_id)
            if access is not None:
                sandbox_id = access.sandbox_id
            if sandbox_id is not None:
                await self._check_awake(sandbox_id, access)
                scope["state"]["target"] = target._replace(sandbox_id=sandbox_id)
            scope["state"]["access"] = access
            if request.url.path == "/health" and request.method in ("GET", "HEAD"):
                # Where no sandbox is named it is the edge itself, which is there.
                await no_content()(scope, receive, sent)
                return
            await self._app(scope, receive, sent)
        except ClientDisconnect:
            return
        except Gone:
            await gone_answer(request, sandbox_id or "")(scope, receive, send)
        except Exception as error:  # noqa: BLE001  the edge of a request
            if finished:
                return
            known = error if isinstance(error, ColdframeError) else error.__cause__
            if not isinstance(known, ColdframeError):
                known = internal_error(error)
            if started:
                _log.warning("an answer broke off: %s %s", known.code, known.message)
                return
            await error_answer(known)(scope, receive, send)

    def _access(self, request: Request, sandbox_id: str | None) -> Access | None:
        """None if no token comes along. Raises Unauthenticated: it is not of that sandbox, or not valid any more."""
        token = request.headers.get("x-access-token", "").strip()
        if not token:
            return None
        if sandbox_id is not None and not self._is_there(sandbox_id):
            raise Gone
        return self._control.access_tokens.open(token, sandbox_id)

    async def _check_awake(self, sandbox_id: str, access: Access | None) -> None:
        if not self._is_there(sandbox_id):
            raise Gone
        if access is not None:
            if not await self._control.waking.wake(sandbox_id):
                raise Gone
        elif self._control.sandboxes.find(sandbox_id).state.state not in ("running", *_COMES_UP):
            raise Gone

    def _is_there(self, sandbox_id: str) -> bool:
        try:
            state = self._control.sandboxes.find(sandbox_id).state.state
        except NotFound:
            return False
        return state in ("running", "paused", "stopped", *_COMES_UP)


async def answers_nothing(scope: Scope, _: Receive, __: Send) -> None:
    """Behind a gateway where nothing else is."""
    raise NotFound(f"a sandbox has no `{scope['method']} {scope['path'][:200]}` here")


def gone_answer(request: Request, sandbox_id: str) -> Response:
    """In the words by which SDKs know it; as a page for a browser."""
    label = label_of(sandbox_id)
    if "text/html" in request.headers.get("accept", "") and "mozilla" in request.headers.get("user-agent", "").lower():
        page = "<!doctype html><title>Sandbox not found</title><h1>The sandbox was not found</h1>"
        return HTMLResponse(f"{page}<p>It has ended, or it is paused and does not wake when it is called.</p>", 502)
    return answer({"sandboxId": label, "message": "The sandbox was not found", "code": 502}, 502)
