"""The layers of one installation: the steps from one state to the next, and what can be read without starting anything.

Each step makes what is new beside what is there, and then puts one description in place (see `records.py`): killed
anywhere, the next start finds the old state or the new one.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from coldframe.contract.errors import NotFound, SnapshotCorrupt, WrongState
from coldframe.host.layers import archive, copies, diff, tape
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.draft import Facts
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.mounts import Stacking, was_lost
from coldframe.host.layers.omissions import omitted, patterns_of
from coldframe.host.layers.records import Reason, Snapshot, Stack, StackKind
from coldframe.host.layers.register import Register

FLATTEN_AT = 16
"""Layers of a stack. A walk over 50 takes four times as long as over one (measured), and a mount has room for 90."""
MOST_LAYERS = 64
DISCARDED_KEPT = timedelta(hours=24)
"""What a reset takes away can be gone back to for so long."""


class LayerStore(Register):
    """See `Register` for its directory, and for who may have it open.

    A *point* is the id of a stack or of a snapshot.
    """

    # -- steps -----------------------------------------------------------------------------------------

    def create(self, kind: StackKind = "home", *, owner: tuple[int, int] | None = None, mode: int = 0o700) -> Stack:
        """A stack of nothing, which belongs to *owner*, or to this process's user."""
        user, group = owner or (os.geteuid(), os.getegid())
        now = self._clock()
        moment = round(now.timestamp() * 1e9)
        facts = Facts(mode, (user, group) if os.geteuid() == 0 else None, (moment, moment), {})
        return self._new_stack(kind, (user, group), (), facts)

    def fork(self, point: str, *, owner: tuple[int, int] | None = None) -> Stack:
        """A second stack on the layers of a snapshot, or of a stack that is not in use. Neither sees what the other does.

        Raises:
            WrongState: the stack is in use, or it belongs to another user than *owner*: its files would too.
            SnapshotCorrupt, NotFound.
        """
        with self._lock:
            source = self._stacks.get(point) or self.snapshot(point)
            if owner is not None and owner != source.owner:
                raise WrongState("the files belong to another user, so nobody else can write to a fork of them")
            if isinstance(source, Stack):
                source = self._with_empty_upper(point)
            self._trees.require(source.layers)
            return self._new_stack(source.kind, source.owner, source.layers, self._top_facts(source))

    def take_snapshot(
        self,
        stack_id: str,
        *,
        name: str = "",
        label: str = "",
        reason: Reason = "asked",
        expires_at: datetime | None = None,
    ) -> Snapshot:
        """Of a stack that is not in use: its upper layer is sealed, and it gets an empty one. As fast whatever it holds.

        Raises:
            WrongState: it is in use; see `copy_snapshot`.
        """
        with self._held(stack_id) as stack:
            snapshot = self._snapshot_of(stack, stack.layers, name, label, reason, expires_at)
            if self._adds_nothing(stack):
                self._put_snapshot(snapshot)
                return snapshot
            snapshot = replace(snapshot, layers=(*stack.layers, stack.upper))
            self._move_on(stack, snapshot.layers, snapshot=snapshot)
            return snapshot

    def copy_snapshot(
        self,
        stack_id: str,
        frozen: AbstractContextManager[object],
        *,
        name: str = "",
        label: str = "",
        reason: Reason = "asked",
        expires_at: datetime | None = None,
    ) -> Snapshot:
        """Of a stack in use: its upper layer is copied while *frozen* is entered, and the stack stays as it is.

        The caller sees to it that nothing writes to the stack in between.
        """
        stack = self.stack(stack_id)
        with self._draft() as tree, self._layers_of(stack_id):
            with frozen, self._trees.branch(stack.upper) as branch:
                left_out = omitted(branch, self._patterns(stack.kind))
                copies.copy_branch(branch, self._trees.draft_files(tree), without=left_out)
            snapshot = self._snapshot_of(stack, (*stack.layers, tree), name, label, reason, expires_at)
            with self._lock:
                self._trees.finish(tree, sealed=True)
                self._put_snapshot(snapshot)
        return snapshot

    def reset(self, stack_id: str, snapshot_id: str | None = None, *, discard: bool = False) -> Snapshot | None:
        """Take a stack back to a snapshot, or to nothing without one. The record of what was done in it stays.

        Returns:
            What it was like before, kept for DISCARDED_KEPT; None if *discard*.

        Raises:
            WrongState: it is in use, or the snapshot belongs to another user.
        """
        with self._held(stack_id) as stack, self._lock:  # nobody removes the snapshot meanwhile
            target = self.snapshot(snapshot_id) if snapshot_id is not None else None
            if target is not None and (target.owner, target.kind) != (stack.owner, stack.kind):
                raise WrongState("the snapshot belongs to another user, or is of another kind")
            layers = target.layers if target is not None else ()
            self._trees.require(layers)
            kept = None
            if not discard:
                before = stack.layers if self._adds_nothing(stack) else (*stack.layers, stack.upper)
                expires = self._clock() + DISCARDED_KEPT
                kept = self._snapshot_of(stack, before, "", "", "discarded", expires)
            self._move_on(stack, layers, snapshot=kept, carried=patterns_of(("history",)))
            return kept

    def rollback(self, stack_id: str, *, discard: bool = False) -> Snapshot | None:
        """Take a stack back to its latest snapshot that somebody asked for; see `reset`. Raises NotFound without one."""
        taken = [one for one in self.snapshots(stack_id) if one.reason in ("asked", "automatic")]
        if not taken:
            raise NotFound(f"there is no snapshot of `{stack_id}` to go back to")
        return self.reset(stack_id, taken[-1].id, discard=discard)

    def flatten(self, stack_id: str, *, at: int = FLATTEN_AT) -> bool:
        """Make one layer of all above the lowest, once there are *at* of them. Whether it was done. Copies no data.

        The lowest is left: it is the template, which is large and which others have too.

        Raises:
            WrongState: it is in use.
        """
        with self._held(stack_id) as stack:
            upmost = stack.layers[1:]
            if len(stack.layers) < at or len(upmost) < 2:
                return False
            with self._draft() as tree, self._pinned(stack.layers):
                with MergedView([self._trees.files(one) for one in reversed(stack.layers)]) as view:
                    copies.merge(view, self._trees.draft_files(tree), highest=len(upmost), by_links=True)
                with self._lock:
                    self._trees.finish(tree, sealed=True)
                    self._put_stack(replace(stack, layers=(stack.layers[0], tree)))
            return True

    # -- reading, without starting anything ------------------------------------------------------------

    @contextmanager
    def view(self, point: str) -> Iterator[MergedView]:
        """What a stack or a snapshot looks like. Of a stack in use it is what was written up to now."""
        with self._layers_of(point) as layers, MergedView([self._trees.files(tree) for tree in layers]) as view:
            yield view

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
            left_out = {path for branch in view.branches for path in omitted(branch, self._patterns(found.kind))}
            return archive.write_archive(view, write, spool=self._trees.drafts, label=label, without=left_out)

    def copy_out(self, point: str, target: str) -> None:
        """Copy what a point looks like into an empty directory: for a host without overlayfs."""
        with self.view(point) as view:
            copies.merge(view, target, highest=len(view.branches), by_links=False)

    # -- bringing in -----------------------------------------------------------------------------------

    def take_in(
        self,
        source: tape.Source,
        caps: archive.Caps,
        *,
        kind: StackKind = "home",
        owner: tuple[int, int] | None = None,
        name: str = "",
        expected: str | None = None,
    ) -> tuple[Snapshot, archive.Contents]:
        """A snapshot of what an archive holds, or nothing at all. Raises SnapshotCorrupt, LimitReached."""
        belongs = owner or (os.geteuid(), os.getegid())
        with self._draft() as tree:
            contents, label = archive.read_archive(
                source,
                self._trees.draft_files(tree),
                owner=belongs if os.geteuid() == 0 else None,
                caps=caps,
                expected=expected,
            )
            return self._imported(tree, kind, belongs, name, label), contents

    def take_directory(
        self, path: str, *, kind: StackKind = "home", owner: tuple[int, int], name: str = "", label: str = ""
    ) -> Snapshot:
        """A snapshot of a plain directory, by a copy, on which nobody works meanwhile. It stays what it is.

        It was no layer, so nothing in it may pass for a mark of one: whiteouts and such attributes are left out.
        """
        with self._draft() as tree:
            with MergedView([path]) as view:
                copies.merge(view, self._trees.draft_files(tree), highest=1, by_links=False)
            return self._imported(tree, kind, owner, name, label)

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

    # -- inside ----------------------------------------------------------------------------------------

    def _new_stack(self, kind: StackKind, owner: tuple[int, int], layers: tuple[str, ...], facts: Facts) -> Stack:
        with self._lock:
            upper = self._trees.begin_upper(facts)
            self._trees.finish(upper, sealed=False)
            stack = Stack(_new_id(), kind, owner, layers, upper, self._clock())
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
            upper = self._trees.begin_upper(self._trees.top_facts(stack.upper), stack.upper, kept)
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

    def _snapshot_of(
        self,
        stack: Stack,
        layers: tuple[str, ...],
        name: str,
        label: str,
        reason: Reason,
        expires_at: datetime | None,
    ) -> Snapshot:
        return Snapshot(
            _new_id(), stack.id, stack.kind, stack.owner, layers, reason, name, label, self._clock(), expires_at
        )

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

    def _imported(self, tree: str, kind: StackKind, owner: tuple[int, int], name: str, label: str) -> Snapshot:
        """The snapshot of a draft, which is rid of what is never taken."""
        with Branch(self._trees.draft_files(tree)) as branch:
            paths = omitted(branch, self._patterns(kind))
        self._trees.strip_draft(tree, paths)
        snapshot = Snapshot(_new_id(), "", kind, owner, (tree,), "imported", name, label, self._clock(), None)
        with self._lock:
            self._trees.finish(tree, sealed=True)
            self._put_snapshot(snapshot)
        return snapshot


def _new_id() -> str:
    return secrets.token_hex(8)
