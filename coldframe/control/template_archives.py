"""Archives of files for builds that are announced: known by a key of the builder's, and sent to a link that holds by itself.

Builders of E2B say what they send by a digest of their own, of the files and not of the bytes that come, and send these without
their token. So a link is a secret of its own: for one name and key, for an hour, as whoever asked for it. What came is kept as
every input of a build is, by the digest of its bytes.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from coldframe.contract.caller import Caller
from coldframe.contract.errors import InvalidArgument, LimitReached, TooLarge, Unauthenticated
from coldframe.contract.template import MOST_INPUT_BYTES
from coldframe.control.rights import require
from coldframe.control.store import Store
from coldframe.control.template_builds import TemplateBuilds
from coldframe.control.template_rows import archives
from coldframe.control.tokens import Surface, Tokens

LINK_FOR = timedelta(hours=1)
MOST_LINKS = 10_000
MOST_AT_ONCE = 8
"""Uploads; each lies on the disk of the server until the machine has it."""
PIECE_BYTES = 1024 * 1024


class Archive(NamedTuple):
    """What came under a key."""

    sha256: str
    bytes: int


class _Link(NamedTuple):
    token_id: str
    """Of whoever asked for it."""
    surface: Surface
    name: str
    key: str
    until: datetime


class TemplateArchives:
    """Of one installation. Their right is `template.build`. Links are forgotten when the server ends; ask for another."""

    def __init__(
        self, directory: str, store: Store, tokens: Tokens, builds: TemplateBuilds, clock: Callable[[], datetime]
    ) -> None:
        self._directory = directory
        self._store = store
        self._tokens = tokens
        self._builds = builds
        self._clock = clock
        self._links: dict[str, _Link] = {}
        self._coming = 0
        self._is_swept = False
        self._sweeping = asyncio.Lock()

    async def find(self, caller: Caller, name: str, key: str) -> Archive | None:
        """What came under *key* for builds of *name*, if it is still there. Raises GrantMissing."""
        require(caller, "template.build")
        query = "SELECT sha256, bytes FROM template_archives WHERE name = ? AND key = ?"
        for sha256, size in self._store.read(query, (name, key)):
            if not await self._builds.missing(caller, (sha256,)):
                return Archive(str(sha256), int(size))
        return None

    def link(self, caller: Caller, name: str, key: str) -> str:
        """A secret with which the archive of *key* can be sent. Raises GrantMissing, LimitReached."""
        require(caller, "template.build")
        now = self._clock()
        for secret in [secret for secret, one in self._links.items() if one.until < now]:
            del self._links[secret]
        if len(self._links) >= MOST_LINKS:
            raise LimitReached(
                f"{MOST_LINKS} uploads are awaited, which is the most",
                hint="links end after an hour",
                kind="template_uploads",
                limit=MOST_LINKS,
            )
        secret = secrets.token_hex(32)
        self._links[secret] = _Link(caller.token_id, caller.surface, name, key, now + LINK_FOR)
        return secret

    async def receive(self, secret: str, key: str, content: AsyncIterable[bytes]) -> Archive:
        """Take it in. The same link may be used again within its hour: what was sent last counts.

        Raises:
            Unauthenticated: there is no such link, its hour is over, or whoever asked for it is let in no more.
            TooLarge, LimitReached, InvalidArgument: the upload broke off.
        """
        link = self._links.get(secret)
        if link is None or link.key != key or link.until < self._clock():
            raise Unauthenticated("this link is of no upload that is awaited", hint="ask for another one")
        self._tokens.caller_of(link.token_id, surface=link.surface)  # before anything is taken in
        if self._coming >= MOST_AT_ONCE:
            raise LimitReached(
                f"{MOST_AT_ONCE} uploads come right now, which is the most",
                hint="send it again in a moment",
                kind="template_uploads",
                limit=MOST_AT_ONCE,
            )
        self._coming += 1
        path = os.path.join(self._directory, secrets.token_hex(8))
        try:
            await self._sweep()
            found = await _keep(path, content)
            caller = self._tokens.caller_of(link.token_id, surface=link.surface)  # as they are now that it is here
            await self._builds.put(caller, found.sha256, _pieces(path))
        finally:
            self._coming -= 1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        with self._store.transaction() as connection:
            same = archives.c.name == link.name, archives.c.key == key
            connection.execute(archives.delete().where(*same))
            values = {"name": link.name, "key": key, "by": caller.name, **found._asdict()}
            connection.execute(archives.insert().values(values))
        return found

    async def _sweep(self) -> None:
        """What a server that was killed has left goes before the first upload begins, for which others wait."""
        async with self._sweeping:
            if not self._is_swept:
                await asyncio.to_thread(_empty, self._directory)
                self._is_swept = True


def _empty(directory: str) -> None:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


async def _keep(path: str, content: AsyncIterable[bytes]) -> Archive:
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as target:
        try:
            async for piece in content:
                size += len(piece)
                if size > MOST_INPUT_BYTES:
                    raise TooLarge(f"an archive has {MOST_INPUT_BYTES} bytes at most", limit=MOST_INPUT_BYTES)
                digest.update(piece)
                target.write(piece)
        except (TooLarge, OSError):
            raise
        except Exception as error:
            raise InvalidArgument(f"the upload broke off: {type(error).__name__}", argument="body") from error
    return Archive(digest.hexdigest(), size)


async def _pieces(path: str) -> AsyncIterator[bytes]:
    with open(path, "rb") as source:
        while piece := await asyncio.to_thread(source.read, PIECE_BYTES):
            yield piece
