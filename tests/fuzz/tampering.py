"""Random changes to the database of the ledger and to what is kept apart from it, by somebody without the key.

What verification may not do: raise, or call a ledger intact whose entries are other than they were written.
"""

import os
import random
import shutil
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from coldframe.control.ledger import CHECKPOINT_EVERY, Ledger, verify_directory
from coldframe.control.store import Store
from tests.fuzz.target import Fault, within_processor_time

COLUMNS = (
    "seq", "at", "kind", "subject", "body", "previous", "hash", "sandbox_id", "agent_id", "session_id", "call_id",
)  # fmt: skip
VALUES = (None, "", "x", "{}", '{"a":1}', "0" * 64, 0, -1, 2**62, 1.5, b"\xff", "\ud7ff", '{"call_id":"call_3"}')
ENTRIES = CHECKPOINT_EVERY + 12


class Tampering:
    name = "tampering"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="cf-fuzz-", dir="/tmp")
        original = Path(self._folder, "original")
        original.mkdir()
        now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
        store = Store(str(original / "control.db"))
        ledger = Ledger(store, str(original / "ledger"), lambda: now + timedelta(milliseconds=1))
        for number in range(ENTRIES):
            body = {"call_id": f"call_{number}", "sandbox_id": f"sbx_{number % 3}", "text": f"entry {number}"}
            ledger.append("call.started", f"call_{number}", body)
        ledger.close()
        store.close()
        self._original = original
        self._rows = _rows(str(original / "control.db"))
        self._marks = _files(original / "ledger")

    def make(self, random: random.Random) -> list[list[Any]]:
        return [self._change(random) for _ in range(random.choice([1, 1, 1, 2, 4]))]

    def _change(self, random: random.Random) -> list[Any]:
        seq, other = random.randint(1, ENTRIES), random.randint(1, ENTRIES)
        act = random.choice(["set", "set", "copy", "swap", "delete", "add", "cut", "byte", "byte", "line", "drop"])
        if act == "set":
            value = random.choice(VALUES)
            return ["set", seq, random.choice(COLUMNS), value.hex() if isinstance(value, bytes) else value]
        if act == "copy":
            return ["copy", seq, random.choice(COLUMNS[1:]), other]
        if act in ("byte", "line", "drop"):
            name = random.choice(sorted(self._marks))
            return [act, name, random.randrange(1 << 16), random.randrange(256)]
        return [act, seq, other]

    def check(self, value: Any) -> None:
        here = Path(self._folder, "here")
        shutil.copytree(self._original, here)
        try:
            for change in value:
                self._apply(here, change)
            try:
                with within_processor_time():
                    verdict = verify_directory(str(here / "control.db"), str(here / "ledger"))
            except Fault:
                raise
            except BaseException as error:
                raise Fault(f"verification failed: {type(error).__name__}: {error}") from error
            try:
                same = _rows(str(here / "control.db")) == self._rows
            except sqlite3.Error:
                same = False
            # Who removes the ledger, its head and all checkpoints leaves what a new installation has (SECURITY.md).
            new = verdict.entries == 0 and not any(
                (here / "ledger" / name).exists() for name in ("head", "checkpoints.jsonl")
            )
            if verdict.intact and not same and not new:
                raise Fault("changed entries were called intact")
            if not verdict.intact and same and _files(here / "ledger") == self._marks:
                raise Fault(f"an untouched ledger was called broken: {verdict.faults}")
        finally:
            shutil.rmtree(here)

    def _apply(self, here: Path, change: list[Any]) -> None:
        act = change[0]
        if act in ("byte", "line", "drop"):
            _spoil_file(here / "ledger" / change[1], act, change[2], change[3])
            return
        raw = sqlite3.connect(here / "control.db")
        try:
            raw.execute("DROP TRIGGER IF EXISTS ledger_refuses_update")
            raw.execute("DROP TRIGGER IF EXISTS ledger_refuses_delete")
            _change_rows(raw, change)
            raw.commit()
        except (sqlite3.Error, OverflowError):
            raw.rollback()
        finally:
            raw.close()

    def close(self) -> None:
        shutil.rmtree(self._folder)


def _change_rows(raw: sqlite3.Connection, change: list[Any]) -> None:
    act, seq = change[0], change[1]
    if act == "set":
        raw.execute(f"UPDATE ledger SET {change[2]} = ? WHERE seq = ?", (change[3], seq))
    elif act == "copy":
        raw.execute(
            f"UPDATE ledger SET {change[2]} = (SELECT {change[2]} FROM ledger WHERE seq = ?) WHERE seq = ?",
            (change[3], seq),
        )
    elif act == "swap":
        raw.execute("UPDATE ledger SET seq = -1 WHERE seq = ?", (seq,))
        raw.execute("UPDATE ledger SET seq = ? WHERE seq = ?", (seq, change[2]))
        raw.execute("UPDATE ledger SET seq = ? WHERE seq = -1", (change[2],))
    elif act == "delete":
        raw.execute("DELETE FROM ledger WHERE seq BETWEEN ? AND ?", (min(change[1:]), max(change[1:])))
    elif act == "cut":
        raw.execute("DELETE FROM ledger WHERE seq >= ?", (seq,))
    elif act == "add":
        names = ", ".join(COLUMNS[1:])
        raw.execute(
            f"INSERT INTO ledger (seq, {names}) SELECT (SELECT max(seq) + 1 FROM ledger), {names} FROM ledger WHERE seq = ?",
            (seq,),
        )


def _spoil_file(path: Path, act: str, where: int, byte: int) -> None:
    try:
        data = bytearray(path.read_bytes())
    except FileNotFoundError:
        return
    if act == "drop" or not data:
        path.unlink()
        return
    if act == "byte":
        data[where % len(data)] = byte
    else:
        lines = data.splitlines(keepends=True)
        del lines[where % len(lines)]
        data = bytearray(b"".join(lines))
    path.write_bytes(data)


def _rows(path: str) -> list[Any]:
    raw = sqlite3.connect(path)
    try:
        return raw.execute(f"SELECT {', '.join(COLUMNS)} FROM ledger ORDER BY seq").fetchall()
    finally:
        raw.close()


def _files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}
