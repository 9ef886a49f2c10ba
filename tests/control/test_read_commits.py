"""What only reads is on record with one commit, before anything of it is told; what does more begins on record."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import LedgerUnavailable
from coldframe.contract.files import ReadFile
from coldframe.control.verification import verify_directory
from tests.control.bench import EVERY_TOOL, Bench, opened, put_off_ends, refused, until
from tests.fakes.box import FakeBox

READING = ("read_file", "list_directory", "search_files")


def committed(bench: Bench) -> int:
    """Number of the last entry that another process finds."""
    control = bench.root / "control"
    verdict = verify_directory(str(control / "coldframe.db"), str(control / "ledger"))
    assert verdict.intact
    return verdict.head_seq


def meanwhile(patch: pytest.MonkeyPatch, look: Callable[[], Any]) -> None:
    """Call *look* whenever a box reads a file."""
    ask = FakeBox.ask

    async def asked(self: FakeBox, request: Any) -> Any:
        if isinstance(request, ReadFile):
            found = look()
            if found is not None:
                await found
        return await ask(self, request)

    patch.setattr(FakeBox, "ask", asked)


def test_what_only_reads_is_committed_once_and_what_writes_begins_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            for tool in READING:  # what is asked for the first time is kept
                await bench.call(info, tool, **EVERY_TOOL[tool])
            commits: list[str] = []
            bench.control.store.raw.set_trace_callback(
                lambda statement: commits.append(statement) if statement == "COMMIT" else None
            )
            for tool in READING:
                commits.clear()
                told = await bench.call(info, tool, **EVERY_TOOL[tool])
                assert len(commits) == 1, tool
                assert committed(bench) == bench.entries(call_id=told.call_id)[-1].seq
            commits.clear()
            await bench.call(info, "write_file", **EVERY_TOOL["write_file"])
            assert len(commits) == 2
            bench.control.store.raw.set_trace_callback(None)

    asyncio.run(scenario())


def test_a_read_that_takes_long_is_on_record_while_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="a", content="b")
            before = committed(bench)
            meanwhile(monkeypatch, lambda: until(lambda: committed(bench) == before + 1))
            told = await bench.call(info, "read_file", path="a")
            assert bench.kinds(call_id=told.call_id) == ["call.started", "call.ended"]
            assert committed(bench) == before + 2

    asyncio.run(scenario())


def test_what_ended_before_a_read_is_committed_and_shown_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="a", content="b")
            await bench.call(info, "run_command", command="true")
            assert len(bench.history()) == 1
            seen: list[int] = []

            def look() -> None:
                seen.append(len(bench.history()))

            meanwhile(monkeypatch, look)
            await bench.call(info, "read_file", path="a")
            assert seen == [2]

    asyncio.run(scenario())


def test_a_kill_while_it_reads_leaves_a_ledger_in_which_nothing_of_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="a", content="b")
            before = committed(bench)
            reads = asyncio.Event()

            def stay() -> Any:
                reads.set()
                return asyncio.Event().wait()

            meanwhile(monkeypatch, stay)
            reading = asyncio.ensure_future(bench.call(info, "read_file", path="a"))
            await reads.wait()
            bench.kill()
            reading.cancel()
            monkeypatch.undo()
            assert committed(bench) == before
            await bench.start()
            told = await bench.call(info, "read_file", path="a")
            assert told.value["content"] == "b"
            assert committed(bench) == bench.entries()[-1].seq

    asyncio.run(scenario())


@pytest.mark.parametrize("when", ["while it reads", "with its end"])
def test_a_read_whose_record_cannot_be_committed_tells_nothing(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="a", content="b")
            store, before = bench.control.store, len(bench.entries())
            store.raw.execute(
                "CREATE TABLE parts (id INTEGER PRIMARY KEY, whole REFERENCES parts (id) DEFERRABLE INITIALLY DEFERRED)"
            )

            def spoil() -> None:
                store.raw.execute("INSERT INTO parts VALUES (1, 17)")  # the commit of the transaction that waits fails
                if when == "while it reads":
                    with pytest.raises(LedgerUnavailable):
                        store.settle()

            with monkeypatch.context() as patch:
                meanwhile(patch, spoil)
                assert isinstance(await refused(bench, info, "read_file", path="a"), LedgerUnavailable)
            told = await bench.call(info, "read_file", path="a")
            assert (told.error, told.value["content"]) == (None, "b")
            assert bench.kinds()[before:] == ["call.started", "call.ended"]
            assert {one.subject for one in bench.entries()[before:]} == {told.call_id}
            assert committed(bench) == bench.entries()[-1].seq

    asyncio.run(scenario())
