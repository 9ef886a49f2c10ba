"""Judging a call: the context that rules see, and the two questions the gate asks of policy.

Here, and not in the gate, because the list of allowed operations is answered by these very functions: what
it says and what happens on the real call cannot drift apart. Whatever goes wrong while judging is a refusal.
"""

import hashlib
import json
import shlex
from collections.abc import Callable
from typing import Any

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    DeniedByRule,
    GrantMissing,
    PendingApproval,
    PolicyUnavailable,
    Refused,
    UnknownTool,
    catalogue,
    next_action,
)
from coldframe.contract.policy import CallContext, Decision, Hook, Label, Outcome, ResultContext
from coldframe.contract.profile import require_act, require_tool
from coldframe.contract.sandbox import ENDED, WITH_BOX, SandboxInfo
from coldframe.contract.tool import AllowedOperation
from coldframe.control.rights import PERMISSIONS, require, right_to_call
from coldframe.policy.hooks import decide_call, decide_result, reads_output
from coldframe.policy.rules import RuleSet, denies_shell
from coldframe.policy.shell import read_argv, read_shell
from coldframe.tools.registry import JUDGED_CAP_BYTES, Arguments, CallFacts, ToolSpec, all_tools

UNJUDGED_RULE = "floor:output-too-large-to-judge"
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, check_circular=False)


def digest_of(value: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of *value*."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()


def build_context(
    caller: Caller,
    info: SandboxInfo,
    session_id: str,
    taint: Label,
    tool: str,
    facts: CallFacts,
    arguments_sha256: str,
) -> CallContext:
    """Return all that PRE_TOOL_CALL rules see of a call. Nothing in it comes from inside the box."""
    reading = None
    command = facts.command
    if facts.argv is not None:
        reading = read_argv(facts.argv)
        command = shlex.join(facts.argv)
    elif facts.command is not None:
        reading = read_shell(facts.command)
        if facts.shell_session is not None and reading.certainty == "complete":
            why = "a shell session may give words another meaning"
            reading = reading.model_copy(update={"certainty": "opaque", "opaque_because": (why,)})
    return CallContext(
        tool=tool,
        agent_id=info.agent_id or "background",
        session_id=session_id,
        sandbox_id=info.sandbox_id,
        role=caller.role,
        caller=caller.name,
        profile=info.spec.profile,
        taint=taint,
        workspace_label=info.workspace_label,
        command=command,
        argv=facts.argv,
        shell=facts.command is not None,
        reading=reading,
        cwd=facts.cwd,
        runtime=facts.runtime,
        user=facts.user,
        box_runtimes=info.spec.runtimes,
        box_denies_shell=denies_shell(info.spec.denied_programs),
        path=facts.path,
        from_path=facts.from_path,
        more_paths=facts.more_paths,
        ceiling=info.spec.ceiling,
        arguments_sha256=arguments_sha256,
    )


def judge_call(context: CallContext, rules: RuleSet) -> Decision:
    """Ask PRE_TOOL_CALL.

    Raises:
        PolicyUnavailable: the engine failed, so nothing may run.
    """
    return _judged(Hook.PRE_TOOL_CALL, lambda: decide_call(context, rules))


def judge_result(context: ResultContext, output: bytes, rules: RuleSet) -> Decision:
    """Ask POST_TOOL_RESPONSE. *output* may be empty if no rule reads output.

    Output that is too large to be judged whole is denied where some rule reads output: a rule that has seen
    a part of it has not seen it.

    Raises:
        PolicyUnavailable: the engine failed, so the result may not be delivered.
    """
    decision = _judged(Hook.POST_TOOL_RESPONSE, lambda: decide_result(context, output, rules))
    if (
        judges_output(rules, context.call.tool)
        and context.output_bytes > JUDGED_CAP_BYTES
        and decision.outcome is Outcome.ALLOW
    ):
        return decision.model_copy(
            update={
                "outcome": Outcome.DENY,
                "rule_id": UNJUDGED_RULE,
                "code": "DENIED_BY_RULE",
                "reason": f"a rule reads output, and this is more than the {JUDGED_CAP_BYTES} bytes it can be asked about",
            }
        )
    return decision


def judges_output(rules: RuleSet, tool: str) -> bool:
    """Whether some rule looks at what *tool* gives, so that the content is needed to judge and to replay."""
    return any(rule.reads_output for rule in rules.candidates(Hook.POST_TOOL_RESPONSE, tool))


def holds_back(rules: RuleSet, tool: str) -> bool:
    """Whether some rule is about results of *tool*, so that nothing of one may go out before it is judged.

    More than policy's own `reads_output` asks for: a rule that only labels counts too, since the label has to
    be in force before the first byte is delivered.
    """
    return reads_output(rules) or any(True for _ in rules.candidates(Hook.POST_TOOL_RESPONSE, tool))


def refusal_of(decision: Decision) -> ColdframeError:
    """Return the typed error that a decision other than *allow* is told as."""
    listing = next_action("sandbox.allowed", "lists what the gate allows in this sandbox")
    if decision.outcome is Outcome.ASK:
        return PendingApproval(decision.reason, next_actions=[listing])
    found = catalogue().get(decision.code or "", DeniedByRule)
    return (found if issubclass(found, Refused | PolicyUnavailable | UnknownTool) else DeniedByRule)(
        decision.reason, next_actions=[listing]
    )


def _judged(hook: Hook, ask: Callable[[], Decision]) -> Decision:
    try:
        decision = ask()
    except Exception as error:  # whatever it is, a gate that cannot judge refuses
        raise PolicyUnavailable(
            f"{hook.value} could not be judged: {type(error).__name__}", hook=hook.value, error=type(error).__name__
        ) from error
    if not isinstance(decision, Decision) or decision.hook is not hook:
        raise PolicyUnavailable(f"{hook.value} gave no decision", hook=hook.value)
    return decision


JUDGED_ACTS = {
    "receipt.replay": "replay_call",
    "sandbox.promote": "promote_sandbox",
    "sandbox.reset": "reset_sandbox",
    "snapshot.export": "export_snapshot",
    "snapshot.take": "take_snapshot",
}
"""Rights whose acts rules are asked about, and what they are called there. `fork_sandbox` is one more, whose right is that of
creation."""

_SAMPLES: dict[str, tuple[tuple[str, dict[str, Any], str], ...]] = {
    "write_file": (("", {"path": "scratch/a.txt", "content": ""}, "below the workspace"),),
    "read_file": (("", {"path": "scratch/a.txt"}, "below the workspace"),),
    "edit_file": (("", {"path": "scratch/a.txt", "old": "a", "new": "b"}, "below the workspace"),),
    "list_directory": (("", {"path": "scratch"}, "below the workspace"),),
    "search_files": (("", {"pattern": "a", "path": "scratch"}, "below the workspace"),),
    "run_command": (
        ("", {"command": ["true"]}, "a program that no list names"),
        (":shell", {"command": "true"}, "a shell line of programs that no list names"),
        (":opaque", {"command": 'eval "$x"'}, "a program that is only known at run time"),
        (":privilege", {"command": "sudo true"}, "gaining rights of another user"),
        (":destroy", {"command": "rm -rf /"}, "removing the root of the file system"),
        (":device", {"command": "mkfs.ext4 /dev/sda"}, "writing file systems to devices"),
        (":power", {"command": "shutdown now"}, "stopping the machine"),
    ),
}
"""Representative calls of each tool: suffix of the operation, arguments, condition in words."""


def sample_arguments(operation: str) -> dict[str, Any]:
    """Return the arguments of the representative call that `tool.NAME` or `tool.NAME:KIND` stands for."""
    name, _, kind = operation.removeprefix("tool.").partition(":")
    return next(arguments for suffix, arguments, _ in _SAMPLES[name] if suffix.lstrip(":") == kind)


def allowed_operations(caller: Caller, info: SandboxInfo, taint: Label, rules: RuleSet) -> list[AllowedOperation]:
    """Return what the gate would answer now, by asking it about a representative call of every operation.

    What is not listed is denied.
    """
    found = []
    for operation in sorted(PERMISSIONS):
        right = _by_right(caller, operation)
        asks_rules = operation in JUDGED_ACTS and right.answer == "allow"
        found.append(_of_act(caller, info, taint, rules, right) if asks_rules else right)
    for name, spec in all_tools().items():
        for suffix, raw, condition in _SAMPLES.get(name, ()):
            found.append(_by_rule(caller, info, taint, rules, name, spec.check(raw), raw, suffix, condition))
    return found


def discovered_operations(caller: Caller, info: SandboxInfo, taint: Label, rules: RuleSet) -> list[AllowedOperation]:
    """Return the same for whoever asks what there is: a tool that is switched off for it is not there at all."""
    offered = offered_tools(rules, caller.role.value, info.agent_id or "background")
    hidden = {f"tool.{name}" for name in all_tools() if name not in offered}
    found = allowed_operations(caller, info, taint, rules)
    return [one for one in found if one.operation.partition(":")[0] not in hidden]


def offered_tools(rules: RuleSet, *whom: str) -> dict[str, ToolSpec]:
    """Return the tools that are not switched off for any of *whom*: a role, an agent id."""
    return {name: spec for name, spec in all_tools().items() if rules.disabled(name, *whom) is None}


def _by_right(caller: Caller, operation: str) -> AllowedOperation:
    try:
        require(caller, operation)
    except GrantMissing as error:
        return AllowedOperation(operation=operation, answer="deny", condition=error.message, rule_id="role")
    return AllowedOperation(operation=operation, answer="allow", rule_id="role")


def _of_act(
    caller: Caller, info: SandboxInfo, taint: Label, rules: RuleSet, right: AllowedOperation
) -> AllowedOperation:
    act = JUDGED_ACTS[right.operation]
    try:
        require_act(info.spec.profile, act)
        decision = judge_call(
            build_context(caller, info, info.session_id, taint, act, CallFacts(), digest_of({})), rules
        )
    except ColdframeError as error:
        return right.model_copy(update={"answer": "deny", "condition": error.message, "rule_id": error.code})
    if decision.rule_id == "default":
        return right
    return right.model_copy(update={"answer": decision.outcome.value, "rule_id": decision.rule_id})


def _can_answer(info: SandboxInfo, spec: ToolSpec) -> bool:
    """Files are read also where nothing runs, of a temporary workspace as long as there is one."""
    state = info.state.state
    if state == "running" or spec.writes:
        return state == "running"
    return state in (*WITH_BOX, "stopped") or (state in ENDED and info.agent_id is not None)


def _by_rule(
    caller: Caller,
    info: SandboxInfo,
    taint: Label,
    rules: RuleSet,
    name: str,
    arguments: Arguments,
    raw: dict[str, Any],
    suffix: str,
    condition: str,
) -> AllowedOperation:
    operation = f"tool.{name}{suffix}"
    if not _can_answer(info, all_tools()[name]):
        stopped = f"the sandbox is {info.state.state}"
        return AllowedOperation(operation=operation, answer="deny", condition=stopped, rule_id="state")
    try:
        require(caller, right_to_call(name))
        require_tool(info.spec.profile, name)
        context = build_context(caller, info, info.session_id, taint, name, arguments.facts(), digest_of(raw))
        decision = judge_call(context, rules)
    except ColdframeError as error:
        return AllowedOperation(
            operation=operation, answer="deny", condition=f"{condition}: {error.message}", rule_id=error.code
        )
    return AllowedOperation(
        operation=operation, answer=decision.outcome.value, condition=condition, rule_id=decision.rule_id
    )
