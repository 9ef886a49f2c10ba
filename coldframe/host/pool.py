"""Boxes that stand and wait for a workspace, so that creating a sandbox does not wait for one to be built.

A box that waits is whole but for what belongs to somebody: its workspace, records, socket and way out. Nothing has run in it,
nothing listens in it, its keeper has rights over it alone, and it is told to nobody but its machine. Each is used at most
once, by a sandbox that asks for exactly what it was built with (`Wish`), and is no sandbox until then: in no list, in no count, with
no mark on disk. It ends with its machine, however that ends, because its keeper then finds the conversation closed.

What waits mirrors what was asked for last, one box per request, so there is none before the first sandbox, and a sandbox
that is like none of the last ones is built cold. Nothing here looks at a clock: boxes are built after a box was, and end when others
take their place or what they were built from changes.
"""

import json
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from coldframe.contract.sandbox import Limits
from coldframe.host.cgroups import BoxGroups
from coldframe.host.held_memory import WALK_PAGES, held_bytes
from coldframe.host.processes import kill

MOST_FAILURES = 3
AGAIN_AFTER = 20
"""Sandboxes that are built after that, before boxes wait again, if all failures were on workspaces: these are agents', and three of
one mind may have spoiled theirs."""
OWN_USER = -1
"""Of a wish for a box whose user is to be nobody's yet, as a new workspace's is where each has its own."""
_OF_THE_WISH = frozenset(
    [
        "mark",
        "tools",
        "lent",
        "limits",
        "tells_all",
        "memory_enforced",
        "runtimes",
        "libraries",
        "denied",
        "denied_links",
        "holds_outside",
    ]
)
"""Fields of an order that a box is built with, whoever comes."""
_OF_THE_ARRIVAL = frozenset(
    [
        "sandbox_id",
        "uid",
        "gid",
        "workspace",
        "identity",
        "history",
        "captured_ports",
        "waits",
        "settings",
        "files",
    ]
)
"""Those that are told, or settled, when somebody comes."""

_log = logging.getLogger(__name__)


class Wish(NamedTuple):
    """What a sandbox needs of a box that waited."""

    key: str
    """Whatever it is built with, but for its user."""
    uid: int
    """Its user; OWN_USER for one that is nobody's."""
    order: Mapping[str, Any]
    limits: Limits


def wish_of(order: Mapping[str, Any], limits: Limits, uid: int) -> Wish | None:
    """None for a box that has more than a waiting one can be given: a system of its own, say."""
    if any(value for name, value in order.items() if name not in _OF_THE_WISH | _OF_THE_ARRIVAL):
        return None
    told = {name: value for name, value in order.items() if name in _OF_THE_WISH}
    return Wish(json.dumps(told, sort_keys=True), uid, dict(order), limits)


class Users(Protocol):
    """Sandbox users, where each workspace has one of its own."""

    def reserve_user(self) -> int: ...

    def is_reserved(self, uid: int) -> bool: ...

    def release_user(self, uid: int) -> None: ...


class ReadyBox(NamedTuple):
    """A box that waits."""

    wish: Wish
    uid: int
    pid: int
    """Of its keeper; beside that what the keeper has said, for the mark."""
    begun: dict[str, int]
    settings: str | None
    keeper: int
    """Descriptors of the keeper and of the first process."""
    init: int
    answer: socket.socket
    groups: BoxGroups

    def stands(self) -> bool:
        ended = select.poll()
        for process in (self.keeper, self.init):
            ended.register(process, select.POLLIN)
        return not ended.poll(0)

    def close(self) -> None:
        self.answer.close()
        os.close(self.keeper)
        os.close(self.init)

    def end(self) -> None:
        """Its groups are for the caller to remove."""
        for process in (self.keeper, self.init):
            kill(process)
        self.close()


class Pool:
    """At most *size* boxes that wait; 0 for none ever. Methods are called on any thread.

    *discard* ends a box and removes what belongs to it; it may block.
    """

    def __init__(self, size: int, discard: Callable[[ReadyBox], None], users: Users) -> None:
        self.size = size
        self._discard = discard
        self._users = users
        self._guard = threading.Lock()
        """Of what follows."""
        self._boxes: list[ReadyBox] = []
        self._asked: list[Wish] = []
        """What was asked for last, the latest at the end."""
        self._given: set[int] = set()
        """Users whose box waits for a workspace that is being made, until a sandbox was built: somebody's already, and not taken yet."""
        self._generation = 0
        self._failing: list[str] = []
        """Workspaces of the failures in turn; an empty one is the machine's own."""
        self._asked_since = 0
        self.used = 0
        """Boxes that became sandboxes."""
        self.refused: str | None = None
        """Why there are none any more, if that is so."""
        self._closed = False

    def note_failure(self, workspace: str, reason: str) -> None:
        """Of a box that could not be built ahead, or not become a sandbox on a workspace. MOST_FAILURES in turn are this machine's
        and not a workspace's, which is an agent's: there are none then from now on, or for AGAIN_AFTER sandboxes."""
        with self._guard:
            if not workspace or workspace not in self._failing:
                self._failing.append(workspace)
            if len(self._failing) < MOST_FAILURES or self.refused is not None:
                _log.info("%s", reason)
                return
            self.refused, self._asked_since = reason, 0
        _log.warning("no boxes wait for sandboxes any more, each is built when it is asked for: %s", reason)
        self.empty()

    def note_success(self) -> None:
        with self._guard:
            self.used += 1
            self._failing.clear()

    def ask(self, wish: Wish) -> None:
        """Note that this was asked for: somebody may ask for the same next."""
        with self._guard:
            self._given.clear()
            if self.refused is not None and "" not in self._failing:
                self._asked_since += 1
                if self._asked_since >= AGAIN_AFTER:
                    self.refused = None
                    self._failing.clear()
            if self.size and not self._closed and self.refused is None:
                self._asked = [*self._asked, wish][-self.size :]

    def spare_user(self) -> int | None:
        """A reserved user of whom a box waits, for a new workspace; None if there is none."""
        with self._guard:
            for box in self._boxes:
                if box.wish.uid == OWN_USER and self._users.is_reserved(box.uid):
                    self._given.add(box.uid)
                    return box.uid
        return None

    def take(self, key: str, uid: int, settings: Callable[[], str | None]) -> ReadyBox | None:
        """A box for what a key tells, of this user, which is the caller's from now on; *settings* are those that a new box has."""
        while True:
            with self._guard:
                found = next((one for one in self._boxes if (one.wish.key, one.uid) == (key, uid)), None)
                if found is None:
                    return None
                self._boxes.remove(found)
            if found.stands() and found.settings == settings():
                return found
            _log.info("a box that waited is not used: it has ended, or what its settings were made of has changed")
            self._discard(found)

    def lacking(self) -> tuple[Wish, int] | None:
        """What to build next, and for which generation; None if all stands that should. What stands for nothing ends."""
        with self._guard:
            if self._closed or self.refused is not None:
                return None
            there, kept, missing = list(self._boxes), list[ReadyBox](), list[Wish]()
            for wish in reversed(self._asked):
                box = next((one for one in there if self._fits(one, wish)), None)
                if box is None:
                    missing.append(wish)
                else:
                    there.remove(box)
                    kept.append(box)
            self._boxes = kept
            generation = self._generation
        for box in there:
            self._discard(box)
        return (missing[0], generation) if missing else None

    def add(self, box: ReadyBox, generation: int) -> None:
        """A box that stands now. One that was begun before what it is built from changed ends at once."""
        with self._guard:
            if not self._closed and generation == self._generation and len(self._boxes) < self.size:
                self._boxes.append(box)
                return
        self._discard(box)

    def empty(self, *, closes: bool = False) -> None:
        """End all that wait; the next ones are built when a sandbox was. With *closes* there are none from now on."""
        with self._guard:
            boxes, self._boxes, self._asked = self._boxes, [], []
            self._generation += 1
            self._closed = self._closed or closes
        for box in boxes:
            self._discard(box)

    def boxes(self) -> list[ReadyBox]:
        with self._guard:
            return list(self._boxes)

    def settings(self) -> set[str]:
        """Those that boxes which wait are built with: to be kept."""
        return {box.settings for box in self.boxes() if box.settings is not None}

    def memory_bytes(self) -> int:
        """What all processes of boxes that wait hold of memory, their share of what is shared, as far as it can be read. Blocking."""
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            pids = [pid for box in self.boxes() for pid in (box.pid, *box.begun.values())]
            return held_bytes(proc, pids, 0, lambda: WALK_PAGES)
        finally:
            os.close(proc)

    def _fits(self, box: ReadyBox, wish: Wish) -> bool:
        """Whether it stands for the wish: the user of one for nobody may be somebody's by now."""
        if box.wish.key != wish.key:
            return False
        if wish.uid == OWN_USER:
            return box.wish.uid == OWN_USER and (box.uid in self._given or self._users.is_reserved(box.uid))
        return box.uid == wish.uid
