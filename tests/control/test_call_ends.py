"""The end of a call is recorded once, whoever goes away meanwhile; one that waits for its commit is not lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import CommandEvent
from coldframe.contract.errors import HostUnreachable, LedgerUnavailable
from coldframe.contract.ledger import LedgerVerdict
from coldframe.contract.policy import Label
from coldframe.control.verification import verify_directory
from tests.control.bench import AGENT, EVERY_TOOL, UNTIL_GO, Bench, opened, put_off_ends, refused, until
from tests.fakes.box import FakeBox

AT_THE_END = """version: 1
rules:
  - id: three-is-confidential
    hook: POST_TOOL_RESPONSE
    when: {tool: run_command, exit_code: 3}
    label: CONFIDENTIAL
  - id: four-is-withheld
    hook: POST_TOOL_RESPONSE
    when: {tool: run_command, exit_code: 4}
    then: deny
    reason: no fours
"""


def verdict_of(bench: Bench) -> LedgerVerdict:
    """What another process finds."""
    control = bench.root / "control"
    return verify_directory(str(control / "coldframe.db"), str(control / "ledger"))


def test_a_result_whose_end_cannot_be_recorded_is_withheld_and_recorded_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            append = bench.control.ledger.append

            def only_starts(kind: str, *args: Any, **kwargs: Any) -> Any:
                if kind == "call.ended":
                    raise LedgerUnavailable("the disk is full")
                return append(kind, *args, **kwargs)

            monkeypatch.setattr(bench.control.ledger, "append", only_starts)
            assert isinstance(await refused(bench, info, "run_command", command="echo hi"), LedgerUnavailable)
            monkeypatch.undo()
            await bench.restart()
            await until(lambda: not bench.control.ledger.open_calls())
            assert bench.kinds()[-1] == "call.ended"
            assert bench.calls()[-1].body["stdout"]["bytes"] == 3

    asyncio.run(scenario())


def test_a_caller_that_goes_away_ends_neither_the_command_nor_its_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            task = asyncio.create_task(bench.call(info, "run_command", command="sleep 0.2; echo done > mark"))
            await until(lambda: bool(bench.host.ran))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stream = bench.control.gate.stream(AGENT, info.sandbox_id, "run_command", {"command": "sleep 0.1; echo x"})
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            await until(lambda: bench.kinds().count("call.ended") == 2)
            assert (tmp_path / "workspace" / "ada" / "mark").read_text() == "done\n"
            assert [entry.body["exit_code"] for entry in bench.calls() if entry.kind == "call.ended"] == [0, 0]

    asyncio.run(scenario())


@pytest.mark.req("T1.38")
def test_a_command_in_the_background_answers_at_its_start_and_is_recorded_at_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            command = f"echo begun; {UNTIL_GO}; echo ended; exit 4"
            result = await bench.call(info, "run_command", key="b", command=command, background=True)
            assert (result.value["state"], result.value["exit_code"]) == ("running", None)
            assert bench.kinds()[-1] == "call.started"
            command_id = result.value["command_id"]
            outputs = bench.control.outputs
            assert [one.state for one in await outputs.commands(AGENT, info.sandbox_id)] == ["running"]
            window = await outputs.output(AGENT, info.sandbox_id, command_id, "stdout")
            assert not window.ended
            bench.go()
            await until(lambda: bench.kinds()[-1] == "call.ended")
            window = await outputs.output(AGENT, info.sandbox_id, command_id, "stdout", 6)
            assert (window.data, window.ended, window.next_offset) == (b"ended\n", True, None)
            assert bench.calls()[-1].body["exit_code"] == 4
            assert await bench.call(info, "run_command", key="b", command=command, background=True) == result

    asyncio.run(scenario())


@pytest.mark.req("T1.87")
def test_after_a_restart_running_calls_are_followed_to_their_end_and_lost_ones_marked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, lost = await bench.sandbox(), await bench.sandbox()
            command = f"echo begun; {UNTIL_GO}; echo ended"
            running = asyncio.create_task(bench.call(info, "run_command", key="r", command=command))
            losing = asyncio.create_task(bench.call(lost, "run_command", command="sleep 30"))
            await until(lambda: len(bench.host.ran) == 2)
            await bench.restart()
            for task in (running, losing):
                with pytest.raises(HostUnreachable):
                    await task
            assert len(bench.control.ledger.open_calls()) == 2
            await bench.host.lose(lost.sandbox_id)
            bench.go()
            await until(lambda: not bench.control.ledger.open_calls())
            kinds = {entry.body["sandbox_id"]: entry for entry in bench.calls() if entry.kind != "call.started"}
            assert kinds[info.sandbox_id].kind == "call.ended"
            assert kinds[info.sandbox_id].body["stdout"]["bytes"] == len("begun\nended\n")
            assert kinds[lost.sandbox_id].kind == "call.interrupted"
            result = await bench.call(info, "run_command", key="r", command=command)
            assert result.value["stdout"] == "begun\nended\n"
            assert len(bench.host.ran) == 2
            await until(lambda: len(bench.history()) == 2)
            assert {json.loads(line)["attempt"] for line in bench.history()} == {"allowed", "interrupted"}

    asyncio.run(scenario())


def test_a_call_that_never_reached_the_box_is_interrupted_and_runs_once_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            def never(*_: Any) -> Any:
                raise asyncio.CancelledError

            monkeypatch.setattr(FakeBox, "run", never)
            with pytest.raises(HostUnreachable):
                await bench.call(info, "run_command", key="k", command="touch made")
            monkeypatch.undo()
            await bench.restart()
            await until(lambda: not bench.control.ledger.open_calls())
            assert bench.calls()[-1].kind == "call.interrupted"
            assert bench.host.ran == []
            for _ in range(2):
                await bench.call(info, "run_command", key="k", command="touch made")
            assert len(bench.host.ran) == 1

    asyncio.run(scenario())


def test_a_host_that_cannot_be_reached_is_an_unknown_outcome_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            run = FakeBox.run

            async def broken(self: FakeBox, spec: Any) -> AsyncIterator[CommandEvent]:
                async for event in run(self, spec):
                    yield event
                    raise HostUnreachable("the daemon ended")

            monkeypatch.setattr(FakeBox, "run", broken)
            with pytest.raises(HostUnreachable):
                await bench.call(info, "run_command", key="k", command="sleep 0.1; echo x")
            await until(lambda: bench.kinds()[-1] == "call.ended")
            result = await bench.call(info, "run_command", key="k", command="sleep 0.1; echo x")
            assert result.value["stdout"] == "x\n"
            assert len(bench.host.ran) == 1

    asyncio.run(scenario())


def test_an_end_that_waits_is_committed_and_shown_soon_although_nobody_calls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            told = await bench.call(await bench.sandbox(), "run_command", command="true")
            await until(lambda: [json.loads(line)["call_id"] for line in bench.history()] == [told.call_id])
            assert verdict_of(bench).head_seq == bench.entries()[-1].seq

    asyncio.run(scenario())


def test_only_the_end_of_a_command_that_changed_nothing_else_waits_for_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, AT_THE_END) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            store = bench.control.store
            for tool, arguments in EVERY_TOOL.items():
                await bench.call(info, tool, **arguments)
                assert store.is_settled == (tool != "run_command"), tool
            raised = await bench.call(info, "run_command", command="exit 3")
            assert (raised.label, store.is_settled) == (Label.CONFIDENTIAL, True)
            await bench.call(info, "run_command", command="exit 3")  # the same again raises nothing
            assert not store.is_settled
            await refused(bench, info, "run_command", command="exit 4")
            assert store.is_settled

    asyncio.run(scenario())


@pytest.mark.req("T1.87")
@pytest.mark.parametrize("key", [None, "once"])
def test_an_end_that_was_delivered_and_not_yet_committed_is_recorded_after_a_kill_once_and_with_its_numbers(
    tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            before = await bench.call(info, "run_command", command="echo before")
            command = "printf out; printf err >&2; echo new > file; exit 7"
            told = await bench.call(info, "run_command", key=key, command=command)
            found = bench.control.store.read("SELECT kind FROM ledger WHERE call_id = ?", (told.call_id,))
            assert found == [("call.started",), ("call.ended",)]
            assert not bench.control.store.is_settled
            bench.kill()
            assert [json.loads(line)["call_id"] for line in bench.history()] == [before.call_id]
            assert verdict_of(bench).intact

            monkeypatch.undo()
            await bench.start()
            await until(lambda: not bench.control.ledger.open_calls())
            assert bench.kinds(call_id=told.call_id) == ["call.started", "call.ended"]
            body = bench.entries(call_id=told.call_id)[-1].body
            for stream in ("stdout", "stderr"):
                shown = told.value[f"{stream}_info"]
                assert (body[stream]["bytes"], body[stream]["sha256"]) == (shown["bytes"], shown["sha256"])
            assert (body["ended"], body["exit_code"]) == (told.value["ended"], told.value["exit_code"])
            assert body["duration_us"] == round(told.value["duration_ms"] * 1000)
            assert [change["path"] for change in body["files"]["changes"]] == ["file"]
            assert (body["label"], body["label_reason"]) == (told.label, told.label_reason)
            if key is not None:
                assert await bench.call(info, "run_command", key=key, command=command) == told
            await until(lambda: len(bench.history()) == 2)
            await bench.call(info, "run_command", command="echo after")
            await bench.restart()
            lines = [json.loads(line) for line in bench.history()]
            assert [line["call_id"] for line in lines][:2] == [before.call_id, told.call_id]
            assert len(lines) == 3
            assert (lines[1]["hash"], lines[1]["exit_code"]) == (bench.entries(call_id=told.call_id)[-1].hash, 7)
            assert len(bench.host.ran) == 3
            assert verdict_of(bench).intact

    asyncio.run(scenario())


def test_with_an_end_that_could_not_be_committed_nothing_runs_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            told = await bench.call(info, "run_command", command="echo one")
            # Into the transaction that waits, so that its commit fails.
            raw = bench.control.store.raw
            raw.execute(
                "CREATE TABLE parts (id INTEGER PRIMARY KEY, whole REFERENCES parts (id) DEFERRABLE INITIALLY DEFERRED)"
            )
            raw.execute("INSERT INTO parts VALUES (1, 17)")
            assert isinstance(await refused(bench, info, "run_command", command="echo no"), LedgerUnavailable)
            assert len(bench.host.ran) == 1
            after = await bench.call(info, "run_command", command="echo two")
            kinds = [(entry.kind, entry.subject) for entry in bench.calls() if entry.kind != "call.refused"]
            assert kinds == [
                ("call.started", told.call_id),
                ("call.ended", told.call_id),
                ("call.started", after.call_id),
                ("call.ended", after.call_id),
            ]
            await bench.restart()
            shown = [json.loads(line) for line in bench.history()]
            assert [line["attempt"] for line in shown] == ["allowed", "denied", "allowed"]
            assert [shown[0]["call_id"], shown[2]["call_id"]] == [told.call_id, after.call_id]
            assert verdict_of(bench).intact

    asyncio.run(scenario())
