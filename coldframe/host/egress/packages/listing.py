"""What a registry said of one package, as it is kept: its files, and what clients are told of it.

The digests that were told first of a file hold for as long as this is kept, and they alone: a registry that tells others
later, or more, or sends other bytes, may have changed what a version is, and is not followed. So clients are told the first
ones, by which its bytes are checked; a stronger digest of the same bytes is not passed on, and does no harm. That holds for
a file too that was not listed for a while. The administrator purges the cache if a change is wanted.
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from coldframe.host.egress.packages.cache import Digest, strongest

MOST_FILES = 100_000
MOST_LISTING_BYTES = 64 << 20
"""As it comes from a registry: the largest packages of npm have some ten MiB."""


_VISIBLE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


class ListingInvalid(Exception):
    """The registry says something that cannot be read."""


class Wanted(NamedTuple):
    """What a client asks for, in the words of the registry's kind."""

    package: str
    file: str | None = None
    """None: the listing of the package."""
    version: str | None = None
    """Of the listing, this version alone."""


@dataclass(frozen=True)
class ListedFile:
    url: str
    """Where the registry has it."""
    hashes: dict[str, str]
    version: str
    size: int | None = None

    @property
    def digest(self) -> Digest | None:
        return strongest(self.hashes)


@dataclass(frozen=True)
class Listing:
    package: str
    files: dict[str, ListedFile]
    body: bytes
    """What clients are told, in the form of the registry's kind; addresses and digests are those of `files`."""
    at: float = 0.0
    """When the registry said so, or that it holds still."""
    etag: str = ""
    modified: str = ""
    pinned: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of files of which others are told now, or that are not listed now: the digests that hold."""

    def pin(self, file: str, digest: Digest) -> "Listing":
        """With a digest that was found of bytes that are right."""
        return replace(self, pinned={**self.pinned, file: {**self.hashes_of(file), digest.algorithm: digest.value}})

    def hashes_of(self, file: str) -> dict[str, str]:
        """What its bytes have to add up to."""
        return self.pinned.get(file) or self.files[file].hashes

    def after(self, earlier: "Listing | None") -> "Listing":
        """The same, with what was told first where the two do not agree. Raises ListingInvalid: there is too much of it."""
        if earlier is None:
            return self
        pinned = {**self.pinned, **earlier.pinned}
        for name in earlier.files:
            first = earlier.hashes_of(name)
            if first and (name not in self.files or self.files[name].hashes != first):
                pinned[name] = first
        if len(pinned) > MOST_FILES:
            raise ListingInvalid("it lists other files each time")
        return replace(self, pinned=pinned)


def read_validator(text: str, most: int) -> str:
    """A tag or a time of a listing, to be sent back as it came; nothing if it is longer or cannot stand in a header."""
    return text if len(text) <= most and _VISIBLE.fullmatch(text) else ""


def write_listing(listing: Listing) -> bytes:
    told = asdict(replace(listing, body=b""))
    del told["body"]
    return json.dumps(told).encode() + b"\n" + listing.body


def read_listing(data: bytes) -> Listing:
    """What `write_listing` wrote. Raises ListingInvalid: an older version may have written otherwise."""
    head, _, body = data.partition(b"\n")
    try:
        told = json.loads(head)
        files = {name: ListedFile(**file) for name, file in told.pop("files").items()}
        return Listing(files=files, body=body, **told)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ListingInvalid("what was kept cannot be read") from None
