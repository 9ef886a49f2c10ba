"""Network rules: what one says, and the profiles of them, found by destination.

`none`, `packages` and `open` are built in; the others are read from the rule file (`network_section.py`).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from coldframe.contract.policy import Label, Outcome, Role
from coldframe.policy.addresses import Address, Network
from coldframe.policy.hostnames import parents_of, read_name
from coldframe.policy.targets import is_below, read_target

MOST_NAMED_PORTS = 16
"""Of one rule: a wider range is not meant one by one."""
EVERYBODY = "*"
NONE, PACKAGES, OPEN = "none", "packages", "open"
BUILT_IN = (NONE, PACKAGES, OPEN)
MAY_CHOOSE = frozenset({Role.OWNER, Role.ADMIN})
"""Roles whose sandboxes have what they ask for where the rules say nothing."""
NEVER_METHODS = frozenset({"CONNECT", "TRACE", "TRACK"})
"""No rule allows these: they make a tunnel of the connection, or send back what was put into it on the way."""


class Scheme(StrEnum):
    """What is spoken, as the first bytes of the client show."""

    HTTPS = "https"
    HTTP = "http"
    TCP = "tcp"
    """Anything; nobody looks."""


class Mode(StrEnum):
    """How much of a connection is looked at, loosest first; the strictest of all rules that match wins."""

    RAW = "raw"
    SNI = "sni"
    """TLS passes as it is, if the name in its first message is the destination."""
    INTERCEPT = "intercept"
    """Each request is read and judged. The only mode of plain HTTP."""

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS = {mode: rank for rank, mode in enumerate(Mode)}


class Place(NamedTuple):
    """A destination that a rule names: one name, all names below one (`below`; all names if it is empty), or a range."""

    name: str
    below: bool = False
    network: Network | None = None


class NetworkRule(NamedTuple):
    """One rule, checked."""

    id: str
    places: tuple[Place, ...]
    schemes: frozenset[Scheme]
    ports: frozenset[int] | None
    """None for all."""
    methods: frozenset[str] | None
    paths: tuple[str, ...] | None
    """Beginnings of paths, on the border of a segment."""
    outcome: Outcome
    mode: Mode | None
    """For HTTPS or, with `raw`, for anything; None for a rule that denies."""
    label: Label | None
    within: tuple[Network, ...]
    """Ranges, private and the like, that the names may resolve to beside public addresses."""
    reason: str
    is_registry: bool = False
    """It allows packages to be had through the broker's view of a registry, and nothing else."""
    cleared: Label | None = None
    """What goes there has this label at most; None if it says nothing beside `label`."""

    @property
    def reads_requests(self) -> bool:
        """Whether what it says depends on a request, so that the connection alone does not tell."""
        return self.methods is not None or self.paths is not None


class PackageKind(StrEnum):
    """Which protocol a registry speaks."""

    PYTHON = "python"
    """The simple index of pip and its kin."""
    NPM = "npm"
    DEBIAN = "debian"
    """An archive of apt's."""


class Registry(NamedTuple):
    """Where packages come from, as the host's own client settings say. No credential is in here."""

    name: str
    port: int = 443
    path: str = "/"
    scheme: Scheme = Scheme.HTTPS
    kind: PackageKind = PackageKind.PYTHON

    @property
    def usual_port(self) -> bool:
        return self.port == (443 if self.scheme is Scheme.HTTPS else 80)

    @property
    def address(self) -> str:
        """As clients are told it, with a slash at its end."""
        port = "" if self.usual_port else f":{self.port}"
        return f"{self.scheme}://{self.name}{port}{self.path.rstrip('/')}/"


class PackageRules(NamedTuple):
    """What holds of packages, wherever they come from."""

    cleared: Label | None = None
    """Up to which label a session may ask registries for packages; PUBLIC without it."""
    install_scripts: bool = True
    """Whether the clients of a box are set to run what comes with packages when they are installed."""


class Profile(NamedTuple):
    """A named list of rules, on top of a built-in one."""

    name: str
    base: str
    rules: tuple[NetworkRule, ...]


class RuleTable:
    """Rules of one profile, found by destination: asking costs the same for one and for hundreds."""

    __slots__ = ("_below", "_by_name", "_networks", "profile", "rules")

    def __init__(self, profile: str, rules: Sequence[NetworkRule]) -> None:
        self.profile = profile
        self.rules = tuple(rules)
        self._by_name: dict[str, list[int]] = {}
        self._below: dict[str, list[int]] = {}
        self._networks: list[tuple[Network, int]] = []
        for index, rule in enumerate(self.rules):
            for place in rule.places:
                if place.network is not None:
                    self._networks.append((place.network, index))
                else:
                    (self._below if place.below else self._by_name).setdefault(place.name, []).append(index)

    def about(self, destination: str | Address) -> list[NetworkRule]:
        """Rules that name the destination, in file order."""
        found: set[int] = set()
        if isinstance(destination, str):
            found.update(self._by_name.get(destination, ()))
            for parent in (*parents_of(destination), ""):
                found.update(self._below.get(parent, ()))
        else:
            found.update(index for network, index in self._networks if destination in network)
        return [self.rules[index] for index in sorted(found)]


class NetworkRules:
    """The section, checked. Nothing changes it; `for_registries` makes another one."""

    __slots__ = ("_profiles", "_tables", "_use", "packages")

    def __init__(
        self,
        profiles: Sequence[Profile] = (),
        use: Mapping[str, str] | None = None,
        registries: Sequence[Registry] = (),
        *,
        packages: PackageRules | None = None,
    ) -> None:
        self._profiles = tuple(profiles)
        self._use = dict(use or {})
        self.packages = packages or PackageRules()
        bases: dict[str, tuple[NetworkRule, ...]] = {
            NONE: (),
            PACKAGES: tuple(_rule_of_registry(registry, self.packages.cleared) for registry in registries),
            OPEN: (OPEN_RULE,),
        }
        self._tables = {name: RuleTable(name, rules) for name, rules in bases.items()}
        for profile in self._profiles:
            self._tables[profile.name] = RuleTable(profile.name, (*bases[profile.base], *profile.rules))

    def for_registries(self, registries: Sequence[Registry]) -> "NetworkRules":
        """The same, with `packages` reaching these."""
        return NetworkRules(self._profiles, self._use, registries, packages=self.packages)

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names of all profiles, the built-in ones first."""
        return tuple(self._tables)

    def table(self, profile: str) -> RuleTable | None:
        """The rules of a profile; None if there is no such profile."""
        return self._tables.get(profile)

    def base_of(self, profile: str) -> str:
        """The built-in profile that a profile stands on; itself, for one of these and for one that is not there."""
        return next((one.base for one in self._profiles if one.name == profile), profile)

    def named_ports(self) -> set[int]:
        """Those that rules which allow name one by one, as far as they are few; what says `any` names none."""
        rules = [rule for table in self._tables.values() for rule in table.rules if rule.outcome is not Outcome.DENY]
        named = [rule.ports for rule in rules if rule.ports is not None and len(rule.ports) <= MOST_NAMED_PORTS]
        return {port for ports in named for port in ports}

    def granted(self, *, sandbox_id: str, agent_id: str | None, role: Role) -> list[str]:
        """Profiles that the file gives to a sandbox, its agent, the role and everybody; none twice."""
        keys = [f"sandbox:{sandbox_id}", *([f"agent:{agent_id}"] if agent_id is not None else []), f"role:{role.value}"]
        return list(dict.fromkeys(self._use[key] for key in (*keys, EVERYBODY) if key in self._use))

    def applying(self, asked: str | None, *, sandbox_id: str, agent_id: str | None, role: Role) -> list[str]:
        """Profiles that all have to agree: the one that was asked for, and those that the file gives.

        Where it gives none, nothing is allowed, whatever was asked for, unless an owner or admin has asked: who may
        write the rules need not do so for one sandbox. What narrows a sandbox gives it nothing.
        """
        granted = self.granted(sandbox_id=sandbox_id, agent_id=agent_id, role=role)
        gives_none = all(name == narrowing_of(sandbox_id) for name in granted)
        if gives_none and (asked is None or role not in MAY_CHOOSE):
            granted = [*granted, NONE]
        return list(dict.fromkeys((*(() if asked is None else (asked,)), *granted)))


def narrowing_of(sandbox_id: str) -> str:
    """Name of the profile by which a lease narrows what its sandbox was made with."""
    return f"narrow-{sandbox_id.removeprefix('sbx_')}"


OPEN_RULE = NetworkRule(
    "network:open",
    (Place("", below=True),),
    frozenset({Scheme.HTTPS, Scheme.HTTP}),
    None,
    None,
    None,
    Outcome.ALLOW,
    Mode.SNI,
    None,
    (),
    "profile `open` allows every name",
)


def is_idle(rule: NetworkRule, beside: NetworkRule) -> bool:
    """Whether `rule` has no effect because `beside` says all that it says."""
    if rule.outcome.strictness > beside.outcome.strictness or not _covers(beside, rule):
        return False
    if beside.outcome is Outcome.DENY:
        return True
    if rule.label not in (None, beside.label):
        return False
    if not all(any(_contains(other, network) for other in beside.within) for network in rule.within):
        return False
    if rule.mode is None or beside.mode is None:
        return False
    return rule.reads_requests or rule.mode.strictness <= beside.mode.strictness


def _covers(one: NetworkRule, other: NetworkRule) -> bool:
    """Whether whatever `other` matches is matched by `one` too."""
    return (
        one.schemes >= other.schemes
        and (one.ports is None or (other.ports is not None and one.ports >= other.ports))
        and (one.methods is None or (other.methods is not None and one.methods >= other.methods))
        and (
            one.paths is None
            or (
                other.paths is not None
                and all(any(is_below(each, prefix) for prefix in one.paths) for each in other.paths)
            )
        )
        and _covers_places(frozenset(one.places), other.places)
    )


def _covers_places(own: frozenset[Place], others: Sequence[Place]) -> bool:
    for other in others:
        if other in own:
            continue
        if other.network is not None:
            if not any(_contains(place.network, other.network) for place in own):
                return False
        elif not any(Place(parent, below=True) in own for parent in (*parents_of(other.name), "")):
            return False
    return True


def _contains(one: Network | None, other: Network | None) -> bool:
    if isinstance(one, IPv4Network) and isinstance(other, IPv4Network):
        return other.subnet_of(one)
    return isinstance(one, IPv6Network) and isinstance(other, IPv6Network) and other.subnet_of(one)


def _rule_of_registry(registry: Registry, cleared: Label | None) -> NetworkRule:
    """What `packages` allows: reading, below the registry's path. Raises NameInvalid or TargetInvalid."""
    return NetworkRule(
        f"packages:{registry.name}:{registry.port}",
        (Place(read_name(registry.name)),),
        frozenset({registry.scheme}),
        frozenset({registry.port}),
        frozenset({"GET", "HEAD"}),
        (read_target(registry.path).path,),
        Outcome.ALLOW,
        Mode.INTERCEPT,
        None,
        (),
        f"`{registry.name}` is a package registry of this machine",
        is_registry=True,
        cleared=cleared,
    )
