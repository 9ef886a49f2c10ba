"""Names that were only looked up, told from contacts that went somewhere."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("network_contacts", sa.Column("looked_up", sa.Boolean, nullable=False, server_default="0"))
