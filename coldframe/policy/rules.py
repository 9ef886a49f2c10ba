"""The rule file: typed YAML, checked as a whole at load, immutable afterwards.

    version: 1
    settings:
      deny_commands: ["git push", "npm publish *"]
      allow_programs: []
      strict_parsing: false
      disabled_tools: {viewer: [run_command]}
      limits: {agent-7: {memory_mib: 512}}
      runtimes: {agent-7: [deno]}
      ask_above: INTERNAL
    rules:
      - id: no-secrets
        hook: PRE_TOOL_CALL
        when: {tool: [read_file, write_file], path: {glob: "secrets/*"}}
        then: deny
        reason: this directory is for people

A file with any fault is refused whole, with the line. Rejected: expressions in conditions (CEL and the like): a
closed table of fields and operators can be checked at load, indexed, and explained.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from pydantic import ValidationError

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import AgentLimits, ExecSettings, Hook, Label, Outcome
from coldframe.policy.conditions import Condition, ConditionInvalid, compile_condition
from coldframe.policy.document import Tree, read_document
from coldframe.policy.fields import SCHEMA, Facts, ReachFacts
from coldframe.policy.index import RuleIndex
from coldframe.policy.matching import Entry, EntryList, parse_entry, whole_program
from coldframe.policy.network_rules import NetworkRules
from coldframe.policy.network_section import load_network

MAX_RULES = 10_000
RUNTIMES = ("deno",)
"""What `runtimes` can restrict a sandbox to: runtimes whose programs and libraries a box can be built from alone."""
EVERYBODY = "*"
MAX_TOOLS_KEPT = 64
MAX_AGENTS_KEPT = 256
MAX_NAME_CHARACTERS = 255
"""Of a program that is denied. No file has a longer name."""
SHELL = ("bash", "/bin/bash", "/usr/bin/bash")
"""Names of the program that runs lines."""

_RESERVED = ("floor:", "denylist:", "settings:", "default")
"""Beginnings of rule ids that belong to the product."""


class Rule(NamedTuple):
    """One custom rule, compiled."""

    id: str
    hook: Hook
    conditions: tuple[Condition, ...]
    outcome: Outcome | None
    """None for a rule that only labels."""
    label: Label | None
    target_label: Label | None
    """Clearance of the place that `when` describes; the floor keeps higher data out of it."""
    reason: str
    snapshot: bool = False
    """What it matches begins only after a snapshot was taken."""

    @property
    def key(self) -> frozenset[tuple[object, ...]]:
        """Equal for rules that match the same calls."""
        return frozenset(condition.key for condition in self.conditions)

    @property
    def reads_output(self) -> bool:
        return any(condition.field == "output" for condition in self.conditions)


class RuleSet:
    """A checked set. Immutable; equal texts have equal `sha256` and decide alike."""

    __slots__ = (
        "_by_hook",
        "_denials",
        "_indexes",
        "_of_tools",
        "allow_programs",
        "deny_commands",
        "holds_output",
        "network",
        "rules",
        "settings",
        "sha256",
        "text",
    )

    def __init__(
        self, text: str, settings: ExecSettings, rules: tuple[Rule, ...], network: NetworkRules | None = None
    ) -> None:
        put = object.__setattr__
        put(self, "text", text)
        put(self, "sha256", hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
        put(self, "settings", settings)
        put(self, "rules", rules)
        put(self, "network", network or NetworkRules())
        put(self, "deny_commands", _entries(settings.deny_commands))
        put(self, "allow_programs", _entries(settings.allow_programs))
        by_hook = {hook: tuple(rule for rule in rules if rule.hook is hook) for hook in Hook}
        put(self, "_by_hook", by_hook)
        put(
            self,
            "_indexes",
            {hook: RuleIndex(hook, [each.conditions for each in own]) for hook, own in by_hook.items()},
        )
        put(self, "_of_tools", {})
        put(self, "_denials", {})
        after = by_hook[Hook.POST_TOOL_RESPONSE]
        put(
            self,
            "holds_output",
            any(rule.reads_output or rule.outcome in (Outcome.DENY, Outcome.ASK) for rule in after),
        )

    text: str
    sha256: str
    settings: ExecSettings
    rules: tuple[Rule, ...]
    network: NetworkRules
    deny_commands: EntryList
    allow_programs: EntryList
    holds_output: bool
    """Whether some rule about results may refuse or ask, or looks at output."""
    _by_hook: dict[Hook, tuple[Rule, ...]]
    _indexes: dict[Hook, RuleIndex]
    _of_tools: dict[tuple[Hook, str], tuple[Rule, ...]]
    """Answers of `candidates`, kept for the tools that are asked for."""
    _denials: dict[str, "_Denials"]
    """What is denied to the agents that were asked for."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a rule set is immutable: `{name}`")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a rule set is immutable: `{name}`")

    def with_network(self, network: NetworkRules) -> "RuleSet":
        """The same with other network rules: text and digest stay those of the file."""
        return RuleSet(self.text, self.settings, self.rules, network)

    def limits_of(self, agent_id: str) -> dict[str, int]:
        """Limits that the settings put on an agent, the lower one where its own and those for everybody differ."""
        found: dict[str, int] = {}
        for whom in (agent_id, EVERYBODY):
            given = self.settings.limits.get(whom)
            for name, value in (given.model_dump(exclude_none=True) if given is not None else {}).items():
                found[name] = min(value, found.get(name, value))
        return found

    def runtimes_of(self, agent_id: str) -> tuple[str, ...] | None:
        """The only runtimes that sandboxes of an agent may have; None if nothing restricts them."""
        given = [self.settings.runtimes[whom] for whom in (agent_id, EVERYBODY) if whom in self.settings.runtimes]
        if not given:
            return None
        return tuple(name for name in given[0] if all(name in others for others in given))

    def denied_programs_of(self, agent_id: str) -> tuple[str, ...]:
        """Programs that an agent may not start with whatever arguments: names, absolute paths, patterns of these.

        From entries of `deny_commands` that are a program alone, and from rules that deny such with no other condition
        than the agent and the tool that runs commands.
        """
        return self._denials_of(agent_id).programs

    def denies_shell_of(self, agent_id: str) -> bool:
        """Whether the program that runs lines is among these."""
        return self._denials_of(agent_id).shell

    def _denials_of(self, agent_id: str) -> "_Denials":
        found = self._denials.get(agent_id)
        if found is None:
            if len(self._denials) >= MAX_AGENTS_KEPT:
                self._denials.clear()
            found = self._denials[agent_id] = self._find_denials(agent_id)
        return found

    def _find_denials(self, agent_id: str) -> "_Denials":
        entries = list(self.deny_commands.entries)
        words: dict[str, None] = {}
        for rule in self._by_hook[Hook.PRE_TOOL_CALL]:
            if rule.outcome is Outcome.DENY and _asks_for_program_alone(rule, agent_id):
                for condition in rule.conditions:
                    entries += condition.entries or ()
                    if condition.key[:2] == ("program", "glob") and "/" not in str(condition.key[2]):
                        words[str(condition.key[2])] = None
        words.update(dict.fromkeys(word for entry in entries if (word := whole_program(entry)) is not None))
        programs = tuple(word for word in words if word.isprintable() and len(word) <= MAX_NAME_CHARACTERS)
        return _Denials(programs, denies_shell(programs))

    def disabled(self, tool: str, *whom: str) -> str | None:
        """Which of `whom` (a role, an agent id), or everybody, the tool is switched off for; None if it is on."""
        for one in (*whom, EVERYBODY):
            names = self.settings.disabled_tools.get(one, ())
            if tool in names or EVERYBODY in names:
                return one
        return None

    def candidates(self, hook: Hook, tool: str) -> Sequence[Rule]:
        """Rules of the hook whose `tool` condition, if any, names this tool; in file order."""
        found = self._of_tools.get((hook, tool))
        if found is None:
            names = (tool, "run_command") if tool == "run_code" else (tool,)  # cells are commands as well
            found = tuple(rule for rule in self._by_hook[hook] if any(_concerns(rule, name) for name in names))
            if len(self._of_tools) < MAX_TOOLS_KEPT:
                self._of_tools[hook, tool] = found
        return found

    def has(self, hook: Hook) -> bool:
        """Whether any rule is about the hook."""
        return bool(self._by_hook[hook])

    def possible(self, hook: Hook, facts: Facts | ReachFacts) -> Iterator[Rule]:
        """Every rule of the hook that may match, in file order: all but those with a condition that is surely false."""
        own = self._by_hook[hook]
        for place in self._indexes[hook].possible(facts):
            yield own[place]


@lru_cache(MAX_AGENTS_KEPT)
def denies_shell(programs: tuple[str, ...]) -> bool:
    """Whether the program that runs lines is among these names, paths and patterns."""
    return any(fnmatchcase(name, word) for word in programs for name in SHELL)


class _Denials(NamedTuple):
    """Programs that are denied as such."""

    programs: tuple[str, ...]
    shell: bool


def _asks_for_program_alone(rule: Rule, agent_id: str) -> bool:
    """Whether all that a rule asks of a command of this agent is which program it starts."""
    known = {"tool": "run_command", "agent_id": agent_id}
    asked = [one for one in rule.conditions if one.field == "program"]
    rest = [one for one in rule.conditions if one.field != "program"]
    return len(asked) == 1 and all(
        one.field in known and one.values is not None and known[one.field] in one.values for one in rest
    )


def load_rules(text: str) -> RuleSet:
    """Check and compile a rule file. Raises RulesInvalid with the fact `line` (counted from 1)."""
    root = read_document(text)
    if root.is_empty:
        return RuleSet(text, ExecSettings(), ())
    root.require_mapping("the rule file", ("version", "settings", "rules", "network"), required=("version",))
    version = root.child("version")
    if version is None or version.value != 1 or type(version.value) is not int:
        raise (version or root).fault("`version` must be 1")
    settings = _load_settings(root.child("settings"))
    rules = _load_rules(root.child("rules"))
    return RuleSet(text, settings, rules, load_network(root.child("network")))


def _entries(texts: Iterable[str]) -> EntryList:
    entries: list[Entry] = []
    for text in texts:
        entry = parse_entry(text)
        if entry is None:
            raise RulesInvalid("an entry of a list of commands is not one program with arguments", line=1)
        entries.append(entry)
    return EntryList(entries)


def _load_settings(node: Tree | None) -> ExecSettings:
    if node is None:
        return ExecSettings()
    node.require_mapping("`settings`", tuple(ExecSettings.model_fields))
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("deny_commands", "allow_programs"):
        texts: list[str] = []
        for item in _items(node.child(name), f"`{name}`"):
            if not isinstance(item.value, str) or parse_entry(item.value) is None:
                raise item.fault(f"`{item.value}` of `{name}` is not one program with arguments")
            if item.value in texts:
                raise item.fault(f"`{item.value}` stands twice in `{name}`")
            texts.append(item.value)
        lists[name] = tuple(texts)
    strict = node.child("strict_parsing")
    if strict is not None and type(strict.value) is not bool:
        raise strict.fault("`strict_parsing` takes true or false")
    return ExecSettings(
        deny_commands=lists["deny_commands"],
        allow_programs=lists["allow_programs"],
        strict_parsing=bool(strict.value) if strict is not None else False,
        disabled_tools=_load_disabled(node.child("disabled_tools")),
        limits=_load_limits(node.child("limits")),
        runtimes=_load_runtimes(node.child("runtimes")),
        ask_above=_load_label(node.child("ask_above")),
    )


def _load_disabled(table: Tree | None) -> dict[str, tuple[str, ...]]:
    disabled: dict[str, tuple[str, ...]] = {}
    if table is None:
        return disabled
    table.require_mapping("`disabled_tools`", None)
    for whom, tools in table.pairs():
        names = _items(tools, f"`disabled_tools` of `{whom}`")
        for item in names:
            if not isinstance(item.value, str) or not item.value:
                raise item.fault("a tool is named by text")
        disabled[whom] = tuple(str(item.value) for item in names)
    return disabled


def _load_limits(table: Tree | None) -> dict[str, AgentLimits]:
    found: dict[str, AgentLimits] = {}
    if table is None:
        return found
    table.require_mapping("`limits`", None)
    for whom, given in table.pairs():
        given.require_mapping(f"`limits` of `{whom}`", tuple(AgentLimits.model_fields))
        values: dict[str, int] = {}
        for name, value in given.pairs():
            if type(value.value) is not int:
                raise value.fault(f"`{name}` takes a whole number")
            try:
                AgentLimits.model_validate({name: value.value})
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise value.fault(f"`{name}`: {reason[:1].lower()}{reason[1:]}") from None
            values[name] = value.value
        found[whom] = AgentLimits.model_validate(values)
    return found


def _load_runtimes(table: Tree | None) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    if table is None:
        return found
    table.require_mapping("`runtimes`", None)
    for whom, names in table.pairs():
        items = _items(names, f"`runtimes` of `{whom}`")
        for item in items:
            if item.value not in RUNTIMES:
                raise item.fault(f"`{item.value}` is no runtime to restrict to; known are {', '.join(RUNTIMES)}")
        found[whom] = tuple(str(item.value) for item in items)
    return found


def _items(node: Tree | None, what: str) -> list[Tree]:
    if node is None:
        return []
    return node.items(what)


def _load_rules(node: Tree | None) -> tuple[Rule, ...]:
    items = _items(node, "`rules`")
    if len(items) > MAX_RULES and node is not None:
        raise node.fault(f"more than {MAX_RULES} rules")
    rules: list[Rule] = []
    lines: dict[str, int] = {}
    earlier: dict[tuple[Hook, frozenset[tuple[object, ...]]], list[Rule]] = {}
    for item in items:
        rule = _load_rule(item)
        if rule.id in lines:
            raise item.fault(f"rule id `{rule.id}` is used at line {lines[rule.id]} already")
        lines[rule.id] = item.line
        for other in earlier.setdefault((rule.hook, rule.key), []):
            if _covers(other, rule):
                raise item.fault(
                    f"rule `{rule.id}` is unreachable: `{other.id}` at line {lines[other.id]} has the same conditions"
                    " and is as strict or stricter"
                )
            if _covers(rule, other):
                raise item.fault(
                    f"rule `{rule.id}` contradicts `{other.id}` at line {lines[other.id]}: same conditions, and only"
                    " the stricter of both can hold"
                )
        earlier[rule.hook, rule.key].append(rule)
        rules.append(rule)
    return tuple(rules)


def _covers(one: Rule, other: Rule) -> bool:
    """Whether `other`, with the same conditions, never changes anything beside `one`."""
    outcome = other.outcome is None or (one.outcome is not None and one.outcome.strictness >= other.outcome.strictness)
    label = other.label is None or (one.label is not None and one.label.rank >= other.label.rank)
    target = other.target_label is None or (
        one.target_label is not None and one.target_label.rank <= other.target_label.rank
    )
    return outcome and label and target and (one.snapshot or not other.snapshot)


def _load_rule(node: Tree) -> Rule:
    node.require_mapping(
        "a rule",
        ("id", "hook", "when", "then", "label", "target_label", "snapshot", "reason"),
        required=("id", "hook"),
    )
    rule_id = node.text("id", limit=100)
    if not rule_id or rule_id.startswith(_RESERVED) or not rule_id.isprintable() or rule_id != rule_id.strip():
        raise node.child_or_self("id").fault(f"`{rule_id}` is no id for a rule of yours")
    hook_name = node.text("hook")
    if hook_name not in Hook.__members__:
        raise node.child_or_self("hook").fault(f"unknown hook `{hook_name}`; known are {', '.join(Hook)}")
    hook = Hook(hook_name)
    outcome: Outcome | None = None
    then = node.child("then")
    if then is not None:
        if not isinstance(then.value, str) or then.value not in [each.value for each in Outcome]:
            raise then.fault(f"unknown action `{then.value}`; known are {', '.join(Outcome)}")
        outcome = Outcome(then.value)
    label, target_label = _load_label(node.child("label")), _load_label(node.child("target_label"))
    snapshot = _load_snapshot(node.child("snapshot"), hook)
    if outcome is None and label is None and target_label is None and not snapshot:
        raise node.fault(f"rule `{rule_id}` does nothing: give `then`, `label`, `target_label` or `snapshot`")
    if label is not None and hook is Hook.SECRET_ACCESS:
        raise node.child_or_self("label").fault("`label` says nothing at SECRET_ACCESS: label the credential")
    if target_label is not None and hook is not Hook.PRE_TOOL_CALL:
        raise node.child_or_self("target_label").fault("`target_label` belongs to PRE_TOOL_CALL")
    conditions = _load_conditions(node.child("when"), hook)
    if target_label is not None and not any(each.field in ("path", "written_path", "tool") for each in conditions):
        raise node.fault("`target_label` needs a condition on `path`, `written_path` or `tool`")
    reason = node.text("reason", limit=1000, default=f"rule `{rule_id}`")
    return Rule(rule_id, hook, conditions, outcome, label, target_label, reason, snapshot)


def _load_snapshot(node: Tree | None, hook: Hook) -> bool:
    if node is None:
        return False
    if not isinstance(node.value, bool):
        raise node.fault("`snapshot` is true or false")
    if hook is not Hook.PRE_TOOL_CALL:
        raise node.fault("`snapshot` belongs to PRE_TOOL_CALL")
    return node.value


def _load_label(node: Tree | None) -> Label | None:
    if node is None:
        return None
    if not isinstance(node.value, str) or node.value not in Label.__members__:
        raise node.fault(f"`{node.value}` is no label; labels are {', '.join(Label)}")
    return Label(node.value)


def _load_conditions(node: Tree | None, hook: Hook) -> tuple[Condition, ...]:
    if node is None:
        return ()
    node.require_mapping("`when`", None)
    conditions: list[Condition] = []
    for name, child in node.pairs():
        spec = SCHEMA[hook].get(name)
        if spec is None:
            raise child.fault(f"unknown field `{name}` at {hook}; known are {', '.join(SCHEMA[hook])}")
        try:
            conditions.append(compile_condition(name, spec, child.plain()))
        except ConditionInvalid as error:
            raise child.fault(str(error)) from None
    return tuple(conditions)


def _concerns(rule: Rule, tool: str) -> bool:
    return all(each.values is None or tool in each.values for each in rule.conditions if each.field == "tool")


DEFAULT_RULES = load_rules("version: 1\n")
"""No custom rule. Floor and default deny list hold anyway."""
