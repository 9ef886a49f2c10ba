"""Announces events to addresses that people have registered, from the ledger, in its order, until each was taken.

A web hook is a place in the ledger: what comes behind it is sent, one after the other, and the place moves when something was
taken. So nothing is lost by a crash, what was under way then is sent again under the same id, and a receiver that was away
gets all it has missed, in order. One that takes nothing for a day of attempts is left alone until somebody resumes it.
"""

import asyncio
import builtins
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, GrantMissing, LimitReached, NotFound, WrongState
from coldframe.contract.ledger import LedgerEntry
from coldframe.contract.policy import Label, Role
from coldframe.contract.webhook import SIGNATURE, Announcement, MadeWebhook, NewWebhook, WebhookEvent, WebhookInfo, sign
from coldframe.control.ledger import Ledger, format_time, parse_time
from coldframe.control.rights import require
from coldframe.control.store import Store, metadata
from coldframe.control.vault import Vault
from coldframe.control.webhook_posts import NotDelivered, Posts, Target, read_target, refuse_address
from coldframe.policy.addresses import read_address
from coldframe.policy.labels import join, parse

MOST_WEBHOOKS = 100
PAGE = 50
"""Entries that are read before everybody else has a turn."""
GATHER_S = 0.1
"""From a commit to the look at what it brought: a look commits what was put off, and is to serve more than one end."""
KEEP_EVERY = 500
"""Entries that a place may be behind in the database where nothing was announced: after a crash they are looked through again."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
DEAD_AFTER = timedelta(days=1)
"""How long nothing has to come through before no more attempts are made, and as many as are made in that time: while the server
is off, or the machine asleep, none is."""
MOST_ERROR_CHARACTERS = 300
KINDS: Mapping[WebhookEvent, tuple[str, ...]] = {
    "command.ended": ("call.ended", "call.interrupted"),
    "build.ended": ("build.ended",),
    "pipeline.ended": ("pipeline.ended",),
    "template.built": ("template.built", "template.build_failed", "template.build_cancelled"),
    "sandbox.created": ("sandbox.created",),
    "sandbox.paused": ("sandbox.paused",),
    "sandbox.resumed": ("sandbox.resumed",),
    "sandbox.stopped": ("sandbox.stopped",),
    "sandbox.started": ("sandbox.started",),
    "sandbox.terminated": ("sandbox.terminated",),
    "sandbox.lost": ("sandbox.lost",),
}
"""What stands in the ledger for each event."""
_EVENTS: dict[str, WebhookEvent] = {kind: event for event, kinds in KINDS.items() for kind in kinds}
_OF_COMMANDS = ("ended", "exit_code", "signal", "out_of_memory", "limit", "error_code")
_OF_OTHERS = {
    "build": ("state", "code", "build_id", "pipeline_id"),
    "pipeline": ("state", "pipeline_id"),
    "template": ("state", "code", "build_id", "name", "version"),
}
"""Of what else there is, told if the entry has it: ids, and words that we or people have made. Reasons and messages are not told:
they may have in them what somebody's session has written."""
_log = logging.getLogger("coldframe.webhooks")
Post = Callable[..., Awaitable[None]]

webhooks_table = sa.Table(
    "webhooks",
    metadata,
    sa.Column("webhook_id", sa.Text, primary_key=True),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("delivered_at", sa.Text),
    sa.Column("failing_since", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("last_error", sa.Text),
    sa.Column("is_dead", sa.Integer, nullable=False),
)
_SELECT = (
    "SELECT webhook_id, terms, created_at, created_by, delivered_at, failing_since, attempts, last_error, is_dead, position, sealed "
    "FROM webhooks"
)


@dataclass
class _Course:
    """How far one has come, while its task is there."""

    terms: NewWebhook
    target: Target
    sealed: bytes
    position: int
    """The last entry that was looked at, or taken."""
    kept: int
    """The same in the database, where it may be behind."""
    in_trouble: bool = False
    """It stands in the database that something of ours is in the way."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Webhooks:
    """Keeps them, and delivers: one task for each that is not dead."""

    def __init__(self, store: Store, ledger: Ledger, vault: Vault, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._ledger = ledger
        self._vault = vault
        self._clock = clock
        self._post: Post = Posts().post
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._courses: dict[str, _Course] = {}
        self._started = False

    def start(self) -> None:
        """Go on where each was."""
        self._started = True
        for info in self._all():
            if info.state != "dead":
                self._begin(info.webhook_id)

    async def close(self) -> None:
        self._started = False
        self._ledger.on_commit = None
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        with contextlib.suppress(ColdframeError), self._store.transaction():  # else they are looked through again
            for webhook_id, course in self._courses.items():
                self._keep(webhook_id, course)
        self._courses.clear()

    # -- keeping -----------------------------------------------------------------------------------------------------

    def add(self, terms: NewWebhook, *, caller: Caller) -> MadeWebhook:
        """Announce what happens from now on.

        Raises:
            GrantMissing: the caller may not, or is no owner and wants private addresses opened.
            InvalidArgument: it is no address of a web hook.
            LimitReached: there are too many.
        """
        require(caller, "webhook.add")
        target = read_target(terms.url)
        if terms.allow_private and caller.role is not Role.OWNER:
            raise GrantMissing(
                "only an owner may open private addresses to a web hook",
                hint="use a token of role owner",
                operation="webhook.add",
                role=caller.role.value,
            )
        literal = read_address(target.host)
        if literal is not None and (why := refuse_address(literal, allow_private=terms.allow_private)):
            raise GrantMissing(
                f"{why}, and not opened to web hooks",
                hint="an owner opens private ones by `allow_private`; others stay closed",
                operation="webhook.add",
                role=caller.role.value,
            )
        secret = f"whsec_{secrets.token_hex(32)}"
        info = WebhookInfo(
            webhook_id=f"whk_{secrets.token_hex(8)}",
            terms=terms,
            created_at=self._clock(),
            created_by=caller.name,
            state="active",
        )
        with self._store.transaction(durable=True) as connection:
            known = self._all()
            if len(known) >= MOST_WEBHOOKS:
                raise LimitReached(
                    f"there are {MOST_WEBHOOKS} web hooks already",
                    hint="remove one that is not needed any more",
                    kind="webhooks",
                    limit=MOST_WEBHOOKS,
                    used=len(known),
                )
            sealed = self._vault.seal(secret, info.webhook_id, may_make_key=not known)
            body = {
                "webhook_id": info.webhook_id,
                "caller": caller.name,
                "host": target.host,
                "events": list(terms.events),
            }
            entry = self._ledger.append("webhook.added", info.webhook_id, body, connection=connection, durable=True)
            connection.execute(
                webhooks_table.insert().values(
                    webhook_id=info.webhook_id,
                    terms=terms.model_dump_json(),
                    sealed=sealed,
                    created_at=format_time(info.created_at),
                    created_by=info.created_by,
                    position=entry.seq,
                    attempts=0,
                    is_dead=0,
                )
            )
        self._begin(info.webhook_id)
        return MadeWebhook(webhook=info, secret=secret)

    def list(self, caller: Caller) -> builtins.list[WebhookInfo]:
        """All, without their secrets."""
        require(caller, "webhook.read")
        return self._all()

    def get(self, webhook_id: str, caller: Caller) -> WebhookInfo:
        require(caller, "webhook.read")
        return self._find(webhook_id)

    async def remove(self, webhook_id: str, *, caller: Caller) -> None:
        """Send nothing more there. What was not taken until now is not announced."""
        require(caller, "webhook.remove")
        with self._store.transaction(durable=True) as connection:
            self._find(webhook_id)
            connection.execute(webhooks_table.delete().where(webhooks_table.c.webhook_id == webhook_id))
            body = {"webhook_id": webhook_id, "caller": caller.name}
            self._ledger.append("webhook.removed", webhook_id, body, connection=connection, durable=True)
        self._courses.pop(webhook_id, None)
        if task := self._tasks.pop(webhook_id, None):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def resume(self, webhook_id: str, *, caller: Caller) -> WebhookInfo:
        """Try again at once, where it was: also what happened while it was dead is sent."""
        require(caller, "webhook.add")
        with self._store.transaction(durable=True) as connection:
            if self._find(webhook_id).state == "active":
                raise WrongState(f"web hook `{webhook_id}` does not fail", hint="nothing has to be done")
            self._set(webhook_id, connection, is_dead=0, failing_since=None, attempts=0)
            body = {"webhook_id": webhook_id, "caller": caller.name}
            self._ledger.append("webhook.resumed", webhook_id, body, connection=connection, durable=True)
        if task := self._tasks.pop(webhook_id, None):
            task.cancel()
        self._begin(webhook_id)
        return self._find(webhook_id)

    def _all(self) -> builtins.list[WebhookInfo]:
        return [_info(row) for row in self._store.read(f"{_SELECT} ORDER BY created_at, webhook_id")]

    def _row(self, webhook_id: str) -> tuple[Any, ...]:
        rows = self._store.read(f"{_SELECT} WHERE webhook_id = ?", (webhook_id,))
        if not rows:
            raise NotFound(f"there is no web hook `{webhook_id}`", webhook_id=webhook_id)
        return rows[0]

    def _find(self, webhook_id: str) -> WebhookInfo:
        return _info(self._row(webhook_id))

    def _set(self, webhook_id: str, connection: sa.Connection, **values: object) -> None:
        connection.execute(webhooks_table.update().where(webhooks_table.c.webhook_id == webhook_id).values(**values))

    # -- delivering ----------------------------------------------------------------------------------------------------

    def _begin(self, webhook_id: str) -> None:
        if self._started:
            row = self._row(webhook_id)
            terms, position = NewWebhook.model_validate_json(row[1]), int(row[9])
            self._ledger.on_commit = self._wake
            self._courses[webhook_id] = _Course(terms, read_target(terms.url), row[10], position, position)
            self._tasks[webhook_id] = asyncio.ensure_future(self._deliver(webhook_id, self._courses[webhook_id]))

    def _wake(self) -> None:
        for course in self._courses.values():
            course.wake.set()

    async def _deliver(self, webhook_id: str, course: _Course) -> None:
        """All that comes, one after the other, until it is dead or removed."""
        pause_s = FIRST_PAUSE_S
        while True:
            course.wake.clear()
            try:
                is_through = await self._deliver_page(webhook_id, course)
                self._out_of_trouble(webhook_id, course)
            except Exception as error:  # noqa: BLE001  the edge of a task: the ledger or the key, which may come back
                self._in_trouble(webhook_id, course, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            pause_s = FIRST_PAUSE_S
            if is_through is None:
                return
            if is_through:
                await course.wake.wait()
                await asyncio.sleep(GATHER_S)
            else:
                await asyncio.sleep(0)  # others have a turn, however much there is to look through

    async def _deliver_page(self, webhook_id: str, course: _Course) -> bool | None:
        """Whether nothing is left for now; None: it is dead."""
        terms = course.terms
        secret, reached = self._vault.open(course.sealed, webhook_id), self._ledger.committed_seq
        kinds = sorted({kind for event in terms.events for kind in KINDS[event]})
        page = self._ledger.entries(
            after=course.position, limit=PAGE, kinds=kinds, sandbox_id=terms.sandbox_id, agent_id=terms.agent_id
        )
        for entry in page:
            if announcement := _announcement(entry, self._duration_us(entry), webhook_id, terms):
                if not await self._until_taken(webhook_id, terms, course.target, secret, announcement):
                    return None
                self._taken(webhook_id, entry.seq)
                course.kept = entry.seq
            course.position = entry.seq
        if len(page) < PAGE:
            course.position = max(course.position, reached)  # what is of other kinds is not looked through again
        if course.position - course.kept >= KEEP_EVERY:
            self._keep(webhook_id, course)
        return len(page) < PAGE

    def _duration_us(self, entry: LedgerEntry) -> int:
        """How long it took. Of what was interrupted nobody knows, and it counts until that was noticed, lest a long one is left out."""
        if entry.kind == "call.interrupted":
            begin = self._ledger.entry(int(entry.body["started_seq"]))
            return 0 if begin is None else round((entry.at - begin.at).total_seconds() * 1_000_000)
        return int(entry.body.get("duration_us") or 0)

    def _keep(self, webhook_id: str, course: _Course) -> None:
        if course.position > course.kept:
            with self._store.transaction() as connection:
                self._set(webhook_id, connection, position=course.position)
            course.kept = course.position

    def _in_trouble(self, webhook_id: str, course: _Course, error: Exception) -> None:
        """Say what is in the way, which is no fault of the receiver's: it does not die of it."""
        why = f"nothing can be sent: {error}"
        _log.warning("web hook %s: %s", webhook_id, why, exc_info=not isinstance(error, ColdframeError))
        with contextlib.suppress(ColdframeError), self._store.transaction() as connection:
            self._set(webhook_id, connection, last_error=why[:MOST_ERROR_CHARACTERS])
            course.in_trouble = True

    def _out_of_trouble(self, webhook_id: str, course: _Course) -> None:
        if course.in_trouble:
            with self._store.transaction() as connection:
                self._set(webhook_id, connection, last_error=None)
            course.in_trouble = False

    async def _until_taken(
        self, webhook_id: str, terms: NewWebhook, target: Target, secret: str, announcement: Announcement
    ) -> bool:
        """False: it is dead."""
        body = announcement.model_dump_json().encode()
        pause_s = FIRST_PAUSE_S
        while True:
            headers = {
                "Content-Type": "application/json",
                "User-Agent": "Coldframe-Webhook",
                "Coldframe-Event-Id": announcement.id,
                SIGNATURE: sign(secret, body, int(time.time())),
            }
            try:
                await self._post(target, body, headers, allow_private=terms.allow_private)
                return True
            except NotDelivered as error:
                if self._failed(webhook_id, str(error)):
                    return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _taken(self, webhook_id: str, seq: int) -> None:
        now = format_time(self._clock())
        with self._store.transaction() as connection:
            self._set(
                webhook_id, connection, position=seq, delivered_at=now, failing_since=None, attempts=0, last_error=None
            )

    def _failed(self, webhook_id: str, why: str) -> bool:
        """Keep that it failed; True if it is dead by that."""
        info, now = self._find(webhook_id), self._clock()
        since, attempts = info.failing_since or now, info.attempts + 1
        is_dead = now - since >= DEAD_AFTER and attempts >= DEAD_AFTER.total_seconds() / LONGEST_PAUSE_S
        with self._store.transaction() as connection:
            self._set(
                webhook_id,
                connection,
                failing_since=format_time(since),
                attempts=attempts,
                last_error=why[:MOST_ERROR_CHARACTERS],
                is_dead=int(is_dead),
            )
            if is_dead or info.failing_since is None:
                body = {"webhook_id": webhook_id, "error": why[:MOST_ERROR_CHARACTERS]}
                kind = "webhook.dead" if is_dead else "webhook.failing"
                self._ledger.append(kind, webhook_id, body, connection=connection)
        return is_dead


def _info(row: tuple[Any, ...]) -> WebhookInfo:
    webhook_id, terms, created_at, created_by, delivered_at, failing_since, attempts, last_error, is_dead = row[:9]
    return WebhookInfo(
        webhook_id=webhook_id,
        terms=NewWebhook.model_validate_json(terms),
        created_at=parse_time(created_at),
        created_by=created_by,
        state="dead" if is_dead else "active" if failing_since is None else "failing",
        delivered_at=None if delivered_at is None else parse_time(delivered_at),
        failing_since=None if failing_since is None else parse_time(failing_since),
        attempts=attempts,
        last_error=last_error,
    )


def _announcement(entry: LedgerEntry, duration_us: int, webhook_id: str, terms: NewWebhook) -> Announcement | None:
    """What is told of an entry; None for one that is no event."""
    body, event = entry.body, _EVENTS[entry.kind]
    facts: dict[str, Any] = {}
    if event == "command.ended":
        if body.get("ended") in ("answered", "failed") or not body.get("command_id"):
            return None  # a tool that runs nothing
        if duration_us < terms.min_duration_s * 1_000_000:
            return None
        label = join(*(parse(body[key]) for key in ("label", "taint_after") if body.get(key)))
        facts = {name: body.get(name) for name in _OF_COMMANDS}
        if entry.kind == "call.interrupted":
            facts |= {"ended": "lost" if body.get("began", True) else "not_started", "duration_ms": None}
        else:
            facts["duration_ms"] = round(duration_us / 1000)
    else:
        what = event.partition(".")[0]
        # Templates are the installation's; what an entry of before does not say of others is told to whom all may be.
        label = Label.PUBLIC if what == "template" else parse(body.get("label"))
        facts = {name: value for name in _OF_OTHERS.get(what, ()) if isinstance(value := body.get(name), str | int)}
    withheld = label.rank > terms.label.rank
    return Announcement(
        id=f"evt_{entry.seq:012d}",
        type=event,
        at=entry.at,
        webhook_id=webhook_id,
        label=label,
        withheld=withheld,
        sandbox_id=body.get("sandbox_id") or (entry.subject if entry.subject.startswith("sbx_") else None),
        agent_id=body.get("agent_id"),
        command_id=body.get("command_id"),
        subject=entry.subject,
        facts={} if withheld else json.loads(json.dumps(facts)),
    )
