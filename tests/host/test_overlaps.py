"""What is begun on a machine while something else goes on there: neither takes the other's box or workspace away."""

import asyncio
import errno
import os
from typing import Any

import pytest

from coldframe.contract.errors import IsolationUnavailable, NotFound, WrongState
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host.builder import AT_ONCE, Builder
from coldframe.host.endings import Endings
from coldframe.host.machine import Machine
from coldframe.host.marks import Marks
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run
from tests.host.test_machine import SPEC, nothing_is_left

pytestmark = needs_bubblewrap
BACKGROUND = SandboxSpec(background=True, on_missing="degrade")


class Held:
    """Holds every build back, once it has begun, until it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch, *, sandbox_id: str) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        build = Builder.build

        async def held(builder: Builder, order: dict[str, Any], *rest: Any, **named: Any) -> Any:
            if order["sandbox_id"] == sandbox_id:
                self.begun.set()
                await self.go.wait()
            return await build(builder, order, *rest, **named)

        patch.setattr(Builder, "build", held)


@as_root_and_ordinary
def test_a_sweep_spares_what_was_built_since_it_was_asked_for(who: str) -> None:
    async def steps(machine: Machine) -> None:
        finish = Endings.finish
        built = False

        async def build_meanwhile(self: Endings, owner: str | None = None) -> None:
            nonlocal built
            if not built:
                built = True
                await machine.create("new", BACKGROUND, session_id="session-new")
            await finish(self, owner)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Endings, "finish", build_meanwhile)
            await machine.sweep(keep_boxes=set(), keep_sessions=set())
        assert built
        assert (await run(await machine.box("new"), "echo alive > file; cat file")).stdout == "alive\n"
        assert os.path.exists(os.path.join(machine.workspaces.of_session("session-new"), "file"))
        await machine.sweep(keep_boxes=set(), keep_sessions=set())  # the next one knows better
        with pytest.raises(NotFound):
            await machine.box("new")
        assert not os.path.exists(machine.workspaces.of_session("session-new"))

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_sweep_spares_what_was_built_between_its_lists_and_itself(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create("old", BACKGROUND, session_id="session-old")
        since = await machine.moment()
        await machine.create("new", BACKGROUND, session_id="session-new")
        removed = await machine.sweep(keep_boxes=set(), keep_sessions=set(), since=since)
        assert "box old" in removed
        assert (await run(await machine.box("new"), "echo alive > file; cat file")).stdout == "alive\n"
        # A moment serves one sweep, and one that is not known might be of any age.
        assert await machine.sweep(keep_boxes=set(), keep_sessions=set(), since=since) == []
        assert (await run(await machine.box("new"), "cat file")).stdout == "alive\n"

    on_a_machine(steps, who=who)


def test_a_workspace_is_kept_while_the_second_of_two_boxes_is_still_being_built_on_it() -> None:
    async def steps(machine: Machine) -> None:
        with pytest.MonkeyPatch.context() as patch:
            second = Held(patch, sandbox_id="second")
            first = asyncio.create_task(machine.create("first", SPEC, session_id="s"))
            creating = asyncio.create_task(machine.create("second", SPEC, session_id="t"))
            await first
            await second.begun.wait()
            await machine.end_box("first")
            with pytest.raises(WrongState, match="is being built"):
                await machine.delete_workspace("agent")
            second.go.set()
            await creating
        assert (await run(await machine.box("second"), "echo alive")).stdout == "alive\n"

    on_a_machine(steps)


def test_no_box_is_built_on_a_workspace_that_is_being_deleted() -> None:
    async def steps(machine: Machine) -> None:
        await machine.create_workspace("agent")
        remove = machine.workspaces.remove
        loop = asyncio.get_running_loop()

        def create_meanwhile(path: str) -> None:
            creating = machine.create("box", SPEC, session_id="s")
            with pytest.raises(WrongState, match="is being deleted"):
                asyncio.run_coroutine_threadsafe(creating, loop).result()
            remove(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine.workspaces, "remove", create_meanwhile)
            await machine.delete_workspace("agent")
        assert not os.path.exists(machine.workspaces.of_agent("agent"))
        await new_box(machine)

    on_a_machine(steps)


@as_root_and_ordinary
def test_a_box_that_is_ended_while_it_is_built_does_not_come_to_be(who: str) -> None:
    """As when the server gave up waiting: nobody would end it later, and it would hold the workspace."""

    async def steps(machine: Machine) -> None:
        with pytest.MonkeyPatch.context() as patch:
            build = Held(patch, sandbox_id="box")
            creating = asyncio.create_task(machine.create("box", SPEC, session_id="s"))
            await build.begun.wait()
            ending = asyncio.create_task(machine.end_box("box"))
            await asyncio.sleep(0)
            build.go.set()
            with pytest.raises(WrongState, match="ended while it was built"):
                await creating
            await ending
        await nothing_is_left(machine)
        await machine.delete_workspace("agent")

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_box_whose_mark_cannot_be_written_does_not_live_on(who: str) -> None:
    async def steps(machine: Machine) -> None:
        def is_full(self: Marks, sandbox_id: str, mark: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Marks, "write", is_full)
            with pytest.raises(OSError, match="No space left"):
                await machine.create("box", SPEC, session_id="s")
        await nothing_is_left(machine)

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_creation_that_is_broken_off_twice_leaves_nothing(who: str) -> None:
    async def steps(machine: Machine) -> None:
        ordered, go = asyncio.Event(), asyncio.Event()
        order = Builder._order_keeper
        loop = asyncio.get_running_loop()

        def slow(self: Builder, *arguments: Any) -> dict[str, Any]:
            loop.call_soon_threadsafe(ordered.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
            return order(self, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Builder, "_order_keeper", slow)
            creating = asyncio.create_task(machine.create("box", SPEC, session_id="s"))
            await ordered.wait()
            for _ in range(2):
                creating.cancel()
                for _ in range(3):
                    await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await creating
        await nothing_is_left(machine)

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_boxes_that_are_built_at_once_are_each_their_own_also_when_the_zygote_dies_meanwhile(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "first")
        names = [f"box-{number}" for number in range(2 * AT_ONCE + 1)]
        creating = [asyncio.create_task(new_box(machine, name, agent=name)) for name in names]
        assert machine._builder.zygote.process is not None
        machine._builder.zygote.process.kill()
        made = await asyncio.gather(*creating, return_exceptions=True)
        for name, box in zip(names, made, strict=True):
            if isinstance(box, BaseException):  # its order had reached the one that was killed
                assert isinstance(box, IsolationUnavailable)
                box = await new_box(machine, name, agent=name)
            await run(box, f"echo {name} > file")
        for name in names:
            assert (await run(await machine.box(name), "cat file; ls")).stdout.split()[:2] == [name, "file"]
        assert (await run(await machine.box("first"), "ls")).stdout.split() == ["integrations", "scratch", "skills"]
        await asyncio.gather(*(machine.end_box(name) for name in ("first", *names)))

    on_a_machine(steps, who=who)
