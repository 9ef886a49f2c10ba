"""Traces over the index of lineage: everything an item may be derived from, or that may be derived from it.

What is assumed is not walked edge by edge. All that a step may have taken in is a beginning of its session and a beginning of
its place (`derivation.py`), so one generation of a trace is no more than how far these beginnings reach, and the next is how
far those of the steps within reach. Forward it is the same with ends in place of beginnings. Which items a trace has is then
told by the numbers of their steps alone, page by page. What is known is walked by its edges, which are few.
"""

import asyncio
from collections.abc import Iterator
from typing import Literal, NamedTuple

from coldframe.control.lineage_rows import NEVER, Step, is_any_shared, shared_by
from coldframe.control.store import Store

LOOKED_AT_ONCE = 10_000
"""Numbers that are gone through before others are served: some milliseconds."""


Scope = Literal["session_id", "place", "shared"]
"""Shared is a volume or a snapshot, which steps of several places have to do with."""
_GIVES = {"session_id": "s.kind = 'call'", "place": "s.leaves", "shared": "{}.writes"}
"""Which of its steps give on what is taken in there, or take there what they give."""
_WHERE_SHARED = (
    "SELECT DISTINCT s.place FROM lineage_steps s JOIN lineage_shared a ON a.step = s.number WHERE a.shared = ?"
)


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
        self._reached: dict[Scope, dict[str, list[Reach]]] = {"session_id": {}, "place": {}, "shared": {}}
        self._scopes: tuple[Scope, ...] = tuple(self._reached) if is_any_shared(store) else ("session_id", "place")

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(self._reached["place"])

    async def find(self, *, heard: bool, left: bool) -> None:
        """Reach as far as it goes. Forward, *heard* and *left* say what began it: something that a session took in,
        something that was left at a place, or both."""
        step, generation = self._step, 1
        wanted: dict[Scope, dict[str, int]] = {scope: {} for scope in self._scopes}
        if step.session_id is not None and (self._back or heard):
            wanted["session_id"][step.session_id] = step.started
        if self._back or left:
            bound = step.ended if self._back else step.started
            wanted["place"][step.place] = bound
            for shared, writes in shared_by(self._store, step.number):
                if self._back or writes:
                    wanted["shared"][shared] = bound
        self._reached["place"][step.place] = []
        while any(wanted.values()):
            grown = {kind: self._grow(self._reached[kind], wanted[kind], generation) for kind in self._scopes}
            wanted = {kind: {} for kind in self._scopes}
            for kind, scopes in grown.items():
                for scope, before, bound in scopes:
                    for to in self._scopes:
                        if to != kind or to == "shared":
                            await self._go_on(kind, scope, before, bound, to, wanted[to])
            generation += 1
        for shared in self._reached["shared"]:  # what only looks there leaves nothing at its own place
            for (place,) in self._store.read(_WHERE_SHARED, (shared,)):
                self._reached["place"].setdefault(place, [])

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

    async def _go_on(
        self, kind: Scope, scope: str, before: int, bound: int, to: Scope, further: dict[str, int]
    ) -> None:
        """From what one scope reaches to those of another kind: what else its steps have to do with is within reach.

        What came by one step after it was taken on from there is not: so nothing reaches past the step that is traced.
        """
        if self._back:
            number, gives = "s.started", _GIVES[kind].format("a")
            low, high = before - 1 if to == "session_id" else 0, bound - 1
        else:
            number, gives = "s.started" if kind == "session_id" else "s.ended", _GIVES[to].format("b")
            low, high = bound, before if kind == "session_id" else NEVER
        reach = "s.started" if to == "session_id" or not self._back else "s.ended"
        most, least = (max, min) if self._back else (min, max)
        source, target = (f"{name}.shared" if one == "shared" else f"s.{one}" for name, one in (("a", kind), ("b", to)))
        joins = [
            f"JOIN lineage_shared {name} ON {name}.step = s.number"
            for name, one in (("a", kind), ("b", to))
            if one == "shared"
        ]
        query = (
            f"SELECT {target}, {most.__name__}({reach}) FROM lineage_steps s {' '.join(joins)} "  # noqa: S608  names of ours
            f"WHERE {source} = ? AND {number} > ? AND {number} <= ? AND {gives} AND {target} IS NOT NULL GROUP BY {target}"
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
        in_session = self._reached["session_id"].get(step.session_id or "", ())
        at_place = self._reached["place"].get(step.place, ())
        shared = self._reached["shared"]
        elsewhere = shared_by(self._store, step.number) if shared else ()
        if self._back:
            found = [one.generation for one in in_session if heard and step.started < one.bound]
            reaches = [at_place, *(shared.get(name, ()) for name, writes in elsewhere if writes)]
            found += [one.generation for reach in reaches for one in reach if left and step.started < one.bound]
        else:
            found = [one.generation for one in in_session if step.started > one.bound]
            reaches = [at_place, *(shared.get(name, ()) for name, _ in elsewhere)]
            found += [one.generation for reach in reaches for one in reach if step.ended > one.bound]
        return min(found, default=None)
