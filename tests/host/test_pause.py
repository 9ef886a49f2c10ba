"""A paused box uses no processor, keeps its processes, files can be read meanwhile, and time stands still for its commands;
one that is built anew has the records and files of the one before."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from coldframe.contract.command import CommandSpec, Ended
from coldframe.contract.errors import FileMissing, IsolationUnavailable, NotFound, PauseKindUnsupported, WrongState
from coldframe.contract.files import ListCommands, ListDirectory, ReadFile, SearchFiles
from coldframe.contract.network import NetworkRecord
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host import cgroups
from coldframe.host.cgroups import BoxGroups
from coldframe.host.machine import Machine
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until
from tests.host.networked import AGENT, PLAIN, WEB, Networked, on_a_networked_machine, rules

pytestmark = needs_bubblewrap
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
COUNTER = "echo $$ > pid; i=0; while :; do i=$((i+1)); printf %09d $i 1<>count; done"
"""Never cut to nothing, wherever it is stopped."""
WITHOUT_V2 = ("memory", "pids", "cpuacct", "freezer")


async def text_of(box: Box, path: str) -> str:
    return (await box.ask(ReadFile(path=path))).content.decode()


async def counting(box: Box) -> None:
    await run(box, f"({COUNTER}) >/dev/null 2>&1 &")

    async def counts() -> bool:
        try:
            return int(await text_of(box, "count") or 0) > 3
        except FileMissing:
            # What was put in the background may not have begun when its command has ended.
            return False

    await until(counts, "it counts")


def cpu_ticks(pid: int) -> int:
    """Of it and of all that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def processes_of(init: int) -> list[int]:
    """Those in its pid namespace."""
    space = os.stat(f"/proc/{init}/ns/pid").st_ino
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}/ns/pid").st_ino == space:
                    found.append(int(entry))
            except OSError:
                continue
    return found


async def cycle(machine: Machine) -> None:
    box = await new_box(machine)
    life = machine._life("box")
    await counting(box)
    pid = await text_of(box, "pid")
    await life.pause()
    await life.pause()
    assert [status.state for status in await machine.boxes()] == ["paused"]
    count = await text_of(box, "count")
    everybody = processes_of(life.mark.init)
    assert len(everybody) > 1
    before = [cpu_ticks(one) for one in everybody]
    # Everything of the box is looked at while it stands still, and nothing hangs.
    assert [entry.name for entry in (await box.ask(ListDirectory(path=""))).entries if entry.name == "count"] == [
        "count"
    ]
    await box.ask(SearchFiles(pattern="[0-9]+"))
    assert (await life.report()).pause_kinds == ("memory", "files")
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        assert await text_of(box, "count") == count
    assert [cpu_ticks(one) for one in everybody] == before
    await life.resume()
    await life.resume()
    assert [status.state for status in await machine.boxes()] == ["running"]

    async def goes_on() -> bool:
        return int(await text_of(box, "count") or 0) > int(count)

    await until(goes_on, "it goes on from where it was")
    assert await text_of(box, "pid") == pid
    assert abs(float((await run(box, "date +%s.%N")).stdout) - time.time()) < 1
    await life.pause()
    await life.end()
    assert not os.path.exists(f"/proc/{life.mark.init}")


@as_root
@pytest.mark.req("T4.61")
def test_a_paused_box_stands_still_and_goes_on_where_it_was() -> None:
    on_a_machine(cycle)


@as_root
def test_the_same_with_control_groups_of_version_1_only(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = cgroups._mounted
    monkeypatch.setattr(cgroups, "_mounted", lambda: [one for one in mounted() if one.name in WITHOUT_V2])
    if "freezer" not in {one.name for one in mounted()}:
        pytest.skip("there is no freezer of version 1")
    on_a_machine(cycle)


@pytest.mark.req("T3.45")
def test_without_a_control_group_it_is_refused_and_nothing_changes() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        report = await machine._life("box").report()
        if report.pause_kinds != ("files",):
            pytest.skip("an ordinary user has a control group here")
        with pytest.raises(PauseKindUnsupported) as refused:
            await machine._life("box").pause()
        assert refused.value.next_actions[0]["op"] == "sandbox.stop"
        await machine._life("box").resume()
        assert (await run(box, "echo on")).stdout == "on\n"
        assert [status.state for status in await machine.boxes()] == ["running"]

    on_a_machine(steps, who="ordinary")


@as_root
@pytest.mark.req("T4.61")
def test_time_stands_still_for_commands_while_their_box_does() -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        life = machine._life("box")
        shell = "until [ -e go ]; do sleep 0.01; done; echo done"
        spec = CommandSpec(command_id="c1", shell=shell, cwd="", timeout_s=2.5)
        running = asyncio.ensure_future(_to_its_end(box, spec))

        async def begun() -> bool:
            return any(one.state == "running" and one.pid for one in (await box.ask(ListCommands())).commands)

        await until(begun, "it has begun")
        await life.pause()
        paused = time.monotonic()

        async def is_over_its_time() -> bool:
            return time.monotonic() > paused + 2.6

        await until(is_over_its_time, "more than its time has passed")
        assert [one.state for one in (await box.ask(ListCommands())).commands] == ["running"]
        Path(machine.workspaces.of_agent("agent"), "go").touch()
        await life.resume()
        result = (await running).result
        assert result.exit_code == 0
        assert result.duration_ms < 2500

    on_a_machine(steps)


async def _to_its_end(box: Box, spec: CommandSpec) -> Ended:
    async for event in box.run(spec):
        if isinstance(event, Ended):
            return event
    raise AssertionError("no end was told")


@as_root
@pytest.mark.req("T4.61")
def test_another_machine_finds_a_paused_box_paused() -> None:
    async def steps(machine: Machine) -> None:
        await counting(await new_box(machine))
        await machine._life("box").pause()
        again = Machine(machine._data)
        assert [status.state for status in await again.boxes()] == ["paused"]
        count = await text_of(await again.box("box"), "count")
        await (await again.life("box")).resume()
        assert [status.state for status in await machine.boxes()] == ["running"]
        box = await again.box("box")

        async def goes_on() -> bool:
            return int(await text_of(box, "count") or 0) > int(count)

        await until(goes_on, "it goes on")
        await (await again.life("box")).pause()  # and is swept as it is
        await again.close()

    on_a_machine(steps, embedded=False)


@as_root
def test_what_cannot_be_held_still_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        monkeypatch.setattr(BoxGroups, "_is_still", lambda _: False)
        with pytest.raises(WrongState, match="goes on"):
            await machine._life("box").pause()
        assert [status.state for status in await machine.boxes()] == ["running"]
        assert (await run(box, "echo on")).stdout == "on\n"

    on_a_machine(steps)


@as_root_and_ordinary
@pytest.mark.parametrize("background", [False, True])
def test_a_box_built_anew_has_files_and_records_of_the_one_before(who: str, background: bool) -> None:
    spec = SandboxSpec(agent_id=None if background else "agent", background=background)

    async def steps(machine: Machine) -> None:
        await machine.create("box", spec, session_id="session-box")
        box = await machine.box("box")
        await run(box, "echo kept > file; echo lost > /tmp/file; sleep 1000 & echo told", command_id="c1")
        life = await machine.life("box")
        stake = await life.at_stake()
        assert (stake.command_ids, stake.processes) == ((), 1)
        assert stake.temporary.files >= 1
        assert stake.temporary.bytes >= 5
        with pytest.raises(WrongState):
            await machine.create("box", spec, session_id="session-box", anew=True)
        await life.end(keep_workspace=True)
        with pytest.raises(NotFound):
            await machine.box("box")
        with pytest.raises(WrongState):
            await machine.create("box", spec, session_id="session-box")
        await machine.create("box", spec, session_id="session-box", anew=True)
        box = await machine.box("box")
        done = await run(box, "cat file; ls /tmp", command_id="c2")
        assert done.stdout == "kept\n"
        told = [event async for event in box.follow("c1")]
        assert isinstance(told[-1], Ended)
        await (await machine.life("box")).end(keep_workspace=True)
        # A crash in the middle of an end takes nothing that is to be kept.
        await machine.sweep(keep_boxes=set(), keep_sessions={"session-box"})
        workspace = machine.workspaces.of_session("session-box") if background else machine.workspaces.of_agent("agent")
        assert Path(workspace, "file").exists()

    on_a_machine(steps, who=who)


@as_root
@pytest.mark.req("T4.61")
def test_a_connection_outward_stays_open_over_a_pause() -> None:
    talk = (
        "exec 3<>/dev/tcp/ssh.example.com/9000; echo one >&3; read -r line <&3; echo $line; touch held; "
        'until [ -e go ]; do sleep 0.01; done; echo two >&3; read -r -t 30 line <&3; echo "$line $?"'
    )

    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(PLAIN))
        await made.box()
        life = await made.host.life("box")
        talking = asyncio.ensure_future(made.run(talk))
        workspace = Path(made.folder, "workspace", "agent")

        async def is_held() -> bool:
            return (workspace / "held").exists()

        await until(is_held, "the connection is open", timeout_s=30)
        await life.pause()
        (workspace / "go").touch()
        assert not talking.done()
        await life.resume()
        assert (await talking).stdout.split()[-1] == "0"
        assert [one.event for one in (await made.contacts_until("ended", 1)).records if one.event == "begun"] == [
            "begun"
        ]

    on_a_networked_machine(steps)


@as_root_and_ordinary
def test_a_box_built_anew_has_a_way_out_and_the_record_goes_on(who: str) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB))
        spec = SandboxSpec(agent_id="agent")
        before: tuple[NetworkRecord, ...] = ()
        for number in (1, 2):
            await made.host.create("box", spec, session_id="session-box", network=AGENT, anew=number > 1)
            done = await made.run("curl -sS https://api.example.com/v1/x")
            assert done.stdout.startswith("answer"), done.stderr
            await (await made.host.life("box")).end(keep_workspace=True)
            await made.contacts_until("ended", number)
            page = await made.host.network_records("box", limit=1000)
            assert [one.seq for one in page.records] == list(range(1, len(page.records) + 1))
            assert page.records[: len(before)] == before
            before = page.records

    on_a_networked_machine(steps, who=who)


@as_root_and_ordinary
def test_one_that_cannot_be_built_anew_loses_nothing(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(made: Networked) -> None:
        await made.host.use_network_rules(rules(WEB))
        spec = SandboxSpec(background=True)
        await made.host.create("box", spec, session_id="session-box", network=AGENT)
        await made.run("curl -sS https://api.example.com/v1/x; echo kept > file")
        await (await made.host.life("box")).end(keep_workspace=True)
        before = await made.contacts_until("ended", 1)
        impossible = spec.model_copy(update={"requires": ("programs",)})
        with pytest.raises(IsolationUnavailable):
            await made.host.create("box", impossible, session_id="session-box", network=AGENT, anew=True)
        assert await made.host.boxes() == []
        assert (await made.page()).records[: len(before.records)] == before.records
        await made.host.create("box", spec, session_id="session-box", network=AGENT, anew=True)
        assert (await made.run("cat file")).stdout == "kept\n"

    on_a_networked_machine(steps, who=who)
