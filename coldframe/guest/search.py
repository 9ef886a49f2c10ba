"""Searching content like `grep -rn`: structured matches, a time budget, and a word about everything passed over.

A pattern is a Python regular expression, or literal text. It is applied to one line at a time, so a
match never spans lines; a pattern that holds a line break is refused, since it could only mislead.
Lines are text of UTF-8 in which other bytes stand as surrogate escapes, so `.` matches those too, which
it does not in grep. Links are not followed.

Time is kept three ways. Between lines the budget is looked at, and what was found so far is
answered. A line on which the pattern alone needs a second of processor time ends the search by a
timer signal. What not even that ends, the caller kills `BUDGET_GRACE_S` after the budget: this verb
runs in a child of its own.
"""

import os
import re
import signal
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from coldframe.guest.facts import Named, text_of
from coldframe.guest.paths import open_beneath, open_unlinked, read_name
from coldframe.guest.trees import HISTORY, READ_DIRECTORY
from coldframe.guest.verbs import Answer, Failure, verb

BUDGET_GRACE_S = 1.0
"""Past its budget a search has this long to answer before it is killed."""
LINE_BUDGET_S = 1.0
"""Processor time that one line may take."""
TICK_S = 0.1
LINES_BETWEEN_LOOKS = 256
LARGE_BYTES = 16 * 1024 * 1024
SMALL_BYTES = 64 * 1024
"""What is shorter is read without asking for its size first."""
BINARY_LOOK_BYTES = 8192
"""A NUL among the first bytes makes a file binary."""
LINE_CHARACTERS = 2000
BEFORE_MATCH_CHARACTERS = 200
PATTERN_CHARACTERS = 10_000
ANSWER_CHARACTERS = 16 * 1024 * 1024
NAMES_TOLD = 100
"""Most entries of each list of what was passed over."""

STORES = frozenset((b".git", b".hg", b".svn", b"node_modules", b"__pycache__", b".venv"))

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


@verb("search_files", slow=True)
def search_files(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a SearchFiles; matches are sorted by path and line.

    Raises:
        Failure: INVALID_PATTERN with `position`, PATTERN_TOO_SLOW with the line, and those of a path.
    """
    search = _Search(root, request)
    with _LineTimer(search):
        search.run(read_name(root, request.get("path", "")))
    return search.answer(), b""


def compile_pattern(pattern: str, *, regex: bool, ignore_case: bool) -> re.Pattern[str]:
    """Raises Failure INVALID_PATTERN with the position, counted in characters from 0."""
    if not pattern:
        raise Failure("INVALID_PATTERN", "the pattern is empty", position=0)
    if "\n" in pattern:
        raise Failure(
            "INVALID_PATTERN",
            "the pattern holds a line break, but matches never span lines",
            position=pattern.index("\n"),
        )
    if len(pattern) > PATTERN_CHARACTERS:
        raise Failure("INVALID_PATTERN", f"the pattern is longer than {PATTERN_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern if regex else re.escape(pattern), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise Failure(
            "INVALID_PATTERN", f"the pattern is no regular expression: {error.msg}", position=error.pos or 0
        ) from error
    except (OverflowError, RecursionError) as error:
        raise Failure("INVALID_PATTERN", "the pattern is nested or repeated too much", position=0) from error


def compile_glob(glob: str | None) -> Callable[[bytes, bytes, bytes], bool]:
    """A test of (name, path from the workspace, path from the start). `*` stops at a slash, `**` does not; `{a,b}` works."""
    if glob is None:
        return lambda name, full, below: True
    text = _bytes_of(glob.removeprefix("./"), "glob")
    try:
        accepted = re.compile(b"|".join(b"(?:" + _glob_pattern(part) + b")" for part in _alternatives(text)), re.DOTALL)
    except re.error as error:
        raise Failure("INVALID_ARGUMENT", f"the glob `{glob}` is malformed: {error.msg}") from error
    if b"/" not in text:
        return lambda name, full, below: accepted.fullmatch(name) is not None
    return lambda name, full, below: accepted.fullmatch(full) is not None or accepted.fullmatch(below) is not None


def _alternatives(glob: bytes) -> list[bytes]:
    """`a.{b,c}` as `a.b` and `a.c`; at most 64, inner braces stay as they are."""
    found = [glob]
    pattern = re.compile(rb"\{([^{}]*,[^{}]*)\}")
    while len(found) <= 64:
        match = pattern.search(found[0])
        if match is None:
            break
        found = [
            one[: at.start()] + choice + one[at.end() :]
            for one in found
            if (at := pattern.search(one))
            for choice in at.group(1).split(b",")
        ]
    return found


_GLOB_SIGNS = re.compile(rb"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


def _glob_pattern(glob: bytes) -> bytes:
    pieces = []
    for sign in _GLOB_SIGNS.findall(glob.lstrip(b"/")):
        if sign == b"**/":
            pieces.append(rb"(?:.*/)?")
        elif sign == b"**":
            pieces.append(rb".*")
        elif sign == b"*":
            pieces.append(rb"[^/]*")
        elif sign == b"?":
            pieces.append(rb"[^/]")
        elif len(sign) > 1:
            inner = sign[1:-1].replace(b"\\", b"\\\\").replace(b"[", b"\\[")
            pieces.append(b"[^/" + inner[1:] + b"]" if inner[:1] == b"!" else b"[" + inner.replace(b"^", b"\\^") + b"]")
        else:
            pieces.append(re.escape(sign))
    return b"".join(pieces)


def _bytes_of(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Failure("INVALID_ARGUMENT", f"the {what} is not valid text") from error


class _OutOfTime(Exception):
    """The budget is used up; what was found is answered."""


class _Search:
    def __init__(self, root: int, request: dict[str, Any]) -> None:
        self._root = root
        self.deadline = time.monotonic() + request.get("budget_s", 10.0)
        regex, ignore_case = request.get("regex", True), request.get("ignore_case", False)
        self._pattern = compile_pattern(request["pattern"], regex=regex, ignore_case=ignore_case)
        self._literal = b"" if regex or ignore_case else _bytes_of(request["pattern"], "pattern")
        self._wants_all = request.get("glob") is None
        self._wanted = compile_glob(request.get("glob"))
        self._all_stores = request.get("include_hidden_stores", False)
        self._most_matches = request.get("max_matches", 1000)
        self._characters = 0
        self._start = b""
        self._matches: list[dict[str, Any]] = []
        self._cut: str | None = None
        self._searched = self._binary = self._special = 0
        self._large: list[str] = []
        self._stores: list[str] = []
        self._errors: list[tuple[str, str]] = []
        self.at: tuple[bytes, int] = (b"", 0)
        """File and line that the pattern is on, for the timer; line 0 while it is on none."""

    def answer(self) -> dict[str, Any]:
        return {
            "matches": sorted(self._matches, key=lambda match: (match["path"], match["line"])),
            "complete": self._cut is None,
            "truncated_because": self._cut,
            "files_searched": self._searched,
            "binary_skipped": self._binary,
            "large_skipped": self._large[:NAMES_TOLD],
            "special_skipped": self._special,
            "directories_skipped": self._stores[:NAMES_TOLD],
            "errors": self._errors[:NAMES_TOLD],
        }

    def run(self, start: bytes) -> None:
        """Search the file or tree at *start*, as far as time and room for matches last."""
        self._start = start
        with Named(start):
            looked = open_beneath(self._root, start, os.O_PATH)
            try:
                is_directory = stat.S_ISDIR(os.fstat(looked).st_mode)
                if is_directory:
                    top = open_beneath(self._root, start, READ_DIRECTORY & ~os.O_NOFOLLOW)
                else:
                    top = open_beneath(self._root, start, READ & ~os.O_NOFOLLOW) if self._is_regular(looked) else -1
            finally:
                os.close(looked)
        if top < 0:
            return
        try:
            if is_directory:
                self._search_tree(top)
            else:
                self._search_open(top, start)
        except _OutOfTime:
            self._cut = "time"
        finally:
            os.close(top)

    def _is_regular(self, looked: int) -> bool:
        regular = stat.S_ISREG(os.fstat(looked).st_mode)
        self._special += not regular
        return regular

    def _search_tree(self, top: int) -> None:
        left = [b""]
        while left and self._cut is None:
            self._look_at_clock()
            path = left.pop()
            try:
                here = open_unlinked(top, path, READ_DIRECTORY)
            except OSError as error:
                self._note(self._full(path), error)
                continue
            try:
                left += reversed(list(self._search_directory(here, path)))
            finally:
                os.close(here)

    def _search_directory(self, here: int, path: bytes) -> Iterator[bytes]:
        """Search the files in the open directory *here*; yields the paths of its subdirectories."""
        start = self._full(path)
        before, before_full = path and path + b"/", start and start + b"/"
        with os.scandir(here) as found:
            entries = sorted((os.fsencode(entry.name), entry) for entry in found)
        for name, entry in entries:
            if self._cut is not None:
                return
            full = before_full + name
            try:
                if entry.is_file(follow_symlinks=False):  # as the directory says it: no question for each
                    if full == HISTORY and not self._all_stores:
                        self._stores.append(text_of(full))  # else each search would find the line of its own record
                    elif self._wants_all or self._wanted(name, full, before + name):
                        held = os.open(name, READ, dir_fd=here)
                        try:
                            self._search_open(held, full)
                        finally:
                            os.close(held)
                elif entry.is_dir(follow_symlinks=False):
                    if name in STORES and not self._all_stores:
                        self._stores.append(text_of(full))
                    else:
                        yield before + name
                elif not entry.is_symlink():
                    self._special += 1
            except OSError as error:
                self._note(full, error)

    def _search_open(self, held: int, full: bytes) -> None:
        content = os.pread(held, SMALL_BYTES, 0)
        if len(content) == SMALL_BYTES:
            size = os.fstat(held).st_size
            if size > LARGE_BYTES:
                self._large.append(text_of(full))
                return
            content = os.pread(held, size, 0)
        if content.find(0, 0, BINARY_LOOK_BYTES) >= 0:
            self._binary += 1
            return
        self._searched += 1
        self._look_at_clock()
        if self._literal and self._literal not in content:
            return
        self._search_text(text_of(content), text_of(full), full)

    def _search_text(self, text: str, path: str, full: bytes) -> None:
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        find = self._pattern.search
        for number, line in enumerate(lines, 1):
            if number % LINES_BETWEEN_LOOKS == 0 or len(line) > LINE_CHARACTERS:
                self._look_at_clock()
            self.at = (full, number)
            match = find(line)
            if match is None:
                continue
            if len(self._matches) >= self._most_matches or self._characters > ANSWER_CHARACTERS:
                self._cut = "max_matches"
                break
            self._add(path, number, line, match.start())
        self.at = (b"", 0)

    def _add(self, path: str, number: int, line: str, at: int) -> None:
        clipped = len(line) > LINE_CHARACTERS
        if clipped:
            start = max(0, min(at - BEFORE_MATCH_CHARACTERS, len(line) - LINE_CHARACTERS))
            line = line[start : start + LINE_CHARACTERS]
        self._characters += len(path) + len(line)
        self._matches.append({"path": path, "line": number, "text": line, "clipped": clipped})

    def _look_at_clock(self) -> None:
        if time.monotonic() > self.deadline:
            raise _OutOfTime

    def _full(self, below: bytes) -> bytes:
        return self._start + b"/" + below if self._start and below else self._start or below

    def _note(self, path: bytes, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._errors.append((text_of(path), str(error.strerror).lower()))


class _LineTimer:
    """While a search runs, ends it if the pattern stays on one line for too long, or past the budget.

    The regular expression engine lets signal handlers run. Processor time is what is counted, by
    SIGVTALRM, which nothing else here uses; in a thread there is no such timer, and the caller's
    deadline has to do.
    """

    def __init__(self, search: _Search) -> None:
        self._search = search
        self._before: Any = None
        self._set = False
        self._line: tuple[bytes, int] = (b"", 0)
        self._begun = 0.0

    def __enter__(self) -> None:
        try:
            self._before = signal.signal(signal.SIGVTALRM, self._tick)
        except ValueError:
            return
        self._set = True
        signal.setitimer(signal.ITIMER_VIRTUAL, TICK_S, TICK_S)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        path, line = at = self._search.at
        if not line:
            return
        if time.monotonic() > self._search.deadline:
            raise _OutOfTime
        now = time.process_time()
        if at != self._line:
            self._line, self._begun = at, now
        elif now - self._begun > LINE_BUDGET_S:
            raise Failure(
                "PATTERN_TOO_SLOW",
                f"the pattern needs more than {LINE_BUDGET_S:.0f} s for line {line} of `{text_of(path)}`",
                path=text_of(path),
                line=line,
            )

    def __exit__(self, *_: object) -> None:
        if self._set:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._before)
