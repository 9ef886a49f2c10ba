"""The layers themselves on disk: each a directory of its own, under a name that says nothing, never renamed once used.

trees/ID/files, trees/ID/work   what is written to, and overlayfs's own beside it
trees/ID/sealed                 it will not change any more
trees/ID/manifest               digests of what it holds, once somebody had the time
trees/ID/users                  whom the users inside were on the host when it was written, where there are several
drafts/ID                       is being made; gone/ID is being removed
empty                           the lowest layer of a stack that has none
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Collection

from coldframe.contract.errors import SnapshotCorrupt
from coldframe.host.layers.branch import Branch, split
from coldframe.host.layers.draft import Draft, Facts, copy_content, facts_of
from coldframe.host.layers.manifest import layer_records
from coldframe.host.layers.mapping import Users
from coldframe.host.layers.records import sync_directory
from coldframe.host.layers.writeback import Writeback, sync_all
from coldframe.host.removal import remove_tree

PARENTS = ("trees", "drafts", "gone")


class Trees:
    """Below the directory of a store. Knows nothing of who needs which."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        for name in (*PARENTS, "empty"):
            os.makedirs(os.path.join(directory, name), mode=0o700, exist_ok=True)

    @property
    def empty(self) -> str:
        return os.path.join(self._directory, "empty")

    @property
    def drafts(self) -> str:
        return os.path.join(self._directory, "drafts")

    def files(self, tree: str) -> str:
        return os.path.join(self._directory, "trees", tree, "files")

    def work(self, tree: str) -> str:
        return os.path.join(self._directory, "trees", tree, "work")

    def place(self, tree: str) -> str:
        return os.path.join(self._directory, "trees", tree)

    def draft_files(self, tree: str) -> str:
        return os.path.join(self.drafts, tree, "files")

    def begin(self, users: Users | None = None) -> str:
        """A new draft with an empty place for files, which are to be of these users; its name."""
        tree = secrets.token_hex(6)
        os.mkdir(os.path.join(self.drafts, tree), 0o700)
        self.note_users(os.path.join(self.drafts, tree), users)
        os.mkdir(self.draft_files(tree), 0o700)
        return tree

    def begin_upper(
        self,
        facts: Facts,
        source: str | None = None,
        paths: Collection[bytes] = (),
        *,
        users: Users | None = None,
    ) -> str:
        """A draft of a layer to write to, whose top is like this.

        What the directory *source* has at *paths* it has too, by second names: no data is copied.
        """
        tree = self.begin(users)
        os.mkdir(os.path.join(self.drafts, tree, "work"), 0o700)
        with Draft(self.draft_files(tree)) as draft:
            draft.directory(b"", facts)
            if source is not None and paths:
                with Branch(source) as branch:
                    made: set[bytes] = {b""}
                    for path in paths:
                        _carry(branch, draft, path, made)
            draft.finish()
        return tree

    def seal_draft(self, tree: str, written: Writeback) -> None:
        """It will not change any more, and is on disk."""
        self._mark_sealed(os.path.join(self.drafts, tree))
        written.settle(os.path.join(self.drafts, tree), self.draft_files(tree))

    def finish(self, tree: str) -> None:
        """The draft is a layer from now on."""
        os.rename(os.path.join(self.drafts, tree), self.place(tree))

    def sync_names(self) -> None:
        """What was finished is found after a crash too: not every file system keeps the order of changes of names."""
        sync_directory(os.path.join(self._directory, "trees"))

    def strip_draft(self, tree: str, paths: Collection[bytes]) -> None:
        with Branch(self.draft_files(tree)) as branch:
            _strip(branch, paths)

    def await_directory(self, users: Users | None = None) -> str:
        """A layer that has its name and no files yet; a directory is to become these."""
        tree = secrets.token_hex(6)
        os.mkdir(self.place(tree), 0o700)
        self.note_users(self.place(tree), users)
        return tree

    def note_users(self, place: str, users: Users | None) -> None:
        """Before there is a file of theirs."""
        if users is not None:
            with open(os.path.join(place, "users"), "x", encoding="ascii") as note:
                json.dump(users, note)
                note.flush()
                os.fdatasync(note.fileno())

    def users(self, tree: str) -> Users | None:
        """Whom the users inside were when a layer was written; None where the owner of its top is the only one."""
        return users_at(self.files(tree))

    def is_awaited(self, tree: str) -> bool:
        """Whether the directory has not come to `await_directory`: what needs it was broken off."""
        place = self.place(tree)
        return os.path.isdir(place) and not self.is_sealed(tree) and not os.path.isdir(self.files(tree))

    def announce_exchange(self, tree: str) -> None:
        """From now on the draft is to change places with another directory, see `was_exchanged`. Its files stay till then."""
        draft = os.path.join(self.drafts, tree)
        sync_all(self.drafts)
        with open(os.path.join(draft, "announced"), "w", encoding="ascii") as note:
            note.write(str(os.stat(os.path.join(draft, "files")).st_ino))
        os.rename(draft, self.place(tree))

    def was_exchanged(self, tree: str) -> bool:
        """Whether the files of a layer are what they were announced for: False if the exchange was broken off."""
        try:
            with open(os.path.join(self.place(tree), "announced"), encoding="ascii") as note:
                return os.stat(self.files(tree)).st_ino != int(note.read())
        except FileNotFoundError:
            return True

    def seal(self, tree: str, without: Collection[bytes]) -> None:
        """It will not change any more, and is rid of these paths. May be broken off and done again."""
        with self.branch(tree) as branch:
            _strip(branch, without)
        self._mark_sealed(self.place(tree))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.place(tree), "announced"))

    def is_sealed(self, tree: str) -> bool:
        return os.path.exists(os.path.join(self.place(tree), "sealed"))

    def require(self, layers: Collection[str]) -> None:
        """Raises SnapshotCorrupt unless all are there and sealed."""
        for tree in layers:
            if not self.is_sealed(tree) or not os.path.isdir(self.files(tree)):
                raise SnapshotCorrupt(f"the layer `{tree}` is gone or was never finished", layer=tree)

    def require_upper(self, tree: str) -> None:
        """Raises SnapshotCorrupt unless the layer that is written to is there."""
        if not os.path.isdir(self.files(tree)):
            raise SnapshotCorrupt(f"the layer `{tree}` is gone", layer=tree)

    def branch(self, tree: str) -> Branch:
        return Branch(self.files(tree), users=self.users(tree))

    def top_facts(self, tree: str) -> Facts:
        """What the top of a layer is like."""
        with self.branch(tree) as branch:
            return facts_of(branch.top(), branch.attributes(b""))

    def lock(self, tree: str) -> int | None:
        """A descriptor that keeps others from it as long as it, or a copy of it, is open anywhere; None if it is kept."""
        held = os.open(self.place(tree), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return held

    def owner(self, tree: str) -> tuple[int, int]:
        """User and group of its top, whose the layer is."""
        status = os.stat(self.files(tree))
        return status.st_uid, status.st_gid

    def measure(self, tree: str) -> int:
        """Bytes on disk of a sealed layer, written down when it is first asked for. Looks at every file."""
        path = os.path.join(self.place(tree), "size")
        known = self.measured(tree)
        if known is not None:
            return known
        with self.branch(tree) as branch:
            blocks = {(status.st_dev, status.st_ino): status.st_blocks for _, status in branch.walk()}
        size = 512 * sum(blocks.values())
        with open(f"{path}.new", "w", encoding="ascii") as target:
            target.write(str(size))
        os.rename(f"{path}.new", path)
        return size

    def measured(self, tree: str) -> int | None:
        """Bytes on disk of a layer that was measured."""
        try:
            with open(os.path.join(self.place(tree), "size"), encoding="ascii") as source:
                return int(source.read())
        except (FileNotFoundError, ValueError):
            return None

    def make_manifest(self, tree: str, *, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Write down what a sealed layer holds, with digests. Reads all of it. False if it was *stopped*."""
        path = os.path.join(self.place(tree), "manifest")
        with self.branch(tree) as branch, open(f"{path}.new", "wb") as target:
            for record in layer_records(branch):
                if stopped():
                    return False
                target.write(record.line())
        os.rename(f"{path}.new", path)
        return True

    def has_manifest(self, tree: str) -> bool:
        return os.path.exists(os.path.join(self.place(tree), "manifest"))

    def verify(self, tree: str) -> None:
        """Read a layer and compare it with its manifest. Raises SnapshotCorrupt with the first path that differs."""
        with self.branch(tree) as branch, open(os.path.join(self.place(tree), "manifest"), "rb") as manifest:
            for record in layer_records(branch):
                if manifest.readline() != record.line():
                    raise _altered(tree, record.path)
            if manifest.readline():
                raise _altered(tree, b"")

    def names(self, parent: str) -> list[str]:
        return os.listdir(os.path.join(self._directory, parent))

    def bury(self, parent: str, tree: str) -> None:
        """Out of the way in one step; `clear` removes it for good."""
        os.rename(os.path.join(self._directory, parent, tree), os.path.join(self._directory, "gone", tree))

    def clear(self, tree: str) -> None:
        remove_tree(os.path.join(self._directory, "gone", tree))

    def _mark_sealed(self, place: str) -> None:
        os.close(os.open(os.path.join(place, "sealed"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def users_at(files: str) -> Users | None:
    """As `Trees.users`, of a layer by the directory of its files."""
    try:
        with open(os.path.join(os.path.dirname(files), "users"), encoding="ascii") as note:
            (first_uid, first_gid), (uid, gid) = json.load(note)
    except FileNotFoundError:
        return None
    return Users((first_uid, first_gid), (uid, gid))


def _strip(branch: Branch, paths: Collection[bytes]) -> None:
    for path in paths:
        above, name = split(path)
        with contextlib.suppress(FileNotFoundError):
            remove_tree(f"/proc/self/fd/{branch.directory(above)}/{os.fsdecode(name)}")


def _altered(tree: str, path: bytes) -> SnapshotCorrupt:
    name = os.fsdecode(path)
    return SnapshotCorrupt(f"the layer `{tree}` was altered at `{name}`", layer=tree, path=name)


def _carry(branch: Branch, draft: Draft, path: bytes, made: set[bytes]) -> None:
    """Make *path* in the draft, with the directories above and everything below it."""
    above, _ = split(path)
    if above not in made:
        _carry_directory(branch, draft, above, made)
    status = branch.status(path)
    ahead = [] if status is None else [(path, status)]
    while ahead:
        path, status = ahead.pop()
        if stat.S_ISDIR(status.st_mode):
            made.add(path)
            draft.directory(path, facts_of(status, branch.attributes(path, of_overlay=True)))
            ahead += [(path + b"/" + name, found) for name, found in branch.entries(path)]
            continue
        above, name = split(path)
        try:
            draft.adopt(path, branch.directory(above), name)
        except OSError as error:
            if error.errno != errno.EMLINK or not stat.S_ISREG(status.st_mode):
                raise
            _copy_one(branch, draft, path, status)


def _carry_directory(branch: Branch, draft: Draft, path: bytes, made: set[bytes]) -> None:
    missing = []
    while path not in made:
        missing.append(path)
        path, _ = split(path)
    for path in reversed(missing):
        status = branch.status(path)
        assert status is not None
        draft.directory(path, facts_of(status, branch.attributes(path)))  # not opaque: the rest of it stays below
        made.add(path)


def _copy_one(branch: Branch, draft: Draft, path: bytes, status: os.stat_result) -> None:
    reading = branch.open_file(path)
    try:
        writing = draft.open_file(path)
        try:
            copy_content(reading, writing)
            draft.finish_file(writing, facts_of(status, branch.attributes(path)))
        finally:
            os.close(writing)
    finally:
        os.close(reading)
