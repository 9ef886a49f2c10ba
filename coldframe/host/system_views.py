"""What the systems of workspaces look like, now and in snapshots, on the template that each stands on. Nothing is started."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from coldframe.contract.errors import NotFound
from coldframe.contract.snapshot import SnapshotPoint, SystemPoint, WorkspacePoint
from coldframe.host.layers.mapping import Users
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.register import Part
from coldframe.host.stacks import Stacks
from coldframe.host.templates.systems import Systems

Seen = tuple[MergedView, tuple[str, ...]]
"""What a point looks like, and the names of its layers."""


class _Standing(NamedTuple):
    """Where a system is found in the store of layers."""

    point: str
    part: Part
    template: str
    users: Users | None


class SystemViews:
    """Of one machine. *name_of* gives the name that a workspace has in the store."""

    def __init__(self, stacks: Stacks, systems: Systems, name_of: Callable[[WorkspacePoint], str]) -> None:
        self._stacks = stacks
        self._systems = systems
        self._name_of = name_of

    @contextmanager
    def compared(self, before: SystemPoint, after: SystemPoint) -> Iterator[tuple[Seen, Seen]]:
        """What two of them look like; a side without one looks as the template of the other. Raises NotFound without any."""
        found = [self._standing(before), self._standing(after)]
        templates = [one.template for one in found if one is not None]
        if not templates:
            raise NotFound("neither of both has a system of its own")
        with ExitStack() as opened:
            old, new = (opened.enter_context(self._seen(one, templates[0])) for one in found)
            yield old, new

    @contextmanager
    def opened(self, point: SystemPoint) -> Iterator[tuple[int, tuple[int, int]]]:
        """A descriptor of what one looks like, and whom `user` of its box is there.

        Raises:
            NotFound: there is none.
            WrongState: a sandbox uses it.
        """
        standing = self._standing(point)
        if standing is None or standing.users is None:
            raise NotFound("it has no system of its own")
        with ExitStack() as held:
            if standing.part == "home":
                held.enter_context(self._systems.at_rest(standing.point))
            below = self._systems.below(standing.template)
            reading = self._stacks.reading_system(standing.point, standing.part, below, standing.users)
            yield held.enter_context(reading), standing.users.own

    def _standing(self, point: SystemPoint) -> _Standing | None:
        of = point.of
        if of is None or not self._stacks.any():
            return None
        store = self._stacks.store
        if isinstance(of, SnapshotPoint):
            part = store.snapshot(of.snapshot_id).system
            return None if part is None else _Standing(of.snapshot_id, "system", part.template, part.users)
        stack_id = self._systems.stack_of(self._name_of(of))
        if stack_id is None:
            return None
        stack = store.stack(stack_id)
        return _Standing(stack_id, "home", stack.template, stack.users)

    @contextmanager
    def _seen(self, standing: _Standing | None, template: str) -> Iterator[Seen]:
        below = self._systems.below(template if standing is None else standing.template)
        if standing is None:
            with MergedView([one.path for one in below], [one.users for one in below]) as view:
                yield view, tuple(one.name for one in below)
            return
        with self._stacks.store.seen(standing.point, part=standing.part, below=below) as seen:
            yield seen
