"""Previews: shared ports, by the label of their address."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "previews",
        sa.Column("preview_id", sa.Text, primary_key=True),
        sa.Column("label_id", sa.Text, nullable=False),
        sa.Column("port", sa.Integer, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=True),
        sa.Column("public", sa.Integer, nullable=False),
        sa.Column("up_to", sa.Text, nullable=False),
        sa.Column("token_digest", sa.LargeBinary, nullable=True),
        sa.Column("cookie_key", sa.LargeBinary, nullable=False),
        sa.Column("terms", sa.Text, nullable=False),
        sa.Column("command_id", sa.Text, nullable=True),
        sa.Column("started_at", sa.Text, nullable=True),
        sa.Column("stopped_by", sa.Text, nullable=True),
        sa.Column("inputs", sa.Text, nullable=True),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text, nullable=True),
        sa.Column("revoked_at", sa.Text, nullable=True),
    )
    op.create_index("previews_address", "previews", ["label_id", "port"])
    op.create_index("previews_sandbox_id", "previews", ["sandbox_id"])
