"""The section `network` of the rule file: what it may say, checked at load.

```yaml
network:
  profiles:
    crm:
      base: packages
      rules:
        - {id: crm-read, to: crm.example.com, methods: [GET], paths: [/v1/], label: CONFIDENTIAL}
        - {id: no-logs, to: "*.logs.example.com", then: deny}
  use:
    "agent:agent-7": crm
```

`none`, `packages` and `open` are built in. Whatever could not have the effect that its author reads into it is refused
with its line: an address that no rule can open, a restriction beside a rule that allows the same without it, methods or
paths where nobody sees requests.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_network

from coldframe.contract.policy import Label, Outcome, Role
from coldframe.policy.addresses import OPENABLE, Network, judge_address, read_address, refused_in
from coldframe.policy.document import Tree
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.network_rules import (
    BUILT_IN,
    EVERYBODY,
    NEVER_METHODS,
    NONE,
    OPEN,
    OPEN_RULE,
    Mode,
    NetworkRule,
    NetworkRules,
    PackageRules,
    Place,
    Profile,
    Scheme,
    is_idle,
)
from coldframe.policy.targets import TargetInvalid, read_target

MAX_NETWORK_RULES = 500
"""Over all profiles of one file; each is compared with those of its profile at load."""
MAX_PLACES = 100
"""Values of one list of a rule."""

_NAME_OF_PROFILE = re.compile(r"[a-z][a-z0-9-]{0,63}")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_RESERVED_IDS = ("floor:", "denylist:", "settings:", "network:", "packages:", "default")
_KEYS = ("id", "to", "ports", "scheme", "methods", "paths", "mode", "label", "within", "then", "reason")
_USUAL_PORTS = {Scheme.HTTPS: 443, Scheme.HTTP: 80}


def load_network(tree: Tree | None) -> NetworkRules:
    """Check and compile the section `network`. Raises RulesInvalid with the fact `line`."""
    if tree is None or tree.is_empty:
        return NetworkRules()
    tree.require_mapping("`network`", ("profiles", "use", "packages"))
    profiles: list[Profile] = []
    lines: dict[str, int] = {}
    section = tree.child("profiles")
    if section is not None and not section.is_empty:
        section.require_mapping("`profiles`", None)
        for name, node in section.pairs():
            profiles.append(_load_profile(name, node, lines))
    use = _load_use(tree.child("use"), {*BUILT_IN, *(profile.name for profile in profiles)})
    return NetworkRules(profiles, use, packages=_load_packages(tree.child("packages")))


def _load_packages(node: Tree | None) -> PackageRules:
    if node is None or node.is_empty:
        return PackageRules()
    node.require_mapping("`packages`", ("cleared", "install_scripts"))
    cleared = node.child("cleared")
    return PackageRules(
        None if cleared is None else Label(_choice(node, "cleared", list(Label), "")),
        _choice(node, "install_scripts", ["allow", "deny"], "allow") == "allow",
    )


def _load_profile(name: str, node: Tree, lines: dict[str, int]) -> Profile:
    if name in BUILT_IN or _NAME_OF_PROFILE.fullmatch(name) is None:
        raise node.fault(f"`{name}` is no name for a profile of yours: lower-case letters, digits and hyphens")
    node.require_mapping(f"profile `{name}`", ("base", "rules"))
    base = node.text("base", default=NONE)
    if base not in BUILT_IN:
        raise node.child_or_self("base").fault(f"`{base}` is no base of a profile; known are {', '.join(BUILT_IN)}")
    rules: list[NetworkRule] = []
    listed = node.child("rules")
    for item in listed.items("`rules`") if listed is not None else ():
        rule = _load_rule(item)
        if rule.id in lines:
            raise item.fault(f"rule id `{rule.id}` is used at line {lines[rule.id]} already")
        lines[rule.id] = item.line
        if len(lines) > MAX_NETWORK_RULES:
            raise item.fault(f"more than {MAX_NETWORK_RULES} network rules")
        for other in (*rules, *((OPEN_RULE,) if base == OPEN else ())):
            where = f"at line {lines[other.id]}" if other.id in lines else "of the base"
            if is_idle(rule, other):
                raise item.fault(f"rule `{rule.id}` changes nothing beside `{other.id}` {where}, which says all of it")
            if is_idle(other, rule):
                raise item.fault(
                    f"rule `{rule.id}` leaves `{other.id}` {where} without effect, since it says all of it"
                )
        rules.append(rule)
    return Profile(name, base, tuple(rules))


def _load_use(node: Tree | None, known: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if node is None or node.is_empty:
        return found
    node.require_mapping("`use`", None)
    for whom, child in node.pairs():
        kind, _, name = whom.partition(":")
        if whom != EVERYBODY and (kind not in ("sandbox", "agent", "role") or not name):
            raise child.fault(f"`{whom}` is nobody: give `sandbox:ID`, `agent:ID`, `role:NAME` or `{EVERYBODY}`")
        if kind == "role" and name not in [role.value for role in Role]:
            raise child.fault(f"`{name}` is no role; roles are {', '.join(Role)}")
        if not isinstance(child.value, str) or child.value not in known:
            raise child.fault(f"`{child.value}` is no profile; known are {', '.join(sorted(known))}")
        found[whom] = child.value
    return found


def _load_rule(node: Tree) -> NetworkRule:
    node.require_mapping("a network rule", _KEYS, required=("id", "to"))
    rule_id = node.text("id", limit=100)
    if not rule_id or rule_id.startswith(_RESERVED_IDS) or not rule_id.isprintable() or rule_id != rule_id.strip():
        raise node.child_or_self("id").fault(f"`{rule_id}` is no id for a rule of yours")
    outcome = Outcome(_choice(node, "then", list(Outcome), Outcome.ALLOW.value))
    if outcome is Outcome.DENY:
        for name in ("mode", "label", "within"):
            if (child := node.child(name)) is not None:
                raise child.fault(f"`{name}` says nothing in a rule that denies")
    places = tuple(_load_place(item) for item in _several(node, "to"))
    methods, paths = _load_methods(node), _load_paths(node)
    schemes = _load_schemes(node, outcome)
    mode = None if outcome is Outcome.DENY else _load_mode(node, schemes, reads_requests=bool(methods or paths))
    if Scheme.TCP in schemes and mode is not None and mode is not Mode.RAW:
        raise node.child_or_self("scheme").fault("`tcp` goes with `mode: raw` only, since nobody looks into it")
    if any(place.network is not None for place in places) and mode is Mode.SNI and Scheme.HTTPS in schemes:
        raise node.child_or_self("to").fault("an address is no name that a handshake could hold: give `mode`")
    label = node.child("label")
    return NetworkRule(
        rule_id,
        places,
        schemes,
        _load_ports(node, outcome, schemes),
        methods,
        paths,
        outcome,
        mode,
        Label(_choice(node, "label", list(Label), "")) if label is not None else None,
        _load_within(node, places),
        node.text("reason", limit=1000, default=f"rule `{rule_id}`"),
    )


def _load_place(item: Tree) -> Place:
    text = item.value
    if not isinstance(text, str):
        raise item.fault("a destination is a name, `*.NAME`, an address or a range of addresses, as text")
    if read_address(text) is not None or "/" in text:
        return Place("", network=_load_network(item, text))
    below = text.startswith("*.")
    try:
        name = read_name(text.removeprefix("*."))
    except NameInvalid as error:
        advice = "; all names are profile `open`" if text == EVERYBODY else ""
        wide = "; `*.` needs a name of two labels or more" if below else ""
        raise item.fault(f"`{text}` is no destination: {error}{wide}{advice}") from None
    return Place(name, below)


def _load_network(item: Tree, text: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError:
        raise item.fault(f"`{text}` is no address and no range of addresses") from None
    kind = refused_in(network)
    if kind is not None:
        raise item.fault(f"`{text}` can be reached by no rule: it is {kind}, or reaches into such addresses")
    return network


def _load_within(node: Tree, places: tuple[Place, ...]) -> tuple[Network, ...]:
    child = node.child("within")
    if child is None:
        return tuple(place.network for place in places if place.network is not None)
    if any(place.network is not None for place in places):
        raise child.fault("`within` is about names")
    found = []
    for item in _several(node, "within"):
        network = _load_network(item, str(item.value))
        if any(judge_address(end).kind not in OPENABLE for end in (network[0], network[-1])):
            raise item.fault(f"`{item.value}` is no range of private addresses; public ones need no naming")
        found.append(network)
    return tuple(found)


def _load_schemes(node: Tree, outcome: Outcome) -> frozenset[Scheme]:
    child = node.child("scheme")
    if child is None:
        if outcome is Outcome.DENY:
            return frozenset(Scheme)
        return frozenset({Scheme.TCP if node.text("mode", default="") == Mode.RAW else Scheme.HTTPS})
    for item in _several(node, "scheme"):
        if item.value not in [scheme.value for scheme in Scheme]:
            raise item.fault(f"`{item.value}` is no scheme; known are {', '.join(Scheme)}")
    return frozenset(Scheme(str(item.value)) for item in _several(node, "scheme"))


def _load_mode(node: Tree, schemes: frozenset[Scheme], *, reads_requests: bool) -> Mode:
    usual = Mode.INTERCEPT if reads_requests or schemes == {Scheme.HTTP} else Mode.SNI
    mode = Mode(_choice(node, "mode", list(Mode), usual.value))
    place = node.child_or_self("mode")
    if reads_requests and mode is not Mode.INTERCEPT:
        raise place.fault(f"`methods` and `paths` need `mode: intercept`: in `{mode}` nobody sees requests")
    if mode is Mode.RAW and (schemes != {Scheme.TCP} or node.child("ports") is None):
        raise place.fault("`mode: raw` takes the scheme `tcp` alone, and `ports`")
    if mode is Mode.SNI and schemes == {Scheme.HTTP}:
        raise place.fault("plain `http` has no handshake: its mode is `intercept`")
    return mode


def _load_ports(node: Tree, outcome: Outcome, schemes: frozenset[Scheme]) -> frozenset[int] | None:
    child = node.child("ports")
    if child is None:
        if outcome is Outcome.DENY:
            return None
        return frozenset(port for scheme, port in _USUAL_PORTS.items() if scheme in schemes)
    if child.value == "any":
        return None
    found: set[int] = set()
    for item in _several(node, "ports"):
        low = high = item.value
        between = _RANGE.fullmatch(item.value) if isinstance(item.value, str) else None
        if between is not None:
            low, high = int(between.group(1)), int(between.group(2))
        if type(low) is not int or type(high) is not int or not 1 <= low <= high <= 65535:
            raise item.fault(f"`{item.value}` is no port: give 1 to 65535, `8000-8099` or `any`")
        found.update(range(low, high + 1))
    return frozenset(found)


def _load_methods(node: Tree) -> frozenset[str] | None:
    if node.child("methods") is None:
        return None
    found = set()
    for item in _several(node, "methods"):
        if not isinstance(item.value, str) or _METHOD.fullmatch(item.value) is None or item.value in NEVER_METHODS:
            raise item.fault(f"`{item.value}` is no method to allow or deny; methods are in capitals")
        found.add(item.value)
    return frozenset(found)


def _load_paths(node: Tree) -> tuple[str, ...] | None:
    if node.child("paths") is None:
        return None
    found = []
    for item in _several(node, "paths"):
        try:
            target = read_target(item.value if isinstance(item.value, str) else "")
        except TargetInvalid as error:
            raise item.fault(f"`{item.value}` is no beginning of a path: {error}") from None
        if target.query is not None or target.readings != {target.path} or "*" in target.path:
            raise item.fault(f"`{item.value}` is no plain beginning of a path: leave out `?`, `*`, `;` and `%2F`")
        found.append(target.path)
    return tuple(found)


def _several(node: Tree, name: str) -> list[Tree]:
    """The values of a key that takes one or a list; never none, since such a rule could never match."""
    child = node.child_or_self(name)
    if isinstance(child.value, str | int):
        return [child]
    items = child.items(f"`{name}`")
    if not 0 < len(items) <= MAX_PLACES:
        raise child.fault(f"`{name}` takes 1 to {MAX_PLACES} values")
    return items


def _choice(node: Tree, name: str, known: Sequence[str], default: str) -> str:
    value = node.text(name, default=default)
    if value not in known:
        raise node.child_or_self(name).fault(f"`{value}` is no `{name}`; known are {', '.join(known)}")
    return value
