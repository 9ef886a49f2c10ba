"""A box that is being built is bound to its builder: whoever of them dies, at whatever step, nothing goes on without them."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.host import confine
from coldframe.host.builder import kill_strays
from coldframe.host.cgroups import BoxGroups
from coldframe.host.isolation import namespaces
from coldframe.host.machine import Machine
from tests.host.boxes import become_ordinary
from tests.host.forked import in_child, wait_until
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run
from tests.host.test_machine import SPEC, nothing_is_left

pytestmark = needs_bubblewrap


def _start_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _children_of(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                found.append(int(entry))
    return found


def _plan() -> namespaces.Plan:
    become_ordinary()
    folder = tempfile.mkdtemp(prefix="cf-build-")
    history = os.path.join(folder, ".exec_history")
    os.close(os.open(history, os.O_WRONLY | os.O_CREAT, 0o644))
    return namespaces.Plan(folder, history, {}, 512)


def test_a_first_process_whose_keeper_died_before_its_word_ends() -> None:
    def build_and_die() -> tuple[int, str | None, str]:
        plan = _plan()
        built = namespaces.build(plan, begun=lambda _: None)
        return built.init, _start_of(built.init), plan.workspace

    first, started, workspace = in_child(build_and_die)
    try:
        assert started is not None
        wait_until(lambda: _start_of(first) != started)
    finally:
        os.unlink(os.path.join(workspace, ".exec_history"))
        os.rmdir(workspace)


@as_root_and_ordinary
def test_a_keeper_killed_while_bubblewrap_works_leaves_nothing(who: str) -> None:
    """Each time a little later, as the processes have it."""

    async def steps(machine: Machine) -> None:
        for number in range(10):

            def enter_and_kill(self: BoxGroups, pid: int, looks: int = number * 40) -> None:
                for _ in range(looks):
                    _start_of(pid)
                os.kill(pid, signal.SIGKILL)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BoxGroups, "enter", enter_and_kill)
                with pytest.raises(IsolationUnavailable):
                    await machine.create("box", SPEC, session_id="s")
            await nothing_is_left(machine)

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_keeper_killed_while_its_box_is_built_leaves_nothing(who: str) -> None:
    async def steps(machine: Machine) -> None:
        keepers: list[int] = []
        enter, settle = BoxGroups.enter, BoxGroups.settle

        def note(self: BoxGroups, pid: int) -> None:
            keepers.append(pid)
            enter(self, pid)

        def settle_and_kill(self: BoxGroups, first_pid: int) -> None:
            settle(self, first_pid)
            os.kill(keepers[-1], signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoxGroups, "enter", note)
            patch.setattr(BoxGroups, "settle", settle_and_kill)
            with pytest.raises(IsolationUnavailable, match="the keeper ended"):
                await machine.create("box", SPEC, session_id="s")
        await nothing_is_left(machine)
        assert (await run(await new_box(machine), "echo now")).stdout == "now\n"

    on_a_machine(steps, who=who)


def test_what_bubblewrap_left_half_built_is_found_and_killed() -> None:
    """Its own process is held just before it tells its child to go on, and killed there."""

    def leave_one_and_kill_it() -> tuple[bool, bool]:
        become_ordinary()
        confine.set_subreaper()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _, full = os.pipe()
        os.set_blocking(full, False)
        try:
            while True:
                os.write(full, bytes(4096))
        except BlockingIOError:
            os.set_blocking(full, True)
        os.set_inheritable(full, True)
        line = [
            namespaces.BWRAP,
            "--unshare-all",
            "--die-with-parent",
            "--info-fd",
            str(full),
            "--ro-bind",
            "/",
            "/",
            "true",
        ]
        bwrap = os.posix_spawn(namespaces.BWRAP, line, {})
        wait_until(lambda: bool(_children_of(bwrap)))
        first = _children_of(bwrap)[0]
        os.kill(bwrap, signal.SIGKILL)
        wait_until(lambda: first in _children_of(os.getpid()))
        left = _start_of(first) is not None
        kill_strays(os.getpid())
        return left, _start_of(first) is None

    assert in_child(leave_one_and_kill_it) == (True, True)
