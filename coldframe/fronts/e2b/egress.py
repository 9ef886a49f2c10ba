"""What E2B says of the way out of a sandbox, read and checked."""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any, NamedTuple

from coldframe.contract.errors import InvalidArgument
from coldframe.control.leases import HOST, LeaseEgress
from coldframe.fronts.e2b.routes import refuse_field

ALL = frozenset({"0.0.0.0/0", "::/0"})
MOST_PLACES = 100
_TOLD = ("allowOut", "denyOut", "allowPublicTraffic", "maskRequestHost")
_NAME = re.compile(r"(?:\*\.)?(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)+[A-Za-z0-9_-]{1,63}\.?")
_REFUSED = {
    "rules": (
        "requests are not rewritten by rules of a sandbox",
        "give the sandbox a credential that is put into requests on their way: `coldframe credential add`",
    ),
    "egressProxy": ("sandboxes have no proxy of their own", "set the proxy of this machine: docs/network.md"),
    "dnsServers": ("names are resolved by the broker of this machine", "leave it out"),
    "httpsPorts": ("what is spoken on a port is found out by its first bytes", "leave it out"),
}


class Egress(NamedTuple):
    """What may be reached, and by whom the sandbox may be."""

    lease: LeaseEgress | None = None
    """None for whatever the rules let it reach."""
    needs_token: bool = False
    host: str | None = None
    """As what its servers are asked."""
    told: dict[str, Any] = {}
    """To be told again."""

    @property
    def nothing(self) -> bool:
        return self.lease is not None and self.lease.reaches_nothing


def read_egress(body: Mapping[str, Any], *, is_update: bool = False) -> Egress:
    """Raises InvalidArgument."""
    network = body if is_update else body.get("network")
    if network is None:
        network = {}
    if not isinstance(network, dict):
        raise InvalidArgument("`network` is an object", argument="network")
    for name, (why, hint) in _REFUSED.items():
        if network.get(name):
            raise refuse_field(f"network.{name}", why, hint)
    allowed, denied = _places(network.get("allowOut"), "allowOut"), _places(network.get("denyOut"), "denyOut")
    access = body.get("allow_internet_access", body.get("allowInternetAccess"))
    return Egress(
        lease=_lease(allowed, denied, denies_all=access is False or bool(ALL.intersection(denied))),
        needs_token=network.get("allowPublicTraffic") is False,
        host=_host(network.get("maskRequestHost")),
        told={name: network[name] for name in _TOLD if name in network},
    )


def _host(value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or re.fullmatch(HOST, value) is None:
        raise InvalidArgument(
            "`maskRequestHost` is a name, which may have `:PORT` or `:${PORT}` behind it", argument="maskRequestHost"
        )
    return value


def _lease(allowed: tuple[str, ...], denied: tuple[str, ...], *, denies_all: bool) -> LeaseEgress | None:
    names = tuple(place for place in allowed if not _is_range(place))
    if names and not denies_all:
        raise InvalidArgument(
            "names in `allowOut` have an effect only where `denyOut` has all traffic, 0.0.0.0/0", argument="allowOut"
        )
    for place in denied:
        if not _is_range(place):
            raise InvalidArgument(
                f"`denyOut` takes addresses and ranges, and `{place[:100]}` is none", argument="denyOut"
            )
        if place not in ALL and not denies_all and ip_network(place, strict=False).is_global:
            raise refuse_field(
                "network.denyOut",
                f"`{place}` is public, and names that lead there would be let through all the same",
                "deny all traffic, 0.0.0.0/0, and name in `allowOut` what may be reached",
            )
    if not denies_all and not allowed:
        return None
    addresses = tuple(str(ip_network(place, strict=False)) for place in allowed if _is_range(place))
    return LeaseEgress(everything=not denies_all, names=names, addresses=addresses)


def _places(value: object, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MOST_PLACES or not all(isinstance(one, str) for one in value):
        raise InvalidArgument(f"`{name}` is a list of at most {MOST_PLACES} texts", argument=name)
    for place in value:
        if _is_range(place):
            continue
        if _NAME.fullmatch(place) is None:
            raise InvalidArgument(f"`{place[:100]}` is no name, address or range", argument=name)
    return tuple(value)


def _is_range(place: str) -> bool:
    try:
        ip_network(place, strict=False)
    except ValueError:
        return False
    return True
