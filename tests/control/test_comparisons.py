"""Held here: two points are compared, path by path and line by line, however often a line comes again."""

import asyncio
from pathlib import Path

import pytest

from coldframe.contract.errors import (
    FileMissing,
)
from coldframe.control import comparisons
from tests.control.bench import AGENT, opened
from tests.control.points import take, write


def test_two_points_are_compared_and_a_file_line_by_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            control, info = bench.control, await bench.sandbox()
            lines = [f"line {n}" for n in range(5000)]
            await write(bench, info, "scratch/long", "\n".join(lines) + "\n")
            before = await take(bench, info)
            lines[2500:2501] = ["another", "line"]
            await write(bench, info, "scratch/long", "\n".join(lines) + "\n")
            await write(bench, info, "scratch/new", "no end")
            page = await control.comparisons.compare(AGENT, before.snapshot_id, info.sandbox_id, limit=1)
            assert [(one.path, one.change) for one in page.changes] == [("scratch/long", "changed")]
            page = await control.comparisons.compare(
                AGENT, before.snapshot_id, info.sandbox_id, next_after=page.next_after
            )
            assert [(one.path, one.change) for one in page.changes] == [("scratch/new", "added")]
            assert page.next_after is None
            told = await control.comparisons.text(AGENT, before.snapshot_id, info.sandbox_id, "scratch/long")
            assert told.diff == (
                "--- scratch/long\n+++ scratch/long\n@@ -2498,7 +2498,8 @@\n line 2497\n line 2498\n line 2499\n"
                "-line 2500\n+another\n+line\n line 2501\n line 2502\n line 2503\n"
            )
            told = await control.comparisons.text(AGENT, info.sandbox_id, before.snapshot_id, "scratch/new")
            assert told.diff == "--- scratch/new\n+++ /dev/null\n@@ -1 +0,0 @@\n-no end\n\\ No newline at end of file\n"
            assert told.sha256_after is None
            same = await control.comparisons.text(AGENT, before.snapshot_id, before.snapshot_id, "scratch/long")
            assert same.diff == "" and same.sha256_before == same.sha256_after
            with pytest.raises(FileMissing):
                await control.comparisons.text(AGENT, before.snapshot_id, info.sandbox_id, "scratch/none")
            kinds = [(one.kind, one.body["tool"]) for one in bench.calls()[-6:]]
            assert set(kinds) == {("call.started", "read_file"), ("call.ended", "read_file")}

    asyncio.run(scenario())


def test_lines_that_come_again_and_again_are_compared_all_the_same() -> None:
    def applied(before: list[str], diff: str) -> list[str]:
        after, at = [], 0
        for line in diff.splitlines(keepends=True)[2:]:
            if line.startswith("@@"):
                start, _, length = line.split()[1][1:].partition(",")
                first = int(start) - (length != "0")
                after += before[at:first]
                at = first
            elif line[0] == "+":
                after.append(line[1:])
            else:
                assert before[at] == line[1:]
                after += [line[1:]] * (line[0] == " ")
                at += 1
        return after + before[at:]

    # Without a bound on pairs of equal lines this takes the better part of a minute.
    before, after = ([line for n in range(999) for line in ("}\n", f"{side} {n}\n")] for side in ("old", "new"))
    assert applied(before, comparisons.unified("file", before, after)) == after
    before, after = before[:50], after[:30] + before[20:50]
    assert applied(before, comparisons.unified("file", before, after)) == after
