"""Which stacks and snapshots there are in a store of layers, who uses which layer, and what nobody needs any more.

What nobody names is collected later, so that nobody waits for it; after an unreadable description nothing is, since it
may have named it.

A stack in use, by a mount or by a step, is held through a lock on its upper layer that goes with its last descriptor. A
keeper that has one keeps the stack from being changed underneath it, whoever of us is killed and started again.
"""

import fcntl
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeVar

from coldframe.contract.errors import ColdframeError, Conflict, NotFound, SnapshotCorrupt, WrongState
from coldframe.host.layers.mapping import Users
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.omissions import OF_HOME, OF_SYSTEM, omitted, patterns_of
from coldframe.host.layers.records import (
    Move,
    Shelf,
    Snapshot,
    Stack,
    StackKind,
    SystemPart,
    read_move,
    read_snapshot,
    read_stack,
)
from coldframe.host.layers.trees import Trees
from coldframe.host.layers.writeback import Writeback
from coldframe.host.removal import try_removal

_log = logging.getLogger(__name__)

R = TypeVar("R", Stack, Snapshot)
Part = Literal["home", "system"]
"""Of a snapshot: the files of the workspace, or the system that it had."""


class Sizes(NamedTuple):
    """Of a snapshot on disk, in bytes; None while somebody has yet to measure."""

    own: int | None
    """Of layers that no stack and no other snapshot has."""
    added: int | None
    """Of layers that no older snapshot of the same workspace has: together they are all that these hold. Temporary
    workspaces count as one, with archives that were brought in."""


UNMEASURED = Sizes(None, None)


class Below(NamedTuple):
    """A directory that is no layer of ours, and lies below them: of a template."""

    name: str
    path: str
    users: Users | None


def _sum(sizes: list[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _now() -> datetime:
    return datetime.now(UTC)


class Register:
    """Everything below one directory, which nobody else writes to.

    One process at a time; its threads may call this as they like. Long work is done outside the lock.

    Args:
        more_omissions: patterns of further paths that are never taken into a snapshot (see `omissions.py`).

    Raises:
        Conflict: another process has it open.
    """

    def __init__(
        self, directory: str, *, clock: Callable[[], datetime] = _now, more_omissions: Collection[bytes] = ()
    ) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._clock = clock
        self._more_omissions = tuple(more_omissions)
        self._only_one = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._only_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._trees = Trees(directory)
            for name in ("stacks", "snapshots", "moves"):
                os.makedirs(os.path.join(directory, name), mode=0o700, exist_ok=True)
            self._stack_shelf = Shelf(os.path.join(directory, "stacks"), read_stack)
            self._snapshot_shelf = Shelf(os.path.join(directory, "snapshots"), read_snapshot)
            self._move_shelf = Shelf(os.path.join(directory, "moves"), read_move)
            self._lock = threading.RLock()
            self._pins: Counter[str] = Counter()
            """Trees that somebody reads or is about to name."""
            self._moves: list[Move] = []
            """That hold, and are not in all descriptions yet."""
            self._drafts: dict[str, Writeback] = {}
            """That are being made now."""
            self._recover()
        except BlockingIOError as error:
            os.close(self._only_one)
            raise Conflict("another process has these layers open") from error
        except BaseException:
            os.close(self._only_one)
            raise

    def close(self) -> None:
        os.close(self._only_one)

    def _recover(self) -> None:
        moves, broken_moves = self._move_shelf.read_all()
        self._moves = [*moves.values()]  # of a process that was killed in one
        with suppress(OSError):  # the disk is full: they hold all the same
            self._complete_moves()
        self._stacks, broken_stacks = self._stack_shelf.read_all()
        self._snapshots, broken_snapshots = self._snapshot_shelf.read_all()
        for move in self._moves:
            self._take_over(move)
        self._names = {stack.name: stack.id for stack in self._stacks.values() if stack.name}
        self.unreadable = frozenset(broken_stacks | broken_snapshots | broken_moves)
        """Stacks and snapshots whose description was altered or lost."""
        for stack in list(self._stacks.values()):
            if any(self._trees.is_awaited(tree) for tree in stack.layers):  # its directory is still what it was
                self._drop_stack(stack.id)
        uppers = {stack.upper for stack in self._stacks.values()}
        for snapshot in list(self._snapshots.values()):
            broken_off = uppers.intersection(snapshot.trees) or not all(map(self._trees.was_exchanged, snapshot.trees))
            if broken_off:  # it was never taken: its stack, or directory, did not get that far
                self._snapshot_shelf.remove(snapshot.id)
                del self._snapshots[snapshot.id]
        systems = [one.system for one in self._snapshots.values() if one.system is not None]
        points: list[Stack | Snapshot | SystemPart] = [*self._stacks.values(), *self._snapshots.values(), *systems]
        for named in points:
            kind = "system" if isinstance(named, SystemPart) else named.kind
            for tree in named.layers:
                if not self._trees.is_sealed(tree) and os.path.isdir(self._trees.files(tree)):
                    self._trees.seal(tree, self._omitted(tree, kind))

    # -- what there is -------------------------------------------------------------------------------

    def stacks(self) -> list[Stack]:
        with self._lock:
            return sorted(self._stacks.values(), key=lambda stack: stack.created_at)

    def snapshots(self, stack_id: str | None = None) -> list[Snapshot]:
        """The oldest first; those that are over are left out."""
        now = self._clock()
        with self._lock:
            found = [
                one
                for one in self._snapshots.values()
                if (stack_id is None or one.stack == stack_id) and (one.expires_at is None or one.expires_at > now)
            ]
        return sorted(found, key=lambda snapshot: (snapshot.created_at, snapshot.id))

    def stack(self, stack_id: str) -> Stack:
        return self._known(self._stacks, stack_id, "stack")

    def snapshot(self, snapshot_id: str) -> Snapshot:
        found = self._known(self._snapshots, snapshot_id, "snapshot")
        if found.expires_at is not None and found.expires_at <= self._clock():
            raise NotFound(f"the snapshot `{snapshot_id}` was kept until {found.expires_at:%Y-%m-%d %H:%M}")
        return found

    def stack_named(self, name: str) -> Stack | None:
        """The one that is a workspace."""
        with self._lock:
            stack_id = self._names.get(name)
            return None if stack_id is None else self._stacks[stack_id]

    def users(self) -> set[int]:
        """Whose files are in any layer: nobody else may become one of these."""
        with self._lock:
            points: list[Stack | Snapshot] = [*self._stacks.values(), *self._snapshots.values()]
            found = {point.owner[0] for point in points}
            trees = self._named()
        for tree in trees:
            with suppress(FileNotFoundError):  # gone, or damaged, which is told to whoever needs it
                found.add(self._trees.owner(tree)[0])
                if (users := self._trees.users(tree)) is not None:
                    found.add(users.own[0])
        return found

    def sizes(self) -> dict[str, Sizes]:
        """Of every snapshot."""
        with self._lock:
            snapshots = sorted(self._snapshots.values(), key=lambda one: (one.created_at, one.id))
            points: list[Stack | Snapshot] = [*self._stacks.values(), *snapshots]
        used = Counter(tree for one in points for tree in (one.trees if isinstance(one, Snapshot) else one.layers))
        measured = {tree: self._trees.measured(tree) for one in snapshots for tree in one.trees}
        found: dict[str, Sizes] = {}
        earlier: dict[str, set[str]] = {}
        for one in snapshots:
            before = earlier.setdefault("" if one.workspace.startswith("background/") else one.workspace, set())
            own = [measured[tree] for tree in one.trees if used[tree] == 1]
            added = [measured[tree] for tree in one.trees if tree not in before]
            before.update(one.trees)
            found[one.id] = Sizes(_sum(own), _sum(added))
        return found

    def _known(self, among: dict[str, R], record_id: str, what: str) -> R:
        with self._lock:
            found = among.get(record_id)
        if found is None:
            if record_id in self.unreadable:
                raise SnapshotCorrupt(f"the description of `{record_id}` was altered or lost", id=record_id)
            raise NotFound(f"there is no {what} `{record_id}`")
        return found

    def remove_stack(self, stack_id: str) -> None:
        """It is no more; its snapshots and forks are. Raises WrongState if it is in use."""
        with self._held(stack_id), self._lock:
            self._drop_stack(stack_id)

    def remove_snapshot(self, snapshot_id: str) -> None:
        """What others need of it stays."""
        with self._lock:
            self._known(self._snapshots, snapshot_id, "snapshot")
            self._complete_moves()
            self._snapshot_shelf.remove(snapshot_id)
            del self._snapshots[snapshot_id]

    def _put_together(self, move: Move) -> None:
        """All of it at once. What cannot be written now, since the disk is full, is before anything else is."""
        self._complete_moves()
        self._move_shelf.write(move)
        self._moves.append(move)
        self._take_over(move)
        with suppress(OSError):
            self._complete_moves()

    def _take_over(self, move: Move) -> None:
        if move.snapshot is not None:
            self._snapshots[move.snapshot.id] = move.snapshot
        self._stacks.update({stack.id: stack for stack in move.stacks})

    def _complete_moves(self) -> None:
        while self._moves:
            self._complete(self._moves[0])
            del self._moves[0]

    def _complete(self, move: Move) -> None:
        if move.snapshot is not None:
            self._snapshot_shelf.write(move.snapshot)
        for stack in move.stacks:
            self._stack_shelf.write(stack)
        self._move_shelf.remove(move.id)

    def _put_stack(self, stack: Stack) -> None:
        self._complete_moves()
        self._stack_shelf.write(stack)
        self._stacks[stack.id] = stack
        if stack.name:
            self._names[stack.name] = stack.id

    def _drop_stack(self, stack_id: str) -> None:
        self._complete_moves()
        self._stack_shelf.remove(stack_id)
        self._names.pop(self._stacks.pop(stack_id).name, None)

    def _put_snapshot(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._complete_moves()
            self._snapshot_shelf.write(snapshot)
            self._snapshots[snapshot.id] = snapshot

    # -- use -----------------------------------------------------------------------------------------

    def hold(self, stack_id: str) -> int:
        """A descriptor that keeps the stack as it is for as long as it, or a copy of it, is open in any process.

        Raises WrongState if it is in use already.
        """
        with self._lock:
            stack = self.stack(stack_id)
            self._trees.require_upper(stack.upper)
            held = self._trees.lock(stack.upper)
        if held is None:
            raise WrongState(
                f"`{stack_id}` is in use", hint="stop its sandbox first, or take the snapshot while it runs"
            )
        return held

    @contextmanager
    def _held(self, stack_id: str) -> Iterator[Stack]:
        held = self.hold(stack_id)
        try:
            yield self.stack(stack_id)
        finally:
            os.close(held)

    @contextmanager
    def _pinned(self, trees: Collection[str]) -> Iterator[None]:
        with self._lock:
            self._pins.update(trees)
        try:
            yield
        finally:
            with self._lock:
                self._pins.subtract(trees)
                self._pins += Counter()  # without those at zero

    @contextmanager
    def _layers_of(self, point: str, part: Part = "home") -> Iterator[tuple[str, ...]]:
        """The layers of a point, or of the system of a snapshot, from the highest down, which stay until the end."""
        with self._lock:
            stack = self._stacks.get(point)
            sealed = stack.layers if stack is not None else self._sealed(point, part)
            self._trees.require(sealed)
            layers = sealed[::-1]
            if stack is not None:
                self._trees.require_upper(stack.upper)
                layers = (stack.upper, *layers)
            pinning = self._pinned(layers)
            pinning.__enter__()
        try:
            yield layers
        finally:
            pinning.__exit__(None, None, None)

    def _sealed(self, snapshot_id: str, part: Part) -> tuple[str, ...]:
        snapshot = self.snapshot(snapshot_id)
        return snapshot.layers if part == "home" else self._system_of(snapshot).layers

    def _system_of(self, snapshot: Snapshot) -> SystemPart:
        if snapshot.system is None:
            raise NotFound(f"the snapshot `{snapshot.id}` holds no system", id=snapshot.id)
        return snapshot.system

    def _viewed(self, layers: Collection[str], below: Sequence[Below] = ()) -> MergedView:
        """These layers, the highest first, and what lies below them."""
        return MergedView(
            [*map(self._trees.files, layers), *(one.path for one in below)],
            [*map(self._trees.users, layers), *(one.users for one in below)],
        )

    @contextmanager
    def _draft(self, users: Users | None = None) -> Iterator[str]:
        with self._lock:
            tree = self._trees.begin(users)
            self._drafts[tree] = written = Writeback()
        try:
            yield tree
        except BaseException:
            with self._lock:
                if tree in self._trees.names("drafts"):
                    self._trees.bury("drafts", tree)
            self._clear(tree)
            raise
        finally:
            with self._lock:
                del self._drafts[tree]
            written.close()

    def _patterns(self, kind: StackKind) -> list[bytes]:
        return patterns_of(OF_HOME if kind == "home" else OF_SYSTEM, self._more_omissions)

    def _omitted(self, tree: str, kind: StackKind) -> list[bytes]:
        with self._trees.branch(tree) as branch:
            return omitted(branch, self._patterns(kind))

    # -- upkeep --------------------------------------------------------------------------------------

    def digest(self, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Measure every sealed layer and make its manifest, if it has none; how many. For the background: it reads all of
        them, until it is *stopped*.
        """
        made = 0
        for tree in sorted(self._named()):
            with self._pinned((tree,)):
                if not self._trees.is_sealed(tree) or self._trees.has_manifest(tree):
                    continue
                try:
                    self._trees.measure(tree)
                    if not self._trees.make_manifest(tree, stopped=stopped):
                        break
                    made += 1
                except (OSError, ColdframeError) as error:  # of what one agent has put there others have nothing
                    _log.warning("the layer `%s` has no digests: %s", tree, error)
        return made

    def verify(self, point: str) -> int:
        """Read all sealed layers of a point that have a manifest, and compare. How many those were.

        Raises SnapshotCorrupt with `layer` and `path`.
        """
        found = self._stacks.get(point) or self.snapshot(point)
        trees = found.trees if isinstance(found, Snapshot) else found.layers
        with self._pinned(trees):
            self._trees.require(trees)
            checked = [tree for tree in trees if self._trees.has_manifest(tree)]
            for tree in checked:
                self._trees.verify(tree)
        return len(checked)

    def collect(self) -> int:
        """Remove what is over, and layers and drafts that nobody names; how many trees. For the background."""
        now = self._clock()
        with self._lock:
            self._complete_moves()
            for snapshot in list(self._snapshots.values()):
                if snapshot.expires_at is not None and snapshot.expires_at <= now:
                    self._snapshot_shelf.remove(snapshot.id)
                    del self._snapshots[snapshot.id]
            for tree in self._trees.names("drafts"):
                if tree not in self._drafts:
                    self._trees.bury("drafts", tree)
            if self.unreadable:
                _log.warning("layers are not collected while descriptions are unreadable: %s", sorted(self.unreadable))
            else:
                needed = self._named() | self._pins.keys()
                for tree in self._trees.names("trees"):
                    if tree not in needed:
                        self._trees.bury("trees", tree)
            buried = self._trees.names("gone")
        return sum(self._clear(tree) for tree in buried)

    def _clear(self, tree: str) -> bool:
        return try_removal(tree, lambda: self._trees.clear(tree))

    def _named(self) -> set[str]:
        with self._lock:
            of_stacks = {tree for stack in self._stacks.values() for tree in (*stack.layers, stack.upper)}
            return of_stacks | {tree for snapshot in self._snapshots.values() for tree in snapshot.trees}
