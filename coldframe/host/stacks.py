"""Workspaces that are stacks of layers: merged by overlayfs, mounted where a workspace that is a directory lies.

A workspace becomes one when its first snapshot needs that, and stays a plain directory otherwise: whoever takes none pays
nothing. Takes root. The mounts stand in the mount namespace of whoever serves the machine, as those of disks do (see
`disk_images.py`): so everything that takes a directory goes on as it is, and a person looks into the workspace where the
documentation says it is. While none stands there is no such directory.

What is done to the layers is done while nothing is mounted: a box that was not quite gone could write into a layer that is
sealed by then. So beside the marks of boxes the tables of mounts are asked whether any still shows the workspace.

Rejected: a mount in the place of each keeper, which needs no root. Two boxes may share a workspace, and overlayfs does not
say what happens to an upper layer that is mounted twice. Without root a workspace stays a directory.
"""

import contextlib
import errno
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from coldframe.contract.errors import Conflict, IsolationUnavailable, NotFound, WrongState
from coldframe.host.isolation.namespaces import HOME
from coldframe.host.layers.mapping import Ownership, Users, mount_mapped, mount_with_users, shown_as
from coldframe.host.layers.mounts import Stacking, bind_file, mount_stack, unmount_stack
from coldframe.host.layers.moves import Wish
from coldframe.host.layers.offer import Offer, overlay_offered
from coldframe.host.layers.records import Snapshot, Stack
from coldframe.host.layers.register import Below, Part
from coldframe.host.layers.store import LayerStore
from coldframe.host.layers.trees import users_at
from coldframe.host.sandbox_users import users_of

HISTORY = ".exec_history"
LET_GO_S = 2.0
"""The kernel takes the mounts of a box down a moment after its last process."""
_SOURCE = "layers-"


class Stacks:
    """Those of one data directory. Calls about one name must not overlap; names are `PARENT/NAME`."""

    def __init__(self, data_dir: str) -> None:
        self._data = os.path.realpath(data_dir)
        self._directory = os.path.join(self._data, "layers")
        self._histories = os.path.join(self._data, "history")
        self._guard = threading.Lock()
        self._store: LayerStore | None = None
        self._offer: Offer | None = None

    @property
    def store(self) -> LayerStore:
        """Opened when it is first needed. May block; raises Conflict while another process has it."""
        with self._guard:
            if self._store is None:
                self._store = self._opened()
                self._unmount_readings()
            return self._store

    def _opened(self) -> LayerStore:
        """A process that was killed may have a child that holds it for a moment."""
        deadline = time.monotonic() + LET_GO_S
        while True:
            try:
                return LayerStore(self._directory)
            except Conflict:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def any(self) -> bool:
        """Whether there may be some: without any the store is never opened."""
        return self._store is not None or os.path.isdir(self._directory)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def offer(self) -> Offer:
        """Which way of keeping layers works here, and what kept each better one from it. Tried once, for some ms."""
        with self._guard:
            if self._offer is None:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                self._offer = overlay_offered(self._directory)
                if self._offer.way == "mount":
                    self._offer = self._with_mapping(self._offer)
            return self._offer

    def _with_mapping(self, offer: Offer) -> Offer:
        """Where users cannot be mapped a fork would be its original's, so stacks are not used then."""
        held = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(mount_mapped(held, Ownership((0, 0), (1, 1))))
        except OSError as error:
            return Offer("copy", {**offer.reasons, "mount": f"users of a mount cannot be mapped: {error.strerror}"})
        finally:
            os.close(held)
        return offer

    def can_have(self, name: str) -> bool:
        """Whether this workspace can be a stack: overlayfs, and one file system with the layers."""
        if os.geteuid() != 0 or self.offer().way != "mount":
            return False
        return os.stat(os.path.dirname(self._place(name))).st_dev == os.stat(self._directory).st_dev

    def find(self, name: str) -> Stack | None:
        """The stack that this workspace is."""
        return self.store.stack_named(name) if self.any() else None

    def exists(self, name: str) -> bool:
        return self.find(name) is not None

    def names(self) -> list[str]:
        return [stack.name for stack in self.store.stacks() if stack.name] if self.any() else []

    def users(self) -> set[int]:
        return self.store.users() if self.any() else set()

    def history(self, name: str) -> str:
        """Where the history of one lies, of which no layer may have a line."""
        return os.path.join(self._histories, name.replace("/", "-"))

    # -- making and removing ---------------------------------------------------------------------------

    def make(self, name: str, snapshot_id: str, uid: int) -> None:
        """A new one that goes on from a snapshot, and belongs to *uid*. Raises NotFound, SnapshotCorrupt."""
        self._drop_history(name)
        stack = self.store.fork(snapshot_id, owner=(uid, uid), name=name, users=users_of((uid, uid)))
        try:
            self._put(stack)
        except BaseException:
            self.remove(name)
            raise

    def adopt(self, name: str, owner: tuple[int, int]) -> Stack:
        """A workspace of *owner* that is a directory becomes one, whole or not at all. Raises WrongState if a box still shows
        it."""
        self.require_unused(name)
        self._drop_history(name)
        stack = self.store.adopt(self._place(name), name, owner=owner, users=users_of(owner))
        self._put(stack)
        return stack

    def remove(self, name: str) -> None:
        """Remove one for good, or what is left of it. Boxes on it must have ended."""
        stack = self.find(name)
        place = self._place(name)
        if os.path.ismount(place) and not _unmount_if_idle(place):
            unmount_stack(place, lazy=True)  # somebody stands in it, and sees it go
        if stack is not None:
            self.store.remove_stack(stack.id)
        self._drop_history(name)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(place)
        if stack is not None:
            self.store.collect()

    # -- mounting --------------------------------------------------------------------------------------

    def mounted(self, name: str) -> bool:
        """Whether the stack stands at its place as it is now."""
        return self.exists(name) and name not in self.lacking()

    def lacking(self) -> list[str]:
        """Names of those that do not stand as they are now, with their history."""
        stacks = [stack for stack in self.store.stacks() if stack.name] if self.any() else []
        standing = _mounts() if stacks else {}
        return [
            stack.name
            for stack in stacks
            if standing.get(self._place(stack.name)) != _SOURCE + stack.upper
            or os.path.join(self._place(stack.name), HISTORY) not in standing
        ]

    def mount(self, name: str) -> None:
        """See that it stands at its place. Raises SnapshotCorrupt, IsolationUnavailable."""
        stack = self.find(name)
        if stack is None:
            raise NotFound(f"`{name}` is no stack of layers")
        standing, place = _mounts(), self._place(name)
        if standing.get(place) != _SOURCE + stack.upper:
            self._put(stack)
        elif os.path.join(place, HISTORY) not in standing:  # a kill came in between
            bind_file(self.history(name), os.path.join(place, HISTORY))

    def unmount_idle(self) -> None:
        """Leave no mount of a workspace that no box shows. Whoever serves the machine next mounts it again."""
        for name in self.names():
            place = self._place(name)
            if os.path.ismount(place) and not _is_shown(os.stat(place).st_dev, None):
                _unmount_if_idle(place)

    def _put(self, stack: Stack) -> None:
        place = self._place(stack.name)
        os.makedirs(place, mode=0o700, exist_ok=True)
        if os.path.ismount(place) or os.listdir(place):
            raise _unavailable(stack.name, f"its place `{place}` is taken by something else")
        stacking = self.store.stacking(stack.id, place)._replace(source=_SOURCE + stack.upper)
        self._settle_history(stack, os.path.join(stacking.upper, HISTORY))
        try:
            with self._shown(stacking, stack.owner) as shown:
                mount_stack(shown)
        except OSError as error:
            raise _unavailable(stack.name, f"the kernel does not mount it: {error.strerror}") from error
        bind_file(self.history(stack.name), os.path.join(place, HISTORY))

    @contextlib.contextmanager
    def unmounted(self, name: str) -> Iterator[Stack]:
        """Nothing is mounted within, and nobody uses the workspace; mounted as it is then afterwards.

        Raises:
            WrongState: somebody has it.
        """
        stack = self.find(name)
        if stack is None:
            raise NotFound(f"`{name}` is no stack of layers")
        place = self._place(name)
        try:
            if os.path.ismount(place):
                device = os.stat(place).st_dev
                if not _in_time(lambda: not _is_shown(device, None)) or not _in_time(lambda: _unmount_if_idle(place)):
                    raise _in_use(name)
            yield stack
        finally:
            self.mount(name)

    def require_unused(self, name: str) -> None:
        """Raise WrongState while the mounts of any box still show the directory that the workspace is."""
        place = self._place(name)
        device, below = os.stat(place).st_dev, _below_its_mount(place)
        if not _in_time(lambda: not _is_shown(device, below)):
            raise _in_use(name)

    @contextlib.contextmanager
    def reading(self, snapshot: Snapshot) -> Iterator[int]:
        """A descriptor of what a snapshot looks like, read-only, and to its owner as it was to him. Nothing stands afterwards."""
        store = self.store
        with store.pinned(snapshot.id):
            if len(snapshot.layers) < 2 and not self._is_mapped(snapshot):
                held = os.open(store.reading(snapshot.id, "").lower[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            else:
                held = self._open_merged(snapshot)
            try:
                yield held
            finally:
                os.close(held)

    def _is_mapped(self, snapshot: Snapshot) -> bool:
        if os.geteuid() != 0:
            return False
        lower = self.store.reading(snapshot.id, "").lower[:-1]
        return any(
            _owner(path) != snapshot.owner or users_at(path) not in (None, users_of(snapshot.owner)) for path in lower
        )

    def _open_merged(self, snapshot: Snapshot) -> int:
        with self._reading_place() as place:
            stacking = self._store_of().reading(snapshot.id, place)
            with self._shown(stacking, snapshot.owner) as shown:
                mount_stack(shown)
            return _taken_from(place)

    @contextlib.contextmanager
    def _reading_place(self) -> Iterator[str]:
        """One mount at a time stands there for a moment, after which it is the descriptor's alone."""
        with self._guard:
            place = os.path.join(self._directory, "reading")
            os.makedirs(place, mode=0o700, exist_ok=True)
            yield place

    @contextlib.contextmanager
    def reading_system(self, point: str, part: Part, below: Sequence[Below], users: Users) -> Iterator[int]:
        """A descriptor of what a system looks like, read-only, with its users as *users*. As root. Of one that is in use it is
        what it was when it was opened."""
        store = self.store
        with store.paths(point, part) as layers:
            parts = [*((path, users_at(path)) for path in layers), *((one.path, one.users) for one in below)]
            with self._reading_place() as place, contextlib.ExitStack() as mapped:
                lower = tuple(_mapped(path, stored, users, mapped) for path, stored in parts)
                mount_stack(Stacking(place, lower, "", ""))
                held = _taken_from(place)
            try:
                yield held
            finally:
                os.close(held)

    def _store_of(self) -> LayerStore:
        assert self._store is not None
        return self._store

    def _unmount_readings(self) -> None:
        """Of a process that was killed in that moment."""
        place = os.path.join(self._directory, "reading")
        while os.path.ismount(place):
            unmount_stack(place, lazy=True)

    # -- steps -----------------------------------------------------------------------------------------

    def take(self, name: str, wish: Wish, *, system: str | None) -> Snapshot:
        """Of one that nobody uses, with the stack that holds its system."""
        with self.unmounted(name) as stack:
            return self.store.take_snapshot(stack.id, wish, system=system)

    def reset(
        self,
        name: str,
        snapshot_id: str | None,
        *,
        discard: bool,
        fill: Callable[[int], None],
        system: str | None,
    ) -> Snapshot | None:
        """Of one that nobody uses, with the stack that holds its system; *fill* gets a descriptor of its top if it is empty
        then."""
        with self.unmounted(name) as stack:
            kept = self.store.reset(stack.id, snapshot_id, discard=discard, system=system)
        if snapshot_id is None:
            top = os.open(self._place(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fill(top)
            finally:
                os.close(top)
        return kept

    def flatten(self, name: str) -> bool:
        """See `LayerStore.flatten`. Raises WrongState while somebody uses it."""
        stack = self.find(name)
        if stack is None or not self.store.wants_flattening(stack.id):
            return False
        with self.unmounted(name):
            return self.store.flatten(stack.id)

    # -- inside ----------------------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        return os.path.join(self._data, name)

    def _settle_history(self, stack: Stack, within: str) -> None:
        """A file that the sandbox user reads and root alone writes, and *within* an empty one to show it upon.

        What a directory had as its history moves, so that descriptors of it go on being of it.
        """
        path = self.history(stack.name)
        if not os.path.lexists(path):
            os.makedirs(self._histories, mode=0o711, exist_ok=True)
            os.chmod(self._histories, 0o711)
            former = _lstat(within)
            if former is not None and stat.S_ISREG(former.st_mode) and former.st_uid == os.geteuid():
                os.chown(within, -1, stack.owner[1], follow_symlinks=False)
                os.chmod(within, 0o640)
                os.rename(within, path)
            else:
                draft = f"{path}.new"
                file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
                try:
                    os.fchown(file, -1, stack.owner[1])
                    os.fchmod(file, 0o640)
                finally:
                    os.close(file)
                os.rename(draft, path)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(within, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))

    def _drop_history(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.history(name))

    @contextlib.contextmanager
    def _shown(self, stacking: Stacking, owner: tuple[int, int]) -> Iterator[Stacking]:
        """With the layers of other users shown as the owner's."""
        users = users_of(owner)
        with contextlib.ExitStack() as mapped:
            lower = []
            for path in stacking.lower:
                if os.geteuid() == 0 and path != os.path.join(self._directory, "empty"):
                    theirs = users_at(path)
                    if theirs is not None and users is not None:
                        path = _mapped(path, theirs, users, mapped)
                    elif (stored := _owner(path)) != owner:
                        path = _owned(path, Ownership(stored, owner), mapped)
                lower.append(path)
            yield stacking._replace(lower=tuple(lower))


def _mapped(path: str, stored: Users | None, shown: Users, opened: contextlib.ExitStack) -> str:
    """Where a layer is shown with the users of another box."""
    if stored is None or stored == shown:
        return path
    return _mounted(path, lambda held: mount_with_users(held, *shown_as(stored, shown)), opened)


def _owned(path: str, ownership: Ownership, opened: contextlib.ExitStack) -> str:
    return _mounted(path, lambda held: mount_mapped(held, ownership), opened)


def _mounted(path: str, mount: Callable[[int], int], opened: contextlib.ExitStack) -> str:
    held = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tree = mount(held)
    finally:
        os.close(held)
    opened.callback(os.close, tree)
    return f"/proc/self/fd/{tree}"


def _taken_from(place: str) -> int:
    """The mount that stands at a place, which nobody else sees any more."""
    try:
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        unmount_stack(place, lazy=True)


def _owner(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_uid, status.st_gid


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _mounts() -> dict[str, str]:
    """What is mounted here, by its place, and what the uppermost is called."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            left, _, right = line.partition(" - ")
            found[_unescaped(left.split()[4])] = right.split()[1]
    return found


def _below_its_mount(path: str) -> str:
    """Where a directory lies on its file system, as tables of mounts name what is bound from it."""
    best, root = "", "/"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            fields = line.split()
            at = _unescaped(fields[4])
            if (path == at or path.startswith(at.rstrip("/") + "/")) and len(at) >= len(best):
                best, root = at, _unescaped(fields[3])
    return (root.rstrip("/") + "/" + path[len(best) :].lstrip("/")).rstrip("/")


def _is_shown(device: int, below: str | None) -> bool:
    """Whether some box shows the file system *device* as its HOME, or that directory of it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    namespaces: set[str] = {os.readlink("/proc/self/ns/mnt")}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace in namespaces:
                continue
            with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as source:
                table = source.read()
        except OSError:
            continue
        namespaces.add(namespace)
        for fields in map(str.split, table.splitlines()):
            if fields[2] == number and fields[4] == HOME and below in (None, _unescaped(fields[3])):
                return True
    return False


def _unescaped(field: str) -> str:
    """As the kernel means a path in a table of mounts."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _unmount_if_idle(place: str) -> bool:
    """Whether it is gone now, with the history that is shown in it: not if somebody is in it.

    Its place goes too. With that the kernel takes away what other mount namespaces have copied of it, who use it no more
    than they know of it, and would hold it for as long as they last.
    """
    history = os.path.join(place, HISTORY)
    try:
        if os.path.ismount(history):
            unmount_stack(history)
        unmount_stack(place)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    with contextlib.suppress(OSError):  # somebody put something there, which is told when it is to be mounted again
        os.rmdir(place)
    return True


def _in_time(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LET_GO_S
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _in_use(name: str) -> WrongState:
    return WrongState(
        f"somebody uses the workspace `{name}`", hint="end its sandboxes, leave its directory, and try again"
    )


def _unavailable(name: str, reason: str) -> IsolationUnavailable:
    remedy = "let the daemon mount overlayfs (CAP_SYS_ADMIN in the first user namespace), or see docs/layers.md"
    return IsolationUnavailable(
        f"the workspace `{name}` cannot be put together of its layers: {reason}",
        hint=remedy,
        property="snapshots",
        reason=reason,
        remedy=remedy,
    )
