"""Promise: the strictest verdict decides, the floor holds under any rule file, doubt refuses, and decisions repeat."""

import json
import random
import statistics
import time
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import (
    CallContext,
    Decision,
    EgressContext,
    Hook,
    Label,
    Outcome,
    ResultContext,
    Role,
    SecretContext,
)
from coldframe.policy import hooks
from coldframe.policy.fields import SCHEMA, ReachFacts
from coldframe.policy.hooks import decide_call, decide_result, reads_output
from coldframe.policy.rules import DEFAULT_RULES, RuleSet, load_rules
from coldframe.policy.shell import read_shell


def _call(**changes: Any) -> CallContext:
    fields: dict[str, Any] = {
        "tool": "run_command",
        "agent_id": "agent-1",
        "session_id": "ses_1",
        "sandbox_id": "box_1",
        "role": Role.AGENT,
        "caller": "rest:tok_1",
        "profile": "sandbox",
        "taint": Label.PUBLIC,
        "workspace_label": Label.PUBLIC,
    }
    context = CallContext(**fields | changes)
    if context.command is not None and context.reading is None:
        context = context.model_copy(update={"shell": True, "reading": read_shell(context.command)})
    return context


def _result(**changes: Any) -> ResultContext:
    return ResultContext(**({"call": _call()} | changes))


def _rules(*rules: dict[str, Any], **switches: Any) -> RuleSet:
    return load_rules(yaml.safe_dump({"version": 1, "settings": switches, "rules": list(rules)}))


def _rule(rule_id: str, then: str | None = None, hook: str = "PRE_TOOL_CALL", **more: Any) -> dict[str, Any]:
    return {"id": rule_id, "hook": hook} | ({"then": then} if then else {}) | more


def test_a_sandbox_that_was_made_without_a_shell_runs_no_lines_and_contexts_of_before_are_judged_as_they_were() -> None:
    refused = decide_call(_call(command="echo hi", box_denies_shell=True), DEFAULT_RULES)
    assert (refused.outcome, refused.rule_id) == (Outcome.DENY, "settings:shell")
    program = _call(argv=("echo", "hi"), reading=read_shell("echo hi"), box_denies_shell=True)
    assert decide_call(program, DEFAULT_RULES).outcome is Outcome.ALLOW
    stored = _call(command="echo hi").model_dump(mode="json", exclude={"box_denies_shell"})
    assert decide_call(CallContext.model_validate(stored), DEFAULT_RULES).outcome is Outcome.ALLOW


def test_without_rules_a_call_is_allowed_by_default() -> None:
    decision = decide_call(_call(), DEFAULT_RULES)
    assert (decision.outcome, decision.rule_id, decision.code, decision.label) == (
        Outcome.ALLOW,
        "default",
        None,
        Label.PUBLIC,
    )


# --- conditions ---


@pytest.mark.parametrize(
    ("when", "context", "matches"),
    [
        ({"tool": "run_command"}, {}, True),
        ({"tool": ["a", "b"]}, {}, False),
        ({"role": ["agent", "viewer"]}, {}, True),
        ({"taint": {"at_least": "INTERNAL"}}, {"taint": Label.INTERNAL}, True),
        ({"taint": {"above": "INTERNAL"}}, {"taint": Label.INTERNAL}, False),
        ({"taint": {"above": "INTERNAL"}}, {"taint": Label.CONFIDENTIAL}, True),
        ({"taint": "PUBLIC"}, {}, True),
        ({"path": {"glob": "secrets/*"}}, {"path": "secrets/a/b"}, True),
        ({"path": {"glob": "*.[!p]y"}}, {"path": "a.py"}, False),
        ({"path": {"glob": "a?b"}}, {"path": "aéb"}, True),
        ({"path": {"matches": "^src/.*[.]py$"}}, {"path": "src/x.py"}, True),
        ({"path": {"contains": "ecre"}}, {"path": "secrets"}, True),
        ({"command": {"contains": "x"}}, {"command": "echo x"}, True),
        ({"command": {"contains": "x"}}, {}, False),
        ({"shell": True}, {"command": "ls"}, True),
        ({"program": "curl"}, {"command": "nohup /usr/bin/curl x"}, True),
        ({"program": "git push"}, {"command": "git -C dir push --force"}, True),
        ({"program": "git push"}, {"command": "git pull"}, False),
        ({"program": ["curl", "wget"]}, {"command": "echo curl"}, False),
        ({"program": {"glob": "python*"}}, {"command": "python3.11 x.py"}, True),
        ({"program": "curl"}, {"tool": "read_file", "path": "x"}, False),
        ({"written_path": {"glob": "/etc/*"}}, {"command": "echo > /etc/x"}, True),
        ({"certainty": "opaque"}, {"command": "$x"}, True),
        ({"tool": "run_command", "role": "owner"}, {}, False),
    ],
)
def test_a_rule_matches_on_all_of_its_conditions(when: dict[str, Any], context: dict[str, Any], matches: bool) -> None:
    decision = decide_call(_call(**context), _rules(_rule("r", "deny", when=when)))
    assert (decision.rule_id == "r") is matches


def test_every_documented_field_of_each_hook_can_be_asked_for() -> None:
    call = _call(command="ls > x", cwd="a", runtime="bash", path="p")
    facts = hooks.Facts(call, call.reading, _result(call=call, exit_code=0, signal=0), b"out")
    reach = {"sandbox_id": "s", "agent_id": "a", "taint": "PUBLIC", "name": "n", "port": 443, "label": "PUBLIC"}
    egress = EgressContext.model_validate(
        {**reach, "role": "agent", "address": "", "scheme": "https", "mode": "sni", "methods": ["GET"], "paths": ["/"]}
    )
    secret = SecretContext.model_validate(
        {**reach, "session_id": "x", "credential": "c", "production": False, "purpose": "", "method": "GET"}
        | {"paths": ["/"], "uses": 0}
    )
    of_hook = {Hook.NETWORK_EGRESS: ReachFacts(egress), Hook.SECRET_ACCESS: ReachFacts(secret)}
    for hook, fields in SCHEMA.items():
        for name, spec in fields.items():
            assert spec.meaning
            value = spec.value(of_hook.get(hook, facts))
            assert name in ("program", "output") or value is not None, (hook, name)


@pytest.mark.req("TP.03")
def test_a_missing_field_counts_where_it_restricts_and_not_where_it_allows() -> None:
    when = {"path": {"glob": "secrets/*"}}
    assert decide_call(_call(), _rules(_rule("r", "deny", when=when))).rule_id == "r"
    assert decide_call(_call(), _rules(_rule("r", "ask", when=when))).rule_id == "r"
    assert decide_call(_call(), _rules(_rule("r", label="INTERNAL", when=when))).label is Label.INTERNAL
    assert decide_call(_call(), _rules(_rule("r", "allow", when=when))).rule_id == "default"


@pytest.mark.req("TP.03")
def test_an_unknown_label_counts_as_the_highest() -> None:
    odd = _call().model_copy(update={"taint": "odd"})
    assert decide_call(odd, _rules(_rule("r", "deny", when={"taint": "RESTRICTED"}))).outcome is Outcome.DENY


@pytest.mark.req("TP.03")
def test_whatever_goes_wrong_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(hooks, "_judge", broken)
    rules = _rules(_rule("r", "allow"), _rule("p", "allow", hook="POST_TOOL_RESPONSE"))
    for decision in (decide_call(_call(), rules), decide_result(_result(), b"", rules)):
        assert (decision.outcome, decision.code) == (Outcome.DENY, "POLICY_UNAVAILABLE")
        assert decision.label is Label.RESTRICTED
    unfit: Any = object()
    assert decide_call(unfit, unfit).code == "POLICY_UNAVAILABLE"
    assert decide_result(unfit, b"", unfit).code == "POLICY_UNAVAILABLE"


# --- strictness ---


@pytest.mark.req("TP.05")
@given(st.permutations(["allow", "ask", "deny", "label"]), st.sets(st.sampled_from(["allow", "ask", "deny", "label"])))
def test_order_in_the_file_changes_no_outcome(order: list[str], chosen: set[str]) -> None:
    made = {
        "allow": _rule("allow", "allow", when={"tool": "run_command"}),
        "ask": _rule("ask", "ask", when={"role": "agent"}),
        "deny": _rule("deny", "deny", when={"agent_id": "agent-1"}),
        "label": _rule("label", label="INTERNAL", when={"profile": "sandbox"}),
    }
    decision = decide_call(_call(), _rules(*(made[name] for name in order if name in chosen)))
    strictest = next((name for name in ("deny", "ask") if name in chosen), "allow")
    assert decision.outcome is Outcome(strictest)
    assert decision.code == {"deny": "DENIED_BY_RULE", "ask": "PENDING_APPROVAL", "allow": None}[strictest]
    assert decision.label is (Label.INTERNAL if "label" in chosen else Label.PUBLIC)


# --- settings ---


def test_switched_off_tools_bind_roles_agents_and_everybody() -> None:
    for whom in ("agent", "agent-1", "*"):
        decision = decide_call(_call(), _rules(disabled_tools={whom: ["run_command"]}))
        assert (decision.rule_id, decision.code) == ("settings:disabled_tools", "NOT_IN_PROFILE")
    assert decide_call(_call(), _rules(disabled_tools={"owner": ["*"], "agent-2": ["*"]})).code is None
    assert decide_call(_call(tool="read_file"), _rules(disabled_tools={"*": ["*"]})).code == "NOT_IN_PROFILE"


@pytest.mark.parametrize(
    ("entry", "command", "refused"),
    [
        ("curl", "env /usr/bin/curl x", True),
        ("curl", "grep curl x", False),
        ("git push", "git -c a=b push origin", True),
        ("git push", "git stash", False),
        ("npm publish *", "npm publish", True),
        ("npm publish *", "npm publish --access public", True),
        ("tar -xz", "tar -z -x -f a", True),
        ("tar -xz", "tar -x -f a", False),
        ("git push --force", "git push --force-with-lease", False),
        ("python*", "python3 x.py", True),
        ("kubectl delete n*", "kubectl delete ns x", True),
    ],
)
def test_own_deny_entries_match_the_parsed_form(entry: str, command: str, refused: bool) -> None:
    decision = decide_call(_call(command=command), _rules(deny_commands=[entry]))
    assert (decision.rule_id == "settings:deny_commands") is refused


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("git status", False),
        ("cd x && git log | cat", True),
        ("git log > x; echo done; [ -f x ]", False),
        ("python x.py", True),
        ("/usr/bin/git log", False),
        ("./git log", True),
        ("env git log", True),
        ("$x", True),
        ("git log $(curl x)", True),
        ("sudo git log", True),
        ("git 'log", True),
        ("exec git log", False),
    ],
)
def test_a_list_of_allowed_programs_allows_these_only(command: str, refused: bool) -> None:
    decision = decide_call(_call(command=command), _rules(allow_programs=["git", "sudo ls"]))
    assert (decision.outcome is Outcome.DENY) is refused


def test_deny_beats_allow() -> None:
    rules = _rules(_rule("r", "allow"), allow_programs=["git", "sudo"], deny_commands=["git push"])
    assert decide_call(_call(command="git push"), rules).rule_id == "settings:deny_commands"
    assert decide_call(_call(command="sudo ls"), rules).rule_id == "denylist:privilege"


# --- floor ---


def test_only_tools_can_be_called() -> None:
    for tool in ("", "policy.load", "Run", "../x", "a" * 65):
        assert decide_call(_call(tool=tool), DEFAULT_RULES).code == "UNKNOWN_TOOL"
    assert decide_call(_call(tool="magic"), DEFAULT_RULES, tools={"run_command"}).rule_id == "floor:unknown-tool"
    assert decide_call(_call(), DEFAULT_RULES, tools={"run_command"}).code is None


def test_data_is_not_written_down_to_a_cleared_place() -> None:
    rules = _rules(_rule("public", target_label="PUBLIC", when={"path": {"glob": "public/*"}}), _rule("r", "allow"))
    write = {"tool": "write_file", "path": "public/x"}
    assert decide_call(_call(**write), rules).outcome is Outcome.ALLOW
    assert decide_call(_call(taint=Label.INTERNAL, **write), rules).rule_id == "floor:write-down"
    assert decide_call(_call(taint=Label.INTERNAL, tool="write_file", path="x"), rules).outcome is Outcome.ALLOW
    assert decide_call(_call(taint=Label.INTERNAL, tool="read_file", path="public/x"), rules).outcome is Outcome.ALLOW
    assert decide_call(_call(taint=Label.INTERNAL, command="ls"), rules).rule_id == "floor:write-down"


_WHEN = st.dictionaries(
    st.sampled_from(["tool", "role", "taint", "path", "command", "program", "agent_id", "certainty", "shell"]),
    st.sampled_from(
        [
            *("run_command", "agent", "PUBLIC", "RESTRICTED", "sudo", "sudo ls", "agent-1", "complete", True, ["*"]),
            *({"glob": "*"}, {"contains": "s"}, {"matches": "."}, {"at_least": "PUBLIC"}, {"above": "PUBLIC"}),
        ]
    ),
    max_size=3,
)
_ANY_RULE = st.fixed_dictionaries(
    {"id": st.text("abcdef", min_size=1, max_size=4), "hook": st.sampled_from(list(map(str, Hook)))},
    optional={
        "when": _WHEN,
        "then": st.sampled_from(["allow", "allow", "ask", "deny"]),
        "label": st.sampled_from(list(map(str, Label))),
        "target_label": st.sampled_from(list(map(str, Label))),
    },
)
_ANY_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "allow_programs": st.lists(st.sampled_from(["sudo", "sudo *", "rm", "*", "mount"]), unique=True),
        "deny_commands": st.lists(st.sampled_from(["ls", "git push"]), unique=True),
        "strict_parsing": st.booleans(),
        "disabled_tools": st.dictionaries(
            st.sampled_from(["owner", "*"]), st.lists(st.sampled_from(["x", "run_command"]))
        ),
        "ask_above": st.sampled_from(list(map(str, Label))),
        "runtimes": st.dictionaries(st.sampled_from(["agent-1", "*"]), st.lists(st.just("deno"), max_size=1)),
    },
)


@pytest.mark.req("TP.04")
@pytest.mark.timeout(600)
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(rules=st.lists(_ANY_RULE, max_size=6, unique_by=lambda rule: rule["id"]), switches=_ANY_SETTINGS)
def test_no_rule_file_opens_the_floor(rules: list[dict[str, Any]], switches: dict[str, Any]) -> None:
    try:
        loaded = load_rules(json.dumps({"version": 1, "settings": switches, "rules": rules}))
    except RulesInvalid:
        valid = [rule for rule in rules if "then" in rule and "target_label" not in rule]
        for rule in valid:
            rule["when"] = {"agent_id": [rule["id"], "agent-1"]}
            if rule["hook"] == Hook.SECRET_ACCESS:
                rule.pop("label", None)
        loaded = load_rules(json.dumps({"version": 1, "settings": switches, "rules": valid}))
    for command in _LISTED:
        assert decide_call(command, loaded).outcome is Outcome.DENY
    assert decide_call(_BAD_TOOL, loaded).outcome is Outcome.DENY


@pytest.mark.req("TP.04")
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_ANY_RULE.filter(lambda rule: rule.get("then") == "allow"), max_size=4, unique_by=lambda r: r["id"]))
def test_no_rule_file_opens_the_way_down(rules: list[dict[str, Any]]) -> None:
    clearance = _rule("clearance", target_label="PUBLIC", when={"path": "public"})
    for rule in rules:
        rule.pop("target_label", None)
        rule["when"] = {"agent_id": [rule["id"], "agent-1"]}
        rule["hook"] = "PRE_TOOL_CALL"
    for order in ([clearance, *rules], [*rules, clearance]):
        decision = decide_call(_call(tool="write_file", path="public", taint=Label.INTERNAL), _rules(*order))
        assert decision.outcome is Outcome.DENY


_LISTED = [_call(command=text) for text in ("sudo ls", "env mount /dev/sda1 x", "sh -c 'rm -rf /'", ":(){ :|:& };:")]
_BAD_TOOL = _call(tool="policy.load")


# --- results ---


def test_a_result_rule_withholds_asks_or_labels() -> None:
    rules = _rules(
        _rule("marker", "deny", hook="POST_TOOL_RESPONSE", when={"output": {"contains": "TOP-SECRET"}}),
        _rule("exit", "ask", hook="POST_TOOL_RESPONSE", when={"exit_code": [2, 3]}),
        _rule("crm", label="CONFIDENTIAL", hook="POST_TOOL_RESPONSE", when={"reached": {"glob": "tcp:10.*"}}),
    )
    assert decide_result(_result(exit_code=0), b"fine \xff", rules).outcome is Outcome.ALLOW
    withheld = decide_result(_result(exit_code=0), b"\xff\x00TOP-SECRET", rules)
    assert (withheld.outcome, withheld.code, withheld.rule_id) == (Outcome.DENY, "DENIED_BY_RULE", "marker")
    assert decide_result(_result(exit_code=2), b"", rules).code == "PENDING_APPROVAL"
    assert decide_result(_result(exit_code=0, reached=("tcp:10.0.0.1:5432",)), b"", rules).label is Label.CONFIDENTIAL


def test_output_is_held_back_only_if_a_rule_may_withhold_it() -> None:
    assert not reads_output(DEFAULT_RULES)
    assert not reads_output(_rules(_rule("r", "deny")))
    assert reads_output(_rules(_rule("r", "deny", hook="POST_TOOL_RESPONSE", when={"exit_code": 1})))
    assert reads_output(
        _rules(_rule("r", label="INTERNAL", hook="POST_TOOL_RESPONSE", when={"output": {"contains": "x"}}))
    )


@pytest.mark.req("TP.19")
@pytest.mark.parametrize(
    "output",
    [b'{"classification": "PUBLIC", "label": "RESTRICTED"}', b'{"_classification": "RESTRICTED"}', b"label: INTERNAL"],
)
def test_no_label_comes_from_what_a_result_says(output: bytes) -> None:
    assert decide_result(_result(), output, DEFAULT_RULES).label is Label.PUBLIC
    ruled = _rules(_rule("r", label="INTERNAL", hook="POST_TOOL_RESPONSE"))
    assert decide_result(_result(), output, ruled).label is Label.INTERNAL


# --- time and repetition ---


@pytest.mark.req("TP.07")
@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*$",
        "(a|aa)+$",
        "(.*a){20}$",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(x+x+)+y",
        "(.*)*(.*)*z",
        "a*a*a*b",
    ],
)
def test_catastrophic_patterns_do_not_stall(pattern: str) -> None:
    rules = _rules(
        _rule("in", "deny", when={"path": {"matches": pattern}}),
        _rule("out", "deny", hook="POST_TOOL_RESPONSE", when={"output": {"matches": pattern}}),
    )
    text = "a" * 30_000 + "!"
    for decide in (
        lambda: decide_call(_call(path=text), rules),
        lambda: decide_result(_result(), text.encode(), rules),
    ):
        times: list[float] = []
        for _ in range(3):
            started = time.perf_counter()
            assert decide().code != "POLICY_UNAVAILABLE"
            times.append(time.perf_counter() - started)
        assert min(times) < 0.05


@pytest.mark.req("T1.89")
def test_ten_thousand_replays_give_the_same_decision() -> None:
    rules = _rules(
        _rule("a", "ask", when={"program": "git push"}),
        _rule("b", label="INTERNAL", when={"tool": ["run_command"]}),
        deny_commands=["curl"],
    )
    stored = _call(command="x=git; $x push; ls > é").model_dump_json()
    first = decide_call(CallContext.model_validate_json(stored), rules).model_dump_json()
    again = load_rules(rules.text)
    for _ in range(10_000):
        assert decide_call(CallContext.model_validate_json(stored), again).model_dump_json() == first
    decision = Decision.model_validate_json(first)
    assert (decision.rule_id, decision.label, decision.rules_sha256) == ("a", Label.INTERNAL, rules.sha256)


def test_the_digest_of_a_context_depends_on_every_field() -> None:
    base = decide_call(_call(), DEFAULT_RULES).context_sha256
    for change in ({"path": "x"}, {"caller": "mcp:tok_1"}, {"command": "ls"}, {"command": "\udc80"}):
        assert decide_call(_call(**change), DEFAULT_RULES).context_sha256 != base


def test_a_thousand_rules_are_judged_within_five_milliseconds() -> None:
    source = random.Random(1)
    tools = ["run_command", "read_file", "write_file", "edit_file", "search_files", "list_directory"]
    made = [
        _rule(
            f"r{number}",
            source.choice(["allow", "ask", "deny"]),
            when={
                "tool": source.choice(tools),
                "path": {"glob": f"dir{number}/*"},
                "agent_id": {"matches": f"^x{number}"},
            },
        )
        for number in range(1000)
    ]
    rules = _rules(*made)
    context = _call(command="git status && make test", path="src/x.py")
    times = []
    for _ in range(50):
        started = time.perf_counter()
        assert decide_call(context, rules).outcome is Outcome.ALLOW
        times.append(time.perf_counter() - started)
    assert statistics.median(times) < 0.005
