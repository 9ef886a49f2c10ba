"""Literal replacements in a file's bytes: all of them or none, each in exactly one place unless told otherwise.

A file is never decoded, so bytes that are no UTF-8 stay. Line ends are the one liberty taken: models write
LF. Text with LF matches a region with CRLF, the other way round too, and the new text then gets the
ends of that region. If the old text matches as it stands, the new text lands as it stands, except that
a replaced piece within one line of a CRLF file brings its new lines as CRLF.

The keeper does this in line, so time and memory are linear in the file: places are searched for in a copy
with LF alone, never by a regular expression made of the old text, and there is a bound on how many.
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from coldframe.guest.verbs import Failure

EDIT_CAP_BYTES = 16 * 1024 * 1024
"""Largest file that is edited, before and after."""
MOST_REPLACEMENTS = 200_000
"""Of one `replace_all` that has to mind line ends; one that has not may replace any number."""
MOST_PLACES = 1000
"""Overlapping places that are looked for, when one is wanted; past it they are counted without overlap."""
LINES_TOLD = 20

NEAR_TEXT_BYTES = 200
NEAR_FILE_BYTES = 256 * 1024
NEAR_WORDS = 100
"""In larger files, or for longer texts, a near miss is not looked for."""

_LINE_END = re.compile(rb"\r?\n")


class _Match(NamedTuple):
    start: int
    end: int
    exact: bool


def apply_edits(content: bytes, edits: list[dict[str, Any]], path: str) -> tuple[bytes, int]:
    """Apply *edits* (`old`, `new`, `replace_all`) one after the other. Returns the new content and the replacements.

    Raises:
        Failure: EDIT_NOT_FOUND, EDIT_NOT_UNIQUE with `count` and `lines`, INVALID_ARGUMENT, TOO_LARGE;
            with the number of the edit as `edit`, counted from 0.
    """
    if not edits:
        raise Failure("INVALID_ARGUMENT", "there is no edit to make")
    replacements = 0
    for index, edit in enumerate(edits):
        try:
            old = edit["old"].encode("utf-8", "surrogateescape")
            new = edit["new"].encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise Failure("INVALID_ARGUMENT", "the text of the edit is not valid", edit=index) from error
        if not old:
            raise Failure("INVALID_ARGUMENT", "the old text is empty; write the file whole instead", edit=index)
        text = _Text(content)
        if edit.get("replace_all", False):
            content, count = _replace_all(text, old, new, path, index)
        else:
            match = _only_match(text, old, path, index)
            count = 0 if match is None else 1
            if match is not None:
                content = content[: match.start] + text.fit(new, match, old) + content[match.end :]
        if not count:
            raise _not_found(text, old, new, path, index)
        if len(content) > EDIT_CAP_BYTES:
            raise _too_large(path, index, len(content))
        replacements += count
    return content, replacements


class _Text:
    """The content with its line ends seen as one kind."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._lf = content
        self._crlf_at = array("Q")
        """Where a LF of `_lf` stands for a CRLF of the content."""
        self._has_crlf = b"\r\n" in content
        self._end_after = (-1, b"")

    def matches(self, old: bytes, *, overlapping: bool) -> Iterator[_Match]:
        """Places of *old*, whichever line ends it and they have."""
        by_lines = b"\n" in old and self._has_crlf
        needle = _to_lf(old) if b"\n" in old else old
        if by_lines and not self._crlf_at:
            self._lf = _to_lf(self.content)
            ends = re.finditer(rb"\r\n", self.content)
            self._crlf_at = array("Q", (end.start() - number for number, end in enumerate(ends)))
        searched = self._lf if by_lines else self.content
        step = 1 if overlapping else len(needle)
        crlf_wanted = old.count(b"\r\n")
        at = searched.find(needle)
        while at >= 0:
            if by_lines:
                before, within = self._crlf_before(at), self._crlf_before(at + len(needle))
                start, end = at + before, at + len(needle) + within
                exact = within - before == crlf_wanted and self.content.startswith(old, start)
                yield _Match(start, end, exact)
            else:
                yield _Match(at, at + len(needle), needle == old)
            at = searched.find(needle, at + step)

    def count(self, old: bytes) -> int:
        """Places of *old* that do not overlap."""
        return _to_lf(self.content).count(_to_lf(old)) if b"\n" in old else self.content.count(old)

    def _crlf_before(self, at: int) -> int:
        return bisect_left(self._crlf_at, at)

    def fit(self, new: bytes, match: _Match, old: bytes) -> bytes:
        """The new text with the line ends that it gets in the place of *match*."""
        if b"\n" not in new:
            return new
        if b"\n" not in old:
            crlf = b"\r\n" not in new and self._end_near(match) == b"\r\n"
            return new.replace(b"\n", b"\r\n") if crlf else new
        if match.exact:
            return new
        end = _LINE_END.search(self.content, match.start, match.end)
        lf = _to_lf(new)
        return lf.replace(b"\n", b"\r\n") if end is not None and end.group() == b"\r\n" else lf

    def _end_near(self, match: _Match) -> bytes:
        """The line end that follows the match, or the last one before it; empty in a file of one line."""
        if not self._has_crlf:
            return b"\n"
        known, end = self._end_after
        if known < match.end:
            known = self.content.find(b"\n", match.end)
            if known < 0:
                known, at = len(self.content), self.content.rfind(b"\n")
            else:
                at = known
            end = b"\r\n" if self.content[at - 1 : at] == b"\r" else b"\n"
            self._end_after = (known, end)
        return end

    def line_of(self, at: int) -> int:
        return self.content.count(b"\n", 0, at) + 1


def _to_lf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")


def _only_match(text: _Text, old: bytes, path: str, index: int) -> _Match | None:
    """The one place of *old*, or None. A place with its very line ends is preferred to others."""
    found = list(islice(text.matches(old, overlapping=True), MOST_PLACES + 1))
    found = [match for match in found if match.exact] or found
    if len(found) <= 1:
        return found[0] if found else None
    count = max(len(found), text.count(old)) if len(found) > MOST_PLACES else len(found)
    lines = [text.line_of(match.start) for match in found[:LINES_TOLD]]
    shown = ", ".join(map(str, lines)) + (" …" if count > LINES_TOLD else "")
    raise Failure(
        "EDIT_NOT_UNIQUE",
        f"the old text occurs {count} times in `{path}`, on lines {shown}",
        path=path,
        edit=index,
        count=count,
        lines=lines,
    )


def _replace_all(text: _Text, old: bytes, new: bytes, path: str, index: int) -> tuple[bytes, int]:
    content = text.content
    if b"\r\n" not in content and (b"\n" not in old or b"\r\n" not in old):
        count = content.count(old)
        size = len(content) + count * (len(new) - len(old))
        if size > EDIT_CAP_BYTES:
            raise _too_large(path, index, size)
        return content.replace(old, new), count
    result = bytearray()
    at = count = 0
    for match in text.matches(old, overlapping=False):
        result += content[at : match.start]
        result += text.fit(new, match, old)
        at = match.end
        count += 1
        if count > MOST_REPLACEMENTS or len(result) > EDIT_CAP_BYTES:
            raise _too_large(path, index, len(result))
    result += content[at:]
    return bytes(result), count


def _too_large(path: str, index: int, size: int) -> Failure:
    return Failure(
        "TOO_LARGE",
        f"the edit of `{path}` replaces more than is done in one go",
        path=path,
        edit=index,
        size=size,
        limit=EDIT_CAP_BYTES,
    )


def _not_found(text: _Text, old: bytes, new: bytes, path: str, index: int) -> Failure:
    message = f"the old text does not occur in `{path}`"
    facts: dict[str, Any] = {"path": path, "edit": index}
    near = _near(text.content, old)
    if near is not None:
        line = text.line_of(near.start())
        facts.update(near_line=line, near_text=near.group()[:NEAR_TEXT_BYTES].decode("utf-8", "surrogateescape"))
        message += f"; line {line} differs from it in white space alone"
    elif new.strip() and next(text.matches(new, overlapping=False), None):
        facts["already_there"] = True
        message += ", but the new text does: the edit may have been made already"
    else:
        first = next((piece.strip() for piece in old.split(b"\n") if piece.strip()), b"")
        at = text.content.find(first) if first else -1
        if at >= 0:
            facts["near_line"] = line = text.line_of(at)
            message += f"; its first line is like line {line}, what follows differs"
    return Failure("EDIT_NOT_FOUND", message, **facts)


def _near(content: bytes, old: bytes) -> re.Match[bytes] | None:
    words = old.split(None, NEAR_WORDS)
    if not 1 <= len(words) <= NEAR_WORDS or len(content) > NEAR_FILE_BYTES:
        return None
    return re.compile(rb"\s+".join(re.escape(word) for word in words)).search(content)
