"""Limits bite over a whole process tree, say what they counted, and leave nothing behind."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldframe.guest.spawn import Steps
from coldframe.host import cgroups, limits
from coldframe.host.birth import Births, fork_into
from coldframe.host.confine import ConfineError
from coldframe.host.groups import CommandGroup, Groups, GroupUsage
from tests.host.forked import in_child, wait_until

INSTALLATION = f"test{os.getpid()}"
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups of this machine need root here")


@pytest.fixture
def controllers() -> Iterator[cgroups.Controllers]:
    found = cgroups.detect_controllers(INSTALLATION)
    yield found
    cgroups.remove_groups(found, INSTALLATION, keep=frozenset())


@pytest.fixture
def groups(controllers: cgroups.Controllers) -> Iterator[cgroups.BoxGroups]:
    if "memory" not in controllers.controls or "unified" not in controllers.hierarchies:
        pytest.skip("needs a memory controller and a version 2 hierarchy")
    box = cgroups.BoxGroups(controllers, INSTALLATION, "sb1")
    box.create(cgroups.GroupLimits(memory_bytes=64 << 20, pids=20, cpus=0.5), owner_uid=NOBODY)
    yield box
    box.kill()
    box.remove()


def as_keeper(groups: cgroups.BoxGroups, tmp_path: Path) -> limits.GroupDescriptors:
    """In a child: what a keeper is when it starts commands - unprivileged and with no view of the groups."""
    groups.enter(os.getpid())
    processes = []
    for _ in ("the first process", "bubblewrap"):
        processes.append(os.fork())
        if processes[-1] == 0:
            os.closerange(3, 256)
            signal.pause()
            os._exit(0)
    groups.settle(*processes)
    descriptors = groups.descriptors()
    os.chroot(tmp_path)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    return descriptors


@as_root
def test_detection_reports_what_it_could_do_and_leaves_no_probe(controllers: cgroups.Controllers) -> None:
    assert controllers.controls | controllers.missing.keys() == {
        "memory", "pids", "cpu", "io", "freeze", "kill", "cpu_time"
    }  # fmt: skip
    for hierarchy in controllers.hierarchies.values():
        assert os.listdir(f"{hierarchy.base}/coldframe-{INSTALLATION}") == [] or not [
            name for name in os.listdir(f"{hierarchy.base}/coldframe-{INSTALLATION}") if name.startswith("probe")
        ]


@as_root
def test_an_ordinary_user_without_delegation_gets_reasons_instead_of_controls() -> None:
    def child() -> cgroups.Controllers:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return cgroups.detect_controllers(INSTALLATION)

    found = in_child(child)
    assert found.controls == frozenset()
    assert "Permission denied" in found.missing["memory"]
    assert found.where("memory") == "none"


@as_root
def test_the_kernel_gives_the_limits_back(groups: cgroups.BoxGroups) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as first:
        groups.settle(first.pid)
        assert groups.read_limits() == {"memory_bytes": 64 << 20, "pids": 20, "cpus": 0.5}
        assert groups.holds(first.pid)


@as_root
def test_who_is_gone_before_it_is_in_its_groups_is_told(groups: cgroups.BoxGroups) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    for see_to in (groups.enter, groups.settle):
        with pytest.raises(ConfineError, match="into its control group"):
            see_to(gone.pid)


def take(steps: Steps) -> None:
    """As a child does before it is a program."""
    for act in steps:
        act()


def fork_inside(group: CommandGroup, *, born: bool) -> int:
    """As os.fork; the child is in all groups when this returns."""
    pid = fork_into(group.birthplace) if born else os.fork()
    if pid == 0:
        take(group.entry_beside_birth if born else group.entry)
    return pid


@as_root
@pytest.mark.parametrize("born", [True, False], ids=["born in its group", "moves there"])
def test_a_memory_hog_is_killed_and_counted_for_its_own_command_only(
    groups: cgroups.BoxGroups, tmp_path: Path, born: bool
) -> None:
    def keeper() -> tuple[int, GroupUsage, GroupUsage]:
        descriptors = as_keeper(groups, tmp_path)
        hog, other = CommandGroup(descriptors, "hog"), CommandGroup(descriptors, "other")
        pids = []
        for group, size in ((hog, 200 << 20), (other, 1 << 20)):
            pid = fork_inside(group, born=born)
            if pid == 0:
                held = bytearray(size)
                os._exit(0 if held else 1)
            pids.append(os.waitpid(pid, 0)[1])
        usage = hog.usage(), other.usage()
        assert hog.remove() and other.remove()
        assert os.WIFEXITED(pids[1])
        return os.WTERMSIG(pids[0]), *usage

    number, hog, other = in_child(keeper)
    assert number == signal.SIGKILL
    assert hog.oom_kills == 1
    assert hog.peak_memory_bytes is not None and hog.peak_memory_bytes > 32 << 20
    assert other.oom_kills == 0


@as_root
def test_who_is_born_in_a_group_is_there_before_it_does_anything(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> tuple[bool, list[int], bool, list[int], bool]:
        group = CommandGroup(as_keeper(groups, tmp_path), "cmd")
        waiting, held = os.pipe()
        pid = fork_into(group.birthplace)
        if pid == 0:
            os.close(held)
            os.read(waiting, 1)
            os._exit(7)
        there = group.pids()
        os.close(held)
        status = os.waitpid(pid, 0)[1]
        return pid in there, there[1:], os.waitstatus_to_exitcode(status) == 7, group.pids(), group.remove()

    assert in_child(keeper) == (True, [], True, [], True)


@as_root
def test_who_cannot_be_born_in_a_group_is_forked_beside_it(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    """It enters like any other then, and is told what is wrong."""

    def keeper() -> tuple[int, bool, int]:
        os.chown(f"{groups.paths['unified']}/box/init/cgroup.procs", 0, 0)
        foreign = os.open(f"{groups.paths['unified']}/box/init", os.O_RDONLY | os.O_DIRECTORY)
        as_keeper(groups, tmp_path)
        refused = 0
        try:
            fork_into(foreign)
        except OSError as error:
            refused = error.errno or 0
        pid, born = Births(possible=True).fork(foreign)
        if pid == 0:
            os._exit(7)
        return refused, born, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_child(keeper) == (errno.EACCES, False, 7)


@as_root
def test_kill_reaches_detached_descendants_and_empties_the_group(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> tuple[int, bool, bool]:
        descriptors = as_keeper(groups, tmp_path)
        group = CommandGroup(descriptors, "cmd")
        pid = os.fork()
        if pid == 0:
            take(group.entry)
            for _ in range(4):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        signal.pause()
                    os._exit(0)
            os._exit(0)
        group.close()
        os.waitpid(pid, 0)
        wait_until(lambda: len(group.pids()) >= 4)
        seen = len(group.pids())
        filled = not group.is_empty()
        group.kill()
        wait_until(group.is_empty)
        wait_until(group.remove)
        return seen, filled, group.remove()

    seen, filled, removed = in_child(keeper)
    assert seen >= 4  # the ones in between may not have ended yet
    assert filled and removed


@as_root
def test_cpu_time_is_that_of_the_whole_tree(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> float | None:
        group = CommandGroup(as_keeper(groups, tmp_path), "cmd")
        pid = os.fork()
        if pid == 0:
            take(group.entry)
            for _ in range(2):
                if os.fork() == 0:
                    while sum(os.times()[:2]) < 0.1:
                        pass
                    os._exit(0)
            for _ in range(2):
                os.wait()
            os._exit(0)
        os.waitpid(pid, 0)
        used = group.usage().cpu_s
        group.remove()
        return used

    used = in_child(keeper)
    assert used is not None and 0.18 < used < 1.0


def in_group(group: CommandGroup, function: Callable[[], object]) -> int:
    """Run in a child that is in the group; its wait status."""
    pid = os.fork()
    if pid == 0:
        take(group.entry)
        function()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def burn(seconds: float) -> None:
    while sum(os.times()[:2]) < seconds:
        pass


@as_root
def test_a_group_is_used_again_and_counts_nothing_of_the_command_before(
    groups: cgroups.BoxGroups, tmp_path: Path
) -> None:
    def keeper() -> tuple[list[str], list[GroupUsage]]:
        pool = Groups(as_keeper(groups, tmp_path))
        names, used = [], []
        for function in (lambda: burn(1.0), lambda: bytearray(24 << 20), lambda: None):
            group = pool.take()
            names.append(group.name)
            in_group(group, function)
            used.append(group.usage())
            pool.give(group)
        return names, used

    names, used = in_child(keeper)
    assert len(set(names)) == 1
    assert used[0].cpu_s is not None and used[0].cpu_s >= 0.9
    assert used[1].cpu_s is not None and used[1].cpu_s < 0.9  # its own fork and its 24 MiB
    peaks = [one.peak_memory_bytes or 0 for one in used]
    assert peaks[1] > 24 << 20
    assert peaks[2] < 4 << 20
    assert [one.oom_kills for one in used] == [0, 0, 0]


@as_root
def test_the_next_group_is_at_hand_and_is_like_any_other(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> tuple[list[bool], list[str], list[GroupUsage]]:
        descriptors = as_keeper(groups, tmp_path)
        pool = Groups(descriptors)
        pool.prepare()
        pool.prepare()
        there = ["c1" in os.listdir(group) and "c2" not in os.listdir(group) for _, group in descriptors.per_command]
        first, second = pool.take(), pool.take()
        names = [first.name, second.name]
        in_group(first, lambda: bytearray(24 << 20))
        used = [first.usage()]
        pool.give(first)
        pool.prepare()
        again = pool.take()
        names.append(again.name)
        in_group(again, lambda: None)
        used.append(again.usage())
        for group in (again, second):
            assert group.remove()
        return there, names, used

    there, names, used = in_child(keeper)
    assert there and all(there)
    assert names == ["c1", "c2", "c1"]
    assert (used[0].peak_memory_bytes or 0) > 24 << 20
    assert (used[1].peak_memory_bytes or 0) < 8 << 20
    assert (used[1].cpu_s or 0.0) < (used[0].cpu_s or 1.0)


@as_root
def test_a_kill_for_memory_is_told_for_that_command_alone(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> list[int | None]:
        pool = Groups(as_keeper(groups, tmp_path))
        kills = []
        for size in (200 << 20, 1 << 20, 200 << 20):
            group = pool.take()
            in_group(group, lambda: bytearray(size))  # noqa: B023
            kills.append(group.usage().oom_kills)
            pool.give(group)
        return kills

    assert in_child(keeper) == [1, 0, 1]


@as_root
@pytest.mark.parametrize("why", ["somebody lives", "killed", "frozen", "a limit of its own", "memory is charged to it"])
def test_a_group_that_could_pass_something_on_is_not_used_again(
    groups: cgroups.BoxGroups, tmp_path: Path, why: str
) -> None:
    def keeper() -> tuple[str, str, bool]:
        pool = Groups(as_keeper(groups, tmp_path))
        group = pool.take()
        sleeper = 0
        if why == "somebody lives":
            sleeper = os.fork()
            if sleeper == 0:
                take(group.entry)
                signal.pause()
            wait_until(lambda: not group.is_empty())
        elif why == "killed":
            group.kill()
        elif why == "frozen":
            group.freeze(on=True)
            group.freeze(on=False)
        elif why == "a limit of its own":
            assert group.limit_memory(16 << 20)
        else:
            file = os.memfd_create("held")
            in_group(group, lambda: os.write(file, bytes(8 << 20)))
        pool.give(group)
        next_one = pool.take()
        names = group.name, next_one.name
        pool.give(next_one)
        if sleeper:
            os.kill(sleeper, signal.SIGKILL)
            os.waitpid(sleeper, 0)
            pool.give(pool.take())  # removes what could not be removed before
        gone = group.remove()
        return *names, gone

    first, second, gone = in_child(keeper)
    assert first != second
    assert gone


def test_a_process_without_a_number_here_is_nobody_to_signal_but_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    signalled = []
    monkeypatch.setattr(CommandGroup, "pids", lambda _: [0, 4_000_000])
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append((pid, number)))
    group = CommandGroup(limits.GroupDescriptors((), ()), "c1")
    assert group.signal(signal.SIGTERM) == 1
    assert signalled == [(4_000_000, signal.SIGTERM)]
    monkeypatch.setattr(CommandGroup, "pids", lambda _: [0])
    assert not group.is_empty()


@as_root
def test_the_process_limit_is_that_of_the_box(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> int:
        group = CommandGroup(as_keeper(groups, tmp_path), "cmd")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            take(group.entry)
            count = 0
            try:
                while True:
                    if os.fork() == 0:
                        signal.pause()
                    count += 1
            except BlockingIOError:
                os.write(writing, b"%d" % count)
            os._exit(0)
        os.waitpid(pid, 0)
        count = int(os.read(reading, 10))
        group.kill()
        wait_until(group.remove)
        return count

    assert in_child(keeper) == 18  # 20 less the first process of the box and the forking one


@as_root
def test_the_sandbox_uid_cannot_raise_the_limits_of_its_box(groups: cgroups.BoxGroups, tmp_path: Path) -> None:
    def keeper() -> list[str]:
        descriptors = as_keeper(groups, tmp_path)
        refused = []
        for name, file in (("memory", "memory.limit_in_bytes"), ("pids", "pids.max")):
            for hierarchy, directory in (*descriptors.per_command, *descriptors.attach_only):
                if hierarchy == name:
                    try:
                        os.open(file, os.O_WRONLY, dir_fd=directory)
                    except PermissionError:
                        refused.append(name)
        return refused

    assert in_child(keeper) == ["memory", "pids"]


@as_root
def test_only_own_groups_that_nobody_keeps_are_swept(controllers: cgroups.Controllers) -> None:
    kept, stale = (cgroups.BoxGroups(controllers, INSTALLATION, name) for name in ("kept", "stale"))
    foreign = cgroups.BoxGroups(controllers, f"{INSTALLATION}x", "stale")
    for box in (kept, stale, foreign):
        box.create(cgroups.GroupLimits(64 << 20, 20), owner_uid=NOBODY)
    try:
        sleeper = subprocess.Popen(["sleep", "1000"])
        stale.settle(sleeper.pid)
        assert stale.holds(sleeper.pid) and not kept.holds(sleeper.pid)
        assert cgroups.remove_groups(controllers, INSTALLATION, keep={"kept"}) == ["stale"]
        assert sleeper.wait(10) == -signal.SIGKILL
        assert all(os.path.isdir(path) for box in (kept, foreign) for path in box.paths.values())
        assert not any(os.path.exists(path) for path in stale.paths.values())
    finally:
        kept.remove()
        foreign.remove()
        cgroups.remove_groups(controllers, f"{INSTALLATION}x", keep=frozenset())


@as_root
def test_a_group_that_cannot_be_removed_is_told_and_the_others_are(
    controllers: cgroups.Controllers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("stuck", "one", "two"):
        cgroups.BoxGroups(controllers, INSTALLATION, name).create(cgroups.GroupLimits(64 << 20, 20), owner_uid=NOBODY)
    remove = cgroups._remove_tree

    def refuse(path: str) -> None:
        if path.endswith("/stuck"):
            raise ConfineError("remove a control group", "as the test wants it")
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "_remove_tree", refuse)
        assert cgroups.remove_groups(controllers, INSTALLATION, keep=frozenset()) == ["one", "two"]
    assert "sandbox `stuck` should have ended and may still run" in caplog.text
    assert cgroups.remove_groups(controllers, INSTALLATION, keep=frozenset()) == ["stuck"]


def test_a_name_that_leaves_the_tree_is_refused() -> None:
    nothing = cgroups.Controllers({}, frozenset(), frozenset())
    for name in ("..", "a/b", "", ".hidden"):
        with pytest.raises(ValueError):
            cgroups.BoxGroups(nothing, INSTALLATION, name)
    with pytest.raises(ValueError):
        CommandGroup(limits.GroupDescriptors((), ()), "../x")


def test_rlimits_are_set_hard_and_core_files_are_off() -> None:
    def child() -> list[tuple[int, int]]:
        limits.forbid_core_files()
        take(limits.rlimit_steps(limits.plan_rlimits({"open_files": 256, "file_bytes": 4096, "pids": 50})))
        kinds = (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
        return [resource.getrlimit(kind) for kind in kinds]

    assert in_child(child) == [(0, 0), (256, 256), (4096, 4096), (50, 50)]


def test_marks_find_detached_descendants_and_name_who_changed_theirs() -> None:
    code = (
        "import os, resource, signal, sys\n"
        "if os.fork() == 0:\n os.setsid()\n"
        " if os.fork() == 0:\n  print('kept', os.getpid(), flush=True)\n  signal.pause()\n os._exit(0)\n"
        "os.wait()\n"
        "if os.fork() == 0:\n resource.setrlimit(15, (5, 5))\n print('changed', os.getpid(), flush=True)\n signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: take(limits.rlimit_steps([limits.plan_mark(777)])),
    )
    assert process.stdout is not None
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    said = dict(process.stdout.readline().split() for _ in range(2))
    pids = [int(said[who]) for who in (b"kept", b"changed")]
    try:
        marks = limits.read_marks(proc)
        found = limits.sort_marks(marks, 777, frozenset({777}))
        assert pids[0] in found.marked
        assert pids[1] in found.unattributed
        assert pids[0] not in limits.sort_marks(marks, 778, frozenset({777, 778})).marked
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        os.close(proc)
        process.wait(10)
        process.stdout.close()
