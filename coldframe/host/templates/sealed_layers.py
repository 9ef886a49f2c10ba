"""The sealed layers of templates on disk: `<data>/templates/layers/DIGEST/` with `files/`, `facts` and `bytes` beside it.

One is made in a draft, which a box may write to, and then has its name, or it is not there; after that nothing in it is
changed. The same content is there once, whoever made it. As root alone: a box is shown its files with its own users.
"""

import fcntl
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from coldframe.contract.errors import TemplateChanged
from coldframe.host.layers.mapping import Users
from coldframe.host.layers.writeback import sync_all
from coldframe.host.removal import remove_tree
from coldframe.host.templates import sealing
from coldframe.host.templates.id_range import IdRange
from coldframe.host.templates.watched_trees import WatchedTrees

_DRAFT = ".new-"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Draft(NamedTuple):
    """Of a layer."""

    path: str
    files: str
    """Empty at first, and what a box writes to."""
    work: str
    """For overlayfs."""
    held: int
    """A descriptor that keeps it from being swept as long as it, or a copy of it, is open in any process."""


class SealedLayers:
    """All of one machine. Methods block, and may be called in any thread or process."""

    def __init__(self, folder: str, watched: WatchedTrees) -> None:
        self._folder = folder
        self._watched = watched
        self._lock = threading.Lock()
        """While it is settled which layers are needed: by whoever has just made one, and whoever removes others."""

    def all(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if _DIGEST.fullmatch(name)]
        except FileNotFoundError:
            return []

    def has(self, digest: str) -> bool:
        return _DIGEST.fullmatch(digest) is not None and os.path.isdir(self.files(digest))

    def files(self, digest: str) -> str:
        return os.path.join(self._folder, digest, "files")

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Gone afterwards, unless it was sealed. Nobody may be at work in it then."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, _DRAFT + secrets.token_hex(8))
        os.mkdir(path, 0o700)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files, work = os.path.join(path, "files"), os.path.join(path, "work")
            os.mkdir(files, 0o755)
            os.mkdir(work, 0o700)
            yield Draft(path, files, work, held)
        finally:
            os.close(held)
            if os.path.isdir(path):
                remove_tree(path)

    def seal(self, draft: Draft, users: Users, ids: IdRange, needed: set[str]) -> str | None:
        """Make a layer of what a box of these users has left; its digest, which is added to *needed* before it could be
        collected, or None if there is nothing in it.

        Raises:
            TooLarge, Unfit: see `sealing.hand_over`.
        """
        sealing.clean(draft.files)
        if sealing.is_empty(draft.files):
            return None
        sealing.hand_over(draft.files, users, ids)
        digest = sealing.layer_digest(draft.files, ids)
        if self.hold(digest, needed):
            try:
                self.check(digest, ids)
                return digest
            except TemplateChanged:  # what is made here is what it was
                self._remove(digest)
        remove_tree(draft.work)
        write_whole(os.path.join(draft.path, "facts"), sealing.facts_of_tree(draft.files))
        write_whole(os.path.join(draft.path, "bytes"), str(sealing.size_of_tree(draft.files)))
        sync_all(draft.path)
        try:
            os.rename(draft.path, os.path.join(self._folder, digest))
        except OSError:  # somebody else made the same meanwhile
            if not self.has(digest):
                raise
        return digest

    def bytes(self, digest: str) -> int:
        with open(os.path.join(self._folder, digest, "bytes"), encoding="ascii") as source:
            return int(source.read())

    def check(self, digest: str, ids: IdRange) -> None:
        """At the price of a listing. Raises TemplateChanged: it is not what was sealed."""
        files, facts = self.files(digest), os.path.join(self._folder, digest, "facts")
        self._watched.look(files, partial(check_tree, files, facts, lambda: self.verify(digest, ids)))

    def verify(self, digest: str, ids: IdRange) -> bool:
        """Whether it is, to the byte, what was sealed. Reads all of it."""
        return self.has(digest) and sealing.layer_digest(self.files(digest), ids) == digest

    def hold(self, digest: str, needed: set[str]) -> bool:
        """Add a layer to those that are needed, before it could be collected. Whether it is there."""
        with self._lock:
            needed.add(digest)
            return self.has(digest)

    def collect(self, needed: Callable[[], set[str]]) -> list[str]:
        """Remove all but those that are needed; no box may have them. What was removed."""
        with self._lock:
            kept = needed()
            gone = [one for one in self.all() if one not in kept]
            graves = [self._bury(one) for one in gone]
        for grave in graves:
            remove_tree(grave)
        return gone

    def _remove(self, digest: str) -> None:
        remove_tree(self._bury(digest))

    def _bury(self, digest: str) -> str:
        """It has no name any more."""
        grave = os.path.join(self._folder, _DRAFT + secrets.token_hex(8))
        os.rename(os.path.join(self._folder, digest), grave)
        return grave

    def sweep(self) -> None:
        """Remove what was being made, or removed, by a process that was killed. One that a box still has is let be."""
        if not os.path.isdir(self._folder):
            return
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(_DRAFT) and not _is_held(path):
                remove_tree(path)


def check_tree(directory: str, facts: str, verify: Callable[[], bool], was_touched: bool) -> None:
    """Compare a tree with its facts, or if it was touched, or these differ, with its digest; then they are written anew.

    Raises TemplateChanged. That they cannot be written is no reason not to start from what is whole.
    """
    try:
        found = sealing.facts_of_tree(directory)
    except OSError as error:
        raise TemplateChanged(f"a part of the template cannot be read: {error}", path=directory) from error
    try:
        with open(facts, encoding="ascii") as source:
            if source.read() == found and not was_touched:
                return
    except FileNotFoundError:
        pass
    if not verify():
        raise TemplateChanged("the files of the template are not what was built", path=directory)
    with suppress(OSError):  # on a full disk, or one that is read-only: the next look reads it whole as well
        write_whole(facts, found)


def write_whole(path: str, text: str) -> None:
    """A small file, whole or not at all."""
    draft = f"{path}.{secrets.token_hex(4)}"
    try:
        with open(draft, "x", encoding="ascii") as target:
            target.write(text)
        os.rename(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _is_held(path: str) -> bool:
    try:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(place)
    return False
