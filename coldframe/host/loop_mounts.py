"""Thin words for the kernel calls that turn a file into a mounted ext4: loop devices and detached mounts.

A detached mount belongs to its descriptor: whoever is killed while it holds one leaves nothing behind, neither a
mount nor a loop device, since the device is released with its last user (autoclear). Needs Linux 5.8.

One file never gets two loop devices: two file systems on one file would destroy it. A box that still lives keeps the
device of its workspace, whatever became of the mount outside, so the device that has the file is always looked for
first, by device and inode number.
"""

import ctypes
import errno
import fcntl
import os
import struct
from typing import NamedTuple

CONTROL = "/dev/loop-control"
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LOOP_GET_STATUS64 = 0x4C05
_AUTOCLEAR, _DIRECT_IO = 4, 16
"""Directly, so that what a box writes is not held in memory twice."""
_BLOCK_BYTES = 4096
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
"""The same numbers on every machine with a filter table."""
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_NOSUID, _NODEV = 2, 4
_FROM_DESCRIPTOR = 4
_AT_FDCWD = -100
_MNT_DETACH = 2
_SYS_BLOCK = "/sys/block"
_LOOP_MAJOR = 7
_ATTEMPTS = 50

_libc = ctypes.CDLL(None, use_errno=True)


class Loop(NamedTuple):
    """An open loop device. It goes when it is closed, unless a mount has it too."""

    number: int
    file: int

    @property
    def path(self) -> str:
        return f"/dev/loop{self.number}"


def attach(image: str) -> Loop:
    """The loop device of an image: the one that has it already, or a new one.

    Raises:
        OSError: there are no loop devices here, or none is free.
    """
    file = os.open(image, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):  # somebody else may take a free one, or release one, meanwhile
            loop = _find(file, image) or _attach_new(file, image)
            if loop is not None:
                return loop
    finally:
        os.close(file)
    raise OSError(errno.EBUSY, "no loop device is free", image)


def holds(image: str) -> bool:
    """Whether a loop device has the image, and so whoever mounted it."""
    file = os.open(image, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        loop = _find(file, image)
    finally:
        os.close(file)
    if loop is None:
        return False
    os.close(loop.file)
    return True


def backing_file(mount_point: str) -> str | None:
    """The file behind a mounted loop device, as the kernel names it; None if something else is mounted there."""
    device = os.stat(mount_point).st_dev
    if os.major(device) != _LOOP_MAJOR or not os.path.ismount(mount_point):
        return None
    return _backing_file(f"loop{os.minor(device)}")


def mount_ext4(loop: Loop, *, flags: tuple[str, ...] = (), **strings: str) -> int:
    """A detached mount, nosuid and nodev, as a descriptor with which it can be filled and put somewhere."""
    context = _call(_FSOPEN, b"ext4", _CLOEXEC)
    try:
        for key, value in {"source": loop.path, **strings}.items():
            _call(_FSCONFIG, context, _SET_STRING, key.encode(), os.fsencode(value), 0)
        for flag in flags:
            _call(_FSCONFIG, context, _SET_FLAG, flag.encode(), None, 0)
        try:
            _call(_FSCONFIG, context, _CREATE, None, None, 0)
        except OSError as error:
            raise OSError(error.errno, _told(context) or error.strerror, loop.path) from error
        return _call(_FSMOUNT, context, _CLOEXEC, _NOSUID | _NODEV)
    finally:
        os.close(context)


def put_mount(mount: int, target: str) -> None:
    _call(_MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(target), _FROM_DESCRIPTOR)


def unmount(target: str, *, lazy: bool = False) -> None:
    """Raises OSError EBUSY if somebody is in it, unless *lazy*: gone from view then, freed with its last user."""
    if _libc.umount2(os.fsencode(target), _MNT_DETACH if lazy else 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def unmount_if_idle(target: str) -> bool:
    """Whether it is unmounted now: not if somebody is in it."""
    try:
        unmount(target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _backing_file(name: str) -> str | None:
    try:
        with open(f"{_SYS_BLOCK}/{name}/loop/backing_file", "rb") as source:
            return os.fsdecode(source.read().rstrip(b"\n"))
    except OSError:
        return None


def _find(image: int, path: str) -> Loop | None:
    """By path too: some file systems (btrfs) tell another device number of a file than the kernel keeps for it."""
    status = os.fstat(image)
    identity = status.st_dev, status.st_ino
    for name in os.listdir(_SYS_BLOCK):
        if not name.startswith("loop") or not os.path.exists(f"{_SYS_BLOCK}/{name}/loop"):
            continue
        try:
            file = os.open(f"/dev/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            device, inode, *_ = _INFO.unpack(fcntl.ioctl(file, _LOOP_GET_STATUS64, bytes(_INFO.size)))
        except OSError:  # released meanwhile
            os.close(file)
            continue
        if (device, inode) == identity or _backing_file(name) == path:
            return Loop(int(name.removeprefix("loop")), file)
        os.close(file)
    return None


def _attach_new(file: int, image: str) -> Loop | None:
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
    device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
    name = os.fsencode(image)[:63]
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR | _DIRECT_IO, name, b"", b"", 0, 0)
    try:
        fcntl.ioctl(device, _LOOP_CONFIGURE, struct.pack("=II", file, _BLOCK_BYTES) + info + bytes(64))
    except OSError as error:
        os.close(device)
        if error.errno == errno.EBUSY:
            return None
        raise
    return Loop(number, device)


def _told(context: int) -> str:
    """What the kernel says about a mount that failed, as `e ext4: ...`."""
    try:
        return os.read(context, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _call(number: int, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
