"""Volumes have a life of their own: shown in boxes of whichever user, read and written at rest, and nothing of them leads out."""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    DiskFull,
    FileMissing,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotFound,
    OutsideWorkspace,
    VolumeBusy,
)
from coldframe.contract.files import ListDirectory, MakeDirectory, ReadFile, RemovePath, SearchFiles, WriteFile
from coldframe.contract.paths import StatPath
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import SandboxSpec
from coldframe.contract.volume import VolumeAttachment
from coldframe.host.machine import Machine
from coldframe.host.marks import KeeperMark
from tests.host.disks import needs_disks, traces, unmount_all
from tests.host.forked import wait_until
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, on_a_machine, run

__all__ = ["needs_disks"]
pytestmark = needs_bubblewrap
AT = "/home/user/volumes/data"


def attachment(volume_id: str, mode: str = "rw", at: str = AT, size_mib: int = 4) -> VolumeAttachment:
    return VolumeAttachment.model_validate(
        {"volume_id": volume_id, "name": "data", "at": at, "mode": mode, "size_mib": size_mib}
    )


def new_volume() -> str:
    return f"vol_{secrets.token_hex(10)}"


async def box_with(machine: Machine, agent: str, *volumes: VolumeAttachment) -> Box:
    name = f"box-{agent}"
    await machine.create(name, SandboxSpec(agent_id=agent), session_id=f"ses-{agent}", volumes=volumes)
    return await machine.box(name)


async def parts(*content: bytes) -> AsyncIterator[bytes]:
    for part in content:
        yield part


@pytest.mark.req("T3.44")
@as_root_and_ordinary
def test_two_boxes_share_a_volume_which_one_writes_and_the_other_only_reads(who: str) -> None:
    async def steps(machine: Machine) -> None:
        volume = new_volume()
        await machine.volumes.create(volume, 4)
        writer = await box_with(machine, "writer", attachment(volume))
        reader = await box_with(machine, "reader", attachment(volume, "ro", "/mnt/data"))
        written = await run(writer, f"echo one > {AT}/a && mkdir {AT}/sub && ln -s /etc/passwd {AT}/link && id -u")
        assert (written.result.exit_code, written.stdout) == (0, "1000\n")
        seen = await run(reader, "cat /mnt/data/a; stat -c %U /mnt/data/a; echo two > /mnt/data/a; rm /mnt/data/a")
        assert seen.stdout == "one\nuser\n"
        assert seen.stderr.count("Read-only file system") == 2
        report = await (await machine.life("box-reader")).report()
        mount = next(one for one in report.mounts if one.target == "/mnt/data")
        assert (mount.source, mount.writable, mount.nosuid, mount.nodev) == ("volume", False, True, True)
        assert next(one for one in report.properties if one.name == "volumes").state == "enforced"
        assert report.boundary_weakened == ()
        report = await (await machine.life("box-writer")).report()
        assert next(one for one in report.limits if one.kind == "volume:data").limit == 4
        with pytest.raises(VolumeBusy) as busy:
            await machine.volumes.remove(volume)
        assert set(busy.value.facts["holders"]) <= {"box-reader", "box-writer"}
        for name in ("box-reader", "box-writer"):
            await machine.end_box(name)
        answer = await machine.volumes.ask(volume, ReadFile(path="a"))
        assert answer.content == b"one\n"
        again = await box_with(machine, "third", attachment(volume))
        assert (await run(again, f"cat {AT}/a && echo three >> {AT}/a && cat {AT}/a")).stdout == "one\none\nthree\n"
        await machine.end_box("box-third")
        await machine.volumes.remove(volume)
        with pytest.raises(NotFound):
            await machine.volumes.ask(volume, ReadFile(path="a"))

    on_a_machine(steps, who=who)


@pytest.mark.req("T3.44")
@as_root_and_ordinary
def test_a_box_whose_keeper_is_gone_writes_no_more_once_the_next_writer_is_there(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(machine: Machine) -> None:
        volume = new_volume()
        await machine.volumes.create(volume, 4)
        await box_with(machine, "reader", attachment(volume, "ro", "/mnt/data"))
        await box_with(machine, "writer", attachment(volume))
        marks, serves = dict(machine._marks.all()), KeeperMark.serves
        with monkeypatch.context() as patch:
            patch.setattr(KeeperMark, "serves", lambda one: one.pid != marks["box-writer"].pid and serves(one))
            again = await box_with(machine, "next", attachment(volume))
        assert not marks["box-writer"].runs()
        assert marks["box-reader"].runs()
        assert (await run(again, f"echo one > {AT}/a")).result.exit_code == 0
        for name in ("box-reader", "box-writer", "box-next"):
            await machine.end_box(name)

    on_a_machine(steps, who=who)


@pytest.mark.req("T3.44")
@as_root_and_ordinary
def test_the_file_tools_of_a_box_work_in_a_volume_and_its_limit_is_its_own(who: str) -> None:
    async def steps(machine: Machine) -> None:
        volume = new_volume()
        await machine.volumes.create(volume, 4)
        box = await box_with(machine, "agent", attachment(volume))
        await box.ask(WriteFile(path="volumes/data/a/b.txt", content=b"needle\n"))
        found = await box.ask(SearchFiles(pattern="needle", path="volumes"))
        assert [one.path for one in found.matches] == ["volumes/data/a/b.txt"]
        listed = await box.ask(ListDirectory(path="volumes/data", recursive=True))
        assert [one.path for one in listed.entries] == ["volumes/data/a", "volumes/data/a/b.txt"]
        done = await run(box, f"head -c 20000000 /dev/zero > {AT}/big; sleep 100")
        assert done.result.limit is not None
        assert (done.result.limit.kind, done.result.limit.limit) == ("disk", 4 << 20)
        full = await run(box, "sh -c 'echo x > more'; wc -c < more; cat volumes/data/a/b.txt; rm volumes/data/big")
        assert full.stdout == "0\nneedle\n"
        assert (await run(box, "echo x > volumes/data/more && cat volumes/data/more")).stdout == "x\n"
        workspace = machine.workspaces.of_agent("agent")
        assert os.listdir(os.path.join(workspace, "volumes", "data")) == []

    on_a_machine(steps, who=who)


@pytest.mark.req("T3.44")
@as_root_and_ordinary
def test_a_place_that_is_a_link_or_holds_files_is_refused_and_nothing_is_left(who: str) -> None:
    async def steps(machine: Machine) -> None:
        volume = new_volume()
        await machine.volumes.create(volume, 4)
        box = await box_with(machine, "agent")
        assert (
            await run(box, "ln -s /etc volumes; mkdir -p full; echo x > full/x; echo y > file; ln -s full l")
        ).result
        await machine.end_box("box-agent")
        for number, at in enumerate(
            (AT, "/home/user/full", "/home/user/file", "/home/user/l/data", "/home/user/full/x/y")
        ):
            with pytest.raises(Conflict) as refused:
                spec, given = SandboxSpec(agent_id="agent"), [attachment(volume, at=at)]
                await machine.create(f"box-{number}", spec, session_id="ses", volumes=given)
            assert "data" in refused.value.message
            assert await machine.boxes() == []

    on_a_machine(steps, who=who)


@pytest.mark.req("T3.44")
@as_root_and_ordinary
def test_a_neighbour_who_takes_its_place_away_brings_the_wall_down_and_no_file_elsewhere(who: str) -> None:
    async def steps(machine: Machine) -> None:
        volume = new_volume()
        await machine.volumes.create(volume, 4)
        box = await box_with(machine, "agent", attachment(volume))
        await machine.create("box-beside", SandboxSpec(agent_id="agent"), session_id="ses-beside")
        beside = await machine.box("box-beside")
        taken = await run(beside, "rmdir volumes/data && mkdir volumes/data && ls -A volumes/data")
        assert (taken.result.exit_code, taken.stdout) == (0, "")
        report = await (await machine.life("box-agent")).report()
        wall = next(one for one in report.properties if one.name == "volumes")
        assert (wall.state, wall.required) == ("absent", True)
        assert (await run(box, f"ls -A {AT}")).stdout == ""
        assert (await machine.volumes.usage(volume, 4)).files == 0

    on_a_machine(steps, who=who)


@pytest.mark.req("T3.44")
@as_root_and_ordinary
def test_a_volume_at_rest_is_written_whole_and_no_link_in_it_leads_out(who: str) -> None:
    async def steps(machine: Machine) -> None:
        volume, volumes = new_volume(), machine.volumes
        await volumes.create(volume, 1)
        written = await volumes.write(volume, WriteFile(path="a/b"), parts(b"one", b"two"), size_mib=1)
        assert (written.bytes_written, written.created) == (6, True)
        with pytest.raises(DiskFull):
            await volumes.write(volume, WriteFile(path="a/b"), parts(b"x" * (1 << 20)), size_mib=1)

        async def broken() -> AsyncIterator[bytes]:
            yield b"half"
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await volumes.write(volume, WriteFile(path="a/b"), broken(), size_mib=1)
        assert (await volumes.ask(volume, ReadFile(path="a/b"))).content == b"onetwo"
        box = await box_with(machine, "agent", attachment(volume))
        outside = Path(machine.workspaces.of_agent("agent"), "skills")
        made = await run(
            box, f"ln -s {outside} {AT}/out; ln -s /etc/passwd {AT}/passwd; ln -s .. {AT}/up; chmod 0 {AT}"
        )
        assert made.result.exit_code == 0
        await machine.end_box("box-agent")
        for path in ("passwd", "up/x", "out/x", "../x", "/etc/passwd"):
            with pytest.raises(OutsideWorkspace):
                await volumes.ask(volume, ReadFile(path=path))
        entry = await volumes.ask(volume, StatPath(path="passwd"))
        assert (entry.kind, entry.target, entry.leads_to) == ("symlink", "/etc/passwd", None)
        assert (await volumes.ask(volume, StatPath(path="a/b"))).size == 6
        for path in ("up/x", "out/x", "../x"):
            with pytest.raises(OutsideWorkspace):
                await volumes.ask(volume, StatPath(path=path))
        for path in ("up/x", "out/x", "../x"):
            with pytest.raises((OutsideWorkspace, FileMissing)):
                await volumes.write(volume, WriteFile(path=path), parts(b"x"), size_mib=1)
        with pytest.raises(OutsideWorkspace):
            await volumes.remove_path(volume, RemovePath(path="out/x", recursive=True))
        await volumes.remove_path(volume, RemovePath(path="out", recursive=True))
        assert outside.is_dir()
        with pytest.raises(IsDirectory):
            await volumes.remove_path(volume, RemovePath(path="a"))
        with pytest.raises(InvalidArgument):
            await volumes.remove_path(volume, RemovePath(path="."))
        await volumes.remove_path(volume, RemovePath(path="a", recursive=True))
        left = await volumes.ask(volume, ListDirectory())
        assert [one.path for one in left.entries] == ["passwd", "up"]
        usage = await volumes.usage(volume, 1)
        assert (usage.files, usage.complete, usage.hard) == (2, True, False)
        await volumes.make_directory(volume, MakeDirectory(path="made/deep"), size_mib=1)
        await volumes.make_directory(volume, MakeDirectory(path="made/deep"), size_mib=1)
        for path in ("up/x", "../x", "passwd/x"):
            with pytest.raises((OutsideWorkspace, NotDirectory)):
                await volumes.make_directory(volume, MakeDirectory(path=path), size_mib=1)
        left = await volumes.ask(volume, ListDirectory(recursive=True))
        assert [one.path for one in left.entries] == ["made", "made/deep", "passwd", "up"]
        with pytest.raises(DiskFull):
            await volumes.make_directory(volume, MakeDirectory(path="x/" * 1100 + "x"), size_mib=1)

    on_a_machine(steps, who=who)


@pytest.mark.req("T3.44")
@pytest.mark.usefixtures("needs_disks")
def test_as_a_disk_of_its_own_the_kernel_keeps_its_limit_in_bytes_and_files() -> None:
    folder = tempfile.mkdtemp(prefix="cf-disks-", dir="/tmp")
    os.chmod(folder, 0o711)

    async def steps() -> None:
        machine, volume = Machine(folder, embedded=True, own_disks=True), new_volume()
        try:
            await machine.volumes.create(volume, 16)
            box = await box_with(machine, "agent", attachment(volume, size_mib=16))
            report = await (await machine.life("box-agent")).report()
            limit = next(one for one in report.limits if one.kind == "volume:data")
            assert (limit.strength, limit.supported) == ("hard", True)
            full = await run(box, f"head -c 20000000 /dev/zero > {AT}/big; rm {AT}/big; echo ok > {AT}/a; cat {AT}/a")
            assert "No space left on device" in full.stderr
            assert full.stdout == "ok\n"
            await machine.end_box("box-agent")
            usage = await machine.volumes.usage(volume, 16)
            assert usage.hard
            assert (await machine.volumes.ask(volume, ReadFile(path="a"))).content == b"ok\n"
            await machine.volumes.remove(volume)
            await machine.delete_workspace("agent")
        finally:
            await machine.close()

    try:
        asyncio.run(steps())
        wait_until(lambda: not traces(folder))
    finally:
        unmount_all(folder)
        shutil.rmtree(folder)


@pytest.mark.req("T3.44")
def test_what_was_half_made_or_removed_goes_and_a_whole_volume_stays() -> None:
    async def steps(machine: Machine) -> None:
        volume = new_volume()
        await machine.volumes.create(volume, 4)
        await machine.volumes.create(volume, 4)
        folder = Path(machine.workspaces.of_agent("x")).parents[1] / "volumes"
        for name in (f"{new_volume()}.new-00", f"{new_volume()}.gone-00"):
            (folder / name / "deep").mkdir(parents=True)
        removed = await machine.sweep(keep_boxes=set(), keep_sessions=set())
        assert len([one for one in removed if one.startswith("volumes/")]) == 2
        assert os.listdir(folder) == [volume]
        with pytest.raises(ColdframeError):
            await machine.volumes.create("../evil", 4)
        await asyncio.gather(machine.volumes.remove(volume), machine.volumes.remove(volume))
        assert os.listdir(folder) == []

    on_a_machine(steps, who="root" if os.geteuid() == 0 else "ordinary")
