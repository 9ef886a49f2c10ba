"""Boxes that wait become the next sandboxes: the same walls, no difference to see, each used once, and nothing left of any."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coldframe.contract.errors import IsolationUnavailable
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import Limits, SandboxSpec
from coldframe.contract.snapshot import SnapshotWish, WorkspacePoint
from coldframe.host import attachment
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.isolation import namespaces
from coldframe.host.machine import Machine
from coldframe.host.pool import AGAIN_AFTER, OWN_USER, Pool, ReadyBox, Wish
from coldframe.host.stacks import HISTORY
from coldframe.host.workspaces import Workspaces
from tests.host.egress.world import SITE
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.networked import READ, Networked, on_a_networked_machine, rules
from tests.host.test_machine import nothing_is_left

pytestmark = needs_bubblewrap
SIZE = 2


def keeper_of(machine: Machine, name: str) -> int:
    mark = machine._marks.read(name)
    assert mark is not None
    return mark.pid


async def waiting(machine: Machine, count: int = 1) -> list[ReadyBox]:
    """So many boxes that wait, once there are; and nothing more is being built."""
    builder = machine._builder
    pool = builder.pool

    async def there() -> bool:
        is_built = len(pool.boxes()) >= count and pool.lacking() is None
        return is_built and builder.ahead.keeper is not None and not builder._filling.locked()

    await until(there, f"{count} boxes wait", timeout_s=30)
    return pool.boxes()


def have_boxes_wait(machine: Machine) -> None:
    machine._builder.pool.size = SIZE
    settings = machine._settings.current()
    # Whatever others do to /etc of this machine meanwhile.
    machine._settings.current = lambda: settings  # type: ignore[method-assign]


async def temporary(machine: Machine, name: str) -> None:
    await machine.create(name, SandboxSpec(background=True, on_missing="degrade"), session_id=f"session-{name}")


def with_boxes_that_wait(steps: Callable[[Machine], Awaitable[None]], *, who: str) -> None:
    """*steps* on a machine that has built one sandbox, `first`, and has one waiting."""

    async def whole(machine: Machine) -> None:
        have_boxes_wait(machine)
        await machine.prepare()
        await temporary(machine, "first")
        await waiting(machine)
        await steps(machine)

    on_a_machine(whole, who=who)


@as_root_and_ordinary
@pytest.mark.req("T3.62")
def test_there_is_none_before_the_first_sandbox_and_each_becomes_one_sandbox(who: str) -> None:
    async def steps(machine: Machine) -> None:
        have_boxes_wait(machine)
        await machine.prepare()
        assert machine._builder.pool.boxes() == []
        keepers = set[int]()
        for name in ("one", "two", "three", "four"):
            ready = {box.pid for box in machine._builder.pool.boxes()}
            await temporary(machine, name)
            assert (keeper_of(machine, name) in ready) is (name != "one")
            keepers.add(keeper_of(machine, name))
            done = await run(await machine.box(name), f"pwd; echo {name} > file; cat file; ls -A")
            assert done.stdout.split() == ["/home/user", name, ".exec_history", "file"]
            await waiting(machine)
        assert len(keepers) == 4
        assert {status.sandbox_id for status in await machine.boxes()} == {"one", "two", "three", "four"}
        assert len(await waiting(machine, 2)) == 2

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_box_that_waited_is_measured_and_seen_as_one_that_was_built_for_its_sandbox(who: str) -> None:
    look = (
        "cat /proc/self/mountinfo; id; stat -c '%n %a %u %g' / /* /home/user /home/user/.exec_history /tmp /opt/coldframe/*; env; "
        "grep -E '^(Cap|NoNew|Seccomp|Uid|Gid|Groups)' /proc/self/status /proc/1/status; ls /proc/self/fd; "
        "cat /proc/net/dev /proc/net/route; cat /proc/1/limits; ls /proc; echo x >> .exec_history; ps -eo pid,ppid,user,args"
    )

    def seen(text: str, machine: Machine, name: str) -> list[str]:
        """Without what every box has of its own."""
        text = re.sub(rf"session-{name}\b", "SESSION", text)
        text = re.sub(r"\b20000\d\d\b", "USER", text)
        text = re.sub(r"(?m)^\d+ \d+ (0:\d+ )?", "", text)
        text = re.sub(r"/bindfile\w+", "BINDFILE", text)
        text = re.sub(r"COMMAND_ID=\S+|\d\d:\d\d(:\d\d)?|command-\d+", "", text)
        return sorted(text.splitlines())

    async def steps(machine: Machine) -> None:
        pids = {box.pid for box in machine._builder.pool.boxes()}
        spec = SandboxSpec(background=True, on_missing="degrade")
        warm = await machine.create("warm", spec, session_id="session-warm")
        assert keeper_of(machine, "warm") in pids
        cold = await (await machine.life("first")).report()
        again = await (await machine.life("warm")).report()
        for measured in (warm, again):
            assert [(one.name, one.state) for one in measured.properties] == [
                (one.name, one.state) for one in cold.properties
            ]
            assert {one.target: one for one in measured.mounts} == {one.target: one for one in cold.mounts}
            assert [(one.kind, one.limit, one.strength) for one in measured.limits] == [
                (one.kind, one.limit, one.strength) for one in cold.limits
            ]
            assert measured.first_process is not None and cold.first_process is not None
            without_user = {"uid_map": (), "gid_map": ()}
            assert measured.first_process.model_copy(update=without_user) == cold.first_process.model_copy(
                update=without_user
            )
            assert measured.interfaces == cold.interfaces
        texts = {name: (await run(await machine.box(name), look)).stdout for name in ("first", "warm")}
        assert seen(texts["warm"], machine, "warm") == seen(texts["first"], machine, "first")

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_what_waits_runs_nothing_has_nobodys_files_and_is_no_sandbox(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = (await waiting(machine))[0]
        inside = (
            sorted(Path(f"/proc/{pid}/mountinfo").read_text() for pid in (box.begun["init"],)) if who == "root" else []
        )
        assert all("workspace/" not in text and "background/" not in text for text in inside)
        assert box.uid not in (0, None)
        assert [status.sandbox_id for status in await machine.boxes()] == ["first"]
        assert machine._marks.names() == ["first"]
        if who == "root":
            assert box.uid != machine._marks.read("first").uid  # type: ignore[union-attr]
            assert machine.workspaces.is_reserved(box.uid)

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_a_sandbox_that_asks_for_something_else_is_built_for_it(who: str) -> None:
    async def steps(machine: Machine) -> None:
        ready = {box.pid for box in await waiting(machine)}
        await new_box(machine, "smaller", limits=Limits(memory_mib=128))
        assert keeper_of(machine, "smaller") not in ready
        spec = SandboxSpec(background=True, on_missing="degrade", denied_programs=("curl",))
        await machine.create("without", spec, session_id="session-without")
        assert keeper_of(machine, "without") not in ready
        await waiting(machine, 2)
        for name in (
            "again",
            "once-more",
        ):  # what waits now are boxes of their kind, the program covered once there is an occupant
            ready = {box.pid for box in await waiting(machine, 2)}
            await machine.create(name, spec, session_id=f"session-{name}")
            assert keeper_of(machine, name) in ready
            assert (await run(await machine.box(name), "curl --version")).result.exit_code != 0
            report = await (await machine.life(name)).report()
            assert [one.state for one in report.properties if one.name == "denied_programs"] == ["enforced"]

    with_boxes_that_wait(steps, who=who)


def test_as_root_a_new_workspace_is_the_users_of_whom_a_box_waits_and_one_that_is_there_keeps_its_own() -> None:
    async def steps(machine: Machine) -> None:
        made = list[int]()
        for agent in ("one", "two"):
            box = (await waiting(machine))[0]
            await new_box(machine, agent, agent=agent)
            assert keeper_of(machine, agent) == box.pid
            made.append(os.stat(machine.workspaces.of_agent(agent)).st_uid)
            assert made[-1] == box.uid
        assert made[0] != made[1]
        await new_box(machine, "second", agent="one")  # none of this user waits
        await waiting(machine, 2)
        ready = {box.pid: box.uid for box in machine._builder.pool.boxes()}
        assert made[0] in ready.values()
        await new_box(machine, "third", agent="one")
        assert ready[keeper_of(machine, "third")] == made[0]
        assert os.stat(machine.workspaces.of_agent("one")).st_uid == made[0]

    if os.geteuid() != 0:
        pytest.skip("needs root: else all boxes have the one user")
    with_boxes_that_wait(steps, who="root")


def test_the_user_of_whom_a_box_waits_is_given_to_one_workspace_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: else all workspaces have the one user")
    for name in ("workspace", "background"):
        (tmp_path / name).mkdir()
    workspaces = Workspaces(str(tmp_path))
    spare = workspaces.reserve_user()
    workspaces.spare_user = lambda: spare if workspaces.is_reserved(spare) else None
    paths = [workspaces.of_session(f"session-{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as many:
        list(many.map(workspaces.make, paths))
    users = [os.stat(path).st_uid for path in paths]
    assert len(set(users)) == 6
    assert spare in users
    assert [workspaces.begin_use(paths[0]), workspaces.begin_use(paths[0])] == [True, False]


def test_a_box_whose_user_was_given_to_a_workspace_that_is_being_made_waits_for_it(tmp_path: Path) -> None:
    ended: list[ReadyBox] = []
    for name in ("workspace", "background"):
        (tmp_path / name).mkdir()
    workspaces = Workspaces(str(tmp_path))
    pool = Pool(SIZE, ended.append, workspaces)
    wish = Wish("key", OWN_USER, {}, Limits())

    class Standing(ReadyBox):
        def stands(self) -> bool:
            return True

    box = Standing(wish, workspaces.reserve_user(), 0, {}, None, -1, -1, None, None)  # type: ignore[arg-type]
    pool.ask(wish)
    pool.add(box, 0)
    assert pool.spare_user() == box.uid
    workspaces.release_user(box.uid)  # as when it becomes the workspace's
    assert pool.spare_user() is None
    assert pool.lacking() is None
    assert pool.take("key", box.uid, lambda: None) is box
    pool.add(box, 0)
    pool.ask(wish)  # a sandbox was built: whoever was given the user did not take the box
    assert pool.lacking() is not None
    assert ended == [box]


@as_root_and_ordinary
def test_a_workspace_that_has_snapshots_comes_into_it_and_so_does_one_that_begins_as_a_snapshot(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine, "before")
        await run(box, "mkdir -p kept; echo one > kept/file")
        await machine.end_box("before", keep_workspace=True)
        await machine._endings.finish()
        taken = await machine.snapshots.take(WorkspacePoint(agent_id="agent"), SnapshotWish(label=Label.PUBLIC))
        await new_box(machine, "between")
        ready = {one.pid for one in await waiting(machine, 2)}
        box = await new_box(machine, "after")
        assert keeper_of(machine, "after") in ready
        done = await run(
            box,
            "cat kept/file; echo two >> kept/file; echo x > new; cat kept/file; echo x >> .exec_history; rm new; ls",
        )
        assert done.stdout.split() == ["one", "one", "two", "integrations", "kept", "scratch", "skills"]
        await waiting(machine, 2)
        spec = SandboxSpec(agent_id="fork", snapshot=taken.snapshot_id, on_missing="degrade")
        await machine.create("fork", spec, session_id="session-fork")
        assert (await run(await machine.box("fork"), "cat kept/file; stat -c %u kept/file")).stdout == "one\n1000\n"
        assert [one.state for one in (await (await machine.life("after")).report()).properties if one.required] == [
            one.state for one in (await (await machine.life("between")).report()).properties if one.required
        ]

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_many_at_once_all_get_a_box_and_no_two_the_same(who: str) -> None:
    async def steps(machine: Machine) -> None:
        names = [f"many-{number}" for number in range(6)]
        for name in names[:2]:  # made before their first sandbox, as those of agents are
            await machine.create_workspace(name)
        await asyncio.gather(
            *(new_box(machine, name, agent=name) for name in names[:2]),
            *(temporary(machine, name) for name in names[2:]),
        )
        assert len({keeper_of(machine, name) for name in names}) == 6
        for name in names:
            assert (await run(await machine.box(name), f"echo {name} > mine; cat mine")).stdout == f"{name}\n"
        if who == "root":
            assert len({machine._marks.read(name).uid for name in names}) == 6  # type: ignore[union-attr]

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
@pytest.mark.parametrize("whom", ["keeper", "first process"])
def test_one_that_is_killed_while_it_waits_is_not_missed(who: str, whom: str) -> None:
    async def steps(machine: Machine) -> None:
        boxes = await waiting(machine)
        for box in boxes:
            os.kill(box.pid if whom == "keeper" else box.begun["init"], signal.SIGKILL)

        async def gone() -> bool:
            return not any(box.stands() for box in boxes)

        await until(gone, "they are gone")
        await temporary(machine, "next")
        assert (await run(await machine.box("next"), "echo built")).stdout == "built\n"
        assert keeper_of(machine, "next") not in {box.pid for box in boxes}

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_they_end_with_the_machine_that_they_wait_for(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = (await waiting(machine))[0]
        box.answer.shutdown(2)  # as `kill -9` of the daemon does

        async def gone() -> bool:
            return not any(os.path.exists(f"/proc/{pid}") for pid in (box.pid, *box.begun.values()))

        await until(gone, "it is gone")

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_other_rules_and_other_settings_of_the_host_end_what_waits(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(machine: Machine) -> None:
        ready = await waiting(machine)
        await machine.use_network_rules("version: 1\n")
        assert machine._builder.pool.boxes() == []
        assert not any(os.path.exists(f"/proc/{box.pid}") for box in ready)
        await temporary(machine, "next")
        ready = await waiting(machine)
        current = machine._settings.current()
        with monkeypatch.context() as patch:
            patch.setattr(machine._settings, "current", lambda: None)
            await temporary(machine, "other")
        assert keeper_of(machine, "other") not in {box.pid for box in ready}
        assert current is None or machine._marks.read("other").settings is None  # type: ignore[union-attr]

    with_boxes_that_wait(steps, who=who)


@pytest.mark.parametrize(("failing", "are_back"), [(("a", "b", "c"), True), (("a", "", "c"), False)])
def test_workspaces_that_cannot_be_given_to_a_box_keep_boxes_away_for_some_sandboxes_and_not_for_ever(
    tmp_path: Path, failing: tuple[str, ...], are_back: bool
) -> None:
    pool = Pool(SIZE, lambda _: None, Workspaces(str(tmp_path)))
    wish = Wish("key", OWN_USER, {}, Limits())
    for workspace in failing:
        pool.ask(wish)
        pool.note_failure(workspace, "its history is no file")
    assert pool.refused == "its history is no file" and pool.lacking() is None
    for _ in range(AGAIN_AFTER - 1):
        pool.ask(wish)
    assert pool.refused is not None
    pool.ask(wish)
    assert (pool.refused is None, pool.lacking() is not None) == (are_back, are_back)
    for workspace in ("a", "a", "b"):
        pool.note_failure(workspace, "again")
    assert (pool.refused is None) is are_back, "two workspaces are not three"


@as_root_and_ordinary
def test_a_box_that_cannot_take_its_workspace_is_given_up_and_another_one_is_built(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(machine: Machine) -> None:
        box = (await waiting(machine))[0]
        with monkeypatch.context() as patch:
            patch.setattr(attachment, "identity_of", lambda _: (0, 0))
            await temporary(machine, "next")
        assert keeper_of(machine, "next") != box.pid
        assert (await run(await machine.box("next"), "echo built")).stdout == "built\n"
        assert not os.path.exists(f"/proc/{box.pid}")

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_a_history_that_an_agent_has_replaced_is_not_followed(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await new_box(machine, "before")
        await new_box(machine, "between")
        ready = {box.pid for box in await waiting(machine, 2)}
        history = os.path.join(machine.workspaces.of_agent("agent"), HISTORY)
        os.unlink(history)
        os.symlink("/etc/shadow", history)
        with pytest.raises(ConfineError):
            attachment.copy_trees(
                attachment.Place(os.path.dirname(history), attachment.identity_of(os.path.dirname(history)), history)
            )
        try:
            await new_box(machine, "after")
        except IsolationUnavailable:
            return
        assert keeper_of(machine, "after") not in ready

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_nothing_is_left_of_them_and_a_sweep_spares_those_that_wait(who: str) -> None:
    async def steps(machine: Machine) -> None:
        left = BoxGroups(machine._controllers, machine.installation, "ahead-of-a-daemon-before")
        left.create_ahead()
        ready = await waiting(machine)
        for _ in range(2):
            await machine.sweep(keep_boxes={"first"}, keep_sessions={"session-first"})
        assert not any(os.path.exists(path) for path in left.paths.values())
        assert [box.pid for box in machine._builder.pool.boxes()] == [box.pid for box in ready]
        await temporary(machine, "next")
        assert keeper_of(machine, "next") in {box.pid for box in ready}
        assert (await run(await machine.box("next"), "ls /etc/passwd && id -u")).stdout == "/etc/passwd\n1000\n"
        for name in ("first", "next"):
            await machine.end_box(name)
            await machine.forget_stored(name)
        await asyncio.to_thread(machine._builder.pool.empty, closes=True)
        await asyncio.to_thread(machine._builder.ahead.close)
        await nothing_is_left(machine)

    with_boxes_that_wait(steps, who=who)


@as_root_and_ordinary
def test_their_memory_is_told(who: str) -> None:
    async def steps(machine: Machine) -> None:
        await waiting(machine)
        held = await asyncio.to_thread(machine._builder.pool.memory_bytes)
        assert 100_000 < held < 100_000_000

    with_boxes_that_wait(steps, who=who)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@as_root_and_ordinary
def test_they_leave_no_descriptor_behind(who: str) -> None:
    async def steps(machine: Machine) -> None:
        async def one(name: str) -> None:
            await temporary(machine, name)
            await machine.end_box(name)
            await machine._endings.finish()
            await waiting(machine, 2)

        for name in ("warm-up", "again"):
            await one(name)
        before = descriptors()
        for number in range(4):
            await one(f"later-{number}")
        assert descriptors() <= before

    with_boxes_that_wait(steps, who=who)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@as_root_and_ordinary
def test_one_with_a_way_out_gets_it_when_it_gets_its_occupant(who: str) -> None:
    async def steps(made: Networked) -> None:
        machine = made.host
        assert isinstance(machine, Machine)
        await made.host.use_network_rules(rules(READ))
        have_boxes_wait(machine)
        await machine.prepare()
        await made.box("cold", agent="one")
        ready = {box.pid for box in await waiting(machine)}
        await made.box("warm", agent="two")
        assert keeper_of(machine, "warm") in ready
        line = f"curl -sS https://{SITE}:8443/v1/text; env -i curl -sS https://{SITE}:8443/v1/text"
        for name in ("cold", "warm"):
            assert (await made.run(line, name)).stdout == "some text" * 2
            assert (await made.run("touch /opt/x /opt/coldframe/x /etc/x", name)).result.exit_code != 0
        reports = [await (await machine.life(name)).report() for name in ("cold", "warm")]
        assert [one.state for one in reports[0].properties] == [one.state for one in reports[1].properties]
        places = [sorted(one.target for one in report.mounts) for report in reports]
        assert places[0] == places[1]
        # the certificates of two authorities differ in length by a few bytes
        look = "find /opt /etc -xdev -printf '%p %m %U %y\\n' 2>/dev/null | sort"
        assert (await made.run(look, "cold")).stdout == (await made.run(look, "warm")).stdout
        assert not (await made.run(f"ls {namespaces._COVER}", "warm")).stdout

    on_a_networked_machine(steps, who=who)
