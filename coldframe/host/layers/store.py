"""The layers of one installation: the steps from one state to the next, and what can be read without starting anything.

Each step makes what is new beside what is there, and then puts one description in place (see `records.py`): killed
anywhere, the next start finds the old state or the new one.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from coldframe.contract.errors import NotFound, SnapshotCorrupt, WrongState
from coldframe.host.layers import archive, copies, diff, tape
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.draft import Facts, exchange, facts_of
from coldframe.host.layers.mapping import Users
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.mounts import Stacking, was_lost
from coldframe.host.layers.moves import PLAIN, Moves, Wish, new_id, part_of
from coldframe.host.layers.omissions import omitted, patterns_of
from coldframe.host.layers.records import Snapshot, Stack, StackKind
from coldframe.host.layers.register import Below, Part

FLATTEN_AT = 16
"""Layers of a stack. A walk over 50 takes four times as long as over one (measured), and a mount has room for 90."""
FLATTEN_OTHERS_AT = 48
"""From so many on those of other users are copied, which a fork of a fork of a fork has below its own."""


class LayerStore(Moves):
    """See `Register` for its directory, and for who may have it open.

    A *point* is the id of a stack or of a snapshot.
    """

    # -- steps -----------------------------------------------------------------------------------------

    def create(
        self,
        kind: StackKind = "home",
        *,
        owner: tuple[int, int] | None = None,
        mode: int = 0o700,
        name: str = "",
        users: Users | None = None,
        template: str = "",
    ) -> Stack:
        """A stack of nothing, which belongs to *owner*, or to this process's user. *name* is of the workspace it is, *users*
        tells whom the users inside are, *template* what lies below a system."""
        user, group = owner or (os.geteuid(), os.getegid())
        now = self._clock()
        moment = round(now.timestamp() * 1e9)
        facts = Facts(mode, (user, group) if os.geteuid() == 0 else None, (moment, moment), {})
        return self._new_stack(kind, (user, group), (), facts, name, users=users, template=template)

    def fork(
        self, point: str, *, owner: tuple[int, int] | None = None, name: str = "", users: Users | None = None
    ) -> Stack:
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
            return self._new_stack(source.kind, owner or source.owner, source.layers, facts, name, users=users)

    def adopt(self, path: str, name: str, *, owner: tuple[int, int] | None = None, users: Users | None = None) -> Stack:
        """A directory on which nobody works becomes the lowest layer of a stack, by a change of its name: as fast whatever
        it holds. It must be on the same file system; its place is free afterwards. *owner*, if that is not whose the
        directory itself is, has the new upper layer.

        Marks of overlayfs that a program made in it while it was a directory (see docs/layers.md) may hide its own files
        from it then, and nothing else: nothing lies below them.
        """
        with Branch(path) as branch:
            left_out = omitted(branch, self._patterns("home"))
            facts = facts_of(branch.top(), branch.attributes(b""))
            owner = owner or branch.owner
        with self._lock:
            upper = self._trees.begin_upper(facts._replace(owner=facts.owner and owner), path, left_out, users=users)
            self._trees.finish(upper)
            tree = self._trees.await_directory(users)
            stack = Stack(new_id(), "home", owner, (tree,), upper, self._clock(), name, users)
            self._put_stack(stack)
            try:
                os.rename(path, self._trees.files(tree))
            except BaseException:
                self._drop_stack(stack.id)
                raise
            self._trees.seal(tree, left_out)
        return stack

    def take_snapshot(self, stack_id: str, wish: Wish = PLAIN, *, system: str | None = None) -> Snapshot:
        """Of a stack that is not in use: its upper layer is sealed, and it gets an empty one. As fast whatever it holds.
        With the stack *system*, which is the system of that workspace.

        Raises:
            WrongState: one of them is in use; see `copy_snapshot`.
        """
        part = self._sealed_system(system)
        with self._held(stack_id) as stack:
            snapshot = replace(self._snapshot_of(stack, self._before(stack), wish), system=part)
            if snapshot.layers == stack.layers:
                self._put_snapshot(snapshot)
            else:
                self._move_on(stack, snapshot.layers, snapshot=snapshot)
            return snapshot

    def copy_snapshot(
        self,
        stack_id: str,
        frozen: AbstractContextManager[object],
        wish: Wish = PLAIN,
        *,
        system: str | None = None,
    ) -> Snapshot:
        """Of a stack in use: its upper layer is copied while *frozen* is entered, and the stack stays as it is. So is that of
        the stack *system*, if it is in use.

        The caller sees to it that nothing writes to either in between.
        """
        stack = self.stack(stack_id)
        with self._draft(stack.users) as tree, self._layers_of(stack_id), self._copied_system(system) as beside:
            began = time.monotonic()
            with frozen:
                self._copy_upper(stack, tree)
                beside.copy()
            took_ms = (time.monotonic() - began) * 1000
            taken = self._snapshot_of(stack, (*stack.layers, tree), wish)
            snapshot = replace(taken, was_live=True, frozen_ms=round(took_ms, 3), system=beside.part)
            self._put_drafted(snapshot)
            self._measure(tree)
        return snapshot

    def reset(
        self,
        stack_id: str,
        snapshot_id: str | None = None,
        *,
        discard: bool = False,
        label: str = "",
        system: str | None = None,
    ) -> Snapshot | None:
        """Take a stack back to a snapshot, or to nothing without one. The record of what was done in it stays.

        The stack *system* goes back at the same moment: to what the snapshot holds of one, and to its template if that is
        nothing. Who the machine was is not known to it any more.

        Returns:
            What it was like before, kept for DISCARDED_KEPT; None if *discard*.

        Raises:
            WrongState: it is in use, or the snapshot is of another kind.
        """
        with self._held(stack_id) as stack, self._held_system(system) as beside, self._lock:
            # nobody removes the snapshot meanwhile
            target = self.snapshot(snapshot_id) if snapshot_id is not None else None
            if target is not None and target.kind != stack.kind:
                raise WrongState("the snapshot is of another kind")
            layers = target.layers if target is not None else ()
            self._trees.require(target.trees if target is not None else ())
            kept, facts = None, None
            if target is not None:
                facts = self._top_facts(target)
                facts = facts._replace(owner=facts.owner and stack.owner)
            if not discard:
                kept = self._snapshot_of(stack, self._before(stack), self._discarded(label))
            carried = patterns_of(("history",))
            if beside is None:
                self._move_on(stack, layers, snapshot=kept, carried=carried, facts=facts)
                return kept
            if kept is not None:
                kept = replace(kept, system=replace(part_of(beside), layers=self._before(beside)))
            part = None if target is None else target.system
            its_going = self._going(
                beside,
                () if part is None else part.layers,
                carried=[],
                facts=self._system_facts(part, beside.owner, beside.users),
                template=None if part is None else part.template,
            )
            self._move_both(self._going(stack, layers, carried=carried, facts=facts), its_going, kept)
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
                new_id(), "", "home", owner, (tree,), wish.reason, "", label, now, wish.expires_at, workspace=name
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
        others = (number for number, tree in enumerate(stack.layers) if not self._is_of(tree, stack))
        return stack.layers[1 + max(others, default=0) :]

    def _is_of(self, tree: str, stack: Stack) -> bool:
        """Whether the files of a layer are of the users that the stack is of."""
        users = self._trees.users(tree)
        if users is not None and stack.users is not None:
            return users == stack.users
        return self._trees.owner(tree) == stack.owner

    def flatten(self, stack_id: str, *, at: int = FLATTEN_AT, below: Sequence[Below] = ()) -> bool:
        """Make one layer of all above the lowest, once there are *at* of them. Whether it was done. Copies no data.

        The lowest is left: it is large, and others have it too. So are those of another user, which a fork has below its
        own. *below* is what lies under all of them: what they hide of it stays hidden.

        Raises:
            WrongState: it is in use.
        """
        with self._held(stack_id) as stack:
            if not self.wants_flattening(stack_id, at=at):
                return False
            upmost = self._flattened(stack)
            kept = stack.layers[: -len(upmost)]
            with self._draft(stack.users) as tree, self._pinned(stack.layers):
                with self._viewed(stack.layers[::-1], below) as view:
                    by_links = all(self._is_of(one, stack) for one in upmost)
                    heirs = None if by_links else copies.Heirs(stack.owner, stack.users)
                    files = self._trees.draft_files(tree)
                    written = self._drafts[tree]
                    copies.merge(view, files, highest=len(upmost), by_links=by_links, heirs=heirs, written=written)
                self._trees.seal_draft(tree, self._drafts[tree])
                with self._lock:
                    self._trees.finish(tree)
                    self._trees.sync_names()
                    self._put_stack(replace(stack, layers=(*kept, tree)))
            return True

    # -- reading, without starting anything ------------------------------------------------------------

    @contextmanager
    def view(self, point: str) -> Iterator[MergedView]:
        """What a stack or a snapshot looks like. Of a stack in use it is what was written up to now."""
        with self._layers_of(point) as layers, self._viewed(layers) as view:
            yield view

    @contextmanager
    def seen(
        self, point: str, *, part: Part = "home", below: Sequence[Below] = ()
    ) -> Iterator[tuple[MergedView, tuple[str, ...]]]:
        """As `view`, with the names of the layers, by which `diff.changes` knows what both sides have. *part* says which of a
        snapshot is meant, *below* what lies under it."""
        with self._layers_of(point, part) as layers, self._viewed(layers, below) as view:
            yield view, (*layers, *(one.name for one in below))

    @contextmanager
    def changes(self, before: str, after: str) -> Iterator[Iterator[diff.Change]]:
        """What differs between two points, stacks or snapshots."""
        with self._layers_of(before) as old, self._layers_of(after) as new:
            with self._viewed(old) as old_view, self._viewed(new) as new_view:
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

    def copy_out(
        self, point: str, target: str, *, owner: tuple[int, int] | None = None, users: Users | None = None
    ) -> None:
        """Copy what a point looks like into an empty directory: for a host without overlayfs. *owner* gets the top, and all
        of it that is not known to be of one of the *users*."""
        heirs = None if owner is None else copies.Heirs(owner, users)
        with self.view(point) as view:
            copies.merge(view, target, highest=len(view.branches), by_links=False, heirs=heirs)
        if owner is not None and os.geteuid() == 0:
            os.chown(target, *owner)

    def count(self, snapshot_id: str) -> Snapshot:
        """Count what a snapshot holds, and of a system what was changed in it, and write it down. Looks at every file; raises
        NotFound."""
        snapshot = self.snapshot(snapshot_id)
        if snapshot.files is not None:
            return snapshot
        files = size = 0
        seen: set[tuple[int, int]] = set()
        parts: tuple[Part, ...] = ("home",) if snapshot.system is None else ("home", "system")
        for part in parts:
            with self.seen(snapshot_id, part=part) as (view, _):
                for place in view.walk():
                    status = place.status
                    files += not stat.S_ISDIR(status.st_mode)
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
        users: Users | None = None,
        system: str | None = None,
    ) -> Snapshot:
        """A snapshot of a plain directory, by a copy, on which nobody works meanwhile: *frozen* is entered for that, if
        somebody else would. It stays what it is.

        It was no layer, so nothing in it may pass for a mark of one: whiteouts and such attributes are left out.
        """
        with self._draft(users) as tree, self._copied_system(system) as beside:
            began = time.monotonic()
            with frozen or nullcontext():
                with MergedView([path]) as view:
                    files, written = self._trees.draft_files(tree), self._drafts[tree]
                    copies.merge(view, files, highest=1, by_links=False, written=written)
                beside.copy()
            took_ms = (time.monotonic() - began) * 1000
            taken = self._new_snapshot((tree,), kind, owner, wish)
            snapshot = replace(taken, workspace=workspace, system=beside.part)
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
    def paths(self, point: str, part: Part = "home") -> Iterator[list[str]]:
        """Where the layers of a point lie, the highest first; they stay meanwhile."""
        with self._layers_of(point, part) as layers:
            yield [self._trees.files(tree) for tree in layers]

    @contextmanager
    def pinned(self, point: str) -> Iterator[None]:
        """The layers of a point stay meanwhile, also if nobody names them any more."""
        with self._layers_of(point):
            yield
