"""What a sandbox uses, measured when it is asked for, and what is on record of it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError
from coldframe.contract.files import ProcessInfo
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.control import Control
from coldframe.control.rights import require
from coldframe.fronts.e2b.named_sandboxes import RUNNING, cpu_count, find_named
from coldframe.fronts.e2b.routes import E2bCall, E2bRoute, answer

SPAN_S = 0.1
"""Between the two looks of which the rate of the processor is taken."""
SLACK_S = 1
"""Times of a query have whole seconds."""
MIB = 1 << 20
MOST_LOGGED = 1000
LOOKED_AT_ONCE = 1000
"""Entries, before others are served."""


async def list_metrics(call: E2bCall) -> Response:
    """One measurement, of now, if now is asked for: nothing is sampled while nobody looks."""
    named = find_named(call)
    start, end = call.number("start", 0, most=1 << 40), call.number("end", 1 << 40, most=1 << 40)
    now = call.control.clock()
    if named.state != RUNNING or not start - SLACK_S <= now.timestamp() <= end + SLACK_S:
        return answer([])
    return answer([await measure(call.control, call.caller, named.info)])


async def measure(control: Control, caller: Caller, info: SandboxInfo) -> dict[str, Any]:
    """What it uses now. Raises WrongState: it does not run."""
    sandbox_id, limits, now = info.sandbox_id, info.spec.limits, control.clock()
    before, began = await control.sandboxes.processes(caller, sandbox_id), time.monotonic()
    await asyncio.sleep(SPAN_S)
    after, span_s = await control.sandboxes.processes(caller, sandbox_id), time.monotonic() - began
    try:
        disk = await control.roster.workspace_bytes(info)
    except ColdframeError:
        disk = 0
    cores = cpu_count(info)
    return {
        "timestamp": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "timestampUnix": int(now.timestamp()),
        "cpuCount": cores,
        "cpuUsedPct": round(min(100.0, 100.0 * _used_s(before, after) / span_s / cores), 2),
        "memUsed": sum(one.memory_bytes for one in after),
        "memTotal": limits.memory_mib * MIB,
        "memCache": 0,
        "diskUsed": disk,
        "diskTotal": limits.disk_mib * MIB,
    }


def _used_s(before: list[ProcessInfo], after: list[ProcessInfo]) -> float:
    """Processor time between two looks, of processes that were there at both."""
    known = {one.pid: one.cpu_s for one in before}
    return sum(max(0.0, one.cpu_s - known[one.pid]) for one in after if one.pid in known)


async def list_logs(call: E2bCall) -> Response:
    """Entries of the ledger about the sandbox: what was done in it, by whom, and how it ended."""
    entries = await _logged(call, lambda _: True)
    lines = [{"timestamp": _time(one), "line": _message(one)} for one in entries]
    return answer({"logs": lines, "logEntries": [_entry(one) for one in entries]})


async def list_logs_v2(call: E2bCall) -> Response:
    """The same, those that are asked for alone; with `direction=backward` the newest of them first."""
    level, search, ranks = call.query("level"), call.query("search"), ("debug", "info", "warn", "error")
    least = ranks.index(level) if level in ranks else 0

    def is_wanted(entry: LedgerEntry) -> bool:
        return ranks.index(_level(entry)) >= least and (not search or search in _message(entry))

    found = await _logged(call, is_wanted, backward=call.query("direction") == "backward")
    return answer({"logs": [_entry(one) for one in found]})


async def _logged(
    call: E2bCall, is_wanted: Callable[[LedgerEntry], bool], *, backward: bool = False
) -> list[LedgerEntry]:
    """So many as are asked for, from `start` or `cursor` on, or from there to the beginning."""
    require(call.caller, "ledger.read")
    named = find_named(call)
    limit = call.number("limit", MOST_LOGGED, least=1, most=MOST_LOGGED)
    latest = 1 << 50
    from_ms = call.number("start", call.number("cursor", latest if backward else 0, most=latest), most=latest)
    found: list[LedgerEntry] = []
    after, before = 0, None
    while len(found) < limit:
        page = call.control.ledger.entries(
            sandbox_id=named.info.sandbox_id, after=after, before=before, newest_first=backward, limit=LOOKED_AT_ONCE
        )
        for one in page:
            at_ms = one.at.timestamp() * 1000
            if (at_ms < from_ms + 1 if backward else at_ms >= from_ms) and is_wanted(one):
                found.append(one)
        if len(page) < LOOKED_AT_ONCE:
            break
        after, before = (0, page[-1].seq) if backward else (page[-1].seq, None)
        await asyncio.sleep(0)  # others are served in between
    return found[:limit]


def _entry(entry: LedgerEntry) -> dict[str, Any]:
    fields = {name: str(value) for name, value in entry.body.items() if isinstance(value, str | int | bool)}
    return {
        "timestamp": _time(entry),
        "message": _message(entry),
        "level": _level(entry),
        "fields": {"kind": entry.kind, "seq": str(entry.seq), **fields},
    }


def _level(entry: LedgerEntry) -> str:
    return "warn" if entry.kind.endswith((".refused", "_refused", "_failed")) else "info"


def _message(entry: LedgerEntry) -> str:
    what = entry.body.get("tool") or entry.body.get("message") or ""
    return f"{entry.kind} {entry.subject} {what}".rstrip()


def _time(entry: LedgerEntry) -> str:
    return entry.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


ROUTES = (
    E2bRoute("GET", "/sandboxes/{sandbox_id}/metrics", list_metrics),
    E2bRoute("GET", "/sandboxes/{sandbox_id}/logs", list_logs),
    E2bRoute("GET", "/v2/sandboxes/{sandbox_id}/logs", list_logs_v2),
)
