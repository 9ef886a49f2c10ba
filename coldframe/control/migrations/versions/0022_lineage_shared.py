"""What steps of several places share, so that lineage goes on through volumes and snapshots."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "lineage_shared",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("shared", sa.Text, primary_key=True),
        sa.Column("writes", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("lineage_shared_shared", "lineage_shared", ["shared"])
