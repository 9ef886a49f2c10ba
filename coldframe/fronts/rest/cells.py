"""Code cells and their contexts: pieces of code that share variables, with what they show in every form that there is of it."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from coldframe.contract.cell import (
    Attachment,
    CellEvent,
    CellRequest,
    ContextInfo,
    NewContext,
    OnceAnswer,
    OnceRecord,
    OnceRequest,
)
from coldframe.contract.errors import ColdframeError, Internal
from coldframe.contract.model import Model
from coldframe.contract.tool import ToolResult
from coldframe.fronts.answers import NO_SNIFF, encode_json, json_response, result_response
from coldframe.fronts.departures import unless_gone, while_there
from coldframe.fronts.rest.commands import MOST_WAIT_S, Changed
from coldframe.fronts.rest.json_routes import JsonRoute, checked, checked_body, checked_query
from coldframe.fronts.rest.request import caller_of, control_of, path_after, session_of
from coldframe.fronts.rest.schema import BYTES, JSON_RESULT, RawRoute
from coldframe.fronts.streams import NDJSON, read_body, read_object

MOST_ATTACHED_BYTES = 64 * 1024 * 1024
"""Larger files are uploaded as such."""


class SentCell(CellRequest):
    """One cell."""

    on_leave: Literal["go_on", "interrupt"] = "go_on"
    """What becomes of it when the connection ends while it runs. Before its turn it is taken back in any case."""


class Looked(Model):
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0
    """Wait so long for its end."""


async def run_cell(request: Request) -> Response:
    """Run code in a context, and answer with all that it shows; or stream this while it runs, and the result last."""
    sent = await checked_body(SentCell, request)
    cell = CellRequest.model_validate(sent.model_dump(exclude={"on_leave"}))
    events = control_of(request).cells.stream(
        caller_of(request), _sandbox(request), cell, on_leave=sent.on_leave, session_id=session_of(request)
    )
    if NDJSON not in request.headers.get("accept", ""):
        return result_response(await unless_gone(request, _last(events)))
    watched = while_there(request, events)
    first = await anext(watched)
    if isinstance(first, ToolResult) and first.error is not None:
        await events.aclose()
        return result_response(first)
    return StreamingResponse(_lines(first, watched), media_type=NDJSON, headers=NO_SNIFF)


async def _last(events: AsyncGenerator[CellEvent | ToolResult, None]) -> ToolResult:
    result: CellEvent | ToolResult | None = None
    try:
        async for event in events:
            result = event
    finally:
        await events.aclose()
    assert isinstance(result, ToolResult)
    return result


async def _lines(
    first: CellEvent | ToolResult | None, rest: AsyncIterator[CellEvent | ToolResult | None]
) -> AsyncIterator[bytes]:
    try:
        if first is not None:
            yield _line(first)
        async for event in rest:
            if event is not None:
                yield _line(event)
    except ColdframeError as error:
        yield encode_json({"event": "error", "error": error.to_wire()}) + b"\n"
    except Exception:  # noqa: BLE001  the edge of a request
        yield encode_json({"event": "error", "error": Internal("the server met a fault of its own").to_wire()}) + b"\n"


def _line(event: CellEvent | ToolResult) -> bytes:
    if isinstance(event, ToolResult):
        return b'{"event":"tool_result","result":' + encode_json(event) + b"}\n"
    return encode_json(event) + b"\n"


async def get_cell(request: Request) -> Response:
    """The result of a cell again, by its id; of one that runs, as soon as it has ended, with `wait_s`."""
    looked = checked_query(Looked, request)
    names = request.path_params
    result = await unless_gone(
        request,
        control_of(request).cells.get(caller_of(request), names["sandbox_id"], names["cell_id"], wait_s=looked.wait_s),
    )
    return result_response(result)


async def interrupt_cell(request: Request) -> Changed:
    """Stop a cell that runs. Where it does not let itself be stopped, its kernel is replaced, and its result says so."""
    names = request.path_params
    await control_of(request).cells.interrupt(caller_of(request), names["sandbox_id"], names["cell_id"])
    return Changed()


async def attach_file(request: Request) -> Response:
    """Put the bytes of the body into the sandbox as `inputs/NAME`, to be read and not written. A name that is taken by another
    file gets a number, and `note` says so."""
    name, source = request.query_params.get("name", ""), request.query_params.get("source")
    content = await read_body(request, MOST_ATTACHED_BYTES)
    attachments = control_of(request).attachments
    return json_response(await attachments.attach(caller_of(request), _sandbox(request), name, content, source=source))


async def run_once(request: Request) -> Response:
    """Run code in a sandbox of its own that is gone when this answers: files in, results and files out.

    It has no network. With `keep: io` its outputs stay under the id of the run, beside the digests of its inputs."""
    wish = checked(OnceRequest, await read_object(request))
    return json_response(await unless_gone(request, control_of(request).once.run(caller_of(request), wish)))


async def get_once(request: Request) -> OnceRecord:
    """What is on record of a run, and which outputs were kept."""
    return control_of(request).once.get(caller_of(request), str(request.path_params["once_id"]))


async def get_once_output(request: Request) -> Response:
    """One output that was kept, as it is."""
    once_id = str(request.path_params["once_id"])
    content = control_of(request).once.output(caller_of(request), once_id, path_after(request, "/outputs/"))
    headers = NO_SNIFF | {"Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(content, 200, headers, "application/octet-stream")


async def forget_once(request: Request) -> Changed:
    """Remove the outputs that were kept."""
    control_of(request).once.forget(caller_of(request), str(request.path_params["once_id"]))
    return Changed()


async def list_contexts(request: Request) -> list[ContextInfo]:
    """Contexts of the sandbox. Those of Python and JavaScript are there without being made."""
    return control_of(request).contexts.list(caller_of(request), _sandbox(request))


async def open_context(request: Request, wish: NewContext) -> ContextInfo:
    """Make a context of its own variables, and begin to start its kernel."""
    return await control_of(request).contexts.open(caller_of(request), _sandbox(request), wish)


async def restart_context(request: Request) -> ContextInfo:
    """Begin anew: all that cells have defined is gone, and a cell that runs ends."""
    return await control_of(request).contexts.restart(caller_of(request), _sandbox(request), _context(request))


async def close_context(request: Request) -> Changed:
    """End its kernel and forget it. One that is there without being made is there again, as new."""
    await control_of(request).contexts.close_context(caller_of(request), _sandbox(request), _context(request))
    return Changed()


def _sandbox(request: Request) -> str:
    return str(request.path_params["sandbox_id"])


def _context(request: Request) -> str:
    return str(request.path_params["context_id"])


_CELLS = "/v1/sandboxes/{sandbox_id}/cells"
_CONTEXTS = "/v1/sandboxes/{sandbox_id}/contexts"
_WHOSE = (("Coldframe-Session", "Session whose label counts; the sandbox's own by default."),)
ROUTES = (
    RawRoute(
        "POST",
        _CELLS,
        run_cell,
        "Run a code cell",
        {**JSON_RESULT, NDJSON: {"schema": {"type": "string", "description": "Events, one JSON object a line."}}},
        body={"application/json": {"schema": SentCell.model_json_schema()}},
        headers=_WHOSE,
    ),
    RawRoute(
        "GET",
        _CELLS + "/{cell_id}",
        get_cell,
        "The result of a cell",
        JSON_RESULT,
        query=(("wait_s", "number", f"Wait so long for its end, at most {MOST_WAIT_S}."),),
    ),
    RawRoute(
        "POST",
        "/v1/once",
        run_once,
        "Run code once",
        {"application/json": {"schema": OnceAnswer.model_json_schema(mode="serialization")}},
        body={"application/json": {"schema": OnceRequest.model_json_schema()}},
    ),
    RawRoute(
        "POST",
        "/v1/sandboxes/{sandbox_id}/attachments",
        attach_file,
        "Attach a file",
        {"application/json": {"schema": Attachment.model_json_schema(mode="serialization")}},
        body=BYTES,
        query=(("name", "string", "Of the file."), ("source", "string", "Where it is from, for the record.")),
    ),
    JsonRoute("GET", "/v1/once/{once_id}", get_once, OnceRecord),
    JsonRoute("DELETE", "/v1/once/{once_id}", forget_once, Changed),
    RawRoute("GET", "/v1/once/{once_id}/outputs/{path:anything}", get_once_output, "An output that was kept", BYTES),
    JsonRoute("POST", _CELLS + "/{cell_id}/interrupt", interrupt_cell, Changed),
    JsonRoute("GET", _CONTEXTS, list_contexts, list[ContextInfo]),
    JsonRoute("POST", _CONTEXTS, open_context, ContextInfo, body=NewContext),
    JsonRoute("POST", _CONTEXTS + "/{context_id}/restart", restart_context, ContextInfo),
    JsonRoute("DELETE", _CONTEXTS + "/{context_id}", close_context, Changed),
)
