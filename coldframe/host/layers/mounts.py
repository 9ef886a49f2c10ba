"""Mounts a stack of layers with overlayfs: as root where the daemon likes, as an ordinary user in a place of one's own.

Layers are named by descriptors, so the table of mounts that a box sees tells nothing of where they are kept, and sixteen
of them fit into the one page that mount(2) takes. `userxattr` is on in both cases, so that layers made by root and by a
user are the same.

`volatile` leaves out every sync: copying two thousand files up takes a sixth of the time. After a crash of the machine
the kernel refuses to mount such a layer again, and what was in it is lost, so it is for workspaces that end with their
session and for no others.

Standard library only: a keeper can use it between its birth and bubblewrap. As a program it is the place of an ordinary
user: it reads mounts from its standard input, makes them in namespaces of its own, hands out a descriptor of each, and
holds them until its input ends.
"""

import array
import contextlib
import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
from types import TracebackType
from typing import NamedTuple

_READ_ONLY, _BIND = 0x1, 0x1000
_NOSUID, _NODEV, _RECURSIVE, _PRIVATE, _DETACH = 0x2, 0x4, 0x4000, 0x40000, 0x2
_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_VOLATILE_MARK = os.path.join("work", "incompat", "volatile")
"""Below the directory that the mount was given to work in."""
MOST_OPTION_BYTES = 4095
"""mount(2) takes one page."""

_libc = ctypes.CDLL(None, use_errno=True)


class Stacking(NamedTuple):
    """What is mounted where."""

    target: str
    lower: tuple[str, ...]
    """Directories of the sealed layers, the highest first; at least one."""
    upper: str
    """Empty: it can be read and not written to."""
    work: str
    """On the same file system as *upper*, empty, and nobody else's."""
    volatile: bool = False
    source: str = "overlay"
    """What the table of mounts calls it."""


def mount_stack(stacking: Stacking) -> None:
    """Mount in the caller's namespace. It stays until `unmount_stack`, whoever ends.

    Raises:
        OSError: EPERM without the right to, EINVAL where overlayfs lacks something, EBUSY for an upper in use.
    """
    paths = [*stacking.lower, *((stacking.upper, stacking.work) if stacking.upper else ())]
    held = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in paths]
    try:
        lower = ":".join(f"/proc/self/fd/{one}" for one in held[: len(stacking.lower)])
        options, flags = f"userxattr,lowerdir={lower}", _NOSUID | _NODEV
        if stacking.upper:
            options += f",upperdir=/proc/self/fd/{held[-2]},workdir=/proc/self/fd/{held[-1]}"
            options += ",volatile" if stacking.volatile else ""
        else:
            flags |= _READ_ONLY
        if len(options) > MOST_OPTION_BYTES:
            raise OSError(errno.E2BIG, "more layers than one mount takes", stacking.target)
        _mount(os.fsencode(stacking.source), os.fsencode(stacking.target), b"overlay", flags, options.encode())
    finally:
        for one in held:
            os.close(one)


def bind_file(source: str, target: str) -> None:
    """Show one file where another lies. As root."""
    _mount(os.fsencode(source), os.fsencode(target), None, _BIND, None)


def unmount_stack(target: str, *, lazy: bool = False) -> None:
    """Raises OSError EBUSY if somebody is in it, unless *lazy*: out of sight then, gone with its last user."""
    if _libc.umount2(os.fsencode(target), _DETACH if lazy else 0) != 0:
        raise _failure(target)


def was_lost(work: str) -> bool:
    """Whether a volatile layer was mounted when the machine stopped, so that what it holds may be anything."""
    _open_up(work)
    return os.path.lexists(os.path.join(work, _VOLATILE_MARK))


def keep_volatile(work: str) -> None:
    """Say of a volatile layer that it was unmounted in good order, and may be used again once it is on disk."""
    _open_up(work)
    mark = os.path.join(work, _VOLATILE_MARK)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(mark, "dirty"))
        os.rmdir(mark)


def enter_place() -> None:
    """Go into a user and a mount namespace of one's own, in which one may mount. For a process of one thread.

    Users are the same inside: whoever one is, and nobody else. Rights are lost with the next program.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW_USERS | _NEW_MOUNTS) != 0:
        raise _failure("user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as target:
            target.write(text)
    _mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)


class OwnPlace:
    """Mounts of an ordinary user, seen by this process through descriptors, held by a process that ends with this one.

    Raises:
        OSError: user namespaces, or overlayfs in them, are not to be had here; the text says what failed.
    """

    def __init__(self, stackings: list[Stacking]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
            )
        self._link = ours
        self.directories: list[int] = []
        """Of the mounts, in their order: names below them are opened from here."""
        try:
            ours.send(json.dumps(stackings).encode())
            text, found, _, _ = socket.recv_fds(ours, 65536, len(stackings))
            self.directories += found
            answer = text.decode("utf-8", "replace")
            if answer != "mounted":
                number, _, reason = answer.partition(" ")
                code = int(number) if number.isdigit() else errno.EIO
                raise OSError(code, reason or "the process that mounts ended")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for one in self.directories:
            os.close(one)
        self.directories.clear()
        self._link.close()
        self._process.wait()

    def __enter__(self) -> "OwnPlace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_up(work: str) -> None:
    """What overlayfs works in is closed to everybody but root, so also to the user whose it is."""
    with contextlib.suppress(FileNotFoundError):
        for name in ("work", "work/incompat", _VOLATILE_MARK):
            os.chmod(os.path.join(work, name), 0o700)


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    if _libc.mount(source, target, kind, ctypes.c_ulong(flags), options) != 0:
        raise _failure(os.fsdecode(target))


def _failure(subject: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), subject)


def _serve(link: socket.socket) -> None:
    stackings = [Stacking(*fields) for fields in json.loads(link.recv(1 << 20))]
    held: list[int] = []
    try:
        enter_place()
        for stacking in stackings:
            mount_stack(stacking)
            held.append(os.open(stacking.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        link.send(f"{error.errno or errno.EIO} {error.strerror}: {error.filename}".encode())
        return
    link.sendmsg([b"mounted"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", held))])
    link.recv(1)


if __name__ == "__main__":
    with socket.socket(fileno=0) as given:
        _serve(given)
