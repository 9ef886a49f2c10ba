"""The network of every sandbox, seen from control: answers what waits in the host, and puts on record whom boxes reached.

Two tasks. One reads the host's events for ever: questions are answered at once, each by a task of its own, and
whatever fails is a refusal. The other follows the host's record of each sandbox, some contacts to a transaction: in the
ledger, where every step of a contact has its entry, and in the tables of `contacts.py`, together with how far it came. So
a crash of anybody leaves no gap and nothing twice. A record that is taken over whole is removed from the host.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from coldframe.contract.caller import Caller
from coldframe.contract.command import Contact
from coldframe.contract.errors import ColdframeError, Internal, InvalidArgument, NotFound
from coldframe.contract.network import (
    LoggedContact,
    NetworkAnswer,
    NetworkContact,
    NetworkLog,
    NetworkNews,
    NetworkPage,
    NetworkQuestion,
    NetworkRecord,
    NetworkRequest,
    ReachedBy,
)
from coldframe.contract.packages import MANAGERS, Dependency
from coldframe.contract.policy import Label, Outcome, Role
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import ENDED, SandboxInfo, SessionInfo
from coldframe.control.attribution import Attribution, Runs
from coldframe.control.contacts import CHANGES_AT_ONCE, Contacts, Wanted
from coldframe.control.ledger import Ledger, format_time
from coldframe.control.rights import require
from coldframe.control.rulebook import Rulebook
from coldframe.control.sandboxes import Sandboxes
from coldframe.control.sessions import Sessions
from coldframe.control.store import Store
from coldframe.control.taints import Taints
from coldframe.policy.labels import join

BATCH = 60
"""Records in one transaction: the head of the ledger may lag by no more entries than that (`verification.py`)."""
GATHER_S = 0.1
"""How long news of records gather before they are read. Whoever asks for the log does not wait for that."""
AGAIN_FIRST_S = 0.1
AGAIN_LONGEST_S = 5.0
"""Pauses before a host that was lost is listened to again."""
RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 60.0
"""Pauses before a record that could not be taken over is tried again."""
LAST_WORD = timedelta(minutes=1)
"""How long after the end of a sandbox the ends of its contacts may come; then they are not known to anybody."""
MOST_IN_PAGE = 1000
MOST_IN_RESULT = 1000
"""Contacts of one command that are looked at for its result; the log has all."""
MOST_HANDED_OVER = 5000
"""Files of packages that are counted for one command."""

Decide = Callable[[NetworkQuestion, SandboxInfo], Awaitable[NetworkAnswer]]
"""Answers a question for a secret. What it raises is a refusal."""

_log = logging.getLogger(__name__)


@dataclass
class _Failing:
    """A record that could not be taken over."""

    reason: str
    """The last that the log of the server has."""
    pause_s: float
    timer: asyncio.TimerHandle
    """Until it goes off the record is left alone, whatever news there are."""

    def is_resting(self) -> bool:
        return not self.timer.cancelled() and self.timer.when() > asyncio.get_running_loop().time()


async def refuse_secret(question: NetworkQuestion, _: SandboxInfo) -> NetworkAnswer:
    """For an installation without credentials."""
    return NetworkAnswer(refusal="there is no such credential", code="NOT_FOUND")


class Network:
    """Questions, records and the log."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        sandboxes: Sandboxes,
        sessions: Sessions,
        rulebook: Rulebook,
        taints: Taints,
        contacts: Contacts,
        attribution: Attribution,
        host: Host,
        clock: Callable[[], datetime],
        decide_secret: Decide = refuse_secret,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._sandboxes = sandboxes
        self._sessions = sessions
        self._rulebook = rulebook
        self._taints = taints
        self._contacts = contacts
        self._attribution = attribution
        self._host = host
        self._clock = clock
        self._decide_secret = decide_secret
        self._tasks: list[asyncio.Task[None]] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._news: set[str] = set()
        self._heard = asyncio.Event()
        self._taking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._failing: dict[str, _Failing] = {}
        self._last_words: dict[str, asyncio.TimerHandle] = {}
        """Of sandboxes that have ended: when their records are looked at again without news."""
        sandboxes.networked.ended = self._note
        self._put = asyncio.Event()
        """Set, and replaced by another one, whenever something came on record."""

    async def start(self) -> None:
        """Tell the host labels and rules, and listen to it from now on.

        Raises:
            HostUnreachable: start again.
        """
        await self._tell_host()
        self._tasks = [asyncio.ensure_future(self._listen()), asyncio.ensure_future(self._record())]

    async def close(self) -> None:
        """Let go. What waits for an answer in the host is denied; records are taken over at the next start."""
        for task in (*self._tasks, *self._answering):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._answering, return_exceptions=True)
        self._tasks = []
        self._let_all_try()
        for timer in self._last_words.values():
            timer.cancel()
        self._last_words.clear()

    # -- listening -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                pause_s = await self._listen_once(pause_s)
            except ColdframeError as error:
                _log.warning("the network events of the host broke off: %s", error.message)
            except Exception:  # noqa: BLE001  the edge of a task: the next turn tries again
                _log.exception("the network events of the host could not be read")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, AGAIN_LONGEST_S)

    async def _listen_once(self, pause_s: float) -> float:
        """Read events to their end. Whoever is there may be new and know nothing, so it is told all, once it is listened to:
        if that comes too late, the events have ended as well."""
        events = cast("AsyncGenerator[NetworkQuestion | NetworkNews, None]", self._host.network_events())
        telling = asyncio.ensure_future(self._tell_until_told())
        try:
            async with aclosing(events):
                async for event in events:
                    pause_s = AGAIN_FIRST_S
                    if isinstance(event, NetworkQuestion):
                        task = asyncio.ensure_future(self._answer(event))
                        self._answering.add(task)
                        task.add_done_callback(self._answering.discard)
                    else:
                        self._note(event.sandbox_id)
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError, ColdframeError):
                await telling
        return pause_s

    async def _tell_until_told(self) -> None:
        """A host that is listened to and was not told all would serve no box until it is lost the next time."""
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                await self._tell_host()
                break
            except ColdframeError as error:
                _log.warning("the host could not be told labels and rules: %s", error.message)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, AGAIN_LONGEST_S)
        # Over a socket it may have begun to tell of news later than it answered; what came between was told to nobody.
        await asyncio.sleep(AGAIN_LONGEST_S)
        self._note(*self._contacts.unfinished())

    async def _tell_host(self) -> None:
        """Labels first: while there are no rules nothing is allowed."""
        await asyncio.sleep(0)  # the events are asked for now
        await self._taints.tell_all()
        await self._rulebook.tell_host()
        self._let_all_try()
        self._note(*self._contacts.unfinished())

    # -- questions -------------------------------------------------------------------------------------------------

    async def _answer(self, question: NetworkQuestion) -> None:
        try:
            answer = await self._decided(question)
        except ColdframeError as error:
            answer = NetworkAnswer(refusal=error.message, code=error.code)
        except Exception:  # noqa: BLE001  the edge of a task: whatever it is, nothing may go on
            _log.exception("question %s of sandbox %s could not be decided", question.kind, question.sandbox_id)
            answer = NetworkAnswer(refusal="it could not be decided", code=Internal.code)
        try:
            await self._host.answer(question.question_id, answer)
        except ColdframeError as error:  # without an answer it is denied
            _log.warning("an answer about sandbox %s came to nobody: %s", question.sandbox_id, error.message)

    async def _decided(self, question: NetworkQuestion) -> NetworkAnswer:
        info = self._sandboxes.find(question.sandbox_id)
        self._sandboxes.require_running(info, reads_only=True)  # what came on its way before a pause is answered
        if question.kind == "secret":
            return await self._decide_secret(question, info)
        await self._taints.rise(question.sandbox_id, question.label)
        return NetworkAnswer()

    # -- records ---------------------------------------------------------------------------------------------------

    def _note(self, *sandbox_ids: str) -> None:
        self._news.update(sandbox_ids)
        if self._news:
            self._heard.set()

    async def _record(self) -> None:
        while True:
            await self._heard.wait()
            await asyncio.sleep(GATHER_S)
            self._heard.clear()
            news, self._news = self._news, set()
            for sandbox_id in news:
                failing = self._failing.get(sandbox_id)
                if failing is not None and failing.is_resting():
                    continue
                try:
                    await self.catch_up(sandbox_id)
                except Exception as error:  # noqa: BLE001  the edge of a task: the others go on
                    self._put_off(sandbox_id, failing, error)
                else:
                    self._failing.pop(sandbox_id, None)

    def _put_off(self, sandbox_id: str, before: _Failing | None, error: Exception) -> None:
        """Try again later, and later each time. The log of the server tells each reason once."""
        is_known = isinstance(error, ColdframeError)
        reason = error.message if isinstance(error, ColdframeError) else f"{type(error).__name__}: {error}"
        if before is None or before.reason != reason:
            text = "the contacts of sandbox `%s` are not on record yet: %s"
            _log.warning(text, sandbox_id, reason, exc_info=None if is_known else error)
        pause_s = RETRY_FIRST_S if before is None else min(before.pause_s * 2, RETRY_LONGEST_S)
        timer = asyncio.get_running_loop().call_later(pause_s, self._note, sandbox_id)
        self._failing[sandbox_id] = _Failing(reason, pause_s, timer)

    def _let_all_try(self) -> None:
        """At once, with what there is news of, and with short pauses again."""
        for failing in self._failing.values():
            failing.timer.cancel()
            failing.pause_s = RETRY_FIRST_S

    async def catch_up(self, sandbox_id: str) -> None:
        """Take over what the host has on record of a sandbox by now. Nothing to do for one without network.

        Raises:
            HostUnreachable: it does not answer.
            LedgerUnavailable: it could not be recorded.
        """
        position = self._contacts.position(sandbox_id)
        if position is None or position.forgotten:
            return
        async with self._taking[sandbox_id]:
            position = self._contacts.position(sandbox_id)
            if position is None or position.forgotten:
                return
            if not position.closed and not await self._read_on(sandbox_id, position.seq):
                return
            await self._host.forget_network_records(sandbox_id)
            with self._store.transaction():
                self._contacts.note_forgotten(sandbox_id)
        self._taking.pop(sandbox_id, None)  # whoever waits for it finds that there is nothing left to do

    async def _read_on(self, sandbox_id: str, seq: int) -> bool:
        """Take over what there is; whether that is all that there will ever be."""
        while True:
            info = self._sandboxes.find(sandbox_id)
            page = await self._host.network_records(sandbox_id, after_seq=seq, limit=BATCH)
            seq = await self._take(info, page, seq)
            if not page.more:
                break
        if info.state.state not in ENDED:
            return False
        since_end = self._clock() - info.state.since
        if since_end < LAST_WORD and self._contacts.has_open(sandbox_id):
            if sandbox_id not in self._last_words:
                timer = asyncio.get_running_loop().call_later(
                    (LAST_WORD - since_end).total_seconds(), self._hear_last_word, sandbox_id
                )
                self._last_words[sandbox_id] = timer
            return False
        self._finish(info, page)
        return True

    def _hear_last_word(self, sandbox_id: str) -> None:
        self._last_words.pop(sandbox_id).cancel()
        self._note(sandbox_id)

    async def _take(self, info: SandboxInfo, page: NetworkPage, seq: int) -> int:
        if not page.records:
            return seq
        sandbox_id, sessions = info.sandbox_id, self._sessions.of_sandbox(info.sandbox_id)
        runs = await self._attribution.runs_of(sandbox_id)
        with self._store.transaction() as connection:

            def append(kind: str, subject: str, body: dict[str, Any]) -> None:
                whose = {"sandbox_id": info.sandbox_id, "agent_id": info.agent_id}
                self._ledger.append(kind, subject, {**whose, **body}, connection=connection)

            for record in page.records:
                if record.seq <= seq:
                    continue
                if record.seq != seq + 1:
                    append("network.missing", sandbox_id, {"first": seq + 1, "last": record.seq - 1})
                seq = record.seq
                if record.contact is None:
                    append("network.missing", sandbox_id, {"torn_at": format_time(record.at)})
                    continue
                self._log_record(info, record, record.contact, sessions, runs, append)
            self._contacts.move(sandbox_id, seq)
        self._put.set()
        self._put = asyncio.Event()
        return seq

    def _log_record(
        self,
        info: SandboxInfo,
        record: NetworkRecord,
        contact: NetworkContact,
        sessions: list[SessionInfo],
        runs: Runs,
        append: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        known = self._contacts.find(info.sandbox_id, contact.contact_id)
        if known is None:
            session_id = _session_at(sessions, contact.began_at) or info.session_id
            command_id = runs.command_of(contact)
        else:
            session_id, command_id = known.session_id, known.contact.command_id
        contact = contact.model_copy(update={"command_id": command_id})
        is_allowed = contact.outcome is Outcome.ALLOW
        shown, is_open = contact, record.event == "begun"
        if record.event == "request":
            is_allowed = contact.requests[0].outcome is Outcome.ALLOW if contact.requests else is_allowed
            before = contact.model_copy(update={"requests": ()}) if known is None else known.contact
            shown = before.model_copy(update={"requests": _with_outcome(before.requests, contact.requests)})
            is_open = known is not None and before.outcome is Outcome.ALLOW
        elif known is not None and len(contact.requests) < len(
            known.contact.requests
        ):  # its end has room for the first
            rest = known.contact.requests[len(contact.requests) :]
            shown = contact.model_copy(update={"requests": (*contact.requests, *rest)})
        body = {
            "record": record.seq,
            "event": record.event,
            "session_id": session_id,
            "command_id": command_id,
            **contact.model_dump(mode="json", exclude={"command_id"}),
        }
        kind = "network.lookup" if record.event == "looked-up" else "network.contact"
        append(kind if is_allowed else "network.denied", contact.contact_id, body)
        if known is None:
            self._contacts.add(info.sandbox_id, info.agent_id, session_id, shown, is_open=is_open)
        else:
            self._contacts.update(known, shown, is_open=is_open)

    def _finish(self, info: SandboxInfo, page: NetworkPage) -> None:
        """All of it is here; what was added up is put down as it is."""
        sandbox_id = info.sandbox_id
        whose = {"sandbox_id": sandbox_id, "agent_id": info.agent_id, "session_id": info.session_id}
        with self._store.transaction(durable=True) as connection:
            if unended := self._contacts.open_ones(sandbox_id):
                ids = [one.contact.contact_id for one in unended]
                self._ledger.append("network.missing", sandbox_id, {**whose, "ends_of": ids}, connection=connection)
            for one in unended:
                last = {"ended": "its end is not known", "ended_at": self._clock(), "is_partial": True}
                self._contacts.update(one, one.contact.model_copy(update=last), is_open=False)
            if page.denied_sums:
                sums = [one.model_dump(mode="json") for one in page.denied_sums]
                self._ledger.append("network.denied_sums", sandbox_id, {**whose, "sums": sums}, connection=connection)
            self._contacts.close(sandbox_id, page.denied_sums)
        self._attribution.forget(sandbox_id)
        if (timer := self._last_words.pop(sandbox_id, None)) is not None:
            timer.cancel()
        self._put.set()
        self._put = asyncio.Event()

    async def contacts_of(self, sandbox_id: str, command_id: str) -> list[Contact]:
        """Whom a command has reached, and tried to, as far as it is known to have been this one; equal ones added up.

        Raises HostUnreachable.
        """
        await self.catch_up(sandbox_id)
        found: dict[tuple[object, ...], Contact] = {}
        for one in await self._contacts.of_command(command_id, limit=MOST_IN_RESULT):
            contact = _summed(one)
            key = (contact.protocol, contact.name or contact.address, contact.port, contact.verdict, contact.rule)
            known = found.get(key)
            if known is not None:
                contact = known.model_copy(
                    update={"attempts": known.attempts + contact.attempts, "last_at": contact.last_at}
                )
            found[key] = contact
        return list(found.values())

    def dependencies_of(self, command_id: str) -> tuple[Dependency, ...]:
        """Files of packages that a command was handed over, each once, of what is on record of it."""
        found = {
            (one.file, one.digest): Dependency(
                manager=MANAGERS[one.kind], name=one.name, version=one.version, file=one.file, digest=one.digest
            )
            for one in self._contacts.handed_over(command_id, limit=MOST_HANDED_OVER)
            if one.kind in MANAGERS
        }
        return tuple(found.values())

    # -- the log ---------------------------------------------------------------------------------------------------

    async def log(
        self, caller: Caller, sandbox_id: str, wanted: Wanted, *, after: int = 0, limit: int = 100
    ) -> NetworkLog:
        """What the sandbox reached and tried to, up to now, in the order in which it came on record.

        An agent's session gets the label of what it reads here: names and paths are what its boxes said.

        Raises:
            GrantMissing, NotFound: not the caller's to see.
            HostUnreachable: the newest cannot be had, and a log without it would say too little.
        """
        require(caller, "network.read")
        info = self._sandboxes.get(caller, sandbox_id)
        _check_limit(limit)
        await self.catch_up(sandbox_id)
        wanted = wanted._replace(sandbox_id=sandbox_id)
        found, more = await self._contacts.page(wanted, after=after, limit=limit)
        position = self._contacts.position(sandbox_id)
        sums = position.denied_sums if position is not None else ()
        if position is not None and not position.closed:
            sums = (await self._host.network_records(sandbox_id, after_seq=position.seq, limit=1)).denied_sums
        await self._read_by(caller, info, found)
        return _page(found, sums, more=more)

    async def follow(
        self, caller: Caller, sandbox_id: str, wanted: Wanted, *, after_change: int = 0
    ) -> AsyncGenerator[LoggedContact, None]:
        """Return every contact after that change as they come, each of them again when more is known of it, until the sandbox
        has ended and nothing more can come. Whoever reads slowly gets the newest form, and misses none. Raises like `log`."""
        require(caller, "network.read")
        info = self._sandboxes.get(caller, sandbox_id)
        await self.catch_up(sandbox_id)
        return self._changes(caller, info, wanted._replace(sandbox_id=sandbox_id), after_change)

    async def _changes(
        self, caller: Caller, info: SandboxInfo, wanted: Wanted, after_change: int
    ) -> AsyncGenerator[LoggedContact, None]:
        while True:
            put = self._put
            position = self._contacts.position(info.sandbox_id)
            found = self._contacts.changes(wanted, after=after_change, limit=CHANGES_AT_ONCE)
            await self._read_by(caller, info, found)
            for one in found:
                yield one
                after_change = one.change
            if found:
                continue
            if position is None or position.closed:
                return
            await put.wait()

    async def search(self, caller: Caller, wanted: Wanted, *, after: int = 0, limit: int = 100) -> NetworkLog:
        """Contacts of all sandboxes. Raises GrantMissing: for people only."""
        require(caller, "network.search")
        _check_limit(limit)
        found, more = await self._contacts.page(wanted, after=after, limit=limit)
        return _page(found, (), more=more)

    async def reached_by(self, caller: Caller, wanted: Wanted, *, limit: int = 100) -> list[ReachedBy]:
        """Which sandboxes have contacts like that, whoever was there last first. Raises GrantMissing: for people only."""
        require(caller, "network.search")
        _check_limit(limit)
        return await self._contacts.reached_by(wanted, limit=limit)

    async def _read_by(self, caller: Caller, info: SandboxInfo, found: Iterable[LoggedContact]) -> None:
        if caller.role is not Role.AGENT:
            return
        label = info.workspace_label
        for session_id in {one.session_id for one in found}:
            with contextlib.suppress(NotFound):
                label = join(label, self._sessions.get(session_id).taint)
        if label is not Label.PUBLIC:
            self._sessions.raise_taint(self._sandboxes.session(info).session_id, label)
            await self._taints.settle(info)


def _summed(contact: NetworkContact) -> Contact:
    return Contact(
        protocol=contact.protocol,
        address=contact.dialled or ("" if contact.name else contact.address),
        port=contact.port,
        name=contact.name,
        verdict="allowed" if contact.outcome is Outcome.ALLOW else "refused",
        rule=contact.rule_id,
        attempts=contact.times,
        first_at=contact.began_at,
        last_at=contact.began_at,
    )


def _check_limit(limit: int) -> None:
    if not 0 < limit <= MOST_IN_PAGE:
        raise InvalidArgument(f"ask for 1 to {MOST_IN_PAGE} at a time", argument="limit")


def _page(found: list[LoggedContact], sums: Iterable[Any], *, more: bool) -> NetworkLog:
    return NetworkLog(contacts=tuple(found), next_after=found[-1].number if more else None, denied_sums=tuple(sums))


def _session_at(sessions: list[SessionInfo], at: datetime) -> str | None:
    """The session that was open then; sessions of a sandbox follow each other."""
    for session in reversed(sessions):
        if session.opened_at <= at:
            return session.session_id
    return None


def _with_outcome(known: tuple[NetworkRequest, ...], told: tuple[NetworkRequest, ...]) -> tuple[NetworkRequest, ...]:
    """With what is told now. What came of a request is told in a second record, which has a status."""
    for one in told:
        same = [place for place, other in enumerate(known) if _key(other) == _key(one) and other.status is None]
        known = (*known, one) if one.status is None or not same else (*known[: same[0]], one, *known[same[0] + 1 :])
    return known


def _key(request: NetworkRequest) -> tuple[datetime, str, str]:
    return request.at, request.method, request.path
