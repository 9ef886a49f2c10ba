"""Addresses that events are announced to, with how far that has come."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("webhook_id", sa.Text, primary_key=True),
        sa.Column("terms", sa.Text, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("delivered_at", sa.Text, nullable=True),
        sa.Column("failing_since", sa.Text, nullable=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("last_error", sa.Text, nullable=True),
        sa.Column("is_dead", sa.Integer, nullable=False),
    )
