"""The only way out: takes what arrives from the boxes, asks policy about each connection, and carries what is allowed.

Knows a box by the sockets that were made inside its network namespace, so nobody can speak for another. Holds no right
of its own, no key of the product, and nothing that is not told to it again after a restart: while it is gone, what a
box sends waits or fails, and nothing leaves.

The answer to a look-up is made up here (`names.py`), so a connection is known by the name that was asked for. An
address that was never given out for a name is judged as an address.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from coldframe.contract.policy import Label
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.box_way import BoxWay
from coldframe.host.egress.contact import Journal
from coldframe.host.egress.passage import Interceptor
from coldframe.host.egress.resolver import Resolve, resolve_by_host
from coldframe.host.egress.shared import Narrow, Shared
from coldframe.policy.network import Origin
from coldframe.policy.network_rules import NetworkRules


class Broker(Shared):
    """All boxes that have a way out. Runs in one event loop."""

    def __init__(
        self,
        rules: NetworkRules,
        journal: Journal,
        *,
        resolve: Resolve = resolve_by_host,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        intercept: Interceptor | None = None,
        on_name: Callable[[str, str, int, str | None], None] = lambda sandbox_id, name, place, forgotten: None,
    ) -> None:
        """*on_name* hears of each name that a box is given an address for, before the box does; see `open`."""
        super().__init__(rules, journal, resolve=resolve, clock=clock, intercept=intercept, on_name=on_name)
        self._boxes: dict[str, BoxWay] = {}

    def open(
        self, origin: Origin, arrivals: Arrivals, *, names: Mapping[str, int] | None = None, start: int = 0
    ) -> None:
        """Serve a box. Its sockets belong to the broker then; those of an earlier call for the same box are closed.

        *names*: what an earlier broker told of it. Programs remember addresses, and connections wait for them. *start*: the
        first place of the pool that was not given to a name that nobody knows any more.

        Raises OSError: it is not served then, and its sockets are closed.
        """
        self.shut(origin.sandbox_id)
        way = BoxWay(self, origin, arrivals, names, start)
        self._boxes[origin.sandbox_id] = way
        try:
            way.listen()
        except BaseException:
            self.shut(origin.sandbox_id)
            raise

    def shut(self, sandbox_id: str) -> None:
        """The box has no way out any more: what is open is broken off."""
        way = self._boxes.pop(sandbox_id, None)
        if way is not None:
            way.close()

    async def end_box(self, sandbox_id: str) -> None:
        """As `shut`, and wait until all of it is on record."""
        way = self._boxes.get(sandbox_id)
        self.shut(sandbox_id)
        if way is not None:
            await way.finished()

    def use_rules(self, rules: NetworkRules, narrow: Narrow | None = None) -> None:
        """From the next connection on; open ones that the rules forbid end."""
        self.rules, self.narrow = rules, narrow
        for way in self._boxes.values():
            way.judge_again()

    def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        """The session of a box was labelled higher: connections to where that may not go end."""
        way = self._boxes.get(sandbox_id)
        if way is not None:
            way.origin = way.origin._replace(taint=taint)
            way.judge_again()

    def withdraw_credential(self, name: str) -> None:
        """It was taken back: requests with it that are under way end."""
        for way in self._boxes.values():
            way.withdraw_credential(name)

    async def close(self) -> None:
        """Break everything off, and wait until all of it is on record."""
        ways = list(self._boxes.values())
        self._boxes.clear()
        for way in ways:
            way.close()
        await asyncio.gather(*(way.finished() for way in ways))
        self.pipes.close()

    def carried(self) -> Iterator[tuple[str, int, int]]:
        """Of every connection: the id of its contact, and how many bytes it has sent and received so far."""
        for way in self._boxes.values():
            yield from way.carried()
