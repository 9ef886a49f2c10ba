"""What lies in the memory file systems of a box, counted by the kernel: it is lost when the box ends."""

import os

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
