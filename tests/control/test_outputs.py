"""Held here: past output is whole, by ranges, as labelled as its call, and closed to whom a rule closed it."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from coldframe.contract.command import Ended, OutputChunk
from coldframe.contract.errors import DeniedByRule, GrantMissing, InvalidArgument, NotFound, WrongState
from coldframe.contract.policy import Label
from tests.control.bench import AGENT, OTHER, OWNER, SECRETS, UNTIL_GO, VIEWER, WITHHOLD, opened, until


@pytest.mark.req("T1.14")
def test_output_is_fetched_whole_by_ranges_also_when_the_sandbox_has_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            result = await bench.call(info, "run_command", command="seq 20000; echo err >&2", view={"max_bytes": 10})
            command_id = result.value["artifact_id"]
            outputs = bench.control.outputs
            for _ in range(2):
                offset: int | None = 0
                data = b""
                while offset is not None:
                    window = await outputs.output(AGENT, info.sandbox_id, command_id, "stdout", offset, 7777)
                    data += window.data
                    offset = window.next_offset
                assert data == b"".join(b"%d\n" % number for number in range(1, 20001))
                assert hashlib.sha256(data).hexdigest() == window.sha256 == result.value["stdout_info"]["sha256"]
                await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            command = await outputs.command(AGENT, info.sandbox_id, command_id)
            assert (command.state, command.command_line) == ("ended", "seq 20000; echo err >&2")
            for offset, length in ((-1, 5), (0, 0), (0, 2**40)):
                with pytest.raises(InvalidArgument):
                    await outputs.output(AGENT, info.sandbox_id, command_id, "stdout", offset, length)

    asyncio.run(scenario())


def test_followers_reconnect_by_number(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            result = await bench.call(
                info, "run_command", command="for i in 1 2 3; do echo $i; sleep 0.05; done", background=True
            )
            command_id = result.value["command_id"]
            events = [event async for event in bench.control.outputs.follow(AGENT, info.sandbox_id, command_id)]
            assert isinstance(events[-1], Ended)
            chunks = [event for event in events if isinstance(event, OutputChunk)]
            later = [
                event
                async for event in bench.control.outputs.follow(
                    AGENT, info.sandbox_id, command_id, after_seq=chunks[0].seq
                )
            ]
            assert [event for event in later if isinstance(event, OutputChunk)] == chunks[1:]

    asyncio.run(scenario())


@pytest.mark.req("T1.81")
def test_what_a_rule_withheld_is_open_to_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            with pytest.raises(DeniedByRule):
                await bench.call(info, "run_command", command="echo TOP-SECRET")
            [command] = await bench.control.outputs.commands(OWNER, info.sandbox_id)
            for caller in (AGENT, VIEWER):
                with pytest.raises(DeniedByRule):
                    await bench.control.outputs.output(caller, info.sandbox_id, command.command_id, "stdout")
                with pytest.raises(DeniedByRule):
                    await anext(bench.control.outputs.follow(caller, info.sandbox_id, command.command_id))
            window = await bench.control.outputs.output(OWNER, info.sandbox_id, command.command_id, "stdout")
            assert window.data == b"TOP-SECRET\n"

    asyncio.run(scenario())


@pytest.mark.req("T1.81")
def test_output_of_a_running_command_is_held_back_while_a_rule_reads_output(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            command = f"echo fine; {UNTIL_GO}"
            running = await bench.call(info, "run_command", command=command, background=True)
            command_id = running.value["command_id"]
            with pytest.raises(WrongState):
                await bench.control.outputs.output(AGENT, info.sandbox_id, command_id, "stdout")
            bench.go()
            await until(lambda: bench.kinds()[-1] == "call.ended")
            window = await bench.control.outputs.output(AGENT, info.sandbox_id, command_id, "stdout")
            assert window.data == b"fine\n"

    asyncio.run(scenario())


@pytest.mark.req("T1.102")
def test_reading_past_output_raises_the_taint_of_the_reader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="secrets/key", content="x")
            result = await bench.call(info, "run_command", command="cat secrets/key")
            bench.control.sessions.reset(info.session_id, caller=OWNER)
            current = bench.control.sandboxes.session(bench.control.sandboxes.find(info.sandbox_id))
            assert current.taint is Label.PUBLIC
            window = await bench.control.outputs.output(AGENT, info.sandbox_id, result.value["artifact_id"], "stdout")
            assert window.label is Label.CONFIDENTIAL
            assert bench.control.sessions.get(current.session_id).taint is Label.CONFIDENTIAL

    asyncio.run(scenario())


@pytest.mark.req("T1.38")
def test_a_job_can_be_listed_and_stopped_and_strangers_cannot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, other = await bench.sandbox(), await bench.sandbox()
            running = await bench.call(info, "run_command", command="sleep 60", background=True)
            command_id = running.value["command_id"]
            outputs = bench.control.outputs
            with pytest.raises(NotFound):
                await outputs.signal(OTHER, info.sandbox_id, command_id, 15)
            with pytest.raises(NotFound):
                await outputs.signal(AGENT, other.sandbox_id, command_id, 15)
            with pytest.raises(GrantMissing):
                await outputs.signal(VIEWER, info.sandbox_id, command_id, 15)
            with pytest.raises(InvalidArgument):
                await outputs.signal(AGENT, info.sandbox_id, command_id, 99)
            await outputs.signal(AGENT, info.sandbox_id, command_id, 15, cancel=True)
            await until(lambda: bench.kinds()[-1] == "call.ended")
            assert bench.calls()[-1].body["ended"] in ("cancelled", "signalled")
            assert bench.entries(kinds=["command.signalled"])[0].body["command_id"] == command_id
            assert [one.state for one in await outputs.commands(AGENT, info.sandbox_id)] == ["ended"]
            assert await outputs.commands(AGENT, other.sandbox_id) == []

    asyncio.run(scenario())


def test_the_newest_commands_and_those_that_run_are_found_without_all_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            outputs = bench.control.outputs
            running = await bench.call(info, "run_command", command=UNTIL_GO, background=True)
            ids = []
            for number in range(10):
                ran = await bench.call(info, "run_command", command=f"echo {number}")
                ids.append(str(ran.value["command_id"]))
            every = await outputs.commands(OWNER, info.sandbox_id)
            newest = await outputs.commands(OWNER, info.sandbox_id, newest=2)
            assert newest[1:] == every[-2:]
            assert [one.command_id for one in newest] == [running.value["command_id"], *ids[-2:]]
            bench.go()

    asyncio.run(scenario())
