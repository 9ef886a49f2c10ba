"""A workspace with a disk of its own: hard in bytes and files, at its documented place, and mended after any kill."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError, IsolationUnavailable, WrongState
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.host import confine, disk_images, loop_mounts, processes
from coldframe.host.machine import Machine
from coldframe.host.stacks import HISTORY
from coldframe.host.workspaces import PARTS, Workspaces
from tests.host.disks import needs_disks, traces, unmount_all
from tests.host.forked import wait_until
from tests.host.machines import needs_bubblewrap, run, until
from tests.host.test_pool import have_boxes_wait, waiting

__all__ = ["needs_disks"]
pytestmark = pytest.mark.usefixtures("needs_disks")
MIB = 1 << 20
AGENT = "workspace/a"


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory. Afterwards nothing on the machine may have to do with it."""
    folder = tempfile.mkdtemp(prefix="cf-disks-", dir="/tmp")
    os.chmod(folder, 0o711)
    for name in ("workspace", "background"):
        os.mkdir(os.path.join(folder, name), 0o711)
    try:
        yield Path(folder)
        remove_all(Workspaces(folder))
        wait_until(lambda: not traces(folder))
    finally:
        unmount_all(folder)
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets a mount namespace of its own meanwhile, as somebody else's sandbox may, has a copy of our mounts."""
    monkeypatch.setattr(disk_images, "LET_GO_S", 40.0)


@pytest.fixture
def workspaces(data: Path) -> Workspaces:
    return Workspaces(str(data), own_disks=True)


def remove_all(workspaces: Workspaces) -> None:
    for name in workspaces._images.names():
        if name.startswith("workspace/") and not any(mark in name for mark in (".new-", ".gone-")):
            workspaces.remove(workspaces.of_agent(name.removeprefix("workspace/")))
    for name in workspaces.strays(keep_sessions=set()):
        workspaces.remove_stray(name)


def started_again(data: Path) -> Workspaces:
    """What a new daemon does first."""
    again = Workspaces(str(data), own_disks=True)
    for name in again.strays(keep_sessions=set()):
        again.remove_stray(name)
    again.mount_all()
    return again


def capacity(workspaces: Workspaces) -> int:
    return workspaces._images.room(AGENT).capacity_bytes


@pytest.mark.parametrize("limit_mib", [16, 64, 127, 128, 500, 5120, 100_000])
@pytest.mark.parametrize("grown", [False, True], ids=["made", "grown"])
def test_a_disk_never_holds_more_than_its_limit_and_hardly_less(
    workspaces: Workspaces, limit_mib: int, grown: bool
) -> None:
    path = workspaces.of_agent("a")
    if grown:
        workspaces.make(path)
    workspaces.make(path, disk_mib=limit_mib)
    assert capacity(workspaces) <= limit_mib * MIB
    assert capacity(workspaces) >= limit_mib * MIB * 0.99
    groups = limit_mib // 128
    assert workspaces._images.room(AGENT).files >= max(1, groups) * disk_images.FILES_PER_GROUP
    assert os.stat(workspaces._images.image_of(AGENT)).st_blocks * 512 < 8 * MIB + limit_mib * MIB // 5000


def test_it_stands_at_the_place_of_a_directory_and_looks_like_one(data: Path, workspaces: Workspaces) -> None:
    path = Path(workspaces.of_agent("a"))
    workspaces.make(str(path))
    assert sorted(os.listdir(path)) == sorted([*PARTS, HISTORY])
    top = path.stat()
    assert top.st_mode & 0o777 == 0o700
    assert {(path / part).stat().st_uid for part in PARTS} == {top.st_uid}
    assert top.st_uid != 0
    assert (path / HISTORY).stat().st_uid == 0
    (mount,) = [one for one in traces(str(data)) if " - ext4 " in one]
    assert {"nosuid", "nodev"} <= set(mount.split()[5].split(","))
    image = Path(workspaces._images.image_of(AGENT))
    assert image.stat().st_mode & 0o777 == 0o600
    assert (data / "images").stat().st_mode & 0o777 == 0o700
    workspaces.make(str(path), disk_mib=64)
    assert sorted(os.listdir(path)) == sorted([*PARTS, HISTORY])  # no lost+found of the check


def test_the_history_of_a_full_disk_goes_on(workspaces: Workspaces) -> None:
    path = Path(workspaces.of_agent("a"))
    workspaces.make(str(path), disk_mib=16)
    user = path.stat().st_uid
    filling = subprocess.run(
        ["dd", "if=/dev/zero", f"of={path}/scratch/big", "bs=64k"],
        user=user,
        group=user,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    assert b"No space left on device" in filling.stderr
    workspaces.append_history("a", None, b"line\n" * 2000)
    assert (path / HISTORY).read_bytes() == b"line\n" * 2000


def test_what_is_deleted_goes_back_to_the_host(workspaces: Workspaces) -> None:
    path = Path(workspaces.of_agent("a"))
    workspaces.make(str(path), disk_mib=64)
    image = Path(workspaces._images.image_of(AGENT))

    def settle() -> int:
        os.sync()
        return image.stat().st_blocks * 512

    (path / "scratch" / "big").write_bytes(b"x" * (40 * MIB))
    assert settle() > 40 * MIB
    (path / "scratch" / "big").unlink()
    wait_until(lambda: settle() < 20 * MIB)


def test_a_restart_of_the_machine_mounts_it_again_with_all_that_is_in_it(data: Path, workspaces: Workspaces) -> None:
    paths = [Path(workspaces.of_agent(name)) for name in ("a", "b")]
    for path in paths:
        workspaces.make(str(path))
        (path / "scratch" / "kept").write_text(path.name)
    users = [path.stat().st_uid for path in paths]
    for path in paths:
        loop_mounts.unmount(str(path))
    again = Workspaces(str(data), own_disks=True)
    again.make(again.of_agent("c"))
    assert os.stat(again.of_agent("c")).st_uid not in users  # though nothing is mounted that would show them
    again.append_history("a", None, b"one\n")
    assert (paths[0] / HISTORY).read_bytes() == b"one\n"
    assert not paths[1].is_mount()
    started_again(data)
    assert [(path / "scratch" / "kept").read_text() for path in paths] == ["a", "b"]
    assert [path.stat().st_uid for path in paths] == users


def test_a_daemon_that_starts_again_finds_the_mounts_and_makes_no_second_one(
    data: Path, workspaces: Workspaces
) -> None:
    workspaces.make(workspaces.of_agent("a"))
    before = traces(str(data))
    again = started_again(data)
    again.make(again.of_agent("a"))
    assert traces(str(data)) == before


def test_a_data_directory_behind_a_link_has_the_same_disks(data: Path, workspaces: Workspaces) -> None:
    link = data / "link"
    link.symlink_to(data)
    linked = Workspaces(str(link), own_disks=True)
    linked.make(linked.of_agent("a"))
    linked.make(linked.of_agent("a"), disk_mib=64)
    workspaces.make(workspaces.of_agent("a"))
    linked.remove(linked.of_agent("a"))
    assert not os.path.exists(workspaces.of_agent("a"))
    assert workspaces._images.names() == []


def test_one_image_never_gets_two_loop_devices(data: Path, workspaces: Workspaces) -> None:
    path = workspaces.of_agent("a")
    workspaces.make(path)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        loop_mounts.unmount(path, lazy=True)  # as when a box that lives has it, and nobody else
        assert loop_mounts.holds(workspaces._images.image_of(AGENT))
        Path(path).rmdir()
        workspaces.make(path)
        assert os.fstat(held).st_dev == os.stat(path).st_dev
    finally:
        os.close(held)
    assert len([one for one in traces(str(data)) if one.startswith("loop")]) == 1


def test_it_is_removed_also_while_somebody_stands_in_it(data: Path, workspaces: Workspaces) -> None:
    path = workspaces.of_agent("a")
    workspaces.make(path)
    Path(path, "scratch", "old").touch()
    standing = subprocess.Popen(["sleep", "1000"], cwd=path)
    try:
        workspaces.remove(path)
        assert workspaces._images.names() == []
        assert not os.path.exists(path)
        workspaces.make(path)
        assert os.listdir(Path(path, "scratch")) == []
    finally:
        standing.kill()
        standing.wait()


def test_a_disk_that_somebody_uses_does_not_grow_and_stays_where_it_is(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workspaces.of_agent("a")
    workspaces.make(path, disk_mib=16)
    with open(os.path.join(path, "file"), "w"):
        with monkeypatch.context() as patch, pytest.raises(WrongState, match="somebody uses it"):
            patch.setattr(disk_images, "LET_GO_S", 0.1)
            workspaces.make(path, disk_mib=64)
        assert os.path.ismount(path)
    workspaces.make(path, disk_mib=64)
    assert capacity(workspaces) > 60 * MIB
    workspaces.make(path, disk_mib=16)
    assert capacity(workspaces) > 60 * MIB


def test_a_directory_is_refused_and_kept_where_disks_are_asked_for(data: Path, workspaces: Workspaces) -> None:
    before = Workspaces(str(data))
    path = Path(before.of_agent("a"))
    before.make(str(path))
    (path / "scratch" / "kept").touch()
    with pytest.raises(IsolationUnavailable) as refused:
        workspaces.make(str(path), disk_mib=64)
    assert refused.value.facts["property"] == "workspace_disk"
    assert "plain directory" in str(refused.value.facts["reason"])
    assert str(path) in str(refused.value.facts["remedy"])
    started_again(data)
    assert (path / "scratch" / "kept").exists()
    before.remove(str(path))


def test_a_disk_stays_one_when_directories_are_asked_for_again(data: Path, workspaces: Workspaces) -> None:
    path = Path(workspaces.of_agent("a"))
    workspaces.make(str(path))
    (path / "scratch" / "kept").touch()
    loop_mounts.unmount(str(path))
    later = Workspaces(str(data))
    later.make(str(path))
    assert (path / "scratch" / "kept").exists()
    assert path.is_mount()


def test_mounts_and_files_of_others_are_no_strays(data: Path, workspaces: Workspaces) -> None:
    foreign = data / "workspace" / "foreign"
    foreign.mkdir()
    confine.mount("tmpfs", str(foreign), "tmpfs", 0, "size=64k")
    try:
        (foreign / "kept").touch()
        workspaces.make(workspaces.of_agent("a"))
        assert workspaces.strays(keep_sessions=set()) == []
        started_again(data)
        assert (foreign / "kept").exists()
    finally:
        loop_mounts.unmount(str(foreign))


def test_a_place_that_is_taken_is_not_covered(data: Path, workspaces: Workspaces) -> None:
    path = Path(workspaces.of_agent("a"))
    workspaces.make(str(path))
    loop_mounts.unmount(str(path))
    (path / "precious").touch()
    with pytest.raises(IsolationUnavailable, match="its place is taken"):
        workspaces.make(str(path))
    started_again(data)  # logged, and no reason not to start
    assert (path / "precious").exists()
    (path / "precious").unlink()


def test_a_damaged_image_is_refused_and_kept(data: Path, workspaces: Workspaces) -> None:
    path = workspaces.of_agent("a")
    workspaces.make(path)
    loop_mounts.unmount(path)
    image = Path(workspaces._images.image_of(AGENT))
    with image.open("r+b") as file:
        file.write(b"\xff" * 40 * MIB)
    with pytest.raises(IsolationUnavailable) as refused:
        workspaces.make(path)
    assert refused.value.facts["property"] == "workspace_disk"
    assert str(image) in str(refused.value.facts["remedy"])
    assert image.exists()
    assert not os.path.ismount(path)


def test_a_disk_that_turned_read_only_is_checked_and_mounted_again(workspaces: Workspaces) -> None:
    path = workspaces.of_agent("a")
    workspaces.make(path)
    confine.mount(None, path, None, confine.MS_REMOUNT | confine.MS_RDONLY | confine.MS_NOSUID | confine.MS_NODEV)
    with pytest.raises(OSError, match="Read-only"):
        Path(path, "scratch", "file").touch()
    workspaces.make(path)
    Path(path, "scratch", "file").touch()


def test_a_program_that_changes_the_image_and_outlives_its_daemon_is_waited_for(
    data: Path, workspaces: Workspaces
) -> None:
    path = workspaces.of_agent("a")
    workspaces.make(path)
    loop_mounts.unmount(path)
    with open(workspaces._images.image_of(AGENT), "rb") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)  # as its program does
        making = pool.submit(workspaces.make, path)
        inode = f":{os.fstat(held.fileno()).st_ino} "
        wait_until(lambda: any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()))
        assert not making.done()
        assert not os.path.ismount(path)
        fcntl.flock(held, fcntl.LOCK_UN)
        making.result(timeout=30)
    assert os.path.ismount(path)


@pytest.mark.parametrize("lacking", ["programs", "loop devices"])
def test_what_the_machine_lacks_is_named_and_no_directory_is_made_instead(
    data: Path, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "programs":
        monkeypatch.setattr(disk_images, "_PATH", "/nonexistent")
    else:
        monkeypatch.setattr(loop_mounts, "CONTROL", "/nonexistent")
    with pytest.raises(IsolationUnavailable) as refused:
        workspaces.make(workspaces.of_agent("a"))
    assert refused.value.facts["property"] == "workspace_disk"
    assert refused.value.facts["reason"]
    assert refused.value.facts["remedy"]
    assert os.listdir(data / "workspace") == []


# -- killed at any moment --------------------------------------------------------------------------

CHANGES = {"subprocess.Popen", "fcntl.flock", "fcntl.ioctl"} | {
    f"os.{name}" for name in ("rename", "mkdir", "rmdir", "remove", "truncate", "chown", "chmod")
}
MOUNTING = ("attach", "mount_ext4", "put_mount", "unmount")


def killed_at(data: Path, act: Callable[[Workspaces], None], step: int) -> bool:
    """Whether the act came to its end before that step: each change of a file, device or mount is one."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        left = step

        def count(event: str, arguments: tuple[object, ...] = ()) -> None:
            nonlocal left
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
            if event in CHANGES or event in MOUNTING or writes:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        for name in MOUNTING:  # the kernel's own calls tell no event
            setattr(loop_mounts, name, _counted(name, getattr(loop_mounts, name), count))
        sys.addaudithook(count)
        act(Workspaces(str(data), own_disks=True))
        os._exit(0)
    finally:
        os._exit(1)


def _counted(name: str, function: Callable[..., object], count: Callable[[str], None]) -> Callable[..., object]:
    def counted(*arguments: object, **options: object) -> object:
        count(name)
        answer = function(*arguments, **options)
        count(name)
        return answer

    return counted


ACTS: dict[str, Callable[[Workspaces], None]] = {
    "make": lambda workspaces: workspaces.make(workspaces.of_agent("a"), disk_mib=16),
    "grow": lambda workspaces: workspaces.make(workspaces.of_agent("a"), disk_mib=64),
    "remove": lambda workspaces: workspaces.remove(workspaces.of_agent("a")),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("act", ACTS)
def test_a_kill_at_any_step_leaves_nothing_that_the_next_start_does_not_mend(
    data: Path, workspaces: Workspaces, act: str
) -> None:
    path = Path(workspaces.of_agent("a"))
    done, step = False, 0
    while not done:
        step += 1
        if act != "make":
            workspaces.make(str(path), disk_mib=16)
            (path / "scratch" / "kept").write_text("kept")
        done = killed_at(data, ACTS[act], step)
        again = started_again(data)
        assert not any(mark in name for name in again._images.names() for mark in (".new-", ".gone-")), step
        if act == "grow":
            assert (path / "scratch" / "kept").read_text() == "kept", step
        again.make(str(path), disk_mib=64)
        kept = ["kept"] if act == "grow" or (path / "scratch" / "kept").exists() else []
        assert sorted(os.listdir(path)) == sorted([*PARTS, HISTORY]), step
        assert os.listdir(path / "scratch") == kept, step
        assert 60 * MIB < capacity(again) <= 64 * MIB, step
        assert len([one for one in traces(str(data)) if one.startswith("loop")]) == 1, step
        again.remove(str(path))
        assert os.listdir(data / "workspace") == again._images.names() == [], step
    assert step > 5


# -- with boxes ------------------------------------------------------------------------------------


def with_boxes(data: Path, steps: Callable[[Machine], object], *, agents: tuple[str, ...] = ("a", "b")) -> None:
    async def whole() -> None:
        machine = Machine(str(data), embedded=True, own_disks=True)
        try:
            await steps(machine)  # type: ignore[misc]
        finally:
            await machine.sweep(keep_boxes=set(), keep_sessions=set())
            for agent in agents:
                await machine.delete_workspace(agent)
            await machine.close()

    asyncio.run(whole())


def spec(agent: str | None, disk_mib: int) -> SandboxSpec:
    return SandboxSpec(agent_id=agent, background=agent is None, limits=Limits(disk_mib=disk_mib))


@needs_bubblewrap
def test_a_disk_comes_into_a_box_that_stands_ready(data: Path) -> None:
    async def steps(machine: Machine) -> None:
        have_boxes_wait(machine)
        await machine.prepare()
        for name in ("one", "two"):  # the second for what stands ready then
            await machine.create(name, spec("a", 64), session_id=name)
        ready = {box.pid for box in await waiting(machine, 2)}
        measured = await machine.create("three", spec("a", 64), session_id="three")
        mark = machine._marks.read("three")
        assert mark is not None
        assert mark.pid in ready
        assert {one.kind: one.strength for one in measured.limits}["disk"] == "hard"
        assert (await run(await machine.box("three"), "echo x > file; cat file")).stdout == "x\n"

    with_boxes(data, steps)


@needs_bubblewrap
def test_a_box_sees_its_own_disk_and_no_other(data: Path) -> None:
    async def steps(machine: Machine) -> None:
        reports = {}
        for agent in ("a", "b"):
            reports[agent] = await machine.create(agent, spec(agent, 64), session_id=agent)
        for agent in ("a", "b"):
            seen = (await run(await machine.box(agent), "cat /proc/self/mountinfo")).stdout
            disks = [line.split()[4] for line in seen.splitlines() if " - ext4 /dev/loop" in line]
            assert sorted(disks) == ["/home/user", "/home/user/.exec_history"]
            disk = next(one for one in reports[agent].limits if one.kind == "disk")
            assert disk.strength == "hard"
            assert f"it holds {machine.workspaces._images.room(f'workspace/{agent}').capacity_bytes} bytes" in str(
                disk.bound
            )
        loops = {os.stat(machine.workspaces.of_agent(agent)).st_dev for agent in ("a", "b")}
        assert len(loops) == 2

    with_boxes(data, steps)


@needs_bubblewrap
def test_while_a_box_lives_its_disk_does_not_grow_and_a_larger_one_says_what_holds(data: Path) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create("small", spec("a", 64), session_id="s")
        box = await machine.box("small")
        await run(box, "echo kept > kept")
        with pytest.raises(WrongState):
            await machine.create("large", spec("a", 128), session_id="s")
        assert (await run(box, "cat kept; echo more > more")).stdout == "kept\n"
        assert Path(machine.workspaces.of_agent("a"), "more").read_text() == "more\n"
        await machine.end_box("small")
        await machine.create("large", spec("a", 128), session_id="s")
        report = await machine.create("small-again", spec("a", 64), session_id="s")
        disk = next(one for one in report.limits if one.kind == "disk")
        assert disk.strength == "best_effort"
        assert "larger one, of 12" in str(disk.reason)
        over = await run(await machine.box("small-again"), "for n in 1 2 3 4 5; do head -c 20M /dev/zero > f$n; done")
        assert over.result.limit is not None
        assert over.result.limit.kind == "disk"

    with_boxes(data, steps)


@needs_bubblewrap
def test_a_temporary_workspace_has_a_disk_that_goes_with_its_box(data: Path) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create("box", spec(None, 64), session_id="session")
        place = data / "background" / "session"
        assert place.is_mount()
        assert os.listdir(place) == [HISTORY]
        await machine.end_box("box")
        assert not place.exists()
        assert machine.workspaces._images.names() == []
        with pytest.raises(ColdframeError):
            await machine.create("box", spec("a", 64), session_id="../..")  # the box is there already

    with_boxes(data, steps)


FREEZE, THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW: who writes to that file system waits in the kernel, and no signal wakes it."""


def tell(place: str, request: int) -> None:
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(directory, request, 0)
    finally:
        os.close(directory)


@needs_bubblewrap
@pytest.mark.req("T4.62")
def test_a_full_disk_holds_up_no_end_and_one_that_hangs_no_other_and_whoever_asks_is_told(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert processes.GONE_WITHIN_S < 5
    monkeypatch.setattr(processes, "GONE_WITHIN_S", 0.3)

    async def steps(machine: Machine) -> None:
        place = machine.workspaces.of_agent("a")
        await machine.create("full", spec("a", 16), session_id="s")
        box = await machine.box("full")
        writing = asyncio.create_task(run(box, "while :; do echo x >> writes; done"))
        await run(box, "head -c 20M /dev/zero > full; rm -f none")
        assert os.statvfs(place).f_bavail == 0
        await machine.end_box("full")
        await writing
        os.unlink(os.path.join(place, "full"))
        await machine.create("hangs", spec("a", 16), session_id="s")
        writing = asyncio.create_task(run(await machine.box("hangs"), "while :; do echo x > on; done"))
        await until(partial(asyncio.to_thread, os.path.exists, os.path.join(place, "on")), "it writes")
        tell(place, FREEZE)
        try:
            with pytest.raises(WrongState, match="waits in the kernel"):
                await machine.end_box("hangs")
            await machine.create("other", spec("b", 16), session_id="s")
            assert (await run(await machine.box("other"), "echo on > on; cat on")).stdout == "on\n"
            await machine.end_box("other")
        finally:
            tell(place, THAW)
        await machine.end_box("hangs")
        await writing

    with_boxes(data, steps)
