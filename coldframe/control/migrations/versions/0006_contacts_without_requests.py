"""Contacts without their requests, which are many and seldom asked for, and indexes that are in the order of contacts."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("network_contacts", sa.Column("requests", sa.Text, nullable=False, server_default="[]"))
    op.execute(
        "UPDATE network_contacts SET requests = json_extract(document, '$.requests'), "
        "document = json_remove(document, '$.requests')"
    )
    op.drop_index("network_contacts_host", "network_contacts")
    op.create_index("network_contacts_host", "network_contacts", ["host"])
    op.create_index("network_contacts_agent_id", "network_contacts", ["agent_id"])
