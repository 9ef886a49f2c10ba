"""Sandboxes with their contracts, rule sets, and calls by idempotency key."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("sandbox_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, nullable=True, index=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("report", sa.Text, nullable=True),
        sa.Column("workspace_label", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_table(
        "contracts",
        sa.Column("sandbox_id", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "rule_sets",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False, index=True),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("loaded_at", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "keyed_calls",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("request_sha256", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False, index=True),
        sa.Column("result", sa.Text, nullable=True),
    )
    op.create_table(
        "judged_outputs",
        sa.Column("call_id", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("output", sa.LargeBinary, nullable=False),
    )
