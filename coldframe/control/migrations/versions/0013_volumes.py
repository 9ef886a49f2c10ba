"""Volumes, and which sandbox was made with which."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "volumes",
        sa.Column("volume_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("size_mib", sa.Integer, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("grants", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_index("volumes_name", "volumes", ["name"], unique=True)
    op.create_table(
        "volume_uses",
        sa.Column("sandbox_id", sa.Text, primary_key=True),
        sa.Column("volume_id", sa.Text, primary_key=True),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("attached_at", sa.Text, nullable=True),
    )
    op.create_index("volume_uses_volume_id", "volume_uses", ["volume_id"])
