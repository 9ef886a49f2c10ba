"""What is kept of code that was run once goes with its time, and outputs are read no further than they may be long."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from coldframe.contract.caller import Caller
from coldframe.contract.cell import OnceAnswer, OnceRequest
from coldframe.contract.errors import NotFound, TooLarge
from coldframe.contract.policy import Label, Role
from coldframe.control import once as once_module
from coldframe.control.once import Once
from tests.control.keeping import Keeping

CALLER = Caller(token_id="tok_1", role=Role.MEMBER, surface="rest")
VALUE: dict[str, Any] = {
    "cell_id": "cell_1",
    "context_id": "ctx_1",
    "language": "python",
    "status": "ok",
    "code": None,
    "message": None,
    "execution_count": 1,
    "stdout": "",
    "stderr": "",
    "complete": True,
    "results": [],
    "error": None,
    "exit_code": None,
    "duration_ms": 1.0,
    "kernel_restarted": False,
    "lost": [],
    "lost_count": 0,
}


class Machine:
    """Creation, lifecycle, gate, cells and declared files of a sandbox whose one output grows with each look."""

    def __init__(self, content: bytes, grows_by: bytes = b"") -> None:
        self.content = content
        self.grows_by = grows_by
        self.reads = 0

    async def create(self, *_: Any) -> Any:
        return SimpleNamespace(sandbox_id="sbx_1", session_id="ses_1")

    async def terminate(self, *_: Any) -> None:
        pass

    async def run(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(value=VALUE, error=None, call_id="call_1", receipt_id="rcp_1", label=Label.PUBLIC)

    async def find(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(found=[SimpleNamespace(path="out", bytes=len(self.content))], missing=())

    async def call(self, *asked: Any, deliver: Callable[[bytes], None]) -> Any:
        arguments = asked[3]
        self.reads += 1
        self.content += self.grows_by
        end = arguments["offset"] + arguments["length"]
        deliver(self.content[arguments["offset"] : end])
        return SimpleNamespace(error=None, value={"next_offset": end if end < len(self.content) else None})


def made(keeping: Keeping, machine: Any) -> Once:
    return Once(keeping.ledger, machine, machine, machine, machine, machine, str(keeping.root / "once"))


def run(once: Once) -> OnceAnswer:
    return asyncio.run(once.run(CALLER, OnceRequest(code="1", outputs=("out",), keep="io")))


def folders(keeping: Keeping) -> list[str]:
    return sorted(one.name for one in (keeping.root / "once").iterdir())


def test_an_output_that_grows_while_it_is_read_is_too_large(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_module, "MOST_OUTPUT_BYTES", 100)
    monkeypatch.setattr(once_module, "PART_BYTES", 10)
    machine = Machine(b"x" * 50, grows_by=b"x" * 11)
    with pytest.raises(TooLarge):
        run(made(keeping, machine))
    assert machine.reads == 11


def test_what_was_forgotten_is_not_listed_as_kept(keeping: Keeping) -> None:
    once = made(keeping, Machine(b"kept"))
    done = run(once)
    assert [one.path for one in once.get(CALLER, done.once_id).outputs] == ["out"]
    once.forget(CALLER, done.once_id)
    assert once.get(CALLER, done.once_id).outputs == ()
    assert folders(keeping) == []


def test_what_is_kept_goes_with_its_time_and_its_record_stays(keeping: Keeping) -> None:
    once = made(keeping, Machine(b"kept"))
    first = run(once)
    keeping.now += timedelta(days=1)
    until = keeping.clock()
    second = run(once)
    once.expire(until)
    once.expire(until)
    assert folders(keeping) == [second.once_id]
    assert once.output(CALLER, second.once_id, "out") == b"kept"
    record = once.get(CALLER, first.once_id)
    assert record.outputs == () and record.once_id == first.once_id
    with pytest.raises(NotFound):
        once.output(CALLER, first.once_id, "out")
    forgotten = keeping.ledger.entries(subject=first.once_id, kinds=("once.forgotten",))
    assert [one.body["caller"] for one in forgotten] == ["timer"]


def test_outputs_of_a_run_that_was_not_recorded_go_at_the_next_start(keeping: Keeping) -> None:
    once = made(keeping, Machine(b"kept"))
    done = run(once)
    (keeping.root / "once" / ("once_" + "0" * 24)).mkdir()
    once.sweep()
    assert folders(keeping) == [done.once_id]
