"""Removes a tree that an agent made: any depth, any mode, no link followed.

`shutil.rmtree` gives up on deep trees (RecursionError at about a thousand levels) and on directories
without permission; this walks with descriptors, one level open at a time beside the path of names. The way
back up is `..`, so each level is known by its identity: if somebody who still lives moves a directory
meanwhile, the walk ends instead of going on in what lies above the tree.
"""

import contextlib
import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable

from coldframe.contract.errors import ColdframeError, IsolationUnavailable
from coldframe.host.templates.id_range import IdRange, clear_in_range, own_range

_log = logging.getLogger(__name__)


def remove_tree(path: str) -> None:
    """Remove *path* and everything below it. Missing is fine, also what somebody else removes meanwhile (a sweep does).

    What appears meanwhile is removed too. What root of a box has made belongs to an ordinary user's subordinate ids, as whom
    it is removed.

    Raises:
        OSError: something could not be removed even after its directory was made writable.
    """
    try:
        _remove_own(path)
    except PermissionError:
        ids = None
        with contextlib.suppress(IsolationUnavailable):
            ids = own_range()
        if ids is None or os.getuid() == 0:
            raise
        remove_in_range(path, ids)


def remove_in_range(path: str, ids: IdRange) -> None:
    """Remove a tree that holds files of the range, in a directory of this process's user. Nothing happens if it is gone."""
    if os.getuid() == 0:
        _remove_own(path)
    elif os.path.lexists(path):
        parent, name = os.path.split(path)
        clear_in_range(os.path.join(os.path.realpath(parent), name), ids)


def _remove_own(path: str) -> None:
    parent = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name = os.path.basename(path)
    try:
        if not _is_directory(parent, name):
            _unlink(parent, name)
            return
        trail = [(name, _identity(parent))]
        try:
            here = _enter(parent, name)
        except FileNotFoundError:
            return
        try:
            while trail:
                child = _next_directory(here)
                if child is not None:
                    with contextlib.suppress(FileNotFoundError):
                        deeper = _enter(here, child)
                        trail.append((child, _identity(here)))
                        os.close(here)
                        here = deeper
                    continue
                child, above = trail.pop()
                deeper, here = here, os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(deeper)
                if _identity(here) != above:
                    raise OSError(errno.ESTALE, "a directory was moved while its tree was removed", path)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(child, dir_fd=here)
        finally:
            os.close(here)
    finally:
        os.close(parent)


def remove_directory(path: str) -> None:
    """Out of sight in one step, then removed for good."""
    if not os.path.isdir(path):
        return
    grave = f"{path}.gone-{secrets.token_hex(4)}"
    os.rename(path, grave)
    remove_tree(grave)


def try_removal(what: str, remove: Callable[[], None]) -> bool:
    """Whether *remove* removed *what*. A sweep goes on without what cannot be removed; it is logged, and the next one
    tries again."""
    try:
        remove()
    except (OSError, ColdframeError) as error:
        _log.warning("`%s` could not be removed, the next sweep tries again: %s", what, error)
        return False
    return True


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def _is_directory(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    except FileNotFoundError:
        return False


def _unlink(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass


def _enter(parent: int, name: str) -> int:
    """Open a directory for removal, giving ourselves the permission if it lacks."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        here = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        # chmod by name would follow a link put there meanwhile
        held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{held}", 0o700)
        finally:
            os.close(held)
        here = os.open(name, flags, dir_fd=parent)
    if os.fstat(here).st_mode & 0o700 != 0o700:
        os.fchmod(here, 0o700)
    return here


def _next_directory(here: int) -> str | None:
    """Unlink what is no directory; name the first directory met, or None if all is gone."""
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            _unlink(here, entry.name)
    return None
