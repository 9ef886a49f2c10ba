"""What a workspace held at one moment: kind, mode and digest of everything in it, and the difference of two moments.

A scan reads each directory and the status of each entry; content is digested only where identity,
size or a time is new. A digest taken within a clock tick of the file's last change is not trusted the
next time, because a second write in that tick would not show; nor is that of a file which somebody who lives still
may hold in memory: only his first write there shows, and in a file system in memory not even that. Workspaces too large to scan before
and after every command are not recorded at all, and say so.
"""

import fcntl
import hashlib
import os
import signal
import stat
import time
from typing import Any, NamedTuple

from coldframe.guest.facts import text_of
from coldframe.guest.files import digest_file, temporary_names
from coldframe.guest.paths import open_unlinked
from coldframe.guest.trees import HISTORY, READ_DIRECTORY
from coldframe.guest.verbs import Answer, verb
from coldframe.guest.watch import TreeWatch, is_memory

MOST_ENTRIES = 20_000
HASH_BUDGET_BYTES = 256 * 1024 * 1024
PATH_BYTES = 8 * 1024 * 1024
"""Most bytes of paths in a manifest, against trees that are deep rather than full."""
TICK_NS = 20_000_000

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW

Identity = tuple[int, int, int, int]
"""Inode, size, time of content, time of status."""


class Entry(NamedTuple):
    kind: str
    """As in FileChange: file, directory, symlink, other."""
    mode: int
    identity: Identity
    digest: str | None
    """Of the content, or of a link's target; None for the rest and for what could not be read."""


class Manifest(NamedTuple):
    recorded: bool
    reason: str | None
    """Why nothing is recorded; or, with `recorded`, what is missing."""
    entries: dict[bytes, Entry]
    tree_sha256: str | None
    """Over path, kind, mode and digest of everything; None if something could not be read."""
    digests: dict[Identity, str]
    """Digests to trust at the next scan."""
    unreadable: tuple[bytes, ...]

    @property
    def file_bytes(self) -> int:
        """Sizes of all regular files, added up."""
        return sum(entry.identity[1] for entry in self.entries.values() if entry.kind == "file")


def scan(
    root: int,
    known: Manifest | None = None,
    *,
    max_entries: int = MOST_ENTRIES,
    hash_budget_bytes: int = HASH_BUDGET_BYTES,
    watch: TreeWatch | None = None,
    others_since_ns: int | None = None,
    closed: frozenset[bytes] = frozenset(),
) -> Manifest:
    """The manifest of the workspace now. Never raises for what is in it.

    *known* is an earlier one, for its digests. Files past the budget have no digest and are compared by
    their status. Uploads that this process has in hand are left out. *watch* tells afterwards whether the manifest
    still holds. *others_since_ns*: since when processes live that may write meanwhile; None if there are none.
    *closed* are paths that are left out with all that is below them.
    """
    if watch is not None:
        watch.begin_scan(root)
    trusted = known.digests if known is not None and not is_memory(root) else {}
    scanning = _Scan(root, trusted, max_entries, hash_budget_bytes, watch, others_since_ns, closed)
    left = [b""]
    while left:
        left += scanning.read_directory(left.pop())
        if len(scanning.entries) > max_entries:
            return _unrecorded(f"the workspace has more than {max_entries} files and directories")
        if scanning.path_bytes > PATH_BYTES:
            return _unrecorded("the paths in the workspace are too long to keep track of")
    if watch is not None:
        if scanning.unreadable or any(scanning.names_elsewhere.values()):
            watch.miss()
        watch.end_scan()
    reasons = []
    if scanning.undigested:
        reasons.append(f"{scanning.undigested} files were compared without a digest")
    if scanning.unreadable:
        reasons.append(f"{len(scanning.unreadable)} directories could not be read")
    return Manifest(
        recorded=True,
        reason="; ".join(reasons) or None,
        entries=scanning.entries,
        tree_sha256=None if reasons else _digest_tree(scanning.entries),
        digests=scanning.digests,
        unreadable=tuple(scanning.unreadable),
    )


@verb("digest_tree", slow=True)
def digest_tree(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a DigestTree."""
    found = scan(root)
    return {"sha256": found.tree_sha256, "reason": found.reason}, b""


def _unrecorded(reason: str) -> Manifest:
    return Manifest(False, reason, {}, None, {}, ())


class _Scan:
    def __init__(
        self,
        root: int,
        known: dict[Identity, str],
        most_entries: int,
        budget_bytes: int,
        watch: TreeWatch | None,
        others_since_ns: int | None,
        closed: frozenset[bytes],
    ) -> None:
        self._root = root
        self._closed = closed
        self._watch = watch
        self._known = known
        self._most_entries = most_entries
        self._budget_bytes = budget_bytes
        self._skip_names = temporary_names()
        self._trusted_before_ns = time.time_ns() - TICK_NS
        self._unheld_before_ns = self._trusted_before_ns if others_since_ns is None else others_since_ns - TICK_NS
        self.entries: dict[bytes, Entry] = {}
        self.digests: dict[Identity, str] = {}
        self.unreadable: list[bytes] = []
        self.names_elsewhere: dict[int, int] = {}
        """Of files with several names, by inode: how many were not met yet."""
        self.undigested = 0
        self.path_bytes = 0

    def read_directory(self, path: bytes) -> list[bytes]:
        """Take in one directory; returns the paths of its subdirectories."""
        try:
            here = open_unlinked(self._root, path, READ_DIRECTORY)
        except FileNotFoundError:
            return []
        except OSError:
            self.unreadable.append(path)
            return []
        below = []
        prefix = path + b"/" if path else b""
        skip_names = self._skip_names if path else self._skip_names | {HISTORY}
        entries, read = self.entries, self._read
        try:
            if self._watch is not None:
                self._watch.add(here, is_root=not path)
            with os.scandir(here) as found:
                for each in found:
                    name = os.fsencode(each.name)
                    if name in skip_names:
                        continue
                    try:
                        status = each.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    child = prefix + name
                    if child in self._closed:
                        continue
                    self.path_bytes += len(child)
                    if stat.S_ISDIR(status.st_mode):
                        below.append(child)
                    entries[child] = read(here, name, status)
                    if len(entries) > self._most_entries:
                        break
        finally:
            os.close(here)
        return below

    def _read(self, here: int, name: bytes, status: os.stat_result) -> Entry:
        mode = status.st_mode
        identity = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if stat.S_ISREG(mode):
            if status.st_nlink > 1:
                self.names_elsewhere[status.st_ino] = self.names_elsewhere.get(status.st_ino, status.st_nlink) - 1
            digest = self._known.get(identity)
            is_trusted = digest is not None
            if digest is None:
                digest, is_trusted = self._digest(here, name, identity)
            if digest is None:
                self.undigested += 1
            elif is_trusted and status.st_ctime_ns < self._trusted_before_ns:
                self.digests[identity] = digest
            return Entry("file", mode & 0o7777, identity, digest)
        if stat.S_ISDIR(mode):
            return Entry("directory", mode & 0o7777, identity, None)
        if stat.S_ISLNK(mode):
            return Entry("symlink", 0, identity, _digest_link(here, name))
        return Entry("other", mode, identity, None)

    def _digest(self, here: int, name: bytes, identity: Identity) -> tuple[str | None, bool]:
        """The digest, and whether it holds as long as the identity does."""
        size = identity[1]
        if size > self._budget_bytes:
            return None, False
        try:
            held = os.open(name, READ, dir_fd=here)
        except OSError:
            return None, False
        try:
            # Asked before it is read: who comes later changes a time.
            is_trusted = identity[3] < self._unheld_before_ns or not _is_held_to_write(held)
            now = os.fstat(held)
            if (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != identity or not stat.S_ISREG(now.st_mode):
                return None, False  # another file by now; the next scan sees it
            self._budget_bytes -= size
            return digest_file(held, size)[0], is_trusted
        except OSError:
            return None, False
        finally:
            os.close(held)


def _is_held_to_write(file: int) -> bool:
    """Whether anybody has this file open for writing, or in memory; True where that cannot be told.

    The kernel grants a lease for reading only if nobody has. One who opens it meanwhile waits until the lease is given
    back, and the signal that tells us so is one that does nothing.
    """
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _digest_link(here: int, name: bytes) -> str | None:
    try:
        return hashlib.sha256(os.readlink(name, dir_fd=here)).hexdigest()
    except OSError:
        return None


def _digest_tree(entries: dict[bytes, Entry]) -> str:
    digest = hashlib.sha256()
    for path in sorted(entries):
        entry = entries[path]
        digest.update(
            b"%d:%s %s %o %s\n" % (len(path), path, entry.kind.encode(), entry.mode, (entry.digest or "-").encode())
        )
    return digest.hexdigest()


# -- difference ------------------------------------------------------------------------------------


def compare(before: Manifest, after: Manifest) -> list[dict[str, Any]]:
    """The changes from one moment to another as FileChange, sorted by path. Empty if either is not recorded.

    A file that was only touched, or whose mode alone changed, is `metadata`; a directory is that by its
    mode alone. What lies below a directory that could not be read is not called deleted.
    """
    if not (before.recorded and after.recorded):
        return []
    changes = []
    for path in sorted(before.entries.keys() | after.entries.keys()):
        old, new = before.entries.get(path), after.entries.get(path)
        if old is not None and new is not None:
            change = _change(old, new)
        elif _hidden(path, after.unreadable if new is None else before.unreadable):
            change = None
        else:
            change = "deleted" if new is None else "created"
        if change is None:
            continue
        last = new or old
        assert last is not None
        changes.append(
            {
                "path": text_of(path),
                "change": change,
                "kind": last.kind,
                "sha256_before": old.digest if old is not None and old.kind == "file" else None,
                "sha256_after": new.digest if new is not None and new.kind == "file" else None,
            }
        )
    return changes


def _change(old: Entry, new: Entry) -> str | None:
    if old == new:
        return None
    if old.kind != new.kind:
        return "changed"
    if old.kind == "directory":
        return "metadata" if old.mode != new.mode else None
    if old.kind == "symlink":
        return "changed" if old.digest != new.digest else None
    if old.kind == "other":
        return "changed" if old.mode != new.mode or old.identity[0] != new.identity[0] else None
    if old.identity == new.identity and None in (old.digest, new.digest):
        return None  # digested once and not the other time, for the budget
    if old.digest is None or new.digest is None or old.digest != new.digest:
        return "changed"
    return "metadata" if old.mode != new.mode or old.identity[2] != new.identity[2] else None


def _hidden(path: bytes, unreadable: tuple[bytes, ...]) -> bool:
    return any(not above or path.startswith(above + b"/") for above in unreadable)
