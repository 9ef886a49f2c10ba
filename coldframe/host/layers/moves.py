"""How stacks go on from other layers: what is new is made beside what is there, and then descriptions are put in place.

A workspace and the system of its own that it may have are two stacks. Where both go on at once a description of the move is
put in place first: killed after that, the next start finishes it.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from coldframe.contract.errors import SnapshotCorrupt, WrongState
from coldframe.host.layers import copies
from coldframe.host.layers.branch import Branch
from coldframe.host.layers.draft import Facts
from coldframe.host.layers.mapping import Users, moved
from coldframe.host.layers.omissions import omitted
from coldframe.host.layers.records import Move, Reason, Snapshot, Stack, StackKind, SystemPart
from coldframe.host.layers.register import Register

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


class Going(NamedTuple):
    """A stack that is about to go on from other layers."""

    before: Stack
    after: Stack
    left_out: list[bytes]
    """Of what was its upper layer, if anybody needs that still."""


class SystemCopy(NamedTuple):
    """The system of a snapshot that is being taken."""

    part: SystemPart | None
    copy: Callable[[], None] = lambda: None
    """To be called while nothing writes to it."""


class Moves(Register):
    """The part of a store that changes which layers a stack goes on from."""

    def _new_stack(
        self,
        kind: StackKind,
        owner: tuple[int, int],
        layers: tuple[str, ...],
        facts: Facts,
        name: str = "",
        *,
        users: Users | None = None,
        template: str = "",
    ) -> Stack:
        with self._lock:
            upper = self._trees.begin_upper(facts, users=users)
            self._trees.finish(upper)
            stack = Stack(new_id(), kind, owner, layers, upper, self._clock(), name, users, template)
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
        with self._lock:
            going = self._going(stack, layers, carried=carried, facts=facts)
            if snapshot is not None:
                self._put_snapshot(snapshot)
            try:
                self._put_stack(going.after)
            except BaseException:
                if snapshot is not None:
                    self._snapshot_shelf.remove(snapshot.id)
                    del self._snapshots[snapshot.id]
                raise
            self._seal_former(going)
        return going.after

    def _move_both(self, one: Going, other: Going, snapshot: Snapshot | None) -> None:
        """Both at the same moment, and the snapshot with them."""
        with self._lock:
            self._put_together(Move(new_id(), (one.after, other.after), snapshot))
            for going in (one, other):
                self._seal_former(going)

    def _going(
        self,
        stack: Stack,
        layers: tuple[str, ...],
        *,
        carried: list[bytes] | None = None,
        facts: Facts | None = None,
        template: str | None = None,
    ) -> Going:
        if len(layers) > MOST_LAYERS:
            raise WrongState("the stack has too many layers; flatten it first")
        left_out = self._omitted(stack.upper, stack.kind)
        kept = left_out if carried is None else self._matching(stack.upper, carried)
        facts = facts or self._trees.top_facts(stack.upper)
        upper = self._trees.begin_upper(facts, self._trees.files(stack.upper), kept, users=stack.users)
        self._trees.finish(upper)
        template = stack.template if template is None else template
        return Going(stack, replace(stack, layers=layers, upper=upper, template=template), left_out)

    def _seal_former(self, going: Going) -> None:
        if going.before.upper in self._named():
            self._trees.seal(going.before.upper, going.left_out)

    # -- the system of a workspace ---------------------------------------------------------------------

    @contextmanager
    def _held_system(self, stack_id: str | None) -> Iterator[Stack | None]:
        if stack_id is None:
            yield None
            return
        with self._held(stack_id) as stack:
            yield stack

    def _sealed_system(self, stack_id: str | None) -> SystemPart | None:
        """Of a system that is not in use. As fast whatever it holds; nothing that anybody sees changes."""
        return None if stack_id is None else part_of(self._with_empty_upper(stack_id))

    @contextmanager
    def _copied_system(self, stack_id: str | None) -> Iterator[SystemCopy]:
        """For a snapshot that is taken while boxes stand still, any of which may use the system."""
        try:
            part = self._sealed_system(stack_id)
        except WrongState:
            assert stack_id is not None
            stack = self.stack(stack_id)
            with self._draft(stack.users) as tree, self._layers_of(stack_id):
                taken = replace(part_of(stack), layers=(*stack.layers, tree))
                yield SystemCopy(taken, partial(self._copy_upper, stack, tree))
            self._measure(tree)
        else:
            yield SystemCopy(part)

    def _copy_upper(self, stack: Stack, tree: str) -> None:
        """The upper layer into a draft."""
        with self._trees.branch(stack.upper) as branch:
            left_out = omitted(branch, self._patterns(stack.kind))
            copies.copy_branch(branch, self._trees.draft_files(tree), without=left_out, written=self._drafts[tree])

    @contextmanager
    def system_layers(self, snapshot_id: str) -> Iterator[tuple[str, list[tuple[str, Users]]]]:
        """The template of the system that a snapshot holds, and its layers upon that, the lowest first, with whose they are.
        They stay meanwhile.

        Raises:
            NotFound: there is no such snapshot, or no system in it.
            SnapshotCorrupt.
        """
        part = self._system_of(self.snapshot(snapshot_id))
        with self._pinned(part.layers):
            self._trees.require(part.layers)
            found = []
            for tree in part.layers:
                users = self._trees.users(tree)
                if users is None:
                    raise SnapshotCorrupt("it is not known whose the system of the snapshot is", id=snapshot_id)
                found.append((self._trees.files(tree), users))
            yield part.template, found

    def fork_system(self, snapshot_id: str, *, owner: tuple[int, int], users: Users) -> Stack:
        """A second stack on the system that a snapshot holds, for the users of another box. *owner* has its top.

        Raises:
            NotFound: there is no such snapshot, or no system in it.
            SnapshotCorrupt.
        """
        with self._lock:
            part = self._system_of(self.snapshot(snapshot_id))
            self._trees.require(part.layers)
            facts = self._system_facts(part, owner, users)
            return self._new_stack("system", owner, part.layers, facts, users=users, template=part.template)

    def _system_facts(self, part: SystemPart | None, owner: tuple[int, int], users: Users | None) -> Facts:
        """Of the top of a system that goes on from there; of a new one without."""
        if part is None or not part.layers:
            moment = round(self._clock().timestamp() * 1e9)
            return Facts(0o755, owner if os.geteuid() == 0 else None, (moment, moment), {})
        facts, stored = self._trees.top_facts(part.layers[-1]), self._trees.users(part.layers[-1])
        if facts.owner is None:
            return facts
        return facts._replace(owner=owner if stored is None or users is None else moved(facts.owner, stored, users))

    # -- inside ----------------------------------------------------------------------------------------

    def _snapshot_of(self, stack: Stack, layers: tuple[str, ...], wish: Wish) -> Snapshot:
        return replace(self._new_snapshot(layers, stack.kind, stack.owner, wish), stack=stack.id, workspace=stack.name)

    def _new_snapshot(self, layers: tuple[str, ...], kind: StackKind, owner: tuple[int, int], wish: Wish) -> Snapshot:
        return Snapshot(
            new_id(), "", kind, owner, layers, wish.reason, wish.name, wish.label, self._clock(), wish.expires_at
        )

    def _discarded(self, label: str) -> Wish:
        return Wish("", label, "discarded", self._clock() + DISCARDED_KEPT)

    def _before(self, stack: Stack) -> tuple[str, ...]:
        """The layers of a snapshot of a stack that is about to go on from others."""
        return stack.layers if self._adds_nothing(stack) else (*stack.layers, stack.upper)

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
        self._put_drafted(snapshot)
        self._measure(tree)
        return snapshot

    def _put_drafted(self, snapshot: Snapshot) -> None:
        """With the drafts that it is made of, which are layers from now on."""
        drafts = [tree for tree in snapshot.trees if tree in self._drafts]
        for tree in drafts:
            self._trees.seal_draft(tree, self._drafts[tree])
        with self._lock:
            for tree in drafts:
                self._trees.finish(tree)
            if drafts:
                self._trees.sync_names()
            self._put_snapshot(snapshot)

    def _measure(self, tree: str) -> None:
        """A copy is, at once, so that nobody gets past a limit on their size by being quick."""
        with self._pinned((tree,)), suppress(OSError):  # else by `digest`
            self._trees.measure(tree)


def part_of(stack: Stack) -> SystemPart:
    return SystemPart(stack.id, stack.owner, stack.layers, stack.template, stack.users)


def new_id() -> str:
    return secrets.token_hex(8)
