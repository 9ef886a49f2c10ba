"""An idempotency key names one call: it runs once, and gives the same answer again, after a restart too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.command import CommandEvent
from coldframe.contract.errors import Conflict, DeniedByRule, HostUnreachable, InvalidArgument
from coldframe.contract.policy import Label
from coldframe.contract.tool import ToolResult
from tests.control.bench import AGENT, OWNER, SECRETS, UNTIL_GO, WITHHOLD, opened, put_off_ends, until
from tests.fakes.box import FakeBox


def test_the_same_key_is_the_same_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            calls = [
                asyncio.create_task(bench.call(info, "run_command", key="k1", command="echo x >> log; cat log"))
                for _ in range(5)
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
            known = [one for one in results if isinstance(one, ToolResult)]
            assert known
            assert all(isinstance(one, ToolResult | HostUnreachable) for one in results)
            again = await bench.call(info, "run_command", key="k1", command="echo x >> log; cat log")
            assert again == known[0]
            assert again.value["stdout"] == "x\n"
            assert len(bench.host.ran) == 1
            with pytest.raises(Conflict):
                await bench.call(info, "run_command", key="k1", command="echo y")
            await bench.restart()
            after = await bench.call(info, "run_command", key="k1", command="echo x >> log; cat log")
            assert after == known[0]
            other = await bench.call(info, "run_command", caller=OWNER, key="k1", command="cat log")
            assert other.call_id != after.call_id
            assert len(bench.host.ran) == 2

    asyncio.run(scenario())


def test_two_calls_under_one_key_that_come_in_while_both_wait_for_the_box_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            box, both, waiting = bench.host.box, asyncio.Event(), 0

            async def box_for_two(sandbox_id: str) -> FakeBox:
                nonlocal waiting
                waiting += 1
                if waiting == 2:
                    both.set()
                await both.wait()
                return await box(sandbox_id)

            monkeypatch.setattr(bench.host, "box", box_for_two)
            calls = (bench.call(info, "run_command", key="k1", command="echo x >> log; cat log") for _ in range(2))
            first, second = await asyncio.gather(*calls)
            assert first == second
            assert len(bench.host.ran) == 1

    asyncio.run(scenario())


def test_a_key_gives_back_answers_errors_and_denials_of_other_tools_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            written = await bench.call(info, "write_file", key="w", path="a", content="TOP-SECRET")
            missing = await bench.call(info, "read_file", key="m", path="none")
            with pytest.raises(DeniedByRule) as denied:
                await bench.call(info, "read_file", key="d", path="a")
            asked = len(bench.host.asked)
            await bench.restart()
            assert await bench.call(info, "write_file", key="w", path="a", content="TOP-SECRET") == written
            assert await bench.call(info, "read_file", key="m", path="none") == missing
            assert missing.error is not None
            assert missing.error["code"] == "FILE_NOT_FOUND"
            with pytest.raises(DeniedByRule) as again:
                await bench.call(info, "read_file", key="d", path="a")
            assert again.value.facts["seq"] == denied.value.facts["seq"]
            assert len(bench.host.asked) == asked
            with pytest.raises(InvalidArgument):
                await bench.call(info, "read_file", key="with blank", path="a")

    asyncio.run(scenario())


def test_a_result_that_is_given_again_brings_its_label_into_the_session_of_today(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            await bench.call(info, "run_command", command="mkdir secrets; echo x > secrets/key")
            first = await bench.call(info, "read_file", key="k", path="secrets/key")
            bench.control.sessions.reset(info.session_id, caller=OWNER)
            again = await bench.call(info, "read_file", key="k", path="secrets/key")
            assert again == first
            session_id = bench.control.sandboxes.get(AGENT, info.sandbox_id).session_id
            assert session_id != info.session_id
            assert bench.control.sessions.get(session_id).taint is Label.CONFIDENTIAL

    asyncio.run(scenario())


def test_a_key_gives_the_same_answer_while_a_restarted_server_still_finishes_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            asked: dict[str, Any] = {"command": "printf 'a long line'", "encoding": "base64", "view": {"max_bytes": 4}}
            told = await bench.call(info, "run_command", key="k", **asked)
            bench.kill()
            go_on = asyncio.Event()
            follow = FakeBox.follow

            async def slowly(self: FakeBox, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
                await go_on.wait()
                async for event in follow(self, command_id, after_seq=after_seq):
                    yield event

            monkeypatch.setattr(FakeBox, "follow", slowly)
            await bench.start()
            again = asyncio.create_task(bench.call(info, "run_command", key="k", **asked))
            await asyncio.sleep(0)
            go_on.set()
            assert await again == told
            assert len(bench.host.ran) == 1

    asyncio.run(scenario())


def test_a_key_gives_the_first_answer_of_a_command_in_the_background_also_after_a_kill(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            asked: dict[str, Any] = {"command": UNTIL_GO, "background": True}
            told = await bench.call(info, "run_command", key="b", **asked)
            bench.kill()
            await bench.start()
            assert await bench.call(info, "run_command", key="b", **asked) == told
            bench.go()
            await until(lambda: bench.kinds()[-1] == "call.ended")
            assert await bench.call(info, "run_command", key="b", **asked) == told

    asyncio.run(scenario())
