"""Held here: one process owns the database, a transaction is whole or not at all, and tables equal their declarations."""

import importlib
import os
import pkgutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import coldframe.control
from coldframe.contract.errors import LedgerUnavailable, WrongState
from coldframe.control.store import MOST_PUT_OFF, Store, metadata


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path / "control.db"))
    with store.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE things (name TEXT PRIMARY KEY)")
    yield store
    store.close()


def names(store: Store) -> list[str]:
    with store.transaction() as connection:
        return [row[0] for row in connection.exec_driver_sql("SELECT name FROM things ORDER BY name")]


def add(connection: sa.Connection, name: str) -> None:
    connection.exec_driver_sql("INSERT INTO things VALUES (?)", (name,))


def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as connection:
        add(connection, "a")
        _ = 1 // 0
    assert names(store) == []


def test_an_inner_transaction_joins_the_outer_and_goes_with_it(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as outer:
        with store.transaction() as inner:
            assert inner is outer
            add(inner, "a")
        _ = 1 // 0
    assert names(store) == []


def test_an_inner_transaction_that_fails_is_undone_alone(store: Store) -> None:
    with store.transaction() as outer:
        add(outer, "kept")
        with pytest.raises(ZeroDivisionError), store.transaction() as inner:
            add(inner, "undone")
            _ = 1 // 0
    assert names(store) == ["kept"]


def test_the_callbacks_of_a_transaction_tell_how_it_ended(store: Store) -> None:
    heard: list[str] = []

    def note(what: str) -> None:
        store.after(lambda durable: heard.append(f"{what} committed {durable}"), lambda: heard.append(f"{what} undone"))

    with store.transaction():
        note("outer")
        with pytest.raises(ZeroDivisionError), store.transaction():
            note("inner")
            _ = 1 // 0
        with store.transaction(durable=True):
            note("second")
    assert heard == ["inner undone", "outer committed True", "second committed True"]


def test_a_broken_constraint_is_the_callers_to_judge(store: Store) -> None:
    with pytest.raises(sa.exc.IntegrityError), store.transaction() as connection:
        add(connection, "a")
        add(connection, "a")
    assert names(store) == []


async def _left_open(store: Store) -> None:
    import asyncio

    async def intruder() -> None:
        with store.transaction() as connection:
            add(connection, "intruder")

    with store.transaction() as connection:
        add(connection, "a")
        await asyncio.create_task(intruder())


def test_another_task_cannot_write_into_a_transaction_left_open_over_an_await(store: Store) -> None:
    import asyncio

    with pytest.raises(RuntimeError, match="left open over an await"):
        asyncio.run(_left_open(store))
    assert names(store) == []


def test_a_second_opener_is_refused_and_told_who_has_it(store: Store) -> None:
    with pytest.raises(WrongState) as caught:
        Store(store.path)
    assert caught.value.facts["pid"] == str(os.getpid())


def test_the_database_is_free_again_after_its_process_was_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    code = (
        "import os, signal, sys; from coldframe.control.store import Store; Store(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    child = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert child.returncode == -9
    Store(path).close()


def test_a_database_whose_making_was_killed_half_way_is_made_by_the_next_start(tmp_path: Path) -> None:
    from coldframe.control.migrations import TABLES, tables_text

    path = str(tmp_path / "control.db")
    code = """
import os, sys
from coldframe.control import store
whole = store.make_tables
def make_tables(raw):
    whole(raw)
    os.kill(os.getpid(), 9)
store.make_tables = make_tables
store.Store(sys.argv[1])
"""
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    Store(path).close()
    raw = sqlite3.connect(path)
    try:
        assert tables_text(raw) == Path(TABLES).read_text(encoding="utf-8")
    finally:
        raw.close()


def test_a_child_that_outlives_its_parent_does_not_keep_the_database(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    code = """
import os, sys
from coldframe.control.store import Store
store = Store(sys.argv[1])
child = os.fork()
if child == 0:
    os.write(1, b"forked")
    os.read(0, 1)  # Lives until the test closes the pipe.
    os._exit(0)
os._exit(0)
"""
    reading, writing = os.pipe()
    try:
        parent = subprocess.Popen([sys.executable, "-c", code, path], stdin=reading, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        with parent.stdout:
            assert parent.stdout.read(6) == b"forked"  # the child is past what it does first
        assert parent.wait() == 0
        Store(path).close()
    finally:
        os.close(writing)
        os.close(reading)


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    code = """
import os, sys
from coldframe.control.store import Store
store = Store(sys.argv[1])
with store.transaction() as connection:
    connection.exec_driver_sql("CREATE TABLE things (name TEXT PRIMARY KEY)")
    connection.exec_driver_sql("INSERT INTO things VALUES ('kept')")
with store.transaction() as connection:
    connection.exec_driver_sql("INSERT INTO things VALUES ('not yet committed')")
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    store = Store(path)
    assert names(store) == ["kept"]
    store.close()


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "control.db"))
    store.close()
    store.close()
    with pytest.raises(LedgerUnavailable), store.transaction():
        pass


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 40)
    before = path.read_bytes()
    with pytest.raises(LedgerUnavailable):
        Store(str(path))
    assert path.read_bytes() == before


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    Store(path).close()
    raw = sqlite3.connect(path)
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    with pytest.raises(WrongState):
        Store(path)


def test_the_database_is_for_its_user_alone(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "control.db"))
    assert (tmp_path / "control.db").stat().st_mode & 0o077 == 0
    store.close()


def test_the_migrated_tables_equal_the_declared_ones(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    for module in pkgutil.iter_modules(coldframe.control.__path__):
        importlib.import_module(f"coldframe.control.{module.name}")
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE things")
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    assert differences == []


def test_a_new_database_is_what_all_migrations_make_of_an_empty_one(tmp_path: Path) -> None:
    from coldframe.control.migrations import TABLES, tables_text
    from coldframe.control.migrations.__main__ import migrated_from_nothing

    path = str(tmp_path / "control.db")
    Store(path).close()
    made, migrated = sqlite3.connect(path), migrated_from_nothing()
    try:
        again = "run `python -m coldframe.control.migrations` after a migration was added"
        assert Path(TABLES).read_text(encoding="utf-8") == tables_text(migrated), again
        assert tables_text(made) == tables_text(migrated)
        revision = "SELECT version_num FROM alembic_version"
        assert made.execute(revision).fetchall() == migrated.execute(revision).fetchall()
    finally:
        made.close()
        migrated.close()


def test_opening_a_new_or_a_current_database_does_not_load_the_migration_tool(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    code = "import sys; from coldframe.control.store import Store; Store(sys.argv[1]).close(); sys.exit('alembic' in sys.modules)"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0


def others_names(store: Store) -> list[str]:
    """What somebody with another connection sees: what is committed."""
    raw = sqlite3.connect(store.path)
    try:
        return [row[0] for row in raw.execute("SELECT name FROM things ORDER BY name")]
    finally:
        raw.close()


def put_off(store: Store, name: str) -> None:
    with store.transaction(may_wait=True) as connection:
        add(connection, name)


def test_what_was_put_off_is_seen_here_at_once_and_by_others_with_the_next_commit(store: Store) -> None:
    put_off(store, "a")
    put_off(store, "b")
    assert (names(store), others_names(store)) == (["a", "b"], ["a", "b"])  # the look itself was a transaction

    put_off(store, "c")
    assert [row[0] for row in store.read("SELECT name FROM things")] == ["a", "b", "c"]
    assert others_names(store) == ["a", "b"]
    store.settle()
    assert store.is_settled
    assert others_names(store) == ["a", "b", "c"]
    store.settle()


def test_closing_commits_what_was_put_off(tmp_path: Path, store: Store) -> None:
    put_off(store, "a")
    store.close()
    again = Store(store.path)
    assert names(again) == ["a"]
    again.close()


def test_a_transaction_that_fails_takes_nothing_of_what_was_put_off_with_it(store: Store) -> None:
    heard: list[str] = []
    with store.transaction(may_wait=True) as connection:
        add(connection, "a")
        store.after(lambda _: heard.append("a committed"), lambda: heard.append("a undone"))
    with pytest.raises(ZeroDivisionError), store.transaction() as connection:
        add(connection, "b")
        store.after(lambda _: heard.append("b committed"), lambda: heard.append("b undone"))
        _ = 1 // 0
    assert heard == ["b undone"]
    assert not store.is_settled
    store.settle()
    assert heard == ["b undone", "a committed"]
    assert others_names(store) == ["a"]


def test_more_rows_than_agreed_durable_ones_and_too_many_are_committed_at_once(store: Store) -> None:
    with store.transaction(may_wait=True) as connection:
        add(connection, "a")
        add(connection, "b")
    assert others_names(store) == ["a", "b"]
    with store.transaction(may_wait=True), store.transaction(durable=True) as connection:
        add(connection, "c")
    assert others_names(store) == ["a", "b", "c"]
    put_off(store, "d")
    with store.transaction(durable=True) as connection:
        assert others_names(store) == ["a", "b", "c", "d"]  # by itself, since it is not durable
        add(connection, "e")
    for number in range(MOST_PUT_OFF):
        put_off(store, f"f{number:02}")
    assert len(others_names(store)) == 5
    put_off(store, "g")
    assert len(others_names(store)) == 5 + MOST_PUT_OFF + 1


@pytest.mark.parametrize("by", ["settle", "next"])
def test_a_commit_that_fails_later_tells_whoever_went_on_that_it_is_lost(store: Store, by: str) -> None:
    heard: list[str] = []
    with store.transaction() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE parts (thing TEXT REFERENCES things (name) DEFERRABLE INITIALLY DEFERRED)"
        )
    with store.transaction(may_wait=True) as connection:
        connection.exec_driver_sql("INSERT INTO parts VALUES ('missing')")  # the commit will not go through
        store.after(lambda _: heard.append("committed"), lambda: heard.append("undone"), lambda: heard.append("lost"))
    if by == "settle":
        with pytest.raises(LedgerUnavailable):
            store.settle()
    else:
        with pytest.raises(LedgerUnavailable), store.transaction() as connection:
            add(connection, "next")
            store.after(lambda _: heard.append("next committed"), lambda: heard.append("next undone"))
    assert heard == (["lost"] if by == "settle" else ["lost", "next undone"])
    assert store.is_settled
    assert names(store) == []
    with store.transaction() as connection:
        add(connection, "later")
    assert others_names(store) == ["later"]


def test_a_durable_part_of_a_transaction_is_synced_also_while_somebody_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fdatasync

    def seen(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    def refuses(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", seen)
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM things").fetchone()
    heard: list[bool] = []
    for name in ("a", "b"):
        with store.transaction(), store.transaction(durable=True) as connection:
            add(connection, name)
            store.after(heard.append, lambda: None)
        assert synced.pop() == os.path.realpath(store.path + "-wal")
        assert synced == []
    monkeypatch.setattr(os, "fdatasync", refuses)
    with pytest.raises(LedgerUnavailable), store.transaction(), store.transaction(durable=True) as connection:
        add(connection, "c")
        store.after(heard.append, lambda: None)
    assert heard == [True, True, False]
    reader.close()


def test_another_thread_settles_what_was_put_off_here(store: Store) -> None:
    put_off(store, "a")
    thread = threading.Thread(target=store.settle)
    thread.start()
    thread.join()
    assert others_names(store) == ["a"]


def test_calls_by_key_of_an_older_database_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    Store(path).close()
    raw = sqlite3.connect(path)
    for later in (
        *("TABLE networks", "TABLE network_contacts", "INDEX ledger_rare"),
        *("INDEX ledger_rare_of", "INDEX sandboxes_created_at", "INDEX sandboxes_agent_id", "INDEX sandboxes_living"),
        *("TABLE credentials", "TABLE credential_handles", "TABLE contract_plans", "TABLE snapshots"),
        *("TABLE templates", "TABLE template_builds", "TABLE template_build_log"),
        *("TABLE volumes", "TABLE volume_uses", "TABLE open_calls_position"),
        *(
            "TABLE template_tags",
            "TABLE announced_builds",
            "TABLE template_archives",
            "TABLE leases",
            "TABLE access_tokens",
            "TABLE previews",
            "TABLE builds",
            "TABLE webhooks",
        ),
        *(f"TABLE lineage_{table}" for table in ("position", "heights", "steps", "items", "edges", "shared")),
    ):
        raw.execute(f"DROP {later}")
    raw.execute("DROP TABLE keyed_calls")
    raw.execute(
        "CREATE TABLE keyed_calls (token_id TEXT NOT NULL, key TEXT NOT NULL, request_sha256 TEXT NOT NULL, "
        "call_id TEXT NOT NULL, result TEXT, PRIMARY KEY (token_id, key))"
    )
    raw.execute("CREATE INDEX ix_keyed_calls_call_id ON keyed_calls (call_id)")
    raw.execute("INSERT INTO keyed_calls VALUES ('tok_1', 'k', 'digest', 'call_1', NULL)")
    raw.execute("UPDATE alembic_version SET version_num = '0002'")
    raw.commit()
    raw.close()
    store = Store(path)
    assert store.read("SELECT * FROM keyed_calls") == [("tok_1", "k", "digest", "call_1", None)]
    assert store.read("SELECT name FROM sqlite_master WHERE tbl_name LIKE 'keyed%' AND type = 'index'") == []
    store.close()
