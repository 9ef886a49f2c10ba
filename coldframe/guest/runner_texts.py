"""Reports of tests as pytest, node and unittest print them for people, from the summaries that they end with."""

import re
import textwrap
from collections.abc import Callable

from coldframe.guest.report_room import MOST_NAME, Report, ReportRoom, place_of

MOST_DEPTH = 64
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_PYTEST_END = re.compile(r"=* ?((?:\d{1,9} [a-z]{2,12}(?:, )?){1,9}) in \d[\d.]{0,12}s(?: \([\d:, a-z]{1,30}\))? ?=*")
_PYTEST_COUNT = re.compile(r"(\d{1,9}) ([a-z]+)")
_PYTEST_PLACE = re.compile(r"([^\s:][^:]*:\d{1,8}): ")
_NODE_COUNT = re.compile(r"\S{1,3} (tests|pass|fail|cancelled|skipped|todo|duration_ms) (\d{1,12})(?:\.\d+)?")
_NODE_MARK = re.compile(r"( *)(✔|✖|▶|﹣|✓|✗) (.*)")
_NODE_TIME = re.compile(r" \(\d[\d.]*ms\)(?: # [A-Z]+.*)?$")
_UNITTEST_RAN = re.compile(r"Ran (\d{1,9}) tests? in \d[\d.]*s")
_UNITTEST_COUNT = re.compile(r"([a-z][a-z ]+)=(\d{1,9})")
_UNITTEST_HEAD = re.compile(r"(FAIL|ERROR): (\S+) \(([^()]*)\)(.*)")


def read_text(text: str, room: ReportRoom) -> Report | None:
    """None if none of them has written it."""
    lines = [line.rstrip() for line in _COLOUR.sub("", text).splitlines()]
    for read in (_read_pytest, _read_node, _read_unittest):
        found = read(lines, room)
        if found is not None:
            return found
    return None


# -- pytest ------------------------------------------------------------------------------------


def _read_pytest(lines: list[str], room: ReportRoom) -> Report | None:
    last = _last(lines, _PYTEST_END.fullmatch)
    if last is None or (end := _PYTEST_END.fullmatch(lines[last])) is None:
        return None
    counts: dict[str, int] = {}
    for number, word in _PYTEST_COUNT.findall(end[1]):
        counts[word.removesuffix("s") if word == "errors" else word] = int(number)
    if not counts.keys() & {"passed", "failed", "error", "skipped", "xfailed", "xpassed", "deselected"}:
        return None
    report = Report("text", room)
    report.framework = "pytest"
    report.passed = counts.get("passed", 0) + counts.get("xpassed", 0)
    report.failed = counts.get("failed", 0) + counts.get("error", 0)
    report.skipped = counts.get("skipped", 0) + counts.get("xfailed", 0)
    sections = _pytest_sections(lines[:last])
    for word, bodies in (("FAILED", sections["FAILURES"]), ("ERROR", sections["ERRORS"])):
        told = [line[len(word) + 1 :] for line in lines[:last] if line.startswith(f"{word} ")]
        for number in range(max(len(told), len(bodies))):
            head, body = bodies[number] if len(bodies) >= len(told) else ("", [])
            node = told[number] if len(told) == len(bodies) or not bodies else ""
            _tell_pytest(report, head, body, node)
    return report


def _pytest_sections(lines: list[str]) -> dict[str, list[tuple[str, list[str]]]]:
    """Of what failed, head and lines, by whether it was the test itself or what it stands on."""
    found: dict[str, list[tuple[str, list[str]]]] = {"FAILURES": [], "ERRORS": []}
    section: list[tuple[str, list[str]]] | None = None
    for line in lines:
        if len(line) > 20 and line.startswith("=") and line.endswith("="):
            section = found.get(line.strip("= "))
        elif section is not None and line.startswith("_") and line.endswith("_") and " " in line.strip("_"):
            if not set(line) <= {"_", " "}:
                section.append((line.strip("_").strip(), []))
                continue
            if section:
                section[-1][1].append(line)
        elif section:
            section[-1][1].append(line)
    return found


def _tell_pytest(report: Report, head: str, body: list[str], node: str) -> None:
    name, between, message = _split_node(node)
    file, _, within = name.partition("::")
    function, classes = within, ""
    if within:
        bare, bracket, values = within.partition("[")
        classes, _, function = bare.rpartition("::")
        function += bracket + values
    elif head:
        shown = head.partition(" of ")[2] if head.startswith("ERROR at ") else head.removeprefix("ERROR collecting ")
        bare, bracket, values = shown.partition("[")
        if not head.startswith("ERROR collecting "):
            classes, _, bare = bare.rpartition(".")
        function = bare + bracket + values
        file = file if node else ""
    suite = "::".join(one for one in (file if function else "", classes) if one)
    errors = "\n".join(line[1:] for line in body if line.startswith("E   "))
    text = textwrap.dedent(errors) or (message if between else "") or "\n".join(body)
    place = next((place_of(found[1]) for line in reversed(body) if (found := _PYTEST_PLACE.match(line))), None)
    report.fail(function or name, suite or None, text, place)


def _split_node(node: str) -> tuple[str, str, str]:
    """The id of a test, and what is said of it behind ` - `, which may also stand among the values of the test."""
    bracket, dash = node.find("["), node.find(" - ")
    if 0 <= bracket < dash:
        closed = node.find("] - ", bracket)
        if closed < 0:
            return (node, "", "") if node.endswith("]") else node.partition(" - ")
        return node[: closed + 1], " - ", node[closed + 4 :]
    return node.partition(" - ")


# -- node --------------------------------------------------------------------------------------


def _read_node(lines: list[str], room: ReportRoom) -> Report | None:
    counts = {found[1]: int(found[2]) for line in lines if (found := _NODE_COUNT.fullmatch(line))}
    if not counts.keys() >= {"tests", "pass", "fail", "duration_ms"}:
        return None
    report = Report("text", room)
    report.framework = "node"
    report.passed = counts["pass"]
    report.failed = counts["fail"] + counts.get("cancelled", 0)
    report.skipped = counts.get("skipped", 0) + counts.get("todo", 0)
    cut = _last(lines, lambda line: line.strip("✖ ").rstrip() == "failing tests:" and line.startswith("✖"))
    suites = _node_suites(lines if cut is None else lines[:cut])
    at = len(lines) if cut is None else cut + 1
    place = None
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith("test at "):
            place = place_of(line[len("test at ") :])
        elif (mark := _NODE_MARK.fullmatch(line)) and mark[2] in "✖✗" and not mark[1]:
            begin = at
            while at < len(lines) and (not lines[at] or lines[at].startswith("  ")):
                at += 1
            name = _NODE_TIME.sub("", mark[3])
            report.fail(name, suites.get(name), _node_text([one[2:] for one in lines[begin:at]]), place)
            place = None
    return report


def _node_suites(lines: list[str]) -> dict[str, str]:
    """By the name of a failing test, what it lies in, as it is set in."""
    found, above = dict[str, str](), dict[int, str]()
    for line in lines:
        if mark := _NODE_MARK.fullmatch(line):
            depth = min(len(mark[1]) // 2, MOST_DEPTH)
            name = _NODE_TIME.sub("", mark[3])
            if mark[2] == "▶":
                above[depth] = name[:MOST_NAME]
            elif mark[2] in "✖✗" and depth:
                found[name] = " > ".join(above[one] for one in range(depth) if one in above)
    return found


def _node_text(lines: list[str]) -> str:
    """Without where it was called from."""
    told = []
    for line in lines:
        if line.lstrip().startswith("at "):
            break
        told.append(line)
    return "\n".join(told)


# -- unittest ----------------------------------------------------------------------------------


def _read_unittest(lines: list[str], room: ReportRoom) -> Report | None:
    ran = _last(lines, _UNITTEST_RAN.fullmatch)
    if ran is None or (found := _UNITTEST_RAN.fullmatch(lines[ran])) is None:
        return None
    verdict = next((line for line in lines[ran + 1 :] if line.startswith(("OK", "FAILED", "NO TESTS RAN"))), None)
    if verdict is None:
        return None
    counts = {name.strip(): int(number) for name, number in _UNITTEST_COUNT.findall(verdict)}
    report = Report("text", room)
    report.framework = "unittest"
    report.failed = sum(counts.get(name, 0) for name in ("failures", "errors", "unexpected successes"))
    report.skipped = counts.get("skipped", 0) + counts.get("expected failures", 0)
    report.passed = max(int(found[1]) - report.failed - report.skipped, 0)
    at = 0
    while at < ran:
        head = _UNITTEST_HEAD.fullmatch(lines[at])
        at += 1
        if head is None or at < 2 or not lines[at - 2].startswith("====="):
            continue
        begin = at
        while at < ran and not lines[at].startswith("====="):
            at += 1
        name, place = head[2], head[3]
        suite = place.removesuffix(f".{name}")
        report.fail(name + head[4], suite, _unittest_text(lines[begin:at]), None)
    return report


def _unittest_text(lines: list[str]) -> str:
    """What stands behind the last call of the trace."""
    end = len(lines)
    while end and (not lines[end - 1] or set(lines[end - 1]) == {"-"}):
        end -= 1
    lines = lines[:end]
    last = _last(lines, lambda line: line.startswith("  "))
    return "\n".join(lines if last is None else lines[last + 1 :])


def _last(lines: list[str], is_it: Callable[[str], object]) -> int | None:
    return next((number for number in range(len(lines) - 1, -1, -1) if is_it(lines[number])), None)
