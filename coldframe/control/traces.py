"""What an installation has beside its ledger, and never without an entry there: so an empty ledger beside it is not new.

Whoever removes the ledger with head, checkpoints and keys leaves what looks like a beginning; this tells it from one.
The limits: whoever removes all of this as well leaves a new installation, and only copies of `checkpoints.jsonl`
elsewhere know better. Where the server may not list workspaces (it is another user than the host daemon), they are
counted by the links of their directory, which some file systems (btrfs, overlays) do not keep.
"""

import contextlib
import os
import sqlite3

from coldframe.contract.errors import InvalidArgument
from coldframe.contract.sandbox import checked_agent_id

_TABLES = ("tokens", "agents", "sandboxes")


def find_traces(connection: sqlite3.Connection | None, data_dir: str) -> list[str]:
    """In words; empty if there is none. *connection* is to the database of the installation at *data_dir*, if it has one."""
    found = []
    for table in _TABLES:
        if connection is None:
            break
        with contextlib.suppress(sqlite3.Error):  # it is not there
            if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():  # noqa: S608  names of ours
                found.append(table)
    if _has_workspaces(os.path.join(data_dir, "workspace")):
        found.append("workspaces")
    return found


def _has_workspaces(path: str) -> bool:
    """Whatever else lies there (`.snapshot`, `lost+found` of a volume) is nobody's."""
    try:
        with os.scandir(path) as entries:
            return any(one.is_dir(follow_symlinks=False) and _is_agent_id(one.name) for one in entries)
    except PermissionError:
        with contextlib.suppress(OSError):
            return os.stat(path).st_nlink > 2 + os.path.isdir(os.path.join(path, "lost+found"))
    except OSError:
        pass
    return False


def _is_agent_id(name: str) -> bool:
    try:
        return checked_agent_id(name) == name
    except InvalidArgument:
        return False
