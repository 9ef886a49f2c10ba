"""NETWORK_EGRESS beside the network rules: what those let through is asked about once more, and the stricter answer holds.

Rules of this hook only tighten: `allow` opens nothing that the section `network` does not. A rule on methods or paths is
asked about each request where these are read; where nobody reads them it holds for the connection, as any rule does
that asks about what is missing.
"""

from coldframe.contract.policy import EgressContext, Hook, Outcome
from coldframe.policy import labels
from coldframe.policy.addresses import Address
from coldframe.policy.fields import OF_REQUESTS
from coldframe.policy.hooks import decide_egress
from coldframe.policy.network import NetworkVerdict, Origin
from coldframe.policy.network_rules import Mode, Scheme
from coldframe.policy.rules import RuleSet
from coldframe.policy.targets import Target

NO_AGENT = "background"


def narrow(
    rules: RuleSet,
    verdict: NetworkVerdict,
    origin: Origin,
    destination: str | Address,
    port: int,
    scheme: Scheme,
    request: tuple[str, Target] | None = None,
) -> NetworkVerdict:
    """The verdict of the network rules about a connection or a *request* (method and target), as strict as the hook wants
    it. A label that a rule gives is that of what comes back."""
    if verdict.outcome is Outcome.DENY or not rules.has(Hook.NETWORK_EGRESS):
        return verdict
    is_name = isinstance(destination, str)
    context = EgressContext(
        sandbox_id=origin.sandbox_id,
        agent_id=origin.agent_id or NO_AGENT,
        role=origin.role,
        taint=origin.taint,
        name=str(destination) if is_name else "",
        address="" if is_name else str(destination),
        port=port,
        scheme=scheme.value,
        mode="" if verdict.mode is None else verdict.mode.value,
        methods=None if request is None else methods_of(request[0]),
        paths=None if request is None else paths_of(request[1]),
        label=verdict.label,
    )
    later = OF_REQUESTS if request is None and verdict.mode is Mode.INTERCEPT else frozenset[str]()
    decision = decide_egress(context, rules, later=later)
    if decision.outcome.strictness > verdict.outcome.strictness:
        verdict = verdict._replace(outcome=decision.outcome, rule_id=decision.rule_id, reason=decision.reason)
    label = labels.join(verdict.label, decision.label)
    if not origin.may_get(label):
        return NetworkVerdict(Outcome.DENY, "floor:ceiling", origin.too_high(label))
    return verdict._replace(label=label)


def methods_of(method: str) -> tuple[str, ...]:
    """What a server may take the method for."""
    return ("GET", "HEAD") if method == "HEAD" else (method,)


def paths_of(target: Target) -> tuple[str, ...]:
    """Each way in which a server may read the path: some do not look at the case of letters."""
    readings = target.readings
    return tuple(sorted(readings | {one.lower() for one in readings}))
