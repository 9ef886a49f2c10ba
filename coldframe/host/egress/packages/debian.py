"""Debian packages, for apt: what an archive lists by suite and component, and its packages.

    /dists/SUITE/…/InRelease, Packages.xz and their kin      lists, of which apt checks the signature in the box
    …/by-hash/ALGORITHM/DIGEST                               one of them by its digest
    /pool/…/NAME_VERSION_ARCHITECTURE.deb                    a package, of which apt checks the digest by the lists

The archive tells digests of packages in its lists alone, which apt reads and the broker does not. So what came first under a
name holds from then on: an archive never gives another file the same one.
"""

import re
from urllib.parse import unquote

from coldframe.host.egress.packages.cache import read_hashes
from coldframe.host.egress.packages.listing import ListedFile, Listing, Wanted

TYPE = "application/octet-stream"

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,100}")
_LIST = re.compile(
    r"(?:InRelease|Release(?:\.gpg)?|(?:Packages|Sources|Translation-[A-Za-z_]{1,12}|Contents-[a-z0-9-]{1,24}|"
    r"Components-[a-z0-9-]{1,24}\.yml)(?:\.(?:xz|gz|bz2|zst|lzma))?)"
)
_PACKAGE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]{1,100})_(?P<version>[A-Za-z0-9.+~:-]{1,100})_[a-z0-9_-]{2,64}\.u?deb"
)
_DIGEST = re.compile(r"[0-9a-f]{32,128}")
_ALGORITHMS = {"SHA512": "sha512", "SHA256": "sha256", "SHA1": "sha1", "MD5Sum": "md5"}
_MOST_DEPTH, _MOST_CHARACTERS = 8, 300
"""Of a path: a name may be as long as with the other kinds of registries, and not much more is carried out by asking."""


def read_path(path: str) -> Wanted | None:
    """What is meant by a path below the archive, which begins with a slash; None if no client asks for such.

    `package` is the path without its last part for what has a digest or never changes, and the whole for a list.
    """
    *folders, last = unquote(path[1:]).split("/")
    if (
        len(path) > _MOST_CHARACTERS
        or len(folders) > _MOST_DEPTH
        or not all(_SEGMENT.fullmatch(one) for one in folders)
    ):
        return None
    if found := _PACKAGE.fullmatch(last):
        return Wanted("/".join(folders), last, found["version"])
    if folders[-2:-1] == ["by-hash"] and folders[-1] in _ALGORITHMS and _DIGEST.fullmatch(last):
        return Wanted("/".join(folders), last)
    return Wanted("/".join((*folders, last))) if _LIST.fullmatch(last) else None


def question(wanted: Wanted) -> tuple[str, str]:
    """The path below the archive, and what is accepted."""
    return f"/{wanted.package}", "*/*"


def read_answer(data: bytes, wanted: Wanted) -> Listing:
    return Listing(wanted.package, {}, data)


def tell(listing: Listing) -> tuple[str, bytes]:
    """The type and the body that a client is answered."""
    return TYPE, listing.body


def listing_of(wanted: Wanted, address: str) -> Listing:
    """Of a file that no listing names: of the digest in its name, or of whatever comes first. *address*: of the file."""
    assert wanted.file is not None
    algorithm = _ALGORITHMS.get(wanted.package.rpartition("/")[2], "")
    hashes = read_hashes({algorithm: wanted.file}) if "/by-hash/" in f"/{wanted.package}" else {}
    return Listing(wanted.package, {wanted.file: ListedFile(address, hashes, wanted.version or "")}, b"")


def package_of(wanted: Wanted) -> str:
    """For the record: the name of the package, or the list."""
    found = _PACKAGE.fullmatch(wanted.file or "")
    return found["name"] if found else wanted.package
