"""The keeper that waits for the next order: forked ahead of need, in groups of its own that are named after no sandbox."""

import contextlib
import json
import logging
import os
import secrets
import select
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coldframe.host.cgroups import BoxGroups, Controllers
from coldframe.host.confine import ConfineError
from coldframe.host.conversation import conversation, heard
from coldframe.host.processes import kill
from coldframe.host.strays import mark_of
from coldframe.host.written_pages import Ranges, written_pages
from coldframe.host.zygote_link import ZygoteLink

LEARNED_FROM = 5
"""Keepers: the first may have run no command when it is looked at."""
_log = logging.getLogger(__name__)


class WaitingKeeper(NamedTuple):
    """A keeper that knows no box yet."""

    pid: int
    process: int
    """Its descriptor."""
    answer: socket.socket
    """Where it waits for its order."""
    groups: BoxGroups
    """That it was born in."""


class Ahead:
    """At most one keeper that waits. Methods are called on any thread, and block."""

    def __init__(self, installation: str, controllers: Controllers, zygote: ZygoteLink) -> None:
        self._installation = installation
        self._controllers = controllers
        self._zygote = zygote
        self._guard = threading.Lock()
        """Of what follows."""
        self.keeper: WaitingKeeper | None = None
        self._is_forking = False
        self._learned: tuple[int, int] = (-1, 0)
        """Which zygote was told what its keepers write, and after how many of these."""
        self.likely: tuple[int, int] | None = None if os.getuid() == 0 else (os.getuid(), os.getgid())
        """User and group of the sandbox that is likely to be next; bubblewrap is started for it."""
        self._closed = threading.Event()
        self._names: set[str] = set()
        """Of all groups that were made ahead and may have no mark yet."""
        self._in_hand: set[str] = set()
        """Those of them that a keeper is forked into, or a box is built in."""

    @property
    def group_names(self) -> frozenset[str]:
        """Of the groups that were made ahead: of the keeper that waits, of boxes in hand, and of others that may have marks."""
        with self._guard:
            return frozenset(self._names)

    def drop_names(self) -> None:
        """Forget which groups boxes have that are built; from now on their marks tell."""
        with self._guard:
            kept = self._in_hand | ({self.keeper.groups.name} if self.keeper is not None else set())
            self._names &= kept

    def learn(self, keepers: Sequence[int]) -> None:
        """Tell the zygote what these have written, the first of them that have worked: the oldest that lives or the newest, whoever
        wrote more. Who has just been ordered may have run no command yet, or be gone already."""
        with self._zygote.turn:
            process = self._zygote.process
            if process is None:
                return
            zygote, looks = self._learned
            looks = looks if zygote == process.pid else 0
            if looks >= LEARNED_FROM:
                return
            found = (_written_by(keepers, process.pid), _written_by(reversed(keepers), process.pid))
            written = max(found, key=lambda ranges: sum(count for _, count in ranges))
            if written:
                with contextlib.suppress(OSError, ValueError):
                    self._zygote.send(json.dumps({"written": written}).encode(), [])
                    self._learned = process.pid, looks + 1

    def fork(self) -> None:
        """Have one wait, unless one does. A failure is left to the next build, which then forks its own."""
        with self._guard:
            if self._closed.is_set() or self.keeper is not None or self._is_forking:
                return
            self._is_forking = True
        groups = BoxGroups(self._controllers, self._installation, f"ahead-{secrets.token_hex(10)}")
        with self._guard:
            self._names.add(groups.name)
            self._in_hand.add(groups.name)
        made = self._made(groups)
        with self._guard:
            self._in_hand.discard(groups.name)
            self._is_forking = False
            if not self._closed.is_set():
                self.keeper = made
                return
        if made is not None:
            _end(made)

    def take(self) -> WaitingKeeper | None:
        """The keeper that waits, if there is one and it lives. Its groups are in hand until they are `released`."""
        with self._guard:
            keeper, self.keeper = self.keeper, None
            if keeper is not None:
                self._in_hand.add(keeper.groups.name)
        if keeper is None:
            return None
        ended = select.poll()
        ended.register(keeper.process, select.POLLIN)
        if not ended.poll(0):
            return keeper
        _end(keeper)
        self.release(keeper.groups)
        return None

    def release(self, groups: BoxGroups) -> None:
        """The box in them has its mark, or came to nothing. Nothing happens with groups that were not made ahead."""
        with self._guard:
            self._in_hand.discard(groups.name)

    def close(self) -> None:
        """End the one that waits; there is none from now on."""
        with self._guard:
            self._closed.set()
            keeper, self.keeper = self.keeper, None
        if keeper is not None:
            _end(keeper)

    def _made(self, groups: BoxGroups) -> WaitingKeeper | None:
        mine, theirs = conversation()
        process = -1
        with contextlib.ExitStack() as opened:
            opened.callback(theirs.close)
            try:
                groups.create_ahead()
                places = groups.birthplaces()
                places += groups.descriptors().named()
                for _, file in places:
                    opened.callback(os.close, file)
                files = [("answer", theirs.fileno()), *places]
                likely = None
                if self.likely is not None:
                    uid, gid = self.likely
                    likely = {"mark": mark_of(self._installation), "uid": uid, "gid": gid}
                order = json.dumps({"files": [name for name, _ in files], "likely": likely}).encode()
                with self._zygote.turn:
                    self._zygote.send(order, [file for _, file in files])
                theirs.close()
                pid = heard(mine)["keeper"]
                process = os.pidfd_open(pid)
                groups.enter(pid)
            except (OSError, ConfineError, KeyError, ValueError) as error:
                _log.warning("no keeper could be forked ahead: %s", error)
                mine.close()
                if process >= 0:
                    kill(process)
                    os.close(process)
                discard(groups)
                return None
        return WaitingKeeper(pid, process, mine, groups)


def _written_by(keepers: Iterable[int], zygote: int) -> Ranges:
    """By the first that lives; nothing without the right to know."""
    for keeper in keepers:
        with contextlib.suppress(OSError, ValueError):
            return written_pages(keeper, zygote)
    return []


def discard(groups: BoxGroups) -> None:
    """Remove the groups of a keeper that came to nothing."""
    try:
        groups.remove()
    except ConfineError as error:
        _log.warning("%s; a sweep tries again", error)


def _end(keeper: WaitingKeeper) -> None:
    keeper.answer.close()
    kill(keeper.process)
    os.close(keeper.process)
    discard(keeper.groups)
