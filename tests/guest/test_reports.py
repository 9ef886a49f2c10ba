"""Promise: the report of a test run among declared outputs is told with its numbers and failing tests, whoever wrote it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coldframe.contract.files import FindOutputs
from coldframe.contract.outputs import FoundOutput, OutputsAnswer, TestReport
from coldframe.guest import report_room
from tests.guest.workspace import Workspace

PYTEST = """
import pytest
def test_one(): pass
def test_two(): pass
class TestMore:
    def test_three(self): pass
    @pytest.mark.parametrize("how", ["a - b"])
    def test_sums(self, how):
        assert 1 + 1 == 3, "sums are wrong"
@pytest.mark.skip
def test_five(): pass
"""
UNITTEST = """
import unittest
class More(unittest.TestCase):
    def test_one(self): pass
    def test_two(self): pass
    def test_three(self): pass
    def test_sums(self): self.assertEqual(1 + 1, 3, "sums are wrong")
    @unittest.skip("later")
    def test_five(self): pass
"""
NODE = """
import test, { describe, it } from 'node:test'
import assert from 'node:assert'
test('one', () => {})
test('two # with a sign', () => {})
describe('more', () => {
  it('three', () => {})
  it('sums # wrong', () => { assert.strictEqual(1 + 1, 3, 'sums are wrong') })
})
test.skip('five', () => {})
"""


def report_of(workspace: Workspace, content: bytes | str, name: str = "report.txt") -> TestReport | None:
    (workspace.path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return found(workspace, name).report


def found(workspace: Workspace, name: str) -> FoundOutput:
    answer = workspace.ask(FindOutputs(patterns=(name,)))
    assert isinstance(answer, OutputsAnswer)
    (one,) = answer.found
    assert (one.kind == "test_report") is (one.report is not None)
    return one


def five_with_one_failed(report: TestReport | None, framework: str, name: str, suite: str) -> None:
    assert report is not None and report.complete
    assert (report.framework, report.total, report.passed, report.failed, report.skipped) == (framework, 5, 3, 1, 1)
    (one,) = report.failures
    assert (one.name, one.suite, one.text_complete) == (name, suite, True)
    assert one.text is not None and "sums are wrong" in one.text


@pytest.mark.req("T3.19")
@pytest.mark.parametrize("more", [[], ["-q"], ["-v", "--color=yes"], ["--tb=no"]])
def test_pytest_is_read_in_xml_and_as_it_prints_for_people(workspace: Workspace, more: list[str]) -> None:
    (workspace.path / "test_five.py").write_text(PYTEST)
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "--junitxml=report.xml", *more]
    command = [sys.executable, "-m", "pytest", *options, "test_five.py"]
    done = subprocess.run(command, cwd=workspace.path, stdout=subprocess.PIPE, check=False)
    printed = report_of(workspace, done.stdout)
    five_with_one_failed(printed, "pytest", "test_sums[a - b]", "test_five.py::TestMore")
    told = found(workspace, "report.xml").report
    five_with_one_failed(told, "pytest", "test_sums[a - b]", "test_five.TestMore")
    assert told is not None and (told.failures[0].file, told.failures[0].line) == (
        (None, None) if "--tb=no" in more else ("test_five.py", 9)
    )


@pytest.mark.req("T3.19")
def test_unittest_is_read_as_it_prints_for_people(workspace: Workspace) -> None:
    (workspace.path / "five.py").write_text(UNITTEST)
    command = [sys.executable, "-m", "unittest", "five"]
    done = subprocess.run(command, cwd=workspace.path, stderr=subprocess.PIPE, check=False)
    five_with_one_failed(report_of(workspace, done.stderr), "unittest", "test_sums", "five.More")


@pytest.mark.req("T3.19")
@pytest.mark.parametrize("reporter", ["tap", "spec", "junit"])
def test_node_is_read_in_each_form_that_it_writes(workspace: Workspace, reporter: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed on this machine")
    (workspace.path / "five.test.mjs").write_text(NODE)
    command = [node, "--test", f"--test-reporter={reporter}", "five.test.mjs"]
    done = subprocess.run(command, cwd=workspace.path, stdout=subprocess.PIPE, check=False)
    five_with_one_failed(report_of(workspace, done.stdout), "node", "sums # wrong", "more")


JUNIT = """<?xml version="1.0"?>
<testsuites><testsuite name="outer"><testsuite name="inner">
<testcase name="a" classname="pkg.C" file="c.py" line="7"><failure message="why">trace</failure></testcase>
<testcase name="b"><error>no message, but this</error></testcase>
<testcase name="c"><skipped/></testcase><testcase name="d"><system-out>noise</system-out></testcase>
</testsuite></testsuite></testsuites>"""


@pytest.mark.req("T3.19")
def test_junit_of_whoever_writes_it_has_the_same_fields(workspace: Workspace) -> None:
    report = report_of(workspace, JUNIT)
    assert report is not None
    assert (report.format, report.framework, report.total, report.failed, report.skipped) == ("junit", None, 4, 2, 1)
    first, second = report.failures
    assert (first.full_name, first.text, first.file, first.line) == ("pkg.C::a", "why", "c.py", 7)
    assert (second.full_name, second.text, second.file) == ("outer > inner::b", "no message, but this", None)


@pytest.mark.req("T3.19")
def test_tap_of_whoever_writes_it_has_the_same_fields(workspace: Workspace) -> None:
    text = (
        "1..4\nok 1 - a\nnot ok 2 - b\n  ---\n  message: 'it''s wrong'\n  file: b.t\n  line: 12\n  ...\n"
        "not ok 3 - c # TODO not yet\nok 4 # skip no net\n"
    )
    report = report_of(workspace, text)
    assert report is not None and report.complete
    assert (report.format, report.total, report.passed, report.failed, report.skipped) == ("tap", 4, 1, 1, 2)
    (one,) = report.failures
    assert (one.name, one.text, one.file, one.line) == ("b", "it's wrong", "b.t", 12)


@pytest.mark.req("T3.19")
@pytest.mark.parametrize(
    "content",
    [
        JUNIT[: JUNIT.index("<skipped/>")],
        "TAP version 13\n1..9\nok 1 - a\nnot ok 2 - b\n",
        "1..2\nnot ok 1 - a\nBail out! no disk\n",
    ],
)
def test_what_breaks_off_is_told_up_to_there_and_as_not_complete(workspace: Workspace, content: str) -> None:
    report = report_of(workspace, content)
    assert report is not None and report.failed and not report.complete


@pytest.mark.req("T3.19")
@pytest.mark.parametrize(
    "content",
    [
        "<html><body>1 failed, 4 passed in 0.01s</body></html>",
        "<svg/>",
        "ok 1 - a line of prose\n",
        "all 5 tests passed in 0.1s, said nobody\n",
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "cccccccc">]><testsuites><testsuite name="&b;"/></testsuites>',
        '<?xml version="1.0" encoding="none-such"?><testsuites/>',
        "<testsuite>" * 100,
        "",
        b"\xff\xfe1 failed in 0.01s",
        b"<testsuites>\x00",
    ],
)
def test_what_is_no_report_is_a_file(workspace: Workspace, content: bytes | str) -> None:
    assert report_of(workspace, content) is None


@pytest.mark.req("T3.19")
def test_there_is_an_end_to_what_reports_may_say(workspace: Workspace) -> None:
    case = '<testcase name="{}"><failure message="{}"/></testcase>'
    many = "".join(case.format(f"{number}-{'n' * 900}", "m" * 9000) for number in range(300))
    for name in ("a.xml", "b.xml", "c.xml"):
        (workspace.path / name).write_text(f"<testsuite>{many}</testsuite>")
    answer = workspace.ask(FindOutputs(patterns=("*.xml",)))
    reports = [one.report for one in answer.found]
    assert [one.failed for one in reports] == [300, 300, 300] and not any(one.complete for one in reports)
    told = sum(len(each.name) + len(each.text) for one in reports for each in one.failures)
    assert told <= report_room.MOST_CHARACTERS
    (workspace.path / "long.txt").write_text("x" * (4 << 20) + "\n1 failed in 0.01s\n")
    assert found(workspace, "long.txt").report is None


@pytest.mark.parametrize(
    "content",
    [
        " " * 100_000 + "ok 1\n",
        "1..1\n" + "".join(f"{' ' * 400}# Subtest: {'s' * 400}\n{' ' * 400}not ok 1\n" for _ in range(3000)),
        "1..1\nnot ok 1\n  ---\n" + "  key: |\n" * 200_000,
        "=" * 3_000_000 + "\n1 failed in 0.01s\n",
        "(1" * 1_000_000 + "\n1 failed in 0.01s\n",
        "not ok 1 - " + "# " * 1_000_000 + "\n1..1\n",
        "FAILED [" + " - " * 500_000 + "\n1 failed in 0.01s\n",
        "<testsuite>" + "<testcase>" * 50_000,
    ],
)
def test_no_text_takes_longer_than_its_length_lets_expect(tmp_path: Path, content: str) -> None:
    """Its time limit is that of a look for outputs; a parser that goes back and forth would need hours."""
    program = (
        "import sys; from coldframe.guest.reports import Reports; Reports().read(sys.stdin.buffer.read(), 'text/plain')"
    )
    subprocess.run([sys.executable, "-c", program], input=content.encode(), timeout=30, check=True)
