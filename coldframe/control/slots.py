"""Slots: how many sandboxes may have a box at once, and in which order others wait for one.

Nothing of it is kept: who has a box stands in the rows, and what waits when the server stops is told that it never started.
"""

import asyncio
from collections import OrderedDict

from coldframe.contract.errors import TooManySandboxes

MOST_WAITING = 1000
"""For a turn, at a time: each is a row, a session and a task."""


class Slots:
    """Those of one installation; *most* is the operator's word, None for as many as the machine bears."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._taken: set[str] = set()
        self._waiting: OrderedDict[str, asyncio.Future[None]] = OrderedDict()

    def occupy(self, sandbox_id: str) -> None:
        """It has a box already, whether there is room for it or not."""
        self._taken.add(sandbox_id)

    def take(self, sandbox_id: str) -> None:
        """Raises TooManySandboxes if there is no room, or if others wait for it."""
        if sandbox_id in self._taken:
            return
        if self.most is not None and (len(self._taken) >= self.most or self._waiting):
            raise TooManySandboxes(
                f"{len(self._taken)} sandboxes run, and the operator of this installation lets {self.most}",
                limit=self.most,
                used=len(self._taken),
                waiting=len(self._waiting),
            )
        self._taken.add(sandbox_id)

    def queue(self, sandbox_id: str) -> None:
        """Wait behind those that wait already. Raises TooManySandboxes if as many wait as may."""
        if len(self._waiting) >= MOST_WAITING:
            raise TooManySandboxes(
                f"{MOST_WAITING} sandboxes wait for their turn, and no more may", limit=MOST_WAITING, used=MOST_WAITING
            )
        self._waiting[sandbox_id] = asyncio.get_running_loop().create_future()

    async def turn(self, sandbox_id: str, within_s: float) -> bool:
        """Whether its turn came in time: then it has a slot. It waits no more in either case."""
        waiting = self._waiting[sandbox_id]
        try:
            await asyncio.wait({waiting}, timeout=within_s)
        finally:
            self._waiting.pop(sandbox_id, None)
        return waiting.done() and not waiting.cancelled()

    def release(self, sandbox_id: str) -> None:
        """It has no box any more, or waits for none."""
        self._taken.discard(sandbox_id)
        if (waiting := self._waiting.pop(sandbox_id, None)) is not None:
            waiting.cancel()
        for one, turn in list(self._waiting.items()):
            if self.most is not None and len(self._taken) >= self.most:
                break
            self._taken.add(one)
            del self._waiting[one]
            turn.set_result(None)
