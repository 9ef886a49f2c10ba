"""Lineage for whoever asks: items by what they are, and traces back and forward over all generations.

People only, as with the ledger: it names files, endpoints and commands of everybody. What is told of an item beside the
index is read from its entries in the ledger.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument, LedgerUnavailable, NotFound
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.lineage import (
    AssumedInputs,
    Certainty,
    LineageAccess,
    LineageInput,
    LineageItem,
    LineageKind,
    LineageOrigin,
    LineagePage,
    LineageTrace,
    Retention,
    TracedItem,
    Transformation,
)
from coldframe.contract.policy import Label, Outcome
from coldframe.control.call_records import ids_of
from coldframe.control.closure import LOOKED_AT_ONCE, Closure
from coldframe.control.derivation import Derivation
from coldframe.control.ledger import Ledger, parse_time
from coldframe.control.lineage_items import label_of
from coldframe.control.lineage_rows import Step, shared_by
from coldframe.control.rights import require
from coldframe.control.store import Store

MOST_IN_PAGE = 1000
MOST_INPUTS = 100
"""Inputs that are listed with an item."""
READ_AT_ONCE = 500
"""Items of a place that are looked at before others are served."""
MOST_ENTRIES_KEPT = 4
MOST_DESCRIBED = 2000
"""Characters of a command. The receipt has all."""
TOLD_AT_ONCE = 20
"""Items that are put together before others are served."""

_STEP = ", ".join(f"s.{name}" for name in Step._fields)


class _Row(NamedTuple):
    """An item with its step."""

    number: int
    item_id: str
    kind: LineageKind
    call: int | None
    seq: int
    agent_id: str | None
    session_id: str | None
    heard: bool
    left: bool
    path: str | None
    sha256: str | None
    bytes: int | None
    host: str | None
    port: int | None
    methods: str | None
    outcome: str
    rank: int
    reason: str
    assigned_at: str
    certainty: Certainty
    retention: Retention
    step: Step


_ITEM = ", ".join(f'i."{name}"' for name in _Row._fields[:-1])
_SELECT = f"SELECT {_ITEM}, {_STEP} FROM lineage_items i JOIN lineage_steps s ON s.number = i.step"  # noqa: S608
_INPUTS = (
    "SELECT i.item_id, e.certainty FROM lineage_edges e JOIN lineage_items i ON i.number = e.item WHERE e.step = ? "
    "ORDER BY i.number LIMIT ?"
)
_TAKEN_IN = (
    "SELECT e.item, i.step, i.certainty FROM lineage_edges e JOIN lineage_items i ON i.number = e.item "
    "WHERE e.step = ? AND e.item > ? AND e.certainty = 'known' ORDER BY e.item LIMIT ?"
)
_GIVEN = (
    "SELECT number FROM lineage_items WHERE step = ? AND number > ? AND certainty = 'known' ORDER BY number LIMIT ?"
)
_TAKEN_BY = "SELECT step FROM lineage_edges WHERE item = ? AND step > ? AND certainty = 'known' ORDER BY step LIMIT ?"


class WantedItems(NamedTuple):
    """Which items; what is None does not matter."""

    session_id: str | None = None
    agent_id: str | None = None
    sandbox_id: str | None = None
    path: str | None = None
    sha256: str | None = None
    endpoint: str | None = None
    """A name or an address, also with a port: `api.example.com:443`."""
    label: Label | None = None
    """This one or a higher."""


class Lineage:
    """Reads the index, which is brought up to date before."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._derivation = Derivation(store, ledger)

    async def items(self, caller: Caller, wanted: WantedItems, *, after: int = 0, limit: int = 100) -> LineagePage:
        """Those behind number *after*, in the order in which they came on record.

        Raises:
            GrantMissing: for people only.
            LedgerUnavailable: the index cannot be brought up to date, so it would say too little.
        """
        require(caller, "lineage.read")
        _check_limit(limit)
        await self._derivation.catch_up()
        condition, values = _search(wanted)
        query = f"{_SELECT} WHERE {condition} i.number > ? AND i.number <= ? ORDER BY i.number LIMIT ?"
        found, last = list[_Row](), self._last_number()
        while after < last and len(found) <= limit:
            upto = after + LOOKED_AT_ONCE
            found += self._rows(query, (*values, after, upto, limit + 1 - len(found)))
            after = upto
            await asyncio.sleep(0)
        items = await self._told(found[:limit])
        return LineagePage(items=items, next_after=items[-1].number if len(found) > limit else None)

    async def item(self, caller: Caller, item_id: str) -> LineageItem:
        """Raises GrantMissing, NotFound, and LedgerUnavailable like `items`."""
        require(caller, "lineage.read")
        await self._derivation.catch_up()
        (told,) = await self._told([self._find(item_id)])
        return told

    async def trace(
        self,
        caller: Caller,
        traced: str,
        direction: Literal["back", "forward"],
        *,
        known: bool = False,
        after: int | None = None,
        limit: int = 100,
    ) -> LineageTrace:
        """All generations of what an item, or a call by its call, command or receipt id, may have come from or gone to.

        *after*: `next_after` of the page before. With *known* only what the record names, step by step.

        Raises:
            GrantMissing, NotFound: not the caller's to see, or there is none.
            LedgerUnavailable: the index cannot be brought up to date, so it would say too little.
        """
        require(caller, "lineage.read")
        _check_limit(limit)
        last = await self._derivation.catch_up()
        back = direction == "back"
        item = self._find(traced) if traced.startswith("lin_") else None
        step = item.step if item is not None else self._find_call(traced)
        of_call = 0 if item is not None or back else 1
        certain = await self._known_back(step, item) if back else await self._known_forward(step, item)
        if known:
            rows, more = self._known_page(certain, back=back, after=after, limit=limit)
            found = [(row, certain[row.number]) for row in rows]
        else:
            closure = Closure(self._store, step, back=back, last=last)
            heard, left = (step.kind == "call", step.leaves) if item is None else (item.heard, item.left)
            await closure.find(heard=heard, left=left)
            found, more = await self._page(closure, step, of_call, back=back, after=after, limit=limit)
        told = await self._told([row for row, _ in found])
        return LineageTrace(
            traced=traced,
            direction=direction,
            items=tuple(
                TracedItem(
                    generation=generation,
                    certainty="known" if row.number in certain else "assumed",
                    item=one,
                )
                for (row, generation), one in zip(found, told, strict=True)
            ),
            next_after=told[-1].number if more else None,
        )

    # -- traces ----------------------------------------------------------------------------------------------------

    async def _page(
        self, closure: Closure, step: Step, of_call: int, *, back: bool, after: int | None, limit: int
    ) -> tuple[list[tuple[_Row, int]], bool]:
        """Items of the trace with their generation: as many as wanted, and whether there are more."""
        found = list[tuple[_Row, int]]()
        marks = ", ".join("?" * len(closure.places))
        order = "DESC" if back else "ASC"
        query = (
            f"{_SELECT} WHERE i.place IN ({marks}) AND i.number > ? AND i.number <= ? ORDER BY i.number {order} LIMIT ?"
        )
        last = self._last_number()
        low, high = (0, last if after is None else after - 1) if back else (after or 0, last)
        while low < high:
            first, upto = (max(low, high - LOOKED_AT_ONCE), high) if back else (low, min(high, low + LOOKED_AT_ONCE))
            rows = self._rows(query, (*closure.places, first, upto, READ_AT_ONCE))
            for row in rows:
                generation = closure.generation_of(row.step, heard=row.heard, left=row.left)
                if generation is None and of_call and row.step.number == step.number:
                    generation = 0
                if generation is None:
                    continue
                if len(found) == limit:
                    return found, True
                found.append((row, generation + of_call))
            if len(rows) == READ_AT_ONCE:
                first, upto = (rows[-1].number - 1, upto) if back else (first, rows[-1].number)
            low, high = (low, first) if back else (upto, high)
            await asyncio.sleep(0)
        return found, False

    def _known_page(
        self, certain: dict[int, int], *, back: bool, after: int | None, limit: int
    ) -> tuple[list[_Row], bool]:
        numbers = sorted(certain, reverse=back)
        if after is not None:
            numbers = [one for one in numbers if (one < after if back else one > after)]
        return [self._row_of(one) for one in numbers[:limit]], len(numbers) > limit

    async def _known_back(self, step: Step, item: _Row | None) -> dict[int, int]:
        """Numbers of the items that this is known to come from, with their generation."""
        if item is not None and item.certainty != "known":
            return {}
        found, seen, level, generation = dict[int, int](), {step.number}, [step.number], 1
        while level:
            makers = list[int]()
            async for number, maker, certainty in self._of_each(level, _TAKEN_IN):
                found.setdefault(number, generation)
                if certainty == "known" and maker not in seen:
                    seen.add(maker)
                    makers.append(maker)
            level, generation = makers, generation + 1
        return found

    async def _known_forward(self, step: Step, item: _Row | None) -> dict[int, int]:
        found, seen, generation = dict[int, int](), set[int](), 1
        given = [] if item is None else [item.number]
        level = [step.number] if item is None else []
        while given or level:
            async for (taker,) in self._of_each(given, _TAKEN_BY):
                if taker not in seen:
                    seen.add(taker)
                    level.append(taker)
            given = [number async for (number,) in self._of_each(level, _GIVEN) if number not in found]
            found |= dict.fromkeys(given, generation)
            level, generation = [], generation + 1
        return found

    async def _of_each(self, numbers: list[int], query: str) -> AsyncIterator[tuple[Any, ...]]:
        """The rows of each: a command may have written any number of files, and reached any number of hosts."""
        for asked, number in enumerate(numbers, 1):
            last = 0
            while rows := self._store.read(query, (number, last, LOOKED_AT_ONCE)):
                for row in rows:
                    yield row
                if len(rows) < LOOKED_AT_ONCE:
                    break
                last = rows[-1][0]
                await asyncio.sleep(0)
            if asked % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, query: str, values: Sequence[object]) -> list[_Row]:
        fields = len(_Row._fields) - 1
        return [_Row._make((*row[:fields], Step._make(row[fields:]))) for row in self._store.read(query, values)]

    def _row_of(self, number: int) -> _Row:
        (row,) = self._rows(f"{_SELECT} WHERE i.number = ?", (number,))
        return row

    def _find(self, item_id: str) -> _Row:
        rows = self._rows(f"{_SELECT} WHERE i.item_id = ?", (item_id,))
        if not rows:
            raise NotFound(f"no item of lineage `{item_id[:80]}`", item_id=item_id[:80])
        return rows[0]

    def _find_call(self, any_id: str) -> Step:
        ids = ids_of(any_id)
        rows = self._store.read(f"SELECT {_STEP} FROM lineage_steps s WHERE s.step_id = ?", (ids.call_id,))  # noqa: S608
        if not rows or any_id not in ids:
            raise NotFound(
                f"no item of lineage and no call `{any_id[:80]}`",
                hint="give the id of an item, or of a call, command or receipt that has begun",
                item_id=any_id[:80],
            )
        return Step._make(rows[0])

    def _last_number(self) -> int:
        return int(self._store.read("SELECT coalesce(max(number), 0) FROM lineage_items")[0][0])

    # -- what is told of an item -----------------------------------------------------------------------------------

    async def _told(self, rows: Iterable[_Row]) -> tuple[LineageItem, ...]:
        told, read = list[LineageItem](), dict[int, LedgerEntry]()
        for row in rows:
            told.append(self._tell(row, read))
            if len(told) % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)
        return tuple(told)

    def _entry(self, seq: int, read: dict[int, LedgerEntry]) -> LedgerEntry:
        """From *read* if it is there: items of one call follow each other, and its entries may be megabytes."""
        if seq not in read:
            entry = self._ledger.entry(seq)
            if entry is None:
                raise LedgerUnavailable(
                    f"entry {seq} of the ledger is missing", hint="run `coldframe ledger verify`", seq=seq
                )
            if len(read) == MOST_ENTRIES_KEPT:
                del read[next(iter(read))]
            read[seq] = entry
        return read[seq]

    def _tell(self, row: _Row, read: dict[int, LedgerEntry]) -> LineageItem:
        call = None if row.call is None else self._entry(row.call, read)
        entry = self._entry(row.seq, read)
        command_id = None if call is None else call.body.get("command_id")
        if row.kind == "contact":
            origin, accessed = _of_contact(row, entry)
        else:
            origin, accessed = _of_call(row, entry, call)
        maker = call if row.step.kind == "call" else None
        return LineageItem(
            number=row.number,
            item_id=row.item_id,
            kind=row.kind,
            sha256=row.sha256,
            bytes=row.bytes,
            origin=origin,
            accessed=accessed,
            label=label_of(row.rank),
            label_reason=row.reason,
            assigned_at=parse_time(row.assigned_at),
            outcome=Outcome(row.outcome),
            session_id=row.session_id,
            agent_id=row.agent_id,
            sandbox_id=row.step.sandbox_id,
            call_id=None if call is None else call.subject,
            command_id=command_id,
            made_by=row.certainty,
            inputs=tuple(
                LineageInput(item_id=item_id, certainty=certainty)
                for item_id, certainty in self._store.read(_INPUTS, (row.step.number, MOST_INPUTS))
            ),
            assumed_inputs=_assumed(row.step, row.agent_id, shared_by(self._store, row.step.number)),
            transformations=() if maker is None else (_transformation(maker),),
            location=_location(row, command_id),
            retention=row.retention,
            ledger_seq=row.seq,
        )


def _check_limit(limit: int) -> None:
    if not 0 < limit <= MOST_IN_PAGE:
        raise InvalidArgument(f"ask for 1 to {MOST_IN_PAGE} at a time", argument="limit")


def _search(wanted: WantedItems) -> tuple[str, list[Any]]:
    """The condition, and its values. Only the first leads to an index: with `+` the others leave theirs alone."""
    equal = dict[str, Any](
        sha256=wanted.sha256,
        path=wanted.path,
        session_id=wanted.session_id,
        sandbox_id=wanted.sandbox_id,
    )
    if wanted.endpoint is not None:
        host, _, port = wanted.endpoint.rpartition(":")
        if host and port.isdecimal() and (":" not in host or host.startswith("[")):
            equal |= {"host": host.strip("[]").lower(), "port": int(port[:6])}
        else:
            equal["host"] = wanted.endpoint.strip("[]").lower()
    equal["agent_id"] = wanted.agent_id
    named = {name: value for name, value in equal.items() if value is not None}
    conditions = [f"{'+' if place else ''}i.{name} = ?" for place, name in enumerate(named)]
    values = list(named.values())
    if wanted.label is not None:
        conditions.append("i.rank >= ?")
        values.append(wanted.label.rank)
    return "".join(f"{one} AND " for one in conditions), values


def _of_contact(row: _Row, entry: LedgerEntry) -> tuple[LineageOrigin, LineageAccess]:
    body = entry.body
    name = str(body.get("name") or body["address"])
    where = f"[{name}]" if ":" in name else name
    origin = LineageOrigin(
        type="endpoint",
        name=name,
        endpoint=f"{body['protocol']}:{where}:{body['port']}",
        method=row.methods or body.get("scheme"),
        record=body["contact_id"],
    )
    accessed = LineageAccess(
        by=body.get("program") or "unknown",
        at=parse_time(body["began_at"]),
        how=body.get("mode") or "network",
    )
    return origin, accessed


def _of_call(row: _Row, entry: LedgerEntry, call: LedgerEntry | None) -> tuple[LineageOrigin, LineageAccess]:
    body, ids = entry.body, ids_of(str(entry.body["call_id"]))
    kind: Literal["command", "tool", "workspace"]
    if row.step.kind == "found":
        kind, name = "workspace", row.path or ""
    elif call is not None and call.body.get("command_id") is not None:
        kind, name = "command", ids.command_id
    else:
        kind, name = "tool", str(body["tool"])
    at = entry.at if row.kind == "input" or body.get("ended_at") is None else parse_time(body["ended_at"])
    origin = LineageOrigin(type=kind, name=name, record=ids.receipt_id)
    return origin, LineageAccess(by=body["caller"], at=at, how="input" if row.kind == "input" else body["tool"])


def _assumed(step: Step, agent_id: str | None, shared: Iterable[tuple[str, bool]]) -> tuple[AssumedInputs, ...]:
    found = [AssumedInputs(scope="workspace", name=agent_id or step.sandbox_id, before_seq=step.ended)]
    if step.session_id is not None:
        found.insert(0, AssumedInputs(scope="session", name=step.session_id, before_seq=step.started))
    for name, _ in shared:
        kind, _, identity = name.partition(":")
        found.append(
            AssumedInputs(scope="volume" if kind == "volume" else "snapshot", name=identity, before_seq=step.ended)
        )
    return tuple(found)


def _transformation(call: LedgerEntry) -> Transformation:
    body = call.body
    asked = body.get("command")
    if asked is None and body.get("argv") is not None:
        asked = shlex.join(body["argv"])
    if asked is None:
        asked = (body.get("context") or {}).get("path") or ""
    if len(asked) > MOST_DESCRIBED:
        asked = asked[:MOST_DESCRIBED] + "…"
    return Transformation(type=body["tool"], description=asked, at=call.at, agent_id=body["agent_id"])


def _location(row: _Row, command_id: str | None) -> str | None:
    if row.kind == "file":
        return f"workspace:{row.agent_id or row.step.sandbox_id}/{row.path}"
    if row.kind in ("stdout", "stderr") and command_id is not None:
        return f"output:{command_id}/{row.kind}"
    return None
