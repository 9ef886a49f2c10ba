"""Rows of volumes, and of which sandbox was made with which, as long as that has not ended.

A sandbox has its volumes as long as it has a box, and what that is stands in its own row: so nothing here can be left behind
that says somebody has one.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from coldframe.contract.policy import Label
from coldframe.contract.volume import AttachMode, VolumeGrant, VolumeHolder, VolumeInfo
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.store import Store, metadata
from coldframe.policy.labels import parse

volumes = sa.Table(
    "volumes",
    metadata,
    sa.Column("volume_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("size_mib", sa.Integer, nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("grants", sa.Text, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
)
sa.Index("volumes_name", volumes.c.name, unique=True)
volume_uses = sa.Table(
    "volume_uses",
    metadata,
    sa.Column("sandbox_id", sa.Text, primary_key=True),
    sa.Column("volume_id", sa.Text, primary_key=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("attached_at", sa.Text, nullable=True),
)
sa.Index("volume_uses_volume_id", volume_uses.c.volume_id)

_FIELDS = "volume_id, name, state, size_mib, label, grants, created_by, created_at"
_USES = """SELECT volume_uses.sandbox_id, volume_uses.volume_id, volume_uses.at, volume_uses.mode, volume_uses.attached_at,
sandboxes.agent_id, json_extract(sandboxes.state, '$.state') AS now FROM volume_uses JOIN sandboxes USING (sandbox_id)"""
HOLDING = ("starting", "running", "pausing", "paused", "resuming", "stopping")
"""States of a sandbox in which its volumes are its own."""
_LASTING = (*HOLDING, "stopped", "queued")


class VolumeRow(NamedTuple):
    volume_id: str
    name: str
    state: str
    """`making`, `ready`, `removing`."""
    size_mib: int
    label: str
    grants: str
    created_by: str
    created_at: str

    def info(self, holders: tuple[VolumeHolder, ...] = ()) -> VolumeInfo:
        return VolumeInfo(
            volume_id=self.volume_id,
            name=self.name,
            size_mib=self.size_mib,
            label=parse(self.label),
            created_by=self.created_by,
            created_at=parse_time(self.created_at),
            grants=self.granted,
            holders=holders,
        )

    @property
    def granted(self) -> tuple[VolumeGrant, ...]:
        return tuple(VolumeGrant.model_validate(one) for one in json.loads(self.grants))


class Use(NamedTuple):
    """That a sandbox was made with a volume."""

    sandbox_id: str
    volume_id: str
    at: str
    mode: AttachMode
    attached_at: str | None
    """None while it is not attached, as far as that is recorded."""
    agent_id: str | None
    now: str
    """State of the sandbox."""

    @property
    def holder(self) -> VolumeHolder:
        return VolumeHolder(
            sandbox_id=self.sandbox_id, agent_id=self.agent_id, at=self.at, mode=self.mode, state=self.now
        )


class VolumeRows:
    """The two tables."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, name: str) -> VolumeRow | None:
        return next(iter(self._select("name = ?", name)), None)

    def by_id(self, volume_id: str) -> VolumeRow | None:
        return next(iter(self._select("volume_id = ?", volume_id)), None)

    def all(self, *states: str) -> list[VolumeRow]:
        marks = ", ".join("?" * len(states))
        return self._select(f"state IN ({marks}) ORDER BY name", *states)

    def _select(self, where: str, *values: str) -> list[VolumeRow]:
        rows = self._store.read(f"SELECT {_FIELDS} FROM volumes WHERE {where}", values)  # noqa: S608  texts of ours
        return [VolumeRow._make(row) for row in rows]

    def add(self, row: VolumeRow, connection: sa.Connection) -> None:
        connection.execute(volumes.insert().values(row._asdict()))

    def change(self, volume_id: str, connection: sa.Connection, **values: object) -> None:
        connection.execute(volumes.update().where(volumes.c.volume_id == volume_id).values(values))

    def set_grants(self, row: VolumeRow, grants: Iterable[VolumeGrant], connection: sa.Connection) -> None:
        told = json.dumps([one.model_dump(mode="json") for one in sorted(grants, key=lambda one: one.agent_id)])
        self.change(row.volume_id, connection, grants=told)

    def remove(self, volume_id: str, connection: sa.Connection) -> None:
        connection.execute(volumes.delete().where(volumes.c.volume_id == volume_id))
        connection.execute(volume_uses.delete().where(volume_uses.c.volume_id == volume_id))

    # -- who has them --------------------------------------------------------------------------

    def are_used(self) -> bool:
        """Whether any sandbox has one, or will when it starts: what costs nothing where there are none."""
        return bool(self._store.read("SELECT 1 FROM volume_uses LIMIT 1"))

    def users(self, volume_id: str) -> list[Use]:
        """Sandboxes that have it, or will have it when they start."""
        return self._uses("volume_uses.volume_id = ?", volume_id, states=_LASTING)

    def of_sandbox(self, sandbox_id: str) -> list[Use]:
        rows = self._store.read(f"{_USES} WHERE volume_uses.sandbox_id = ?", (sandbox_id,))
        return [Use._make(row) for row in rows]

    def held(self) -> list[Use]:
        """By all sandboxes that have a box, or are about to."""
        return self._uses("1", states=HOLDING)

    def _uses(self, where: str, *values: str, states: tuple[str, ...]) -> list[Use]:
        marks = ", ".join("?" * len(states))
        query = f"{_USES} WHERE {where} AND now IN ({marks}) ORDER BY volume_uses.sandbox_id"
        return [Use._make(row) for row in self._store.read(query, (*values, *states))]

    def add_use(self, sandbox_id: str, volume_id: str, at: str, mode: str, connection: sa.Connection) -> None:
        values = {"sandbox_id": sandbox_id, "volume_id": volume_id, "at": at, "mode": mode, "attached_at": None}
        connection.execute(volume_uses.insert().values(values))

    def note_attached(self, sandbox_id: str, at: datetime | None, connection: sa.Connection) -> None:
        """That it has them from then on, or, without a time, no more."""
        when = None if at is None else format_time(at)
        connection.execute(volume_uses.update().where(volume_uses.c.sandbox_id == sandbox_id).values(attached_at=when))

    def forget_sandbox(self, sandbox_id: str, connection: sa.Connection) -> None:
        connection.execute(volume_uses.delete().where(volume_uses.c.sandbox_id == sandbox_id))


def new_row(volume_id: str, name: str, size_mib: int, label: Label, created_by: str, created_at: datetime) -> VolumeRow:
    return VolumeRow(volume_id, name, "making", size_mib, label.value, "[]", created_by, format_time(created_at))
