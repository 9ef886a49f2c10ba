"""What a registry said of one package, as it is kept: its files, and what clients are told of it.

The first digest that was seen for a file holds for as long as this is kept: a registry that tells another one later, or
sends other bytes, has changed what a version is, and is not followed. The administrator purges the cache if that is wanted.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from coldframe.host.egress.packages.cache import Digest, strongest

MOST_FILES = 100_000
MOST_LISTING_BYTES = 64 << 20
"""As it comes from a registry: the largest packages of npm have some ten MiB."""


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
    """Digests that were found, or that were told first: they hold."""

    def pin(self, file: str, digest: Digest) -> "Listing":
        return replace(
            self, pinned={**self.pinned, file: {**self.pinned.get(file, {}), digest.algorithm: digest.value}}
        )

    def hashes_of(self, file: str) -> dict[str, str]:
        """What its bytes have to add up to."""
        return {**self.files[file].hashes, **self.pinned.get(file, {})}

    def after(self, earlier: "Listing | None") -> "Listing":
        """The same, with what was told first where the two do not agree."""
        if earlier is None:
            return self
        pinned = {**self.pinned, **earlier.pinned}
        for name, file in self.files.items():
            known = earlier.files.get(name)
            first = {**(known.hashes if known is not None else {}), **earlier.pinned.get(name, {})}
            if any(file.hashes.get(algorithm, value) != value for algorithm, value in first.items()):
                pinned[name] = first
        return replace(self, pinned=pinned)


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
