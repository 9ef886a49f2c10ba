"""What went into a sandbox is told version by version: from where, with which digest, by whom, and while it held."""

import hashlib
import json

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.errors import GrantMissing
from coldframe.contract.inputs import InputEntry
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from tests.installation import Installation
from tests.promises.governed import token_of

RULES = """version: 1
network: {use: {"*": packages}}
rules:
  - id: tickets
    hook: PRE_TOOL_CALL
    when: {tool: write_file, path: {glob: "*.csv"}}
    label: CONFIDENTIAL
"""
CREDENTIAL = {"base": "https://api.example.com/v1", "variable": "CRM", "label": "INTERNAL"}


def files(sandbox: SyncSandbox) -> list[InputEntry]:
    return [one for one in sandbox.inputs().inputs if one.type == "file"]


@pytest.mark.req("T3.16")
def test_each_kind_of_input_has_its_entry_with_all_that_is_asked_of_it(
    governed: Installation, owner: SyncColdframe, agent_id: str
) -> None:
    owner.policy.load(RULES)
    owner.credentials.add({**CREDENTIAL, "name": agent_id, "agents": [agent_id]}, "a secret of sixteen")
    with owner.sandboxes.create(spec=SandboxSpec(agent_id=agent_id)) as sandbox:
        sandbox.upload("tickets.csv", "a,b\n", source="https://files.example.com/tickets.csv?v=é")
        entries = {one.type: one for one in sandbox.inputs().inputs}
        assert set(entries) == {"template", "workspace", "packages", "credential", "file"}
        for one in entries.values():
            assert one.source and one.mode and one.readable_by and one.granted_by and one.valid_from, one
            assert (one.version, one.valid_until) == (1, None)
        csv = entries["file"]
        assert csv.said_source == "https://files.example.com/tickets.csv?v=é"
        assert (csv.name, csv.bytes, csv.label) == ("tickets.csv", 4, Label.CONFIDENTIAL)
        assert (csv.mount, csv.mode) == ("/home/user/tickets.csv", "read-write")
        inside = sandbox.run_command(f"sha256sum < {csv.mount}").stdout
        assert inside is not None
        assert csv.sha256 == inside.split()[0] == hashlib.sha256(b"a,b\n").hexdigest()
        assert (entries["credential"].name, entries["credential"].label) == (agent_id, Label.INTERNAL)
        assert "a secret of" not in sandbox.inputs().model_dump_json()
        shown = governed.cli("contract", "inputs", sandbox.id, "--json")
        assert [one["type"] for one in json.loads(shown.stdout)["inputs"]] == [
            one.type for one in sandbox.inputs().inputs
        ]


@pytest.mark.req("T3.16")
@pytest.mark.without_way_out
def test_another_version_of_a_file_stands_beside_the_one_that_it_replaced(sandbox: SyncSandbox) -> None:
    first = sandbox.write_file("tickets.csv", "one")
    sandbox.upload("tickets.csv", "two")
    sandbox.write_file("kept.txt", "kept")
    sandbox.run_command("echo three > tickets.csv; echo made > made.txt")
    sandbox.write_file("tickets.csv", "four")
    sandbox.edit_file("tickets.csv", "four", "five")
    sandbox.run_command("rm kept.txt")
    found = files(sandbox)
    told = [(one.name, one.version, one.sha256, (one.ended_by or "").partition(",")[0]) for one in found]
    assert told == [
        ("tickets.csv", 1, hashlib.sha256(b"one").hexdigest(), "replaced"),
        ("tickets.csv", 2, hashlib.sha256(b"two").hexdigest(), "changed by a command"),
        ("kept.txt", 1, hashlib.sha256(b"kept").hexdigest(), "deleted"),
        ("tickets.csv", 3, hashlib.sha256(b"four").hexdigest(), "edited"),
    ]
    assert found[0].call_id == first.result.call_id
    assert found[0].valid_until == found[1].valid_from
    assert all(one.valid_until is not None and one.valid_from < one.valid_until for one in found)


@pytest.mark.req("T3.16")
@pytest.mark.without_way_out
def test_files_of_a_workspace_are_inputs_of_all_its_sandboxes_and_of_no_other(
    client: SyncColdframe, agent_id: str, installation: Installation
) -> None:
    with client.sandboxes.create(agent_id=agent_id) as first, client.sandboxes.create(background=True) as other:
        first.write_file("a.txt", "a")
        other.write_file("b.txt", "b")
        with client.sandboxes.create(agent_id=agent_id) as second:
            assert [one.name for one in files(second)] == [one.name for one in files(first)] == ["a.txt"]
            assert agent_id in files(second)[0].readable_by
        assert [one.name for one in files(other)] == ["b.txt"]
    client.agents.delete(agent_id)
    with client.sandboxes.create(agent_id=agent_id) as anew:
        anew.write_file("c.txt", "c")
        assert [one.name for one in files(anew)] == ["c.txt"]
        with SyncColdframe(installation.url, token_of(client, Role.AGENT, agent_id)) as agent:
            with pytest.raises(GrantMissing):  # what is on record is for people
                agent.sandboxes.get(anew.id).inputs()
