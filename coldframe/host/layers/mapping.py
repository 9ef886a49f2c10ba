"""Shows a layer as another user's: a fork belongs to a sandbox user of its own, and the layers below it to whoever wrote them.

Nothing is copied or changed: the directory is mounted with its users mapped, and overlayfs takes what is mapped for what
it is. Takes root. Where it is known whom the users inside were when the layer was written (`Users`) all of them are mapped, so
that numbers inside stay what they are; else the owner alone, and whatever else is found in a layer is nobody's in a fork.

The user namespace that tells the map is made by a child that does nothing else, for a process cannot leave its own again.
"""

import ctypes
import errno
import os
import struct
from typing import NamedTuple

SYS_OPEN_TREE, SYS_MOUNT_SETATTR = 428, 442
"""On every architecture."""
_AT_EMPTY_PATH, _OPEN_TREE_CLONE, _NEW_USERS = 0x1000, 1, 0x10000000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, _ATTR_IDMAP = 1, 2, 4, 0x100000

_libc = ctypes.CDLL(None, use_errno=True)


COUNT, INSIDE = 65_536, 1000
"""How many users a box has, and which of them the workspace belongs to."""
Extents = tuple[tuple[int, int, int], ...]
"""Lines of a map of users: the first that is stored, whose that is to be, and of how many."""


class Ownership(NamedTuple):
    """Whose files of a layer are, and whose they are to be."""

    stored: tuple[int, int]
    shown: tuple[int, int]


class Users(NamedTuple):
    """Whom the users inside of a box are on the host: a range, but for the one that the workspace belongs to."""

    first: tuple[int, int]
    """User and group that are 0 inside."""
    own: tuple[int, int]
    """Of the sandbox user, who is INSIDE."""

    def outside(self, number: int, *, of_groups: bool = False) -> int:
        """Whom a user, or a group, of the box is on the host."""
        return self.own[of_groups] if number == INSIDE else self.first[of_groups] + number

    def inside(self, number: int, *, of_groups: bool = False) -> int | None:
        """Whom a user, or a group, of the host is in the box; None for nobody."""
        if number == self.own[of_groups]:
            return INSIDE
        found = number - self.first[of_groups]
        return found if 0 <= found < COUNT and found != INSIDE else None

    def extents(self, *, of_groups: bool = False) -> Extents:
        """First inside, whom that is on the host, and of how many."""
        first, own = self.first[of_groups], self.own[of_groups]
        return (0, first, INSIDE), (INSIDE, own, 1), (INSIDE + 1, first + INSIDE + 1, COUNT - INSIDE - 1)


def shown_as(stored: Users, shown: Users) -> tuple[Extents, Extents]:
    """The maps of users and groups by which files of the one are files of the other."""
    uids, gids = (
        tuple(
            (there, here, count)
            for (_, there, count), (_, here, _) in zip(
                stored.extents(of_groups=of_groups), shown.extents(of_groups=of_groups), strict=True
            )
        )
        for of_groups in (False, True)
    )
    return uids, gids


def moved(owner: tuple[int, int], stored: Users, shown: Users) -> tuple[int, int]:
    """Whose a file of the one is in the files of the other; the sandbox user's, if it was nobody's."""
    uid, gid = (stored.inside(owner[of_groups], of_groups=bool(of_groups)) for of_groups in (0, 1))
    return (
        shown.own[0] if uid is None else shown.outside(uid),
        shown.own[1] if gid is None else shown.outside(gid, of_groups=True),
    )


def mount_mapped(directory: int, ownership: Ownership) -> int:
    """As `mount_with_users`, for one user and group."""
    stored, shown = ownership
    return mount_with_users(directory, ((stored[0], shown[0], 1),), ((stored[1], shown[1], 1),))


def mount_with_users(directory: int, uids: Extents, gids: Extents, *, writable: bool = False) -> int:
    """A descriptor of a mount of *directory* that stands nowhere, and is gone with it; read-only unless *writable*.
    Raises OSError.

    EINVAL where the kernel or the file system cannot map users.
    """
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC)
    tree = _checked(_libc.syscall(ctypes.c_long(SYS_OPEN_TREE), directory, b"", flags))
    try:
        users = _user_namespace(uids, gids)
        try:
            attributes = _ATTR_IDMAP | ATTR_NOSUID | ATTR_NODEV | (0 if writable else ATTR_RDONLY)
            wanted = struct.pack("=QQQQ", attributes, 0, 0, users)
            size = ctypes.c_size_t(len(wanted))
            _checked(_libc.syscall(ctypes.c_long(SYS_MOUNT_SETATTR), tree, b"", _AT_EMPTY_PATH, wanted, size))
        finally:
            os.close(users)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _user_namespace(uids: Extents, gids: Extents) -> int:
    """A descriptor of one that maps these users."""
    made, make = os.pipe2(os.O_CLOEXEC)
    waits, go = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            if _libc.unshare(_NEW_USERS) == 0:
                os.write(make, b".")
                os.read(waits, 1)
        finally:
            os._exit(0)
    os.close(make)
    os.close(waits)
    try:
        if os.read(made, 1) != b".":
            raise OSError(errno.EPERM, "no user namespace can be made")
        for name, extents in (("uid_map", uids), ("gid_map", gids)):
            with open(f"/proc/{child}/{name}", "w", encoding="ascii") as table:
                table.write("\n".join(" ".join(map(str, extent)) for extent in extents))
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(made)
        os.close(go)
        os.waitpid(child, 0)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
