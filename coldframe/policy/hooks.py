"""The hooks: one pure decision before a call, on its result, on what leaves a sandbox, and on the use of a credential.

Floor, deny list, settings and custom rules each give verdicts; the strictest verdict decides, and order in the file
only orders messages. Nothing here raises: whatever goes wrong is a refusal with POLICY_UNAVAILABLE.

Same context and same rules give the same decision, byte for byte: no clock, no random, no state. The label of a
result comes from rules and never from what the result says.
"""

import hashlib
from collections.abc import Collection, Iterable

from coldframe.contract.canonical import canonical, text_of
from coldframe.contract.model import Model
from coldframe.contract.policy import (
    CallContext,
    CommandReading,
    Decision,
    EgressContext,
    Hook,
    Label,
    Outcome,
    ResultContext,
    RuleVerdict,
    SecretContext,
)
from coldframe.policy import labels
from coldframe.policy.fields import Facts, ReachFacts
from coldframe.policy.floor import check_ceiling, check_clearance, check_floor, check_settings
from coldframe.policy.rules import Rule, RuleSet
from coldframe.policy.shell import read_argv, read_shell


def decide_call(context: CallContext, rules: RuleSet, *, tools: Collection[str] | None = None) -> Decision:
    """PRE_TOOL_CALL. `tools`: all tool names there are, if known; any other is then refused.

    If the context carries a command but no reading of it, the command is read here. Never raises.
    """
    try:
        facts = Facts(context, _reading(context))
        verdicts = [*check_floor(facts, tools), *check_settings(facts, rules)]
        for rule in rules.possible(Hook.PRE_TOOL_CALL, facts):
            verdicts.extend(_judge(rule, facts))
        for path in (*(() if context.from_path is None else (context.from_path,)), *context.more_paths):
            other = Facts(context.model_copy(update={"path": path}), _reading(context))
            for rule in rules.possible(Hook.PRE_TOOL_CALL, other):
                verdicts.extend(one for one in _judge(rule, other) if one not in verdicts)
        if (wider := _as_command(context)) is not None:
            command = Facts(wider, _reading(wider))
            verdicts.extend(one for one in check_settings(command, rules) if one not in verdicts)
            for rule in rules.possible(Hook.PRE_TOOL_CALL, command):
                verdicts.extend(one for one in _judge(rule, command) if one not in verdicts)
        if (over := check_ceiling(context, verdicts)) is not None:
            verdicts.append(over)
        return _join(Hook.PRE_TOOL_CALL, verdicts, rules, context)
    except Exception:  # noqa: BLE001 - the edge of judgement: what cannot be judged is refused
        return _unavailable(Hook.PRE_TOOL_CALL, rules, context)


def decide_result(context: ResultContext, output: bytes, rules: RuleSet) -> Decision:
    """POST_TOOL_RESPONSE. A refusal means that the result is withheld. Never raises."""
    try:
        facts = Facts(context.call, _reading(context.call), context, output)
        verdicts: list[RuleVerdict] = []
        for rule in rules.possible(Hook.POST_TOOL_RESPONSE, facts):
            verdicts.extend(_judge(rule, facts))
        if (wider := _as_command(context.call)) is not None:
            command = Facts(wider, _reading(wider), context, output)
            for rule in rules.possible(Hook.POST_TOOL_RESPONSE, command):
                verdicts.extend(one for one in _judge(rule, command) if one not in verdicts)
        if (over := check_ceiling(context.call, verdicts)) is not None:
            verdicts.append(over)
        return _join(Hook.POST_TOOL_RESPONSE, verdicts, rules, context)
    except Exception:  # noqa: BLE001 - the edge of judgement: what cannot be judged is refused
        return _unavailable(Hook.POST_TOOL_RESPONSE, rules, context)


def _as_command(context: CallContext) -> CallContext | None:
    """Of a code cell, the command that does the same: what rules say of commands holds for it as well."""
    return context.model_copy(update={"tool": "run_command"}) if context.tool == "run_code" else None


def decide_egress(context: EgressContext, rules: RuleSet, *, later: Collection[str] = ()) -> Decision:
    """NETWORK_EGRESS. `later`: fields that are not known yet and will be; rules about them are asked then. Never raises."""
    return _decide_reach(Hook.NETWORK_EGRESS, context, rules, later)


def decide_secret(context: SecretContext, rules: RuleSet) -> Decision:
    """SECRET_ACCESS. Never raises."""
    return _decide_reach(Hook.SECRET_ACCESS, context, rules, ())


def _decide_reach(
    hook: Hook, context: EgressContext | SecretContext, rules: RuleSet, later: Collection[str]
) -> Decision:
    try:
        facts = ReachFacts(context)
        verdicts: list[RuleVerdict] = []
        for rule in rules.possible(hook, facts):
            if not any(condition.field in later for condition in rule.conditions):
                verdicts.extend(_judge(rule, facts))
        return _join(hook, verdicts, rules, context)
    except Exception:  # noqa: BLE001 - the edge of judgement: what cannot be judged is refused
        return _unavailable(hook, rules, context)


def reads_output(rules: RuleSet) -> bool:
    """Whether output has to be held back until it is complete.

    So it is with any rule of POST_TOOL_RESPONSE that can refuse or ask: each may look at how the call ended.
    """
    return rules.holds_output


def context_sha256(context: Model) -> str:
    """Digest of the canonical JSON of a context: sorted keys, no blanks, ASCII."""
    return hashlib.sha256(_text_of(context).encode("ascii")).hexdigest()


def _text_of(context: Model) -> str:
    if isinstance(context, CallContext):
        return text_of(context)
    if isinstance(context, ResultContext):
        return text_of(context, "call")
    return canonical(context.model_dump())


def _reading(call: CallContext) -> CommandReading | None:
    if call.reading is not None:
        return call.reading
    if call.argv is not None and not call.shell:
        return read_argv(call.argv)
    return read_shell(call.command) if call.command is not None else None


def _judge(rule: Rule, facts: Facts | ReachFacts) -> Iterable[RuleVerdict]:
    """A field that is missing counts as matching where that restricts, and as not matching where it would allow."""
    certain = True
    for condition in rule.conditions:
        answer = condition.test(facts)
        if answer is False:
            return
        certain = certain and answer is True
    clearance = check_clearance(facts, rule) if isinstance(facts, Facts) else None
    if clearance is not None:
        yield clearance
    outcome = rule.outcome or Outcome.ALLOW
    if outcome is Outcome.ALLOW and not certain and rule.label is None and not rule.snapshot:
        return
    if rule.outcome is None and rule.label is None and not rule.snapshot:
        return
    yield RuleVerdict(
        rule_id=rule.id,
        outcome=outcome,
        reason=rule.reason,
        code=_CODES[outcome],
        label=rule.label,
        snapshot=rule.snapshot,
    )


_CODES = {Outcome.ALLOW: "", Outcome.ASK: "PENDING_APPROVAL", Outcome.DENY: "DENIED_BY_RULE"}


def _join(hook: Hook, verdicts: list[RuleVerdict], rules: RuleSet, context: Model) -> Decision:
    strictest = max((verdict.outcome.strictness for verdict in verdicts), default=-1)
    deciding = next((verdict for verdict in verdicts if verdict.outcome.strictness == strictest), None)
    return Decision(
        hook=hook,
        outcome=deciding.outcome if deciding else Outcome.ALLOW,
        rule_id=deciding.rule_id if deciding else "default",
        reason=deciding.reason if deciding else "no rule has anything against it",
        code=(deciding.code or None) if deciding else None,
        label=labels.join(*(verdict.label for verdict in verdicts if verdict.label is not None)),
        verdicts=tuple(verdicts),
        rules_sha256=rules.sha256,
        context_sha256=context_sha256(context),
    )


def _unavailable(hook: Hook, rules: RuleSet, context: Model) -> Decision:
    try:
        digest = context_sha256(context)
    except Exception:  # noqa: BLE001 - a context that cannot even be hashed is still refused
        digest = ""
    sha256 = getattr(rules, "sha256", "")
    return Decision(
        hook=hook,
        outcome=Outcome.DENY,
        rule_id="floor:unavailable",
        reason="it could not be judged",
        code="POLICY_UNAVAILABLE",
        label=Label.RESTRICTED,
        rules_sha256=sha256 if isinstance(sha256, str) else "",
        context_sha256=digest,
    )
