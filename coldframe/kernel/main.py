"""The loop of one context: takes cells from its input, has the kernel run one after the other, and tells what becomes of them.

Input and output are lines of JSON. In: `{"op": "run", "cell": ID, "code": …, "timeout_s": …, "env": {…}, "inline_bytes": …,
"output_bytes": …}` and `{"op": "interrupt", "cell": ID}`. Out: each line has a `type`, and those about a cell its id.

A cell has an end whatever it does: it is interrupted at its limit, and a kernel that goes on all the same is replaced.
What was lost with it is told then.
"""

import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from coldframe.kernel import packages
from coldframe.kernel.listener import Kernel
from coldframe.kernel.nursery import Nursery
from coldframe.kernel.results import Results

GRACE_S = 0.6
"""How long a cell has to stop once it was interrupted, before its kernel is replaced."""
OUTPUT_GRACE_S = 3.0
"""The same for one that has written too much: what it wrote until then is on its way."""
START_S = 30.0
"""Longest time that a kernel takes to start, on a machine under load."""
MOST_STARTS = 3
"""In a row without one that got ready."""
MOST_NAMES = 200
"""Lost variables that are told by name."""
READ_BYTES = 1 << 20
PART_CHARACTERS = 1 << 20
"""Of a text that is written, in one line."""
MOST_ERROR_CHARACTERS = 200_000
"""Of the text of an error, and of its traceback."""


class Cell:
    """One that was sent."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.id = str(order["cell"])
        self.code = str(order["code"])
        self.timeout_s = float(order["timeout_s"])
        self.environment: dict[str, str] = dict(order.get("env") or {})
        self.output_left = int(order["output_bytes"])
        self.results = Results(self.id, int(order["inline_bytes"]))
        self.began = 0.0
        self.stage = "waiting"
        """`waiting`, `setting` its variables, `running`, or `resetting` these; it has ended before the last one."""
        self.reason: str | None = None
        """Why it was interrupted: `timed_out`, `interrupted` or `output_limit`."""
        self.kill_at: float | None = None
        self.failed = False
        self.names: list[str] = []


class Driver:
    """See the module."""

    def __init__(self, make_kernel: Callable[["Driver"], Kernel]) -> None:
        self.queue: deque[Cell] = deque()
        self.current: Cell | None = None
        self.is_ready = False
        self.count = 0
        self.names: list[str] = []
        """Variables of the kernel, as far as it tells them."""
        self._starts = 0
        self._start_by = 0.0
        self._input = b""
        self._open = True
        self.kernel = make_kernel(self)

    # -- what the kernel tells ---------------------------------------------------------------------

    def on_ready(self, version: str) -> None:
        self.is_ready, self._starts = True, 0
        self.tell("ready", version=version)

    def on_count(self, count: int) -> None:
        cell = self._shown()
        if cell is not None:
            self.count = count
            self.tell("begun", cell=cell.id, execution_count=count, timeout_s=cell.timeout_s)

    def on_stream(self, name: str, text: str) -> None:
        cell = self._shown()
        if cell is None or cell.reason == "output_limit":
            return
        shown = text[: cell.output_left]
        cell.output_left -= len(text)
        for begin in range(0, len(shown), PART_CHARACTERS):
            self.tell(name, cell=cell.id, text=shown[begin : begin + PART_CHARACTERS])
        if cell.output_left < 0:
            self._stop(cell, "output_limit", grace_s=OUTPUT_GRACE_S)

    def on_result(self, bundle: dict[str, Any], *, is_main: bool) -> None:
        cell = self._shown()
        if cell is None or cell.reason == "output_limit":
            return
        data, artifacts, clipped = cell.results.take(bundle)
        line = _line("result", cell=cell.id, data=data, artifacts=artifacts, clipped=clipped, is_main=is_main)
        if len(line) <= cell.output_left:
            cell.output_left -= len(line)
            _write(line)
        else:
            self._stop(cell, "output_limit", grace_s=OUTPUT_GRACE_S)

    def on_error(self, name: str, value: str, traceback: str) -> None:
        cell = self._shown()
        if cell is not None and not cell.failed:
            cell.failed = True
            value, traceback = _clipped(value), _clipped(traceback)
            self.tell("error", cell=cell.id, name=name[:1000], value=value, traceback=traceback)

    def on_idle(self, *, exit_code: int | None = None, names: list[str] | None = None) -> None:
        """The kernel is done with what it was given."""
        cell = self.current
        if cell is None:
            return
        if names is not None:
            self.names = names
        if cell.stage == "setting":
            self._run(cell)
        elif cell.stage == "running":
            status = cell.reason or ("error" if cell.failed else "ok")
            self._end(cell, status, exit_code=exit_code)
            if cell.environment:
                cell.stage, cell.reason = "resetting", None
                cell.kill_at = time.monotonic() + START_S
                values = {name: os.environ.get(name) for name in cell.environment}
                self.kernel.execute(self.kernel.set_environment(values), silent=True)
            else:
                self._next()
        else:
            self._next()

    def on_death(self, reason: str) -> None:
        """The kernel is gone. The next one begins, and what was lost is told."""
        cell, was_ready = self.current, self.is_ready
        self.is_ready = False
        lost, self.names = self.names, []
        if cell is not None and cell.stage != "resetting":
            self._end(cell, cell.reason or "kernel_died", reason=reason, lost=lost)
        elif was_ready:
            self.tell("lost", reason=reason, lost=lost[:MOST_NAMES], lost_count=len(lost))
        self.current = None
        if self._starts >= MOST_STARTS:
            self.tell("failed", reason=reason)
            raise SystemExit(1)
        self._start()

    # -- the loop ----------------------------------------------------------------------------------

    def tell(self, kind: str, **fields: Any) -> None:
        _write(_line(kind, **fields))

    def run(self) -> None:
        self._start()
        while self._open or self.queue or self.current is not None:
            self.kernel.step()  # what has come may be nothing to wait for any more
            waits = select.poll()
            if self._open:
                waits.register(0, select.POLLIN)
            for file in self.kernel.files():
                waits.register(file, select.POLLIN)
            ready = waits.poll(self._wait_ms())
            if any(file == 0 for file, _ in ready):
                self._read()
            self.kernel.step()
            self._look_at_clock()
        self.kernel.kill()

    def _start(self) -> None:
        self._starts += 1
        self._start_by = time.monotonic() + START_S
        self.kernel.start()

    def _wait_ms(self) -> int:
        times = [] if self.is_ready else [self._start_by]
        if (cell := self.current) is not None:
            if cell.kill_at is not None:
                times.append(cell.kill_at)
            elif cell.stage == "running":
                times.append(cell.began + cell.timeout_s)
        if (wait_s := self.kernel.wait_s()) is not None:
            times.append(time.monotonic() + wait_s)
        if not times:
            return -1
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1)

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        cell = self.current
        if not self.is_ready and now >= self._start_by:
            self.kernel.kill()
            self.on_death("it did not start in time")
        elif cell is not None and cell.kill_at is not None and now >= cell.kill_at:
            self.kernel.kill()
            self.on_death("it went on after it was interrupted, and was replaced")
        elif (
            cell is not None and cell.kill_at is None and cell.stage == "running" and now >= cell.began + cell.timeout_s
        ):
            self._stop(cell, "timed_out", grace_s=GRACE_S)

    def _read(self) -> None:
        part = os.read(0, READ_BYTES)
        if not part:
            self._open = False
        *lines, self._input = (self._input + part).split(b"\n")
        for line in lines:
            try:
                order = json.loads(line)
                cell = Cell(order) if order["op"] == "run" else None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # the rest of one that was sent in part, or nothing
            if cell is None:
                self._interrupt(str(order.get("cell")))
                continue
            self.queue.append(cell)
            if self.current is None and self.is_ready:
                self._next()

    def _next(self) -> None:
        """Begin the next cell, if there is one. Also when the kernel has just got ready."""
        self.current = None
        if not self.queue or not self.is_ready:
            return
        cell = self.current = self.queue.popleft()
        if cell.environment:
            cell.stage, cell.kill_at = "setting", time.monotonic() + START_S
            self.kernel.execute(self.kernel.set_environment(dict(cell.environment)), silent=True)
        else:
            self._run(cell)

    take_up = _next

    def _run(self, cell: Cell) -> None:
        cell.stage, cell.began, cell.kill_at = "running", time.monotonic(), None
        self.kernel.execute(cell.code, silent=False)

    def _interrupt(self, cell_id: str) -> None:
        for cell in self.queue:
            if cell.id == cell_id:
                self.queue.remove(cell)
                self._end(cell, "withdrawn")
                return
        cell_now = self.current
        if cell_now is not None and cell_now.id == cell_id and cell_now.stage in ("setting", "running"):
            self._stop(cell_now, "interrupted", grace_s=2.0)

    def _stop(self, cell: Cell, reason: str, *, grace_s: float) -> None:
        if cell.reason is None:
            cell.reason = reason
            cell.kill_at = time.monotonic() + grace_s
            self.kernel.interrupt()

    def _shown(self) -> Cell | None:
        """The cell that the kernel works at, if what it tells is the cell's own."""
        return self.current if self.current is not None and self.current.stage == "running" else None

    def _end(
        self,
        cell: Cell,
        status: str,
        *,
        exit_code: int | None = None,
        reason: str | None = None,
        lost: list[str] | None = None,
    ) -> None:
        began = cell.began or time.monotonic()
        told: dict[str, Any] = {"restarted": lost is not None}
        if lost is not None:
            told |= {"lost": lost[:MOST_NAMES], "lost_count": len(lost), "reason": reason}
        if exit_code is not None:
            told["exit_code"] = exit_code
        self.tell("end", cell=cell.id, status=status, duration_ms=(time.monotonic() - began) * 1000, **told)


def _line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "at": time.time_ns(), **fields}).encode() + b"\n"


def _write(content: bytes) -> None:
    line = memoryview(content)
    while line:
        line = line[os.write(1, line) :]


def _clipped(text: str) -> str:
    if len(text) <= MOST_ERROR_CHARACTERS:
        return text
    half = MOST_ERROR_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters more]\n{text[-half:]}"


def main() -> None:
    """`kernel.py LANGUAGE DIRECTORY`."""
    language, directory = sys.argv[1:3]
    try:
        os.chdir(directory)
    except OSError as error:
        told = {"type": "failed", "at": time.time_ns(), "reason": f"`{directory}`: {str(error.strerror).lower()}"}
        os.write(1, json.dumps(told).encode() + b"\n")
        raise SystemExit(1) from None
    if language == "bash":
        from coldframe.kernel.bash import BashKernel as Bash

        Driver(Bash).run()
        return
    packages.find_packages()
    nursery = Nursery() if language == "python" else None  # before there is any socket that it could inherit
    from coldframe.kernel import jupyter

    Driver(jupyter.maker_of(language, nursery)).run()
