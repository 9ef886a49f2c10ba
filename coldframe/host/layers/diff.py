"""What differs between two points of time, each a stack of layers: layers that both have are not looked at.

At every directory only the names are compared that a layer knows which is part of it on one side alone. All others are
made of the same layers in the same order, so they are the same.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from coldframe.host.layers.branch import require_few, same_status
from coldframe.host.layers.manifest import KINDS, file_digest
from coldframe.host.layers.mapping import INSIDE
from coldframe.host.layers.merged import MergedView, Place

_PIECE_BYTES = 1024 * 1024
_LARGE_BYTES = 64 * 1024 * 1024
"""Files over this may be mostly holes, and are compared without these."""


class Change(NamedTuple):
    """One path that differs; what is below an added or deleted directory is told too."""

    path: bytes
    """Empty for the top itself."""
    change: Literal["added", "changed", "deleted", "metadata"]
    """`metadata`: the same content with another mode, owner, time of change or attributes."""
    kind: str
    """What it is now; what it was, if it is deleted."""
    bytes_before: int
    bytes_after: int


def changes(
    before: MergedView,
    after: MergedView,
    before_layers: Sequence[str],
    after_layers: Sequence[str],
    *,
    proceed: Callable[[], None] = lambda: None,
) -> Iterator[Change]:
    """Every difference, sorted within each directory. The names of the layers are given from the highest down. *proceed* is
    called for each path, and for each piece of a file that is read: it raises to break off."""
    yield from _Comparison(before, after, before_layers, after_layers, proceed).run()


class _Comparison:
    def __init__(
        self,
        before: MergedView,
        after: MergedView,
        names_before: Sequence[str],
        names_after: Sequence[str],
        proceed: Callable[[], None],
    ) -> None:
        self._before, self._after = before, after
        self._proceed = proceed
        self._names_before, self._names_after = names_before, names_after

    def run(self) -> Iterator[Change]:
        ahead = [(self._before.top(), self._after.top())]
        if self._facts_differ(*ahead[0]):
            yield _change(ahead[0][1], "metadata", ahead[0][0])
        while ahead:
            old, new = ahead.pop()
            deeper = []
            for path in self._in_doubt(old, new):
                self._proceed()
                name = path.rpartition(b"/")[2]
                was, now = self._before.below(old, name), self._after.below(new, name)
                if was is not None and now is not None and was.is_directory and now.is_directory:
                    if self._facts_differ(was, now):
                        yield _change(now, "metadata", was)
                    deeper.append((was, now))
                    continue
                yield from self._compared(was, now)
            ahead += reversed(deeper)
            require_few(len(ahead))

    def _in_doubt(self, old: Place, new: Place) -> list[bytes]:
        of_old = {self._names_before[number] for number in old.branches}
        of_new = {self._names_after[number] for number in new.branches}
        found: set[bytes] = set()
        for view, place, names in ((self._before, old, self._names_before), (self._after, new, self._names_after)):
            for number in place.branches:
                if names[number] not in of_old & of_new:
                    found.update(view.branches[number].names(place.path))
                    require_few(len(found))
        return sorted((old.path + b"/" if old.path else b"") + name for name in found)

    def _compared(self, was: Place | None, now: Place | None) -> Iterator[Change]:
        """Of a name that is not a directory on both sides."""
        if was is not None and now is not None and not was.is_directory and not now.is_directory:
            if self._same_layer(was, now):
                return
            if self._content_differs(was, now):
                yield _change(now, "changed", was)
            elif self._facts_differ(was, now):
                yield _change(now, "metadata", was)
            return
        if was is not None:
            if now is None:
                yield _change(was, "deleted", was)
            if was.is_directory:
                yield from (_change(place, "deleted", place) for place in self._before.walk(was))
            if now is not None:
                yield _change(now, "changed", was)
        elif now is not None:
            yield _change(now, "added", None)
        if now is not None and now.is_directory:
            for place in self._after.walk(now):
                yield _change(place, "added", None)

    def _same_layer(self, was: Place, now: Place) -> bool:
        return self._names_before[was.branches[0]] == self._names_after[now.branches[0]]

    def _content_differs(self, was: Place, now: Place) -> bool:
        if stat.S_IFMT(was.status.st_mode) != stat.S_IFMT(now.status.st_mode):
            return True
        if same_status(was.status, now.status):  # two names of one file, as flattening makes them
            return False
        if stat.S_ISLNK(now.status.st_mode):
            return self._before.link_target(was) != self._after.link_target(now)
        if not stat.S_ISREG(now.status.st_mode):
            return False
        if was.status.st_size != now.status.st_size:
            return True
        if now.status.st_size > _LARGE_BYTES:
            return file_digest(self._before.open_file(was)) != file_digest(self._after.open_file(now))
        return not self._same_bytes(was, now)

    def _same_bytes(self, was: Place, now: Place) -> bool:
        one = self._before.open_file(was)
        try:
            other = self._after.open_file(now)
        except BaseException:
            os.close(one)
            raise
        with open(one, "rb") as old, open(other, "rb") as new:
            while True:
                self._proceed()
                piece = old.read(_PIECE_BYTES)
                if piece != new.read(_PIECE_BYTES):
                    return False
                if not piece:
                    return True

    def _facts_differ(self, was: Place, now: Place) -> bool:
        if self._names_before[was.branches[0]] == self._names_after[now.branches[0]]:
            return False
        old, new = was.status, now.status
        if old.st_mode != new.st_mode or _belongs(self._before, was) != _belongs(self._after, now):
            return True
        if not now.is_directory and old.st_mtime_ns != new.st_mtime_ns:
            return True  # that of a directory changes with what it holds, which is told by itself
        return self._before.attributes(was) != self._after.attributes(now)


def _belongs(view: MergedView, place: Place) -> tuple[int | None, int | None] | None:
    """User and group by their numbers inside; None for the sandbox user. Where these are not known: for the owner of the
    layer, who is another one in a fork."""
    branch, (uid, gid) = view.branches[place.branches[0]], (place.status.st_uid, place.status.st_gid)
    if branch.users is None:
        return None if (uid, gid) == branch.owner else (uid, gid)
    inside = branch.users.inside(uid), branch.users.inside(gid, of_groups=True)
    return None if inside == (INSIDE, INSIDE) else inside


def _change(place: Place, change: Literal["added", "changed", "deleted", "metadata"], was: Place | None) -> Change:
    kind = KINDS[stat.S_IFMT(place.status.st_mode)]
    after = 0 if change == "deleted" else _bytes_of(place)
    return Change(place.path, change, kind, _bytes_of(was) if was else 0, after)


def _bytes_of(place: Place) -> int:
    return place.status.st_size if stat.S_ISREG(place.status.st_mode) else 0
