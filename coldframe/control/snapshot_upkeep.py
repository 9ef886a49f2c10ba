"""What is done with snapshots unasked: what a crash left is settled at the start, what has expired is removed.

The host has the last word on what there is, and this installation on whose it is and how it is labelled.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import sqlalchemy as sa

from coldframe.contract.errors import ColdframeError, HostUnreachable, NotFound
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.snapshot import AUTOMATIC_S, SnapshotFacts, SnapshotInfo
from coldframe.control.agents import Agents
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.ledger import Ledger, parse_time
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshot_rows import Row, measured_of, sizes_of, snapshots, values_of
from coldframe.control.snapshots import Snapshots, new_act, told_of
from coldframe.control.store import Store
from coldframe.policy.labels import join, parse

_log = logging.getLogger(__name__)
NOTE = "found so afterwards"
LONGEST_SLEEP_S = 60.0
"""The clock may be set, and nobody tells us."""


class SnapshotUpkeep:
    """Begun after the host can be asked, and before anybody is let in."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        sandboxes: Sandboxes,
        keyed: KeyedCalls,
        snapshots: Snapshots,
        host: Host,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sandboxes = sandboxes
        self._keyed = keyed
        self._snapshots = snapshots
        self._host = host
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Settle what a crash left, and forget from now on what has expired. Raises HostUnreachable."""
        await self._settle()
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._snapshots.acts.close()

    async def settle_one(self, act_id: str) -> None:
        """The same for one act whose end this server was not told, since its host went away meanwhile: it is done, or its key
        is given back. Raises HostUnreachable: it is away still."""
        while (row := self._snapshots.row("act_id = ?", act_id)) is not None and row.state == "taking":
            for other in self._snapshots.others_on(row.workspace, act_id):
                await self._snapshots.is_made(other)
            there = await self._host.snapshots.all()
            if self._snapshots.others_on(row.workspace, act_id):
                continue  # what is there may be theirs
            known = {one.snapshot_id for one in self._snapshots.rows("1")}
            row = self._snapshots.row("act_id = ?", act_id)
            if row is not None and row.state == "taking":
                self._settle_begun(row, [facts for facts in there if facts.snapshot_id not in known])

    async def _settle(self) -> None:
        """The host has the last word on what there is."""
        there = {facts.snapshot_id: facts for facts in await self._host.snapshots.all()}
        rows = self._snapshots.rows("1")
        unknown = [facts for facts in there.values() if facts.snapshot_id not in {row.snapshot_id for row in rows}]
        for row in rows:
            if row.state == "taking":
                self._settle_begun(row, unknown)
            elif row.state in ("ready", "lost") and (row.state == "ready") is (row.snapshot_id not in there):
                self._settle_lost(row)
        for facts in unknown:
            self._adopt(facts)

    def _settle_begun(self, row: Row, unknown: list[SnapshotFacts]) -> None:
        for facts in unknown:
            if (facts.workspace, facts.name, facts.reason) == (row.workspace, row.name, row.reason):
                unknown.remove(facts)
                note = {"note": NOTE}
                kind = "snapshot.imported" if row.reason == "imported" else "snapshot.taken"
                label = parse(row.label)
                if row.sandbox_id is not None:
                    label = join(label, self._sandboxes.find(row.sandbox_id).workspace_label)
                with self._store.transaction() as connection:
                    # It may be the first of two tries, and what has raised the label meanwhile among its files.
                    mine = snapshots.update().where(snapshots.c.act_id == row.act_id)
                    connection.execute(mine.values(label=label.value))
                    found = self._snapshots.finish(row.act_id, facts, kind, more=note)
                    if row.reason == "discarded":
                        self._settle_reset(row, found, connection)
                return
        self._snapshots.forget(row.act_id)

    def _settle_reset(self, row: Row, kept: SnapshotInfo, connection: sa.Connection) -> None:
        """What was before a reset is there, so it was done."""
        begun = self._ledger.last(row.sandbox_id or "", "sandbox.reset_begun", before=1 << 62)
        body = {**({} if begun is None else begun.body), "kept": kept.snapshot_id, "caller": row.taken_by}
        body["note"] = NOTE
        self._ledger.append("sandbox.reset", row.sandbox_id or "", body, connection=connection)
        self._keyed.close(row.act_id, {"kept": kept.model_dump(mode="json"), "lost": []}, connection=connection)

    def _settle_lost(self, row: Row) -> None:
        """Or found again."""
        with self._store.transaction() as connection:
            if row.expires_at is not None and parse_time(row.expires_at) <= self._clock():
                connection.execute(snapshots.delete().where(snapshots.c.act_id == row.act_id))
                kind = "snapshot.expired"
            else:
                now = "lost" if row.state == "ready" else "ready"
                connection.execute(snapshots.update().where(snapshots.c.act_id == row.act_id).values(state=now))
                kind = "snapshot.lost" if now == "lost" else "snapshot.found"
            body = {**told_of(row), "caller": "server"}
            self._ledger.append(kind, row.snapshot_id or row.act_id, body, connection=connection)

    def _adopt(self, facts: SnapshotFacts) -> None:
        """One that nobody knows: what a crash left of a reset, or of somebody's who was told that it failed. Labelled as
        high as its workspace, and kept for a day unless it has a time of its own."""
        expires_at = facts.expires_at or self._clock() + timedelta(seconds=AUTOMATIC_S)
        act_id = new_act()
        with self._store.transaction() as connection:
            values = values_of(
                act_id,
                facts,
                state="ready",
                workspace=facts.workspace,
                sandbox_id=None,
                name=facts.name,
                label=self._label_of(facts),
                reason=facts.reason,
                taken_by="server",
                created_at=facts.created_at,  # not now: there may be another agent of that id since
                expires_at=expires_at,
            )
            connection.execute(snapshots.insert().values(values))
            row = self._snapshots.row("act_id = ?", act_id)
            assert row is not None
            body = {**told_of(row), "caller": "server"}
            self._ledger.append("snapshot.adopted", facts.snapshot_id, body, connection=connection)

    def _label_of(self, facts: SnapshotFacts) -> Label:
        """As high as its workspace is now; the highest for a temporary one, and where that is gone or another."""
        if facts.workspace is None:
            return facts.label
        with contextlib.suppress(NotFound):
            if facts.workspace.agent_id is not None:
                agent = self._agents.get(facts.workspace.agent_id)
                if facts.created_at >= agent.created_at:
                    return join(facts.label, agent.workspace_label)
        return Label.RESTRICTED

    async def turn(self) -> float:
        """Remove what has expired or is being removed, and take over sizes; how many seconds until there is something to do."""
        now = self._clock()
        wait_s = LONGEST_SLEEP_S
        for row in self._snapshots.rows(
            "state = 'removing' OR (expires_at IS NOT NULL AND state IN ('ready', 'lost'))"
        ):
            left_s = (parse_time(row.expires_at) - now).total_seconds() if row.expires_at is not None else 0.0
            if row.state != "removing" and left_s > 0:
                wait_s = min(wait_s, left_s)
                continue
            try:
                if row.state == "removing":
                    await self._snapshots.finish_removal(row)
                else:
                    await self._snapshots.acts.whole(self._snapshots.remove_row(row, "snapshot.expired", "timer"))
            except ColdframeError as error:
                _log.warning("snapshot `%s` is not removed yet: %s", row.snapshot_id, error.message)
        with contextlib.suppress(HostUnreachable):
            await self._count()
        return wait_s

    async def _count(self) -> None:
        """Take over what the host has counted since: it does so after it has answered, and one that comes or goes changes
        how much the others take alone."""
        rows = {row.snapshot_id: row for row in self._snapshots.rows("state = 'ready'")}
        if not rows or not (self._snapshots.uncounted or any(None in sizes_of(row) for row in rows.values())):
            return
        told = await self._host.snapshots.all()
        self._snapshots.uncounted = False
        for facts in told:
            row = rows.get(facts.snapshot_id)
            if row is not None and measured_of(facts) != row.measured:
                with self._store.transaction() as connection:
                    found = snapshots.update().where(snapshots.c.act_id == row.act_id)
                    connection.execute(found.values(measured=measured_of(facts)))

    async def _run(self) -> None:
        while True:
            self._snapshots.changed.clear()
            wait_s = LONGEST_SLEEP_S
            try:
                wait_s = await self.turn()
            except Exception:  # noqa: BLE001  the edge of a task, which has to go on
                _log.exception("snapshots could not be looked after")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # wait_for would lose a cancellation that comes with a wake
                    await self._snapshots.changed.wait()
