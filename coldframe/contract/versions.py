"""Versions of packages in an order, whatever manager they are of: good enough to name what lies close, and to decide nothing."""

import re
from collections.abc import Sequence

NEAREST = 5


def nearest(version: str, there_are: Sequence[str]) -> list[str]:
    """Those that stand next to *version* when all are put in order."""
    ordered = sorted(set(there_are), key=_ordinal)
    at = sum(_ordinal(one) < _ordinal(version) for one in ordered)
    low = max(0, min(at - NEAREST // 2 - 1, len(ordered) - NEAREST))
    return ordered[low : low + NEAREST]


def closest(version: str, there_are: Sequence[str]) -> str | None:
    """The one that *version* would be replaced by with the least change: the newest before it, else the oldest after it."""
    ordered = sorted(set(there_are), key=_ordinal)
    before = [one for one in ordered if _ordinal(one) <= _ordinal(version)]
    return before[-1] if before else ordered[0] if ordered else None


def _ordinal(version: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    ordinal = [(1, int(part[:18]), "") if part.isdigit() else (0, 0, part) for part in parts]
    return [*ordinal, (0, 1, "")]  # a candidate comes before what it is one of
