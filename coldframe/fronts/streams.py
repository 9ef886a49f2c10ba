"""Bodies in and events out, both with constant memory.

An event stream is newline-delimited JSON. Its first event is awaited before the status goes out, so a
refusal is an ordinary error answer; a fault after that is the last line, `{"event": "error", …}`.
A consumer that is slow slows only itself: nothing is produced before it has taken the last piece.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.command import CommandEvent
from coldframe.contract.errors import ColdframeError, Internal, InvalidArgument, TooLarge
from coldframe.contract.tool import ToolResult
from coldframe.fronts.answers import NO_SNIFF, encode_json, result_response

NDJSON = "application/x-ndjson"
JSON_BODY_CAP_BYTES = 128 * 1024 * 1024
"""Largest JSON body of a tool call: a file of READ_CAP_BYTES in base64, and some. Larger files go through the file routes."""
SMALL_BODY_CAP_BYTES = 4 * 1024 * 1024
"""Largest body of every other route; rule files included."""
_log = logging.getLogger("coldframe.fronts")
Event = CommandEvent | ToolResult


async def read_body(request: Request, cap_bytes: int) -> bytes:
    """The whole body. TooLarge past *cap_bytes*, before more is read."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > cap_bytes:
        raise too_large(cap_bytes)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > cap_bytes:
            raise too_large(cap_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def too_large(cap_bytes: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {cap_bytes} bytes",
        hint="send files with `PUT /v1/sandboxes/{id}/files/{path}`, which has no such cap",
        limit=cap_bytes,
    )


async def read_object(request: Request, cap_bytes: int = JSON_BODY_CAP_BYTES) -> dict[str, Any]:
    """The body as a JSON object; empty for no body."""
    body = await read_body(request, cap_bytes)
    if not body:
        return {}
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", argument="body") from None
    if not isinstance(content, dict):
        raise InvalidArgument("the body is not a JSON object", argument="body")
    return content


async def event_response(events: AsyncIterator[Event]) -> Response:
    """The events as lines, or an error answer if the first thing that comes is one."""
    source = cast("AsyncGenerator[Event, None]", events)
    try:
        first = await anext(source)
    except StopAsyncIteration:
        return Response(b"", media_type=NDJSON, headers=NO_SNIFF)
    if isinstance(first, ToolResult) and first.error is not None:
        await source.aclose()
        return result_response(first)
    return StreamingResponse(_lines(first, source), media_type=NDJSON, headers=NO_SNIFF)


async def _lines(first: Event, rest: AsyncGenerator[Event, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        try:
            yield encode_event(first)
            async for event in rest:
                yield encode_event(event)
        except ColdframeError as error:
            yield encode_json({"event": "error", "error": error.to_wire()}) + b"\n"
        except Exception:  # noqa: BLE001  the edge of a request
            _log.exception("a stream of events failed")
            yield (
                encode_json({"event": "error", "error": Internal("the server met a fault of its own").to_wire()})
                + b"\n"
            )


def encode_event(event: Event) -> bytes:
    """One line. Bytes are base64 in the URL-safe alphabet, as everywhere in this API's events."""
    if isinstance(event, ToolResult):
        return b'{"event":"result","result":' + event.model_dump_json().encode() + b"}\n"
    return event.model_dump_json().encode() + b"\n"
