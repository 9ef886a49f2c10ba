"""Held here: a receipt says what a call really did, from records that nothing inside the box can write."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import GrantMissing, NotFound, WrongState
from coldframe.contract.receipt import Receipt
from coldframe.control.call_records import ids_of
from coldframe.control.receipts import receipt_digest
from tests.control.bench import AGENT, OTHER, OWNER, Bench, opened, put_off_ends, until


async def receipt_of(bench: Bench, info: Any, **arguments: Any) -> Receipt:
    result = await bench.call(info, "run_command", **arguments)
    assert result.receipt_id is not None
    return bench.control.receipts.get(AGENT, result.receipt_id)


@pytest.mark.req("T3.14")
def test_a_receipt_holds_digests_that_can_be_recomputed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            await bench.call(info, "write_file", path="old", content="1")
            receipt = await receipt_of(
                bench, info, command='echo \'{"receipt_id": "fake", "exit_code": 0}\'; echo e >&2; echo 2 > old; exit 3'
            )
            printed = b'{"receipt_id": "fake", "exit_code": 0}\n'
            outputs = {one.name: one for one in receipt.outputs}
            assert outputs["stdout"].sha256 == hashlib.sha256(printed).hexdigest()
            assert outputs["stderr"].bytes == 2
            assert outputs["old"].sha256_before == hashlib.sha256(b"1").hexdigest()
            assert outputs["old"].sha256 == hashlib.sha256(b"2\n").hexdigest()
            assert (receipt.exit_code, receipt.ended) == (3, "exited")
            assert receipt.digest == receipt_digest(receipt)
            assert receipt.contract_version == 1
            window = await bench.control.outputs.output(
                AGENT, info.sandbox_id, ids_of(receipt.call_id).command_id, "stdout"
            )
            assert (window.data, window.sha256) == (printed, outputs["stdout"].sha256)

    asyncio.run(scenario())


@pytest.mark.req("T3.17")
def test_each_input_shows_in_its_own_field(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            base: dict[str, Any] = {"command": "true"}
            plain = await receipt_of(bench, info, **base)
            assert plain.command == "true"
            assert plain.inputs is not None
            changed = {
                "command": await receipt_of(bench, info, command="true "),
                "cwd": await receipt_of(bench, info, **base, cwd="scratch"),
                "environment": await receipt_of(bench, info, **base, env={"A": "b"}),
                "stdin_sha256": await receipt_of(bench, info, **base, stdin="x"),
                "runtime": await receipt_of(bench, info, **base, runtime="sh"),
            }
            for field, receipt in changed.items():
                source: Any = receipt.inputs if hasattr(receipt.inputs, field) else receipt
                other: Any = plain.inputs if hasattr(plain.inputs, field) else plain
                assert getattr(source, field) != getattr(other, field), field
            assert changed["environment"].inputs is not None
            assert changed["environment"].inputs.environment == {"A": hashlib.sha256(b"b").hexdigest()}
            assert changed["cwd"].previous_receipt_id == changed["command"].receipt_id

    asyncio.run(scenario())


@pytest.mark.req("T3.14")
def test_a_receipt_of_a_file_tool_shows_the_file_before_and_after(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            digests = [hashlib.sha256(text).hexdigest() for text in (b"one", b"two", b"tWo")]
            results = [
                await bench.call(info, "write_file", path="f", content="one"),
                await bench.call(info, "write_file", path="f", content="two"),
                await bench.call(info, "edit_file", path="f", old="w", new="W"),
            ]
            receipts = [bench.control.receipts.get(AGENT, one.receipt_id or "") for one in results]
            outputs = [one.outputs[0] for one in receipts]
            assert [(one.name, one.kind) for one in outputs] == [("f", "created"), ("f", "changed"), ("f", "changed")]
            assert [one.sha256 for one in outputs] == digests
            assert [one.sha256_before for one in outputs] == [None, *digests[:2]]

    asyncio.run(scenario())


def test_receipts_are_for_those_who_may_see_the_sandbox_and_for_calls_that_ran(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            info = await bench.sandbox()
            receipt = await receipt_of(bench, info, command="true")
            with pytest.raises(NotFound):
                bench.control.receipts.get(OTHER, receipt.receipt_id)
            for wrong in (receipt.call_id, "rcp_none", "", "rcp_"):
                with pytest.raises(NotFound):
                    bench.control.receipts.get(OWNER, wrong)
            assert bench.control.receipts.get(OWNER, receipt.receipt_id) == receipt
            with pytest.raises(GrantMissing):
                bench.control.receipts.get(AGENT.model_copy(update={"agent_id": None}), receipt.receipt_id)
            running = await bench.call(info, "run_command", command="sleep 0.2", background=True)
            assert running.receipt_id is not None
            with pytest.raises(WrongState):
                bench.control.receipts.get(AGENT, running.receipt_id)
            await until(lambda: bench.kinds()[-1] == "call.ended")
            assert bench.control.receipts.get(AGENT, running.receipt_id).ended == "exited"

    asyncio.run(scenario())


def test_a_receipt_that_was_given_is_the_same_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as bench:
            put_off_ends(monkeypatch)
            receipt = await receipt_of(bench, await bench.sandbox(), command="echo x")
            exported = b"".join(bench.control.ledger.export())
            bench.kill()
            await bench.start()
            assert bench.control.receipts.get(OWNER, receipt.receipt_id) == receipt
            assert b"".join(bench.control.ledger.export()).startswith(exported)

    asyncio.run(scenario())
