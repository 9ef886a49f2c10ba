"""Agents: an id, a durable workspace, and the label of what lies in it.

A workspace's label only rises with what is written to it; a person with the right sets it otherwise, with a
reason, on record. Deleting an agent removes its workspace, its tokens and its name in credentials, and keeps the ledger;
the same id made again is another generation with an empty workspace at PUBLIC.

The lines across processes: a deletion is recorded as begun before the host removes anything, so a crash
between leaves an agent `deleting`, which nothing can use until deletion is asked for again.
"""

import asyncio
import builtins
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Literal, NamedTuple

import sqlalchemy
from sqlalchemy import Column, Index, Integer, Table, Text

from coldframe.contract.caller import Caller
from coldframe.contract.errors import Conflict, InvalidArgument, NotFound, WrongState, next_action
from coldframe.contract.policy import Label
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import AgentInfo, checked_agent_id
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Kept, Store, metadata
from coldframe.control.tokens import Tokens
from coldframe.policy.labels import join, parse

MAX_REASON_CHARACTERS = 2000

agents_table = Table(
    "agents",
    metadata,
    Column("agent_id", Text, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("workspace_label", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("deleted_at", Text),
)
Index(
    "agents_one_living",
    agents_table.c.agent_id,
    unique=True,
    sqlite_where=sqlalchemy.text("state != 'deleted'"),
)

# Hand-kept, since every look at a sandbox asks it: 10 µs, against 90 for a statement that SQLAlchemy builds.
_FIND = (
    "SELECT agent_id, generation, state, workspace_label, created_at, deleted_at "
    "FROM agents WHERE agent_id = ? AND state != 'deleted'"
)


class _Row(NamedTuple):
    agent_id: str
    generation: int
    state: Literal["living", "deleting", "deleted"]
    workspace_label: str
    created_at: str
    deleted_at: str | None
    info: AgentInfo


Deleting = Callable[[str, Caller, sqlalchemy.Connection], None]


class Agents:
    """Makes, labels and deletes agents."""

    def __init__(self, store: Store, ledger: Ledger, tokens: Tokens, host: Host, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._host = host
        self._clock = clock
        self._tokens = tokens
        self._locks: dict[str, asyncio.Lock] = {}
        self._kept: Kept[_Row] = Kept(store, self._load)
        self.risen: Callable[[sqlalchemy.Connection], None] = lambda _: None
        """Told when the label of a workspace has risen, within the same transaction."""
        self.deleting: Deleting = lambda agent_id, caller, connection: None
        """Takes from the next agent of that id what this one was given by its name, on record; twice at least."""

    async def ensure(self, agent_id: str, *, caller: Caller, begins: Label | None = None) -> AgentInfo:
        """Return the agent, made with its workspace if it is not there yet. With *begins* it has to be a new one, whose
        workspace is made by whoever asks, of files with that label.

        Raises:
            Conflict: it is there, and has a workspace.
            InvalidArgument: no agent id.
            GrantMissing: it is not there, and the caller may not make one.
            WrongState: it is being deleted.
        """
        checked_agent_id(agent_id)
        async with self._lock(agent_id):
            row = self._living(agent_id)
            if row is not None:
                if row.state == "deleting":
                    raise _deleting(agent_id)
                if begins is not None:
                    raise Conflict(
                        f"agent `{agent_id}` has a workspace already",
                        hint="fork to an agent that is new, or take the workspace back with `coldframe sandbox reset`",
                        next_actions=[next_action("sandbox.reset", "takes a workspace back to a snapshot")],
                        agent_id=agent_id,
                    )
                return row.info
            require(caller, "agent.create")
            generation = self._generations(agent_id) + 1
            if generation > 1:
                # Nothing of the agent before may come back, whatever happened to its deletion.
                await self._host.delete_workspace(agent_id)
            if begins is None:
                await self._host.create_workspace(agent_id)
            label = begins or Label.PUBLIC
            now = self._clock()
            with self._store.transaction() as connection:
                self._kept.forget(agent_id)
                connection.execute(
                    agents_table.insert().values(
                        agent_id=agent_id,
                        generation=generation,
                        state="living",
                        workspace_label=label.value,
                        created_at=format_time(now),
                    )
                )
                body = {"agent_id": agent_id, "generation": generation, "caller": caller.name}
                if begins is not None:
                    body["label"] = label.value
                self._ledger.append("agent.created", agent_id, body, connection=connection)
            return AgentInfo(agent_id=agent_id, created_at=now, workspace_label=label)

    def get(self, agent_id: str) -> AgentInfo:
        """The living agent of that id. Raises NotFound."""
        return self._known(agent_id).info

    async def unmake(self, agent_id: str, *, caller: Caller) -> None:
        """Take back one that was made just now, whose workspace could not be."""
        async with self._lock(agent_id):
            row = self._known(agent_id)
            await self._host.delete_workspace(agent_id)
            with self._store.transaction() as connection:
                self._update(connection, row, state="deleted", deleted_at=format_time(self._clock()))
                body = {"agent_id": agent_id, "generation": row.generation, "caller": caller.name}
                self._ledger.append("agent.deleted", agent_id, body, connection=connection)

    async def delete(self, agent_id: str, *, caller: Caller) -> None:
        """Remove the agent, its workspace, its tokens and its part in credentials; the ledger keeps all it has.

        Repeating it finishes a deletion that a crash or an unreachable host broke off.

        Raises:
            GrantMissing: the caller may not.
            NotFound: no such agent.
            WrongState: a sandbox still runs on its workspace.
        """
        require(caller, "agent.delete")
        checked_agent_id(agent_id)
        async with self._lock(agent_id):
            row = self._known(agent_id)
            running = sorted(
                box.sandbox_id for box in await self._host.boxes() if box.owner == agent_id and box.state != "lost"
            )
            if running:
                raise WrongState(
                    f"agent `{agent_id}` has {len(running)} running sandboxes",
                    hint="terminate its sandboxes first",
                    next_actions=[
                        next_action("sandbox.terminate", "ends this sandbox", sandbox_id=one) for one in running
                    ],
                    sandboxes=list(running),
                )
            body = {"agent_id": agent_id, "generation": row.generation, "caller": caller.name}
            with self._store.transaction(durable=True) as connection:
                self._update(connection, row, state="deleting")
                self._tokens.revoke_agent(agent_id, connection=connection, caller=caller)
                self.deleting(agent_id, caller, connection)
                self._ledger.append("agent.deletion_started", agent_id, body, connection=connection, durable=True)
            await self._host.delete_workspace(agent_id)
            with self._store.transaction(durable=True) as connection:
                self._update(connection, row, state="deleted", deleted_at=format_time(self._clock()))
                self.deleting(agent_id, caller, connection)  # what was given to it meanwhile
                self._ledger.append("agent.deleted", agent_id, body, connection=connection, durable=True)

    def raise_label(self, agent_id: str, label: object, *, connection: sqlalchemy.Connection | None = None) -> Label:
        """Join *label* into the workspace's and return what it is now. Anything that is no label counts as RESTRICTED.

        Raises:
            NotFound: no such agent.
            LedgerUnavailable: not recorded; the data must not be written.
        """
        within: AbstractContextManager[sqlalchemy.Connection]
        within = self._store.transaction() if connection is None else nullcontext(connection)
        with within as inner:
            row = self._known(agent_id)
            before = parse(row.workspace_label)
            after = join(before, parse(label))
            if after is not before:
                self._update(inner, row, workspace_label=after.value)
                body = {"agent_id": agent_id, "label_before": before, "label_after": after}
                self._ledger.append("agent.label_raised", agent_id, body, connection=inner, durable=True)
                self.risen(inner)
            return after

    def set_label(self, agent_id: str, label: Label, *, caller: Caller, reason: str) -> AgentInfo:
        """Set the workspace's label, also downward: a person vouches for what the files hold.

        Raises:
            GrantMissing: only owner and admin may.
            InvalidArgument: no reason is given.
        """
        require(caller, "label.set")
        if not reason.strip() or len(reason) > MAX_REASON_CHARACTERS:
            raise InvalidArgument(f"a reason of 1 to {MAX_REASON_CHARACTERS} characters is needed", argument="reason")
        with self._store.transaction(durable=True) as connection:
            row = self._known(agent_id)
            self._update(connection, row, workspace_label=label.value)
            body = {
                "agent_id": agent_id,
                "label_before": parse(row.workspace_label),
                "label_after": label,
                "reason": reason,
                "caller": caller.name,
            }
            self._ledger.append("agent.label_set", agent_id, body, connection=connection, durable=True)
            self.risen(connection)  # a volume that is shown in it keeps its own
            return self._known(agent_id).info

    def list(self) -> builtins.list[AgentInfo]:
        """Living agents by id."""
        query = (
            sqlalchemy.select(agents_table).where(agents_table.c.state != "deleted").order_by(agents_table.c.agent_id)
        )
        with self._store.transaction() as connection:
            return [_info(*row) for row in connection.execute(query)]

    def _lock(self, agent_id: str) -> asyncio.Lock:
        return self._locks.setdefault(agent_id, asyncio.Lock())

    def _living(self, agent_id: str) -> _Row | None:
        return self._kept.get(agent_id)

    def _load(self, agent_id: str) -> _Row | None:
        rows = self._store.read(_FIND, (agent_id,))
        return _Row._make((*rows[0], _info(*rows[0]))) if rows else None

    def _known(self, agent_id: str) -> _Row:
        row = self._living(agent_id)
        if row is None:
            raise NotFound(f"no agent `{agent_id[:80]}`", agent_id=agent_id[:80])
        return row

    def _generations(self, agent_id: str) -> int:
        query = sqlalchemy.select(sqlalchemy.func.max(agents_table.c.generation)).where(
            agents_table.c.agent_id == agent_id
        )
        with self._store.transaction() as connection:
            return connection.execute(query).scalar() or 0

    def _update(self, connection: sqlalchemy.Connection, row: _Row, **values: str) -> None:
        self._kept.forget(row.agent_id)
        connection.execute(
            agents_table.update()
            .where(agents_table.c.agent_id == row.agent_id, agents_table.c.generation == row.generation)
            .values(**values)
        )


def _deleting(agent_id: str) -> WrongState:
    return WrongState(
        f"agent `{agent_id}` is being deleted",
        hint="delete it again to finish that",
        next_actions=[next_action("agent.delete", "finishes the deletion", agent_id=agent_id)],
    )


def _info(
    agent_id: str, generation: int, state: str, workspace_label: str, created_at: str, deleted_at: str | None
) -> AgentInfo:
    return AgentInfo(
        agent_id=agent_id,
        created_at=parse_time(created_at),
        deleted_at=parse_time(deleted_at) if deleted_at is not None else None,
        workspace_label=parse(workspace_label),
    )
