"""The rule set in force, and every one that ever was, so that past decisions can be replayed.

A set that does not validate is refused with its line and the old one stays. If there is none at all, because
the file given at start is broken and nothing was in force before, `current` raises and the gate refuses every
call: nothing falls back to looser rules. The file is read at start only; a set loaded through the public
surface stays in force over restarts until the file changes. Watching the file was rejected: a half-written
file is not a decision of anybody.

The host judges what goes over the network by the same text. It is told first, and a set that it does not take is not
in force here either; one that could not be recorded is taken back there.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
import yaml

from coldframe.contract.caller import Caller
from coldframe.contract.errors import ColdframeError, GrantMissing, NotFound, PolicyUnavailable, RulesInvalid
from coldframe.contract.policy import PolicyChange
from coldframe.contract.ports import Host
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.store import Store, metadata
from coldframe.policy.rules import DEFAULT_RULES, RuleSet, load_rules

RULE_FILE_CAP_BYTES = 4 * 1024 * 1024
MOST_CHANGES = 100
"""That are listed at once: each is read with its text."""
TELL_AGAIN_S = 1.0
"""Pause before the host is told once more which rules hold."""
_log = logging.getLogger(__name__)

rule_sets = sa.Table(
    "rule_sets",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False, index=True),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("loaded_at", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)

_SINCE = """SELECT min(loaded_at) FROM rule_sets WHERE number > coalesce((SELECT max(number) FROM rule_sets
WHERE sha256 != (SELECT sha256 FROM rule_sets ORDER BY number DESC LIMIT 1)), 0)"""


class Rulebook:
    """Holds the set in force. Loading is for owners and admins, and is recorded with both digests."""

    def __init__(
        self, store: Store, ledger: Ledger, host: Host, clock: Callable[[], datetime], rules_path: str | None
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._host = host
        self._clock = clock
        self._path = rules_path
        self._current: RuleSet | None = None
        self.since: datetime | None = None
        """When the set in force came into force, however often it was loaded again since; None without one."""
        self.changed: Callable[[], Awaitable[None]] = _nobody
        """Waited for when another set has come into force here."""
        self.more_network: Callable[[], dict[str, Any]] = dict
        """Network profiles that no file holds, and who uses them, in the form of the section `network`."""
        self._loading = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        self._past: dict[str, RuleSet] = {}
        self.problem: str | None = None
        """Why the rule file was not taken at start; None if all is well."""

    def start(self) -> None:
        """Bring a set into force: the one last in force, or the file if it is new.

        Never raises for a bad file: `problem` says what is wrong and the old set, or none, is in force.
        """
        last = self._newest(None)
        if last is not None:
            self._current = self._restored(last)
            self.since = None if self._current is None else self._find_since()
        if self._path is None:
            if last is None:
                self._take(DEFAULT_RULES, origin="default", caller=None)
            return
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read(RULE_FILE_CAP_BYTES + 1)
            taken = self._newest("file")
            if taken is None or taken != text:
                self._take(_loaded(text), origin="file", caller=None)
        except (OSError, UnicodeDecodeError, RulesInvalid) as error:
            self.problem = f"rule file `{self._path}`: {error}"

    @property
    def current(self) -> RuleSet:
        """The set in force.

        Raises:
            PolicyUnavailable: there is none.
        """
        if self._current is None:
            raise PolicyUnavailable(
                f"no rule set is in force: {self.problem or 'none was loaded'}",
                hint="load a valid rule file with `coldframe policy load`",
            )
        return self._current

    @property
    def in_force(self) -> RuleSet | None:
        """The set in force; None if there is none, and the gate refuses everything."""
        return self._current

    @property
    def text(self) -> str:
        return self.current.text

    async def load(self, text: str, *, caller: Caller, reason: str = "") -> RuleSet:
        """Validate *text* and bring it into force, here and for the connections of every box. A caller that leaves changes
        nothing about that. *reason* is kept with it.

        Raises:
            GrantMissing: the caller may not; recorded.
            RulesInvalid: with the line; the set in force stays; recorded.
            HostUnreachable: the host could not be told; the set in force stays.
            LedgerUnavailable: the change could not be recorded, so it was not made.
        """
        try:
            require(caller, "policy.load")
            rules = _loaded(text)
            work = asyncio.ensure_future(self._bring_into_force(rules, caller, reason))
            self._work.add(work)
            work.add_done_callback(self._work.discard)
            await asyncio.shield(work)
        except (GrantMissing, RulesInvalid) as error:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            body = {
                "caller": caller.name,
                "code": error.code,
                "reason": error.message,
                "sha256": digest,
                "loaded_because": reason,
            }
            self._ledger.append("policy.refused", digest, body)
            raise
        return rules

    async def _bring_into_force(self, rules: RuleSet, caller: Caller, reason: str) -> None:
        async with self._loading:
            try:
                await self._host.use_network_rules(self._with_more(rules.text))
                self._take(rules, origin="call", caller=caller, reason=reason)
            except RulesInvalid:
                raise  # and the host has what it had
            except BaseException:
                self._tell_later()
                raise
            self.problem = None
            await self.changed()

    async def tell_host(self) -> None:
        """Tell the host the set in force; without one, that nothing is allowed. Raises HostUnreachable."""
        async with self._loading:
            try:
                await self._host.use_network_rules(self._network_text)
            except RulesInvalid as error:
                _log.error("the host takes no network rules of the set in force: %s", error.message)
                await self._host.use_network_rules(DEFAULT_RULES.text)

    async def use_more_network(self) -> None:
        """Have what `more_network` says now hold, here and for the connections of every box.

        Raises HostUnreachable: the host has what it had, or is told again; here nothing has changed.
        """
        async with self._loading:
            try:
                await self._host.use_network_rules(self._network_text)
            except BaseException:
                self._tell_later()
                raise
            self.renew_network()

    def renew_network(self) -> None:
        """Have what `more_network` says now hold here; the host is told it with the next change."""
        if self._current is not None:
            rules = load_rules(self._current.text)
            more = self.more_network()
            self._current = rules.with_network(load_rules(_with(rules.text, more)).network) if more else rules

    def _with_more(self, text: str) -> str:
        more = self.more_network()
        return _with(text, more) if more else text

    @property
    def _network_text(self) -> str:
        return self._with_more(DEFAULT_RULES.text if self._current is None else self._current.text)

    def _tell_later(self) -> None:
        """The host may have been told of a set that is not in force: take that back, whatever it takes."""

        async def tell() -> None:
            while True:
                try:
                    return await self.tell_host()
                except ColdframeError as error:
                    _log.warning("the host could not be told the rules in force: %s", error.message)
                await asyncio.sleep(TELL_AGAIN_S)

        task = asyncio.ensure_future(tell())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def close(self) -> None:
        """Let go of what is under way; the host is told again at the next start."""
        for task in list(self._work):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ColdframeError):
                await task

    def log(self, caller: Caller, *, after: int = 0, limit: int = MOST_CHANGES) -> list[PolicyChange]:
        """How the rules have changed, the first first, past number *after*. Raises GrantMissing."""
        require(caller, "policy.read")
        entries = self._ledger.entries(after=after, limit=min(limit, MOST_CHANGES), kinds=("policy.changed",))
        return [
            PolicyChange(
                seq=entry.seq,
                at=entry.at,
                caller=entry.body["caller"],
                origin=entry.body["origin"],
                reason=entry.body.get("reason", ""),
                sha256_before=entry.body["sha256_before"],
                sha256=entry.body["sha256_after"],
            )
            for entry in entries
        ]

    def text_of(self, caller: Caller, sha256: str) -> str:
        """The text of a set that was ever in force, as it was loaded. Raises GrantMissing, NotFound."""
        require(caller, "policy.read")
        return self._text_of(sha256)

    def past(self, sha256: str) -> RuleSet:
        """Return the set with that digest, in force or not.

        Raises:
            NotFound: it was never in force here.
        """
        if self._current is not None and self._current.sha256 == sha256:
            return self._current
        if sha256 not in self._past:
            self._past[sha256] = load_rules(self._text_of(sha256))
        return self._past[sha256]

    def _text_of(self, sha256: str) -> str:
        with self._store.transaction() as connection:
            row = connection.execute(sa.select(rule_sets.c.text).where(rule_sets.c.sha256 == sha256)).first()
        if row is None:
            raise NotFound(
                f"no rule set `{sha256[:80]}` was ever in force", hint="list them with `coldframe policy log`"
            )
        return str(row.text)

    def _take(self, rules: RuleSet, *, origin: str, caller: Caller | None, reason: str = "") -> None:
        before = None if self._current is None else self._current.sha256
        body = {
            "sha256_before": before,
            "sha256_after": rules.sha256,
            "settings_before": None if self._current is None else self._current.settings.model_dump_json(),
            "settings_after": rules.settings.model_dump_json(),
            "origin": origin,
            "caller": None if caller is None else caller.name,
            "reason": reason,
            "text": rules.text,
        }
        with self._store.transaction(durable=True) as connection:
            connection.execute(
                rule_sets.insert().values(
                    sha256=rules.sha256, origin=origin, loaded_at=self._clock().isoformat(), text=rules.text
                )
            )
            self._ledger.append("policy.changed", rules.sha256, body, connection=connection, durable=True)
            since = self._find_since()
        self._current, self.since = rules, since
        if self.more_network():
            self.renew_network()

    def _find_since(self) -> datetime:
        """Of the newest set."""
        ((loaded_at,),) = self._store.read(_SINCE)
        return datetime.fromisoformat(loaded_at)

    def _newest(self, origin: str | None) -> str | None:
        query = sa.select(rule_sets.c.text).order_by(rule_sets.c.number.desc()).limit(1)
        if origin is not None:
            query = query.where(rule_sets.c.origin == origin)
        with self._store.transaction() as connection:
            return connection.execute(query).scalar_one_or_none()

    def _restored(self, text: str) -> RuleSet | None:
        try:
            return load_rules(text)
        except RulesInvalid as error:
            self.problem = f"the rule set last in force no longer validates: {error}"
            return None


async def _nobody() -> None: ...


def _with(text: str, more: dict[str, Any]) -> str:
    """The network rules of a file with further profiles, as a file of these alone.

    Raises RulesInvalid: it holds one of that name, or they are too many."""
    found = yaml.safe_load(text)
    network = (found.get("network") if isinstance(found, dict) else None) or {}
    for part in ("profiles", "use"):
        own = network.get(part) or {}
        if both := own.keys() & more.get(part, {}).keys():
            raise RulesInvalid(f"`{part}` has `{min(both)}`, which is a name of ours", line=1)
        network[part] = {**own, **more.get(part, {})}
    return yaml.safe_dump({"version": 1, "network": network}, sort_keys=False, allow_unicode=True)


def _loaded(text: str) -> RuleSet:
    if len(text.encode("utf-8", "surrogatepass")) > RULE_FILE_CAP_BYTES:
        raise RulesInvalid(f"the rule file is longer than {RULE_FILE_CAP_BYTES} bytes", line=1)
    return load_rules(text)
