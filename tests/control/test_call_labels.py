"""What was read labels the result, the session and the workspace, which keeps it for others and over a restart."""

import asyncio
from pathlib import Path

import pytest

from coldframe.contract.command import OutputChunk
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SandboxSpec
from tests.control.bench import AGENT, OWNER, SECRETS, opened


@pytest.mark.req("T1.102", "T1.101")
def test_what_was_read_labels_result_session_and_workspace(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            await bench.call(info, "run_command", command="mkdir secrets; echo x > secrets/key")
            result = await bench.call(info, "read_file", path="secrets/key")
            assert (result.label, result.taint) == (Label.CONFIDENTIAL, Label.CONFIDENTIAL)
            assert "secrets-are-confidential" in result.label_reason
            assert bench.control.sessions.get(info.session_id).taint is Label.CONFIDENTIAL
            assert bench.control.agents.get("ada").workspace_label is Label.CONFIDENTIAL  # it lies there, so it is
            await bench.call(info, "write_file", path="copy.txt", content="x")
            assert bench.control.agents.get("ada").workspace_label is Label.CONFIDENTIAL
            ended = [entry for entry in bench.calls() if entry.kind == "call.ended"]
            assert [entry.body["taint_after"] for entry in ended] == ["PUBLIC", "CONFIDENTIAL", "CONFIDENTIAL"]

    asyncio.run(scenario())


@pytest.mark.req("TP.11")
def test_the_workspace_keeps_its_label_for_other_sessions_and_over_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            first = await bench.sandbox()
            await bench.call(first, "write_file", path="secrets/key", content="x")
            await bench.restart()
            assert bench.control.sessions.get(first.session_id).taint is Label.CONFIDENTIAL
            second = await bench.sandbox()
            assert bench.control.sessions.get(second.session_id).taint is Label.PUBLIC
            result = await bench.call(second, "run_command", command="cat copy 2>/dev/null; true")
            assert (result.label, result.taint) == (Label.CONFIDENTIAL, Label.CONFIDENTIAL)
            assert "workspace" in result.label_reason
            bench.control.sessions.reset(second.session_id, caller=OWNER)
            again = await bench.call(second, "list_directory")
            assert again.session_id != second.session_id
            assert again.label is Label.CONFIDENTIAL  # washed by nothing: the files are what they were

    asyncio.run(scenario())


def test_a_label_is_in_force_before_the_first_byte_of_a_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            first = await bench.sandbox()
            await bench.call(first, "write_file", path="secrets/key", content="x")
            second = await bench.sandbox()
            stream = bench.control.gate.stream(AGENT, second.sandbox_id, "run_command", {"command": "cat secrets/key"})
            async for event in stream:
                if isinstance(event, OutputChunk):
                    assert bench.control.sessions.get(second.session_id).taint is Label.CONFIDENTIAL

    asyncio.run(scenario())


def test_a_background_sandbox_keeps_its_label_with_its_workspace(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.control.creation.create(OWNER, SandboxSpec(background=True))
            await bench.call(info, "write_file", caller=OWNER, path="secrets/key", content="x")
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).workspace_label is Label.CONFIDENTIAL
            bench.control.sessions.reset(info.session_id, caller=OWNER)
            result = await bench.call(info, "list_directory", caller=OWNER)
            assert result.label is Label.CONFIDENTIAL
            await bench.restart()
            assert (tmp_path / "background" / info.session_id / "secrets" / "key").exists()

    asyncio.run(scenario())
