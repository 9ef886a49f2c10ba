"""What SDKs of E2B find at port 49983 of a sandbox: processes, paths, and content of files.

Behind the gateway (`gateway.py`), which knows the sandbox and who calls. Only addresses of files may be signed in place of
a token; everything else is refused without one.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from coldframe.contract.errors import ColdframeError, NotFound, Unauthenticated
from coldframe.control.access_tokens import Access
from coldframe.control.control import Control
from coldframe.control.rights import require
from coldframe.fronts.auth import internal_error
from coldframe.fronts.e2b import files, filesystem
from coldframe.fronts.e2b.box_user import BoxUser, Place, named_user, user_of
from coldframe.fronts.e2b.connect_protocol import (
    STREAM,
    ConnectError,
    Envelopes,
    EventStream,
    Message,
    OneMessage,
    deadline_s,
    error_reply,
    keepalive_s,
    read_message,
    reply,
)
from coldframe.fronts.e2b.metrics import measure
from coldframe.fronts.e2b.process import KEEPALIVE, Processes
from coldframe.fronts.e2b.routes import answer
from coldframe.fronts.e2b.signatures import access_by_signature

Question = Callable[[Place, BoxUser, Message], Awaitable[Message]]
MIB = 1 << 20


class DataPlane:
    """An ASGI application. It finds `access` and `target` in the state of a request."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._processes = processes = Processes()
        self._questions: dict[str, Question] = {
            "/process.Process/List": processes.list,
            "/process.Process/Update": processes.update,
            "/process.Process/SendInput": processes.send_input,
            "/process.Process/SendSignal": processes.send_signal,
            "/process.Process/CloseStdin": processes.close_stdin,
            **{f"/filesystem.Filesystem/{name}": serve for name, serve in filesystem.QUESTIONS.items()},
        }
        self._streams = {
            "/process.Process/Start": (processes.start, KEEPALIVE),
            "/process.Process/Connect": (processes.connect, KEEPALIVE),
            "/filesystem.Filesystem/WatchDir": (filesystem.watch, {"keepalive": {}}),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, path = Request(scope, receive), scope["path"]
        if path.startswith(("/process.Process/", "/filesystem.Filesystem/")):
            response = await self._connect(request, path)
        else:
            response = await self._http(request, path)
        await response(scope, receive, send)

    # -- the Connect protocol ------------------------------------------------------------------

    async def _connect(self, request: Request, path: str) -> ASGIApp:
        is_stream = request.headers.get("content-type", "").startswith(STREAM)
        try:
            if request.method != "POST":
                raise ConnectError("unimplemented", "questions are posted")
            place = self._place(request)
            user = user_of(request)
            if path == "/process.Process/StreamInput":
                return OneMessage(lambda: self._processes.stream_input(place, user, request))
            if path in self._streams:
                return await self._stream(request, path, place, user)
            if path in self._questions:
                return reply(await self._questions[path](place, user, await read_message(request)))
            raise ConnectError("unimplemented", f"there is no `{path[:100]}` here")
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001  the edge of a request
            return EventStream(_refused(error), quiet=None) if is_stream else error_reply(error)

    async def _stream(self, request: Request, path: str, place: Place, user: BoxUser) -> ASGIApp:
        envelopes = Envelopes(request.receive)
        message = await envelopes.next()
        if message is None:
            raise ConnectError("invalid_argument", "the stream has no message")
        serve, quiet = self._streams[path]
        events = serve(place, user, message)
        headers = request.headers
        return EventStream(events, quiet=quiet, quiet_s=keepalive_s(headers), within_s=deadline_s(headers))

    def _place(self, request: Request) -> Place:
        access: Access | None = request.scope["state"]["access"]
        if access is None:
            raise Unauthenticated("this needs an access token", hint="send it as `X-Access-Token`")
        return Place(self._control, access.caller, access.sandbox_id)

    # -- plain HTTP ----------------------------------------------------------------------------

    async def _http(self, request: Request, path: str) -> Response:
        try:
            method = "GET" if request.method == "HEAD" else request.method
            if path == "/files" and method in ("GET", "POST"):
                known, username = request.scope["state"]["access"], request.query_params.get("username")
                access = known or self._signed(request, method)
                place = Place(self._control, access.caller, access.sandbox_id)
                if (
                    known is None
                ):  # a signature is for the user in the address alone, and for `user` where there is none
                    username = username or "user"
                user = user_of(request) if username is None else named_user(username)
                return await (files.download if method == "GET" else files.upload)(place, user, request)
            if path == "/files/compose" and method == "POST":
                return await files.compose(self._place(request), request, user_of(request))
            if path == "/envs" and method == "GET":
                place = self._place(request)
                require(place.caller, "tool.call")  # there may be secrets among them, for whoever runs commands there
                return answer(self._control.leases.environment(place.sandbox_id))
            if path == "/metrics" and method == "GET":
                return await self._metrics(self._place(request))
            raise NotFound(f"a sandbox has no `{request.method} {path[:200]}` here", hint="see docs/e2b.md")
        except ClientDisconnect:
            raise
        except ColdframeError as error:
            return files.file_error(error)
        except Exception as error:  # noqa: BLE001  the edge of a request
            return files.file_error(internal_error(error))

    def _signed(self, request: Request, method: str) -> Access:
        sandbox_id = request.scope["state"]["target"].sandbox_id
        return access_by_signature(self._control, request, sandbox_id, "read" if method == "GET" else "write")

    async def _metrics(self, place: Place) -> Response:
        found = await measure(self._control, place.caller, self._control.sandboxes.get(place.caller, place.sandbox_id))
        return answer(
            {
                "ts": found["timestampUnix"],
                "cpu_count": found["cpuCount"],
                "cpu_used_pct": found["cpuUsedPct"],
                "mem_total": found["memTotal"],
                "mem_used": found["memUsed"],
                "mem_total_mib": found["memTotal"] // MIB,
                "mem_used_mib": found["memUsed"] // MIB,
                "mem_cache": found["memCache"],
                "disk_used": found["diskUsed"],
                "disk_total": found["diskTotal"],
            }
        )


async def _refused(error: Exception | None) -> AsyncGenerator[Message, None]:
    if error is not None:
        raise error
    yield {}
