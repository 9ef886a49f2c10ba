"""A ledger in a directory, and what is found in it, for the tests of this folder."""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from coldframe.contract.ledger import LedgerVerdict
from coldframe.control.ledger import Ledger, verify_directory
from coldframe.control.store import Store

START = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


class Keeping:
    """A ledger in a directory that can be closed, attacked and opened again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = str(root / "control.db")
        self.marks = str(root / "ledger")
        self.now = START
        self.open()

    def clock(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    def open(self) -> None:
        self.store = Store(self.database)
        self.ledger = Ledger(self.store, self.marks, self.clock)

    def close(self) -> None:
        self.ledger.close()
        self.store.close()

    def fill(self, count: int) -> None:
        for number in range(count):
            body = {"call_id": f"call_{number}", "sandbox_id": f"sbx_{number % 3}", "text": f"entry {number}"}
            self.ledger.append("call.started", f"call_{number}", body)

    def verdict(self) -> LedgerVerdict:
        return verify_directory(self.database, self.marks)

    @contextlib.contextmanager
    def attacked(self) -> Iterator[sqlite3.Connection]:
        """The database as somebody with write access to the file sees it, the server being stopped."""
        self.close()
        raw = sqlite3.connect(self.database)
        raw.execute("DROP TRIGGER IF EXISTS ledger_refuses_update")
        raw.execute("DROP TRIGGER IF EXISTS ledger_refuses_delete")
        yield raw
        raw.commit()
        raw.close()


def found(verdict: LedgerVerdict) -> set[tuple[str, int]]:
    assert not verdict.intact
    return {(fault.kind, fault.seq) for fault in verdict.faults}
