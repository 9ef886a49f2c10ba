"""Held here: a contract can be agreed to before there is a sandbox, what is made is held against it, and each later change
makes a version that says what it comes from."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.canonical import canonical
from coldframe.contract.credential import NewCredential
from coldframe.contract.document import SECTIONS, ContractDocument, ContractPlan
from coldframe.contract.errors import ContractChanged, ContractDrift, GrantMissing, InvalidArgument, NotFound
from coldframe.contract.isolation import IsolationReport
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.volume import VolumeMount
from coldframe.control.contract_lines import drift, timeless
from coldframe.control.contract_versions import ContractVersions
from coldframe.control.contracts import document_digest
from coldframe.control.judgement import digest_of
from coldframe.control.store import Store
from tests.control.bench import AGENT, OWNER, Bench, opened

MEMBER = Caller(token_id="tok_member", role=Role.MEMBER, surface="embedded")
REACHING = """version: 1
settings: {limits: {ada: {memory_mib: 64}}, deny_commands: [nc]}
network:
  use: {"*": out}
  profiles:
    out: {rules: [{id: one, to: api.example.com, mode: intercept}]}
"""
EVEN_FURTHER = REACHING.replace("mode: intercept}]", "mode: intercept}, {id: two, to: files.example.com}]")
DELETED = {"agent_id": None, "background": True, "outputs": ("a",), "max_age_s": 9.0, "on_timeout": "terminate"}
SPECS: dict[str, Any] = {
    "volumes": (VolumeMount(name="data"),),
    "background": {"agent_id": None, "background": True},
    "requires": ("seccomp",),
    "network": "none",
    "limits": Limits(memory_mib=64),
    "runtimes": (),
    "denied_programs": ("vim",),
    "leftovers": "end",
    "track_files": False,
    "on_missing": "refuse",
    "idle_timeout_s": 60.0,
    "max_age_s": 60.0,
    "on_timeout": "terminate",
    "command_idle_s": 30.0,
    "ephemeral": {"agent_id": None, "background": True, "ephemeral": True},
    "outputs": ("report/*.html",),
    "ceiling": "INTERNAL",
    "inputs": {"agent_id": None, "background": True, "inputs": ({"path": "a.csv", "content": "a"},)},
    "snapshot": "0123456789abcdef",
    "agent_id": "bob",
    "isolation": "gvisor",
    "template": {"template": "debian", "profile": "computer"},
    "on_result": {**DELETED, "on_result": "delete"},
}
"""Another value of each field that has one."""


def lines_of(document: ContractDocument | ContractPlan) -> list[dict[str, Any]]:
    told = document.model_dump(mode="json")
    return [line for name in SECTIONS for line in told[name]]


def key() -> NewCredential:
    return NewCredential.model_validate(
        {
            "name": "crm",
            "base": "https://api.example.com/v1",
            "variable": "CRM_KEY",
            "roles": ["owner"],
            "secret": "a secret of sixteen",
        }
    )


@pytest.mark.req("T3.21")
def test_a_plan_is_what_is_made_but_for_id_times_and_what_is_observed_and_starts_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            bench.control.credentials.add(key(), caller=OWNER)
            for asked in ({"agent_id": "ada"}, {"background": True}, {"agent_id": "eve", "denied_programs": ("vim",)}):
                spec = SandboxSpec.model_validate(asked)
                before = bench.kinds()
                bench.host.unreachable = AssertionError("a plan asks nothing of the host")
                plan = bench.control.plans.plan(OWNER, spec)
                assert bench.control.plans.plan(OWNER, spec) == plan
                bench.host.unreachable = None
                assert bench.kinds() == before
                assert plan.sha256 == digest_of(plan.model_dump(mode="json", exclude={"sha256"}))
                agreed = spec.model_copy(update={"contract_sha256": plan.sha256})
                info = await bench.control.creation.create(OWNER, agreed)
                made = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
                assert drift(lines_of(plan), lines_of(made)) == []
                planned = {line["id"]: line["value"] for line in lines_of(plan)}
                same = {line["id"] for line in lines_of(made) if planned.get(line["id"]) == timeless(line["value"])}
                for section in ("inputs", "execution", "outputs", "persistence", "permissions", "lifecycle"):
                    assert {line.id for line in getattr(made, section)} <= same, section
                assert "exposure.network.api.example.com" in same
                assert "exposure.credential.crm" in same
            with pytest.raises(NotFound):
                bench.control.agents.get("nobody")

    asyncio.run(scenario())


@pytest.mark.req("T3.21")
def test_every_field_that_is_asked_for_makes_another_contract(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            plan = bench.control.plans.plan
            own = SandboxSpec(agent_id="ada")
            kept = SandboxSpec.model_validate({**own.model_dump(exclude={"profile"}), **DELETED})
            digests = {"": plan(OWNER, own).sha256, "kept": plan(OWNER, kept).sha256}
            for name, value in SPECS.items():
                changed = value if isinstance(value, dict) else {name: value}
                spec = SandboxSpec.model_validate({**own.model_dump(exclude={"profile"}), **changed})
                digests[name] = plan(OWNER, spec).sha256
            assert digests.pop("network") == digests[""]  # it has none in any case
            assert len(set(digests.values())) == len(digests)
            left = set(SandboxSpec.model_fields) - set(SPECS)
            assert left == {"profile", "contract_sha256"}

    asyncio.run(scenario())


@pytest.mark.req("T3.21")
def test_creation_refuses_a_contract_that_is_not_agreed_to_and_says_what_differs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            spec = SandboxSpec(agent_id="ada")
            plan = bench.control.plans.plan(OWNER, spec)
            await bench.control.rulebook.load(EVEN_FURTHER, caller=OWNER)
            await bench.restart()
            with pytest.raises(ContractChanged) as caught:
                await bench.control.creation.create(
                    OWNER, spec.model_copy(update={"contract_sha256": plan.sha256}), idempotency_key="one"
                )
            error = caught.value
            assert (error.code, error.status) == ("CONTRACT_CHANGED", 409)
            changes = {one["id"]: one for one in error.facts["changes"]}  # type: ignore[union-attr,index,call-overload]
            assert changes["effective_reach.network"]["before"] == ["api.example.com"]
            assert changes["effective_reach.network"]["after"] == ["api.example.com", "files.example.com"]
            assert changes["exposure.network.files.example.com"]["before"] is None
            assert bench.control.sandboxes.list(OWNER) == []
            with pytest.raises(NotFound):
                bench.control.agents.get("ada")
            now = bench.control.plans.plan(OWNER, spec)
            assert error.facts["contract_sha256"] == now.sha256
            accepted = spec.model_copy(update={"contract_sha256": now.sha256})
            info = await bench.control.creation.create(OWNER, accepted, idempotency_key="one")
            assert info.spec.contract_sha256 == now.sha256
            with pytest.raises(ContractChanged) as unknown:
                await bench.control.creation.create(OWNER, spec.model_copy(update={"contract_sha256": "0" * 64}))
            assert "changes" not in unknown.value.facts

    asyncio.run(scenario())


@pytest.mark.req("T3.21")
def test_what_was_made_and_is_not_what_was_agreed_to_is_taken_down_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            plan = bench.control.plans.plan(OWNER, SandboxSpec(agent_id="ada"))
            agreed = SandboxSpec(agent_id="ada", contract_sha256=plan.sha256)
            genuine = bench.host.create

            async def create(*arguments: Any, **options: Any) -> IsolationReport:
                await bench.control.rulebook.load(EVEN_FURTHER, caller=OWNER)
                return await genuine(*arguments, **options)

            monkeypatch.setattr(bench.host, "create", create)
            with pytest.raises(ContractDrift) as caught:
                await bench.control.creation.create(OWNER, agreed)
            assert "effective_reach.network" in [one["id"] for one in caught.value.facts["changes"]]  # type: ignore[union-attr,index,call-overload]
            assert bench.control.sandboxes.list(OWNER) == []
            assert await bench.host.boxes() == []
            assert bench.kinds()[-1] == "sandbox.failed"

    asyncio.run(scenario())


@pytest.mark.req("T3.21")
def test_each_change_of_the_rules_is_a_version_that_says_who_why_and_when(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            info = await bench.sandbox()
            first = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            assert first.change is None
            before = await bench.call(info, "run_command", command="true")
            await bench.control.rulebook.load(EVEN_FURTHER, caller=OWNER, reason="files are needed")
            after = await bench.call(info, "run_command", command="true")
            await bench.control.rulebook.load(REACHING, caller=OWNER, reason="no longer")
            newest = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            assert newest.version == 3
            second = bench.control.contracts.version(info, 2)
            assert second.change is not None
            (cause,) = second.change.causes
            loaded = bench.entries(kinds=["policy.changed"])[-2]
            assert (cause.seq, cause.at, cause.kind) == (loaded.seq, loaded.at, "policy.changed")
            assert (cause.by, cause.reason) == (OWNER.name, "files are needed")
            assert "effective_reach.network.files.example.com" in [line.id for line in second.change.lines]
            receipts = [
                bench.control.receipts.get(OWNER, str(result.receipt_id)).contract_version for result in (before, after)
            ]
            assert receipts == [1, 2]
            assert bench.control.contracts.version(info, 1) == first
            with pytest.raises(NotFound):
                bench.control.contracts.version(info, 4)

    asyncio.run(scenario())


@pytest.mark.req("T3.21")
def test_rules_that_are_others_after_a_start_are_a_version_before_anything_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            info, ended = await bench.sandbox(), await bench.sandbox("bob")
            await bench.control.lifecycle.terminate(OWNER, ended.sandbox_id)
            (tmp_path / "rules.yaml").write_text(EVEN_FURTHER)
            for _ in range(2):
                await bench.restart()
                after = await bench.call(info, "run_command", command="true")
                assert bench.control.receipts.get(OWNER, str(after.receipt_id)).contract_version == 2
            second = bench.control.contracts.version(info, 2)
            assert second.change is not None
            assert [one.kind for one in second.change.causes] == ["policy.changed"]
            with pytest.raises(NotFound):
                bench.control.contracts.version(ended, 2)

    asyncio.run(scenario())


def test_a_credential_that_is_added_is_the_cause_of_a_version(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            info = await bench.sandbox()
            bench.control.credentials.add(key(), caller=OWNER)
            document = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            assert document.change is not None
            assert [(one.kind, one.by) for one in document.change.causes] == [("credential.added", OWNER.name)]

    asyncio.run(scenario())


def test_whoever_may_not_make_a_sandbox_may_not_plan_one(tmp_path: Path) -> None:
    async def plan(bench: Bench, caller: Caller, **asked: Any) -> None:
        bench.control.plans.plan(caller, SandboxSpec(**asked))

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            with pytest.raises(GrantMissing):
                await plan(bench, AGENT, agent_id="ada")
            with pytest.raises(GrantMissing):
                await plan(bench, MEMBER, agent_id="ada", limits=Limits(pids=100_000))
            with pytest.raises(InvalidArgument):
                await plan(bench, OWNER, agent_id="ada", network="nowhere")
            await plan(bench, MEMBER, agent_id="ada")

    asyncio.run(scenario())


@pytest.mark.req("T3.21")
def test_a_version_is_kept_as_what_differs_and_read_as_it_was_issued_whatever_came_after(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, REACHING) as bench:
            info = await bench.sandbox()
            texts = [REACHING.replace("deny_commands: [nc]", f"deny_commands: [nc, no-{n}]") for n in range(6)]
            issued = [await bench.control.sandboxes.contract(OWNER, info.sandbox_id)]
            for text in (*texts, EVEN_FURTHER, REACHING):
                await bench.control.rulebook.load(text, caller=OWNER)
                issued.append(await bench.control.sandboxes.contract(OWNER, info.sandbox_id))
            await bench.restart()
            again = [bench.control.contracts.version(info, one.version) for one in issued]
            assert again == issued
            assert [one.version for one in again] == [*range(1, len(issued) + 1)]
            assert all(document_digest(one) == one.sha256 for one in again)
            kept = sqlite3.connect(bench.root / "control" / "coldframe.db")
            sizes = [size for (size,) in kept.execute("SELECT length(document) FROM contracts ORDER BY version")]
            kept.close()
            assert max(sizes[1 : 1 + len(texts)]) < sizes[0] / 8, sizes
            assert max(sizes[1:]) < sizes[0] / 4, sizes
            assert await bench.control.sandboxes.contract(OWNER, info.sandbox_id) == issued[-1]

    asyncio.run(scenario())


def test_a_version_that_differs_much_is_kept_whole_and_later_ones_differ_from_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "control.db"))
    try:
        versions = ContractVersions(store)
        made = []
        for number in range(1, 6):
            kind = "first" if number < 3 else "second"
            sections: dict[str, Any] = {
                name: [{"id": f"{name}.{place}", "value": f"{kind} {'x' * 100}"} for place in range(9)]
                for name in SECTIONS
            }
            sections["cost"] = [{"id": f"cost.{place}", "value": number} for place in range(number)]
            document = {"sandbox_id": "sb", "version": number, "sha256": "0", **sections}
            with store.transaction():
                versions.add(document, canonical(document))
            made.append(document)
        assert [versions.find("sb", number) for number in range(1, 6)] == made
        assert versions.newest("sb") == made[-1]
        assert (versions.find("sb", 6), versions.newest("other")) == (None, None)
        sizes = [size for (size,) in store.read("SELECT length(document) FROM contracts ORDER BY version")]
        assert [size > sizes[0] / 2 for size in sizes] == [True, False, True, False, False]
    finally:
        store.close()
