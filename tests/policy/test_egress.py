"""Promise: rules of NETWORK_EGRESS only tighten what the network rules let through, wherever they can be known to match."""

from typing import Any

import pytest
import yaml

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import Label, Outcome, Role, SecretContext
from coldframe.policy import hooks
from coldframe.policy.egress import narrow
from coldframe.policy.hooks import decide_secret
from coldframe.policy.network import NetworkVerdict, Origin, judge_connection, judge_request
from coldframe.policy.network_rules import Scheme
from coldframe.policy.rules import RuleSet, load_rules
from coldframe.policy.targets import read_target

SITE = "api.example.com"
AGENT = Origin("sbx-1", "agent-7", Role.AGENT, None, Label.PUBLIC)


def rules_of(*rules: dict[str, Any], mode: str = "intercept") -> RuleSet:
    site = {"id": "site", "to": [SITE, "93.184.215.14"], "mode": mode, "label": "INTERNAL"}
    if mode == "sni":
        site["to"] = SITE
    named = [{"id": f"r{number}", "hook": "NETWORK_EGRESS", **rule} for number, rule in enumerate(rules)]
    network = {"profiles": {"own": {"rules": [site]}}, "use": {"*": "own"}}
    return load_rules(yaml.safe_dump({"version": 1, "rules": named, "network": network}))


def connect(rules: RuleSet, *, origin: Origin = AGENT, port: int = 443) -> NetworkVerdict:
    verdict = judge_connection(rules.network, origin, SITE, port, Scheme.HTTPS)
    return narrow(rules, verdict, origin, SITE, port, Scheme.HTTPS)


def ask(rules: RuleSet, method: str, path: str) -> NetworkVerdict:
    target = read_target(path)
    verdict = judge_request(rules.network, AGENT, SITE, 443, Scheme.HTTPS, method, target)
    return narrow(rules, verdict, AGENT, SITE, 443, Scheme.HTTPS, (method, target))


@pytest.mark.parametrize(
    "when",
    [
        *({}, {"name": SITE}, {"name": {"glob": "*.example.com"}}, {"port": 443}, {"port": {"at_least": 400}}),
        *({"sandbox_id": "sbx-1"}, {"agent_id": ["agent-7"]}, {"role": "agent"}, {"taint": "PUBLIC"}),
        *({"scheme": "https"}, {"mode": "intercept"}, {"address": ""}),
    ],
)
def test_a_condition_on_a_connection_is_asked_when_it_is_made(when: dict[str, Any]) -> None:
    assert connect(rules_of({"when": when, "then": "deny", "reason": "no"}))[:3] == (Outcome.DENY, "r0", "no")
    assert connect(rules_of({"when": when, "then": "ask"})).outcome is Outcome.ASK
    other = {"agent_id": "agent-8"} if "agent_id" not in when else {"name": "other.example.com"}
    assert connect(rules_of({"when": {**when, **other}, "then": "deny"})).outcome is Outcome.ALLOW


def test_the_label_of_a_destination_is_that_of_each_request_where_these_are_read() -> None:
    rule = {"when": {"label": {"above": "PUBLIC"}}, "then": "deny"}
    assert connect(rules_of(rule)).outcome is Outcome.ALLOW
    assert ask(rules_of(rule), "GET", "/").rule_id == "r0"
    assert connect(rules_of(rule, mode="sni")).rule_id == "r0"


def test_what_the_network_rules_deny_stays_denied() -> None:
    rules = rules_of({"then": "allow"})
    assert connect(rules, port=8443).rule_id == "network:default"
    assert connect(rules).outcome is Outcome.ALLOW


def test_a_rule_on_requests_is_asked_for_each_request_where_these_are_read() -> None:
    rules = rules_of(
        {"when": {"method": "POST"}, "then": "deny"}, {"when": {"path": {"glob": "/admin*"}}, "then": "ask"}
    )
    assert connect(rules).outcome is Outcome.ALLOW
    assert ask(rules, "GET", "/v1").outcome is Outcome.ALLOW
    assert ask(rules, "POST", "/v1").rule_id == "r0"
    for path in ("/admin", "/ADMIN/x", "/admin%2Fx", "/Admin;x"):
        assert (ask(rules, "GET", path).outcome, ask(rules, "GET", path).rule_id) == (Outcome.ASK, "r1"), path
    assert ask(rules_of({"when": {"method": "GET"}, "then": "deny"}), "HEAD", "/").outcome is Outcome.DENY


def test_a_rule_on_requests_denies_the_connection_where_nobody_reads_them() -> None:
    rules = rules_of({"when": {"method": "POST"}, "then": "deny"}, mode="sni")
    assert connect(rules).outcome is Outcome.DENY
    assert (
        connect(rules_of({"when": {"method": "POST", "port": 1}, "then": "deny"}, mode="sni")).outcome is Outcome.ALLOW
    )


def test_a_label_is_that_of_what_comes_back_and_only_rises() -> None:
    assert connect(rules_of({"label": "RESTRICTED"})).label is Label.RESTRICTED
    assert ask(rules_of({"label": "PUBLIC"}), "GET", "/").label is Label.INTERNAL


def test_a_label_of_a_rule_is_held_to_the_ceiling_of_the_sandbox() -> None:
    held = AGENT._replace(ceiling=Label.INTERNAL)
    assert connect(rules_of({"label": "RESTRICTED"}), origin=held).rule_id == "floor:ceiling"
    assert connect(rules_of({"label": "INTERNAL"}), origin=held).outcome is Outcome.ALLOW


def test_an_address_has_no_name_and_a_name_no_address() -> None:
    rules = rules_of({"when": {"address": {"glob": "93.*"}}, "then": "deny"}, mode="intercept")
    assert connect(rules).outcome is Outcome.ALLOW


def test_what_cannot_be_judged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    rules = rules_of({"then": "allow"})
    monkeypatch.setattr(hooks, "_judge", broken)
    assert connect(rules).rule_id == "floor:unavailable"
    context = secret()
    decision = decide_secret(context, load_rules("version: 1\nrules: [{id: a, hook: SECRET_ACCESS, then: allow}]\n"))
    assert (decision.outcome, decision.code) == (Outcome.DENY, "POLICY_UNAVAILABLE")


def secret(**changes: Any) -> SecretContext:
    given: dict[str, Any] = {
        "sandbox_id": "sbx-1",
        "session_id": "ses-1",
        "agent_id": "agent-7",
        "taint": "PUBLIC",
        "credential": "crm",
        "production": True,
        "purpose": "nightly report",
        "name": SITE,
        "port": 443,
        "method": "GET",
        "paths": ("/v1/items",),
        "label": "INTERNAL",
        "uses": 3,
    }
    return SecretContext.model_validate(given | changes)


@pytest.mark.parametrize(
    ("when", "changed"),
    [
        ("credential: crm", {"credential": "other"}),
        ("production: true", {"production": False}),
        ("purpose: {contains: report}", {"purpose": "x"}),
        ("name: {glob: '*.example.com'}", {"name": "b.example.org"}),
        ("method: [GET, POST]", {"method": "PUT"}),
        ("path: {glob: '/v1/*'}", {"paths": ("/v2",)}),
        ("label: {at_least: INTERNAL}", {"label": "PUBLIC"}),
        ("uses: {at_least: 3}", {"uses": 2}),
        ("taint: PUBLIC", {"taint": "INTERNAL"}),
        ("session_id: ses-1", {"session_id": "ses-2"}),
    ],
)
def test_the_use_of_a_credential_is_judged_by_its_context(when: str, changed: dict[str, Any]) -> None:
    rules = load_rules(f"version: 1\nrules: [{{id: r, hook: SECRET_ACCESS, when: {{{when}}}, then: deny}}]\n")
    assert decide_secret(secret(), rules).rule_id == "r"
    assert decide_secret(secret(**changed), rules).outcome is Outcome.ALLOW


def test_a_rule_of_secret_access_gives_no_label_which_nobody_would_see() -> None:
    with pytest.raises(RulesInvalid, match="label the credential"):
        load_rules("version: 1\nrules: [{id: r, hook: SECRET_ACCESS, label: INTERNAL}]\n")
