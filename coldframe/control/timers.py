"""The timers of sandboxes: how long each may do nothing, and how old it may get.

They live in the server and count by its clock. Nothing of them is kept beside the ledger: what was done last, how far a
sandbox was extended, and that somebody was warned stand there, so they go on after a restart as if there had been none.
There is no poll: one task sleeps until the first of them is due.

Activity is a call that starts a command or changes files, and a command that runs; to begin to run is as well, by
creation, start or resume. Reading, listing, following and connecting are none.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar

from coldframe.contract.errors import ColdframeError, NotFound
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo
from coldframe.control.leases import AtEnd
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.sandbox_specs import Longest
from coldframe.control.sandboxes import Sandboxes
from coldframe.tools.registry import every_tool

WARNING_S, EARLY_WARNING_S = 60.0, 600.0
"""How long before it acts a timer says so; the early one where a command runs."""
LONGEST_SLEEP_S = 60.0
"""The clock may be set, and nobody tells us."""
AGAIN_S = 5.0
"""After an act that failed."""
MOST_LOOKED_AT = 1000
"""Calls that only read, at the end of the ledger, before the last of them counts."""
_log = logging.getLogger(__name__)


class Due(NamedTuple):
    at: datetime
    reason: Literal["idle", "age", "kept", "lease"]
    """`kept`: it has been stopped for so long. `lease`: the time that it was given for is over."""


Shown = TypeVar("Shown", bound=SandboxInfo)


class Timers:
    """Those of one installation. *is_busy* says whether a command runs in a sandbox."""

    def __init__(
        self,
        ledger: Ledger,
        sandboxes: Sandboxes,
        clock: Callable[[], datetime],
        longest: Longest,
        stopped_s: float | None,
        is_busy: Callable[[str], bool],
    ) -> None:
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._clock = clock
        self._longest = longest
        self._stopped_s = stopped_s
        self._is_busy = is_busy
        self.expire: Callable[[SandboxInfo, Due], Awaitable[None]] = _nothing
        self.warnings: Callable[[SandboxInfo], tuple[str, ...]] = lambda _: ()
        """What else is to be known of a sandbox."""
        self.used: Callable[[SandboxInfo], dict[str, Any]] = lambda _: {}
        """What one has used so far, for those who are warned."""
        self.lease_end: Callable[[SandboxInfo], tuple[datetime, AtEnd] | None] = lambda _: None
        """When the lease of one ends, and what happens then; None without one."""
        self._watched: set[str] = set()
        self._extended: dict[str, datetime | None] = {}
        self._warned: dict[str, tuple[datetime, float]] = {}
        self._broken_off: dict[str, Due] = {}
        """Acts that have failed."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        sandboxes.begun = self.watch

    def start(self) -> None:
        """Take up those that have a box, or are kept for one."""
        for info in self._sandboxes.living():
            self.watch(info)
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def watch(self, info: SandboxInfo) -> None:
        """From now on, if it has a timer."""
        limits = (self._stopped_s, self._idle_s(info), self._age_s(info), self.lease_end(info))
        if any(limit is not None for limit in limits):
            self._watched.add(info.sandbox_id)
            self._wake.set()

    def due(self, info: SandboxInfo) -> Due | None:
        """When a timer acts on it next, if nothing happens until then. A paused one does nothing, which is no idleness."""
        found = []
        if info.state.state == "stopped" and self._stopped_s is not None:
            found.append(Due(info.state.since + timedelta(seconds=self._stopped_s), "kept"))
        elif info.state.state not in WITH_BOX:
            return None
        idle_s = self._idle_s(info)
        if idle_s is not None and info.state.state == "running":
            found.append(Due(self._active_at(info) + timedelta(seconds=idle_s), "idle"))
        if info.state.state in WITH_BOX and (end := self._born_until(info)) and not self._is_settled(info):
            found.append(Due(end, "age"))
        if info.state.state == "running" and (lease := self.lease_end(info)) is not None:
            found.append(Due(lease[0], "lease"))
        if not found:
            return None
        first = min(found)
        if first.reason == "idle" and self._is_busy(info.sandbox_id):
            first = min(found[1:], default=first)  # it is not idle, so its age or lease comes before
        extended = self._extended_until(info)
        return first if extended is None else first._replace(at=max(first.at, extended))

    def is_due(self, info: SandboxInfo, reason: str | None) -> bool:
        """Whether a timer may act on it now for *reason*: something may have happened since it was looked at."""
        if info.state.state in ("pausing", "stopping"):
            return True
        due = self.due(info)
        return due is not None and due.at <= self._clock() and (due.reason == "kept") is (reason == "kept")

    def shown(self, info: Shown) -> Shown:
        """With when a timer acts, and what is to be known of it, for people."""
        due, warnings = self.due(info), self.warnings(info)
        if due is None and not warnings:
            return info
        return info.model_copy(update={"expires_at": None if due is None else due.at, "warnings": warnings})

    def active_at(self, info: SandboxInfo) -> datetime:
        """When something was done in it last; of one without a box, since when it stands as it does."""
        return self._active_at(info) if info.state.state in WITH_BOX else info.state.since

    def abandoned_at(self, info: SandboxInfo) -> datetime | None:
        """When its idle limit had been reached, and nobody has taken it up again."""
        kinds = ("sandbox.abandoned", "sandbox.resumed", "sandbox.started", "sandbox.extended")
        found = self._ledger.last(info.sandbox_id, *kinds, before=_ANY)
        if found is None or found.kind != "sandbox.abandoned":
            return None
        has_begun = info.state.state == "running" and self._active_at(info) > found.at
        return None if has_begun else found.at

    def end_of_age(self, info: SandboxInfo) -> datetime | None:
        """After which it is neither started nor resumed."""
        end, extended = self._born_until(info), self._extended_until(info)
        return end if end is None or extended is None else max(end, extended)

    def latest(self, info: SandboxInfo) -> datetime | None:
        """How far it can be extended."""
        most = self._longest.age_s
        return None if most is None else info.created_at + timedelta(seconds=most)

    def extend(self, info: SandboxInfo, until: datetime, by: str) -> None:
        """No timer acts on it before. Recorded; what was given before stays."""
        before = self._extended_until(info)
        if before is not None and before >= until:
            return
        body = {
            "sandbox_id": info.sandbox_id,
            "agent_id": info.agent_id,
            "caller": by,
            "until": format_time(until),
        }
        self._ledger.append("sandbox.extended", info.sandbox_id, body)
        self._extended[info.sandbox_id] = until

    async def turn(self) -> float:
        """Warn of what is due soon, act on what is due; how many seconds until there is something to do."""
        wait_s = LONGEST_SLEEP_S
        for sandbox_id in tuple(self._watched):
            try:
                wait_s = min(wait_s, await self._look(self._sandboxes.find(sandbox_id)))
            except NotFound:
                self._forget(sandbox_id)
            except Exception:  # noqa: BLE001  what one of them meets keeps no other from its time
                _log.exception("the timers of sandbox `%s` could not be looked at", sandbox_id)
                wait_s = min(wait_s, AGAIN_S)
        return wait_s

    async def _look(self, info: SandboxInfo) -> float:
        due = self._broken_off.pop(info.sandbox_id, None)
        if due is None or info.state.state not in ("pausing", "stopping"):  # somebody else has seen to it
            due = self.due(info)
        if due is None:
            self._forget(info.sandbox_id)  # `begun` brings it back
            return LONGEST_SLEEP_S
        left_s = (due.at - self._clock()).total_seconds()
        if due.reason == "idle" and self._is_busy(info.sandbox_id):
            return max(left_s, AGAIN_S)
        if left_s > EARLY_WARNING_S:
            return left_s - EARLY_WARNING_S
        if left_s > WARNING_S:
            if self._is_busy(info.sandbox_id):
                self._warn(info, due, EARLY_WARNING_S)
            return left_s - WARNING_S
        if left_s > 0:
            self._warn(info, due, WARNING_S)
            return left_s
        try:
            await self.expire(info, due)
        except ColdframeError as error:
            _log.warning("sandbox `%s` is over its time and goes on: %s", info.sandbox_id, error.message)
            self._broken_off[info.sandbox_id] = due
        except Exception:
            self._broken_off[info.sandbox_id] = due
            raise
        return AGAIN_S

    def _warn(self, info: SandboxInfo, due: Due, within_s: float) -> None:
        warning = due.at, within_s
        if self._warned.get(info.sandbox_id) == warning:
            return
        before = self._ledger.last(info.sandbox_id, "sandbox.expiring", before=_ANY)
        told = None if before is None else (before.body["at"], before.body.get("within_s", WARNING_S))
        if told != (format_time(due.at), within_s):
            body = {
                "sandbox_id": info.sandbox_id,
                "agent_id": info.agent_id,
                "at": format_time(due.at),
                "within_s": round(within_s),
                "reason": due.reason,
                "action": self._action(info, due),
                "used": self.used(info),
            }
            self._ledger.append("sandbox.expiring", info.sandbox_id, body)
        self._warned[info.sandbox_id] = warning

    def _action(self, info: SandboxInfo, due: Due) -> str:
        if due.reason == "lease" and (lease := self.lease_end(info)) is not None:
            return lease[1]
        return "terminate" if due.reason == "kept" else info.spec.on_timeout

    def _forget(self, sandbox_id: str) -> None:
        self._watched.discard(sandbox_id)
        self._extended.pop(sandbox_id, None)
        self._warned.pop(sandbox_id, None)
        self._broken_off.pop(sandbox_id, None)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_s = await self.turn()
            with contextlib.suppress(TimeoutError):  # wait_for would lose a cancellation that comes with a wake
                async with asyncio.timeout(wait_s if self._watched else None):
                    await self._wake.wait()

    def _idle_s(self, info: SandboxInfo) -> float | None:
        return _least(info.spec.idle_timeout_s, self._longest.idle_s)

    def _age_s(self, info: SandboxInfo) -> float | None:
        return _least(info.spec.max_age_s, self._longest.age_s)

    def _born_until(self, info: SandboxInfo) -> datetime | None:
        age_s = self._age_s(info)
        return None if age_s is None else info.created_at + timedelta(seconds=age_s)

    def _is_settled(self, info: SandboxInfo) -> bool:
        """Whether what happens at its end of age has happened."""
        return info.state.state == "paused" and info.spec.on_timeout == "pause"

    def _extended_until(self, info: SandboxInfo) -> datetime | None:
        if info.sandbox_id not in self._extended:
            found = self._ledger.last(info.sandbox_id, "sandbox.extended", before=_ANY)
            self._extended[info.sandbox_id] = None if found is None else parse_time(found.body["until"])
        until, latest = self._extended[info.sandbox_id], self.latest(info)
        return until if until is None or latest is None else min(until, latest)

    def _active_at(self, info: SandboxInfo) -> datetime:
        if self._is_busy(info.sandbox_id):
            return self._clock()
        active = self._sandboxes.active
        if info.sandbox_id not in active:
            active[info.sandbox_id] = self._recorded(info) or info.state.since
        return max(active[info.sandbox_id], info.state.since)

    def _recorded(self, info: SandboxInfo) -> datetime | None:
        """The last activity that the ledger knows of, for a server that has just begun."""
        reading = {name for name, tool in every_tool().items() if not tool.writes}
        before, found = _ANY, None
        for _ in range(MOST_LOOKED_AT):
            found = self._ledger.last(info.sandbox_id, "call.started", "call.ended", "call.interrupted", before=before)
            if found is None or found.at <= info.state.since:
                return None
            started = self._ledger.entries(call_id=found.subject, kinds=("call.started",), limit=1)
            if not started or started[0].body["tool"] not in reading:
                return found.at
            before = found.seq
        return None if found is None else found.at


_ANY = 1 << 62
"""Over every number of an entry."""


def _least(*given: float | None) -> float | None:
    return min((one for one in given if one is not None), default=None)


async def _nothing(_: SandboxInfo, __: Due) -> None: ...
