"""Tool calls: the one way in which an agent does anything."""

from starlette.requests import Request
from starlette.responses import Response

from coldframe.contract.tool import ToolInfo
from coldframe.control.judgement import offered_tools
from coldframe.fronts.answers import json_response, result_response
from coldframe.fronts.rest.request import caller_of, control_of, session_of
from coldframe.fronts.rest.schema import EVENTS, JSON_RESULT, PLAIN_JSON, RawRoute, list_of
from coldframe.fronts.streams import event_response, read_object, wants_events


async def call_tool(request: Request) -> Response:
    """Judge, record, run, record, and answer; or stream the events of a command while it runs."""
    control, caller = control_of(request), caller_of(request)
    sandbox_id, tool = request.path_params["sandbox_id"], request.path_params["tool"]
    arguments = await read_object(request)
    key = request.headers.get("idempotency-key")
    snapshot_id = request.query_params.get("snapshot") if request.scope["query_string"] else None
    if tool == "run_command" and wants_events(request) and snapshot_id is None:
        return await event_response(
            request,
            control.gate.stream(
                caller, sandbox_id, tool, arguments, session_id=session_of(request), idempotency_key=key
            ),
        )
    return result_response(
        await control.gate.call(
            caller,
            sandbox_id,
            tool,
            arguments,
            session_id=session_of(request),
            idempotency_key=key,
            snapshot_id=snapshot_id,
        )
    )


async def list_tools(request: Request) -> Response:
    """Every tool with the schemas of its arguments and answer, but those that are switched off for the caller."""
    caller, rules = caller_of(request), control_of(request).rulebook.current
    whom = [caller.role.value, *([caller.agent_id] if caller.agent_id is not None else [])]
    return json_response([spec.info for spec in offered_tools(rules, *whom).values()])


SNAPSHOT = ("snapshot", "string", "Read the files of this snapshot in place of those of the sandbox.")
ROUTES = (
    RawRoute("GET", "/v1/tools", list_tools, "Tools with their schemas", list_of(ToolInfo)),
    RawRoute(
        "POST",
        "/v1/sandboxes/{sandbox_id}/tools/{tool}",
        call_tool,
        "Call a tool",
        {**JSON_RESULT, **EVENTS},
        body=PLAIN_JSON,
        query=(SNAPSHOT,),
        headers=(
            ("Idempotency-Key", "A call with the same key is carried out at most once; the answer is the first one's."),
            ("Coldframe-Session", "Session whose label counts; the sandbox's own by default."),
        ),
    ),
)
