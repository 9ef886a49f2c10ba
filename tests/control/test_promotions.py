"""Held here: a sandbox goes on in a larger profile under the same id, with all its files, its record and its label; what is lost is
said, what cannot be had leaves it what it was, and there is no way back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    DemotionRefused,
    GrantMissing,
    HostUnreachable,
    InvalidArgument,
    IsolationUnavailable,
    NotFound,
    NotInProfile,
    WrongState,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.profile import PROFILES
from coldframe.contract.promotion import Promotion, PromotionRequest
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import ResetRequest, SnapshotRequest
from tests.control.bench import AGENT, OWNER, VIEWER, Bench, opened

FILES = {"a.txt": "one\n", "data/b.txt": "two\n", "data/deep/c.txt": "three\n"}


async def made(bench: Bench, **spec: Any) -> SandboxInfo:
    return await bench.control.creation.create(OWNER, SandboxSpec.model_validate(spec))


async def promote(bench: Bench, info: SandboxInfo, to: str, **more: Any) -> Promotion:
    asked = PromotionRequest.model_validate({"to": to, **more})
    return await bench.control.promotions.promote(OWNER, info.sandbox_id, asked)


async def filled(bench: Bench, info: SandboxInfo) -> None:
    for path, content in FILES.items():
        await bench.call(info, "write_file", OWNER, path=path, content=content)


async def files(bench: Bench, info: SandboxInfo) -> dict[str, str]:
    found = {}
    for path in FILES:
        found[path] = (await bench.call(info, "read_file", OWNER, path=path)).value["content"]
    return found


@pytest.mark.req("T4.03")
def test_work_goes_from_an_interpreter_to_a_workspace_under_one_id_with_files_receipts_and_label(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control = bench.control
            info = await made(bench, profile="interpreter")
            await filled(bench, info)
            with pytest.raises(NotInProfile) as refused:
                await bench.call(info, "run_command", OWNER, command="true")
            assert refused.value.next_actions[0]["op"] == "sandbox.promote"
            control.sessions.raise_taint(info.session_id, Label.INTERNAL)
            control.promotions.kernels = lambda sandbox_id: ["python"] if sandbox_id == info.sandbox_id else []
            done = await promote(bench, info, "workspace", agent_id="ida")
            assert (done.sandbox_id, done.from_profile, done.spec.profile) == (
                info.sandbox_id,
                "interpreter",
                "workspace",
            )
            assert (done.agent_id, done.state.state, done.session_id) == ("ida", "running", info.session_id)
            [lost] = [one for one in done.lost if one.item == "variables"]
            assert "`python`" in lost.what
            assert await files(bench, done) == FILES
            ran = await bench.call(done, "run_command", OWNER, command="cat data/deep/c.txt")
            assert ran.value["stdout"] == "three\n"
            receipt = control.receipts.get(OWNER, ran.receipt_id or "")
            assert (receipt.sandbox_id, receipt.agent_id) == (info.sandbox_id, "ida")
            chain = [receipt]
            while (before := chain[-1].previous_receipt_id) is not None:
                chain.append(control.receipts.get(OWNER, before))
            assert len(chain) >= 2 * len(FILES) + 1 and {one.sandbox_id for one in chain} == {info.sandbox_id}
            assert ran.taint is Label.INTERNAL
            agent = AGENT.model_copy(update={"agent_id": "ida"})
            assert control.sandboxes.get(agent, info.sandbox_id).agent_id == "ida"
            assert control.sandboxes.has_its_agent(control.sandboxes.find(info.sandbox_id))
            contract = await control.sandboxes.contract(OWNER, info.sandbox_id)
            lines = {one.id: one.value for one in contract.execution}
            assert lines["execution.profile"] == "workspace" and contract.version > 1 and contract.change is not None
            assert "sandbox.promoted" in [one.kind for one in contract.change.causes]
            again = await promote(bench, done, "workspace")
            assert (again.spec, again.state, again.from_profile, again.lost) == (done.spec, done.state, "workspace", ())
            assert len(bench.entries(kinds=("sandbox.promoted",))) == 1
            assert not any("background" in str(one) and info.session_id in str(one) for one in tmp_path.rglob("a.txt"))

    asyncio.run(scenario())


@pytest.mark.req("T4.03")
def test_from_an_interpreter_to_a_sandbox_everything_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await made(bench, profile="interpreter", ephemeral=True)
            await filled(bench, info)
            done = await promote(bench, info, "sandbox")
            assert (done.spec.profile, done.state, done.lost) == ("sandbox", info.state, ())
            assert await files(bench, done) == FILES
            assert (await bench.call(done, "run_command", OWNER, command="echo x")).value["stdout"] == "x\n"
            [entry] = bench.entries(kinds=("sandbox.promoted",))
            assert (entry.body["from"], entry.body["to"], entry.body["caller"]) == (
                "interpreter",
                "sandbox",
                OWNER.name,
            )
            assert entry.body["decision"]["outcome"] == "allow"

    asyncio.run(scenario())


@pytest.mark.req("T4.03")
@pytest.mark.parametrize("stopped", [False, True])
def test_an_ephemeral_sandbox_and_one_that_is_stopped_become_workspaces_and_stay_so(
    tmp_path: Path, *, stopped: bool
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await made(bench, profile="sandbox", ephemeral=not stopped)
            await filled(bench, info)
            if stopped:
                await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            done = await promote(bench, info, "workspace", agent_id="ida")
            assert done.state.state == ("stopped" if stopped else "running")
            assert not done.spec.ephemeral
            await bench.restart()
            now = await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            assert await files(bench, now) == FILES
            await bench.call(now, "run_command", OWNER, command="true")
            assert now.agent_id == "ida" and bench.control.sandboxes.has_its_agent(now)

    asyncio.run(scenario())


@pytest.mark.req("T4.03")
def test_a_smaller_profile_is_refused_with_what_it_could_not_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            for to in ("interpreter", "sandbox"):
                with pytest.raises(DemotionRefused) as refused:
                    await promote(bench, info, to)
                assert (refused.value.code, refused.value.facts["to"]) == ("DEMOTION_REFUSED", to)
            assert "shell" in (await demotion(bench, info, "interpreter")).facts["missing"]  # type: ignore[operator]
            assert PROFILES.index("workspace") == 2
            assert bench.entries(kinds=("sandbox.promoted", "sandbox.stopped")) == []

    asyncio.run(scenario())


async def demotion(bench: Bench, info: SandboxInfo, to: str) -> ColdframeError:
    with pytest.raises(DemotionRefused) as refused:
        await promote(bench, info, to)
    return refused.value


def test_what_cannot_be_had_leaves_it_what_it_was_and_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await made(bench, profile="sandbox", ephemeral=True)
            await filled(bench, info)
            refusals: list[tuple[type[ColdframeError], str, dict[str, Any]]] = [
                (InvalidArgument, "workspace", {}),
                (InvalidArgument, "sandbox", {"agent_id": "ida"}),
                (InvalidArgument, "workspace", {"agent_id": "ida", "template": "debian"}),
            ]
            for error, to, more in refusals:
                with pytest.raises(error):
                    await promote(bench, info, to, **more)
            await bench.sandbox("taken")
            with pytest.raises(Conflict):
                await promote(bench, info, "workspace", agent_id="taken")
            real = bench.host.create

            async def fails(sandbox_id: str, spec: SandboxSpec, **how: Any) -> Any:
                if spec.agent_id == "ida":
                    raise IsolationUnavailable("no such wall", property="test")
                return await real(sandbox_id, spec, **how)

            monkeypatch.setattr(bench.host, "create", fails)
            with pytest.raises(IsolationUnavailable):
                await promote(bench, info, "workspace", agent_id="ida")
            now = bench.control.sandboxes.get(OWNER, info.sandbox_id)
            assert (now.spec.profile, now.agent_id, now.state.state) == ("sandbox", None, "running")
            assert now.spec.ephemeral
            assert await files(bench, now) == FILES
            with pytest.raises(NotFound):
                bench.control.agents.get("ida")
            assert len(bench.entries(kinds=("sandbox.promotion_failed",))) == 2
            monkeypatch.undo()
            done = await promote(bench, now, "workspace", agent_id="ida")
            assert await files(bench, done) == FILES

    asyncio.run(scenario())


def test_what_an_ephemeral_sandbox_is_stays_where_it_could_not_be_stopped_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await made(bench, profile="sandbox", ephemeral=True)
            await filled(bench, info)

            async def lost(sandbox_id: str) -> Any:
                raise HostUnreachable("the host is gone")

            monkeypatch.setattr(bench.host, "life", lost)
            with pytest.raises(HostUnreachable):
                await promote(bench, info, "workspace", agent_id="ida")
            monkeypatch.undo()
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).spec.ephemeral
            await bench.restart()
            now = await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            assert now.spec.ephemeral and await files(bench, now) == FILES
            assert (await bench.control.lifecycle.stop(OWNER, info.sandbox_id)).state.state == "terminated"

    asyncio.run(scenario())


def test_who_may_not_promote_does_not_and_a_rule_can_refuse_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            asked = PromotionRequest(to="computer")
            for caller in (VIEWER, AGENT):
                with pytest.raises(GrantMissing):
                    await bench.control.promotions.promote(caller, info.sandbox_id, asked)
            member = OWNER.model_copy(update={"role": Role.MEMBER})
            other = await made(bench, profile="interpreter")
            rule = "version: 1\nrules: [{id: stay, hook: PRE_TOOL_CALL, when: {tool: promote_sandbox}, then: deny}]\n"
            await bench.control.rulebook.load(rule, caller=OWNER)
            with pytest.raises(ColdframeError) as refused:
                await bench.control.promotions.promote(member, other.sandbox_id, PromotionRequest(to="sandbox"))
            assert refused.value.facts["rule"] == "stay"
            await bench.control.lifecycle.terminate(OWNER, other.sandbox_id)
            with pytest.raises(WrongState):
                await promote(bench, other, "sandbox")

    asyncio.run(scenario())


@pytest.mark.req("T4.01")
def test_whole_acts_that_an_interpreter_has_not_are_refused_and_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control = bench.control
            info = await made(bench, profile="interpreter")
            acts = (
                lambda: control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest()),
                lambda: control.resets.reset(OWNER, info.sandbox_id, ResetRequest(to="empty")),
                lambda: control.resets.reset(OWNER, info.sandbox_id, ResetRequest(to="empty", dry_run=True)),
                lambda: control.forks.fork(OWNER, info.sandbox_id, SandboxSpec(agent_id="ida")),
            )
            for act in acts:
                with pytest.raises(NotInProfile) as refused:
                    await act()
                assert refused.value.facts["profiles"] == ["sandbox", "workspace", "computer"]
            assert len(bench.entries(kinds=("act.refused",))) == len(acts)
            for spec in (
                {"profile": "sandbox", "template": "debian"},
                {"profile": "workspace", "agent_id": "ida", "template": "debian"},
                {"profile": "interpreter", "volumes": [{"name": "data"}]},
            ):
                with pytest.raises(NotInProfile):
                    await made(bench, **spec)
            allowed = {one.operation: one for one in control.gate.allowed(OWNER, info.sandbox_id)}
            assert allowed["tool.run_command"].answer == "deny" == allowed["snapshot.take"].answer
            assert (allowed["tool.run_command"].rule_id, allowed["tool.write_file"].answer) == (
                "NOT_IN_PROFILE",
                "allow",
            )

    asyncio.run(scenario())
