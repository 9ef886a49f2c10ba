"""Sessions and their taint: the highest label of anything that was seen in one.

Taint is kept in the database and only rises; a restart brings back what it was. The one way down is a
reset by the owner, which archives the session and goes on in a new one: the label of the workspace stays,
so what the files hold cannot be washed clean with it.
"""

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy
from sqlalchemy import Column, Index, Table, Text

from coldframe.contract.caller import Caller
from coldframe.contract.errors import NotFound, WrongState
from coldframe.contract.policy import Label
from coldframe.contract.sandbox import SessionInfo
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Kept, Store, metadata
from coldframe.policy.labels import join, parse

sessions_table = Table(
    "sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("sandbox_id", Text, nullable=False),
    Column("agent_id", Text),
    Column("taint", Text, nullable=False),
    Column("opened_at", Text, nullable=False),
    Column("closed_at", Text),
    Column("reset_from", Text),
)
Index("sessions_sandbox_id", sessions_table.c.sandbox_id)

# Hand-kept, since every creation and every call asks: 10 µs, against 90 for a statement that SQLAlchemy builds.
_SELECT = "SELECT session_id, sandbox_id, agent_id, taint, opened_at, closed_at FROM sessions"
_FIND = f"{_SELECT} WHERE session_id = ?"
_OF_SANDBOX = f"{_SELECT} WHERE sandbox_id = ? ORDER BY opened_at"
_INSERT = (
    "INSERT INTO sessions (session_id, sandbox_id, agent_id, taint, opened_at, reset_from) VALUES (?, ?, ?, ?, ?, ?)"
)
_HAND_OVER = "UPDATE sessions SET agent_id = ? WHERE sandbox_id = ?"
_CLOSE = "UPDATE sessions SET closed_at = ? WHERE session_id = ?"


class _Row(NamedTuple):
    session_id: str
    sandbox_id: str
    agent_id: str | None
    taint: str
    opened_at: str
    closed_at: str | None


class Sessions:
    """Opens, taints, closes and resets sessions."""

    def __init__(self, store: Store, ledger: Ledger, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._kept: Kept[SessionInfo] = Kept(store, self._load)
        self.risen: Callable[[sqlalchemy.Connection], None] = lambda _: None
        """Told when the taint of one has risen, within the same transaction."""

    def open(self, sandbox_id: str, agent_id: str | None) -> SessionInfo:
        """Begin a session at PUBLIC."""
        with self._store.transaction() as connection:
            info = self._insert(sandbox_id, agent_id, reset_from=None)
            self._ledger.append("session.opened", info.session_id, _body(info), connection=connection)
        return info

    def get(self, session_id: str) -> SessionInfo:
        """One session, open or archived. Raises NotFound."""
        return self._find(session_id)

    def of_sandbox(self, sandbox_id: str) -> list[SessionInfo]:
        """Sessions of a sandbox, oldest first, archived ones too."""
        return [_info(_Row._make(row)) for row in self._store.read(_OF_SANDBOX, (sandbox_id,))]

    def raise_taint(self, session_id: str, label: object, *, connection: sqlalchemy.Connection | None = None) -> Label:
        """Join *label* into the taint and return what it is now. Anything that is no label counts as RESTRICTED.

        Raises:
            NotFound: no such session.
            LedgerUnavailable: the new taint is not recorded, so the data must not be handed out.
        """
        with self._within(connection, durable=False) as inner:
            info = self._find(session_id)
            taint = join(info.taint, parse(label))
            if taint is not info.taint:
                self._kept.forget(session_id)
                inner.execute(
                    sessions_table.update().where(sessions_table.c.session_id == session_id).values(taint=taint.value)
                )
                body = {**_body(info), "taint_before": info.taint, "taint_after": taint}
                self._ledger.append("session.taint_raised", session_id, body, connection=inner, durable=True)
                self.risen(inner)
            return taint

    def hand_over(self, sandbox_id: str, agent_id: str | None) -> None:
        """Its sandbox is that of an agent from now on, or was one in vain. Within the transaction of whoever records it."""
        for session in self.of_sandbox(sandbox_id):
            self._kept.forget(session.session_id)
        self._store.raw.execute(_HAND_OVER, (agent_id, sandbox_id))

    def close(self, session_id: str) -> None:
        """End a session; its record stays. Idempotent."""
        with self._store.transaction() as connection:
            info = self._find(session_id)
            if info.closed_at is None:
                self._close(session_id)
                self._ledger.append("session.closed", session_id, _body(info), connection=connection)

    def reset(self, session_id: str, *, caller: Caller) -> SessionInfo:
        """Archive the session and open a new one at PUBLIC for the same sandbox. The workspace label stays.

        Raises:
            GrantMissing: only an owner may.
            WrongState: the session is closed already.
        """
        require(caller, "session.reset")
        with self._store.transaction(durable=True) as connection:
            old = self._find(session_id)
            if old.closed_at is not None:
                raise WrongState(f"session `{session_id}` is closed", hint="reset the session the sandbox is in now")
            self._close(session_id)
            new = self._insert(old.sandbox_id, old.agent_id, reset_from=session_id)
            body = {
                **_body(old),
                "taint_before": old.taint,
                "taint_after": new.taint,
                "new_session_id": new.session_id,
                "caller": caller.name,
            }
            self._ledger.append("session.reset", session_id, body, connection=connection, durable=True)
            self.risen(connection)  # what it can read at once may be labelled higher than PUBLIC
            return self._find(new.session_id)

    def _within(
        self, connection: sqlalchemy.Connection | None, *, durable: bool
    ) -> AbstractContextManager[sqlalchemy.Connection]:
        return self._store.transaction(durable=durable) if connection is None else nullcontext(connection)

    def _insert(self, sandbox_id: str, agent_id: str | None, *, reset_from: str | None) -> SessionInfo:
        """Within the transaction under way."""
        info = SessionInfo(
            session_id=f"ses_{secrets.token_hex(10)}",
            sandbox_id=sandbox_id,
            agent_id=agent_id,
            taint=Label.PUBLIC,
            opened_at=self._clock(),
        )
        self._kept.forget(info.session_id)
        opened_at = format_time(info.opened_at)
        row = (info.session_id, sandbox_id, agent_id, info.taint.value, opened_at, reset_from)
        self._store.raw.execute(_INSERT, row)
        return info

    def _find(self, session_id: str) -> SessionInfo:
        found = self._kept.get(session_id)
        if found is None:
            raise NotFound(f"no session `{session_id[:80]}`", session_id=session_id[:80])
        return found

    def _load(self, session_id: str) -> SessionInfo | None:
        rows = self._store.read(_FIND, (session_id,))
        return _info(_Row._make(rows[0])) if rows else None

    def _close(self, session_id: str) -> None:
        """Within the transaction under way."""
        self._kept.forget(session_id)
        self._store.raw.execute(_CLOSE, (format_time(self._clock()), session_id))


def _info(row: _Row) -> SessionInfo:
    return SessionInfo(
        session_id=row.session_id,
        sandbox_id=row.sandbox_id,
        agent_id=row.agent_id,
        taint=parse(row.taint),
        opened_at=parse_time(row.opened_at),
        closed_at=parse_time(row.closed_at) if row.closed_at is not None else None,
    )


def _body(info: SessionInfo) -> dict[str, Any]:
    return {"session_id": info.session_id, "sandbox_id": info.sandbox_id, "agent_id": info.agent_id}
