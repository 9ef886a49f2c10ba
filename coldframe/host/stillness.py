"""Boxes that stand still for a moment, so that their files can be copied as they are: the processes, and the keeper.

The processes are frozen by their control group, as a pause does it. The keeper writes files too, and has no part in that
group, so it is stopped. Where nothing can be frozen, a box in which nothing runs stands still with its keeper, who begins all
that runs there. It is put down on disk who stands still before anybody does: a machine that is killed meanwhile
lets them go on when it starts again.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from coldframe.contract.errors import WrongState
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.marks import KeeperMark
from coldframe.host.processes import come_of, parent_of, process_start

NOTE = "still"
"""In the directory of a box; it says whether the box was frozen for it, or paused already."""
STOP_S = 2.0
TRIES = 200
"""To see what runs in a box in a moment in which no process of the machine begins: some tens of microseconds."""


class StillBox(NamedTuple):
    sandbox_id: str
    directory: str
    mark: KeeperMark
    groups: BoxGroups


class Stillness:
    """All of these, within. Blocking, from any thread; nobody else may pause or resume them meanwhile.

    Raises:
        WrongState: one of them cannot be held; all go on.
    """

    def __init__(self, boxes: Sequence[StillBox]) -> None:
        self._boxes = boxes
        self._held: list[StillBox] = []

    def __enter__(self) -> None:
        try:
            for box in self._boxes:
                self._hold(box)
        except BaseException:
            self._release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _hold(self, box: StillBox) -> None:
        can_freeze = box.groups.can_freeze
        paused = can_freeze and box.groups.is_frozen()
        with open(os.path.join(box.directory, NOTE), "w", encoding="ascii") as note:
            note.write("paused" if paused or not can_freeze else "frozen")
        self._held.append(box)
        try:
            if can_freeze and not paused:
                box.groups.freeze()
        except ConfineError as error:
            raise WrongState(
                f"sandbox `{box.sandbox_id}` could not be held still, and goes on: {error}",
                sandbox_id=box.sandbox_id,
            ) from error
        _stop(box)
        if not can_freeze and not _is_idle(box.mark):
            raise WrongState(
                f"sandbox `{box.sandbox_id}` has processes that cannot be held still on this machine",
                hint="wait until nothing runs there, or stop the sandboxes of this workspace first",
                sandbox_id=box.sandbox_id,
            )

    def _release(self) -> None:
        failure: OSError | None = None
        while self._held:
            try:
                go_on(self._held.pop())
            except OSError as error:  # the others go on all the same, and this one with the next start
                failure = error
        if failure is not None:
            raise failure


def is_held(box: StillBox) -> bool:
    """Whether it stands still for this alone, and is not paused."""
    try:
        with open(os.path.join(box.directory, NOTE), encoding="ascii") as source:
            return source.read() == "frozen"
    except FileNotFoundError:
        return False


def go_on(box: StillBox) -> None:
    """Let it go on, if it was held still, and as it was."""
    note = os.path.join(box.directory, NOTE)
    try:
        with open(note, encoding="ascii") as source:
            held = source.read()
    except FileNotFoundError:
        return
    if process_start(box.mark.pid) == box.mark.started:
        with suppress(ProcessLookupError):
            os.kill(box.mark.pid, signal.SIGCONT)
    if held == "frozen":  # else it was paused, or nobody came as far as to write it
        box.groups.thaw()
    with suppress(FileNotFoundError):
        os.unlink(note)


def _stop(box: StillBox) -> None:
    """Its keeper. One that has ended writes nothing."""
    if process_start(box.mark.pid) != box.mark.started:
        return
    with suppress(ProcessLookupError):
        os.kill(box.mark.pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S
    while _state(box.mark.pid) not in ("T", "t", "Z", "X", ""):
        if time.monotonic() > deadline:
            raise WrongState(
                f"the keeper of sandbox `{box.sandbox_id}` could not be held still", sandbox_id=box.sandbox_id
            )
        time.sleep(0.001)


def _is_idle(mark: KeeperMark) -> bool:
    """Whether nothing runs in a box whose keeper stands still but its first process, and bubblewrap, which waits for that."""
    for _ in range(TRIES):
        below = come_of(mark.pid)
        if below is not None:
            return below == {mark.init, parent_of(mark.init)}
        time.sleep(0.001)
    return False


def _state(pid: int) -> str:
    """As the kernel has it; empty for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as source:
            return source.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
