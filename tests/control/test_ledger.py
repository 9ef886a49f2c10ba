"""Held here: every attack on the record that does not hold the key is found, and what cannot be recorded is refused."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import LedgerUnavailable
from coldframe.contract.ledger import LedgerVerdict
from coldframe.control.ledger import CHECKPOINT_EVERY, Ledger, export_line, verify_directory
from coldframe.control.store import Store
from coldframe.control.verification import entry_hash

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


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    kept = Keeping(tmp_path)
    yield kept
    kept.close()


def found(verdict: LedgerVerdict) -> set[tuple[str, int]]:
    assert not verdict.intact
    return {(fault.kind, fault.seq) for fault in verdict.faults}


def test_entries_are_numbered_without_gaps_and_chained(keeping: Keeping) -> None:
    keeping.fill(5)
    entries = keeping.ledger.entries()
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert entries[0].previous == "0" * 64
    assert [entry.previous for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]


@pytest.mark.req("TP.15")
def test_an_exported_line_without_its_hash_is_what_the_hash_is_taken_over(keeping: Keeping) -> None:
    keeping.ledger.append("policy.changed", "rules", {"note": "line\nbreak, “quotes”, \udcff", "agent_id": "a"})
    keeping.fill(3)
    lines = list(keeping.ledger.export())
    assert len(lines) == 4
    for line in lines:
        fields = json.loads(line)
        stated = fields.pop("hash")
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == stated
    assert b"\n".join(lines).count(b"\n\n") == len(lines) - 1


def test_an_untouched_ledger_is_intact_while_open_and_after_closing(keeping: Keeping) -> None:
    keeping.fill(CHECKPOINT_EVERY * 2 + 10)
    assert keeping.ledger.verify().intact
    keeping.close()
    verdict = keeping.verdict()
    assert (verdict.intact, verdict.entries, verdict.checkpoints) == (True, CHECKPOINT_EVERY * 2 + 10, 3)


def test_a_ledger_without_entries_is_intact(keeping: Keeping) -> None:
    assert keeping.ledger.verify().intact
    keeping.close()
    assert keeping.verdict().intact
    keeping.open()
    assert keeping.ledger.verify().intact


def change_body(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET body = replace(body, 'entry 4', 'entry X') WHERE seq = 5")


def change_time(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET at = '2020-01-01T00:00:00.000000Z' WHERE seq = 5")


def change_query_column(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET sandbox_id = 'elsewhere' WHERE seq = 5")


def change_query_columns_of_all(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET call_id = NULL")


def change_query_column_beside_a_body_that_is_no_json(raw: sqlite3.Connection) -> None:
    """SQLite reads no such body, so all are compared without it. The last entry is the one with no other after it."""
    change_query_column(raw)
    row = raw.execute("SELECT seq, at, kind, subject, previous FROM ledger WHERE seq = 20").fetchone()
    digest = entry_hash(row[0], row[1], row[2], row[3], "{", row[4])
    raw.execute("UPDATE ledger SET body = '{', hash = ? WHERE seq = 20", (digest,))


def store_bytes(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET subject = CAST(subject AS BLOB) WHERE seq = 5")


def store_bytes_as_hash(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET hash = x'ff' WHERE seq = 20")


def write_schema(raw: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> None:
    raw.execute("PRAGMA writable_schema = ON")
    raw.execute(statement, values)
    raw.execute("PRAGMA writable_schema = RESET")


def change_beside_an_index(raw: sqlite3.Connection, columns: str, condition: str = "") -> None:
    """Leave an index over the ledger that still has what the table had before."""
    raw.execute(f"CREATE INDEX stale ON ledger ({columns}) {condition}")
    entry = raw.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = 'stale'").fetchone()
    write_schema(raw, "DELETE FROM sqlite_master WHERE name = ?", ("stale",))
    change_query_column(raw)
    write_schema(raw, "INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", entry)


def change_beside_an_index_of_all_that_is_compared(raw: sqlite3.Connection) -> None:
    change_beside_an_index(raw, "seq, body, sandbox_id, agent_id, session_id, call_id")


def change_beside_an_index_that_is_preferred(raw: sqlite3.Connection) -> None:
    change_beside_an_index(raw, "seq, body, sandbox_id, agent_id, session_id, call_id")
    raw.execute("ANALYZE")
    raw.execute("UPDATE sqlite_stat1 SET stat = '1 1 1 1 1 1 1 sz=1' WHERE idx = 'stale'")
    raw.execute("INSERT INTO sqlite_stat1 VALUES ('ledger', NULL, '1000000')")


def change_case_under_another_collation(raw: sqlite3.Connection) -> None:
    was, now = "sandbox_id TEXT", "sandbox_id TEXT COLLATE NOCASE"
    write_schema(raw, "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'ledger'", (was, now))
    raw.execute("UPDATE ledger SET sandbox_id = upper(sandbox_id) WHERE seq = 5")


def change_behind_a_view(raw: sqlite3.Connection) -> None:
    raw.execute("ALTER TABLE ledger RENAME TO former")
    raw.execute("CREATE VIEW ledger AS SELECT * FROM former")


def remove_table(raw: sqlite3.Connection) -> None:
    raw.execute("DROP TABLE ledger")


def number_by_word(raw: sqlite3.Connection) -> None:
    raw.execute("CREATE TABLE other AS SELECT * FROM ledger")
    raw.execute("DROP TABLE ledger")
    raw.execute("ALTER TABLE other RENAME TO ledger")
    raw.execute("INSERT INTO ledger (seq) VALUES ('twenty-one')")


def change_body_with_hash(raw: sqlite3.Connection) -> None:
    row = raw.execute("SELECT seq, at, kind, subject, body, previous FROM ledger WHERE seq = 5").fetchone()
    body = row[4].replace("entry 4", "entry X")
    digest = entry_hash(row[0], row[1], row[2], row[3], body, row[5])
    raw.execute("UPDATE ledger SET body = ?, hash = ? WHERE seq = 5", (body, digest))


def rehash_from(raw: sqlite3.Connection, seq: int) -> None:
    """What somebody without the key does to make the chain fit again."""
    previous = raw.execute("SELECT hash FROM ledger WHERE seq < ? ORDER BY seq DESC LIMIT 1", (seq,)).fetchone()[0]
    query = "SELECT seq, at, kind, subject, body FROM ledger WHERE seq >= ? ORDER BY seq"
    for number, at, kind, subject, body in raw.execute(query, (seq,)).fetchall():
        digest = entry_hash(number, at, kind, subject, body, previous)
        raw.execute("UPDATE ledger SET previous = ?, hash = ? WHERE seq = ?", (previous, digest, number))
        previous = digest


def change_and_rehash_all(raw: sqlite3.Connection) -> None:
    change_body(raw)
    rehash_from(raw, 5)


def remove_middle_and_rehash(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM ledger WHERE seq = 5")
    raw.execute("UPDATE ledger SET seq = seq - 1 WHERE seq > 5")
    rehash_from(raw, 5)


def swap(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE ledger SET seq = -5 WHERE seq = 5")
    raw.execute("UPDATE ledger SET seq = 5 WHERE seq = 7")
    raw.execute("UPDATE ledger SET seq = 7 WHERE seq = -5")


def remove_middle(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM ledger WHERE seq IN (5, 6)")


def remove_first(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM ledger WHERE seq = 1")


def remove_last(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM ledger WHERE seq = 20")


def remove_tail(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM ledger WHERE seq > 15")


def empty(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM ledger")


def add_many(raw: sqlite3.Connection) -> None:
    number, previous = raw.execute("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1").fetchone()
    for seq in range(number + 1, number + 100):
        digest = entry_hash(seq, "2026-05-04T03:02:01.000000Z", "note", "x", "{}", previous)
        raw.execute(
            "INSERT INTO ledger (seq, at, kind, subject, body, previous, hash) VALUES (?, ?, 'note', 'x', '{}', ?, ?)",
            (seq, "2026-05-04T03:02:01.000000Z", previous, digest),
        )
        previous = digest


@pytest.mark.req("T1.86", "TP.15")
@pytest.mark.parametrize(
    ("attack", "fault"),
    [
        (change_body, ("changed", 5)),
        (change_time, ("changed", 5)),
        (change_query_column, ("changed", 5)),
        (change_query_columns_of_all, ("changed", 1)),
        (change_query_columns_of_all, ("changed", 20)),
        (change_query_column_beside_a_body_that_is_no_json, ("changed", 5)),
        (change_query_column_beside_a_body_that_is_no_json, ("changed", 20)),
        (store_bytes, ("changed", 5)),
        (store_bytes_as_hash, ("changed", 20)),
        (change_beside_an_index_of_all_that_is_compared, ("changed", 5)),
        (change_beside_an_index_that_is_preferred, ("changed", 5)),
        (change_case_under_another_collation, ("changed", 5)),
        (change_body_with_hash, ("changed", 5)),
        (change_and_rehash_all, ("changed", 20)),
        (swap, ("reordered", 5)),
        (swap, ("reordered", 7)),
        (remove_middle, ("missing", 5)),
        (remove_middle_and_rehash, ("tail_missing", 20)),
        (remove_first, ("missing", 1)),
        (remove_last, ("tail_missing", 20)),
        (remove_tail, ("tail_missing", 16)),
        (empty, ("tail_missing", 1)),
        (add_many, ("changed", 21)),
    ],
)
def test_an_attack_on_the_database_is_found_and_its_entry_named(
    keeping: Keeping, attack: Callable[[sqlite3.Connection], None], fault: tuple[str, int]
) -> None:
    keeping.fill(20)
    with keeping.attacked() as raw:
        attack(raw)
    assert fault in found(keeping.verdict())
    keeping.open()


def test_a_query_column_is_compared_past_a_nul(keeping: Keeping) -> None:
    keeping.fill(3)
    keeping.ledger.append("note", "x", {"session_id": "ses\0other"})
    assert keeping.ledger.verify().intact
    with keeping.attacked() as raw:
        raw.execute("UPDATE ledger SET session_id = 'ses' WHERE seq = 4")
    assert found(keeping.verdict()) == {("changed", 4)}
    keeping.open()


@pytest.mark.parametrize(
    ("attack", "fault"),
    [
        (change_behind_a_view, ("tail_missing", 1)),
        (remove_table, ("tail_missing", 1)),
        (number_by_word, ("changed", 21)),
    ],
)
def test_a_ledger_that_is_none_is_told_and_no_server_starts_on_it(
    keeping: Keeping, attack: Callable[[sqlite3.Connection], None], fault: tuple[str, int]
) -> None:
    keeping.fill(20)
    with keeping.attacked() as raw:
        attack(raw)
    assert fault in found(keeping.verdict())
    with contextlib.closing(Store(keeping.database)) as store, pytest.raises(LedgerUnavailable):
        Ledger(store, keeping.marks, keeping.clock)


@pytest.mark.parametrize(
    ("subject", "body", "digest"),
    [
        ("x", '{"call_id":"other","call_id":"call_1"}', None),
        ("x", '{"call_id":["call_1"]}', None),
        ("x", '{"call_id":"call_1"}\0', None),
        (b"x", '{"call_id":"call_1"}', ""),
    ],
)
def test_what_nobody_vouches_for_is_compared_as_a_reader_takes_it(
    keeping: Keeping, subject: str | bytes, body: str, digest: str | None
) -> None:
    keeping.fill(3)
    column = '["call_1"]' if "[" in body else "other" if "other" in body else "call_1"
    with keeping.attacked() as raw:
        previous = raw.execute("SELECT hash FROM ledger WHERE seq = 3").fetchone()[0]
        at = "2026-05-04T03:02:01.000000Z"
        if isinstance(subject, str):
            digest = entry_hash(4, at, "note", subject, body, previous)
        raw.execute(
            "INSERT INTO ledger (seq, kind, at, subject, body, previous, hash, call_id) "
            "VALUES (4, 'note', ?, ?, ?, ?, ?, ?)",
            (at, subject, body, previous, digest, column),
        )
    assert found(keeping.verdict()) == {("changed", 4)}


def test_a_database_whose_tables_were_never_made_is_an_empty_ledger(keeping: Keeping, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (tmp_path / "marks").mkdir()
    verdict = verify_directory(str(tmp_path / "empty.db"), str(tmp_path / "marks"))
    assert (verdict.intact, verdict.entries) == (True, 0)


@pytest.mark.req("TP.15")
@pytest.mark.parametrize("attack", [remove_tail, empty, change_and_rehash_all])
def test_an_attack_stays_visible_after_the_server_went_on_over_it(
    keeping: Keeping, attack: Callable[[sqlite3.Connection], None]
) -> None:
    keeping.fill(20)
    with keeping.attacked() as raw:
        attack(raw)
    before = found(keeping.verdict())
    keeping.open()
    keeping.fill(30)
    assert before & found(keeping.ledger.verify())
    keeping.close()
    keeping.open()
    assert before & found(keeping.ledger.verify())


def test_a_database_replaced_by_an_older_copy_is_found(keeping: Keeping, tmp_path: Path) -> None:
    keeping.fill(10)
    keeping.close()
    shutil.copy(keeping.database, tmp_path / "old.db")
    keeping.open()
    keeping.fill(5)
    keeping.close()
    shutil.copy(tmp_path / "old.db", keeping.database)
    assert ("tail_missing", 11) in found(keeping.verdict())
    keeping.open()


def test_a_database_that_is_gone_is_found(keeping: Keeping) -> None:
    keeping.fill(10)
    keeping.close()
    os.unlink(keeping.database)
    assert ("tail_missing", 1) in found(keeping.verdict())
    keeping.open()


def lines_of(keeping: Keeping) -> list[bytes]:
    return Path(keeping.marks, "checkpoints.jsonl").read_bytes().splitlines()


@pytest.mark.req("TP.15")
@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        (lambda lines: [lines[0].replace(b'"seq":256', b'"seq":255'), *lines[1:]], "checkpoint_invalid"),
        (lambda lines: [b"nonsense", *lines[1:]], "checkpoint_invalid"),
        (lambda lines: [lines[0], *lines[2:]], "checkpoint_missing"),
        (lambda lines: lines[1:], "checkpoint_missing"),
        (lambda lines: lines[:-1], "checkpoint_missing"),
        (lambda lines: [], "checkpoint_missing"),
    ],
)
def test_a_checkpoint_that_was_changed_or_removed_is_found(
    keeping: Keeping, attack: Callable[[list[bytes]], list[bytes]], kind: str
) -> None:
    keeping.fill(CHECKPOINT_EVERY * 3 + 1)
    keeping.close()
    lines = attack(lines_of(keeping))
    Path(keeping.marks, "checkpoints.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    assert kind in {kind for kind, _ in found(keeping.verdict())}
    keeping.open()
    assert kind in {kind for kind, _ in found(keeping.ledger.verify())}


def test_a_checkpoint_that_a_power_cut_left_unfinished_is_no_fault(keeping: Keeping) -> None:
    keeping.fill(CHECKPOINT_EVERY + 1)
    keeping.close()
    path = Path(keeping.marks, "checkpoints.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:100])
    assert keeping.verdict().intact
    keeping.open()
    keeping.fill(CHECKPOINT_EVERY)
    assert keeping.ledger.verify().intact
    assert path.read_bytes().startswith(whole)


def test_a_head_that_was_changed_is_found(keeping: Keeping) -> None:
    keeping.fill(10)
    with keeping.attacked() as raw:
        raw.execute("DELETE FROM ledger WHERE seq > 8")
    head = Path(keeping.marks, "head")
    head.write_bytes(head.read_bytes().replace(b" 00000000000000000010 ", b" 00000000000000000008 "))
    assert ("checkpoint_invalid", 0) in found(keeping.verdict())
    keeping.open()


def test_a_head_that_is_gone_is_found(keeping: Keeping) -> None:
    keeping.fill(10)
    keeping.close()
    os.unlink(os.path.join(keeping.marks, "head"))
    assert ("checkpoint_missing", 0) in found(keeping.verdict())
    keeping.open()


def test_checkpoints_can_be_checked_by_another_program_with_the_public_key_alone(keeping: Keeping) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keeping.fill(10)
    keeping.close()
    fields = json.loads(lines_of(keeping)[-1])
    import base64

    signature = base64.b64decode(fields.pop("signature"))
    key = load_pem_public_key(Path(keeping.marks, "signing.pub").read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(signature, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    assert fields["seq"] == 10
    assert Path(keeping.marks, "signing.key").stat().st_mode & 0o077 == 0
    keeping.open()


def test_verification_works_on_a_copy_without_the_private_key(keeping: Keeping, tmp_path: Path) -> None:
    keeping.fill(300)
    keeping.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(keeping.database, copy / "control.db")
    shutil.copytree(keeping.marks, copy / "ledger")
    (copy / "ledger" / "signing.key").unlink()
    assert verify_directory(str(copy / "control.db"), str(copy / "ledger")).intact
    lines = Path(copy, "ledger", "checkpoints.jsonl").read_bytes()
    Path(copy, "ledger", "checkpoints.jsonl").write_bytes(lines.replace(b'"number":1', b'"number":2', 1))
    assert not verify_directory(str(copy / "control.db"), str(copy / "ledger")).intact
    keeping.open()


def test_a_ledger_with_entries_but_without_its_key_is_refused(keeping: Keeping) -> None:
    keeping.fill(3)
    keeping.close()
    key = Path(keeping.marks, "signing.key")
    content = key.read_bytes()
    key.unlink()
    store = Store(keeping.database)
    with pytest.raises(LedgerUnavailable, match="signing key"):
        Ledger(store, keeping.marks, keeping.clock)
    store.close()
    key.write_bytes(content)
    keeping.open()


@pytest.mark.req("T1.87")
def test_a_kill_between_commit_and_head_is_no_fault_and_leaves_no_gap(keeping: Keeping) -> None:
    keeping.fill(5)
    keeping.close()
    code = """
import os, sys
from datetime import UTC, datetime
from coldframe.control.checkpoints import Checkpoints
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
Checkpoints.move = lambda *_: os.kill(os.getpid(), 9)
ledger.append("note", "x", {})
"""
    child = subprocess.run([sys.executable, "-c", code, keeping.database, keeping.marks], check=False)
    assert child.returncode == -9
    assert keeping.verdict().intact
    keeping.open()
    keeping.fill(2)
    assert [entry.seq for entry in keeping.ledger.entries()] == list(range(1, 9))
    assert keeping.ledger.verify().intact
    assert keeping.ledger.entries(kinds=["ledger.fault_found"]) == []


@pytest.mark.req("T1.87")
def test_a_kill_in_the_middle_of_work_leaves_a_whole_chain(keeping: Keeping) -> None:
    keeping.close()
    code = """
import sys
from datetime import UTC, datetime
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
ledger = Ledger(Store(sys.argv[1]), sys.argv[2], lambda: datetime.now(UTC))
seq = 0
while True:
    seq = ledger.append("note", "x", {"text": "t" * 500}, durable=seq % 50 == 0).seq
    if seq % 100 == 0:
        print(seq, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, keeping.database, keeping.marks], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(10)]
    assert keeping.verdict().intact  # Also beside a server that goes on writing.
    child.kill()
    child.wait()
    child.stdout.close()
    verdict = keeping.verdict()
    assert verdict.intact
    assert verdict.entries == verdict.head_seq >= told[-1]
    keeping.open()


def test_entries_of_a_transaction_that_failed_are_gone_and_leave_no_gap(keeping: Keeping) -> None:
    keeping.fill(2)
    with pytest.raises(ZeroDivisionError), keeping.store.transaction() as connection:
        keeping.ledger.append("note", "lost", {}, connection=connection)
        _ = 1 // 0
    with keeping.store.transaction() as connection:
        keeping.ledger.append("note", "first", {}, connection=connection)
        with pytest.raises(ZeroDivisionError), keeping.store.transaction():
            keeping.ledger.append("note", "lost", {})
            _ = 1 // 0
        keeping.ledger.append("note", "second", {}, connection=connection)
    assert [(entry.seq, entry.subject) for entry in keeping.ledger.entries(after=2)] == [(3, "first"), (4, "second")]
    assert keeping.ledger.verify().intact


def test_a_connection_without_a_transaction_of_this_store_is_our_mistake(keeping: Keeping) -> None:
    with keeping.store.transaction() as connection:
        pass
    with pytest.raises(RuntimeError):
        keeping.ledger.append("note", "x", {}, connection=connection)


@pytest.mark.parametrize("value", [1.5, {"inner": [0.1]}, float("nan"), b"bytes", {1: "number as key"}, {"a", "set"}])
def test_a_body_that_has_no_one_form_is_refused_as_our_mistake(keeping: Keeping, value: Any) -> None:
    with pytest.raises(TypeError):
        keeping.ledger.append("note", "x", {"value": value})
    assert keeping.ledger.entries() == []


def test_times_are_recorded_in_utc_and_a_time_without_zone_is_our_mistake(keeping: Keeping) -> None:
    keeping.clock = lambda: datetime(2026, 1, 2, 3, 0, tzinfo=timezone(timedelta(hours=2)))  # type: ignore[method-assign]
    keeping.ledger._clock = keeping.clock
    entry = keeping.ledger.append("note", "x", {})
    assert json.loads(export_line(entry))["at"] == "2026-01-02T01:00:00.000000Z"
    keeping.ledger._clock = lambda: datetime(2026, 1, 2, 3, 0)
    with pytest.raises(TypeError):
        keeping.ledger.append("note", "x", {})
    keeping.ledger._clock = lambda: START


@pytest.mark.req("T1.86")
@pytest.mark.parametrize(
    "statement", ["UPDATE ledger SET body = '{}'", "DELETE FROM ledger", "DELETE FROM ledger WHERE seq = 2"]
)
def test_the_database_itself_refuses_to_change_entries(keeping: Keeping, statement: str) -> None:
    keeping.fill(3)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        keeping.store.raw.execute(statement)
    assert keeping.ledger.verify().entries == 3


def test_entries_can_be_looked_up_by_what_they_are_about(keeping: Keeping) -> None:
    keeping.fill(9)
    keeping.ledger.append("agent.created", "alpha", {"agent_id": "alpha"})

    def seqs(**query: Any) -> list[int]:
        return [entry.seq for entry in keeping.ledger.entries(**query)]

    assert seqs(sandbox_id="sbx_1") == [2, 5, 8]
    assert seqs(sandbox_id="sbx_1", after=2, limit=1) == [5]
    assert seqs(subject="call_3") == [4]
    assert seqs(subject="alpha") == seqs(agent_id="alpha") == seqs(kinds=["agent.created"]) == [10]
    assert seqs(call_id="call_8") == [9]
    assert seqs(kinds=["agent.created", "call.started"], limit=100) == list(range(1, 11))
    assert seqs(subject="no such") == seqs(limit=0) == []


@pytest.mark.req("T1.87")
def test_calls_that_were_under_way_are_listed(keeping: Keeping) -> None:
    for call, ending in (("a", "call.ended"), ("b", None), ("c", "call.interrupted"), ("d", None)):
        keeping.ledger.append("call.started", call, {"call_id": call})
        if ending is not None:
            keeping.ledger.append(ending, call, {"call_id": call})
    assert [entry.subject for entry in keeping.ledger.open_calls()] == ["b", "d"]


def test_a_closed_ledger_refuses(keeping: Keeping) -> None:
    keeping.ledger.close()
    with pytest.raises(LedgerUnavailable):
        keeping.ledger.append("note", "x", {})


@pytest.mark.req("TP.16")
def test_a_full_disk_refuses_the_action_and_writes_no_half_entry(keeping: Keeping) -> None:
    keeping.close()
    code = """
import resource, signal, sys
from datetime import UTC, datetime
from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, resource.RLIM_INFINITY))
acted = 0
try:
    while acted < 10_000:
        ledger.append("call.started", f"call_{acted}", {"call_id": f"call_{acted}", "text": "t" * 4000})
        acted += 1
    sys.exit("the limit was never met")
except LedgerUnavailable as error:
    assert error.code == "LEDGER_UNAVAILABLE"
try:
    ledger.append("call.started", "again", {"text": "t" * 200_000})
    sys.exit("a second try went through")
except LedgerUnavailable:
    pass
assert len(ledger.entries(limit=10_000)) == acted, (len(ledger.entries(limit=10_000)), acted)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.append("call.started", "after", {"call_id": "after"})
assert ledger.verify().intact, ledger.verify()
ledger.close()
store.close()
print(acted)
"""
    child = subprocess.run(
        [sys.executable, "-c", code, keeping.database, keeping.marks], check=False, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    verdict = keeping.verdict()
    assert verdict.intact
    assert verdict.entries == int(child.stdout) + 1
    keeping.open()


@pytest.mark.req("TP.16")
def test_a_head_that_cannot_be_written_refuses_the_action(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(keeping.ledger._checkpoints, "move", broken)
        with pytest.raises(LedgerUnavailable):
            keeping.ledger.append("note", "x", {})
    keeping.ledger.append("note", "y", {})
    assert keeping.ledger.verify().intact


def put_off(keeping: Keeping, call: str) -> None:
    with keeping.store.transaction(may_wait=True) as connection:
        keeping.ledger.append("call.ended", call, {"call_id": call}, connection=connection)


def test_entries_that_wait_for_their_commit_are_in_the_chain_and_the_head_is_never_ahead_of_the_file(
    keeping: Keeping,
) -> None:
    keeping.fill(3)
    put_off(keeping, "call_a")
    put_off(keeping, "call_b")
    assert [row[0] for row in keeping.store.read("SELECT seq FROM ledger")] == [1, 2, 3, 4, 5]
    assert keeping.ledger.committed_seq == 3
    beside = keeping.verdict()  # as another process sees it
    assert (beside.intact, beside.entries) == (True, 3)
    keeping.fill(1)
    beside = keeping.verdict()
    assert (beside.intact, beside.entries, keeping.ledger.committed_seq) == (True, 6, 6)
    put_off(keeping, "call_c")
    within = keeping.ledger.verify()
    assert (within.intact, within.entries) == (True, 7)


@pytest.mark.parametrize("look", ["entries", "entry", "open_calls", "export"])
def test_what_is_handed_out_is_committed_first(keeping: Keeping, look: str) -> None:
    keeping.fill(1)
    put_off(keeping, "call_a")
    if look == "entries":
        assert keeping.ledger.entries()[-1].seq == 2
    elif look == "entry":
        assert keeping.ledger.entry(2) is not None
    elif look == "open_calls":
        assert [entry.seq for entry in keeping.ledger.open_calls()] == [1]
    else:
        assert len(list(keeping.ledger.export())) == 2
    assert keeping.verdict().entries == 2  # as another process sees it
    with keeping.store.transaction() as connection:
        keeping.ledger.append("note", "x", {}, connection=connection)
        assert keeping.ledger.entry(3) is not None  # its own transaction sees it, and goes on
        assert keeping.verdict().entries == 2


@pytest.mark.req("T1.87")
def test_a_kill_before_the_commit_of_what_was_put_off_leaves_a_whole_chain_without_it(keeping: Keeping) -> None:
    keeping.fill(2)
    keeping.close()
    code = """
import os, sys
from datetime import UTC, datetime
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
with store.transaction(may_wait=True) as connection:
    ledger.append("call.ended", "call_a", {"call_id": "call_a"}, connection=connection)
assert not store.is_settled
os.kill(os.getpid(), 9)
"""
    child = subprocess.run([sys.executable, "-c", code, keeping.database, keeping.marks], check=False)
    assert child.returncode == -9
    verdict = keeping.verdict()
    assert (verdict.intact, verdict.entries) == (True, 2)
    keeping.open()
    keeping.fill(1)
    assert keeping.ledger.verify().intact


@pytest.mark.req("TP.16")
@pytest.mark.parametrize("settled_by", ["append", "settle", "close"])
def test_an_end_whose_later_commit_failed_is_written_before_anything_else_or_nothing_is(
    keeping: Keeping, settled_by: str
) -> None:
    keeping.close()
    code = """
import resource, signal, sys
from datetime import UTC, datetime
from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import Ledger
from coldframe.control.store import Store
store = Store(sys.argv[1])
ledger = Ledger(store, sys.argv[2], lambda: datetime.now(UTC))
ledger.append("call.started", "call_a", {"call_id": "call_a"})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))  # the disk is full
with store.transaction(may_wait=True) as connection:
    ledger.append("call.ended", "call_a", {"call_id": "call_a"}, connection=connection)
for _ in range(3):
    try:
        ledger.append("call.started", "call_b", {"call_id": "call_b"})
        sys.exit("an entry was written on a full disk")
    except LedgerUnavailable:
        pass
    try:
        with store.transaction() as connection:
            ledger.append("call.started", "call_b", {"call_id": "call_b"}, connection=connection)
        sys.exit("a transaction was committed on a full disk")
    except LedgerUnavailable:
        pass
assert [entry.seq for entry in ledger.entries()] == [1], ledger.entries()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if sys.argv[3] == "append":
    ledger.append("call.started", "call_c", {"call_id": "call_c"})
elif sys.argv[3] == "settle":
    ledger.settle()
    assert ledger.open_calls() == []
ledger.close()
store.close()
"""
    child = subprocess.run(
        [sys.executable, "-c", code, keeping.database, keeping.marks, settled_by],
        check=False,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    assert keeping.verdict().intact
    keeping.open()
    last = [("call.started", "call_c")] if settled_by == "append" else []
    assert [(entry.kind, entry.subject) for entry in keeping.ledger.entries()] == [
        ("call.started", "call_a"),
        ("call.ended", "call_a"),
        *last,
    ]


def test_no_setting_reaches_the_ledger() -> None:
    parameters = Ledger.__init__.__annotations__.keys() - {"return"}
    assert parameters == {"store", "directory", "clock"}
