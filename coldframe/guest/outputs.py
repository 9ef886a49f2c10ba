"""Declared outputs: the files that a few patterns mean, each with size, digest and type, as they are now.

Only what is in the workspace is found. A link to a file in it is that file; one that leads elsewhere is told and never
followed, be it the file itself or a directory on the way. `**` goes through no link, so it comes to an end.
"""

import errno
import fnmatch
import hashlib
import os
import stat
from typing import Any

from coldframe.guest.facts import text_of
from coldframe.guest.files import open_regular
from coldframe.guest.images import PngFrame
from coldframe.guest.paths import open_beneath
from coldframe.guest.reports import Reports
from coldframe.guest.trees import entry_names
from coldframe.guest.verbs import Answer, Failure, verb

MOST_VISITED = 100_000
"""Directories and files that are looked at for all patterns together, one for each way in which a pattern leads there."""
CHUNK_BYTES = 1 << 20
HEAD_BYTES = 4096
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

_BY_HEAD = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"PAR1", "application/vnd.apache.parquet"),
)
_TEXT = {
    b".html": "text/html",
    b".htm": "text/html",
    b".csv": "text/csv",
    b".md": "text/markdown",
    b".json": "application/json",
    b".xml": "application/xml",
    b".svg": "image/svg+xml",
    b".js": "text/javascript",
    b".css": "text/css",
    b".py": "text/x-python",
}


@verb("find_outputs", slow=True)
def find_outputs(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a FindOutputs."""
    search = _Search(root, int(request["most"]))
    missing = [pattern for pattern in request["patterns"] if not search.look_for(pattern)]
    answer = {
        "found": [search.found[path] for path in sorted(search.found)],
        "missing": missing,
        "refused": [{"path": text_of(path), "reason": search.refused[path]} for path in sorted(search.refused)],
        "complete": search.complete,
    }
    return answer, b""


class _Search:
    def __init__(self, root: int, most: int) -> None:
        self._root = root
        self._most = most
        self._visited = 0
        self._reports = Reports()
        self.found: dict[bytes, dict[str, Any]] = {}
        self.refused: dict[bytes, str] = {}
        self.complete = True

    def look_for(self, pattern: str) -> bool:
        """Take in what one pattern means. False if that is no file."""
        parts = tuple(os.fsencode(part) for part in pattern.split("/"))
        left: list[tuple[bytes, tuple[bytes, ...]]] = [(b"", parts)]
        seen: set[tuple[bytes, tuple[bytes, ...]]] = set()
        is_there = False
        while left:
            step = left.pop()
            if step in seen:
                continue
            self._visited += 1
            if self._visited > MOST_VISITED:
                self.complete = False
                break
            seen.add(step)
            path, rest = step
            if rest == (b"**",):
                rest = (b"**", b"*")
            if rest[0] == b"**":
                left.append((path, rest[1:]))
                left += [(below, rest) for below in self._directories(path)]
            elif len(rest) > 1:
                left += [(below, rest[1:]) for below in self._matches(path, rest[0]) if self._is_directory(below)]
            else:
                for file in self._matches(path, rest[0]):
                    is_there = self._take(file) or is_there
        return is_there

    def _matches(self, path: bytes, part: bytes) -> list[bytes]:
        if not any(sign in part for sign in b"*?["):
            return [_join(path, part)]
        return [_join(path, name) for name in self._names(path) if _means(part, name)]

    def _names(self, path: bytes) -> list[bytes]:
        try:
            held = open_beneath(self._root, path, OPEN_DIRECTORY)
        except (OSError, Failure) as error:
            self._note(error)
            return []
        try:
            names = entry_names(held)
        finally:
            os.close(held)
        self._visited += len(names)
        if self._visited > MOST_VISITED:
            self.complete = False
            return []
        return names

    def _directories(self, path: bytes) -> list[bytes]:
        below = []
        for name in self._names(path):
            if not name.startswith(b"."):
                status = self._status(_join(path, name))
                if status is not None and stat.S_ISDIR(status.st_mode):
                    below.append(_join(path, name))
        return below

    def _status(self, path: bytes) -> os.stat_result | None:
        """Of the thing itself, be it a link."""
        try:
            held = open_beneath(self._root, path, os.O_PATH | os.O_NOFOLLOW)
        except (OSError, Failure) as error:
            self._note(error)
            return None
        try:
            return os.fstat(held)
        finally:
            os.close(held)

    def _note(self, error: OSError | Failure) -> None:
        """What cannot be looked into, because nobody may or it lies too deep, may hold what is meant."""
        if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.ENOTDIR):
            self.complete = False

    def _is_directory(self, path: bytes) -> bool:
        try:
            os.close(open_beneath(self._root, path, OPEN_DIRECTORY))
        except Failure as failure:
            if failure.code == "OUTSIDE_WORKSPACE":
                self.refused[path] = "link_outside"
            return False
        except OSError:
            return False
        return True

    def _take(self, path: bytes) -> bool:
        if path in self.found:
            return True
        try:
            held = open_regular(self._root, path)
        except Failure as failure:
            if failure.code in ("OUTSIDE_WORKSPACE", "INVALID_ARGUMENT"):  # or a loop of links
                self.refused[path] = "link_outside"
            else:
                self.refused[path] = "no_file"
            return False
        except FileNotFoundError:
            if self._status(path) is not None:  # a link to nothing
                self.refused[path] = "no_file"
            return False
        except OSError:
            self.refused[path] = "unreadable"
            return False
        try:
            if len(self.found) >= self._most:
                self.complete = False
            else:
                self.found[path] = _describe(path, held, self._reports)
        except OSError:
            self.refused[path] = "unreadable"
            return False
        finally:
            os.close(held)
        return True


def _describe(path: bytes, held: int, reports: Reports) -> dict[str, Any]:
    """Of the bytes that are read, however long the file grows meanwhile."""
    digest, size, head, picture = hashlib.sha256(), 0, b"", PngFrame()
    most = os.fstat(held).st_size
    kept = bytearray() if reports.wants(most) else None
    while size < most:
        piece = os.read(held, min(CHUNK_BYTES, most - size))
        if not piece:
            break
        head += piece[: HEAD_BYTES - len(head)]
        digest.update(piece)
        picture.feed(piece)  # of no other file than the one of this digest
        size += len(piece)
        if kept is not None:
            kept += piece
    told: dict[str, Any] = {"path": text_of(path), "bytes": size, "sha256": digest.hexdigest()}
    if picture.size is not None:
        told["width"], told["height"] = picture.size
        told["kind"] = "picture"
    told["type"] = _type_of(path, head)
    report = None if kept is None else reports.read(bytes(kept), told["type"])
    if report is not None:
        told["kind"], told["report"] = "test_report", report
    return told


def _type_of(path: bytes, head: bytes) -> str:
    for magic, name in _BY_HEAD:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    try:
        head[: HEAD_BYTES - 4].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return "application/octet-stream"
    if b"\0" in head:
        return "application/octet-stream"
    return _TEXT.get(os.path.splitext(path)[1].lower(), "text/plain")


def _means(part: bytes, name: bytes) -> bool:
    return fnmatch.fnmatchcase(name, part) and (part.startswith(b".") or not name.startswith(b"."))


def _join(path: bytes, name: bytes) -> bytes:
    return b"%s/%s" % (path, name) if path else name
