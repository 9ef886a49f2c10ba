"""The volumes of one machine: durable directories with a life of their own; implements Volumes.

Below `volumes/`, which is closed to everybody but this process's user, each is a directory, or a disk of its own mounted
there (see `disk_images.py`), as the operator chose for workspaces. As root all their files belong to one user who is
nobody's, and each box is shown them as its own user's, by a mount with its users mapped: so two sandboxes of different users
have the same volume, and nothing is changed for that. Without root the user is the same anyway.

What lies there may have been written by a box, and is as hostile as what lies in a workspace. So it is read and written by
the reader of files at rest: a child that is the owner of the files, without a right, and gone after one answer.
"""

import asyncio
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from coldframe.contract.errors import (
    DiskFull,
    InvalidArgument,
    IsolationUnavailable,
    NotFound,
    VolumeBusy,
)
from coldframe.contract.files import Done, MakeDirectory, RemovePath, Request, WriteAnswer, WriteFile
from coldframe.contract.model import Model
from coldframe.contract.volume import MOST_UPLOAD_BYTES, VolumeAttachment, VolumeUsage
from coldframe.guest.records import is_id
from coldframe.host.disk_images import MIB, DiskImages
from coldframe.host.isolation.volume_mounts import VolumeOrder
from coldframe.host.layers.mapping import Extents, mount_with_users
from coldframe.host.own_disk import read_disk
from coldframe.host.quota import ENTRY_BYTES, measure_tree
from coldframe.host.reader import ANSWERED
from coldframe.host.reader_link import Reader
from coldframe.host.removal import remove_tree, try_removal
from coldframe.host.sandbox_users import FIRST_UID, UID_COUNT
from coldframe.host.templates.id_range import own_range, take_back

A = TypeVar("A", bound=Model)
R = TypeVar("R")
OWNER, ROOT = FIRST_UID + UID_COUNT + 1, FIRST_UID + UID_COUNT + 2
"""As root, whose files are that a sandbox's user has made, and those of the root of a sandbox that has one: nobody's else."""
_DRAFT, _GRAVE = ".new-", ".gone-"


class MachineVolumes:
    """Those of one machine. *holders* tells which boxes have one."""

    def __init__(self, data_dir: str, *, own_disks: bool, holders: Callable[[str], Sequence[str]]) -> None:
        self._data = data_dir
        self._root = os.getuid() == 0
        self._own_disks = own_disks
        self._images = DiskImages(data_dir)
        self._reader = Reader()
        self._holders = holders
        self._turns: dict[str, asyncio.Lock] = {}
        """Of whoever writes to one at rest."""
        self._counting = asyncio.Lock()
        """One is counted at a time, whoever asks how often: a large one takes seconds, and boxes are built beside it."""
        self._making: set[str] = set()
        """Those that are being made or removed, whose drafts no sweep may take for broken off."""

    def _path(self, volume_id: str) -> str:
        if not is_id(volume_id) or not volume_id.startswith("vol_"):
            raise InvalidArgument("malformed id of a volume")
        return os.path.join(self._data, "volumes", volume_id)

    # -- life ----------------------------------------------------------------------------------

    async def create(self, volume_id: str, size_mib: int) -> None:
        await _whole(asyncio.to_thread(self._within, volume_id, partial(self._create, volume_id, size_mib)))

    def _within(self, volume_id: str, step: Callable[[], None]) -> None:
        self._making.add(volume_id)
        try:
            step()
        finally:
            self._making.discard(volume_id)

    def _create(self, volume_id: str, size_mib: int) -> None:
        path = self._path(volume_id)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.chmod(os.path.dirname(path), 0o700)
        if self._is_there(volume_id):
            return
        if self._own_disks:
            self._images.require(self._name(volume_id))
            self._images.make(self._name(volume_id), size_mib, OWNER, self._give)
            return
        draft = f"{path}{_DRAFT}{secrets.token_hex(4)}"
        os.mkdir(draft, 0o700)
        try:
            top = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._give(top)
            finally:
                os.close(top)
            os.rename(draft, path)
        except BaseException:
            remove_tree(draft)
            raise

    def _give(self, top: int) -> None:
        os.fchmod(top, 0o700)
        if self._root:
            os.fchown(top, OWNER, OWNER)

    async def remove(self, volume_id: str) -> None:
        path = self._path(volume_id)
        if holders := self._holders(volume_id):
            raise VolumeBusy(f"the sandbox `{holders[0]}` has the volume", holders=list(holders))
        await _whole(asyncio.to_thread(self._within, volume_id, partial(self._remove, volume_id, path)))

    def _remove(self, volume_id: str, path: str) -> None:
        name = self._name(volume_id)
        if self._images.exists(name) or self._images.leftover(name):
            self._images.remove(name)
            return
        grave = f"{path}{_GRAVE}{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            os.rename(path, grave)
            remove_tree(grave)

    def sweep(self) -> list[str]:
        """Remove what was half made or half removed, and nothing else, whoever knows of it. Returns what was. Blocking."""
        removed = []
        for parent in (os.path.join(self._data, "volumes"), os.path.join(self._data, "images", "volumes")):
            try:
                names = os.listdir(parent)
            except FileNotFoundError:
                continue
            for name in sorted(names):
                path = os.path.join(parent, name)
                is_broken_off = (_DRAFT in name or _GRAVE in name) and name.partition(".")[0] not in self._making
                if is_broken_off and try_removal(f"volumes/{name}", partial(remove_tree, path)):
                    removed.append(f"volumes/{name}")
        return removed

    def _is_there(self, volume_id: str) -> bool:
        return self._images.exists(self._name(volume_id)) or os.path.isdir(self._path(volume_id))

    def _name(self, volume_id: str) -> str:
        return f"volumes/{os.path.basename(self._path(volume_id))}"

    def open(self, volume_id: str) -> int:
        """A descriptor of its top directory, which its owner may enter again if that was taken away inside. Blocking.

        Raises:
            NotFound: there is no such volume on this machine.
            IsolationUnavailable: its disk cannot be mounted.
        """
        name = self._name(volume_id)
        if self._images.exists(name):
            self._images.mount(name)
        path = self._path(volume_id)
        try:
            status = os.stat(path, follow_symlinks=False)
            if not self._root and status.st_uid != os.getuid():  # by root of a box that such a user has
                take_back(path, own_range())
            mode = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, mode | stat.S_IRWXU)
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(
                "the directory of the volume is not on this machine", hint="remove the volume, and create it again"
            ) from error

    # -- in boxes ------------------------------------------------------------------------------

    def show(
        self,
        attached: Sequence[VolumeAttachment],
        owner: tuple[int, int],
        opened: ExitStack,
        *,
        root: tuple[int, int] | None = None,
    ) -> tuple[list[VolumeOrder], list[tuple[str, int]]]:
        """What a keeper is told and handed, so that the box of *owner* has them; *root* is who is root in it, if it has one.

        Descriptors are closed with *opened*. Blocking. Raises NotFound, IsolationUnavailable.
        """
        told, handed = [], []
        for number, one in enumerate(attached):
            top = self.open(one.volume_id)
            opened.callback(os.close, top)
            source = "" if self._root else self._path(one.volume_id)
            told.append(VolumeOrder(one.name, one.at, one.mode, one.size_mib * MIB, source))
            if self._root:
                uids, gids = (_map_of(owner[which], None if root is None else root[which]) for which in (0, 1))
                try:
                    mount = mount_with_users(top, uids, gids, writable=one.mode == "rw")
                except OSError as error:
                    raise _unmapped(one.name, error) from error
                opened.callback(os.close, mount)
                handed.append((f"volume{number}", mount))
        return told, handed

    # -- at rest -------------------------------------------------------------------------------

    async def usage(self, volume_id: str, size_mib: int) -> VolumeUsage:
        async with self._counting:
            return await _whole(asyncio.to_thread(self._usage, volume_id, size_mib))

    def _usage(self, volume_id: str, size_mib: int) -> VolumeUsage:
        top = self.open(volume_id)
        try:
            if self._images.exists(self._name(volume_id)):
                disk = read_disk(top)
                hard = disk.capacity <= size_mib * MIB
                return VolumeUsage(bytes=disk.used, files=disk.files - disk.files_free, hard=hard)
            found, files = measure_tree(top)
            return VolumeUsage(bytes=found.used, files=files, complete=found.whole, hard=False)
        finally:
            os.close(top)

    async def ask(self, volume_id: str, request: Request[A]) -> A:
        if request.verb not in ANSWERED:
            raise InvalidArgument(f"files at rest do not answer `{request.verb[:40]}`")
        return await asyncio.to_thread(self._ask, volume_id, request)

    def _ask(self, volume_id: str, request: Request[A], content: int | None = None) -> A:
        top = self.open(volume_id)
        try:
            owner = (OWNER, OWNER) if self._root else None
            return self._reader.ask(top, owner, request, content=content, writes=True)
        finally:
            os.close(top)

    async def write(
        self, volume_id: str, request: WriteFile, content: AsyncIterable[bytes], *, size_mib: int
    ) -> WriteAnswer:
        async with self._turns.setdefault(volume_id, asyncio.Lock()):
            usage = await self.usage(volume_id, size_mib)
            room = min(size_mib * MIB - usage.bytes - ENTRY_BYTES, MOST_UPLOAD_BYTES)
            with ExitStack() as opened:
                folder = os.path.join(self._data, "volumes")  # on the disk that volumes are on
                spool = opened.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0)).fileno()
                size = 0
                async for part in content:
                    size += len(part)
                    if size > room:
                        raise DiskFull(
                            f"the volume holds {usage.bytes} of at most {size_mib * MIB} bytes, and the file is larger "
                            "than what is left",
                            hint="remove files from the volume",
                            kind="disk",
                            limit=size_mib * MIB,
                            used=usage.bytes,
                        )
                    await asyncio.to_thread(_append, spool, part)
                return await _whole(asyncio.to_thread(self._ask, volume_id, request, spool))

    async def remove_path(self, volume_id: str, request: RemovePath) -> Done:
        async with self._turns.setdefault(volume_id, asyncio.Lock()):
            return await _whole(asyncio.to_thread(self._ask, volume_id, request))

    async def make_directory(self, volume_id: str, request: MakeDirectory, *, size_mib: int) -> Done:
        async with self._turns.setdefault(volume_id, asyncio.Lock()):
            usage = await self.usage(volume_id, size_mib)
            if usage.bytes + ENTRY_BYTES * (request.path.count("/") + 1) > size_mib * MIB:
                raise DiskFull(
                    f"the volume holds {usage.bytes} of at most {size_mib * MIB} bytes, which leaves no room for directories",
                    hint="remove files from the volume",
                    kind="disk",
                    limit=size_mib * MIB,
                    used=usage.bytes,
                )
            return await _whole(asyncio.to_thread(self._ask, volume_id, request))

    async def close(self) -> None:
        await asyncio.to_thread(self._reader.close)


def _append(file: int, part: bytes) -> None:
    rest = memoryview(part)
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("the disk of the host has no room for the file", kind="disk") from error
            raise


def _map_of(owner: int, root: int | None) -> Extents:
    return ((OWNER, owner, 1), *(() if root is None else ((ROOT, root, 1),)))


def _unmapped(name: str, error: OSError) -> IsolationUnavailable:
    reason = f"its users cannot be mapped here: {error.strerror}"
    remedy = "keep the data directory on ext4, xfs or btrfs, with a kernel of 5.12 or later"
    return IsolationUnavailable(
        f"the volume `{name}` cannot be shown in a sandbox: {reason}",
        hint=remedy,
        property="volumes",
        reason=reason,
        remedy=remedy,
    )


async def _whole(work: Coroutine[object, object, R]) -> R:
    """A step that was begun is ended, even if whoever waits for it leaves."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise
