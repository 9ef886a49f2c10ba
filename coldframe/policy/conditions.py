"""Typed conditions of rules: parsed at load, evaluated without any further checks.

Regular expressions are RE2: linear in the text whatever the pattern, with a cap on the size of the compiled program.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, AnyStr, NamedTuple

import re2

from coldframe.contract.policy import Label
from coldframe.policy.fields import Facts, FieldSpec, Value
from coldframe.policy.matching import Entry, match, parse_entry

MAX_PATTERN_CHARACTERS = 1000
MAX_PATTERN_MEMORY_BYTES = 8 * 1024 * 1024
"""Cap that RE2 puts on a compiled pattern."""
MAX_ALTERNATIVES = 1000

OPERATORS = ("glob", "matches", "at_least", "above", "contains")

Test = Callable[[Any], bool | None]
"""Of the facts that the hook has: True, False, or None if the field is missing."""


class Clue(NamedTuple):
    """Something of a text that is looked up in less time than a pattern is tried. The first that is given counts."""

    prefix: str = ""
    suffix: str = ""
    part: str = ""
    pattern: str = ""
    """Found by RE2."""
    steps: int = 0
    """Length of the pattern's program."""


class Condition(NamedTuple):
    """One compiled condition. Two of equal `key` ask the same."""

    field: str
    key: tuple[object, ...]
    test: Test
    values: tuple[object, ...] | None = None
    """All values of the field that the test holds for, if it is a list of them."""
    clue: Clue | None = None
    """Is true of every text that the test holds for."""
    entries: tuple[Entry, ...] | None = None
    """One of these matches wherever the test holds."""


class ConditionInvalid(Exception):
    """Why a condition cannot be loaded; the loader adds the line."""


def compile_condition(field: str, spec: FieldSpec, raw: object) -> Condition:
    """Compile one condition of the file, or raise ConditionInvalid."""
    if isinstance(raw, dict):
        return _compile_operator(field, spec, raw)
    values = raw if isinstance(raw, list) else [raw]
    if not values:
        raise ConditionInvalid(f"the list of `{field}` is empty, so the rule could never match")
    if len(values) > MAX_ALTERNATIVES:
        raise ConditionInvalid(f"the list of `{field}` has more than {MAX_ALTERNATIVES} values")
    return _compile_equals(field, spec, values)


def _compile_equals(field: str, spec: FieldSpec, values: list[object]) -> Condition:
    key = (field, "is", frozenset((type(value).__name__, value) for value in map(_hashable, values)))
    if spec.kind == "program":
        entries = tuple(_entry(value) for value in values)
        return Condition(field, key, lambda facts: _any_program(entries, facts), entries=entries)
    if spec.kind == "output":
        raise ConditionInvalid("`output` takes `contains` or `matches`")
    if spec.kind == "label":
        labels = frozenset(_label(value) for value in values)
        return Condition(field, key, _on(spec, lambda value: value in labels), tuple(labels))
    if spec.kind in ("number", "flag"):
        wanted_type = bool if spec.kind == "flag" else int
        if any(type(value) is not wanted_type for value in values):
            raise ConditionInvalid(f"`{field}` takes {'true or false' if wanted_type is bool else 'whole numbers'}")
        wanted = frozenset(values)
        return Condition(field, key, _on(spec, lambda value: value in wanted), tuple(wanted))
    texts = tuple(_text(field, spec, value) for value in values)
    chosen = frozenset(texts)
    if spec.kind == "texts":
        shared = _on(spec, lambda value: isinstance(value, tuple) and not chosen.isdisjoint(value))
        return Condition(field, key, shared, texts)
    return Condition(field, key, _on(spec, lambda value: value in chosen), texts)


def _compile_operator(field: str, spec: FieldSpec, raw: dict[object, object]) -> Condition:
    if len(raw) != 1:
        raise ConditionInvalid(f"`{field}` takes exactly one operator of {', '.join(OPERATORS)}")
    operator, operand = next(iter(raw.items()))
    if operator not in OPERATORS:
        raise ConditionInvalid(f"unknown operator `{operator}`; known are {', '.join(OPERATORS)}")
    key = (field, operator, _hashable(operand))
    if operator in ("at_least", "above"):
        return Condition(field, key, _compile_order(field, spec, above=operator == "above", operand=operand))
    if not isinstance(operand, str) or operand == "":
        raise ConditionInvalid(f"`{operator}` of `{field}` takes a text that is not empty")
    if spec.kind in ("label", "number", "flag"):
        raise ConditionInvalid(f"`{field}` does not take `{operator}`")
    if operator == "contains":
        if spec.kind == "output":
            needle = operand.encode("utf-8", "surrogatepass")
            return Condition(field, key, lambda facts: needle in facts.output)
        return Condition(field, key, _each(spec, lambda text: operand in text), clue=Clue(part=operand))
    if spec.kind == "output":
        if operator == "glob":
            raise ConditionInvalid("`output` takes `contains` or `matches`")
        search = compile_pattern(field, operand.encode("utf-8", "surrogatepass")).search
        return Condition(field, key, lambda facts: search(facts.output) is not None)
    if operator == "glob":
        found, clue = compile_pattern(field, _regex_of_glob(operand)).fullmatch, _clue_of_glob(operand)
    else:
        compiled = compile_pattern(field, operand)
        found, clue = compiled.search, _clue_of_regex(operand, compiled.programsize)
    return Condition(field, key, _each(spec, lambda text: found(_valid(text)) is not None), clue=clue)


def compile_pattern(field: str, pattern: AnyStr) -> "re2._Regexp[AnyStr]":
    """Compile with RE2, bounded in length and memory. A pattern of bytes is matched against bytes."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ConditionInvalid(f"pattern of `{field}` is longer than {MAX_PATTERN_CHARACTERS} characters")
    options = re2.Options()
    options.max_mem = MAX_PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ConditionInvalid(f"pattern of `{field}` is no regular expression of RE2: {error}") from None


def _regex_of_glob(glob: str) -> str:
    """`*` and `?` as in a shell, but across slashes too; `[…]` is a set. Own translation: that of fnmatch is no RE2."""
    return "(?s)" + "".join(re2.escape(sign) if literal else sign for literal, sign in _parts_of_glob(glob))


def _parts_of_glob(glob: str) -> Iterator[tuple[bool, str]]:
    """The literal characters of a glob, and what stands for several as a regular expression."""
    at = 0
    while at < len(glob):
        sign = glob[at]
        at += 1
        if sign == "*":
            yield False, ".*"
        elif sign == "?":
            yield False, "."
        elif sign == "[" and (close := glob.find("]", at + 1 + (glob[at : at + 1] == "!"))) > 0:
            inside = glob[at:close].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            yield False, f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
            at = close + 1
        else:
            yield True, sign


def _clue_of_glob(glob: str) -> Clue | None:
    runs = [""]
    for literal, sign in _parts_of_glob(glob):
        if literal:
            runs[-1] += sign
        else:
            runs.append("")
    longest = max(runs, key=len)
    return Clue(prefix=runs[0], suffix=runs[-1], part=longest) if longest else None


_BEGINNING = re.compile(r"\^([A-Za-z0-9_/ :-]+)(.?)")


def _clue_of_regex(pattern: str, steps: int) -> Clue:
    """The literal beginning, where the pattern plainly has one: no alternative, no flag; else the pattern itself."""
    found = _BEGINNING.match(pattern)
    if found is not None and "|" not in pattern and "(?" not in pattern:
        prefix = found[1][:-1] if found[2] in ("*", "?", "{") and found[2] else found[1]
        if prefix:
            return Clue(prefix=prefix)
    return Clue(pattern=pattern, steps=steps)


def _valid(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _compile_order(field: str, spec: FieldSpec, *, above: bool, operand: object) -> Test:
    if spec.kind == "label":
        least = _label(operand).rank + above
        if least > Label.RESTRICTED.rank:
            raise ConditionInvalid(f"no label is above RESTRICTED, so the rule on `{field}` could never match")
        return _on(spec, lambda value: isinstance(value, Label) and value.rank >= least)
    if spec.kind == "number":
        if type(operand) is not int:
            raise ConditionInvalid(f"`{field}` takes whole numbers")
        bound = operand + above
        return _on(spec, lambda value: isinstance(value, int) and value >= bound)
    raise ConditionInvalid(f"`{field}` has no order")


def _on(spec: FieldSpec, holds: Callable[[Value], bool]) -> Test:
    def test(facts: Any) -> bool | None:
        value = spec.value(facts)
        return None if value is None else holds(value)

    return test


def _each(spec: FieldSpec, holds: Callable[[str], bool]) -> Test:
    """A test of text, on every text if the field has several."""

    def test(facts: Any) -> bool | None:
        if spec.kind == "program":
            return any(holds(call.name) for call in facts.reading.programs) if facts.reading else False
        value = spec.value(facts)
        if value is None:
            return None
        return any(holds(text) for text in value) if isinstance(value, tuple) else holds(str(value))

    return test


def _any_program(entries: tuple[Entry, ...], facts: Facts) -> bool | None:
    """No program, no match. A call that matches only perhaps counts as missing."""
    if facts.reading is None:
        return False if facts.call.command is None and facts.call.argv is None else None
    answer: bool | None = False
    for call in facts.reading.programs:
        for entry in entries:
            verdict = match(entry, call)
            if verdict:
                return True
            answer = None if verdict is None else answer
    return answer


def _entry(value: object) -> Entry:
    entry = parse_entry(value) if isinstance(value, str) else None
    if entry is None:
        raise ConditionInvalid(f"`{value}` is not one program with arguments")
    return entry


def _label(value: object) -> Label:
    if isinstance(value, str) and value in Label.__members__:
        return Label(value)
    raise ConditionInvalid(f"`{value}` is no label; labels are {', '.join(Label)}")


def _text(field: str, spec: FieldSpec, value: object) -> str:
    if not isinstance(value, str):
        raise ConditionInvalid(f"`{field}` takes text; put `{value}` in quotes if it is meant so")
    if spec.choices and value not in spec.choices:
        raise ConditionInvalid(f"`{value}` is no {field}; known are {', '.join(spec.choices)}")
    return value


def _hashable(value: object) -> object:
    return value if isinstance(value, str | int | bool | float | None) else repr(value)
