"""Look-ups of one box that were answered, on their way to the record: equal ones once, and again after a while with their number.

A program that resolves in a loop would else write more than all connections. Nothing is answered before it is on record,
or counted with what is. What was counted is told with the next one, when nothing more is told apart, or when the box is shut;
a broker that dies takes what it has counted since.
"""

import asyncio
from collections.abc import Callable, Coroutine

from coldframe.host.egress.contact import EgressContact, EgressLookup
from coldframe.host.egress.names import Lookup, LookupOutcome

AGAIN_S = 60.0
"""After which an equal one is told again."""
MOST_KINDS = 4096
"""That are told apart; then the one that was told first makes room."""

REST_AT_ONCE = 64
"""Of what was counted, when the box is shut."""

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

    __slots__ = ("at", "contact", "done", "since")

    def __init__(self, contact: EgressContact, at: float, done: "asyncio.Task[None]") -> None:
        self.contact = contact
        self.at = at
        self.done = done
        self.since = 0


class LookUps:
    """Of one box."""

    def __init__(
        self,
        tell: Callable[[EgressContact], Coroutine[object, object, None]],
        clock: Callable[[], float],
        renew: Callable[[EgressContact], EgressContact],
    ) -> None:
        """*tell* returns once it is on record; *clock* in seconds, from anywhere; *renew* makes another contact of one, as of
        now, and from nobody that could be told."""
        self._tell = tell
        self._clock = clock
        self._renew = renew
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
            contact.times += 0 if told is None else told.since
            self._told.pop(key, None)  # the newest are behind the others
            if len(self._told) >= MOST_KINDS:
                self._tell_rest_of(self._told.pop(next(iter(self._told))))
            told = self._told[key] = _Told(contact, now, _started(self._put(key, contact, told)))
        await asyncio.shield(told.done)

    async def tell_rest(self) -> None:
        """Nothing more is answered: what was counted since the last that was told goes on record now."""
        while self._told:
            some = [self._told.pop(key) for key in list(self._told)[:REST_AT_ONCE]]
            rest = [task for told in some if (task := self._tell_rest_of(told)) is not None]
            if any(await asyncio.gather(*rest, return_exceptions=True)):
                return  # nothing more can be put on record

    def _tell_rest_of(self, told: _Told) -> "asyncio.Task[None] | None":
        if not told.since:
            return None
        rest = self._renew(told.contact)
        rest.times = told.since
        return _started(self._tell(rest))

    async def _put(self, key: tuple[str, EgressLookup], contact: EgressContact, earlier: _Told | None) -> None:
        try:
            await self._tell(contact)
        except BaseException:
            told = self._told.get(key)
            if told is not None and told.contact is contact:
                del self._told[key]
                if earlier is not None:  # what that has counted was answered, and is told the next time
                    self._told[key] = earlier
            raise


def _started(work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits any more
    return task
