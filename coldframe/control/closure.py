"""Traces over the index of lineage: everything an item may be derived from, or that may be derived from it.

What is assumed is not walked edge by edge. All that a step may have taken in is a beginning of its session and a beginning of
its place (`derivation.py`), so one generation of a trace is no more than how far these beginnings reach, and the next is how
far those of the steps within reach. Forward it is the same with ends in place of beginnings. Which items a trace has is then
told by the numbers of their steps alone, page by page. What is known is walked by its edges, which are few.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from coldframe.control.lineage_rows import NEVER, Step
from coldframe.control.store import Store

LOOKED_AT_ONCE = 10_000
"""Numbers that are gone through before others are served: some milliseconds."""


class Reach(NamedTuple):
    """How far one generation of a trace reaches."""

    generation: int
    bound: int


class Closure:
    """One trace. `find` it first; then every item can be asked about."""

    def __init__(self, store: Store, step: Step, *, back: bool, last: int) -> None:
        """Of what *step* took in, or of what took in what it gave; *last* is the last entry that the index has."""
        self._store = store
        self._step = step
        self._back = back
        self._last = last
        self._sessions: dict[str, list[Reach]] = {}
        self._places: dict[str, list[Reach]] = {}

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(self._places)

    async def find(self, *, heard: bool, left: bool) -> None:
        """Reach as far as it goes. Forward, *heard* and *left* say what began it: something that a session took in,
        something that was left at a place, or both."""
        step, generation = self._step, 1
        sessions, places = dict[str, int](), dict[str, int]()
        if step.session_id is not None and (self._back or heard):
            sessions[step.session_id] = step.started
        if self._back or left:
            places[step.place] = step.ended if self._back else step.started
        self._places[step.place] = []
        while sessions or places:
            of_sessions = self._grow(self._sessions, sessions, generation)
            of_places = self._grow(self._places, places, generation)
            sessions, places = {}, {}
            for scope, before, bound in of_sessions:
                await self._go_on("session_id", scope, before, bound, places)
            for scope, before, bound in of_places:
                await self._go_on("place", scope, before, bound, sessions)
            generation += 1

    def _grow(
        self, known: dict[str, list[Reach]], wanted: dict[str, int], generation: int
    ) -> list[tuple[str, int, int]]:
        """What reaches further now: scope, how far it was, how far it is."""
        grown = []
        for scope, bound in wanted.items():
            reached = known.setdefault(scope, [])
            before = reached[-1].bound if reached else (0 if self._back else NEVER)
            if bound > before if self._back else bound < before:
                reached.append(Reach(generation, bound))
                grown.append((scope, before, bound))
        return grown

    async def _go_on(self, column: str, scope: str, before: int, bound: int, further: dict[str, int]) -> None:
        """From what a session reaches to places, and the other way: what else its steps have to do with is within reach.

        What came by one step after it was taken on from there is not: so nothing reaches past the step that is traced.
        """
        if column == "session_id":
            to, (low, high) = "place", (0, bound - 1) if self._back else (bound, before)
            number, gives = "started", "kind = 'call'" if self._back else "leaves"
        else:
            to, (low, high) = "session_id", (before - 1, bound - 1) if self._back else (bound, NEVER)
            number, gives = ("started", "leaves") if self._back else ("ended", "kind = 'call'")
        reach = "started" if to == "session_id" or not self._back else "ended"
        most, least = (max, min) if self._back else (min, max)
        query = (
            f"SELECT {to}, {most.__name__}({reach}) FROM lineage_steps "  # noqa: S608  names of ours
            f"WHERE {column} = ? AND {number} > ? AND {number} <= ? AND {gives} AND {to} IS NOT NULL GROUP BY {to}"
        )
        for first, last in self._windows(low, high):
            for name, found in self._store.read(query, (scope, first, last)):
                reached = least(found, bound)
                further[name] = most(reached, further.get(name, reached))
            await asyncio.sleep(0)

    def _windows(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Numbers above the first and up to the second. Past the last entry there are only steps that go on."""
        top = min(high, self._last)
        while low < top:
            yield low, min(low + LOOKED_AT_ONCE, top)
            low += LOOKED_AT_ONCE
        if high > top:
            yield max(low, top), high

    def generation_of(self, step: Step, *, heard: bool, left: bool) -> int | None:
        """Of an item of *step* that its session heard, or that it left; None if the trace does not have it."""
        if step.number == self._step.number:
            return None
        in_session = self._sessions.get(step.session_id or "", ())
        at_place = self._places.get(step.place, ())
        if self._back:
            found = [one.generation for one in in_session if heard and step.started < one.bound]
            found += [one.generation for one in at_place if left and step.started < one.bound]
        else:
            found = [one.generation for one in in_session if step.started > one.bound]
            found += [one.generation for one in at_place if step.ended > one.bound]
        return min(found, default=None)
