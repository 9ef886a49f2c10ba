"""What layers on top of one another look like, found out without mounting anything: a stopped sandbox is read this way.

It answers as overlayfs does. Links are followed only where a caller names a path, name by name across the layers, and
never out of the tree: an absolute target counts from the box's own place of it, everything else is refused.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import NamedTuple

from coldframe.contract.errors import (
    FileMissing,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotRegular,
    OutsideWorkspace,
    TooLarge,
)
from coldframe.guest.paths import MOST_LINKS, MOUNT
from coldframe.host.layers.branch import Branch, is_whiteout, join, require_few
from coldframe.host.layers.mapping import Users

READ_CAP_BYTES = 64 * 1024 * 1024
LARGE_BYTES = 16 * 1024 * 1024
"""Files over this are not searched."""


class Place(NamedTuple):
    """A name in the merged tree."""

    path: bytes
    branches: tuple[int, ...]
    """Numbers of the layers that it is made of, the highest first: one, but for directories."""
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class Match(NamedTuple):
    """A line that holds what was searched for; lines count from 1."""

    path: bytes
    line: int
    text: bytes


class MergedView:
    """Reads a stack of layers, given from the highest to the lowest, and whom the users inside are in each, as far as that is
    known. For one thread at a time; to be closed."""

    def __init__(self, directories: Sequence[str], users: Sequence[Users | None] = ()) -> None:
        self._closing = ExitStack()
        self.branches: list[Branch] = []
        try:
            for path, theirs in zip_longest(directories, users):
                self.branches.append(branch := Branch(path, users=theirs))
                self._closing.callback(branch.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> "MergedView":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- names as they are, links not followed ---------------------------------------------------------

    def top(self) -> Place:
        return Place(b"", tuple(range(len(self.branches))), self.branches[0].top())

    def below(self, parent: Place, name: bytes) -> Place | None:
        """What *name* is in the directory *parent*; None if it is not there, or no longer."""
        return self.found(join(parent.path, name), parent.branches)

    def found(self, path: bytes, branches: tuple[int, ...]) -> Place | None:
        """What *path* is in these layers alone, given that its directory is made of them."""
        made_of: list[int] = []
        first: os.stat_result | None = None
        for number in branches:
            status = self.branches[number].status(path)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                if first is None and not is_whiteout(status):
                    return Place(path, (number,), status)
                break
            first = first or status
            made_of.append(number)
            if number != branches[-1] and self.branches[number].is_opaque(path):
                break
        return Place(path, tuple(made_of), first) if first else None

    def children(self, parent: Place) -> list[Place]:
        """What the directory *parent* holds, sorted by name."""
        found: dict[bytes, tuple[list[int], os.stat_result]] = {}
        settled: set[bytes] = set()
        for number in parent.branches:
            branch, last = self.branches[number], number == parent.branches[-1]
            for name, status in branch.entries(parent.path):
                if name in settled:
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    settled.add(name)
                    if name not in found and not is_whiteout(status):
                        found[name] = [number], status
                    continue
                found.setdefault(name, ([], status))[0].append(number)
                if not last and branch.is_opaque(join(parent.path, name)):
                    settled.add(name)
        return [
            Place(join(parent.path, name), tuple(made_of), status)
            for name, (made_of, status) in sorted(found.items(), key=lambda item: item[0])
        ]

    def walk(self, start: Place | None = None) -> Iterator[Place]:
        """Everything below *start*, each directory before what it holds."""
        ahead = [start or self.top()]
        while ahead:
            place = ahead.pop()
            if place is not start and place.path:
                yield place
            if place.is_directory:
                ahead += reversed(self.children(place))
                require_few(len(ahead))

    def attributes(self, place: Place) -> dict[bytes, bytes]:
        return self.branches[place.branches[0]].attributes(place.path)

    def link_target(self, place: Place) -> bytes:
        return self.branches[place.branches[0]].link_target(place.path)

    def open_file(self, place: Place) -> int:
        """A descriptor of a regular file, to be closed by the caller."""
        return self.branches[place.branches[0]].open_file(place.path)

    # -- paths as somebody asks for them ---------------------------------------------------------------

    def find(self, path: str, *, follow: bool = True) -> Place:
        """What a path means, with links followed inside the tree; the last one only if *follow*.

        Raises:
            FileMissing, NotDirectory, OutsideWorkspace: a path or a link that leaves the tree.
            InvalidArgument: no valid text, a NUL, or a loop of links.
        """
        try:
            asked = path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidArgument("the path is not valid text") from error
        if b"\0" in asked:
            raise InvalidArgument("the path holds a NUL")
        trail = [self.top()]
        ahead = self._inside(asked, path).split(b"/")[::-1]
        links = 0
        while ahead:
            name = ahead.pop()
            if name in (b"", b"."):
                continue
            if not trail[-1].is_directory:
                raise NotDirectory(f"a part of `{path}` is no directory", path=path)
            if name == b"..":
                if len(trail) == 1:
                    raise OutsideWorkspace(f"`{path}` leaves the workspace", path=path)
                trail.pop()
                continue
            place = self.below(trail[-1], name)
            if place is None:
                raise FileMissing(f"`{path}` does not exist", path=path)
            if not stat.S_ISLNK(place.status.st_mode) or not (follow or any(part not in (b"", b".") for part in ahead)):
                trail.append(place)
                continue
            links += 1
            if links > MOST_LINKS:
                raise InvalidArgument(f"`{path}` is a loop of symbolic links", path=path)
            target = self.link_target(place)
            if target.startswith(b"/"):
                trail = trail[:1]
            ahead += self._inside(target, path).split(b"/")[::-1]
        return trail[-1]

    def _inside(self, path: bytes, asked: str) -> bytes:
        if not path.startswith(b"/"):
            return path
        if path == MOUNT or path.startswith(MOUNT + b"/"):
            return path[len(MOUNT) :].lstrip(b"/")
        raise OutsideWorkspace(f"`{asked}` leaves the workspace", path=asked)

    def list(self, path: str = "") -> "list[Place]":
        place = self.find(path)
        if not place.is_directory:
            raise NotDirectory(f"`{path}` is no directory", path=path)
        return self.children(place)

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a regular file. Raises TooLarge past READ_CAP_BYTES, and what `find` raises."""
        place = self.find(path)
        if place.is_directory:
            raise IsDirectory(f"`{path}` is a directory", path=path)
        if not stat.S_ISREG(place.status.st_mode):
            raise NotRegular(f"`{path}` is no regular file", path=path)
        wanted = max(0, place.status.st_size - offset) if length is None else length
        if wanted > READ_CAP_BYTES:
            raise TooLarge(f"`{path}` has more than {READ_CAP_BYTES} bytes there", path=path)
        file = self.open_file(place)
        try:
            pieces = []
            while wanted and (piece := os.pread(file, wanted, offset)):
                pieces.append(piece)
                offset, wanted = offset + len(piece), wanted - len(piece)
        finally:
            os.close(file)
        return b"".join(pieces)

    def search(self, text: bytes, path: str = "") -> Iterator[Match]:
        """Lines that hold *text*, in files that are neither binary nor over LARGE_BYTES. Stop when you have enough."""
        start = self.find(path)
        for place in self.walk(start) if start.is_directory else [start]:
            if not stat.S_ISREG(place.status.st_mode) or place.status.st_size > LARGE_BYTES:
                continue
            file = self.open_file(place)
            with open(file, "rb") as source:
                content = source.read(LARGE_BYTES)
            if text not in content or b"\0" in content[:8192]:
                continue
            for number, line in enumerate(content.split(b"\n"), 1):
                if text in line:
                    yield Match(place.path, number, line)
