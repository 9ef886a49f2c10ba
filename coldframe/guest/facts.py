"""What the kernel says about a file, in the words of the contract: kinds, times, version tokens, and errors by code."""

import errno
import hashlib
import os
import stat
import time
from types import TracebackType
from typing import Any

from coldframe.guest.verbs import Failure

EARLIEST_S, LATEST_S = -62135596800, 253402300799
"""Years 1 and 9999: a file may claim any time, a date of the contract may not."""

_CODES = {
    errno.ENOENT: ("FILE_NOT_FOUND", "there is no file or directory at `{}`"),
    errno.ENOTDIR: ("NOT_A_DIRECTORY", "a part of `{}` is not a directory"),
    errno.EISDIR: ("IS_A_DIRECTORY", "`{}` is a directory"),
    errno.EACCES: ("PERMISSION_DENIED", "the sandbox user has no permission for `{}`"),
    errno.EPERM: ("PERMISSION_DENIED", "the sandbox user has no permission for `{}`"),
    errno.EXDEV: ("OUTSIDE_WORKSPACE", "`{}` leaves the workspace"),
    errno.ELOOP: ("CONFLICT", "`{}` changed while it was being looked up"),
    errno.EAGAIN: ("CONFLICT", "`{}` changed while it was being looked up"),
    errno.ENAMETOOLONG: ("INVALID_ARGUMENT", "the path is too long, or a name in it is: `{:.80}`"),
    errno.EINVAL: ("INVALID_ARGUMENT", "the file system does not take the name `{}`"),
    errno.ENXIO: ("NOT_A_REGULAR_FILE", "`{}` is not a regular file"),
    errno.ENODEV: ("NOT_A_REGULAR_FILE", "`{}` is not a regular file"),
    errno.EROFS: ("READ_ONLY", "`{}` is read-only"),
    errno.EBUSY: ("READ_ONLY", "`{}` is held in place by the sandbox"),
    errno.EEXIST: ("CONFLICT", "`{}` exists already"),
    errno.ENOTEMPTY: ("CONFLICT", "`{}` is being filled while it is removed"),
    errno.ENOSPC: ("LIMIT_DISK", "no space is left for `{}`"),
    errno.EDQUOT: ("LIMIT_DISK", "the disk quota is used up, at `{}`"),
    errno.EOPNOTSUPP: ("INVALID_ARGUMENT", "the file system of `{}` keeps no notes of files"),
    errno.EFBIG: ("LIMIT_DISK", "`{}` would exceed the largest allowed file"),
    errno.ENOSYS: ("ISOLATION_UNAVAILABLE", "the kernel cannot keep `{}` below the workspace: openat2 is missing"),
}


def text_of(path: bytes) -> str:
    """A name as it travels: UTF-8, other bytes as surrogate escapes."""
    return path.decode("utf-8", "surrogateescape")


def failure_of(error: OSError, path: bytes) -> Failure:
    """The refusal for an error of the kernel; INTERNAL for one that no file of a box should give."""
    code, message = _CODES.get(error.errno or 0, ("INTERNAL", "`{}` failed: " + str(error.strerror).lower()))
    shown = text_of(path)
    facts: dict[str, Any] = {"path": shown}
    if code == "LIMIT_DISK":
        facts["kind"] = "disk"
    return Failure(code, message.format(shown or "."), **facts)


class Named:
    """`with Named(path):` turns an OSError inside into the Failure for *path*."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise failure_of(error, self.path) from error


def kind_of(mode: int) -> str:
    """FileKind of a stat mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def version_of(status: os.stat_result) -> str:
    """Token that changes whenever the content may have changed.

    Drawn from identity, size and both times, so a change of mode changes it too. Two writes of one size
    within one tick of the file system's clock (4 ms, or less) can share a token.
    """
    seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def time_of(nanoseconds: int) -> str:
    """ISO 8601 in UTC with microseconds."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    if not EARLIEST_S <= seconds <= LATEST_S:
        seconds, rest = (EARLIEST_S, 0) if seconds < EARLIEST_S else (LATEST_S, 0)
    year, month, day, hour, minute, second = time.gmtime(seconds)[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest // 1000:06}Z"


def require_regular(status: os.stat_result, path: bytes) -> None:
    """Refuse everything that reading could block on, or that has no content."""
    if stat.S_ISDIR(status.st_mode):
        raise Failure("IS_A_DIRECTORY", f"`{text_of(path) or '.'}` is a directory", path=text_of(path))
    if not stat.S_ISREG(status.st_mode):
        kind = kind_of(status.st_mode)
        raise Failure(
            "NOT_A_REGULAR_FILE", f"`{text_of(path)}` is a {kind}, not a regular file", path=text_of(path), kind=kind
        )
