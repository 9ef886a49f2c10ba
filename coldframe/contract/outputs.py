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


class FoundOutput(Model):
    path: str
    bytes: int
    sha256: str
    type: str
    """By its first bytes, and where these are text by its name, as `image/png`; never by what a program says."""
    width: int | None = Field(default=None, exclude_if=lambda width: width is None)
    """Pixels of a picture that is a PNG and whole by its check sums. None for whatever else it is."""
    height: int | None = Field(default=None, exclude_if=lambda height: height is None)


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

    declared: tuple[str, ...]
    undeclared: tuple[str, ...] = ()
    """Files that were made or changed and that no pattern means."""
    code: Literal["OUTPUT_MISSING"] | None = None
    """Something that was declared is not there, whatever the exit code is."""
    problem: str | None = None
    """Why it is not known what there is."""

    def renamed(self, show: Callable[[str], str]) -> Self:
        return super().renamed(show).model_copy(update={"undeclared": tuple(map(show, self.undeclared))})


def report_outputs(declared: tuple[str, ...], answer: OutputsAnswer, changed: tuple[str, ...]) -> DeclaredOutputs:
    """*changed*: files that were made or changed."""
    meant = {one.path for one in answer.found} | {one.path for one in answer.refused}
    undeclared = tuple(path for path in changed if path not in meant)
    return DeclaredOutputs(
        declared=declared,
        **dict(answer),
        undeclared=undeclared[:MOST_FOUND],
        code="OUTPUT_MISSING" if answer.missing or answer.refused else None,
    )
