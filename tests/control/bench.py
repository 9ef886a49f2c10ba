"""Control over the fake host, for the tests of this folder."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import coldframe.control.history as history_module
from coldframe.contract.caller import Caller
from coldframe.contract.command import CommandEvent
from coldframe.contract.errors import ColdframeError
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import SandboxInfo, SandboxSpec
from coldframe.contract.tool import ToolResult
from coldframe.control.control import Control, build_control
from coldframe.control.makers import NO_MAXIMA
from coldframe.control.retention import FOR_EVER
from coldframe.control.sandbox_specs import ANY_LENGTH
from coldframe.control.snapshots import DEFAULT_LIMITS
from coldframe.control.store import _give_up
from tests.fakes.host import FakeHost

OWNER = Caller(token_id="tok_owner", role=Role.OWNER, surface="embedded")
VIEWER = Caller(token_id="tok_viewer", role=Role.VIEWER, surface="embedded")
AGENT = Caller(token_id="tok_agent", role=Role.AGENT, agent_id="ada", surface="mcp")
OTHER = Caller(token_id="tok_other", role=Role.AGENT, agent_id="bob", surface="mcp")

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


UNTIL_GO = "while [ ! -e go ]; do sleep 0.01; done"
"""Part of a command that goes on when `Bench.go` says so."""


def put_off_ends(patch: pytest.MonkeyPatch) -> None:
    """The end of a command that may wait for its commit waits until something else is committed."""
    patch.setattr(history_module, "PUT_OFF_S", 3600)


class Bench:
    """One installation without walls: control, which can be restarted, over a host that stays."""

    def __init__(self, root: Path, rules: str | None = None) -> None:
        self.root = root
        self.host = FakeHost(str(root))
        self.rules_path = None
        if rules is not None:
            self.rules_path = str(root / "rules.yaml")
            (root / "rules.yaml").write_text(rules)
        self._now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
        self.longest = ANY_LENGTH
        self.most_running: int | None = None
        self.retention = FOR_EVER
        self.snapshot_limits = DEFAULT_LIMITS
        self.maxima = NO_MAXIMA
        self.control: Control
        self.starts = 0

    def clock(self) -> datetime:
        self._now += timedelta(milliseconds=1)
        return self._now

    def pass_time(self, much: timedelta) -> None:
        self._now += much

    async def start(self) -> None:
        self.starts += 1
        self.control = build_control(
            data_dir=str(self.root),
            host=self.host,
            clock=self.clock,
            rules_path=self.rules_path,
            longest=self.longest,
            snapshot_limits=self.snapshot_limits,
            most_running=self.most_running,
            retention=self.retention,
            maxima=self.maxima,
        )
        await self.control.start()

    async def restart(self) -> None:
        await self.control.close()
        await self.start()

    def kill(self) -> None:
        """Leave everything as `kill -9` of the server does: what was not committed is gone, and nothing is said to anybody."""
        control = self.control
        control.store.raw.close()
        _give_up(control.store._lock_fd)
        control.ledger._checkpoints.close()
        control.ledger._closed = True
        control.history._stop()
        assert control.timers._task is not None
        assert control.snapshot_upkeep._task is not None
        tasks = (*control.gate._tasks, *control.network._tasks, *control.pipelines._runs.values(), control.timers._task)
        tasks += (control.snapshot_upkeep._task, *control.creation._queued.values())
        tasks += (*control.template_builds._running.values(),)
        for task in tasks:
            task.cancel()

    async def sandbox(self, agent_id: str = "ada", **spec: Any) -> SandboxInfo:
        return await self.control.creation.create(OWNER, SandboxSpec(agent_id=agent_id, **spec))

    async def call(
        self, info: SandboxInfo, tool: str, caller: Caller = AGENT, key: str | None = None, **arguments: Any
    ) -> ToolResult:
        return await self.control.gate.call(caller, info.sandbox_id, tool, arguments, idempotency_key=key)

    def kinds(self, **filters: Any) -> list[str]:
        return [entry.kind for entry in self.entries(**filters)]

    def entries(self, **filters: Any) -> list[LedgerEntry]:
        return self.control.ledger.entries(limit=10_000, **filters)

    def calls(self) -> list[LedgerEntry]:
        return [entry for entry in self.entries() if entry.kind.startswith("call.")]

    def go(self, agent_id: str = "ada") -> None:
        (self.root / "workspace" / agent_id / "go").touch()

    def history(self, agent_id: str = "ada") -> list[str]:
        path = self.root / "workspace" / agent_id / ".exec_history" / "history.jsonl"
        return path.read_text().splitlines() if path.exists() else []


@asynccontextmanager
async def opened(root: Path, rules: str | None = None) -> AsyncIterator[Bench]:
    bench = Bench(root, rules)
    await bench.start()
    try:
        yield bench
    finally:
        await bench.control.close()
        await bench.host.close()


async def until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    """Wait for *condition*, letting other tasks run."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def refused(bench: Bench, info: SandboxInfo, tool: str, **arguments: Any) -> ColdframeError:
    with pytest.raises(ColdframeError) as caught:
        await bench.call(info, tool, **arguments)
    return caught.value


async def collect(events: AsyncIterator[CommandEvent | ToolResult]) -> list[CommandEvent | ToolResult]:
    return [event async for event in events]
