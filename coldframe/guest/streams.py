"""What one command reads and writes: its pipes or its terminal, from when they are made until they are closed.

Output is taken write by write, so that the order across the two streams is exact; past EXACT_ORDER_BYTES the pipes grow
and are read whole. Whoever has the streams is given what was read once per turn of the loop.
"""

import errno
import os
import select
from collections.abc import Callable, Sequence
from functools import partial

from coldframe.guest import spawn
from coldframe.guest.input import Input
from coldframe.guest.loop import EDGE, HANGUP, IN, Loop
from coldframe.guest.transcript import STDERR, STDOUT, Transcript

EXACT_ORDER_BYTES = 256 * 1024
"""Output up to which the order across streams is exact; past it the pipes grow for throughput."""
READ_BYTES = 1024 * 1024

Taken = Sequence[tuple[int, bytearray | memoryview]]
"""Stream and what was written there, in order. It is to be kept before anything else is read."""


class Streams:
    """`take` is given what was read, `on_arrival` is told that something was, `on_last_end` that nothing more can be,
    `on_taken` that some of the input was taken.
    """

    def __init__(
        self,
        loop: Loop,
        transcript: Transcript,
        *,
        take: Callable[[Taken], None],
        on_arrival: Callable[[], None],
        on_last_end: Callable[[], None],
        on_taken: Callable[[], None],
        open_output: Callable[[], spawn.Output] = spawn.open_output,
    ) -> None:
        self._loop = loop
        self._transcript = transcript
        self._give = take
        self._on_arrival = on_arrival
        self._on_last_end = on_last_end
        self._on_taken = on_taken
        self._open_output = open_output
        self.input: Input | None = None
        """None for a command whose input was given whole."""
        self.input_name = ""
        """As its descriptors are called in /proc, for an input that stays open."""
        self._outputs: dict[int, tuple[int, int]] = {}
        """Read descriptor to (stream, held write descriptor or -1)."""
        self._pending: list[tuple[int, bytearray]] = []
        self._flushing = False
        self._bulk = False
        self._after_bulk: set[int] = set()
        self._room = bytearray()
        """What is read past EXACT_ORDER_BYTES, one time after the other: new memory for each costs as much as to copy it."""
        self._terminal = -1

    @property
    def open(self) -> bool:
        """Whether somebody may still write."""
        return bool(self._outputs)

    @property
    def mixed(self) -> bool:
        """Whether both were written to when their order was not exact any more."""
        return self._bulk and len(self._after_bulk) > 1

    def open_terminal(self, columns: int, rows: int) -> int:
        """The command's end, for all three. It is the caller's to close. Raises OSError."""
        self._terminal, theirs = spawn.open_terminal(columns, rows)
        self._outputs[self._terminal] = (STDOUT, -1)
        self.input = Input(self._loop, self._terminal, is_terminal=True, on_taken=self._on_taken)
        self.input_name = f"/dev/pts/{os.minor(os.fstat(theirs).st_rdev)}"
        return theirs

    def open_input(self) -> int:
        """The command's end of an input that stays open. It is the caller's to close. Raises OSError."""
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self.input = Input(self._loop, ours, is_terminal=False, on_taken=self._on_taken)
        self.input_name = f"pipe:[{os.fstat(ours).st_ino}]"
        return theirs

    def open_pipes(self) -> tuple[int, int]:
        """The command's ends for output and errors. They are closed here. Raises OSError."""
        out = self._open_output()
        self._outputs[out.read] = (STDOUT, out.write)
        err = self._open_output()
        self._outputs[err.read] = (STDERR, err.write)
        return out.write, err.write

    def watch(self) -> None:
        """Before anybody can write, since the order of the first two writes is the order of their events."""
        for file in self._outputs:
            self._loop.watch(file, IN | EDGE, partial(self._on_events, file))

    def resize(self, columns: int, rows: int) -> bool:
        """Whether there is a terminal."""
        if self._terminal < 0:
            return False
        spawn.resize_terminal(self._terminal, columns, rows)
        return True

    def let_go(self) -> None:
        """Our own hold on what the command writes to, which would hide the end of the file; and its input."""
        if self.input is not None:
            self.input.close()
        for read, (stream, write) in list(self._outputs.items()):
            if write >= 0:
                os.close(write)
                self._outputs[read] = (stream, -1)

    def close_silent(self) -> None:
        """Close at once the pipes that nobody holds and nothing is in, as both are at the end of most commands."""
        look = select.poll()
        for file in self._outputs:
            if file != self._terminal:
                look.register(file, select.POLLIN)
        for file, events in look.poll(0):
            if events == select.POLLHUP:
                self._let_close(file)

    def drain(self) -> None:
        """Take all that is there now, and give it."""
        for file in list(self._outputs):
            if file in self._outputs:
                self._read(file, everything=True)
        self._flush()

    def close(self) -> None:
        if self.input is not None:
            self.input.close()
        for file in list(self._outputs):
            self._let_close(file)

    def _on_events(self, file: int, events: int) -> None:
        self._read(file, everything=bool(events & HANGUP) or self._bulk or file == self._terminal)

    def _read_again(self, file: int) -> None:
        if file in self._outputs:
            self._read(file, everything=True)

    def _read(self, file: int, *, everything: bool) -> None:
        """Take one write (exact order), or all there is (bulk, or nobody writes any more)."""
        stream, _ = self._outputs[file]
        budget = 8 * READ_BYTES
        while True:
            try:
                data = self._read_once(file)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:  # EIO: the last holder of the terminal is gone
                    raise
                data = b""
            if not data:
                self._let_close(file)
                if not self._outputs:
                    self._on_last_end()
                break
            self._take(stream, data)
            budget -= len(data)
            if not everything:
                break
            if budget <= 0:  # let others have a turn; edge-triggered, so ask ourselves again
                self._loop.soon(partial(self._read_again, file))
                break

    def _read_once(self, file: int) -> bytes | memoryview:
        if not self._bulk:
            return os.read(file, READ_BYTES)
        if not self._room:
            self._room = bytearray(READ_BYTES)
        return memoryview(self._room)[: os.readv(file, (self._room,))]

    def _take(self, stream: int, data: bytes | memoryview) -> None:
        if isinstance(data, memoryview):
            self._after_bulk.add(stream)
            self._flush()
            self._give([(stream, data)])
            self._on_arrival()
            return
        if self._pending and self._pending[-1][0] == stream and len(self._pending[-1][1]) < READ_BYTES:
            self._pending[-1][1].extend(data)
        else:
            self._pending.append((stream, bytearray(data)))
        if not self._flushing:
            self._flushing = True
            self._loop.soon(self._flush)
        self._on_arrival()
        if not self._bulk and self._transcript.total_bytes > EXACT_ORDER_BYTES:
            self._go_bulk()

    def _go_bulk(self) -> None:
        self._bulk = True
        for read, (stream, write) in list(self._outputs.items()):
            if write >= 0:
                spawn.make_bulk(spawn.Output(read, write))
                os.close(write)
                self._outputs[read] = (stream, -1)
                self._loop.soon(partial(self._read_again, read))

    def _flush(self) -> None:
        self._flushing = False
        pending, self._pending = self._pending, []
        if pending:
            self._give(pending)

    def _let_close(self, file: int) -> None:
        if file == self._terminal and self.input is not None:
            self.input.close()
        _, write = self._outputs.pop(file)
        if not self._outputs:
            self._room = bytearray()
        self._loop.forget(file)
        os.close(file)
        if write >= 0:
            os.close(write)
        if file == self._terminal:
            self._terminal = -1
