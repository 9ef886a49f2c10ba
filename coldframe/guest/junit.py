"""Reports of tests as JUnit XML, as pytest, node, Deno, vitest, jest, Gradle and others write it.

No document type is read, so there are no entities to blow up; nothing is fetched; how deep elements lie in each other has an end.
"""

from xml.parsers import expat

from coldframe.guest.report_room import MOST_NAME, MOST_TEXT, Report, ReportRoom, place_of

MOST_DEPTH = 64
_FRAMEWORKS = {
    "pytest tests": "pytest",
    "pytest": "pytest",
    "deno test": "deno",
    "vitest tests": "vitest",
    "jest tests": "jest",
}


class _NoReport(Exception):
    """It is XML of another kind, or of a kind that is not read."""


class _Case:
    def __init__(self, name: str, suite: str | None, place: tuple[str, int] | None) -> None:
        self.name = name
        self.suite = suite
        self.place = place
        self.state = "passed"
        self.message = ""
        self.body: list[str] = []
        self.body_length = 0


class _Reader:
    def __init__(self, room: ReportRoom) -> None:
        self.report = Report("junit", room)
        self._path: list[str] = []
        self._suites: list[str] = []
        self._case: _Case | None = None
        self.has_tests = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name not in ("testsuites", "testsuite"):
            raise _NoReport
        self._path.append(name)
        if len(self._path) > MOST_DEPTH:
            raise _NoReport
        if name in ("testsuites", "testsuite"):
            named = attributes.get("name", "")
            self.report.framework = self.report.framework or _FRAMEWORKS.get(named)
            if name == "testsuite":
                self._suites.append(named[:MOST_NAME])
            self.has_tests = True
        elif name == "testcase":
            self._case = _Case(attributes.get("name", ""), self._suite(attributes), _place(attributes))
        elif self._case is not None and name in ("failure", "error"):
            self._case.state = "failed"
            self._case.message = self._case.message or attributes.get("message", "")
        elif self._case is not None and name == "skipped" and self._case.state == "passed":
            self._case.state = "skipped"

    def end(self, name: str) -> None:
        self._path.pop()
        if name == "testsuite":
            self._suites.pop()
        elif name == "testcase" and self._case is not None:
            self._count(self._case)
            self._case = None

    def text(self, data: str) -> None:
        case = self._case
        if case is not None and self._path[-1] in ("failure", "error") and case.body_length < 8 * MOST_TEXT:
            case.body.append(data)
            case.body_length += len(data)

    def comment(self, data: str) -> None:
        if self.report.framework is None and data.strip().startswith("duration_ms "):
            self.report.framework = "node"

    def doctype(self, *_: object) -> None:
        raise _NoReport

    def _suite(self, attributes: dict[str, str]) -> str | None:
        named = attributes.get("classname", "")
        if named and named != "test":  # what node calls all of them
            return named
        return " > ".join(one for one in self._suites if one) or None

    def _count(self, case: _Case) -> None:
        if case.state == "failed":
            self.report.failed += 1
            body = "".join(case.body)
            self.report.fail(case.name, case.suite, case.message.strip() or body, case.place or _last_place(body))
        elif case.state == "skipped":
            self.report.skipped += 1
        else:
            self.report.passed += 1


def read_junit(content: bytes, room: ReportRoom) -> Report | None:
    """None if it is something else. What breaks off in the middle is told up to there, as not complete."""
    reader = _Reader(room)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.CommentHandler = reader.comment
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(content, True)
    except _NoReport:
        return None
    except (expat.ExpatError, ValueError, LookupError):  # the latter: an encoding that there is not
        reader.report.complete = False
    return reader.report if reader.has_tests else None


def _place(attributes: dict[str, str]) -> tuple[str, int] | None:
    return place_of(f"{attributes.get('file', '')}:{attributes.get('line', '')}") if attributes.get("file") else None


def _last_place(body: str) -> tuple[str, int] | None:
    """As pytest ends what it tells of a failure: `file:line: Error`."""
    place, between, _ = body.strip().rpartition("\n")[2].partition(": ")
    return place_of(place) if between and " " not in place else None
