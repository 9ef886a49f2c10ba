"""Who is let in to a preview, and what is remembered of it.

A visitor shows nothing (a `public` one), the token, a cookie that a link of one use was exchanged for, or a token of this
installation. What it shows is compared in constant time. Then the label decides: a preview is shared up to a label, and
whoever is not known here as a person sees nothing above it, nor any more once the session has risen over it.

Each visitor is on record before the first byte reaches it, once: further requests are counted, and the count is recorded
when it has been away for a while. What was turned away is recorded as well, each reason once a minute for each preview.
"""

import asyncio
import hashlib
import hmac
import math
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import (
    ColdframeError,
    GrantMissing,
    GuestLost,
    NotFound,
    PreviewAsleep,
    PreviewEnded,
    PreviewGone,
    PreviewLabelled,
    PreviewLocked,
    PreviewStarting,
    PreviewUnavailable,
    Unauthenticated,
    next_action,
)
from coldframe.contract.policy import Label, Role
from coldframe.contract.ports import Host
from coldframe.contract.preview import PreviewLinkRequest
from coldframe.contract.profile import require_capability
from coldframe.contract.sandbox import ENDED, SandboxInfo
from coldframe.control.access_tokens import AccessTokens
from coldframe.control.leases import Leases
from coldframe.control.ledger import Ledger
from coldframe.control.preview_rows import EVERY_PORT, PreviewRow, PreviewRows
from coldframe.control.rights import may
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.tokens import Tokens
from coldframe.policy.labels import join

LINK_LIFE = timedelta(minutes=10)
COOKIE_LIFE = timedelta(days=30)
"""As long as the preview lives, at most."""
AWAY_S = 600.0
"""A visitor that has asked for nothing for so long is gone: what it did is recorded then."""
DENIED_EVERY = timedelta(minutes=1)
MOST_VISITORS = 10_000
MOST_LINKS = 10_000
MOST_OPEN = 1024
"""Requests under way of one sandbox: each takes a connection in its box."""
LONGEST_WAIT_S = 86_400.0
CLOCK_S = 0.01
TOKEN_PREFIX = "cfp_"  # noqa: S105  how one begins, no secret
OF_LEASE = "ports_"
"""How ids begin of what shows all ports of a sandbox that was leased."""
_STARTING = ("queued", "starting", "resuming")
_VIEWER = "viewer-"
"""How the names begin, in their cookies, of those that a link lets in to look."""

Way = Literal["public", "token", "link", "caller"]


class Shown(NamedTuple):
    """What a visitor brings."""

    visitor: str
    """Where it comes from."""
    cookie: str | None = None
    tokens: tuple[str, ...] = ()
    is_own_page: bool = True
    """Whether the request may use a cookie: it comes from a page of this very preview, or is a visit that somebody chose."""
    only_looks: bool = True
    """Whether it asks for something, and sends nothing that could change what is there."""


class Known(NamedTuple):
    """Whom it was found to be."""

    way: Way
    key: str
    """The same for all requests of one visitor."""
    by: str | None = None
    """Of a person or agent known here: their name."""
    sees_all: bool = False
    """Whether labels concern it: those who may read the sandbox anyway."""
    caller: Caller | None = None
    """Who has shown a token of this installation."""
    may_act: bool = True
    """Whether it may do more than look."""
    until: datetime | None = None
    """When it is known no more."""


@dataclass
class Visit:
    """One visitor of one preview."""

    known: Known
    row: PreviewRow
    began: datetime
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    open: int = 0
    away: asyncio.TimerHandle | None = None
    came_through: bool = False


@dataclass
class _Link:
    preview_id: str
    by: str
    expires_at: datetime
    asked: PreviewLinkRequest


@dataclass
class Admitted:
    """A visitor at one port, for one request."""

    key: tuple[str, int]
    answer_timeout_s: float
    row: PreviewRow
    visit: Visit
    _access: "PreviewAccess"
    expiry: asyncio.TimerHandle | None = None

    async def connect(self) -> socket.socket:
        made = await self._access.connect(*self.key)
        if not self.visit.came_through:
            self.visit.came_through = True
            if self.row.command_id is None and not self.row.preview_id.startswith(OF_LEASE):
                self._access.learn(self.row)
        return made

    async def explain(self, error: ColdframeError) -> ColdframeError:
        found = await self._access.explain(self.row, self.key[1], error)
        if self.visit.known.way == "public":
            found.facts.pop("log_lines", None)  # what it serves is for everybody; what it prints is not
        return found

    def enter(self, cut: Callable[[], None]) -> None:
        self._access.enter(self, cut)

    def leave(self, cut: Callable[[], None], bytes_in: int, bytes_out: int) -> None:
        self._access.leave(self, cut, bytes_in, bytes_out)


async def _wake_nothing(_: str) -> bool:
    return False


class PreviewAccess:
    """Of the previews of this installation."""

    def __init__(
        self,
        rows: PreviewRows,
        ledger: Ledger,
        tokens: Tokens,
        access_tokens: AccessTokens,
        leases: Leases,
        sandboxes: Sandboxes,
        host: Host,
        clock: Callable[[], datetime],
    ) -> None:
        self._rows = rows
        self._ledger = ledger
        self._tokens = tokens
        self._access_tokens = access_tokens
        self._leases = leases
        self.can_wake: Callable[[str], bool] = lambda _: False
        """Whether a sandbox is paused, and goes on when it is called."""
        self.wake: Callable[[str], Awaitable[bool]] = _wake_nothing
        self._sandboxes = sandboxes
        self.host = host
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._visits: dict[tuple[str, str], Visit] = {}
        self._denied: dict[tuple[str, str], datetime] = {}
        self._labels: dict[str, Label] = {}
        """Of those with something under way, as they were looked at last."""
        self._live: dict[str, dict[Callable[[], None], Admitted]] = {}
        """By sandbox: what ends each request that is under way."""
        self.why: Callable[[PreviewRow, int, ColdframeError], Awaitable[ColdframeError]] | None = None
        """Finds out why something does not serve."""
        self.learn: Callable[[PreviewRow], None] = lambda _: None
        """Finds out which command serves, where that is not on record and something does."""

    # -- one request ---------------------------------------------------------------------------

    def admit(self, label_id: str, port: int, shown: Shown) -> Admitted:
        """Let a visitor in, or say why not.

        Raises:
            NotFound: nothing is shared there. PreviewGone: it was. PreviewLocked. PreviewLabelled.
            PreviewUnavailable: the sandbox does not serve.
            LedgerUnavailable: it could not be recorded.
        """
        row = self._shared(label_id, port)
        try:
            known = self._recognise(row, shown)
            if not (shown.only_looks or known.may_act) and row.public:  # as everybody may, and for as long as they do
                known = Known("public", f"public:{known.key}", known.by)
            elif not (shown.only_looks or known.may_act):
                raise GrantMissing(
                    "viewers of a preview look, and send it nothing",
                    hint="ask for a link for members, or use such a token",
                )
            self._require_serving(row, known)
            if sum(visit.open for visit in self._of_sandbox(row.sandbox_id)) >= MOST_OPEN:
                raise PreviewUnavailable(f"{MOST_OPEN} requests of this sandbox are under way", retry="later")
        except ColdframeError as error:
            led_on(error, row)
            if isinstance(error, PreviewGone | PreviewLocked | PreviewLabelled | GrantMissing):
                self._note_denied(row, port, shown, error)
            raise
        visit = self._visit(row, port, known, shown)
        return Admitted((row.sandbox_id, port), float(row.terms.get("answer_timeout_s", 60.0)), row, visit, self)

    def _shared(self, label_id: str, port: int) -> PreviewRow:
        """Raises NotFound. All ports of a sandbox that was leased are shared, as the protocol by which it was promises."""
        row = self._rows.at(label_id, port)
        if row is not None:
            return row
        sandbox_id = f"sbx_{label_id}"
        lease = self._leases.find(sandbox_id)
        if lease is None:
            raise NotFound("nothing is shared there", port=port)
        token = self._access_tokens.traffic_token(sandbox_id) if lease.terms.needs_token else None
        return PreviewRow(
            preview_id=f"{OF_LEASE}{label_id}",
            label_id=label_id,
            port=EVERY_PORT,
            sandbox_id=sandbox_id,
            name=None,
            public=token is None,
            up_to=Label.PUBLIC,
            token_digest=None if token is None else hashlib.sha256(token.encode()).digest(),
            cookie_key=hashlib.sha256(f"cookies {token}".encode()).digest() if token else secrets.token_bytes(32),
            terms={} if lease.terms.host is None else {"host": lease.terms.host},
            command_id=None,
            started_at=None,
            stopped_by=None,
            inputs=None,
            created_by=lease.token_id,
            created_at=self._clock(),
            expires_at=None,
            revoked_at=None,
        )

    def _recognise(self, row: PreviewRow, shown: Shown) -> Known:
        now = self._clock()
        if row.revoked_at is not None:
            raise PreviewGone("this preview was taken back", preview_id=row.preview_id)
        if row.expires_at is not None and row.expires_at <= now:
            raise PreviewGone("the time of this preview is over", preview_id=row.preview_id)
        for token in shown.tokens:
            if (known := self._by_token(row, token)) is not None:
                return known
        if shown.cookie is not None and shown.is_own_page:
            found = self._by_cookie(row, shown.cookie, now)
            if found is not None:
                return found
        if row.public:
            return Known("public", f"public:{shown.visitor}")
        raise PreviewLocked("this preview takes a link or a token", preview_id=row.preview_id)

    def _by_token(self, row: PreviewRow, token: str) -> Known | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        if row.token_digest is not None and hmac.compare_digest(digest, row.token_digest):
            return Known("token", f"token:{digest.hex()[:16]}")
        if token.startswith(TOKEN_PREFIX):
            return None
        try:
            caller = self._tokens.authenticate(token, surface="rest")
            self._sandboxes.get(caller, row.sandbox_id)
        except (Unauthenticated, NotFound, ColdframeError):
            return None
        if not may(caller, "preview.visit"):
            return None
        works = caller.role is not Role.VIEWER
        return Known("caller", f"caller:{caller.token_id}", caller.name, works, caller, may_act=works)

    def _still_knows(self, known: Known, row: PreviewRow) -> bool:
        """Whether a visitor would be let in again by what it has shown."""
        if known.way == "public":
            return row.public
        if known.caller is None:
            return True
        try:
            self._sandboxes.get(known.caller, row.sandbox_id)
        except ColdframeError:
            return False
        return self._tokens.is_valid(known.caller)

    def _by_cookie(self, row: PreviewRow, cookie: str, now: datetime) -> Known | None:
        visitor, _, rest = cookie.partition(".")
        until, _, mac = rest.partition(".")
        wanted = self._mac(row, visitor, until)
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), wanted.encode()):
            return None
        if not until.isdigit() or int(until) <= now.timestamp():
            return None
        may_act = not visitor.startswith(_VIEWER)
        return Known("link", f"link:{visitor}", may_act=may_act, until=datetime.fromtimestamp(int(until), UTC))

    def _mac(self, row: PreviewRow, visitor: str, until: str) -> str:
        text = f"{row.preview_id}\0{visitor}\0{until}".encode("utf-8", "replace")
        return hmac.new(row.cookie_key, text, hashlib.sha256).hexdigest()

    def _require_serving(self, row: PreviewRow, known: Known) -> None:
        """Raise what is the matter, if it can be told without asking the box."""
        info = self._sandboxes.find(row.sandbox_id)
        require_capability(info.spec.profile, "ports", sandbox_id=row.sandbox_id)
        if not known.sees_all and (label := self.label_of(info)).rank > row.up_to.rank:
            raise PreviewLabelled(
                f"what this preview shows is labelled {label.value}, and it is shared up to {row.up_to.value}",
                preview_id=row.preview_id,
                label=label.value,
                up_to=row.up_to.value,
            )
        if (error := standing(info)) is not None and not self.can_wake(row.sandbox_id):
            raise error

    def label_of(self, info: SandboxInfo) -> Label:
        return join(self._sandboxes.session(info).taint, info.workspace_label)

    async def connect(self, sandbox_id: str, port: int) -> socket.socket:
        """Raises PreviewUnavailable, GuestLost."""
        try:
            if self.can_wake(sandbox_id):
                await self.wake(sandbox_id)
            life = await self.host.life(sandbox_id)
            return await life.connect(port)
        except (GuestLost, NotFound) as error:
            await self._sandboxes.check_alive(sandbox_id, error.message)
            raise standing(self._sandboxes.find(sandbox_id)) or error from error

    async def explain(self, row: PreviewRow, port: int, error: ColdframeError) -> ColdframeError:
        return error if self.why is None else await self.why(row, port, error)

    # -- links of one use ----------------------------------------------------------------------

    def make_link(self, row: PreviewRow, caller: Caller, asked: PreviewLinkRequest) -> tuple[str, datetime]:
        """A secret that is exchanged for a cookie, once."""
        now = self._clock()
        for secret in [one for one, link in self._links.items() if link.expires_at <= now]:
            del self._links[secret]
        while len(self._links) >= MOST_LINKS:
            del self._links[next(iter(self._links))]
        secret = secrets.token_urlsafe(32)
        self._links[hashlib.sha256(secret.encode()).hexdigest()] = _Link(
            row.preview_id, caller.name, now + LINK_LIFE, asked
        )
        return secret, now + LINK_LIFE

    def end_links(self, preview_id: str) -> None:
        """Those that nobody has opened yet; cookies end with the key of their row."""
        for secret in [one for one, link in self._links.items() if link.preview_id == preview_id]:
            del self._links[secret]

    def exchange(self, label_id: str, port: int, secret: str, visitor: str) -> tuple[str, int]:
        """A cookie, and for how many seconds it is good, for a link or for the token itself.

        Raises:
            NotFound, PreviewGone. PreviewLocked: it was used, is too old, or is of something else.
        """
        row = self._shared(label_id, port)
        now, by, asked = self._clock(), None, PreviewLinkRequest()
        link = self._links.pop(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest(), None)
        try:
            if link is not None and link.preview_id == row.preview_id and link.expires_at > now:
                by, asked = link.by, link.asked
                self._recognise(row._replace(public=True), Shown(visitor))  # whether it is over
            elif self._recognise(row._replace(public=False), Shown(visitor, tokens=(secret,))).way == "caller":
                raise PreviewLocked("this preview takes a link or its own token", preview_id=row.preview_id)
        except (PreviewGone, PreviewLocked) as error:
            self._note_denied(row, port, Shown(visitor), error)
            raise
        life = COOKIE_LIFE if asked.expires_in_s is None else min(COOKIE_LIFE, timedelta(seconds=asked.expires_in_s))
        until = now + life if row.expires_at is None else min(now + life, row.expires_at)
        name = (_VIEWER if asked.role == "viewer" else "") + secrets.token_hex(8)
        text = str(math.ceil(until.timestamp()))
        body = {**_told(row), "visitor": f"link:{name}", "by": by, "address": visitor, "role": asked.role}
        self._ledger.append("preview.entered", row.preview_id, body)
        return f"{name}.{text}.{self._mac(row, name, text)}", max(1, int((until - now).total_seconds()))

    # -- what is remembered --------------------------------------------------------------------

    def _visit(self, row: PreviewRow, port: int, known: Known, shown: Shown) -> Visit:
        at = (row.preview_id, known.key)
        visit = self._visits.get(at)
        if visit is None:
            body = {
                **_told(row),
                "port": port,
                "visitor": known.key,
                "way": known.way,
                "by": known.by,
                "address": shown.visitor,
                "label": self.label_of(self._sandboxes.find(row.sandbox_id)).value,
            }
            self._ledger.append("preview.opened", row.preview_id, body)
            if len(self._visits) >= MOST_VISITORS:
                idle = next((one for one in self._visits.items() if one[1].open == 0), None)
                if idle is not None:
                    self._record(*idle)
            visit = self._visits[at] = Visit(known, row, self._clock())
            self._await_absence(at, visit)
        return visit

    def _await_absence(self, at: tuple[str, str], visit: Visit) -> None:
        visit.away = asyncio.get_running_loop().call_later(AWAY_S, self._record, at, visit)

    def _note_denied(self, row: PreviewRow, port: int, shown: Shown, error: ColdframeError) -> None:
        now, at = self._clock(), (row.preview_id, error.code)
        last = self._denied.get(at)
        if last is None or now - last >= DENIED_EVERY:
            if len(self._denied) >= MOST_VISITORS:
                self._denied.clear()
            self._denied[at] = now
            body = {**_told(row), "port": port, "code": error.code, "address": shown.visitor}
            self._ledger.append("preview.denied", row.preview_id, body)

    def enter(self, admitted: Admitted, cut: Callable[[], None]) -> None:
        visit = admitted.visit
        visit.open += 1
        visit.requests += 1
        if visit.away is not None:
            visit.away.cancel()
            visit.away = None
        self._live.setdefault(admitted.key[0], {})[cut] = admitted
        self._await_end(admitted)

    def _await_end(self, admitted: Admitted) -> None:
        """Look again when its time is over; clock and event loop need not agree when that is."""
        ends = [one for one in (admitted.row.expires_at, admitted.visit.known.until) if one is not None]
        if not ends:
            return
        left_s = (min(ends) - self._clock()).total_seconds()
        if left_s <= 0:
            self.check_again(admitted.key[0])
            return
        wait_s = min(left_s, LONGEST_WAIT_S) + CLOCK_S
        admitted.expiry = asyncio.get_running_loop().call_later(wait_s, self._await_end, admitted)

    def leave(self, admitted: Admitted, cut: Callable[[], None], bytes_in: int, bytes_out: int) -> None:
        visit, sandbox_id = admitted.visit, admitted.key[0]
        visit.open -= 1
        visit.bytes_in += bytes_in
        visit.bytes_out += bytes_out
        live = self._live.get(sandbox_id, {})
        live.pop(cut, None)
        if not live:
            self._live.pop(sandbox_id, None)
            self._labels.pop(sandbox_id, None)
        if admitted.expiry is not None:
            admitted.expiry.cancel()
            admitted.expiry = None
        if visit.open == 0:
            self._await_absence((visit.row.preview_id, visit.known.key), visit)

    def _record(self, at: tuple[str, str], visit: Visit) -> None:
        if self._visits.get(at) is not visit:
            return
        del self._visits[at]
        if visit.away is not None:
            visit.away.cancel()
        body = {
            **_told(visit.row),
            "visitor": visit.known.key,
            "requests": visit.requests,
            "bytes_in": visit.bytes_in,
            "bytes_out": visit.bytes_out,
        }
        self._ledger.append("preview.visited", visit.row.preview_id, body)

    def visits(self, preview_id: str) -> list[Visit]:
        """Those of now."""
        return [visit for visit in self._visits.values() if visit.row.preview_id == preview_id]

    def _of_sandbox(self, sandbox_id: str) -> list[Visit]:
        return (
            [] if sandbox_id not in self._live else [v for v in self._visits.values() if v.row.sandbox_id == sandbox_id]
        )

    def check_labels(self) -> None:
        """A label may have risen, of whichever sandbox."""
        for sandbox_id in tuple(self._live):
            label = self.label_of(self._sandboxes.find(sandbox_id))
            if self._labels.get(sandbox_id) is not label:
                self._labels[sandbox_id] = label
                self.check_again(sandbox_id)

    def check_all(self) -> None:
        """Something has changed that may concern every sandbox."""
        for sandbox_id in tuple(self._live):
            self.check_again(sandbox_id)

    def check_again(self, sandbox_id: str) -> None:
        """Something has changed: what is under way, and would not be let in now, is ended."""
        live = self._live.get(sandbox_id)
        if not live:
            return
        info = self._sandboxes.find(sandbox_id)
        label, now = self.label_of(info), self._clock()
        for cut, admitted in tuple(live.items()):
            known = admitted.visit.known
            row = self._known(admitted.row.preview_id, sandbox_id)
            if (
                row is None
                or row.revoked_at is not None
                or (row.expires_at is not None and row.expires_at <= now)
                or row.sandbox_id != sandbox_id
                or (label.rank > row.up_to.rank and not known.sees_all)
                or (standing(info) is not None and not self.can_wake(sandbox_id))
                or not self._still_knows(known, row)
                or (known.until is not None and known.until <= now)
                or (known.way == "link" and row.cookie_key != admitted.row.cookie_key)
            ):
                cut()
            elif row.expires_at != admitted.row.expires_at:
                if admitted.expiry is not None:
                    admitted.expiry.cancel()
                admitted.row, admitted.expiry = row, None
                self._await_end(admitted)

    def _known(self, preview_id: str, sandbox_id: str) -> PreviewRow | None:
        if not preview_id.startswith(OF_LEASE):
            return self._rows.by_id(preview_id)
        try:
            return self._shared(sandbox_id.removeprefix("sbx_"), EVERY_PORT)
        except ColdframeError:
            return None

    def close(self) -> None:
        """Record what is not yet."""
        for at, visit in tuple(self._visits.items()):
            self._record(at, visit)


def standing(info: SandboxInfo) -> ColdframeError | None:
    """Why a sandbox in that state serves nothing; None if it may."""
    state, name = info.state.state, info.sandbox_id
    if state == "running":
        return None
    if state in ENDED or state == "stopping":
        why = f": {info.state.message}" if info.state.message else ""
        return PreviewEnded(f"sandbox `{name}` is {state}{why}", sandbox_id=name, state=state)
    if state in _STARTING:
        return PreviewStarting(f"sandbox `{name}` is {state}", sandbox_id=name, state=state)
    act = "sandbox.resume" if state in ("paused", "pausing") else "sandbox.start"
    return PreviewAsleep(
        f"sandbox `{name}` is {state}",
        next_actions=[next_action(act, "lets it go on", sandbox_id=name)],
        sandbox_id=name,
        state=state,
    )


def led_on(error: ColdframeError, row: PreviewRow) -> None:
    """Have it say what can be done about this very preview. What has ended leads to its record, which stays."""
    error.facts.setdefault("preview_id", row.preview_id)
    if row.preview_id.startswith(OF_LEASE):
        return
    if isinstance(error, PreviewEnded):
        error.next_actions[1:] = [
            next_action("preview.show", "shows its record: what served, what it was made from, how it stands"),
            next_action("preview.log", "shows the end of what it printed, for as long as results are kept"),
        ]
        if row.inputs is None:
            del error.next_actions[0]
            error.advice = "look at its record; from what it was made is not in it, so share a port of another sandbox"
    for action in error.next_actions:
        if action["op"].startswith("preview.") and not action["args"]:
            action["args"] = {"preview_id": row.preview_id}


def _told(row: PreviewRow) -> dict[str, str | int | None]:
    return {"preview_id": row.preview_id, "sandbox_id": row.sandbox_id, "port": row.port}
