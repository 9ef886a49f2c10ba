"""The E2B control API: who calls, which route it is, and how errors look there."""

import logging

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, NotFound, Unauthenticated
from coldframe.control.control import Control
from coldframe.fronts.auth import internal_error
from coldframe.fronts.e2b import metrics, sandboxes, secrets, snapshots, templates, volumes
from coldframe.fronts.e2b.routes import (
    E2bCall,
    E2bRoute,
    OnMissing,
    OpenRoute,
    RouteTable,
    answer,
    error_answer,
    no_content,
)

_log = logging.getLogger("coldframe.fronts")


async def list_teams(call: E2bCall) -> Response:
    """There is one here, which is the installation. Its key is the caller's own, which is not told again."""
    return answer([{"teamID": "coldframe", "name": "coldframe", "apiKey": "", "isDefault": True}])


ROUTES: tuple[E2bRoute, ...] = (
    *sandboxes.ROUTES,
    *snapshots.ROUTES,
    *metrics.ROUTES,
    *templates.ROUTES,
    *volumes.ROUTES,
    *secrets.ROUTES,
    E2bRoute("GET", "/teams", list_teams),
)


OPEN_ROUTES: tuple[OpenRoute, ...] = (*templates.OPEN_ROUTES, *volumes.OPEN_ROUTES)
"""To which requests come without a key: each tells by itself whether it may be."""


class ControlApi:
    """An ASGI application."""

    def __init__(
        self,
        control: Control,
        routes: tuple[E2bRoute, ...] = ROUTES,
        open_routes: tuple[OpenRoute, ...] = OPEN_ROUTES,
        *,
        on_missing: OnMissing = "degrade",
    ) -> None:
        """*on_missing* is the operator's: with `refuse` no sandbox is made whose limits hold by best effort only."""
        self._control = control
        self._on_missing: OnMissing = on_missing
        self._routes = RouteTable(routes)
        self._open = RouteTable(open_routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            if (request.method, request.url.path) == ("GET", "/health"):
                return no_content()
            raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
            path = raw.decode("ascii", "replace")
            for serve, values in self._open.find(request.method, path):
                return await serve(self._control, request, values)
            caller = self._caller(request)
            for handler, values in self._routes.find(request.method, path):
                found = await handler(E2bCall(self._control, caller, request, values, self._on_missing))
                if found is not None:
                    return found
            raise NotFound(
                f"this server has no `{request.method} {request.url.path[:200]}`",
                hint="docs/e2b.md lists what is there; ports of sandboxes are at `PORT-ID.DOMAIN`",
            )
        except ClientDisconnect:
            raise  # within its request: nobody is there to be answered
        except ColdframeError as error:
            return error_answer(error)
        except Exception as error:  # noqa: BLE001  the edge of a request
            return error_answer(internal_error(error))

    def _caller(self, request: Request) -> Caller:
        """By `X-API-KEY`, or by a bearer token where the CLI sends one. Raises Unauthenticated."""
        secret = request.headers.get("x-api-key", "").strip()
        if not secret:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            secret = token.strip() if scheme.lower() == "bearer" else ""
        if not secret:
            raise Unauthenticated(
                "this needs a key", hint="send it as `X-API-KEY`; `coldframe e2b env` makes one and says how"
            )
        return self._control.tokens.authenticate(secret, surface="e2b")
