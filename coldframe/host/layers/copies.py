"""Copies of layers: one as it lies there (of a sandbox that runs), or what a stack of them looks like (flattened).

`copy_branch` is what a live snapshot takes its time with, while the caller keeps the sandbox frozen: its cost grows
with the changes only, and with their number rather than their size where the file system shares blocks.

`merge` puts layers together by hard links, so that no data is copied. That is safe since nobody ever writes to a
layer: overlayfs copies a file up before it changes it. Where links cannot be had (too many, another disk) it copies.
"""

import errno
import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from coldframe.contract.errors import SnapshotCorrupt
from coldframe.host.layers.branch import OPAQUE, Branch, is_whiteout, join, require_few, split
from coldframe.host.layers.draft import Draft, Facts, copy_content, facts_of
from coldframe.host.layers.mapping import Users, moved
from coldframe.host.layers.merged import MergedView, Place
from coldframe.host.layers.writeback import Writeback


def copy_branch(
    source: Branch, target: str, *, without: Collection[bytes] = (), written: Writeback | None = None
) -> None:
    """Copy a layer into an empty directory: whiteouts, opaque directories, attributes, links, holes and times.

    *without* are paths that are left out, whatever they hold. Nothing may change meanwhile.

    Raises:
        SnapshotCorrupt: it holds a device, which no box can make.
        OSError: as the file system gives it.
    """
    first_names: dict[tuple[int, int], bytes] = {}
    left_out = set(without)
    with Draft(target, written) as draft:
        draft.directory(b"", facts_of(source.top(), source.attributes(b"", of_overlay=True)))
        ahead = [(path, status) for path, status in _entries(source, b"")]
        while ahead:
            path, status = ahead.pop()
            if path in left_out:
                continue
            if is_whiteout(status):
                draft.whiteout(path)
                continue
            _copy_name(source, path, status, draft, first_names, of_overlay=True)
            if stat.S_ISDIR(status.st_mode):
                ahead += _entries(source, path)
                require_few(len(ahead))
        draft.finish()


class Heirs(NamedTuple):
    """Whose the files of a copy are to be."""

    owner: tuple[int, int]
    users: Users | None = None
    """Whom the users inside are there. Of layers of which it is not known who they were all belongs to the owner."""

    def of(self, branch: Branch, facts: Facts) -> Facts:
        """Where this process can give anything to anybody."""
        if facts.owner is None:
            return facts
        if self.users is None or branch.users is None:
            return facts._replace(owner=self.owner)
        return facts._replace(owner=moved(facts.owner, branch.users, self.users))


def merge(
    view: MergedView,
    target: str,
    *,
    highest: int,
    by_links: bool,
    heirs: Heirs | None = None,
    written: Writeback | None = None,
) -> None:
    """Put the *highest* layers of a view together in an empty directory; the others stay what they are, below it.

    What these hold and the merged ones hide stays hidden. *by_links* shares the files with the layers, which must be
    on the same disk and never change. *heirs* get all of it; None: whoever has it now.
    """
    first_names: dict[tuple[int, int], bytes] = {}
    with Draft(target, written) as draft:
        top = view.top()
        draft.directory(b"", _given(heirs, view.branches[top.branches[0]], facts_of(top.status, view.attributes(top))))
        ahead = [top]
        while ahead:
            parent = ahead.pop()
            others = tuple(number for number in parent.branches if number >= highest)
            children = view.children(parent)
            for path in _gone(view, parent, {child.path for child in children}, highest):
                if view.found(path, others) is not None:  # a whiteout over nothing would be seen in listings
                    draft.whiteout(path)
            for place in children:
                number = place.branches[0]
                if number >= highest:
                    continue
                if place.is_directory:
                    ahead.append(place)
                    require_few(len(ahead))
                elif by_links and _shared(view, place, draft):
                    continue
                hides = place.branches[-1] < highest and view.found(place.path, others) is not None
                opaque = place.is_directory and hides
                _copy_name(
                    view.branches[number], place.path, place.status, draft, first_names, opaque=opaque, heirs=heirs
                )
        draft.finish()


def _entries(source: Branch, path: bytes) -> list[tuple[bytes, os.stat_result]]:
    return [(join(path, name), status) for name, status in reversed(source.entries(path))]


def _copy_name(
    source: Branch,
    path: bytes,
    status: os.stat_result,
    draft: Draft,
    first_names: dict[tuple[int, int], bytes],
    *,
    of_overlay: bool = False,
    opaque: bool = False,
    heirs: Heirs | None = None,
) -> None:
    kind = stat.S_IFMT(status.st_mode)
    identity = status.st_dev, status.st_ino
    if kind != stat.S_IFDIR and identity in first_names:
        draft.hard_link(path, first_names[identity])
        return
    attributes = source.attributes(path, of_overlay=of_overlay)
    if opaque:
        attributes[OPAQUE] = b"y"
    facts = _given(heirs, source, facts_of(status, attributes))
    if kind == stat.S_IFDIR:
        draft.directory(path, facts)
    elif kind == stat.S_IFREG:
        reading = source.open_file(path)
        try:
            writing = draft.open_file(path)
            try:
                copy_content(reading, writing, draft.written)
                draft.finish_file(writing, facts)
            finally:
                os.close(writing)
        finally:
            os.close(reading)
    elif kind == stat.S_IFLNK:
        draft.symbolic_link(path, source.link_target(path), facts)
    elif kind in (stat.S_IFIFO, stat.S_IFSOCK):
        draft.special(path, kind, facts)
    else:
        raise SnapshotCorrupt(f"`{os.fsdecode(path)}` is a device, which no sandbox can make", path=os.fsdecode(path))
    if status.st_nlink > 1 and kind != stat.S_IFDIR:
        first_names[identity] = path


def _given(heirs: Heirs | None, branch: Branch, facts: Facts) -> Facts:
    return facts if heirs is None else heirs.of(branch, facts)


def _shared(view: MergedView, place: Place, draft: Draft) -> bool:
    above, name = split(place.path)
    try:
        draft.adopt(place.path, view.branches[place.branches[0]].directory(above), name)
    except OSError as error:
        if error.errno not in (errno.EMLINK, errno.EXDEV, errno.EPERM):
            raise
        return False
    return True


def _gone(view: MergedView, parent: Place, there: set[bytes], highest: int) -> set[bytes]:
    """Names that one of the *highest* layers takes away from the directory *parent* and none above it brings back."""
    found = set()
    for number in parent.branches:
        if number < highest:
            for name, status in view.branches[number].entries(parent.path):
                path = join(parent.path, name)
                if is_whiteout(status) and path not in there:
                    found.add(path)
    return found
