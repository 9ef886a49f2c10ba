"""Sandboxes with a network, how far their records are taken over, and their contacts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "networks",
        sa.Column("sandbox_id", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("closed", sa.Integer, nullable=False),
        sa.Column("denied_sums", sa.Text, nullable=False),
    )
    op.create_table(
        "network_contacts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("change", sa.Integer, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("command_id", sa.Text),
        sa.Column("contact_id", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("dialled", sa.Text),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("began_at", sa.Text, nullable=False),
        sa.Column("open", sa.Boolean, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("network_contacts_change", "network_contacts", ["sandbox_id", "change"])
    op.create_index("network_contacts_command_id", "network_contacts", ["command_id"])
    op.create_index("network_contacts_contact_id", "network_contacts", ["sandbox_id", "contact_id"])
    op.create_index("network_contacts_dialled", "network_contacts", ["dialled"])
    op.create_index("network_contacts_host", "network_contacts", ["host", "began_at"])
    op.create_index("network_contacts_sandbox_id", "network_contacts", ["sandbox_id"])
    op.create_index(
        "ledger_rare", "ledger", ["kind"], sqlite_where=sa.text("call_id IS NULL AND kind NOT LIKE 'network.%'")
    )
