"""The edge: the port that speaks TLS and plain HTTP, for protocols other than our own and for ports of sandboxes.

It says where a request goes (`routing.py`) and turns what escapes into an answer; whom it comes from is for each
protocol to say. No page of another site gets in: a host that is none of ours is refused, and so is a foreign origin,
except at a port of a sandbox, which is a site of its own and judges for itself.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coldframe.contract.errors import ColdframeError, InvalidArgument, NotFound, Refused
from coldframe.fronts.answers import error_response
from coldframe.fronts.auth import internal_error
from coldframe.fronts.edge.routing import Asked, Kind, Target, check_domains, find_target

Apps = Mapping[Kind, ASGIApp]
"""Who answers what. Each finds the `Target` as `target` in the state of its request."""
_log = logging.getLogger("coldframe.fronts")


class Edge:
    """The ASGI application of the edge port."""

    def __init__(self, make_apps: Callable[[], Apps], *, domains: Iterable[str], names: Iterable[str] = ()) -> None:
        """*make_apps* is asked at the first request: what speaks other protocols costs a start nothing."""
        self._make_apps = make_apps
        self.domains = check_domains(domains)
        self.names = frozenset(name.lower() for name in names)

    @cached_property
    def _apps(self) -> Apps:
        return self._make_apps()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        started = finished = False

        async def sent(message: Message) -> None:
            nonlocal started, finished
            started = True
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        target = Target("control")
        try:
            target = self.target(scope)
            scope.setdefault("state", {})["target"] = target
            app = self._apps.get(target.kind)
            if app is None:
                raise NotFound(f"nothing of this server answers for `{target.kind}`")
            await app(scope, receive, sent)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  the edge of a request
            if finished:
                return
            known = error if isinstance(error, ColdframeError) else error.__cause__
            if not isinstance(known, ColdframeError):
                known = internal_error(error)
            if started:  # nothing more is sent, so the connection breaks: no short answer looks whole
                _log.warning("an answer broke off: %s %s", known.code, known.message)
                return
            await plain_error(known)(scope, receive, send)

    def target(self, scope: Scope) -> Target:
        """Raises Refused, InvalidArgument."""
        found: dict[bytes, bytes] = {}
        hosts = 0
        for name, value in scope["headers"]:
            if name == b"host":
                hosts += 1
            found.setdefault(name, value)
        if hosts > 1:
            raise InvalidArgument("a request has one `Host`")

        def header(name: bytes) -> str | None:
            value = found.get(name)
            return None if value is None else value.decode("latin-1")

        host = header(b"host") or ""
        bearer = (header(b"authorization") or "").lower().startswith("bearer ")
        asked = Asked(
            host,
            scope["path"],
            header(b"e2b-sandbox-id"),
            header(b"e2b-sandbox-port"),
            has_key=b"x-api-key" in found or bearer,
        )
        target = find_target(asked, self.domains, self.names)
        origin = header(b"origin")
        if target.kind != "preview" and origin is not None and origin != f"{scope.get('scheme', 'http')}://{host}":
            raise Refused(f"requests from the origin `{origin[:100]}` are not accepted", hint="call from a program")
        return target


def plain_error(error: ColdframeError) -> Response:
    """For what no protocol has answered: in our own form, which also has what SDKs of E2B look for."""
    response = error_response(error)
    response.headers["Coldframe-Code"] = error.code
    return response
