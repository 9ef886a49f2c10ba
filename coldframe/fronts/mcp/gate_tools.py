"""The tools that pass the gate, under their published names, with two arguments more: which sandbox, and how long to wait."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from coldframe.contract.errors import InvalidArgument
from coldframe.control.rights import right_to_call
from coldframe.fronts.mcp.answers import CallAnswer, of_result
from coldframe.fronts.mcp.choice import choose_sandbox
from coldframe.fronts.mcp.offers import CALL_SCHEMA, Asked, Offer, with_error
from coldframe.tools.registry import ToolSpec, all_tools

WAIT_S = 45.0
"""How long a call of a command waits for its end, if its client cannot ask later by itself: most give up after a minute."""
POLLED_WAIT_S = 2.0
"""The same for a client that can."""
LONGEST_WAIT_S = 3600.0
SIGTERM = 15
NOTHING: Mapping[str, str] = MappingProxyType({})
_OWN: dict[str, dict[str, Any]] = {
    "sandbox_id": {
        "type": "string",
        "description": "Which sandbox; by default that of `workspace`, or the only one that runs.",
    },
    "workspace": {"type": "string", "description": "In place of `sandbox_id`: the newest that runs on this workspace."},
}
_WAIT = {
    "type": "number",
    "minimum": 0,
    "maximum": LONGEST_WAIT_S,
    "description": f"Seconds to wait for its end, {WAIT_S:g} by default. A command that takes longer goes on as a job, and the "
    "answer has its `command_id`.",
}


def gate_offer(spec: ToolSpec) -> Offer:
    waits = spec.name == "run_command"

    async def run(asked: Asked, given: dict[str, Any]) -> CallAnswer:
        return await call_gate(asked, spec.name, given, waits=waits)

    return Offer(
        name=spec.name,
        description=spec.description,
        make_input_schema=lambda: gate_input_schema(spec, {"wait_s": _WAIT} if waits else {}),
        make_output_schema=lambda: answer_schema(spec),
        run=run,
        right=right_to_call(spec.name),
        reads=not spec.writes,
        destroys=spec.writes,
        passes_as=spec.name,
    )


def gate_input_schema(spec: ToolSpec, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Of a tool's arguments, and of those that say where."""
    schema = spec.info.input_schema
    return {**schema, "properties": {**schema.get("properties", {}), **_OWN, **(more or {})}}


def answer_schema(spec: ToolSpec, renamed: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Of the tool's own answer, with `call`. The transcript of a command says what its streams say, and is left out."""
    schema = spec.info.output_schema
    properties = {
        renamed.get(name, name): value for name, value in schema.get("properties", {}).items() if name != "transcript"
    }
    needed = [renamed.get(name, name) for name in schema.get("required", ()) if name != "transcript"]
    return with_error({**schema, "properties": properties, "required": needed}, {"call": CALL_SCHEMA})


async def call_gate(asked: Asked, tool: str, given: dict[str, Any], *, waits: bool) -> CallAnswer:
    """Call *tool* in the sandbox that *given* names beside its arguments."""
    arguments = dict(given)
    sandbox_id, workspace = _text(arguments, "sandbox_id"), _text(arguments, "workspace")
    within_s = None
    if waits:
        asked.is_task = asked.can_poll and "wait_s" not in arguments and not arguments.get("background")
        within_s = _wait(arguments, POLLED_WAIT_S if asked.is_task else WAIT_S)
    chosen = choose_sandbox(asked.control, asked.caller, sandbox_id, workspace)

    def begun(command_id: str) -> None:
        asked.call_off = lambda: asked.control.outputs.signal(asked.caller, chosen, command_id, SIGTERM, cancel=True)

    result = await asked.control.gate.call(
        asked.caller, chosen, tool, arguments, within_s=within_s, admitted=begun if waits else None
    )
    asked.call_off = None  # from here on it is a job, or over
    return of_result(result)


def switched_off(asked: Asked) -> Callable[[Offer], bool]:
    """Whether rules take a tool from this caller."""
    caller = asked.caller
    whom = [caller.role.value, *([caller.agent_id] if caller.agent_id is not None else [])]
    rules = asked.control.rulebook.current
    return lambda one: one.passes_as is not None and rules.disabled(one.passes_as, *whom) is not None


_GATE_OFFERS: dict[str, Offer] = {}


def gate_offers() -> dict[str, Offer]:
    if not _GATE_OFFERS:
        _GATE_OFFERS.update({name: gate_offer(spec) for name, spec in all_tools().items()})
    return _GATE_OFFERS


def _text(arguments: dict[str, Any], name: str) -> str | None:
    value = arguments.pop(name, None)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"`{name}` is not a text", argument=name)
    return value


def _wait(arguments: dict[str, Any], default_s: float) -> float:
    value = arguments.pop("wait_s", None)
    if value is None:
        return default_s
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_WAIT_S:
        raise InvalidArgument(f"`wait_s` is a number from 0 to {LONGEST_WAIT_S:g}", argument="wait_s")
    return float(value)
