"""Calls by idempotency key: the same key is the same call, before and after a restart.

A key belongs to one token. Only calls that were let through have a row: a refused one is judged anew when it
is sent again. The row is written in the transaction of `call.started`, so a call either has both or neither.
Output of commands is not copied here; it is read again from where the box keeps it.
"""

import json
import re
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.errors import Conflict, InvalidArgument
from coldframe.control.store import Store, metadata

_KEY = re.compile(r"[\x21-\x7e]{1,200}")

keyed_calls = sa.Table(
    "keyed_calls",
    metadata,
    sa.Column("token_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_sha256", sa.Text, nullable=False),
    sa.Column("call_id", sa.Text, nullable=False, index=True),
    sa.Column("result", sa.Text, nullable=True),
)


_FIND = "SELECT call_id, request_sha256, result FROM keyed_calls WHERE token_id = ? AND key = ?"


class KeyedCall(NamedTuple):
    call_id: str
    result: dict[str, Any] | None
    """None while the outcome is not known."""


class KeyedCalls:
    """The table, and nothing else."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, token_id: str, key: str, request_sha256: str) -> KeyedCall | None:
        """Return the call made under that key.

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
        if known_request != request_sha256:
            raise Conflict(
                f"idempotency key `{key}` was used for another call",
                hint="use a new key for a new call",
                call_id=call_id,
            )
        return KeyedCall(call_id, None if result is None else json.loads(result))

    def open(self, token_id: str, key: str, request_sha256: str, call_id: str, *, connection: sa.Connection) -> None:
        connection.execute(
            keyed_calls.insert().values(token_id=token_id, key=key, request_sha256=request_sha256, call_id=call_id)
        )

    def close(self, call_id: str, result: dict[str, Any], *, connection: sa.Connection) -> None:
        """Keep the outcome, if the call has a key and no outcome yet."""
        connection.execute(
            keyed_calls.update()
            .where((keyed_calls.c.call_id == call_id) & keyed_calls.c.result.is_(None))
            .values(result=json.dumps(result))
        )

    def forget(self, call_id: str, *, connection: sa.Connection) -> None:
        """Give the key of a call back that certainly did nothing."""
        connection.execute(keyed_calls.delete().where(keyed_calls.c.call_id == call_id))
