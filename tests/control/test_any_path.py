"""Tools for any path of a box go through the gate like all others, and rules hold for them by whatever name they are called."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    DeniedByRule,
    NotFound,
    NotInProfile,
    PendingApproval,
    PolicyUnavailable,
)
from coldframe.contract.policy import Label
from coldframe.tools.registry import all_tools, any_path, every_tool, in_box
from tests.control.bench import AGENT, OTHER, SECRETS, opened, refused
from tests.control.test_gate import pieces

UNLISTED: dict[str, dict[str, Any]] = {
    "write_path": {"path": "/tmp/a", "content": "alpha"},
    "read_path": {"path": "/tmp/a"},
    "list_path": {"path": "/tmp"},
    "stat_path": {"path": "/tmp/a"},
    "make_directory": {"path": "/tmp/d"},
    "move_path": {"path": "/tmp/a", "target": "/tmp/b"},
    "remove_path": {"path": "/tmp/b"},
    "watch_path": {"path": "/tmp"},
    "run_anywhere": {"command": "true", "cwd": "/tmp"},
}


def test_they_are_there_and_offered_to_nobody() -> None:
    assert set(UNLISTED) <= set(every_tool())
    assert not set(UNLISTED) & set(all_tools())


@pytest.mark.parametrize(
    ("given", "known", "inside"),
    [
        ("a", "a", "/home/user/a"),
        ("./a//b/../c", "a/c", "/home/user/a/c"),
        ("", "", "/home/user"),
        ("/home/user", "", "/home/user"),
        ("/home/user/a", "a", "/home/user/a"),
        ("/home/user/../user/a", "a", "/home/user/a"),
        ("../x", "/home/x", "/home/x"),
        ("/etc/passwd", "/etc/passwd", "/etc/passwd"),
        ("//etc//passwd", "/etc/passwd", "/etc/passwd"),
        ("/../../etc", "/etc", "/etc"),
        ("/", "/", "/"),
        ("/home/username", "/home/username", "/home/username"),
    ],
)
def test_a_path_has_one_spelling_for_rules_whatever_way_it_is_written(given: str, known: str, inside: str) -> None:
    assert (any_path(given), in_box(any_path(given))) == (known, inside)


@pytest.mark.req("T1.79", "TP.03")
def test_with_the_rule_engine_broken_none_of_them_does_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()

            def broken(*_: Any) -> Any:
                raise RuntimeError("the engine is gone")

            monkeypatch.setattr("coldframe.control.judgement.decide_call", broken)
            for tool, arguments in UNLISTED.items():
                assert isinstance(await refused(bench, info, tool, **arguments), PolicyUnavailable), tool
            with pytest.raises(PolicyUnavailable):
                await bench.control.gate.upload(
                    AGENT, info.sandbox_id, "/tmp/a", pieces(b"x"), anywhere={"user": "user"}
                )
            assert (bench.host.ran, bench.host.asked) == ([], [])

    asyncio.run(scenario())


@pytest.mark.req("T1.78", "T1.101")
def test_each_is_judged_recorded_and_labelled_by_the_name_that_rules_know(tmp_path: Path) -> None:
    names = {"write_path": "write_file", "read_path": "read_file", "list_path": "list_directory"}

    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            for tool, arguments in UNLISTED.items():
                if tool in ("watch_path", "run_anywhere"):
                    continue
                result = await bench.call(info, tool, **arguments)
                assert result.error is None, result.error
                assert isinstance(result.label, Label)
                started, ended = bench.calls()[-2:]
                known = names.get(tool, tool)
                assert started.body["context"]["tool"] == ended.body["context"]["call"]["tool"] == known == result.tool
            moved = [one.body["context"] for one in bench.calls() if one.body["tool"] == "move_path"][0]
            assert (moved["path"], moved["from_path"]) == ("/tmp/b", "/tmp/a")

    asyncio.run(scenario())


def test_a_rule_about_writing_holds_for_whoever_writes_by_another_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, SECRETS) as bench:
            info = await bench.sandbox()
            for path in ("letters/a", "/home/user/letters/a", "/home/user/./letters//a", "../user/letters/a"):
                error = await refused(bench, info, "write_path", path=path, content="x")
                assert isinstance(error, PendingApproval), path
            with pytest.raises(PendingApproval):
                await bench.control.gate.upload(AGENT, info.sandbox_id, "letters/a", pieces(b"x"), anywhere={})
            result = await bench.call(info, "write_path", path="/home/user/secrets/a", content="x")
            assert result.label is Label.CONFIDENTIAL

    asyncio.run(scenario())


MOVES = """version: 1
rules:
  - {id: keep-out, hook: PRE_TOOL_CALL, when: {path: {glob: "vault/*"}}, then: deny}
  - {id: ask-for-letters, hook: PRE_TOOL_CALL, when: {tool: move_path, path: {glob: "letters/*"}}, then: ask}
"""


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("vault/a", "b", DeniedByRule),
        ("a", "vault/b", DeniedByRule),
        ("letters/a", "b", PendingApproval),
        ("letters/a", "vault/a", DeniedByRule),
        ("vault/a", "letters/a", DeniedByRule),
        ("a", "b", None),
    ],
)
def test_a_move_is_judged_by_both_its_places_and_judged_alike_when_it_is_replayed(
    tmp_path: Path, source: str, target: str, error: type[ColdframeError] | None
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, MOVES) as bench:
            info = await bench.sandbox()
            if error is None:
                await bench.call(info, "write_file", path=source, content="x")
                await bench.call(info, "move_path", path=source, target=target)
            else:
                assert isinstance(await refused(bench, info, "move_path", path=source, target=target), error)
            entry = next(one for one in bench.calls() if one.body["tool"] == "move_path")
            stored, again = bench.control.gate.replay(entry.seq)
            assert stored == again

    asyncio.run(scenario())


def test_there_is_no_root_in_a_sandbox_without_a_system_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            for tool, arguments in UNLISTED.items():
                if tool != "watch_path":
                    error = await refused(bench, info, tool, **arguments, user="root")
                    assert isinstance(error, NotInProfile), tool
            assert bench.host.asked == []

    asyncio.run(scenario())


def test_a_watch_is_asked_about_by_those_alone_who_may_and_by_its_own_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            read = await bench.call(info, "list_path", path="/tmp")
            for caller in (AGENT, OTHER):
                for watch_id in ("wch_" + read.call_id.partition("_")[2], "wch_0", read.call_id, "../x"):
                    with pytest.raises(NotFound):
                        await bench.control.watches.read(caller, info.sandbox_id, watch_id)
                    with pytest.raises(NotFound):
                        await bench.control.watches.end(caller, info.sandbox_id, watch_id)

    asyncio.run(scenario())
