"""The working tree of a Git repository against its index and its commits, read as data.

Settings, filters and attributes are not followed. So a file whose content a filter or other line ends would change is told as
modified unless Git has seen it as it is; large files kept elsewhere (LFS) are known by what stands in their place, and compared
with that.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from coldframe.guest.facts import text_of
from coldframe.guest.git_index import GITLINK, MOST_BYTES, SYMLINK, TREE, Entry, Unreadable, read_index
from coldframe.guest.git_objects import Objects, head_of, read_regular, tree_of_index
from coldframe.guest.paths import open_unlinked
from coldframe.guest.unsaved import Repository, Search, join

MOST_POINTER_BYTES = 1024
MOST_POINTERS = 20_000
MOST_NAMED = 100
_SHALLOW = re.compile(rb"^(?:[0-9a-f]{40}|[0-9a-f]{64})$", re.MULTILINE)
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:[a-z0-9.-]+ [^\n]*\n)*?oid sha256:([0-9a-f]{64})\nsize (\d{1,18})\n"
)
_CONFLICTS = {
    frozenset({1}): "both_deleted",
    frozenset({2}): "added_by_us",
    frozenset({3}): "added_by_them",
    frozenset({1, 2}): "deleted_by_them",
    frozenset({1, 3}): "deleted_by_us",
    frozenset({2, 3}): "both_added",
    frozenset({1, 2, 3}): "both_modified",
}
_UNDER_WAY = (
    (b"rebase-merge", "rebase"),
    (b"rebase-apply", "rebase"),
    (b"MERGE_HEAD", "merge"),
    (b"CHERRY_PICK_HEAD", "cherry_pick"),
    (b"REVERT_HEAD", "revert"),
    (b"BISECT_LOG", "bisect"),
)
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


class Side(NamedTuple):
    """One file as one side of a comparison has it."""

    mode: int
    id: bytes | None
    """None: it is what lies in the working tree, and differs from what is known of it."""


def pointer_of(content: bytes) -> tuple[bytes, int] | None:
    """Digest and size of what a pointer stands for."""
    found = _POINTER.fullmatch(content) if len(content) <= MOST_POINTER_BYTES else None
    return None if found is None else (bytes.fromhex(found[1].decode()), int(found[2]))


class Work:
    """That of one repository. Its `objects` are to be closed."""

    def __init__(
        self,
        search: Search,
        repository: Repository,
        width: int,
        check_time: Callable[[], None],
        *,
        with_index: bool,
    ) -> None:
        self._search = search
        self._repository = repository
        self._check_time = check_time
        index = repository.folder + b"/index"
        content = read_regular(search.root, index, MOST_BYTES) if with_index else None
        self._entries: list[Entry] = []
        self._algorithm = "sha1" if width == 20 else "sha256"
        self._written = 0
        if content is not None:
            self._entries, self._algorithm = read_index(content, check_time)
            status = search.status_of(index)
            self._written = 0 if status is None else status.st_mtime_ns
        self.objects = Objects(search.root, repository.common, self._algorithm, check_time)
        shallow = read_regular(search.root, repository.common + b"/shallow", MOST_BYTES) or b""
        self.shallow = {bytes.fromhex(one.decode()) for one in _SHALLOW.findall(shallow)}

    # -- sides of a comparison -----------------------------------------------------------------

    def of_tree(self, tree: bytes | None) -> dict[bytes, Side]:
        found = {} if tree is None else self.objects.files_of(tree)
        return {path: Side(mode, object_id) for path, (mode, object_id) in found.items()}

    def of_index(self) -> dict[bytes, Side]:
        """Of a file in conflict what this side of the merge has."""
        plain = {one.path: Side(one.mode, one.id) for one in self._entries if one.stage in (0, 2) and not one.intended}
        return {path: side for path, side in plain.items() if side.mode != TREE}

    def of_files(self) -> dict[bytes, Side]:
        """The files that Git knows, as they lie there."""
        found: dict[bytes, Side] = {}
        for entry in self._entries:
            self._check_time()
            if entry.stage not in (0, 2) or entry.mode == TREE:
                continue
            change = self._change(entry)
            if change is None:
                found[entry.path] = Side(entry.mode, entry.id)
            elif change == "modified":
                found[entry.path] = Side(self._mode_of(entry), self._id_of(entry))
        return found

    def _mode_of(self, entry: Entry) -> int:
        status = self._search.status_of(join(self._repository.top, entry.path))
        if entry.mode == GITLINK or status is None:
            return entry.mode
        if stat.S_ISLNK(status.st_mode):
            return SYMLINK
        return 0o100755 if status.st_mode & 0o100 else 0o100644

    def _id_of(self, entry: Entry) -> bytes | None:
        """Of a submodule the commit that it is at; of a file nothing, since that lies in no store."""
        return self._commit_in(entry) if entry.mode == GITLINK else None

    def content_of(self, path: bytes, mode: int, most_bytes: int) -> tuple[bytes | None, int | None]:
        """What lies there, and its size; None for what is larger, or gone meanwhile."""
        whole = join(self._repository.top, path)
        try:
            if mode == SYMLINK:
                held = open_unlinked(self._search.root, whole, os.O_PATH | os.O_NOFOLLOW)
                try:
                    target = os.readlink(b"", dir_fd=held)
                finally:
                    os.close(held)
                return target, len(target)
            held = open_unlinked(self._search.root, whole, READ)
        except OSError:
            return None, None
        try:
            status = os.fstat(held)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
                return None, status.st_size
            found = bytearray()
            while len(found) <= most_bytes and (piece := os.read(held, 1 << 20)):
                found += piece
            return (bytes(found) if len(found) <= most_bytes else None), len(found)
        except OSError:
            return None, None
        finally:
            os.close(held)

    # -- status --------------------------------------------------------------------------------

    def status(self, tree: bytes | None, most: int) -> dict[str, Any]:
        """All that is not as the last commit has it."""
        changes: dict[bytes, dict[str, Any]] = {}

        def of(path: bytes, mode: int) -> dict[str, Any]:
            kind = {SYMLINK: "symlink", GITLINK: "submodule"}.get(mode, "file")
            plain = {"path": text_of(path), "staged": None, "unstaged": None, "conflict": None, "kind": kind}
            return changes.setdefault(path, plain)

        stages: dict[bytes, set[int]] = {}
        for entry in self._entries:
            if entry.stage:
                stages.setdefault(entry.path, set()).add(entry.stage)
                of(entry.path, entry.mode)
        for path, numbers in stages.items():
            changes[path]["conflict"] = _CONFLICTS.get(frozenset(numbers), "both_modified")
        self._add_staged(tree, stages, of)
        submodules = []
        for entry in self._entries:
            self._check_time()
            if entry.path in stages or entry.mode == TREE:
                continue
            if entry.mode == GITLINK:
                submodules.append(self._submodule(entry))
            if (change := self._change(entry)) is not None:
                of(entry.path, entry.mode)["unstaged"] = change
        untracked = self._search.untracked(self._repository, {entry.path for entry in self._entries})
        for path, mode in untracked:
            of(path, SYMLINK if stat.S_ISLNK(mode) else 0o100644)["unstaged"] = "untracked"
        pointers = self._pointers()
        return {
            "changes": [changes[path] for path in sorted(changes)][:most],
            "total": len(changes),
            "complete": len(changes) <= most,
            "clean": not changes,
            "conflicts": [text_of(path) for path in sorted(stages)][:most],
            "under_way": self._under_way(),
            "submodules": submodules[:MOST_NAMED],
            "lfs_pointers": [text_of(one) for one in pointers[:MOST_NAMED]],
            "lfs_pointers_total": len(pointers),
            "shallow": bool(self.shallow),
        }

    def _add_staged(self, tree: bytes | None, stages: dict[bytes, set[int]], of: Callable[..., dict[str, Any]]) -> None:
        plain = [entry for entry in self._entries if entry.stage == 0 and not entry.intended]
        for entry in self._entries:
            if entry.intended:
                of(entry.path, entry.mode)["unstaged"] = "added"
        is_plain = tree is not None and not stages and len(plain) == len(self._entries)
        if is_plain and tree_of_index(plain, self._algorithm) == tree:
            return
        committed = {} if tree is None else self.objects.files_of(tree)
        known = {entry.path: (entry.mode, entry.id) for entry in plain}
        sparse = tuple(entry.path + b"/" for entry in plain if entry.mode == TREE)
        for path in committed.keys() | known.keys():
            self._check_time()
            if path in stages or committed.get(path) == known.get(path):
                continue
            if (path in known and known[path][0] == TREE) or (sparse and path.startswith(sparse)):
                continue
            change = "deleted" if path not in known else "added" if path not in committed else "modified"
            of(path, (known.get(path) or committed[path])[0])["staged"] = change

    def _change(self, entry: Entry) -> str | None:
        if entry.mode == GITLINK:
            at = self._commit_in(entry)
            return "modified" if at is not None and at != entry.id else None
        change = self._search.change_of(self._repository, entry, self._algorithm, self._written)
        if change == "modified" and entry.mode not in (SYMLINK, TREE) and self._is_what_it_points_to(entry):
            return None
        return change

    def _is_what_it_points_to(self, entry: Entry) -> bool:
        """Whether a file is the large one that a pointer in the index stands for."""
        size = self.objects.size_of(entry.id)
        if size is None or size > MOST_POINTER_BYTES:
            return False
        pointer = pointer_of(self.objects.read(entry.id)[1])
        if pointer is None:
            return False
        try:
            held = open_unlinked(self._search.root, join(self._repository.top, entry.path), READ)
        except OSError:
            return False
        try:
            status = os.fstat(held)
            if not stat.S_ISREG(status.st_mode) or status.st_size != pointer[1]:
                return False
            digest = hashlib.sha256()
            while piece := os.read(held, 1 << 20):
                self._check_time()
                digest.update(piece)
            return digest.digest() == pointer[0]
        except OSError:
            return False
        finally:
            os.close(held)

    def _commit_in(self, entry: Entry) -> bytes | None:
        """The commit that a submodule is at; None where it is not there, or cannot be read."""
        try:
            place = join(self._repository.top, entry.path)
            inner = self._search.opened(place) if self._search.has_git(place) else None
            return None if inner is None else head_of(self._search.root, inner.folder, inner.common)
        except Unreadable:
            return None

    def _submodule(self, entry: Entry) -> dict[str, Any]:
        at = self._commit_in(entry)
        return {
            "path": text_of(entry.path),
            "commit": entry.id.hex(),
            "checked_out": None if at is None else at.hex(),
        }

    def _pointers(self) -> list[bytes]:
        """Files of which the pointer lies there in place of the content, where attributes speak of that."""
        attributes = read_regular(
            self._search.root, join(self._repository.top, b".gitattributes"), MOST_POINTER_BYTES * 64
        )
        if b"lfs" not in (attributes or b""):
            return []
        small = [
            one
            for one in self._entries
            if one.mode not in (SYMLINK, GITLINK, TREE) and 100 <= one.size <= MOST_POINTER_BYTES
        ]
        found = []
        for entry in small[:MOST_POINTERS]:
            self._check_time()
            content, _ = self.content_of(entry.path, entry.mode, MOST_POINTER_BYTES)
            if content is not None and pointer_of(content) is not None:
                found.append(entry.path)
        return found

    def _under_way(self) -> str | None:
        for name, what in _UNDER_WAY:
            if self._search.status_of(self._repository.folder + b"/" + name) is not None:
                return what
        return None
