"""The rule set in force, and every one that ever was, so that past decisions can be replayed.

A set that does not validate is refused with its line and the old one stays. If there is none at all, because
the file given at start is broken and nothing was in force before, `current` raises and the gate refuses every
call: nothing falls back to looser rules. The file is read at start only; a set loaded through the public
surface stays in force over restarts until the file changes. Watching the file was rejected: a half-written
file is not a decision of anybody.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from coldframe.contract.caller import Caller
from coldframe.contract.errors import GrantMissing, NotFound, PolicyUnavailable, RulesInvalid
from coldframe.control.ledger import Ledger
from coldframe.control.rights import require
from coldframe.control.store import Store, metadata
from coldframe.policy.rules import DEFAULT_RULES, RuleSet, load_rules

RULE_FILE_CAP_BYTES = 4 * 1024 * 1024

rule_sets = sa.Table(
    "rule_sets",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False, index=True),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("loaded_at", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)


class Rulebook:
    """Holds the set in force. Loading is for owners and admins, and is recorded with both digests."""

    def __init__(self, store: Store, ledger: Ledger, clock: Callable[[], datetime], rules_path: str | None) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._path = rules_path
        self._current: RuleSet | None = None
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

    def load(self, text: str, *, caller: Caller) -> RuleSet:
        """Validate *text* and bring it into force.

        Raises:
            GrantMissing: the caller may not; recorded.
            RulesInvalid: with the line; the set in force stays; recorded.
            LedgerUnavailable: the change could not be recorded, so it was not made.
        """
        try:
            require(caller, "policy.load")
            rules = _loaded(text)
        except (GrantMissing, RulesInvalid) as error:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            body = {"caller": caller.name, "code": error.code, "reason": error.message, "sha256": digest}
            self._ledger.append("policy.refused", digest, body)
            raise
        self._take(rules, origin="call", caller=caller)
        self.problem = None
        return rules

    def past(self, sha256: str) -> RuleSet:
        """Return the set with that digest, in force or not.

        Raises:
            NotFound: it was never in force here.
        """
        if self._current is not None and self._current.sha256 == sha256:
            return self._current
        if sha256 not in self._past:
            with self._store.transaction() as connection:
                row = connection.execute(sa.select(rule_sets.c.text).where(rule_sets.c.sha256 == sha256)).first()
            if row is None:
                raise NotFound(f"no rule set `{sha256[:80]}` was ever in force")
            self._past[sha256] = load_rules(row.text)
        return self._past[sha256]

    def _take(self, rules: RuleSet, *, origin: str, caller: Caller | None) -> None:
        before = None if self._current is None else self._current.sha256
        body = {
            "sha256_before": before,
            "sha256_after": rules.sha256,
            "settings_before": None if self._current is None else self._current.settings.model_dump_json(),
            "settings_after": rules.settings.model_dump_json(),
            "origin": origin,
            "caller": None if caller is None else caller.name,
            "text": rules.text,
        }
        with self._store.transaction(durable=True) as connection:
            connection.execute(
                rule_sets.insert().values(
                    sha256=rules.sha256, origin=origin, loaded_at=self._clock().isoformat(), text=rules.text
                )
            )
            self._ledger.append("policy.changed", rules.sha256, body, connection=connection, durable=True)
        self._current = rules

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


def _loaded(text: str) -> RuleSet:
    if len(text.encode("utf-8", "surrogatepass")) > RULE_FILE_CAP_BYTES:
        raise RulesInvalid(f"the rule file is longer than {RULE_FILE_CAP_BYTES} bytes", line=1)
    return load_rules(text)
