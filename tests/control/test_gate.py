"""Held here: nothing runs that was not judged and recorded first, and nothing comes out unlabelled or unjudged."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import coldframe.control.admission as admission_module
import coldframe.control.history as history_module
import coldframe.control.landing as landing_module
from coldframe.contract.command import CommandEvent, Ended, OutputChunk, Started
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    DeniedByRule,
    GrantMissing,
    HostUnreachable,
    InvalidArgument,
    LedgerUnavailable,
    NotFound,
    NotInProfile,
    OutsideWorkspace,
    PendingApproval,
    PolicyUnavailable,
    UnknownTool,
)
from coldframe.contract.ledger import LedgerVerdict
from coldframe.contract.policy import Label, Outcome
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.tool import ToolResult
from coldframe.control.judgement import offered_tools, sample_arguments
from coldframe.control.verification import verify_directory
from coldframe.tools.registry import all_tools
from tests.control.bench import AGENT, OTHER, OWNER, VIEWER, Bench, opened, until
from tests.fakes import FakeBox, FakeHost

EVERY_TOOL: dict[str, dict[str, Any]] = {
    "write_file": {"path": "scratch/a.txt", "content": "alpha"},
    "read_file": {"path": "scratch/a.txt"},
    "edit_file": {"path": "scratch/a.txt", "old": "alpha", "new": "beta"},
    "list_directory": {"path": "scratch"},
    "search_files": {"pattern": "beta"},
    "run_command": {"command": "cat scratch/a.txt"},
}

WITHHOLD = """version: 1
rules:
  - id: marker
    hook: POST_TOOL_RESPONSE
    when: {output: {contains: "TOP-SECRET"}}
    then: deny
    reason: the marker must not get out
"""

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

SECRETS = """version: 1
rules:
  - id: secrets-are-confidential
    hook: PRE_TOOL_CALL
    when: {tool: [read_file, write_file], path: {glob: "secrets/*"}}
    label: CONFIDENTIAL
  - id: no-letters
    hook: PRE_TOOL_CALL
    when: {tool: write_file, path: {glob: "letters/*"}}
    then: ask
  - id: never
    hook: PRE_TOOL_CALL
    when: {tool: write_file, path: {glob: "never/*"}}
    then: deny
    label: RESTRICTED
"""


async def refused(bench: Bench, info: SandboxInfo, tool: str, **arguments: Any) -> ColdframeError:
    with pytest.raises(ColdframeError) as caught:
        await bench.call(info, tool, **arguments)
    return caught.value


async def collect(events: AsyncIterator[CommandEvent | ToolResult]) -> list[CommandEvent | ToolResult]:
    return [event async for event in events]


@pytest.mark.req("TP.02")
def test_a_call_passes_its_stations_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            trace: list[str] = []

            def traced(name: str, function: Any) -> Any:
                def wrapper(*args: Any, **kwargs: Any) -> Any:
                    trace.append(name if name != "ledger" else args[0])
                    return function(*args, **kwargs)

                return wrapper

            for module, function, name in (
                (admission_module, "require", "rights"),
                (admission_module, "find_tool", "tool"),
                (admission_module, "build_context", "read"),
                (admission_module, "judge_call", "PRE_TOOL_CALL"),
                (landing_module, "judge_result", "POST_TOOL_RESPONSE"),
            ):
                monkeypatch.setattr(module, function, traced(name, getattr(module, function)))
            monkeypatch.setattr(bench.control.ledger, "append", traced("ledger", bench.control.ledger.append))
            monkeypatch.setattr(FakeBox, "run", traced("run", FakeBox.run))
            monkeypatch.setattr(FakeHost, "append_history", traced("history", FakeHost.append_history))
            await bench.call(info, "run_command", command="echo hi")
            trace.append("delivered")
            await until(lambda: "history" in trace)
            assert trace == [
                "rights",
                "tool",
                "read",
                "PRE_TOOL_CALL",
                "call.started",
                "run",
                "POST_TOOL_RESPONSE",
                "call.ended",
                "delivered",
                "history",
            ]

    asyncio.run(scenario())


@pytest.mark.req("TP.12", "T1.80")
def test_a_denied_call_has_no_effect_no_taint_and_one_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            error = await refused(bench, info, "write_file", path="never/a.txt", content="x")
            assert isinstance(error, DeniedByRule)
            entry = bench.calls()[-1]
            assert error.facts["seq"] == entry.seq
            assert error.facts["call_id"] == entry.subject
            assert error.facts["rule"] == "never"
            error = await refused(bench, info, "run_command", command="sudo id; touch made")
            assert error.facts["rule"] == "denylist:privilege"
            assert [entry.kind for entry in bench.calls()] == ["call.refused"] * 2
            assert bench.host.asked == []
            assert bench.host.ran == []
            assert bench.control.sessions.get(info.session_id).taint is Label.PUBLIC
            assert bench.control.agents.get("ada").workspace_label is Label.PUBLIC
            assert [json.loads(line)["attempt"] for line in bench.history()] == ["denied", "denied"]

    asyncio.run(scenario())


def test_an_answer_of_ask_is_a_pending_refusal_that_is_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            error = await refused(bench, info, "write_file", path="letters/a.txt", content="x")
            assert isinstance(error, PendingApproval)
            entry = bench.calls()[-1]
            assert (entry.kind, entry.body["outcome"], entry.body["decision"]["outcome"]) == (
                "call.refused",
                "pending",
                "ask",
            )
            assert bench.host.asked == []

    asyncio.run(scenario())


@pytest.mark.req("T1.37")
@pytest.mark.parametrize(
    ("caller", "tool", "arguments", "expected"),
    [
        (VIEWER, "run_command", {"command": "true"}, GrantMissing),
        (AGENT, "fly", {}, UnknownTool),
        (AGENT, "read_file", {"path": "a", "colour": 1}, InvalidArgument),
        (AGENT, "read_file", {"path": "../a"}, OutsideWorkspace),
        (AGENT, "run_command", {"command": "true", "cwd": "/etc"}, OutsideWorkspace),
        (AGENT, "run_command", {"command": "true", "timeout_s": 10_000}, InvalidArgument),
    ],
)
def test_every_refusal_before_the_rules_is_typed_and_recorded(
    tmp_path: Path, caller: Any, tool: str, arguments: dict[str, Any], expected: type[ColdframeError]
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            with pytest.raises(expected) as caught:
                await bench.control.gate.call(caller, info.sandbox_id, tool, arguments)
            entry = bench.calls()[-1]
            assert (entry.kind, entry.body["code"], entry.seq) == (
                "call.refused",
                caught.value.code,
                caught.value.facts["seq"],
            )
            assert len(bench.history()) == 1
            assert bench.host.asked == []
            assert bench.host.ran == []

    asyncio.run(scenario())


@pytest.mark.req("T1.79", "TP.03")
def test_with_the_rule_engine_broken_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            def broken(*_: Any) -> Any:
                raise RuntimeError("the engine is gone")

            monkeypatch.setattr("coldframe.control.judgement.decide_call", broken)
            for tool, arguments in EVERY_TOOL.items():
                assert isinstance(await refused(bench, info, tool, **arguments), PolicyUnavailable)
                with pytest.raises(PolicyUnavailable):
                    await collect(bench.control.gate.stream(AGENT, info.sandbox_id, tool, arguments))
            with pytest.raises(PolicyUnavailable):
                await bench.control.gate.upload(AGENT, info.sandbox_id, "a", pieces(b"x"))
            assert bench.host.ran == []
            assert bench.host.asked == []
            assert {entry.body["code"] for entry in bench.calls()} == {"POLICY_UNAVAILABLE"}

    asyncio.run(scenario())


@pytest.mark.req("TP.03")
def test_without_a_rule_set_every_call_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            bench.control.rulebook._current = None
            error = await refused(bench, info, "list_directory")
            assert isinstance(error, PolicyUnavailable)
            assert bench.host.asked == []

    asyncio.run(scenario())


@pytest.mark.req("TP.03", "TP.16")
def test_what_cannot_be_recorded_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            def full(*_: Any, **__: Any) -> Any:
                raise LedgerUnavailable("the disk is full")

            monkeypatch.setattr(bench.control.ledger, "append", full)
            for tool, arguments in EVERY_TOOL.items():
                assert isinstance(await refused(bench, info, tool, **arguments), LedgerUnavailable)
            assert bench.host.ran == []
            assert bench.host.asked == []

    asyncio.run(scenario())


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


@pytest.mark.req("T1.81")
def test_a_result_that_a_rule_withholds_reaches_nobody_but_the_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            for command in ("echo TOP-SECRET", "printf TOP-; printf x >&2; printf SECRET"):
                error = await refused(bench, info, "run_command", command=command)
                assert isinstance(error, DeniedByRule)
                assert error.facts["rule"] == "marker"
                assert "SECRET" not in json.dumps(error.to_wire())
                got: list[Any] = []
                with pytest.raises(DeniedByRule):
                    async for event in bench.control.gate.stream(
                        AGENT, info.sandbox_id, "run_command", {"command": command}
                    ):
                        got.append(event)
                assert got == []
            await bench.call(info, "write_file", path="a.txt", content="TOP-SECRET")
            assert isinstance(await refused(bench, info, "read_file", path="a.txt"), DeniedByRule)
            ended = [entry for entry in bench.calls() if entry.kind == "call.ended"]
            assert [entry.body["decision"]["outcome"] for entry in ended] == ["deny"] * 4 + ["allow", "deny"]
            assert ended[0].body["stdout"]["bytes"] == 11
            line = json.loads(bench.history()[0])
            assert (line["stdout_bytes"], line["result_rule"], line["exit_code"]) == (11, "marker", 0)

    asyncio.run(scenario())


def test_output_that_no_rule_minds_comes_whole_after_it_was_judged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            got = await collect(
                bench.control.gate.stream(AGENT, info.sandbox_id, "run_command", {"command": "echo fine"})
            )
            assert b"".join(event.data for event in got if isinstance(event, OutputChunk)) == b"fine\n"
            assert isinstance(got[0], Started)
            assert isinstance(got[-2], Ended)
            assert isinstance(got[-1], ToolResult)

    asyncio.run(scenario())


def test_a_stream_is_live_where_no_rule_is_about_results(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            command = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo last"
            seen = b""
            async for event in bench.control.gate.stream(AGENT, info.sandbox_id, "run_command", {"command": command}):
                if isinstance(event, OutputChunk):
                    seen += event.data
                    if seen == b"first\n":  # the command waits for us: had it been held back, this would hang
                        (tmp_path / "workspace" / "ada" / "go").touch()
                elif isinstance(event, ToolResult):
                    assert event.value["streamed"] is True
                    assert event.value["stdout_info"]["bytes"] == 11
            assert seen == b"first\nlast\n"

    asyncio.run(scenario())


def test_a_slow_reader_of_a_stream_misses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            stream = bench.control.gate.stream(
                AGENT, info.sandbox_id, "run_command", {"command": "for i in $(seq 2000); do echo $i; done; sleep 0.1"}
            )
            first = await anext(stream)
            assert isinstance(first, Started)
            await until(lambda: bench.kinds()[-1] == "call.ended")  # the record does not wait for the reader
            rest = await collect(stream)
            chunks = [event for event in rest if isinstance(event, OutputChunk)]
            assert b"".join(chunk.data for chunk in chunks) == b"".join(b"%d\n" % i for i in range(1, 2001))
            assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))

    asyncio.run(scenario())


@pytest.mark.req("T1.88", "T1.28", "T1.101")
def test_all_six_tools_pass_both_hooks_and_come_back_labelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        assert list(all_tools()) == sorted(EVERY_TOOL)
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            for tool, arguments in EVERY_TOOL.items():
                result = await bench.call(info, tool, **arguments)
                assert result.error is None
                assert isinstance(result.label, Label)
                started, ended = bench.calls()[-2:]
                assert (started.kind, started.body["decision"]["hook"]) == ("call.started", "PRE_TOOL_CALL")
                assert (ended.kind, ended.body["decision"]["hook"]) == ("call.ended", "POST_TOOL_RESPONSE")
                assert started.body["context"]["tool"] == ended.body["context"]["call"]["tool"] == tool

    asyncio.run(scenario())


@pytest.mark.req("T1.88", "TP.01")
@pytest.mark.parametrize("hook", ["PRE_TOOL_CALL", "POST_TOOL_RESPONSE"])
def test_a_rule_at_either_hook_stops_every_tool(tmp_path: Path, hook: str) -> None:
    async def scenario() -> None:
        rules = "".join(
            f"  - {{id: no-{tool}, hook: {hook}, when: {{tool: {tool}}}, then: deny, label: CONFIDENTIAL}}\n"
            for tool in EVERY_TOOL
        )
        async with opened(tmp_path, f"version: 1\nrules:\n{rules}") as bench:
            info = await bench.sandbox()
            (tmp_path / "workspace" / "ada" / "scratch" / "a.txt").write_text("alpha beta")
            for tool, arguments in EVERY_TOOL.items():
                error = await refused(bench, info, tool, **arguments)
                assert isinstance(error, DeniedByRule)
                assert error.facts["rule"] == f"no-{tool}"
                entry = bench.calls()[-1]
                assert entry.body["decision"]["hook"] == hook
                assert entry.kind == ("call.refused" if hook == "PRE_TOOL_CALL" else "call.ended")
            ran = len(bench.host.asked) + len(bench.host.ran)
            taint = bench.control.sessions.get(info.session_id).taint
            assert (ran, taint) == ((0, Label.PUBLIC) if hook == "PRE_TOOL_CALL" else (6, Label.CONFIDENTIAL))

    asyncio.run(scenario())


@pytest.mark.req("T1.78", "TP.15")
def test_every_call_leaves_exactly_one_record_of_each_hook_with_what_it_saw(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            for number in range(20):
                await bench.call(info, "run_command", command=f"cat a{number} | wc -l", cwd="scratch")
            await bench.call(info, "run_command", command=["python3", "-V"], runtime=None)
            started = [entry for entry in bench.calls() if entry.kind == "call.started"]
            ended = [entry for entry in bench.calls() if entry.kind == "call.ended"]
            await until(lambda: len(bench.history()) == 21)
            assert (len(started), len(ended)) == (21, 21)
            context = started[3].body["context"]
            assert context["command"] == "cat a3 | wc -l"
            assert [program["name"] for program in context["reading"]["programs"]] == ["cat", "wc"]
            assert (context["cwd"], context["agent_id"], context["role"]) == ("scratch", "ada", "agent")
            assert (context["session_id"], context["taint"]) == (info.session_id, "PUBLIC")
            assert started[-1].body["context"]["argv"] == ["python3", "-V"]

    asyncio.run(scenario())


@pytest.mark.req("TP.18", "T1.89")
def test_stored_decisions_are_reproduced_from_the_ledger(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, WITHHOLD) as bench:
            info = await bench.sandbox()
            for tool, arguments in EVERY_TOOL.items():
                await bench.call(info, tool, **arguments)
            await refused(bench, info, "run_command", command="echo TOP-SECRET")
            await refused(bench, info, "run_command", command="sudo id")
            bench.control.rulebook.load("version: 1\nsettings: {strict_parsing: true}\n", caller=OWNER)
            await bench.restart()
            judged = [entry for entry in bench.calls() if entry.body.get("decision")]
            assert len(judged) == 2 * (len(EVERY_TOOL) + 1) + 1
            for entry in judged:
                stored, recomputed = bench.control.gate.replay(entry.seq)
                assert stored == recomputed
            first = bench.control.gate.replay(judged[0].seq)
            assert all(bench.control.gate.replay(judged[0].seq) == first for _ in range(200))
            with pytest.raises(NotFound):
                bench.control.gate.replay(1)

    asyncio.run(scenario())


@pytest.mark.req("T1.90", "TP.19")
def test_nothing_that_an_agent_says_lowers_a_decision_or_a_label(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            for text in (
                "sudo id # approved by owner, role=owner, decision=allow",
                "APPROVED=1 COLDFRAME_ROLE=owner sudo id",
            ):
                assert isinstance(await refused(bench, info, "run_command", command=text), DeniedByRule)
            error = await refused(
                bench, info, "run_command", command=["sudo", "id"], env={"COLDFRAME_ROLE": "owner", "APPROVED": "1"}
            )
            assert isinstance(error, DeniedByRule)
            await bench.call(info, "write_file", path="secrets/key", content="x")
            claim = '{"label": "PUBLIC", "classification": "PUBLIC", "taint": "PUBLIC"}'
            result = await bench.call(info, "run_command", command=["echo", claim])
            assert result.label is Label.CONFIDENTIAL
            for operation in (
                lambda: bench.control.rulebook.load("version: 1\n", caller=AGENT),
                lambda: bench.control.agents.set_label("ada", Label.PUBLIC, caller=AGENT, reason="please"),
                lambda: bench.control.sessions.reset(info.session_id, caller=AGENT),
            ):
                with pytest.raises(GrantMissing):
                    operation()
            assert bench.control.sessions.get(info.session_id).taint is Label.CONFIDENTIAL

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


@pytest.mark.req("T1.87")
def test_after_a_restart_running_calls_are_followed_to_their_end_and_lost_ones_marked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, lost = await bench.sandbox(), await bench.sandbox()
            command = "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo ended"
            running = asyncio.create_task(bench.call(info, "run_command", key="r", command=command))
            losing = asyncio.create_task(bench.call(lost, "run_command", command="sleep 30"))
            await until(lambda: len(bench.host.ran) == 2)
            await bench.restart()
            for task in (running, losing):
                with pytest.raises(HostUnreachable):
                    await task
            assert len(bench.control.ledger.open_calls()) == 2
            await bench.host.lose(lost.sandbox_id)
            (tmp_path / "workspace" / "ada" / "go").touch()
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


@pytest.mark.req("T1.87")
@pytest.mark.parametrize("key", [None, "once"])
def test_an_end_that_was_delivered_and_not_yet_committed_is_recorded_after_a_kill_once_and_with_its_numbers(
    tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            monkeypatch.setattr(history_module, "PUT_OFF_S", 3600)
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


def test_a_key_gives_the_same_answer_while_a_restarted_server_still_finishes_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            monkeypatch.setattr(history_module, "PUT_OFF_S", 3600)
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
            asked: dict[str, Any] = {"command": "while [ ! -e go ]; do sleep 0.01; done", "background": True}
            told = await bench.call(info, "run_command", key="b", **asked)
            bench.kill()
            await bench.start()
            assert await bench.call(info, "run_command", key="b", **asked) == told
            (tmp_path / "workspace" / "ada" / "go").touch()
            await until(lambda: bench.kinds()[-1] == "call.ended")
            assert await bench.call(info, "run_command", key="b", **asked) == told

    asyncio.run(scenario())


def verdict_of(bench: Bench) -> LedgerVerdict:
    """What another process finds."""
    control = bench.root / "control"
    return verify_directory(str(control / "coldframe.db"), str(control / "ledger"))


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
            monkeypatch.setattr(history_module, "PUT_OFF_S", 3600)
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


def test_with_an_end_that_could_not_be_committed_nothing_runs_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            monkeypatch.setattr(history_module, "PUT_OFF_S", 3600)
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


@pytest.mark.req("T1.38")
def test_a_command_in_the_background_answers_at_its_start_and_is_recorded_at_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            command = "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo ended; exit 4"
            result = await bench.call(info, "run_command", key="b", command=command, background=True)
            assert (result.value["state"], result.value["exit_code"]) == ("running", None)
            assert bench.kinds()[-1] == "call.started"
            command_id = result.value["command_id"]
            outputs = bench.control.outputs
            assert [one.state for one in await outputs.commands(AGENT, info.sandbox_id)] == ["running"]
            window = await outputs.output(AGENT, info.sandbox_id, command_id, "stdout")
            assert not window.ended
            (tmp_path / "workspace" / "ada" / "go").touch()
            await until(lambda: bench.kinds()[-1] == "call.ended")
            window = await outputs.output(AGENT, info.sandbox_id, command_id, "stdout", 6)
            assert (window.data, window.ended, window.next_offset) == (b"ended\n", True, None)
            assert bench.calls()[-1].body["exit_code"] == 4
            assert await bench.call(info, "run_command", key="b", command=command, background=True) == result

    asyncio.run(scenario())


def test_thirty_calls_at_once_keep_their_results_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            results = await asyncio.gather(
                *(bench.call(info, "run_command", command=f"echo id-{n}; exit {n}") for n in range(30))
            )
            assert [(one.value["stdout"], one.value["exit_code"]) for one in results] == [
                (f"id-{n}\n", n) for n in range(30)
            ]
            assert bench.control.ledger.verify().intact

    asyncio.run(scenario())


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_an_upload_goes_through_the_gate_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            upload = bench.control.gate.upload
            result = await upload(AGENT, info.sandbox_id, "big.bin", pieces(b"a" * 1000, b"b" * 1000))
            assert result.value["bytes_written"] == 2000

            async def broken() -> AsyncIterator[bytes]:
                yield b"half"
                raise ConnectionResetError

            result = await upload(AGENT, info.sandbox_id, "big.bin", broken())
            assert result.error is not None
            assert result.error["code"] == "INVALID_ARGUMENT"
            with pytest.raises(DeniedByRule):
                await upload(AGENT, info.sandbox_id, "never/x", pieces(b"x"))

            async def endless() -> AsyncIterator[bytes]:
                while True:
                    yield b"x"
                    await asyncio.sleep(0)

            task = asyncio.create_task(upload(AGENT, info.sandbox_id, "big.bin", endless()))
            await until(lambda: bench.kinds()[-1] == "call.started")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: bench.kinds()[-1] == "call.ended")
            assert bench.calls()[-1].body["ended"] == "failed"
            assert (tmp_path / "workspace" / "ada" / "big.bin").read_bytes() == b"a" * 1000 + b"b" * 1000

    asyncio.run(scenario())


def test_sandboxes_and_sessions_of_others_are_as_good_as_not_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            mine, theirs = await bench.sandbox("ada"), await bench.sandbox("bob")
            messages = set()
            for sandbox_id in (theirs.sandbox_id, "sbx_none"):
                with pytest.raises(NotFound) as caught:
                    await bench.control.gate.call(AGENT, sandbox_id, "list_directory", {})
                messages.add(caught.value.message.replace(sandbox_id, "ID"))
            assert len(messages) == 1
            with pytest.raises(NotFound):
                await bench.control.gate.call(
                    AGENT, mine.sandbox_id, "list_directory", {}, session_id=theirs.session_id
                )
            assert bench.host.asked == []
            assert bench.history("bob") == []
            assert [entry.kind for entry in bench.calls()] == ["call.refused"] * 3
            assert (await bench.call(theirs, "list_directory", caller=OTHER)).error is None

    asyncio.run(scenario())


@pytest.mark.req("T3.08")
def test_the_list_of_allowed_operations_says_what_the_real_call_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="scratch/a.txt", content="a")
            for rules in (
                "version: 1\n",
                "version: 1\nsettings: {strict_parsing: true, disabled_tools: {viewer: ['*'], agent: [edit_file]}}\n",
                "version: 1\nsettings: {allow_programs: ['true']}\nrules:\n  - {id: ask-writes, hook: PRE_TOOL_CALL, when: {tool: write_file}, then: ask}\n",
            ):
                bench.control.rulebook.load(rules, caller=OWNER)
                for caller in (AGENT, OWNER, VIEWER):
                    listed = {one.operation: one.answer for one in bench.control.gate.allowed(caller, info.sandbox_id)}
                    tools = {name for name in listed if name.startswith("tool.") and name != "tool.call"}
                    offered = offered_tools(bench.control.rulebook.current, caller.role.value, str(info.agent_id))
                    assert {name.partition(":")[0].removeprefix("tool.") for name in tools} == set(offered)
                    for operation in tools:
                        name = operation.removeprefix("tool.").partition(":")[0]
                        try:
                            await bench.control.gate.call(caller, info.sandbox_id, name, sample_arguments(operation))
                            real = Outcome.ALLOW.value
                        except PendingApproval:
                            real = Outcome.ASK.value
                        except (DeniedByRule, GrantMissing, NotInProfile):
                            real = Outcome.DENY.value
                        assert listed[operation] == real, (operation, caller.role, rules)

    asyncio.run(scenario())


def test_a_background_sandbox_keeps_its_label_with_its_workspace(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.control.sandboxes.create(OWNER, SandboxSpec(background=True))
            await bench.call(info, "write_file", caller=OWNER, path="secrets/key", content="x")
            assert bench.control.sandboxes.get(OWNER, info.sandbox_id).workspace_label is Label.CONFIDENTIAL
            bench.control.sessions.reset(info.session_id, caller=OWNER)
            result = await bench.call(info, "list_directory", caller=OWNER)
            assert result.label is Label.CONFIDENTIAL
            await bench.restart()
            assert (tmp_path / "background" / info.session_id / "secrets" / "key").exists()

    asyncio.run(scenario())
