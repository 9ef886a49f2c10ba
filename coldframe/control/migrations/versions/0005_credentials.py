"""Credentials, sealed, and the handles that sandboxes have in their place."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "credentials",
        sa.Column("credential_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("terms", sa.Text, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("added_by", sa.Text, nullable=False),
        sa.Column("rotated_at", sa.Text),
        sa.Column("revoked_at", sa.Text),
    )
    op.create_index(
        "credentials_one_living", "credentials", ["name"], unique=True, sqlite_where=sa.text("revoked_at IS NULL")
    )
    op.create_table(
        "credential_handles",
        sa.Column("handle", sa.Text, primary_key=True),
        sa.Column("credential_id", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
    )
    op.create_index("credential_handles_of_sandbox", "credential_handles", ["sandbox_id", "credential_id"], unique=True)
