"""Shows volumes in a box: by descriptors, after bubblewrap has built it and before anything of it runs.

Where a volume stands is a place in a hostile workspace, whose names may be links that lead out of the box while it is
built. So bubblewrap is told nothing of it: each name is opened from the one above, no link is followed, and the volume is
mounted on the very directory that was opened. As root it comes as a mount of its own, with its users mapped to that of the
box; without root bubblewrap binds the directory to a staging place in the box's memory, from where it is moved.

Standard library only: it runs in the keeper, while that is privileged in the namespaces of the box.
"""

import errno
import os
from typing import Any, NamedTuple

from coldframe.host import confine

STAGE = "/opt/coldframe/volumes"
REFUSED = "attach the volume"
"""How a failure begins that has its cause in what stands at the place of a volume."""
_HELD = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class VolumeOrder(NamedTuple):
    """One volume of a keeper's order."""

    name: str
    at: str
    mode: str
    limit_bytes: int
    source: str
    """Directory of the host, for who is not root; empty where the mount comes as the descriptor `volumeN`."""


def orders(given: Any) -> list[VolumeOrder]:
    """As they travelled in the order."""
    return [VolumeOrder(*one) for one in given]


def staged(volumes: list[VolumeOrder]) -> tuple[tuple[str, str], ...]:
    """What bubblewrap binds where, for `place`."""
    return tuple((one.source, f"{STAGE}/{number}") for number, one in enumerate(volumes) if one.source)


def places_of_root(volumes: list[VolumeOrder]) -> tuple[str, ...]:
    """Where volumes stand in the root of a box that has that of the host, which is closed when they are placed."""
    return tuple(one.at for one in volumes if not one.at.startswith("/home/"))


def place(volumes: list[VolumeOrder], files: dict[str, int]) -> None:
    """Mount each at its place, in the box's view. Raises ConfineError."""
    for number, one in enumerate(volumes):
        tree = files.get(f"volume{number}", -1)
        if tree < 0:
            tree = _taken_from(f"{STAGE}/{number}", writable=one.mode == "rw")
        target = _open_place(one)
        try:
            confine.mount_tree(tree, one.at, place=target)
        finally:
            os.close(target)
            os.close(tree)
        if one.source:
            confine.detach(f"{STAGE}/{number}")


def _taken_from(stage: str, *, writable: bool) -> int:
    staged = os.open(stage, _HELD)
    try:
        tree = confine.open_tree(staged)
    finally:
        os.close(staged)
    confine.seal_tree(tree, confine.MOUNT_NOSUID | confine.MOUNT_NODEV | (0 if writable else confine.MOUNT_RDONLY))
    return tree


def _open_place(volume: VolumeOrder) -> int:
    """A descriptor of the directory where it is to stand, which is made if there is none, and has to be empty."""
    here = os.open("/", _HELD)
    try:
        for part in volume.at.strip("/").split("/"):
            try:
                below = os.open(part, _HELD, dir_fd=here)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=here)
                below = os.open(part, _HELD, dir_fd=here)
            os.close(here)
            here = below
        top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
        try:
            if os.listdir(top):
                raise confine.ConfineError(
                    f"{REFUSED} `{volume.name}`", f"`{volume.at}` holds files, which it would hide"
                )
        finally:
            os.close(top)
    except OSError as error:
        os.close(here)
        what = "a link or a file stands in the way" if error.errno == errno.ENOTDIR else error.strerror or str(error)
        raise confine.ConfineError(f"{REFUSED} `{volume.name}` at `{volume.at}`", what) from error
    except BaseException:
        os.close(here)
        raise
    return here
