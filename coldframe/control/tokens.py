"""Tokens: who a caller is. A secret is shown once and kept as its SHA-256 only.

A secret is 256 random bits, so a plain hash is enough: there is nothing to guess, and a slow password hash
would cost every request a tenth of a second. Making, revoking and the use of a dead token are recorded in
the ledger, never the secret; a wholly unknown secret is not, or anybody could fill the disk.
"""

import builtins
import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy
from sqlalchemy import Column, Index, LargeBinary, Table, Text

from coldframe.contract.caller import Caller, TokenInfo
from coldframe.contract.errors import (
    GrantMissing,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    WrongState,
)
from coldframe.contract.policy import Role
from coldframe.contract.sandbox import checked_agent_id
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Kept, Store, metadata

Surface = Literal["rest", "cli", "sdk", "embedded", "mcp", "e2b", "console"]

Form = Literal["native", "e2b"]
"""What a secret looks like: some clients of other protocols look at it before they send it."""

PREFIX = "cf_"
"""Lets secret scanners find a leaked token."""
E2B_PREFIX = "e2b_"
"""SDKs of E2B take nothing but this and hexadecimal digits."""
MAX_NAME_CHARACTERS = 100
DEAD_USE_EVERY = timedelta(minutes=1)
"""The use of a revoked or expired token is recorded once in this time for each token."""

tokens_table = Table(
    "tokens",
    metadata,
    Column("token_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("agent_id", Text),
    Column("digest", LargeBinary, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text),
    Column("revoked_at", Text),
)
Index("tokens_digest", tokens_table.c.digest, unique=True)

_SELECT = "SELECT token_id, name, role, agent_id, created_at, expires_at, revoked_at FROM tokens"


class Tokens:
    """Makes, checks and revokes tokens. One per store, since it keeps those in use as they were read."""

    def __init__(self, store: Store, ledger: Ledger, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._dead_use_noted: dict[str, datetime] = {}
        self._kept: Kept[TokenInfo] = Kept(store, self._load)
        self.revoked: Callable[[], None] = lambda: None
        """Told when one was: what it has opened may be to be closed."""

    def create(
        self,
        role: Role,
        name: str,
        *,
        agent_id: str | None = None,
        expires_at: datetime | None = None,
        caller: Caller | None = None,
        form: Form = "native",
    ) -> tuple[str, TokenInfo]:
        """Make a token; returns its secret, which nobody can ask for again.

        *caller* is None only for the operator of the machine itself, at set-up.

        Raises:
            GrantMissing: the caller may not, or asks for more rights than it has itself.
            InvalidArgument: a name, agent or expiry that cannot be.
        """
        if caller is not None:
            require(caller, "token.create")
            _require_no_more(caller, role)
        return self._create(_new_secret(form), role, name, agent_id, expires_at, caller)

    def authenticate(self, secret: str, *, surface: Surface) -> Caller:
        """Tell who holds *secret*.

        Raises:
            Unauthenticated: unknown, expired or revoked; the message is the same for all three.
        """
        info = self._kept.get(_digest(secret).hex())
        if info is None:
            raise Unauthenticated("the token is not valid")
        return self._caller(info, surface)

    def caller_of(self, token_id: str, *, surface: Surface) -> Caller:
        """Whoever has the token of that id, as long as it would be let in; for what stands for a token.

        Raises Unauthenticated: unknown, expired or revoked.
        """
        row = self._row(f"{_SELECT} WHERE token_id = ?", token_id)
        if row is None:
            raise Unauthenticated("the token is not valid")
        return self._caller(_info(row), surface)

    def _caller(self, info: TokenInfo, surface: Surface) -> Caller:
        if info.revoked_at is not None or info.expires_at is not None:
            now = self._clock()
            if info.revoked_at is not None or (info.expires_at is not None and info.expires_at <= now):
                self._note_dead_use(info, surface, now)
                raise Unauthenticated("the token is not valid")
        return Caller(token_id=info.token_id, role=info.role, agent_id=info.agent_id, surface=surface)

    def is_valid(self, caller: Caller) -> bool:
        """Whether the token by which *caller* was known once would be let in now."""
        row = self._row(f"{_SELECT} WHERE token_id = ?", caller.token_id)
        if row is None:
            return caller.surface == "embedded"  # has none
        info = _info(row)
        return info.revoked_at is None and (info.expires_at is None or info.expires_at > self._clock())

    def revoke(self, token_id: str, *, caller: Caller) -> TokenInfo:
        """Make a token worthless from the next request on. Idempotent.

        Raises:
            NotFound: no such token.
            GrantMissing: the caller may not, or the token has more rights than the caller.
            WrongState: it is the last owner's token that works.
        """
        require(caller, "token.revoke")
        with self._store.transaction(durable=True) as connection:
            row = self._row(f"{_SELECT} WHERE token_id = ?", token_id)
            if row is None:
                raise NotFound(
                    f"no token `{token_id[:80]}`", hint="`coldframe token list` shows all", token_id=token_id[:80]
                )
            info = _info(row)
            _require_no_more(caller, info.role)
            if info.revoked_at is not None:
                return info
            if info.role is Role.OWNER and self._living_owners() <= {info.token_id}:
                raise WrongState(
                    "the last token of an owner cannot be revoked", hint="create another owner token first"
                )
            return self.revoke_within(connection, info, caller)

    def revoke_agent(self, agent_id: str, *, connection: sqlalchemy.Connection, caller: Caller) -> None:
        """Revoke every token of a deleted agent, so that none opens a later agent of the same id."""
        table = tokens_table.c
        rows = connection.execute(
            sqlalchemy.select(
                table.token_id,
                table.name,
                table.role,
                table.agent_id,
                table.created_at,
                table.expires_at,
                table.revoked_at,
            ).where(table.agent_id == agent_id, table.revoked_at.is_(None))
        ).all()
        for row in rows:
            self.revoke_within(connection, _info(row), caller)

    def revoke_within(self, connection: sqlalchemy.Connection, info: TokenInfo, caller: Caller) -> TokenInfo:
        """Revoke inside a transaction of the caller, whose rights have been checked."""
        now = self._clock()
        for row in self._store.read("SELECT digest FROM tokens WHERE token_id = ?", (info.token_id,)):
            self._kept.forget(bytes(row[0]).hex())
        connection.execute(
            tokens_table.update().where(tokens_table.c.token_id == info.token_id).values(revoked_at=format_time(now))
        )
        body = {"token_id": info.token_id, "role": info.role, "agent_id": info.agent_id, "caller": caller.name}
        self._ledger.append("token.revoked", info.token_id, body, connection=connection, durable=True)
        self._store.after(lambda _: self.revoked(), lambda: None)
        return info.model_copy(update={"revoked_at": now})

    def name_of(self, token_id: str) -> str | None:
        """What whoever made it called it; None for one that nobody made."""
        row = self._row("SELECT name FROM tokens WHERE token_id = ?", token_id)
        return None if row is None else str(row[0])

    def list(self) -> builtins.list[TokenInfo]:
        """All tokens, oldest first, dead ones too."""
        return [_info(row) for row in self._store.read(f"{_SELECT} ORDER BY created_at, token_id")]

    def _create(
        self,
        secret: str,
        role: Role,
        name: str,
        agent_id: str | None,
        expires_at: datetime | None,
        caller: Caller | None,
    ) -> tuple[str, TokenInfo]:
        now = self._clock()
        if not name.strip() or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise InvalidArgument(f"a token needs a name of 1 to {MAX_NAME_CHARACTERS} characters", argument="name")
        if (role is Role.AGENT) != (agent_id is not None):
            raise InvalidArgument(
                "a token of role `agent` names its agent, and no other token does", argument="agent_id"
            )
        if agent_id is not None:
            checked_agent_id(agent_id)
        if expires_at is not None and (expires_at.tzinfo is None or expires_at <= now):
            raise InvalidArgument("the expiry lies in the past or has no time zone", argument="expires_at")
        info = TokenInfo(
            token_id=f"tok_{secrets.token_hex(8)}",
            name=name,
            role=role,
            agent_id=agent_id,
            created_at=now,
            expires_at=expires_at,
        )
        expiry = format_time(expires_at) if expires_at is not None else None
        with self._store.transaction(durable=True) as connection:
            connection.execute(
                tokens_table.insert().values(
                    token_id=info.token_id,
                    name=name,
                    role=role.value,
                    agent_id=agent_id,
                    digest=_digest(secret),
                    created_at=format_time(now),
                    expires_at=expiry,
                )
            )
            body = {
                "token_id": info.token_id,
                "name": name,
                "role": role,
                "agent_id": agent_id,
                "expires_at": expiry,
                "caller": caller.name if caller is not None else "operator",
            }
            self._ledger.append("token.created", info.token_id, body, connection=connection, durable=True)
        return secret, info

    def _note_dead_use(self, info: TokenInfo, surface: Surface, now: datetime) -> None:
        last = self._dead_use_noted.get(info.token_id)
        if last is None or now - last >= DEAD_USE_EVERY:
            self._dead_use_noted[info.token_id] = now
            why = "revoked" if info.revoked_at is not None else "expired"
            body = {"token_id": info.token_id, "agent_id": info.agent_id, "surface": surface, "why": why}
            self._ledger.append("token.refused", info.token_id, body)

    def _living_owners(self) -> set[str]:
        now = format_time(self._clock())
        rows = self._store.read(
            "SELECT token_id FROM tokens WHERE role = 'owner' AND revoked_at IS NULL "
            "AND (expires_at IS NULL OR expires_at > ?)",
            (now,),
        )
        return {str(row[0]) for row in rows}

    def _load(self, digest: str) -> TokenInfo | None:
        row = self._row(f"{_SELECT} WHERE digest = ?", bytes.fromhex(digest))
        return None if row is None else _info(row)

    def _row(self, query: str, value: object) -> Any:
        rows = self._store.read(query, (value,))
        return rows[0] if rows else None


def _require_no_more(caller: Caller, role: Role) -> None:
    if role is Role.OWNER and caller.role is not Role.OWNER:
        raise GrantMissing(
            f"a token of role `{caller.role}` has no say over a token of role `owner`",
            hint="use a token of role owner",
            role=caller.role.value,
        )


def _new_secret(form: Form) -> str:
    return E2B_PREFIX + secrets.token_hex(32) if form == "e2b" else PREFIX + secrets.token_urlsafe(32)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _info(row: Any) -> TokenInfo:
    return TokenInfo(
        token_id=row[0],
        name=row[1],
        role=Role(row[2]),
        agent_id=row[3],
        created_at=parse_time(row[4]),
        expires_at=parse_time(row[5]) if row[5] is not None else None,
        revoked_at=parse_time(row[6]) if row[6] is not None else None,
    )
