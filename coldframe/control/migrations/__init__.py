"""Changes of the database's tables, run at start: one file per revision in `versions/`, named `NNNN_what.py`.

A noun that adds or changes a table adds the next file here; `tests/control/test_store.py` fails until the
migrated tables equal the declared ones. Revisions are the four digits of the file name and form one line.
"""

import os

import sqlalchemy

from coldframe.contract.errors import WrongState

_HERE = os.path.dirname(os.path.abspath(__file__))


def head_revision() -> str:
    """The newest revision that this program knows."""
    return max(name[:4] for name in os.listdir(os.path.join(_HERE, "versions")) if name[:4].isdigit())


def upgrade(connection: sqlalchemy.Connection) -> None:
    """Run what is missing, inside the caller's transaction.

    Raises:
        WrongState: the database knows a revision that this program does not.
    """
    from alembic import command, util
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _HERE.replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except util.CommandError as error:
        raise WrongState(
            f"the database was made by another version of this program: {error}",
            hint="run the version that wrote it last, or a newer one",
        ) from error
