"""What the event loop of the broker waits with: epoll, with less around it than the selector of the standard library.

A connection that passes is looked at a dozen times, each time for some microseconds of work, so what the loop does around
that counts: a tenth of the broker's processor time in mode `sni`. And while there is work at hand, the loop asks the kernel
before each round of it whether there is more; here it does so before every other one.
"""

import math
import select
import selectors
from collections.abc import Mapping
from typing import Any

MOST_EVENTS = 256
"""Of one answer; the rest comes with the next."""

_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class Readiness(selectors.BaseSelector):
    """For descriptors by their numbers."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._has_asked = False
        """Whether the kernel was asked before the last round."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = _number_of(fileobj)
        if number in self._keys:
            raise KeyError(number)
        self._epoll.register(number, _wanted(events))
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = _number_of(fileobj)
        known = self._keys[number]
        if known.events != events:
            self._epoll.modify(number, _wanted(events))
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        number = _number_of(fileobj)
        key = self._keys.pop(number)
        try:
            self._epoll.unregister(number)
        except OSError:
            pass  # it is closed already
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._has_asked and timeout is not None and timeout <= 0:
            self._has_asked = False
            return []
        self._has_asked = True
        # To whole milliseconds, else it returns too early, and is asked again.
        wait_s = None if timeout is None else math.ceil(max(timeout, 0) * 1000) / 1000
        ready = []
        try:
            found = self._epoll.poll(wait_s, MOST_EVENTS)
        except InterruptedError:
            return []
        for number, told in found:
            key = self._keys.get(number)
            if key is not None:
                is_readable, is_writable = told & ~_WRITE, told & ~_READ
                events = (selectors.EVENT_READ if is_readable else 0) | (selectors.EVENT_WRITE if is_writable else 0)
                ready.append((key, events & key.events))
        return ready

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_number_of(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def _number_of(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _wanted(events: int) -> int:
    return (_READ if events & selectors.EVENT_READ else 0) | (_WRITE if events & selectors.EVENT_WRITE else 0)
