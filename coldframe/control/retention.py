"""Retention: how long stopped sandboxes and what commands left behind are kept.

What commands printed and their results are removed once they are as old as the operator says; ledger, receipts and digests
stay. How far that has come stands in the ledger, so it goes on after a restart. Stopped sandboxes have a timer.
"""

import asyncio
import contextlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from coldframe.contract.errors import ColdframeError
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.call_records import ids_of
from coldframe.control.judged_outputs import JudgedOutputs
from coldframe.control.ledger import Ledger
from coldframe.control.results import DELETED

EVERY_S = 600.0
"""Between two looks, and so much longer than asked for some things are kept."""
AT_ONCE = 1000
EXPIRED, ABOUT = "results.expired", "results"
_ENDS = ("call.ended", "call.interrupted")
"""Also one whose end nobody knows has left behind what it had printed until then."""
_LATEST = 1 << 62
_log = logging.getLogger(__name__)


class Retention(NamedTuple):
    """In seconds; None for ever."""

    stopped_s: float | None = None
    """A stopped sandbox, from then on."""
    results_s: float | None = None
    """Output and result of a command, from its end on."""


FOR_EVER = Retention()


class ResultRetention:
    """Removes what has been kept for long enough."""

    def __init__(
        self,
        ledger: Ledger,
        judged: JudgedOutputs,
        host: Host,
        clock: Callable[[], datetime],
        kept_s: float | None,
    ) -> None:
        self._ledger = ledger
        self._judged = judged
        self._host = host
        self._clock = clock
        self._kept_s = kept_s
        self.also: list[Callable[[datetime], None]] = []
        """Told from when on things are kept: whatever else holds results removes those of before."""
        self._through: int | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._kept_s is not None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.turn()
            except ColdframeError as error:
                _log.warning("old results could not be removed: %s", error.message)
            except Exception:  # noqa: BLE001  the edge of a task: the next turn tries again
                _log.exception("old results could not be removed")
            await asyncio.sleep(EVERY_S)

    async def turn(self) -> None:
        """Remove what is old enough now. What breaks off is done again: what is gone already is let be."""
        if self._kept_s is None:
            return
        until = self._clock() - timedelta(seconds=self._kept_s)
        while await self._remove(until):
            pass
        for remove in self.also:
            remove(until)

    async def _remove(self, until: datetime) -> bool:
        """A batch of those that ended before; whether there may be more."""
        ended = self._ledger.entries(after=self._position(), kinds=_ENDS, limit=AT_ONCE)
        old = list(itertools.takewhile(lambda entry: entry.at <= until, ended))
        if not old:
            return False
        calls = defaultdict(list)
        for entry in old:
            if entry.body.get("command_id") is not None:
                calls[str(entry.body["sandbox_id"])].append(entry.subject)
        for sandbox_id, call_ids in calls.items():
            await self._host.forget_stored(sandbox_id, [ids_of(one).command_id for one in call_ids])
        self._judged.forget_calls([entry.subject for entry in old])
        body = {"through_seq": old[-1].seq, "commands": sum(map(len, calls.values())), "caller": "timer"}
        self._ledger.append(EXPIRED, ABOUT, body)
        self._through = old[-1].seq
        return len(old) == AT_ONCE

    def gone_at(self, info: SandboxInfo, end_seq: int | None) -> datetime | None:
        """When that was removed which a call left behind that ended with this entry; None if it is there still."""
        if end_seq is None:
            return None
        if end_seq <= self._position():
            return self._looked_up(end_seq)
        if info.spec.on_result == "delete" and (deleted := self._ledger.last(info.sandbox_id, DELETED, before=_LATEST)):
            return deleted.at
        return None

    def _looked_up(self, end_seq: int) -> datetime | None:
        turns = self._turns(after=end_seq)  # it was removed after it had ended
        return next((one.at for one in turns if int(one.body["through_seq"]) >= end_seq), None)

    def _turns(self, *, after: int = 0) -> Iterator[LedgerEntry]:
        while found := self._ledger.entries(after=after, kinds=(EXPIRED,), subject=ABOUT):
            yield from found
            after = found[-1].seq

    def _position(self) -> int:
        """The entry of the last call whose results are gone."""
        if self._through is None:
            self._through = max((int(one.body["through_seq"]) for one in self._turns()), default=0)
        return self._through
