"""What differs between two receipts: files from the record, lines from where a file of that digest still is."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from coldframe.contract.errors import DeniedByRule, FileMissing, InvalidArgument, NotFound
from coldframe.contract.sandbox import SandboxInfo
from coldframe.contract.snapshot import SnapshotRequest
from tests.control.bench import AGENT, OTHER, OWNER, VIEWER, WITHHOLD, Bench, opened

LINES = [f"line {number}\n" for number in range(60)]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def ran(bench: Bench, info: SandboxInfo, command: str) -> str:
    return (await bench.call(info, "run_command", OWNER, command=command)).receipt_id or ""


async def wrote(bench: Bench, info: SandboxInfo, path: str, content: str) -> str:
    return (await bench.call(info, "write_file", OWNER, path=path, content=content)).receipt_id or ""


@pytest.mark.req("T3.57")
def test_any_two_receipts_tell_which_files_differ_in_either_direction(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            receipts = [
                await wrote(bench, info, "a.txt", "one\n"),
                await wrote(bench, info, "b.txt", "b\n"),
                await ran(bench, info, "echo two > a.txt; echo new > c.txt"),
                await ran(bench, info, "rm b.txt; echo one > a.txt"),
            ]
            files = [  # after each of them
                {"a.txt": "one\n"},
                {"a.txt": "one\n", "b.txt": "b\n"},
                {"a.txt": "two\n", "b.txt": "b\n", "c.txt": "new\n"},
                {"a.txt": "one\n", "c.txt": "new\n"},
            ]
            for n, before in enumerate(receipts):
                for m, after in enumerate(receipts):
                    told = await bench.control.receipt_differences.compare(OWNER, before, after)
                    expected = {
                        (path, *(None if one.get(path) is None else sha(one[path]) for one in (files[n], files[m])))
                        for path in {**files[n], **files[m]}
                        if files[n].get(path) != files[m].get(path)
                    }
                    assert {(one.path, one.sha256_before, one.sha256_after) for one in told.files} == expected, (n, m)
                    assert told.complete
            (one,) = (await bench.control.receipt_differences.compare(OWNER, receipts[0], receipts[1])).files
            assert (one.change, one.receipts) == ("added", (receipts[1],))

    asyncio.run(scenario())


@pytest.mark.req("T3.57")
def test_lines_come_hunk_by_hunk_from_the_workspace_and_from_snapshots(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            first = await wrote(bench, info, "total.py", "".join(LINES))
            await bench.control.snapshots.take(OWNER, info.sandbox_id, SnapshotRequest())
            second = await wrote(bench, info, "total.py", "".join(["first\n", *LINES[1:50], "fiftieth\n", *LINES[51:]]))
            told = await bench.control.receipt_differences.hunks(OWNER, first, second, "total.py")
            assert (told.binary, told.unavailable) == (False, ())
            assert [(one.start_before, one.lines_before, one.start_after) for one in told.hunks] == [
                (1, 4, 1),
                (48, 7, 48),
            ]
            assert told.hunks[0].text.splitlines()[:2] == ["-line 0", "+first"]
            back = await bench.control.receipt_differences.hunks(OWNER, second, first, "total.py")
            assert back.hunks[0].text.splitlines()[:2] == ["-first", "+line 0"]

            lost = await wrote(bench, info, "total.py", "between\n")
            last = await ran(bench, info, "printf 'end\\n' > total.py; printf '\\0' > b.bin")
            told = await bench.control.receipt_differences.hunks(OWNER, lost, last, "total.py")
            assert (told.hunks, told.unavailable, told.sha256_before) == ((), ("before",), sha("between\n"))
            assert (await bench.control.receipt_differences.hunks(OWNER, first, last, "b.bin")).binary
            with pytest.raises(FileMissing):
                await bench.control.receipt_differences.hunks(OWNER, lost, last, "nothing.py")

    asyncio.run(scenario())


@pytest.mark.req("T3.57")
def test_receipts_of_two_workspaces_are_not_compared_and_others_are_not_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info, other = await bench.sandbox(), await bench.sandbox("bob")
            mine, theirs = await ran(bench, info, "true"), await ran(bench, other, "true")
            with pytest.raises(InvalidArgument):
                await bench.control.receipt_differences.compare(OWNER, mine, theirs)
            for caller in (AGENT, OTHER):
                with pytest.raises(NotFound):
                    await bench.control.receipt_differences.compare(caller, mine, theirs)
            assert (await bench.control.receipt_differences.compare(AGENT, mine, mine)).files == ()

    asyncio.run(scenario())


@pytest.mark.req("T3.57")
def test_receipts_of_an_agent_that_was_made_again_are_of_two_workspaces(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            old = await wrote(bench, info, "a.txt", "one\n")
            await bench.control.lifecycle.terminate(OWNER, info.sandbox_id)
            await bench.control.agents.delete("ada", caller=OWNER)
            again = await bench.sandbox()
            new, newer = [await wrote(bench, again, "a.txt", text) for text in ("two\n", "three\n")]
            for pair in ((old, new), (newer, old)):
                with pytest.raises(InvalidArgument, match="two workspaces"):
                    await bench.control.receipt_differences.compare(OWNER, *pair)
            assert (await bench.control.receipt_differences.compare(OWNER, new, newer)).complete

            info = await bench.sandbox()
            assert info.agent_id == again.agent_id
            await bench.control.receipt_differences.compare(OWNER, new, await ran(bench, info, "true"))

    asyncio.run(scenario())


def test_what_is_not_known_in_between_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, rules=WITHHOLD) as bench:
            info = await bench.sandbox()
            first = await wrote(bench, info, "a.txt", "one\n")
            with pytest.raises(DeniedByRule):
                await ran(bench, info, "echo TOP-SECRET; echo hidden > secret.txt")
            last = await wrote(bench, info, "a.txt", "two\n")
            seen = await bench.control.receipt_differences.compare(VIEWER, first, last)
            assert ([one.path for one in seen.files], seen.complete) == (["a.txt"], False)
            assert seen.problems == ("a rule withheld the result of a call in between",)
            whole = await bench.control.receipt_differences.compare(OWNER, first, last)
            assert ([one.path for one in whole.files], whole.complete) == (["a.txt", "secret.txt"], True)

    asyncio.run(scenario())
