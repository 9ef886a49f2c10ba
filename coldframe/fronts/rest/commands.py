"""Commands that were started: their list, results, whole output, and following one while it runs."""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.command import CommandEvent, CommandInfo, Ended, InputState
from coldframe.contract.errors import GuestLost, InvalidArgument
from coldframe.contract.files import MOST_SENT_BYTES, ProcessInfo, ShellInfo
from coldframe.contract.model import Model
from coldframe.fronts.answers import NO_SNIFF, json_response
from coldframe.fronts.rest.json_routes import JsonRoute
from coldframe.fronts.rest.request import caller_of, control_of, number_of, session_of
from coldframe.fronts.rest.schema import BYTES, EVENTS, JSON_DONE, RawRoute, answer_of, list_of
from coldframe.fronts.streams import SMALL_BODY_CAP_BYTES, Event, event_response, read_body, read_object

_STREAMS: dict[str, Literal["stdout", "stderr"]] = {"stdout": "stdout", "stderr": "stderr"}
MOST_WAIT_S = 60
"""Longest time that one request waits for the end of a command."""
WINDOW_BYTES = 16 * 1024 * 1024
"""Most bytes of output in one answer; the rest by `offset`."""


class NewLimits(Model):
    """Of a command that runs; what is left out stays as it is."""

    timeout_s: Annotated[float, Field(gt=0)] | None = None
    idle_timeout_s: Annotated[float, Field(gt=0)] | None = None
    cpu_s: Annotated[float, Field(gt=0)] | None = None


class Changed(Model):
    ok: bool = True


async def list_commands(request: Request) -> Response:
    """Commands of the sandbox, oldest first."""
    found = await control_of(request).outputs.commands(caller_of(request), request.path_params["sandbox_id"])
    return json_response(list(found))


async def get_command(request: Request) -> Response:
    """State and result of one command; with `wait_s`, as soon as its end is recorded, or after that time as it is then."""
    wait_s = number_of(request, "wait_s", 0) or 0
    if not 0 <= wait_s <= MOST_WAIT_S:
        raise InvalidArgument(f"`wait_s` is 0 to {MOST_WAIT_S}", hint="ask again", argument="wait_s")
    control, (sandbox_id, command_id) = control_of(request), _command(request)
    info = await control.outputs.command(caller_of(request), sandbox_id, command_id)
    if wait_s:
        await control.gate.await_end(command_id, wait_s)
        info = await control.outputs.command(caller_of(request), sandbox_id, command_id)
    return json_response(info)


async def read_output(request: Request) -> Response:
    """Bytes of one stream, exactly as the command wrote them."""
    stream = request.query_params.get("stream", "stdout")
    if stream not in _STREAMS:
        raise InvalidArgument("`stream` is neither `stdout` nor `stderr`", argument="stream")
    offset = number_of(request, "offset", 0) or 0
    length = number_of(request, "length", WINDOW_BYTES)
    if offset < 0 or length is None or not 0 <= length <= WINDOW_BYTES:
        raise InvalidArgument(f"ask for 0 to {WINDOW_BYTES} bytes from an offset of at least 0", argument="length")
    window = await control_of(request).outputs.output(
        caller_of(request), *_command(request), _STREAMS[stream], offset=offset, length=length
    )
    headers = NO_SNIFF | {
        "Coldframe-Offset": str(window.offset),
        "Coldframe-Total-Bytes": str(window.total_bytes),
        "Coldframe-Ended": str(window.ended).lower(),
        "Coldframe-Label": window.label.value,
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    if window.next_offset is not None:
        headers["Coldframe-Next-Offset"] = str(window.next_offset)
    if window.sha256 is not None:
        headers["Coldframe-Sha256"] = window.sha256
    return Response(window.data, 200, headers, "application/octet-stream")


async def follow_command(request: Request) -> Response:
    """Events of a command after a sequence number, until it ends; every reader gets all of them."""
    after_seq = number_of(request, "after_seq", -1)
    sandbox_id, command_id = _command(request)
    events = control_of(request).outputs.follow(
        caller_of(request), sandbox_id, command_id, after_seq=-1 if after_seq is None else after_seq
    )
    return await event_response(request, _to_end(events, command_id))


async def _to_end(events: AsyncIterator[CommandEvent], command_id: str) -> AsyncIterator[Event]:
    """The events; a command that was lost ends with an error, not in silence."""
    ended = False
    async for event in events:
        ended = isinstance(event, Ended)
        yield event
    if not ended:
        raise GuestLost(f"command `{command_id}` was lost with its sandbox", command_id=command_id)


async def signal_command(request: Request) -> Response:
    """Signal the whole process tree: `{"signal": 15}`, or `{"cancel": true}` for TERM and then KILL."""
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    number, cancel = body.get("signal", 15), body.get("cancel", False)
    if set(body) - {"signal", "cancel"} or type(number) is not int or type(cancel) is not bool:
        raise InvalidArgument("give `signal` (a number) and `cancel` (true or false), nothing else", argument="signal")
    await control_of(request).outputs.signal(caller_of(request), *_command(request), number, cancel=cancel)
    return json_response({"ok": True})


async def resize_terminal(request: Request) -> Response:
    """Give the terminal of a running command another size: `{"columns": 120, "rows": 40}`."""
    body = await read_object(request, SMALL_BODY_CAP_BYTES)
    columns, rows = body.get("columns"), body.get("rows")
    if set(body) != {"columns", "rows"} or type(columns) is not int or type(rows) is not int:
        raise InvalidArgument("give `columns` and `rows` as numbers, nothing else", argument="columns")
    await control_of(request).outputs.resize(caller_of(request), *_command(request), columns=columns, rows=rows)
    return json_response({"ok": True})


async def send_stdin(request: Request) -> Response:
    """Send the bytes of the body to the input of a running command, and with `end` its end of file.

    Judged and recorded like a call of the tool with the command. `offset` says which byte of the whole input the first
    one is: what was taken already is not taken again. The answer says how far the input has come (`taken`); a command
    that does not read is waited for ten seconds at most, so less may have been taken than was sent."""
    end = request.query_params.get("end", "false")
    if end not in ("true", "false"):
        raise InvalidArgument("`end` is neither `true` nor `false`", argument="end")
    offset = number_of(request, "offset", None)
    if offset is not None and offset < 0:
        raise InvalidArgument("`offset` is negative", argument="offset")
    sandbox_id, command_id = _command(request)
    state = await control_of(request).gate.send_input(
        caller_of(request),
        sandbox_id,
        command_id,
        await read_body(request, MOST_SENT_BYTES),
        offset=offset,
        end=end == "true",
        session_id=session_of(request),
    )
    return json_response(state)


async def change_limits(request: Request, limits: NewLimits) -> Changed:
    """Raise or lower limits of a running command, each counted from its start; one that is over already acts at once."""
    await control_of(request).outputs.change_limits(caller_of(request), *_command(request), **limits.model_dump())
    return Changed()


async def list_shells(request: Request) -> list[ShellInfo]:
    """Shell sessions of the sandbox, each with the command that runs in it."""
    return await control_of(request).outputs.shells(caller_of(request), request.path_params["sandbox_id"])


async def end_shell(request: Request) -> Changed:
    """Forget a shell session: the next command of that name begins anew."""
    names = request.path_params
    await control_of(request).outputs.end_shell(caller_of(request), names["sandbox_id"], names["name"])
    return Changed()


async def list_ports(request: Request) -> list[ProcessInfo]:
    """Processes that listen at a port, with their ports and the command that they belong to."""
    return await control_of(request).outputs.ports(caller_of(request), request.path_params["sandbox_id"])


def _command(request: Request) -> tuple[str, str]:
    return request.path_params["sandbox_id"], request.path_params["command_id"]


_PLACE = (
    ("offset", "integer", "Place of the first byte in the whole input; by default, behind all that was taken."),
    ("end", "boolean", "Nothing comes behind it."),
)
_WHOSE = (("Coldframe-Session", "Session whose label counts; the sandbox's own by default."),)
_LIST = "/v1/sandboxes/{sandbox_id}/commands"
_ONE = _LIST + "/{command_id}"
_STREAM = ("stream", "string", "`stdout` or `stderr`.")
_WINDOW = (("offset", "integer", "First byte wanted."), ("length", "integer", f"At most {WINDOW_BYTES}."))
_SIGNAL = {
    "application/json": {
        "schema": {"type": "object", "properties": {"signal": {"type": "integer"}, "cancel": {"type": "boolean"}}}
    }
}
_SIZE = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["columns", "rows"],
            "properties": {"columns": {"type": "integer"}, "rows": {"type": "integer"}},
        }
    }
}
ROUTES = (
    RawRoute("GET", _LIST, list_commands, "Commands of a sandbox", list_of(CommandInfo)),
    RawRoute(
        "GET",
        _ONE,
        get_command,
        "One command",
        answer_of(CommandInfo),
        query=(("wait_s", "integer", f"Wait so long for its end, at most {MOST_WAIT_S}."),),
    ),
    RawRoute("GET", _ONE + "/output", read_output, "Raw output", BYTES, query=(_STREAM, *_WINDOW)),
    RawRoute(
        "GET",
        _ONE + "/events",
        follow_command,
        "Follow a command",
        EVENTS,
        query=(("after_seq", "integer", "Sequence number of the last chunk seen; -1 for all."),),
    ),
    RawRoute("POST", _ONE + "/signal", signal_command, "Signal a command", JSON_DONE, body=_SIGNAL),
    RawRoute(
        "POST",
        _ONE + "/stdin",
        send_stdin,
        "Send input to a command",
        answer_of(InputState),
        body=BYTES,
        query=_PLACE,
        headers=_WHOSE,
    ),
    JsonRoute("POST", _ONE + "/limits", change_limits, Changed, body=NewLimits),
    JsonRoute("GET", "/v1/sandboxes/{sandbox_id}/shells", list_shells, list[ShellInfo]),
    JsonRoute("DELETE", "/v1/sandboxes/{sandbox_id}/shells/{name}", end_shell, Changed),
    JsonRoute("GET", "/v1/sandboxes/{sandbox_id}/ports", list_ports, list[ProcessInfo]),
    RawRoute("POST", _ONE + "/resize", resize_terminal, "Resize a terminal", JSON_DONE, body=_SIZE),
)
