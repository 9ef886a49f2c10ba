"""A host daemon that takes the place of another: announced by whoever starts it, so that who asks meanwhile waits and is not refused.

What says so is the lock of a file, which the kernel takes back whatever becomes of its holder.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

NAME = "daemon.coming"
PATIENCE_S = 15.0
"""How long one that is coming is waited for."""
TRIES, PAUSE_S = 20, 0.01
"""Whoever asks holds the lock for a moment as well."""


@contextlib.contextmanager
def announced(data_dir: str) -> Iterator[None]:
    """Within, a daemon is on its way. Where another process says so already, it goes on to."""
    file = os.open(os.path.join(data_dir, "host", NAME), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        for _ in range(TRIES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(PAUSE_S)
        yield
    finally:
        os.close(file)


def is_coming(directory: str) -> bool:
    """Whether somebody says so, in the directory of the daemon's own."""
    try:
        file = os.open(os.path.join(directory, NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
