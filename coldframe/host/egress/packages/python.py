"""Python packages: the simple index (PEP 503, 691, 700, 714), as registries tell it and as clients are told.

    /PROJECT/            the listing
    /PROJECT/FILE        one of its files, wherever the registry has it
    /PROJECT/FILE.metadata

Files are offered beside the listing, so that a box needs no other name than that of the registry.
"""

import html
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from coldframe.host.egress.packages.cache import STRENGTH, read_hashes
from coldframe.host.egress.packages.listing import MOST_FILES, ListedFile, Listing, ListingInvalid, Wanted

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
METADATA = ".metadata"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "text/html; charset=utf-8"

_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!~-]{0,250}")
_SEPARATORS = re.compile(r"[-_.]+")
_ARCHIVE = re.compile(r"\.(?:tar\.gz|tar\.bz2|tar\.xz|tgz|zip|egg|exe|msi|rpm|whl)$")


def read_path(path: str) -> Wanted | None:
    """What is meant by a path below the registry, which begins with a slash; None if no client asks for such."""
    parts = [unquote(part) for part in path.split("/")[1:]]
    if len(parts) == 2 and not parts[1]:
        parts.pop()
    if not 1 <= len(parts) <= 2 or _PROJECT.fullmatch(parts[0]) is None:
        return None
    project = _SEPARATORS.sub("-", parts[0]).lower()
    if len(parts) == 1:
        return Wanted(project)
    return Wanted(project, parts[1]) if _FILE.fullmatch(parts[1]) is not None else None


def question(wanted: Wanted) -> tuple[str, str]:
    """The path below the registry, and what is accepted."""
    return f"/{wanted.package}/", ACCEPT


def read_answer(data: bytes, content_type: str, page: str, wanted: Wanted) -> Listing:
    """Raises ListingInvalid."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == JSON_TYPE:
            found, base = json.loads(data)["files"], page
        elif kind in ("text/html", "application/vnd.pypi.simple.v1+html"):
            reader = _Anchors()
            reader.feed(data.decode("utf-8", "replace"))
            found, base = reader.files, urljoin(page, reader.base)
        else:
            raise ListingInvalid("its answer is no listing of a Python package")
        if len(found) > MOST_FILES:
            raise ListingInvalid("it lists too many files")
        files: dict[str, ListedFile] = {}
        told: list[dict[str, Any]] = []
        for one in found:
            _take(one, base, wanted.package, files, told)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ListingInvalid("its listing cannot be read") from None
    versions = sorted({file.version for file in files.values() if file.version})
    body = {"meta": {"api-version": "1.1"}, "name": wanted.package, "versions": versions, "files": told}
    return Listing(wanted.package, files, json.dumps(body).encode())


def _take(
    one: dict[str, Any], base: str, project: str, files: dict[str, ListedFile], told: list[dict[str, Any]]
) -> None:
    name, url = one["filename"], urljoin(base, one["url"])
    if _FILE.fullmatch(name) is None or name in files or name.endswith(METADATA):
        return
    hashes = read_hashes(one.get("hashes", {}))
    size = one.get("size") if type(one.get("size")) is int else None
    version = version_of(name, project)
    files[name] = ListedFile(url, hashes, version, size)
    entry: dict[str, Any] = {"filename": name, "url": quote(name), "hashes": hashes}
    entry |= {key: one[key] for key in ("requires-python", "yanked", "upload-time") if one.get(key) is not None}
    if size is not None:
        entry["size"] = size
    core = one.get("core-metadata") or one.get("dist-info-metadata") or one.get("data-dist-info-metadata")
    digest = read_hashes(core).get("sha256") if isinstance(core, dict) else None
    if digest is not None:
        # Without a digest nobody could tell whether it is the right one; clients then read it in the file.
        files[name + METADATA] = ListedFile(url + METADATA, {"sha256": digest}, version)
        entry["core-metadata"] = {"sha256": digest}  # by its older name pip 22 and 23.0 break off
    told.append(entry)


def version_of(file: str, project: str) -> str:
    """As the name of the file tells; empty if it does not."""
    name = file.removesuffix(METADATA)
    if name.endswith(".whl"):
        return name.split("-")[1] if name.count("-") >= 4 else ""
    stem = _ARCHIVE.sub("", name)
    for place, sign in enumerate(stem):
        if sign == "-" and _SEPARATORS.sub("-", stem[:place]).lower() == project:
            return stem[place + 1 :]
    return ""


def form_of(accept: str) -> str:
    """What `tell` reads of it."""
    return JSON_TYPE if JSON_TYPE in accept else HTML_TYPE


def tell(listing: Listing, wanted: Wanted, accept: str) -> tuple[str, bytes] | None:
    """The type and the body that a client is answered."""
    pinned = {name: listing.hashes_of(name) for name in listing.pinned if name in listing.files}
    body = listing.body
    if pinned:
        told = json.loads(body)
        for one in told["files"]:
            one["hashes"] = pinned.get(one["filename"], one["hashes"])
            if "core-metadata" in one:
                one["core-metadata"] = pinned.get(one["filename"] + METADATA, one["core-metadata"])
        body = json.dumps(told).encode()
    if form_of(accept) == JSON_TYPE:
        return JSON_TYPE, body
    return HTML_TYPE, _as_html(json.loads(body)).encode("utf-8", "replace")


def _as_html(told: dict[str, Any]) -> str:
    lines = ["<!DOCTYPE html>", '<html><head><meta name="pypi:repository-version" content="1.1">']
    lines.append(f"<title>Links for {html.escape(told['name'])}</title></head><body>")
    for one in told["files"]:
        kind = next((each for each in STRENGTH if each in one["hashes"]), None)
        fragment = f"#{kind}={one['hashes'][kind]}" if kind is not None else ""
        attributes = [f'href="{html.escape(one["url"] + fragment)}"']
        if "requires-python" in one:
            attributes.append(f'data-requires-python="{html.escape(str(one["requires-python"]))}"')
        if one.get("yanked"):
            attributes.append(f'data-yanked="{html.escape("" if one["yanked"] is True else str(one["yanked"]))}"')
        if "core-metadata" in one:
            digest = f"sha256={one['core-metadata']['sha256']}"
            attributes.append(f'data-core-metadata="{digest}" data-dist-info-metadata="{digest}"')
        lines.append(f"<a {' '.join(attributes)}>{html.escape(one['filename'])}</a><br>")
    return "\n".join([*lines, "</body></html>", ""])


class _Anchors(HTMLParser):
    """The files of a listing in HTML, in the words of the one in JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.files: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "base" and not self.base:
            self.base = said.get("href") or ""
        if tag != "a" or not said.get("href"):
            return
        url, fragment = urldefrag(said["href"] or "")
        kind, _, value = fragment.partition("=")
        core = (said.get("data-core-metadata") or said.get("data-dist-info-metadata") or "").removeprefix("sha256=")
        self.files.append(
            {
                "filename": unquote(url.partition("?")[0].rpartition("/")[2]),
                "url": url,
                "hashes": {kind: value} if value else {},
                "requires-python": said.get("data-requires-python"),
                "yanked": (said["data-yanked"] or True) if "data-yanked" in said else None,
                "core-metadata": {"sha256": core} if re.fullmatch("[0-9a-f]{64}", core) else None,
            }
        )
