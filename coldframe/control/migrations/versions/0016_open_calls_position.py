"""How far the ledger was looked through for calls that are under way, so that a start need not read all of it."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "open_calls_position",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("calls", sa.Text, nullable=False),
    )
