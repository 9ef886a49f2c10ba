"""Output that rules have looked at, kept so that their decision can be replayed. Only where some rule reads output."""

import hashlib
import zlib
from collections.abc import Sequence

import sqlalchemy as sa

from coldframe.contract.errors import NotFound
from coldframe.control.store import Store, metadata

judged_outputs = sa.Table(
    "judged_outputs",
    metadata,
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("output", sa.LargeBinary, nullable=False),
)


_FORGET_ONE = "DELETE FROM judged_outputs WHERE call_id = ?"
_FORGET = "DELETE FROM judged_outputs WHERE call_id IN (SELECT call_id FROM ledger WHERE sandbox_id = ?)"


class JudgedOutputs:
    """The table, and nothing else. One row holds at most the 64 MiB that can be judged, compressed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, call_id: str, output: bytes, *, connection: sa.Connection) -> None:
        connection.execute(
            judged_outputs.insert().values(
                call_id=call_id, sha256=hashlib.sha256(output).hexdigest(), output=zlib.compress(output, 1)
            )
        )

    def forget(self, sandbox_id: str) -> None:
        """Remove what calls of a sandbox have shown. Their decisions cannot be replayed any more."""
        with self._store.transaction():
            self._store.raw.execute(_FORGET, (sandbox_id,))

    def forget_calls(self, call_ids: Sequence[str]) -> None:
        """The same for single calls."""
        with self._store.transaction():
            for call_id in call_ids:
                self._store.raw.execute(_FORGET_ONE, (call_id,))

    def find(self, call_id: str) -> bytes:
        """Return what was judged. Raises NotFound."""
        with self._store.transaction() as connection:
            found = connection.execute(
                sa.select(judged_outputs.c.output).where(judged_outputs.c.call_id == call_id)
            ).scalar_one_or_none()
        if found is None:
            raise NotFound(f"no output of call `{call_id[:80]}` was kept for replay", call_id=call_id[:80])
        return zlib.decompress(found)
