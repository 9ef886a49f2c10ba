"""Forks have the files of a snapshot and users of their own, and none gets files that were there before."""

import os

import pytest

from coldframe.contract.errors import (
    Conflict,
    NotFound,
)
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.host.machine import Machine
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run
from tests.host.points import (
    FORK,
    HOME,
    PLAIN,
    at,
    content,
    forked,
    nothing_stays_mounted,
)

pytestmark = [needs_bubblewrap, pytest.mark.usefixtures(nothing_stays_mounted.__name__)]


@as_root_and_ordinary
def test_forks_do_not_see_what_the_others_write_and_have_users_of_their_own(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "mkdir -m 700 folder; echo one > folder/file; chmod 600 folder/file; git init -q repo")
        await machine.end_box("box")
        snapshot = await machine.snapshots.take(HOME, PLAIN)
        boxes = {"agent": await new_box(machine, "original")}
        for name in ("fork", "other"):
            boxes[name] = await forked(machine, snapshot.snapshot_id, name)
        for name, box in boxes.items():
            done = await run(
                box, f"echo {name} >> folder/file; echo {name} > {name}; rm -r repo; ls -A; stat -c %u folder/file"
            )
            assert done.stderr == ""
            assert done.stdout.split()[-1] == "1000", "all of it is the user's"
        for name in boxes:
            found = await content(machine, WorkspacePoint(agent_id=name))
            assert found == {"folder/file": f"one\n{name}\n", name: f"{name}\n"}
        assert (await content(machine, at(snapshot.snapshot_id)))["folder/file"] == "one\n"
        users = {os.stat(os.path.join(machine.workspaces.of_agent(name), "folder/file")).st_uid for name in boxes}
        assert len(users) == (3 if who == "root" else 1)
        again = (
            await forked(machine, (await machine.snapshots.take(FORK, PLAIN)).snapshot_id, "second")
            if who == "root"
            else None
        )
        if again is not None:
            assert (
                await run(again, "cat folder/file; echo deeper >> folder/file; cat folder/file")
            ).stdout.split() == [
                *("one", "fork"),
                *("one", "fork", "deeper"),
            ], "a fork of a fork"
        with pytest.raises(NotFound):
            await forked(machine, "0" * 16, "nothing")
        assert not os.path.exists(machine.workspaces.of_agent("nothing"))

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_fork_that_finds_a_workspace_is_refused_and_not_given_other_files(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await run(await new_box(machine), "echo one > file")
        await machine.end_box("box")
        snapshot = await machine.snapshots.take(HOME, PLAIN)
        spec = SandboxSpec(agent_id="fork", on_missing="degrade")
        await machine.create("faster", spec, session_id="faster")
        with pytest.raises(Conflict):
            await forked(machine, snapshot.snapshot_id)
        assert await content(machine, FORK) == {}
        again = spec.model_copy(update={"agent_id": "other", "snapshot": snapshot.snapshot_id})
        await machine.create("third", again, session_id="third")
        await machine.end_box("third")
        await machine.create("third", again, session_id="third", anew=True)
        assert await content(machine, WorkspacePoint(agent_id="other")) == {"file": "one\n"}

    on_a_machine(steps, who=who)
