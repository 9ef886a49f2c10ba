"""The running probe: measures the walls of sandboxes in use again and again, so that a contract does not outlive them.

Only sandboxes in which something was started or still runs are measured: an idle one has no process that could change
anything, and two hundred idle ones must not cost a machine anything. A report, and a contract, are measured whenever
they are asked for.
"""

import asyncio
import contextlib
import logging

from coldframe.contract.errors import ColdframeError, NotFound
from coldframe.control.sandbox_rows import degraded_of, fallen
from coldframe.control.sandboxes import Sandboxes

EVERY_S = 60.0
"""Time between two turns."""
MEASURE_TIMEOUT_S = 30.0
"""For measuring one sandbox."""
_log = logging.getLogger(__name__)


class Probe:
    """Takes a turn over *sandboxes* every *every_s* seconds from `start` to `close`."""

    def __init__(self, sandboxes: Sandboxes, *, every_s: float = EVERY_S) -> None:
        self._sandboxes = sandboxes
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.turn()
            except Exception:  # noqa: BLE001  the edge of a task: the next turn tries again
                _log.exception("the walls could not be measured")

    async def turn(self) -> None:
        """Measure every sandbox in which something was started since the last time, or still runs.

        The others are let alone, so that idle ones cost nothing: without a process of theirs nothing of theirs changes.
        One that does not answer holds up no other.
        """
        used = self._sandboxes.used
        for sandbox_id in tuple(used):
            used.discard(sandbox_id)  # before the look: whatever is started during it counts for the next turn
            needs_no_other = False
            try:
                async with asyncio.timeout(MEASURE_TIMEOUT_S):
                    needs_no_other = await self._is_settled(sandbox_id)
            except (ColdframeError, TimeoutError) as error:
                _log.warning("the walls of sandbox `%s` could not be measured: %s", sandbox_id, error or "no answer")
            finally:
                if not needs_no_other:
                    used.add(sandbox_id)

    async def _is_settled(self, sandbox_id: str) -> bool:
        """Whether it has ended, or is measured now, and seen to be at rest and whole."""
        try:
            info = self._sandboxes.find(sandbox_id)
        except NotFound:
            return True
        if info.state.state != "running":
            return True
        report = await self._sandboxes.measure(info)
        return report.processes == 1 and not fallen(degraded_of(report))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
