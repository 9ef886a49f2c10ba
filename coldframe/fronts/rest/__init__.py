"""The native REST front: `/v1`, and its schema at `/openapi.json`.

Small JSON routes are FastAPI's, for their schemas. Calls, files and streams are plain Starlette routes
with their schema written beside them: they carry bytes of any size, and every microsecond of a call counts.
"""

from collections.abc import Iterable
from typing import Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from coldframe import __version__
from coldframe.contract.errors import ColdframeError, InvalidArgument, NotFound
from coldframe.control.control import Control
from coldframe.fronts.answers import error_response
from coldframe.fronts.auth import Door, internal_error
from coldframe.fronts.rest import agents, calls, commands, files, governance, sandboxes
from coldframe.fronts.rest.schema import RawRoute, publish_schema

OnMissing = Literal["refuse", "degrade"]
RAW_ROUTES: tuple[RawRoute, ...] = (*calls.ROUTES, *commands.ROUTES, *files.ROUTES, *governance.ROUTES)


def build_api(control: Control) -> FastAPI:
    """The routes alone, without their outer door."""
    app = FastAPI(title="Coldframe", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.control = control
    app.state.on_missing = "degrade"
    for route in RAW_ROUTES:
        app.add_route(route.path, route.handler, methods=[route.method], include_in_schema=False)
    for router in (sandboxes.router, agents.router, governance.router):
        app.include_router(router)
    app.add_exception_handler(ColdframeError, _coldframe_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _any_error)
    publish_schema(app, RAW_ROUTES)
    return app


def build_app(control: Control, *, allowed_hosts: Iterable[str] = (), on_missing: OnMissing = "degrade") -> ASGIApp:
    """The whole front as an ASGI application. With *on_missing* `refuse` no sandbox may ask for less."""
    api = build_api(control)
    api.state.on_missing = on_missing
    return Door(RawRoutes(api, RAW_ROUTES), control.tokens.authenticate, allowed_hosts=allowed_hosts)


class RawRoutes:
    """Hands the plain routes their requests at once; all that is left is FastAPI's.

    Its layers cost as much as the gate, and do nothing for these: errors are answered by the door.
    """

    def __init__(self, api: FastAPI, routes: Iterable[RawRoute]) -> None:
        self._api = api
        self._routes = [(route.method, compile_path(route.path)[0].match, route.handler) for route in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            method, path = scope["method"], scope["path"]
            for wanted, match, handler in self._routes:
                if wanted == method and (found := match(path)) is not None:
                    scope["app"] = self._api
                    scope["path_params"] = found.groupdict()
                    response = await handler(Request(scope, receive, send))
                    await response(scope, receive, send)
                    return
        await self._api(scope, receive, send)


async def _coldframe_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ColdframeError):
        raise error
    return error_response(error)


async def _any_error(request: Request, error: Exception) -> Response:
    return error_response(internal_error(error))


async def _validation_error(request: Request, error: Exception) -> Response:
    """What FastAPI found wrong with a request, as the first thing to correct and the list of all."""
    if not isinstance(error, RequestValidationError):
        raise error
    broken = next((fault for fault in error.errors() if fault["type"] == "json_invalid"), None)
    if broken is not None:  # its place is a number of characters, which names no argument
        return error_response(InvalidArgument(f"the body is not JSON: {broken['ctx']['error']}", argument="body"))
    faults = [
        {"argument": ".".join(str(part) for part in fault["loc"][1:]) or "body", "reason": str(fault["msg"])}
        for fault in error.errors()
    ]
    first = faults[0]
    reason = first["reason"].removeprefix("Value error, ")
    return error_response(
        InvalidArgument(
            f"`{first['argument'][:80]}`: {reason[:1].lower()}{reason[1:]}",
            hint="correct the argument named; `GET /openapi.json` has the schema",
            argument=first["argument"],
            faults=list(faults),
        )
    )


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such route or method, a body that is no form of JSON."""
    if not isinstance(error, HTTPException):
        raise error
    if isinstance(error.__cause__, ColdframeError):
        return await _coldframe_error(request, error.__cause__)
    if error.status_code in (404, 405):
        path = request.url.path[:200]
        return error_response(
            NotFound(
                f"there is no route `{request.method} {path}`", hint="`GET /openapi.json` lists the routes", path=path
            )
        )
    return error_response(InvalidArgument(str(error.detail), argument="body"))
