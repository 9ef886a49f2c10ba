"""Packages of npm, for npm, Deno and their kin: what a registry tells of a package, and its archives.

    /NAME  /@SCOPE/NAME             the listing, whole or as much as an installation needs
    /NAME/VERSION                   one version of it, or what a tag stands for
    /NAME/-/FILE.tgz                an archive, wherever the registry has it

Archives are offered below the registry, so that a box needs no other name; the usual address of an archive is left as
it is, since it goes into lock files.
"""

import base64
import binascii
import json
import re
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from coldframe.host.egress.packages.cache import read_hashes
from coldframe.host.egress.packages.listing import MOST_FILES, ListedFile, Listing, ListingInvalid, Wanted

SHORT_TYPE = "application/vnd.npm.install-v1+json"
JSON_TYPE = "application/json"

_NAME = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]{0,99}/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]{0,99}")
_FILE = re.compile(r"[A-Za-z0-9@_~][A-Za-z0-9._+~@-]{0,250}\.tgz")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,100}")


def read_path(path: str) -> Wanted | None:
    """What is meant by a path below the registry, which begins with a slash; None if no client asks for such."""
    parts = unquote(path[1:]).removesuffix("/").split("/")
    length = 2 if parts[0].startswith("@") else 1
    name, rest = "/".join(parts[:length]), parts[length:]
    if _NAME.fullmatch(name) is None or name == "-":
        return None
    match rest:
        case []:
            return Wanted(name)
        case [version] if _VERSION.fullmatch(version):
            return Wanted(name, version=version)
        case ["-", *folder, file] if len(folder) <= 1 and _FILE.fullmatch(file):
            return Wanted(name, file)
    return None


def question(wanted: Wanted, *, short: bool) -> tuple[str, str]:
    """The path below the registry, and what is accepted."""
    return "/" + quote(wanted.package, safe="@~"), f"{SHORT_TYPE}, {JSON_TYPE};q=0.8" if short else JSON_TYPE


def read_answer(data: bytes, page: str, wanted: Wanted, address: str) -> Listing:
    """*address*: that of the registry, as clients are told. Raises ListingInvalid."""
    try:
        told: dict[str, Any] = json.loads(data)
        versions: dict[str, Any] = told["versions"]
        if told["name"] != wanted.package or len(versions) > MOST_FILES:
            raise ListingInvalid("it tells of another package, or of too many versions")
        tags = told.get("dist-tags")
        told["dist-tags"] = {tag: one for tag, one in tags.items() if one in versions} if isinstance(tags, dict) else {}
        files: dict[str, ListedFile] = {}
        for version, one in list(versions.items()):
            dist = one.get("dist")
            is_known = isinstance(dist, dict) and isinstance(dist.get("tarball"), str)
            if not is_known or _VERSION.fullmatch(version) is None:
                del versions[version]
                continue
            url = urljoin(page, dist["tarball"])
            name = file_name(wanted.package, version, url)
            if name in files:  # of another version
                name = usual_name(wanted.package, version)
            files[name] = ListedFile(url, _hashes(dist), version)
            _tell_hashes(dist, files[name].hashes)
            dist["tarball"] = f"{address}{wanted.package}/-/{quote(name)}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ListingInvalid("what it tells cannot be read") from None
    return Listing(wanted.package, files, json.dumps(told, separators=(",", ":")).encode())


def file_name(package: str, version: str, url: str) -> str:
    """Of an archive: the usual one, if the registry's own says nothing else."""
    own = unquote(urlsplit(url).path.rpartition("/")[2])
    return own if _FILE.fullmatch(own) is not None and version in own else usual_name(package, version)


def usual_name(package: str, version: str) -> str:
    return f"{package.rpartition('/')[2]}-{version}.tgz"


def _hashes(dist: dict[str, Any]) -> dict[str, str]:
    found = {"sha1": dist.get("shasum")}
    integrity = dist.get("integrity")
    for one in integrity.split() if isinstance(integrity, str) else ():
        kind, _, value = one.partition("-")
        try:
            found.setdefault(kind, base64.b64decode(value.partition("?")[0], validate=True).hex())
        except (binascii.Error, ValueError):
            continue
    return read_hashes(found)


def _tell_hashes(dist: dict[str, Any], hashes: dict[str, str]) -> None:
    """These and no others: of two digests of one kind npm takes either, also from a lock file later."""
    dist.pop("shasum", None)
    dist.pop("integrity", None)
    if "sha1" in hashes:
        dist["shasum"] = hashes["sha1"]
    kinds = [kind for kind in ("sha512", "sha384", "sha256") if kind in hashes]
    if kinds:
        dist["integrity"] = " ".join(
            f"{kind}-{base64.b64encode(bytes.fromhex(hashes[kind])).decode()}" for kind in kinds
        )


def form_of(accept: str) -> str:
    """What `tell` reads of it."""
    return SHORT_TYPE if SHORT_TYPE in accept else JSON_TYPE


def tell(listing: Listing, wanted: Wanted, accept: str) -> tuple[str, bytes] | None:
    """The type and the body that a client is answered; None if there is no such version."""
    body = listing.body
    pinned = {listing.files[name].version: listing.hashes_of(name) for name in listing.pinned if name in listing.files}
    if wanted.version is None and not pinned:
        return form_of(accept), body
    told = json.loads(body)
    for version, hashes in pinned.items():
        _tell_hashes(told["versions"][version]["dist"], hashes)
    if wanted.version is not None:
        version = told["dist-tags"].get(wanted.version, wanted.version)
        if version not in told["versions"]:
            return None
        told = told["versions"][version]
    return JSON_TYPE, json.dumps(told).encode()
