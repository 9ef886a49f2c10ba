"""Promise: a rule file with any fault is refused as a whole, with the line; a good one is immutable."""

import pytest

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import Hook
from coldframe.policy.rules import DEFAULT_RULES, denies_shell, load_rules

_HEAD = "version: 1\nrules:\n"


def _rule(**changes: str | None) -> str:
    lines: dict[str, str | None] = {"id": "one", "hook": "PRE_TOOL_CALL", "when": "{tool: x}", "then": "deny"} | changes
    pairs = [f"{name}: {value}" for name, value in lines.items() if value is not None]
    return "  - " + "\n    ".join(pairs) + "\n"


def test_a_full_file_loads() -> None:
    rules = load_rules(
        """# comment
version: 1
settings:
  deny_commands: ["git push", "npm publish *", curl]
  allow_programs: []
  strict_parsing: true
  disabled_tools: {viewer: [run_command], agent-7: ["*"], "*": [write_file]}
rules:
  - id: secrets
    hook: PRE_TOOL_CALL
    when: {tool: [read_file, write_file], path: {glob: "secrets/*"}}
    then: deny
    reason: this directory is for people
  - id: crm
    hook: POST_TOOL_RESPONSE
    when: {program: crm-export, output: {matches: "(?i)customer"}}
    label: CONFIDENTIAL
  - {id: high, hook: PRE_TOOL_CALL, when: {taint: {above: INTERNAL}}, then: ask}
  - {id: big, hook: POST_TOOL_RESPONSE, when: {output_bytes: {at_least: 1000}, failed: false}, then: deny}
  - {id: open, hook: PRE_TOOL_CALL, when: {path: {glob: "public/*"}}, target_label: INTERNAL}
"""
    )
    assert [rule.id for rule in rules.rules] == ["secrets", "crm", "high", "big", "open"]
    assert rules.settings.strict_parsing
    assert rules.settings.disabled_tools["agent-7"] == ("*",)


def test_an_empty_file_is_the_default() -> None:
    assert load_rules("").rules == load_rules("# nothing\n").rules == DEFAULT_RULES.rules == ()


@pytest.mark.req("TP.06")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version: 2\n", 1),
        ("version: '1'\n", 1),
        ("rules: []\n", 1),
        ("version: 1\nextra: 1\n", 2),
        ("version: 1\nsettings:\n  strict: true\n", 3),
        ("version: 1\nsettings:\n  strict_parsing: yes\n", 3),
        ("version: 1\nsettings:\n  deny_commands: curl\n", 3),
        ("version: 1\nsettings:\n  deny_commands:\n    - curl\n    - 'a; b'\n", 5),
        ('version: 1\nsettings:\n  deny_commands:\n    - "\'"\n', 4),
        ("version: 1\nsettings:\n  allow_programs: ['$x']\n", 3),
        ("version: 1\nsettings:\n  disabled_tools: {viewer: [1]}\n", 3),
        (_HEAD + _rule(hook="PRE_TOOL"), 4),
        (_HEAD + _rule(hook="BEFORE_TOOL_CALL"), 4),
        (_HEAD + _rule(when="{tol: x}"), 5),
        (_HEAD + _rule(when="{output: {contains: x}}"), 5),
        (_HEAD + _rule(when="{tool: {equals: x}}"), 5),
        (_HEAD + _rule(when="{tool: {glob: a, contains: b}}"), 5),
        (_HEAD + _rule(when="{tool: 1}"), 5),
        (_HEAD + _rule(when="{shell: 'true'}"), 5),
        (_HEAD + _rule(when="{role: root}"), 5),
        (_HEAD + _rule(when="{taint: SECRET}"), 5),
        (_HEAD + _rule(when="{taint: {at_least: public}}"), 5),
        (_HEAD + _rule(when="{taint: {above: RESTRICTED}}"), 5),
        (_HEAD + _rule(when="{tool: {at_least: PUBLIC}}"), 5),
        (_HEAD + _rule(when="{command: {matches: '(a'}}"), 5),
        (_HEAD + _rule(when="{command: {matches: '(?=a)b'}}"), 5),
        (_HEAD + _rule(when="{command: {matches: '" + "a" * 2000 + "'}}"), 5),
        (_HEAD + _rule(when="{tool: []}"), 5),
        (_HEAD + _rule(when="[tool]"), 5),
        (_HEAD + _rule(then="block"), 6),
        (_HEAD + _rule(then=None), 3),
        (_HEAD + _rule(label="SECRET"), 7),
        (_HEAD + _rule(id="floor:x"), 3),
        (_HEAD + _rule(priority="1"), 7),
        (_HEAD + _rule(snapshot="1"), 7),
        (_HEAD + _rule(hook="POST_TOOL_RESPONSE", snapshot="true"), 7),
        (_HEAD + _rule(then=None, snapshot="false"), 3),
        (_HEAD + _rule(then="allow", snapshot="true") + _rule(id="two", then="allow", snapshot="true"), 8),
        (_HEAD + _rule(id=None), 3),
        (_HEAD + _rule() + _rule(when="{tool: y}"), 7),
        (_HEAD + _rule() + _rule(id="two"), 7),
        (_HEAD + _rule() + _rule(id="two", then="allow"), 7),
        (_HEAD + _rule(then="allow") + _rule(id="two"), 7),
        (_HEAD + _rule() + _rule(id="two", when="{tool: [x, x]}", then="ask"), 7),
        ("version: 1\nversion: 1\n", 2),
        ("version: 1\nrules: &a []\n", 2),
        ("version: 1\nsettings: *a\n", 2),
        ("version: 1\nrules: !!python/object:os.system []\n", 2),
        ("version: 1\n---\nversion: 1\n", 2),
        ("version: 1\nrules: [\n", 3),
        ("version: 1\nx: " + "[" * 40 + "]" * 40, 2),
        ("version: 1\n#" + "x" * 1024 * 1024, 1),
        ("- a\n", 1),
        ("version: 1\n\x00\n", 2),
        ("\ud800", 1),
    ],
)
def test_a_faulty_file_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(RulesInvalid) as caught:
        load_rules(text)
    assert caught.value.facts["line"] == line


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["version: 1", "a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    with pytest.raises(RulesInvalid):
        load_rules("\n".join(lines))


def test_a_rule_set_cannot_be_changed() -> None:
    rules = load_rules(_HEAD + _rule())
    with pytest.raises(AttributeError):
        rules.rules = ()
    with pytest.raises(AttributeError):
        del rules.settings
    assert load_rules(_HEAD + _rule()).sha256 == rules.sha256


def test_rules_are_found_by_tool_in_file_order() -> None:
    rules = load_rules(_HEAD + _rule(id="a") + _rule(id="b", when="{}") + _rule(id="c", when="{tool: [x, y]}"))
    assert [rule.id for rule in rules.candidates(Hook.PRE_TOOL_CALL, "x")] == ["a", "b", "c"]
    assert [rule.id for rule in rules.candidates(Hook.PRE_TOOL_CALL, "y")] == ["b", "c"]
    assert [rule.id for rule in rules.candidates(Hook.POST_TOOL_RESPONSE, "x")] == []


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("settings: {deny_commands: [curl, 'git push', 'npm *', 'git-*', /usr/bin/wget, tar -x, c'u'rl]}", None),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: [nc, 'git push']}, then: deny}]", ("nc",)),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: {glob: 'n?'}}, then: deny}]", ("n?",)),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: {glob: '/bin/n?'}}, then: deny}]", ()),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: {matches: '^nc$'}}, then: deny}]", ()),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: nc, agent_id: [x, one]}, then: deny}]", ("nc",)),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: nc, agent_id: x}, then: deny}]", ()),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: nc, agent_id: {glob: '*'}}, then: deny}]", ()),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: nc, tool: run_command}, then: deny}]", ("nc",)),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: nc, cwd: x}, then: deny}]", ()),
        ("rules: [{id: a, hook: PRE_TOOL_CALL, when: {program: nc}, then: ask}]", ()),
        ("rules: [{id: a, hook: POST_TOOL_RESPONSE, when: {program: nc}, then: deny}]", ()),
        ('settings: {deny_commands: ["a\\tb", "\\"a b\\""]}', ("a b",)),
    ],
)
def test_programs_that_are_denied_whatever_their_arguments_are_known_by_name(
    text: str, programs: tuple[str, ...] | None
) -> None:
    expected = ("curl", "npm", "git-*", "/usr/bin/wget") if programs is None else programs
    assert load_rules(f"version: 1\n{text}\n").denied_programs_of("one") == expected


@pytest.mark.parametrize("entry", ["bash", "b*", "bash *", "/bin/bash", "'*'"])
def test_a_denied_shell_is_known(entry: str) -> None:
    assert load_rules(f"version: 1\nsettings: {{deny_commands: [{entry}]}}\n").denies_shell_of("one")
    assert not load_rules("version: 1\nsettings: {deny_commands: [sh, bash -c, ba, bashes]}\n").denies_shell_of("one")
    by_rule = (
        f"version: 1\nrules: [{{id: a, hook: PRE_TOOL_CALL, when: {{agent_id: x, program: {entry}}}, then: deny}}]\n"
    )
    assert load_rules(by_rule).denies_shell_of("x") and not load_rules(by_rule).denies_shell_of("one")
    assert denies_shell(("curl", entry.strip("'").removesuffix(" *"))) and not denies_shell(("sh", "/opt/bash", "ba"))
