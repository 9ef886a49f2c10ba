"""Listings of packages at hand: what is kept of them is read, and put into the words of clients, once and not each time.

A large one takes a tenth of a second to read, in which no other box is served: so that is done beside the event loop.
What was purged meanwhile is not at hand any more.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from coldframe.host.egress.packages.cache import PackageCache, Stamp
from coldframe.host.egress.packages.listing import Listing, ListingInvalid, read_listing, write_listing

MOST_BYTES = 16 << 20
"""Of listings at hand, about."""
FILE_BYTES = 1000
"""That one file of a listing takes."""
MOST_TOLD = 4
"""Forms of one listing that are kept: whole and short, for people and for programs, one version."""


class Told(NamedTuple):
    """What clients are answered."""

    kind: str
    body: bytes
    etag: str


@dataclass
class _Entry:
    stamp: Stamp
    listing: Listing
    told: dict[tuple[str, ...], Told] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.listing.body) + FILE_BYTES * len(self.listing.files)


class Shelf:
    def __init__(self, cache: PackageCache) -> None:
        self._cache = cache
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    async def recall(self, key: str) -> Listing | None:
        """What is kept of it, if that can be read. Raises OSError."""
        stamp = self._cache.stamp(key)
        entry = self._entries.get(key)
        if stamp is None or (entry is not None and entry.stamp != stamp):
            self._entries.pop(key, None)
            entry = None
        if entry is not None:
            self._entries.move_to_end(key)
            return entry.listing
        listing = None if stamp is None else await asyncio.to_thread(self._read, key)
        if listing is not None and stamp is not None:
            self._put(key, _Entry(stamp, listing))
        return listing

    async def keep(self, key: str, listing: Listing) -> None:
        """Raises OSError."""
        await asyncio.to_thread(lambda: self._cache.keep(key, write_listing(listing)))
        stamp = self._cache.stamp(key)
        if stamp is not None:
            self._put(key, _Entry(stamp, listing))

    async def tell(
        self, key: str, listing: Listing, form: tuple[str, ...], write: Callable[[], tuple[str, bytes] | None]
    ) -> Told | None:
        """The *listing* of *key* in the words of a client. *form*: what these depend on besides."""
        entry = self._entries.get(key)
        if entry is None or entry.listing is not listing:
            return await asyncio.to_thread(_write, write)
        told = entry.told.get(form)
        if told is None:
            told = await asyncio.to_thread(_write, write)
            if told is not None and len(entry.told) < MOST_TOLD:
                entry.told[form] = told
        return told

    def _read(self, key: str) -> Listing | None:
        data = self._cache.recall(key)
        try:
            return None if data is None else read_listing(data)
        except ListingInvalid:
            return None

    def _put(self, key: str, entry: _Entry) -> None:
        self._entries.pop(key, None)
        self._entries[key] = entry
        size = sum(one.size for one in self._entries.values())
        while size > MOST_BYTES and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            size -= oldest.size


def _write(write: Callable[[], tuple[str, bytes] | None]) -> Told | None:
    told = write()
    return None if told is None else Told(*told, f'"{hashlib.sha256(told[1]).hexdigest()[:32]}"')
