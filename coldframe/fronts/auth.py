"""The outer door of every HTTP front: host name, origin, token; and the promise that nobody meets a stack trace.

Plain ASGI around the whole application, so that no route can be added without it. A browser is kept
out twice: a foreign `Host` (name rebinding) and any foreign `Origin` are refused, and there is no
cross-origin header to allow one. Only `/v1/health` and the schema answer without a token.
"""

import logging
import re
import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, Internal, Refused, Unauthenticated
from coldframe.fronts.answers import error_response
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, too_large

OPEN_PATHS = frozenset({"/v1/health", "/openapi.json"})
_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
_LARGE = re.compile(
    r"/mcp$|/v1/(?:sandboxes/[^/]+/(?:tools|files)/|volumes/[^/]+/files/|template-inputs/[0-9a-f]{64}$|snapshots$)"
)
_log = logging.getLogger("coldframe.fronts")


class TokenCheck(Protocol):
    def __call__(self, secret: str, *, surface: Any) -> Caller: ...


class Door:
    """Checks each request, puts the caller into its state, and turns every escaped error into an answer."""

    def __init__(self, app: ASGIApp, authenticate: TokenCheck, *, allowed_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._authenticate = authenticate
        self._hosts = _LOCAL_HOSTS | {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = finished = False

        async def sent(message: Message) -> None:
            nonlocal started, finished
            started = True
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, self._capped(scope, receive), sent)
        except ClientDisconnect:
            return  # within its request: nobody is there to be answered, and nothing was done
        except Exception as error:  # noqa: BLE001  the edge of a request
            if finished:
                return
            # Starlette wraps what is raised after the head of an answer was sent.
            known = error if isinstance(error, ColdframeError) else error.__cause__
            if not isinstance(known, ColdframeError):
                known = internal_error(error)
            if not started:
                await error_response(known)(scope, receive, send)
            else:
                # Nothing more is sent, so the server breaks the connection: no short answer looks whole.
                _log.warning("an answer broke off: %s %s", known.code, known.message)

    def _admit(self, scope: Scope) -> None:
        host = origin = authorization = None
        for name, value in scope["headers"]:  # the first of each name counts
            if name == b"host":
                host = value if host is None else host
            elif name == b"origin":
                origin = value if origin is None else origin
            elif name == b"authorization":
                authorization = value if authorization is None else authorization
        name_of_host = (host or b"").decode("latin-1")
        if _host_name(name_of_host) not in self._hosts:
            raise Refused(
                f"`{name_of_host[:100]}` is not a name of this server",
                hint="use 127.0.0.1 or localhost, or add the name to the setting `allowed_hosts`",
            )
        if origin is not None and origin.decode("latin-1") != f"{scope.get('scheme', 'http')}://{name_of_host}":
            raise Refused(
                f"requests from the origin `{origin.decode('latin-1')[:100]}` are not accepted",
                hint="call from a program",
            )
        if scope["path"] in OPEN_PATHS:
            return
        surface = "mcp" if scope["path"] == "/mcp" else "rest"
        scope.setdefault("state", {})["caller"] = self._caller((authorization or b"").decode("latin-1"), surface)

    def _caller(self, authorization: str, surface: str) -> Caller:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthenticated("this needs a token")
        return self._authenticate(secret.strip(), surface=surface)

    def _capped(self, scope: Scope, receive: Receive) -> Receive:
        """Count the body of a small route. Calls and files count, or stream, for themselves."""
        if _LARGE.match(scope["path"]):
            return receive
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > SMALL_BODY_CAP_BYTES:
                raise too_large(SMALL_BODY_CAP_BYTES)
            return message

        return counted


def internal_error(error: Exception) -> Internal:
    """Log *error* under a reference, and return what the caller is told of it: the reference."""
    reference = uuid.uuid4().hex[:12]
    _log.error("request failed, reference %s", reference, exc_info=error)
    return Internal("the server met a fault of its own", reference=reference)


def _host_name(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
