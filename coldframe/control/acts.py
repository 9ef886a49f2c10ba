"""Acts that are carried to their end, whoever leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
CLOSE_S = 10.0


class Acts:
    """Those under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def whole(self, act: Coroutine[Any, Any, T]) -> T:
        """What *act* comes to. Whoever stops waiting stops nothing else."""
        task = asyncio.ensure_future(act)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for what was begun, if it does not take too long: the next start goes by what the host says."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _settle(self, task: "asyncio.Task[Any]") -> None:
        """Its failure is told to whoever asked, or to nobody if they have left: what is recorded tells."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
