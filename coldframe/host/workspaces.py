"""The workspaces of one machine: durable ones of agents, temporary ones of background sessions.

As root each belongs to a sandbox user of its own. The history in it belongs to this process's user, who is
another one then, so that a box reads it and cannot change it.

A new one is a directory, or a disk of its own mounted at the same place (see `disk_images.py`), as the operator
chose. One that is there stays what it is; a directory is refused, not used, where disks were asked for. As root a
directory becomes a stack of layers with its first snapshot, mounted there as well (see `stacks.py`).
"""

import logging
import os
import secrets
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from coldframe.contract.errors import (
    Conflict,
    Internal,
    InvalidArgument,
    IsolationUnavailable,
    NotFound,
    PermissionDenied,
    SnapshotCorrupt,
    WrongState,
)
from coldframe.contract.sandbox import checked_agent_id
from coldframe.guest.digests import MOST_BYTES
from coldframe.guest.records import is_id
from coldframe.host.disk_images import BASE_MIB, DiskImages
from coldframe.host.history_tail import unseen
from coldframe.host.layers.moves import Wish
from coldframe.host.layers.records import Snapshot
from coldframe.host.removal import remove_directory, remove_tree
from coldframe.host.sandbox_users import FIRST_UID, UID_COUNT, is_nobodys, users_of
from coldframe.host.stacks import HISTORY, Stacks
from coldframe.host.templates.id_range import given_ids

PARTS = ("scratch", "integrations", "skills")
PARENTS = ("workspace", "background")
_DRAFT, _GRAVE = ".new-", ".gone-"

_log = logging.getLogger(__name__)


class SystemsBeside(Protocol):
    """What is asked of the systems of workspaces; see `templates/systems.py`."""

    def user_of(self, workspace: str) -> tuple[int, int] | None: ...

    def stack_of(self, workspace: str) -> str | None: ...

    def remove(self, workspace: str) -> None: ...

    def fork(self, workspace: str, snapshot_id: str, user: tuple[int, int]) -> None: ...

    def ready_for(self, workspace: str, snapshot_id: str | None, user: tuple[int, int]) -> str | None: ...


class _NoSystems:
    """Of a machine on which no workspace has one."""

    def user_of(self, workspace: str) -> tuple[int, int] | None:
        return None

    def stack_of(self, workspace: str) -> str | None:
        return None

    def remove(self, workspace: str) -> None:
        return

    def fork(self, workspace: str, snapshot_id: str, user: tuple[int, int]) -> None:
        return

    def ready_for(self, workspace: str, snapshot_id: str | None, user: tuple[int, int]) -> str | None:
        return None


class Workspaces:
    """Everything below `workspace/`, `background/` and `images/` of a data directory, and nothing else.

    May be called from several threads; what is done to one workspace is done one after the other.
    """

    def __init__(self, data_dir: str, *, own_disks: bool = False) -> None:
        self._data = data_dir
        self._root = os.getuid() == 0
        self.own_disks = own_disks
        self._images = DiskImages(data_dir)
        self.stacks = Stacks(data_dir)
        self.taken_users: Callable[[], set[int]] = set
        """Sandbox users that are somebody's, whatever the directories say."""
        self.systems: SystemsBeside = _NoSystems()
        """Those that workspaces have of their own."""
        self._guard = threading.Lock()
        """Of the two below."""
        self._locks: weakref.WeakValueDictionary[str, threading.RLock] = weakref.WeakValueDictionary()
        self._making: dict[str, int] = {}
        """Name of each workspace that is being made, to its sandbox user."""
        self._unused: set[str] = set()
        """Names of workspaces that no box was built on yet, as far as this process made them."""
        self.spare_user: Callable[[], int | None] = lambda: None
        """A reserved user to give to a new workspace, None for any."""
        self._reserved: set[int] = set()
        """Sandbox users for workspaces that are to be made."""

    def of_agent(self, agent_id: str) -> str:
        return os.path.join(self._data, "workspace", checked_agent_id(agent_id))

    def of_session(self, session_id: str) -> str:
        """The temporary workspace of a background session."""
        if not is_id(session_id):
            raise InvalidArgument("malformed session id")
        return os.path.join(self._data, "background", session_id)

    def make(
        self,
        path: str,
        *,
        parts: tuple[str, ...] = PARTS,
        disk_mib: int | None = None,
        in_use: Callable[[], bool] = lambda: False,
        snapshot_id: str | None = None,
        begins: bool = False,
    ) -> None:
        """Make it whole or not at all; one that is there is left as it is, but for a disk that has to grow.

        *disk_mib* is what a sandbox on it may use, None if there is none yet; *in_use* tells of boxes that live on it.
        A new one begins as *snapshot_id*, with what that has of parts; with *begins* it has to be a new one.

        Raises:
            IsolationUnavailable: disks were asked for, and this one cannot be had.
            WrongState: its disk has to grow and is in use.
            NotFound, SnapshotCorrupt: there is no such snapshot, or it is damaged.
            Conflict: it has to be a new one, and somebody was faster.
        """
        name = self._name_of(path)
        with self._alone(name):
            if self.stacks.exists(name):
                if begins:
                    raise _is_there(name)
                self.stacks.mount(name)
                return
            if self._images.exists(name):
                self._images.mount(name)
                self._images.grow(name, disk_mib or BASE_MIB, in_use=in_use)
                return
            if self.own_disks:
                self._images.require(name)
            if self._images.leftover(name) or self._is_empty_place(path):
                self._images.remove(name)  # its removal was broken off
            if os.path.isdir(path):
                if self.own_disks:
                    raise self._is_a_directory(name)
                if begins:
                    raise _is_there(name)
                return
            if snapshot_id is not None:
                self._require_layers(name)
                self.stacks.store.snapshot(snapshot_id)
            self.systems.remove(name)  # of one that had this name, and whose removal was broken off
            with self._user_for(name) as uid:
                if snapshot_id is not None:  # before the workspace, without which it is swept
                    self.systems.fork(name, snapshot_id, (uid, uid))
                if snapshot_id is not None and self.stacks.can_have(name):
                    self.stacks.make(name, snapshot_id, uid)
                elif self.own_disks:
                    self._images.make(name, disk_mib or BASE_MIB, uid, lambda top: self._fill_disk(top, parts, uid))
                else:
                    self._make_directory(path, parts, uid, snapshot_id)
            self._unused.add(name)

    def begin_use(self, path: str) -> bool:
        """Whether this is the first box of a workspace that was made by this process."""
        with self._guard:
            name = self._name_of(path)
            is_first = name in self._unused
            self._unused.discard(name)
            return is_first

    def is_whole(self, path: str) -> bool:
        """Whether it is there and nothing is left to be done for it; False for one that has, or may want, a disk.

        A directory comes and goes by a change of name, whole.
        """
        return not (self.own_disks or self._images.any()) and os.path.isdir(path) and not self._is_empty_place(path)

    def _make_directory(self, path: str, parts: tuple[str, ...], uid: int, snapshot_id: str | None) -> None:
        draft = f"{path}{_DRAFT}{secrets.token_hex(4)}"
        os.mkdir(draft, 0o700)
        try:
            if snapshot_id is not None:
                owner = uid, uid if self._root else os.getgid()
                self.stacks.store.copy_out(snapshot_id, draft, owner=owner, users=users_of(owner))
            top = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if snapshot_id is None:
                    self._fill(top, parts, uid)
                _make_history(top)
            finally:
                os.close(top)
            os.rename(draft, path)
        except BaseException:
            remove_tree(draft)
            raise

    def _fill(self, top: int, parts: tuple[str, ...], uid: int) -> None:
        os.fchmod(top, 0o700)
        for part in parts:
            os.mkdir(part, 0o755, dir_fd=top)
        if self._root:
            for part in parts:
                os.chown(part, uid, uid, dir_fd=top)
            os.fchown(top, uid, uid)

    def _fill_disk(self, top: int, parts: tuple[str, ...], uid: int) -> None:
        self._fill(top, parts, uid)
        _make_history(top)

    @contextmanager
    def _user_for(self, name: str) -> Iterator[int]:
        """A sandbox user who is nobody else's, also while others are being made."""
        with self._guard:
            if not self._root:
                uid = os.getuid()
            else:
                spare = self.spare_user()
                uid = self._free_uid() if spare is None else spare
                self._reserved.discard(uid)
            self._making[name] = uid
        try:
            yield uid
        finally:
            with self._guard:
                del self._making[name]

    def reserve_user(self) -> int:
        """A sandbox user who is nobody's, for a workspace that is to be made, or until it is released. As root."""
        with self._guard:
            uid = self._free_uid()
            self._reserved.add(uid)
            return uid

    def is_reserved(self, uid: int) -> bool:
        return uid in self._reserved

    def release_user(self, uid: int) -> None:
        with self._guard:
            self._reserved.discard(uid)

    def _free_uid(self) -> int:
        taken = {*self._making.values(), *self._reserved}
        for parent in PARENTS:
            with os.scandir(os.path.join(self._data, parent)) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # renamed meanwhile: its maker's user is taken above
                        taken.add(entry.stat(follow_symlinks=False).st_uid)
        taken |= self._images.users() | self.stacks.users() | self.taken_users()
        given = given_ids()
        for uid in range(FIRST_UID, FIRST_UID + UID_COUNT):
            if uid not in taken and is_nobodys(uid, given):
                return uid
        raise IsolationUnavailable(
            "all sandbox users of this installation are taken, or may be taken by users of the host",
            hint="delete agents that are not needed; see which ids /etc/subuid and /etc/subgid give out",
        )

    def _is_empty_place(self, path: str) -> bool:
        """Where a disk stood: a workspace is never empty."""
        try:
            return self._root and os.stat(path).st_uid == 0 and not os.listdir(path)
        except FileNotFoundError:
            return False

    def _is_a_directory(self, name: str) -> IsolationUnavailable:
        reason = "it is a plain directory, made before `workspace_disk` was set to `image`"
        remedy = (
            f"end its sandboxes, move `{self._data}/{name}` away, create the sandbox again, and copy the files into "
            "the new workspace; or set `workspace_disk` to `directory`"
        )
        return IsolationUnavailable(
            f"the workspace `{name}` has no disk of its own: {reason}",
            hint=remedy,
            property="workspace_disk",
            reason=reason,
            remedy=remedy,
        )

    def remove(self, path: str) -> None:
        """Remove one for good, or nothing if there is none. Boxes on it must have ended."""
        name = self._name_of(path)
        with self._alone(name):
            self._unused.discard(name)
            with suppress(FileNotFoundError):
                os.unlink(self._digests_of(name))
            if self.stacks.exists(name):
                self.stacks.remove(name)
            elif self._images.exists(name) or self._images.leftover(name) or self._is_empty_place(path):
                self._images.remove(name)
            else:
                remove_directory(path)

    def has_disk(self, path: str) -> bool:
        """Whether this one has a disk of its own, or is to have one."""
        return self.own_disks or self._images.exists(self._name_of(path))

    @property
    def have_disks(self) -> bool:
        """Whether what is asked here may wait for a disk that is being mounted or grown."""
        return self._images.any()

    def open_digests(self, agent_id: str) -> int | None:
        """A descriptor for what keepers note of the files of an agent (see guest/digests.py); None where it cannot be had."""
        path = self._digests_of(self._name_of(self.of_agent(agent_id)))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            file = os.open(path, flags, 0o600)
            if os.fstat(file).st_size >= MOST_BYTES * 3 // 4:
                os.ftruncate(file, 0)
        except OSError as error:
            _log.warning("the digests of `%s` cannot be kept: %s", agent_id, error)
            return None
        return file

    def _digests_of(self, name: str) -> str:
        return os.path.join(self._data, "host", "digests", name.replace("/", "-"))

    def history_of(self, path: str) -> str:
        """Where the history of a workspace lies."""
        name = self._name_of(path)
        return self.stacks.history(name) if self.stacks.exists(name) else os.path.join(path, HISTORY)

    def open_history(self, owner: str, session_id: str | None, flags: int) -> int | None:
        """A descriptor of the history, checked to be the file that was made for it; None if the workspace is gone.

        Raises:
            Internal: something else stands in its place. Its directory is the box's.
            IsolationUnavailable: its disk cannot be mounted.
        """
        path = self.of_session(session_id or "") if owner == "background" else self.of_agent(owner)
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        name = self._name_of(path)
        with self._alone(name):
            try:
                file = os.open(self.history_of(path), flags)
            except FileNotFoundError:
                if not self._images.exists(name) or self._images.mounted(name):
                    return None
                self._images.mount(name)
                file = os.open(os.path.join(path, HISTORY), flags)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            os.close(file)
            raise Internal("the history of the workspace is not the file that was made for it")
        return file

    def history_to_keep(self, owner: str, session_id: str | None) -> int | None:
        """A descriptor to append with for as long as one likes; None where the workspace is gone or has a disk of its own.

        There it would keep the disk from being grown and removed, and whoever is not root finds it full.
        """
        path = self.of_session(session_id or "") if owner == "background" else self.of_agent(owner)
        if self._images.exists(self._name_of(path)):
            return None
        return self.open_history(owner, session_id, os.O_WRONLY | os.O_APPEND)

    def append_history(self, owner: str, session_id: str | None, lines: bytes) -> None:
        file = self.open_history(owner, session_id, os.O_RDWR | os.O_APPEND)
        if file is None:
            return  # the workspace was deleted meanwhile; the ledger has the entry
        try:
            rest = memoryview(unseen(file, lines))
            while rest:
                rest = rest[os.write(file, rest) :]
        finally:
            os.close(file)

    # -- snapshots -----------------------------------------------------------------------------

    def is_known(self, name: str) -> bool:
        """Whether there is such a workspace, or is about to be."""
        with self._guard:
            if name in self._making:
                return True
        return self.is_there(os.path.join(self._data, name))

    def is_there(self, path: str) -> bool:
        """Whether there is such a workspace, mounted or not."""
        name = self._name_of(path)
        return self.stacks.exists(name) or self._images.exists(name) or self.is_whole(path) or os.path.isdir(path)

    def open_top(self, path: str) -> int:
        """A descriptor to read it with, as it is now. Raises NotFound."""
        name = self._name_of(path)
        with self._alone(name):
            self._require_there(path)
            if self.stacks.exists(name):
                self.stacks.mount(name)
            elif self._images.exists(name):
                self._images.mount(name)
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def take_snapshot(self, path: str, wish: Wish, frozen: AbstractContextManager[object] | None) -> Snapshot:
        """*frozen* is entered while it is looked at, if it is in use.

        Raises:
            NotFound: there is no such workspace.
            WrongState: somebody uses it and is not frozen.
            PermissionDenied: root of a box has files in it that the host daemon, who is an ordinary user, may not read.
        """
        name = self._name_of(path)
        with self._alone(name):
            self._require_there(path)
            self._require_layers(name)
            stack, system = self.stacks.find(name), self.systems.stack_of(name)
            store = self.stacks.store
            if frozen is not None and stack is not None:
                return store.copy_snapshot(stack.id, frozen, wish, system=system)
            if stack is not None:
                return self.stacks.take(name, wish, system=system)
            owner = self.owner_of(path)
            if frozen is None and self.stacks.can_have(name):
                stack = self.stacks.adopt(name, owner)
                return store.take_snapshot(stack.id, wish, system=system)  # its upper layer is empty
            try:
                return store.take_directory(
                    path, owner=owner, frozen=frozen, wish=wish, workspace=name, users=users_of(owner), system=system
                )
            except PermissionError as error:
                if self._root:
                    raise
                raise _of_root(error) from error

    def owner_of(self, path: str) -> tuple[int, int]:
        """The sandbox user of one. Root of a box may have given the directory to somebody else of it."""
        status = os.stat(path)
        known = self.systems.user_of(self._name_of(path)) if self._root else None
        return known or (status.st_uid, status.st_gid)

    def become_stack(self, path: str) -> bool:
        """Whether a workspace that nobody uses is one now."""
        name = self._name_of(path)
        with self._alone(name):
            if not self.is_whole(path) or not self.stacks.can_have(name):
                return False
            if not self.stacks.exists(name):
                self.stacks.adopt(name, self.owner_of(path))
            return True

    def flatten(self, path: str) -> None:
        """Make few layers of many, if nobody uses it; see `LayerStore.flatten`."""
        name = self._name_of(path)
        with self._alone(name), suppress(WrongState):
            self.stacks.flatten(name)

    def reset(self, path: str, snapshot_id: str | None, *, parts: tuple[str, ...], discard: bool) -> Snapshot | None:
        """Take one that nobody uses back to a snapshot, or to how a new one is. What it was before, unless *discard*.

        Raises:
            NotFound, WrongState, SnapshotCorrupt: nothing has changed.
        """
        name = self._name_of(path)
        with self._alone(name):
            self._require_there(path)
            self._require_layers(name)
            part = None if snapshot_id is None else self.stacks.store.snapshot(snapshot_id).system
            stack = self.stacks.find(name)
            owner = self.owner_of(path) if stack is None else stack.owner
            uid = owner[0]
            becomes_stack = stack is None and self.stacks.can_have(name)
            if stack is None and not becomes_stack and (part is not None or self.systems.stack_of(name) is not None):
                raise _has_system(
                    name,
                    "workspaces and layers are on two file systems, so that it could not go back together with its system",
                    "have `workspace/`, `background/` and `layers/` of the data directory on one file system",
                )
            system = self.systems.ready_for(name, snapshot_id, owner)
            if system is None and self.systems.user_of(name) is not None:
                raise _has_system(
                    name,
                    "its system has no part in snapshots (it is one of subordinate ids), and could not go back together with it",
                    "run the daemon as root, or fork a snapshot to another agent, whose system begins as the template",
                )
            if becomes_stack:
                stack = self.stacks.adopt(name, owner)
            with suppress(FileNotFoundError):
                os.unlink(self._digests_of(name))  # of files that are others from now on
            if stack is not None:
                return self.stacks.reset(
                    name, snapshot_id, discard=discard, fill=lambda top: self._fill(top, parts, uid), system=system
                )

            def fill(files: str) -> None:
                if snapshot_id is None:
                    top = os.open(files, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    try:
                        self._fill(top, parts, uid)
                    finally:
                        os.close(top)
                os.link(os.path.join(path, HISTORY), os.path.join(files, HISTORY), follow_symlinks=False)

            return self.stacks.store.reset_directory(path, snapshot_id, name=name, fill=fill, discard=discard)

    def _require_there(self, path: str) -> None:
        if not self.is_there(path):
            raise NotFound(f"there is no workspace `{self._name_of(path)}`")

    def _require_layers(self, name: str) -> None:
        """Refuse one with a disk of its own, whose limit would not hold for layers beside it."""
        if not self.own_disks and not self._images.exists(name):
            return
        reason = "the workspace has a disk of its own, and layers lie outside of it"
        remedy = 'use `workspace_disk = "directory"` for agents whose workspaces are to have snapshots'
        raise IsolationUnavailable(
            f"the workspace `{name}` has no snapshots: {reason}",
            hint=remedy,
            property="snapshots",
            reason=reason,
            remedy=remedy,
        )

    # -- upkeep --------------------------------------------------------------------------------

    def mount_all(self) -> None:
        """Mount the disks and stacks that stand nowhere, as after a restart of the machine. One that cannot be is logged."""
        for name in self._images.names() + self.stacks.lacking():
            if _DRAFT in name or _GRAVE in name:
                continue
            with self._alone(name):
                try:
                    if self._images.exists(name):
                        self._images.mount(name)
                    elif self.stacks.exists(name):
                        self.stacks.mount(name)
                except (IsolationUnavailable, SnapshotCorrupt) as error:
                    _log.warning("%s", error)

    def strays(self, *, keep_sessions: set[str]) -> list[str]:
        """What was half made or half removed, and the workspaces of other sessions than these: for `remove_stray`."""
        with self._guard:
            making = set(self._making)
        images = self._images.names()
        standing = {f"{parent}/{name}" for parent in PARENTS for name in os.listdir(os.path.join(self._data, parent))}
        kept = {f"background/{session_id}" for session_id in keep_sessions}
        found = {f"images/{name}" for name in images if _is_broken_off(name, making)}
        for name in (
            standing | {*self.stacks.names()} | {name for name in images if _DRAFT not in name and _GRAVE not in name}
        ):
            if name.startswith("background/"):
                stray = name not in kept and name.partition(_DRAFT)[0] not in kept | making
            else:
                stray = _is_broken_off(name, making) or self._images.leftover(name)
            if stray:
                found.add(name)
        return sorted(found, reverse=True)

    def remove_stray(self, name: str) -> None:
        parent, _, rest = name.partition("/")
        if parent == "images":
            self._images.remove_draft(rest)
        elif _DRAFT in name or _GRAVE in name:
            remove_tree(os.path.join(self._data, name))
        else:
            self.remove(os.path.join(self._data, name))

    def _name_of(self, path: str) -> str:
        return os.path.relpath(path, self._data)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(name, threading.RLock())  # gone again with its last user
        with lock:
            yield


def _is_there(name: str) -> Conflict:
    return Conflict(
        f"the workspace `{name}` was made by somebody else meanwhile, so it does not begin as the snapshot",
        hint="fork to an agent that is new, or take the workspace back with `coldframe sandbox reset`",
    )


def _has_system(name: str, reason: str, remedy: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        f"the workspace `{name}` cannot be reset: {reason}",
        hint=remedy,
        property="snapshots",
        reason=reason,
        remedy=remedy,
    )


def _make_history(top: int) -> None:
    os.close(os.open(HISTORY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=top))


def _is_broken_off(name: str, making: set[str]) -> bool:
    return _GRAVE in name or (_DRAFT in name and name.partition(_DRAFT)[0] not in making)


def _of_root(error: PermissionError) -> PermissionDenied:
    name = os.fsdecode(error.filename or b"")
    return PermissionDenied(
        f"`{name}` is closed to all but another user of the sandbox, so that it cannot be copied",
        hint="as root of the sandbox, give it to `user`: chown -R user: FILE",
        path=name,
    )
