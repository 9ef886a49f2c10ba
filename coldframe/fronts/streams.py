"""Bodies in and events out, both with constant memory.

An event stream is newline-delimited JSON, or frames to whoever accepts those: the length of a JSON head and of a
body, four bytes each and big endian, the head, and the body, which is the bytes of an output event as they are.
Base64 in JSON costs more than everything else that is done to a byte of output. The first event is awaited
before the status goes out, so a refusal is an ordinary error answer; a fault after that is the last event,
`{"event": "error", …}`.
A consumer that is slow slows only itself: nothing is produced before it has taken the last piece.
"""

import json
import logging
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.command import CommandEvent, OutputChunk
from coldframe.contract.errors import ColdframeError, Internal, InvalidArgument, TooLarge
from coldframe.contract.tool import ToolResult
from coldframe.fronts.answers import NO_SNIFF, encode_json, result_response

NDJSON = "application/x-ndjson"
FRAMES = "application/x-coldframe-frames"
_LENGTHS = struct.Struct(">II")
JSON_BODY_CAP_BYTES = 128 * 1024 * 1024
"""Largest JSON body of a tool call: a file of READ_CAP_BYTES in base64, and some. Larger files go through the file
routes."""
SMALL_BODY_CAP_BYTES = 4 * 1024 * 1024
"""Largest body of every other route; rule files included."""
MOST_VALUES = 20_000
"""Most values in a JSON body, a name and what it names as one: a command of 10,000 words, and as many variables. Reading and
checking costs 3 µs each at most, in which nobody else is served; a text is one, however long."""
_log = logging.getLogger("coldframe.fronts")
Event = CommandEvent | ToolResult
Pieces = Sequence[bytes | memoryview]
SENT_BYTES = 512 * 1024
"""How much of something long is handed to the HTTP server at once, which copies it."""


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
    content = parse_json(body)
    if not isinstance(content, dict):
        raise InvalidArgument("the body is not a JSON object", argument="body")
    return content


def parse_json(body: bytes) -> object:
    """What a body says as JSON, in UTF-8. Raises InvalidArgument, with the place of the fault."""
    if len(body) > MOST_VALUES and _has_too_many_values(body):
        raise InvalidArgument(
            f"the body holds more than {MOST_VALUES} values",
            hint="send it in parts",
            argument="body",
            limit=MOST_VALUES,
        )
    try:
        return json.loads(
            body.decode("utf-8-sig")
        )  # of bytes it would take other encodings, whose signs are not counted
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", argument="body") from None
    except (ValueError, RecursionError):
        raise InvalidArgument(
            "the body is nested too deep, or holds a number of too many digits", argument="body"
        ) from None


def _has_too_many_values(body: bytes) -> bool:
    """Whether there are more than MOST_VALUES. For one that is no JSON this holds up to where a reader would stop."""
    if _signs(body) <= MOST_VALUES:
        return False
    most_quotes = 4 * MOST_VALUES  # a name and a text each
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', most_quotes)
    return len(parts) > most_quotes or sum(map(_signs, parts[::2])) > MOST_VALUES


def _signs(text: bytes) -> int:
    """How many values begin there at most, but one."""
    return len(text) - len(text.translate(None, b",[{"))


def wants_events(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return NDJSON in accept or FRAMES in accept


async def event_response(request: Request, events: AsyncIterator[Event]) -> Response:
    """The events one by one, or an error answer if the first thing that comes is one."""
    framed = FRAMES in request.headers.get("accept", "")
    media_type, encode = (FRAMES, encode_frame) if framed else (NDJSON, _encode_line_alone)
    source = cast("AsyncGenerator[Event, None]", events)
    try:
        first = await anext(source)
    except StopAsyncIteration:
        return Response(b"", media_type=media_type, headers=NO_SNIFF)
    if isinstance(first, ToolResult) and first.error is not None:
        await source.aclose()
        return result_response(first)
    return StreamingResponse(_encoded(first, source, encode), media_type=media_type, headers=NO_SNIFF)


async def _encoded(
    first: Event, rest: AsyncGenerator[Event, None], encode: Callable[[Event | ColdframeError], Pieces]
) -> AsyncIterator[bytes | memoryview]:
    async with aclosing(rest):
        try:
            for piece in encode(first):
                yield piece
            async for event in rest:
                for piece in encode(event):
                    yield piece
        except ColdframeError as error:
            for piece in encode(error):
                yield piece
        except Exception:  # noqa: BLE001  the edge of a request
            _log.exception("a stream of events failed")
            for piece in encode(Internal("the server met a fault of its own")):
                yield piece


def encode_line(event: Event | ColdframeError) -> bytes:
    """One line. Bytes are base64 in the URL-safe alphabet, as everywhere in this API's JSON."""
    if isinstance(event, ToolResult):
        return b'{"event":"result","result":' + encode_json(event) + b"}\n"
    if isinstance(event, ColdframeError):
        return encode_json({"event": "error", "error": event.to_wire()}) + b"\n"
    return encode_json(event) + b"\n"


def pieces_of(data: bytes) -> list[memoryview]:
    whole = memoryview(data)
    return [whole[start : start + SENT_BYTES] for start in range(0, len(data), SENT_BYTES)]


def pack_start(head: bytes, body_bytes: int) -> bytes:
    """A frame without its body."""
    return _LENGTHS.pack(len(head), body_bytes) + head


def pack_frame(head: bytes, body: bytes = b"") -> bytes:
    """One frame."""
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


def encode_frame(event: Event | ColdframeError) -> Pieces:
    """One frame, in pieces where it is long."""
    if isinstance(event, OutputChunk):
        at = "null" if event.at is None else f'"{event.at.isoformat()}"'
        head = f'{{"event":"output","seq":{event.seq},"stream":"{event.stream}","at":{at}}}'.encode()
        if len(event.data) > SENT_BYTES // 2:
            return [pack_start(head, len(event.data)), *pieces_of(event.data)]
        return [pack_frame(head, event.data)]
    return [pack_frame(encode_line(event))]


def _encode_line_alone(event: Event | ColdframeError) -> Pieces:
    return [encode_line(event)]
