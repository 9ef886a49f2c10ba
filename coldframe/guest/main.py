"""The keeper at work: serves one sandbox on its socket until the box ends.

By the time it runs, the process has joined the box, dropped every right and loaded the filter; what it
still holds are descriptors: its socket, the directory of its records, the workspace as the box sees it,
the groups of the box.
"""

import contextlib
import gc
import os
import socket
from collections.abc import Callable

from coldframe.guest import spawn
from coldframe.guest.commands import Commands
from coldframe.guest.commands import Handover as Handover
from coldframe.guest.commands import Setting as Setting
from coldframe.guest.connection import Connection
from coldframe.guest.loop import IN, URGENT, Loop

ACCEPT_AGAIN_S = 0.1
_EVENTS_BYTES = 4096


class Keeper:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._loop = Loop()
        self._commands = Commands(setting, self._loop)

    def serve(self) -> None:
        """Until the box ends."""
        setting, loop = self._setting, self._loop
        setting.listener.setblocking(False)
        loop.watch(setting.listener.fileno(), IN, self._accept)
        if setting.handover is not None:
            setting.handover.listener.setblocking(False)
            loop.watch(setting.handover.listener.fileno(), IN, self._hand_over)
        loop.watch(setting.init, IN, lambda _: loop.stop())
        if setting.lease >= 0:
            loop.watch(setting.lease, IN, self._on_lease)
        if setting.group_events >= 0:
            loop.watch(setting.group_events, URGENT, self._look_if_paused)
            self._look_if_paused(URGENT)
        spawn.settle_signals()
        gc.collect()
        gc.freeze()  # what is there now stays: a collection that touched it would copy it after every fork
        loop.soon(self._commands.prepare)
        loop.run()

    def _on_lease(self, _: int) -> None:
        if not os.read(self._setting.lease, 1):
            self._commands.end_box()

    def _look_if_paused(self, _: int) -> None:
        """The kernel says it, whoever paused the box: so no restart of anybody leaves time standing."""
        try:
            events = os.pread(self._setting.group_events, _EVENTS_BYTES, 0)
        except OSError:  # the group is gone, and so is the box in a moment
            self._loop.forget(self._setting.group_events)
            events = b""
        if b"frozen 1" in events.splitlines():
            self._loop.hold()
        else:
            self._loop.release()

    def _accept(self, _: int) -> None:
        peer = self._next_of(self._setting.listener, self._accept)
        if peer is None:
            return
        try:
            Connection(self._commands, peer)
        except OSError:  # the box's user has no event watch left, which its processes can bring about
            peer.close()

    def _hand_over(self, _: int) -> None:
        assert self._setting.handover is not None
        peer = self._next_of(self._setting.handover.listener, self._hand_over)
        if peer is None:
            return
        with peer, contextlib.suppress(OSError):  # it is gone, and comes again
            peer.setblocking(False)  # a new socket has room for all of it
            self._setting.handover.give(peer)

    def _next_of(self, listener: socket.socket, again: Callable[[int], None]) -> socket.socket | None:
        """Whoever connects, if there is somebody and room."""
        try:
            return listener.accept()[0]
        except BlockingIOError:
            return None
        except OSError:  # no descriptor is free: whoever connects waits, instead of waking us without end
            self._loop.forget(listener.fileno())
            self._loop.watch_later(ACCEPT_AGAIN_S, listener.fileno(), IN, again)
            return None
