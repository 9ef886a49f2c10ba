"""Rows of snapshots. A row is there before a snapshot is, so that a crash leaves something to find it again by."""

import json
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from coldframe.contract.policy import Label
from coldframe.contract.snapshot import SnapshotFacts, SnapshotInfo, WorkspacePoint
from coldframe.control.ledger import format_time, parse_time
from coldframe.control.store import metadata
from coldframe.policy.labels import parse

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("act_id", sa.Text, primary_key=True),
    sa.Column("snapshot_id", sa.Text, nullable=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=True),
    sa.Column("session_id", sa.Text, nullable=True),
    sa.Column("sandbox_id", sa.Text, nullable=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("taken_by", sa.Text, nullable=False),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Text, nullable=True),
    sa.Column("measured", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=True),
)
sa.Index("snapshots_snapshot_id", snapshots.c.snapshot_id, unique=True)
sa.Index("snapshots_agent_id", snapshots.c.agent_id)

MEASURED = {"bytes", "files", "own_bytes", "was_live", "frozen_ms", "system", "left_out"}


class Row(NamedTuple):
    act_id: str
    snapshot_id: str | None
    """None until the host has told it."""
    state: str
    """`taking`, `ready`, `lost`, `removing`."""
    agent_id: str | None
    session_id: str | None
    """Of a temporary workspace."""
    sandbox_id: str | None
    name: str
    label: str
    reason: Any
    taken_by: str
    created_at: str
    expires_at: str | None
    measured: str
    sha256: str | None

    @property
    def workspace(self) -> WorkspacePoint | None:
        if self.agent_id is None and self.session_id is None:
            return None
        return WorkspacePoint(agent_id=self.agent_id, session_id=self.session_id)

    @property
    def info(self) -> SnapshotInfo:
        """Of one that the host has told."""
        return SnapshotInfo(
            snapshot_id=self.snapshot_id or "",
            state="lost" if self.state == "lost" else "ready",
            name=self.name,
            label=parse(self.label),
            reason=self.reason,
            created_at=parse_time(self.created_at),
            expires_at=None if self.expires_at is None else parse_time(self.expires_at),
            agent_id=self.agent_id,
            sandbox_id=self.sandbox_id,
            taken_by=self.taken_by,
            sha256=self.sha256,
            **json.loads(self.measured),
        )


FIELDS = ", ".join(Row._fields)
SHOWN = "state IN ('ready', 'lost')"


def measured_of(facts: SnapshotFacts) -> str:
    return json.dumps(facts.model_dump(mode="json", include=MEASURED))


def sizes_of(row: Row) -> tuple[int | None, int | None]:
    """On disk for this one alone, and of all its files; None for what is not counted."""
    measured = json.loads(row.measured)
    return measured.get("own_bytes"), measured.get("bytes")


def values_of(
    act_id: str,
    facts: SnapshotFacts | None,
    *,
    state: str,
    workspace: WorkspacePoint | None,
    sandbox_id: str | None,
    name: str,
    label: Label,
    reason: str,
    taken_by: str,
    created_at: datetime,
    expires_at: datetime | None,
) -> dict[str, Any]:
    """A new row. *facts* are there once the host has told them."""
    return {
        "act_id": act_id,
        "snapshot_id": None if facts is None else facts.snapshot_id,
        "state": state,
        "agent_id": None if workspace is None else workspace.agent_id,
        "session_id": None if workspace is None else workspace.session_id,
        "sandbox_id": sandbox_id,
        "name": name,
        "label": label.value,
        "reason": reason,
        "taken_by": taken_by,
        "created_at": format_time(created_at),
        "expires_at": None if expires_at is None else format_time(expires_at),
        "measured": "{}" if facts is None else measured_of(facts),
        "sha256": None,
    }
