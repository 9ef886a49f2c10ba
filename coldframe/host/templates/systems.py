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
from collections.abc import Callable
from typing import NamedTuple

from coldframe.contract.errors import IsolationUnavailable, NotFound, WrongState
from coldframe.contract.isolation import Property
from coldframe.host.isolation.own_system import COUNT, System
from coldframe.host.layers.store import LayerStore
from coldframe.host.templates.id_range import FIRST_UID, IdRange, hand_over, hold_users, own_range
from coldframe.host.templates.store import Template, Templates
from coldframe.host.workspaces import FIRST_UID as FIRST_USER

SETUP = "coldframe setup"


class Prepared(NamedTuple):
    """A system that can be mounted, and is nobody else's meanwhile."""

    system: System
    digest: str
    held: int
    """A descriptor that keeps it so as long as it, or a copy of it, is open in any process."""
    users: int | None = None
    """Where there is no root: a descriptor of the user namespace in which it can be mounted. It stays that of `Systems`."""


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
        self._folder = os.path.join(data_dir, "host", "systems")
        self._layers = layers
        self._lock = threading.Lock()
        self._users: dict[IdRange, int] = {}

    def prepare(self, workspace: str, template: str, user: tuple[int, int], place: str) -> Prepared:
        """The system of a workspace, which is begun from the newest template of that name if it has none.

        `user` is the sandbox user of the workspace, `place` an empty directory to mount it at.

        Raises:
            IsolationUnavailable: there is no such template here, or this machine cannot have it.
            WrongState: another sandbox of the workspace uses it.
        """
        refuse_unable()
        with self._lock:
            layers = self._layers()
            known = self._read(workspace)
            if known is not None and known.user != user:
                known = None  # the workspace was removed, and this is a new one of its name
            begun = self._template(template) if known is None else self._kept(workspace, known.template)
            users = self._users_of(begun.ids)
            first = (_first(user[0]), _first(user[1])) if users is None else (0, 0)
            if known is None:
                stack = layers.create("system", owner=first if users is None else user, mode=0o755)
                if users is not None:
                    hand_over(layers.stacking(stack.id, place).upper, begun.ids)
                known = _Known(begun.digest, stack.id, user)
                self._write(workspace, known)
            try:
                held = layers.hold(known.stack)
            except WrongState:
                raise WrongState(
                    "another sandbox of the agent uses its system",
                    hint="stop or end that one first, or give this one an agent of its own",
                ) from None
        try:
            stacking = layers.stacking(known.stack, place)
            lower = tuple(one for one in stacking.lower if os.path.basename(one) != "empty")
            template_first = (begun.ids.first_uid, begun.ids.first_gid) if users is None else first
            system = System(begun.root, template_first, first, lower, stacking.upper, stacking.work, place)
        except BaseException:
            os.close(held)
            raise
        return Prepared(system, begun.digest, held, users)

    def user_of(self, workspace: str) -> tuple[int, int] | None:
        """The sandbox user of a workspace that has a system of its own; None if it has none."""
        known = self._read(workspace)
        return None if known is None else known.user

    def users(self) -> set[int]:
        """All of them: nobody else may become one, whatever the directories say."""
        return {known.user[0] for name in self._names() if (known := self._read(name)) is not None}

    def remove(self, workspace: str) -> None:
        """Of a workspace that is gone, and of none of whose boxes anything lives."""
        with self._lock:
            known = self._read(workspace)
            if known is not None:
                with contextlib.suppress(NotFound):
                    self._layers().remove_stack(known.stack)
                os.unlink(self._path(workspace))
                self._layers().collect()

    def strays(self) -> list[str]:
        """Workspaces that are gone and whose systems are not."""
        return [one for one in self._names() if not os.path.isdir(os.path.join(self._data, one))]

    def _users_of(self, ids: IdRange) -> int | None:
        """Once for each range, as it takes two programs; None for root."""
        if os.getuid() == 0:
            return None
        if ids not in self._users:
            self._users[ids] = hold_users(ids)
        return self._users[ids]

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [name.removesuffix(".json").replace("+", "/") for name in names if name.endswith(".json")]

    def _template(self, name: str) -> Template:
        for found in Templates(self._data).list():
            if found.name == name:
                return found
        raise _missing(
            f"the template `{name}` has not been built on this machine", f"run `{SETUP} --template {name}` once"
        )

    def _kept(self, workspace: str, digest: str) -> Template:
        try:
            return Templates(self._data).get(digest)
        except NotFound:
            raise _missing(
                f"the template `{digest[:12]}…` on which the system of `{workspace}` stands is gone",
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


def refuse_unable() -> None:
    """Raise IsolationUnavailable where no box can have a system of its own: an ordinary user takes subordinate ids to it."""
    own_range()


def judge_ability() -> Property:
    """For the report on a machine: whether a box can have one here, tried and not guessed. Blocks for two programs."""
    name, mechanism = "own_system", "a system of its own (`template: debian`), whose users are nobody's on the host"
    try:
        ids = own_range()
        if os.getuid() != 0:
            os.close(hold_users(ids))
    except IsolationUnavailable as error:
        return Property(name=name, state="absent", mechanism=mechanism, evidence=error.message, remedy=error.hint)
    whose = "of each workspace are a range of their own"
    if os.getuid() != 0:
        whose = f"of all workspaces are {ids.first_uid} to {ids.first_uid + ids.size - 1} of the host, subordinate ids of this user"
    return Property(name=name, state="enforced", mechanism=mechanism, evidence=f"users {whose}")


def _first(user: int) -> int:
    """The first of a range that no other workspace has; the one before them all is that of templates."""
    return FIRST_UID + (user - FIRST_USER + 1) * COUNT


def _missing(reason: str, remedy: str) -> IsolationUnavailable:
    return IsolationUnavailable(reason, hint=remedy, property="template", reason=reason, remedy=remedy)
