"""The fields that a rule may ask about, per hook: the documented context schema of the hooks.

A rule with a field that is not in this table is refused at load, so a rule can never be silently blind.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from coldframe.contract.policy import (
    CallContext,
    CommandReading,
    EgressContext,
    Hook,
    Label,
    ResultContext,
    Role,
    SecretContext,
)
from coldframe.contract.profile import PROFILES
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


class ReachFacts(NamedTuple):
    """The same at the hooks of what leaves a sandbox."""

    reach: EgressContext | SecretContext


class FieldSpec(NamedTuple):
    """One row of the schema."""

    kind: Kind
    meaning: str
    value: Callable[[Any], Value]
    """Of the facts that its hook has."""
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


def _user(facts: Facts) -> Value:
    """Of a command; each ran as `user` before another could be asked for."""
    return "" if _runs_nothing(facts) else facts.call.user or "user"


def _of_reach(name: str) -> Callable[[ReachFacts], Value]:
    def value(facts: ReachFacts) -> Value:
        found: Value = getattr(facts.reach, name)
        return found

    return value


def _label_of_reach(name: str) -> Callable[[ReachFacts], Value]:
    return lambda facts: labels.parse(getattr(facts.reach, name))


_CALL: dict[str, FieldSpec] = {
    "tool": FieldSpec("text", "name of the tool", lambda f: f.call.tool),
    "agent_id": FieldSpec("text", "the agent whose sandbox it is", lambda f: f.call.agent_id),
    "session_id": FieldSpec("text", "the session", lambda f: f.call.session_id),
    "sandbox_id": FieldSpec("text", "the sandbox", lambda f: f.call.sandbox_id),
    "role": FieldSpec(
        "text", "role of the caller's token", lambda f: f.call.role.value, tuple(role.value for role in Role)
    ),
    "caller": FieldSpec("text", "surface and token, as `rest:tok_…`", lambda f: f.call.caller),
    "profile": FieldSpec("text", "profile of the sandbox", lambda f: f.call.profile, PROFILES),
    "taint": FieldSpec("label", "label of the session before the call", lambda f: labels.parse(f.call.taint)),
    "workspace_label": FieldSpec(
        "label", "high-water label of the files in view", lambda f: labels.parse(f.call.workspace_label)
    ),
    "command": FieldSpec("text", "command as text; empty for tools that run nothing", _command),
    "shell": FieldSpec("flag", "whether the command goes to a shell", lambda f: f.call.shell),
    "cwd": FieldSpec("text", "directory the command starts in, relative to the workspace", lambda f: f.call.cwd),
    "runtime": FieldSpec("text", "runtime that the tool starts", lambda f: f.call.runtime),
    "user": FieldSpec("text", "whom a command is to run as, `user` or `root`", _user),
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

_REACH: dict[str, FieldSpec] = {
    "sandbox_id": FieldSpec("text", "the sandbox", _of_reach("sandbox_id")),
    "agent_id": FieldSpec("text", "the agent whose sandbox it is", _of_reach("agent_id")),
    "taint": FieldSpec("label", "label of the session", _label_of_reach("taint")),
    "port": FieldSpec("number", "port", _of_reach("port")),
}

_EGRESS: dict[str, FieldSpec] = {
    **_REACH,
    "role": FieldSpec(
        "text", "role of whoever made the sandbox", _of_reach("role"), tuple(role.value for role in Role)
    ),
    "name": FieldSpec("text", "name of the destination; empty for an address", _of_reach("name")),
    "address": FieldSpec("text", "address that the program chose; empty for a name", _of_reach("address")),
    "scheme": FieldSpec("text", "what is spoken", _of_reach("scheme"), ("https", "http", "tcp")),
    "mode": FieldSpec("text", "how much is looked at", _of_reach("mode"), ("sni", "intercept", "raw")),
    "method": FieldSpec("texts", "method of the request, for `HEAD` also `GET`", _of_reach("methods")),
    "path": FieldSpec("texts", "path of the request, as written and in small letters", _of_reach("paths")),
    "label": FieldSpec("label", "label of the destination by the network rules", _label_of_reach("label")),
}

OF_REQUESTS = frozenset({"method", "path", "label"})
"""Fields of NETWORK_EGRESS that a connection does not have yet where its requests are read."""

_SECRET: dict[str, FieldSpec] = {
    **_REACH,
    "session_id": FieldSpec("text", "the session", _of_reach("session_id")),
    "credential": FieldSpec("text", "name of the credential", _of_reach("credential")),
    "production": FieldSpec("flag", "whether it is one of production", _of_reach("production")),
    "purpose": FieldSpec("text", "what the credential was added for", _of_reach("purpose")),
    "name": FieldSpec("text", "name of the service", _of_reach("name")),
    "method": FieldSpec("text", "method of the request", _of_reach("method")),
    "path": FieldSpec("texts", "path of the request, as written and in small letters", _of_reach("paths")),
    "label": FieldSpec("label", "label of the credential", _label_of_reach("label")),
    "uses": FieldSpec("number", "how often it was used before", _of_reach("uses")),
}

SCHEMA: dict[Hook, dict[str, FieldSpec]] = {
    Hook.PRE_TOOL_CALL: _CALL,
    Hook.POST_TOOL_RESPONSE: {**_CALL, **_RESULT},
    Hook.NETWORK_EGRESS: _EGRESS,
    Hook.SECRET_ACCESS: _SECRET,
}
"""Every hook with its fields."""
