"""A box that is being built is bound to its builder: whoever of them dies, at whatever step, nothing goes on without them."""

import dataclasses
import json
import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host.birth import MAX_ORDER_BYTES
from coldframe.host.cgroups import BoxGroups
from coldframe.host.conversation import MAX_FILES
from coldframe.host.isolation import namespaces
from coldframe.host.limits import write_text
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


def _plan() -> namespaces.Plan:
    become_ordinary()
    folder = tempfile.mkdtemp(prefix="cf-build-")
    history = os.path.join(folder, ".exec_history")
    os.close(os.open(history, os.O_WRONLY | os.O_CREAT, 0o644))
    return namespaces.Plan(folder, history, {}, 512)


def test_a_first_process_whose_keeper_died_before_its_word_ends() -> None:
    def build_and_die() -> tuple[int, str | None, str]:
        plan = _plan()
        built = namespaces.build(plan, begun=lambda *_: None)
        return built.init, _start_of(built.init), plan.workspace

    first, started, workspace = in_child(build_and_die)
    try:
        assert started is not None
        wait_until(lambda: _start_of(first) != started)
    finally:
        os.unlink(os.path.join(workspace, ".exec_history"))
        os.rmdir(workspace)


def test_a_first_program_may_be_larger_than_a_socket_takes() -> None:
    """Where `sleep` is one name of a program that is all of coreutils."""

    def build() -> bool:
        plan = _plan()
        content = namespaces._first_program() + bytes(8 << 20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(namespaces, "_first_program", lambda: content)
            built = namespaces.build(plan, begun=lambda *_: None)
        shown = os.stat(f"/proc/{built.init}/root{namespaces.FIRST}").st_size
        os.kill(built.bwrap, signal.SIGKILL)
        os.waitpid(built.bwrap, 0)
        os.unlink(plan.history)
        os.rmdir(plan.workspace)
        return shown == len(content)

    assert in_child(build)


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

        def settle_and_kill(self: BoxGroups, *pids: int) -> None:
            settle(self, *pids)
            os.kill(keepers[-1], signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoxGroups, "enter", note)
            patch.setattr(BoxGroups, "settle", settle_and_kill)
            with pytest.raises(IsolationUnavailable, match="the keeper ended"):
                await machine.create("box", SPEC, session_id="s")
        await nothing_is_left(machine)
        assert (await run(await new_box(machine), "echo now")).stdout == "now\n"

    on_a_machine(steps, who=who)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs control groups")
def test_a_keeper_that_cannot_be_forked_is_told_and_the_zygote_goes_on() -> None:
    async def steps(machine: Machine) -> None:
        if "unified" not in machine._controllers.hierarchies:
            pytest.skip("needs a version 2 hierarchy")
        await new_box(machine, "first")
        zygote = machine._builder.zygote.process

        def removed(self: BoxGroups) -> list[tuple[str, int]]:
            gone = f"{self.paths['unified']}/gone"
            os.mkdir(gone)
            file = os.open(gone, os.O_RDONLY | os.O_DIRECTORY)
            os.rmdir(gone)
            return [("birthplace", file)]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoxGroups, "birthplaces", removed)
            with pytest.raises(IsolationUnavailable, match="no keeper could be forked"):
                await new_box(machine, "second")
        await new_box(machine, "third")
        assert machine._builder.zygote.process is zygote

    on_a_machine(steps)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs control groups")
@pytest.mark.parametrize("way", ["born", "moved", "delegated"])
def test_keeper_and_first_process_are_born_in_their_groups_or_moved_there(way: str) -> None:
    """`delegated` is how it is done where the mount option `nsdelegate` makes a namespace bound processes."""

    async def steps(machine: Machine) -> None:
        if "unified" not in machine._controllers.hierarchies:
            pytest.skip("needs a version 2 hierarchy")
        moved: list[str] = []
        spared: list[str] = []

        def note(path: str, text: str) -> None:
            if path.endswith("/cgroup.procs"):
                moved.append(path)
            if path.endswith("/oom_score_adj"):
                spared.append(path.split("/")[2])
            write_text(path, text)

        machine._controllers = dataclasses.replace(machine._controllers, delegated=way == "delegated")
        machine._builder._controllers = machine._controllers
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coldframe.host.cgroups.write_text", note)
            patch.setattr(BoxGroups, "let_out", lambda _: None)  # afterwards, where it has to be
            if way == "moved":
                patch.setattr(BoxGroups, "birthplaces", lambda _: [])
            await new_box(machine)
        own = machine._marks.read("box")
        assert own is not None
        unified = own.groups["unified"]
        keeper, init = f"{unified}/keeper/cgroup.procs", f"{unified}/box/init/cgroup.procs"
        assert moved == {"born": [], "moved": [keeper, init, init], "delegated": [init, init, keeper]}[way]
        assert spared[0] == str(own.init)
        assert set(spared) == set(Path(f"{unified}/box/init/cgroup.procs").read_text().split())
        for part, count in (("", 0), ("/keeper", 1), ("/box", 0), ("/box/init", 2)):
            assert len(Path(f"{unified}{part}/cgroup.procs").read_text().split()) == count, part
        for name in {"memory", "pids"} & own.groups.keys():
            inside = Path(own.groups[name], "cgroup.procs").read_text().split()
            assert len(inside) == 2
            assert str(own.init) in inside
            assert str(own.pid) not in inside
        report = await (await machine.life("box")).report()
        assert {one.kind for one in report.limits if "cgroup" in one.enforced_by} == {"cpu", "memory", "pids"}
        assert (await run(await machine.box("box"), "echo runs")).stdout == "runs\n"

    on_a_machine(steps)


@as_root_and_ordinary
def test_an_order_that_did_not_come_whole_is_refused_and_the_next_is_carried_out(who: str) -> None:
    async def steps(machine: Machine) -> None:
        builder = machine._builder
        builder.prepare()
        zygote, channel = builder.zygote.process, builder.zygote.start()
        assert zygote is not None
        for order, copies in (
            (b"{", 1),
            (b"[]", 1),
            (b'{"files": []}', 1),
            (b" " * MAX_ORDER_BYTES + b"{}", 1),
            (b"{}", 2 * MAX_FILES),
        ):
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with mine, theirs:
                mine.settimeout(10)
                socket.send_fds(channel, [order], [theirs.fileno()] * copies)
                theirs.close()
                assert "could not be read" in json.loads(mine.recv(65536))["failed"]
        socket.send_fds(channel, [b"{"], [])
        await new_box(machine)
        assert builder.zygote.process is zygote

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_box_whose_order_is_too_long_is_refused_before_it_is_sent(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "first")
        zygote = machine._builder.zygote.process
        spec = SandboxSpec(agent_id="other", denied_programs=("no-such-program",), on_missing="degrade")
        denied = {"denied": ["x" * MAX_ORDER_BYTES], "denied_links": []}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coldframe.host.construction.denied_here", lambda _: denied)
            with pytest.raises(IsolationUnavailable, match="deny fewer programs"):
                await machine.create("second", spec, session_id="s")
        assert os.listdir(os.path.join(machine._data, "boxes")) == ["first"]
        await new_box(machine, "third")
        assert machine._builder.zygote.process is zygote

    on_a_machine(steps, who=who)
