"""Outputs that were declared before a run: what was found of them, what is missing, and what came beside them."""

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from coldframe.contract.model import Model

MOST_PATTERNS = 64
MOST_FOUND = 1000
"""Files that one answer tells."""


def _pattern(value: str) -> str:
    parts = value.split("/")
    if value.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError("write it relative to the workspace, without `.` and `..`")
    if any("**" in part and part != "**" for part in parts):
        raise ValueError("`**` stands for any number of directories, alone between slashes")
    return value


OutputPattern = Annotated[
    str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$"), AfterValidator(_pattern)
]
"""A path relative to the workspace in which `*`, `?` and `[…]` stand for parts of a name, and `**` for any directories. A
name that begins with a dot is meant only if the pattern says the dot."""
Patterns = Annotated[tuple[OutputPattern, ...], Field(max_length=MOST_PATTERNS)]


class TestFailure(Model):
    """One test that failed, as the file says."""

    __test__ = False  # pytest would take it for a test by its name
    name: str
    suite: str | None = None
    """What it lies in: a class, a file, a group of tests."""
    text: str | None = None
    """What was asserted, or the error. It is output of a program, so ledger and receipts have None."""
    text_complete: bool = True
    file: str | None = None
    line: int | None = None

    @property
    def full_name(self) -> str:
        return self.name if not self.suite else f"{self.suite}::{self.name}"


class TestReport(Model):
    """What a file that is the report of a test run says. Nobody but the program that wrote it vouches for it."""

    __test__ = False
    format: Literal["junit", "tap", "text"]
    """`text`: what pytest, node or unittest print for people."""
    framework: Literal["pytest", "node", "unittest", "deno", "vitest", "jest"] | None = None
    """None if the file does not tell."""
    total: int = Field(ge=0)
    passed: int = Field(ge=0)
    failed: int = Field(ge=0)
    """Those that could not be carried out included."""
    skipped: int = Field(ge=0)
    failures: tuple[TestFailure, ...] = ()
    complete: bool = True
    """False if the file breaks off, or not all that failed are told."""
    log_artifact_id: str | None = None
    """All that the command printed whose output the file is; None if it is not told of a command."""


class FoundOutput(Model):
    path: str
    bytes: int
    sha256: str
    type: str
    """By its first bytes, and where these are text by its name, as `image/png`; never by what a program says."""
    width: int | None = Field(default=None, exclude_if=lambda width: width is None)
    """Pixels of a picture that is a PNG and whole by its check sums. None for whatever else it is."""
    height: int | None = Field(default=None, exclude_if=lambda height: height is None)
    kind: Literal["file", "picture", "test_report"] = Field(default="file", exclude_if=lambda kind: kind == "file")
    """By what the bytes are, and not by what was declared: `picture` has a size, `test_report` a report."""
    report: TestReport | None = Field(default=None, exclude_if=lambda report: report is None)


class RefusedOutput(Model):
    path: str
    reason: Literal["link_outside", "no_file", "unreadable"]
    """It is a link that leads out of the workspace, no regular file, or could not be read."""


class OutputsAnswer(Model):
    """What there is of the patterns, sorted by path. Names that are no UTF-8 travel with surrogate escapes."""

    found: tuple[FoundOutput, ...] = ()
    missing: tuple[str, ...] = ()
    """Patterns that no file is found for."""
    refused: tuple[RefusedOutput, ...] = ()
    complete: bool = True
    """False if there were more than are told."""

    def renamed(self, show: Callable[[str], str]) -> Self:
        """With each name in another form."""
        named = {
            "found": tuple(one.model_copy(update={"path": show(one.path)}) for one in self.found),
            "refused": tuple(one.model_copy(update={"path": show(one.path)}) for one in self.refused),
        }
        return self.model_copy(update=named)


class DeclaredOutputs(OutputsAnswer):
    """The same of a run that has ended, or of a sandbox."""

    failed_tests: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Of all reports among them, by suite and name, sorted."""

    declared: tuple[str, ...]
    undeclared: tuple[str, ...] = ()
    """Files that were made or changed and that no pattern means."""
    code: Literal["OUTPUT_MISSING"] | None = None
    """Something that was declared is not there, whatever the exit code is."""
    problem: str | None = None
    """Why it is not known what there is."""

    def renamed(self, show: Callable[[str], str]) -> Self:
        return super().renamed(show).model_copy(update={"undeclared": tuple(map(show, self.undeclared))})

    def of_command(self, command_id: str) -> Self:
        """With each report pointing to what that command printed."""
        return self._with_reports(lambda report: report.model_copy(update={"log_artifact_id": command_id}))

    def for_record(self) -> Self:
        """Without what a program has printed, which is kept apart from the ledger and shorter."""
        return self._with_reports(
            lambda report: report.model_copy(
                update={"failures": tuple(one.model_copy(update={"text": None}) for one in report.failures)}
            )
        )

    def _with_reports(self, change: Callable[[TestReport], TestReport]) -> Self:
        found = tuple(
            one if one.report is None else one.model_copy(update={"report": change(one.report)}) for one in self.found
        )
        return self.model_copy(update={"found": found})


def report_outputs(declared: tuple[str, ...], answer: OutputsAnswer, changed: tuple[str, ...]) -> DeclaredOutputs:
    """*changed*: files that were made or changed."""
    meant = {one.path for one in answer.found} | {one.path for one in answer.refused}
    undeclared = tuple(path for path in changed if path not in meant)
    return DeclaredOutputs(
        declared=declared,
        **dict(answer),
        undeclared=undeclared[:MOST_FOUND],
        failed_tests=tuple(
            sorted({each.full_name for one in answer.found if one.report for each in one.report.failures})
        ),
        code="OUTPUT_MISSING" if answer.missing or answer.refused else None,
    )
