"""Slots: how many sandboxes may have a box at once, and in which order others wait for one.

Of those that wait comes first whose owner has the fewest boxes, and of these who has waited longest: so whoever lines up by the
hundred holds up nobody but themselves.

Nothing of it is kept: who has a box stands in the rows, and what waits when the server stops is told that it never started.
"""

import asyncio
from collections import Counter, OrderedDict

from coldframe.contract.errors import TooManySandboxes

MOST_WAITING = 1000
"""For a turn, at a time: each is a row, a session and a task."""
MOST_WAITING_OF_ONE = 500
"""Of one owner, so that others can still line up."""


class Slots:
    """Those of one installation; *most* is the operator's word, None for as many as the machine bears."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._taken: set[str] = set()
        self._waiting: OrderedDict[str, asyncio.Future[None]] = OrderedDict()
        self._owners: dict[str, str] = {}
        """Of those that have a box or wait, as far as they were begun since the server was."""

    def occupy(self, sandbox_id: str) -> None:
        """It has a box already, whether there is room for it or not."""
        self._taken.add(sandbox_id)

    def take(self, sandbox_id: str, owner: str = "") -> None:
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
        self._owners[sandbox_id] = owner

    def queue(self, sandbox_id: str, owner: str = "") -> None:
        """Wait behind those of the same owner that wait already. Raises TooManySandboxes if as many wait as may."""
        theirs = sum(self._owners.get(one) == owner for one in self._waiting)
        if theirs >= MOST_WAITING_OF_ONE:
            raise TooManySandboxes(
                f"{theirs} sandboxes of yours wait for their turn, and no more may",
                limit=MOST_WAITING_OF_ONE,
                used=theirs,
            )
        if len(self._waiting) >= MOST_WAITING:
            raise TooManySandboxes(
                f"{MOST_WAITING} sandboxes wait for their turn, and no more may", limit=MOST_WAITING, used=MOST_WAITING
            )
        self._waiting[sandbox_id] = asyncio.get_running_loop().create_future()
        self._owners[sandbox_id] = owner

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
        self._owners.pop(sandbox_id, None)
        if (waiting := self._waiting.pop(sandbox_id, None)) is not None:
            waiting.cancel()
        while self._waiting and (self.most is None or len(self._taken) < self.most):
            one = self._next()
            self._taken.add(one)
            self._waiting.pop(one).set_result(None)

    def _next(self) -> str:
        boxes = Counter(self._owners.get(one, "") for one in self._taken)
        return min(self._waiting, key=lambda one: boxes[self._owners[one]])  # the first of several
