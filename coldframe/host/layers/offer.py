"""Which way of keeping layers works on this host, found out by doing it: nothing is concluded from version numbers.

The ladder, best first: overlayfs mounted by root, overlayfs in namespaces of the user's own, copies that share their
blocks, plain copies. A rung is never taken silently: whoever uses it says which, and why not the one above.
"""

import fcntl
import os
import stat
import tempfile
from typing import Literal, NamedTuple

from coldframe.host.layers.branch import OPAQUE, is_whiteout
from coldframe.host.layers.draft import FICLONE
from coldframe.host.layers.mounts import OwnPlace, Stacking, mount_stack, unmount_stack
from coldframe.host.removal import remove_tree

Way = Literal["mount", "own_place", "reflink", "copy"]


class Offer(NamedTuple):
    """The best way there is, and what kept each better one from being it."""

    way: Way
    reasons: dict[str, str]


def overlay_offered(directory: str) -> Offer:
    """Try the ways one after the other in *directory*, which has to lie where layers will be kept. Leaves nothing there.

    Takes a millisecond as root and some 40 as a user, for a process of its own; the answer holds until the next boot.
    """
    reasons: dict[str, str] = {}
    here = tempfile.mkdtemp(prefix="trial-", dir=directory)
    try:
        stacking = _trial(here)
        attempts: dict[Way, str | None] = {}
        if os.geteuid() == 0:
            attempts["mount"] = _by_root(stacking)
        attempts["own_place"] = "root mounts by itself" if os.geteuid() == 0 else _in_own_place(stacking)
        for way, failure in attempts.items():
            if failure is None:
                return Offer(way, reasons)
            reasons[way] = failure
        failure = _blocks_shared(here)
        if failure is None:
            return Offer("reflink", reasons)
        reasons["reflink"] = failure
        return Offer("copy", reasons)
    finally:
        remove_tree(here)


def _trial(here: str) -> Stacking:
    for name in ("lower/kept", "lower/hidden", "upper", "work", "merged"):
        os.makedirs(os.path.join(here, name))
    for name in ("lower/gone", "lower/hidden/below"):
        with open(os.path.join(here, name), "wb"):
            pass
    return Stacking(
        os.path.join(here, "merged"),
        (os.path.join(here, "lower"),),
        os.path.join(here, "upper"),
        os.path.join(here, "work"),
    )


def _by_root(stacking: Stacking) -> str | None:
    """What failed, or None."""
    try:
        mount_stack(stacking)
    except OSError as error:
        return f"overlayfs cannot be mounted: {error.strerror}"
    try:
        merged = os.open(stacking.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _misbehaves(merged, stacking.upper)
        finally:
            os.close(merged)
    finally:
        unmount_stack(stacking.target, lazy=True)


def _in_own_place(stacking: Stacking) -> str | None:
    try:
        with OwnPlace([stacking]) as place:
            return _misbehaves(place.directories[0], stacking.upper)
    except OSError as error:
        return f"no overlayfs in namespaces of one's own: {error.strerror}"


def _misbehaves(merged: int, upper: str) -> str | None:
    """Delete, hide and look whether the layer holds it in the form that is read here."""
    try:
        os.unlink("gone", dir_fd=merged)
        os.unlink("hidden/below", dir_fd=merged)
        os.rmdir("hidden", dir_fd=merged)
        os.mkdir("hidden", dir_fd=merged)
        if os.listdir(merged) and sorted(os.listdir(merged)) != ["hidden", "kept"]:
            return "overlayfs does not show what was done in it"
        if not is_whiteout(os.lstat(os.path.join(upper, "gone"))):
            return "overlayfs notes what is gone in another form"
        if os.getxattr(os.fsencode(os.path.join(upper, "hidden")), OPAQUE) != b"y":
            return "overlayfs notes what is hidden in another form"
        if not stat.S_ISDIR(os.lstat(os.path.join(upper, "hidden")).st_mode):
            return "overlayfs made no directory"
    except OSError as error:
        return f"overlayfs does not work: {error.strerror}"
    return None


def _blocks_shared(here: str) -> str | None:
    with open(os.path.join(here, "one"), "wb+") as one, open(os.path.join(here, "two"), "wb") as two:
        one.write(bytes(4096))
        one.flush()
        try:
            fcntl.ioctl(two, FICLONE, one.fileno())
        except OSError as error:
            return f"the file system shares no blocks between files: {error.strerror}"
    return None
