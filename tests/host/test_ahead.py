"""A keeper is forked ahead of need and builds the next box; whatever becomes of it meanwhile, boxes are built and nothing stays."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.sandbox import Limits
from coldframe.guest import rows
from coldframe.host.builder import Builder
from coldframe.host.cgroups import BoxGroups
from coldframe.host.isolation import bubblewrap, namespaces
from coldframe.host.machine import Machine
from coldframe.host.stacks import HISTORY
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.test_machine import made, nothing_is_left

pytestmark = needs_bubblewrap
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="without root all sandboxes are the same user's")
needs_rows = pytest.mark.skipif(os.uname().machine not in rows.CODE, reason="nothing is started early on this machine")


def keeper_of(machine: Machine, name: str) -> int:
    mark = machine._marks.read(name)
    assert mark is not None
    return mark.pid


async def waiting(builder: Builder) -> int:
    """The keeper that waits, once there is one."""

    async def there() -> bool:
        return builder.ahead.keeper is not None

    await until(there, "a keeper waits")
    assert builder.ahead.keeper is not None
    return builder.ahead.keeper.pid


@as_root_and_ordinary
def test_the_keeper_that_waits_builds_the_next_box_and_another_waits_then(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        seen = []
        for name in ("one", "two"):
            seen.append(await waiting(machine._builder))
            box = await new_box(machine, name, agent=name)
            assert keeper_of(machine, name) == seen[-1]
            assert (await run(box, f"echo {name} > file; cat file")).stdout == f"{name}\n"
        assert await waiting(machine._builder) not in seen

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_boxes_that_are_built_while_nobody_waits_have_keepers_of_their_own(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        names = ["one", "two", "three"]
        boxes = await asyncio.gather(*(new_box(machine, name, agent=name) for name in names))
        assert len({keeper_of(machine, name) for name in names}) == 3
        for name, box in zip(names, boxes, strict=True):
            assert (await run(box, f"echo {name}")).stdout == f"{name}\n"

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_keeper_that_is_killed_while_it_waits_is_not_missed(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        pid = await waiting(machine._builder)
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return not os.path.exists(f"/proc/{pid}")

        await until(gone, "it is gone")
        assert (await run(await new_box(machine), "echo built")).stdout == "built\n"
        assert keeper_of(machine, "box") != pid

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_keeper_that_waits_ends_with_the_machine_that_it_waits_for(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        pid = await waiting(machine._builder)
        assert machine._builder.ahead.keeper is not None
        machine._builder.ahead.keeper.answer.close()  # as `kill -9` of the daemon does

        async def gone() -> bool:
            return not os.path.exists(f"/proc/{pid}")

        await until(gone, "it is gone")

    on_a_machine(steps, who=who)


def _bubblewraps(keeper: int) -> list[int]:
    """The children of a keeper that are that program already."""
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "bwrap\n"]


async def _begun(machine: Machine) -> tuple[int, int]:
    """The keeper that waits, and the bubblewrap that waits with it, once both are there."""
    keeper = await waiting(machine._builder)

    async def there() -> bool:
        return len(_bubblewraps(keeper)) == 1

    await until(there, "bubblewrap waits")
    return keeper, _bubblewraps(keeper)[0]


async def _gone(pid: int) -> None:
    async def gone() -> bool:
        return not os.path.exists(f"/proc/{pid}")

    await until(gone, f"process {pid} is gone")


def _maker_of(machine: Machine, name: str) -> int:
    """The parent of the first process of a box."""
    mark = machine._marks.read(name)
    assert mark is not None
    return int(Path(f"/proc/{mark.init}/stat").read_text().rpartition(")")[2].split()[1])


@needs_rows
@as_root_and_ordinary
def test_bubblewrap_waits_with_the_keeper_and_makes_the_box_of_the_user_who_asked_last(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        await new_box(machine, "first")
        _, early = await _begun(machine)
        assert "\nCapEff:\t0000000000000000\n" in Path(f"/proc/{early}/status").read_text()
        mark = machine._marks.read("first")
        assert mark is not None
        assert os.stat(f"/proc/{early}").st_uid == mark.uid
        box = await new_box(machine, "second")
        assert _maker_of(machine, "second") == early
        assert (await run(box, "echo built")).stdout == "built\n"

    on_a_machine(steps, who=who)


@needs_root
@needs_rows
def test_bubblewrap_that_waits_for_another_user_ends() -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        await new_box(machine, "first", agent="one")
        keeper, early = await _begun(machine)
        box = await new_box(machine, "second", agent="two")
        assert keeper_of(machine, "second") == keeper
        assert _maker_of(machine, "second") != early
        await _gone(early)
        assert (await run(box, "echo built")).stdout == "built\n"

    on_a_machine(steps)


@needs_rows
@as_root_and_ordinary
def test_bubblewrap_that_is_killed_while_it_waits_is_not_missed(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        await new_box(machine, "first")
        keeper, early = await _begun(machine)
        os.kill(early, signal.SIGKILL)

        async def dead() -> bool:
            return "\nState:\tZ" in Path(f"/proc/{early}/status").read_text()

        await until(dead, "it has ended")
        box = await new_box(machine, "second")
        assert keeper_of(machine, "second") == keeper
        assert (await run(box, "echo built")).stdout == "built\n"

    on_a_machine(steps, who=who)


@needs_rows
def test_bubblewrap_that_has_ended_is_not_signalled_under_a_number_that_may_be_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its keeper is root yet, when it finds that nobody waits any more."""
    user = (os.getuid(), os.getgid()) if os.getuid() else (65534, 65534)
    early = namespaces.Early("coldframe-test", user, bubblewrap.Entrance(-1, ()))
    assert early.waits()
    os.kill(early.pid, signal.SIGKILL)
    os.waitid(os.P_PID, early.pid, os.WEXITED | os.WNOWAIT)
    assert not early.waits()
    signalled: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: signalled.append(pid))
    early.end()
    assert signalled == []
    with pytest.raises(ChildProcessError):
        os.waitpid(early.pid, 0)  # nothing is left of it


@needs_rows
@as_root_and_ordinary
def test_bubblewrap_that_waits_ends_with_its_keeper_and_with_the_machine(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        await new_box(machine, "first")
        keeper, early = await _begun(machine)
        os.kill(keeper, signal.SIGKILL)
        await _gone(early)
        await new_box(machine, "second")
        keeper, early = await _begun(machine)
        assert machine._builder.ahead.keeper is not None
        machine._builder.ahead.keeper.answer.close()  # as `kill -9` of the daemon does
        await _gone(keeper)
        await _gone(early)

    on_a_machine(steps, who=who)


@needs_rows
def test_what_bubblewrap_that_waits_was_not_given_is_built_by_another() -> None:
    """One with a limit of its processors, and one whose settings are put together."""

    async def steps(machine: Machine) -> None:
        await machine.prepare()
        await new_box(machine, "first")
        _, early = await _begun(machine)
        if "cpu" in machine._controllers.hierarchies:
            box = await new_box(machine, "capped", limits=Limits(cpus=0.5))
            assert _maker_of(machine, "capped") != early
            assert (await run(box, "echo built")).stdout == "built\n"
            _, early = await _begun(machine)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine._settings, "current", lambda: None)
            box = await new_box(machine, "put-together")
        assert _maker_of(machine, "put-together") != early
        assert (await run(box, "cat /etc/hostname")).stdout == "coldframe\n"

    on_a_machine(steps)


def test_a_sweep_spares_the_groups_of_the_keeper_that_waits_and_of_its_box_and_removes_those_of_an_earlier_one() -> (
    None
):
    async def steps(machine: Machine) -> None:
        left = BoxGroups(machine._controllers, machine.installation, "ahead-of-a-daemon-before")
        left.create_ahead()
        await machine.prepare()
        pid = await waiting(machine._builder)
        await machine.sweep(keep_boxes=set(), keep_sessions=set())
        assert not any(os.path.exists(path) for path in left.paths.values())
        assert await waiting(machine._builder) == pid
        box = await new_box(machine)
        assert keeper_of(machine, "box") == pid
        for _ in range(2):  # the second no longer knows what was built before the first
            await machine.sweep(keep_boxes={"box"}, keep_sessions=set())
            assert (await run(box, "echo alive")).stdout == "alive\n"
        later = await waiting(machine._builder)
        await machine.end_box("box")
        await machine._endings.finish()
        assert {path.name for path in made(machine)["groups"]} <= machine._builder.ahead.group_names
        assert Path(f"/proc/{later}").exists()

    on_a_machine(steps)


@as_root_and_ordinary
def test_nothing_is_left_of_a_box_that_the_keeper_that_waited_could_not_build(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        await waiting(machine._builder)
        machine._builder._is_prepared = False  # nobody waits afterwards
        await machine.create_workspace("agent")
        os.unlink(os.path.join(machine.workspaces.of_agent("agent"), HISTORY))
        with pytest.raises(IsolationUnavailable, match="exec_history"):
            await new_box(machine)
        await nothing_is_left(machine)

    on_a_machine(steps, who=who)


def test_a_keeper_that_is_forked_while_the_machine_closes_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        ahead = machine._builder.ahead
        await waiting(machine._builder)
        taken = ahead.take()
        assert taken is not None
        taken.answer.close()
        os.close(taken.process)
        create_ahead = BoxGroups.create_ahead

        def create_and_close(groups: BoxGroups) -> None:
            create_ahead(groups)
            ahead.close()

        with monkeypatch.context() as patch:
            patch.setattr(BoxGroups, "create_ahead", create_and_close)
            await asyncio.to_thread(ahead.fork)
        assert ahead.keeper is None
        taken.groups.remove()

    on_a_machine(steps)


def test_the_groups_of_a_keeper_that_is_being_forked_or_built_on_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()
        ahead = machine._builder.ahead
        seen = []
        enter, settle = BoxGroups.enter, BoxGroups.settle

        def look(groups: BoxGroups) -> None:
            ahead.drop_names()
            seen.append(groups.name in ahead.group_names)

        def look_and_enter(groups: BoxGroups, pid: int) -> None:
            look(groups)
            enter(groups, pid)

        def look_and_settle(groups: BoxGroups, *processes: int) -> None:
            look(groups)
            settle(groups, *processes)

        await waiting(machine._builder)
        with monkeypatch.context() as patch:
            patch.setattr(BoxGroups, "settle", look_and_settle)
            patch.setattr(BoxGroups, "enter", look_and_enter)
            await new_box(machine)
            await waiting(machine._builder)
        assert seen == [True, True]
        await machine.end_box("box")

    on_a_machine(steps)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@as_root_and_ordinary
def test_keepers_that_wait_leave_no_descriptor_behind(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.prepare()

        async def one(name: str) -> None:
            await waiting(machine._builder)
            await new_box(machine, name)
            await machine.end_box(name)
            await machine._endings.finish()
            await waiting(machine._builder)

        await one("first")
        before = descriptors()
        for number in range(5):
            await one(f"later-{number}")
        assert descriptors() <= before

    on_a_machine(steps, who=who)


def test_who_is_endangered_is_let_out_of_the_groups_after_a_while() -> None:
    async def steps(machine: Machine) -> None:
        builder = machine._builder
        let_out = []

        class Endangered(BoxGroups):
            def let_out(self) -> None:
                let_out.append(self.name)

        await new_box(machine)
        builder._endangered.append(Endangered(machine._controllers, machine.installation, "named"))
        await new_box(machine, "other")

        async def done() -> bool:
            return "named" in let_out

        await until(done, "it is let out")
        assert not builder._endangered

    on_a_machine(steps)
