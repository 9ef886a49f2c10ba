"""What runs is held still for the moment in which it is taken, and goes on whatever becomes of whoever took it."""

import asyncio
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from coldframe.contract.files import WriteFile
from coldframe.host import stillness
from coldframe.host.machine import Machine
from tests.host.machines import needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.points import (
    HOME,
    PLAIN,
    as_root,
    forked,
    is_stack,
    is_there,
    nothing_stays_mounted,
    streamed,
)

pytestmark = [needs_bubblewrap, pytest.mark.usefixtures(nothing_stays_mounted.__name__)]


@as_root
def test_what_is_taken_while_processes_write_is_whole_and_they_go_on() -> None:
    writer = """
import os, sqlite3, subprocess
base = sqlite3.connect("base.db", isolation_level=None)
base.execute("pragma journal_mode=wal")
base.execute("create table if not exists rows (number integer, twice integer)")
subprocess.run(["git", "init", "-q", "repo"], check=True)
number = 0
while not os.path.exists("enough"):
    number += 1
    base.execute("begin"); base.execute("insert into rows values (?, ?)", (number, 2 * number)); base.execute("commit")
    if number % 40 == 1:
        open("repo/file", "w").write(str(number))
        subprocess.run("git add -A && git -c user.name=n -c user.email=e commit --allow-empty -qm x", shell=True, cwd="repo", check=True)
    open("ready", "w").close()
"""

    def look_at(place: str) -> int:
        checked = subprocess.run(
            ["git", "-c", "safe.directory=*", "fsck", "--strict"], cwd=f"{place}/repo", check=False, capture_output=True
        )
        assert checked.returncode == 0, checked.stderr
        with sqlite3.connect(f"{place}/base.db") as base:
            assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
            rows = base.execute("select number, twice from rows order by number").fetchall()
        base.close()
        assert rows == [(number, 2 * number) for number in range(1, len(rows) + 1)], "no hole in what was committed"
        return len(rows)

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        path = machine.workspaces.of_agent("agent")
        await box.write(WriteFile(path="writer.py"), streamed(writer.encode()))
        running = asyncio.ensure_future(run(box, "python3 writer.py"))
        await until(lambda: is_there(f"{path}/ready"), "the writer writes")
        first = await machine.snapshots.take(HOME, PLAIN)
        assert first.was_live and first.frozen_ms is not None
        assert [status.state for status in await machine.boxes()] == ["running"]
        os.unlink(f"{path}/ready")
        await until(lambda: is_there(f"{path}/ready"), "it goes on")
        assert not machine.workspaces.stacks.exists("workspace/agent"), "nothing is switched beneath a box that runs"
        Path(path, "enough").touch()
        assert (await running).result.exit_code == 0
        await machine.end_box("box")
        await until(lambda: is_stack(machine), "it becomes a stack once nobody uses it")
        box = await new_box(machine, "again")
        os.unlink(f"{path}/enough")
        Path(path, "ready").unlink()
        running = asyncio.ensure_future(run(box, "python3 writer.py"))
        await until(lambda: is_there(f"{path}/ready"), "the writer writes")
        second = await machine.snapshots.take(HOME, PLAIN)
        Path(path, "enough").touch()
        await running
        numbers = []
        for number, one in enumerate((first, second)):
            await forked(machine, one.snapshot_id, f"fork-{number}")
            numbers.append(await asyncio.to_thread(look_at, machine.workspaces.of_agent(f"fork-{number}")))
        assert numbers[0] > 0

    # the second writer counts from 1 again, so it starts on a new base
    writer = writer.replace(
        '"create table if not exists rows', '"drop table if exists rows"); base.execute("create table rows'
    )
    on_a_machine(steps)


@as_root
def test_a_paused_box_stays_paused_and_one_that_was_held_goes_on_after_a_kill() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "echo one > file")
        life = await machine.life("box")
        await life.pause()
        assert (await machine.snapshots.take(HOME, PLAIN)).was_live
        assert [status.state for status in await machine.boxes()] == ["paused"]
        await life.resume()
        held = machine.occupants(HOME)[0].box
        stillness.Stillness([held]).__enter__()  # and nobody leaves it: the machine was killed
        assert [status.state for status in await machine.boxes()] == ["running"]
        stillness.go_on(held)  # what a machine does with each box when it starts
        assert (await run(box, "cat file")).stdout == "one\n"
        assert stillness.NOTE not in os.listdir(held.directory)
        await life.pause()
        Path(held.directory, stillness.NOTE).touch()  # killed before it could be written who stands still
        stillness.go_on(held)
        assert [status.state for status in await machine.boxes()] == ["paused"]
        assert stillness.NOTE not in os.listdir(held.directory)

    on_a_machine(steps)


@as_root
def test_one_that_cannot_be_let_go_on_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        await new_box(machine, "other")
        held = [one.box for one in machine.occupants(HOME)]
        assert len(held) == 2
        last = held[-1].groups
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no such device"):
            with stillness.Stillness(held):
                patch.setattr(last, "thaw", lambda: (_ for _ in ()).throw(OSError(5, "no such device")))
        assert not held[0].groups.is_frozen() and last.is_frozen()
        stillness.go_on(held[-1])
        assert [status.state for status in await machine.boxes()] == ["running"] * 2

    on_a_machine(steps)
