"""Who may do what: one table of operation and roles, asked by every mutating and every reading route.

The table says what a role may do at all. That an `agent` token sees its own agent's things only is checked
where those are looked up. An agent is never a person: it decides nothing, makes nothing, and reads nothing
but what concerns itself. Rights are code, not configuration: a rule can refuse more, never grant more.
"""

from collections.abc import Mapping
from types import MappingProxyType

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing
from coldframe.contract.policy import Role

_OWNER = frozenset({Role.OWNER})
_ADMINS = frozenset({Role.OWNER, Role.ADMIN})
_WORKERS = frozenset({Role.OWNER, Role.ADMIN, Role.MEMBER})
_PEOPLE = frozenset({Role.OWNER, Role.ADMIN, Role.MEMBER, Role.VIEWER})
_WORKERS_AND_AGENT = _WORKERS | {Role.AGENT}
_ALL = _PEOPLE | {Role.AGENT}

PERMISSIONS: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        "agent.clean": _WORKERS,
        "agent.create": _WORKERS,
        "agent.delete": _ADMINS,
        "agent.read": _ALL,
        "artifact.correct": _WORKERS,
        "artifact.read": _ALL,
        "build.cancel": _WORKERS_AND_AGENT,
        "build.read": _ALL,
        "build.rebuild": _WORKERS,
        "build.start": _WORKERS_AND_AGENT,
        "command.read": _ALL,
        "command.signal": _WORKERS_AND_AGENT,
        "credential.add": _ADMINS,
        "credential.read": _PEOPLE,
        "credential.revoke": _ADMINS,
        "credential.rotate": _ADMINS,
        "file.read": _ALL,
        "host.doctor": _PEOPLE,
        "label.set": _ADMINS,
        "ledger.read": _PEOPLE,
        "ledger.verify": _PEOPLE,
        "lineage.read": _PEOPLE,
        "network.read": _ALL,
        "network.search": _PEOPLE,
        "policy.load": _ADMINS,
        "policy.read": _PEOPLE,
        "preview.create": _WORKERS_AND_AGENT,
        "preview.link": _WORKERS_AND_AGENT,
        "preview.publish": _WORKERS,
        "preview.read": _ALL,
        "preview.rebuild": _WORKERS,
        "preview.restart": _WORKERS_AND_AGENT,
        "preview.revoke": _WORKERS_AND_AGENT,
        "preview.stop": _WORKERS_AND_AGENT,
        "preview.visit": _ALL,
        "receipt.read": _ALL,
        "receipt.replay": _WORKERS,
        "sandbox.create": _WORKERS,
        "sandbox.extend": _WORKERS,
        "sandbox.pause": _WORKERS,
        "sandbox.promote": _WORKERS,
        "sandbox.read": _ALL,
        "sandbox.reset": _WORKERS,
        "sandbox.resume": _WORKERS,
        "sandbox.start": _WORKERS,
        "sandbox.stop": _WORKERS,
        "sandbox.terminate": _WORKERS,
        "session.read": _ALL,
        "session.reset": _OWNER,
        "snapshot.export": _ADMINS,
        "snapshot.import": _WORKERS,
        "snapshot.read": _ALL,
        "snapshot.remove": _WORKERS,
        "snapshot.rename": _WORKERS_AND_AGENT,
        "snapshot.take": _WORKERS_AND_AGENT,
        "template.build": _WORKERS,
        "template.mark": _WORKERS,
        "template.read": _ALL,
        "template.remove": _ADMINS,
        "template.verify": _WORKERS,
        "template.withdraw": _ADMINS,
        "token.create": _ADMINS,
        "token.list": _ADMINS,
        "token.revoke": _ADMINS,
        "tool.call": _WORKERS_AND_AGENT,
        "volume.attach": _WORKERS,
        "volume.create": _WORKERS,
        "volume.grant": _ADMINS,
        "volume.look": _WORKERS,
        "volume.read": _ALL,
        "volume.remove": _ADMINS,
        "volume.write": _WORKERS,
        "webhook.add": _ADMINS,
        "webhook.read": _ADMINS,
        "webhook.remove": _ADMINS,
    }
)
"""Every operation with the roles that hold it. What is not listed, nobody may."""


READING_TOOLS = frozenset(
    {"list_directory", "list_path", "read_file", "read_path", "read_repository", "search_files", "stat_path"}
)
"""Tools that look at files and leave nothing behind, which takes the right `file.read`. All others, those too that there are not,
take `tool.call`: a watch goes on in the sandbox, and whatever else reads runs something."""


def right_to_call(tool: str) -> str:
    """The operation that calling *tool* is."""
    return "file.read" if tool in READING_TOOLS else "tool.call"


def may(caller: Caller, operation: str) -> bool:
    """Whether the role of *caller* includes *operation*. An agent token without an agent holds nothing."""
    if caller.role is Role.AGENT and caller.agent_id is None:
        return False
    return caller.role in PERMISSIONS.get(operation, frozenset())


def require(caller: Caller, operation: str) -> None:
    """Return if *caller* may.

    Raises:
        GrantMissing: with the operation, the role, and the roles that hold it.
    """
    if not may(caller, operation):
        holders = sorted(PERMISSIONS.get(operation, frozenset()))
        raise GrantMissing(
            f"a token of role `{caller.role}` may not `{operation}`",
            hint=f"use a token of role {' or '.join(holders)}" if holders else "there is no such operation",
            operation=operation,
            role=caller.role.value,
            allowed_roles=[role.value for role in holders],
        )
