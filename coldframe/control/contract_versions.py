"""Versions of contracts as they are kept: the first one whole, a later one as what differs from the last whole one.

A change of the rules makes a version for every sandbox that runs, and it changes few of about two hundred lines: 300
sandboxes would write 9 MB for one word. What is read is the whole document again, as it was issued.
"""

import json
from typing import Any

import sqlalchemy as sa

from coldframe.contract.canonical import canonical
from coldframe.contract.document import SECTIONS
from coldframe.control.contract_lines import Lines
from coldframe.control.store import Store, metadata

contracts = sa.Table(
    "contracts",
    metadata,
    sa.Column("sandbox_id", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)

_SELECT = "SELECT document FROM contracts WHERE sandbox_id = ?"
_NEWEST = f"{_SELECT} ORDER BY version DESC LIMIT 1"
_ONE = f"{_SELECT} AND version = ?"
_INSERT = "INSERT INTO contracts (sandbox_id, version, sha256, document) VALUES (?, ?, ?, ?)"
_BASE = "differs_from"
"""In what is kept, and in no document: the version that is whole."""
LARGEST_SHARE = 0.25
"""Of the whole document; what differs by more is kept whole, and is what later ones differ from."""

Document = dict[str, Any]


class ContractVersions:
    """All versions of all sandboxes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self, sandbox_id: str) -> Document | None:
        """Return the newest one, None where there is none yet."""
        return self._whole(sandbox_id, self._store.read(_NEWEST, (sandbox_id,)))

    def find(self, sandbox_id: str, version: int) -> Document | None:
        """Return one as it was issued, None where there is no such version."""
        return self._whole(sandbox_id, self._store.read(_ONE, (sandbox_id, version)))

    def add(self, document: Document, text: str) -> None:
        """Keep *document*, whose canonical JSON is *text*, in the transaction of whoever issues it."""
        sandbox_id, kept = document["sandbox_id"], text
        base = self._base(sandbox_id)
        if base is not None:
            short = canonical({_BASE: base["version"], **_difference(base, document)})
            kept = short if len(short) <= LARGEST_SHARE * len(text) else text
        self._store.raw.execute(_INSERT, (sandbox_id, document["version"], document["sha256"], kept))

    def _base(self, sandbox_id: str) -> Document | None:
        rows = self._store.read(_NEWEST, (sandbox_id,))
        if not rows:
            return None
        newest: Document = json.loads(rows[0][0])
        return newest if _BASE not in newest else self._found(sandbox_id, newest[_BASE])

    def _whole(self, sandbox_id: str, rows: list[tuple[Any, ...]]) -> Document | None:
        if not rows:
            return None
        kept: Document = json.loads(rows[0][0])
        if _BASE not in kept:
            return kept
        base = self._found(sandbox_id, kept.pop(_BASE))
        sections = {name: _restored(base.get(name, []), kept.pop(name)) for name in SECTIONS if name in kept}
        return {**{name: base[name] for name in SECTIONS if name in base}, **sections, **kept}

    def _found(self, sandbox_id: str, version: int) -> Document:
        base: Document = json.loads(self._store.read(_ONE, (sandbox_id, version))[0][0])
        return base


def _difference(base: Document, document: Document) -> dict[str, Any]:
    """The head, and of each section that is another one the lines that are: by their place if they stand in the same
    order as before, else all of them."""
    found = {name: value for name, value in document.items() if name not in SECTIONS}
    for name in SECTIONS:
        before, now = base.get(name), document[name]
        if before == now:
            continue
        if before is not None and [line["id"] for line in before] == [line["id"] for line in now]:
            pairs = enumerate(zip(before, now, strict=True))
            found[name] = {str(place): line for place, (old, line) in pairs if old != line}
        else:
            found[name] = now
    return found


def _restored(before: Lines, kept: Lines | dict[str, Any]) -> Lines:
    if isinstance(kept, list):
        return kept
    return [kept.get(str(place), line) for place, line in enumerate(before)]
