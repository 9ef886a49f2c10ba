"""Contracts that were planned, for saying what has changed since."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "contract_plans",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("planned_at", sa.Text, nullable=False),
    )
    op.create_index("ix_contract_plans_planned_at", "contract_plans", ["planned_at"])
