"""The native REST front: `/v1`, and its schema at `/openapi.json`.

Every route is a plain function of a request with its schema written beside it (`json_routes.py`, `schema.py`).
Nothing stands between the door and the handler: errors are answered by the door, and every microsecond of a call
counts.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from coldframe import __version__
from coldframe.contract.edge import EdgeInfo
from coldframe.contract.errors import NotFound
from coldframe.control.control import Control
from coldframe.fronts.answers import NO_SNIFF, json_response
from coldframe.fronts.auth import OPEN_PATHS, Door
from coldframe.fronts.mount import Mounted
from coldframe.fronts.rest import (
    agents,
    artifacts,
    builds,
    calls,
    cells,
    commands,
    contracts,
    credentials,
    edge,
    files,
    git,
    governance,
    lineage,
    network,
    pipelines,
    previews,
    profiles,
    sandboxes,
    snapshots,
    templates,
    volumes,
    watches,
    webhooks,
)
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.schema import RawRoute, make_document

OnMissing = Literal["refuse", "degrade"]
ROUTES: tuple[RawRoute | JsonRoute, ...] = (
    *calls.ROUTES,
    *cells.ROUTES,
    *commands.ROUTES,
    *files.ROUTES,
    *git.ROUTES,
    *watches.ROUTES,
    *sandboxes.ROUTES,
    *profiles.ROUTES,
    *snapshots.ROUTES,
    *volumes.ROUTES,
    *templates.ROUTES,
    *contracts.ROUTES,
    *network.ROUTES,
    *pipelines.ROUTES,
    *builds.ROUTES,
    *artifacts.ROUTES,
    *previews.ROUTES,
    *lineage.ROUTES,
    *agents.ROUTES,
    *governance.ROUTES,
    *credentials.ROUTES,
    *edge.ROUTES,
    *webhooks.ROUTES,
)


class Api:
    """The routes, without their outer door. Handlers find it as the `app` of their request."""

    def __init__(
        self, control: Control, *, on_missing: OnMissing, edge: Callable[[], EdgeInfo | None] = lambda: None
    ) -> None:
        self.control = control
        self.edge = edge
        self.on_missing = on_missing
        self._routes = [(one.method, compile_path(one.path)[0].match, _serve(one)) for one in ROUTES]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self
        response = await self._answer(scope, Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, request: Request) -> Response:
        path, method = scope["path"], scope["method"]
        if method == "HEAD":
            if path in OPEN_PATHS:
                method = "GET"
            elif methods := {wanted for wanted, match, _ in self._routes if match(path) is not None}:
                # Most answers cost something: a box that is built, a read that is recorded, a stream without end.
                return Response(status_code=405, headers=NO_SNIFF | {"Allow": ", ".join(sorted(methods))})
        for wanted, match, serve in self._routes:
            if wanted == method and (found := match(path)) is not None:
                scope["path_params"] = found.groupdict()
                return await serve(request)
        if (method, path) == ("GET", "/openapi.json"):
            return json_response(self.document)
        raise NotFound(
            f"there is no route `{scope['method']} {path[:200]}`",
            hint="`GET /openapi.json` lists the routes",
            path=path[:200],
        )

    @cached_property
    def document(self) -> dict[str, Any]:
        return make_document("Coldframe", __version__, ROUTES)


def _serve(route: RawRoute | JsonRoute) -> Callable[[Request], Awaitable[Response]]:
    return route.serve if isinstance(route, JsonRoute) else route.handler


def build_app(
    control: Control,
    *,
    allowed_hosts: Iterable[str] = (),
    on_missing: OnMissing = "degrade",
    edge: Callable[[], EdgeInfo | None] = lambda: None,
) -> ASGIApp:
    """The whole front as an ASGI application. With *on_missing* `refuse` no sandbox may ask for less; *edge* tells where that
    is, if there is one."""
    api = Api(control, on_missing=on_missing, edge=edge)

    def make_mcp() -> ASGIApp:
        from coldframe.fronts.mcp import McpFront  # loaded by the first client that speaks it

        return McpFront(control, operator_refuses=on_missing == "refuse")

    return Door(Mounted(api, {"/mcp": make_mcp}), control.tokens.authenticate, allowed_hosts=allowed_hosts)
