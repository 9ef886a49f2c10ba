"""The network of the fake: records that a test puts down, questions that it asks, and what it was told."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

from coldframe.contract.network import (
    DeniedSum,
    NetworkAccess,
    NetworkAnswer,
    NetworkContact,
    NetworkNews,
    NetworkPage,
    NetworkQuestion,
    NetworkRecord,
)
from coldframe.contract.policy import Label, Outcome
from coldframe.policy.rules import load_rules

Event = Literal["begun", "request", "ended", "denied", "torn"]


def contact(contact_id: str = "c1", **facts: Any) -> NetworkContact:
    """A contact with `api.example.com`, allowed, that began now."""
    usual: dict[str, Any] = {
        "protocol": "tcp",
        "address": "198.18.0.2",
        "port": 443,
        "name": "api.example.com",
        "scheme": "https",
        "mode": "sni",
        "outcome": Outcome.ALLOW,
        "rule_id": "api",
        "dialled": "93.184.215.14",
        "began_at": datetime.now(UTC),
    }
    return NetworkContact(contact_id=contact_id, **{**usual, **facts})


class FakeNetwork:
    """What a host knows of the network: no box of the fake has one, so a test plays it."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        """Every text that was taken, in order."""
        self.access: dict[str, NetworkAccess | None] = {}
        """What each sandbox was created with."""
        self.taints: dict[str, Label] = {}
        """Of boxes that were told one."""
        self.told: list[tuple[str, str, Label]] = []
        """(`raise` or `renew`, sandbox, label), in order."""
        self.records: defaultdict[str, list[NetworkRecord]] = defaultdict(list)
        self.sums: dict[str, tuple[DeniedSum, ...]] = {}
        self.forgotten: list[str] = []
        self.withdrawn: list[str] = []
        """Names of credentials that were taken back."""
        self.failure: Exception | None = None
        """If set, raised instead of taking rules or labels."""
        self.reads = 0
        """How often records were asked for."""
        self._reader: asyncio.Queue[NetworkQuestion | NetworkNews | None] | None = None
        self._waiting: dict[str, asyncio.Future[NetworkAnswer]] = {}

    # -- played by a test --------------------------------------------------------------------------

    def put(self, sandbox_id: str, event: Event, said: NetworkContact | None, *, quiet: bool = False) -> NetworkRecord:
        """Put a line on record and, unless *quiet*, tell of it."""
        known = self.records[sandbox_id]
        at = datetime.now(UTC) if said is None else said.began_at
        record = NetworkRecord(seq=len(known) + 1, event=event, at=at, contact=said)
        known.append(record)
        if not quiet:
            self.tell(sandbox_id)
        return record

    def tell(self, sandbox_id: str) -> None:
        if self._reader is not None:
            self._reader.put_nowait(NetworkNews(sandbox_id=sandbox_id))

    async def ask(self, question: NetworkQuestion) -> NetworkAnswer:
        """Ask, and wait for the answer. Without a reader it is refused."""
        if self._reader is None:
            return NetworkAnswer(refusal="nobody reads")
        waiter: asyncio.Future[NetworkAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[question.question_id] = waiter
        self._reader.put_nowait(question)
        return await waiter

    def break_off(self) -> None:
        """As if the daemon ended: whoever reads is let go, rules and labels are forgotten."""
        self.taints.clear()
        if self._reader is not None:
            self._reader.put_nowait(None)
            self._reader = None

    @property
    def has_reader(self) -> bool:
        return self._reader is not None

    # -- Host --------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def use_network_rules(self, text: str) -> None:
        self._check()
        load_rules(text)
        self.rules.append(text)

    async def raise_taint(self, sandbox_id: str, taint: Label) -> None:
        self._check()
        self.taints[sandbox_id] = max(self.taints.get(sandbox_id, taint), taint, key=lambda label: label.rank)
        self.told.append(("raise", sandbox_id, taint))

    async def renew_session(self, sandbox_id: str, taint: Label) -> None:
        self._check()
        self.taints[sandbox_id] = taint
        self.told.append(("renew", sandbox_id, taint))

    async def network_events(self) -> AsyncIterator[NetworkQuestion | NetworkNews]:
        reader: asyncio.Queue[NetworkQuestion | NetworkNews | None] = asyncio.Queue()
        self._reader = reader
        try:
            while (event := await reader.get()) is not None:
                yield event
        finally:
            if self._reader is reader:
                self._reader = None

    async def answer(self, question_id: str, answer: NetworkAnswer) -> None:
        waiter = self._waiting.pop(question_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    async def withdraw_credential(self, name: str) -> None:
        self._check()
        self.withdrawn.append(name)

    async def network_records(self, sandbox_id: str, *, after_seq: int = 0, limit: int = 1000) -> NetworkPage:
        self.reads += 1
        behind = [one for one in self.records[sandbox_id] if one.seq > after_seq]
        return NetworkPage(
            records=tuple(behind[:limit]), more=len(behind) > limit, denied_sums=self.sums.get(sandbox_id, ())
        )

    async def forget_network_records(self, sandbox_id: str) -> None:
        self.forgotten.append(sandbox_id)
        self.records.pop(sandbox_id, None)
        self.sums.pop(sandbox_id, None)
