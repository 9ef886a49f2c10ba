"""The database of control: one SQLite file in WAL mode, owned by one server process.

Every noun declares its own tables on `metadata` and runs its own statements; this file owns the
connection, transactions, migrations and the lock. All calls are synchronous and inline: a commit costs
about 10 µs, and an asynchronous layer costs ten times that. So nothing may be awaited inside a
transaction; a transaction joined from another task is refused, since it would mix two callers' writes.

A transaction may be put off: what it wrote is seen on this connection at once, and is committed with the next
one, or when `settle` asks for it. That is for what can be found out again after a crash, and for nothing else;
readers with a connection of their own ask for `settle` first. If that later commit fails, all of it is undone
and whoever wrote it is told so, so that it can be written again before anything else is.

SQLAlchemy builds and runs the statements of the nouns, but BEGIN and COMMIT are ours, on the very same
DBAPI connection: the ledger's append then costs no more than SQLite itself. A second database
connection in the process was rejected: it could not join the caller's transaction.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import sqlalchemy
from sqlalchemy.pool import StaticPool

from coldframe.contract.errors import LedgerUnavailable, WrongState
from coldframe.control.migrations import head_revision, make_tables, upgrade

BUSY_TIMEOUT_MS = 5000
"""How long to wait for a reader (a backup, `coldframe ledger verify`) that holds the file."""

CHECKPOINT_PAGES = 4000
"""Pages (16 MiB) of the log after which they go into the database file: two syncs, and most pages changed often."""
MOST_PUT_OFF = 16
"""Transactions that wait for a commit; one more, and all of them are committed. The head of the ledger may lag by few."""
MOST_ROWS_PUT_OFF = 1
"""Rows that a transaction may write and still be put off. A caller that wrote more than it meant to commits at once."""

MOST_KEPT = 4096
"""Parsed rows of one table that are kept at most."""

T = TypeVar("T")
metadata = sqlalchemy.MetaData()

_held_locks: set[int] = set()


def _let_go_in_child() -> None:
    # A forked child would hold the lock past the end of its parent, and no server could start again.
    for descriptor in _held_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_locks.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class _Undo(NamedTuple):
    """What to call when a transaction is undone."""

    undone: Callable[[], None]
    lost: Callable[[], None]
    """Instead, once the transaction had been put off: its caller has gone on."""


@dataclass
class _Open:
    """The transaction under way, or one that was put off."""

    task: object
    sync_later: bool = False
    put_off: int = 0
    """Transactions in it that wait for their commit."""
    kept: int = 0
    """Entries of `after_rollback` that belong to those."""
    after_commit: list[Callable[[bool], None]] = field(default_factory=list)
    after_rollback: list[_Undo] = field(default_factory=list)

    def undo(self, first: int) -> None:
        """Forget what was registered from *first* on, and call it."""
        undone, kept = self.after_rollback[first:], self.kept - first
        del self.after_rollback[first:]
        for number, entry in enumerate(undone):
            (entry.lost if number < kept else entry.undone)()


class Store:
    """The open database. One per process and data directory."""

    def __init__(self, path: str) -> None:
        """Open or make the database at *path*, bring its tables up to date, and own it until `close`.

        Raises:
            WrongState: another process has it open, or a newer version of this program made it.
            LedgerUnavailable: the file cannot be opened, written or read as a database.
        """
        self.path = path
        self._mutex = threading.RLock()
        self._open: _Open | None = None
        self._waiting: _Open | None = None
        self._closed = False
        self._lock_fd = _own(path + ".lock")
        try:
            # The mode is set by creation, before SQLite writes the first byte.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
            self._raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            self._raw.execute("PRAGMA journal_mode=WAL")
            self._raw.execute("PRAGMA synchronous=NORMAL")
            self._raw.execute("PRAGMA foreign_keys=ON")
            self._raw.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            self._raw.execute("PRAGMA temp_store=MEMORY")  # where savepoints keep what they may have to bring back
            self._engine = sqlalchemy.create_engine(
                "sqlite://", creator=lambda: self._raw, poolclass=StaticPool, isolation_level="AUTOCOMMIT"
            )
            self._connection = self._engine.connect()
            _migrate(self._connection, self._raw)
        except (sqlite3.Error, sqlalchemy.exc.DBAPIError, OSError) as error:
            _give_up(self._lock_fd)
            raise LedgerUnavailable(f"the database `{path}` cannot be opened: {error}", path=path) from error
        except BaseException:
            _give_up(self._lock_fd)
            raise

    @property
    def raw(self) -> sqlite3.Connection:
        """The DBAPI connection below, for hand-kept statements inside a transaction."""
        return self._raw

    @property
    def changes(self) -> int:
        """Rows that were written so far, also in transactions that were undone. While it stays, nothing new can be
        read: nobody else writes to this database. Undoing what was put off is not counted."""
        return self._raw.total_changes

    @property
    def is_settled(self) -> bool:
        """Whether everything that was written is committed."""
        return self._waiting is None

    def transaction(
        self, *, durable: bool = False, may_wait: bool = False
    ) -> AbstractContextManager[sqlalchemy.Connection]:
        """Run the block as one transaction; joined by inner uses, which are undone alone if they fail.

        *durable* makes the commit survive a power cut (about 0.3 ms, tails of 20 ms); otherwise it survives
        any crash of the process. *may_wait* puts the commit off, unless an inner use is durable or more than
        MOST_ROWS_PUT_OFF rows were written; `is_settled` tells, and the caller sees to it that `settle` is called soon.

        Raises:
            LedgerUnavailable: the database refused (full, read-only, damaged, closed); nothing was written.
        """
        return self._inner(durable) if self._joins() else self._outer(durable, may_wait)

    def settle(self) -> None:
        """Commit what was put off, if anything was. For readers with another connection, from any thread.

        Raises:
            LedgerUnavailable: it could not be, and is undone.
        """
        with self._mutex:
            if self._open is not None:
                raise RuntimeError("a transaction is under way")
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._commit(waiting, durable=False)

    def read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of one hand-kept SELECT, without a transaction of its own: 5 µs, for what every request asks.

        Inside a transaction of the same thread it sees what that has written; another thread's it waits for.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """
        with self._mutex:
            try:
                return self._raw.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise LedgerUnavailable(f"the database cannot be read: {error}", reason=str(error)) from error

    def after(
        self, commit: Callable[[bool], None], rollback: Callable[[], None], lost: Callable[[], None] | None = None
    ) -> None:
        """Call one of them when the transaction under way has ended; *commit* learns whether it was durable.

        *lost* is called in place of *rollback* if the transaction had been put off when it was undone.
        """
        if self._open is None:
            raise RuntimeError("no transaction is under way")
        self._open.after_commit.append(commit)
        self._open.after_rollback.append(_Undo(rollback, lost or rollback))

    def join(self, connection: sqlalchemy.Connection, *, durable: bool) -> None:
        """Write in the transaction of *connection* without one within it: for single statements, which are whole anyway."""
        if not self.is_joined_by(connection) or self._open is None:
            raise RuntimeError("the connection given has no transaction under way in this store")
        if not self._raw.in_transaction:  # Ended by SQLite itself, as a full disk makes it do.
            raise LedgerUnavailable("the transaction was ended by the database")
        self._open.sync_later = self._open.sync_later or durable

    def is_joined_by(self, connection: sqlalchemy.Connection) -> bool:
        """Whether *connection* is this store's, with a transaction under way."""
        return connection is self._connection and self._open is not None

    def close(self) -> None:
        """Give the database up. Idempotent."""
        with self._mutex:
            if self._closed:
                return
            try:
                self.settle()
            finally:
                if self._open is None:
                    self._closed = True
                    self._connection.close()
                    self._engine.dispose()
                    self._raw.close()
                    _give_up(self._lock_fd)

    def _joins(self) -> bool:
        with self._mutex:  # Waits for another thread's transaction; our own we hold already.
            if self._open is None:
                return False
            if self._open.task is not _current_task():
                raise RuntimeError("a transaction was left open over an await")
            return True

    @contextlib.contextmanager
    def _outer(self, durable: bool, may_wait: bool) -> Iterator[sqlalchemy.Connection]:
        with self._mutex:
            if self._closed:
                raise LedgerUnavailable("the database is closed", hint="start the server again")
            if durable:
                self.settle()  # SQLite takes no change of `synchronous` inside a transaction
            opened = self._begin(durable)
            first, rows = opened.kept, self._raw.total_changes
            commits = len(opened.after_commit)
            self._open, self._waiting = opened, None
            try:
                yield self._connection
                if opened.put_off:
                    self._raw.execute("RELEASE after_wait")
            except BaseException as error:
                del opened.after_commit[commits:]
                if opened.put_off and self._undo_block():
                    opened.undo(first)
                    self._waiting = opened
                else:
                    self._roll_back(opened)
                if durable:
                    self._sync_normal()
                if isinstance(error, (sqlite3.Error, sqlalchemy.exc.DBAPIError)) and not _is_clash(error):
                    raise _refused(error) from error
                raise
            finally:
                self._open = None
            written = self._raw.total_changes - rows
            if may_wait and not durable and not opened.sync_later and written <= MOST_ROWS_PUT_OFF:
                opened.put_off, opened.kept = opened.put_off + 1, len(opened.after_rollback)
                if opened.put_off <= MOST_PUT_OFF:
                    self._waiting = opened
                    return
            self._commit(opened, durable=durable)

    def _begin(self, durable: bool) -> _Open:
        """Open a transaction, or go on with the one that was put off."""
        opened = self._waiting
        try:
            if opened is not None and self._raw.in_transaction:
                self._raw.execute("SAVEPOINT after_wait")
                opened.task = _current_task()
                return opened
            if opened is not None:  # Ended by SQLite itself.
                self._waiting = None
                opened.undo(0)
            opened = _Open(_current_task())
            if durable:
                self._raw.execute("PRAGMA synchronous=FULL")
            self._raw.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if durable:
                self._sync_normal()
            raise _refused(error) from error
        return opened

    def _undo_block(self) -> bool:
        """Undo what was written since the transaction was put off. False if all of it has to go, or has gone."""
        try:
            if self._raw.in_transaction:
                self._raw.execute("ROLLBACK TO after_wait")
                self._raw.execute("RELEASE after_wait")
                return True
        except sqlite3.Error:
            pass
        return False

    def _commit(self, opened: _Open, *, durable: bool) -> None:
        try:
            self._raw.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(opened)
            raise _refused(error) from error
        finally:
            if durable:
                self._sync_normal()
        failure = self._sync_log() if opened.sync_later and not durable else None
        for done in opened.after_commit:
            done(durable or (opened.sync_later and failure is None))
        if failure is not None:
            raise LedgerUnavailable(f"the database cannot be synced: {failure}", reason=str(failure)) from failure

    def _sync_log(self) -> OSError | None:
        """Sync what was committed: SQLite takes no change of `synchronous` inside a transaction.

        A checkpoint would not always do it: it syncs nothing while somebody reads what was there before. SQLite has no
        locks on this file that closing it could drop.
        """
        try:
            log = os.open(self.path + "-wal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)
        except OSError as error:
            return error
        return None

    def _sync_normal(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._raw.execute("PRAGMA synchronous=NORMAL")

    @contextlib.contextmanager
    def _inner(self, durable: bool) -> Iterator[sqlalchemy.Connection]:
        opened = self._open
        if opened is None:
            raise RuntimeError("no transaction is under way")
        if not self._raw.in_transaction:  # Ended by SQLite itself, as a full disk makes it do.
            raise LedgerUnavailable("the transaction was ended by the database")
        opened.sync_later = opened.sync_later or durable
        commits, rollbacks = len(opened.after_commit), len(opened.after_rollback)
        self._raw.execute("SAVEPOINT inner_use")
        try:
            yield self._connection
        except BaseException:
            if self._raw.in_transaction:  # A full disk has ended the whole transaction already.
                self._raw.execute("ROLLBACK TO inner_use")
                self._raw.execute("RELEASE inner_use")
            del opened.after_commit[commits:]
            opened.undo(rollbacks)
            raise
        self._raw.execute("RELEASE inner_use")

    def _roll_back(self, opened: _Open) -> None:
        if self._raw.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._raw.execute("ROLLBACK")
        opened.undo(0)


def _current_task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Kept(Generic[T]):
    """Rows of one table as they were parsed, kept until they change.

    This process owns the database, so nobody else changes them. Whoever writes a row forgets it in the same
    transaction; if that is undone, what was read meanwhile is forgotten as well.
    """

    def __init__(self, store: Store, load: Callable[[str], T | None], *, absent_too: bool = False) -> None:
        """With *absent_too* it is kept as well that there is no such row, for keys that no stranger chooses."""
        self._store = store
        self._load = load
        self._absent_too = absent_too
        self._rows: dict[str, T | None] = {}

    def get(self, key: str) -> T | None:
        """The row of that key, or None."""
        found = self._rows.get(key)
        if found is None and key not in self._rows:
            found = self._load(key)
            if found is not None or self._absent_too:
                if len(self._rows) >= MOST_KEPT:
                    self._rows.clear()
                self._rows[key] = found
        return found

    def forget(self, key: str) -> None:
        """To be called inside the transaction that writes the row."""
        self._rows.pop(key, None)
        self._store.after(lambda _: None, lambda: self._drop(key))

    def forget_all(self) -> None:
        """What was made of the rows beside what they hold is made anew."""
        self._rows.clear()

    def _drop(self, key: str) -> None:
        self._rows.pop(key, None)


def _is_clash(error: BaseException) -> bool:
    """A broken constraint is the caller's to judge, not a failure of the database."""
    return isinstance(error, (sqlite3.IntegrityError, sqlalchemy.exc.IntegrityError))


def _refused(error: BaseException) -> LedgerUnavailable:
    cause = getattr(error, "orig", None) or error
    return LedgerUnavailable(f"the database refused the write: {cause}", reason=str(cause))


def _own(path: str) -> int:
    """Take the lock file for this process; the kernel gives it back however the process ends."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LedgerUnavailable(f"the lock file `{path}` cannot be opened: {error.strerror}", path=path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise WrongState(
            f"the data directory is in use by process {owner}",
            hint="use that server, or stop it first",
            pid=owner,
            path=path,
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    _held_locks.add(descriptor)
    return descriptor


def _give_up(descriptor: int) -> None:
    _held_locks.discard(descriptor)
    os.close(descriptor)


def _migrate(connection: sqlalchemy.Connection, raw: sqlite3.Connection) -> None:
    """Bring the tables up to date. The usual cases, a new database and nothing to do, need no import of Alembic."""
    tables = {str(row[0]) for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" in tables:
        revisions = [str(row[0]) for row in raw.execute("SELECT version_num FROM alembic_version")]
        if revisions == [head_revision()]:
            return

    connection.exec_driver_sql("SELECT 1")  # SQLAlchemy now counts itself in a transaction, so Alembic ends none.
    raw.execute("BEGIN IMMEDIATE")
    try:
        if tables:
            upgrade(connection)
        else:
            make_tables(raw)
        raw.execute("COMMIT")
    except BaseException:
        raw.execute("ROLLBACK")
        raise
