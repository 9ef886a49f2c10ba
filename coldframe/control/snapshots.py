"""Snapshots: taken, found, named, removed. What is done without being asked is in `snapshot_upkeep.py`.

What is in one the host keeps, and who took it, of what, under which label stands here. A row is written before the host is
asked, and the key of the caller with it; what a crash leaves between the two is settled at the next start by what the host
has. The label of a snapshot is the workspace's, and no lower than that was when the snapshot was finished.
"""

import asyncio
import builtins
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    HostUnreachable,
    InvalidArgument,
    LimitReached,
    NotFound,
    WrongState,
    next_action,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import WITH_BOX, SandboxInfo
from coldframe.contract.snapshot import (
    AUTOMATIC_S,
    SnapshotFacts,
    SnapshotInfo,
    SnapshotPoint,
    SnapshotReason,
    SnapshotRequest,
    SnapshotWish,
    SystemPoint,
    WorkspacePoint,
)
from coldframe.control.acts import Acts
from coldframe.control.agents import Agents
from coldframe.control.at_rest import AtRest, View, of_system
from coldframe.control.judged_acts import JudgedActs
from coldframe.control.judgement import digest_of
from coldframe.control.keyed_calls import KeyedCalls
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.snapshot_rows import FIELDS, SHOWN, Row, measured_of, sizes_of, snapshots, values_of
from coldframe.control.store import Store
from coldframe.policy.labels import join, parse
from coldframe.tools.registry import find_tool

MOST_TRIES = 4
"""A label can rise three times while a snapshot is taken."""
MIB = 1 << 20


class SnapshotLimits(NamedTuple):
    """What the operator lets the snapshots of one agent be; all temporary workspaces count as one, and so do imports."""

    number: int = 200
    mib: int | None = None
    """On disk together, as far as it is counted; None for no limit but the disk's."""
    import_mib: int = 16 * 1024
    """Of the files in one archive."""
    import_files: int = 1_000_000


DEFAULT_LIMITS = SnapshotLimits()


class Key(NamedTuple):
    """Under which something is asked for at most once."""

    caller: Caller
    text: str
    digest: str
    """Of what is asked for."""


class Snapshots:
    """Those of this installation."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        agents: Agents,
        sandboxes: Sandboxes,
        keyed: KeyedCalls,
        judged: JudgedActs,
        host: Host,
        clock: Callable[[], datetime],
        limits: SnapshotLimits,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._agents = agents
        self._sandboxes = sandboxes
        self._keyed = keyed
        self._judged = judged
        self._host = host
        self._clock = clock
        self.limits = limits
        self.acts = Acts()
        self._making: dict[str, asyncio.Event] = {}
        """Those that are made under a key; set when they are there, or are not."""
        self._on_disk: dict[str, int] = {}
        """Bytes of each beside older ones of the same workspace, as far as they were measured when it was last asked."""
        self.uncounted = True
        """Set likewise: what one takes of the disk alone differs by it for others too."""
        self.changed = asyncio.Event()
        """Set when one was made or is to be removed, for the upkeep."""
        self.settle: Callable[[str], Awaitable[None]] = _not_settled
        """Find out what became of an act whose end was not told. Raises HostUnreachable."""

    # -- taking --------------------------------------------------------------------------------------------------------

    async def take(
        self,
        caller: Caller,
        sandbox_id: str,
        asked: SnapshotRequest,
        *,
        idempotency_key: str | None = None,
        reason: SnapshotReason = "asked",
    ) -> SnapshotInfo:
        """Take one of the files of a sandbox that runs, is paused or stopped; with a key that was used already, return
        what was taken then. Processes stand still meanwhile and go on.

        Raises:
            GrantMissing, NotFound: not the caller's.
            Refused: a rule is against it.
            Conflict: the key was used for something else.
            WrongState: it has no files now, or something is done to them.
            LimitReached: there are too many, or there is no room.
        """
        require(caller, "snapshot.take")
        info = self._sandboxes.get(caller, sandbox_id)
        request = {"operation": "snapshot.take", "sandbox_id": sandbox_id, **asked.model_dump(mode="json")}
        key = None if idempotency_key is None else Key(caller, idempotency_key, digest_of(request))
        if (made := await self.made_before(key)) is not None:
            return made
        decision, told = self._judged.allow(caller, info, "take_snapshot", {"name": asked.name})
        expires_at = None if asked.expires_in_s is None else self._clock() + timedelta(seconds=asked.expires_in_s)
        wish = SnapshotWish(name=asked.name, label=decision.label, reason=reason, expires_at=expires_at)
        return await self.acts.whole(self._take(caller.name, sandbox_id, wish, key, told))

    async def take_automatic(self, sandbox_id: str, *, rule_id: str, call_id: str) -> SnapshotInfo:
        """One that a rule asks for before a call begins, kept for a day. Where there may be no more, the oldest of these
        makes room. Raises what `take` does."""
        workspace = self.workspace_of(self._sandboxes.find(sandbox_id))
        await self.measure()
        try:
            self.check_room(workspace)
        except LimitReached:
            mine = self.rows("reason = 'automatic' AND state = 'ready' ORDER BY created_at")
            for row in [one for one in mine if one.workspace == workspace][:1]:
                await self.acts.whole(self.remove_row(row, "snapshot.removed", f"rule {rule_id}"))
        expires_at = self._clock() + timedelta(seconds=AUTOMATIC_S)
        wish = SnapshotWish(name=f"before {call_id}", reason="automatic", expires_at=expires_at)
        told = {"rule": rule_id, "before_call": call_id}
        return await self.acts.whole(self._take(f"rule {rule_id}", sandbox_id, wish, None, told))

    async def take_by_timer(self, sandbox_id: str, kept_s: float | None) -> SnapshotInfo:
        """Of one whose time is over and that asked for it, kept for so long; None for ever. Raises what `take` does."""
        expires_at = None if kept_s is None else self._clock() + timedelta(seconds=kept_s)
        wish = SnapshotWish(name=f"end of {sandbox_id}", expires_at=expires_at)
        return await self.acts.whole(self._take("timer", sandbox_id, wish, None, {}))

    async def take_for_promotion(self, by: str, sandbox_id: str) -> SnapshotInfo:
        """Of one whose files become those of an agent, kept for a day. Raises what `take` does."""
        expires_at = self._clock() + timedelta(seconds=AUTOMATIC_S)
        wish = SnapshotWish(name=f"promotion of {sandbox_id}", reason="automatic", expires_at=expires_at)
        return await self.acts.whole(self._take(by, sandbox_id, wish, None, {}))

    async def discard(self, by: str, snapshot_id: str) -> None:
        """One that was taken for something that is not to be had any more."""
        if (row := self.row("snapshot_id = ?", snapshot_id)) is not None:
            await self.acts.whole(self.remove_row(row, "snapshot.removed", by))

    async def remove_by_timer(self, snapshot_id: str) -> None:
        """One that was taken so in vain."""
        if (row := self.row("snapshot_id = ?", snapshot_id)) is not None:
            await self.acts.whole(self.remove_row(row, "snapshot.removed", "timer"))

    async def _take(
        self, by: str, sandbox_id: str, wish: SnapshotWish, key: Key | None, told: dict[str, Any]
    ) -> SnapshotInfo:
        async with self._sandboxes.turn(sandbox_id):
            await self.measure()
            if (made := await self.made_before(key)) is not None:
                return made
            # From here to the row that holds the key nothing else runs.
            info = self._sandboxes.find(sandbox_id)
            _check_there(info)
            self._sandboxes.require_its_agent(info)
            workspace = self.workspace_of(info)
            self.check_room(workspace)
            act_id = new_act()
            with self._store.transaction() as connection:
                self.begin(act_id, info, wish, by, key, connection)
            with self.making(act_id):
                try:
                    facts = await self._take_whole(sandbox_id, workspace, wish)
                except HostUnreachable:
                    raise  # it may be there: whoever asks again under the key finds out, or the next start does
                except BaseException:
                    self.forget(act_id)
                    raise
                return self.finish(act_id, facts, "snapshot.taken", more=told)

    async def _take_whole(self, sandbox_id: str, workspace: WorkspacePoint, wish: SnapshotWish) -> SnapshotFacts:
        """Once more where the label has risen meanwhile: what raised it may be among the files."""
        for _ in range(MOST_TRIES):
            above = join(wish.label, self._sandboxes.find(sandbox_id).workspace_label)
            facts = await self._host.snapshots.take(workspace, wish.model_copy(update={"label": above}))
            if join(above, self._sandboxes.find(sandbox_id).workspace_label) is above:
                return facts
            await self._host.snapshots.remove(facts.snapshot_id)
        raise WrongState(f"the label of sandbox `{sandbox_id}` changed all the time", hint="try again")

    # -- what other acts on snapshots need -----------------------------------------------------------------------------

    async def made_before(self, key: Key | None) -> SnapshotInfo | None:
        """What was made under *key*, or None, and then without having let anybody else run after the look."""
        while key is not None and (known := self._keyed.find(key.caller.token_id, key.text, key.digest)) is not None:
            if await self.is_made(known.call_id):
                continue
            row = self.row("act_id = ?", known.call_id)
            if row is None:
                raise NotFound("what was made under this key was removed since", hint="use a new key")
            if row.snapshot_id is None:
                await self.settle(known.call_id)
                continue
            return row.info
        return None

    def open_key(self, key: Key | None, act_id: str, connection: sa.Connection) -> None:
        if key is not None:
            self._keyed.open(key.caller.token_id, key.text, key.digest, act_id, connection=connection)

    @contextlib.contextmanager
    def making(self, act_id: str) -> Any:
        """Whoever asks under the same key meanwhile waits until it is there, or is not."""
        self._making[act_id] = asyncio.Event()
        try:
            yield
        finally:
            self._making.pop(act_id).set()

    def others_on(self, workspace: WorkspacePoint | None, act_id: str) -> list[str]:
        """Acts under way on a workspace but for that one: what they have made is theirs, and not recorded yet."""
        rows = ((other, self.row("act_id = ?", other)) for other in self._making if other != act_id)
        return [other for other, row in rows if row is not None and row.workspace == workspace]

    async def is_made(self, act_id: str) -> bool:
        """Wait for one that is made. False if none is."""
        if act_id not in self._making:
            return False
        await self._making[act_id].wait()
        return True

    def begin(
        self,
        act_id: str,
        info: SandboxInfo | None,
        wish: SnapshotWish,
        by: str,
        key: Key | None,
        connection: sa.Connection,
    ) -> None:
        """The row of one that the host is about to make, of what a sandbox has now or of an archive."""
        values = values_of(
            act_id,
            None,
            state="taking",
            workspace=None if info is None else self.workspace_of(info),
            sandbox_id=None if info is None else info.sandbox_id,
            name=wish.name,
            label=wish.label if info is None else join(wish.label, info.workspace_label),
            reason=wish.reason,
            taken_by=by,
            created_at=self._clock(),
            expires_at=wish.expires_at,
        )
        connection.execute(snapshots.insert().values(values))
        self.open_key(key, act_id, connection)

    def finish(
        self,
        act_id: str,
        facts: SnapshotFacts,
        kind: str,
        *,
        more: dict[str, Any] | None = None,
        sha256: str | None = None,
    ) -> SnapshotInfo:
        """The host has made it: recorded, and found from now on."""
        with self._store.transaction(durable=True) as connection:
            row = self.row("act_id = ?", act_id)
            assert row is not None
            label = parse(row.label)  # of what a reset took away the host knows none, and says the highest
            if row.reason != "discarded":
                label = join(label, facts.label)
            if row.sandbox_id is not None and self._sandboxes.find(row.sandbox_id).spec.volumes:
                facts = facts.model_copy(update={"left_out": (*facts.left_out, "volumes")})
            values = {
                "snapshot_id": facts.snapshot_id,
                "state": "ready",
                "label": label.value,
                "measured": measured_of(facts),
                "sha256": sha256,
                "expires_at": None if facts.expires_at is None else format_time(facts.expires_at),
            }
            connection.execute(snapshots.update().where(snapshots.c.act_id == act_id).values(values))
            row = self.row("act_id = ?", act_id)
            assert row is not None
            body = {**told_of(row), "caller": row.taken_by, **(more or {})}
            self._ledger.append(kind, facts.snapshot_id, body, connection=connection, durable=True)
        self.uncounted = True
        self.changed.set()
        return row.info

    def forget(self, act_id: str) -> None:
        """The host has not made it. A key is given back."""
        with self._store.transaction() as connection:
            connection.execute(snapshots.delete().where(snapshots.c.act_id == act_id))
            self._keyed.forget(act_id, connection=connection)

    def workspace_of(self, info: SandboxInfo) -> WorkspacePoint:
        if info.agent_id is not None:
            return WorkspacePoint(agent_id=info.agent_id)
        return WorkspacePoint(session_id=self._sandboxes.first_session(info.sandbox_id))

    async def measure(self) -> None:
        """Have the sizes of now for `check_room`, if there is a limit on them: what is removed or written elsewhere changes
        how much the others take. Raises HostUnreachable."""
        if self.limits.mib is not None:
            told = await self._host.snapshots.all()
            self._on_disk = {one.snapshot_id: one.added_bytes for one in told if one.added_bytes is not None}

    def check_room(self, workspace: WorkspacePoint | None) -> None:
        """Raises LimitReached if there may be no more of that agent, of temporary workspaces, or of imports."""
        if workspace is None:
            whose, where = "imports", "agent_id IS NULL AND session_id IS NULL"
        elif workspace.agent_id is None:
            whose, where = "temporary workspaces", "session_id IS NOT NULL"
        else:
            whose, where = f"agent `{workspace.agent_id}`", "agent_id = ?"
        values = () if workspace is None or workspace.agent_id is None else (workspace.agent_id,)
        rows = self.rows(f"{where} AND state IN ('taking', 'ready')", *values)
        number, mib = self.limits.number, self.limits.mib
        used = sum(self._size(row) for row in rows) // MIB
        for kind, limit, is_used in (("snapshots", number, len(rows)), ("snapshot_mib", mib, used)):
            if limit is not None and is_used >= limit:
                raise LimitReached(
                    f"the snapshots of {whose} have reached the limit: {is_used} of {limit} ({kind})",
                    hint="remove some that are not needed, or have the operator raise the limit",
                    next_actions=[next_action("snapshot.list", "lists them")],
                    kind=kind,
                    limit=limit,
                    used=is_used,
                )

    def _size(self, row: Row) -> int:
        known = None if row.snapshot_id is None else self._on_disk.get(row.snapshot_id)
        return known if known is not None else sizes_of(row)[1] or 0

    # -- looking -------------------------------------------------------------------------------------------------------

    def list(
        self,
        caller: Caller,
        *,
        sandbox_id: str | None = None,
        agent_id: str | None = None,
        reason: str | None = None,
        label: Label | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> builtins.list[SnapshotInfo]:
        """The caller's, newest first; taken through this sandbox, of this agent, for this reason, with this label. *after*
        one of them, the last of the page before, come at most *limit* more.

        Raises:
            GrantMissing: the role may not look at them.
            NotFound: there is none to come after, or it is not the caller's.
        """
        require(caller, "snapshot.read")
        where, values = [SHOWN], []  # type: tuple[builtins.list[str], builtins.list[str]]
        for column, value in (("sandbox_id", sandbox_id), ("agent_id", agent_id), ("reason", reason)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        if label is not None:
            where.append("label = ?")
            values.append(label.value)
        if after is not None:
            last = self._visible(caller, after)
            where.append("(created_at, act_id) < (?, ?)")
            values += [last.created_at, last.act_id]
        rows = self.rows(f"{' AND '.join(where)} ORDER BY created_at DESC, act_id DESC", *values)
        return [row.info for row in itertools.islice((row for row in rows if self._is_visible(caller, row)), limit)]

    def get(self, caller: Caller, snapshot_id: str) -> SnapshotInfo:
        """One of them. An agent's token sees its own agent's only. Raises GrantMissing, NotFound."""
        require(caller, "snapshot.read")
        return self._visible(caller, snapshot_id).info

    def ready(self, caller: Caller, snapshot_id: str) -> SnapshotInfo:
        """The same for using it. Raises WrongState if it is lost."""
        found = self.get(caller, snapshot_id)
        if found.state != "ready":
            raise WrongState(
                f"snapshot `{snapshot_id}` is not on the machine any more",
                hint="use another one; removing it takes it off the list",
                next_actions=[next_action("snapshot.list", "lists the others")],
                snapshot_id=snapshot_id,
            )
        return found

    def view(self, caller: Caller, sandbox_id: str, point: str, tool: str) -> View:
        """Its files, for a call of *tool* in the session of a sandbox. *point* is its id, with `:system` those of the system that
        it holds, from its root on."""
        snapshot_id, _, part = point.partition(":")
        found = self.ready(caller, snapshot_id)
        files = SnapshotPoint(snapshot_id=snapshot_id)
        if not part:
            return View(AtRest(self._host.snapshots, sandbox_id, files), found.label, (point,))
        if part != "system":
            raise InvalidArgument(
                f"a snapshot has no part `{part[:40]}`", hint="ask for its id, or `ID:system`", argument="snapshot"
            )
        box = AtRest(self._host.snapshots, sandbox_id, SystemPoint(of=files))
        return View(box, found.label, (point,), of_system(find_tool(tool)))

    def source(self, caller: Caller, snapshot_id: str) -> SnapshotInfo:
        """One that a new workspace is to begin as. Raises what `ready` does, and Refused where a rule is against it."""
        found = self.ready(caller, snapshot_id)
        self._judged.allow_with(caller, found, "fork_sandbox")
        return found

    # -- changing ------------------------------------------------------------------------------------------------------

    def rename(self, caller: Caller, snapshot_id: str, name: str) -> SnapshotInfo:
        """Give it another name; two may have the same. Raises GrantMissing, NotFound."""
        require(caller, "snapshot.rename")
        with self._store.transaction() as connection:
            row = self._visible(caller, snapshot_id)
            connection.execute(snapshots.update().where(snapshots.c.act_id == row.act_id).values(name=name))
            body = {**told_of(row), "name": name, "name_before": row.name, "caller": caller.name}
            self._ledger.append("snapshot.renamed", snapshot_id, body, connection=connection)
        return self._visible(caller, snapshot_id).info

    async def remove(self, caller: Caller, snapshot_id: str) -> None:
        """Forget one. What was forked from it goes on. Nothing happens the second time.

        Raises:
            GrantMissing: the role may not.
            NotFound: there never was one.
        """
        require(caller, "snapshot.remove")
        try:
            row = self._visible(caller, snapshot_id)
        except NotFound:
            if not self._ledger.entries(subject=snapshot_id, kinds=("snapshot.removed", "snapshot.expired"), limit=1):
                raise
            return
        await self.acts.whole(self.remove_row(row, "snapshot.removed", caller.name))

    async def remove_row(self, row: Row, kind: str, by: str) -> None:
        """Record it as *kind*, and have the host forget it."""
        with self._store.transaction(durable=True) as connection:
            gone = snapshots.update().where(snapshots.c.act_id == row.act_id, snapshots.c.state != "removing")
            if connection.execute(gone.values(state="removing")).rowcount:
                body = {**told_of(row), "caller": by}
                self._ledger.append(kind, row.snapshot_id or row.act_id, body, connection=connection, durable=True)
        await self.finish_removal(row)

    async def finish_removal(self, row: Row) -> None:
        """Of one that is recorded as removed."""
        if row.snapshot_id is not None:
            await self._host.snapshots.remove(row.snapshot_id)
        self.uncounted = True
        with self._store.transaction() as connection:
            connection.execute(snapshots.delete().where(snapshots.c.act_id == row.act_id))

    def forget_agent(self, agent_id: str, caller: Caller, connection: sa.Connection) -> None:
        """Those of an agent that is deleted go with it: recorded now, removed soon."""
        for row in self.rows("agent_id = ? AND state IN ('ready', 'lost')", agent_id):
            connection.execute(snapshots.update().where(snapshots.c.act_id == row.act_id).values(state="removing"))
            body = {**told_of(row), "caller": caller.name, "reason": "its agent was deleted"}
            self._ledger.append(
                "snapshot.removed", row.snapshot_id or row.act_id, body, connection=connection, durable=True
            )
        self.changed.set()

    def note_digest(self, snapshot_id: str, sha256: str) -> None:
        """What an export has told of it."""
        with self._store.transaction() as connection:
            connection.execute(snapshots.update().where(snapshots.c.snapshot_id == snapshot_id).values(sha256=sha256))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _visible(self, caller: Caller, snapshot_id: str) -> Row:
        row = self.row(f"snapshot_id = ? AND {SHOWN}", snapshot_id)
        if row is None or not self._is_visible(caller, row):
            raise NotFound(
                f"no snapshot `{snapshot_id[:80]}`",
                next_actions=[next_action("snapshot.list", "lists the snapshots that are yours")],
                snapshot_id=snapshot_id[:80],
            )
        return row

    def _is_visible(self, caller: Caller, row: Row) -> bool:
        """People see all. An agent sees its own, and not those of an earlier agent of the same id."""
        if caller.role is not Role.AGENT:
            return True
        if row.agent_id is None or row.agent_id != caller.agent_id:
            return False
        with contextlib.suppress(NotFound):
            return parse_time(row.created_at) >= self._agents.get(row.agent_id).created_at
        return False

    def row(self, where: str, *values: str) -> Row | None:
        found = self.rows(where, *values)
        return found[0] if found else None

    def rows(self, where: str, *values: str) -> builtins.list[Row]:
        rows = self._store.read(f"SELECT {FIELDS} FROM snapshots WHERE {where}", values)  # noqa: S608  texts of ours
        return [Row._make(row) for row in rows]


def _check_there(info: SandboxInfo) -> None:
    state = info.state.state
    if state in WITH_BOX or state == "stopped":
        return
    raise WrongState(
        f"sandbox `{info.sandbox_id}` is {state}",
        hint="take snapshots of one that runs, is paused or stopped",
        next_actions=[next_action("sandbox.get", "tells how it stands", sandbox_id=info.sandbox_id)],
        retry="later" if info.state.retryable else "after_change",
        sandbox_id=info.sandbox_id,
        state=state,
    )


def new_act() -> str:
    return f"snp_{secrets.token_hex(10)}"


def told_of(row: Row) -> dict[str, Any]:
    """What every entry about it says."""
    return {
        "snapshot_id": row.snapshot_id,
        "agent_id": row.agent_id,
        "sandbox_id": row.sandbox_id,
        "session_id": row.session_id,
        "name": row.name,
        "label": row.label,
        "reason": row.reason,
        "expires_at": row.expires_at,
        "sha256": row.sha256,
    }


async def _not_settled(_: str) -> None:
    raise HostUnreachable("whether it was made is not known before the server starts again")
