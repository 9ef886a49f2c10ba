"""Held here: the whole matrix of operations and roles, so that no right appears or goes unnoticed."""

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing
from coldframe.contract.policy import Role
from coldframe.control.rights import PERMISSIONS, READING_TOOLS, may, require, right_to_call
from coldframe.tools.registry import every_tool

# o owner, a admin, m member, v viewer, g agent
MATRIX = {
    "agent.clean": "oam",
    "agent.create": "oam",
    "agent.delete": "oa",
    "agent.read": "oamvg",
    "artifact.correct": "oam",
    "artifact.read": "oamvg",
    "build.cancel": "oamg",
    "build.read": "oamvg",
    "build.rebuild": "oam",
    "build.start": "oamg",
    "command.read": "oamvg",
    "command.signal": "oamg",
    "credential.add": "oa",
    "credential.read": "oamv",
    "credential.revoke": "oa",
    "credential.rotate": "oa",
    "file.read": "oamvg",
    "host.doctor": "oamv",
    "label.set": "oa",
    "ledger.read": "oamv",
    "ledger.verify": "oamv",
    "lineage.read": "oamv",
    "network.read": "oamvg",
    "network.search": "oamv",
    "policy.load": "oa",
    "policy.read": "oamv",
    "preview.create": "oamg",
    "preview.link": "oamg",
    "preview.publish": "oam",
    "preview.read": "oamvg",
    "preview.rebuild": "oam",
    "preview.restart": "oamg",
    "preview.revoke": "oamg",
    "preview.stop": "oamg",
    "preview.visit": "oamvg",
    "receipt.read": "oamvg",
    "receipt.replay": "oam",
    "sandbox.create": "oam",
    "sandbox.extend": "oam",
    "sandbox.pause": "oam",
    "sandbox.promote": "oam",
    "sandbox.read": "oamvg",
    "sandbox.reset": "oam",
    "sandbox.resume": "oam",
    "sandbox.start": "oam",
    "sandbox.stop": "oam",
    "sandbox.terminate": "oam",
    "session.read": "oamvg",
    "session.reset": "o",
    "snapshot.export": "oa",
    "snapshot.import": "oam",
    "snapshot.read": "oamvg",
    "snapshot.remove": "oam",
    "snapshot.rename": "oamg",
    "snapshot.take": "oamg",
    "template.build": "oam",
    "template.mark": "oam",
    "template.read": "oamvg",
    "template.remove": "oa",
    "template.verify": "oam",
    "template.withdraw": "oa",
    "token.create": "oa",
    "token.list": "oa",
    "token.revoke": "oa",
    "tool.call": "oamg",
    "volume.attach": "oam",
    "volume.create": "oam",
    "volume.grant": "oa",
    "volume.look": "oam",
    "volume.read": "oamvg",
    "volume.remove": "oa",
    "volume.write": "oam",
    "webhook.add": "oa",
    "webhook.read": "oa",
    "webhook.remove": "oa",
}
LETTERS = {Role.OWNER: "o", Role.ADMIN: "a", Role.MEMBER: "m", Role.VIEWER: "v", Role.AGENT: "g"}
HUMAN_RIGHTS = {op for op, roles in MATRIX.items() if "g" not in roles}


def caller(role: Role) -> Caller:
    return Caller(token_id="tok_1", role=role, agent_id="alpha" if role is Role.AGENT else None)


@pytest.mark.req("TP.17")
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("operation", sorted(MATRIX.keys() | PERMISSIONS.keys()))
def test_each_role_may_exactly_what_the_matrix_says(operation: str, role: Role) -> None:
    if LETTERS[role] in MATRIX.get(operation, ""):
        require(caller(role), operation)
    else:
        with pytest.raises(GrantMissing) as caught:
            require(caller(role), operation)
        assert caught.value.facts["operation"] == operation
        assert caught.value.facts["role"] == role.value


@pytest.mark.req("TP.17")
def test_an_agent_token_has_none_of_the_rights_of_a_person() -> None:
    assert not [operation for operation in HUMAN_RIGHTS if may(caller(Role.AGENT), operation)]


def test_tools_that_may_be_called_by_whoever_only_reads_write_nothing_and_all_others_take_more() -> None:
    tools = every_tool()
    assert tools.keys() >= READING_TOOLS
    assert not [name for name in READING_TOOLS if tools[name].writes]
    assert {right_to_call(name) for name in READING_TOOLS} == {"file.read"}
    assert {right_to_call(name) for name in (*(tools.keys() - READING_TOOLS), "no_such_tool")} == {"tool.call"}


def test_an_agent_token_without_an_agent_may_nothing() -> None:
    nobody = Caller(token_id="tok_1", role=Role.AGENT)
    assert not [operation for operation in PERMISSIONS if may(nobody, operation)]


def test_an_operation_that_is_not_listed_is_nobodys() -> None:
    for role in Role:
        with pytest.raises(GrantMissing):
            require(caller(role), "no.such.operation")
