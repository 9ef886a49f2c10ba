"""Gives a box that stands without one its workspace, by mounts that are nowhere on their way there.

A mount can be copied only out of a namespace that one has rights over, and set down only in such a one; in between it is a
descriptor. As root the host daemon copies it, and the keeper, which has rights over its box alone, sets it down. An ordinary
user has no rights over the machine's mounts. So there a keeper that waits holds a copy of that whole namespace that
belongs to the box's outer user namespace (`Outside`): it copies the workspace in there, as that user, and then goes back.
That copy goes before the keeper gives its rights away, and so before anything runs in the box.

What bubblewrap does for a box that is built around its workspace is done here in the same way: mounts below are taken along,
nosuid and nodev, the history read-only, and what is mounted there on the machine later appears in the box.

Standard library only: it runs in keepers.
"""

import contextlib
import os
import stat
from typing import NamedTuple

from coldframe.host import confine
from coldframe.host.isolation.namespaces import HOME

_HISTORY = f"{HOME}/.exec_history"
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(NamedTuple):
    """A workspace, as the machine has it."""

    workspace: str
    identity: tuple[int, int]
    """Device and inode of its directory."""
    history: str


class Trees(NamedTuple):
    """Its mounts, nowhere. Descriptors; whoever has them closes them."""

    workspace: int
    history: int

    def close(self) -> None:
        for tree in self:
            os.close(tree)


def identity_of(directory: str) -> tuple[int, int]:
    status = os.stat(directory)
    return status.st_dev, status.st_ino


def copy_trees(place: Place) -> Trees:
    """In a mount namespace that one has rights over. Raises OSError, ConfineError: it is not what it should be."""
    with contextlib.ExitStack() as opened:

        def held(path: str, flags: int = 0) -> int:
            file = os.open(path, _LOOK | flags)
            opened.callback(os.close, file)
            return file

        workspace = held(place.workspace, os.O_DIRECTORY)
        status = os.fstat(workspace)
        if (status.st_dev, status.st_ino) != tuple(place.identity):
            raise confine.ConfineError("take the workspace along", "another one is mounted there")
        history = held(place.history)
        if not stat.S_ISREG(os.fstat(history).st_mode):  # its directory is the box's
            raise confine.ConfineError("take the history along", "it is not a file")
        trees = [confine.open_tree(workspace)]
        try:
            confine.seal_tree(trees[0], confine.MOUNT_NOSUID | confine.MOUNT_NODEV)
            trees.append(confine.open_tree(history))
            confine.seal_tree(trees[1], confine.MOUNT_RDONLY | confine.MOUNT_NOSUID | confine.MOUNT_NODEV)
        except BaseException:
            for tree in trees:
                os.close(tree)
            raise
    return Trees(*trees)


def attach(trees: Trees) -> None:
    """In the box, privileged. Raises OSError, ConfineError; the box must end then."""
    try:
        confine.mount_tree(trees.workspace, HOME)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(_HISTORY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        confine.mount_tree(trees.history, _HISTORY)
    finally:
        trees.close()


class Outside:
    """The machine's mounts, as a keeper keeps them that has entered its box."""

    def __init__(self, box: int, root: int) -> None:
        """`before_mounts` of the join: *box* is its mount namespace, *root* its root. Raises OSError, ConfineError."""
        confine.unshare("mnt")
        self._machine = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._box, self._root = os.dup(box), os.dup(root)

    def copy_trees(self, place: Place) -> Trees:
        """As the function; afterwards one is in the box again."""
        confine.setns(self._machine, "mnt")
        try:
            return copy_trees(place)
        finally:
            confine.setns(self._box, "mnt")
            os.fchdir(self._root)
            os.chroot(".")
            os.chdir("/")

    def close(self) -> None:
        for file in (self._machine, self._box, self._root):
            os.close(file)
