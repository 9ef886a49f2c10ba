"""The roster: all sandboxes for people who look after them, by age, idle time and maker, and an end for many at once."""

import asyncio
import builtins
import itertools
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Literal

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import ENDED, EndMany, ManyEnds, SandboxEnd, SandboxInfo
from coldframe.control.endings import Endings
from coldframe.control.lifecycle import Lifecycle
from coldframe.control.makers import Makers
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.timers import Shown, Timers
from coldframe.control.usage import Usage

MOST_AT_ONCE = 4
"""Workspaces that are added up."""
SortedBy = Literal["age", "idle", "stored", "owner"]


class Roster:
    """What is said of sandboxes beside what they are."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        timers: Timers,
        lifecycle: Lifecycle,
        endings: Endings,
        makers: Makers,
        usage: Usage,
        clock: Callable[[], datetime],
    ) -> None:
        self._sandboxes = sandboxes
        self._timers = timers
        self._lifecycle = lifecycle
        self._endings = endings
        self._clock = clock
        self._makers = makers
        self._usage = usage

    def shown(self, info: Shown) -> Shown:
        """With its maker, and when it was active and a timer acts, or has because nobody came."""
        more: dict[str, Any] = {
            "created_by": self._makers.find(info.sandbox_id),
            "active_at": self._timers.active_at(info),
        }
        if info.state.state != "running":
            more["abandoned_at"] = self._timers.abandoned_at(info)
        return self._timers.shown(info.model_copy(update=more))

    async def workspace_bytes(self, info: SandboxInfo) -> int:
        """What its workspace has on disk now, at most."""
        return await self._usage.workspace_bytes(info)

    def list(
        self,
        caller: Caller,
        *,
        states: Collection[str] = (),
        agent_id: str | None = None,
        label: Label | None = None,
        created_by: str | None = None,
        min_age_s: float | None = None,
        min_idle_s: float | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> builtins.list[SandboxInfo]:
        """As `Sandboxes.list`, of those only that have this maker, are so old and were idle for so long."""
        is_plain = (created_by, min_age_s, min_idle_s) == (None, None, None)
        found = self._sandboxes.list(
            caller, states=states, agent_id=agent_id, label=label, after=after, limit=limit if is_plain else None
        )
        fits = (
            info
            for info in map(self.shown, found)
            if _fits(info, self._clock(), created_by=created_by, min_age_s=min_age_s, min_idle_s=min_idle_s)
        )
        return [*itertools.islice(fits, limit)]

    async def sort(
        self, infos: Sequence[SandboxInfo], by: SortedBy, limit: int | None = None
    ) -> builtins.list[SandboxInfo]:
        """The oldest, the longest idle, those with most stored first, with how much that is; or owner by owner."""
        if by == "stored":
            infos = await self._weighed(infos)
            ordered = sorted(infos, key=lambda one: -(one.stored_bytes or 0))
        elif by == "owner":
            ordered = sorted(infos, key=lambda one: one.created_by or "")
        elif by == "idle":
            ordered = sorted(infos, key=lambda one: one.active_at or one.state.since)
        else:
            ordered = sorted(infos, key=lambda one: one.created_at)
        return ordered[:limit]

    async def _weighed(self, infos: Sequence[SandboxInfo]) -> builtins.list[SandboxInfo]:
        free = asyncio.Semaphore(MOST_AT_ONCE)

        async def weigh(info: SandboxInfo) -> SandboxInfo:
            async with free:
                return info.model_copy(update={"stored_bytes": await self._usage.stored_bytes(info)})

        return [*await asyncio.gather(*map(weigh, infos))]

    async def end(self, caller: Caller, which: EndMany) -> ManyEnds:
        """Terminate all that fit and have not ended. One that cannot be ended holds up no other.

        Raises:
            GrantMissing: the caller may not.
        """
        require(caller, "sandbox.terminate")
        by = {"created_by": which.created_by, "min_age_s": which.min_age_s, "min_idle_s": which.min_idle_s}
        ended: list[SandboxEnd] = []
        failed = []
        for info in self.list(caller, states=which.state, agent_id=which.agent_id, **by):  # type: ignore[arg-type]
            now = self.shown(self._sandboxes.find(info.sandbox_id))  # something may have been done in it meanwhile
            if now.state.state in ENDED or not _fits(now, self._clock(), **by):  # type: ignore[arg-type]
                continue
            try:
                if which.dry_run:  # without every path of every one
                    ended.append(await self._lifecycle.terminate(caller, info.sandbox_id, dry_run=True))
                    continue
                ended.append(
                    await self._endings.terminate(
                        caller, info.sandbox_id, discard=which.discard, snapshot=which.snapshot
                    )
                )
            except ColdframeError as error:
                failed.append({"sandbox_id": info.sandbox_id, "error": error.to_wire()})
        return ManyEnds(ended=tuple(ended), failed=tuple(failed))


def _fits(
    info: SandboxInfo,
    now: datetime,
    *,
    created_by: str | None,
    min_age_s: float | None,
    min_idle_s: float | None,
) -> bool:
    idle_s = (now - (info.active_at or info.state.since)).total_seconds()
    return (
        created_by in (None, info.created_by)
        and (min_age_s is None or (now - info.created_at).total_seconds() >= min_age_s)
        and (min_idle_s is None or idle_s >= min_idle_s)
    )
