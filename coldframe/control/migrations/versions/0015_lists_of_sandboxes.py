"""Lists of sandboxes read the page that is asked for, whoever looks for the living reads no ended one, and what is on record
of one sandbox is found without reading what is on record of all others."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0013"


def upgrade() -> None:
    op.drop_index("ix_sandboxes_agent_id", "sandboxes", if_exists=True)
    op.create_index("sandboxes_created_at", "sandboxes", ["created_at", "sandbox_id"])
    op.create_index("sandboxes_agent_id", "sandboxes", ["agent_id", "created_at", "sandbox_id"])
    living = "json_extract(state, '$.state') NOT IN ('failed', 'lost', 'terminated')"
    op.create_index("sandboxes_living", "sandboxes", ["created_at", "sandbox_id"], sqlite_where=sa.text(living))
    rare = "call_id IS NULL AND kind NOT LIKE 'network.%'"
    op.create_index("ledger_rare_of", "ledger", ["sandbox_id", "kind"], sqlite_where=sa.text(rare))
