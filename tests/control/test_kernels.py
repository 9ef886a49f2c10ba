"""What a kernel tells is bounded, and how long it is waited for depends on what it works at, also after a restart of the server."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coldframe.contract.cell import CellBegun, CellEnded, CellEvent, CellOrder, CellResult
from coldframe.contract.command import CommandEvent, InputState, OutputChunk
from coldframe.contract.errors import Conflict
from coldframe.contract.files import Done, SendInput, SignalCommand
from coldframe.control import kernels
from coldframe.control.kernels import LiveKernel

MINE, OTHER = "cell_mine", "cell_other"


class ScriptedBox:
    """A box whose command tells what it is given, and takes input."""

    sandbox_id = "sbx_1"

    def __init__(self) -> None:
        self.events: asyncio.Queue[CommandEvent] = asyncio.Queue()
        self.sent = b""
        self.signals: list[int] = []
        self.fails: BaseException | None = None
        self._seq = 0

    def tell(self, **line: Any) -> None:
        self.tell_bytes(json.dumps(line).encode() + b"\n")

    def tell_bytes(self, data: bytes) -> None:
        self.events.put_nowait(OutputChunk(seq=self._seq, stream="stdout", data=data))
        self._seq += 1

    async def follow(self, command_id: str, *, after_seq: int = -1) -> AsyncIterator[CommandEvent]:
        while True:
            yield await self.events.get()

    async def ask(self, request: Any) -> Any:
        if isinstance(request, SignalCommand):
            self.signals.append(request.signal)
            return Done()
        assert isinstance(request, SendInput)
        if request.content and self.fails is not None:
            error, self.fails = self.fails, None
            self.sent += request.content[:5]
            raise error
        assert request.offset in (None, len(self.sent))
        self.sent += request.content
        return InputState(taken=len(self.sent), waiting=0, open=True)


def order(output_bytes: int = 1000) -> CellOrder:
    return CellOrder(cell_id=MINE, code="1", timeout_s=60, output_bytes=output_bytes)


def live() -> LiveKernel:
    return LiveKernel("ctx_1", "python", "cmd_1", since_restart=None, ended=lambda: False)


async def events_of(kernel: LiveKernel, box: Any, sent: CellOrder) -> list[CellEvent]:
    return [event async for event in kernel.run(box, sent)]


def ends(box: ScriptedBox) -> None:
    box.tell(type="begun", cell=MINE, execution_count=1, timeout_s=60)
    box.tell(type="end", cell=MINE, status="ok", duration_ms=1)


def test_a_kernel_that_shows_without_end_is_ended_at_the_limit_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BESIDE_BYTES", 1000)

    async def play() -> tuple[list[CellEvent], ScriptedBox]:
        box = ScriptedBox()
        box.tell(type="begun", cell=MINE, execution_count=1)
        for _ in range(100):
            box.tell(type="result", cell=MINE, data={"text/plain": "x" * 100}, artifacts={}, clipped={}, is_main=False)
        return await events_of(live(), box, order()), box

    told, box = asyncio.run(play())
    assert isinstance(told[-1], CellEnded)
    assert (told[-1].status, told[-1].code, told[-1].kernel_restarted) == ("output_limit", "LIMIT_OUTPUT", True)
    assert 5 < sum(isinstance(one, CellResult) for one in told) < 20
    assert box.signals == [9]


def test_a_line_longer_than_a_cell_may_tell_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BESIDE_BYTES", 1000)

    async def play() -> list[CellEvent]:
        box = ScriptedBox()
        box.tell(type="stdout", cell=MINE, text="x" * 3000, at=1)
        for _ in range(100):
            box.tell_bytes(b"y" * 100)
        box.tell_bytes(b"\n")
        ends(box)
        return await events_of(live(), box, order())

    begun, ended = asyncio.run(play())
    assert isinstance(begun, CellBegun) and isinstance(ended, CellEnded) and ended.status == "ok"


def test_a_kernel_that_works_at_a_cell_of_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of the server: nothing is lost but time."""

    async def play() -> tuple[list[CellEvent], ScriptedBox]:
        box = ScriptedBox()
        kernel = live()
        box.tell(type="begun", cell=OTHER, execution_count=1, timeout_s=3600)
        running = asyncio.ensure_future(events_of(kernel, box, order()))
        while box.events.qsize():  # noqa: ASYNC110  until it has been read
            await asyncio.sleep(0)
        await asyncio.sleep(5 * kernels.START_S)
        assert not running.done()
        box.tell(type="end", cell=OTHER, status="ok", duration_ms=1)
        ends(box)
        return await running, box

    monkeypatch.setattr(kernels, "START_S", 0.05)
    told, box = asyncio.run(play())
    assert isinstance(told[-1], CellEnded) and told[-1].status == "ok"
    assert box.signals == []


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_cell_that_never_begins_says_so(monkeypatch: pytest.MonkeyPatch, is_busy: bool) -> None:
    monkeypatch.setattr(kernels, "START_S", 0.02)
    monkeypatch.setattr(kernels, "OVERTIME_S", 0.02)

    async def play() -> tuple[list[CellEvent], ScriptedBox]:
        box = ScriptedBox()
        if is_busy:
            box.tell(type="begun", cell=OTHER, execution_count=1, timeout_s=0.02)
        return await events_of(live(), box, order()), box

    (ended,), box = asyncio.run(play())
    assert isinstance(ended, CellEnded) and ended.message is not None
    assert (ended.status, ended.code, ended.kernel_restarted) == ("kernel_died", "KERNEL_RESTARTED", True)
    assert "never began" in ended.message and (OTHER in ended.message) is is_busy
    assert box.signals == [9]


@pytest.mark.parametrize("error", [Conflict("somebody else has sent something"), asyncio.CancelledError()])
def test_an_order_that_was_sent_in_part_is_followed_by_a_whole_one(error: BaseException) -> None:
    async def play() -> bytes:
        box, kernel = ScriptedBox(), live()
        box.fails = error
        with pytest.raises(type(error)):
            await events_of(kernel, box, order())
        ends(box)
        await events_of(kernel, box, order())
        return box.sent

    *rest, last, nothing = asyncio.run(play()).split(b"\n")
    assert nothing == b"" and json.loads(last)["cell"] == MINE
    assert rest, "and what was sent of the first stands in a line of its own"
