"""The fields that a rule may ask about, per hook: the documented context schema of the hooks.

A rule with a field that is not in this table is refused at load, so a rule can never be silently blind.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from coldframe.contract.policy import CallContext, CommandReading, Hook, Label, ResultContext, Role
from coldframe.policy import labels

Value = str | int | bool | Label | tuple[str, ...] | None
"""None: the call does not have this field, or nobody knows it."""

Kind = Literal["text", "texts", "label", "number", "flag", "program", "output"]


class Facts(NamedTuple):
    """What one evaluation looks at."""

    call: CallContext
    reading: CommandReading | None
    result: ResultContext | None = None
    output: bytes = b""


class FieldSpec(NamedTuple):
    """One row of the schema."""

    kind: Kind
    meaning: str
    value: Callable[[Facts], Value]
    choices: tuple[str, ...] = ()


def _runs_nothing(facts: Facts) -> bool:
    return facts.call.command is None and facts.call.argv is None


def _written(facts: Facts) -> Value:
    if facts.reading is None:
        return () if _runs_nothing(facts) else None
    return facts.reading.written_paths


def _certainty(facts: Facts) -> Value:
    if facts.reading is None:
        return "complete" if _runs_nothing(facts) else None
    return facts.reading.certainty


def _command(facts: Facts) -> Value:
    return "" if _runs_nothing(facts) else facts.call.command


_CALL: dict[str, FieldSpec] = {
    "tool": FieldSpec("text", "name of the tool", lambda f: f.call.tool),
    "agent_id": FieldSpec("text", "the agent whose sandbox it is", lambda f: f.call.agent_id),
    "session_id": FieldSpec("text", "the session", lambda f: f.call.session_id),
    "sandbox_id": FieldSpec("text", "the sandbox", lambda f: f.call.sandbox_id),
    "role": FieldSpec(
        "text", "role of the caller's token", lambda f: f.call.role.value, tuple(role.value for role in Role)
    ),
    "caller": FieldSpec("text", "surface and token, as `rest:tok_…`", lambda f: f.call.caller),
    "profile": FieldSpec("text", "profile of the sandbox", lambda f: f.call.profile),
    "taint": FieldSpec("label", "label of the session before the call", lambda f: labels.parse(f.call.taint)),
    "workspace_label": FieldSpec(
        "label", "high-water label of the files in view", lambda f: labels.parse(f.call.workspace_label)
    ),
    "command": FieldSpec("text", "command as text; empty for tools that run nothing", _command),
    "shell": FieldSpec("flag", "whether the command goes to a shell", lambda f: f.call.shell),
    "cwd": FieldSpec("text", "directory the command starts in, relative to the workspace", lambda f: f.call.cwd),
    "runtime": FieldSpec("text", "runtime that the tool starts", lambda f: f.call.runtime),
    "path": FieldSpec("text", "path argument of a file tool, relative to the workspace", lambda f: f.call.path),
    "program": FieldSpec(
        "program", "programs that the command would start, as entries like `git push`", lambda f: None
    ),
    "written_path": FieldSpec("texts", "targets of output redirections", _written),
    "certainty": FieldSpec(
        "text", "how much of the command could be read", _certainty, ("complete", "opaque", "unparsable")
    ),
}

_RESULT: dict[str, FieldSpec] = {
    "failed": FieldSpec("flag", "the tool answered with an error", lambda f: f.result.failed if f.result else None),
    "exit_code": FieldSpec("number", "exit code of the command", lambda f: f.result.exit_code if f.result else None),
    "signal": FieldSpec("number", "signal that ended it", lambda f: f.result.signal if f.result else None),
    "timed_out": FieldSpec("flag", "it ran into its time limit", lambda f: f.result.timed_out if f.result else None),
    "output_bytes": FieldSpec("number", "length of the output", lambda f: f.result.output_bytes if f.result else None),
    "reached": FieldSpec(
        "texts", "endpoints contacted, as `tcp:203.0.113.9:443`", lambda f: f.result.reached if f.result else None
    ),
    "output": FieldSpec("output", "the output itself, stdout and stderr", lambda f: None),
}

SCHEMA: dict[Hook, dict[str, FieldSpec]] = {
    Hook.PRE_TOOL_CALL: _CALL,
    Hook.POST_TOOL_RESPONSE: {**_CALL, **_RESULT},
}
"""Every hook with its fields."""
