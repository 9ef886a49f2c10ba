"""Calls by idempotency key: the same key is the same call, before and after a restart.

A key belongs to one token. Only calls that were let through have a row: a refused one is judged anew when it
is sent again. The row is written in the transaction of `call.started`, so a call either has both or neither.
A command that ended has no outcome here: the ledger has its end, and the box keeps its result and output.
"""

import json
import re
import sqlite3
from collections import OrderedDict
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.errors import Conflict, InvalidArgument, LedgerUnavailable
from coldframe.control.store import Store, metadata

_KEY = re.compile(r"[\x21-\x7e]{1,200}")

keyed_calls = sa.Table(
    "keyed_calls",
    metadata,
    sa.Column("token_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_sha256", sa.Text, nullable=False),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=True),
    sqlite_with_rowid=False,
)


# Hand-kept, since nearly every call has a key: 10 µs each, against 300 for statements that SQLAlchemy builds.
_FIND = "SELECT call_id, request_sha256, result FROM keyed_calls WHERE token_id = ? AND key = ?"
_OPEN = "INSERT INTO keyed_calls (token_id, key, request_sha256, call_id) VALUES (?, ?, ?, ?)"
_WHERE_IS = "SELECT token_id, key FROM keyed_calls WHERE call_id = ?"
"""Reads the whole table: for calls of before a restart whose end is not known, which are few."""
_CLOSE = "UPDATE keyed_calls SET result = ? WHERE token_id = ? AND key = ? AND result IS NULL"
_FORGET = "DELETE FROM keyed_calls WHERE token_id = ? AND key = ?"
MOST_REMEMBERED = 4096
"""Calls whose key is at hand; any other is looked for."""


class KeyedCall(NamedTuple):
    call_id: str
    result: dict[str, Any] | None
    """None while the outcome is not known, and for a command whose end is in the ledger."""


class KeyedCalls:
    """The table, and nothing else."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def find(self, token_id: str, key: str, request_sha256: str, *older_sha256: str) -> KeyedCall | None:
        """Return the call made under that key. What the same request came to in earlier versions is known as well.

        Raises:
            InvalidArgument: the key is not 1 to 200 printable ASCII characters.
            Conflict: it was used for another request.
        """
        if not _KEY.fullmatch(key):
            raise InvalidArgument(
                "an idempotency key is 1 to 200 printable characters of ASCII without blanks",
                argument="idempotency_key",
            )
        rows = self._store.read(_FIND, (token_id, key))
        if not rows:
            return None
        call_id, known_request, result = rows[0]
        if known_request != request_sha256 and known_request not in older_sha256:
            raise Conflict(
                f"idempotency key `{key}` was used for another call",
                hint="use a new key for a new call",
                call_id=call_id,
            )
        return KeyedCall(call_id, None if result is None else json.loads(result))

    def open(self, token_id: str, key: str, request_sha256: str, call_id: str, *, connection: sa.Connection) -> None:
        self._write(_OPEN, (token_id, key, request_sha256, call_id), connection)
        self._places[call_id] = token_id, key
        if len(self._places) > MOST_REMEMBERED:
            self._places.popitem(last=False)

    def close(self, call_id: str, result: dict[str, Any], *, connection: sa.Connection) -> None:
        """Keep the outcome, if the call has a key and no outcome yet."""
        for place in self._places_of(call_id):
            self._write(_CLOSE, (json.dumps(result), *place), connection)

    def forget(self, call_id: str, *, connection: sa.Connection) -> None:
        """Give the key of a call back that certainly did nothing."""
        for place in self._places_of(call_id):
            self._write(_FORGET, place, connection)

    def _places_of(self, call_id: str) -> list[tuple[str, str]]:
        place = self._places.get(call_id)
        return [place] if place is not None else [(row[0], row[1]) for row in self._store.read(_WHERE_IS, (call_id,))]

    def _write(self, statement: str, values: tuple[str, ...], connection: sa.Connection) -> None:
        self._store.join(connection, durable=False)
        try:
            self._store.raw.execute(statement, values)
        except sqlite3.Error as error:
            raise LedgerUnavailable(f"the call cannot be recorded: {error}", reason=str(error)) from error
