"""Builds that are broken off, go on for long, or have others at work beside them: nothing half is named, nothing that they need goes.

They begin from an archive of this machine's bash, so that no base has to be built.
"""

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from coldframe.contract.errors import LimitReached
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.template import BuildEvent, EnvStep, FilesStep, RecipeFile, TemplateFacts
from coldframe.host import machine_templates, recipe_build
from coldframe.host.machine import Machine
from coldframe.host.removal import remove_tree
from coldframe.host.templates import store
from coldframe.host.templates.inputs import KEPT_S
from coldframe.host.templates.inventory import installed_in
from coldframe.host.templates.placed_files import place_files
from tests.host.templates.test_building import archive_of, building, built, drafts, on_machine, put, small_system

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the users of a template have to be mapped")


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cf-build-ends-"))
    folder.chmod(0o711)
    yield folder
    remove_tree(str(folder))


class Waiting:
    """Stands in the place of a part of a build that goes on in a thread, until it may go on."""

    def __init__(self, part: Callable[..., Any]) -> None:
        self._part = part
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.began.set()
        assert self.go.wait(30)
        return self._part(*arguments)


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


async def all_of(events: AsyncGenerator[BuildEvent, None]) -> list[BuildEvent]:
    async with aclosing(events) as source:
        return [event async for event in source]


def test_one_that_is_cancelled_at_its_end_has_no_name_and_one_that_is_cancelled_twice_ends_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Waiting(installed_in)
    monkeypatch.setattr(recipe_build, "installed_in", look)

    async def steps(machine: Machine) -> None:
        digest = await put(machine, archive_of(*small_system()))
        task = asyncio.ensure_future(all_of(cast(Any, building(machine, None, archive=digest))))
        await reached(look.began)
        for _ in range(2):
            task.cancel()
            await asyncio.wait({task}, timeout=0.3)  # to its end, if it does not wait for what goes on in a thread
        assert not task.done()
        look.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await machine.templates.digests() == set()
        made = await built(machine, None, archive=digest)
        await machine.templates.remove(made.template.digest)  # which no build needs any more

    on_machine(place, steps)
    assert drafts(place) == []


def test_what_a_build_will_need_stays_however_long_it_takes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placing = Waiting(place_files)
    monkeypatch.setattr(recipe_build, "place_files", placing)

    async def steps(machine: Machine) -> None:
        archive = await put(machine, archive_of(*small_system()))
        content, other = await put(machine, b"content"), await put(machine, b"of nobody's")
        file = RecipeFile(to="/srv/file", sha256=content, bytes=7)
        events = cast(Any, building(machine, None, FilesStep(files=(file,)), archive=archive))
        task = asyncio.ensure_future(all_of(events))
        await reached(placing.began)
        for one in (content, other):
            os.utime(place / "templates" / "inputs" / one, (0, time.time() - KEPT_S - 60))
        await machine.templates.collect()
        placing.go.set()
        assert isinstance((await task)[-1], TemplateFacts)
        assert await machine.templates.missing_inputs([content, other]) == (other,)

    on_machine(place, steps)


def test_what_nobody_needs_goes_while_others_build_and_upload(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_templates, "COLLECT_EVERY_S", 0.0)

    async def steps(machine: Machine) -> None:
        old = await put(machine, b"old")
        os.utime(place / "templates" / "inputs" / old, (0, 0))
        await put(machine, b"new")
        assert not (place / "templates" / "inputs" / old).exists()
        archive = await put(machine, archive_of(*small_system()))
        assert (await built(machine, None, archive=archive)).template.digest

    on_machine(place, steps)


def test_a_start_that_is_left_while_its_system_is_made_ready_lets_go_of_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(machine: Machine) -> None:
        await built(machine, None, archive=await put(machine, archive_of(*small_system())))
        preparing = Waiting(machine.systems.prepare)
        monkeypatch.setattr(machine.systems, "prepare", preparing)
        spec = SandboxSpec(agent_id="ann", template="made", profile="computer")
        task = asyncio.ensure_future(machine.create("first", spec, session_id="first"))
        await reached(preparing.began)
        task.cancel()
        await asyncio.wait({task}, timeout=0.3)
        preparing.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await machine.create("second", spec, session_id="second")
        await machine.end_box("second")

    on_machine(place, steps)


def test_nobody_waits_with_a_start_while_a_large_template_is_removed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(machine: Machine) -> None:
        archive = await put(machine, archive_of(*small_system()))
        kept = (await built(machine, None, archive=archive)).template
        other = (await built(machine, None, EnvStep(variables={"A": "b"}), archive=archive, name="other")).template
        clearing = Waiting(store._clear)
        monkeypatch.setattr(store, "_clear", clearing)
        removal = asyncio.ensure_future(machine.templates.remove(other.digest))
        await reached(clearing.began)
        spec = SandboxSpec(agent_id="ann", template=f"sha256:{kept.digest}", profile="computer")
        await asyncio.wait_for(machine.create("box", spec, session_id="box"), 20)
        await machine.end_box("box")
        assert not removal.done()
        clearing.go.set()
        await removal
        assert await machine.templates.digests() == {kept.digest}

    on_machine(place, steps)


def test_more_layers_than_can_be_mounted_are_refused_with_the_step_that_would_need_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_build, "MOST_LAYERS", 2)

    async def steps(machine: Machine) -> None:
        archive, content = await put(machine, archive_of(*small_system())), await put(machine, b"x")
        places = [FilesStep(files=(RecipeFile(to=f"/srv/{number}", sha256=content, bytes=1),)) for number in range(3)]
        assert (await built(machine, None, *places[:2], archive=archive)).ends == [False, False]
        with pytest.raises(LimitReached, match="layers") as refused:
            await built(machine, None, *places, archive=archive)
        assert refused.value.facts["step"] == 3

    on_machine(place, steps)
