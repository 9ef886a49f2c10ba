"""Which command a contact belongs to: the one that the host tells, else the one that ran when it began, if it was only one.

The host tells it, where it can, by the control group of the process that held the connection. It is believed of a command
that has begun in this sandbox before.

What ran is taken from what the ledger says of starts and ends, so that it is the same after a restart. Where commands left
processes behind, nobody can tell those from the command that runs: then there is no answer rather than a guess. Nor is
there one for a time of which the runs are not kept any more: a contact may be asked about long after it began, since
connections are kept open, but seldom is, and what is on record already has its answer there.
"""

import asyncio
import bisect
from collections import OrderedDict
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from coldframe.contract.network import NetworkContact
from coldframe.control.contacts import Contacts
from coldframe.control.ledger import Ledger, parse_time

KINDS = ("call.started", "call.ended", "call.interrupted")
PAGE = 200
"""Entries that are read at once, in which nobody else is served: a few milliseconds."""
MOST_RUNS = 4096
"""Of one sandbox that have ended and are kept: 1 MB at most."""
MOST_SANDBOXES = 256
"""Of which runs are kept; those of any other are read again from the ledger."""


class _Run(NamedTuple):
    command_id: str
    began_at: datetime
    ended_at: datetime


_END = attrgetter("ended_at")


class Runs:
    """Of one sandbox. Reads on in the ledger before each question."""

    def __init__(self, ledger: Ledger, sandbox_id: str) -> None:
        self._ledger = ledger
        self._sandbox_id = sandbox_id
        self._seq = 0
        self._running: dict[str, datetime] = {}
        self._ended: list[_Run] = []
        """By their end."""
        self._began: dict[str, datetime] = {}
        """The beginnings of those."""
        self._known_after: datetime | None = None
        """The last end of a run that is not kept; None if all are."""
        self._left_since: datetime | None = None
        """When the first command ended that left processes behind."""

    async def read_on(self) -> None:
        """Take in what the ledger has by now, but not too much at once: after a restart there may be much to read."""
        while self._read_page():  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)

    def _read_page(self) -> bool:
        entries = self._ledger.entries(after=self._seq, limit=PAGE, kinds=KINDS, sandbox_id=self._sandbox_id)
        for entry in entries:
            self._seq = entry.seq
            command_id = entry.body.get("command_id")
            if command_id is None:
                continue
            if entry.kind == "call.started":
                self._running[command_id] = entry.at
            elif (began_at := self._running.pop(command_id, None)) is not None:
                text = entry.body.get("ended_at")
                ended_at = entry.at if text is None else parse_time(text)
                bisect.insort(self._ended, _Run(command_id, began_at, ended_at), key=_END)
                self._began[command_id] = began_at
                if entry.kind == "call.interrupted" or entry.body.get("leftovers"):
                    self._left_since = min(self._left_since or ended_at, ended_at)
        if (surplus := len(self._ended) - MOST_RUNS) > 0:
            last = self._ended[surplus - 1].ended_at
            self._known_after = last if self._known_after is None else max(self._known_after, last)
            for run in self._ended[:surplus]:
                del self._began[run.command_id]
            del self._ended[:surplus]
        return len(entries) == PAGE

    def command_of(self, contact: NetworkContact) -> str | None:
        """What the host says of it, or who can only have been it."""
        told = contact.command_id
        if told is None:
            return self.command_at(contact.began_at)
        return told if self._has_begun(told, contact.began_at) else None

    def command_at(self, at: datetime) -> str | None:
        """The one command that was running then."""
        if self._left_since is not None and at >= self._left_since:
            return None
        if self._known_after is not None and at <= self._known_after:
            return None
        running = [command_id for command_id, began_at in self._running.items() if began_at <= at]
        first = bisect.bisect_left(self._ended, at, key=_END)
        running += [run.command_id for run in self._ended[first:] if run.began_at <= at]
        return running[0] if len(running) == 1 else None

    def _has_begun(self, command_id: str, at: datetime) -> bool:
        """By then, as far as that is kept."""
        began_at = self._running.get(command_id) or self._began.get(command_id)
        return began_at is not None and began_at <= at


class Attribution:
    """Of all sandboxes, for whoever puts something on record: the network log and the uses of credentials."""

    def __init__(self, ledger: Ledger, contacts: Contacts) -> None:
        self._ledger = ledger
        self._contacts = contacts
        self._runs: OrderedDict[str, Runs] = OrderedDict()

    async def runs_of(self, sandbox_id: str) -> Runs:
        """What ran in a sandbox, up to now."""
        runs = self._runs.get(sandbox_id)
        if runs is None:
            runs = self._runs[sandbox_id] = Runs(self._ledger, sandbox_id)
            if len(self._runs) > MOST_SANDBOXES:
                self._runs.popitem(last=False)
        self._runs.move_to_end(sandbox_id)
        await runs.read_on()
        return runs

    async def command_of(self, sandbox_id: str, contact: NetworkContact) -> str | None:
        """The command that made a contact: as it is on record, else as the host tells it, else by when it began."""
        known = self._contacts.command_of(sandbox_id, contact.contact_id)
        if known is not None:
            return known.command_id
        return (await self.runs_of(sandbox_id)).command_of(contact)

    def forget(self, sandbox_id: str) -> None:
        """Of a sandbox of which nothing more can come."""
        self._runs.pop(sandbox_id, None)
