"""The keeper's event loop: descriptors, timers, and the order in which the kernel reported events.

Not asyncio: commands are forked from this process, so it must stay single-threaded and small, and the
order of events across two pipes must be the kernel's own (epoll keeps its ready list first in, first
out), since the transcript's order rests on it.
"""

import heapq
import itertools
import select
import time
from collections.abc import Callable

IN, OUT, HANGUP, EDGE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR, select.EPOLLET
URGENT = select.EPOLLPRI

TIDY_TIMERS = 256
LONGEST_WAIT_S = 86_400.0
"""The kernel takes no more than some weeks; a timer further off is looked at in between."""


class Timer:
    """A call in the future; `cancel` it or let it happen."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Loop:
    """While its time is held, as that of a box that is paused, timers stand still but for those that say otherwise."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer, bool]] = []
        """When, in turn, what, and whether it comes while time is held."""
        self._held_since_s: float | None = None
        self._held_s = 0.0
        """In all, up to the last release."""
        self._waiting: list[tuple[float, Timer]] = []
        """Of timers that stand still: how long they have left."""
        self._tidy_at = TIDY_TIMERS
        self._soon: list[Callable[[], None]] = []
        self._order = itertools.count()
        self._stopped = False

    def watch(self, file: int, events: int, handler: Callable[[int], None]) -> None:
        self._epoll.register(file, events)
        self._handlers[file] = handler

    def watch_later(self, delay_s: float, file: int, events: int, handler: Callable[[int], None]) -> None:
        """Watch it then, or as soon as an event watch can be had: a box can use up those of its user."""

        def watch() -> None:
            try:
                self.watch(file, events, handler)
            except OSError:
                self.after(delay_s, watch)

        self.after(delay_s, watch, while_held=True)

    def change(self, file: int, events: int) -> None:
        self._epoll.modify(file, events)

    def forget(self, file: int) -> None:
        """Stop watching. Must come before the descriptor is closed; unknown ones are ignored."""
        if self._handlers.pop(file, None) is not None:
            self._epoll.unregister(file)

    def after(self, delay_s: float, action: Callable[[], None], *, while_held: bool = False) -> Timer:
        timer = Timer(action)
        if self._held_since_s is not None and not while_held:
            self._waiting.append((delay_s, timer))
            return timer
        self._push(time.monotonic() + delay_s, timer, while_held=while_held)
        return timer

    def _push(self, at_s: float, timer: Timer, *, while_held: bool) -> None:
        if len(self._timers) >= self._tidy_at:  # most are cancelled long before their time
            self._timers = [entry for entry in self._timers if entry[2].action is not None]
            heapq.heapify(self._timers)
            self._tidy_at = max(TIDY_TIMERS, 2 * len(self._timers))
        heapq.heappush(self._timers, (at_s, next(self._order), timer, while_held))

    def hold(self) -> None:
        """From now on time stands still. Nothing if it does."""
        if self._held_since_s is not None:
            return
        now = self._held_since_s = time.monotonic()
        self._waiting = [(entry[0] - now, entry[2]) for entry in self._timers if not entry[3] and entry[2].action]
        self._timers = [entry for entry in self._timers if entry[3]]
        heapq.heapify(self._timers)

    def release(self) -> None:
        """Time goes on where it stood. Nothing if it does."""
        if self._held_since_s is None:
            return
        now = time.monotonic()
        self._held_s += now - self._held_since_s
        self._held_since_s = None
        waiting, self._waiting = self._waiting, []
        for left_s, timer in waiting:
            if timer.action is not None:
                self._push(now + left_s, timer, while_held=False)

    def time(self) -> float:
        """Seconds that count for commands: those in which time was held do not."""
        return (time.monotonic() if self._held_since_s is None else self._held_since_s) - self._held_s

    def held_s(self) -> float:
        """For how long time has been held, in all."""
        return self._held_s + (0.0 if self._held_since_s is None else time.monotonic() - self._held_since_s)

    def with_others(self, interval_s: float, action: Callable[[], None]) -> Timer:
        """Run *action* at the next whole multiple of the interval, as everybody who asks for it: one wake for all."""
        return self.after(interval_s - time.monotonic() % interval_s, action)

    def soon(self, action: Callable[[], None]) -> None:
        """Run *action* once the events at hand are dealt with."""
        self._soon.append(action)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        while not self._stopped:
            for file, events in self._epoll.poll(self._wait_s(), 256):
                handler = self._handlers.get(file)
                if handler is not None:
                    handler(events)
            self._run_timers()
            actions, self._soon = self._soon, []
            for action in actions:
                action()

    def _wait_s(self) -> float:
        if self._soon:
            return 0
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        return min(max(0.0, self._timers[0][0] - time.monotonic()), LONGEST_WAIT_S) if self._timers else -1

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer, _ = heapq.heappop(self._timers)
            if timer.action is not None:
                timer.action()
