"""Watches of directories: what they noted, fetched at once, after a wait, or as it happens. A call of `watch_path` begins one."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.errors import ColdframeError, Conflict, InvalidArgument
from coldframe.contract.paths import WatchEvent, WatchEvents
from coldframe.fronts.answers import NO_SNIFF, encode_json, json_response
from coldframe.fronts.rest.request import caller_of, control_of
from coldframe.fronts.rest.schema import JSON_DONE, RawRoute, answer_of
from coldframe.fronts.streams import NDJSON

MOST_WAIT_S = 60.0


async def read_watch(request: Request) -> Response:
    """What happened since the last answer; without anything yet, after at most `wait_s` seconds."""
    found = await control_of(request).watches.read(caller_of(request), *_watch(request), wait_s=_wait_s(request))
    return json_response(found)


async def follow_watch(request: Request) -> Response:
    """What happens, one event a line, until the directory is gone. The last line is an error where something is missing."""
    answers = control_of(request).watches.follow(caller_of(request), *_watch(request))
    first = await anext(answers)  # so that a refusal is an ordinary answer
    return StreamingResponse(_lines(first, answers), media_type=NDJSON, headers=NO_SNIFF)


async def _lines(first: WatchEvents, rest: AsyncIterator[WatchEvents]) -> AsyncIterator[bytes]:
    try:
        async with aclosing(rest):  # type: ignore[type-var]  # a generator
            found: WatchEvents | None = first
            while found is not None:
                for event in found.events:
                    yield encode_json(event) + b"\n"
                if found.overflowed:
                    raise Conflict("more happened than is kept", hint="list the directory, and watch it again")
                found = await anext(rest, None)
    except ColdframeError as error:
        yield encode_json({"event": "error", "error": error.to_wire()}) + b"\n"


async def end_watch(request: Request) -> Response:
    """Let go of it."""
    await control_of(request).watches.end(caller_of(request), *_watch(request))
    return json_response({"ok": True})


def _watch(request: Request) -> tuple[str, str]:
    return request.path_params["sandbox_id"], request.path_params["watch_id"]


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait_s", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MOST_WAIT_S:
        raise InvalidArgument(f"`wait_s` is 0 to {MOST_WAIT_S:g}", hint="ask again", argument="wait_s")
    return wait_s


_ONE = "/v1/sandboxes/{sandbox_id}/watches/{watch_id}"
ROUTES = (
    RawRoute(
        "GET",
        _ONE,
        read_watch,
        "What a watch noted",
        answer_of(WatchEvents),
        query=(("wait_s", "number", f"Wait so long for something, at most {MOST_WAIT_S:g}."),),
    ),
    RawRoute(
        "GET", _ONE + "/events", follow_watch, "Follow a watch", {NDJSON: answer_of(WatchEvent)["application/json"]}
    ),
    RawRoute("DELETE", _ONE, end_watch, "End a watch", JSON_DONE),
)
