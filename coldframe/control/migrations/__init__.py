"""Changes of the database's tables, run at start: one file per revision in `versions/`, named `NNNN_what.py`.

A noun that adds or changes a table adds the next file here, and then runs `python -m coldframe.control.migrations`;
`tests/control/test_store.py` fails until the migrated tables equal the declared ones, and `tables.sql` both. Revisions
are the four digits of the file name and form one line.

A new database is made from `tables.sql`, which is what all migrations together make of an empty one: to load Alembic
and run them took longer than all else that a first start does.
"""

import os
import sqlite3

import sqlalchemy

from coldframe.contract.errors import WrongState

_HERE = os.path.dirname(os.path.abspath(__file__))
TABLES = os.path.join(_HERE, "tables.sql")
_BETWEEN = ";\n\n"


def head_revision() -> str:
    """The newest revision that this program knows."""
    return max(name[:4] for name in os.listdir(os.path.join(_HERE, "versions")) if name[:4].isdigit())


def make_tables(raw: sqlite3.Connection) -> None:
    """Make all tables in an empty database, within the transaction under way."""
    with open(TABLES, encoding="utf-8") as file:
        for statement in file.read().split(_BETWEEN):
            raw.execute(statement)


def tables_text(raw: sqlite3.Connection) -> str:
    """What `tables.sql` has to say to make a database like this one."""
    made = raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type != 'table', name")
    revision = f"INSERT INTO alembic_version VALUES ('{head_revision()}')"  # noqa: S608  a name of ours
    statements = [*(str(row[0]).strip() for row in made), revision]
    return _BETWEEN.join("\n".join(line.rstrip() for line in one.splitlines()) for one in statements) + ";\n"


def upgrade(connection: sqlalchemy.Connection, to: str = "head") -> None:
    """Run what is missing, inside the caller's transaction; with *to* as far as a version of before knew.

    Raises:
        WrongState: the database knows a revision that this program does not.
    """
    from alembic import command, util
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _HERE.replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except util.CommandError as error:
        raise WrongState(
            f"the database was made by another version of this program: {error}",
            hint="run the version that wrote it last, or a newer one",
        ) from error
