"""Work that no commit has: what is changed, added and new in the Git repositories of a workspace.

The repositories are their author's, who may be hostile: no program is run for this, no setting, hook, attribute or filter of
theirs is followed, and no link. What Git would know by its settings is told as changed (`core.fileMode`, line ends, filters of
attributes, where the file is not the one that Git has seen): better one file too many than one that is lost. A repository that
cannot be read is told as such.
"""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from coldframe.guest.facts import text_of
from coldframe.guest.git_ignore import Rules
from coldframe.guest.git_index import GITLINK, MOST_BYTES, SYMLINK, TREE, Entry, Unreadable, read_index
from coldframe.guest.git_objects import Objects, head_of, read_regular, tree_of_index
from coldframe.guest.paths import MOUNT, open_unlinked
from coldframe.guest.trees import READ_DIRECTORY, entry_names
from coldframe.guest.verbs import Answer, verb

MOST_REPOSITORIES = 1000
MOST_IGNORE_BYTES = 1 << 20
GIT = b".git"
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW


class Late(Exception):
    """The time is over."""


class Repository(NamedTuple):
    top: bytes
    """Of its working tree, in the workspace; empty for the workspace itself."""
    folder: bytes
    """Where Git keeps what is this working tree's."""
    common: bytes
    """Where it keeps what several have in common."""


@verb("find_unsaved", slow=True)
def find_unsaved(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a FindUnsaved."""
    search = Search(root, int(request["most"]), time.monotonic() + float(request["budget_s"]))
    complete = search.run()
    answer = {
        "repositories": search.found,
        "files": search.files,
        "total": search.total,
        "complete": complete and search.total == len(search.files),
        "looked_everywhere": complete,
    }
    return answer, b""


class Search:
    """Of the files below *root*, until the *deadline* of the monotonic clock."""

    def __init__(self, root: int, most: int, deadline: float) -> None:
        self.root = root
        self._most = most
        self._deadline = deadline
        self._tops: list[bytes] = []
        self._is_shut = False
        """Something cannot be looked into."""
        self.found: list[dict[str, Any]] = []
        self.files: list[dict[str, str]] = []
        self.total = 0

    def run(self) -> bool:
        """Whether everything was looked at."""
        try:
            self._find_tops()
            for top in self._tops:
                self._look_at(top)
        except Late:
            return False
        return len(self._tops) < MOST_REPOSITORIES and not self._is_shut

    def _find_tops(self) -> None:
        for top in self.tops():
            self._tops.append(top)

    def tops(self, most: int = MOST_REPOSITORIES) -> Iterator[bytes]:
        """Places of whatever is called `.git`, as far as the time lasts."""
        left = [b""]
        found = 0
        while left and found < most:
            self._check_time()
            path = left.pop()
            folders = []
            for name, status in self._listed(path):
                if name == GIT:
                    found += 1
                    yield path
                elif stat.S_ISDIR(status.st_mode):
                    folders.append(join(path, name))
            left += reversed(folders)

    def _look_at(self, top: bytes) -> None:
        reason = None
        before = self.total
        try:
            repository = self.opened(top)
            if repository is None:
                return
            self._compare(repository)
        except (Unreadable, MemoryError) as error:
            reason = str(error) or "it takes too much memory to read"
            self._tell(join(top, GIT), "unreadable")
        shown = text_of(top) or "."
        self.found.append({"path": shown, "unsaved": self.total - before, "reason": reason})

    def has_git(self, top: bytes) -> bool:
        return self.status_of(join(top, GIT)) is not None

    def opened(self, top: bytes) -> Repository | None:
        """None if what is called `.git` there is none, as an empty folder, or the empty file by which package managers keep
        Git from looking above their caches."""
        folder = join(top, GIT)
        status = self.status_of(folder)
        if status is None:
            return None
        if stat.S_ISREG(status.st_mode):
            if not status.st_size:
                return None
            text = read_regular(self.root, folder, 4096) or b""
            if not text.startswith(b"gitdir:"):
                raise Unreadable("its `.git` is a file that names no place")
            folder = self._place(text[7:].strip(), top)
        elif not stat.S_ISDIR(status.st_mode):
            raise Unreadable("its `.git` is a link, which is not followed")
        if read_regular(self.root, folder + b"/HEAD", 4096) is None:
            if not any(True for _ in self._listed(folder)):
                return None
            raise Unreadable("it has no HEAD")
        common = folder
        named = read_regular(self.root, folder + b"/commondir", 4096)
        if named is not None:
            common = self._place(named.strip(), folder)
        return Repository(top, folder, common)

    def _place(self, named: bytes, above: bytes) -> bytes:
        """In the workspace. Raises Unreadable for one outside."""
        whole = os.path.normpath(os.path.join(MOUNT, above, named))
        if not whole.startswith(MOUNT + b"/"):
            raise Unreadable("it is kept outside of the workspace")
        return whole[len(MOUNT) + 1 :]

    # -- one repository ------------------------------------------------------------------------

    def _compare(self, repository: Repository) -> None:
        content = read_regular(self.root, repository.folder + b"/index", MOST_BYTES)
        commit = head_of(self.root, repository.folder, repository.common)
        entries: list[Entry] = []
        written = 0
        if content is None:
            algorithm = "sha1" if commit is None or len(commit) == 20 else "sha256"
        else:
            entries, algorithm = read_index(content, self._check_time)
            status = self.status_of(repository.folder + b"/index")
            written = 0 if status is None else status.st_mtime_ns
        objects = Objects(self.root, repository.common, algorithm, self._check_time)
        try:
            told = self._compare_commit(repository, objects, commit, entries, algorithm)
        finally:
            objects.close()
        for entry in entries:
            self._check_time()
            if entry.path not in told and (change := self.change_of(repository, entry, algorithm, written)):
                self._tell(join(repository.top, entry.path), change)
        self._find_new(repository, {entry.path for entry in entries})

    def _compare_commit(
        self, repository: Repository, objects: Objects, commit: bytes | None, entries: list[Entry], algorithm: str
    ) -> set[bytes]:
        """Tell what was added and not committed. Most of the time all of it is the tree of the last commit, by its id."""
        plain = [entry for entry in entries if entry.stage == 0 and not entry.intended]
        told: set[bytes] = {entry.path for entry in entries if entry.stage or entry.intended}
        for path in sorted(told):
            self._tell(join(repository.top, path), "staged")
        tree = None if commit is None else objects.tree_of(commit)
        if tree is not None and not told and tree_of_index(plain, algorithm) == tree:
            return told
        committed = {} if tree is None else objects.files_of(tree)
        known = {entry.path: (entry.mode, entry.id) for entry in plain}
        sparse = [entry.path + b"/" for entry in plain if entry.mode == TREE]
        for path in sorted(committed.keys() | known.keys()):
            self._check_time()
            if path in told or committed.get(path) == known.get(path):
                continue
            if (path in known and known[path][0] == TREE) or any(path.startswith(one) for one in sparse):
                continue
            told.add(path)
            self._tell(join(repository.top, path), "staged")
        return told

    def change_of(self, repository: Repository, entry: Entry, algorithm: str, written: int) -> str | None:
        if entry.mode in (GITLINK, TREE):
            return None  # a repository of its own, or a part that is not checked out
        status = self.status_of(join(repository.top, entry.path))
        if status is None:
            return None if entry.skipped else "deleted"
        mode = status.st_mode
        kind = SYMLINK if stat.S_ISLNK(mode) else 0o100000 if stat.S_ISREG(mode) else 0
        if kind != entry.mode & 0o170000:
            return "modified"
        if kind != SYMLINK and bool(mode & 0o100) is not bool(entry.mode & 0o100):
            return "modified"
        seen = (divmod(status.st_mtime_ns, 10**9), divmod(status.st_ctime_ns, 10**9), status.st_size & 0xFFFFFFFF)
        if (entry.mtime, entry.ctime, entry.size) == seen and status.st_mtime_ns < written and entry.mtime[1]:
            return None
        return None if self._digest(repository, entry, status, algorithm) == entry.id else "modified"

    def _digest(self, repository: Repository, entry: Entry, status: os.stat_result, algorithm: str) -> bytes | None:
        path = join(repository.top, entry.path)
        try:
            if stat.S_ISLNK(status.st_mode):
                held = open_unlinked(self.root, path, os.O_PATH | os.O_NOFOLLOW)
                try:
                    target = os.readlink(b"", dir_fd=held)
                finally:
                    os.close(held)
                return hashlib.new(algorithm, b"blob %d\0%s" % (len(target), target)).digest()
            held = open_unlinked(self.root, path, READ)
        except OSError:
            return None
        try:
            digest = hashlib.new(algorithm, b"blob %d\0" % status.st_size)
            while piece := os.read(held, 1 << 20):
                self._check_time()
                digest.update(piece)
            return digest.digest()
        except OSError:
            return None
        finally:
            os.close(held)

    def _find_new(self, repository: Repository, tracked: set[bytes]) -> None:
        for path, _ in self.untracked(repository, tracked):
            self._tell(join(repository.top, path), "untracked")

    def untracked(self, repository: Repository, tracked: set[bytes]) -> Iterator[tuple[bytes, int]]:
        """Files that Git does not know, and shall not leave out, below the top of the repository, with their modes."""
        rules = Rules().below(b"", read_ignore(self.root, b".config/git/ignore"))
        rules = rules.below(b"", read_ignore(self.root, repository.common + b"/info/exclude"))
        left = [(b"", rules)]
        while left:
            path, rules = left.pop()
            self._check_time()
            here = join(repository.top, path)
            place = path + b"/" if path else b""
            rules = rules.below(place, read_ignore(self.root, join(here, b".gitignore")))
            for name, status in self._listed(here):
                self._check_time()
                below = place + name
                if name == GIT or (not here and name == b".exec_history"):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if not self._is_repository(join(here, name)) and not rules.leave_out(below, is_folder=True):
                        left.append((below, rules))
                elif below not in tracked and is_kept(status.st_mode) and not rules.leave_out(below, is_folder=False):
                    yield below, status.st_mode

    # -- the files -----------------------------------------------------------------------------

    def _listed(self, path: bytes) -> list[tuple[bytes, os.stat_result]]:
        """Nothing of what is gone meanwhile; of what is shut to this user there may be more than is told."""
        try:
            held = open_unlinked(self.root, path, READ_DIRECTORY)
        except OSError as error:
            self._is_shut = self._is_shut or error.errno in (errno.EACCES, errno.EPERM)
            return []
        found = []
        try:
            for name in entry_names(held):
                self._check_time()
                try:
                    found.append((name, os.stat(name, dir_fd=held, follow_symlinks=False)))
                except OSError as error:
                    self._is_shut = self._is_shut or error.errno in (errno.EACCES, errno.EPERM)
        finally:
            os.close(held)
        return found

    def _is_repository(self, path: bytes) -> bool:
        """It is looked at by itself then. An empty `.git` hides nothing."""
        status = self.status_of(join(path, GIT))
        if status is None or not stat.S_ISDIR(status.st_mode):
            return status is not None and bool(status.st_size)
        return self.status_of(join(path, GIT) + b"/HEAD") is not None

    def status_of(self, path: bytes) -> os.stat_result | None:
        try:
            held = open_unlinked(self.root, path, os.O_PATH | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return os.fstat(held)
        finally:
            os.close(held)

    def _tell(self, path: bytes, change: str) -> None:
        self.total += 1
        if len(self.files) < self._most:
            self.files.append({"path": text_of(path), "change": change})

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Late


def read_ignore(root: int, path: bytes) -> bytes | None:
    """Patterns of a file; None if there is none that can be read, and then nothing is left out by it."""
    try:
        return read_regular(root, path, MOST_IGNORE_BYTES)
    except Unreadable:
        return None


def is_kept(mode: int) -> bool:
    """By Git, which keeps nothing else."""
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def join(above: bytes, name: bytes) -> bytes:
    return above + b"/" + name if above and name else above or name
