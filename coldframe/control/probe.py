"""The running probe: measures the walls of sandboxes in use again and again, so that a contract does not outlive them.

Only sandboxes in which something was started or still runs are measured: an idle one has no process that could change
anything, and two hundred idle ones must not cost a machine anything. A report, and a contract, are measured whenever
they are asked for.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

EVERY_S = 60.0
"""Time between two turns."""
_log = logging.getLogger(__name__)


class Probe:
    """Calls *measure* every *every_s* seconds from `start` to `close`."""

    def __init__(self, measure: Callable[[], Awaitable[None]], *, every_s: float = EVERY_S) -> None:
        self._measure = measure
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._measure()
            except Exception:  # noqa: BLE001  the edge of a task: the next turn tries again
                _log.exception("the walls could not be measured")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
