"""What the contract of a sandbox says about the network, worked out from the profiles that apply to it now.

Where several apply all of them have to agree, so an endpoint is there only if each has a rule that may allow it, and its
line has every one of these. What a denying rule takes away of an endpoint in part (a port, a path) is in its line too.
Not here: what rules of the hooks refuse beyond that, which only the moment tells.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from coldframe.contract.credential import CredentialTerms
from coldframe.contract.policy import Outcome
from coldframe.policy.hostnames import parents_of
from coldframe.policy.network_rules import NONE, PACKAGES, Mode, NetworkRule, NetworkRules, Place, RuleTable, Scheme

MOST_ENDPOINTS = 200
"""Lines of one document; further endpoints are counted."""


class Endpoint(NamedTuple):
    """Something that code in the box can reach."""

    name: str
    """As the rule file writes it: `api.example.com`, `*.example.com`, `10.1.0.0/16`; `*` for every name."""
    how: str
    """For people: by what, and with which restrictions."""
    grants: tuple[dict[str, Any], ...]
    """One for each rule that lets it through, of every profile."""


class GivenCredential(NamedTuple):
    """A credential, and who gave it when."""

    terms: CredentialTerms
    granted_by: str
    granted_at: datetime


class NetworkTerms(NamedTuple):
    """All endpoints, or as many as are told."""

    endpoints: tuple[Endpoint, ...]
    more: int
    """Endpoints that are not told."""
    registries: bool
    """Whether packages can be had from the registries of this machine."""
    credentials: tuple[GivenCredential, ...] = ()
    """That can be used, and are accepted by something that can be reached."""


@lru_cache(maxsize=64)
def find_terms(rules: NetworkRules, profiles: tuple[str, ...]) -> NetworkTerms:
    """What all of *profiles* agree to."""
    tables = [table for name in profiles if (table := rules.table(name)) is not None]
    if len(tables) < len(profiles) or NONE in profiles:
        return NetworkTerms((), 0, registries=False)
    places: dict[Place, None] = {}
    for table in tables:
        for rule in table.rules:
            if rule.outcome is not Outcome.DENY and not rule.is_registry:
                places.update(dict.fromkeys(rule.places))
    found = []
    for place in places:
        about = [_about(table, place) for table in tables]
        if all(about):
            found.append(
                _endpoint(place, [(name, rule) for own, name in zip(about, profiles, strict=True) for rule in own])
            )
    registries = all(
        rules.base_of(name) == PACKAGES or bool(_about(table, _ANYWHERE))
        for name, table in zip(profiles, tables, strict=True)
    )
    return NetworkTerms(
        tuple(found[:MOST_ENDPOINTS]),
        max(0, len(found) - MOST_ENDPOINTS),
        registries=registries and any(rules.base_of(name) == PACKAGES for name in profiles),
    )


@lru_cache(maxsize=1024)
def reaches(rules: NetworkRules, profiles: tuple[str, ...], base: str) -> bool:
    """Whether all of *profiles* let a sandbox reach the service at `https://NAME[:PORT]/…` at all, and have its requests
    read: nobody puts a credential into others."""
    address = urlsplit(base)
    name, port = address.hostname or "", address.port or 443
    is_read = False
    for profile in profiles:
        table = rules.table(profile)
        about = [] if table is None else [rule for rule in table.about(name) if _concerns(rule, port)]
        if not any(rule.outcome is not Outcome.DENY for rule in about):
            return False
        if any(rule.outcome is Outcome.DENY and not rule.reads_requests for rule in about):
            return False
        is_read = is_read or any(rule.reads_requests or rule.mode is Mode.INTERCEPT for rule in about)
    return is_read


def _concerns(rule: NetworkRule, port: int) -> bool:
    return not rule.is_registry and Scheme.HTTPS in rule.schemes and (rule.ports is None or port in rule.ports)


_ANYWHERE = Place("", below=True)


def _about(table: RuleTable, place: Place) -> list[NetworkRule]:
    """Rules of a profile that say something about the whole of a place; none if it allows nothing of it."""
    found = [rule for rule in table.rules if not rule.is_registry and any(_covers(own, place) for own in rule.places)]
    if any(_denies_all(rule) for rule in found):
        return []
    return found if any(rule.outcome is not Outcome.DENY for rule in found) else []


def _covers(one: Place, other: Place) -> bool:
    if one == other:
        return True
    if one.network is not None or other.network is not None:
        return (
            one.network is not None
            and other.network is not None
            and one.network.version == other.network.version
            and other.network.subnet_of(one.network)  # type: ignore[arg-type]  # of one version, as was just looked at
        )
    return one.below and (not one.name or one.name in parents_of(other.name))


def _denies_all(rule: NetworkRule) -> bool:
    return (
        rule.outcome is Outcome.DENY
        and rule.ports is None
        and not rule.reads_requests
        and rule.schemes == frozenset(Scheme)
    )


def _endpoint(place: Place, rules: list[tuple[str, NetworkRule]]) -> Endpoint:
    name = str(place.network) if place.network is not None else place.name
    if place.below:
        name = f"*.{place.name}" if place.name else "*"
    told = [_told(rule) for _, rule in rules if rule.outcome is not Outcome.DENY]
    return Endpoint(name, "; and ".join(dict.fromkeys(told)), tuple(_grant(profile, rule) for profile, rule in rules))


def _told(rule: NetworkRule) -> str:
    parts = [f"by {' or '.join(sorted(rule.schemes))}"]
    parts.append("on every port" if rule.ports is None else f"on port {_ports(rule.ports)}")
    if rule.methods is not None:
        parts.append(f"with {', '.join(sorted(rule.methods))} only")
    if rule.paths is not None:
        parts.append(f"below {', '.join(rule.paths)} only")
    if rule.outcome is Outcome.ASK:
        parts.append("after a person has agreed")
    return " ".join(parts)


def _ports(ports: frozenset[int]) -> str:
    """As ranges: `443`, `80, 8000-8099`."""
    ranges: list[list[int]] = []
    for port in sorted(ports):
        if ranges and ranges[-1][1] == port - 1:
            ranges[-1][1] = port
        else:
            ranges.append([port, port])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)


def _grant(profile: str, rule: NetworkRule) -> dict[str, Any]:
    return {
        "granted_by": f"rule {rule.id} of network profile {profile}",
        "reason": rule.reason,
        "answer": rule.outcome.value,
        "schemes": sorted(rule.schemes),
        "ports": "any" if rule.ports is None else _ports(rule.ports),
        "methods": None if rule.methods is None else sorted(rule.methods),
        "paths": None if rule.paths is None else list(rule.paths),
        "mode": None if rule.mode is None else rule.mode.value,
        "label": None if rule.label is None else rule.label.value,
        "within": [str(network) for network in rule.within],
        "expires": None,
    }
