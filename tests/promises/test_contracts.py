"""A contract can be looked at and agreed to before anything is started, and is what the sandbox has that is made then."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from coldframe.client.sync import SyncColdframe, SyncSandbox
from coldframe.contract.document import SECTIONS
from coldframe.contract.errors import ContractChanged
from coldframe.contract.isolation import WALLS
from coldframe.contract.sandbox import SandboxSpec
from coldframe.control.contract_lines import drift
from tests.installation import Installation
from tests.promises.governed import head


def lines_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for name in SECTIONS for line in document[name]]


@pytest.mark.req("T3.21")
@pytest.mark.without_way_out
def test_a_plan_starts_nothing_and_is_the_contract_of_what_is_made_by_it(
    installation: Installation, client: SyncColdframe, agent_id: str, tmp_path: Path
) -> None:
    spec = {"agent_id": agent_id, "denied_programs": ["nc*"], "idle_timeout_s": 600}
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(spec))
    before = (head(client), sorted(os.listdir(os.path.join(installation.data_dir, "boxes"))))
    plan = client.sandboxes.plan(SandboxSpec.model_validate(spec))
    assert before == (head(client), sorted(os.listdir(os.path.join(installation.data_dir, "boxes"))))
    assert not Path(installation.data_dir, "workspace", agent_id).exists()
    told = installation.cli("contract", "plan", str(file), "--json")
    assert json.loads(told.stdout) == plan
    assert plan["sha256"].encode() in installation.cli("contract", "plan", str(file)).stdout
    made = installation.cli("sandbox", "create", "--spec", str(file), "--contract", plan["sha256"], "--json")
    assert made.returncode == 0, made.stderr
    with client.sandboxes.get(json.loads(made.stdout)["sandbox_id"]) as sandbox:
        assert drift(lines_of(plan), lines_of(sandbox.contract())) == []
    refused = installation.cli("sandbox", "create", "--agent", agent_id, "--contract", plan["sha256"], "--json")
    error = json.loads(refused.stderr)["error"]
    assert (refused.returncode, error["code"]) == (6, "CONTRACT_CHANGED")
    assert {one["id"] for one in error["facts"]["changes"]} >= {"execution.denied_programs", "lifecycle.timers"}


@pytest.mark.req("T3.21")
@pytest.mark.without_way_out
def test_the_walls_that_a_plan_promises_are_those_that_every_sandbox_needs(sandbox: SyncSandbox) -> None:
    assert {one.name for one in sandbox.report().properties if one.required} == set(WALLS)


@pytest.mark.req("T3.21")
def test_a_rule_that_is_added_makes_a_version_with_its_author_and_earlier_receipts_keep_theirs(
    owner: SyncColdframe, box: SyncSandbox
) -> None:
    first = box.contract()
    planned = owner.sandboxes.plan(SandboxSpec(agent_id=box.info.agent_id))
    before = box.run_command("true").result.receipt_id
    rules = "version: 1\nnetwork:\n  profiles:\n    out: {rules: [{id: one, to: api.example.com}]}\n"
    owner.policy.load(rules, reason="a service is needed")
    after = box.run_command("true").result.receipt_id
    versions = [owner.receipt(str(one))["contract_version"] for one in (before, after)]
    assert versions == [first["version"], first["version"] + 1]
    change = box.contract()["change"]
    assert [(one["kind"], one["reason"]) for one in change["causes"]] == [("policy.changed", "a service is needed")]
    assert change["causes"][0]["by"] and change["causes"][0]["at"]
    assert box.contract(version=first["version"]) == first
    spec = SandboxSpec(agent_id=box.info.agent_id, contract_sha256=planned["sha256"])
    with pytest.raises(ContractChanged):
        owner.sandboxes.create(spec=spec)
