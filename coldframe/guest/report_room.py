"""What reports of test runs have room for, and what the parsers of each form put into it.

The files are their author's: whatever stands in them is a claim of the program that wrote them, and is told as such.
"""

from typing import Any

MOST_FAILURES = 500
"""Failing tests of one file that are named."""
MOST_NAME = 400
MOST_TEXT = 2000
MOST_CHARACTERS = 128 * 1024
"""Of names and texts in all reports of one answer."""


class ReportRoom:
    """What is left for all reports of one answer."""

    def __init__(self) -> None:
        self.left = MOST_CHARACTERS

    def take(self, text: str, most: int) -> tuple[str, bool]:
        """As much of a text as there is room for, and whether that is all of it."""
        part = text[: min(most, self.left)]
        self.left -= len(part)
        return part, len(part) == len(text)


class Report:
    """Of one file, filled by the parser of its form."""

    def __init__(self, form: str, room: ReportRoom) -> None:
        self._form = form
        self._room = room
        self.framework: str | None = None
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.complete = True
        """False if the file breaks off, or not all failing tests are told."""
        self._failures: list[dict[str, Any]] = []

    def fail(self, name: str, suite: str | None, text: str, place: tuple[str, int] | None = None) -> None:
        """Name one test that failed. It is counted by whoever counts the others."""
        if len(self._failures) >= MOST_FAILURES or not self._room.left:
            self.complete = False
            return
        shown, _ = self._room.take(name.strip(), MOST_NAME)
        within = None if not suite else self._room.take(suite, MOST_NAME)[0]
        told, is_whole = self._room.take(text.strip(), MOST_TEXT)
        failure: dict[str, Any] = {"name": shown, "suite": within, "text": told, "text_complete": is_whole}
        if place is not None:
            failure["file"], _ = self._room.take(place[0], MOST_NAME)
            failure["line"] = place[1]
        self._failures.append(failure)

    def told(self) -> dict[str, Any]:
        return {
            "format": self._form,
            "framework": self.framework,
            "total": self.passed + self.failed + self.skipped,
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "failures": self._failures,
            "complete": self.complete and len(self._failures) >= self.failed,
        }


def place_of(text: str) -> tuple[str, int] | None:
    """File and line out of `file:line` or `file:line:column`."""
    parts = text.strip().split(":")
    while len(parts) > 1 and parts[-1].isascii() and parts[-1].isdigit() and len(parts[-1]) < 9:
        if not (parts[-2].isascii() and parts[-2].isdigit()) or len(parts) == 2:
            return ":".join(parts[:-1]), int(parts[-1])
        parts.pop()
    return None
