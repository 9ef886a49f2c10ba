"""Packages that are installed below a top, read from the records of their managers: nothing is started, and no link followed.

pip leaves a folder `NAME-VERSION.dist-info` for each, older tools one or a file that ends with `.egg-info`, npm a `package.json` below `node_modules`, dpkg one list. All of it is the
word of whoever wrote there.
"""

import csv
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import Any

from coldframe.guest.facts import text_of, time_of
from coldframe.guest.git_index import Unreadable
from coldframe.guest.git_objects import read_regular
from coldframe.guest.paths import open_unlinked
from coldframe.guest.trees import READ_DIRECTORY, entry_names
from coldframe.guest.verbs import Answer, verb

MOST_RECORD_BYTES = 4 * 1024 * 1024
MOST_STATUS_BYTES = 64 * 1024 * 1024
MOST_FILES = 20_000
"""Of one package of npm, that are added up."""
STATUS = b"var/lib/dpkg/status"
_METADATA = re.compile(rb".+\.(dist|egg)-info")
_METADATA_FILES = {b"dist": b"/METADATA", b"egg": b"/PKG-INFO"}
_NAME = re.compile(r"[-_.]+")
_Found = dict[str, Any]


class _Late(Exception):
    """The time is over, or there are too many."""


@verb("list_packages", slow=True)
def list_packages(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ListPackages."""
    return found_below(root, request), b""


def found_below(root: int, request: dict[str, Any], *, device: int | None = None) -> dict[str, Any]:
    """What a PackagesFound holds. With *device* only directories of that one are gone into."""
    search = _Search(root, int(request["most"]), time.monotonic() + float(request["budget_s"]), device)
    try:
        search.run()
        complete = True
    except _Late:
        complete = False
    found = sorted(search.found, key=lambda one: (one["manager"], one["name"], one["place"]))
    return {"packages": found, "complete": complete}


class _Search:
    def __init__(self, root: int, most: int, deadline: float, device: int | None) -> None:
        self._root = root
        self._most = most
        self._deadline = deadline
        self._device = device
        self.found: list[_Found] = []

    def run(self) -> None:
        self._find_apt()
        left = [b""]
        while left:
            path = left.pop()
            for name, status in self._listed(path):
                child = path + b"/" + name if path else name
                metadata = _METADATA.fullmatch(name)
                if metadata is not None and metadata[1] == b"egg" and stat.S_ISREG(status.st_mode):
                    self._add_pip(child, child)
                if not stat.S_ISDIR(status.st_mode) or (name in (b".git", b"proc", b"sys") and not path):
                    continue
                if self._device is not None and status.st_dev != self._device:
                    continue  # mounted there
                if metadata is not None:
                    self._add_pip(child, child + _METADATA_FILES[metadata[1]])
                else:
                    if _is_of_npm(child):
                        self._add_npm(child)
                    left.append(child)

    def _find_apt(self) -> None:
        text = self._read(STATUS, MOST_STATUS_BYTES)
        status = self._status(STATUS)
        if text is None or status is None:
            return
        for paragraph in text.decode("utf-8", "replace").split("\n\n"):
            fields = _fields(paragraph)
            if fields.get("status", "").endswith(" installed") and fields.get("version"):
                package = fields.get("package", "")
                written = self._status(b"var/lib/dpkg/info/" + os.fsencode(package) + b".list") or status
                self._add("apt", package, fields["version"], STATUS, written, _kib(fields.get("installed-size", "")))

    def _add_pip(self, folder: bytes, file: bytes) -> None:
        text, status = self._read(file, MOST_RECORD_BYTES), self._status(file)
        if text is None or status is None:
            return
        told = _fields(text.decode("utf-8", "replace").replace("\r\n", "\n").partition("\n\n")[0])
        name = _NAME.sub("-", told.get("name", "")).lower()
        self._add("pip", name, told.get("version", ""), folder, status, self._size_of_pip(folder))

    def _size_of_pip(self, folder: bytes) -> int | None:
        record = self._read(folder + b"/RECORD", MOST_RECORD_BYTES)
        if record is None:
            return None
        size = 0
        try:
            for row in csv.reader(record.decode("utf-8", "replace").splitlines()):
                size += int(row[2]) if len(row) > 2 and row[2].isdecimal() and len(row[2]) < 16 else 0
        except csv.Error:
            return None
        return size

    def _add_npm(self, folder: bytes) -> None:
        text, status = self._read(folder + b"/package.json", MOST_RECORD_BYTES), self._status(folder + b"/package.json")
        if text is None or status is None:
            return
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(told, dict) and isinstance(told.get("name"), str) and isinstance(told.get("version"), str):
            self._add("npm", told["name"], told["version"], folder, status, self._size_of_npm(folder))

    def _size_of_npm(self, folder: bytes) -> int | None:
        """Without the packages within it."""
        size = seen = 0
        left = [folder]
        while left:
            path = left.pop()
            for name, status in self._listed(path):
                seen += 1
                if seen > MOST_FILES:
                    return None
                if stat.S_ISREG(status.st_mode):
                    size += status.st_size
                elif stat.S_ISDIR(status.st_mode) and name != b"node_modules":
                    left.append(path + b"/" + name)
        return size

    def _add(
        self, manager: str, name: str, version: str, place: bytes, status: os.stat_result, size: int | None
    ) -> None:
        if not 0 < len(name) <= 300 or not 0 < len(version) <= 300:
            return
        if len(self.found) >= self._most:
            raise _Late
        self.found.append(
            {
                "manager": manager,
                "name": _plain(name),
                "version": _plain(version),
                "place": text_of(place),
                "bytes": size,
                "installed_at": time_of(status.st_ctime_ns),
            }
        )

    def _read(self, path: bytes, most_bytes: int) -> bytes | None:
        try:
            return read_regular(self._root, path, most_bytes)
        except Unreadable:
            return None

    def _status(self, path: bytes) -> os.stat_result | None:
        try:
            held = open_unlinked(self._root, path, os.O_PATH | os.O_NOFOLLOW)
        except (OSError, ValueError):
            return None
        try:
            return os.fstat(held)
        finally:
            os.close(held)

    def _listed(self, path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
        if time.monotonic() > self._deadline:
            raise _Late
        try:
            held = open_unlinked(self._root, path, READ_DIRECTORY)
        except OSError:
            return
        found = []
        try:
            for name in entry_names(held):
                try:
                    found.append((name, os.stat(name, dir_fd=held, follow_symlinks=False)))
                except OSError:
                    continue
        finally:
            os.close(held)
        yield from found


def _fields(paragraph: str) -> dict[str, str]:
    """By lower-case name, the first of each. Python's own parser loads modules when first asked, and this runs where files are a
    box's."""
    fields: dict[str, str] = {}
    for line in paragraph.split("\n"):
        name, colon, value = line.partition(":")
        if colon and not name.startswith((" ", "\t")):
            fields.setdefault(name.lower(), value.strip())
    return fields


def _is_of_npm(path: bytes) -> bool:
    """`node_modules/NAME` or `node_modules/@SCOPE/NAME`."""
    parts = path.split(b"/")
    if parts[-1].startswith((b".", b"@")) or len(parts) < 2:
        return False
    return parts[-2] == b"node_modules" or (
        len(parts) > 2 and parts[-2].startswith(b"@") and parts[-3] == b"node_modules"
    )


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _kib(text: str) -> int | None:
    return int(text) * 1024 if text.isdecimal() and len(text) < 12 else None
