"""The layers of one installation: the steps from one state to the next, and what can be read without starting anything.

Each step makes what is new beside what is there, and then puts one description in place (see `records.py`): killed
anywhere, the next start finds the old state or the new one.
"""

import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from coldframe.contract.errors import NotFound, SnapshotCorrupt, WrongState
from coldframe.host.layers import archive, copies, diff, tape
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.draft import Facts, exchange, facts_of
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.mounts import Stacking, was_lost
from coldframe.host.layers.omissions import omitted, patterns_of
from coldframe.host.layers.records import Reason, Snapshot, Stack, StackKind
from coldframe.host.layers.register import Register

FLATTEN_AT = 16
"""Layers of a stack. A walk over 50 takes four times as long as over one (measured), and a mount has room for 90."""
FLATTEN_OTHERS_AT = 48
"""From so many on those of other users are copied, which a fork of a fork of a fork has below its own."""
MOST_LAYERS = 64
DISCARDED_KEPT = timedelta(hours=24)
"""What a reset takes away can be gone back to for so long."""


class Wish(NamedTuple):
    """How a snapshot is to be taken."""

    name: str = ""
    label: str = ""
    reason: Reason = "asked"
    expires_at: datetime | None = None


PLAIN = Wish()


class LayerStore(Register):
    """See `Register` for its directory, and for who may have it open.

    A *point* is the id of a stack or of a snapshot.
    """

    # -- steps -----------------------------------------------------------------------------------------

    def create(
        self, kind: StackKind = "home", *, owner: tuple[int, int] | None = None, mode: int = 0o700, name: str = ""
    ) -> Stack:
        """A stack of nothing, which belongs to *owner*, or to this process's user. *name* is of the workspace it is."""
        user, group = owner or (os.geteuid(), os.getegid())
        now = self._clock()
        moment = round(now.timestamp() * 1e9)
        facts = Facts(mode, (user, group) if os.geteuid() == 0 else None, (moment, moment), {})
        return self._new_stack(kind, (user, group), (), facts, name)

    def fork(self, point: str, *, owner: tuple[int, int] | None = None, name: str = "") -> Stack:
        """A second stack on the layers of a snapshot, or of a stack that is not in use. Neither sees what the other does.

        With another *owner* than of the layers, `stacking` tells who is to be shown as whom.

        Raises:
            WrongState: the stack is in use, or this process may not show files of one user as another's.
            SnapshotCorrupt, NotFound.
        """
        with self._lock:
            source = self._stacks.get(point) or self.snapshot(point)
            if owner not in (None, source.owner) and os.geteuid() != 0:
                raise WrongState("the files belong to another user, so nobody else can write to a fork of them")
            if isinstance(source, Stack):
                source = self._with_empty_upper(point)
            self._trees.require(source.layers)
            facts = self._top_facts(source)
            if owner is not None and facts.owner is not None:
                facts = facts._replace(owner=owner)
            return self._new_stack(source.kind, owner or source.owner, source.layers, facts, name)

    def adopt(self, path: str, name: str) -> Stack:
        """A directory on which nobody works becomes the lowest layer of a stack, by a change of its name: as fast whatever
        it holds. It must be on the same file system; its place is free afterwards.

        Marks of overlayfs that a program made in it while it was a directory (see docs/layers.md) may hide its own files
        from it then, and nothing else: nothing lies below them.
        """
        with Branch(path) as branch:
            left_out = omitted(branch, self._patterns("home"))
            facts = facts_of(branch.top(), branch.attributes(b""))
            owner = branch.owner
        with self._lock:
            upper = self._trees.begin_upper(facts, path, left_out)
            self._trees.finish(upper, sealed=False)
            tree = self._trees.await_directory()
            stack = Stack(_new_id(), "home", owner, (tree,), upper, self._clock(), name)
            self._put_stack(stack)
            try:
                os.rename(path, self._trees.files(tree))
            except BaseException:
                self._drop_stack(stack.id)
                raise
            self._trees.seal(tree, left_out)
        return stack

    def take_snapshot(self, stack_id: str, wish: Wish = PLAIN) -> Snapshot:
        """Of a stack that is not in use: its upper layer is sealed, and it gets an empty one. As fast whatever it holds.

        Raises:
            WrongState: it is in use; see `copy_snapshot`.
        """
        with self._held(stack_id) as stack:
            if self._adds_nothing(stack):
                snapshot = self._snapshot_of(stack, stack.layers, wish)
                self._put_snapshot(snapshot)
                return snapshot
            snapshot = self._snapshot_of(stack, (*stack.layers, stack.upper), wish)
            self._move_on(stack, snapshot.layers, snapshot=snapshot)
            return snapshot

    def copy_snapshot(self, stack_id: str, frozen: AbstractContextManager[object], wish: Wish = PLAIN) -> Snapshot:
        """Of a stack in use: its upper layer is copied while *frozen* is entered, and the stack stays as it is.

        The caller sees to it that nothing writes to the stack in between.
        """
        stack = self.stack(stack_id)
        with self._draft() as tree, self._layers_of(stack_id):
            began = time.monotonic()
            with frozen, self._trees.branch(stack.upper) as branch:
                left_out = omitted(branch, self._patterns(stack.kind))
                copies.copy_branch(branch, self._trees.draft_files(tree), without=left_out)
            took_ms = (time.monotonic() - began) * 1000
            taken = self._snapshot_of(stack, (*stack.layers, tree), wish)
            snapshot = replace(taken, was_live=True, frozen_ms=round(took_ms, 3))
            with self._lock:
                self._trees.finish(tree, sealed=True)
                self._put_snapshot(snapshot)
            self._measure(tree)
        return snapshot

    def reset(
        self, stack_id: str, snapshot_id: str | None = None, *, discard: bool = False, label: str = ""
    ) -> Snapshot | None:
        """Take a stack back to a snapshot, or to nothing without one. The record of what was done in it stays.

        Returns:
            What it was like before, kept for DISCARDED_KEPT; None if *discard*.

        Raises:
            WrongState: it is in use, or the snapshot is of another kind.
        """
        with self._held(stack_id) as stack, self._lock:  # nobody removes the snapshot meanwhile
            target = self.snapshot(snapshot_id) if snapshot_id is not None else None
            if target is not None and target.kind != stack.kind:
                raise WrongState("the snapshot is of another kind")
            layers = target.layers if target is not None else ()
            self._trees.require(layers)
            kept, facts = None, None
            if target is not None:
                facts = self._top_facts(target)
                facts = facts._replace(owner=facts.owner and stack.owner)
            if not discard:
                before = stack.layers if self._adds_nothing(stack) else (*stack.layers, stack.upper)
                kept = self._snapshot_of(stack, before, self._discarded(label))
            self._move_on(stack, layers, snapshot=kept, carried=patterns_of(("history",)), facts=facts)
            return kept

    def reset_directory(
        self,
        path: str,
        snapshot_id: str | None,
        *,
        name: str,
        fill: Callable[[str], None],
        discard: bool = False,
        label: str = "",
    ) -> Snapshot | None:
        """What `reset` is for a workspace that is a directory on the same file system, and on which nobody works: a copy
        of the snapshot changes places with it. *fill* gets the new directory before that.

        Returns, raises: as `reset`.
        """
        with Branch(path) as branch:
            owner = branch.owner
        with self._draft() as tree:
            files = self._trees.draft_files(tree)
            if snapshot_id is not None:
                self.copy_out(snapshot_id, files, owner=owner)
            fill(files)
            now, wish = self._clock(), self._discarded(label)
            kept = Snapshot(
                _new_id(), "", "home", owner, (tree,), wish.reason, "", label, now, wish.expires_at, workspace=name
            )
            with self._lock:
                self._trees.announce_exchange(tree)
                try:
                    if not discard:
                        self._put_snapshot(kept)
                    exchange(path, self._trees.files(tree))
                except BaseException:
                    if kept.id in self._snapshots:
                        self.remove_snapshot(kept.id)
                    raise
                if discard:
                    return None
                self._trees.seal(tree, self._omitted(tree, "home"))
        return kept

    def rollback(self, stack_id: str, *, discard: bool = False) -> Snapshot | None:
        """Take a stack back to its latest snapshot that somebody asked for; see `reset`. Raises NotFound without one."""
        taken = [one for one in self.snapshots(stack_id) if one.reason in ("asked", "automatic")]
        if not taken:
            raise NotFound(f"there is no snapshot of `{stack_id}` to go back to")
        return self.reset(stack_id, taken[-1].id, discard=discard)

    def wants_flattening(self, stack_id: str, *, at: int = FLATTEN_AT) -> bool:
        """Whether `flatten` would do something."""
        return len(self._flattened(self.stack(stack_id))) >= 2 and len(self.stack(stack_id).layers) >= at

    def _flattened(self, stack: Stack) -> tuple[str, ...]:
        """Those of its layers that may become one."""
        if len(stack.layers) >= FLATTEN_OTHERS_AT:
            return stack.layers[1:]
        others = (number for number, tree in enumerate(stack.layers) if self._trees.owner(tree) != stack.owner)
        return stack.layers[1 + max(others, default=0) :]

    def flatten(self, stack_id: str, *, at: int = FLATTEN_AT) -> bool:
        """Make one layer of all above the lowest, once there are *at* of them. Whether it was done. Copies no data.

        The lowest is left: it is the template, which is large and which others have too. So are those of another user,
        which a fork has below its own.

        Raises:
            WrongState: it is in use.
        """
        with self._held(stack_id) as stack:
            if not self.wants_flattening(stack_id, at=at):
                return False
            upmost = self._flattened(stack)
            kept = stack.layers[: -len(upmost)]
            with self._draft() as tree, self._pinned(stack.layers):
                with MergedView([self._trees.files(one) for one in reversed(stack.layers)]) as view:
                    by_links = all(self._trees.owner(one) == stack.owner for one in upmost)
                    owner = None if by_links else stack.owner
                    files = self._trees.draft_files(tree)
                    copies.merge(view, files, highest=len(upmost), by_links=by_links, owner=owner)
                with self._lock:
                    self._trees.finish(tree, sealed=True)
                    self._put_stack(replace(stack, layers=(*kept, tree)))
            return True

    # -- reading, without starting anything ------------------------------------------------------------

    @contextmanager
    def view(self, point: str) -> Iterator[MergedView]:
        """What a stack or a snapshot looks like. Of a stack in use it is what was written up to now."""
        with self._layers_of(point) as layers, MergedView([self._trees.files(tree) for tree in layers]) as view:
            yield view

    @contextmanager
    def seen(self, point: str) -> Iterator[tuple[MergedView, tuple[str, ...]]]:
        """As `view`, with the names of the layers, by which `diff.changes` knows what both sides have."""
        with self._layers_of(point) as layers, MergedView([self._trees.files(tree) for tree in layers]) as view:
            yield view, layers

    @contextmanager
    def changes(self, before: str, after: str) -> Iterator[Iterator[diff.Change]]:
        """What differs between two points, stacks or snapshots."""
        with self._layers_of(before) as old, self._layers_of(after) as new:
            with (
                MergedView([self._trees.files(tree) for tree in old]) as old_view,
                MergedView([self._trees.files(tree) for tree in new]) as new_view,
            ):
                yield diff.changes(old_view, new_view, old, new)

    def export(self, point: str, write: Callable[[bytes], object], *, label: str = "") -> archive.Contents:
        """Write one tar; see `archive.py`. What is never taken into a snapshot is not exported of a stack either.

        *label* is for a stack; that of a snapshot travels with it.
        """
        found = self._stacks.get(point) or self.snapshot(point)
        if isinstance(found, Snapshot):
            label = found.label
        with self.view(point) as view:
            return self._export(view, write, label, found.kind)

    def export_directory(self, path: str, write: Callable[[bytes], object], *, label: str = "") -> archive.Contents:
        """The same of a plain directory."""
        with MergedView([path]) as view:
            return self._export(view, write, label, "home")

    def _export(
        self, view: MergedView, write: Callable[[bytes], object], label: str, kind: StackKind
    ) -> archive.Contents:
        left_out = {path for branch in view.branches for path in omitted(branch, self._patterns(kind))}
        return archive.write_archive(view, write, spool=self._trees.drafts, label=label, without=left_out)

    def copy_out(self, point: str, target: str, *, owner: tuple[int, int] | None = None) -> None:
        """Copy what a point looks like into an empty directory: for a host without overlayfs. *owner* gets all of it."""
        with self.view(point) as view:
            copies.merge(view, target, highest=len(view.branches), by_links=False, owner=owner)

    def count(self, snapshot_id: str) -> Snapshot:
        """Count what a snapshot holds, and write it down. Looks at every file; raises NotFound."""
        snapshot = self.snapshot(snapshot_id)
        if snapshot.files is not None:
            return snapshot
        files = size = 0
        seen: set[tuple[int, int]] = set()
        with self.view(snapshot_id) as view:
            for place in view.walk():
                files += 1
                status = place.status
                if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                    size += status.st_size
                    if status.st_nlink > 1:
                        seen.add((status.st_dev, status.st_ino))
        with self._lock:
            counted = replace(self.snapshot(snapshot_id), files=files, bytes=size)
            self._put_snapshot(counted)
        return counted

    # -- bringing in -----------------------------------------------------------------------------------

    def take_in(
        self,
        source: tape.Source,
        caps: archive.Caps,
        *,
        kind: StackKind = "home",
        owner: tuple[int, int] | None = None,
        wish: Wish = PLAIN,
        judged: Callable[[str, str], str] = lambda told, wished: told or wished,
        expected: str | None = None,
    ) -> tuple[Snapshot, archive.Contents]:
        """A snapshot of what an archive holds, or nothing at all. Raises SnapshotCorrupt, LimitReached.

        *judged* makes one label of the archive's and the wish's.
        """
        belongs = owner or (os.geteuid(), os.getegid())
        with self._draft() as tree:
            contents, label = archive.read_archive(
                source,
                self._trees.draft_files(tree),
                owner=belongs if os.geteuid() == 0 else None,
                caps=caps,
                expected=expected,
            )
            wish = wish._replace(label=judged(label, wish.label), reason="imported")
            return self._finished(tree, self._new_snapshot((tree,), kind, belongs, wish)), contents

    def take_directory(
        self,
        path: str,
        *,
        owner: tuple[int, int],
        kind: StackKind = "home",
        frozen: AbstractContextManager[object] | None = None,
        wish: Wish = PLAIN,
        workspace: str = "",
    ) -> Snapshot:
        """A snapshot of a plain directory, by a copy, on which nobody works meanwhile: *frozen* is entered for that, if
        somebody else would. It stays what it is.

        It was no layer, so nothing in it may pass for a mark of one: whiteouts and such attributes are left out.
        """
        with self._draft() as tree:
            began = time.monotonic()
            with frozen or nullcontext(), MergedView([path]) as view:
                copies.merge(view, self._trees.draft_files(tree), highest=1, by_links=False)
            took_ms = (time.monotonic() - began) * 1000
            snapshot = replace(self._new_snapshot((tree,), kind, owner, wish), workspace=workspace)
            if frozen is not None:
                snapshot = replace(snapshot, was_live=True, frozen_ms=round(took_ms, 3))
            return self._finished(tree, snapshot)

    # -- use -------------------------------------------------------------------------------------------

    def stacking(self, stack_id: str, target: str, *, volatile: bool = False) -> Stacking:
        """What to mount at *target*; whoever does holds the stack as long as it is mounted.

        Raises:
            SnapshotCorrupt: a layer is gone, or was volatile when the machine stopped.
        """
        stack = self.stack(stack_id)
        if was_lost(self._trees.work(stack.upper)):
            raise SnapshotCorrupt(
                f"the machine stopped while `{stack_id}` was kept without syncs; reset it", id=stack_id
            )
        self._trees.require(stack.layers)
        self._trees.require_upper(stack.upper)
        lower = tuple(self._trees.files(tree) for tree in reversed(stack.layers)) or (self._trees.empty,)
        return Stacking(target, lower, self._trees.files(stack.upper), self._trees.work(stack.upper), volatile)

    def reading(self, snapshot_id: str, target: str) -> Stacking:
        """What to mount at *target* to read a snapshot. It is kept from being collected by `pinned` alone."""
        layers = self.snapshot(snapshot_id).layers
        self._trees.require(layers)
        lower = (*(self._trees.files(tree) for tree in reversed(layers)), self._trees.empty)
        return Stacking(target, lower, "", "")

    @contextmanager
    def pinned(self, point: str) -> Iterator[None]:
        """The layers of a point stay meanwhile, also if nobody names them any more."""
        with self._layers_of(point):
            yield

    # -- inside ----------------------------------------------------------------------------------------

    def _new_stack(
        self, kind: StackKind, owner: tuple[int, int], layers: tuple[str, ...], facts: Facts, name: str
    ) -> Stack:
        with self._lock:
            upper = self._trees.begin_upper(facts)
            self._trees.finish(upper, sealed=False)
            stack = Stack(_new_id(), kind, owner, layers, upper, self._clock(), name)
            self._put_stack(stack)
        return stack

    def _with_empty_upper(self, stack_id: str) -> Stack:
        with self._held(stack_id) as stack:
            if self._adds_nothing(stack):
                return stack
            return self._move_on(stack, (*stack.layers, stack.upper))

    def _move_on(
        self,
        stack: Stack,
        layers: tuple[str, ...],
        *,
        snapshot: Snapshot | None = None,
        carried: list[bytes] | None = None,
        facts: Facts | None = None,
    ) -> Stack:
        """Put an empty upper layer on *layers*. What is never taken along moves from the old one into the new one.

        The snapshot is told first and holds only once its stack has moved on: until then it names what is still written
        to, by which a restart knows it.
        """
        if len(layers) > MOST_LAYERS:
            raise WrongState("the stack has too many layers; flatten it first")
        with self._lock:
            left_out = self._omitted(stack.upper, stack.kind)
            kept = left_out if carried is None else self._matching(stack.upper, carried)
            facts = facts or self._trees.top_facts(stack.upper)
            upper = self._trees.begin_upper(facts, self._trees.files(stack.upper), kept)
            self._trees.finish(upper, sealed=False)
            if snapshot is not None:
                self._put_snapshot(snapshot)
            moved = replace(stack, layers=layers, upper=upper)
            try:
                self._put_stack(moved)
            except BaseException:
                if snapshot is not None:
                    self._snapshot_shelf.remove(snapshot.id)
                    del self._snapshots[snapshot.id]
                raise
            if stack.upper in self._named():
                self._trees.seal(stack.upper, left_out)
        return moved

    def _snapshot_of(self, stack: Stack, layers: tuple[str, ...], wish: Wish) -> Snapshot:
        return replace(self._new_snapshot(layers, stack.kind, stack.owner, wish), stack=stack.id, workspace=stack.name)

    def _new_snapshot(self, layers: tuple[str, ...], kind: StackKind, owner: tuple[int, int], wish: Wish) -> Snapshot:
        return Snapshot(
            _new_id(), "", kind, owner, layers, wish.reason, wish.name, wish.label, self._clock(), wish.expires_at
        )

    def _discarded(self, label: str) -> Wish:
        return Wish("", label, "discarded", self._clock() + DISCARDED_KEPT)

    def _top_facts(self, source: Stack | Snapshot) -> Facts:
        if isinstance(source, Stack):
            return self._trees.top_facts(source.upper)
        if source.layers:
            return self._trees.top_facts(source.layers[-1])
        moment = round(self._clock().timestamp() * 1e9)
        return Facts(0o700, source.owner if os.geteuid() == 0 else None, (moment, moment), {})

    def _matching(self, tree: str, patterns: list[bytes]) -> list[bytes]:
        with self._trees.branch(tree) as branch:
            return omitted(branch, patterns)

    def _adds_nothing(self, stack: Stack) -> bool:
        """Whether a snapshot of the layers below is one of the whole: nothing is in the upper one but what is left out."""
        if not stack.layers:
            return False
        with self._trees.branch(stack.upper) as branch:
            if branch.holds_more_than(set(omitted(branch, self._patterns(stack.kind)))):
                return False
        top, below = self._trees.top_facts(stack.upper), self._trees.top_facts(stack.layers[-1])
        return (top.mode, top.owner, top.attributes) == (below.mode, below.owner, below.attributes)

    def _finished(self, tree: str, snapshot: Snapshot) -> Snapshot:
        """That of a draft, which is rid of what is never taken."""
        with Branch(self._trees.draft_files(tree)) as branch:
            paths = omitted(branch, self._patterns(snapshot.kind))
        self._trees.strip_draft(tree, paths)
        with self._lock:
            self._trees.finish(tree, sealed=True)
            self._put_snapshot(snapshot)
        self._measure(tree)
        return snapshot

    def _measure(self, tree: str) -> None:
        """A copy is, at once, so that nobody gets past a limit on their size by being quick."""
        with self._pinned((tree,)), suppress(OSError):  # else by `digest`
            self._trees.measure(tree)


def _new_id() -> str:
    return secrets.token_hex(8)
