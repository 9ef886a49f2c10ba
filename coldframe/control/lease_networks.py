"""Networks of leases: whoever takes one may say more closely what its sandbox reaches, and change that while it runs.

What they say becomes a profile of the network rules that no file holds: the rule set in force has it beside its own, and the
host is told both as one text. So it is judged, recorded and changed as any other profile, open connections included; and as
of any other, all profiles that the rules give have to agree. A lease never opens what they close.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, InvalidArgument, LimitReached, NotFound, RulesInvalid, WrongState
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.contacts import Contacts
from coldframe.control.leases import Lease, LeaseEgress, Leases
from coldframe.control.ledger import Ledger
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.policy.network_rules import MAY_CHOOSE, NONE, OPEN, narrowing_of
from coldframe.policy.rules import load_rules

PREFIX = "lease-"
MOST = 150
"""Profiles of leases at once: a rule file holds 500 network rules, and each of these takes up to three."""


class LeaseNetworks:
    """Profiles of living leases, and of those that are about to be."""

    def __init__(
        self, leases: Leases, sandboxes: Sandboxes, rulebook: Rulebook, contacts: Contacts, ledger: Ledger
    ) -> None:
        self._leases = leases
        self._contacts = contacts
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._rulebook = rulebook
        self._coming: dict[str, LeaseEgress] = {}
        self._held: dict[str, Lease] = {}
        """By profile, for leases that have one."""
        self.renew: Callable[[str], None] = lambda _: None
        """Has the contract of a sandbox made anew, whose network has changed."""
        rulebook.more_network = self._section

    def start(self) -> None:
        """Take up those of living leases, before the host is told any rules."""
        for lease in self._leases.living():
            if lease.terms.egress is not None:
                self._held[_profile_of(lease)] = lease
        if self._held:
            self._rulebook.renew_network()

    async def open(self, egress: LeaseEgress, key: str | None = None) -> str:
        """A profile for a sandbox that is about to be made; returns its name, which is the network to ask for. It is let go of
        by `made` or `drop`. With *key* it has the same name again.

        Raises:
            InvalidArgument: it says what no rule can. LimitReached: there are too many. HostUnreachable.
        """
        self._sweep()
        if len(self._held) + len(self._coming) >= MOST:
            raise LimitReached(
                f"{MOST} sandboxes have network rules of their own",
                hint="end some of them, or give them a profile of the rule file",
            )
        name = PREFIX + (secrets.token_hex(8) if key is None else hashlib.sha256(key.encode()).hexdigest()[:16])
        if name in self._held:
            return name
        _check(name, egress)
        self._coming[name] = egress
        try:
            await self._rulebook.use_more_network()
        except BaseException:
            self._coming.pop(name, None)
            raise
        return name

    def made(self, name: str, lease: Lease) -> None:
        """The sandbox is there, and its lease on record."""
        self._held[name] = lease
        self._coming.pop(name, None)

    def drop(self, name: str) -> None:
        """It was not made."""
        self._coming.pop(name, None)
        self._rulebook.renew_network()

    async def change(self, lease: Lease, info: SandboxInfo, egress: LeaseEgress, caller: Caller, **asked: Any) -> Lease:
        """From now on it reaches this, and connections that are open are judged by it. *asked* is kept with the lease.

        Raises:
            GrantMissing: it would reach more than before, and more than the caller's role is given; recorded.
            InvalidArgument, LimitReached, HostUnreachable: as `open`.
            WrongState: it was made without a network, or with one that cannot be widened so.
        """
        if info.network is None:
            if egress.reaches_nothing:
                return self._leases.set_terms(lease, _with_asked(lease, None, asked), caller)
            raise WrongState(
                "this sandbox was made without a network, and stays so",
                hint="create another one with what it shall reach",
            )
        own = info.spec.network is not None and info.spec.network.startswith(PREFIX)
        self._require(lease, info, egress, caller)
        if not own and egress.addresses:
            raise WrongState(
                "this sandbox was made to reach names alone, so no addresses can be opened to it",
                hint="create it with these addresses in `allowOut`",
            )
        wanted = egress if own or egress != LeaseEgress() else None
        if wanted is not None:
            _check(narrowing_of(lease.sandbox_id), wanted)
        before = self._held.get(_profile_of(lease))
        changed = self._leases.set_terms(lease, _with_asked(lease, wanted, asked), caller)
        self._held.pop(_profile_of(changed), None)
        if wanted is not None:
            self._held[_profile_of(changed)] = changed
        try:
            await self._rulebook.use_more_network()
        except BaseException:
            self._leases.set_terms(changed, lease.terms, caller)
            self._held.pop(_profile_of(changed), None)
            if before is not None:
                self._held[_profile_of(lease)] = before
            raise
        self.renew(lease.sandbox_id)
        return changed

    def _require(self, lease: Lease, info: SandboxInfo, egress: LeaseEgress, caller: Caller) -> None:
        """It is judged by the role that made it, so that whoever has less may narrow what it reaches, and widen it only where
        the rules give their own role no more than they take from it."""
        role = self._contacts.role_of(lease.sandbox_id)
        if caller.role in MAY_CHOOSE or egress.reaches_nothing or role is None:
            return
        made, own = self._given(info, role), self._given(info, caller.role)
        has_any = bool(made) or (role in MAY_CHOOSE and info.spec.network is not None)
        if has_any and egress.is_within(lease.terms.egress or LeaseEgress()):
            return
        if own and own <= made:  # all of which have to agree to whatever a lease says
            return
        error = GrantMissing(
            f"a token of role `{caller.role}` may not let a sandbox reach more that was made by the role `{role}`",
            hint="use a token of role admin or owner, or create another sandbox",
            operation="sandbox.extend",
            role=caller.role.value,
        )
        body = {
            "act": "widen_network",
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "caller": caller.name,
            "code": error.code,
        }
        error.facts.update(seq=self._ledger.append("act.refused", info.sandbox_id, body).seq)
        raise error

    def _given(self, info: SandboxInfo, role: Role) -> set[str]:
        """Profiles that the rule file gives it under this role, without what its lease says."""
        rules = self._rulebook.current.network
        found = rules.granted(sandbox_id=info.sandbox_id, agent_id=info.agent_id, role=role)
        return set(found) - {narrowing_of(info.sandbox_id)}

    def _sweep(self) -> None:
        for name, lease in tuple(self._held.items()):
            try:
                over = self._sandboxes.find(lease.sandbox_id).state.state in ("terminated", "failed", "lost")
            except NotFound:
                over = True
            if over:
                del self._held[name]

    def _section(self) -> dict[str, Any]:
        """In the form of the section `network` of a rule file."""
        profiles = {name: _profile(name, egress) for name, egress in self._coming.items()}
        use: dict[str, str] = {}
        for name, lease in self._held.items():
            if lease.terms.egress is not None:
                profiles[name] = _profile(name, lease.terms.egress)
                if name == narrowing_of(lease.sandbox_id):
                    use[f"sandbox:{lease.sandbox_id}"] = name
        return {"profiles": profiles, "use": use} if profiles else {}


def _profile_of(lease: Lease) -> str:
    """The name that its sandbox was made with, or one that narrows what it was made with."""
    return lease.terms.network or narrowing_of(lease.sandbox_id)


def _with_asked(lease: Lease, egress: LeaseEgress | None, asked: Mapping[str, Any]) -> Any:
    return lease.terms.model_copy(update={"egress": egress, "asked": {**lease.terms.asked, **asked}})


def _profile(name: str, egress: LeaseEgress) -> dict[str, Any]:
    rules: list[dict[str, Any]] = []
    if egress.names and not egress.everything:
        rules.append({"id": f"{name}:names", "to": list(egress.names), "scheme": ["https", "http"], "ports": "any"})
    if egress.addresses:
        rules.append({"id": f"{name}:addresses", "to": list(egress.addresses), "mode": "raw", "ports": "any"})
    return {"base": OPEN if egress.everything else NONE, **({"rules": rules} if rules else {})}


def _check(name: str, egress: LeaseEgress) -> None:
    try:
        load_rules(as_text({"version": 1, "network": {"profiles": {name: _profile(name, egress)}}}))
    except RulesInvalid as error:
        raise InvalidArgument(f"no network rule can say that: {error.message}", argument="network") from None


def as_text(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
