"""One file of a package on its way from a registry, or from where it is kept, to all who want it.

It is written down as it comes, and those who want it read what is written, all but the last bytes: these follow when all
of it adds up to the published digest. So a program sees that it gets on, and what is wrong never looks whole.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import NamedTuple

from coldframe.host.egress.packages.cache import (
    MOST_FILE_BYTES,
    Digest,
    DigestWrong,
    Draft,
    PackageCache,
    check_file,
)
from coldframe.host.egress.packages.fetch import RegistryFailed, Reply

SHOWN_AT_BYTES, SHOWN_AT_S = 1 << 20, 3.0
"""When the head of a file goes out before it was checked, so that a program can show that it gets on; until then what is
wrong with it can be said as an answer."""
HELD_BYTES = 512
"""Of a file, until all of it was checked."""
MOST_CHECKED_FIRST_BYTES = 8 << 20
"""Of files that were kept: larger ones are checked on their way, as when they are fetched."""
ABSENT = (401, 403, 404, 410)
"""A registry answers so, and clients are told that it is not there."""
PART_BYTES = 64 * 1024


class PackageRefused(Exception):
    """The answer is no file and no listing. `rule_id` is there if that is a denial, for the record."""

    def __init__(self, status: int, code: str, reason: str, *, rule_id: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.rule_id = rule_id


class Kept(NamedTuple):
    file: int
    size: int
    is_checked: bool


class Download:
    """One file on its way, for all who want it. It ends when nobody does any more."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.readers = 0
        self.length: int | None = None
        """As the registry says."""
        self.received = 0
        self.is_over = False
        self.is_left = False
        """Nobody wanted it any more, and nobody may join."""
        self.failure: Exception | None = None
        self.digest: Digest | None = None
        """Once it is whole and right."""
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[None, None, None], after: Callable[[], object]) -> None:
        async def run() -> None:
            try:
                await work
            except (RegistryFailed, DigestWrong, PackageRefused, OSError) as failure:
                self.failure = failure
            except asyncio.CancelledError:
                self.failure = RegistryFailed("nobody waited for it any more")
            except Exception as fault:
                self.failure = RegistryFailed("a fault of ours")
                raise fault
            finally:
                self.is_over = True
                after()
                self._tell()
                if not self.readers:
                    self.draft.drop()

        self._task = asyncio.get_running_loop().create_task(run())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def leave(self) -> None:
        self.readers -= 1
        if self.readers:
            return
        if self.is_over:
            self.draft.drop()
        else:
            self.is_left = True
            self.cancel()

    async def take(self, reply: Reply) -> None:
        """Raises RegistryFailed, PackageRefused and OSError."""
        if reply.status in ABSENT:
            raise PackageRefused(404, "NOT_FOUND", "the registry lists the file and does not hand it over")
        if reply.status != HTTPStatus.OK or reply.headers.get("content-encoding", "identity") != "identity":
            raise RegistryFailed(f"it answered {reply.status} instead of the file")
        told = reply.headers.get("content-length", "")
        self.length = int(told) if told.isdecimal() and len(told) < 16 else None
        async for part in reply.parts():
            if self.received + len(part) > MOST_FILE_BYTES:
                raise RegistryFailed(f"the file is larger than {MOST_FILE_BYTES >> 20} MiB")
            self.draft.write(part)
            self.received += len(part)
            self._tell()

    async def settle(self) -> None:
        """Until it is over, or far enough to be shown."""
        try:
            async with asyncio.timeout(SHOWN_AT_S):
                while not self.is_over and self.received < SHOWN_AT_BYTES:
                    await self._moved.wait()
        except TimeoutError:
            while not self.is_over and self.received <= HELD_BYTES:
                await self._moved.wait()

    async def parts(self, file: int) -> AsyncIterator[bytes]:
        place = 0
        while True:
            if self.failure is not None:
                raise ConnectionError(str(self.failure))
            there = self.received if self.is_over else self.received - HELD_BYTES
            if place < there:
                data = os.pread(file, min(PART_BYTES, there - place), place)
                place += len(data)
                yield data
            elif self.is_over:
                return
            else:
                await self._moved.wait()

    def _tell(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


async def parts_of(kept: Kept, digest: Digest, drop: Callable[[], None]) -> AsyncIterator[bytes]:
    found, place = digest.hash(), 0
    while data := os.pread(kept.file, PART_BYTES, place):
        place += len(data)
        if not kept.is_checked:
            found.update(data)
            if place >= kept.size and found.hexdigest() != digest.value:
                drop()
                raise ConnectionError("what was kept of it is damaged")
        yield data


async def open_kept(cache: PackageCache, digest: Digest | None) -> Kept | None:
    """The file, if it is kept and whole. Raises OSError."""
    file = None if digest is None else cache.open(digest)
    if file is None or digest is None:
        return None
    size = os.fstat(file).st_size
    if size > MOST_CHECKED_FIRST_BYTES:
        return Kept(file, size, is_checked=False)
    try:
        if await asyncio.to_thread(check_file, file, digest):
            return Kept(file, size, is_checked=True)
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    cache.drop(digest)
    return None
