"""The ledger, agents, sessions and tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ledger",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.Text),
        sa.Column("agent_id", sa.Text),
        sa.Column("session_id", sa.Text),
        sa.Column("call_id", sa.Text),
    )
    for name in ("sandbox_id", "agent_id", "session_id", "call_id"):
        op.create_index(f"ledger_{name}", "ledger", [name])
    # Partial, since every index costs each append 2 to 5 µs and most entries are about calls.
    op.create_index("ledger_subject", "ledger", ["subject"], sqlite_where=sa.text("subject IS NOT call_id"))
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER ledger_refuses_{verb.lower()} BEFORE {verb} ON ledger "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )

    op.create_table(
        "agents",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("workspace_label", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("deleted_at", sa.Text),
    )
    op.create_index(
        "agents_one_living", "agents", ["agent_id"], unique=True, sqlite_where=sa.text("state != 'deleted'")
    )

    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("taint", sa.Text, nullable=False),
        sa.Column("opened_at", sa.Text, nullable=False),
        sa.Column("closed_at", sa.Text),
        sa.Column("reset_from", sa.Text),
    )
    op.create_index("sessions_sandbox_id", "sessions", ["sandbox_id"])

    op.create_table(
        "tokens",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text),
        sa.Column("revoked_at", sa.Text),
    )
    op.create_index("tokens_digest", "tokens", ["digest"], unique=True)

    op.create_table(
        "history_position",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.Integer, nullable=False),
    )
