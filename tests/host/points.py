"""Points of workspaces, as tests of snapshots have them, and what has to be gone after each."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from coldframe.contract.files import ListDirectory, ReadFile
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.snapshot import Change, SnapshotContents, SnapshotPoint, SnapshotWish, WorkspacePoint
from coldframe.host.machine import Machine

HOME = WorkspacePoint(agent_id="agent")
FORK = WorkspacePoint(agent_id="fork")
PLAIN = SnapshotWish()
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def nothing_stays_mounted() -> Iterator[None]:
    def ours() -> list[str]:
        return [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if "/cf-machine-" in line or "/cf-daemon-" in line
        ]

    before = ours()
    yield
    assert ours() == before


def at(snapshot_id: str) -> SnapshotPoint:
    return SnapshotPoint(snapshot_id=snapshot_id)


async def content(machine: Machine, point: WorkspacePoint | SnapshotPoint) -> dict[str, str]:
    """Every file of a point but the history, as it is read at rest."""
    listed = await machine.snapshots.ask(point, ListDirectory(recursive=True))
    found = {}
    for entry in listed.entries:
        if entry.kind == "file" and entry.path != ".exec_history":
            found[entry.path] = (await machine.snapshots.ask(point, ReadFile(path=entry.path))).content.decode()
    return found


async def exported(machine: Machine, snapshot_id: str) -> list[bytes | SnapshotContents]:
    return [part async for part in machine.snapshots.export(at(snapshot_id))]


async def forked(machine: Machine, snapshot_id: str, agent: str = "fork") -> Box:
    spec = SandboxSpec(agent_id=agent, snapshot=snapshot_id, on_missing="degrade")
    await machine.create(f"box-{agent}", spec, session_id=f"session-{agent}")
    return await machine.box(f"box-{agent}")


def inside(changes: tuple[Change, ...]) -> dict[str, str]:
    return {one.path: one.change for one in changes if one.change != "metadata" and one.kind == "file"}


async def streamed(whole: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(whole), 100_000):
        yield whole[start : start + 100_000]


async def broken(part: bytes) -> AsyncIterator[bytes]:
    yield part
    raise RuntimeError("whoever sent it has left")


async def is_there(path: str) -> bool:
    return os.path.exists(path)


async def is_stack(machine: Machine) -> bool:
    return machine.workspaces.stacks.exists("workspace/agent") and machine.workspaces.stacks.mounted("workspace/agent")
