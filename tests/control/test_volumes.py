"""Held here: a volume is had by whoever may, written to by one at a time whatever is killed, and no label is lost through it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    Conflict,
    DeniedByRule,
    GrantMissing,
    NotFound,
    PendingApproval,
    VolumeBusy,
)
from coldframe.contract.files import WriteAnswer
from coldframe.contract.policy import Label, Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.volume import VolumeGrant, VolumeInfo, VolumeMount, VolumeRequest
from tests.control.bench import AGENT, OTHER, OWNER, SECRETS, Bench, opened

MEMBER = OWNER.model_copy(update={"token_id": "tok_member", "role": Role.MEMBER})
RO, RW = VolumeMount(name="data"), VolumeMount(name="data", mode="rw")
RULES = """version: 1
rules:
  - id: kept-from-bob
    hook: PRE_TOOL_CALL
    when: {tool: attach_volume, agent_id: bob, path: {glob: "data*"}}
    then: deny
  - id: uploads-are-asked-about
    hook: PRE_TOOL_CALL
    when: {tool: write_volume, path: {glob: "data/secret/*"}}
    then: ask
"""


async def volume(bench: Bench, name: str = "data", **more: Any) -> VolumeInfo:
    return await bench.control.volumes.create(OWNER, VolumeRequest(name=name, **more))


async def having(bench: Bench, agent_id: str, *volumes: VolumeMount, caller: Caller = OWNER) -> SandboxInfo:
    return await bench.control.creation.create(caller, SandboxSpec(agent_id=agent_id, volumes=volumes))


def label_of(bench: Bench) -> Label:
    return bench.control.volumes.list(OWNER)[0].label


def taint_of(bench: Bench, info: SandboxInfo) -> Label:
    return bench.control.sessions.get(info.session_id).taint


async def put(bench: Bench, path: str, content: bytes, **more: Any) -> WriteAnswer:
    async def parts() -> AsyncIterator[bytes]:
        yield content

    return await bench.control.volumes.write_file(more.pop("caller", OWNER), "data", path, parts(), **more)


@pytest.mark.req("T3.44")
def test_one_writes_while_others_read_and_it_is_removed_only_when_nobody_has_it(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            made = await volume(bench)
            with pytest.raises(Conflict):
                await volume(bench)
            writer = await having(bench, "ada", RW)
            reader = await having(bench, "bob", RO)
            told = bench.host.attached[writer.sandbox_id][0]
            assert (told.volume_id, told.mode, told.at) == (made.volume_id, "rw", "/home/user/volumes/data")
            with pytest.raises(VolumeBusy) as refused:
                await having(bench, "eve", RW)
            assert [one["sandbox_id"] for one in refused.value.facts["holders"]] == [writer.sandbox_id]  # type: ignore[index, call-overload, union-attr]
            assert len(bench.control.sandboxes.list(OWNER)) == 2
            with pytest.raises(VolumeBusy):
                await put(bench, "a", b"x")
            with pytest.raises(VolumeBusy) as refused:
                await bench.control.volumes.remove(OWNER, "data")
            assert len(refused.value.facts["holders"]) == 2  # type: ignore[arg-type]
            await bench.control.lifecycle.stop(OWNER, writer.sandbox_id)
            other = await having(bench, "eve", RW)
            with pytest.raises(VolumeBusy):
                await bench.control.lifecycle.start(OWNER, writer.sandbox_id)
            assert bench.control.sandboxes.get(OWNER, writer.sandbox_id).state.state == "stopped"
            await bench.control.lifecycle.terminate(OWNER, other.sandbox_id)
            await bench.control.lifecycle.start(OWNER, writer.sandbox_id)
            await bench.control.lifecycle.stop(OWNER, writer.sandbox_id)
            await bench.control.lifecycle.terminate(OWNER, reader.sandbox_id)
            with pytest.raises(VolumeBusy):  # which is to have it again when it starts
                await bench.control.volumes.remove(OWNER, "data")
            await bench.control.lifecycle.terminate(OWNER, writer.sandbox_id)
            await bench.control.volumes.remove(OWNER, "data")
            with pytest.raises(NotFound):
                await having(bench, "ada", RO)
            kinds = [one.kind for one in bench.entries(subject=made.volume_id)]
            attached = ["volume.attached", "volume.detached"]
            assert kinds[0] == "volume.created"
            assert kinds[-1] == "volume.removed"
            assert sorted(kinds[1:-1]) == sorted(attached * 4)

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_no_kill_leaves_a_volume_taken(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await volume(bench)
            first = await having(bench, "ada", RW)
            await bench.host.lose(first.sandbox_id)  # its keeper is gone, and nobody has noticed
            second = await having(bench, "bob", RW)
            assert bench.control.sandboxes.get(OWNER, first.sandbox_id).state.state == "lost"
            bench.kill()
            await bench.host.lose(second.sandbox_id)
            await bench.start()
            third = await having(bench, "eve", RW)
            await bench.restart()
            with pytest.raises(VolumeBusy):
                await having(bench, "ada", RW)
            await bench.control.lifecycle.terminate(OWNER, third.sandbox_id)
            bench.host.unreachable = NotFound("no wall")
            with pytest.raises(NotFound):
                await having(bench, "ada", RW)
            bench.host.unreachable = None
            await having(bench, "ada", RW)

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_whoever_waited_for_a_turn_gets_a_volume_whose_holder_is_gone(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await bench.control.close()
            bench.most_running = 2
            await bench.start()
            await volume(bench)
            holder, other = await having(bench, "ada", RW), await having(bench, "eve")
            waiting = await bench.control.creation.create(OWNER, SandboxSpec(agent_id="bob", volumes=(RW,)), queue_s=30)
            await bench.host.lose(holder.sandbox_id)  # its keeper is gone, and nobody has noticed
            await bench.control.lifecycle.terminate(OWNER, other.sandbox_id)
            made = await bench.control.creation.wait(OWNER, waiting.sandbox_id, 30)
            assert made.state.state == "running", made.state.message

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_what_sandboxes_had_that_are_gone_is_not_looked_through(tmp_path: Path) -> None:
    """The table of who has what is asked about each call of a sandbox with a way out."""

    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await volume(bench)
            for _ in range(3):
                ended = await having(bench, "ada", RW)
                await bench.control.lifecycle.terminate(OWNER, ended.sandbox_id)
            lost = await having(bench, "ada", RW)
            await bench.host.lose(lost.sandbox_id)
            await bench.control.sandboxes.check_alive(lost.sandbox_id, "its box has ended")
            stopped = await having(bench, "ada", RW)
            await bench.control.lifecycle.stop(OWNER, stopped.sandbox_id)
            left = bench.control.store.read("SELECT sandbox_id, attached_at FROM volume_uses")
            assert [tuple(one) for one in left] == [(stopped.sandbox_id, None)]
            detached = [one.body["sandbox_id"] for one in bench.entries() if one.kind == "volume.detached"]
            assert detached[-2:] == [lost.sandbox_id, stopped.sandbox_id]
            assert len(detached) == 5

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_whoever_finds_files_written_at_rest_is_told_that(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await volume(bench)
            told: list[str] = []

            async def parts() -> AsyncIterator[bytes]:
                for refused in (
                    having(bench, "ada", RW),
                    put(bench, "b", b"y"),
                    bench.control.volumes.remove_file(OWNER, "data", "b"),
                    bench.control.volumes.remove(OWNER, "data"),
                ):
                    with pytest.raises(VolumeBusy) as error:
                        await refused
                    told.append(str(error.value))
                yield b"x"

            await bench.control.volumes.write_file(OWNER, "data", "a", parts())
            assert told == ["somebody writes files to the volume `data` now"] * 4

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_an_agent_is_told_of_no_sandbox_and_no_grant_of_another(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await volume(bench)
            for agent_id in ("ada", "bob", "*"):
                bench.control.volumes.grant(OWNER, "data", VolumeGrant(agent_id=agent_id))
            own = await having(bench, "ada", RW)
            await having(bench, "bob", RO)
            for told in (bench.control.volumes.list(AGENT)[0], await bench.control.volumes.get(AGENT, "data")):
                assert [one.sandbox_id for one in told.holders] == [own.sandbox_id]
                assert [one.agent_id for one in told.grants] == ["*", "ada"]
            assert len((await bench.control.volumes.get(OWNER, "data")).holders) == 2

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_a_change_at_rest_is_on_record_before_it_is_made_and_whoever_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            made = await volume(bench)
            begun, go_on = asyncio.Event(), asyncio.Event()
            write = bench.host.volumes.write

            async def slow(*given: Any, **more: Any) -> WriteAnswer:
                answer = await write(*given, **more)
                begun.set()
                await go_on.wait()
                return answer

            monkeypatch.setattr(bench.host.volumes, "write", slow)
            putting = asyncio.ensure_future(put(bench, "a", b"x"))
            await begun.wait()
            last = bench.entries(subject=made.volume_id)[-1]
            assert (last.kind, last.body["act"], last.body["path"]) == ("volume.change_begun", "write_volume", "a")
            putting.cancel()
            await asyncio.wait({putting})
            go_on.set()
            await bench.control.volumes.close()
            assert bench.entries(subject=made.volume_id)[-1].kind == "volume.written"

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_a_name_is_free_again_as_soon_as_the_host_is_back(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            for act in (volume, lambda bench: bench.control.volumes.remove(OWNER, "data")):
                bench.host.unreachable = GrantMissing("the host is away")
                with pytest.raises(GrantMissing):
                    await act(bench)
                with pytest.raises(Conflict):
                    await volume(bench)
                bench.host.unreachable = None
                await volume(bench)

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_what_half_made_or_removed_volumes_leave_goes_at_the_next_start(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            bench.host.unreachable = GrantMissing("the host is away")
            with pytest.raises(GrantMissing):
                await volume(bench)
            with pytest.raises(Conflict):  # until that is settled
                await volume(bench)
            bench.host.unreachable = None
            await bench.restart()
            made = await volume(bench)
            bench.host.unreachable = GrantMissing("the host is away")
            with pytest.raises(GrantMissing):
                await bench.control.volumes.remove(OWNER, "data")
            bench.host.unreachable = None
            assert bench.control.volumes.list(OWNER) == []
            await bench.restart()
            assert not (tmp_path / "volumes" / made.volume_id).exists()
            await volume(bench)

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_whoever_is_no_owner_needs_a_grant_and_rules_may_refuse(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path, RULES) as bench:
            await volume(bench)
            with pytest.raises(GrantMissing):
                await having(bench, "ada", RO, caller=MEMBER)
            assert bench.control.volumes.list(AGENT) == []
            with pytest.raises(NotFound):
                await bench.control.volumes.get(AGENT, "data")
            with pytest.raises(GrantMissing):
                bench.control.volumes.grant(MEMBER, "data", VolumeGrant(agent_id="ada"))
            bench.control.volumes.grant(OWNER, "data", VolumeGrant(agent_id="ada"))
            assert [one.name for one in bench.control.volumes.list(AGENT)] == ["data"]
            assert bench.control.volumes.list(OTHER) == []
            await having(bench, "ada", RO, caller=MEMBER)
            with pytest.raises(GrantMissing):
                await having(bench, "ada", RW, caller=MEMBER)
            bench.control.volumes.grant(OWNER, "data", VolumeGrant(agent_id="ada", mode="rw"))
            await having(bench, "ada", RW, caller=MEMBER)
            stopped = await having(bench, "ada", RO, caller=MEMBER)
            await bench.control.lifecycle.stop(MEMBER, stopped.sandbox_id)
            bench.control.volumes.revoke(OWNER, "data", "ada")
            with pytest.raises(GrantMissing):
                await having(bench, "ada", RO, caller=MEMBER)
            for again in (bench.control.lifecycle.start, bench.control.lifecycle.resume):
                with pytest.raises(GrantMissing):
                    await again(MEMBER, stopped.sandbox_id)
                assert bench.control.sandboxes.get(OWNER, stopped.sandbox_id).state.state == "stopped"
            with pytest.raises(DeniedByRule):
                await having(bench, "bob", RO)
            assert "act.refused" in bench.kinds()
            for sandbox in bench.control.sandboxes.list(OWNER):
                await bench.control.lifecycle.terminate(OWNER, sandbox.sandbox_id)
            with pytest.raises(PendingApproval):
                await put(bench, "secret/a", b"x")
            await put(bench, "open/a", b"x")
            with pytest.raises(GrantMissing):
                await bench.control.volumes.list_files(AGENT, "data", "")

    asyncio.run(steps())


def test_a_new_agent_has_no_grant_of_a_deleted_one_of_its_name(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await bench.control.agents.ensure("ada", caller=OWNER)
            await volume(bench)
            for agent_id in ("ada", "bob", "*"):
                bench.control.volumes.grant(OWNER, "data", VolumeGrant(agent_id=agent_id))
            await bench.control.agents.delete("ada", caller=OWNER)
            assert [one.agent_id for one in bench.control.volumes.list(OWNER)[0].grants] == ["*", "bob"]
            assert bench.kinds().count("volume.revoked") == 1

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_a_label_goes_into_a_volume_and_out_of_it_and_through_it(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            await volume(bench)
            writer, reader = await having(bench, "ada", RW), await having(bench, "bob", RO)
            assert (taint_of(bench, writer), label_of(bench)) == (Label.PUBLIC, Label.PUBLIC)
            await bench.call(writer, "write_file", path="secrets/a", content="x", caller=OWNER)
            await bench.call(writer, "read_file", path="secrets/a", caller=OWNER)
            assert label_of(bench) is Label.CONFIDENTIAL
            assert taint_of(bench, reader) is Label.CONFIDENTIAL  # who may have read it meanwhile
            assert bench.control.agents.get("bob").workspace_label is Label.CONFIDENTIAL
            assert taint_of(bench, await having(bench, "eve", RO)) is Label.CONFIDENTIAL
            await bench.control.lifecycle.terminate(OWNER, writer.sandbox_id)
            fresh = await having(bench, "joe", RW)
            assert taint_of(bench, fresh) is Label.CONFIDENTIAL
            await bench.control.lifecycle.terminate(OWNER, fresh.sandbox_id)
            await put(bench, "b", b"x", label=Label.RESTRICTED)
            assert label_of(bench) is Label.RESTRICTED
            assert taint_of(bench, reader) is Label.RESTRICTED
            raised = [one.body["label_after"] for one in bench.entries() if one.kind == "volume.label_raised"]
            assert raised == ["CONFIDENTIAL", "RESTRICTED"]

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_whoever_may_read_it_is_held_to_its_label_by_the_broker_and_in_a_new_session(tmp_path: Path) -> None:
    rules = SECRETS + 'network:\n  use: {"*": packages}\n'

    async def steps() -> None:
        async with opened(tmp_path, rules) as bench:
            await volume(bench)
            writer, reader = await having(bench, "ada", RW), await having(bench, "bob", RO)
            assert reader.network is not None
            await bench.call(writer, "write_file", path="secrets/a", content="x", caller=OWNER)
            await bench.call(writer, "read_file", path="secrets/a", caller=OWNER)
            assert bench.host.taints[reader.sandbox_id] is Label.CONFIDENTIAL
            new = await bench.control.taints.reset(reader.session_id, caller=OWNER)
            assert new.taint is Label.CONFIDENTIAL
            told = bench.control.agents.set_label("bob", Label.PUBLIC, caller=OWNER, reason="looked through")
            assert told.workspace_label is Label.CONFIDENTIAL
            fresh = await having(bench, "eve", RO)
            access = bench.host.access[fresh.sandbox_id]
            assert access is not None
            assert access.taint is Label.CONFIDENTIAL

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_a_tainted_agent_raises_what_it_may_write_from_the_start(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            await volume(bench)
            info = await having(bench, "ada")
            await bench.call(info, "read_file", path="secrets/a", caller=OWNER)
            await bench.call(info, "write_file", path="secrets/a", content="x", caller=OWNER)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await having(bench, "ada", RO)
            assert label_of(bench) is Label.PUBLIC
            await having(bench, "ada", RW)
            assert label_of(bench) is Label.CONFIDENTIAL

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_files_at_rest_are_read_and_written_on_record(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:
            await volume(bench, label=Label.INTERNAL)
            written = await put(bench, "a/b", b"content")
            first, parts, label = await bench.control.volumes.read_file(OWNER, "data", "a/b")
            assert b"".join([part async for part in parts]) == b"content"
            assert (first.total_bytes, label, written.bytes_written) == (7, Label.INTERNAL, 7)
            listed = await bench.control.volumes.list_files(MEMBER, "data", "", recursive=True)
            assert [one.path for one in listed.entries] == ["a", "a/b"]
            usage = (await bench.control.volumes.get(OWNER, "data")).usage
            assert usage is not None
            assert (usage.files, usage.bytes) == (1, 7)
            await bench.control.volumes.remove_file(OWNER, "data", "a", recursive=True)
            assert [one.kind for one in bench.entries()][-6:] == [
                "volume.change_begun",
                "volume.written",
                "volume.read",
                "volume.read",
                "volume.change_begun",
                "volume.file_removed",
            ]

    asyncio.run(steps())


@pytest.mark.req("T3.44")
def test_the_table_of_a_sandbox_that_has_ended_counts_no_volume_that_got_the_name_later(tmp_path: Path) -> None:
    async def steps() -> None:
        async with opened(tmp_path) as bench:

            async def counted(info: SandboxInfo) -> int | None:
                table = await bench.control.persistence.table(OWNER, info.sandbox_id)
                return next(one.count for one in table if one.item == "volume")

            await volume(bench)
            await put(bench, "a", b"x")
            ended = await having(bench, "ada", RW)
            assert await counted(ended) == 1
            await bench.control.lifecycle.terminate(OWNER, ended.sandbox_id)
            assert await counted(ended) == 1, "it is still there"
            await bench.control.volumes.remove(OWNER, "data")
            await volume(bench)
            assert await counted(ended) is None, "another one has its name"

    asyncio.run(steps())
