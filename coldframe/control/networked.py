"""Which network a new sandbox gets, and which of those that run have one."""

from collections.abc import Callable, Iterator

from coldframe.contract.caller import Caller
from coldframe.contract.errors import DeniedByRule, InvalidArgument
from coldframe.contract.network import NetworkAccess
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.policy.network_rules import NONE, NetworkRules


class Networked:
    """Sandboxes that run and have a network, by the workspace that they are on."""

    def __init__(self) -> None:
        self._workspaces: dict[str, str] = {}
        self.ended: Callable[[str], None] = lambda _: None
        """Told of each of them that has ended."""

    def add(self, info: SandboxInfo) -> None:
        self._workspaces[info.sandbox_id] = _workspace_of(info)

    def end(self, sandbox_id: str) -> None:
        """Of any sandbox."""
        if self._workspaces.pop(sandbox_id, None) is not None:
            self.ended(sandbox_id)

    def beside(self, info: SandboxInfo) -> list[str]:
        """Those on the workspace of *info*, itself included."""
        return self.of_agent(_workspace_of(info))

    def of_agent(self, agent_id: str) -> list[str]:
        """Those on the workspace of an agent."""
        return [sandbox_id for sandbox_id, workspace in self._workspaces.items() if workspace == agent_id]

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._workspaces

    def __iter__(self) -> Iterator[str]:
        return iter(self._workspaces)

    def __len__(self) -> int:
        return len(self._workspaces)


def find_access(
    rules: NetworkRules, caller: Caller, sandbox_id: str, spec: SandboxSpec, taint: Label
) -> NetworkAccess | None:
    """How a new sandbox is joined to the network; None if it gets none. All profiles that apply have to agree to
    whatever it reaches later, so one that asks for more than it is given gets no more.

    Raises:
        InvalidArgument: there is no such profile.
        DeniedByRule: one was asked for, and the rules give none.
    """
    asked = spec.network
    if asked is not None and rules.table(asked) is None:
        raise InvalidArgument(
            f"there is no network profile `{asked}`",
            hint=f"profiles of the rules in force are {', '.join(rules.profiles)}",
            argument="network",
            profiles=list(rules.profiles),
        )
    if asked == NONE:
        return None
    if NONE in rules.applying(asked, sandbox_id=sandbox_id, agent_id=spec.agent_id, role=caller.role):
        if asked is None:
            return None
        raise DeniedByRule(
            f"the rules give this sandbox no network, so it cannot have `{asked}`",
            hint="`use` in the section `network` of the rule file says who gets which profile",
            argument="network",
            rule="network:none",
        )
    return NetworkAccess(asked=asked, role=caller.role, taint=taint, ceiling=spec.ceiling)


def find_profiles(
    rules: NetworkRules | None, sandbox_id: str, agent_id: str | None, asked: str | None, role: str
) -> tuple[str, ...]:
    """Network profiles that apply to a sandbox that has a network, by the rules now."""
    if rules is None:
        return (NONE,)
    return tuple(rules.applying(asked, sandbox_id=sandbox_id, agent_id=agent_id, role=Role(role)))


def _workspace_of(info: SandboxInfo) -> str:
    """No agent's id has the sign in it, so none is taken for a temporary workspace."""
    return info.agent_id if info.agent_id is not None else f"_{info.sandbox_id}"
