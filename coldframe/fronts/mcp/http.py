"""Streamable HTTP: one endpoint, one message a request. An answer is JSON, or a stream of events if something is told before it."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, InvalidArgument, TooLarge, Unauthenticated
from coldframe.control.control import Control
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.auth import internal_error
from coldframe.fronts.mcp.answers import EVENT_CAP_BYTES, fitted
from coldframe.fronts.mcp.dispatch import Dispatch, Exchange
from coldframe.fronts.mcp.messages import Incoming, read_message
from coldframe.fronts.mcp.protocol import (
    CANCELLED,
    CURRENT,
    HANDSHAKE_REVISIONS,
    HEADER_METHOD,
    HEADER_NAME,
    HEADER_REVISION,
    HEADER_SESSION,
    HTTP_STATUS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RpcError,
    failure,
    response,
    unsupported,
)
from coldframe.fronts.mcp.sessions import Session, Sessions
from coldframe.fronts.streams import JSON_BODY_CAP_BYTES, parse_json, read_body

PATH = "/mcp"
QUICK_S = 0.05
"""Most requests are answered by then; only for others it is looked whether somebody still waits."""
STEP_S = 2.0
"""Between two looks whether a token is still good, while its request is under way."""
PING_S = 15.0
_SECRETS = frozenset({"token", "access_token", "api_key", "apikey", "key", "authorization"})
_ONCE = (HEADER_REVISION, HEADER_METHOD, HEADER_NAME)
_EVENTS = "text/event-stream"
_EVENT_HEADERS = [
    (b"content-type", _EVENTS.encode()),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),
]


class McpFront:
    """Serves `/mcp` behind the door, which has let the caller in."""

    def __init__(self, control: Control, *, operator_refuses: bool = False) -> None:
        self.control = control
        self.dispatch = Dispatch(control, operator_refuses=operator_refuses)
        self.sessions = Sessions()
        self._adrift: set[asyncio.Task[Any]] = set()
        """Work whose client is gone without calling it off."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller = scope["state"]["caller"]
        refuse_token_in_url(scope)
        request = Request(scope, receive)
        if request.method == "POST":
            await self._post(request, caller, scope, receive, send)
        elif request.method == "GET":
            await self._get(request, caller, scope, receive, send)
        elif request.method == "DELETE":
            self.sessions.end(caller, request.headers.get(HEADER_SESSION, ""))
            await Response(status_code=204, headers=NO_SNIFF)(scope, receive, send)
        else:
            await Response(status_code=405, headers={**NO_SNIFF, "Allow": "POST, GET, DELETE"})(scope, receive, send)

    # -- one message -------------------------------------------------------------------------------------------------

    async def _post(self, request: Request, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        accept = request.headers.get("accept", "*/*")
        takes_json = "application/json" in accept or "*/*" in accept or "application/*" in accept
        takes_events = _EVENTS in accept or "*/*" in accept or "text/*" in accept
        if not takes_json and not takes_events:
            await Response(status_code=406, headers=NO_SNIFF)(scope, receive, send)
            return
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            await Response(status_code=415, headers=NO_SNIFF)(scope, receive, send)
            return
        request_id = None
        try:
            content = _decoded(await read_body(request, JSON_BODY_CAP_BYTES))
            if isinstance(content, dict) and isinstance(content.get("id"), str | int):
                request_id = content["id"]
            message = read_message(content, _headers(request))
            session = self._session(request, caller, message)
        except RpcError as error:
            body, status = failure(request_id, error), HTTP_STATUS.get(error.code, 400)
            await _json(body, status)(scope, receive, send)
            return
        except LookupError:
            ended = RpcError(INVALID_REQUEST, "that session has ended: begin with `initialize`")
            await _json(failure(request_id, ended), 404)(scope, receive, send)
            return
        if message is None or not message.is_request:
            if message is not None:
                self._note(message, session)
            await Response(status_code=202, headers=NO_SNIFF)(scope, receive, send)
            return
        await _Reply(self, message, caller, session, scope, receive, send, takes_json, takes_events).serve()

    def _session(self, request: Request, caller: Caller, message: Incoming | None) -> Session | None:
        name = request.headers.get(HEADER_SESSION)
        if name is None or (message is not None and (message.era == "stateless" or message.method == "initialize")):
            return None
        found = self.sessions.find(caller, name)
        if found is None:
            raise LookupError(name)
        return found

    def _note(self, message: Incoming, session: Session | None) -> None:
        """Of what clients say without wanting an answer, only that a request is called off means anything here. In the
        stateless era that is said by closing its stream, since ids of requests are nobody's there."""
        if message.method != "notifications/cancelled" or session is None:
            return
        called_off = message.params.get("requestId")
        if isinstance(called_off, str | int) and (task := session.running.get(called_off)) is not None:
            task.cancel()

    def let_go(self, work: "asyncio.Task[Any]") -> None:
        """Keep what goes on for nobody until it is done."""
        if not work.done():
            self._adrift.add(work)
            work.add_done_callback(self._adrift.discard)

    # -- the stream of a session -------------------------------------------------------------------------------------

    async def _get(self, request: Request, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        name = request.headers.get(HEADER_SESSION)
        revision = request.headers.get(HEADER_REVISION)
        if name is None or (revision is not None and revision not in HANDSHAKE_REVISIONS):
            await Response(status_code=405, headers={**NO_SNIFF, "Allow": "POST"})(scope, receive, send)
            return
        session = self.sessions.find(caller, name)
        if session is None:
            await Response(status_code=404, headers=NO_SNIFF)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        await send({"type": "http.response.body", "body": b": listening\n\n", "more_body": True})
        gone = asyncio.ensure_future(_gone(receive))
        listener, silent_s = session.listen(), 0.0
        taking = asyncio.ensure_future(session.take(listener))
        try:
            while True:
                done, _ = await asyncio.wait([taking, gone], timeout=STEP_S, return_when=asyncio.FIRST_COMPLETED)
                if gone in done or not self.control.tokens.is_valid(caller):
                    break
                if taking in done:
                    messages = taking.result()
                    if messages is None:
                        break
                    body = b"".join(_event(one) for one in messages)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    taking, silent_s = asyncio.ensure_future(session.take(listener)), 0.0
                elif (silent_s := silent_s + STEP_S) >= PING_S:
                    await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
                    silent_s = 0.0
        finally:
            gone.cancel()
            taking.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Reply:
    """The answer to one request, from its first look to its last byte."""

    def __init__(
        self,
        front: McpFront,
        message: Incoming,
        caller: Caller,
        session: Session | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        takes_json: bool,
        takes_events: bool,
    ) -> None:
        self._front = front
        self._message = message
        self._caller = caller
        self._session = session
        self._scope, self._receive, self._send = scope, receive, send
        self._takes_events = takes_events
        self._takes_json = takes_json
        self._streams = False
        self._is_over = False

    async def serve(self) -> None:
        front, message, session = self._front, self._message, self._session
        exchange = Exchange(message, self._caller, self._tell, session)
        work = asyncio.get_running_loop().create_task(front.dispatch.answer(exchange))
        if session is not None and message.request_id is not None:
            session.running[message.request_id] = work
        try:
            if await self._wait(work):
                await self._finish(work)
        finally:
            self._is_over = True
            request_id = message.request_id
            if session is not None and request_id is not None and session.running.get(request_id) is work:
                del session.running[request_id]

    async def _wait(self, work: "asyncio.Task[dict[str, Any]]") -> bool:
        """Return whether there is an answer, and somebody who may have it."""
        done, _ = await asyncio.wait([work], timeout=QUICK_S)
        if done:
            return True
        gone, silent_s = asyncio.ensure_future(_gone(self._receive)), 0.0
        waited: list[asyncio.Task[Any]] = [work, gone]
        try:
            while True:
                done, _ = await asyncio.wait(waited, timeout=STEP_S, return_when=asyncio.FIRST_COMPLETED)
                if work in done:
                    return True
                if gone.done():
                    if self._message.era == "stateless":
                        work.cancel()  # that is how it is called off
                        await asyncio.wait([work])
                    self._front.let_go(work)
                    return False
                if not self._front.control.tokens.is_valid(self._caller):
                    work.cancel()
                    await asyncio.wait([work])
                    await self._refuse()
                    return False
                if (silent_s := silent_s + STEP_S) >= PING_S:
                    await self._ping()
                    silent_s = 0.0
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            gone.cancel()

    async def _finish(self, work: "asyncio.Task[dict[str, Any]]") -> None:
        message, status = self._message, 200
        try:
            body = response(message.request_id, work.result())
        except asyncio.CancelledError:
            body = failure(message.request_id, RpcError(CANCELLED, "the request was called off"))
        except RpcError as error:
            body = failure(message.request_id, error)
            status = HTTP_STATUS.get(error.code, 200) if message.era == "stateless" else 200
        except Exception as error:  # noqa: BLE001  the edge of a request
            body = failure(message.request_id, _internal(error))
        if not self._streams and self._takes_json:
            headers = {}
            if message.method == "initialize":
                headers["Mcp-Session-Id"] = self._front.sessions.new_name()
            await _json(body, status, headers)(self._scope, self._receive, self._send)
            return
        await self._begin()
        last = _event(body)
        if len(last) > EVENT_CAP_BYTES and "result" in body:
            try:
                last = _event({**body, "result": fitted(body["result"])})
            except TooLarge as error:
                last = _event(failure(message.request_id, RpcError(INVALID_PARAMS, error.message, error.to_wire())))
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _refuse(self) -> None:
        if not self._streams:
            raise Unauthenticated("the token is not valid any more")
        error = Unauthenticated("the token is not valid any more")
        body = failure(self._message.request_id, RpcError(INVALID_REQUEST, error.message, error.to_wire()))
        await self._send({"type": "http.response.body", "body": _event(body), "more_body": False})

    async def _tell(self, message: dict[str, Any]) -> None:
        if self._takes_events and not self._is_over:
            await self._begin()
            await self._send({"type": "http.response.body", "body": _event(message), "more_body": True})

    async def _ping(self) -> None:
        if self._takes_events:
            await self._begin()
            await self._send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})

    async def _begin(self) -> None:
        if not self._streams:
            self._streams = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})


def refuse_token_in_url(scope: Scope) -> None:
    """Addresses are written into logs and histories. Raises InvalidArgument."""
    query = scope.get("query_string", b"").decode("latin-1")
    if query and any(name.lower() in _SECRETS for name in parse_qs(query, keep_blank_values=True)):
        raise InvalidArgument(
            "a token does not belong into an address, where logs keep it",
            hint="send it as `Authorization: Bearer …`, and revoke the one that was sent",
            argument="token",
        )


def _decoded(body: bytes) -> object:
    try:
        return parse_json(body)
    except ColdframeError as error:
        raise RpcError(PARSE_ERROR, error.message) from None


def _headers(request: Request) -> Mapping[str, str]:
    """As far as they say what the body says. Raises RpcError for one that says it twice."""
    headers = request.headers
    for name in _ONCE:
        if len(headers.getlist(name)) > 1:
            raise RpcError(INVALID_REQUEST, f"the header `{name}` is there more than once")
    revision = headers.get(HEADER_REVISION)
    if revision is not None and revision != CURRENT and revision not in HANDSHAKE_REVISIONS:
        raise unsupported(revision)
    return headers


async def _gone(receive: Receive) -> None:
    with contextlib.suppress(Exception):
        while (await receive())["type"] != "http.disconnect":
            pass


def _event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + _dumped(message) + b"\n\n"


def _json(message: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_dumped(message), status, {**NO_SNIFF, **(headers or {})}, "application/json")


def _dumped(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _internal(error: Exception) -> RpcError:
    known = internal_error(error)
    return RpcError(INTERNAL_ERROR, known.message, known.to_wire())
