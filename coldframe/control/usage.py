"""What a sandbox has used so far, in units of time and bytes. There is no price table, so nothing is said of money."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from coldframe.contract.errors import ColdframeError, NotFound
from coldframe.contract.files import ListDirectory
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.contract.snapshot import WorkspacePoint
from coldframe.control.latest import keep_latest
from coldframe.control.ledger import Ledger
from coldframe.control.snapshots import Snapshots
from coldframe.control.store import Store

MOST_FILES = 100_000
"""Of a workspace that are added up."""
_CALLS = """SELECT max(seq), count(*), coalesce(sum(json_extract(body, '$.duration_us')), 0),
coalesce(sum(json_extract(body, '$.cpu_us')), 0),
coalesce(sum(coalesce(json_extract(body, '$.stdout.bytes'), 0) + coalesce(json_extract(body, '$.stderr.bytes'), 0)), 0)
FROM ledger WHERE sandbox_id = ? AND seq > ? AND kind = 'call.ended'"""
MOST_KNOWN = 1000
"""Sandboxes whose sums are kept."""
_SNAPSHOTS = """SELECT sandbox_id, coalesce(sum(json_extract(measured, '$.own_bytes')), 0) FROM snapshots
WHERE state = 'ready' AND sandbox_id IS NOT NULL GROUP BY sandbox_id"""
_LAST = {
    "agent": "SELECT max(seq) FROM ledger WHERE agent_id = ? AND agent_id IS NOT NULL",
    "sandbox": "SELECT max(seq) FROM ledger WHERE sandbox_id = ?",
}
COUNT_HOLDS = timedelta(seconds=60)
"""Of a workspace of which nothing came on record since: what runs in the background writes on without an entry."""
MIB = 1 << 20


class _Count(NamedTuple):
    """What a workspace had."""

    bytes: int
    seq: int
    """Of the last entry about it by then."""
    at: datetime


class Usage:
    """Of each sandbox, from what is on record and on disk."""

    def __init__(
        self, store: Store, ledger: Ledger, snapshots: Snapshots, host: Host, clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._snapshots = snapshots
        self._host = host
        self._clock = clock
        self._counts: dict[str, _Count] = {}
        """By agent, or by sandbox where the workspace is temporary."""
        self._known: dict[str, tuple[int, ...]] = {}
        """Up to which entry calls were added up, and what they came to."""

    def so_far(self, info: SandboxInfo, now: datetime) -> dict[str, Any]:
        """For the entries that tell its owner. Calls count once they have ended."""
        calls, wall_us, cpu_us, output = self._calls(info.sandbox_id)
        return {
            "age_s": round((now - info.created_at).total_seconds()),
            "calls": calls,
            "call_ms": round(wall_us / 1000),
            "cpu_ms": round(cpu_us / 1000),
            "output_bytes": output,
            "snapshot_bytes": self._in_snapshots(info.sandbox_id),
        }

    def _calls(self, sandbox_id: str) -> tuple[int, ...]:
        self._ledger.settle()
        before = self._known.get(sandbox_id, (0, 0, 0, 0, 0))
        ((last, *more),) = self._store.read(_CALLS, (sandbox_id, before[0]))
        now = (last or before[0], *(old + new for old, new in zip(before[1:], more, strict=True)))
        return keep_latest(self._known, sandbox_id, now, MOST_KNOWN)[1:]

    async def stored_bytes(self, info: SandboxInfo) -> int | None:
        """What its workspace has now, and snapshots that were taken through it have alone; None if that cannot be asked. The
        workspace of an agent counts for each of its sandboxes."""
        try:
            files, _ = await self._in_workspace(info)
        except ColdframeError:
            return None
        return self._in_snapshots(info.sandbox_id) + files

    async def workspace_bytes(self, info: SandboxInfo) -> int:
        """What its workspace has now, at most: as much as it may have, where it cannot be added up or has too many files."""
        most = info.spec.limits.disk_mib * MIB
        try:
            files, complete = await self._in_workspace(info)
        except NotFound:
            return 0
        except ColdframeError:
            return most
        return files if complete else max(files, most)

    async def counted_bytes(self, info: SandboxInfo) -> int:
        """The same as it was counted last, if nothing has happened there since, as far as that is known."""
        place = info.agent_id or info.sandbox_id
        self._ledger.settle()
        ((last,),) = self._store.read(_LAST["agent" if info.agent_id else "sandbox"], (place,))
        now, known = self._clock(), self._counts.get(place)
        if known is not None and known.seq == (last or 0) and timedelta() <= now - known.at < COUNT_HOLDS:
            return known.bytes
        count = _Count(await self.workspace_bytes(info), last or 0, now)
        return keep_latest(self._counts, place, count, MOST_KNOWN).bytes

    def snapshot_bytes(self) -> dict[str, int]:
        """What all snapshots have alone, by the sandbox that they were taken through, be it there or not."""
        self._ledger.settle()
        return {str(sandbox_id): int(size) for sandbox_id, size in self._store.read(_SNAPSHOTS)}

    async def _in_workspace(self, info: SandboxInfo) -> tuple[int, bool]:
        if info.state.state in (*ENDED, "queued"):
            return 0, True
        point: WorkspacePoint = self._snapshots.workspace_of(info)
        listed = await self._host.snapshots.ask(point, ListDirectory(recursive=True, max_entries=MOST_FILES))
        complete = listed.complete and not listed.errors
        return sum(one.size for one in listed.entries if one.kind == "file"), complete

    def _in_snapshots(self, sandbox_id: str) -> int:
        rows = self._snapshots.rows("sandbox_id = ? AND state = 'ready'", sandbox_id)
        return sum(row.info.own_bytes or 0 for row in rows)
