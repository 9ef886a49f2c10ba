"""An input that stays open: takes each byte at most once, by its place, and passes it on as the command reads.

What was taken outlives whoever sent it. No more than HELD_BYTES wait here for the command; who sends more waits until
there is room, which is how a command that reads slowly slows down its sender and nobody else.
"""

import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from coldframe.guest.loop import OUT, Loop, Timer
from coldframe.guest.verbs import Failure

MOST_SENT_BYTES = 256 * 1024
"""In one request."""
HELD_BYTES = 256 * 1024
"""Taken and not passed on yet; also as much is remembered of what was read, so that a repeated request is known as such."""
WRITE_BYTES = 64 * 1024
WAIT_S = 10.0
"""How long a request waits for room before it is answered with what was taken until then."""
AGAIN_S = 0.02
"""How soon a full terminal is tried again."""
END_OF_TRANSMISSION = b"\x04"
"""What a person types at a terminal for the end of the input."""


class Taken(NamedTuple):
    """How far an input has come."""

    bytes: int
    """From the first byte on, those given at the start included."""
    waiting: int
    """Of these, not passed on to the command yet."""
    open: bool


class Sending:
    """One request to send. `done` is called once, with how far the input has come or with why it cannot go on."""

    def __init__(self, offset: int | None, data: bytes, *, end: bool, done: Callable[[Taken | Failure], None]) -> None:
        self.offset = offset
        self.data = data
        self.end = end
        self.done = done
        self.timer: Timer | None = None


class Input:
    """Of one command. `file` is written to and never blocks; a terminal's is closed by who opened it."""

    def __init__(self, loop: Loop, file: int, *, is_terminal: bool, on_taken: Callable[[], None]) -> None:
        self._loop = loop
        self._file = file
        self._is_terminal = is_terminal
        self._on_taken = on_taken
        self._kept = bytearray()
        """The last bytes that were taken, at least as many as are not written."""
        self._taken = 0
        self._written = 0
        self._ended = False
        """Its end was taken: nothing more comes."""
        self._queue: deque[Sending] = deque()
        self._watched = False
        self._trying: Timer | None = None

    def state(self) -> Taken:
        return Taken(self._taken, self._taken - self._written, self._file >= 0 and not self._ended)

    def begin_with(self, data: bytes) -> None:
        """Take what is given with the command itself, whatever its length."""
        self._take(data)
        self._write()

    def send(self, sending: Sending) -> None:
        """Take it, or as much as there is room for, and the rest as room comes. Requests are taken one after the other.

        Raises:
            Failure: TOO_LARGE; INVALID_ARGUMENT for an offset below 0.
        """
        if len(sending.data) > MOST_SENT_BYTES:
            raise Failure("TOO_LARGE", f"at most {MOST_SENT_BYTES} bytes are sent at once", limit=MOST_SENT_BYTES)
        if sending.offset is not None and sending.offset < 0:
            raise Failure("INVALID_ARGUMENT", "the offset is negative")
        if self._is_terminal and sending.end:
            sending.data, sending.end = sending.data + END_OF_TRANSMISSION, False
        self._queue.append(sending)
        sending.timer = self._loop.after(WAIT_S, lambda: self._give_up(sending), while_held=True)
        self._advance()

    def withdraw(self, sending: Sending) -> None:
        """Whoever sent it is gone: nothing more of it is taken."""
        if sending in self._queue:
            self._queue.remove(sending)
            assert sending.timer is not None
            sending.timer.cancel()
            self._loop.soon(self._advance)

    def close(self) -> None:
        """The command has ended. Idempotent."""
        self._shut()
        self._advance()

    def _give_up(self, sending: Sending) -> None:
        self._queue.remove(sending)
        sending.done(self.state())
        self._advance()

    def _advance(self) -> None:
        while self._queue:
            first = self._queue[0]
            answer = self._serve(first)
            if answer is None:
                return
            self._queue.popleft()
            assert first.timer is not None
            first.timer.cancel()
            first.done(answer)

    def _serve(self, sending: Sending) -> Taken | Failure | None:
        """What it is answered; None as long as it waits for room."""
        rest = self._rest_of(sending)
        if isinstance(rest, Failure):
            return rest
        if not rest and (self._ended if sending.end else sending.data):
            return self.state()  # all of it was taken before
        while self.state().open:
            room = HELD_BYTES - (self._taken - self._written)
            now, rest = rest[:room], rest[room:]
            self._take(now)
            self._ended = sending.end and not rest
            self._write()
            if not rest:
                return self.state()
            sending.offset, sending.data = self._taken, rest
            if self._taken - self._written >= HELD_BYTES:
                return None
        return Failure("WRONG_STATE", "the command takes no input any more", taken=self._taken)

    def _rest_of(self, sending: Sending) -> bytes | Failure:
        """What of it was not taken by an earlier request that was the same as far as it went."""
        if sending.offset is None:
            return sending.data
        known = self._taken - sending.offset
        again = sending.data[: max(0, known)]
        start = len(self._kept) - known
        has_gone_on = known > len(sending.data)
        if known < 0 or start < 0 or self._kept[start : start + len(again)] != again or (has_gone_on and sending.end):
            return Failure("CONFLICT", f"the input goes on at byte {self._taken}", taken=self._taken)
        return sending.data[known:]

    def _take(self, data: bytes) -> None:
        if data:
            self._kept += data
            self._taken += len(data)
            self._on_taken()

    def _write(self) -> None:
        while self._file >= 0 and self._written < self._taken:
            start = len(self._kept) - (self._taken - self._written)
            try:
                self._written += os.write(self._file, self._kept[start : start + WRITE_BYTES])
            except BlockingIOError:
                self._wait_for_room()
                break
            except OSError:  # nobody is there to read
                self._shut()
        unread = self._taken - self._written
        del self._kept[: max(0, len(self._kept) - max(HELD_BYTES, unread))]
        if self._ended and not unread:
            self._shut()

    def _shut(self) -> None:
        if self._file >= 0:
            if self._watched:
                self._loop.forget(self._file)
            if self._trying is not None:
                self._trying.cancel()
            if not self._is_terminal:
                os.close(self._file)
            self._file = -1

    def _wait_for_room(self) -> None:
        if self._watched or self._trying is not None:
            return
        if not self._is_terminal:
            try:
                self._loop.watch(self._file, OUT, lambda _: self._on_room())
            except OSError:  # no event watch is left
                pass
            else:
                self._watched = True
                return
        self._trying = self._loop.after(AGAIN_S, self._on_room)

    def _on_room(self) -> None:
        if self._watched:
            self._loop.forget(self._file)
        self._watched, self._trying = False, None
        self._write()
        self._advance()
