"""The systems of workspaces that have one of their own: a template, and a private layer on it that stays with the workspace.

`<data>/host/systems/NAME.json` says of which template a workspace began, which stack of layers holds what was changed since,
and whose the workspace is: root inside may give its directory to others of the box, so that the directory itself is no
evidence of that any more. A stop, an end or another sandbox of the agent changes nothing of all this; it goes with the
workspace.

Each workspace has a range of users of its own, found from its sandbox user, so that root of one box is nobody to another.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from coldframe.contract.errors import IsolationUnavailable, NotFound, WrongState, next_action
from coldframe.contract.isolation import Property
from coldframe.host.isolation.own_system import System
from coldframe.host.layers.mapping import Extents, shown_as
from coldframe.host.layers.register import Below
from coldframe.host.layers.store import LayerStore
from coldframe.host.layers.trees import users_at
from coldframe.host.sandbox_users import range_of, users_of, users_of_template
from coldframe.host.templates.id_range import IdRange, hand_over, hold_users, own_range, require_range
from coldframe.host.templates.store import Template, Templates

SETUP = "coldframe setup"
_BY_DIGEST = "sha256:"
READ_S = 40.0
"""So long a sandbox waits for who reads the system that it is to have; no question to one at rest takes longer."""


class Prepared(NamedTuple):
    """A system that can be mounted, and is nobody else's meanwhile."""

    system: System
    digest: str
    held: int
    """A descriptor that keeps it so as long as it, or a copy of it, is open in any process."""
    users: int | None = None
    """Where there is no root: a descriptor of the user namespace in which it can be mounted. It stays that of `Systems`."""
    check: Callable[[], None] = lambda: None
    """Looks whether the template is what was built, and raises TemplateChanged. Takes a listing of all its files."""


class _Known(NamedTuple):
    """What is on record of one workspace."""

    template: str
    stack: str
    user: tuple[int, int]


class Systems:
    """Of one machine. Methods block, and may be called in any thread.

    Only root can show the files of one user as another's. So what an ordinary user has is one range, of its subordinate ids,
    to which the template and the systems of all workspaces belong.
    """

    def __init__(self, data_dir: str, layers: Callable[[], LayerStore]) -> None:
        self._data = data_dir
        self.templates = Templates(data_dir)
        self._folder = os.path.join(data_dir, "host", "systems")
        self._layers = layers
        self._lock = threading.Lock()
        self._users: dict[IdRange, int] = {}
        self._reading = threading.Condition()
        """Of what follows."""
        self._readers: dict[str, tuple[int, int]] = {}
        """Stacks that are read, each with a descriptor that holds it, and how many read it."""

    def prepare(self, workspace: str, template: str, user: tuple[int, int], place: str) -> Prepared:
        """The system of a workspace, which is begun from a template if it has none: the newest of a name, the newest of
        `name:version`, or the one of `sha256:DIGEST`.

        `user` is the sandbox user of the workspace, `place` an empty directory to mount it at.

        Raises:
            IsolationUnavailable: there is no such template here, or this machine cannot have it.
            WrongState: another sandbox of the workspace uses it, or it began from another template than the one that is named.
            TemplateChanged: it is not what was built, as far as its record tells.
        """
        refuse_unable()
        with self._lock:
            layers = self._layers()
            known = self._read(workspace)
            if known is not None and known.user != user:
                known = None  # the workspace was removed, and this is a new one of its name
            stands_on = None if known is None else self._stands_on(known)
            if stands_on is not None and template.startswith(_BY_DIGEST) and template != _BY_DIGEST + stands_on:
                raise WrongState(
                    f"the system of the workspace stands on the template `{stands_on[:12]}…`, and not on this one",
                    hint="give it an agent of its own, or leave the digest out",
                    template=stands_on,
                )
            begun = self._template(template) if stands_on is None else self._kept(workspace, stands_on)
            users = self._users_of(begun.ids)
            first = (range_of(user[0]), range_of(user[1])) if users is None else (0, 0)
            if known is None:
                known = self._begin(workspace, begun, user, first if users is None else None)
        held = self._hold(known.stack)
        try:
            stacking = layers.stacking(known.stack, place)
            lower = tuple(one for one in stacking.lower if os.path.basename(one) != "empty")
            maps = tuple(_map_of(one, user) if users is None else None for one in lower)
            template_first = (begun.ids.first_uid, begun.ids.first_gid) if users is None else first
            system = System(
                begun.root, begun.layers, template_first, first, lower, stacking.upper, stacking.work, place, maps
            )
        except BaseException:
            os.close(held)
            raise
        return Prepared(system, begun.digest, held, users, partial(self.templates.check, begun))

    def _hold(self, stack_id: str) -> int:
        """Whoever only reads it is waited for."""
        with self._reading:
            self._reading.wait_for(lambda: stack_id not in self._readers, READ_S)
            try:
                return self._layers().hold(stack_id)
            except WrongState:
                raise WrongState(
                    "another sandbox of the agent uses its system",
                    hint="stop or end that one first, or give this one an agent of its own",
                ) from None

    @contextlib.contextmanager
    def at_rest(self, stack_id: str) -> Iterator[None]:
        """Within, one stays as it is that no sandbox uses, for any number of readers. Raises WrongState: one does."""
        with self._reading:
            if stack_id not in self._readers:
                try:
                    self._readers[stack_id] = (self._layers().hold(stack_id), 0)
                except WrongState:
                    raise WrongState(
                        "a sandbox uses the system",
                        hint="stop it first, take a snapshot and read that, or run a command in it",
                    ) from None
            held, number = self._readers[stack_id]
            self._readers[stack_id] = (held, number + 1)
        try:
            yield
        finally:
            with self._reading:
                held, number = self._readers.pop(stack_id)
                if number > 1:
                    self._readers[stack_id] = (held, number - 1)
                else:
                    os.close(held)
                    self._reading.notify_all()

    def _begin(
        self, workspace: str, template: Template, user: tuple[int, int], owner: tuple[int, int] | None
    ) -> _Known:
        """*owner* is root of the box; None for who has subordinate ids, whose it becomes before anybody finds it: its top is `/`,
        and whose that is may put anything in the place of all that lies there."""
        layers = self._layers()
        stack = layers.create("system", owner=owner or user, mode=0o755, users=users_of(user), template=template.digest)
        if owner is None:
            try:
                hand_over(layers.stacking(stack.id, "").upper, template.ids)
            except BaseException:
                layers.remove_stack(stack.id)
                raise
        known = _Known(template.digest, stack.id, user)
        self._write(workspace, known)
        return known

    def _stands_on(self, known: _Known) -> str:
        """The template: another one than it began with, if it was reset to a snapshot that stands on that."""
        with contextlib.suppress(NotFound):
            return self._layers().stack(known.stack).template or known.template
        return known.template

    def stack_of(self, workspace: str) -> str | None:
        """The stack that holds the system of a workspace; None if it has none, or one that has no part in its snapshots: that of
        an ordinary user, to whom its files are others', and one of which it was not noted whose they are."""
        known = self._read(workspace)
        if known is None or os.getuid() != 0:
            return None
        with contextlib.suppress(NotFound):
            return known.stack if self._layers().stack(known.stack).users is not None else None
        return None

    def fork(self, workspace: str, snapshot_id: str, user: tuple[int, int]) -> None:
        """Have a workspace that is about to be made for *user* begin with the system of a snapshot, if that holds one.

        Raises IsolationUnavailable: the template on which that stands is not on this machine.
        """
        layers = self._layers()
        part = layers.snapshot(snapshot_id).system
        users = users_of(user)
        if part is None or users is None:
            return
        with self._lock:
            self._kept(workspace, part.template)
            stack = layers.fork_system(snapshot_id, owner=users.first, users=users)
            self._write(workspace, _Known(part.template, stack.id, user))

    def ready_for(self, workspace: str, snapshot_id: str | None, user: tuple[int, int]) -> str | None:
        """The stack of the system of a workspace that is about to be reset; one is begun if the snapshot holds one. None where
        there is none on either side.

        Raises IsolationUnavailable: the template on which that of the snapshot stands is not on this machine.
        """
        known = self.stack_of(workspace)
        part = None if snapshot_id is None else self._layers().snapshot(snapshot_id).system
        users = users_of(user)
        if part is None or users is None:
            return known
        with self._lock:
            template = self._kept(workspace, part.template)
            if known is None and self._read(workspace) is None:
                return self._begin(workspace, template, user, users.first).stack
            return known

    def below(self, digest: str) -> list[Below]:
        """What lies under the layers of a system, the highest first. Raises IsolationUnavailable if it is gone."""
        template = self._kept("a snapshot", digest)
        users = users_of_template((template.ids.first_uid, template.ids.first_gid))
        return [Below(f"template:{path}", path, users) for path in (*template.layers, template.root)]

    def drop_unnamed(self) -> None:
        """Stacks of systems that no workspace has: whoever made them was killed before that was on record."""
        with self._lock:
            layers = self._layers()
            named = {known.stack for name in self.names() if (known := self._read(name)) is not None}
            for stack in layers.stacks():
                if stack.kind == "system" and stack.id not in named:
                    with contextlib.suppress(WrongState):
                        layers.remove_stack(stack.id)

    def user_of(self, workspace: str) -> tuple[int, int] | None:
        """The sandbox user of a workspace that has a system of its own; None if it has none."""
        known = self._read(workspace)
        return None if known is None else known.user

    def template_of(self, workspace: str) -> str | None:
        """Digest of the one on which the system of a workspace stands; None if it has none."""
        known = self._read(workspace)
        return None if known is None else self._stands_on(known)

    @contextlib.contextmanager
    def none_begun(self, digest: str) -> Iterator[None]:
        """No system begins from that template meanwhile. Raises WrongState: some have."""
        with self._lock:
            found = [
                name for name in self.names() if (known := self._read(name)) and digest in self._templates_of(known)
            ]
            parts = ((one.id, one.system) for one in self._layers().snapshots())
            found += [f"snapshot {name}" for name, part in parts if part is not None and part.template == digest]
            if found:
                raise WrongState(
                    f"{len(found)} workspaces or snapshots stand on the template: {', '.join(found[:5])}",
                    hint="delete these agents and snapshots first, or withdraw the template, so that no other begins from it",
                    next_actions=[
                        next_action("template.withdraw", "has nothing new begin from it, and leaves what stands")
                    ],
                    used_by=[*found],
                )
            yield

    def _templates_of(self, known: "_Known") -> set[str]:
        """The one that it began with, and the one that it stands on now."""
        return {known.template, self._stands_on(known)}

    def close(self) -> None:
        """No box is built any more."""
        self.templates.close()
        with self._lock:
            while self._users:
                os.close(self._users.popitem()[1])

    def users(self) -> set[int]:
        """All of them: nobody else may become one, whatever the directories say."""
        return {known.user[0] for name in self.names() if (known := self._read(name)) is not None}

    def remove(self, workspace: str) -> None:
        """Of a workspace that is gone, and of none of whose boxes anything lives."""
        with self._lock:
            known = self._read(workspace)
            if known is not None:
                with contextlib.suppress(NotFound):
                    self._layers().remove_stack(known.stack)
                os.unlink(self._path(workspace))
        if known is not None:  # others begin theirs meanwhile
            self._layers().collect()

    def strays(self, is_known: Callable[[str], bool]) -> list[str]:
        """Workspaces that are gone and whose systems are not. Those of layers have no directory while they are not mounted."""
        return [one for one in self.names() if not is_known(one)]

    def _users_of(self, ids: IdRange) -> int | None:
        """Once for each range, as it takes two programs; None for root."""
        if os.getuid() == 0:
            return None
        if ids not in self._users:
            self._users[ids] = hold_users(ids)
        return self._users[ids]

    def names(self) -> list[str]:
        """Of the workspaces that have one."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [name.removesuffix(".json").replace("+", "/") for name in names if name.endswith(".json")]

    def _template(self, wanted: str) -> Template:
        templates = self.templates
        if wanted.startswith(_BY_DIGEST):
            try:
                return templates.get(wanted.removeprefix(_BY_DIGEST))
            except NotFound:
                raise _missing(f"the template `{wanted[:19]}…` is not on this machine", "build it here") from None
        name, _, version = wanted.partition(":")
        for found in templates.list():
            if found.name == name and (not version or (found.made is not None and found.made.version == version)):
                return found
        raise _missing(
            f"the template `{wanted}` has not been built on this machine", f"run `{SETUP} --template {name}` once"
        )

    def _kept(self, workspace: str, digest: str) -> Template:
        try:
            return self.templates.get(digest)
        except NotFound:
            raise _missing(
                f"the template `{digest[:12]}…` on which the system of `{workspace}` stands is not on this machine",
                "restore it from a backup of `templates/`, or delete the agent to begin anew",
            ) from None

    def _path(self, workspace: str) -> str:
        return os.path.join(self._folder, workspace.replace("/", "+") + ".json")

    def _read(self, workspace: str) -> _Known | None:
        try:
            with open(self._path(workspace), encoding="utf-8") as source:
                told = json.load(source)
        except FileNotFoundError:
            return None
        return _Known(told["template"], told["stack"], (told["user"][0], told["user"][1]))

    def _write(self, workspace: str, known: _Known) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = self._path(workspace)
        with open(f"{path}.new", "w", encoding="utf-8") as target:
            json.dump(known._asdict(), target)
            target.flush()
            os.fsync(target.fileno())
        os.rename(f"{path}.new", path)


def _map_of(layer: str, user: tuple[int, int]) -> tuple[Extents, Extents] | None:
    """By which a layer that was written in the box of another user is one of the box of this one."""
    stored, shown = users_at(layer), users_of(user)
    return None if stored is None or shown is None or stored == shown else shown_as(stored, shown)


def refuse_unable() -> None:
    """Raise IsolationUnavailable where no box can have a system of its own: an ordinary user takes subordinate ids to it."""
    own_range()


def judge_ability() -> Property:
    """For the report on a machine: whether a box can have one here, tried and not guessed. Blocks for two programs."""
    name, mechanism = "own_system", "a system of its own (`template: debian`), whose users are nobody's on the host"
    try:
        ids = own_range()
        if os.getuid() != 0:
            require_range(ids)
    except IsolationUnavailable as error:
        return Property(name=name, state="absent", mechanism=mechanism, evidence=error.message, remedy=error.advice)
    whose = "of each workspace are a range of their own"
    if os.getuid() != 0:
        whose = f"of all workspaces are {ids.first_uid} to {ids.first_uid + ids.size - 1} of the host, subordinate ids of this user"
    return Property(name=name, state="enforced", mechanism=mechanism, evidence=f"users {whose}")


def _missing(reason: str, remedy: str) -> IsolationUnavailable:
    return IsolationUnavailable(reason, hint=remedy, property="template", reason=reason, remedy=remedy)
