"""The disk limit of a workspace: what counts, when it is added up, and what becomes of who is over it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.contract.errors import ColdframeError
from coldframe.contract.files import ListProcesses, RemovePath, WriteFile
from coldframe.contract.sandbox import Limits
from coldframe.host import own_disk
from coldframe.host import quota as quota_file
from coldframe.host.machine import Machine
from coldframe.host.own_disk import OwnDisk, OwnDiskQuota
from coldframe.host.quota import ENTRY_BYTES, DiskQuota, Free, Usage, measure
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "workspace").mkdir()
    held = os.open(tmp_path / "workspace", os.O_PATH | os.O_DIRECTORY)
    yield held
    os.close(held)


@pytest.fixture
def proc() -> Iterator[int]:
    held = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    yield held
    os.close(held)


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[int]:
    """A /proc without processes."""
    (tmp_path / "proc").mkdir()
    held = os.open(tmp_path / "proc", os.O_RDONLY | os.O_DIRECTORY)
    yield held
    os.close(held)


def fill(root: int, name: str, size: int) -> None:
    with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=root), "wb") as file:
        file.write(os.urandom(size))


class Disk:
    """A file system whose free space the test tells."""

    def __init__(self) -> None:
        self.free = Free(1000 * MIB, 1000 * MIB)
        self.now = 0.0

    def look(self, _: int) -> Free:
        return self.free

    def fall(self, size: int) -> None:
        self.free = self.free._replace(blocks=self.free.blocks - size)


def test_each_file_counts_once_by_its_blocks_and_a_little_for_being_there(root: int, nobody: int) -> None:
    fill(root, "a", 1 * MIB)
    os.link("a", "b", src_dir_fd=root, dst_dir_fd=root)
    sparse = os.open("sparse", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=root)
    os.ftruncate(sparse, 1 << 40)
    os.close(sparse)
    found = measure(root, nobody)
    assert found.whole
    assert MIB <= found.used < MIB + 64 * 1024
    for number in range(100):
        fill(root, f"empty{number}", 0)
    assert measure(root, nobody).used >= found.used + 100 * ENTRY_BYTES


def test_a_deleted_file_counts_as_long_as_somebody_holds_it(root: int, proc: int, nobody: int) -> None:
    held = os.open("gone", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=root)
    os.write(held, os.urandom(MIB))
    os.unlink("gone", dir_fd=root)
    assert measure(root, proc).used - measure(root, nobody).used >= MIB
    os.close(held)
    assert measure(root, proc).used - measure(root, nobody).used < MIB


def test_the_tree_is_added_up_only_when_the_falls_could_be_too_much(root: int, nobody: int) -> None:
    disk = Disk()
    quota = DiskQuota(root, nobody, 10 * MIB, clock=lambda: disk.now, free=disk.look)
    quota.look()
    assert quota.walks == 1
    for _ in range(9):
        disk.fall(MIB)
        quota.look()
    assert quota.walks == 1
    disk.fall(2 * MIB)
    quota.look()
    assert quota.walks == 2
    assert not quota.full() and quota.overruns == 0  # it was a neighbour who wrote


def test_space_that_a_neighbour_frees_hides_no_growth(root: int, nobody: int) -> None:
    disk = Disk()
    quota = DiskQuota(root, nobody, 10 * MIB, clock=lambda: disk.now, free=disk.look)
    quota.look()
    for _ in range(6):
        disk.fall(2 * MIB)
        quota.look()
        disk.fall(-2 * MIB)
        quota.look()
    assert quota.walks == 2


def test_growth_that_a_neighbour_hides_by_freeing_as_much_is_found_soon(root: int, nobody: int) -> None:
    disk = Disk()
    quota = DiskQuota(root, nobody, 3 * MIB, clock=lambda: disk.now, free=disk.look)
    quota.look()
    fill(root, "a", 4 * MIB)
    disk.now = 0.5
    quota.look()
    assert not quota.full()
    disk.now = 1.5
    quota.look()
    assert quota.full() and quota.overruns == 1


def test_only_growth_past_the_most_that_was_known_is_an_overrun(root: int, nobody: int) -> None:
    quota = DiskQuota(root, nobody, 1 * MIB, clock=lambda: 0.0)
    fill(root, "a", 2 * MIB)
    quota.look()
    assert quota.full() and quota.overruns == 1
    quota.look()
    assert quota.overruns == 1
    fill(root, "b", 1 * MIB)
    quota.look()
    assert quota.overruns == 2
    os.unlink("a", dir_fd=root)
    os.unlink("b", dir_fd=root)
    quota.look()
    assert not quota.full()


def test_a_lower_limit_ends_nobody_for_what_was_there_already(root: int, nobody: int) -> None:
    quota = DiskQuota(root, nobody, 10 * MIB, clock=lambda: 0.0)
    fill(root, "a", 2 * MIB)
    quota.look()
    quota.hold_to(1 * MIB)
    quota.look()
    assert quota.full() and quota.overruns == 0
    fill(root, "b", 1 * MIB)
    quota.look()
    assert quota.overruns == 1


def test_a_limit_below_that_of_its_own_disk_counts_all_that_is_on_it(
    root: int, nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 0
    disk = Disk()

    def read(_: int) -> OwnDisk:
        return OwnDisk(capacity=10 * MIB, free=10 * MIB - used, files=1000, files_free=1000, block=4096)

    def write(size: int) -> None:
        nonlocal used
        used += size
        disk.fall(size)

    monkeypatch.setattr(own_disk, "read_disk", read)
    quota = OwnDiskQuota(root, nobody, 10 * MIB, clock=lambda: 0.0, free=disk.look)
    quota.look()
    write(2 * MIB)  # since the last look, and where no walk would find it
    quota.hold_to(3 * MIB)
    quota.look()
    assert quota.used == 2 * MIB and not quota.full() and quota.overruns == 0
    assert quota.refuses(2 * MIB)
    write(2 * MIB)
    quota.look()
    assert quota.used == 4 * MIB and quota.full() and quota.overruns == 1
    quota.hold_to(10 * MIB)
    assert not quota.full()


def test_a_write_is_refused_by_what_it_would_lead_to(root: int, nobody: int) -> None:
    quota = DiskQuota(root, nobody, 4 * MIB, clock=lambda: 0.0)
    assert not quota.refuses(3 * MIB)
    assert quota.refuses(5 * MIB)
    fill(root, "a", 2 * MIB)
    assert quota.refuses(3 * MIB)
    os.unlink("a", dir_fd=root)
    assert not quota.refuses(3 * MIB)


def test_what_the_keeper_lets_be_written_counts_also_while_a_neighbour_frees_space(root: int, nobody: int) -> None:
    """An upload is let in piece by piece; with only the free space to go by, others could hide all of it."""
    disk = Disk()
    quota = DiskQuota(root, nobody, 3 * MIB, clock=lambda: disk.now, free=disk.look)
    for number in range(3):
        assert not quota.refuses(MIB)
        fill(root, f"piece-{number}", MIB)
        disk.fall(-4 * MIB)
    assert quota.refuses(MIB)
    assert quota.used is not None and quota.used >= 3 * MIB


def test_what_cannot_be_walked_to_its_end_is_estimated_from_all_falls(root: int, nobody: int) -> None:
    disk = Disk()
    for number in range(20):
        fill(root, f"f{number}", 0)
    quota = DiskQuota(root, nobody, 10 * MIB, most_entries=10, clock=lambda: disk.now, free=disk.look)
    quota.look()
    assert not quota.full()  # few could be seen, but nothing says that there is too much
    for _ in range(3):
        disk.fall(4 * MIB)
        quota.look()
    assert quota.full() and quota.overruns == 1


def test_walks_that_nobody_waits_for_take_a_tenth_of_the_time_at_most(root: int, nobody: int) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0  # each walk takes a second
        return now

    fill(root, "a", 1)
    quota = DiskQuota(root, nobody, 1, clock=clock)
    for _ in range(50):
        quota.look()
    assert 3 <= quota.walks <= 6


def test_what_processes_may_hold_that_cannot_be_looked_at_is_what_is_free_less_since_all_was_seen(
    root: int, nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, closed = Disk(), False

    def found(*_: object, **__: object) -> Usage:
        return Usage(MIB, whole=True, closed=closed)

    monkeypatch.setattr(quota_file, "measure", found)
    quota = DiskQuota(root, nobody, 10 * MIB, clock=lambda: disk.now, free=disk.look)
    disk.fall(50 * MIB)  # by others, before
    quota.look()
    closed = True
    for _ in range(20):  # what is written and deleted again adds up to nothing
        disk.fall(4 * MIB)
        quota.look()
        disk.fall(-4 * MIB)
        disk.now += 100.0
    quota.look()
    assert not quota.full() and quota.overruns == 0
    disk.fall(10 * MIB)
    disk.now += 100.0
    quota.look()
    assert quota.full() and quota.overruns == 1
    closed = False
    disk.now += 100.0
    quota.look()
    assert not quota.full() and quota.used == MIB


# -- in a box --------------------------------------------------------------------------------------


@needs_bubblewrap
@as_root_and_ordinary
def test_a_command_that_fills_its_workspace_is_ended_and_the_way_back_works(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine, limits=Limits(disk_mib=8))
        grown = await run(box, "echo begun; for n in $(seq 1000); do head -c 4M /dev/urandom > f$n; done; echo never")
        assert grown.result.ended == "limit"
        assert grown.result.limit is not None
        assert (grown.result.limit.kind, grown.result.limit.limit) == ("disk", 8.0 * MIB)
        assert (grown.result.limit.used or 0) > 8 * MIB
        assert grown.stdout == "begun\n"
        with pytest.raises(ColdframeError) as refused:
            await box.ask(WriteFile(path="note", content=b"x"))
        assert refused.value.code == "LIMIT_DISK"
        more = await run(box, "head -c 1M /dev/zero >> f1")
        assert more.result.exit_code != 0
        listed = await run(box, "ls | wc -l")
        assert int(listed.stdout) >= 2 and listed.result.exit_code == 0
        assert (await run(box, "rm -f f*")).result.exit_code == 0
        assert (await run(box, "echo again > note; cat note")).stdout == "again\n"
        await box.ask(WriteFile(path="note", content=b"x"))

    on_a_machine(steps, who=who)


@needs_bubblewrap
@as_root_and_ordinary
def test_empty_files_deleted_files_and_one_large_file_meet_the_limit_too(who: str) -> None:
    many = "import os\nos.mkdir('d')\nn = 0\nwhile True:\n    os.close(os.open(f'd/{n}', os.O_CREAT)); n += 1"
    held = (
        "import os\nkept = []\nwhile True:\n    kept.append(os.open('t', os.O_CREAT | os.O_RDWR)); os.unlink('t')\n"
        "    os.write(kept[-1], os.urandom(1 << 20))"
    )

    async def steps(machine: Machine) -> None:
        for number, program in enumerate((many, held)):
            box = await new_box(machine, f"box{number}", agent=f"agent{number}", limits=Limits(disk_mib=4))
            done = await run(box, argv=("python3", "-c", program))
            assert done.result.limit is not None, done
            assert (done.result.ended, done.result.limit.kind) == ("limit", "disk")
        box = await new_box(machine, "box9", agent="agent9", limits=Limits(disk_mib=4))
        large = await run(box, "head -c 64M /dev/zero > one; stat -c %s one")
        assert int(large.stdout) <= 4 * MIB

    on_a_machine(steps, who=who)


HELD_OUT_OF_SIGHT = """
import ctypes, os, sys, time
if sys.argv[1] == "undumpable":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
if sys.argv[1] == "decoys":
    for _ in range(24):
        if os.fork() == 0:
            try:
                while True:
                    os.dup(0)
            except OSError:
                os.write(1, b".")
                time.sleep(1000)
    time.sleep(1000) if os.fork() else None  # this one has the highest number
kept = []
while True:
    kept.append(os.open("t", os.O_CREAT | os.O_RDWR))
    os.unlink("t")
    os.write(kept[-1], os.urandom(1 << 20))
    time.sleep(0.01)
"""


@needs_bubblewrap
@as_root_and_ordinary
def test_deleted_files_count_as_well_where_nobody_can_look(who: str) -> None:
    async def steps(machine: Machine) -> None:
        for way in ("undumpable", "unreadable", "decoys"):
            box = await new_box(machine, way, agent=way, limits=Limits(disk_mib=24))
            program = "python3 -S hold.py"
            if way == "unreadable":
                program = "cp /usr/bin/python3 own && chmod 0111 own && ./own -S hold.py"
            await box.ask(WriteFile(path="hold.py", content=HELD_OUT_OF_SIGHT.encode()))
            done = await run(box, f"{program} {way}", timeout_s=30)
            assert done.result.limit is not None, done
            assert (done.result.ended, done.result.limit.kind) == ("limit", "disk")

    on_a_machine(steps, who=who, apart=True)  # what others free hides what is written here


@needs_bubblewrap
@as_root_and_ordinary
def test_a_neighbour_is_not_touched_by_who_is_over_the_limit(who: str) -> None:
    async def steps(machine: Machine) -> None:
        small = await new_box(machine, "small", agent="small", limits=Limits(disk_mib=4))
        large = await new_box(machine, "large", agent="large", limits=Limits(disk_mib=200))
        assert (
            await run(small, "head -c 3M /dev/zero > a; head -c 3M /dev/zero > b; sleep 20")
        ).result.ended == "limit"
        assert (await run(large, "head -c 16M /dev/zero > a; stat -c %s a")).stdout == f"{16 * MIB}\n"
        with pytest.raises(ColdframeError):
            await small.ask(WriteFile(path="c", content=b"x"))
        await small.ask(RemovePath(path="b"))
        await small.ask(WriteFile(path="c", content=b"x"))

    on_a_machine(steps, who=who)


@needs_bubblewrap
@as_root_and_ordinary
def test_what_outlives_its_command_is_ended_as_well(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine, limits=Limits(disk_mib=4))
        begun = await run(
            box, "(sleep 0.5; for n in $(seq 1000); do head -c 2M /dev/zero > f$n; done) >/dev/null 2>&1 &"
        )
        assert begun.result.leftovers

        async def ended() -> bool:
            return not (await box.ask(ListProcesses())).processes

        await until(ended, "the processes that filled the workspace are gone", timeout_s=60)
        assert "f1000" not in (await run(box, "ls")).stdout

    on_a_machine(steps, who=who)
