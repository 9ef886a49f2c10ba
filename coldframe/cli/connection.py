"""How a subcommand reaches the installation: its server, or its data directory where no server runs."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coldframe.cli.output import Chosen

if TYPE_CHECKING:
    from coldframe.client.sync import SyncColdframe
    from coldframe.config import Settings
    from coldframe.control.ledger import Ledger


def settings() -> "Settings":
    from coldframe.config import load_settings

    return load_settings(data_dir=Chosen.data_dir)


def connect() -> "SyncColdframe":
    """A client of the server that the options, the environment or the local installation name."""
    from coldframe.client.location import find_location
    from coldframe.client.sync import SyncColdframe

    location = find_location(Chosen.url, Chosen.token, data_dir=settings().data_dir)
    return SyncColdframe(location.url, location.token)


def connect_if_running() -> "SyncColdframe | None":
    """A client, or None if nobody named a server and the local one does not answer."""
    from coldframe.contract.errors import Unavailable

    client = connect()
    try:
        client.health()
    except Unavailable:
        client.close()
        if Chosen.url or os.environ.get("COLDFRAME_URL"):
            raise
        return None
    return client


def ledger_files() -> tuple[str, str]:
    """Database and ledger directory of an installation whose server does not run.

    As root the rights of the directory's owner are taken on, so that no file of root's is left in it.

    Raises:
        NotFound: there is no installation.
    """
    from coldframe.contract.errors import NotFound

    chosen = settings()
    database = os.path.join(chosen.control_dir, "coldframe.db")
    if not os.path.exists(database):
        raise NotFound(
            f"there is no installation in `{chosen.data_dir}`", hint="start one with `coldframe up`, or give --data-dir"
        )
    if os.geteuid() == 0:
        from coldframe.data_dir import prepare_data_dir

        prepare_data_dir(chosen)
        owner = os.stat(chosen.control_dir)
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    return database, os.path.join(chosen.control_dir, "ledger")


@contextlib.contextmanager
def open_ledger() -> "Iterator[Ledger]":
    """The ledger straight from the data directory.

    Raises:
        NotFound: there is no installation.
        WrongState: a server has it open after all.
    """
    from datetime import UTC, datetime

    from coldframe.control.ledger import Ledger
    from coldframe.control.store import Store

    database, directory = ledger_files()
    store = Store(database)
    try:
        ledger = Ledger(store, directory, lambda: datetime.now(UTC))
        try:
            yield ledger
        finally:
            ledger.close()
    finally:
        store.close()
