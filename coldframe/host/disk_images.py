"""Disks of workspaces: sparse ext4 images, so that the kernel itself ends what is written past the limit.

An image has room for exactly its limit or a little less (`size_for`): what ext4 needs for itself comes on top, and
so do 16,384 files for each begun 128 MiB. What a box deletes goes back to the host (discard). The mounts stand in
the mount namespace of whoever serves the machine, so that its owner looks into workspaces where the documentation
says they are.

Rejected: a mount namespace of the daemon's own (the owner would see empty directories, and each daemon after the
first would have to take over the mounts of one that is gone). Growing a mounted image: it needs CAP_SYS_RESOURCE,
which containers lack, and mends nothing if it is broken off; this grows them while nobody has them, in which state
`e2fsck -p` mends all that a kill can leave (room for the descriptors of 1 TiB is kept, so nothing is ever moved).

Below `images/`, which is root's alone, `workspace/AGENT` and `background/SESSION` are whole and filled; with `.new-`
they are being made, with `.gone-` removed. The group of an image is the sandbox user of its workspace.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from coldframe.contract.errors import IsolationUnavailable, WrongState
from coldframe.host import loop_mounts

MIB = 1 << 20
BASE_MIB = 16
"""Size of a workspace that no sandbox has asked for yet, and the smallest there is."""
FILES_PER_GROUP = 16_384
GROUP_BYTES = 128 * MIB
_INODE_BYTES = 256
_BLOCK_BYTES = 4096
_GROUP_OWN_BYTES = FILES_PER_GROUP * _INODE_BYTES + 2 * _BLOCK_BYTES
"""Inode table and the two bitmaps."""
_JOURNAL_MIB = 16
_MOST_BLOCKS = 1 << 28
"""1 TiB: room for group descriptors is kept up to here."""
_DESCRIPTORS_BYTES = _MOST_BLOCKS // 32768 * 64
_ROOT_SHARE = 0.001
"""Kept for root alone, so that the history of a full workspace goes on."""
_MOST_HELD_BACK = 4096 * _BLOCK_BYTES
"""What ext4 keeps for itself: a fiftieth, and this at most."""
_SLACK_BYTES = 2 * MIB
"""So much below its limit, or a two-hundredth, a disk is not grown."""
_PROGRAM_TIMEOUT_S = 600.0
LET_GO_S = 2.0
"""The kernel takes the mounts of a box down a moment after its last process."""
_PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
_FLAGS = ("noinit_itable", "discard")
"""The file is new and sparse, so its inode tables are zero already."""


class Room(NamedTuple):
    """What a mounted disk holds."""

    capacity_bytes: int
    """Used and free, for everybody but root."""
    files: int


class DiskImages:
    """The images of one data directory. Calls about one name must not overlap; names are `PARENT/NAME`."""

    def __init__(self, data_dir: str) -> None:
        self._data = os.path.realpath(data_dir)  # as the kernel names what is behind a disk
        self._images = os.path.join(self._data, "images")

    def image_of(self, name: str) -> str:
        return os.path.join(self._images, name)

    def any(self) -> bool:
        return os.path.isdir(self._images)

    def exists(self, name: str) -> bool:
        return os.path.isfile(self.image_of(name))

    def names(self) -> list[str]:
        """All that there are, half made and half removed ones too."""
        found = []
        for parent in ("workspace", "background"):
            try:
                found += [f"{parent}/{name}" for name in os.listdir(os.path.join(self._images, parent))]
            except FileNotFoundError:
                continue
        return sorted(found)

    def users(self) -> set[int]:
        """The sandbox users of all of them, mounted or not."""
        found = set()
        for name in self.names():
            try:
                found.add(os.stat(self.image_of(name)).st_gid)
            except FileNotFoundError:
                continue
        return found

    def mounted(self, name: str) -> bool:
        """Whether the disk of that very name stands at its place."""
        return self._behind(name) == self.image_of(name)

    def leftover(self, name: str) -> bool:
        """Whether a disk of this installation stands there whose image is gone, or about to go."""
        behind = self._behind(name)
        return behind is not None and behind.startswith(f"{self._images}/") and behind != self.image_of(name)

    def _behind(self, name: str) -> str | None:
        try:
            return loop_mounts.backing_file(os.path.join(self._data, name))
        except OSError:  # there is nothing, or a disk that is too broken to be looked at
            return None

    def require(self, name: str) -> None:
        """Raise IsolationUnavailable with property, reason and remedy if this machine cannot have disks at all."""
        if os.geteuid() != 0:
            raise _unavailable(name, "only root can mount one", "start the installation as root")
        missing = [one for one in ("mkfs.ext4", "e2fsck", "resize2fs") if shutil.which(one, path=_PATH) is None]
        if missing:
            raise _unavailable(name, f"there is no {', '.join(missing)}", "install e2fsprogs")
        if not os.path.exists(loop_mounts.CONTROL):
            raise _unavailable(
                name, "there is no /dev/loop-control", "load the `loop` module and let the daemon use it"
            )

    def make(self, name: str, limit_mib: int, uid: int, fill: Callable[[int], None]) -> None:
        """Make one and mount it, whole or not at all. *fill* gets a descriptor of its empty top directory.

        Raises:
            IsolationUnavailable: this machine cannot have it; property, reason and remedy are told.
        """
        self.require(name)
        draft = f"{self.image_of(name)}.new-{secrets.token_hex(4)}"
        for folder in (self._images, os.path.dirname(draft)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            with open(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                os.fchown(file.fileno(), -1, uid)
                file.truncate(size_for(limit_mib))
            _format(name, draft)
            mount = self._mount(name, draft)
            try:
                top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
                try:
                    _remove_lost_and_found(top)
                    fill(top)
                    os.fsync(top)
                finally:
                    os.close(top)
                os.rename(draft, self.image_of(name))
                self._put(name, mount)
            finally:
                os.close(mount)
        except BaseException:
            if os.path.exists(draft):
                os.unlink(draft)
            raise

    def mount(self, name: str) -> None:
        """See that it stands at its place. One that turned read-only is mended, if nobody uses it.

        Raises:
            IsolationUnavailable: it cannot be mounted; property, reason and remedy are told. Nothing of it is lost.
        """
        if self.mounted(name) and not (self._is_read_only(name) and self._let_go(name)):
            return
        self.require(name)
        if self.leftover(name):
            self._unmount(name)
        mount = self._mount(name, self.image_of(name), check=True)
        try:
            _remove_lost_and_found(mount)
            self._put(name, mount)
        finally:
            os.close(mount)

    def _is_read_only(self, name: str) -> bool:
        return bool(os.statvfs(os.path.join(self._data, name)).f_flag & os.ST_RDONLY)

    def _let_go(self, name: str) -> bool:
        """Whether it is unmounted now."""
        return loop_mounts.unmount_if_idle(os.path.join(self._data, name))

    def _put(self, name: str, mount: int) -> None:
        """Nobody but root looks into the place while nothing is mounted there."""
        place = os.path.join(self._data, name)
        os.makedirs(place, mode=0o700, exist_ok=True)
        if os.path.ismount(place) or os.listdir(place):
            raise _unavailable(
                name,
                "its place is taken by something else",
                f"move away what is in `{place}`; the disk of the workspace is `{self.image_of(name)}`",
            )
        loop_mounts.put_mount(mount, place)

    def _mount(self, name: str, image: str, *, check: bool = False) -> int:
        try:
            with open(image, "rb") as file:
                # Whoever changes an image holds this, and so does its program, which may outlive a killed daemon.
                fcntl.flock(file, fcntl.LOCK_EX)
                if check and not loop_mounts.holds(image):
                    _run(name, "e2fsck", "-p", image, fine=(0, 1), held=file.fileno())
                loop = loop_mounts.attach(image)
        except OSError as error:
            raise _unavailable(
                name, f"no loop device for it: {error.strerror}", "load the `loop` module and let the daemon use it"
            ) from error
        try:
            return loop_mounts.mount_ext4(loop, flags=_FLAGS, errors="remount-ro")
        except OSError as error:
            raise _unavailable(
                name,
                f"the kernel does not mount it: {error.strerror}",
                f"give the daemon CAP_SYS_ADMIN and a kernel with ext4; `{image}` itself is kept",
            ) from error
        finally:
            os.close(loop.file)

    def room(self, name: str) -> Room:
        status = os.statvfs(os.path.join(self._data, name))
        return Room((status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize, status.f_files)

    def grow(self, name: str, limit_mib: int, *, in_use: Callable[[], bool]) -> None:
        """See that it has room for the limit. Nothing may use it meanwhile; a lower limit changes nothing.

        *in_use* tells of boxes that live on it. What has just ended may take a moment to let go.

        Raises:
            WrongState: somebody has it.
            IsolationUnavailable: it could not be grown, or not be mounted again.
        """
        limit = limit_mib * MIB
        if self.room(name).capacity_bytes >= limit - max(_SLACK_BYTES, limit // 200):
            return
        if in_use():
            raise _in_use(name)
        image = self.image_of(name)
        if not _in_time(lambda: self._let_go(name)):
            raise _in_use(name)
        try:
            if not _in_time(lambda: not loop_mounts.holds(image)):
                raise _in_use(name)
            with open(image, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(size_for(limit_mib))
                _run(name, "e2fsck", "-fp", image, fine=(0, 1), held=file.fileno())
                _run(name, "resize2fs", image, held=file.fileno())
        finally:
            self.mount(name)

    def remove(self, name: str) -> None:
        """Remove disk and place for good, whatever there is of it. Boxes on it must have ended."""
        image = self.image_of(name)
        grave = f"{image}.gone-{secrets.token_hex(4)}"
        if self.exists(name):
            os.rename(image, grave)  # from here on it is decided, and a sweep would go on with it
        if self.leftover(name):
            self._unmount(name)
        place = os.path.join(self._data, name)
        if os.path.isdir(place) and not os.path.ismount(place) and not os.listdir(place):
            os.rmdir(place)
        if os.path.exists(grave):
            os.unlink(grave)

    def remove_draft(self, name: str) -> None:
        """Remove one that is half made or half removed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.image_of(name))

    def _unmount(self, name: str) -> None:
        place = os.path.join(self._data, name)
        try:
            loop_mounts.unmount(place)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            loop_mounts.unmount(place, lazy=True)  # somebody stands in it; the space is free when they leave


def size_for(limit_mib: int) -> int:
    """Bytes of an image with room for this much and not more: each addend is at most what ext4 takes, but for padding."""
    size = limit = max(limit_mib, BASE_MIB) * MIB
    for _ in range(4):
        groups = -(-size // GROUP_BYTES)
        size = limit + _JOURNAL_MIB * MIB + _DESCRIPTORS_BYTES + groups * _GROUP_OWN_BYTES
        size += min(size // 50, _MOST_HELD_BACK) + int(size * _ROOT_SHARE)
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _in_time(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LET_GO_S
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _remove_lost_and_found(top: int) -> None:
    """An empty one that no agent made: `e2fsck` makes it, again and again."""
    with contextlib.suppress(OSError):
        if os.stat("lost+found", dir_fd=top, follow_symlinks=False).st_uid == 0:
            os.rmdir("lost+found", dir_fd=top)


def _format(name: str, image: str) -> None:
    groups = -(-os.stat(image).st_size // GROUP_BYTES)
    _run(
        name,
        "mkfs.ext4",
        *("-q", "-F", "-b", str(_BLOCK_BYTES), "-I", str(_INODE_BYTES), "-N", str(groups * FILES_PER_GROUP)),
        *("-J", f"size={_JOURNAL_MIB}", "-m", str(_ROOT_SHARE * 100)),
        *("-E", f"lazy_itable_init=1,lazy_journal_init=1,nodiscard,resize={_MOST_BLOCKS}", image),
    )


def _run(name: str, program: str, *arguments: str, fine: tuple[int, ...] = (0,), held: int = -1) -> None:
    """*held* is a lock that the program keeps until it ends, even if we are killed before."""
    found = shutil.which(program, path=_PATH)
    try:
        done = subprocess.run(
            [found or program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": _PATH, "LANG": "C.UTF-8"},
            pass_fds=[held] if held >= 0 else [],
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unavailable(name, f"{program} did not run: {error}", "install e2fsprogs") from error
    if done.returncode not in fine:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-500:]
        raise _unavailable(
            name,
            f"{program} ended with {done.returncode}: {said}",
            f"run `{program}` by hand; `{arguments[-1]}` is kept",
        )


def _in_use(name: str) -> WrongState:
    return WrongState(
        f"the disk of `{name}` has to grow, and somebody uses it",
        hint="terminate the other sandboxes of this workspace, leave its directory, then create the sandbox again",
    )


def _unavailable(name: str, reason: str, remedy: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        f"the workspace `{name}` cannot have a disk of its own: {reason}",
        hint=remedy,
        property="workspace_disk",
        reason=reason,
        remedy=remedy,
    )
