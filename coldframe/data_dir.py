"""The data directory as it must be before anything runs in it: made, owned by the right users, with its first rules."""

import contextlib
import os
import pwd
import stat
from typing import NamedTuple

from coldframe.config import Settings
from coldframe.contract.errors import InvalidArgument

DEFAULT_SERVER_USER = "coldframe"
DEFAULT_SERVER_UID = 61_000
"""Used where there is no system user `coldframe`: above people and services, below the sandbox users."""


class ServerUser(NamedTuple):
    uid: int
    gid: int


def server_user(settings: Settings) -> ServerUser | None:
    """Whom the server runs as; None for the user who starts it.

    Raises:
        InvalidArgument: there is no such user, or it is root.
    """
    if os.geteuid() != 0:
        return None
    name = settings.server_user
    try:
        if name is None:
            found = pwd.getpwnam(DEFAULT_SERVER_USER)
        elif name.isdecimal():
            if int(name) == 0:
                raise InvalidArgument("the server never runs as root", argument="server_user")
            return ServerUser(int(name), int(name))
        else:
            found = pwd.getpwnam(name)
    except KeyError:
        if name is None:
            return ServerUser(DEFAULT_SERVER_UID, DEFAULT_SERVER_UID)
        raise InvalidArgument(f"there is no user `{name}`", argument="server_user") from None
    if found.pw_uid == 0:
        raise InvalidArgument(f"`{found.pw_name}` is root, and the server never runs as root", argument="server_user")
    return ServerUser(found.pw_uid, found.pw_gid)


def prepare_data_dir(settings: Settings) -> None:
    """Make the data directory with what the server needs, owned as it must be. Keeps what is there."""
    os.makedirs(settings.data_dir, mode=0o711, exist_ok=True)
    os.makedirs(settings.control_dir, mode=0o700, exist_ok=True)
    user = server_user(settings)
    if user is not None:
        _give(settings.control_dir, user)


def _give(directory: str, user: ServerUser) -> None:
    """Hand what root made in a tree to the server's user, whom it would lock out.

    The server owns the tree and may be hostile: links are not followed, and a file that also has another name
    (a hard link to something of root's) is left alone.
    """
    for folder, folders, files, descriptor in os.fwalk(directory, follow_symlinks=False):
        if folder == directory:
            os.fchown(descriptor, user.uid, user.gid)
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
                try:
                    status = os.fstat(found)
                    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
                    if status.st_uid == 0 and (plain or stat.S_ISDIR(status.st_mode)):
                        os.fchown(found, user.uid, user.gid)
                finally:
                    os.close(found)


def write_default_rules(path: str) -> bool:
    """Put the rules of an installation that has none beside its data, to be edited. Returns whether it did."""
    if os.path.lexists(path):
        return False
    from coldframe.policy.rules import DEFAULT_RULES

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(
            "# Rules of this Coldframe installation. Read at start; `coldframe policy load FILE` changes them while\n"
            "# it runs. What is not valid is refused with its line, and the old rules stay in force. No rule here\n"
            "# can lift the floor. These are the defaults.\n" + DEFAULT_RULES.text.rstrip() + "\n"
        )
    return True
