"""A box with a limit of disk bandwidth is slowed by the kernel on each disk that it has to do with, and says how well."""

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from coldframe.contract.isolation import IsolationReport, LimitReport
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.snapshot import SnapshotWish, WorkspacePoint
from coldframe.host import cgroups, io_limit, limits
from coldframe.host.isolation.namespaces import HOME
from coldframe.host.machine import Machine
from tests.host.disks import needs_disks, traces, unmount_all
from tests.host.forked import wait_until
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run
from tests.host.test_pool import have_boxes_wait, keeper_of, waiting

__all__ = ["needs_disks"]
MIB_S = 1
SIZE_MIB = 3
DIRECT = {
    "write": f"dd if=/dev/zero of=big bs=256k count={SIZE_MIB * 4} oflag=direct,sync",
    "read": "dd if=big of=/dev/null bs=256k iflag=direct",
}
NUMBER = "259:1"


async def made(machine: Machine, name: str, mib_s: int = MIB_S) -> IsolationReport:
    spec = SandboxSpec(background=True, on_missing="degrade", limits=Limits(io_mib_s=mib_s))
    return await machine.create(name, spec, session_id=f"session-{name}")


def line_of(report: IsolationReport) -> LimitReport:
    (line,) = (one for one in report.limits if one.kind == "io")
    return line


def rates_of(machine: Machine, name: str) -> dict[str, tuple[int, int]]:
    mark = machine._marks.read(name)
    assert mark is not None
    return io_limit.read_rates(machine._controllers, mark.groups)


def require_kept(line: LimitReport) -> None:
    """Where it is told as kept, it has to be; elsewhere why not."""
    if line.strength == "unsupported":
        assert line.reason and line.enforced_by == "nothing on this host" and not line.supported
        pytest.skip(f"no limit of disk bandwidth here: {line.reason}")


@needs_bubblewrap
@as_root_and_ordinary
@pytest.mark.req("T3.25")
def test_it_is_told_by_what_the_kernel_gives_back_or_why_nothing_holds_it(who: str) -> None:
    async def steps(machine: Machine) -> None:
        line = line_of(await made(machine, "slow"))
        assert (line.limit, line.unit) == (MIB_S, io_limit.UNIT) and line.verified_at is not None
        assert line.supported is (line.strength == "hard")
        if who == "ordinary":
            assert (line.strength, line.enforced_by) == ("unsupported", "nothing on this host")
            assert "a controller of disk bandwidth" in str(line.reason)
            return
        require_kept(line)
        assert "read back" in line.enforced_by and "file tools" in str(line.bound)
        assert set(rates_of(machine, "slow").values()) == {(MIB_S << 20, MIB_S << 20)}
        await machine.create("other", SandboxSpec(background=True), session_id="session-other")
        other = await (await machine.life("other")).report()
        assert "io" not in {one.kind for one in other.limits} and rates_of(machine, "other") == {}

    on_a_machine(steps, who=who)


@needs_bubblewrap
@pytest.mark.req("T3.25")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_who_goes_around_the_memory_of_the_machine_takes_the_time_that_the_limit_says() -> None:
    async def steps(machine: Machine) -> None:
        require_kept(line_of(await made(machine, "slow")))
        box = await machine.box("slow")
        for way, command in DIRECT.items():
            began = time.monotonic()
            done = await run(box, command)
            took_s = time.monotonic() - began
            if "Invalid argument" in done.stderr:
                pytest.skip(f"this file system takes no direct access: {done.stderr}")
            assert done.result.exit_code == 0, done.stderr
            assert took_s > 0.5 * SIZE_MIB / MIB_S, way  # a busy machine only makes it longer
        await run(box, "rm big")

    on_a_machine(steps)


@needs_bubblewrap
@pytest.mark.req("T3.25")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_box_that_waited_gets_the_limit_of_whom_it_becomes() -> None:
    async def steps(machine: Machine) -> None:
        have_boxes_wait(machine)
        await machine.prepare()
        require_kept(line_of(await made(machine, "first", 3)))
        ready = {box.pid for box in await waiting(machine)}
        line = line_of(await made(machine, "second", 3))
        assert keeper_of(machine, "second") in ready
        assert (line.limit, line.strength) == (3, line_of(await (await machine.life("first")).report()).strength)
        rates = rates_of(machine, "second")
        assert rates and set(rates.values()) == {(3 << 20, 3 << 20)}
        assert line_of(await made(machine, "third", 4)).limit == 4
        assert set(rates_of(machine, "third").values()) == {(4 << 20, 4 << 20)}

    on_a_machine(steps)


@needs_bubblewrap
@pytest.mark.req("T3.25")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("behind", ["none", "more"])
def test_a_limit_that_somebody_takes_away_is_told_as_none(behind: str) -> None:
    async def steps(machine: Machine) -> None:
        require_kept(line_of(await made(machine, "slow")))
        mark = machine._marks.read("slow")
        assert mark is not None
        rate = {"none": 0, "more": 2 * MIB_S << 20}[behind]
        for number in rates_of(machine, "slow"):
            if "blkio" in mark.groups:
                path = Path(mark.groups["blkio"], "blkio.throttle.write_bps_device")
                path.write_text(f"{number} {rate}", encoding="ascii")
            else:
                Path(mark.groups["unified"], "box", "io.max").write_text(f"{number} wbps={rate or 'max'}", "ascii")
        line = line_of(await (await machine.life("slow")).report())
        assert (line.strength, line.supported) == ("unsupported", False)
        assert "holds no such limit" in str(line.reason)

    on_a_machine(steps)


@needs_bubblewrap
@pytest.mark.req("T3.25")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_workspace_of_layers_is_held_where_its_layers_lie() -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "before")
        await machine.end_box("before", keep_workspace=True)
        await machine._endings.finish()
        await machine.snapshots.take(WorkspacePoint(agent_id="agent"), SnapshotWish(label=Label.PUBLIC))
        box = await new_box(machine, "slow", limits=Limits(io_mib_s=MIB_S))
        line = line_of(await (await machine.life("slow")).report())
        require_kept(line)
        assert "no disk was found" not in f"{line.reason} {line.bound}"
        lies_on = os.stat(machine._data).st_dev
        disk = io_limit.whole_disk(f"{os.major(lies_on)}:{os.minor(lies_on)}")
        assert disk in rates_of(machine, "slow")
        began = time.monotonic()
        done = await run(box, DIRECT["write"])
        if "Invalid argument" in done.stderr:
            pytest.skip(f"this file system takes no direct access: {done.stderr}")
        assert time.monotonic() - began > 0.5 * SIZE_MIB / MIB_S and done.result.exit_code == 0
        await run(box, "rm big")

    on_a_machine(steps)


@needs_bubblewrap
@pytest.mark.req("T3.25")
@pytest.mark.usefixtures("needs_disks")
def test_a_workspace_on_a_disk_of_its_own_is_held_there_or_below_and_waits_once() -> None:
    folder = tempfile.mkdtemp(prefix="cf-io-", dir="/tmp")
    os.chmod(folder, 0o711)

    async def whole() -> None:
        machine = Machine(folder, embedded=True, own_disks=True)
        try:
            spec = SandboxSpec(background=True, on_missing="degrade", limits=Limits(io_mib_s=MIB_S, disk_mib=64))
            line = line_of(await machine.create("slow", spec, session_id="session-slow"))
            require_kept(line)
            box = await machine.box("slow")
            began = time.monotonic()
            done = await run(box, f"stat -c %Hd:%Ld .; {DIRECT['write']}")
            assert done.result.exit_code == 0, done.stderr
            assert time.monotonic() - began > 0.5 * SIZE_MIB / MIB_S
            held = set(rates_of(machine, "slow"))
            (loop,) = (word for word in done.stdout.split() if word.startswith("7:"))
            direct = Path(f"/sys/dev/block/{loop}/loop/dio").read_text(encoding="ascii").strip() == "1"
            assert io_limit.whole_disk(loop) in held
            assert (loop in held) is not direct
        finally:
            await machine.sweep(keep_boxes=set(), keep_sessions=set())
            await machine.close()

    try:
        asyncio.run(whole())
        wait_until(lambda: not traces(folder))
    finally:
        unmount_all(folder)
        shutil.rmtree(folder)


# -- which disks -------------------------------------------------------------------------------------


def mounts(*lines: str) -> str:
    return "".join(f"{40 + at} 22 {line}\n" for at, line in enumerate(lines))


def test_memory_and_layers_of_ours_are_no_disks_and_what_has_none_is_named() -> None:
    disks = io_limit.disks_of(
        mounts(
            "0:30 / /tmp rw,nosuid - tmpfs tmpfs rw",
            "0:31 / / rw - overlay overlay rw,userxattr,lowerdir=/proc/self/fd/7,upperdir=/proc/self/fd/9",
            "0:32 / /usr ro shared:1 - nfs server:/usr rw",
            "0:33 / /opt ro - btrfs /dev/that-is-not-there rw",
            "0:34 / /lib ro - overlay overlay rw,lowerdir=/var/lib/a",
            "4095:7 / /home/user rw - ext4 /dev/gone rw",
        )
    )
    assert disks.numbers == frozenset() and disks.has_layers
    assert disks.unknown == {"/usr": "nfs", "/opt": "btrfs", "/lib": "overlay", "/home/user": "ext4"}


def test_each_disk_of_this_machine_stands_for_itself_and_for_its_partitions() -> None:
    seen = 0
    for name in os.listdir("/sys/block") if os.path.isdir("/sys/block") else ():
        if name.startswith("loop"):  # of others, who come and go
            continue
        number = Path("/sys/block", name, "dev").read_text(encoding="ascii").strip()
        assert io_limit.whole_disk(number) == number
        for part in Path("/sys/block", name).glob("*/partition"):
            assert io_limit.whole_disk((part.parent / "dev").read_text(encoding="ascii").strip()) == number
        seen += 1
    if not seen:
        pytest.skip("this machine shows no disks")


# -- version 2, as its files are ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "controllers", "strength", "reason"),
    [
        ("ext4", {"io", "memory"}, "hard", None),
        ("ext4", {"io"}, "best_effort", "counts no memory"),
        ("ntfs3", {"io", "memory"}, "best_effort", "ntfs3 does not tell in whose name"),
    ],
)
@pytest.mark.req("T3.25")
def test_version_2_is_told_one_line_for_each_disk_and_is_hard_only_where_it_counts_memory_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    controllers: set[str],
    strength: str,
    reason: str | None,
) -> None:
    """With plain files: this says what is written and how it is read, and not what a kernel makes of it."""
    box = tmp_path / "coldframe-x" / "sb" / "box"
    box.mkdir(parents=True)
    (box / "io.max").touch()
    (box.parent / "cgroup.subtree_control").touch()
    found = cgroups.Controllers(
        {"unified": cgroups.Hierarchy("unified", str(tmp_path))}, frozenset(controllers), frozenset(controllers)
    )
    groups = cgroups.BoxGroups(found, "x", "sb")
    monkeypatch.setattr(io_limit, "whole_disk", lambda number: NUMBER)
    table = mounts(f"{NUMBER} / {HOME} rw - {kind} /dev/d rw", "0:30 / /tmp rw - tmpfs tmpfs rw")
    read = limits.read_text
    monkeypatch.setattr(io_limit, "read_text", lambda path: table if path.endswith("/mountinfo") else read(path))
    monkeypatch.setattr(cgroups.BoxGroups, "holds", lambda *given: True)
    io_limit.slow(found, groups.paths, 5, 1, str(tmp_path / "workspace" / "a"))
    assert (box.parent / "cgroup.subtree_control").read_text() == "+io"
    assert (box / "io.max").read_text() == f"{NUMBER} rbps={5 << 20} wbps={5 << 20}"
    line = io_limit.judge_io(5, groups, 1)
    assert (line.strength, line.enforced_by) == (strength, "cgroup v2, read back for each disk")
    assert (line.reason is None) if reason is None else (reason in str(line.reason))
    for text in ("", f"{NUMBER} rbps={5 << 20} wbps=max riops=max wiops=max\n", f"8:0 rbps={1 << 20} wbps={1 << 20}\n"):
        (box / "io.max").write_text(text)
        assert io_limit.judge_io(5, groups, 1).strength == "unsupported"
