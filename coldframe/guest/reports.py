"""Whether a file is the report of a test run, and what it says of each test that failed."""

from typing import Any

from coldframe.guest.junit import read_junit
from coldframe.guest.report_room import Report, ReportRoom
from coldframe.guest.runner_texts import read_text
from coldframe.guest.tap import read_tap

MOST_BYTES = 4 << 20
"""Of a file that is read as a report. A longer one is told as a file."""
MOST_READ_BYTES = 16 << 20
"""Of all files of one answer."""
TEXTS = ("application/xml", "text/plain", "text/markdown")


class Reports:
    """Of the files of one answer."""

    def __init__(self) -> None:
        self._room = ReportRoom()
        self._left_bytes = MOST_READ_BYTES

    def wants(self, size: int) -> bool:
        """Whether a file of this size would be read."""
        return 0 < size <= min(MOST_BYTES, self._left_bytes)

    def read(self, content: bytes, kind: str) -> dict[str, Any] | None:
        """None if it is none. *kind* is the type of the file, by its first bytes and name."""
        if kind not in TEXTS:
            return None
        self._left_bytes -= len(content)
        report = self._parsed(content)
        return None if report is None else report.told()

    def _parsed(self, content: bytes) -> Report | None:
        if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            return read_junit(content, self._room)
        text = content.decode("utf-8", "replace")
        return read_tap(text, self._room) or read_text(text, self._room)
