"""Templates: which version of a name is which digest, what is said of them, and how they were built."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "templates",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("build_id", sa.Text, nullable=True),
        sa.Column("known_good", sa.Text, nullable=True),
        sa.Column("withdrawn", sa.Text, nullable=True),
    )
    op.create_index("ix_templates_digest", "templates", ["digest"])
    op.create_table(
        "template_builds",
        sa.Column("build_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("recipe", sa.Text, nullable=False),
        sa.Column("recipe_sha256", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("started_by", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text, nullable=True),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("steps_done", sa.Integer, nullable=False),
        sa.Column("steps_cached", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=True),
        sa.Column("failed_step", sa.Integer, nullable=True),
        sa.Column("error", sa.Text, nullable=True),
        sa.Column("last_seq", sa.Integer, nullable=False),
    )
    op.create_index("ix_template_builds_state", "template_builds", ["state"])
    op.create_table(
        "template_build_log",
        sa.Column("build_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
