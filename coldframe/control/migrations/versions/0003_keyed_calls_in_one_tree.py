"""Calls by key in one tree: nearly every call writes a row, and each index of it costs a page of the log."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.rename_table("keyed_calls", "keyed_calls_0002")
    op.create_table(
        "keyed_calls",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("request_sha256", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=True),
        sqlite_with_rowid=False,
    )
    columns = "token_id, key, request_sha256, call_id, result"
    op.execute(f"INSERT INTO keyed_calls ({columns}) SELECT {columns} FROM keyed_calls_0002")  # noqa: S608
    op.drop_table("keyed_calls_0002")
