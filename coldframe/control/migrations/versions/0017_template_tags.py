"""Tags of templates, builds that are announced, and archives that were sent for them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "template_tags",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("build_id", sa.Text, nullable=True),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
    )
    op.create_table(
        "announced_builds",
        sa.Column("build_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("cpus", sa.Integer, nullable=False),
        sa.Column("memory_mib", sa.Integer, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("steps", sa.Text, nullable=True),
    )
    op.create_index("ix_announced_builds_name", "announced_builds", ["name"])
    op.create_table(
        "template_archives",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
    )
