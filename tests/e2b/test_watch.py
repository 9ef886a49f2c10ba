"""Watching directories through the official SDK, asked for and as a stream."""

import asyncio

import pytest
from e2b import AsyncSandbox, FileNotFoundException, FilesystemEvent, FilesystemEventType, Sandbox, SandboxException

from tests.e2b.real import RealEdge
from tests.installation import wait_until

pytestmark = pytest.mark.req("T4.83")


def test_what_happens_is_fetched_once_with_what_it_is_about(box: Sandbox) -> None:
    box.files.write("d/old", "1")
    watch = box.files.watch_dir("d", include_entry=True)
    box.files.write("d/old", "2")
    box.files.write("d/new", "3")
    events = watch.get_new_events()
    assert [(one.type, one.name) for one in events] == [
        (FilesystemEventType.WRITE, "old"),
        (FilesystemEventType.CREATE, "new"),
        (FilesystemEventType.CHMOD, "new"),
        (FilesystemEventType.WRITE, "new"),
    ]
    assert events[1].entry is not None
    assert events[1].entry.path == "/home/user/d/new"
    assert watch.get_new_events() == []
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()


def test_a_whole_tree_is_watched_with_what_is_made_in_it(box: Sandbox) -> None:
    box.files.make_dir("d")
    watch = box.files.watch_dir("d", recursive=True)
    box.commands.run("mkdir -p d/a/b && echo x > d/a/b/c && mv d/a d/z && echo y >> d/z/b/c")
    seen: set[tuple[FilesystemEventType, str]] = set()

    def complete() -> bool:
        seen.update((one.type, one.name) for one in watch.get_new_events())
        return {
            (FilesystemEventType.CREATE, "a"),
            (FilesystemEventType.RENAME, "a"),
            (FilesystemEventType.CREATE, "z"),
            (FilesystemEventType.CREATE, "z/b/c"),
        } <= seen

    wait_until(complete, "all of it is told")


def test_only_a_directory_that_is_there_is_watched(box: Sandbox) -> None:
    box.files.write("file", "x")
    with pytest.raises(FileNotFoundException):
        box.files.watch_dir("none")
    with pytest.raises(SandboxException):
        box.files.watch_dir("file")


def test_events_come_as_a_stream_until_it_is_left(real: RealEdge) -> None:
    async def watched() -> None:
        box = await AsyncSandbox.create(timeout=300, **real.params)
        try:
            await box.files.make_dir("d")
            seen: list[FilesystemEvent] = []
            came = asyncio.Event()

            def take(event: FilesystemEvent) -> None:
                seen.append(event)
                came.set()

            handle = await box.files.watch_dir("d", on_event=take, recursive=True)
            await box.files.write("d/sub/one", "1")
            while ("sub/one", FilesystemEventType.WRITE) not in {(one.name, one.type) for one in seen}:
                came.clear()
                await asyncio.wait_for(came.wait(), 30)
            await handle.stop()  # type: ignore[no-untyped-call]
        finally:
            await box.kill(**real.params)

    asyncio.run(watched())
