"""Builds of workspaces, each with what went in and what came out."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("build_id", sa.Text, primary_key=True),
        sa.Column("pipeline_id", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("rebuild_of", sa.Text, nullable=True),
        sa.Column("keep_sandbox", sa.Integer, nullable=False),
        sa.Column("started_by", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text, nullable=True),
        sa.Column("outcome", sa.Text, nullable=True),
    )
    op.create_index("builds_pipeline_id", "builds", ["pipeline_id"], unique=True)
    op.create_index("builds_sandbox_id", "builds", ["sandbox_id", "started_at"])
    op.create_index("builds_agent_id", "builds", ["agent_id", "started_at"])
