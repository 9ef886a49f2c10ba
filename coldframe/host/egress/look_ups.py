"""Look-ups of one box that were answered, on their way to the record: equal ones once, and again after a while with their number.

A program that resolves in a loop would else write more than all connections. Nothing is answered before it is on record,
or counted with what is.
"""

import asyncio
from collections.abc import Awaitable, Callable

from coldframe.host.egress.contact import EgressContact, EgressLookup
from coldframe.host.egress.names import Lookup, LookupOutcome

AGAIN_S = 60.0
"""After which an equal one is told again."""
MOST_KINDS = 4096
"""That are told apart; then it begins anew."""

_KINDS = {1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV", 65: "HTTPS"}
_ANSWERS = {
    LookupOutcome.ANSWERED: "address",
    LookupOutcome.NO_DATA: "no-data",
    LookupOutcome.UNKNOWN: "no-name",
}


def describe(found: Lookup) -> EgressLookup:
    """For the record."""
    kind = found.kind or 0
    return EgressLookup(_KINDS.get(kind, f"TYPE{kind}"), _ANSWERS.get(found.outcome, "failed"))  # type: ignore[arg-type]


class _Told:
    """The last that was told of equal ones."""

    __slots__ = ("at", "done", "since")

    def __init__(self, at: float, done: "asyncio.Task[None]") -> None:
        self.at = at
        self.done = done
        self.since = 0


class LookUps:
    """Of one box."""

    def __init__(self, tell: Callable[[EgressContact], Awaitable[None]], clock: Callable[[], float]) -> None:
        """*tell* returns once it is on record; *clock* in seconds, from anywhere."""
        self._tell = tell
        self._clock = clock
        self._told: dict[tuple[str, EgressLookup], _Told] = {}

    def is_on_record(self, name: str, lookup: EgressLookup) -> bool:
        """Whether it may be answered now. It is counted then; if not, `put_on_record` has to come first."""
        told = self._told.get((name, lookup))
        if told is None or not told.done.done() or self._clock() - told.at >= AGAIN_S:
            return False
        told.since += 1
        return True

    async def put_on_record(self, contact: EgressContact) -> None:
        """Raises JournalLost: it may not be answered."""
        assert contact.name is not None
        assert contact.lookup is not None
        key = contact.name, contact.lookup
        told, now = self._told.get(key), self._clock()
        if told is not None and (not told.done.done() or now - told.at < AGAIN_S):
            told.since += 1
        else:
            if len(self._told) >= MOST_KINDS:
                self._told.clear()
            contact.times += 0 if told is None else told.since
            done = asyncio.ensure_future(self._put(key, contact))
            done.add_done_callback(lambda task: task.cancelled() or task.exception())  # also if nobody waits any more
            told = self._told[key] = _Told(now, done)
        await asyncio.shield(told.done)

    async def _put(self, key: tuple[str, EgressLookup], contact: EgressContact) -> None:
        try:
            await self._tell(contact)
        except BaseException:
            self._told.pop(key, None)
            raise
