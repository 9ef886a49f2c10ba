"""Which command has which of the control groups that are used again (see `groups.py`): written by the keeper, read by the host daemon.

    groups.claims      in the directory of records: at place N x SLOT_BYTES, `cN COMMAND`, for the group `cN`

A claim is written while nobody is in its group, before the command is forked, and the next one when the group is empty again.
So it is right for whoever is found in that group, however long ago the command ended that left it behind. The directory
belongs to the sandbox user, so what is read is taken as hostile; nothing in a box gets there.
"""

import contextlib
import os

from coldframe.guest.records import is_id

NAME = "groups.claims"
SLOT_BYTES = 128
SLOTS = 4096
"""Then the first is used again: so many groups do not live at once."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Claims:
    """Of one box, as its keeper writes them."""

    def __init__(self, records: int) -> None:
        """*records*: the directory. Raises OSError.

        What a keeper of before has claimed there is of groups that are gone, and may be another user's since the sandbox was promoted.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(NAME, dir_fd=records)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(NAME, flags, 0o600, dir_fd=records)

    def write(self, group: str, command_id: str) -> None:
        """*group* is empty, and *command_id*'s from now on. Raises OSError: nothing may run in it."""
        slot = f"{group} {command_id}\n".encode("ascii").ljust(SLOT_BYTES, b"\0")
        if os.pwrite(self._file, slot, _place(group)) != SLOT_BYTES:
            raise OSError(None, "the disk is full")


def read_claim(records: str, group: str) -> str | None:
    """The command that has the group; None if nobody has said so."""
    try:
        file = os.open(os.path.join(records, NAME), _READ)
    except OSError:
        return None
    try:
        slot = os.pread(file, SLOT_BYTES, _place(group))
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    name, _, rest = slot.partition(b" ")
    command_id = rest.partition(b"\n")[0].decode("ascii", "replace")
    return command_id if name == group.encode() and is_id(command_id) else None


def _place(group: str) -> int:
    """Raises ValueError for what is no name of a command's group."""
    return int(group.removeprefix("c")) % SLOTS * SLOT_BYTES
