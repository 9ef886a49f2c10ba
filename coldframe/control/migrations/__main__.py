"""Write `tables.sql` anew, after a migration was added: `python -m coldframe.control.migrations`."""

import sqlite3

import sqlalchemy
from sqlalchemy.pool import StaticPool

from coldframe.control.migrations import TABLES, tables_text, upgrade


def migrated_from_nothing() -> sqlite3.Connection:
    """A database in memory that all migrations were run on."""
    raw = sqlite3.connect(":memory:", isolation_level=None)
    engine = sqlalchemy.create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    with engine.connect() as connection:
        upgrade(connection)
        connection.commit()
    return raw


if __name__ == "__main__":
    with open(TABLES, "w", encoding="utf-8") as file:
        file.write(tables_text(migrated_from_nothing()))
