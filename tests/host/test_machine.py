"""One machine makes, finds again, ends and sweeps its boxes; what fails or is broken off leaves nothing."""

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import Ended
from coldframe.contract.errors import GuestLost, Internal, InvalidArgument, IsolationUnavailable, NotFound, WrongState
from coldframe.contract.sandbox import LARGEST, Limits, SandboxSpec
from coldframe.guest.digests import LEAST_BYTES
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.machine import Machine
from coldframe.host.marks import KeeperMark
from coldframe.host.processes import process_start
from coldframe.host.removal import remove_directory
from coldframe.host.stacks import HISTORY
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until

pytestmark = needs_bubblewrap
SPEC = SandboxSpec(agent_id="agent", on_missing="degrade")


def made(machine: Machine) -> dict[str, Any]:
    """What there is of boxes: directories, processes with the workspace mounted, groups."""
    data = machine._data
    groups = [
        path
        for hierarchy in machine._controllers.hierarchies.values()
        for path in Path(hierarchy.base, f"coldframe-{machine.installation}").glob("*")
        if path.is_dir() and path.name != "daemon"
    ]
    processes = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                mounts = Path("/proc", entry, "mountinfo").read_text(errors="replace")
            except OSError:
                continue
            if f"{os.path.basename(os.path.dirname(data))}/" in mounts:
                processes.append(int(entry))
    return {"boxes": os.listdir(os.path.join(data, "boxes")), "groups": groups, "processes": processes}


NOTHING: dict[str, list[str]] = {"boxes": [], "groups": [], "processes": []}


async def nothing_is_left(machine: Machine) -> None:
    async def left() -> bool:
        return made(machine) == NOTHING

    await until(left, "nothing is left of the box")


@as_root_and_ordinary
def test_a_box_that_bubblewrap_cannot_build_leaves_nothing(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create_workspace("agent")
        os.unlink(os.path.join(machine.workspaces.of_agent("agent"), HISTORY))
        with pytest.raises(IsolationUnavailable, match="exec_history"):
            await machine.create("box", SPEC, session_id="s")
        await nothing_is_left(machine)
        with pytest.raises(NotFound):
            await machine.box("box")

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_what_is_kept_of_commands_is_removed_alone_or_with_all_of_a_sandbox_without_a_box(who: str) -> None:
    async def kept(machine: Machine, command_id: str) -> bool:
        try:
            return any([isinstance(event, Ended) async for event in await machine.stored("box", command_id)])
        except NotFound:
            return False

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        ended = [(await run(box, "echo x")).result.command_id for _ in range(2)]
        with pytest.raises(InvalidArgument):
            await machine.forget_stored("box", [ended[0], "../keeper"])
        assert [await kept(machine, one) for one in ended] == [True, True]
        for _ in range(2):
            await machine.forget_stored("box", ended[:1])
            assert [await kept(machine, one) for one in ended] == [False, True]
        with pytest.raises(WrongState):
            await machine.forget_stored("box")
        assert (await run(box, "echo on")).stdout == "on\n"
        await machine.end_box("box")
        for _ in range(2):
            await machine.forget_stored("box")
        assert not os.path.exists(machine._marks.directory("box"))

    on_a_machine(steps, who=who)


FILL = "; ".join(f"dd if=/dev/zero of={path}/a bs=4k 2>/dev/null" for path in ("/dev/shm", "/tmp", "/var/tmp"))


async def _holds_the_small_ones_alone(mark: KeeperMark) -> bool:
    inside = Path(mark.groups["memory"], "cgroup.procs").read_text().split()
    return all(Path(f"/proc/{pid}/oom_score_adj").read_text() == "-1000\n" for pid in inside) or len(inside) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs control groups")
def test_a_box_outlives_its_memory_when_nothing_in_it_is_larger_than_what_holds_it_up() -> None:
    """Files in memory belong to no process, so the kernel has but small ones to choose from."""

    async def steps(machine: Machine) -> None:
        box = await new_box(machine, limits=Limits(memory_mib=64, pids=256))
        mark = machine._marks.read("box")
        if mark is None or "memory" not in mark.groups:
            pytest.skip("needs a memory controller of version 1")

        await until(lambda: _holds_the_small_ones_alone(mark), "bubblewrap is out of the way")
        await run(box, f"exec sh -c '{FILL}; i=0; while [ $i -lt 240 ]; do i=$((i+1)); sleep 60 & done'")
        assert mark.alive()
        assert Path(f"/proc/{mark.init}/comm").read_text() == "sleep\n"
        await run(box, "rm /dev/shm/a /tmp/a")  # which may be killed, but finds its box

    on_a_machine(steps)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs control groups")
def test_commands_that_start_when_memory_is_used_up_take_no_keeper_along() -> None:
    """Until exec they are larger than all that is there, and the kernel ends whoever shares memory with the one it chooses."""

    async def steps(machine: Machine) -> None:
        box = await new_box(machine, limits=Limits(memory_mib=64, pids=256))
        mark = machine._marks.read("box")
        if mark is None or "memory" not in mark.groups:
            pytest.skip("needs a memory controller of version 1")
        await until(lambda: _holds_the_small_ones_alone(mark), "bubblewrap is out of the way")
        more = "sh -c 'while :; do sleep 1 & done' >/dev/null 2>&1 &"
        await run(box, f"({FILL}) >/dev/null 2>&1; {more} {more} {more}")
        for _ in range(40):
            await run(box, "true")
        assert mark.alive()

    on_a_machine(steps)


@as_root_and_ordinary
def test_a_box_whose_limits_cannot_be_set_leaves_nothing(who: str) -> None:
    """The keeper is ready by then and serves; nobody else would know of it."""

    async def steps(machine: Machine) -> None:
        def settle(self: BoxGroups, *_: int) -> None:
            raise ConfineError("limit the box", "as the test wants it")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoxGroups, "settle", settle)
            with pytest.raises(IsolationUnavailable, match="as the test wants it"):
                await machine.create("box", SPEC, session_id="s")
        await nothing_is_left(machine)
        assert (await run(await new_box(machine), "echo now")).stdout == "now\n"

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_creation_that_is_broken_off_leaves_nothing(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "first", agent="first")
        await machine.end_box("first")
        for delay_s in (0.0, 0.005, 0.02, 0.05):
            creating = asyncio.create_task(machine.create("box", SPEC, session_id="s"))
            await asyncio.sleep(delay_s)
            creating.cancel()
            try:
                await creating
                await machine.end_box("box")
            except asyncio.CancelledError:
                assert not os.path.exists(machine._marks.directory("box"))
            else:
                await machine._endings.finish()  # the next one has the same name, which else is never used again
                await asyncio.to_thread(remove_directory, machine._marks.directory("box"))

        async def left() -> bool:
            return not made(machine)["processes"] and not made(machine)["groups"]

        await until(left, "no keeper came to be unseen")

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_an_embedded_machine_ends_its_own_boxes_and_not_those_that_it_has_found(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        await machine.close()
        meanwhile = Machine(machine._data, embedded=True)
        assert (await run(await meanwhile.box("box"), "echo there")).stdout == "there\n"
        await new_box(meanwhile, "own")
        await meanwhile.close()
        again = Machine(machine._data)
        machine.__dict__.update(again.__dict__)  # closed in its place at the end
        assert [(status.sandbox_id, status.state) for status in await again.boxes()] == [("box", "running")]
        assert (await run(await again.box("box"), "echo still there")).stdout == "still there\n"

    on_a_machine(steps, who=who, embedded=False)


@as_root_and_ordinary
def test_a_machine_that_starts_again_finds_its_boxes_and_their_commands(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        running = asyncio.create_task(
            run(box, "echo begun; until [ -e go ]; do sleep 0.02; done; exit 4", command_id="c")
        )
        out = Path(machine._marks.directory("box"), "records", "c.out")
        await until(lambda: asyncio.to_thread(out.exists), "the command writes")
        await machine.close()
        running.cancel()
        again = Machine(machine._data)
        machine.__dict__.update(again.__dict__)  # closed in its place at the end
        found = await again.box("box")
        assert [status.state for status in await again.boxes()] == ["running"]
        await run(found, "touch go")
        *_, last = [event async for event in found.follow("c")]
        assert isinstance(last, Ended)
        assert last.result.exit_code == 4
        assert (await (await again.life("box")).report()).level == "namespaces"

    on_a_machine(steps, who=who, embedded=False)


def test_the_zygote_may_be_killed_at_any_time() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        for number in range(3):
            assert machine._builder.zygote.process is not None
            machine._builder.zygote.process.kill()
            if number == 1:
                machine._builder.zygote.process.wait()
            try:
                other = await new_box(machine, f"other-{number}", agent=f"other-{number}")
            except IsolationUnavailable:  # it took the order and died with it: nothing is left, and the next one works
                other = await new_box(machine, f"other-{number}", agent=f"other-{number}")
            assert (await run(other, "echo other")).stdout == "other\n"
        assert (await run(box, "echo first")).stdout == "first\n"
        assert machine._builder.zygote.process is not None
        os.kill(machine._builder.zygote.process.pid, signal.SIGSTOP)  # and one that is stopped holds nobody up for good

    on_a_machine(steps)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at a keeper's descriptors")
def test_a_keeper_holds_nothing_of_the_zygote_or_of_other_keepers() -> None:
    async def steps(machine: Machine) -> None:
        keepers = []
        for number in range(3):
            await new_box(machine, f"box-{number}", agent=f"agent-{number}")
            mark = machine._marks.read(f"box-{number}")
            assert mark is not None
            keepers.append(mark.pid)

            def held(pid: int) -> list[str]:
                return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]

            async def settled(pid: int = mark.pid) -> bool:
                now = held(pid)
                return sum(one.startswith("socket:") for one in now) == 2 and "anon_inode:inotify" in now

            await until(settled, "it serves, and holds its listener and the capture, and no other socket")
            assert not any("/boxes/" in one and f"box-{number}" not in one for one in held(mark.pid))

        async def alike() -> bool:
            return len({len(held(pid)) for pid in keepers}) == 1

        await until(alike, "all have prepared their first command, and the last holds no more than the first")

    on_a_machine(steps)


@as_root_and_ordinary
def test_a_large_file_is_digested_once_for_all_sandboxes_on_it(who: str) -> None:
    """Shown by a digest that no content has."""

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, f"head -c {LEAST_BYTES} /dev/zero > large")
        kept = Path(machine._data, "host", "digests", "workspace-agent")

        async def noted() -> bool:
            await run(box, "touch small")  # once its time is past
            return kept.read_bytes() != b""

        await until(noted, "its digest is kept")
        identity, digest = kept.read_text().rstrip("\n").rsplit(" ", 1)
        assert digest == hashlib.sha256(bytes(LEAST_BYTES)).hexdigest()
        assert os.stat(kept).st_mode & 0o777 == 0o600
        kept.write_text(f"{identity} {'a' * 64}\n")
        changed = await run(await new_box(machine, "another"), "echo more >> large")
        (change,) = (one for one in changed.result.files.changes if one.path == "large")
        assert change.sha256_before == "a" * 64
        assert change.sha256_after == hashlib.sha256(bytes(LEAST_BYTES) + b"more\n").hexdigest()

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_keeper_that_died_is_told_and_its_box_is_gone_before_its_end_is_told(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        mark = machine._marks.read("box")
        assert mark is not None
        await run(box, "sleep 100 & sleep 100 &")
        os.kill(mark.pid, signal.SIGKILL)
        with pytest.raises(GuestLost):
            await run(box, "true")
        # At once: its sockets close before it is gone, and whoever saw that asks.
        assert [status.state for status in await machine.boxes()] == ["lost"]
        await until(lambda: asyncio.to_thread(lambda: not mark.alive()), "the keeper is gone")
        with pytest.raises(GuestLost):
            await machine.box("box")
        await machine.end_box("box")
        assert process_start(mark.init) != mark.init_started
        assert await machine.boxes() == []

    on_a_machine(steps, who=who)


def test_the_number_of_a_keeper_that_another_process_has_now_is_not_taken_for_it() -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine)
        path = Path(machine._marks.directory("box"), "keeper.json")
        stranger = await asyncio.create_subprocess_exec("sleep", "60")
        try:
            mark = json.loads(path.read_text())
            real, mark["pid"] = mark["pid"], stranger.pid
            path.write_text(json.dumps(mark))
            machine._lives.clear()
            with pytest.raises(GuestLost):
                await machine.box("box")
            path.write_text(json.dumps({**mark, "pid": real}))
            await machine.end_box("box")
            assert stranger.returncode is None
        finally:
            stranger.kill()
            await stranger.wait()

    on_a_machine(steps)


@as_root_and_ordinary
def test_a_sweep_ends_what_belongs_to_nothing_and_leaves_the_rest(who: str) -> None:
    async def steps(machine: Machine) -> None:
        kept = await new_box(machine, "kept", agent="kept")
        await new_box(machine, "unwanted", agent="unwanted")
        await new_box(machine, "unmarked", agent="unmarked")
        left = machine._marks.directory("unmarked")
        os.unlink(os.path.join(left, "keeper.json"))  # its daemon was killed before it wrote
        for name in ("background/session-old", "background/session-kept", "workspace/x.gone-1", "workspace/x.new-2"):
            os.makedirs(os.path.join(machine._data, name, "deep"))
        removed = await machine.sweep(keep_boxes={"kept"}, keep_sessions={"session-kept"})
        assert {"box unwanted", "box unmarked", "background/session-old", "workspace/x.gone-1"} <= set(removed)
        assert os.listdir(left) == os.listdir(machine._marks.directory("unwanted")) == ["records"]
        assert sorted(os.listdir(os.path.join(machine._data, "workspace"))) == ["kept", "unmarked", "unwanted"]
        assert os.listdir(os.path.join(machine._data, "background")) == ["session-kept"]
        assert (await run(kept, "echo alive")).stdout == "alive\n"

        async def others_are_gone() -> bool:
            return len(made(machine)["processes"]) <= 3  # bubblewrap, the first process, the keeper

        await until(others_are_gone, "the other boxes are gone")

    on_a_machine(steps, who=who)


def test_what_is_no_box_below_boxes_is_let_alone() -> None:
    async def steps(machine: Machine) -> None:
        os.mkdir(os.path.join(machine._data, "boxes", "lost+found"))
        box = await new_box(machine)
        assert [one.sandbox_id for one in await machine.boxes()] == ["box"]
        await machine.sweep(keep_boxes={"box"}, keep_sessions=set())
        assert (await run(box, "echo alive")).stdout == "alive\n"
        assert os.path.exists(os.path.join(machine._data, "boxes", "lost+found"))

    on_a_machine(steps)


def test_a_sweep_does_not_touch_what_is_being_built() -> None:
    async def steps(machine: Machine) -> None:
        for number in range(4):
            spec = SandboxSpec(background=True, on_missing="degrade")
            creating = asyncio.create_task(machine.create(f"box-{number}", spec, session_id=f"session-{number}"))
            await asyncio.sleep(0.005 * number)
            await machine.sweep(keep_boxes={f"box-{one}" for one in range(number)}, keep_sessions=set())
            await creating
            with pytest.raises(InvalidArgument):
                await machine.box("../box")
            await machine.end_box(f"box-{number}")

    on_a_machine(steps)


def test_a_workspace_cannot_be_deleted_beneath_a_box_not_even_one_that_is_being_built() -> None:
    async def steps(machine: Machine) -> None:
        creating = asyncio.create_task(machine.create("box", SPEC, session_id="s"))
        await asyncio.sleep(0.005)
        with pytest.raises(WrongState):
            await machine.delete_workspace("agent")
        await creating
        with pytest.raises(WrongState):
            await machine.delete_workspace("agent")
        await machine.end_box("box")
        await machine.delete_workspace("agent")
        assert os.listdir(os.path.join(machine._data, "workspace")) == []

    on_a_machine(steps)


@pytest.fixture(params=["link", "pipe", "directory", "foreign"])
def strange(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_history_is_only_ever_written_to_the_file_that_was_made_for_it(strange: str) -> None:
    async def steps(machine: Machine) -> None:
        await machine.create_workspace("agent")
        await machine.append_history("agent", None, b"one\n")
        path = os.path.join(machine.workspaces.of_agent("agent"), HISTORY)
        assert Path(path).read_bytes() == b"one\n"
        outside = Path(machine._data, "outside")
        outside.write_bytes(b"")
        os.unlink(path)
        if strange == "link":
            os.symlink(outside, path)
        elif strange == "pipe":
            os.mkfifo(path)
        elif strange == "directory":
            os.mkdir(path)
        else:
            Path(path).touch()
            os.chown(path, 2_000_000, 2_000_000)
        with pytest.raises((OSError, Internal)):
            await machine.append_history("agent", None, b"two\n")
        assert outside.read_bytes() == b""
        await machine.delete_workspace("agent")
        await machine.append_history("agent", None, b"late\n")  # nothing to write to any more is fine

    on_a_machine(steps)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"at": 1}', b"[" * 100_000])
def test_a_damaged_record_is_told_and_is_no_fault_of_the_host(damage: bytes) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        await run(box, "echo out", command_id="c")
        await machine.end_box("box")
        records = Path(machine._marks.directory("box"), "records")
        whole = [event async for event in await machine.stored("box", "c")]
        assert [type(event).__name__ for event in whole] == ["Started", "OutputChunk", "Ended"]
        record = records / "c.record"
        start = record.read_bytes().splitlines(keepends=True)[0]
        record.write_bytes(start + damage + b"\n")
        try:
            rest = [event async for event in await machine.stored("box", "c")]
        except GuestLost:
            pass
        else:
            assert not any(isinstance(event, Ended) for event in rest)
        record.write_bytes(start[:-1])  # a line without its end is none
        with pytest.raises(NotFound):
            _ = [event async for event in await machine.stored("box", "c")]
        record.unlink()
        os.mkfifo(record)
        with pytest.raises(NotFound):
            _ = [event async for event in await machine.stored("box", "c")]

    on_a_machine(steps)


@as_root_and_ordinary
def test_with_the_largest_limits_that_can_be_asked_for_commands_run(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine, limits=LARGEST)
        ended = await run(box, "echo ran")
        assert (ended.result.exit_code, ended.stdout, ended.stderr) == (0, "ran\n", "")

    on_a_machine(steps, who=who)
