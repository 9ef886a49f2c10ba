"""Credentials: who may use which secret for what, and every use of one, counted and on record before it happens.

A secret comes in when it is added or rotated, is kept sealed, and goes out as the answer to the question about one
request that was judged: nowhere else. Sandboxes have handles, which are worth nothing outside of theirs.

What a use is counted in is the transaction that records it, and nothing else runs meanwhile, so that a budget cannot be
overrun by requests at the same time. A use that the server then does not answer counts as well.
"""

import builtins
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from pydantic import SecretStr

from coldframe.contract.caller import Caller
from coldframe.contract.credential import (
    EVERYBODY,
    HANDLE_CHARACTERS,
    HANDLE_MARK,
    CredentialInfo,
    CredentialTerms,
    CredentialUse,
    HandleInfo,
    NewCredential,
)
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    CredentialBudget,
    CredentialExpired,
    CredentialRevoked,
    DeniedByRule,
    InvalidArgument,
    NotFound,
)
from coldframe.contract.network import NetworkAnswer, NetworkQuestion
from coldframe.contract.policy import Decision, Outcome, Role, SecretContext
from coldframe.contract.sandbox import SandboxInfo
from coldframe.control.attribution import Attribution
from coldframe.control.judgement import refusal_of
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.store import Store, metadata
from coldframe.control.vault import Vault
from coldframe.policy.credentials import ServiceInvalid, Use, find_misuse, read_service
from coldframe.policy.egress import NO_AGENT, paths_of
from coldframe.policy.hooks import decide_secret
from coldframe.policy.labels import join
from coldframe.policy.targets import read_target

REFUSED_EVERY = timedelta(minutes=1)
"""Of equal refusals the ledger has one in this time: a program in a loop could fill it. The host's record has each."""
MOST_NOTED = 10_000

credentials_table = sa.Table(
    "credentials",
    metadata,
    sa.Column("credential_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("uses", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("added_by", sa.Text, nullable=False),
    sa.Column("rotated_at", sa.Text),
    sa.Column("revoked_at", sa.Text),
)
sa.Index(
    "credentials_one_living",
    credentials_table.c.name,
    unique=True,
    sqlite_where=sa.text("revoked_at IS NULL"),
)
handles_table = sa.Table(
    "credential_handles",
    metadata,
    sa.Column("handle", sa.Text, primary_key=True),
    sa.Column("credential_id", sa.Text, nullable=False),
    sa.Column("sandbox_id", sa.Text, nullable=False),
)
sa.Index("credential_handles_of_sandbox", handles_table.c.sandbox_id, handles_table.c.credential_id, unique=True)

_FIELDS = "credential_id, name, terms, uses, created_at, added_by, rotated_at, revoked_at"
_SELECT = f"SELECT {_FIELDS} FROM credentials"  # noqa: S608  names of ours
_OF_HANDLE = "SELECT credential_id FROM credential_handles WHERE handle = ? AND sandbox_id = ?"
_HANDLES = "SELECT credential_id, handle FROM credential_handles WHERE sandbox_id = ?"
_COUNT = "UPDATE credentials SET uses = uses + 1 WHERE credential_id = ? AND uses = ? AND revoked_at IS NULL"

RoleOf = Callable[[str], Role | None]
"""Of whoever made a sandbox; None if nobody knows."""
Withdraw = Callable[[str], Awaitable[None]]
"""Ends every connection into which the credential of that name was put."""


async def withdraw_nothing(name: str) -> None:
    """For a host without network."""


class _Row(NamedTuple):
    credential_id: str
    name: str
    terms: str
    uses: int
    created_at: str
    added_by: str
    rotated_at: str | None
    revoked_at: str | None


class Credentials:
    """Keeps, hands out by handle, and decides."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        rulebook: Rulebook,
        sandboxes: Sandboxes,
        vault: Vault,
        attribution: Attribution,
        clock: Callable[[], datetime],
        *,
        role_of: RoleOf = lambda sandbox_id: None,
        withdraw: Withdraw = withdraw_nothing,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._rulebook = rulebook
        self._sandboxes = sandboxes
        self._vault = vault
        self._attribution = attribution
        self._clock = clock
        self._role_of = role_of
        self._withdraw = withdraw
        self._living: tuple[CredentialInfo, ...] | None = None
        """As they were read last; None if something may have changed."""
        self._noted: dict[tuple[str, str, str], datetime] = {}

    # -- keeping -----------------------------------------------------------------------------------------------------

    def add(self, new: NewCredential, *, caller: Caller) -> CredentialInfo:
        """Keep a credential, sealed.

        Raises:
            GrantMissing: the caller may not.
            InvalidArgument: an address that is none, an expiry that has passed, or one of production unconfirmed.
            Conflict: there is one of that name, or another one has the variable for the same sandboxes.
            CredentialUnreadable: there is no key to seal it with, although there are credentials.
        """
        require(caller, "credential.add")
        terms = CredentialTerms.model_validate(new.model_dump(exclude={"secret", "confirm"}))
        self._check_terms(terms, new.confirm)
        info = CredentialInfo(
            credential_id=f"crd_{secrets.token_hex(8)}",
            terms=terms,
            uses=0,
            created_at=self._clock(),
            added_by=caller.name,
            state="usable",
        )
        with self._store.transaction(durable=True) as connection:
            for other in self.living():
                if other.terms.name == terms.name:
                    raise Conflict(f"there is a credential `{terms.name}`", hint="rotate it, or choose another name")
                if other.terms.variable == terms.variable and _may_meet(other.terms, terms):
                    raise Conflict(
                        f"`{terms.variable}` is the variable of `{other.terms.name}` for some of the same sandboxes",
                        hint="choose another variable",
                    )
            sealed = self._vault.seal(
                new.secret.get_secret_value(), info.credential_id, may_make_key=not self._has_sealed()
            )
            connection.execute(
                credentials_table.insert().values(
                    credential_id=info.credential_id,
                    name=terms.name,
                    terms=terms.model_dump_json(),
                    sealed=sealed,
                    uses=0,
                    created_at=format_time(info.created_at),
                    added_by=info.added_by,
                )
            )
            self._record("credential.added", info, caller, connection, terms=terms.model_dump(mode="json"))
        return info

    def rotate(self, name: str, secret: SecretStr, *, caller: Caller) -> CredentialInfo:
        """Put another secret in place of the one before; handles stay as they are. From the next request on.

        Raises:
            GrantMissing, NotFound, CredentialUnreadable: nothing has changed.
        """
        require(caller, "credential.rotate")
        with self._store.transaction(durable=True) as connection:
            info = self._find(name)
            if info.state == "revoked":
                raise CredentialRevoked(f"credential `{name}` was revoked", hint="add it again")
            sealed = self._vault.seal(secret.get_secret_value(), info.credential_id, may_make_key=False)
            connection.execute(
                credentials_table.update()
                .where(credentials_table.c.credential_id == info.credential_id)
                .values(sealed=sealed, rotated_at=format_time(self._clock()))
            )
            self._record("credential.rotated", info, caller, connection)
        return self._find(name)

    async def revoke(self, name: str, *, caller: Caller) -> CredentialInfo:
        """Take it back: the secret is removed, and what was under way with it is broken off. Idempotent.

        Raises:
            GrantMissing, NotFound: nothing has changed.
            HostUnreachable: it is revoked, but answers to earlier requests may still arrive.
        """
        require(caller, "credential.revoke")
        with self._store.transaction(durable=True) as connection:
            info = self._find(name)
            if info.state != "revoked":
                connection.execute(
                    credentials_table.update()
                    .where(credentials_table.c.credential_id == info.credential_id)
                    .values(sealed=b"", revoked_at=format_time(self._clock()))
                )
                self._record("credential.revoked", info, caller, connection)
        await self._withdraw(name)
        return self._by_id(info.credential_id)

    def list(self, caller: Caller) -> builtins.list[CredentialInfo]:
        """All of them, oldest first, those that were taken back too."""
        require(caller, "credential.read")
        return [self._info(_Row._make(row)) for row in self._store.read(f"{_SELECT} ORDER BY created_at, name")]

    def get(self, name: str, caller: Caller) -> CredentialInfo:
        """The one of that name. Raises GrantMissing and NotFound."""
        require(caller, "credential.read")
        return self._find(name)

    def uses(self, name: str, caller: Caller, *, after: int = 0, limit: int = 100) -> builtins.list[CredentialUse]:
        """What it was used for, and what for in vain, in order."""
        require(caller, "credential.read")
        info = self._find(name)
        kinds = ("secret.used", "secret.refused")
        entries = self._ledger.entries(after=after, limit=limit, kinds=kinds, subject=info.credential_id)
        return [_use(entry.seq, entry.at, entry.body, refused=entry.kind == "secret.refused") for entry in entries]

    def forget_agent(self, agent_id: str, caller: Caller, connection: sa.Connection) -> None:
        """Take an agent that is deleted out of all that name it, so that another one of its id is not given them."""
        for info in self.living():
            if agent_id not in info.terms.agents:
                continue
            agents = tuple(one for one in info.terms.agents if one != agent_id)
            terms = info.terms.model_copy(update={"agents": agents})
            connection.execute(
                credentials_table.update()
                .where(credentials_table.c.credential_id == info.credential_id)
                .values(terms=terms.model_dump_json())
            )
            self._record("credential.agent_removed", info, caller, connection, agent_id=agent_id, agents=list(agents))

    # -- sandboxes ---------------------------------------------------------------------------------------------------

    def living(self) -> tuple[CredentialInfo, ...]:
        """All that were not taken back."""
        if self._living is None:
            rows = self._store.read(f"{_SELECT} WHERE revoked_at IS NULL ORDER BY created_at, name")
            self._living = tuple(self._info(_Row._make(row)) for row in rows)
        return self._living

    def usable_in(self, info: SandboxInfo, role: Role | None = None) -> builtins.list[CredentialInfo]:
        """Those that are given to a sandbox, or would be to one that somebody of that *role* makes."""
        living = self.living()
        return [one for one in living if self._is_for(one.terms, info, role)] if living else []

    def handles(self, info: SandboxInfo) -> builtins.list[HandleInfo]:
        """What the commands of a sandbox get in place of secrets; made when they are asked for first."""
        usable = self.usable_in(info)
        if not usable:
            return []
        known = {str(row[0]): str(row[1]) for row in self._store.read(_HANDLES, (info.sandbox_id,))}
        missing = [one for one in usable if one.credential_id not in known]
        if missing:
            with self._store.transaction() as connection:
                for one in missing:
                    handle = known[one.credential_id] = HANDLE_MARK + secrets.token_hex(HANDLE_CHARACTERS // 2)
                    connection.execute(
                        handles_table.insert().values(
                            handle=handle, credential_id=one.credential_id, sandbox_id=info.sandbox_id
                        )
                    )
        return [
            HandleInfo(credential=one.terms.name, variable=one.terms.variable, handle=known[one.credential_id])
            for one in usable
        ]

    def environment(self, info: SandboxInfo) -> dict[str, str]:
        """The same as variables of a command."""
        return {one.variable: one.handle for one in self.handles(info)}

    # -- uses --------------------------------------------------------------------------------------------------------

    async def answer(self, question: NetworkQuestion, info: SandboxInfo) -> NetworkAnswer:
        """Whether a request gets the secret in place of the handle that it holds. Counted and on record then.

        Raises:
            ColdframeError: it does not, with the code of why.
        """
        command_id = await self._attribution.command_of(info.sandbox_id, question.contact)
        found: CredentialInfo | None = None
        try:  # from here on nothing else runs
            found = self._of_handle(question, info)
            return self._decide(question, info, found, command_id)
        except ColdframeError as error:
            self._note_refusal(question, info, found, command_id, error)
            raise

    def _of_handle(self, question: NetworkQuestion, info: SandboxInfo) -> CredentialInfo:
        rows = self._store.read(_OF_HANDLE, (question.handle or "", info.sandbox_id))
        if not rows or question.request is None:
            raise DeniedByRule("that is no handle of this sandbox")
        return self._by_id(str(rows[0][0]))

    def _decide(
        self, question: NetworkQuestion, info: SandboxInfo, found: CredentialInfo, command_id: str | None
    ) -> NetworkAnswer:
        terms, request, contact = found.terms, question.request, question.contact
        assert request is not None  # `_of_handle` has looked
        if found.state == "revoked":
            raise CredentialRevoked(f"credential `{terms.name}` was revoked")
        if found.state == "expired":
            raise CredentialExpired(f"credential `{terms.name}` has expired")
        if not self._is_for(terms, info):
            raise DeniedByRule(f"credential `{terms.name}` is not for this sandbox")
        use = Use(
            contact.name,
            contact.port,
            contact.scheme or "",
            question.is_verified,
            request.method,
            request.path,
            question.header or "",
        )
        misuse = find_misuse(terms, use)
        if misuse is not None:
            raise DeniedByRule(f"credential `{terms.name}`: {misuse}")
        if terms.label.rank > request.label.rank:
            raise DeniedByRule(
                f"what credential `{terms.name}` opens is {terms.label}, and the network rules label `{contact.name}` "
                f"{request.label} only",
                hint="give the destination that label in the network rules",
            )
        session = self._sandboxes.session(info)
        context = SecretContext(
            sandbox_id=info.sandbox_id,
            session_id=session.session_id,
            agent_id=info.agent_id or NO_AGENT,
            taint=join(session.taint, info.workspace_label),
            credential=terms.name,
            production=terms.production,
            purpose=terms.purpose,
            name=contact.name or "",
            port=contact.port,
            method=request.method,
            paths=paths_of(read_target(request.path)),
            label=terms.label,
            uses=found.uses,
        )
        decision = decide_secret(context, self._rulebook.current)
        if decision.outcome is not Outcome.ALLOW:
            raise refusal_of(decision)
        if terms.budget is not None and found.uses >= terms.budget:
            raise CredentialBudget(
                f"credential `{terms.name}` was used {terms.budget} times, which is all of its budget"
            )
        secret = self._vault.open(self._sealed(found.credential_id), found.credential_id)
        self._count(question, info, found, command_id, context, decision)
        return NetworkAnswer(secret=secret, credential=terms.name)

    def _count(
        self,
        question: NetworkQuestion,
        info: SandboxInfo,
        found: CredentialInfo,
        command_id: str | None,
        context: SecretContext,
        decision: Decision,
    ) -> None:
        body = {
            **_told(question, info, found, command_id),
            "session_id": context.session_id,
            "uses": found.uses + 1,
            "context": context.model_dump(mode="json"),
            "decision": decision.model_dump(mode="json"),
        }
        with self._store.transaction(durable=True) as connection:
            self._living = None
            changed = self._store.raw.execute(_COUNT, (found.credential_id, found.uses)).rowcount
            if changed != 1:
                raise DeniedByRule(f"credential `{found.terms.name}` changed meanwhile")
            self._ledger.append("secret.used", found.credential_id, body, connection=connection, durable=True)

    def _note_refusal(
        self,
        question: NetworkQuestion,
        info: SandboxInfo,
        found: CredentialInfo | None,
        command_id: str | None,
        error: ColdframeError,
    ) -> None:
        now = self._clock()
        key = (info.sandbox_id, "" if found is None else found.credential_id, error.code)
        last = self._noted.get(key)
        if last is not None and now - last < REFUSED_EVERY:
            return
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted[key] = now
        body = {
            **_told(question, info, found, command_id),
            "session_id": self._sandboxes.session(info).session_id,
            "code": error.code,
            "reason": error.message,
        }
        self._ledger.append("secret.refused", info.sandbox_id if found is None else found.credential_id, body)

    # -- within ------------------------------------------------------------------------------------------------------

    def _check_terms(self, terms: CredentialTerms, confirm: str) -> None:
        try:
            read_service(terms.base)
        except ServiceInvalid as error:
            raise InvalidArgument(f"`{terms.base}` is no service: {error}", argument="base") from None
        if terms.expires_at is not None and (terms.expires_at.tzinfo is None or terms.expires_at <= self._clock()):
            raise InvalidArgument("the expiry lies in the past or has no time zone", argument="expires_at")
        if not terms.agents and not terms.roles:
            raise InvalidArgument(
                "nobody could use it", hint="name agents or roles, or `*` for every agent", argument="agents"
            )
        if terms.production and confirm != terms.access:
            raise InvalidArgument(
                f"this gives {terms.access} to every sandbox that may use it: confirm that",
                hint=f"confirm with the words `{terms.access}`",
                argument="confirm",
                confirm=terms.access,
            )

    def _is_for(self, terms: CredentialTerms, info: SandboxInfo, role: Role | None = None) -> bool:
        if info.agent_id is not None and (EVERYBODY in terms.agents or info.agent_id in terms.agents):
            return True
        return bool(terms.roles) and (role or self._role_of(info.sandbox_id)) in terms.roles

    def _has_sealed(self) -> bool:
        return bool(self._store.read("SELECT 1 FROM credentials WHERE revoked_at IS NULL LIMIT 1"))

    def _sealed(self, credential_id: str) -> bytes:
        rows = self._store.read("SELECT sealed FROM credentials WHERE credential_id = ?", (credential_id,))
        return bytes(rows[0][0]) if rows else b""

    def _find(self, name: str) -> CredentialInfo:
        """The living one, else the one that was taken back last."""
        query = f"{_SELECT} WHERE name = ? ORDER BY revoked_at IS NULL DESC, revoked_at DESC LIMIT 1"
        rows = self._store.read(query, (name,))
        if not rows:
            raise NotFound(f"no credential `{name[:80]}`", hint="`coldframe credential list` shows all")
        return self._info(_Row._make(rows[0]))

    def _by_id(self, credential_id: str) -> CredentialInfo:
        return self._info(_Row._make(self._store.read(f"{_SELECT} WHERE credential_id = ?", (credential_id,))[0]))

    def _info(self, row: _Row) -> CredentialInfo:
        terms = CredentialTerms.model_validate_json(row.terms)
        return CredentialInfo(
            credential_id=row.credential_id,
            terms=terms,
            uses=row.uses,
            created_at=parse_time(row.created_at),
            added_by=row.added_by,
            rotated_at=None if row.rotated_at is None else parse_time(row.rotated_at),
            revoked_at=None if row.revoked_at is None else parse_time(row.revoked_at),
            state=self._state(row, terms),
        )

    def _state(self, row: _Row, terms: CredentialTerms) -> Literal["usable", "used_up", "expired", "revoked"]:
        if row.revoked_at is not None:
            return "revoked"
        if terms.expires_at is not None and terms.expires_at <= self._clock():
            return "expired"
        return "used_up" if terms.budget is not None and row.uses >= terms.budget else "usable"

    def _record(
        self, kind: str, info: CredentialInfo, caller: Caller, connection: sa.Connection, **more: object
    ) -> None:
        self._living = None
        body = {
            "credential_id": info.credential_id,
            "credential": info.terms.name,
            "caller": caller.name,
            "access": info.terms.access,
            **more,
        }
        self._ledger.append(kind, info.credential_id, body, connection=connection, durable=True)


def _may_meet(one: CredentialTerms, other: CredentialTerms) -> bool:
    """Whether both may be given to one sandbox."""
    if one.roles or other.roles or EVERYBODY in (*one.agents, *other.agents):
        return True
    return not set(one.agents).isdisjoint(other.agents)


def _told(
    question: NetworkQuestion, info: SandboxInfo, found: CredentialInfo | None, command_id: str | None
) -> dict[str, Any]:
    contact, request = question.contact, question.request
    return {
        "credential_id": None if found is None else found.credential_id,
        "credential": None if found is None else found.terms.name,
        "sandbox_id": info.sandbox_id,
        "agent_id": info.agent_id,
        "command_id": command_id,
        "contact_id": contact.contact_id,
        "host": contact.name or contact.address,
        "port": contact.port,
        "method": "" if request is None else request.method,
        "path": "" if request is None else request.path,
    }


def _use(seq: int, at: datetime, body: dict[str, Any], *, refused: bool) -> CredentialUse:
    decision = body.get("decision") or {}
    return CredentialUse(
        seq=seq,
        at=at,
        outcome="refused" if refused else "used",
        code=body.get("code"),
        reason=body["reason"] if refused else decision["reason"],
        host=body["host"],
        port=body["port"],
        method=body["method"],
        path=body["path"],
        sandbox_id=body["sandbox_id"],
        session_id=body["session_id"],
        agent_id=body["agent_id"],
        command_id=body["command_id"],
    )
