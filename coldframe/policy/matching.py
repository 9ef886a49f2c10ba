"""Matches programs of a reading against entries such as `git push` or `npm publish *`.

An entry is itself shell text, read by the same reader, so quotes and paths in it mean what they mean to a shell.
Options of an entry are found in any order, split or merged (`-rf`, `-r -f`); its other words have to occur in this
order among the arguments. That refuses a little more than an exact comparison would, and cannot be slipped by
putting an option in between.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from coldframe.contract.policy import ProgramCall
from coldframe.policy.shell import read_shell

_TRUSTED = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/usr/local/sbin/", "/opt/")


class Entry(NamedTuple):
    """One parsed entry of a list."""

    text: str
    word: str
    options: tuple[str, ...]
    operands: tuple[str, ...]


def parse_entry(text: str) -> Entry | None:
    """Parse an entry; None if it is not exactly one command with a known program."""
    reading = read_shell("".join("\\" + sign if sign in "*?[]" else sign for sign in text))
    outer = [call for call in reading.programs if not call.via]
    if reading.certainty == "unparsable" or len(outer) != 1 or reading.written_paths or outer[0].unresolved:
        return None
    call = outer[0]
    options = tuple(word for word in call.arguments if word.startswith("-") and len(word) > 1)
    operands = tuple(word for word in call.arguments if not (word.startswith("-") and len(word) > 1))
    return Entry(text, call.word, options, operands)


def literal_of(entry: Entry) -> str | None:
    """The only program word (if it holds a slash) or name that the entry can match; None for a pattern."""
    return None if any(sign in entry.word for sign in "*?[") else entry.word


def whole_program(entry: Entry) -> str | None:
    """The name, path or pattern of a program that the entry means with any arguments; None if only with some."""
    return entry.word if not entry.options and entry.operands in ((), ("*",)) else None


class EntryList:
    """Entries found by the program they are about; asking costs the same for one and for thousands."""

    __slots__ = ("_by_word", "_patterns", "entries")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._by_word: dict[str, list[tuple[int, Entry]]] = {}
        self._patterns: list[tuple[int, Entry]] = []
        for place, entry in enumerate(self.entries):
            word = literal_of(entry)
            (self._patterns if word is None else self._by_word.setdefault(word, [])).append((place, entry))

    def about(self, call: ProgramCall) -> list[Entry]:
        """Entries that may match, in their order: all but those that name another program."""
        words = dict.fromkeys((call.name, call.word))
        found = [pair for word in words for pair in self._by_word.get(word, ())]
        if not found and not self._patterns:
            return []
        return [entry for _, entry in sorted((*found, *self._patterns), key=lambda pair: pair[0])]


def match(entry: Entry, call: ProgramCall) -> bool | None:
    """Whether the call is what the entry means; None if that is only known at run time."""
    if "/" in entry.word:
        if not fnmatchcase(call.word, entry.word):
            return False
    elif not fnmatchcase(call.name, entry.word):
        return False
    if not entry.options and not entry.operands:
        return True
    if all(_has_option(option, call.arguments) for option in entry.options) and _in_order(
        entry.operands, call.arguments
    ):
        return True
    return None if call.unresolved else False  # an unknown word may be any words


def allows(entry: Entry, call: ProgramCall) -> bool:
    """Whether an entry of a list of *allowed* programs covers the call: a certain match, and no look-alike by path."""
    if "/" in call.word and "/" not in entry.word and not call.word.startswith(_TRUSTED):
        return False
    return match(entry, call) is True


def _has_option(option: str, arguments: Sequence[str]) -> bool:
    if option.startswith("--"):
        return any(fnmatchcase(word.partition("=")[0], option) or fnmatchcase(word, option) for word in arguments)
    if any(fnmatchcase(word, option) for word in arguments):
        return True
    clusters = [word[1:] for word in arguments if word.startswith("-") and not word.startswith("--")]
    return set(option[1:]) <= set("".join(clusters))


def _in_order(patterns: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether the patterns occur in this order; a last `*` also stands for nothing."""
    if patterns and patterns[-1] == "*":
        patterns = patterns[:-1]
    rest = iter(arguments)
    return all(any(fnmatchcase(word, pattern) for word in rest) for pattern in patterns)
