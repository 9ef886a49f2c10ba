"""A sweep does what it can: what cannot be removed or ended is told in the log, and keeps it from nothing else."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host import endings, processes
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.machine import Machine
from coldframe.host.marks import ENDING, Marks
from coldframe.host.processes import end_process, process_start
from coldframe.host.workspaces import Workspaces
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.test_machine import made

pytestmark = needs_bubblewrap


async def in_background(machine: Machine, name: str) -> str:
    """A box with a temporary workspace, whose path is returned."""
    await machine.create(name, SandboxSpec(background=True, on_missing="degrade"), session_id=f"session-{name}")
    return machine.workspaces.of_session(f"session-{name}")


async def sweep(machine: Machine, *, keep: str = "") -> list[str]:
    return await machine.sweep(keep_boxes={keep}, keep_sessions=set())


async def nothing_runs(machine: Machine) -> None:
    async def gone() -> bool:
        return not made(machine)["processes"] and not made(machine)["groups"]

    await until(gone, "nothing of the boxes runs")


@as_root_and_ordinary
@pytest.mark.parametrize(
    "failure",
    [OSError(errno.EIO, "as the test wants it"), IsolationUnavailable("as the test wants it")],
    ids=["system", "ours"],
)
def test_a_workspace_that_cannot_be_removed_is_told_and_all_else_is_swept(
    who: str, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(machine: Machine) -> None:
        stuck = await in_background(machine, "a-stuck")
        await new_box(machine, "other")
        remove = Workspaces.remove

        def refuse(self: Workspaces, path: str) -> None:
            if path == stuck:
                raise failure
            remove(self, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Workspaces, "remove", refuse)
            first = await sweep(machine)
            await new_box(machine, "next")
            second = await sweep(machine)  # finds it half ended
        assert "box other" in first
        assert "box next" in second
        assert not {"box a-stuck", "background/session-a-stuck"} & {*first, *second}
        assert caplog.text.count("what is left of sandbox `a-stuck` could not be removed") == 2
        assert "still runs" not in caplog.text
        assert os.path.isdir(stuck)
        await nothing_runs(machine)
        assert "box a-stuck" in await sweep(machine)
        assert not os.path.exists(stuck)
        assert os.listdir(machine._marks.directory("a-stuck")) == ["records"]

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_box_that_does_not_end_is_told_and_is_not_said_to_be_removed(
    who: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(machine: Machine) -> None:
        workspace = await in_background(machine, "a-stuck")
        mark = machine._marks.read("a-stuck")
        assert mark is not None
        await new_box(machine, "other")

        async def refuse(pid: int, started: str, *, at_once: bool) -> None:
            if pid == mark.init:
                raise TimeoutError("as the test wants it")
            await end_process(pid, started, at_once=at_once)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(endings, "end_process", refuse)
            removed = await sweep(machine)
        assert "box other" in removed
        assert not [one for one in removed if "a-stuck" in one]
        assert "sandbox `a-stuck` should have ended and still runs: " in caplog.text
        assert "as the test wants it" in caplog.text
        assert (await run(await machine.box("a-stuck"), "touch here && echo runs")).stdout == "runs\n"
        assert os.path.exists(os.path.join(workspace, "here"))
        assert "box a-stuck" in await sweep(machine)
        assert not os.path.exists(workspace)

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_box_without_a_mark_whose_keeper_does_not_answer_is_told_and_found_again(
    who: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "unmarked")
        mark = machine._marks.read("unmarked")
        assert mark is not None
        folder = machine._marks.directory("unmarked")
        os.unlink(os.path.join(folder, "keeper.json"))
        os.kill(mark.pid, signal.SIGSTOP)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(endings, "UNMARKED_END_S", 0.05)
                removed = await sweep(machine)
            assert "box unmarked" not in removed
            assert "sandbox `unmarked`, which has no mark, should have ended and may still run" in caplog.text
            assert os.path.exists(os.path.join(folder, "keeper.sock"))
        finally:
            with contextlib.suppress(ProcessLookupError):  # its groups were a second way
                os.kill(mark.pid, signal.SIGCONT)
        await sweep(machine)
        await nothing_runs(machine)
        assert os.listdir(folder) == ["records"]

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_what_is_left_of_a_lost_box_keeps_a_sweep_from_nothing_else(who: str, caplog: pytest.LogCaptureFixture) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "a-lost")
        mark = machine._marks.read("a-lost")
        assert mark is not None
        os.kill(mark.pid, signal.SIGKILL)

        async def lost() -> bool:
            return not mark.alive()

        await until(lost, "the keeper is gone")
        await new_box(machine, "other")

        def refuse(self: BoxGroups) -> None:
            raise ConfineError("remove a control group", "as the test wants it")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoxGroups, "remove", refuse)
            assert "box other" in await sweep(machine, keep="a-lost")
        assert "what is left of sandbox `a-lost` could not be removed" in caplog.text

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_mark_that_cannot_be_removed_does_not_keep_the_machine_from_starting(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)

        def refuse(self: Marks, sandbox_id: str) -> None:
            raise OSError(errno.EIO, "as the test wants it")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Marks, "remove", refuse)
            await machine.end_box("box")
            await machine._endings.finish()
            again = Machine(machine._data)
            await sweep(again)
            assert ENDING in os.listdir(machine._marks.directory("box"))
        await sweep(again)
        await again.close()
        assert os.listdir(machine._marks.directory("box")) == ["records"]

    on_a_machine(steps, who=who)


def test_a_process_that_is_killed_and_does_not_end_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_ended(process: int, timeout_s: float) -> bool:
        return False

    monkeypatch.setattr(processes, "_ended", not_ended)
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        with pytest.raises(TimeoutError, match="was killed and waits in the kernel"):
            asyncio.run(end_process(sleeper.pid, process_start(sleeper.pid) or "", at_once=True))
