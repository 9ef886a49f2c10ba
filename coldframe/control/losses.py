"""Boxes that ended by themselves, noticed before anybody calls: a temporary workspace goes within seconds of its session's end.

A host does not tell that a box has ended, so it is asked, as long as some temporary sandbox has a box; with none there is no
look. What ended of others is seen by the same answer.
"""

import asyncio
import contextlib
import logging

from coldframe.contract.errors import ColdframeError, NotFound
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import WITH_BOX
from coldframe.control.sandbox_rows import STATE, TEMPORARY
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store

EVERY_S = 3.0
"""Between two looks: the workspace has to be gone ten seconds after the end."""
LOOK_TIMEOUT_S = 30.0
_TEMPORARY_WITH_BOX = f"{TEMPORARY} AND {STATE} IN ({', '.join(map(repr, WITH_BOX))})"
REASON = "its box ended by itself"
_log = logging.getLogger(__name__)


class Losses:
    """Looks every *every_s* seconds from `start` to `close`."""

    def __init__(self, store: Store, sandboxes: Sandboxes, host: Host, *, every_s: float = EVERY_S) -> None:
        self._store = store
        self._sandboxes = sandboxes
        self._host = host
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def turn(self) -> None:
        """Mark those lost whose box is gone. Raises ColdframeError or TimeoutError if the host does not answer."""
        temporary = {str(sandbox_id) for (sandbox_id,) in self._store.read(_TEMPORARY_WITH_BOX)}
        if not temporary:
            return
        standing, ended = await self._look()
        for sandbox_id in (temporary - standing) | ended:
            await self._settle(sandbox_id)

    async def _look(self) -> tuple[set[str], set[str]]:
        """Boxes that are there, and those that have ended without being asked to."""
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            found = await self._host.boxes()
        ended = {box.sandbox_id for box in found if box.state == "lost"}
        return {box.sandbox_id for box in found} - ended, ended

    async def _settle(self, sandbox_id: str) -> None:
        """Asked once more in its turn: whoever builds, stops or promotes it has the say of what its box is meanwhile."""
        async with self._sandboxes.turn(sandbox_id):
            with contextlib.suppress(NotFound):  # it was undone
                if self._sandboxes.find(sandbox_id).state.state not in WITH_BOX:
                    return
                standing, _ = await self._look()
                if sandbox_id not in standing:
                    await self._sandboxes.lose(sandbox_id, REASON)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.turn()
            except (ColdframeError, TimeoutError) as error:  # asked again in the next turn
                _log.debug("the host could not be asked which boxes have ended: %s", error)
            except Exception:  # noqa: BLE001  the edge of a task: the next turn tries again
                _log.exception("boxes that ended could not be looked at")
