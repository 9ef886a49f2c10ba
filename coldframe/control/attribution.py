"""Which command a contact belongs to: the one that ran when it began, if it can only have been one.

Taken from what the ledger says of starts and ends, so that it is the same after a restart. Where commands left processes
behind, nobody can tell those from the command that runs: then there is no answer rather than a guess.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from coldframe.control.ledger import Ledger, parse_time

KINDS = ("call.started", "call.ended", "call.interrupted")
PAGE = 200
"""Entries that are read at once, in which nobody else is served: a few milliseconds."""
LATE = timedelta(minutes=10)
"""How long after its begin a contact may come on record at most, and then some."""


@dataclass
class _Run:
    command_id: str
    began_at: datetime
    ended_at: datetime | None = None


class Attribution:
    """Of one sandbox. Reads on in the ledger with each question."""

    def __init__(self, ledger: Ledger, sandbox_id: str) -> None:
        self._ledger = ledger
        self._sandbox_id = sandbox_id
        self._seq = 0
        self._runs: dict[str, _Run] = {}
        self._left_since: datetime | None = None
        """When the first command ended that left processes behind."""

    def read_on(self) -> bool:
        """Take in what the ledger has by now, but not too much at once; whether there may be more."""
        entries = self._ledger.entries(after=self._seq, limit=PAGE, kinds=KINDS, sandbox_id=self._sandbox_id)
        for entry in entries:
            self._seq = entry.seq
            command_id = entry.body.get("command_id")
            if command_id is None:
                continue
            if entry.kind == "call.started":
                self._runs[command_id] = _Run(command_id, entry.at)
            elif (run := self._runs.get(command_id)) is not None:
                text = entry.body.get("ended_at")
                run.ended_at = entry.at if text is None else parse_time(text)
                if entry.kind == "call.interrupted" or entry.body.get("leftovers"):
                    self._left_since = min(self._left_since or run.ended_at, run.ended_at)
        return len(entries) == PAGE

    def command_at(self, at: datetime) -> str | None:
        """The one command that was running then."""
        if self._left_since is not None and at >= self._left_since:
            return None
        running = [
            run.command_id
            for run in self._runs.values()
            if run.began_at <= at and (run.ended_at is None or at <= run.ended_at)
        ]
        return running[0] if len(running) == 1 else None

    def forget_before(self, at: datetime) -> None:
        """What came on record then is the oldest that is still asked for."""
        since = at - LATE
        self._runs = {name: run for name, run in self._runs.items() if run.ended_at is None or run.ended_at >= since}
