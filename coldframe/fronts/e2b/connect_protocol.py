"""The Connect protocol in JSON, as far as SDKs of E2B speak it: questions, and streams either way.

A question is a JSON body, and a refusal a status with `{"code", "message"}`. A stream is a row of envelopes: a byte of flags,
four bytes of length, and JSON. Its status is always 200, and how it ended is said by its last envelope. Envelopes are taken
as they arrive, and events sent as they come: nothing is gathered. Where nothing happens for a while the client is told so,
since it and what is between gives up on a connection that says nothing.
"""

import asyncio
import json
import logging
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    DiskFull,
    FileMissing,
    GuestLost,
    HostUnreachable,
    InvalidArgument,
    LimitReached,
    NotFound,
    Refused,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from coldframe.fronts.answers import NO_SNIFF
from coldframe.fronts.auth import internal_error
from coldframe.fronts.streams import parse_json, read_body

UNARY, STREAM = "application/json", "application/connect+json"
MOST_BYTES = 64 * 1024 * 1024
"""Of one message."""
KEEPALIVE_S = 90.0
_PREFIX = struct.Struct(">BI")
_COMPRESSED, _END = 0x01, 0x02
_STATUS = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
_CODES: tuple[tuple[type[ColdframeError], str], ...] = (
    (Unauthenticated, "unauthenticated"),
    (FileMissing, "not_found"),
    (NotFound, "not_found"),
    (Conflict, "already_exists"),
    (DiskFull, "resource_exhausted"),
    (LimitReached, "resource_exhausted"),
    (TooLarge, "resource_exhausted"),
    (WrongState, "failed_precondition"),
    (GuestLost, "unavailable"),
    (HostUnreachable, "unavailable"),
    (Refused, "permission_denied"),
    (Unavailable, "unavailable"),
    (InvalidArgument, "invalid_argument"),
)
_log = logging.getLogger("coldframe.fronts")
Message = dict[str, Any]


class ConnectError(Exception):
    """A refusal in the words of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def told(self) -> Message:
        return {"code": self.code, "message": self.message}


def connect_error(error: BaseException) -> ConnectError:
    """What went wrong in these words. A fault of the server is logged."""
    if isinstance(error, ConnectError):
        return error
    if not isinstance(error, ColdframeError):
        error = internal_error(error) if isinstance(error, Exception) else HostUnreachable("the server is stopping")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        code = {400: "invalid_argument", 404: "not_found", 403: "permission_denied"}.get(error.status, "internal")
    return ConnectError(code, f"{error.message} ({error.advice})" if error.advice else error.message)


def error_reply(error: BaseException) -> Response:
    found = connect_error(error)
    return Response(json.dumps(found.told).encode(), _STATUS[found.code], NO_SNIFF, UNARY)


def reply(message: Message) -> Response:
    return Response(json.dumps(message, separators=(",", ":")).encode(), 200, NO_SNIFF, UNARY)


async def read_message(request: Request) -> Message:
    """The question. Raises ConnectError."""
    if (request.headers.get("content-encoding") or "identity") != "identity":
        raise ConnectError("unimplemented", "messages are not compressed here")
    return _object(await read_body(request, MOST_BYTES))


def _object(body: bytes) -> Message:
    content = parse_json(body) if body else {}
    if not isinstance(content, dict):
        raise ConnectError("invalid_argument", "the message is not a JSON object")
    return content


class Envelopes:
    """Messages of a stream from a client, as they arrive."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._held = bytearray()
        self.ended = False

    async def next(self) -> Message | None:
        """None when there are no more. Raises ConnectError, ClientDisconnect."""
        while True:
            if len(self._held) >= _PREFIX.size:
                flags, length = _PREFIX.unpack_from(self._held)
                if length > MOST_BYTES:
                    raise ConnectError("resource_exhausted", f"a message is larger than {MOST_BYTES} bytes")
                if len(self._held) >= _PREFIX.size + length:
                    body = bytes(self._held[_PREFIX.size : _PREFIX.size + length])
                    del self._held[: _PREFIX.size + length]
                    if flags & _COMPRESSED:
                        raise ConnectError("unimplemented", "messages are not compressed here")
                    if flags & _END:
                        continue
                    return _object(body)
            if self.ended:
                if self._held:
                    raise ConnectError("invalid_argument", "the stream broke off in the middle of a message")
                return None
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise ClientDisconnect
            self._held += event.get("body", b"")
            self.ended = not event.get("more_body", False)


def envelope(message: Message, flags: int = 0) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _PREFIX.pack(flags, len(body)) + body


def keepalive_s(headers: Mapping[str, str]) -> float:
    """How long a stream may say nothing, as the client asks."""
    text = headers.get("keepalive-ping-interval", "")
    return float(text) if text.isascii() and text.isdigit() and 0 < int(text) < 3600 else KEEPALIVE_S


def deadline_s(headers: Mapping[str, str]) -> float | None:
    """How long the client waits for the answer; None for as long as it takes."""
    text = headers.get("connect-timeout-ms", "")
    return int(text) / 1000 if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) > 0 else None


class EventStream:
    """The answer to a request for a stream: begun at once, and ended with the reason if it could not go on.

    Who leaves ends *events*, and nothing that they tell of.
    """

    def __init__(
        self,
        events: AsyncGenerator[Message, None],
        *,
        quiet: Message | None,
        quiet_s: float = KEEPALIVE_S,
        within_s: float | None = None,
    ) -> None:
        """*quiet* is sent when nothing has come for *quiet_s*; *within_s* is when the client gives up."""
        self._events = events
        self._quiet = quiet
        self._quiet_s = quiet_s
        self._within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", STREAM.encode()), (b"x-content-type-options", b"nosniff")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(_gone(receive))
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        end: Message = {}
        try:
            async with aclosing(self._events):
                async for message in self._timed():
                    await send({"type": "http.response.body", "body": envelope(message), "more_body": True})
        except (asyncio.CancelledError, OSError, ClientDisconnect):
            raise
        except Exception as error:  # noqa: BLE001  the edge of a request: the stream says why it ends
            end = {"error": connect_error(error).told}
        await send({"type": "http.response.body", "body": envelope(end, _END), "more_body": False})

    async def _timed(self) -> AsyncIterator[Message]:
        loop = asyncio.get_running_loop()
        ends_at = None if self._within_s is None else loop.time() + self._within_s
        ahead: asyncio.Future[Message] | None = None
        try:
            while True:
                if ahead is None:
                    ahead = asyncio.ensure_future(anext(self._events))
                left = None if ends_at is None else max(0.0, ends_at - loop.time())
                wait_s = self._quiet_s if left is None else min(self._quiet_s, left)
                await asyncio.wait({ahead}, timeout=wait_s)
                if ahead.done():
                    try:
                        message = ahead.result()
                    except StopAsyncIteration:
                        return
                    ahead = None
                    yield message
                elif ends_at is not None and loop.time() >= ends_at:
                    raise ConnectError(
                        "deadline_exceeded", "the time that was asked for is over; what was begun goes on"
                    )
                elif self._quiet is not None:
                    yield self._quiet
        finally:
            if ahead is not None:
                ahead.cancel()
                with suppress(BaseException):
                    await ahead


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class OneMessage:
    """The answer to a stream from a client: one message at its end."""

    def __init__(self, work: Callable[[], Awaitable[Message]]) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = envelope(await self._work()) + envelope({}, _END)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001  the edge of a request
            body = envelope({"error": connect_error(error).told}, _END)
        await Response(body, 200, NO_SNIFF, STREAM)(scope, receive, send)
