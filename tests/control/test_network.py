"""Held here: control answers what waits in the host or refuses it, tells boxes every label before it matters, and misses none
of their contacts."""

import asyncio
from pathlib import Path

import pytest

from coldframe.contract.errors import DeniedByRule, GrantMissing, HostUnreachable, InvalidArgument, RulesInvalid
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxSpec
from tests.control.bench import AGENT, OWNER, opened, until
from tests.control.network_bench import MEMBER, RULES, listened, logged, question
from tests.fakes.network import contact

# -- which network a sandbox gets ----------------------------------------------------------------------------------


def test_a_sandbox_gets_the_network_that_the_rules_give_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            given, asked, without, refused = (
                await bench.sandbox(),
                await bench.sandbox(network="packages"),
                await bench.sandbox("eve"),
                await bench.sandbox(network="none"),
            )
            assert [one.network for one in (given, asked, without, refused)] == [
                ("crm",),
                ("packages", "crm"),
                None,
                None,
            ]
            access = bench.host.access[asked.sandbox_id]
            assert access is not None
            assert (access.asked, access.role, access.taint) == ("packages", Role.OWNER, Label.PUBLIC)
            assert [bench.host.access[one.sandbox_id] for one in (without, refused)] == [None, None]
            assert bench.entries(kinds=["sandbox.created"])[1].body["network"] == ["packages", "crm"]
            await bench.restart()
            assert bench.control.sandboxes.get(OWNER, asked.sandbox_id).network == ("packages", "crm")

    asyncio.run(scenario())


def test_a_profile_that_is_unknown_or_not_given_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            with pytest.raises(InvalidArgument) as unknown:
                await bench.sandbox(network="crmm")
            assert unknown.value.facts["profiles"] == ["none", "packages", "open", "crm"]
            with pytest.raises(DeniedByRule):
                await bench.control.creation.create(MEMBER, SandboxSpec(agent_id="eve", network="open"))
            assert bench.control.sandboxes.list(OWNER) == []
            assert bench.host.access == {}

    asyncio.run(scenario())


def test_an_owner_needs_no_rule_to_choose_a_profile_and_is_held_to_one_that_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            chosen, held = await bench.sandbox("eve", network="open"), await bench.sandbox(network="open")
            assert chosen.network == ("open",)
            assert held.network == ("open", "crm")

    asyncio.run(scenario())


def test_what_a_sandbox_may_reach_follows_the_rules_but_one_made_without_network_stays_without(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            given, without = await bench.sandbox(), await bench.sandbox("eve")
            text = RULES.replace('"agent:ada": crm', '"*": open')
            await bench.control.rulebook.load(text, caller=OWNER)
            assert bench.control.sandboxes.get(OWNER, given.sandbox_id).network == ("open",)
            assert bench.control.sandboxes.get(OWNER, without.sandbox_id).network is None
            await bench.control.rulebook.load("version: 1\n", caller=OWNER)
            assert bench.control.sandboxes.get(OWNER, given.sandbox_id).network == ("none",)

    asyncio.run(scenario())


# -- rules -----------------------------------------------------------------------------------------------------------


def test_the_host_has_the_rules_in_force_after_start_and_after_each_load(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            assert bench.host.rules[-1] == RULES
            await bench.control.rulebook.load("version: 1\n", caller=OWNER)
            assert bench.host.rules[-1] == "version: 1\n"
            told = len(bench.host.rules)
            bench.host.break_off()
            await until(lambda: len(bench.host.rules) > told)
            assert bench.host.rules[-1] == "version: 1\n"

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [RulesInvalid("no", line=1), HostUnreachable("gone")])
def test_a_set_that_the_host_does_not_take_is_not_in_force(tmp_path: Path, failure: Exception) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            before = bench.control.rulebook.current
            bench.host.failure = failure
            with pytest.raises(type(failure)):
                await bench.control.rulebook.load(RULES, caller=OWNER)
            assert bench.control.rulebook.current is before
            bench.host.failure = None
            assert bench.kinds().count("policy.changed") == 1

    asyncio.run(scenario())


def test_a_set_that_could_not_be_recorded_is_taken_back_from_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            rulebook = bench.control.rulebook
            before = rulebook.text

            def fail(*_: object, **__: object) -> None:
                raise OSError("full")

            with monkeypatch.context() as patch:
                patch.setattr(rulebook, "_take", fail)
                with pytest.raises(OSError, match="full"):
                    await rulebook.load(RULES, caller=OWNER)
            await until(lambda: bench.host.rules[-1] == before)
            assert RULES in bench.host.rules

    asyncio.run(scenario())


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("T1.84")
def test_reaching_a_destination_labels_session_and_workspace_and_all_boxes_on_it_before_it_is_answered(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            await listened(bench)
            info, beside, other = await bench.sandbox(), await bench.sandbox(), await bench.sandbox("bob")
            answer = await bench.host.ask(question(info))
            assert answer.refusal is None
            assert bench.host.taints == {info.sandbox_id: Label.CONFIDENTIAL, beside.sandbox_id: Label.CONFIDENTIAL}
            assert bench.control.sessions.get(info.session_id).taint is Label.CONFIDENTIAL
            assert bench.control.agents.get("ada").workspace_label is Label.CONFIDENTIAL
            assert bench.control.sandboxes.find(other.sandbox_id).workspace_label is Label.PUBLIC
            # whoever comes later sees the same files
            later = await bench.sandbox()
            access = bench.host.access[later.sandbox_id]
            assert access is not None
            assert access.taint is Label.CONFIDENTIAL
            assert (await bench.call(beside, "list_directory")).taint is Label.CONFIDENTIAL

    asyncio.run(scenario())


def test_a_label_that_cannot_be_told_or_recorded_refuses_the_question(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            bench.host.failure = HostUnreachable("gone")
            assert (await bench.host.ask(question(info))).code == "HOST_UNREACHABLE"
            bench.host.failure = None
            unknown = question(info).model_copy(update={"sandbox_id": "sbx_nobody"})
            assert (await bench.host.ask(unknown)).refusal is not None
            assert (await bench.host.ask(question(info, kind="secret", handle="h"))).refusal is not None
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            assert (await bench.host.ask(question(info))).code == "WRONG_STATE"

    asyncio.run(scenario())


def test_a_box_knows_the_label_of_what_a_tool_gives_before_it_is_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            await listened(bench)
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="secrets/key", content="x")
            assert bench.host.taints[info.sandbox_id] is Label.CONFIDENTIAL
            told = list(bench.host.told)
            await bench.call(info, "read_file", path="secrets/key")
            assert bench.host.told == told

    asyncio.run(scenario())


def test_nothing_runs_where_a_box_cannot_be_told_its_label(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            bench.host.failure = HostUnreachable("gone")
            with pytest.raises(HostUnreachable):
                await bench.call(info, "write_file", path="secrets/key", content="x")
            assert not (tmp_path / "workspace" / "ada" / "secrets").exists()
            assert [entry.kind for entry in bench.calls()] == ["call.started", "call.interrupted"]
            bench.host.failure = None
            await bench.call(info, "write_file", path="secrets/key", content="x")

    asyncio.run(scenario())


def test_a_reset_renews_the_session_of_the_box_at_the_label_of_its_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            await bench.host.ask(question(info))
            with pytest.raises(GrantMissing):
                await bench.control.taints.reset(info.session_id, caller=AGENT)
            new = await bench.control.taints.reset(info.session_id, caller=OWNER)
            assert new.taint is Label.PUBLIC
            assert bench.host.told[-1] == ("renew", info.sandbox_id, Label.CONFIDENTIAL)
            bench.control.agents.set_label("ada", Label.PUBLIC, caller=OWNER, reason="looked at")
            await bench.control.taints.reset(new.session_id, caller=OWNER)
            assert bench.host.told[-1] == ("renew", info.sandbox_id, Label.PUBLIC)
            await bench.host.ask(question(info, Label.INTERNAL))
            assert bench.host.taints[info.sandbox_id] is Label.INTERNAL

    asyncio.run(scenario())


def test_labels_are_told_again_when_server_or_host_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            await bench.host.ask(question(info))
            public = await bench.sandbox("bob")
            bench.host.break_off()
            await until(lambda: len(bench.host.taints) == 2)
            assert bench.host.taints == {info.sandbox_id: Label.CONFIDENTIAL, public.sandbox_id: Label.PUBLIC}
            bench.host.taints.clear()
            await bench.restart()
            assert bench.host.taints[info.sandbox_id] is Label.CONFIDENTIAL
            # labels before rules: until there are rules nothing is allowed
            await listened(bench)
            assert (await bench.host.ask(question(info))).refusal is None

    asyncio.run(scenario())


def test_a_sandbox_that_cannot_be_made_leaves_no_network(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            bench.host.unreachable = HostUnreachable("gone")
            with pytest.raises(HostUnreachable):
                await bench.control.creation.create(OWNER, SandboxSpec(agent_id="bob"))
            bench.host.unreachable = None
            assert bench.control.store.read("SELECT * FROM networks") == []
            assert list(bench.control.sandboxes.networked) == []

    asyncio.run(scenario())


def test_a_host_that_could_not_be_told_all_is_told_again_while_it_is_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            await bench.sandbox()
            await listened(bench)
            raise_taint, failures = bench.host.raise_taint, [HostUnreachable("its label could not be written down")]

            async def fail_once(sandbox_id: str, taint: Label) -> None:
                if failures:
                    raise failures.pop()
                await raise_taint(sandbox_id, taint)

            monkeypatch.setattr(bench.host, "raise_taint", fail_once)
            told = len(bench.host.rules)
            bench.host.break_off()
            await until(lambda: len(bench.host.rules) > told)
            assert not failures and bench.host.has_reader

    asyncio.run(scenario())


@pytest.mark.req("T3.41")
def test_a_sandbox_that_is_started_again_has_its_network_and_no_lower_label_than_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, RULES) as bench:
            info = await bench.sandbox()
            await listened(bench)
            bench.host.put(info.sandbox_id, "begun", contact())
            bench.host.put(info.sandbox_id, "ended", contact(ended="closed"))
            await bench.control.taints.rise(info.sandbox_id, Label.INTERNAL)
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            bench.control.agents.raise_label("ada", Label.CONFIDENTIAL)
            bench.host.taints.clear()
            started = await bench.control.lifecycle.start(MEMBER, info.sandbox_id)
            assert started.network == info.network
            access = bench.host.access[info.sandbox_id]
            assert access is not None
            assert (access.role, access.taint) == (OWNER.role, Label.CONFIDENTIAL)
            # The new box is told what it has to know, whatever the one before was told.
            assert bench.host.taints[info.sandbox_id] is Label.CONFIDENTIAL
            assert len(await logged(bench, info)) == 1
            assert bench.host.forgotten == []
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await until(lambda: bench.host.forgotten == [info.sandbox_id])
            assert len(await logged(bench, info)) == 1

    asyncio.run(scenario())
