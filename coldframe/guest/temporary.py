"""What lies in the memory file systems of a box, counted by the kernel or told by name: it is lost when the box ends."""

import os
import stat
from typing import Any

from coldframe.guest.facts import text_of
from coldframe.guest.verbs import Answer, verb

_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OPEN = 500
"""Folders that are held while others are looked at."""
PLACES = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - of the box, and only looked at
"""Where a box has them, as far as it has; those that are one file system are counted once."""


def weigh_temporary() -> dict[str, int]:
    """Fields of TemporaryFiles. Raises OSError."""
    files = used = 0
    seen: set[int] = set()
    for place in PLACES:
        try:
            device = os.stat(place).st_dev
        except FileNotFoundError:
            continue
        if device not in seen and os.path.ismount(place):
            seen.add(device)
            counted = os.statvfs(place)
            files += counted.f_files - counted.f_ffree - 1  # but for its own root
            used += (counted.f_blocks - counted.f_bfree) * counted.f_frsize
    return {"files": files, "bytes": used}


@verb("list_temporary", slow=True)
def list_temporary(root: int, request: dict[str, Any], content: bytes) -> Answer:
    """Answer a ListTemporary. No link is followed, and nothing that is mounted below."""
    most = int(request["most"])
    found: list[bytes] = []
    complete = True
    seen: set[tuple[int, int]] = set()
    for place in PLACES:
        try:
            status = os.stat(place)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen or not os.path.ismount(place):
            continue
        seen.add((status.st_dev, status.st_ino))
        complete = _walk(os.fsencode(place), status.st_dev, found, most) and complete
    return {"paths": sorted(map(text_of, found)), "complete": complete}, b""


def _walk(top: bytes, device: int, found: list[bytes], most: int) -> bool:
    """Whether all of it is told."""
    complete = True
    left = [(top, os.open(top, _READ))]
    while left:
        path, held = left.pop()
        try:
            for name in os.listdir(held):
                child = os.fsencode(name)
                status = os.stat(child, dir_fd=held, follow_symlinks=False)
                if status.st_dev != device:
                    continue
                if len(found) >= most:
                    return _closed(left)
                found.append(path + b"/" + child)
                if stat.S_ISDIR(status.st_mode):
                    if len(left) >= _MOST_OPEN:
                        complete = False
                        continue
                    left.append((path + b"/" + child, os.open(child, _READ, dir_fd=held)))
        except OSError:  # gone meanwhile, or not for this user
            complete = False
        finally:
            os.close(held)
    return complete


def _closed(left: list[tuple[bytes, int]]) -> bool:
    for _, held in left:
        os.close(held)
    return False
