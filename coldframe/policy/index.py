"""Finds the rules that may concern a call without trying each: one lookup a field, however many rules there are.

The answer is a superset of the rules whose conditions hold, and every rule in it is then tried as written. So
the index can be as coarse as it likes, and a decision never depends on it. Only what it leaves out matters,
and it leaves a rule out for one reason: a condition of it is certainly false.

Globs are found by what is literal in them. Other patterns of a field are one RE2 set, for texts that it cannot spend
long on: a set follows all of its patterns at once, and text made for it costs a step of each for every character. A
set that gives up answers as if nothing matched, so each holds a pattern that matches everything: an answer without
that one is no answer, and all of its rules are tried.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import re2

from coldframe.contract.policy import Hook
from coldframe.policy.conditions import Condition
from coldframe.policy.fields import SCHEMA, Facts, FieldSpec, ReachFacts
from coldframe.policy.matching import literal_of

MAX_SET_MEMORY_BYTES = 16 * 1024 * 1024
"""Cap that RE2 puts on one set and on what it remembers while matching."""
MAX_STEPS = 1_000_000
"""A set is asked if its length and that of all texts multiply to no more; a step takes up to a tenth of a microsecond."""
MAX_PATTERN_STEPS = 200
"""A pattern with a longer program is tried by itself."""
FEW = 16
"""Up to so many rules of a value are kept as a list; more as a mask, which takes a bit for every rule of the hook."""

Rows = int | tuple[int, ...]


class _Set(NamedTuple):
    """Patterns compiled together, and the rules of each."""

    match: Callable[[str], Sequence[int] | None]
    rows: tuple[Rows, ...]
    """By number of the pattern; 0 is the one that matches everything."""
    every: int
    steps: int

    def possible(self, texts: Sequence[str]) -> int:
        if self.steps * sum(map(len, texts)) > MAX_STEPS:
            return self.every
        mask = 0
        for text in texts:
            found = self.match(text)
            if not found or 0 not in found:
                return self.every
            for number in found:
                mask |= _mask(self.rows[number])
        return mask


_Table = tuple[tuple[int, dict[str, Rows]], ...]
"""Texts of each length, and their rules."""


class _Field(NamedTuple):
    """What the rules of one hook ask about one field."""

    spec: FieldSpec
    free: int
    """Rules that ask nothing of this field, or what no index can answer."""
    clued: int
    """Rules that are found by a clue."""
    values: dict[object, Rows]
    prefixes: _Table
    suffixes: _Table
    parts: tuple[tuple[str, Rows], ...]
    sets: tuple[_Set, ...]

    def possible(self, facts: Any) -> int:
        """Mask of the rules that this field does not exclude; -1 for all."""
        mask = self.free
        if self.spec.kind == "program":
            if facts.reading is None:
                return mask if facts.call.command is None and facts.call.argv is None else -1
            names = {call.name for call in facts.reading.programs}
            for word in names.union(call.word for call in facts.reading.programs):
                mask |= _mask(self.values.get(word, ()))
            return mask | self._by_clue(tuple(names)) if self.clued else mask
        value = self.spec.value(facts)
        if value is None:
            return -1
        several = value if isinstance(value, tuple) else (value,)
        for one in several:
            mask |= _mask(self.values.get(one, ()))
        return mask | self._by_clue([str(one) for one in several]) if self.clued else mask

    def _by_clue(self, texts: Sequence[str]) -> int:
        if not all(map(_is_unicode, texts)):
            return self.clued
        mask = 0
        for text in texts:
            for length, of_length in self.prefixes:
                mask |= _mask(of_length.get(text[:length], ()))
            for length, of_length in self.suffixes:
                mask |= _mask(of_length.get(text[-length:], ()))
            for part, rows in self.parts:
                if part in text:
                    mask |= _mask(rows)
        for one in self.sets:
            mask |= one.possible(texts)
        return mask


class RuleIndex:
    """The rules of one hook by what they ask."""

    def __init__(self, hook: Hook, conditions: Sequence[Sequence[Condition]]) -> None:
        """*conditions*: those of every rule, which is known by its place from here on."""
        self._all = (1 << len(conditions)) - 1
        asked = {condition.field for each in conditions for condition in each if _can_index(condition)}
        self._fields = tuple(
            _build_field(spec, name, conditions, self._all) for name, spec in SCHEMA[hook].items() if name in asked
        )

    def possible(self, facts: Facts | ReachFacts) -> Iterator[int]:
        """Places of the rules that may match, in order; every rule that does is among them."""
        mask = self._all
        for field in self._fields:
            if not mask:
                return
            if mask & ~field.free:
                mask &= field.possible(facts)
        while mask:
            lowest = mask & -mask
            yield lowest.bit_length() - 1
            mask ^= lowest


def _can_index(condition: Condition) -> bool:
    if condition.entries is not None:
        return all(literal_of(entry) is not None for entry in condition.entries)
    if condition.values is not None:
        return True
    clue = condition.clue
    return clue is not None and (bool(clue.prefix or clue.suffix or clue.part) or clue.steps <= MAX_PATTERN_STEPS)


def _build_field(spec: FieldSpec, name: str, rules: Sequence[Sequence[Condition]], everything: int) -> _Field:
    values: dict[object, list[int]] = {}
    by_clue: dict[str, dict[str, list[int]]] = {"prefix": {}, "suffix": {}, "part": {}, "pattern": {}}
    steps: dict[str, int] = {}
    bound = clued = 0
    for place, conditions in enumerate(rules):
        for condition in conditions:
            if condition.field != name or not _can_index(condition):
                continue
            bound |= 1 << place
            clue = condition.clue
            if clue is not None:
                clued |= 1 << place
                kind, text = next((kind, text) for kind, text in clue._asdict().items() if text)
                by_clue[kind].setdefault(text, []).append(place)
                if kind == "pattern":
                    steps[text] = clue.steps
                continue
            keys: Iterable[object] = condition.values or ()
            if condition.entries is not None:
                keys = (literal_of(entry) for entry in condition.entries)
            for key in dict.fromkeys(keys):
                values.setdefault(key, []).append(place)
    sets, uncompiled = _compile([(text, tuple(rows), steps[text]) for text, rows in by_clue["pattern"].items()])
    return _Field(
        spec,
        (everything & ~bound) | _mask(uncompiled),
        clued,
        {value: _rows(places) for value, places in values.items()},
        _table(by_clue["prefix"]),
        _table(by_clue["suffix"]),
        tuple((part, _rows(places)) for part, places in by_clue["part"].items()),
        sets,
    )


def _table(texts: dict[str, list[int]]) -> _Table:
    lengths: dict[int, dict[str, Rows]] = {}
    for text, places in texts.items():
        lengths.setdefault(len(text), {})[text] = _rows(places)
    return tuple(sorted(lengths.items()))


def _compile(patterns: Sequence[tuple[str, tuple[int, ...], int]]) -> tuple[tuple[_Set, ...], tuple[int, ...]]:
    """Sets of all the patterns, as few as the memory allows, and the rules of those that fit into none."""
    if not patterns:
        return (), ()
    options = re2.Options()
    options.max_mem = MAX_SET_MEMORY_BYTES
    options.log_errors = False
    together = re2.Set.SearchSet(options)
    try:
        together.Add("")
        for pattern, _, _ in patterns:
            together.Add(pattern)
        together.Compile()
    except re2.error:
        if len(patterns) == 1:
            return (), patterns[0][1]
        half = len(patterns) // 2
        first, second = _compile(patterns[:half]), _compile(patterns[half:])
        return first[0] + second[0], first[1] + second[1]
    every = 0
    for _, places, _ in patterns:
        every |= _mask(places)
    rows = ((), *(_rows(places) for _, places, _ in patterns))
    return (_Set(together.Match, rows, every, sum(steps for _, _, steps in patterns)),), ()


def _rows(places: Sequence[int]) -> Rows:
    return tuple(places) if len(places) <= FEW else _mask(tuple(places))


def _mask(rows: Rows) -> int:
    if isinstance(rows, int):
        return rows
    mask = 0
    for place in rows:
        mask |= 1 << place
    return mask


def _is_unicode(text: str) -> bool:
    """False for text with a lone surrogate, which tests replace or compare as it is."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
