"""Files that nothing runs on are read and compared as a box would, by whoever asks, and nobody else waits for that."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    FileMissing,
    InvalidArgument,
    OutsideWorkspace,
    SnapshotCorrupt,
)
from coldframe.contract.files import ListDirectory, MakeDirectory, ReadFile, Request, SearchFiles
from coldframe.contract.model import Model
from coldframe.contract.snapshot import Change
from coldframe.host.machine import Machine
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run
from tests.host.points import (
    HOME,
    PLAIN,
    at,
    content,
    nothing_stays_mounted,
)

pytestmark = [needs_bubblewrap, pytest.mark.usefixtures(nothing_stays_mounted.__name__)]


@as_root_and_ordinary
def test_what_is_asked_at_rest_is_answered_as_the_box_does(who: str) -> None:
    requests: list[Request[Any]] = [
        ListDirectory(),
        ListDirectory(recursive=True),
        ListDirectory(recursive=True, max_entries=3),
        ListDirectory(path="folder", max_depth=1, recursive=True),
        ListDirectory(path="missing"),
        ListDirectory(path="folder/file"),
        ListDirectory(path="closed"),
        ReadFile(path="folder/file"),
        ReadFile(path="folder/file", offset=2, length=3),
        ReadFile(path="/home/user/folder/file"),
        ReadFile(path="inner"),
        ReadFile(path="passwd"),
        ReadFile(path="up"),
        ReadFile(path="loop"),
        ReadFile(path="../../etc/passwd"),
        ReadFile(path="folder"),
        ReadFile(path="pipe"),
        ReadFile(path="secret"),
        ReadFile(path="huge"),
        SearchFiles(pattern="o.e"),
        SearchFiles(pattern="root:"),
        SearchFiles(pattern="one", glob="*.txt", max_matches=1),
        SearchFiles(pattern="("),
        SearchFiles(pattern="(a+)+$", path="slow", budget_s=1),
        SearchFiles(pattern="x" * 5),
    ]

    async def answer(asked: Callable[[Request[Any]], Awaitable[Model]], request: Request[Any]) -> object:
        try:
            return (await asked(request)).model_dump()
        except ColdframeError as error:
            return type(error), error.message, error.facts

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        made = await run(
            box,
            "mkdir -p folder/deep closed .git; echo one > folder/file; echo one > folder/deep/a.txt; echo one > b.txt;"
            "ln -s folder/file inner; ln -s /etc/passwd passwd; ln -s ../.. up; ln -s loop loop; mkfifo pipe;"
            "echo secret > secret; chmod 0 secret closed; truncate -s 100M huge; echo one > .git/config;"
            "printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' > slow; printf 'xxxxx\\0' > binary",
        )
        assert made.stderr == ""
        expected = [await answer(box.ask, request) for request in requests]
        found = [await answer(lambda one: machine.snapshots.ask(HOME, one), request) for request in requests]
        assert found == expected
        assert {FileMissing, OutsideWorkspace, InvalidArgument} <= {
            one[0] for one in expected if isinstance(one, tuple)
        }
        await machine.end_box("box")
        taken = await machine.snapshots.take(HOME, PLAIN)
        for request, one in zip(requests, expected, strict=True):
            there = await answer(lambda asked: machine.snapshots.ask(at(taken.snapshot_id), asked), request)
            assert _without_versions(there) == _without_versions(one)
        with pytest.raises(InvalidArgument):
            await machine.snapshots.ask(HOME, MakeDirectory(path="new"))

    on_a_machine(steps, who=who)


def _without_versions(answer: object) -> object:
    """What two trees cannot have in common: the version of a file, the sizes of folders, and that there is no history."""
    if isinstance(answer, tuple):
        return answer[:2]
    assert isinstance(answer, dict)
    answer = {**answer, "version": None}
    entries = [one for one in answer.get("entries", ()) if one["name"] != ".exec_history"]
    for one in entries:
        one.update(version=None, size=one["size"] if one["kind"] != "directory" else 0)
    kept = [one for one in answer.get("directories_skipped", ()) if one != ".exec_history"]
    if answer.get("truncated_because"):
        entries = []  # the history was one of them
    return {**answer, "entries": entries, "directories_skipped": kept, "complete": None, "truncated_because": None}


@as_root_and_ordinary
def test_pages_of_changes_are_what_a_walk_finds(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(
            box,
            "for n in 1 2 3 4 5; do mkdir d$n; for m in 1 2 3 4; do echo $n$m > d$n/f$m; done; done; git init -q repo",
        )
        await machine.end_box("box")
        first = await machine.snapshots.take(HOME, PLAIN)
        before = await content(machine, HOME)
        box = await new_box(machine, "again")
        await run(
            box,
            "rm -r d1; rm d2/f1; echo x > d2/f2; mv d3 d6; rm -r d4; echo file > d4; rm d5/f1; mkdir d5/f1; echo y > d5/f1/z; chmod 700 d5/f2; touch -d 2001-01-01 d2/f4; rm -r repo/.git/hooks",
        )
        after = await content(machine, HOME)
        found: list[Change] = []
        page = await machine.snapshots.changes(at(first.snapshot_id), HOME, limit=4)
        found += page.changes
        while page.next_after is not None:
            page = await machine.snapshots.changes(at(first.snapshot_id), HOME, after_path=page.next_after, limit=4)
            found += page.changes
        paths = [one.path for one in found]
        assert len(paths) == len(set(paths))
        files = {one.path: one.change for one in found if one.kind == "file" and one.change != "metadata"}
        added = dict.fromkeys(after.keys() - before.keys(), "added")
        deleted = dict.fromkeys(before.keys() - after.keys(), "deleted")
        changed = {path: "changed" for path in after.keys() & before.keys() if before[path] != after[path]}
        assert deleted.pop("d5/f1") and {one.kind for one in found if one.path == "d5/f1"} == {"directory"}
        assert files == {**added, **deleted, **changed, "d4": "changed"}
        assert {one.path for one in found if one.change == "metadata" and one.kind == "file"} == {"d2/f4", "d5/f2"}
        back = await machine.snapshots.changes(HOME, at(first.snapshot_id), limit=1000)
        assert {one.path for one in back.changes if one.change == "added"} >= deleted.keys()

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_question_too_long_for_the_reader_is_the_fault_of_whoever_asks(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await run(await new_box(machine), "echo one > file")
        await machine.end_box("box")
        with pytest.raises(InvalidArgument, match="bytes"):
            await machine.snapshots.ask(HOME, SearchFiles(pattern="x", glob="*" * 300_000))
        assert (await machine.snapshots.ask(HOME, SearchFiles(pattern="\U0001f9ca" * 10_000))).matches == ()

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_the_machine_goes_on_while_looks_and_archives_wait(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "echo one > file")
        await machine.end_box("box")
        silent, over = asyncio.Event(), asyncio.Event()

        async def archive() -> AsyncIterator[bytes]:
            silent.set()
            await over.wait()
            yield b""

        sending = [
            asyncio.ensure_future(machine.snapshots.take_in(archive(), PLAIN, most_bytes=1, most_files=1))
            for _ in range(40)
        ]
        await silent.wait()
        assert (await run(await new_box(machine, "again"), "cat file")).stdout == "one\n"
        assert (await content(machine, HOME))["file"] == "one\n"
        await machine.end_box("again")
        over.set()
        assert all(isinstance(one, SnapshotCorrupt) for one in await asyncio.gather(*sending, return_exceptions=True))

    on_a_machine(steps, who=who)
