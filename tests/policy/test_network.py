"""Promise: what is not allowed by every profile that applies is denied; the strictest rule and the strictest mode win."""

from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.contract.errors import RulesInvalid
from coldframe.contract.policy import Label, Outcome, Role
from coldframe.policy.addresses import Address, AddressKind
from coldframe.policy.document import read_document
from coldframe.policy.network import (
    NetworkVerdict,
    Origin,
    judge_connection,
    judge_dialled,
    judge_lookup,
    judge_request,
)
from coldframe.policy.network_rules import Mode, NetworkRules, Registry, Scheme
from coldframe.policy.network_section import load_network
from coldframe.policy.targets import read_target

AGENT = Origin("sb-1", "agent-7", Role.AGENT, None, Label.PUBLIC)


def network(*rules: str, base: str = "none", use: str = "{'*': own}") -> NetworkRules:
    """Rules of one profile `own`, which everybody has."""
    lines = ["profiles:", "  own:", f"    base: {base}", "    rules:", *(f"      - {rule}" for rule in rules)]
    return load_network(read_document("\n".join([*lines, f"use: {use}", ""])))


def connect(
    rules: NetworkRules,
    to: str = "api.example.com",
    port: int = 443,
    scheme: Scheme | None = Scheme.HTTPS,
    *,
    origin: Origin = AGENT,
) -> NetworkVerdict:
    return judge_connection(rules, origin, to, port, scheme)


def ask(
    rules: NetworkRules,
    text: str,
    to: str = "api.example.com",
    port: int = 443,
    scheme: Scheme = Scheme.HTTPS,
    *,
    origin: Origin = AGENT,
) -> NetworkVerdict:
    method, _, target = text.partition(" ")
    return judge_request(rules, origin, to, port, scheme, method, read_target(target))


def is_allowed(verdict: NetworkVerdict) -> bool:
    return verdict.outcome is Outcome.ALLOW


API = "{id: api, to: api.example.com}"
BELOW = "{id: below, to: '*.example.com'}"


def test_nothing_is_allowed_without_rules() -> None:
    for rules in (load_network(None), load_network(read_document("")), load_network(read_document("use: {}"))):
        for asked in (None, "none", "packages", "open"):
            verdict = connect(rules, origin=AGENT._replace(asked=asked))
            assert (verdict.outcome, verdict.mode) == (Outcome.DENY, None)
            assert judge_lookup(rules, AGENT._replace(asked=asked), "api.example.com").outcome is Outcome.DENY
    assert connect(load_network(None)).rule_id == "network:none"


def test_an_empty_list_allows_nothing() -> None:
    rules = load_network(read_document("profiles: {own: {rules: []}}\nuse: {'*': own}"))
    assert connect(rules).rule_id == "network:default"


def test_a_name_is_allowed_on_its_port_and_by_its_scheme_alone() -> None:
    rules = network(API)
    verdict = connect(rules)
    assert (verdict.outcome, verdict.rule_id, verdict.mode) == (Outcome.ALLOW, "api", Mode.SNI)
    assert connect(rules, "API.Example.com.").rule_id == "api"
    for to, port, scheme in (
        ("api.example.com", 8443, Scheme.HTTPS),
        ("api.example.com", 80, Scheme.HTTP),
        ("api.example.com", 443, Scheme.HTTP),
        ("api.example.com", 443, Scheme.TCP),
        ("xapi.example.com", 443, Scheme.HTTPS),
        ("api.example.com.evil.example", 443, Scheme.HTTPS),
        ("a.api.example.com", 443, Scheme.HTTPS),
        ("example.com", 443, Scheme.HTTPS),
        ("api.example.com", 0, Scheme.HTTPS),
        ("api.example.com", 65536, Scheme.HTTPS),
    ):
        assert connect(rules, to, port, scheme).outcome is Outcome.DENY, (to, port, scheme)


@pytest.mark.parametrize("name", ["a.example.com", "a.b.example.com", "A.Example.COM."])
def test_a_star_stands_for_one_label_or_more(name: str) -> None:
    assert is_allowed(connect(network(BELOW), name))


@pytest.mark.parametrize("name", ["example.com", "aexample.com", "a.example.com.evil.example", "evil.example"])
def test_a_star_does_not_stand_for_less(name: str) -> None:
    assert not is_allowed(connect(network(BELOW), name))


@pytest.mark.parametrize(
    "name", ["", "127.0.0.1", "0x7f.1", "localhost", "аpi.example.com", "a..example.com", "a" * 999]
)
def test_what_is_no_name_is_denied_even_where_everything_is_open(name: str) -> None:
    rules = network(use="{'*': open}")
    assert connect(rules, name).rule_id == "network:name"
    assert is_allowed(connect(rules, "api.example.com"))


def test_open_allows_names_by_https_and_http_and_no_addresses() -> None:
    rules = network(use="{'*': open}")
    assert connect(rules, port=8443).mode is Mode.SNI
    assert connect(rules, port=80, scheme=Scheme.HTTP).mode is Mode.INTERCEPT
    assert not is_allowed(connect(rules, port=22, scheme=Scheme.TCP))
    assert not is_allowed(judge_connection(rules, AGENT, ip_address("8.8.8.8"), 443, Scheme.HTTPS))


def test_packages_reads_below_the_registries_of_this_machine() -> None:
    rules = network(use="{'*': packages}")
    assert not is_allowed(connect(rules, "mirror.example.com"))
    rules = rules.for_registries([Registry("mirror.example.com", path="/pypi/")])
    assert connect(rules, "mirror.example.com").mode is Mode.INTERCEPT
    assert is_allowed(ask(rules, "GET /pypi/simple/@a%2fb", "mirror.example.com"))
    for text in ("POST /pypi/simple/", "GET /other/", "GET /pypi%2Fx", "PUT /pypi/x"):
        assert not is_allowed(ask(rules, text, "mirror.example.com")), text
    assert not is_allowed(connect(rules, "mirror.example.com", 80, Scheme.HTTP))
    tainted = AGENT._replace(taint=Label.INTERNAL)
    assert ask(rules, "GET /pypi/simple/a", "mirror.example.com", origin=tainted).rule_id == "floor:write-down"


def test_a_session_above_public_asks_for_packages_only_as_far_as_the_file_clears_that() -> None:
    rules = load_network(read_document("packages: {cleared: INTERNAL}\nuse: {'*': packages}\n"))
    rules = rules.for_registries([Registry("mirror.example.com")])
    for taint, outcome in ((Label.PUBLIC, True), (Label.INTERNAL, True), (Label.CONFIDENTIAL, False)):
        verdict = ask(rules, "GET /a", "mirror.example.com", origin=AGENT._replace(taint=taint))
        assert is_allowed(verdict) is outcome
        assert verdict.label is Label.PUBLIC  # what comes from there is not labelled by that
    assert rules.packages.install_scripts
    rules = load_network(read_document("packages: {install_scripts: deny}"))
    assert (rules.packages.install_scripts, rules.packages.cleared) == (False, None)
    wrong = "packages: {cleared: SECRET}", "packages: {cleared: }", "packages: {install_scripts: ask}"
    for text in (*wrong, "packages: {label: PUBLIC}", "packages: INTERNAL"):
        with pytest.raises(RulesInvalid):
            load_network(read_document(text))


def test_what_a_registry_offers_is_told_apart_from_what_a_rule_passes_on() -> None:
    registry = Registry("mirror.example.com", path="/pypi/")
    upload = "{id: upload, to: mirror.example.com, methods: [POST]}"
    rules = network(upload, base="packages").for_registries([registry])
    assert ask(rules, "GET /pypi/a", "mirror.example.com").by_registry
    assert connect(rules, "mirror.example.com").by_registry
    assert not ask(rules, "POST /pypi/a", "mirror.example.com").by_registry
    both = network(use="{'*': packages}").for_registries([registry])
    asked = ask(both, "GET /pypi/a", "mirror.example.com", origin=AGENT._replace(asked="open"))
    assert is_allowed(asked) and asked.by_registry


def test_deny_beats_ask_beats_allow_in_any_order() -> None:
    texts = [BELOW, "{id: asks, to: api.example.com, then: ask}", "{id: never, to: '*.api.example.com', then: deny}"]
    for order in (texts, texts[::-1]):
        rules = network(*order)
        assert connect(rules, "www.example.com").outcome is Outcome.ALLOW
        assert (connect(rules).outcome, connect(rules).rule_id) == (Outcome.ASK, "asks")
        assert connect(rules, "a.api.example.com").rule_id == "never"


def test_every_profile_that_applies_has_to_agree() -> None:
    text = """
profiles:
  one: {rules: [{id: one, to: [a.example.com, b.example.com]}]}
  two: {rules: [{id: two, to: [b.example.com, c.example.com], mode: intercept}]}
use: {"*": open, "role:agent": one, "agent:agent-8": two, "sandbox:sb-9": none}
"""
    rules = load_network(read_document(text))
    assert is_allowed(connect(rules, "a.example.com"))
    assert not is_allowed(connect(rules, "c.example.com"))
    eight = AGENT._replace(agent_id="agent-8")
    assert [is_allowed(connect(rules, f"{name}.example.com", origin=eight)) for name in "abc"] == [False, True, False]
    assert connect(rules, "b.example.com", origin=eight).mode is Mode.INTERCEPT
    assert not is_allowed(connect(rules, "a.example.com", origin=AGENT._replace(sandbox_id="sb-9")))
    assert is_allowed(connect(rules, "x.example.com", origin=AGENT._replace(role=Role.MEMBER)))
    assert not is_allowed(connect(rules, "a.example.com", origin=AGENT._replace(asked="none")))
    assert connect(rules, "a.example.com", origin=AGENT._replace(asked="three")).rule_id == "network:unknown-profile"


def test_an_agent_named_like_a_role_is_no_role() -> None:
    rules = network(API, use="{'role:owner': own}")
    assert not is_allowed(connect(rules, origin=AGENT._replace(agent_id="owner", sandbox_id="owner")))


def test_a_rule_about_requests_makes_them_read() -> None:
    rules = network("{id: read, to: api.example.com, methods: [GET, HEAD], paths: [/v1/]}")
    assert connect(rules).mode is Mode.INTERCEPT
    assert is_allowed(ask(rules, "GET /v1/items?x=/../"))
    for text in (
        "POST /v1/items",
        "GET /v2/",
        "GET /v1",
        "get /v1/",
        "CONNECT /v1/",
        "TRACE /v1/",
        "GET /v1beta",
    ):
        assert not is_allowed(ask(rules, text)), text


def test_a_restriction_of_requests_makes_a_connection_read_that_would_pass() -> None:
    rules = network(BELOW, "{id: admin, to: api.example.com, paths: [/admin], then: deny}")
    assert connect(rules, "www.example.com").mode is Mode.SNI
    assert connect(rules).mode is Mode.INTERCEPT
    assert is_allowed(ask(rules, "DELETE /administration"))
    for text in ("GET /admin", "GET /ADMIN/x", "GET /admin%2Fx", "GET /admin;a=b/x", "GET /%61dmin/"):
        assert ask(rules, text).rule_id == "admin", text


def test_denying_a_method_denies_what_servers_take_for_it() -> None:
    rules = network(BELOW, "{id: get, to: api.example.com, methods: GET, then: deny}")
    assert ask(rules, "HEAD /").rule_id == "get"
    assert is_allowed(ask(rules, "POST /"))


def test_asking_about_requests_lets_the_connection_be_read() -> None:
    rules = network("{id: write, to: api.example.com, methods: [POST], then: ask}")
    assert (connect(rules).outcome, connect(rules).mode) == (Outcome.ALLOW, Mode.INTERCEPT)
    assert ask(rules, "POST /").outcome is Outcome.ASK
    assert ask(rules, "GET /").outcome is Outcome.DENY


def test_raw_is_raw_only_if_nothing_else_would_do() -> None:
    raw = "{id: ssh, to: git.example.com, mode: raw, ports: [22, 443]}"
    rules = network(raw, "{id: web, to: git.example.com}")
    assert connect(rules, "git.example.com", 22, None).mode is Mode.RAW
    assert connect(rules, "git.example.com", 443, None).mode is Mode.SNI
    assert connect(rules, "git.example.com", 443, Scheme.TCP).mode is Mode.RAW
    assert connect(rules, "git.example.com", 80, None).outcome is Outcome.DENY


@pytest.mark.parametrize("limit", ["scheme: https", "paths: [/admin]", "scheme: http, methods: [POST]"])
def test_what_nobody_looks_into_may_be_what_a_rule_denies(limit: str) -> None:
    raw = "{id: any, to: git.example.com, mode: raw, ports: 9000}"
    rules = network(raw, f"{{id: never, to: git.example.com, {limit}, then: deny}}")
    assert connect(rules, "git.example.com", 9000, None).outcome is Outcome.DENY
    assert connect(rules, "git.example.com", 9000, Scheme.TCP).rule_id == "never"


def test_plain_http_is_always_read() -> None:
    rules = network("{id: plain, to: api.example.com, scheme: [http, https]}")
    assert connect(rules, port=80, scheme=Scheme.HTTP).mode is Mode.INTERCEPT
    assert connect(rules, port=443).mode is Mode.SNI
    assert connect(rules, port=80, scheme=None).mode is Mode.SNI


def test_a_label_says_what_comes_and_what_may_go() -> None:
    rules = network("{id: crm, to: api.example.com, label: CONFIDENTIAL}", BELOW)
    verdict = connect(rules)
    assert (verdict.label, verdict.cleared) == (Label.CONFIDENTIAL, Label.CONFIDENTIAL)
    tainted = AGENT._replace(taint=Label.CONFIDENTIAL)
    assert is_allowed(connect(rules, origin=tainted))
    assert connect(rules, "www.example.com", origin=tainted).rule_id == "floor:write-down"
    assert connect(rules, origin=AGENT._replace(taint=Label.RESTRICTED)).rule_id == "floor:write-down"


def test_where_labels_differ_the_higher_comes_and_the_lower_goes() -> None:
    rules = network(
        "{id: all, to: api.example.com, mode: intercept, label: INTERNAL}",
        "{id: people, to: api.example.com, paths: [/people], label: RESTRICTED}",
    )
    connection = connect(rules, origin=AGENT._replace(taint=Label.RESTRICTED))
    assert (connection.outcome, connection.label) == (Outcome.ALLOW, Label.PUBLIC)  # each request has its own
    assert ask(rules, "GET /").label is Label.INTERNAL
    verdict = ask(rules, "GET /people/1")
    assert (verdict.label, verdict.cleared) == (Label.RESTRICTED, Label.INTERNAL)
    assert not is_allowed(ask(rules, "GET /people/1", origin=AGENT._replace(taint=Label.RESTRICTED)))


def test_what_comes_from_a_destination_is_held_to_the_ceiling_of_the_sandbox() -> None:
    rules = network(
        "{id: all, to: api.example.com, mode: intercept, label: INTERNAL}",
        "{id: people, to: api.example.com, paths: [/people], label: RESTRICTED}",
    )
    held = AGENT._replace(ceiling=Label.INTERNAL)
    assert is_allowed(connect(rules, origin=held)) and is_allowed(ask(rules, "GET /", origin=held))
    assert ask(rules, "GET /people/1", origin=held).rule_id == "floor:ceiling"
    assert is_allowed(ask(rules, "GET /people/1", origin=AGENT._replace(ceiling=Label.RESTRICTED)))


def test_a_person_may_be_asked_about_a_write_down_and_is_told() -> None:
    rules = network("{id: send, to: api.example.com, then: ask}")
    verdict = connect(rules, origin=AGENT._replace(taint=Label.RESTRICTED))
    assert verdict.outcome is Outcome.ASK
    assert "RESTRICTED" in verdict.reason


def test_an_unknown_taint_is_the_highest() -> None:
    verdict = connect(network(API), origin=AGENT._replace(taint="SECRET"))  # type: ignore[arg-type]
    assert verdict.rule_id == "floor:write-down"


def test_a_lookup_is_answered_unless_every_connection_would_be_denied() -> None:
    rules = network(
        BELOW,
        "{id: never, to: never.example.com, then: deny}",
        "{id: some, to: some.example.com, paths: [/a], then: deny}",
        "{id: asks, to: ask.example.org, then: ask}",
    )
    answers = {
        name: judge_lookup(rules, AGENT._replace(taint=Label.RESTRICTED), name).outcome
        for name in ("a.example.com", "never.example.com", "some.example.com", "ask.example.org", "other.example.org")
    }
    assert list(answers.values()) == [Outcome.ALLOW, Outcome.DENY, Outcome.ALLOW, Outcome.ALLOW, Outcome.DENY]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", None),
        ("127.0.0.1", AddressKind.LOOPBACK),
        ("169.254.169.254", AddressKind.METADATA),
        ("::ffff:10.0.0.1", AddressKind.PRIVATE),
        ("10.0.0.1", AddressKind.PRIVATE),
        ("fd12::1", AddressKind.UNIQUE_LOCAL),
    ],
)
def test_a_name_may_not_lead_to_a_special_address(address: str, kind: AddressKind | None) -> None:
    assert judge_dialled(connect(network(API)), ip_address(address)) is kind


def test_a_rule_opens_the_private_range_that_it_names_and_no_other() -> None:
    verdict = connect(network("{id: db, to: api.example.com, within: [10.1.0.0/16, 'fd12::/16']}"))
    for address, allowed in (
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("fd12::1", True),
        ("10.2.0.1", False),
        ("64:ff9b::10.1.2.3", False),
        ("2002:a01:203::", False),
        ("::10.1.2.3", False),
        ("127.0.0.1", False),
    ):
        assert (judge_dialled(verdict, ip_address(address)) is None) == allowed, address
    assert judge_dialled(verdict, ip_address("10.1.2.3"), own={ip_address("10.1.2.3")}) is AddressKind.OWN


def test_a_range_has_to_be_opened_by_every_profile() -> None:
    rules = network("{id: db, to: api.example.com, within: 10.1.0.0/16}", use="{'*': open, 'role:agent': own}")
    assert judge_dialled(connect(rules), ip_address("10.1.2.3")) is AddressKind.PRIVATE


def test_an_address_is_reached_only_by_a_rule_that_names_it() -> None:
    rules = network(
        "{id: one, to: [8.8.8.8, 10.9.0.0/24], mode: raw, ports: 5432}", "{id: names, to: '*.example.com', ports: any}"
    )

    def reach(text: str, port: int = 5432) -> NetworkVerdict:
        return judge_connection(rules, AGENT, ip_address(text), port, None)

    assert reach("8.8.8.8").mode is Mode.RAW
    assert judge_dialled(reach("10.9.0.7"), ip_address("10.9.0.7")) is None
    assert reach("::ffff:10.9.0.7").rule_id == "one"
    assert not is_allowed(reach("8.8.4.4"))
    assert not is_allowed(reach("8.8.8.8", 53))
    assert not is_allowed(reach("2606:4700::1111"))


HEAD = "profiles:\n  own:\n    rules:\n      - "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[]", 1),
        ("profile: {}", 1),
        ("profiles: [a]", 1),
        ("profiles:\n  open: {}", 2),
        ("profiles:\n  Own: {}", 2),
        ("profiles:\n  own: {bases: none}", 2),
        ("profiles:\n  own:\n    base: own", 3),
        ("profiles:\n  own:\n    rules: {}", 3),
        ("use: {'*': own}", 1),
        ("use:\n  '*': none\n  agent-7: none", 3),
        ("use:\n  'agent:': none", 2),
        ("use:\n  'role:root': none", 2),
        ("use:\n  '*': [none]", 2),
        (HEAD + "{id: a}", 4),
        (HEAD + "{to: a.example.com}", 4),
        (HEAD + "{id: a, to: a.example.com, allowedDomain: x}", 4),
        (HEAD + "{id: 'network:a', to: a.example.com}", 4),
        (HEAD + "{id: ' a', to: a.example.com}", 4),
        (HEAD + "{id: a, to: []}", 4),
        (HEAD + "{id: a, to: }", 4),
        (HEAD + "{id: a, to: 5}", 4),
        (HEAD + "{id: a, to: '*'}", 4),
        (HEAD + "{id: a, to: '*.com'}", 4),
        (HEAD + "{id: a, to: 'a.*.example.com'}", 4),
        (HEAD + "{id: a, to: '*.*.example.com'}", 4),
        (HEAD + "{id: a, to: localhost}", 4),
        (HEAD + "{id: a, to: 'https://a.example.com'}", 4),
        (HEAD + "{id: a, to: 127.0.0.0/8, mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: 169.254.169.254, mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: 0.0.0.0/0, mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: '::/0', mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: '::ffff:10.0.0.1', mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: 10.0.0.1/8, mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: 127.1, mode: raw, ports: 1}", 4),
        (HEAD + "{id: a, to: 8.8.8.8}", 4),
        (HEAD + "id: a\n        to: a.example.com\n        within: 8.8.8.0/24", 6),
        (HEAD + "id: a\n        to: a.example.com\n        within: 127.0.0.1", 6),
        (HEAD + "id: a\n        to: a.example.com\n        within: [10.0.0.0/8,\n          0.0.0.0/1]", 7),
        (HEAD + "id: a\n        to: 10.0.0.1\n        mode: raw\n        ports: 1\n        within: 10.0.0.0/8", 8),
        (HEAD + "id: a\n        to: a.example.com\n        ports: 0", 6),
        (HEAD + "id: a\n        to: a.example.com\n        ports: [1, 65536]", 6),
        (HEAD + "id: a\n        to: a.example.com\n        ports: 9-8", 6),
        (HEAD + "id: a\n        to: a.example.com\n        ports: all", 6),
        (HEAD + "id: a\n        to: a.example.com\n        ports: true", 6),
        (HEAD + "id: a\n        to: a.example.com\n        scheme: ftp", 6),
        (HEAD + "id: a\n        to: a.example.com\n        methods: get", 6),
        (HEAD + "id: a\n        to: a.example.com\n        methods: CONNECT", 6),
        (HEAD + "id: a\n        to: a.example.com\n        paths: v1", 6),
        (HEAD + "id: a\n        to: a.example.com\n        paths: /a/../b", 6),
        (HEAD + "id: a\n        to: a.example.com\n        paths: /a*", 6),
        (HEAD + "id: a\n        to: a.example.com\n        paths: '/a?b'", 6),
        (HEAD + "id: a\n        to: a.example.com\n        paths: /a%2fb", 6),
        (HEAD + "{id: a, to: a.example.com, paths: /a, mode: sni}", 4),
        (HEAD + "{id: a, to: a.example.com, mode: raw}", 4),
        (HEAD + "{id: a, to: a.example.com, mode: raw, scheme: https, ports: 1}", 4),
        (HEAD + "{id: a, to: a.example.com, scheme: tcp, ports: 1}", 4),
        (HEAD + "{id: a, to: a.example.com, scheme: http, mode: sni}", 4),
        (HEAD + "{id: a, to: a.example.com, mode: all}", 4),
        (HEAD + "{id: a, to: a.example.com, then: perhaps}", 4),
        (HEAD + "{id: a, to: a.example.com, label: SECRET}", 4),
        (HEAD + "{id: a, to: a.example.com, label: PUBLIC, then: deny}", 4),
        (HEAD + "{id: a, to: a.example.com, mode: sni, then: deny}", 4),
        (HEAD + "{id: a, to: a.example.com}\n      - {id: a, to: b.example.com}", 5),
    ],
)
def test_a_fault_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(RulesInvalid) as caught:
        load_network(read_document(text))
    assert caught.value.facts["line"] == line
    assert caught.value.code == "RULES_INVALID"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (API, "{id: same, to: api.example.com}"),
        (BELOW, API),
        (API, BELOW),
        (BELOW, "{id: read, to: api.example.com, methods: GET}"),
        (BELOW, "{id: read, to: '*.api.example.com', mode: intercept, paths: /v1}"),
        ("{id: some, to: api.example.com, paths: [/v1, /v2]}", "{id: less, to: api.example.com, paths: /v1/items}"),
        ("{id: never, to: '*.example.com', then: deny}", API),
        ("{id: asks, to: api.example.com, then: ask}", API),
        ("{id: a, to: 10.0.0.0/8, mode: raw, ports: 1-9}", "{id: b, to: 10.1.0.0/16, mode: raw, ports: 5}"),
    ],
)
def test_a_rule_without_effect_is_refused(first: str, second: str) -> None:
    with pytest.raises(RulesInvalid, match="line 6"):
        network(first, second)


@pytest.mark.parametrize(
    "second",
    [
        "{id: b, to: api.example.com, label: INTERNAL}",
        "{id: b, to: api.example.com, mode: intercept}",
        "{id: b, to: api.example.com, within: 10.0.0.0/8}",
        "{id: b, to: api.example.com, ports: 8443}",
        "{id: b, to: api.example.com, scheme: http}",
        "{id: b, to: api.example.com, then: ask}",
        "{id: b, to: api.example.com, methods: POST, then: deny}",
        "{id: b, to: example.com}",
    ],
)
def test_a_rule_with_an_effect_is_not(second: str) -> None:
    assert is_allowed(connect(network(BELOW, second), "www.example.com"))


def test_a_restriction_on_top_of_open_that_restricts_nothing_is_refused() -> None:
    with pytest.raises(RulesInvalid, match="of the base"):
        network("{id: read, to: api.example.com, methods: GET}", base="open")
    assert not is_allowed(connect(network("{id: never, to: api.example.com, then: deny}", base="open")))


NAMES = st.sampled_from(["a.example.com", "b.a.example.com", "example.com", "c.example.org"])
PLACES = st.sampled_from(["a.example.com", "'*.example.com'", "'*.a.example.com'", "c.example.org", "10.0.0.0/8"])


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    parts = [f"id: r{draw(st.integers(0, 10**6))}", f"to: {draw(PLACES)}"]
    for name, values in (
        ("then", ["deny", "ask", "allow"]),
        ("ports", ["443", "[80, 443]", "any"]),
        ("scheme", ["http", "https", "[http, https]", "tcp"]),
        ("mode", ["raw", "sni", "intercept"]),
        ("methods", ["GET", "[GET, POST]"]),
        ("paths", ["/v1", "/"]),
        ("label", ["INTERNAL", "RESTRICTED"]),
    ):
        if draw(st.booleans()):
            parts.append(f"{name}: {draw(st.sampled_from(values))}")
    return "{" + ", ".join(parts) + "}"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(rule_texts(), max_size=4),
    NAMES | st.just(ip_address("10.1.1.1")),
    st.sampled_from([80, 443, 9]),
    st.sampled_from([None, *Scheme]),
    st.sampled_from(Label),
)
def test_another_rule_that_denies_never_lets_more_through(
    texts: list[str], to: str | Address, port: int, scheme: Scheme | None, taint: Label
) -> None:
    origin = AGENT._replace(taint=taint)
    kept: list[str] = []
    for text in texts:  # those that load together
        try:
            network(*kept, text)
        except RulesInvalid:
            continue
        kept.append(text)
    rules = network(*kept)
    before = judge_connection(rules, origin, to, port, scheme)
    if before.outcome is not Outcome.DENY:
        assert before.mode is not None
        assert before.rule_id.startswith("r")
    if isinstance(to, str) and before.outcome is not Outcome.DENY:
        assert judge_lookup(rules, origin, to).outcome is Outcome.ALLOW
    try:
        stricter = network(*kept, "{id: last, to: a.example.com, ports: 443, then: deny}")
    except RulesInvalid:
        return
    after = judge_connection(stricter, origin, to, port, scheme)
    assert after.outcome.strictness >= before.outcome.strictness
    if scheme in (Scheme.HTTP, Scheme.HTTPS) and before.outcome is Outcome.DENY:
        for method in ("GET", "POST"):
            request = judge_request(rules, origin, to, port, scheme, method, read_target("/v1/x"))
            assert request.outcome is Outcome.DENY
