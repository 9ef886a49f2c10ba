"""Judges what a box wants from the network: a look-up, a connection, a request, and the address that is dialled.

Nothing is allowed unless a rule allows it. Several profiles may apply to one sandbox: the one it asked for and those
that the rule file gives to it, its agent, the role and everybody. All of them have to agree. Within a profile, the
strictest outcome of all rules that match holds (deny, then ask, then allow), as everywhere; so does the strictest mode.

A connection is judged before its first byte is read, again when its first bytes show what is spoken, and again when the
rules change. What cannot be told yet is not denied yet: a rule on methods or paths makes the connection one whose
requests are read, and each of these is judged.

The label of a destination says two things: what comes from there has this label at least, and nothing labelled higher may go
there. Where rules that match differ, the higher one counts for what comes and the lower one for what goes.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from coldframe.contract.policy import Label, Outcome, Role
from coldframe.policy import labels
from coldframe.policy.addresses import OPENABLE, Address, AddressKind, Network, judge_address
from coldframe.policy.hostnames import NameInvalid, read_name
from coldframe.policy.network_rules import NEVER_METHODS, NONE, Mode, NetworkRule, NetworkRules, RuleTable, Scheme
from coldframe.policy.targets import Target, is_below

_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")


class Origin(NamedTuple):
    """Who wants it."""

    sandbox_id: str
    agent_id: str | None
    role: Role
    asked: str | None
    """Profile that the sandbox was created with; None if it takes what the rule file gives."""
    taint: Label
    """Label of the session now."""
    ceiling: Label | None = None
    """The highest label that the sandbox was made for."""

    def may_get(self, label: Label) -> bool:
        return self.ceiling is None or labels.may_flow(label, self.ceiling)

    def too_high(self, label: Label) -> str:
        return f"the sandbox was made for {self.ceiling} at most, and what comes from there is {label}"


class NetworkVerdict(NamedTuple):
    """The answer to one question."""

    outcome: Outcome
    rule_id: str
    reason: str
    mode: Mode | None = None
    """How the connection is handled; None unless it is allowed or a person is to be asked."""
    label: Label = Label.PUBLIC
    """What comes from there has this label at least."""
    cleared: Label = Label.PUBLIC
    """What goes there has this label at most."""
    within: tuple[tuple[Network, ...], ...] = ()
    """By profile: the ranges beside public addresses that the destination may be in."""
    by_registry: bool = False
    """Some profile allows it as what a registry offers: the broker's view of packages answers, and passes nothing on."""


class _Question(NamedTuple):
    """What is asked, as two readings of each rule that names the destination."""

    what: str
    counts: Callable[[NetworkRule], Outcome | None]
    """What the rule answers; None if it does not match."""
    looks: Callable[[NetworkRule], Mode | None]
    """How much has to be seen because of the rule, whether it matches or not."""
    judges_labels: Callable[[Mode], bool]
    """Whether in this mode it is the question that decides what goes out."""


def judge_lookup(rules: NetworkRules, origin: Origin, name: str) -> NetworkVerdict:
    """Whether the name has an address at all: denied only if every connection to it would be. Never ASK."""

    def counts(rule: NetworkRule) -> Outcome | None:
        if rule.outcome is not Outcome.DENY:
            return Outcome.ALLOW
        whole = rule.ports is None and not rule.reads_requests and rule.schemes == frozenset(Scheme)
        return Outcome.DENY if whole else None

    return _judge(rules, origin, name, _Question("as a name", counts, lambda rule: None, lambda mode: False))


def judge_connection(
    rules: NetworkRules, origin: Origin, destination: str | Address, port: int, scheme: Scheme | None = None
) -> NetworkVerdict:
    """Whether the box may connect to a name, or to an address for which it asked no name.

    `scheme` is what the first bytes show. Without it the connection is allowed if some scheme would be, and `mode` is
    RAW only if nothing else would be: else the first bytes have to be read and the connection judged again. In mode
    INTERCEPT labels are not judged yet, since they are those of each request.
    """
    if not 1 <= port <= 65535:
        return _deny("network:port", f"{port} is no port")
    if scheme is None:
        answers = [judge_connection(rules, origin, destination, port, each) for each in Scheme]
        return min(answers, key=lambda answer: (answer.outcome.strictness, answer.rule_id == "network:default"))

    def concerns(rule: NetworkRule) -> bool:
        if rule.ports is not None and port not in rule.ports:
            return False
        # Nobody looks into `tcp`, so it may be whatever a rule restricts.
        return scheme in rule.schemes or (scheme is Scheme.TCP and rule.outcome is not Outcome.ALLOW)

    def counts(rule: NetworkRule) -> Outcome | None:
        if not concerns(rule):
            return None
        if not rule.reads_requests or scheme is Scheme.TCP:
            return rule.outcome
        return None if rule.outcome is Outcome.DENY else Outcome.ALLOW  # requests will tell

    def looks(rule: NetworkRule) -> Mode | None:
        if not concerns(rule) or scheme is Scheme.TCP:
            return Mode.RAW
        return Mode.INTERCEPT if scheme is Scheme.HTTP or rule.reads_requests else rule.mode

    return _judge(
        rules,
        origin,
        destination,
        _Question(f"port {port} by {scheme}", counts, looks, lambda mode: mode is not Mode.INTERCEPT),
    )


def judge_request(
    rules: NetworkRules,
    origin: Origin,
    destination: str | Address,
    port: int,
    scheme: Scheme,
    method: str,
    target: Target,
) -> NetworkVerdict:
    """Whether one HTTP request may be sent over a connection in mode INTERCEPT; what is sent is `target.text`."""
    if scheme is Scheme.TCP:
        return _deny("network:scheme", "there are no requests in `tcp`")
    if _METHOD.fullmatch(method) is None or method in NEVER_METHODS:
        return _deny("floor:method", f"`{method[:40]}` is sent nowhere")
    readings = target.readings
    lowered = {reading.lower() for reading in readings}

    def counts(rule: NetworkRule) -> Outcome | None:
        if scheme not in rule.schemes or not (rule.ports is None or port in rule.ports):
            return None
        if rule.outcome is Outcome.ALLOW:
            fits = (rule.methods is None or method in rule.methods) and (
                rule.paths is None
                or all(any(is_below(reading, prefix) for prefix in rule.paths) for reading in readings)
            )
        else:  # also what a server may take for the same: HEAD for GET, other case of the path
            same = {method, "GET"} if method == "HEAD" else {method}
            fits = (rule.methods is None or not same.isdisjoint(rule.methods)) and (
                rule.paths is None
                or any(is_below(reading, prefix.lower()) for prefix in rule.paths for reading in lowered)
            )
        return rule.outcome if fits else None

    what = f"{method} of `{target.path[:200]}` on port {port} by {scheme}"
    return _judge(rules, origin, destination, _Question(what, counts, lambda rule: Mode.INTERCEPT, lambda mode: True))


def judge_dialled(verdict: NetworkVerdict, address: Address, *, own: Collection[Address] = ()) -> AddressKind | None:
    """Why an address that an allowed destination resolved to may not be dialled; None if it may, and then `dialled`
    of `judge_address` is what is dialled. `own`: addresses of this machine."""
    judged = judge_address(address, own=own)
    if judged.is_public:
        return None
    inside = bool(verdict.within) and all(
        any(judged.dialled in network for network in ranges) for ranges in verdict.within
    )
    return None if inside and judged.kind in OPENABLE else judged.kind


def _judge(rules: NetworkRules, origin: Origin, destination: str | Address, question: _Question) -> NetworkVerdict:
    place = _read_destination(destination)
    if isinstance(place, NetworkVerdict):
        return place
    tables = _tables(rules, origin)
    if isinstance(tables, NetworkVerdict):
        return tables
    answers: list[NetworkVerdict] = []
    matching: list[NetworkRule] = []
    modes = {Mode.RAW}
    for table in tables:
        about = table.about(place)
        counting = [(rule, outcome) for rule in about if (outcome := question.counts(rule)) is not None]
        modes.update(mode for rule in about if (mode := question.looks(rule)) is not None)
        matching += [rule for rule, _ in counting]
        answers.append(_judge_profile(table.profile, place, question, counting))
    verdict = max(answers, key=lambda answer: answer.outcome.strictness)
    if verdict.outcome is Outcome.DENY:
        return verdict
    mode = max(modes, key=lambda each: each.strictness)
    verdict = verdict._replace(
        mode=mode,
        within=tuple(ranges for answer in answers for ranges in answer.within),
        by_registry=any(answer.by_registry for answer in answers),
    )
    if not question.judges_labels(mode):
        return verdict
    given = [rule.label for rule in matching if rule.label is not None]
    clearances = [each for rule in matching if (each := rule.cleared or rule.label) is not None]
    cleared = min(clearances, key=lambda label: label.rank, default=Label.PUBLIC)
    if not labels.may_flow(origin.taint, cleared):
        reason = f"the session is {labels.parse(origin.taint)}, and `{place}` is cleared for {cleared} only"
        if verdict.outcome is Outcome.ALLOW:
            return _deny("floor:write-down", reason)
        verdict = verdict._replace(reason=f"{verdict.reason}; {reason}")  # whoever decides has to know
    label = labels.join(*given)
    if not origin.may_get(label):
        return _deny("floor:ceiling", origin.too_high(label))
    return verdict._replace(label=label, cleared=cleared)


def _judge_profile(
    profile: str, place: str | Address, question: _Question, counting: Sequence[tuple[NetworkRule, Outcome]]
) -> NetworkVerdict:
    if not counting:
        rule_id = "network:none" if profile == NONE else "network:default"
        return _deny(rule_id, f"no rule of profile `{profile}` allows `{place}`: {question.what}")
    rule, outcome = max(counting, key=lambda pair: pair[1].strictness)
    if outcome is Outcome.DENY:
        return _deny(rule.id, rule.reason)
    ranges = tuple(dict.fromkeys(network for each, _ in counting for network in each.within))
    by_registry = any(each.is_registry for each, _ in counting)
    return NetworkVerdict(outcome, rule.id, rule.reason, within=(ranges,), by_registry=by_registry)


def _tables(rules: NetworkRules, origin: Origin) -> list[RuleTable] | NetworkVerdict:
    """Rules of every profile that applies, or why there are none."""
    names = rules.applying(origin.asked, sandbox_id=origin.sandbox_id, agent_id=origin.agent_id, role=origin.role)
    found: list[RuleTable] = []
    for name in names:
        table = rules.table(name)
        if table is None:
            return _deny("network:unknown-profile", f"there is no profile `{name[:100]}`")
        found.append(table)
    return found


def _read_destination(destination: str | Address) -> str | Address | NetworkVerdict:
    if not isinstance(destination, str):
        return judge_address(destination).dialled
    try:
        return read_name(destination)
    except NameInvalid as error:
        return _deny("network:name", f"`{destination[:300]}` is no name: {error}")


def _deny(rule_id: str, reason: str) -> NetworkVerdict:
    return NetworkVerdict(Outcome.DENY, rule_id, reason)
