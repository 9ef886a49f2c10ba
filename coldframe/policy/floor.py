"""The floor: rules that are code. No file, setting or person can remove, shadow or outrank them.

Each answers a verdict of its own beside all others, and the strictest wins, so there is no priority to overbid.
The default deny list (`denylist.py`) stands here too; custom rules only ever add verdicts.
"""

import re
from collections.abc import Collection, Iterable, Iterator

from coldframe.contract.policy import CallContext, CommandReading, Outcome, RuleVerdict
from coldframe.policy import labels
from coldframe.policy.denylist import OF_A_ROOT, Finding, find_denied
from coldframe.policy.fields import Facts
from coldframe.policy.matching import allows, match
from coldframe.policy.rules import Rule, RuleSet
from coldframe.policy.wrappers import BUILTINS

_TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

READING_TOOLS = frozenset({"list_directory", "read_file", "search_files", "stat_path", "watch_path"})
"""Tools that write nowhere, so that no clearance of a place concerns them."""


def check_floor(facts: Facts, tools: Collection[str] | None) -> Iterator[RuleVerdict]:
    """Verdicts of the floor on one call. `tools`: names of all tools, if the caller of the hook knows them."""
    call = facts.call
    if not _TOOL_NAME.fullmatch(call.tool):
        yield _deny("floor:tools-only", f"`{call.tool}` is no tool, and calls are made of tools only", "UNKNOWN_TOOL")
    elif tools is not None and call.tool not in tools:
        yield _deny("floor:unknown-tool", f"there is no tool `{call.tool}`", "UNKNOWN_TOOL")
    if facts.reading is not None:
        finding = _find_denied(facts.reading, call)
        if finding is not None and finding.certain:
            yield _deny(finding.entry, finding.reason)


def check_clearance(facts: Facts, rule: Rule) -> RuleVerdict | None:
    """No write-down: data of the session may not go to a place that `rule` clears for less."""
    if rule.target_label is None or facts.call.tool in READING_TOOLS:
        return None
    taint = labels.parse(facts.call.taint)
    if labels.may_flow(taint, rule.target_label):
        return None
    return _deny(
        "floor:write-down",
        f"the session is {taint}, and rule `{rule.id}` clears the target for {rule.target_label} only",
    )


def check_ceiling(call: CallContext, verdicts: Iterable[RuleVerdict]) -> RuleVerdict | None:
    """Nothing above what the sandbox was made for: neither what its session or workspace is already, nor what rules have
    just labelled. Rules may hold it lower, and none can lift this."""
    if call.ceiling is None:
        return None
    given = (verdict.label for verdict in verdicts if verdict.label is not None)
    label = labels.join(labels.parse(call.taint), labels.parse(call.workspace_label), *given)
    if labels.may_flow(label, call.ceiling):
        return None
    return _deny("floor:ceiling", f"the sandbox was made for {call.ceiling} at most, and this is {label}")


def check_settings(facts: Facts, rules: RuleSet) -> Iterator[RuleVerdict]:
    """Verdicts of the switches of the rule file. They tighten; there is none that loosens."""
    call, settings = facts.call, rules.settings
    whom = rules.disabled(call.tool, call.role.value, call.agent_id)
    if whom is not None:
        yield _deny("settings:disabled_tools", f"`{call.tool}` is switched off for `{whom}`", "NOT_IN_PROFILE")
    reading = facts.reading
    if reading is None:
        return
    yield from _check_runtimes(facts, rules)
    if call.shell and (call.box_denies_shell or rules.denies_shell_of(call.agent_id)):
        whom = "this sandbox was made without" if call.box_denies_shell else "the rules deny"
        yield _deny("settings:shell", f"lines are run by `bash`, which {whom}: give program and arguments")
    if settings.ask_above is not None:
        label = labels.join(labels.parse(call.taint), labels.parse(call.workspace_label))
        if label.rank > settings.ask_above.rank:
            reason = (
                f"commands wait for a person above {settings.ask_above}, and this session or its workspace is {label}"
            )
            yield RuleVerdict(rule_id="settings:ask_above", outcome=Outcome.ASK, reason=reason, code="PENDING_APPROVAL")
    if settings.strict_parsing:
        yield from _check_strict(reading, call)
    for program in reading.programs:
        for entry in rules.deny_commands.about(program):
            verdict = match(entry, program)
            if verdict or (verdict is None and settings.strict_parsing):
                yield _deny("settings:deny_commands", f"`{program.name}` is on the deny list as `{entry.text}`")
    if rules.allow_programs.entries:
        yield from _check_allowed(reading, rules)


def _find_denied(reading: CommandReading, call: CallContext) -> Finding | None:
    is_root = call.user == "root" and call.profile == "computer"
    return find_denied(reading, call.cwd or "", spared=OF_A_ROOT if is_root else ())


def _check_strict(reading: CommandReading, call: CallContext) -> Iterator[RuleVerdict]:
    if reading.certainty == "unparsable":
        yield _deny("settings:strict_parsing", f"the command is no shell text from byte {reading.position} on")
    elif reading.certainty == "opaque":
        because = "; ".join(reading.opaque_because[:3])
        yield _deny("settings:strict_parsing", f"the command cannot be read to the end: {because}")
    finding = _find_denied(reading, call)
    if finding is not None and not finding.certain:
        yield _deny("settings:strict_parsing", f"{finding.reason}, depending on what is only known at run time")


def _check_runtimes(facts: Facts, rules: RuleSet) -> Iterator[RuleVerdict]:
    """A sandbox that has more runtimes than its agent may use runs nothing; else this says early what the box is for.

    What holds the restriction is how the box was built: it has no other programs, and nowhere to put one.
    """
    call, allowed = facts.call, rules.runtimes_of(facts.call.agent_id)
    box = call.box_runtimes
    if allowed is not None and (box is None or not set(box) <= set(allowed)):
        names = ", ".join(allowed) or "none"
        yield _deny("settings:runtimes", f"the runtimes are restricted ({names}) and this sandbox was made before that")
    elif box is not None:
        names = ", ".join(box) or "none"
        if call.shell:
            yield _deny(
                "settings:runtimes", f"there is no shell here; the runtimes are {names}: give program and arguments"
            )
        elif call.argv and call.argv[0] not in box:
            yield _deny("settings:runtimes", f"`{call.argv[0]}` is none of the runtimes that this sandbox has: {names}")


def _check_allowed(reading: CommandReading, rules: RuleSet) -> Iterator[RuleVerdict]:
    if reading.certainty != "complete":
        because = "; ".join(reading.opaque_because[:3]) or f"no shell text from byte {reading.position} on"
        yield _deny("settings:allow_programs", f"only listed programs may start, and this cannot be read: {because}")
    for program in reading.programs:
        if program.word in BUILTINS or any(allows(one, program) for one in rules.allow_programs.about(program)):
            continue
        yield _deny("settings:allow_programs", f"`{program.word}` is not among the allowed programs")


def _deny(rule_id: str, reason: str, code: str = "DENIED_BY_RULE") -> RuleVerdict:
    return RuleVerdict(rule_id=rule_id, outcome=Outcome.DENY, reason=reason, code=code)
