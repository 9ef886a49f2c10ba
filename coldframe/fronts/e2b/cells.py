"""The code interpreter of E2B, port 49999 of a sandbox: `/execute` and `/contexts`.

Cells need the access token of the sandbox. Contexts come without one, since SDKs send none: whoever knows the id of the sandbox
(and has the traffic token, where it wants one) lists, makes and ends them, as whoever has the sandbox's lease. When a client leaves,
its cell is interrupted: SDKs give up by closing the connection.
"""

import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coldframe.contract.caller import Caller
from coldframe.contract.cell import (
    CellBegun,
    CellEnded,
    CellError,
    CellEvent,
    CellRequest,
    CellResult,
    ContextInfo,
    Language,
    NewContext,
)
from coldframe.contract.errors import ColdframeError, InvalidArgument, NotFound, Unauthenticated, from_wire
from coldframe.contract.model import Model
from coldframe.contract.sandbox import WITH_BOX
from coldframe.contract.tool import ToolResult
from coldframe.control.access_tokens import Access
from coldframe.control.control import Control
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.departures import while_there
from coldframe.fronts.e2b.routes import RouteTable, answer
from coldframe.fronts.edge.routing import Target
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, parse_json, read_body

KEEP_ALIVE_S = 5.0
INLINE_BYTES = 32 * 1024 * 1024
"""SDKs have no other way to a result than the result itself."""
SHORT = {"js": "javascript", "ts": "typescript"}
FORMS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
"""MIME types by the names that SDKs have for them; all others come under `extra`."""
Handler = Callable[[Control, Request, Caller, str, dict[str, str]], Awaitable[Response]]


class _Asked(Model):
    """What a client may send; unknown fields are passed over."""

    model_config = Model.model_config | {"extra": "ignore"}

    code: str = ""
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = Field(default=None)
    cwd: str | None = None


class CellsApi:
    """An ASGI application behind a `Gateway`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/execute", _execute),
            ("GET", "/contexts", _list),
            ("POST", "/contexts", _open),
            ("DELETE", "/contexts/{context_id}", _close),
            ("POST", "/contexts/{context_id}/restart", _restart),
        ]
        self._routes: RouteTable[Handler] = RouteTable(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        target: Target = scope["state"]["target"]
        access: Access | None = scope["state"]["access"]
        if target.sandbox_id is None:
            raise Unauthenticated("this names no sandbox", hint="send `E2b-Sandbox-Id`, or its access token")
        for handler, values in self._routes.find(request.method, request.url.path):
            caller = access.caller if access is not None else self._holder(request, handler, target.sandbox_id)
            try:
                response = await handler(self._control, request, caller, target.sandbox_id, values)
            except (NotFound, InvalidArgument) as error:
                response = PlainTextResponse(error.message, error.status)
            await response(scope, receive, send)
            return
        raise NotFound(f"a code interpreter has no `{request.method} {request.url.path[:200]}`")

    def _holder(self, request: Request, handler: Handler, sandbox_id: str) -> Caller:
        """Whoever has the lease, for what comes without an access token. Raises Unauthenticated."""
        lease = self._control.leases.find(sandbox_id)
        if handler is _execute or lease is None:
            raise Unauthenticated("code is run with the access token of its sandbox", hint="send `X-Access-Token`")
        if lease.terms.needs_token:
            sent = request.headers.get("e2b-traffic-access-token", "").encode()
            if not hmac.compare_digest(sent, self._control.access_tokens.traffic_token(sandbox_id).encode()):
                raise Unauthenticated("this sandbox has no public traffic", hint="send `E2B-Traffic-Access-Token`")
        return self._control.tokens.caller_of(lease.token_id, surface="e2b")


async def _execute(control: Control, request: Request, caller: Caller, sandbox_id: str, _: dict[str, str]) -> Response:
    asked = await _body(request)
    if asked.context_id and asked.language:
        raise InvalidArgument("Only one of context_id or language can be provided", argument="language")
    try:
        cell = CellRequest(
            code=asked.code,
            context_id=asked.context_id or None,
            language=None if asked.context_id else _language(asked.language),
            env=asked.env_vars or {},
            inline_bytes=INLINE_BYTES,
        )
    except ValidationError:
        raise NotFound(f"Context {str(asked.context_id)[:80]} not found") from None
    events = while_there(
        request, control.cells.stream(caller, sandbox_id, cell, on_leave="interrupt"), idle_s=KEEP_ALIVE_S
    )
    try:
        first = None
        async for event in events:
            if event is not None:  # its turn has come
                first = event
                break
        if isinstance(first, ToolResult):
            _raise_of(first)
    except ColdframeError as error:
        if _is_there(control, sandbox_id):
            raise
        return StreamingResponse(_broken_off(error), headers=NO_SNIFF, media_type="application/json")
    if first is None:
        return Response(b"", 499)  # nobody is there to read it
    return StreamingResponse(
        _lines(control, sandbox_id, first, events), headers=NO_SNIFF, media_type="application/json"
    )


async def _broken_off(error: ColdframeError) -> AsyncIterator[bytes]:
    """SDKs take a connection that breaks as a reason to ask what has become of the sandbox."""
    yield b""
    raise error


async def _lines(
    control: Control,
    sandbox_id: str,
    first: CellEvent | ToolResult,
    rest: AsyncIterator[CellEvent | ToolResult | None],
) -> AsyncIterator[bytes]:
    for line in _told(first):
        yield _line(line)
    try:
        async for event in rest:
            if event is None:
                yield _line({"type": "keepalive"})
            elif isinstance(event, ToolResult):
                _raise_of(event)
            else:
                for line in _told(event):
                    yield _line(line)
    except ColdframeError as error:
        if not _is_there(control, sandbox_id):
            raise  # see `_broken_off`
        yield _line(_error(error.wire_code or error.code, f"{error.message} ({error.advice})"))
    yield _line({"type": "end_of_execution"})


def _is_there(control: Control, sandbox_id: str) -> bool:
    return control.sandboxes.find(sandbox_id).state.state in WITH_BOX


def _told(event: CellEvent | ToolResult) -> list[dict[str, Any]]:
    if isinstance(event, ToolResult):  # a rule wanted to see it first
        return _from_result(event)
    if isinstance(event, CellBegun):
        return [{"type": "number_of_executions", "execution_count": event.execution_count}]
    if isinstance(event, CellResult):
        return [_result(event)]
    if isinstance(event, CellError):
        value = event.value if event.code is None else f"{event.value} (nobody is there to give input)"
        return [_error(event.name, value, event.traceback)]
    if isinstance(event, CellEnded):
        if event.status in ("ok", "error"):
            note = {"type": "stderr", "text": f"{event.message}\n", "timestamp": 0}
            return [note] if event.kernel_restarted else []
        return [_error(event.code or event.status, event.message or "")]
    return [{"type": event.event, "text": event.text, "timestamp": event.at_ns}]


def _from_result(result: ToolResult) -> list[dict[str, Any]]:
    """All at once, where a rule wanted to see the whole of it first."""
    value = result.value
    lines: list[dict[str, Any]] = []
    if value.get("execution_count") is not None:
        lines.append({"type": "number_of_executions", "execution_count": value["execution_count"]})
    lines += [{"type": name, "text": value[name], "timestamp": 0} for name in ("stdout", "stderr") if value.get(name)]
    lines += [_result(CellResult.model_validate(one)) for one in value.get("results", ())]
    if value.get("error") is not None:
        lines.append(_error(value["error"]["name"], value["error"]["value"], value["error"]["traceback"]))
    if value.get("status") not in ("ok", "error", None):
        lines.append(_error(value.get("code") or value["status"], value.get("message") or ""))
    return lines


def _result(result: CellResult) -> dict[str, Any]:
    line: dict[str, Any] = {"type": "result", "is_main_result": result.is_main}
    extra: dict[str, Any] = {}
    for kind, value in result.data.items():
        if kind not in FORMS:
            extra[kind] = value
        elif kind == "text/plain" and isinstance(value, str):
            line["text"] = _unquoted(value)
        else:
            line[FORMS[kind]] = value
    if result.artifacts:
        kept = {kind: one.model_dump(mode="json") for kind, one in result.artifacts.items()}
        extra["application/vnd.coldframe.artifacts+json"] = kept
        notices = [f"[{kind}: {one.bytes} bytes, in {one.path}]" for kind, one in result.artifacts.items()]
        line["text"] = " ".join([*([line["text"]] if "text" in line else []), *notices])
    return {**line, "extra": extra}


def _unquoted(text: str) -> str:
    """SDKs show the text of a string without its quotes."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _error(name: str, value: str, traceback: str = "") -> dict[str, Any]:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _raise_of(result: ToolResult) -> None:
    if result.error is not None:
        raise from_wire(result.error)


async def _list(control: Control, _: Request, caller: Caller, sandbox_id: str, __: dict[str, str]) -> Response:
    return answer([_shown(one) for one in control.contexts.list(caller, sandbox_id)])


async def _open(control: Control, request: Request, caller: Caller, sandbox_id: str, _: dict[str, str]) -> Response:
    asked = await _body(request)
    wish = NewContext(language=_language(asked.language), cwd=asked.cwd or "")
    return answer(_shown(await control.contexts.open(caller, sandbox_id, wish)))


async def _close(control: Control, _: Request, caller: Caller, sandbox_id: str, values: dict[str, str]) -> Response:
    await control.contexts.close_context(caller, sandbox_id, values["context_id"])
    return answer(None)


async def _restart(control: Control, _: Request, caller: Caller, sandbox_id: str, values: dict[str, str]) -> Response:
    await control.contexts.restart(caller, sandbox_id, values["context_id"])
    return answer(None)


def _shown(info: ContextInfo) -> dict[str, str]:
    return {"id": info.context_id, "language": info.language, "cwd": info.cwd}


def _language(name: str | None) -> Language:
    """Raises InvalidArgument for one that has no kernel here."""
    wanted = (name or "python").strip().lower()
    wanted = SHORT.get(wanted, wanted)
    for language in get_args(Language):
        if wanted == language:
            return language  # type: ignore[no-any-return]
    known = ", ".join(get_args(Language))
    raise InvalidArgument(f"there is no kernel for `{wanted[:40]}` here; there are {known}", argument="language")


async def _body(request: Request) -> _Asked:
    content = await read_body(request, SMALL_BODY_CAP_BYTES)
    try:
        return _Asked.model_validate(parse_json(content) if content.strip() else {})
    except ValidationError as error:
        raise InvalidArgument(f"the body is not what this takes: {error.errors()[0]['msg']}", argument="body") from None
