"""Held here: the end of a sandbox takes exactly what was told before, and no work that no commit has unless somebody says so."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import GrantMissing, HostUnreachable, PermissionDenied, UnsavedWork, WrongState
from coldframe.contract.sandbox import EndMany, SandboxInfo, SandboxSpec
from coldframe.control import endings
from tests.control.bench import OWNER, VIEWER, Bench, opened
from tests.fakes.box import FakeBox

BEGUN = (
    "git init -q repo && cd repo && git config user.name a && git config user.email a@b && "
    "printf x > kept && git add . && git commit -qm first"
)


def in_shell(command: str, place: Path) -> None:
    subprocess.run(["sh", "-c", command], cwd=place, check=True)


def workspace_of(bench: Bench, info: SandboxInfo) -> Path:
    return bench.root / "background" / info.session_id


async def temporary(bench: Bench, **more: Any) -> SandboxInfo:
    made = await bench.control.creation.create(OWNER, SandboxSpec(background=True, **more))
    in_shell(BEGUN, workspace_of(bench, made))
    return made


@pytest.mark.req("T3.42")
def test_work_that_no_commit_has_keeps_a_temporary_workspace_until_somebody_says_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            endings = bench.control.endings
            saved = await temporary(bench)
            assert (await endings.terminate(OWNER, saved.sandbox_id)).state.state == "terminated"
            info = await temporary(bench)
            (workspace_of(bench, info) / "repo/kept").write_text("changed")
            (workspace_of(bench, info) / "repo/new").write_text("new")
            with pytest.raises(GrantMissing):
                await endings.terminate(VIEWER, info.sandbox_id)
            with pytest.raises(UnsavedWork) as refused:
                await endings.terminate(OWNER, info.sandbox_id)
            assert refused.value.facts["files"] == ["repo/kept", "repo/new"]
            assert (refused.value.facts["total"], refused.value.facts["complete"]) == (2, True)
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).state.state == "running"
            refusals = bench.control.ledger.entries(kinds=("sandbox.end_refused",), subject=info.sandbox_id)
            assert [one.body["files"] for one in refusals] == [2]
            many = await bench.control.roster.end(OWNER, EndMany(min_age_s=0))
            assert [one["error"]["code"] for one in many.failed] == ["UNSAVED_WORK"]
            tried = await endings.terminate(OWNER, info.sandbox_id, dry_run=True)
            assert tried.unsaved == ("repo/kept", "repo/new")
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)  # its files stay
            with pytest.raises(UnsavedWork):
                await endings.terminate(OWNER, info.sandbox_id)
            kept = await endings.terminate(OWNER, info.sandbox_id, snapshot=True)
            assert kept.state.state == "terminated" and kept.snapshot_id is not None
            assert (await endings.terminate(OWNER, info.sandbox_id)).state.state == "terminated"
            other = await temporary(bench, ephemeral=True)
            (workspace_of(bench, other) / "repo/kept").write_text("changed")
            with pytest.raises(UnsavedWork):  # its stop is its end
                await endings.stop(OWNER, other.sandbox_id)
            assert (await endings.terminate(OWNER, other.sandbox_id, discard=True)).state.state == "terminated"
            third = await temporary(bench)
            (workspace_of(bench, third) / "repo/kept").write_text("changed")
            done = await bench.control.roster.end(OWNER, EndMany(min_age_s=0, discard=True))
            assert third.sandbox_id in {one.sandbox_id for one in done.ended}
            durable = await bench.sandbox("ada")
            in_shell(f"{BEGUN}; printf y > kept", bench.root / "workspace/ada")
            assert (await endings.terminate(OWNER, durable.sandbox_id)).state.state == "terminated"

    asyncio.run(scenario())


@pytest.mark.req("T3.42")
def test_what_cannot_be_looked_at_is_kept_and_names_go_to_nobody_who_may_not_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "version: 1\nrules:\n  - id: no-names\n    hook: PRE_TOOL_CALL\n    when: {tool: list_directory}\n    then: deny\n"

    async def scenario() -> None:
        async with opened(tmp_path, rules) as bench:
            info = await temporary(bench)
            (workspace_of(bench, info) / "repo/secret-name").write_text("x")
            with pytest.raises(UnsavedWork) as refused:
                await bench.control.endings.terminate(OWNER, info.sandbox_id)
            assert "secret-name" not in str(refused.value.to_wire())
            assert refused.value.facts["total"] == 1

            for met, told in ((PermissionDenied("no way in"), UnsavedWork), (HostUnreachable("gone"), HostUnreachable)):

                async def fails(*_: object, met: Exception = met) -> None:
                    raise met

                with monkeypatch.context() as patch:
                    patch.setattr(type(bench.host.snapshots), "ask", fails)
                    with pytest.raises(told):  # what is asked again later is not what somebody has to decide
                        await bench.control.endings.terminate(OWNER, info.sandbox_id)
                assert bench.control.sandboxes.find(info.sandbox_id).state.state == "running"
            await bench.control.endings.terminate(OWNER, info.sandbox_id, discard=True)

    asyncio.run(scenario())


@pytest.mark.req("T3.42")
def test_files_that_do_not_answer_are_told_as_such_with_what_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await temporary(bench)
            monkeypatch.setattr(endings, "LOOK_S", 0.01)
            with monkeypatch.context() as patch:
                patch.setattr(type(bench.host.snapshots), "ask", hangs)
                with pytest.raises(UnsavedWork) as refused:
                    await bench.control.endings.terminate(OWNER, info.sandbox_id)
                assert "gave no answer within" in str(refused.value) and "may lose" in str(refused.value)
                offered = [(one["op"], one["args"].get("discard")) for one in refused.value.next_actions]
                assert offered == [("sandbox.get", None), ("sandbox.terminate", True)], "nothing goes by itself"
                assert "snapshot" not in refused.value.advice and "discard" in refused.value.advice
            await bench.control.endings.terminate(OWNER, info.sandbox_id, discard=True)

    asyncio.run(scenario())


@pytest.mark.req("T4.58")
def test_a_dry_run_tells_every_path_that_goes_or_stays_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await temporary(bench)
            place = workspace_of(bench, info)
            for number in range(30):
                (place / f"file{number}").write_text("x")
            there = {
                f"/home/user/{path.relative_to(place)}" for path in place.rglob("*") if path.name != ".exec_history"
            }
            stop = await bench.control.endings.stop(OWNER, info.sandbox_id, dry_run=True)
            assert stop.paths is not None and stop.paths.complete
            assert (set(stop.paths.kept), stop.paths.lost) == (there, ())
            assert {"tree", "commits", "home", "records", "audit"} <= {one.item for one in stop.kept}
            end = await bench.control.endings.terminate(OWNER, info.sandbox_id, dry_run=True)
            assert end.paths is not None
            assert (set(end.paths.lost), end.paths.kept) == (there, ())
            assert {one.item for one in end.kept} & {"tree", "commits", "home", "processes"} == set()
            plan = await bench.control.endings.plan_snapshot(OWNER, info.sandbox_id)
            assert {f"/home/user/{path}" for path in plan.paths} == there
            assert {"processes", "temporary", "records"} <= {one.item for one in plan.left_out}
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).state.state == "running"
            done = await bench.control.endings.terminate(OWNER, info.sandbox_id)
            assert [one.item for one in done.lost] == [one.item for one in end.lost]
            assert not place.exists()
            durable = await bench.sandbox("ada")
            await bench.call(durable, "write_file", path="a", content="x")
            kept = await bench.control.endings.terminate(OWNER, durable.sandbox_id, dry_run=True)
            assert kept.paths is not None and "/home/user/a" in kept.paths.kept and kept.paths.lost == ()

    asyncio.run(scenario())


@pytest.mark.req("T4.58")
def test_a_dry_run_of_a_box_that_an_earlier_version_keeps_says_that_it_does_not_know_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> None:
        raise WrongState("it is kept by an earlier version, which does not know this")

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await temporary(bench)
            monkeypatch.setattr(FakeBox, "temporary", unknown)
            end = await bench.control.endings.terminate(OWNER, info.sandbox_id, dry_run=True)
            assert end.paths is not None and not end.paths.complete
            assert "/home/user/repo/kept" in end.paths.lost
            assert not (await bench.control.endings.plan_snapshot(OWNER, info.sandbox_id)).complete

    asyncio.run(scenario())
