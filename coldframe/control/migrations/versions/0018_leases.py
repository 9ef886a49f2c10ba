"""Sandboxes that are given for a time, and tokens that stand for somebody in one of them."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("sandbox_id", sa.Text, primary_key=True),
        sa.Column("token_id", sa.Text, nullable=False),
        sa.Column("ends_at", sa.Text),
        sa.Column("terms", sa.Text, nullable=False),
    )
    op.create_table(
        "access_tokens",
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("token_id", sa.Text, nullable=False),
    )
    op.create_index("access_tokens_of_sandbox", "access_tokens", ["sandbox_id", "token_id"], unique=True)
