"""Which files of a working tree Git leaves out: the patterns of `.gitignore`, matched in time that they cannot make long."""

from typing import NamedTuple

MOST_PATTERNS = 20_000
MOST_STEPS = 200_000
"""Of one comparison of a pattern with a path: what takes more does not fit."""


class Pattern(NamedTuple):
    parts: tuple[bytes, ...]
    """Split at slashes; `**` for any number of folders."""
    negated: bool
    folders_only: bool


def read_patterns(text: bytes) -> list[Pattern]:
    """The last one that fits decides."""
    return [pattern for line in text.splitlines()[:MOST_PATTERNS] if (pattern := _pattern(line)) is not None]


def _pattern(line: bytes) -> Pattern | None:
    line = line.removesuffix(b"\r")
    while line.endswith(b" ") and not line.endswith(b"\\ "):
        line = line[:-1]
    negated = line.startswith(b"!")
    line = line[1:] if negated else line
    if not line or (line.startswith(b"#") and not negated):
        return None
    folders_only = line.endswith(b"/")
    line = line.rstrip(b"/")
    if not line:
        return None
    is_bound = b"/" in line
    parts = [part for part in line.split(b"/") if part]
    if not is_bound:
        parts = [b"**", parts[0].replace(b"**", b"*")]
    once = [part for n, part in enumerate(parts) if n == 0 or (part, parts[n - 1]) != (b"**", b"**")]
    return Pattern(tuple(once), negated, folders_only)


def fits(pattern: Pattern, path: bytes, *, is_folder: bool) -> bool:
    """*path* is relative to where the pattern stands."""
    if pattern.folders_only and not is_folder:
        return False
    names, parts = path.split(b"/"), pattern.parts
    reached = {0}
    for name in names:
        following = set()
        for at in _with_skipped(reached, parts):
            if at >= len(parts):
                continue
            if parts[at] == b"**":
                following.add(at)
                if at == len(parts) - 1:  # everything below
                    following.add(at + 1)
            elif fits_name(parts[at], name):
                following.add(at + 1)
        reached = following
        if not reached:
            return False
    return len(parts) in reached


def _with_skipped(reached: set[int], parts: tuple[bytes, ...]) -> set[int]:
    found = set(reached)
    for at in sorted(reached):
        while at < len(parts) - 1 and parts[at] == b"**":
            at += 1
            found.add(at)
    return found


def fits_name(pattern: bytes, name: bytes) -> bool:
    """`*`, `?`, `[…]` and a backslash, by going back to the last star alone."""
    at = place = steps = 0
    star, held = -1, 0
    while place < len(name):
        steps += 1
        if steps > MOST_STEPS:
            return False
        if at < len(pattern) and pattern[at : at + 1] == b"*":
            star, held, at = at, place, at + 1
            continue
        used = _one(pattern, at, name[place]) if at < len(pattern) else 0
        if used:
            at, place = at + used, place + 1
        elif star >= 0:
            held += 1
            at, place = star + 1, held
        else:
            return False
    while pattern[at : at + 1] == b"*":
        at += 1
    return at == len(pattern)


def _one(pattern: bytes, at: int, byte: int) -> int:
    """How much of the pattern stands for this byte; 0 if it does not fit."""
    sign = pattern[at : at + 1]
    if sign == b"?":
        return 1
    if sign == b"\\" and at + 1 < len(pattern):
        return 2 if pattern[at + 1] == byte else 0
    if sign == b"[":
        return _set(pattern, at, byte)
    return 1 if pattern[at] == byte else 0


def _set(pattern: bytes, at: int, byte: int) -> int:
    place = at + 1
    negated = pattern[place : place + 1] in (b"!", b"^")
    place += negated
    found, first = False, True
    while place < len(pattern) and (first or pattern[place : place + 1] != b"]"):
        first = False
        if pattern[place : place + 1] == b"\\" and place + 1 < len(pattern):
            place += 1
        low = high = pattern[place]
        if pattern[place + 1 : place + 2] == b"-" and pattern[place + 2 : place + 3] not in (b"", b"]"):
            high = pattern[place + 2]
            place += 2
        found = found or low <= byte <= high
        place += 1
    if place >= len(pattern):
        return 0
    return place + 1 - at if found is not negated else 0


class Rules:
    """All patterns that bear on a place, from the weakest to the strongest."""

    def __init__(self, rules: "tuple[tuple[bytes, tuple[Pattern, ...]], ...]" = ()) -> None:
        self._rules = rules

    def below(self, place: bytes, text: bytes | None) -> "Rules":
        """With those of a file that stands at *place*, which is relative to the top and ends in a slash, or is empty."""
        if not text:
            return self
        patterns = tuple(read_patterns(text))
        return Rules((*self._rules, (place, patterns))) if patterns else self

    def leave_out(self, path: bytes, *, is_folder: bool) -> bool:
        for place, patterns in reversed(self._rules):
            for pattern in reversed(patterns):
                if fits(pattern, path[len(place) :], is_folder=is_folder):
                    return not pattern.negated
        return False
