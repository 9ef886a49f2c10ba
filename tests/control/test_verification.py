"""Every attack on the record that does not hold the key is found, and what it did stays visible."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.contract.errors import LedgerUnavailable
from coldframe.control.ledger import Ledger, verify_directory
from coldframe.control.store import Store
from coldframe.control.traces import find_traces
from coldframe.control.verification import entry_hash
from tests.control.keeping import Keeping, found
from tests.host.forked import in_child


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


@pytest.mark.req("TP.15")
def test_a_ledger_that_begins_anew_although_there_are_things_of_before_is_found(tmp_path: Path) -> None:
    """As if it had been removed with all that vouches for it."""
    control = tmp_path / "control"
    control.mkdir()
    for name in ("lost+found", ".snapshot", "@eaDir"):
        (tmp_path / "workspace" / name).mkdir(parents=True)
    (tmp_path / "workspace" / "notes").write_text("")
    keeping = Keeping(control)
    keeping.close()
    assert keeping.verdict().intact
    for left, is_new in (("row", False), ("nothing", True), ("workspace", False)):
        shutil.rmtree(control)
        control.mkdir()
        keeping.open()
        with keeping.attacked() as raw:
            if left == "row":
                raw.execute("INSERT INTO tokens VALUES ('tok_1', 'n', 'owner', NULL, x'00', 'a', NULL, NULL)")
            elif left == "workspace":
                (tmp_path / "workspace" / "ada").mkdir()
        shutil.rmtree(keeping.marks)
        assert keeping.verdict().intact == is_new, left
        keeping.open()
        keeping.fill(3)
        assert keeping.ledger.verify().intact == is_new, left
        keeping.close()
        if not is_new:
            assert found(keeping.verdict()) == {("missing", 1)}
            assert "anew" in keeping.verdict().faults[0].message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_workspaces_that_the_server_may_not_list_are_counted() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:  # where others get to
        os.chmod(root, 0o711)
        place = Path(root, "workspace")
        place.mkdir()
        if place.stat().st_nlink != 2:
            pytest.skip("this file system does not count them")
        os.chmod(place, 0o711)

        def seen() -> list[str]:
            os.setresuid(65_534, 65_534, 65_534)
            return find_traces(None, root)

        (place / "lost+found").mkdir()
        assert in_child(seen) == []
        (place / "ada").mkdir()
        assert in_child(seen) == ["workspaces"]
