"""The ends of boxes: answered when every process of a box is gone, and finished by themselves.

The kernel takes up to 30 ms more to let the keeper go (its mounts, its packet socket), and the groups after it. Until
then the mark of the box is `ending.json`, so that after a crash the next start or sweep finishes what is left.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from coldframe.contract.errors import ColdframeError, VolumeBusy, WrongState, next_action
from coldframe.host.box import KeeperBox
from coldframe.host.cgroups import BoxGroups
from coldframe.host.confine import ConfineError
from coldframe.host.link import LinkLost
from coldframe.host.marks import ENDING, KeeperMark, Marks
from coldframe.host.processes import end_process, kill_if_same
from coldframe.host.removal import try_removal
from coldframe.host.workspaces import Workspaces

UNMARKED_END_S = 10.0
_log = logging.getLogger(__name__)


class _Ending(NamedTuple):
    """A box that is being ended."""

    owner: str | None
    dead: "asyncio.Future[None]"
    """Every process in it is gone."""
    whole: "asyncio.Task[None]"
    removes_workspace: bool
    """A temporary one; whoever asked waits for that as well."""


class Endings:
    """Those of one machine. *groups_of* finds the control groups of a box by its mark."""

    def __init__(
        self, marks: Marks, workspaces: Workspaces, groups_of: Callable[[str, KeeperMark | None], BoxGroups]
    ) -> None:
        self._marks = marks
        self._workspaces = workspaces
        self._groups_of = groups_of
        self._running: dict[str, _Ending] = {}

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._running

    async def end(self, sandbox_id: str, *, keep_workspace: bool = False) -> None:
        """End a box and remove all of it but its records, and unless it is to be kept the temporary workspace.

        Returns when every process in it is gone, for this process is as good as not there from then on, and when the
        temporary workspace is. The rest goes on by itself; `finish` waits for it.
        """
        if sandbox_id not in self._running:
            mark = self._marks.read(sandbox_id) or self._marks.read(sandbox_id, ENDING)
            if mark is None:
                return
            dead = asyncio.get_running_loop().create_future()
            removes = mark.owner is None and not keep_workspace
            task = asyncio.ensure_future(self._end(sandbox_id, mark, dead, removes_workspace=removes))
            self._running[sandbox_id] = _Ending(mark.owner, dead, task, removes)
            task.add_done_callback(lambda _: self._running.pop(sandbox_id))
        ending = self._running[sandbox_id]
        await asyncio.wait(
            {ending.whole} if ending.removes_workspace else {ending.dead, ending.whole},
            return_when=asyncio.FIRST_COMPLETED,
        )
        if ending.whole.done():
            try:
                await ending.whole
            except TimeoutError as error:
                raise WrongState(
                    f"sandbox `{sandbox_id}` was killed and is not gone yet: {error}",
                    hint="look whether the file system of its workspace answers; then end it once more",
                    next_actions=[next_action("sandbox.terminate", "looks again", sandbox_id=sandbox_id)],
                    sandbox_id=sandbox_id,
                ) from error

    async def _end(
        self, sandbox_id: str, mark: KeeperMark, dead: "asyncio.Future[None]", *, removes_workspace: bool
    ) -> None:
        try:
            await self._end_box(sandbox_id, mark)
            self._marks.begin_ending(sandbox_id)
            dead.set_result(None)
            await self.end_keeper(mark)
            await asyncio.to_thread(self._groups_of(sandbox_id, mark).remove)
            if removes_workspace:
                await asyncio.to_thread(self._workspaces.remove, self._workspaces.of_session(mark.session_id))
            self._marks.remove(sandbox_id)
        except (OSError, ConfineError) as error:
            if not dead.done() or removes_workspace:
                raise
            _log.warning(
                "what is left of sandbox `%s` could not be removed, a sweep tries again: %s", sandbox_id, error
            )

    def finish_former(self) -> None:
        """At a start: nobody else will come back to what the process before was about to remove."""
        for name in self._marks.half_ended():
            mark = self._marks.read(name, ENDING)
            if mark is not None:
                with contextlib.suppress(OSError, ConfineError):  # a sweep tries again, and tells
                    self._groups_of(name, mark).thaw()
                    for pid, started in ((mark.init, mark.init_started), (mark.pid, mark.started)):
                        kill_if_same(pid, started)
                    self._groups_of(name, mark).remove()
                    self._marks.remove(name)

    async def finish_of(self, sandbox_id: str) -> None:
        """Wait until all that belonged to the box is gone, if it is being ended."""
        if sandbox_id in self._running:
            await asyncio.wait({self._running[sandbox_id].whole})

    async def finish(self, owner: str | None = None) -> None:
        """Wait for those of one agent's boxes, or for all."""
        wholes = {one.whole for one in self._running.values() if owner is None or one.owner == owner}
        if wholes:
            await asyncio.wait(wholes)

    async def end_keeper(self, mark: KeeperMark) -> None:
        """Returns when box and keeper are gone. The keeper ends with its box, once it has written what it has to."""
        await end_process(mark.init, mark.init_started, at_once=True)
        await end_process(mark.pid, mark.started, at_once=False)

    async def _end_box(self, sandbox_id: str, mark: KeeperMark) -> None:
        """Also one that stands still: a process in a version 1 freezer ends only once it is let go on."""
        ending = asyncio.ensure_future(end_process(mark.init, mark.init_started, at_once=True))
        await asyncio.sleep(0)  # it is killed by now, so nothing in it runs again
        self._groups_of(sandbox_id, mark).thaw()
        await ending

    async def end_lost(self, sandbox_id: str, mark: KeeperMark) -> None:
        """End what is left of a box whose keeper died, and keep its mark."""
        await self._end_box(sandbox_id, mark)
        await self.end_keeper(mark)
        await asyncio.to_thread(self._groups_of(sandbox_id, mark).remove)

    async def end_former_writers(self, volume_ids: set[str]) -> None:
        """A box whose keeper is gone dies with it, but not in the same moment: it is gone before another may write to its volumes.

        Raises:
            VolumeBusy: it was killed, and waits in the kernel.
        """
        for name, mark in self._marks.all() if volume_ids else []:
            written = {one["volume_id"] for one in mark.volumes if one["mode"] == "rw"}
            if mark.serves() or not mark.runs() or not written & volume_ids:
                continue
            try:
                await self.end_lost(name, mark)
            except TimeoutError as error:
                raise VolumeBusy(f"sandbox `{name}` was killed and is not gone yet: {error}", holders=[name]) from error

    async def attempt(self, sandbox_id: str, ending: Awaitable[object]) -> bool:
        """Whether *ending* ended the box. A sweep goes on without what cannot be; it is logged, and the next one tries
        again.
        """
        mark = self._marks.read(sandbox_id) or self._marks.read(sandbox_id, ENDING)
        try:
            await ending
        except (OSError, ConfineError, ColdframeError) as error:
            if mark is not None and mark.runs():
                _log.error("sandbox `%s` should have ended and still runs: %s", sandbox_id, error)
            else:
                _log.warning(
                    "what is left of sandbox `%s` could not be removed, the next sweep tries again: %s",
                    sandbox_id,
                    error,
                )
            return False
        return True

    async def end_unmarked(self, sandbox_id: str) -> bool:
        """End the box of a daemon that was killed before it could write who keeps it; True if there was one."""
        box = KeeperBox(sandbox_id, self._marks.directory(sandbox_id))
        ended = False
        try:
            async with asyncio.timeout(UNMARKED_END_S):
                await box.end()
                ended = True
                while True:
                    await box.contacts()  # it answers until it is gone
        except LinkLost:
            pass
        except (OSError, ColdframeError) as error:
            reason = str(error) or "it does not answer"
            _log.error("sandbox `%s`, which has no mark, should have ended and may still run: %s", sandbox_id, reason)
            return False
        finally:
            box.close()
        try_removal(f"boxes/{sandbox_id}", partial(self._marks.remove, sandbox_id))
        return ended
