"""Held here: sandboxes go from state to state on the published ways only, every act is recorded and can be asked for
twice, nothing that is to be kept is lost, and after a crash the state is what the host says."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coldframe.contract.caller import Caller
from coldframe.contract.command import EndedWith
from coldframe.contract.errors import (
    GrantMissing,
    GuestLost,
    HostUnreachable,
    InvalidArgument,
    IsolationUnavailable,
    NotFound,
    PauseKindUnsupported,
    WrongState,
)
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import ENDED, TRANSITIONS, WITH_BOX, SandboxInfo, SandboxSpec
from coldframe.contract.snapshot import ResetRequest
from coldframe.control import lifecycle
from coldframe.control.sandboxes import Sandboxes
from tests.control.bench import AGENT, OWNER, UNTIL_GO, VIEWER, Bench, opened, until
from tests.fakes.box import FakeBox
from tests.fakes.host import FakeHost
from tests.lives import ACTS


def life(bench: Bench, info: SandboxInfo) -> list[str]:
    """What is on record of it, but for calls, sessions and contracts."""
    found = bench.kinds(sandbox_id=info.sandbox_id)
    return [kind.removeprefix("sandbox.") for kind in found if kind.startswith("sandbox.")]


def state(bench: Bench, info: SandboxInfo) -> str:
    return bench.control.sandboxes.find(info.sandbox_id).state.state


@pytest.mark.req("T4.61")
def test_a_paused_sandbox_refuses_what_it_would_have_to_run_and_serves_what_is_only_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            acts = bench.control.lifecycle
            await bench.call(info, "write_file", path="a", content="x")
            for _ in range(2):
                paused = await acts.pause(OWNER, info.sandbox_id)
                assert paused.state.state == "paused"
            assert paused.state.next_actions[0]["op"] == "sandbox.resume"
            for tool, arguments in (("run_command", {"command": "true"}), ("write_file", {"path": "b", "content": ""})):
                with pytest.raises(WrongState) as refused:
                    await bench.call(info, tool, AGENT, **arguments)
                assert refused.value.facts["state"] == "paused"
                assert refused.value.next_actions[0] == {
                    "op": "sandbox.resume", "args": {"sandbox_id": info.sandbox_id}, "effect": "lets it go on"
                }  # fmt: skip
            assert (await bench.call(info, "read_file", path="a")).value["content"] == "x"
            allowed = {one.operation: one.answer for one in bench.control.gate.allowed(AGENT, info.sandbox_id)}
            assert allowed["tool.read_file"] == "allow"
            assert allowed["tool.write_file"] == "deny"
            for _ in range(2):
                assert (await acts.resume(OWNER, info.sandbox_id)).state.state == "running"
            assert (await bench.call(info, "run_command", command="cat a")).value["stdout"] == "x"
            assert life(bench, info) == ["created", "paused", "resumed"]

    asyncio.run(scenario())


@pytest.mark.req("T4.61")
def test_a_command_goes_on_after_a_pause_and_is_seen_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            began = await bench.call(info, "run_command", command=f"{UNTIL_GO}; echo done", background=True)
            command_id = began.value["command_id"]
            await bench.control.lifecycle.pause(OWNER, info.sandbox_id)
            bench.go()
            assert (await bench.control.outputs.command(OWNER, info.sandbox_id, command_id)).state == "running"
            assert len(await bench.control.sandboxes.processes(OWNER, info.sandbox_id)) == 1
            await bench.control.lifecycle.resume(OWNER, info.sandbox_id)
            await until(lambda: "call.ended" in bench.kinds(sandbox_id=info.sandbox_id))
            window = await bench.control.outputs.output(OWNER, info.sandbox_id, command_id, "stdout")
            assert window.data == b"done\n"

    asyncio.run(scenario())


def test_a_call_that_finds_its_box_gone_loses_no_sandbox_that_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            acts, sandboxes = bench.control.lifecycle, bench.control.sandboxes
            create = FakeHost.create

            async def looked_for(self: FakeHost, *args: Any, **more: Any) -> Any:
                await sandboxes.check_alive(info.sandbox_id, "the box of before ended")
                return await create(self, *args, **more)

            async def of_before(_: FakeHost) -> list[object]:
                await acts.stop(OWNER, info.sandbox_id)
                await acts.start(OWNER, info.sandbox_id)
                return []

            await acts.stop(OWNER, info.sandbox_id)
            with monkeypatch.context() as patch:
                patch.setattr(FakeHost, "create", looked_for)
                assert (await acts.start(OWNER, info.sandbox_id)).state.state == "running"
            with monkeypatch.context() as patch:
                patch.setattr(FakeHost, "boxes", of_before)
                await sandboxes.check_alive(info.sandbox_id, "the box of before ended")
            assert state(bench, info) == "running"
            await bench.host.lose(info.sandbox_id)
            await sandboxes.check_alive(info.sandbox_id, "its box ended")
            assert state(bench, info) == "lost"

    asyncio.run(scenario())


@pytest.mark.req("T3.45")
def test_where_it_cannot_be_paused_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            async def cannot(_: object) -> None:
                raise PauseKindUnsupported("no freezer", kind="memory")

            monkeypatch.setattr(FakeBox, "pause", cannot)
            with pytest.raises(PauseKindUnsupported):
                await bench.control.lifecycle.pause(OWNER, info.sandbox_id)
            assert state(bench, info) == "running"
            assert life(bench, info) == ["created"]
            assert (await bench.control.lifecycle.pause(OWNER, info.sandbox_id, "files")).state.state == "stopped"
            resumed = await bench.control.lifecycle.resume(OWNER, info.sandbox_id)
            assert resumed.state.state == "running"

    asyncio.run(scenario())


def test_what_cannot_be_recorded_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            move = Sandboxes.move

            def full(self: Sandboxes, sandbox_id: str, state: Any, **more: Any) -> None:
                if state == "paused":
                    raise HostUnreachable("stands for any failure")
                move(self, sandbox_id, state, **more)

            monkeypatch.setattr(Sandboxes, "move", full)
            with pytest.raises(HostUnreachable):
                await bench.control.lifecycle.pause(OWNER, info.sandbox_id)
            assert state(bench, info) == "running"
            assert [status.state for status in await bench.host.boxes()] == ["running"]

    asyncio.run(scenario())


@pytest.mark.req("T3.41", "T3.45")
@pytest.mark.parametrize("background", [False, True])
def test_stop_ends_processes_says_what_is_lost_and_keeps_the_rest(tmp_path: Path, background: bool) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            spec = SandboxSpec(agent_id=None if background else "ada", background=background)
            info = await bench.control.creation.create(OWNER, spec)
            acts = bench.control.lifecycle
            done = await bench.call(info, "run_command", caller=OWNER, command="echo kept > a; echo told")
            began = await bench.call(info, "run_command", caller=OWNER, command="sleep 100", background=True)
            for _ in range(2):
                tried = await acts.stop(OWNER, info.sandbox_id, dry_run=True)
                assert tried.dry_run
                assert tried.state.state == "running"
            stopped = await acts.stop(OWNER, info.sandbox_id)
            assert stopped.lost == tried.lost
            assert [(one.item, one.command_ids) for one in stopped.lost] == [
                ("processes", (began.value["command_id"],))
            ]
            assert stopped.state.state == "stopped"
            assert stopped.state.next_actions[0]["op"] == "sandbox.start"
            assert (await acts.stop(OWNER, info.sandbox_id)).lost == ()
            assert await bench.host.boxes() == []
            for tool, arguments in (
                ("write_file", {"path": "a", "content": ""}),
                ("run_command", {"command": "true"}),
            ):
                with pytest.raises(WrongState) as refused:
                    await bench.call(info, tool, caller=OWNER, **arguments)
                assert refused.value.next_actions[0]["op"] == "sandbox.start"
            await until(lambda: bench.kinds(sandbox_id=info.sandbox_id).count("call.ended") == 2)
            await bench.restart()
            acts = bench.control.lifecycle
            assert state(bench, info) == "stopped"
            for _ in range(2):
                started = await acts.start(OWNER, info.sandbox_id)
                assert (started.state.state, started.session_id, started.spec) == (
                    "running",
                    info.session_id,
                    info.spec,
                )
            read = await bench.call(info, "run_command", caller=OWNER, command="cat a")
            assert read.value["stdout"] == "kept\n"
            for command_id, ended in ((done.value["command_id"], "exited"), (began.value["command_id"], "lost")):
                told = await bench.control.outputs.command(OWNER, info.sandbox_id, command_id)
                assert told.result is not None
                assert told.result.ended == ended
            assert told.result.ended_with == EndedWith(act="stop")
            assert told.status is not None
            assert told.status.code == "PROCESS_LOST"
            receipt = bench.control.receipts.get(OWNER, told.status.evidence[1])
            assert (receipt.receipt_id, receipt.ended) == (began.receipt_id, "lost")
            assert life(bench, info) == ["created", "stopped", "started"]

    asyncio.run(scenario())


@pytest.mark.req("T3.36")
@pytest.mark.parametrize("way", ["stop", "pause", "timer"])
def test_an_ephemeral_one_ends_where_another_stops_and_says_so_before(tmp_path: Path, way: str) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            spec = SandboxSpec(background=True, ephemeral=True, idle_timeout_s=10)
            info = await bench.control.creation.create(OWNER, spec)
            await bench.call(info, "write_file", OWNER, path="a", content="x")
            acts, home = bench.control.lifecycle, tmp_path / "background" / info.session_id
            contract = await bench.control.sandboxes.contract(OWNER, info.sandbox_id)
            (line,) = [one for one in contract.persistence if one.id == "persistence.tree"]
            assert isinstance(line.value, dict)
            assert line.value["events"]["stopped_and_started"] == "lost"
            with pytest.raises(WrongState, match="ephemeral"):
                await bench.control.resets.reset(OWNER, info.sandbox_id, ResetRequest(to="empty"))
            tried = await acts.stop(OWNER, info.sandbox_id, dry_run=True)
            assert "tree" in [one.item for one in tried.lost]
            assert home.is_dir()
            if way == "timer":
                bench.pass_time(timedelta(seconds=11))
                await bench.control.timers.turn()
            else:
                ended = await (
                    acts.stop(OWNER, info.sandbox_id) if way == "stop" else acts.pause(OWNER, info.sandbox_id, "files")
                )
                assert "tree" in [one.item for one in ended.lost]
            assert state(bench, info) == "terminated"
            assert not home.exists()
            with pytest.raises(WrongState):
                await acts.start(OWNER, info.sandbox_id)

    asyncio.run(scenario())


@pytest.mark.req("T3.36")
@pytest.mark.parametrize("background", [False, True])
def test_what_survives_the_end_depends_on_whose_workspace_it_is(tmp_path: Path, background: bool) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            spec = SandboxSpec(agent_id=None if background else "ada", background=background)
            info = await bench.control.creation.create(OWNER, spec)
            await bench.call(info, "write_file", caller=OWNER, path="a", content="x")
            workspace = tmp_path / (f"background/{info.session_id}" if background else "workspace/ada")
            acts = bench.control.lifecycle
            await acts.stop(OWNER, info.sandbox_id)
            await bench.control.sandboxes.sweep()
            assert (workspace / "a").exists()
            tried = await acts.terminate(OWNER, info.sandbox_id, dry_run=True)
            assert [one.item for one in tried.lost] == (["tree"] if background else [])
            for lost in (tried.lost, ()):
                ended = await acts.terminate(OWNER, info.sandbox_id)
                assert (ended.state.state, ended.lost) == ("terminated", lost)
            assert (workspace / "a").exists() is not background
            with pytest.raises(WrongState):
                await acts.start(OWNER, info.sandbox_id)
            with pytest.raises(WrongState):
                await acts.stop(OWNER, info.sandbox_id)
            assert life(bench, info) == ["created", "stopped", "terminated"]

    asyncio.run(scenario())


@pytest.mark.req("T4.59")
def test_what_cannot_be_started_again_stays_stopped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)

            async def no_wall(*_: Any, **__: Any) -> Any:
                raise IsolationUnavailable("no user namespaces", property="user_namespace")

            monkeypatch.setattr(FakeHost, "create", no_wall)
            with pytest.raises(IsolationUnavailable):
                await bench.control.lifecycle.start(OWNER, info.sandbox_id)
            monkeypatch.undo()
            stopped = bench.control.sandboxes.get(OWNER, info.sandbox_id)
            assert stopped.state.state == "stopped"
            assert "no user namespaces" in stopped.state.message
            assert (await bench.control.lifecycle.start(OWNER, info.sandbox_id)).state.state == "running"
            assert life(bench, info) == ["created", "stopped", "start_failed", "started"]

    asyncio.run(scenario())


def test_a_sandbox_whose_agent_was_deleted_is_not_started_on_the_workspace_of_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.control.lifecycle.pause(OWNER, info.sandbox_id)
            with pytest.raises(WrongState):
                await bench.control.agents.delete("ada", caller=OWNER)
            await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
            await bench.control.agents.delete("ada", caller=OWNER)
            for _ in range(2):
                with pytest.raises(WrongState, match="was deleted"):
                    await bench.control.lifecycle.start(OWNER, info.sandbox_id)
                await bench.control.agents.ensure("ada", caller=OWNER)
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)

    asyncio.run(scenario())


def test_a_session_that_was_reset_while_nothing_ran_is_not_gone_back_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            for spec in (SandboxSpec(agent_id="ada"), SandboxSpec(background=True)):
                info = await bench.control.creation.create(OWNER, spec)
                await bench.call(info, "write_file", OWNER, path="a", content="x")
                await bench.control.lifecycle.stop(OWNER, info.sandbox_id)
                new = await bench.control.taints.reset(info.session_id, caller=OWNER)
                await bench.control.sandboxes.sweep()
                started = await bench.control.lifecycle.start(OWNER, info.sandbox_id)
                assert bench.control.sandboxes.get(OWNER, started.sandbox_id).session_id == new.session_id
                assert (await bench.call(started, "read_file", OWNER, path="a")).value["content"] == "x"

    asyncio.run(scenario())


@pytest.mark.req("T3.73")
def test_whoever_leaves_breaks_nothing_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            gate = asyncio.Event()
            end = FakeBox.end

            async def slow(self: FakeBox, *, keep_workspace: bool = False) -> None:
                await gate.wait()
                await end(self, keep_workspace=keep_workspace)

            monkeypatch.setattr(FakeBox, "end", slow)
            asked = asyncio.ensure_future(bench.control.lifecycle.stop(OWNER, info.sandbox_id))
            await until(lambda: state(bench, info) == "stopping")
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            more = [asyncio.ensure_future(bench.control.lifecycle.stop(OWNER, info.sandbox_id)) for _ in range(5)]
            gate.set()
            assert {(await one).state.state for one in more} == {"stopped"}
            assert life(bench, info) == ["created", "stopped"]

    asyncio.run(scenario())


@pytest.mark.req("T4.62")
def test_an_end_does_not_wait_for_a_keeper_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            async def hangs(*_: object, **__: object) -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr(FakeBox, "at_stake", hangs)
            monkeypatch.setattr(lifecycle, "LOOK_S", 0.01)
            ended = await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            assert ended.state.state == "terminated"
            assert [one.what for one in ended.lost] == ["Not known: its keeper does not answer."] * 2

    asyncio.run(scenario())


@pytest.mark.req("T3.72")
def test_who_may_not_changes_nothing_and_every_state_says_what_can_be_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            acts = bench.control.lifecycle
            for caller in (VIEWER, AGENT):
                for act in _acts(bench, info, caller):
                    with pytest.raises(GrantMissing):
                        await act()
            with pytest.raises(NotFound):
                await acts.pause(OWNER, "sbx_none")
            await acts.stop(OWNER, info.sandbox_id)
            with pytest.raises(WrongState) as refused:
                await acts.pause(OWNER, info.sandbox_id)
            # A client that knows nothing but the state gets on by it.
            again = {"sandbox.start": acts.start}[refused.value.next_actions[0]["op"]]
            assert (await again(OWNER, **refused.value.next_actions[0]["args"])).state.state == "running"

    asyncio.run(scenario())


def _acts(bench: Bench, info: SandboxInfo, caller: Caller) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
    acts, name = bench.control.lifecycle, info.sandbox_id
    return [
        lambda: acts.pause(caller, name),
        lambda: acts.pause(caller, name, "files"),
        lambda: acts.resume(caller, name),
        lambda: acts.stop(caller, name),
        lambda: acts.stop(caller, name, dry_run=True),
        lambda: acts.start(caller, name),
        lambda: acts.extend(caller, name, 1),
        lambda: acts.terminate(caller, name),
        lambda: acts.terminate(caller, name, dry_run=True),
    ]


@pytest.mark.req("T4.59")
def test_sandboxes_are_listed_by_state_agent_and_label_page_by_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            infos = [await bench.sandbox(agent) for agent in ("ada", "bob", "ada", "ada")]
            await bench.control.lifecycle.stop(OWNER, infos[2].sandbox_id)
            bench.control.agents.raise_label("bob", Label.CONFIDENTIAL)
            ids = [info.sandbox_id for info in reversed(infos)]

            def listed(**filters: Any) -> list[str]:
                return [info.sandbox_id for info in bench.control.sandboxes.list(OWNER, **filters)]

            assert listed() == ids
            assert listed(states=("stopped",)) == [ids[1]]
            assert listed(agent_id="ada", states=("running", "paused")) == [ids[0], ids[3]]
            assert listed(label=Label.CONFIDENTIAL) == [ids[2]]
            assert [listed(limit=3), listed(after=ids[2], limit=3)] == [ids[:3], ids[3:]]
            with pytest.raises(NotFound):
                listed(after="sbx_none")

    asyncio.run(scenario())


@pytest.mark.req("T4.61")
@pytest.mark.parametrize("way", ["restart", "kill"])
def test_after_a_restart_the_state_is_what_the_host_says(tmp_path: Path, way: str) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            infos = {
                name: await bench.sandbox() for name in ("paused", "frozen", "thawed", "stopped", "stopping", "lost")
            }
            half = await bench.sandbox()
            bench.control.sandboxes.move(half.sandbox_id, "pausing")
            for name in ("paused", "thawed"):
                await bench.control.lifecycle.pause(OWNER, infos[name].sandbox_id)
            await bench.control.lifecycle.stop(OWNER, infos["stopped"].sandbox_id)
            bench.control.sandboxes.move(infos["stopping"].sandbox_id, "stopping", finish="sandbox.stop")
            await (await bench.host.life(infos["frozen"].sandbox_id)).pause()
            await (await bench.host.life(infos["thawed"].sandbox_id)).resume()
            await bench.host.lose(infos["lost"].sandbox_id)
            if way == "kill":
                bench.kill()
                await bench.start()
            else:
                await bench.restart()
            states = {name: state(bench, info) for name, info in infos.items()}
            assert states == {
                "paused": "paused", "frozen": "paused", "thawed": "running",
                "stopped": "stopped", "stopping": "stopped", "lost": "lost",
            }  # fmt: skip
            assert (state(bench, half), life(bench, half)) == ("running", ["created"])
            assert life(bench, infos["frozen"]) == ["created", "paused"]
            assert life(bench, infos["thawed"]) == ["created", "paused", "resumed"]
            assert {status.sandbox_id for status in await bench.host.boxes()} == {
                half.sandbox_id,
                *(infos[name].sandbox_id for name in ("paused", "frozen", "thawed")),
            }
            assert (await bench.control.lifecycle.start(OWNER, infos["stopping"].sandbox_id)).state.state == "running"

    asyncio.run(scenario())


def test_an_act_that_the_host_did_not_answer_says_what_finishes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            acts = bench.control.lifecycle
            for act, then, back in (("stop", "stopping", "stopped"), ("start", "stopped", "running")):
                bench.host.unreachable = HostUnreachable("gone")
                with pytest.raises(HostUnreachable):
                    await getattr(acts, act)(OWNER, info.sandbox_id)
                assert state(bench, info) == then
                bench.host.unreachable = None
                op = bench.control.sandboxes.get(OWNER, info.sandbox_id).state.next_actions[0]["op"]
                again = getattr(acts, op.removeprefix("sandbox."))
                assert (await again(OWNER, info.sandbox_id)).state.state == back

    asyncio.run(scenario())


def runs(lives: Any) -> bool:
    return bool(lives.expected == "running")


def has_box(lives: Any) -> bool:
    return lives.expected in WITH_BOX


class Lives(RuleBasedStateMachine):
    """A sandbox as the contract publishes it, beside a real one over the host of the fakes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="cf-lives-")
        self.runner = asyncio.Runner()
        self.bench = Bench(Path(self.folder.name))
        self.runner.run(self.bench.start())
        self.info = self.runner.run(self.bench.sandbox())
        self.expected = "running"
        self.moves: list[tuple[str, str]] = []
        self.files = 0
        self.watch()

    def watch(self) -> None:
        sandboxes = self.bench.control.sandboxes
        move = sandboxes.move

        def watched(sandbox_id: str, to: Any, **more: Any) -> None:
            before = sandboxes.find(sandbox_id).state.state
            move(sandbox_id, to, **more)
            self.moves.append((before, to))

        sandboxes.move = watched  # type: ignore[method-assign, assignment]

    @rule(op=st.sampled_from(sorted(ACTS)))
    def act(self, op: str) -> None:
        acts, name = self.bench.control.lifecycle, self.info.sandbox_id
        calls: dict[str, Callable[[], Coroutine[Any, Any, SandboxInfo]]] = {
            "pause_files": lambda: acts.pause(OWNER, name, "files"),
            "extend": lambda: acts.extend(OWNER, name, 5),
        }
        call: Callable[[], Coroutine[Any, Any, SandboxInfo]] = calls.get(op) or (lambda: getattr(acts, op)(OWNER, name))
        if self.expected in ACTS[op]:
            answer = self.runner.run(call())
            self.expected = ACTS[op][self.expected]
            assert answer.state.state == self.expected
        else:
            with pytest.raises(WrongState):
                self.runner.run(call())

    @precondition(runs)
    @rule()
    def write(self) -> None:
        self.files += 1
        self.runner.run(self.bench.call(self.info, "write_file", path=f"f{self.files}", content=str(self.files)))

    @rule()
    def read(self) -> None:
        """Also where nothing runs: the files are its agent's."""
        listing = self.bench.call(self.info, "list_directory")
        names = {entry["name"] for entry in self.runner.run(listing).value["entries"]}
        assert {f"f{number + 1}" for number in range(self.files)} <= names

    @rule()
    def restart(self) -> None:
        self.runner.run(self.bench.restart())
        self.watch()

    @precondition(has_box)
    @rule()
    def lose(self) -> None:
        self.runner.run(self.bench.host.lose(self.info.sandbox_id))
        with pytest.raises(GuestLost):
            self.runner.run(self.bench.control.sandboxes.processes(OWNER, self.info.sandbox_id))
        self.expected = "lost"

    @invariant()
    def it_is_where_it_should_be(self) -> None:
        assert state(self.bench, self.info) == self.expected
        for before, after in self.moves:
            assert after in TRANSITIONS[before], f"{before} -> {after} is not published"
        boxes = {status.sandbox_id: status.state for status in self.runner.run(self.bench.host.boxes())}
        if self.expected in ("running", "paused"):
            assert boxes == {self.info.sandbox_id: self.expected}
        elif self.expected != "lost":
            assert boxes == {}

    def teardown(self) -> None:
        assert self.bench.control.ledger.verify().intact
        self.runner.run(self.bench.control.close())
        self.runner.run(self.bench.host.close())
        self.runner.close()
        self.folder.cleanup()


TestLives = pytest.mark.req("T4.59")(Lives.TestCase)
TestLives.settings = settings(
    max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_published_ways_lead_from_the_beginning_to_everywhere_and_end_where_they_say() -> None:
    reached, new = set[str](), {"starting", "queued"}
    while new:
        reached |= new
        new = {after for before in new for after in TRANSITIONS[before]} - reached
    assert reached == set(TRANSITIONS)
    assert all("running" not in TRANSITIONS[ended] for ended in ENDED)


@pytest.mark.req("T4.60")
def test_more_time_than_the_operator_gives_is_refused(tmp_path: Path) -> None:
    from coldframe.control.sandbox_specs import Longest

    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.longest = Longest(idle_s=100, age_s=1000)
        await bench.start()
        for name, longer in (("idle_timeout_s", 101), ("max_age_s", 1001)):
            with pytest.raises(InvalidArgument):
                await bench.sandbox("ada", **{name: longer})
        info = await bench.sandbox(idle_timeout_s=50)
        assert (info.spec.idle_timeout_s, info.spec.max_age_s) == (50, 1000)
        with pytest.raises(InvalidArgument):
            await bench.control.lifecycle.extend(OWNER, info.sandbox_id, 1001)
        await bench.control.close()
        await bench.host.close()

    asyncio.run(scenario())
