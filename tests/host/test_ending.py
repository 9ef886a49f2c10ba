"""A box is gone when its end is answered; what the kernel takes longer for follows, and a crash leaves nothing of it."""

import asyncio
import os
from pathlib import Path

import pytest

from coldframe.contract.errors import NotFound
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.endings import Endings
from coldframe.host.machine import Machine
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.test_machine import made

pytestmark = needs_bubblewrap


def running(word: str) -> bool:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line.split(b"\0"):
                return True
    return False


async def only_records_are_left(machine: Machine) -> None:
    async def left() -> bool:
        return os.listdir(machine._marks.directory("box")) == ["records"] and made(machine) == {
            "boxes": ["box"],
            "groups": [],
            "processes": [],
        }

    await until(left, "only the records of the box are left")


@as_root_and_ordinary
def test_every_process_is_gone_and_the_box_unknown_when_its_end_is_answered(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        marker = str(86400_000 + os.getpid())
        assert (await run(box, f"setsid sleep {marker} & echo left")).stdout == "left\n"
        await until(lambda: asyncio.to_thread(running, marker), "what was left runs its program")
        await machine.end_box("box")
        assert not running(marker)
        assert await machine.boxes() == []
        with pytest.raises(NotFound):
            await machine.box("box")
        await machine.end_box("box")
        await machine.delete_workspace("agent")
        await only_records_are_left(machine)

    on_a_machine(steps, who=who)


def test_what_is_counted_for_an_end_ends_with_the_count() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        marker = str(86400_000 + os.getpid())
        await run(box, f"setsid sleep {marker} & echo left")
        await until(lambda: asyncio.to_thread(running, marker), "what was left runs its program")
        life = await machine.life("box")
        assert (await life.at_stake()).processes == 1
        assert running(marker)
        assert (await life.at_stake(ends=True)).processes == 1

        async def gone() -> bool:
            return not running(marker)

        await until(gone, "nobody is left in the box")
        await life.end()
        await only_records_are_left(machine)

    on_a_machine(steps)


@as_root_and_ordinary
def test_ends_at_the_same_time_are_one(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        await asyncio.gather(*(machine.end_box("box") for _ in range(3)))
        await only_records_are_left(machine)

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_what_could_not_be_removed_goes_with_the_next_sweep(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)

        def refuse(self: BoxGroups) -> None:
            raise ConfineError("remove a control group", "as the test wants it")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoxGroups, "remove", refuse)
            await machine.end_box("box")
            await machine._endings.finish()
        assert await machine.sweep(keep_boxes=set(), keep_sessions=set())
        await only_records_are_left(machine)

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_what_a_killed_daemon_had_not_removed_goes_at_the_next_start(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        gone = asyncio.Event()

        async def killed_there(self: Endings, mark: object) -> None:
            gone.set()
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Endings, "end_keeper", killed_there)
            await machine.end_box("box")
            await gone.wait()
            left = machine._endings._running["box"].whole
            left.cancel()
            await asyncio.wait({left})
        assert os.listdir(machine._marks.directory("box")) != ["records"]
        again = Machine(machine._data)
        assert os.listdir(machine._marks.directory("box")) == ["records"]
        await again.close()
        await only_records_are_left(machine)

    on_a_machine(steps, who=who)
