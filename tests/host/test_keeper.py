"""A keeper serves whatever is asked on its socket and outlives every malformed request; its commands get nothing of it."""

import asyncio
import errno
import fcntl
import os
import shutil
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import CommandSpec, Ended, Started
from coldframe.contract.files import ListRuntimes, RuntimesAnswer, WriteFile
from coldframe.contract.ports import Box
from coldframe.contract.sandbox import Limits
from coldframe.guest.commands import KEPT_COMMANDS
from coldframe.guest.frames import MAX_HEAD_BYTES, PREFIX, decode_head, encode
from coldframe.guest.runtimes import RUNTIMES
from coldframe.host.groups import MOST_READY
from coldframe.host.link import KEPT_CONNECTIONS, connect
from coldframe.host.machine import Machine
from tests.host.machines import Outcome, as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until

pytestmark = needs_bubblewrap

GROUP_FILES = 7
"""What a control group that is kept ready holds open at most."""


class Raw:
    """A connection to the keeper without any kindness of ours."""

    def __init__(self, machine: Machine, name: str = "box") -> None:
        self._directory = machine._marks.directory(name)

    async def __aenter__(self) -> "Raw":
        peer = connect(self._directory)
        peer.setblocking(False)
        self.reader, self.writer = await asyncio.open_unix_connection(sock=peer)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def receive(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(10):
                head, body = PREFIX.unpack(await self.reader.readexactly(PREFIX.size))
                return decode_head((await self.reader.readexactly(head + body))[:head])
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def ask(self, head: dict[str, Any], body: bytes = b"") -> dict[str, Any] | None:
        self.writer.write(encode(head, body))
        return await self.receive()


def on_a_box(
    steps: Callable[[Machine, Box], Awaitable[None]], *, limits: Limits | None = None, who: str = "root"
) -> None:
    async def whole(machine: Machine) -> None:
        box = await new_box(machine, limits=limits)
        await steps(machine, box)
        assert (await run(box, "echo alive")).stdout == "alive\n"

    on_a_machine(whole, who=who)


RUN = {"op": "run", "command_id": "c", "timeout_s": 5, "shell": "true"}


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"op": "no-such-operation"},
        {"op": ["run"]},
        {"op": "run"},
        {**RUN, "command_id": "../x"},
        {**RUN, "command_id": ["c"]},
        {**RUN, "command_id": "a" * 81},
        {**RUN, "timeout_s": "soon"},
        {**RUN, "env": "PATH=/"},
        {**RUN, "env": {"A": 7}},
        {**RUN, "env": {"A": "\ud800"}},
        {**RUN, "cwd": "../.."},
        {**RUN, "cwd": 7},
        {"op": "follow", "command_id": "never-was", "after_seq": -1},
        {"op": "follow", "command_id": "never-was"},
        {"op": "ask"},
        {"op": "ask", "verb": "no-such-verb"},
        {"op": "ask", "verb": "read_file"},
        {"op": "ask", "verb": "read_file", "path": 7},
        {"op": "ask", "verb": "read_file", "path": "x", "offset": 1 << 200, "length": 1},
        {"op": "ask", "verb": "search_files", "budget_s": "long"},
        {"op": "ask", "verb": "signal_command", "command_id": "c", "signal": 15},
        {"op": "ask", "verb": "resize_terminal", "command_id": "c"},
        {"op": "write"},
        {"op": "write", "path": 7},
    ],
)
def test_a_malformed_request_is_an_error_and_the_connection_goes_on(head: dict[str, Any]) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        async with Raw(machine) as raw:
            answer = await raw.ask(head)
            assert answer is not None
            assert "error" in answer
            listed = await raw.ask({"op": "ask", "verb": "list_commands"})
            assert listed == {"answer": {"commands": []}}

    on_a_box(steps)


@pytest.mark.parametrize("data", [PREFIX.pack(MAX_HEAD_BYTES + 1, 0), PREFIX.pack(2, 0) + b"[]", b"\xff" * 100])
def test_a_bad_frame_ends_that_connection_only(data: bytes) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        async with Raw(machine) as raw, Raw(machine) as other:
            raw.writer.write(data)
            assert await raw.receive() is None
            assert await other.ask({"op": "ask", "verb": "list_commands"}) is not None

    on_a_box(steps)


def test_a_request_may_come_one_byte_at_a_time() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        async with Raw(machine) as raw:
            for byte in encode({"op": "follow", "command_id": "n--n-", "after_seq": -1}):
                await until(lambda: _all_taken(raw), "it was read")
                raw.writer.write(bytes([byte]))
            answer = await raw.receive()
            assert answer is not None
            assert answer["error"]["message"] == "no command `n--n-` is held by this sandbox"

    on_a_box(steps)


async def _all_taken(raw: Raw) -> bool:
    """Whether the keeper has read all that was sent."""
    left = fcntl.ioctl(raw.writer.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(left, sys.byteorder) == 0


def test_a_second_slow_request_on_a_busy_connection_is_refused_and_leaves_no_process() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        await run(box, "for i in $(seq 20); do seq 20000 > f$i; done")
        async with Raw(machine) as raw:
            slow = encode({"op": "ask", "verb": "search_files", "path": "", "pattern": "7", "max_matches": 100_000})
            raw.writer.write(slow + slow + slow)
            answers = [await raw.receive() for _ in range(3)]
            assert sum("error" in answer for answer in answers if answer) >= 2

        async def alone() -> bool:
            return set((await run(box, "ps -e -o comm=")).stdout.split()) == {"sleep", "ps"}

        await until(alone, "the helpers are gone")

    on_a_box(steps)


@as_root_and_ordinary
def test_the_keeper_may_open_much_and_a_command_only_what_its_limits_say(who: str) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        mark = machine._marks.read("box")
        assert mark is not None
        limits = Path(f"/proc/{mark.pid}/limits").read_text()
        soft, hard = limits.partition("Max open files")[2].split()[:2]
        assert soft == hard
        assert (await run(box, "ulimit -Sn; ulimit -Hn; ulimit -c")).stdout.split() == ["64", "64", "0"]

    on_a_box(steps, limits=Limits(open_files=64), who=who)


@as_root_and_ordinary
def test_a_command_inherits_no_descriptor_and_no_neighbour_shows_the_keepers_own(who: str) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        script = "for p in /proc/[0-9]*; do for f in $p/fd/*; do readlink $f; done; done 2>/dev/null"
        async with Raw(machine), Raw(machine):
            other = asyncio.create_task(run(box, "sleep 1"))
            seen = set((await run(box, script)).stdout.split())
            await other
        assert not [one for one in seen if not one.startswith(("pipe:", "/dev/null", "/home/user", "/proc/"))]

    on_a_box(steps, who=who)


@as_root_and_ordinary
def test_no_process_of_a_box_has_the_call_that_the_keeper_keeps_for_itself(
    who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """clone3, whose arguments no filter sees: not the commands, not what they start, not what a helper starts."""
    clone3 = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.syscall(ctypes.c_long(435), None, ctypes.c_long(0)); "
        "print(ctypes.get_errno())"
    )
    absent = next(name for name in RUNTIMES if shutil.which(name) is None)
    offered = tmp_path / "runtime"
    offered.write_text(f'#!/bin/sh\necho 1.$(/usr/bin/python3 -c "{clone3}")\n')
    offered.chmod(0o755)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    monkeypatch.setattr("coldframe.host.construction.offered_tools", lambda: {absent: str(offered)})

    async def steps(machine: Machine, box: Box) -> None:
        told = (await run(box, f"python3 -c '{clone3}'; (bash -c \"python3 -c '{clone3}'\")")).stdout.split()
        assert told == [str(errno.ENOSYS)] * 2
        runtimes = await box.ask(ListRuntimes())
        assert isinstance(runtimes, RuntimesAnswer)
        assert [one.version for one in runtimes.runtimes if one.name == absent] == [f"1.{errno.ENOSYS}"]

    on_a_box(steps, who=who)


def test_many_followers_of_one_command_all_get_all_and_may_leave_at_any_time() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        running = asyncio.create_task(run(box, "until [ -e go ]; do sleep 0.02; done; seq 20000", command_id="c"))
        await until(lambda: _has(machine, "c.record"), "it runs")

        async def follow() -> int:
            return sum([len(event.data) async for event in box.follow("c") if hasattr(event, "data")])

        async def leave() -> None:
            async for event in box.follow("c"):
                assert isinstance(event, Started)
                return

        await asyncio.gather(*(leave() for _ in range(30)))
        following = [asyncio.create_task(follow()) for _ in range(60)]
        await run(box, "touch go")
        whole = len((await running).stdout)
        assert set(await asyncio.gather(*following)) == {whole}

    on_a_box(steps)


def test_what_ended_long_ago_costs_no_descriptor_and_is_read_from_its_record() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        mark = machine._marks.read("box")
        assert mark is not None

        def held() -> int:
            if os.geteuid() != 0:
                return 0  # a keeper shows its descriptors to root alone
            return len(os.listdir(f"/proc/{mark.pid}/fd"))

        await run(box, "echo first", command_id="first")
        before = held()
        for _ in range(0, KEPT_COMMANDS + 40, 20):  # each leaves an adopted process for a moment
            await asyncio.gather(*(run(box, "(sleep 0.3; echo late) & echo out") for _ in range(20)))
        await run(box, "sleep 1.5")
        for _ in range(2):
            await run(box, "true")
        assert held() <= before + KEPT_COMMANDS + KEPT_CONNECTIONS + MOST_READY * GROUP_FILES
        *_, last = [event async for event in box.follow("first")]
        assert isinstance(last, Ended)
        again = [event async for event in box.run(CommandSpec(command_id="first", shell="echo second"))]
        assert b"".join(event.data for event in again if hasattr(event, "data")) == b"first\n"

    on_a_box(steps)


def changed(outcome: Outcome) -> list[str]:
    assert outcome.result.files.recorded
    return [change.path for change in outcome.result.files.changes]


async def quiet(box: Box) -> Outcome:
    """Run what changes nothing until the keeper has nothing left to digest."""
    for _ in range(3):
        outcome = await run(box, argv=("true",))
        assert changed(outcome) == []
    return outcome


@as_root_and_ordinary
def test_changes_between_commands_are_in_the_state_before_the_next_and_are_not_its_own(who: str) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        other = await new_box(machine, "other")
        path = Path(machine.workspaces.of_agent("agent"))
        written = path / "scratch" / "by-the-host"

        async def by_the_host() -> None:
            written.write_text("x")

        async def by_the_host_again() -> None:
            written.write_text("y")

        async def by_a_file_verb() -> None:
            await box.ask(WriteFile(path="by-verb", content=b"x"))

        async def by_another_box() -> None:
            assert changed(await run(other, "mkdir -p a/b; echo x > a/b/c")) == ["a", "a/b", "a/b/c"]

        async def below_a_new_directory() -> None:
            assert changed(await run(other, "echo y > a/b/c")) == ["a/b/c"]

        async def by_what_outlived_its_command() -> None:
            await run(box, "(sleep 0.2; : > late) & true")  # one step: `touch` changes a time once more
            await until(lambda: _exists(path / "late"), "it wrote")

        before = (await quiet(box)).result.files.tree_sha256_after
        for step in (
            by_the_host,
            by_the_host_again,
            by_a_file_verb,
            by_another_box,
            below_a_new_directory,
            by_what_outlived_its_command,
        ):
            await step()
            outcome = await run(box, argv=("true",))
            assert changed(outcome) == []
            files = outcome.result.files
            assert files.tree_sha256_before == files.tree_sha256_after != before, step.__name__
            before = (await quiet(box)).result.files.tree_sha256_after
            assert before == files.tree_sha256_after

    on_a_box(steps, who=who)


def test_what_a_command_changes_is_recorded_however_it_writes() -> None:
    by_map = "import mmap; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 3); m[:3] = b'new'"
    through_another = "exec 9<>f; (exec >/dev/null 2>&1; sleep 0.5) & "

    async def steps(machine: Machine, box: Box) -> None:
        await run(box, "echo old > f; mkdir d")
        for shell, paths in (
            (f'python3 -c "{by_map}"', ["f"]),
            ("printf x >> f", ["f"]),
            ("chmod 600 f", ["f"]),
            ("touch d/new", ["d/new"]),
            (through_another + f'python3 -c "{by_map.replace("new", "now")}"', ["f"]),
            ("cat f; ls -R", []),
            ("mv d e", ["d", "d/new", "e", "e/new"]),
        ):
            await quiet(box)
            assert changed(await run(box, shell)) == paths, shell

    on_a_box(steps)


BY_MAP = """
import mmap, os, sys, time
with open("held", "r+b") as file, mmap.mmap(file.fileno(), 3) as held:
    held[:3] = b"one"
    open("ready", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    held[:3] = b"two"
    os.mkdir("done")
    time.sleep(60)
"""


@pytest.mark.parametrize("who", ["what outlived its command", "another box"])
def test_what_is_written_to_a_file_that_is_held_in_memory_is_in_the_state_of_the_workspace(who: str) -> None:
    """Such a write tells nobody and changes no time."""

    async def steps(machine: Machine, box: Box) -> None:
        writer = await new_box(machine, "other") if who == "another box" else box
        path = Path(machine.workspaces.of_agent("agent"))
        await box.ask(WriteFile(path="by-map.py", content=BY_MAP.encode()))
        await run(box, "echo old > held; mkdir scratch/d")
        await run(writer, "python3 by-map.py >/dev/null 2>&1 & true")
        await until(lambda: _exists(path / "ready"), "it holds the file")
        first = await quiet(box)
        await run(box, "touch go")
        await until(lambda: _exists(path / "done"), "it wrote")
        assert (path / "held").read_text() == "two\n"
        await run(box, "rmdir done; rm go")
        last = await quiet(box)
        assert first.result.files.tree_sha256_after != last.result.files.tree_sha256_after

    on_a_box(steps)


async def _exists(path: Path) -> bool:
    return path.exists()


async def _has(machine: Machine, name: str) -> bool:
    return Path(machine._marks.directory("box"), "records", name).exists()
