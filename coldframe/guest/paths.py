"""From a path that somebody asked for to a descriptor below the workspace, in one step of the kernel.

Nothing is checked first and opened later: openat2 with RESOLVE_BENEATH refuses whatever leaves, links
and races included. Names are read in user space in one case only, to follow an absolute link that
stays below /home/user; what that finds is opened beneath and without links again, so a swapped
component makes the call fail and cannot lead it elsewhere. Without openat2 there is no second way.
"""

import ctypes
import errno
import os
import stat

from coldframe.guest.facts import Named, failure_of, text_of
from coldframe.guest.verbs import Failure

MOUNT = b"/home/user"
"""Where a box sees its workspace; absolute paths are taken below it alone."""

MOST_RETRIES = 64
MOST_LINKS = 40
HOP_BYTES = 4000
"""A path handed to the kernel in one piece; it takes 4,095."""

DIRECTORY = os.O_PATH | os.O_DIRECTORY

PROC = 0x9FA0
"""Magic number of the file system in which a process finds what it is itself, its memory included."""

_SYS_OPENAT2 = 437
_SYS_FACCESSAT2 = 439
_SYS_FCHMODAT2 = 452
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_AT_SYMLINK_NOFOLLOW, _AT_EACCESS, _AT_EMPTY_PATH = 0x100, 0x200, 0x1000
_RENAME_NOREPLACE = 1


class BoxRoot(int):
    """Descriptor of the box's own root, where that of the workspace could stand: any path of the box is below it then.

    Nothing but the kernel says who may do what there, so whoever opens is the user in whose name it is asked. Of /proc nothing
    is opened: what would be found there is the keeper, or a child of it.
    """


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _openat2(root: int, path: bytes, flags: int, resolve: int) -> int:
    how = _How(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | resolve)
    for _ in range(MOST_RETRIES):
        found: int = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_long(root),
            ctypes.c_char_p(path or b"."),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if found >= 0:
            return found
        reason = ctypes.get_errno()
        if reason not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a rename somewhere crossed a `..`
            break
    raise OSError(reason, os.strerror(reason))


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """Open *path* with every link on the way followed, as long as it stays below *root*.

    Raises:
        Failure: OUTSIDE_WORKSPACE, INVALID_ARGUMENT for a loop of links, CONFLICT if it changes all the time.
        OSError: as open(2) gives it.
    """
    try:
        return _beside_proc(root, _openat2(root, path, flags, 0), path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ELOOP):
            raise
    return _beside_proc(root, _openat2(root, follow_links(root, path), flags, _RESOLVE_NO_SYMLINKS), path)


def _beside_proc(root: int, held: int, path: bytes) -> int:
    """*held*, unless it is in /proc and *root* that of the box. Looked at once it is open, so that no link leads past it."""
    if not isinstance(root, BoxRoot) or kind_of_system(held) != PROC:
        return held
    os.close(held)
    shown = "/" + text_of(path)
    raise Failure("NOT_A_REGULAR_FILE", f"`{shown}` is in /proc, which commands alone read", path=shown, kind="device")


def kind_of_system(held: int) -> int:
    """Magic number of the file system behind a descriptor; 0 if it cannot be told."""
    space = (ctypes.c_long * 32)()  # struct statfs begins with it
    return int(space[0]) & 0xFFFFFFFF if _libc.fstatfs(held, ctypes.byref(space)) == 0 else 0


def open_unlinked(root: int, path: bytes, flags: int) -> int:
    """Open *path*, of any length, in which no component may be a link. Raises OSError, ELOOP for a link."""
    held = -1
    try:
        while len(path) > HOP_BYTES:
            cut = path.rindex(b"/", 0, HOP_BYTES)
            step = _openat2(root if held < 0 else held, path[:cut], DIRECTORY, _RESOLVE_NO_SYMLINKS)
            if held >= 0:
                os.close(held)
            held, path = step, path[cut + 1 :]
        found = _openat2(root if held < 0 else held, path, flags, _RESOLVE_NO_SYMLINKS)
        return _beside_proc(root, found, path)
    finally:
        if held >= 0:
            os.close(held)


def follow_links(root: int, path: bytes) -> bytes:
    """The same place written without links. Components that do not exist yet stay as they are.

    The answer is a name, not a right: open it with `open_unlinked`.

    Raises:
        Failure: OUTSIDE_WORKSPACE, or INVALID_ARGUMENT past 40 links.
        OSError: ENOENT for a `..` behind something missing, ENOTDIR, EACCES.
    """
    ahead = path.split(b"/")[::-1]
    done: list[bytes] = []
    links = 0
    missing = False
    while ahead:
        name = ahead.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            if missing:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            if not done:
                raise _outside(path)
            done.pop()
            continue
        target = None if missing else _link_at(root, b"/".join([*done, name]))
        if target == b"":
            missing = True
        if not target:
            done.append(name)
            continue
        links += 1
        if links > MOST_LINKS:
            raise Failure("INVALID_ARGUMENT", f"`{text_of(path)}` is a loop of symbolic links", path=text_of(path))
        if target.startswith(b"/"):
            target = _below_mount(root, target, path)
            done.clear()
        ahead += target.split(b"/")[::-1]
    return b"/".join(done)


def _link_at(root: int, path: bytes) -> bytes | None:
    """Target of the link at *path*, None if it is no link, empty if there is nothing."""
    try:
        held = open_unlinked(root, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return b""
        raise
    try:
        return os.readlink(b"", dir_fd=held) if stat.S_ISLNK(os.fstat(held).st_mode) else None
    finally:
        os.close(held)


def _outside(path: bytes) -> Failure:
    return Failure("OUTSIDE_WORKSPACE", f"`{text_of(path)}` leaves the workspace", path=text_of(path))


def _below_mount(root: int, path: bytes, asked: bytes) -> bytes:
    if isinstance(root, BoxRoot):
        return path.lstrip(b"/")
    if path == MOUNT or path.startswith(MOUNT + b"/"):
        return path[len(MOUNT) :].lstrip(b"/")
    raise _outside(asked)


def read_name(root: int, path: str) -> bytes:
    """The workspace-relative name of a path from a request: no empty parts, no `.`, no `..`; empty for the workspace.

    `..` is taken away by text and then compared with what the kernel finds, since behind a link the
    shell reads it differently; where the two disagree the path is refused rather than guessed.

    Raises:
        Failure: INVALID_ARGUMENT, OUTSIDE_WORKSPACE, FILE_NOT_FOUND for a `..` behind something missing.
    """
    try:
        asked = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Failure("INVALID_ARGUMENT", "the path is not valid text") from error
    if b"\0" in asked:
        raise Failure("INVALID_ARGUMENT", "the path holds a NUL")
    below = _below_mount(root, asked, asked) if asked.startswith(b"/") else asked
    parts = [part for part in below.split(b"/") if part not in (b"", b".")]
    if b".." not in parts:
        return b"/".join(parts)
    kept: list[bytes] = []
    for part in parts:
        if part != b"..":
            kept.append(part)
        elif kept:
            kept.pop()
        else:
            raise _outside(asked)
    last = len(parts) - parts[::-1].index(b"..")
    after = parts[last:]
    with Named(asked):
        if not _same_place(root, b"/".join(parts[:last]), b"/".join(kept[: len(kept) - len(after)])):
            raise Failure(
                "INVALID_ARGUMENT", f"`{path}` has `..` behind a symbolic link; name the place itself", path=path
            )
    return b"/".join(kept)


def _same_place(root: int, one: bytes, other: bytes) -> bool:
    found = []
    for path in (one, other):
        held = open_beneath(root, path, DIRECTORY)
        status = os.fstat(held)
        os.close(held)
        found.append((status.st_dev, status.st_ino))
    return found[0] == found[1]


def open_directory(root: int, path: str) -> int:
    """Descriptor (O_PATH) of the directory at *path*, as a request gives it.

    Raises:
        Failure: FILE_NOT_FOUND, NOT_A_DIRECTORY, OUTSIDE_WORKSPACE, INVALID_ARGUMENT.
    """
    name = read_name(root, path)
    with Named(name):
        return open_beneath(root, name, DIRECTORY)


def make_directories(root: int, name: bytes) -> list[bytes]:
    """Make what is missing of the directory *name*, mode 0755. Returns what was made, uppermost first."""
    made: list[bytes] = []
    parts = name.split(b"/") if name else []
    missing = len(parts)
    while missing:
        try:
            held = open_beneath(root, b"/".join(parts[:missing]), DIRECTORY)
        except FileNotFoundError:
            missing -= 1
            continue
        os.close(held)
        break
    before = os.umask(0o022)
    try:
        for end in range(missing, len(parts)):
            above = open_beneath(root, b"/".join(parts[:end]), DIRECTORY)
            try:
                os.mkdir(parts[end], 0o755, dir_fd=above)
                made.append(b"/".join(parts[: end + 1]))
            except FileExistsError:
                pass  # somebody else made it, or it is a link to nothing and the next step says so
            finally:
                os.close(above)
    except BaseException:
        drop_directories(root, made)
        raise
    finally:
        os.umask(before)
    return made


def drop_directories(root: int, made: list[bytes]) -> None:
    """Take back what `make_directories` made, where it is still empty."""
    for name in reversed(made):
        try:
            above, leaf = open_parent(root, name)
        except (OSError, Failure):
            return
        try:
            os.rmdir(leaf, dir_fd=above)
        except OSError:
            return
        finally:
            os.close(above)


def open_parent(root: int, name: bytes) -> tuple[int, bytes]:
    """Descriptor of the directory that holds *name*, and the last component, which is not followed."""
    above, _, leaf = name.rpartition(b"/")
    return open_beneath(root, above, DIRECTORY), leaf


def rename_new(parent: int, source: bytes, above: int, target: bytes) -> None:
    """Rename into the directory *above*, or raise FileExistsError. Never replaces."""
    if _libc.renameat2(parent, source, above, target, _RENAME_NOREPLACE) != 0:
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason))


def require_writable(held: int) -> None:
    """Raise OSError, EACCES or EROFS, unless the file behind the descriptor may be written to by this process."""
    done = _libc.syscall(
        ctypes.c_long(_SYS_FACCESSAT2),
        ctypes.c_long(held),
        ctypes.c_char_p(b""),
        ctypes.c_long(os.W_OK),
        ctypes.c_long(_AT_EACCESS | _AT_EMPTY_PATH),
    )
    if done != 0:
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason))


def open_up(parent: int, name: bytes) -> None:
    """Give the owner all rights to the directory *name*; a link in its place is not followed.

    Kernels before 6.6 have no call for that, so there the way over /proc is tried.
    """
    done = _libc.syscall(
        ctypes.c_long(_SYS_FCHMODAT2),
        ctypes.c_long(parent),
        ctypes.c_char_p(name),
        ctypes.c_long(0o700),
        ctypes.c_long(_AT_SYMLINK_NOFOLLOW),
    )
    if done == 0:
        return
    reason = ctypes.get_errno()
    if reason not in (errno.ENOSYS, errno.EPERM):  # EPERM: a seccomp filter that does not know the call
        raise OSError(reason, os.strerror(reason))
    held = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{held}", 0o700)
    except FileNotFoundError as error:
        raise failure_of(PermissionError(errno.EACCES, ""), name) from error
    finally:
        os.close(held)
