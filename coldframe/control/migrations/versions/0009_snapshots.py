"""Snapshots: who took them, of what, and how the data in them is labelled."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "snapshots",
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
    op.create_index("snapshots_snapshot_id", "snapshots", ["snapshot_id"], unique=True)
    op.create_index("snapshots_agent_id", "snapshots", ["agent_id"])
