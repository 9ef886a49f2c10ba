"""In which lines two contents differ, found in time and memory that no content can make long.

Lines that both sides have once are what the rest is held against; between those the shortest way from one to the other is
looked for, as far as there is work left. What is too different is told as taken away and put there anew, which is true as well.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

CONTEXT_LINES = 3
MOST_LINES = 200_000
MOST_STEPS = 4_000_000
"""Of one pair of contents."""
MOST_APART = 400
"""Lines of one stretch that the shortest way is looked for through."""
BINARY_LOOK_BYTES = 8000


class Run(NamedTuple):
    """Where lines *a* to *b* of the one are replaced by *c* to *d* of the other; either may be none."""

    a: int
    b: int
    c: int
    d: int


def is_binary(content: bytes) -> bool:
    """As Git tells it, without asking attributes."""
    return b"\0" in content[:BINARY_LOOK_BYTES]


def lines_of(content: bytes) -> list[bytes]:
    """With their ends; the last one may have none."""
    lines = content.split(b"\n")
    last = lines.pop()
    found = [line + b"\n" for line in lines]
    return [*found, last] if last else found


def runs_of(before: list[bytes], after: list[bytes], check_time: Callable[[], None]) -> list[Run]:
    """All that differs, in order."""
    most = min(len(before), len(after))
    start = next((n for n in range(most) if before[n] != after[n]), most)
    end = next((n for n in range(most - start) if before[-1 - n] != after[-1 - n]), most - start)
    work = _Work(before, after, check_time)
    at_a, at_c = start, start
    for a, c in [*_anchors(before, after, start, end), (len(before) - end, len(after) - end)]:
        work.compare(at_a, a, at_c, c)
        at_a, at_c = a, c  # the anchor itself is the begin of what comes next, and equal
    return _joined(work.found)


def _anchors(before: list[bytes], after: list[bytes], start: int, end: int) -> list[tuple[int, int]]:
    """Pairs of lines that each side has once, as many as are in the same order on both."""
    ones = [_once(lines, start, end) for lines in (before, after)]
    pairs = [(at, ones[1][line]) for line, at in ones[0].items() if line in ones[1]]
    tails: list[int] = []
    last: list[int] = []
    links: list[int] = []
    for number, (_, place) in enumerate(pairs):
        at = bisect_left(tails, place)
        links.append(last[at - 1] if at else -1)
        tails[at : at + 1] = [place]
        last[at : at + 1] = [number]
    chosen, at = [], last[-1] if last else -1
    while at >= 0:
        chosen.append(pairs[at])
        at = links[at]
    return chosen[::-1]


def _once(lines: list[bytes], start: int, end: int) -> dict[bytes, int]:
    seen: dict[bytes, int] = {}
    for at in range(start, len(lines) - end):
        seen[lines[at]] = -1 if lines[at] in seen else at
    return {line: at for line, at in seen.items() if at >= 0}


class _Work:
    def __init__(self, before: list[bytes], after: list[bytes], check_time: Callable[[], None]) -> None:
        self._before = before
        self._after = after
        self._check_time = check_time
        self._left = MOST_STEPS
        self.found: list[Run] = []

    def compare(self, a: int, b: int, c: int, d: int) -> None:
        """Add what differs between lines *a* to *b* and *c* to *d*."""
        self._check_time()
        before, after = self._before, self._after
        while a < b and c < d and before[a] == after[c]:
            a, c = a + 1, c + 1
        while a < b and c < d and before[b - 1] == after[d - 1]:
            b, d = b - 1, d - 1
        if a == b or c == d:
            if a < b or c < d:
                self.found.append(Run(a, b, c, d))
            return
        self.found += self._shortest(a, b, c, d) or [Run(a, b, c, d)]

    def _shortest(self, a: int, b: int, c: int, d: int) -> list[Run]:
        """The way with the fewest lines that go or come; none if it is not found within what may be spent."""
        before, after, width, height = self._before, self._after, b - a, d - c
        reach = {1: 0}
        past: list[dict[int, int]] = []
        for apart in range(MOST_APART + 1):
            past.append(dict(reach))
            for way in range(-apart, apart + 1, 2):
                down = way == -apart or (way != apart and reach[way - 1] < reach[way + 1])
                x = reach[way + 1] if down else reach[way - 1] + 1
                begun, y = x, x - way
                while x < width and y < height and before[a + x] == after[c + y]:
                    x, y = x + 1, y + 1
                reach[way] = x
                self._left -= 1 + x - begun
                if x >= width and y >= height:
                    return _way_back(past, width, height, a, c)
            self._left -= apart
            if self._left < 0:
                return []
            self._check_time()
        return []


def _way_back(past: list[dict[int, int]], x: int, y: int, a: int, c: int) -> list[Run]:
    found = []
    for apart in range(len(past) - 1, 0, -1):
        reach, way = past[apart], x - y
        down = way == -apart or (way != apart and reach[way - 1] < reach[way + 1])
        before = way + 1 if down else way - 1
        x, y = reach[before], reach[before] - before
        found.append(Run(a + x, a + x, c + y, c + y + 1) if down else Run(a + x, a + x + 1, c + y, c + y))
    return found[::-1]


def _joined(runs: list[Run]) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        if found and (found[-1].b, found[-1].d) == (run.a, run.c):
            found[-1] = Run(found[-1].a, run.b, found[-1].c, run.d)
        else:
            found.append(run)
    return found


def hunks_of(
    before: list[bytes], after: list[bytes], runs: list[Run], text_of: Callable[[bytes], str], most_bytes: int
) -> tuple[list[dict[str, Any]], bool]:
    """Those of a unified diff, and whether these are all: no more than *most_bytes* of lines are told."""
    groups: list[list[Run]] = []
    for run in runs:
        if groups and run.a - groups[-1][-1].b <= 2 * CONTEXT_LINES:
            groups[-1].append(run)
        else:
            groups.append([run])
    found: list[dict[str, Any]] = []
    size = 0
    for group in groups:
        a, c = max(0, group[0].a - CONTEXT_LINES), max(0, group[0].c - CONTEXT_LINES)
        b = min(len(before), group[-1].b + CONTEXT_LINES)
        d = c + (b - a) + sum((run.d - run.c) - (run.b - run.a) for run in group)
        lines: list[str] = []
        at = a
        for run in group:
            lines += [" " + _line(one, text_of) for one in before[at : run.a]]
            lines += ["-" + _line(one, text_of) for one in before[run.a : run.b]]
            lines += ["+" + _line(one, text_of) for one in after[run.c : run.d]]
            at = run.b
        lines += [" " + _line(one, text_of) for one in before[at:b]]
        size += sum(map(len, lines))
        if size > most_bytes:
            return found, False
        hunk = {
            "old_start": a + 1 if b > a else a,
            "old_lines": b - a,
            "new_start": c + 1 if d > c else c,
            "new_lines": d - c,
            "lines": lines,
        }
        found.append(hunk)
    return found, True


def _line(line: bytes, text_of: Callable[[bytes], str]) -> str:
    if line.endswith(b"\n"):
        return text_of(line[:-1])
    return text_of(line) + "\n\\ No newline at end of file"
