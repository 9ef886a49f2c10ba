"""A process that lives on in a box cannot hold, fool or end what the host does in that box, and not the box itself."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from coldframe.contract.errors import GuestLost
from coldframe.contract.files import ListDirectory, ListRuntimes, SearchFiles, WriteFile
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import Limits
from coldframe.host.machine import Machine
from tests.host.machines import Outcome, as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until

pytestmark = needs_bubblewrap

HUNTER = """
import ctypes, os, sys, time
what, seconds = sys.argv[1], float(sys.argv[2])
seen, end, hits = set(os.listdir('/proc')), time.time() + seconds, 0
print('hunting', flush=True)
while time.time() < end and not os.path.exists('enough'):
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or pid in seen:
            continue
        try:
            ours = b'coldframe' in open(f'/proc/{pid}/cmdline', 'rb').read()
        except OSError:
            continue
        if not ours:  # a command that runs already
            seen.add(pid)
            continue
        seen.add(pid)
        hits += 1
        try:
            if what == 'stop':
                os.kill(int(pid), 19)
            elif what == 'kill':
                time.sleep((hits - 1) % 10 / 20)
                os.kill(int(pid), 9)
            elif what == 'look':
                def still():
                    return b'coldframe' in open(f'/proc/{pid}/cmdline', 'rb').read()
                for name in ('environ', 'maps', 'mem', 'stack', 'syscall', 'io', 'auxv'):
                    try:
                        if open(f'/proc/{pid}/{name}', 'rb').read(1) is not None and still():
                            print('BREACH', name, flush=True)
                    except OSError:
                        pass
                for name in ('fd', 'cwd', 'root', 'exe', 'ns/net'):
                    try:
                        os.listdir(f'/proc/{pid}/fd') if name == 'fd' else os.readlink(f'/proc/{pid}/{name}')
                        if still():
                            print('BREACH', name, flush=True)
                    except OSError:
                        pass
                if ctypes.CDLL(None).ptrace(0x4206, int(pid), 0, 0) == 0:  # PTRACE_SEIZE
                    if still():
                        print('BREACH ptrace', flush=True)
                    continue  # it had become a command meanwhile, which may be traced; let go of it
        except ProcessLookupError:
            pass
print('hits', hits, flush=True)
"""
"""Waits for processes of the keeper that have not yet become a command or are at a request; they show the keeper's own
command line. Outside of the sandbox it would find nothing: it goes by the /proc of its own process namespace."""


async def hunt(
    machine: Machine, what: str, seconds: float, *, prepare: str = "true"
) -> tuple[Box, asyncio.Task[Outcome]]:
    """A box in which *prepare* has run, and the task of a command in it that hunts."""
    box = await new_box(machine)
    await run(box, prepare)
    await box.ask(WriteFile(path="hunter.py", content=HUNTER.encode()))
    hunting = asyncio.create_task(run(box, argv=("python3", "-u", "hunter.py", what, f"{seconds}")))
    records = Path(machine._marks.directory("box"), "records")
    await until(
        lambda: asyncio.to_thread(lambda: any(b"hunting" in out.read_bytes() for out in records.glob("*.out"))),
        "the hunter hunts",
    )
    return box, hunting


@as_root_and_ordinary
def test_a_command_that_a_neighbour_stops_before_it_begins_ends_in_time(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box, hunting = await hunt(machine, "stop", 8)
        for _ in range(4):
            outcome = await run(box, "echo begun", timeout_s=0.5, patience_s=10)
            assert outcome.result.ended in ("exited", "timed_out")
        await hunting
        assert (await run(box, "echo alive")).stdout == "alive\n"

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_processes_of_the_keeper_that_show_inside_cannot_be_looked_into_or_traced(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box, hunting = await hunt(machine, "look", 3)
        while not hunting.done():
            await run(box, "true")
            await box.ask(ListDirectory(path=""))
        outcome = await hunting
        assert "BREACH" not in outcome.stdout
        assert int(outcome.stdout.split()[-1]) > 0

    on_a_machine(steps, who=who)


def test_a_request_whose_helper_is_killed_ends_and_the_next_is_answered() -> None:
    async def steps(machine: Machine) -> None:
        lines = "for i in $(seq 8); do yes abcdefghijklmnopqrstuvwxyz0123456789 | head -3000 > f$i; done"
        box, hunting = await hunt(machine, "kill", 60, prepare=lines)
        answers = set()
        while -1 not in answers and not hunting.done():
            try:
                async with asyncio.timeout(15):
                    found = await box.ask(SearchFiles(pattern="abc", max_matches=20_000, budget_s=10))
                answers.add(len(found.matches))
            except GuestLost as lost:
                assert type(lost) is GuestLost  # the keeper answered: it is not lost itself
                answers.add(-1)
        await box.ask(WriteFile(path="enough", content=b""))
        await hunting
        assert -1 in answers
        assert len((await box.ask(SearchFiles(pattern="abc", max_matches=20_000))).matches) == 20_000

    on_a_machine(steps)


@as_root_and_ordinary
def test_killing_everything_at_the_process_limit_does_not_end_the_box(who: str) -> None:
    script = (
        "import os, time\nend = time.time() + 2\nwhile time.time() < end:\n    try:\n        os.fork()\n"
        "    except OSError:\n        for pid in os.listdir('/proc'):\n            try:\n"
        "                if pid.isdigit() and open(f'/proc/{pid}/comm').read() == 'sleep\\n': os.kill(int(pid), 9)\n"
        "            except OSError: pass\n"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine, limits=Limits(pids=30))
        await run(box, argv=("python3", "-c", script), timeout_s=4)
        await run(box, "kill -9 -1; kill -9 1; kill -TERM 1; kill -STOP 1")
        assert (await run(box, "echo alive")).stdout == "alive\n"

        async def no_zombies() -> bool:
            look = "(sleep 0 & sleep 0 &) ; sleep 0.2; ps -eo stat= | grep -c Z"
            return (await run(box, look)).stdout == "0\n"

        await until(no_zombies, "the bomb is gone, and the first process still takes the orphans")

    on_a_machine(steps, who=who)


def test_a_process_that_takes_the_mark_of_another_command_ends_in_time_all_the_same() -> None:
    """Without control groups membership is a mark that a process can lower."""
    lower = (
        "import resource, time\nhard = resource.getrlimit(15)[1]\n"
        "resource.setrlimit(15, (hard - 1, hard - 1))\ntime.sleep(60)"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        other = asyncio.create_task(run(box, "sleep 5"))
        outcome = await run(
            box,
            argv=("python3", "-c", lower),
            timeout_s=0.5,
            patience_s=10,
        )
        assert outcome.result.timed_out
        await other

    on_a_machine(steps, who="ordinary")


def test_a_tracer_in_another_command_cannot_keep_an_end_back() -> None:
    tracer = (
        "import ctypes, os, time\nend = time.time() + 8\nwhile time.time() < end:\n"
        "    for pid in os.listdir('/proc'):\n"
        "        if pid.isdigit() and int(pid) not in (1, os.getpid()):\n"
        "            try:\n"
        "                if b'victim' in open(f'/proc/{pid}/cmdline', 'rb').read():\n"
        "                    ctypes.CDLL(None).ptrace(0x4206, int(pid), 0, 0)\n"
        "            except OSError: pass\n"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        tracing = asyncio.create_task(run(box, argv=("python3", "-c", tracer)))
        await asyncio.sleep(0)
        outcome = await run(box, "exec -a victim sleep 1", timeout_s=2, patience_s=10)
        assert outcome.result.ended in ("exited", "timed_out")
        await tracing
        assert (await run(box, "echo alive")).stdout == "alive\n"

    on_a_machine(steps)


def test_asking_for_the_runtimes_never_starts_a_program_of_the_workspace() -> None:
    """It would run beside the box's limits. The link is exchanged faster than it can be looked at."""
    flip = (
        "import ctypes, os, time\nhome = '/home/user/.local/bin'\nos.makedirs(home)\n"
        "open('/home/user/evil', 'w').write('#!/bin/sh\\necho > /home/user/won\\necho 6.6.6\\n')\n"
        "os.chmod('/home/user/evil', 0o755)\n"
        "for name, target in (('python3', '/usr/bin/python3'), ('other', '/home/user/evil')):\n"
        "    os.symlink(target, f'{home}/{name}')\n"
        "exchange, end = ctypes.CDLL(None).renameat2, time.time() + 5\n"
        "while time.time() < end: exchange(-100, f'{home}/python3'.encode(), -100, f'{home}/other'.encode(), 2)\n"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        flipping = asyncio.create_task(run(box, argv=("python3", "-c", flip)))
        while not flipping.done():
            await box.ask(ListRuntimes())
        assert (await run(box, "ls -d won")).stdout == ""

    on_a_machine(steps)


@pytest.mark.skipif(os.geteuid() != 0, reason="without root the payload is the host's own user, with that user's share")
def test_a_box_cannot_take_the_terminals_of_the_others() -> None:
    take = (
        "import os, time\ntaken = 0\ntry:\n    while True:\n        os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)\n"
        "        taken += 1\nexcept OSError as error:\n    print(taken, error.errno)\n"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        taken, number = (await run(box, argv=("python3", "-c", take))).stdout.split()
        assert int(taken) <= 64
        assert int(number) == 28  # no space left

    on_a_machine(steps)


def test_descriptors_that_a_payload_left_on_their_way_do_not_stop_new_boxes() -> None:
    """They count per user, and without root that user is also the host's."""
    leave = (
        "import socket, time\nkept = []\ntry:\n    while True:\n        pair = socket.socketpair()\n"
        "        kept.append(pair)\n        pair[0].setblocking(False)\n"
        "        for _ in range(3): socket.send_fds(pair[0], [b'x'], [0] * 250)\n"
        "except OSError:\n    print('full', flush=True)\ntime.sleep(60)\n"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        leaving = asyncio.create_task(run(box, argv=("python3", "-c", leave), command_id="leaving"))
        out = Path(machine._marks.directory("box"), "records", "leaving.out")
        await until(
            lambda: asyncio.to_thread(lambda: out.exists() and b"full" in out.read_bytes()), "they are on the way"
        )
        other = await new_box(machine, "other", agent="another")
        assert (await run(other, "echo made")).stdout == "made\n"
        leaving.cancel()

    on_a_machine(steps, who="ordinary", soft_files=1024)


@as_root_and_ordinary
def test_the_first_process_cannot_be_traced_or_written(who: str) -> None:
    """What it forked would belong to no command, and without control groups keep no limit."""
    attempt = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "for request in (16, 0x4206):\n    if libc.ptrace(request, 1, 0, 0) == 0: print('BREACH', request)\n"
        "for name in ('mem', 'environ', 'maps', 'fd/0', 'root/', 'cwd/', 'exe'):\n    try:\n"
        "        os.close(os.open(f'/proc/1/{name}', os.O_RDONLY))\n        print('BREACH', name)\n"
        "    except OSError: pass\n"
    )

    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        outcome = await run(box, argv=("python3", "-c", attempt))
        assert (outcome.result.exit_code, outcome.stdout) == (0, "")

    on_a_machine(steps, who=who)


@as_root_and_ordinary
def test_a_box_does_not_outlive_its_keeper(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box = await new_box(machine)
        running = asyncio.create_task(run(box, "setsid sleep 3600 & sleep 3600"))
        await until(lambda: asyncio.to_thread(lambda: _starts(machine) == 1), "the command runs")
        mark = machine._marks.read("box")
        assert mark is not None
        os.kill(mark.pid, signal.SIGKILL)
        with pytest.raises(GuestLost):
            await running
        await machine.end_box("box")
        assert not Path(f"/proc/{mark.init}").exists() or machine._marks.read("box") is None
        with pytest.raises(Exception, match="no box"):
            await machine.box("box")

    on_a_machine(steps, who=who)


def _starts(machine: Machine) -> int:
    return len(list(Path(machine._marks.directory("box"), "records").glob("*.record")))
