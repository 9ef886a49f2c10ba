"""Shows a layer as another user's: a fork belongs to a sandbox user of its own, and the layers below it to whoever wrote them.

Nothing is copied or changed: the directory is mounted with its users mapped, and overlayfs takes what is mapped for what
it is. Takes root. Only the owner is mapped; whatever else is found in a layer is nobody's in a fork.

The user namespace that tells the map is made by a child that does nothing else, for a process cannot leave its own again.
"""

import ctypes
import errno
import os
import struct
from typing import NamedTuple

_SYS_OPEN_TREE, _SYS_MOUNT_SETATTR = 428, 442
"""On every architecture."""
_AT_EMPTY_PATH, _OPEN_TREE_CLONE, _NEW_USERS = 0x1000, 1, 0x10000000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 1, 2, 4, 0x100000

_libc = ctypes.CDLL(None, use_errno=True)


class Ownership(NamedTuple):
    """Whose files of a layer are, and whose they are to be."""

    stored: tuple[int, int]
    shown: tuple[int, int]


Extents = tuple[tuple[int, int, int], ...]
"""Lines of a map of users: the first that is stored, whose that is to be, and of how many."""


def mount_mapped(directory: int, ownership: Ownership) -> int:
    """As `mount_with_users`, for one user and group."""
    stored, shown = ownership
    return mount_with_users(directory, ((stored[0], shown[0], 1),), ((stored[1], shown[1], 1),))


def mount_with_users(directory: int, uids: Extents, gids: Extents) -> int:
    """A descriptor of a read-only mount of *directory* that stands nowhere, and is gone with it. Raises OSError.

    EINVAL where the kernel or the file system cannot map users.
    """
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC)
    tree = _checked(_libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), directory, b"", flags))
    try:
        users = _user_namespace(uids, gids)
        try:
            attributes = _ATTR_IDMAP | _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
            wanted = struct.pack("=QQQQ", attributes, 0, 0, users)
            size = ctypes.c_size_t(len(wanted))
            _checked(_libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), tree, b"", _AT_EMPTY_PATH, wanted, size))
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
