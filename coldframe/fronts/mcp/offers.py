"""The tools of this front: the gate's own, and what else a client needs around them, each declared beside its function.

A tool's answer is an object with a schema. One that failed is an answer as well, with `error` in place of the rest: clients
check what they get against the schema in either case, so every schema allows both.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import ValidationError

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument
from coldframe.contract.model import Model
from coldframe.control.control import Control
from coldframe.control.rights import may
from coldframe.fronts.mcp.answers import CallAnswer, of_model

A = TypeVar("A", bound=Model)
R = TypeVar("R", bound=Model)
MAX_FAULT_CHARACTERS = 80


@dataclass
class Asked:
    """One request as its tool or resource gets it, with what belongs to it beside its arguments."""

    control: Control
    caller: Caller
    operator_refuses: bool
    """No sandbox may ask for less than it was to have."""
    can_poll: bool = False
    """An answer may be a task, to be asked about later."""
    is_task: bool = False
    """If its command runs still, the answer is one."""
    call_off: Callable[[], Awaitable[None]] | None = None
    """Ends what was begun for it, as long as its client has no handle to do that itself."""


Run = Callable[[Asked, dict[str, Any]], Awaitable[CallAnswer]]


@dataclass(frozen=True)
class Offer:
    """One tool as clients see it."""

    name: str
    description: str
    make_input_schema: Callable[[], dict[str, Any]]
    make_output_schema: Callable[[], dict[str, Any]]
    run: Run
    right: str
    """Whoever may not do this is not told of the tool, and is refused if it calls it."""
    reads: bool = False
    destroys: bool = False
    repeats: bool = False
    """Called twice it does no more than called once."""
    passes_as: str | None = None
    """The tool of the gate that it calls. Where that is switched off, so is this."""

    @cached_property
    def listing(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.name.replace("_", " ").capitalize(),
            "description": self.description,
            "inputSchema": self.make_input_schema(),
            "outputSchema": self.make_output_schema(),
            "annotations": {
                "readOnlyHint": self.reads,
                "destructiveHint": self.destroys,
                "idempotentHint": self.reads or self.repeats,
                "openWorldHint": False,
            },
        }

    def is_for(self, caller: Caller) -> bool:
        return may(caller, self.right)


OFFERS: dict[str, Offer] = {}


def offer(
    *,
    arguments: type[A],
    answer: type[R],
    right: str,
    reads: bool = False,
    destroys: bool = False,
    repeats: bool = False,
) -> Callable[[Callable[[Asked, A], Awaitable[R]]], Callable[[Asked, A], Awaitable[R]]]:
    """Offer the function below as the tool of its name; its docstring is the published description."""

    def register(run: Callable[[Asked, A], Awaitable[R]]) -> Callable[[Asked, A], Awaitable[R]]:
        name = run.__name__

        async def checked_run(asked: Asked, given: dict[str, Any]) -> CallAnswer:
            return of_model(await run(asked, checked(name, arguments, given)))

        OFFERS[name] = Offer(
            name=name,
            description=" ".join((inspect.getdoc(run) or "").split()),
            make_input_schema=arguments.model_json_schema,
            make_output_schema=lambda: with_error(answer.model_json_schema(mode="serialization")),
            run=checked_run,
            right=right,
            reads=reads,
            destroys=destroys,
            repeats=repeats,
        )
        return run

    return register


def checked(name: str, kind: type[A], given: Mapping[str, Any]) -> A:
    """The arguments of the tool *name*. JSON types are taken at their word. Raises InvalidArgument."""
    try:
        return kind.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:MAX_FAULT_CHARACTERS] or "arguments"
        reason = first["msg"].removeprefix("Value error, ")
        known = sorted(kind.model_fields)
        raise InvalidArgument(
            f"`{where}` of `{name}`: {reason[:1].lower()}{reason[1:]}",
            hint=f"parameters are {', '.join(known)}",
            argument=where,
        ) from None


def with_error(schema: dict[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """*schema* of an answer, or an error in its place; *more* are properties that go along."""
    taken = schema.get("properties", {}).keys() & {"error", *(more or {})}
    assert not taken, f"an answer has a name that means something else here: {taken}"
    whole = {name: value for name, value in schema.items() if name not in ("additionalProperties", "required")}
    whole["properties"] = {**schema.get("properties", {}), **(more or {}), "error": ERROR_SCHEMA}
    needed = [*schema.get("required", ())]
    whole["anyOf"] = [{"required": [*needed, *(more or {})]}, {"required": ["error"]}]
    return whole


ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Why it was not done: a stable code, and what can be done next.",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "family": {"type": "string"},
        "retry": {"type": "string"},
        "hint": {"type": "string"},
        "facts": {"type": "object"},
        "next_actions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"op": {"type": "string"}, "args": {"type": "object"}, "effect": {"type": "string"}},
            },
        },
    },
    "required": ["code", "message", "next_actions"],
}
CALL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What the gate says of the call: its label, the decision, and the receipt that proves it.",
    "properties": {
        **{
            name: {"type": "string"}
            for name in ("call_id", "sandbox_id", "session_id", "label", "label_reason", "taint", "decision", "rule_id")
        },
        "receipt_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "degraded": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["call_id", "sandbox_id", "session_id", "label", "decision"],
}
