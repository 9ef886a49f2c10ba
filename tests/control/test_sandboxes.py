"""Held here: a sandbox is made whole or not at all, its state is true after a crash, and its contract is complete."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coldframe.contract.caller import Caller
from coldframe.contract.document import ContractDocument
from coldframe.contract.errors import (
    Conflict,
    GrantMissing,
    GuestLost,
    HostUnreachable,
    InvalidArgument,
    IsolationUnavailable,
    LedgerUnavailable,
    NotFound,
    WrongState,
)
from coldframe.contract.policy import Role
from coldframe.contract.ports import BoxStatus
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.control.contracts import document_digest
from coldframe.control.judgement import digest_of
from tests.control.bench import AGENT, OTHER, OWNER, VIEWER, opened, until
from tests.fakes.box import FakeBox
from tests.fakes.host import FakeHost

SECTIONS = (
    "inputs",
    "execution",
    "outputs",
    "persistence",
    "isolation",
    "permissions",
    "exposure",
    "effective_reach",
    "not_prevented",
    "lifecycle",
    "retention",
    "backup",
    "cost",
)


def test_a_sandbox_that_cannot_be_built_leaves_nothing_but_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create = FakeHost.create

            async def no_wall(*_: Any, **__: Any) -> Any:
                raise IsolationUnavailable("no user namespaces", property="user_namespace")

            async def late(self: FakeHost, *args: Any, **kwargs: Any) -> Any:
                await create(self, *args, **kwargs)
                raise LedgerUnavailable("stands for any failure after the box was built")

            async def cancelled(self: FakeHost, *args: Any, **kwargs: Any) -> Any:
                await create(self, *args, **kwargs)
                raise asyncio.CancelledError

            for broken, error in (
                (no_wall, IsolationUnavailable),
                (late, LedgerUnavailable),
                (cancelled, asyncio.CancelledError),
            ):
                for spec in (SandboxSpec(agent_id="ada"), SandboxSpec(background=True)):
                    monkeypatch.setattr(FakeHost, "create", broken)
                    with pytest.raises(error):
                        await bench.control.creation.create(OWNER, spec)
                    monkeypatch.undo()
                    assert bench.control.sandboxes.list(OWNER) == []
                    assert await bench.host.boxes() == []
                    background = tmp_path / "background"
                    assert not background.exists() or not any(background.iterdir())
                    assert bench.kinds()[-1] == "sandbox.failed"
            await bench.sandbox()

    asyncio.run(scenario())


def test_a_spec_names_an_agent_or_the_background(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            for spec in (SandboxSpec(), SandboxSpec(agent_id="ada", background=True)):
                with pytest.raises(InvalidArgument):
                    await bench.control.creation.create(OWNER, spec)
            for caller in (VIEWER, AGENT):
                with pytest.raises(GrantMissing):
                    await bench.control.creation.create(caller, SandboxSpec(agent_id="ada"))

    asyncio.run(scenario())


def test_ending_is_idempotent_and_keeps_an_agents_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="kept", content="x")
            task = asyncio.create_task(bench.call(info, "run_command", command="sleep 30"))
            await until(lambda: bool(bench.host.ran))
            for _ in range(2):
                ended = await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
                assert ended.state.state == "terminated"
                assert [action["op"] for action in ended.state.next_actions] == ["sandbox.create"]
            result = await task
            assert result.value["ended"] == "cancelled"
            assert result.value["ended_with"] == {"act": "terminate", "timer": None}
            assert bench.kinds().count("sandbox.terminated") == 1
            with pytest.raises(WrongState):
                await bench.call(info, "write_file", path="kept", content="y")
            assert (await bench.call(info, "read_file", path="kept")).value["content"] == "x"
            assert bench.control.sessions.get(info.session_id).closed_at is not None
            again = await bench.sandbox()
            assert (await bench.call(again, "read_file", path="kept")).value["content"] == "x"

    asyncio.run(scenario())


@pytest.mark.req("T1.50", "T1.51")
def test_a_background_workspace_goes_with_its_sandbox_and_with_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create = bench.control.creation.create
            first, second, third = [await create(OWNER, SandboxSpec(background=True)) for _ in range(3)]
            folders = [tmp_path / "background" / one.session_id for one in (first, second, third)]
            assert all(folder.is_dir() for folder in folders)
            await bench.control.lifecycle.terminate(OWNER, first.sandbox_id)
            assert [folder.exists() for folder in folders] == [False, True, True]
            await bench.host.lose(second.sandbox_id)
            await bench.restart()
            assert [folder.exists() for folder in folders] == [False, False, True]
            assert bench.control.sandboxes.get(OWNER, second.sandbox_id).state.state == "lost"
            assert bench.control.sandboxes.get(OWNER, third.sandbox_id).state.state == "running"

    asyncio.run(scenario())


@pytest.mark.req("T1.51")
def test_a_box_that_ended_by_itself_is_noticed_without_a_call_as_long_as_temporary_ones_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            find, losses = bench.control.sandboxes.find, bench.control.losses
            durable = await bench.sandbox()
            with monkeypatch.context() as patch:
                patch.delattr(type(bench.host), "boxes")
                await losses.turn()  # asks nothing where there is none
            dies, goes_on, paused = [
                await bench.control.creation.create(OWNER, SandboxSpec(background=True)) for _ in range(3)
            ]
            await bench.control.lifecycle.pause(OWNER, paused.sandbox_id)
            stopped = await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            await bench.control.lifecycle.stop(OWNER, stopped.sandbox_id)
            await losses.turn()
            assert find(dies.sandbox_id).state.state == "running"
            for one in (dies, durable):
                await bench.host.lose(one.sandbox_id)
            await losses.turn()
            states = [find(one.sandbox_id).state.state for one in (dies, durable, goes_on, paused, stopped)]
            assert states == ["lost", "lost", "running", "paused", "stopped"]
            assert not (tmp_path / "background" / dies.session_id).exists()
            assert all((tmp_path / "background" / one.session_id).is_dir() for one in (goes_on, paused, stopped))
            told = bench.control.ledger.entries(kinds=("sandbox.lost",))
            assert {entry.subject for entry in told} == {dies.sandbox_id, durable.sandbox_id}
            assert bench.control.sessions.get(dies.session_id).closed_at is not None

    asyncio.run(scenario())


@pytest.mark.req("T1.51")
def test_a_box_that_somebody_ends_while_it_is_looked_at_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            asked = type(bench.host).boxes

            async def without(host: FakeHost) -> list[BoxStatus]:
                found = [box for box in await asked(host) if box.sandbox_id != info.sandbox_id]
                monkeypatch.setattr(FakeHost, "boxes", asked)
                return found

            monkeypatch.setattr(FakeHost, "boxes", without)
            await bench.control.losses.turn()
            assert bench.control.sandboxes.find(info.sandbox_id).state.state == "running"

    asyncio.run(scenario())


def test_after_a_start_states_are_what_the_host_says_and_strangers_are_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, gone = await bench.sandbox(), await bench.sandbox()
            await bench.host.create("sbx_stranger", SandboxSpec(agent_id="ada"), session_id="ses_none")
            await (await bench.host.life(gone.sandbox_id)).end()
            await bench.restart()
            assert {box.sandbox_id for box in await bench.host.boxes()} == {info.sandbox_id}
            state = bench.control.sandboxes.get(OWNER, gone.sandbox_id).state
            assert (state.state, state.code) == ("lost", "GUEST_LOST")
            assert "sandbox.create" in [action["op"] for action in state.next_actions]
            assert (await bench.call(info, "list_directory")).error is None

    asyncio.run(scenario())


def test_a_box_that_ends_by_itself_makes_the_sandbox_lost_at_the_next_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.host.lose(info.sandbox_id)
            with pytest.raises(GuestLost):
                await bench.call(info, "list_directory")
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).state.state == "lost"
            with pytest.raises(WrongState) as caught:
                await bench.call(info, "run_command", command="true")
            assert caught.value.next_actions

    asyncio.run(scenario())


def test_a_command_that_is_the_first_to_find_its_box_lost_did_nothing_and_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            box = bench.host.box

            async def lost_on_the_way(sandbox_id: str) -> FakeBox:
                found = await box(sandbox_id)
                await bench.host.lose(sandbox_id)
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(bench.host, "box", lost_on_the_way)
                with pytest.raises(GuestLost) as caught:
                    await bench.call(info, "run_command", key="k", command="touch made")
            assert "did nothing" in caught.value.message
            assert caught.value.next_actions[0]["op"] == "sandbox.create"
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).state.state == "lost"
            assert (bench.calls()[-1].kind, bench.calls()[-1].body["began"]) == ("call.interrupted", False)
            again = await bench.call(await bench.sandbox(), "run_command", key="k", command="touch made")
            assert again.value["exit_code"] == 0
            assert len(bench.host.ran) == 1

    asyncio.run(scenario())


def test_a_command_that_was_not_begun_while_its_box_lives_on_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            def connection_lost(*_: Any) -> Any:
                raise GuestLost("the keeper of this sandbox ended")

            monkeypatch.setattr(FakeBox, "run", connection_lost)
            with pytest.raises(HostUnreachable):
                await bench.call(info, "run_command", key="k", command="touch made")
            monkeypatch.undo()
            await bench.call(info, "run_command", key="k", command="touch made")
            assert len(bench.host.ran) == 1

    asyncio.run(scenario())


def test_a_helper_that_is_ended_from_inside_does_not_make_the_sandbox_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            async def helper_ended(*_: Any) -> Any:
                raise GuestLost("the helper that served this request was ended from inside the sandbox")

            monkeypatch.setattr(FakeBox, "ask", helper_ended)
            result = await bench.call(info, "search_files", pattern="x")
            assert result.error is not None
            assert result.error["code"] == "GUEST_LOST"
            monkeypatch.undo()
            assert (await bench.call(info, "search_files", pattern="x")).error is None
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).state.state == "running"

    asyncio.run(scenario())


@pytest.mark.req("T1.47")
def test_an_agent_made_again_sees_nothing_of_its_namesake(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            old = await bench.sandbox()
            await bench.call(old, "write_file", path="secret", content="x")
            await bench.control.lifecycle.terminate(OWNER, old.sandbox_id)
            await bench.control.agents.delete("ada", caller=OWNER)
            new = await bench.sandbox()
            assert [one.sandbox_id for one in bench.control.sandboxes.list(AGENT)] == [new.sandbox_id]
            with pytest.raises(NotFound):
                bench.control.sandboxes.get(AGENT, old.sandbox_id)
            assert bench.control.sandboxes.get(OWNER, old.sandbox_id).state.state == "terminated"
            with pytest.raises(NotFound):
                bench.control.sandboxes.get(OTHER, new.sandbox_id)
            assert len(bench.entries(sandbox_id=old.sandbox_id)) >= 4

    asyncio.run(scenario())


@pytest.mark.req("T3.15")
def test_the_contract_is_there_before_the_first_command_and_leaves_no_section_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            assert bench.kinds()[-1] == "contract.issued"
            document = await bench.control.sandboxes.contract(AGENT, info.sandbox_id)
            assert document.sha256 == document_digest(document) == bench.entries()[-1].body["sha256"]
            read_back = ContractDocument.model_validate_json(document.model_dump_json())
            assert document_digest(read_back) == document.sha256
            for section in SECTIONS:
                lines = getattr(document, section)
                assert lines
                assert all(line.id.startswith(f"{section}.") and line.text and line.verified_by for line in lines)
            ids = [line.id for section in SECTIONS for line in getattr(document, section)]
            assert len(ids) == len(set(ids))
            assert (await bench.control.sandboxes.contract(OWNER, info.sandbox_id)) == document

    asyncio.run(scenario())


@pytest.mark.req("T3.15", "T3.08")
def test_a_change_of_the_rules_makes_a_new_version_and_the_old_one_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            first = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            await bench.control.rulebook.load(
                "version: 1\nsettings: {disabled_tools: {agent: [edit_file]}}\n", caller=OWNER
            )
            second = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            assert (first.version, second.version) == (1, 2)
            answers = {line.id: line.value for line in second.permissions}
            assert answers["permissions.tool.edit_file"]["answer"] == "deny"
            await bench.restart()
            assert await bench.control.sandboxes.contract(OWNER, info.sandbox_id) == second
            await bench.call(info, "run_command", command="true")
            issued = [entry.body["sha256"] for entry in bench.entries(kinds=["contract.issued"])]
            assert issued == [first.sha256, second.sha256]

    asyncio.run(scenario())


def test_runtimes_say_whether_the_rules_let_them_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            before = {one.name: one.allowed for one in await bench.control.sandboxes.runtimes(AGENT, info.sandbox_id)}
            assert before
            assert all(before.values())
            name = sorted(before)[0]
            await bench.control.rulebook.load(f"version: 1\nsettings: {{deny_commands: ['{name}']}}\n", caller=OWNER)
            after = {one.name: one.allowed for one in await bench.control.sandboxes.runtimes(AGENT, info.sandbox_id)}
            assert after[name] is False

    asyncio.run(scenario())


STORED = {
    "agent_id": "one",
    "background": False,
    "template": "host",
    "profile": "exec",
    "isolation": "namespaces",
    "requires": [],
    "network": "none",
    "limits": {
        "wall_s": 600.0,
        "cpu_s": 1e9,
        "memory_mib": 2048,
        "disk_mib": 5120,
        "pids": 5_000_000,
        "open_files": 1024,
        "file_mib": 5120,
        "cpus": 0.0,
        "output_mib": 4096,
    },
    "runtimes": None,
    "leftovers": "adopt",
    "track_files": True,
    "on_missing": "degrade",
}
"""A specification as the first version kept it, which had no largest limits and did not know `denied_programs`."""


def test_what_was_kept_by_a_version_of_before_is_read_and_more_is_not_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            kept = (await bench.control.creation.create(OWNER, SandboxSpec(agent_id="one"))).sandbox_id
            with bench.control.store.transaction():
                bench.control.store.raw.execute(
                    "UPDATE sandboxes SET spec = ? WHERE sandbox_id = ?", (json.dumps(STORED), kept)
                )
            listed = bench.control.sandboxes.list(OWNER)
            assert [(one.sandbox_id, one.spec.limits.cpu_s) for one in listed] == [(kept, 1e9)]
            for name, value in (
                ("cpu_s", 1e9),
                ("cpu_s", float("inf")),
                ("pids", 5_000_000),
                ("cpus", 1e300),
                ("io_mib_s", 1 << 21),
            ):
                spec = SandboxSpec(agent_id="one", limits=Limits.model_validate({name: value}))
                with pytest.raises(InvalidArgument) as refused:
                    await bench.control.creation.create(OWNER, spec)
                assert refused.value.facts["argument"] == f"limits.{name}"

    asyncio.run(scenario())


def test_a_key_of_a_version_of_before_gives_the_sandbox_that_was_made_under_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            spec = {**STORED, "limits": Limits().model_dump(exclude={"io_mib_s"})}
            create = bench.control.creation.create
            said = SandboxSpec.model_validate(spec)
            made = await create(OWNER, said, idempotency_key="k")
            asked = digest_of({"operation": "sandbox.create", "spec": spec})
            with bench.control.store.transaction():
                bench.control.store.raw.execute("UPDATE keyed_calls SET request_sha256 = ?", (asked,))
            # it had no network, whether that was said or not
            for same in (said, said.model_copy(update={"network": None})):
                assert (await create(OWNER, same, idempotency_key="k")).sandbox_id == made.sandbox_id
            with pytest.raises(Conflict):
                await create(OWNER, said.model_copy(update={"network": "open"}), idempotency_key="k")

    asyncio.run(scenario())


def test_under_one_key_to_ask_for_no_network_and_to_leave_it_to_the_rules_are_two_things(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create = bench.control.creation.create
            left, none = SandboxSpec(agent_id="one"), SandboxSpec(agent_id="one", network="none")
            for key, first, second in (("a", left, none), ("b", none, left)):
                made = await create(OWNER, first, idempotency_key=key)
                assert (await create(OWNER, first, idempotency_key=key)).sandbox_id == made.sandbox_id
                with pytest.raises(Conflict):
                    await create(OWNER, second, idempotency_key=key)

    asyncio.run(scenario())


def test_a_sandbox_denies_what_the_rules_deny_and_a_bounded_number_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            await bench.control.rulebook.load("version: 1\nsettings: {deny_commands: [curl, git push]}\n", caller=OWNER)
            create = bench.control.creation.create
            spec = SandboxSpec(agent_id="one", denied_programs=tuple(f"p{number}" for number in range(256)))
            made = await create(OWNER, spec)
            assert made.spec.denied_programs == (*spec.denied_programs, "curl")
            assert bench.control.sandboxes.get(OWNER, made.sandbox_id).spec == made.spec
            more = spec.model_copy(update={"denied_programs": (*spec.denied_programs, "one-more")})
            with pytest.raises(InvalidArgument) as refused:
                await create(OWNER, more)
            assert refused.value.facts["argument"] == "denied_programs"
            for name in ("", "a\x00b", "a\nb", "n" * 256):
                with pytest.raises(ValidationError):
                    SandboxSpec(agent_id="one", denied_programs=(name,))

    asyncio.run(scenario())


def test_limits_go_up_for_owner_and_admin_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            create = bench.control.creation.create
            member = Caller(token_id="tok_member", role=Role.MEMBER)
            wide = SandboxSpec(agent_id="wide", limits=Limits(memory_mib=Limits().memory_mib + 1))
            with pytest.raises(GrantMissing) as refused:
                await create(member, wide)
            assert refused.value.facts["argument"] == "limits.memory_mib"
            tight = SandboxSpec(agent_id="tight", limits=Limits(memory_mib=64, cpus=0.5, io_mib_s=10))
            assert (await create(member, tight)).spec.limits == tight.limits
            assert (await create(OWNER, wide)).spec == wide

    asyncio.run(scenario())
