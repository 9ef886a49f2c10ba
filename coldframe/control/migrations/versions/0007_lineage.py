"""The index of lineage: steps (calls and contacts), what they gave, and which of that is known to have been an input."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "lineage_position",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("form", sa.Integer, nullable=False),
    )
    op.create_table(
        "lineage_heights",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("rank", sa.Integer, nullable=False),
    )
    op.create_table(
        "lineage_steps",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("step_id", sa.Text, nullable=False),
        sa.Column("started", sa.Integer, nullable=False),
        sa.Column("ended", sa.Integer, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text),
        sa.Column("leaves", sa.Boolean, nullable=False),
        sa.Column("left_running", sa.Boolean, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
    )
    op.create_index("lineage_steps_step_id", "lineage_steps", ["step_id"], unique=True)
    op.create_index("lineage_steps_session", "lineage_steps", ["session_id", "started"])
    op.create_index("lineage_steps_place", "lineage_steps", ["place", "started"])
    op.create_index("lineage_steps_ended", "lineage_steps", ["place", "ended"])
    op.create_index("lineage_steps_ended_at", "lineage_steps", ["place", "ended_at"])
    op.create_index("lineage_steps_left_running", "lineage_steps", ["place"], sqlite_where=sa.text("left_running"))
    op.create_index("lineage_steps_sandbox", "lineage_steps", ["sandbox_id"])
    op.create_table(
        "lineage_items",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("item_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("call", sa.Integer),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("session_id", sa.Text),
        sa.Column("heard", sa.Boolean, nullable=False),
        sa.Column("left", sa.Boolean, nullable=False),
        sa.Column("path", sa.Text),
        sa.Column("sha256", sa.Text),
        sa.Column("bytes", sa.Integer),
        sa.Column("host", sa.Text),
        sa.Column("port", sa.Integer),
        sa.Column("methods", sa.Text),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("assigned_at", sa.Text, nullable=False),
        sa.Column("certainty", sa.Text, nullable=False),
        sa.Column("retention", sa.Text, nullable=False),
    )
    op.create_index("lineage_items_item_id", "lineage_items", ["item_id"], unique=True)
    op.create_index("lineage_items_step", "lineage_items", ["step"])
    op.create_index("lineage_items_place", "lineage_items", ["place"])
    op.create_index("lineage_items_file", "lineage_items", ["place", "path"])
    op.create_index("lineage_items_path", "lineage_items", ["path"])
    op.create_index("lineage_items_sha256", "lineage_items", ["sha256"])
    op.create_index("lineage_items_host", "lineage_items", ["host"])
    op.create_index("lineage_items_sandbox_id", "lineage_items", ["sandbox_id"])
    op.create_index("lineage_items_agent_id", "lineage_items", ["agent_id"])
    op.create_index("lineage_items_session_id", "lineage_items", ["session_id"])
    op.create_table(
        "lineage_edges",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("item", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("certainty", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("lineage_edges_item", "lineage_edges", ["item"])
