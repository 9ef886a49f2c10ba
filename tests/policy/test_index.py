"""Promise: finding rules by an index decides exactly what trying every rule by itself decides."""

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import re2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import CallContext, Decision, Hook, Label, ResultContext, Role, RuleVerdict
from coldframe.policy import floor, hooks, index
from coldframe.policy.fields import Facts
from coldframe.policy.hooks import decide_call, decide_result
from coldframe.policy.matching import allows, match
from coldframe.policy.rules import RuleSet, load_rules
from coldframe.policy.shell import read_argv, read_shell
from coldframe.policy.wrappers import BUILTINS


def try_every_rule(rules: RuleSet, hook: Hook, facts: Facts) -> list[RuleVerdict]:
    """The evaluation that the index stands for: each rule of the hook in file order, each condition as written."""
    return [verdict for rule in rules.rules if rule.hook is hook for verdict in hooks._judge(rule, facts)]


def try_every_entry(facts: Facts, rules: RuleSet) -> Iterator[RuleVerdict]:
    """Verdicts of the denied commands, each entry against each program."""
    for program in facts.reading.programs if facts.reading is not None else ():
        for entry in rules.deny_commands.entries:
            verdict = match(entry, program)
            if verdict or (verdict is None and rules.settings.strict_parsing):
                reason = f"`{program.name}` is on the deny list as `{entry.text}`"
                yield floor._deny("settings:deny_commands", reason)


def try_every_program(facts: Facts, rules: RuleSet) -> Iterator[RuleVerdict]:
    """Verdicts of the allowed programs, each program against each entry."""
    listed = rules.allow_programs.entries
    for program in facts.reading.programs if facts.reading is not None and listed else ():
        if program.word not in BUILTINS and not any(allows(entry, program) for entry in listed):
            yield floor._deny("settings:allow_programs", f"`{program.word}` is not among the allowed programs")


def expected_call(context: CallContext, rules: RuleSet) -> Decision:
    facts = Facts(context, context.reading)
    switches = list(floor.check_settings(facts, rules))
    unreadable = [
        one for one in switches if one.rule_id == "settings:allow_programs" and "cannot be read" in one.reason
    ]
    listed = ("settings:deny_commands", "settings:allow_programs")
    verdicts = [
        *floor.check_floor(facts, None),
        *(one for one in switches if one.rule_id not in listed),
        *try_every_entry(facts, rules),
        *unreadable,
        *try_every_program(facts, rules),
        *try_every_rule(rules, Hook.PRE_TOOL_CALL, facts),
    ]
    return hooks._join(Hook.PRE_TOOL_CALL, verdicts, rules, context)


def expected_result(context: ResultContext, output: bytes, rules: RuleSet) -> Decision:
    facts = Facts(context.call, context.call.reading, context, output)
    verdicts = try_every_rule(rules, Hook.POST_TOOL_RESPONSE, facts)
    return hooks._join(Hook.POST_TOOL_RESPONSE, verdicts, rules, context)


# --- what is made up: few words, so that they meet ---

_WORDS = ["git", "rm", "/usr/bin/git", "./run", "é", "a", "a/b", "A", "x.py", "", "n\nl", "a*b", "[a]"]
_GLOBS = ["*", "g*", "?", "*.py", "a*", "a/[a-c]", "[!g]*", "*é*", "a\\*b", "gi[", "*\n*"]
_REGEXES = [
    "^git$",
    "(?i)GIT|^a",
    "^$",
    ".",
    "(?m)^l$",
    "b$",
    "\\bgit\\b",
    "(a|b)+/",
    "[^a]",
    "x{0}",
    "\\x{e9}",
    "(?s).*z",
]
_TEXT = st.sampled_from([word for word in _WORDS if word])
_OPERATOR = st.one_of(
    st.sampled_from(_GLOBS).map(lambda text: {"glob": text}),
    st.sampled_from(_REGEXES).map(lambda text: {"matches": text}),
    _TEXT.map(lambda text: {"contains": text}),
)
_ENTRIES = ["git", "git push", "/usr/bin/git", "g*", "rm -rf *", "./run", "é", "a", "git *"]
_LABELS = st.sampled_from(list(map(str, Label)))
_ORDER = st.fixed_dictionaries({"at_least": _LABELS}) | st.fixed_dictionaries({"above": _LABELS})
_OF_CALL = {
    "tool": st.sampled_from(["run_command", "read_file"]) | _OPERATOR,
    "role": st.sampled_from(["agent", "owner"]) | st.just(["agent", "viewer"]),
    "agent_id": _TEXT | st.lists(_TEXT, min_size=1, max_size=3) | _OPERATOR,
    "taint": _LABELS | _ORDER,
    "command": _TEXT | _OPERATOR,
    "shell": st.booleans(),
    "cwd": st.sampled_from(_WORDS) | _OPERATOR,
    "runtime": _TEXT,
    "path": _TEXT | st.lists(_TEXT, min_size=1, max_size=3) | _OPERATOR,
    "program": st.sampled_from(_ENTRIES) | st.lists(st.sampled_from(_ENTRIES), min_size=1, max_size=3) | _OPERATOR,
    "written_path": _TEXT | _OPERATOR,
    "certainty": st.sampled_from(["complete", "opaque", "unparsable"]),
}
_OF_RESULT = {
    "failed": st.booleans(),
    "exit_code": st.integers(0, 2) | st.lists(st.integers(0, 2), min_size=1) | st.just({"at_least": 1}),
    "reached": _TEXT | _OPERATOR,
    "output": _OPERATOR.filter(lambda given: "glob" not in given),
}


def _a_rule(hook: str, fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "hook": st.just(hook),
            "when": st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True).flatmap(
                lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
            ),
            "then": st.sampled_from(["allow", "ask", "deny"]),
        },
        optional={"label": _LABELS},
    )


_A_RULE = _a_rule("PRE_TOOL_CALL", _OF_CALL) | _a_rule("POST_TOOL_RESPONSE", {**_OF_CALL, **_OF_RESULT})
_SWITCHES = st.fixed_dictionaries(
    {"strict_parsing": st.booleans()},
    optional={
        "deny_commands": st.lists(st.sampled_from(_ENTRIES), unique=True),
        "allow_programs": st.lists(st.sampled_from(_ENTRIES), unique=True, min_size=1),
    },
)
_SHELL = [
    "git push",
    "rm -rf a; git",
    "/usr/bin/git pull",
    "$x",
    "'",
    "a > a/b",
    "./run é",
    "git $y",
    "echo \udc80 > \udc81",
]
_COMMANDS = st.one_of(
    st.none(),
    st.sampled_from(_SHELL),
    st.lists(st.sampled_from(["git", "push", "a", "é", "-rf", "./run", "\udcff"]), min_size=1, max_size=3).map(tuple),
)


@st.composite
def _calls(draw: st.DrawFn) -> CallContext:
    given = draw(_COMMANDS)
    argv = given if isinstance(given, tuple) else None
    command = " ".join(given) if isinstance(given, tuple) else given
    reading = None
    if argv is not None:
        reading = read_argv(argv)
    elif command is not None and draw(st.booleans()):
        reading = read_shell(command)
    return CallContext(
        tool=draw(st.sampled_from(["run_command", "read_file"])),
        agent_id=draw(_TEXT),
        session_id="ses_1",
        sandbox_id="sbx_1",
        role=draw(st.sampled_from([Role.AGENT, Role.OWNER])),
        caller="rest:tok_1",
        profile="code",
        taint=draw(st.sampled_from(list(Label))),
        workspace_label=Label.PUBLIC,
        command=command,
        argv=argv,
        shell=argv is None and command is not None,
        reading=reading,
        cwd=draw(st.none() | st.sampled_from(_WORDS)),
        runtime=draw(st.none() | _TEXT),
        path=draw(st.none() | st.sampled_from([*_WORDS, "a\udc80b", "a" * 9000, "git" * 4000])),
    )


def _loaded(rules: list[dict[str, Any]], switches: dict[str, Any]) -> RuleSet:
    """The rules that can stand together; two of the same conditions cannot."""
    kept: list[dict[str, Any]] = []
    seen: set[object] = set()
    for number, rule in enumerate(rules):
        one = {**rule, "id": f"r{number}"}
        try:
            conditions = load_rules(json.dumps({"version": 1, "rules": [one]})).rules[0].key
        except RulesInvalid:  # such as a label above the highest
            continue
        if (rule["hook"], conditions) not in seen:
            seen.add((rule["hook"], conditions))
            kept.append(one)
    return load_rules(json.dumps({"version": 1, "settings": switches, "rules": kept}))


@pytest.mark.timeout(600)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_A_RULE, max_size=12), _SWITCHES, st.lists(_calls(), min_size=1, max_size=4), st.data())
def test_the_index_decides_what_trying_every_rule_decides(
    rules: list[dict[str, Any]], switches: dict[str, Any], calls: list[CallContext], data: st.DataObject
) -> None:
    loaded = _loaded(rules, switches)
    for call in calls:
        if call.reading is not None or call.command is None:  # without a reading the hook reads the command itself
            assert decide_call(call, loaded) == expected_call(call, loaded)
        read = call.model_copy(update={"reading": hooks._reading(call)})
        output = data.draw(st.sampled_from([b"", b"git", b"\xff\x00a\nl", b"A git b"]))
        result = ResultContext(
            call=read,
            failed=data.draw(st.booleans()),
            exit_code=data.draw(st.none() | st.integers(0, 2)),
            reached=data.draw(st.sampled_from([(), ("git",), ("x.py", "é")])),
        )
        assert decide_call(read, loaded) == expected_call(read, loaded)
        assert decide_result(result, output, loaded) == expected_result(result, output, loaded)


def _many(count: int, when: str) -> RuleSet:
    lines = (
        f"  - {{id: r{n}, hook: PRE_TOOL_CALL, then: deny, when: {when.replace('NUMBER', str(n))}}}\n"
        for n in range(count)
    )
    return load_rules("version: 1\nrules:\n" + "".join(lines))


def _call(**changes: Any) -> CallContext:
    plain = CallContext(
        tool="run_command",
        agent_id="a",
        session_id="ses_1",
        sandbox_id="sbx_1",
        role=Role.AGENT,
        caller="rest:tok_1",
        profile="code",
        taint=Label.PUBLIC,
        workspace_label=Label.PUBLIC,
        argv=("forbidden-70-x",),
        command="forbidden-70-x",
        reading=read_argv(("forbidden-70-x",)),
    )
    return plain.model_copy(update=changes)


@pytest.mark.parametrize(
    "when",
    [
        "{program: {glob: 'forbidden-NUMBER-*'}}",
        "{tool: run_command, program: 'forbidden-NUMBER-x'}",
        "{command: {matches: '^forbidden-NUMBER-.$'}, agent_id: [a, bNUMBER]}",
        "{tool: {contains: run}, agent_id: a, command: {contains: '-NUMBER-x'}}",
        "{program: {glob: '*-NUMBER-x'}}",
        "{program: {glob: '?*den-NUMBER-*'}}",
        "{program: {matches: 'den-NUMBER-[xy]$'}}",
    ],
)
def test_of_a_thousand_rules_few_are_tried(when: str) -> None:
    rules = _many(1000, when)
    context = _call()
    assert [rule.id for rule in rules.possible(Hook.PRE_TOOL_CALL, Facts(context, context.reading))] == ["r70"]
    assert decide_call(context, rules).rule_id == "r70"
    other = _call(argv=("true",), command="true", reading=read_argv(("true",)))
    assert not list(rules.possible(Hook.PRE_TOOL_CALL, Facts(other, other.reading)))


def test_a_call_costs_as_much_with_a_thousand_rules_as_with_ten() -> None:
    """Counted in steps of the interpreter, which no load of the machine moves."""

    def steps(rules: RuleSet) -> int:
        return min(counted(rules) for _ in range(3))

    def counted(rules: RuleSet) -> int:
        context = _call(argv=("true",), command="true", reading=read_argv(("true",)))
        decide_call(context, rules)
        made = 0

        def count(*_: object) -> None:
            nonlocal made
            made += 1

        sys.setprofile(count)
        try:
            decide_call(context, rules)
        finally:
            sys.setprofile(None)
        return made

    when = "{tool: run_command, program: {glob: 'forbidden-NUMBER-*'}}"
    assert steps(_many(1000, when)) < 2 * steps(_many(10, when))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("^git*", "gi"),
        ("^git?", "gi"),
        ("^git{0}", "gi"),
        ("^git{0,1}x", "gix"),
        ("^git+", "gitt"),
        ("a[?]b", "a\udc80b"),
    ],
)
def test_a_pattern_that_may_do_without_its_last_sign_is_found(pattern: str, path: str) -> None:
    assert decide_call(_call(path=path), _many(1, f"{{path: {{matches: '{pattern}'}}}}")).rule_id == "r0"


@pytest.mark.parametrize("answer", [None, [1]])
def test_a_set_that_gives_up_leaves_no_rule_out(monkeypatch: pytest.MonkeyPatch, answer: list[int] | None) -> None:
    class GivesUp:
        def Add(self, pattern: str) -> None:
            pass

        def Compile(self) -> None:
            pass

        def Match(self, text: str) -> list[int] | None:
            return answer

    monkeypatch.setattr(re2.Set, "SearchSet", lambda options: GivesUp())
    assert decide_call(_call(), _many(100, "{program: {matches: 'den-NUMBER-'}}")).rule_id == "r70"


def test_patterns_too_large_for_one_set_are_found_in_several_or_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_SET_MEMORY_BYTES", 64 * 1024)
    rules = _many(1000, "{program: {matches: 'den-NUMBER-'}}")
    context = _call()
    found = [rule.id for rule in rules.possible(Hook.PRE_TOOL_CALL, Facts(context, context.reading))]
    assert "r70" in found and len(found) < 1000
    monkeypatch.setattr(index, "MAX_SET_MEMORY_BYTES", 1)
    assert decide_call(context, _many(100, "{program: {matches: 'den-NUMBER-'}}")).rule_id == "r70"


def test_a_text_that_a_set_could_spend_long_on_is_tried_rule_by_rule() -> None:
    source = random.Random(1)
    rules = _many(10, "{path: {matches: '[ab]*a[ab]{3NUMBER}c'}}")
    context = _call(path="".join(source.choice("ab") for _ in range(8192)))
    facts = Facts(context, context.reading)
    assert len(list(rules.possible(Hook.PRE_TOOL_CALL, facts))) == 10
    assert decide_call(context, rules).rule_id == "default"
    ending = context.model_copy(update={"path": f"{context.path}{'a' * 400}c"})
    assert decide_call(ending, rules).rule_id == "r0"
