"""Reports of tests in the Test Anything Protocol, versions 12 to 14, with what node says in it beside."""

import re

from coldframe.guest.report_room import MOST_NAME, Report, ReportRoom, place_of

_RESULT = re.compile(r"( *)(not ok|ok)\b(?: +\d+)?(?: +- +| +)?(.*)")
_PLAN = re.compile(r"1\.\.(\d{1,9})(?: *#.*)?")
_COUNT = re.compile(r"# (tests|pass|fail|cancelled|skipped|todo) (\d{1,9})")
_DIRECTIVE = re.compile(r"(?<!\\)# *(skip|todo)\b.*", re.IGNORECASE)
MOST_DEPTH = 64
MOST_BLOCK_LINES = 500
"""Of what is said about one test, as far as it is read."""
STEP = 4
"""Spaces by which what lies in a test is set in."""


class _Result:
    def __init__(self, depth: int, name: str, suite: str | None, *, is_ok: bool, directive: str) -> None:
        self.depth = depth
        self.name = name
        self.suite = suite
        self.is_failed = not is_ok and not directive
        self.is_left_out = bool(directive)
        self.has_below = False
        self.text = ""
        self.place: tuple[str, int] | None = None
        self.is_suite = False


class _Reader:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._results: list[_Result] = []
        self._names: dict[int, str] = {}
        """By depth, the test that is being told of."""
        self._planned: int | None = None
        self._counts: dict[str, int] = {}

    def read(self, lines: list[str]) -> bool:
        """Whether it is one."""
        at, is_told = 0, False
        while at < len(lines):
            line = lines[at]
            at += 1
            if line.startswith("TAP version 1"):
                is_told = True
            elif plan := _PLAN.fullmatch(line):
                self._planned = int(plan[1])
            elif count := _COUNT.fullmatch(line):
                self._counts[count[1]] = int(count[2])
            elif line.startswith("Bail out!"):
                self._report.complete = False
            elif line.lstrip(" ").startswith("# Subtest: "):
                depth = (len(line) - len(line.lstrip(" "))) // STEP
                if depth <= MOST_DEPTH:
                    self._names[depth] = _plain(line.lstrip(" ")[len("# Subtest: ") :])[:MOST_NAME]
            elif result := _RESULT.fullmatch(line):
                at = self._take(result, lines, at)
        if not self._results or not (is_told or self._planned is not None):
            return False
        self._finish()
        return True

    def _take(self, found: re.Match[str], lines: list[str], at: int) -> int:
        depth = len(found[1]) // STEP
        directive = _DIRECTIVE.search(found[3])
        name = _plain(found[3] if directive is None else found[3][: directive.start()])
        suite = " > ".join(self._names[one] for one in range(min(depth, MOST_DEPTH)) if one in self._names) or None
        result = _Result(
            depth, name, suite, is_ok=found[2] == "ok", directive="" if directive is None else directive[1]
        )
        result.has_below = bool(self._results) and self._results[-1].depth > depth
        self._results.append(result)
        edge = found[1] + "  "
        if at < len(lines) and lines[at] == f"{edge}---":
            at = self._diagnosis(result, edge, lines, at + 1)
        return at

    def _diagnosis(self, result: _Result, edge: str, lines: list[str], at: int) -> int:
        """The block behind a result. Of YAML as much is read as comes in these: a value in its line, or a block of text."""
        begin = at
        while at < len(lines) and lines[at] != f"{edge}..." and (lines[at].startswith(edge) or not lines[at].strip()):
            at += 1
        block = [line[len(edge) :] for line in lines[begin : min(at, begin + MOST_BLOCK_LINES)]]
        values: dict[str, str] = {}
        for number, line in enumerate(block):
            key, between, value = line.partition(":")
            if between and key.isidentifier():
                value = value.strip()
                values[key] = (
                    _indented(block[number + 1 :]) if value in ("|-", "|", ">-", ">", "|+") else _quoted(value)
                )
        result.text = values.get("error") or values.get("message") or "\n".join(block)
        result.place = place_of(values["location"]) if "location" in values else None
        result.is_suite = values.get("type") == "suite"
        if result.place is None and values.get("line", "").isdecimal() and "file" in values:
            result.place = values["file"], int(values["line"][:8])
        return at + 1

    def _finish(self) -> None:
        report, counts = self._report, self._counts
        tests = [one for one in self._results if not one.has_below]
        if counts.keys() >= {"tests", "pass", "fail"}:
            report.framework = "node"
            report.passed = counts["pass"]
            report.failed = counts["fail"] + counts.get("cancelled", 0)
            report.skipped = counts.get("skipped", 0) + counts.get("todo", 0)
        else:
            report.failed = sum(one.is_failed for one in tests)
            report.skipped = sum(one.is_left_out for one in tests)
            report.passed = len(tests) - report.failed - report.skipped
        for one in tests:
            if one.is_failed:
                report.fail(one.name, one.suite, one.text, one.place)
        outermost = sum(one.depth == 0 for one in self._results)
        if self._planned is None or self._planned != outermost:
            report.complete = False  # it breaks off


def read_tap(text: str, room: ReportRoom) -> Report | None:
    """None if it is something else."""
    report = Report("tap", room)
    return report if _Reader(report).read(text.splitlines()) else None


def _plain(name: str) -> str:
    return name.replace("\\#", "#").replace("\\\\", "\\").strip()


def _quoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace("''", "'") if value[0] == "'" else value[1:-1].replace('\\"', '"')
    return value


def _indented(lines: list[str]) -> str:
    taken = []
    for line in lines:
        if line.strip() and not line.startswith("  "):
            break
        taken.append(line[2:])
    return "\n".join(taken)
