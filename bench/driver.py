"""Runs the rows: one worker process per system, opened before any time is taken, asked in turn, round after round.

A, B, C, A, B, C: what disturbs the machine hits all alike. The first round is dropped. A wrong, cut or missing answer
is a failure that counts in the success rate. If the floor itself scatters too much the row is void and is repeated.
"""

import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.rows import Comparison, Lone
from bench.systems import System, worker_environment

ANSWER_TIMEOUT_S = 1200.0
OPEN_TIMEOUT_S = 90.0
CLOSE_TIMEOUT_S = 90.0
MOST_SCATTER = 2.5
"""Largest p95 of a floor, in medians, with which a row counts."""
GIVE_UP_AFTER = 2
"""Failures in a row after which a system is not asked again in that row."""


class Effort(NamedTuple):
    """How much of it: all, or enough to see that it works, or what a busy machine and little time allow."""

    quick: bool = False
    most_rounds: int = 1_000_000
    tries: int = 3
    """How often a row may be done over because its floor was too restless."""
    long: bool = False
    """What takes hours as well."""


class Failed(Exception):
    """A worker said no, or said nothing."""


class Worker:
    """One system in a process of its own."""

    def __init__(self, system: System, peers: str, log: str) -> None:
        self.system = system
        self.folder = tempfile.mkdtemp(prefix="cf-bench-")
        os.chmod(self.folder, 0o755)
        self._rest = b""
        with open(log, "ab") as messages:
            self._process = subprocess.Popen(
                [*system.command, self.folder, *system.options],
                cwd=self.folder,
                env=worker_environment(peers),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                start_new_session=True,
                bufsize=0,
            )
        try:
            self.can = frozenset(self._answer(OPEN_TIMEOUT_S)["can"])
        except BaseException:
            self.close()
            raise

    def ask(self, action: str, parameters: Mapping[str, Any]) -> Any:
        """Do *action* once. Raises Failed."""
        if self._process.stdin is None:
            raise Failed("the worker has no input")
        try:
            self._process.stdin.write(json.dumps({**parameters, "do": action}).encode() + b"\n")
        except OSError as error:
            raise Failed(f"the worker is gone: {error}") from error
        return self._answer(ANSWER_TIMEOUT_S)["value"]

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        output = self._process.stdout
        if output is None:
            raise Failed("the worker has no output")
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(output.fileno(), 65536) if ready else b""
            if not piece:
                self._kill()
                raise Failed("the worker ended" if ready else f"no answer within {timeout_s:g} s")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return answer

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> str | None:
        """End the worker. Returns what it had to say against it."""
        said = None
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            code = self._process.wait(CLOSE_TIMEOUT_S)
            if code != 0:
                said = self._rest.decode(errors="replace").strip() or self._last_words() or f"ended with {code}"
        except subprocess.TimeoutExpired:
            said = f"did not end within {CLOSE_TIMEOUT_S:g} s"
            self._kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return said

    def _last_words(self) -> str:
        output = self._process.stdout
        return "" if output is None else os.read(output.fileno(), 65536).decode(errors="replace").strip()


@dataclass
class Series:
    """What one system did in one row. Seconds."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def success(self) -> float:
        tried = len(self.seconds) + len(self.failures)
        return len(self.seconds) / tried if tried else 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Compared:
    row: Comparison
    series: dict[str, Series]
    tries: int
    scatter: float
    """p95 of the floor in its medians; above MOST_SCATTER the row is void."""


@dataclass
class Measured:
    row: Lone
    figures: dict[str, float]
    failure: str = ""


def compare(
    row: Comparison, workers: Sequence[Worker], effort: Effort, *, extra: Mapping[str, Any], say: Callable[[str], None]
) -> Compared:
    """One row, repeated while the floor is too restless."""
    result = _compare_once(row, workers, effort, extra=extra)
    while not effort.quick and result.scatter > MOST_SCATTER and result.tries < effort.tries:
        say(f"{row.id}: the floor's p95 was {result.scatter:.1f} medians; again")
        tries = result.tries + 1
        result = _compare_once(row, workers, effort, extra=extra)
        result.tries = tries
    return result


def _compare_once(row: Comparison, workers: Sequence[Worker], effort: Effort, *, extra: Mapping[str, Any]) -> Compared:
    parameters = {**extra, **row.parameters, **(row.quick_parameters if effort.quick else {})}
    asked: list[tuple[Worker, str]] = []
    for worker in workers:
        action = row.product_action if worker.system.kind == "product" and row.product_action else row.action
        if action in worker.can and (not row.only or worker.system.name in row.only):
            asked.append((worker, action))
    series = {worker.system.name: Series() for worker, _ in asked}
    for worker, _ in asked if row.before else []:
        try:
            worker.ask(row.before, parameters)
        except Failed as error:
            series[worker.system.name].failures.append(f"before: {error}")
    for number in range(1 + min(effort.most_rounds, row.quick_rounds if effort.quick else row.rounds)):
        for worker, action in asked:
            mine = series[worker.system.name]
            if not mine.seconds and len(mine.failures) >= GIVE_UP_AFTER:
                continue
            try:
                seconds = float(worker.ask(action, parameters))
            except Failed as error:
                mine.failures.append(str(error))
            else:
                if number > 0:
                    mine.seconds.append(seconds)
    floor = series.get(row.floor)
    scatter = floor.percentile(0.95) / floor.median if floor is not None and floor.seconds else 0.0
    return Compared(row, series, 1, scatter)


def measure(row: Lone, worker: Worker, effort: Effort, *, extra: Mapping[str, Any]) -> Measured:
    longer = row.long_parameters if effort.long else {}
    parameters = {**extra, **(row.quick_parameters if effort.quick else {**row.parameters, **longer})}
    try:
        return Measured(row, dict(worker.ask(row.action, parameters)))
    except Failed as error:
        return Measured(row, {}, str(error))
