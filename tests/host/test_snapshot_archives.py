"""An archive comes back whole or not at all, also through the daemon, and a refusal is told where sending broke first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    FileMissing,
    HostUnreachable,
    LimitReached,
    NotFound,
    SnapshotCorrupt,
)
from coldframe.contract.files import ReadFile
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import SnapshotContents, SnapshotWish
from coldframe.host.link import LinkLost
from coldframe.host.machine import Machine
from coldframe.host.remote import RemoteHost
from coldframe.host.remote_snapshots import RemoteSnapshots
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run
from tests.host.points import (
    FORK,
    HOME,
    PLAIN,
    at,
    broken,
    forked,
    inside,
    nothing_stays_mounted,
    streamed,
)
from tests.host.test_daemon import with_a_daemon

pytestmark = [needs_bubblewrap, pytest.mark.usefixtures(nothing_stays_mounted.__name__)]


@as_root_and_ordinary
def test_an_archive_comes_back_the_same_and_half_a_one_is_nothing(who: str) -> None:
    async def steps(machine: Machine) -> None:
        snapshots = machine.snapshots
        box = await new_box(machine)
        await run(
            box,
            "mkdir folder; echo one > folder/file; ln folder/file second; ln -s /etc out; head -c 3M /dev/zero | tr '\\0' x > big",
        )
        await machine.end_box("box")
        first = await snapshots.take(HOME, SnapshotWish(label=Label.CONFIDENTIAL))
        parts = [part async for part in snapshots.export(at(first.snapshot_id))]
        contents = parts.pop()
        assert isinstance(contents, SnapshotContents) and len(parts) > 3
        whole = b"".join(part for part in parts if isinstance(part, bytes))
        back, again = await snapshots.take_in(
            streamed(whole), PLAIN, expected=contents.sha256, most_bytes=1 << 24, most_files=100
        )
        assert again == contents
        assert (back.label, back.reason, back.workspace) == (Label.CONFIDENTIAL, "imported", None)
        box = await forked(machine, back.snapshot_id)
        done = await run(
            box,
            "stat -c %h second; cat folder/file; echo more >> folder/file; cat second; wc -c < big; cat out/hostname",
        )
        assert done.stdout.split()[:3] == ["2", "one", "one"]
        of_workspace = [part async for part in snapshots.export(FORK)]
        assert isinstance(of_workspace[-1], SnapshotContents) and of_workspace[-1] != contents
        left, _ = await snapshots.take_in(
            streamed(b"".join(one for one in of_workspace if isinstance(one, bytes))),
            PLAIN,
            most_bytes=1 << 24,
            most_files=100,
        )
        assert left.label is Label.RESTRICTED, "nobody said what a workspace holds"

        before = {one.snapshot_id for one in await snapshots.all()}
        for cut in (0, 1000, len(whole) // 2, len(whole) - 1024):
            with pytest.raises(SnapshotCorrupt):
                await snapshots.take_in(streamed(whole[:cut]), PLAIN, most_bytes=1 << 24, most_files=100)
        with pytest.raises(LimitReached):
            await snapshots.take_in(streamed(whole), PLAIN, most_bytes=1 << 20, most_files=100)
        with pytest.raises(SnapshotCorrupt):
            await snapshots.take_in(streamed(whole), PLAIN, expected="0" * 64, most_bytes=1 << 24, most_files=100)
        with pytest.raises(RuntimeError, match="left"):
            await snapshots.take_in(broken(whole[:5000]), PLAIN, most_bytes=1 << 24, most_files=100)
        async with aclosing(snapshots.export(at(first.snapshot_id))) as leaving:
            assert await anext(leaving)
        assert {one.snapshot_id for one in await snapshots.all()} == before

    on_a_machine(steps, who=who)


def test_the_server_has_all_of_it_through_the_daemon() -> None:
    async def steps(folder: str) -> None:
        host = RemoteHost(folder)
        spec = SandboxSpec(agent_id="agent", on_missing="degrade")
        await host.create("box", spec, session_id="session")
        box = await host.box("box")
        await run(box, "echo one > file; head -c 3M /dev/zero | tr '\\0' x > big")
        await host.end("box")
        first = await host.snapshots.take(HOME, SnapshotWish(name="first", label=Label.INTERNAL))
        assert [one.snapshot_id for one in await host.snapshots.all()] == [first.snapshot_id]
        await host.append_history("agent", None, b"line\n")
        await host.create("again", spec, session_id="session")
        await run(await host.box("again"), "echo two > file; rm big")
        await host.end("again")
        changes = (await host.snapshots.changes(at(first.snapshot_id), HOME, limit=10)).changes
        assert inside(changes) == {"file": "changed", "big": "deleted"}
        assert (await host.snapshots.ask(HOME, ReadFile(path="file"))).content == b"two\n"
        with pytest.raises(FileMissing):
            await host.snapshots.ask(HOME, ReadFile(path="big"))
        parts = [part async for part in host.snapshots.export(at(first.snapshot_id))]
        contents = parts.pop()
        assert isinstance(contents, SnapshotContents)
        whole = b"".join(part for part in parts if isinstance(part, bytes))
        facts, again = await host.snapshots.take_in(
            streamed(whole), PLAIN, expected=contents.sha256, most_bytes=1 << 24, most_files=100
        )
        assert (again, facts.label) == (contents, Label.INTERNAL)
        before = len(await host.snapshots.all())
        with pytest.raises(SnapshotCorrupt):
            await host.snapshots.take_in(streamed(whole[: len(whole) // 2]), PLAIN, most_bytes=1 << 24, most_files=100)
        with pytest.raises(LimitReached):
            await host.snapshots.take_in(streamed(whole), PLAIN, most_bytes=1 << 20, most_files=100)
        with pytest.raises(RuntimeError, match="left"):
            await host.snapshots.take_in(broken(whole[:300_000]), PLAIN, most_bytes=1 << 24, most_files=100)
        with pytest.raises(NotFound):
            [part async for part in host.snapshots.export(at("0" * 16))]
        async with aclosing(host.snapshots.export(at(first.snapshot_id))) as leaving:
            assert await anext(leaving)
        assert len(await host.snapshots.all()) == before
        kept = await host.snapshots.reset(HOME, first.snapshot_id)
        assert kept is not None and await host.snapshots.reset(HOME, None, discard=True) is None
        await host.snapshots.remove(kept.snapshot_id)
        await host.delete_workspace("agent")
        await host.close()

    with_a_daemon(steps)


def test_a_refusal_is_told_also_where_sending_broke_first() -> None:
    class Connection:
        def __init__(self, told: ColdframeError) -> None:
            self._told = told
            self._sent = 0

        async def send(self, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
            self._sent += 1
            if self._sent > 1:
                raise LinkLost("closed by the far side")

        async def receive(self) -> tuple[dict[str, Any], bytes]:
            for _ in range(3):
                await asyncio.sleep(0)
            raise self._told

    class Link:
        def __init__(self, told: ColdframeError) -> None:
            self._told = told

        @asynccontextmanager
        async def connection(self) -> AsyncIterator[Connection]:
            yield Connection(self._told)

    async def steps() -> None:
        for told, expected in ((SnapshotCorrupt("cut off"), SnapshotCorrupt), (LinkLost("ended"), HostUnreachable)):
            remote = RemoteSnapshots(cast("Any", Link(told)))
            with pytest.raises(expected):
                await remote.take_in(streamed(bytes(300_000)), PLAIN, most_bytes=1, most_files=1)

    asyncio.run(steps())
