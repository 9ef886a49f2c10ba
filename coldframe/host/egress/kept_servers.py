"""Connections to servers that a request of one box was answered over, kept open for the next connection of that box.

To connect and to shake hands takes longer than most answers, and a program that asks ten times often connects ten times.
So what is left open in order is lent to the next request of the same box to the same place. Never between boxes, and never
before that request is on record.

Nothing that a program sends can lie in such a connection: it has carried only requests without a body, which were written
here (`write_head`), and none that says who asks (`authorization`, which some servers take for the whole connection) or that
a secret was put into. Nor is it kept behind an answer that has no body by rule (HEAD, 204, 304): some servers send one all
the same, which would be the answer to the next program. What the server sends without being asked ends it.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from coldframe.host.egress.streams import Stream
from coldframe.policy.addresses import Address
from coldframe.policy.network_rules import Scheme

MOST_KEPT = 8
"""Of one box; a further one takes the place of the one that was kept the longest."""
KEPT_S = 10.0
"""How long nobody may use it: servers end what is idle, after 5 seconds some of them."""

Place = tuple[str | Address, int, Scheme]
"""Destination, port, and what is spoken."""


class Kept(NamedTuple):
    """One that nobody uses."""

    stream: Stream
    address: Address
    """That it was dialled at."""
    via: str | None
    """The proxy, if there was one."""


class KeptServers:
    """Of one box."""

    def __init__(self) -> None:
        self._kept: dict[Kept, tuple[Place, asyncio.TimerHandle]] = {}
        """The one that was kept last is the last."""
        self._is_closed = False
        self.era = 0
        """Of what was opened in an earlier one nothing is kept."""

    def keep(self, place: Place, kept: Kept) -> None:
        """Owns it from now on."""
        if self._is_closed:
            kept.stream.close()
            return
        while len(self._kept) >= MOST_KEPT:
            self._drop(next(iter(self._kept)))
        patience = asyncio.get_running_loop().call_later(KEPT_S, self._drop, kept)
        self._kept[kept] = place, patience
        kept.stream.watch(lambda: self._drop(kept))

    def has(self, place: Place) -> bool:
        return any(there == place for there, _ in self._kept.values())

    def take(self, place: Place, is_allowed: Callable[[Kept], bool]) -> Kept | None:
        """One that leads there and *is_allowed*, the newest first; it belongs to the caller then."""
        for kept in [one for one, (there, _) in reversed(self._kept.items()) if there == place]:
            if not is_allowed(kept):
                continue
            self._release(kept)
            if kept.stream.take_now() is None:
                return kept
            kept.stream.close()
        return None

    def drop_all(self) -> None:
        """Also those, once they are idle, that are in use now."""
        self.era += 1
        for kept in list(self._kept):
            self._drop(kept)

    def close(self) -> None:
        """Nothing is kept any more."""
        self._is_closed = True
        self.drop_all()

    def _drop(self, kept: Kept) -> None:
        if kept in self._kept:
            self._release(kept)
            kept.stream.close()

    def _release(self, kept: Kept) -> None:
        _, patience = self._kept.pop(kept)
        patience.cancel()
        kept.stream.unwatch()
