"""What recipes are given: files and archives, put to `<data>/templates/inputs/` under their digests before a build."""

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterable, Collection, Sequence

from coldframe.contract.errors import InvalidArgument, LimitReached, TooLarge

KEPT_S = 3600.0
"""After somebody has asked for it last."""
MOST_BYTES = 16 << 30
"""Of all that lie there, whoever has put them: four of the largest archives."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Inputs:
    """Of one machine."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._come = self._coming = 0
        """Bytes of those that were put by this process, and of those that are being put."""

    def missing(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Which are not there. The others count as asked for. Raises InvalidArgument for what is no digest."""
        return tuple(one for one in dict.fromkeys(digests) if not self._touch(one))

    async def put(self, sha256: str, content: AsyncIterable[bytes], *, most_bytes: int) -> int:
        """See `Templates.put_input`."""
        path = self._path(sha256)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        draft = os.path.join(self._folder, f".new-{secrets.token_hex(8)}")
        found, size = hashlib.sha256(), 0
        come = self._come
        held = await asyncio.to_thread(self._held_bytes)
        try:
            with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as target:
                async for piece in content:
                    size += len(piece)
                    self._coming += len(piece)
                    if size > most_bytes:
                        raise TooLarge(f"an input of a recipe has {most_bytes} bytes at most", limit=most_bytes)
                    if held + self._come - come + self._coming > MOST_BYTES:
                        raise LimitReached(
                            f"what was put for recipes has {MOST_BYTES} bytes at most, all together",
                            hint="what no build needs is removed an hour after it was put; put it again then",
                            kind="disk",
                            limit=MOST_BYTES,
                        )
                    found.update(piece)
                    target.write(piece)
                target.flush()
                await asyncio.to_thread(os.fsync, target.fileno())  # else a crash may leave its name without its bytes
            if found.hexdigest() != sha256:
                raise InvalidArgument(
                    "what came has another digest than was said",
                    hint="it changed while it was read, or was damaged on the way: send it again",
                    sha256=found.hexdigest(),
                )
            os.rename(draft, path)
            self._come += size
        except OSError as error:
            raise no_room(error) from error
        finally:
            self._coming -= size
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        return size

    def _held_bytes(self) -> int:
        held = 0
        with os.scandir(self._folder) as entries:
            for one in entries:
                with contextlib.suppress(FileNotFoundError):  # it was not needed any more
                    held += one.stat(follow_symlinks=False).st_size if _DIGEST.fullmatch(one.name) else 0
        return held

    def open(self, sha256: str) -> int:
        """A descriptor to read it with. Raises InvalidArgument: it was not put here."""
        self._touch(sha256)
        try:
            return os.open(self._path(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise InvalidArgument(
                f"the input `{sha256[:12]}…` of the recipe is not on the machine",
                hint="upload it, and build within the hour",
                sha256=sha256,
            ) from None

    def forget_unused(self, kept: Collection[str] = ()) -> None:
        """What nobody has asked for within KEPT_S, but for what is *kept*."""
        limit = time.time() - KEPT_S
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                if name in kept:
                    continue
                path = os.path.join(self._folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(path).st_mtime < limit:
                        os.unlink(path)

    def _touch(self, sha256: str) -> bool:
        try:
            os.utime(self._path(sha256))
        except FileNotFoundError:
            return False
        return True

    def _path(self, sha256: str) -> str:
        if not _DIGEST.fullmatch(sha256):
            raise InvalidArgument(f"`{sha256[:80]}` is no SHA-256 digest", argument="sha256")
        return os.path.join(self._folder, sha256)


def no_room(error: OSError) -> BaseException:
    """LimitReached where a disk is full; else what it was."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LimitReached("the disk of the machine is full", kind="disk")
    return error
