"""The view of package registries that a box has in profile `packages`: it asks here, and nothing of it goes further.

What is asked for has to be a package, a version or a file by a name of the usual form, by GET or HEAD. The question to the
registry is written anew, with fixed headers and the credential of the host's own settings; what was fetched once is kept and
told to the next one. A file is handed over with its last bytes only when all of it adds up to the digest that the registry
published, and fetched once, however many ask. A registry that cannot be reached is stood in for by what it said before.
"""

import asyncio
import hashlib
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from coldframe.host.egress.contact import EgressPackage
from coldframe.host.egress.packages import debian, npm, python
from coldframe.host.egress.packages.cache import Digest, DigestWrong, PackageCache
from coldframe.host.egress.packages.download import (
    ABSENT,
    PART_BYTES,
    Download,
    Kept,
    PackageRefused,
    open_kept,
    parts_of,
)
from coldframe.host.egress.packages.fetch import Fetcher, RegistryFailed, Reply, page_of, read_page
from coldframe.host.egress.packages.listing import (
    MOST_LISTING_BYTES,
    ListedFile,
    Listing,
    ListingInvalid,
    Wanted,
    read_validator,
)
from coldframe.host.egress.packages.shelf import Shelf
from coldframe.host.egress.proxy import Proxies
from coldframe.host.egress.requests import RequestHead
from coldframe.host.egress.resolver import Resolve
from coldframe.host.registries import RegistryCredential
from coldframe.policy.network_rules import PackageKind, Registry, Scheme
from coldframe.policy.targets import is_below

T = TypeVar("T")
FRESH_S = 300.0
"""How long what a registry said is told without asking again."""
LISTING_S = 60.0
"""From the head of a listing to its end."""
RECENT_S = 30.0
"""How old a listing may be that does not have a file, before the registry is asked whether it has it now."""
_FOREVER = "max-age=31536000, immutable"


class PackageAnswer(NamedTuple):
    """To be closed."""

    status: int
    headers: tuple[tuple[str, str], ...]
    length: int | None
    """None: it is not known before the end."""
    body: AsyncIterator[bytes]
    """Raises ConnectionError: what comes is not what was published, or does not come. Then it must not look whole."""
    package: EgressPackage | None
    """What is handed over, for the record; None for what need not be there."""
    close: Callable[[], None] = lambda: None


class PackageView:
    """Of one broker, for all boxes."""

    def __init__(
        self,
        cache: PackageCache,
        trust: Callable[[], ssl.SSLContext],
        resolve: Resolve,
        proxies: Callable[[], Proxies] = Proxies,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*trust* makes what registries are verified by; *proxies* are those that the way to them leads through."""
        self._cache = cache
        self._shelf = Shelf(cache)
        self._fetcher = Fetcher(trust, resolve, proxies)
        self._clock = clock
        self._registries: tuple[Registry, ...] = ()
        self._credentials: dict[Registry, str] = {}
        self._keeping = asyncio.Lock()
        """Between reading what is kept of a package and keeping it changed."""
        self._asking: dict[str, asyncio.Task[tuple[Listing, bool]]] = {}
        self._downloads: dict[str, Download] = {}

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        for download in list(self._downloads.values()):
            download.cancel()
        self._fetcher.close()
        self._cache.close()

    def use(self, registries: Sequence[Registry], credentials: Sequence[RegistryCredential] = ()) -> None:
        self._registries = tuple(registries)
        self._credentials = {one.registry: one.authorization for one in credentials}

    def find(self, name: str, port: int, scheme: Scheme, path: str) -> Registry | None:
        """The registry in which a path lies, the nearest one."""
        found = [
            one
            for one in self._registries
            if (one.name, one.port, one.scheme) == (name, port, scheme) and is_below(path, one.path)
        ]
        return max(found, key=lambda one: len(one.path.rstrip("/")), default=None)

    async def answer(self, registry: Registry, head: RequestHead, *, box: object) -> PackageAnswer:
        """*box*: who asks, for its turn. Raises PackageRefused."""
        if head.method not in ("GET", "HEAD") or head.upgrade:
            raise PackageRefused(405, "DENIED_BY_RULE", "packages are read and nothing else", rule_id="packages:method")
        if head.target.query is not None:
            raise PackageRefused(
                403, "DENIED_BY_RULE", "packages are asked for without a query", rule_id="packages:query"
            )
        path = "/" + head.target.path[len(registry.path.rstrip("/")) :].lstrip("/")
        wanted = _read_path(registry.kind, path)
        if wanted is None:
            reason = f"`{path[:100]}` is neither a package nor a file of one"
            raise PackageRefused(404, "DENIED_BY_RULE", reason, rule_id="packages:path")
        said = {name: value.decode("latin-1") for name, value in head.headers}
        try:
            if wanted.file is None:
                return await self._tell_listing(
                    box, registry, wanted, said.get(b"accept", ""), said.get(b"if-none-match", "")
                )
            return await self._tell_file(box, registry, wanted, wanted.file)
        except OSError as error:
            reason = f"the package cache cannot be used: {(error.strerror or 'fault').lower()}"
            raise PackageRefused(424, "CACHE_FAILED", reason) from error

    # -- listings ------------------------------------------------------------------------------

    async def _tell_listing(
        self, box: object, registry: Registry, wanted: Wanted, accept: str, known: str
    ) -> PackageAnswer:
        short = registry.kind is PackageKind.NPM and npm.SHORT_TYPE in accept and wanted.version is None
        key, listing, is_stale = await self._listing(box, registry, wanted, short=short)
        if registry.kind is PackageKind.DEBIAN:
            told = await self._shelf.tell(key, listing, ("", ""), lambda: debian.tell(listing))
        else:
            module = npm if registry.kind is PackageKind.NPM else python
            form = (wanted.version or "", module.form_of(accept))
            told = await self._shelf.tell(key, listing, form, lambda: module.tell(listing, wanted, accept))
        if told is None:
            raise PackageRefused(404, "NOT_FOUND", f"`{wanted.package}` has no version `{wanted.version}`")
        body, etag = told.body, told.etag
        headers = (
            ("content-type", told.kind),
            ("etag", etag),
            ("cache-control", f"max-age={FRESH_S:.0f}"),
            ("vary", "accept"),
        )
        package = None
        if is_stale:
            package = EgressPackage(registry.kind.value, wanted.package, source="stale")
        if known == etag:
            return PackageAnswer(HTTPStatus.NOT_MODIFIED, headers, None, _bytes(b""), package)
        return PackageAnswer(HTTPStatus.OK, headers, len(body), _bytes(body), package)

    async def _listing(
        self, box: object, registry: Registry, wanted: Wanted, *, short: bool
    ) -> tuple[str, Listing, bool]:
        """What the registry says of a package, by its key, and whether it may have changed. Raises PackageRefused."""
        key = self._key(registry, wanted.package, "short" if short else "")
        kept = await self._shelf.recall(key)
        if kept is not None and 0 <= self._clock() - kept.at < FRESH_S:
            return key, kept, False
        return key, *await self._ask_once(box, registry, wanted, key, kept, short=short)

    async def _ask_once(
        self, box: object, registry: Registry, wanted: Wanted, key: str, kept: Listing | None, *, short: bool
    ) -> tuple[Listing, bool]:
        return await _once(self._asking, key, lambda: self._ask(box, registry, wanted, key, kept, short=short))

    async def _ask(
        self, box: object, registry: Registry, wanted: Wanted, key: str, kept: Listing | None, *, short: bool
    ) -> tuple[Listing, bool]:
        try:
            told = await self._ask_registry(box, registry, wanted, kept, short=short)
            async with self._keeping:
                known = await self._shelf.recall(key)  # a digest may have been found meanwhile
                listing = (known or kept) if told is None else told
                assert listing is not None  # there was one, or it was not asked whether that holds
                if registry.kind is PackageKind.NPM:  # whoever was told the other form first holds it to that
                    other = await self._shelf.recall(self._key(registry, wanted.package, "" if short else "short"))
                    listing = listing.after(other)
                listing = replace(listing.after(kept).after(known), at=self._clock())
                await self._shelf.keep(key, listing)
                return listing, False
        except (RegistryFailed, ListingInvalid) as failure:
            if kept is not None:
                return kept, True
            raise _unreachable(registry, failure) from failure

    async def _ask_registry(
        self, box: object, registry: Registry, wanted: Wanted, kept: Listing | None, *, short: bool
    ) -> Listing | None:
        """What it says now; None if it says that what is *kept* holds."""
        encoding = "gzip"
        if registry.kind is PackageKind.NPM:
            path, accept = npm.question(wanted, short=short)
        elif registry.kind is PackageKind.DEBIAN:
            path, accept = debian.question(wanted)
            encoding = "identity"  # its lists are packed already, and told as they are
        else:
            path, accept = python.question(wanted)
        headers = {"accept": accept, "accept-encoding": encoding}
        if kept is not None and kept.etag:
            headers["if-none-match"] = kept.etag
        elif kept is not None and kept.modified:
            headers["if-modified-since"] = kept.modified
        credential = self._credentials.get(registry)
        async with self._fetcher.get(box, page_of(registry, path), registry, credential, headers) as reply:
            if reply.status == HTTPStatus.NOT_MODIFIED and kept is not None:
                return None
            _require_found(registry, wanted, reply)
            data = await reply.whole(MOST_LISTING_BYTES, LISTING_S)
            found = await asyncio.to_thread(_read_answer, registry, wanted, reply, data)
        etag = read_validator(reply.headers.get("etag", ""), 256)
        return replace(found, etag=etag, modified=read_validator(reply.headers.get("last-modified", ""), 64))

    def _key(self, registry: Registry, package: str, form: str) -> str:
        """What one credential gets to see is not what others are told."""
        secret = hashlib.sha256(self._credentials.get(registry, "").encode()).hexdigest()[:16]
        return "\n".join((registry.kind, registry.address, secret, package, form))

    # -- files ---------------------------------------------------------------------------------

    async def _tell_file(self, box: object, registry: Registry, wanted: Wanted, name: str) -> PackageAnswer:
        key, listing = await self._listing_with(box, registry, wanted, name)
        file = replace(listing.files[name], hashes=listing.hashes_of(name))
        shown = debian.package_of(wanted) if registry.kind is PackageKind.DEBIAN else wanted.package
        package = EgressPackage(registry.kind.value, shown, file.version, name)
        kept = await open_kept(self._cache, file.digest)
        if kept is not None:
            return self._answer_kept(kept, file.digest, package)
        download = self._downloads.get(f"{key}\n{name}")
        if download is None or download.is_left:
            download = self._start(box, f"{key}\n{name}", registry, key, name, file)
        try:
            download.readers += 1
            await download.settle()
            if download.failure is not None:
                raise _refusal(registry, name, download.failure)
            reading = os.dup(download.draft.file)
        except BaseException:
            download.leave()
            raise

        def close() -> None:
            os.close(reading)
            download.leave()

        digest = download.digest or file.digest
        package = replace(package, digest="" if digest is None else digest.text, source="registry")
        length = download.received if download.is_over else download.length
        return PackageAnswer(HTTPStatus.OK, _headers_of(digest), length, download.parts(reading), package, close)

    async def _listing_with(self, box: object, registry: Registry, wanted: Wanted, name: str) -> tuple[str, Listing]:
        """A listing that has the file, with its key. Lock files name files of which no listing was asked for."""
        if registry.kind is PackageKind.DEBIAN:
            return await self._file_by_path(registry, wanted, name)
        is_npm = registry.kind is PackageKind.NPM
        oldest = self._clock() - RECENT_S
        for form in ("short", "") if is_npm else ("",):
            key = self._key(registry, wanted.package, form)
            kept = await self._shelf.recall(key)
            if kept is not None and name in kept.files:
                return key, kept
        key = self._key(registry, wanted.package, "short" if is_npm else "")
        known, is_stale = await self._shelf.recall(key), False
        if known is None or known.at < oldest:
            listing, is_stale = await self._ask_once(box, registry, wanted, key, known, short=is_npm)
        else:
            listing = known
        if name in listing.files:
            return key, listing
        if is_stale:
            raise _unreachable(registry, RegistryFailed("and it said nothing of this file before"))
        raise PackageRefused(404, "NOT_FOUND", f"`{wanted.package}` has no file `{name[:250]}`")

    async def _file_by_path(self, registry: Registry, wanted: Wanted, name: str) -> tuple[str, Listing]:
        key = self._key(registry, f"{wanted.package}/{name}", "")
        async with self._keeping:
            listing = await self._shelf.recall(key)
            if listing is None or name not in listing.files:
                page = page_of(registry, f"/{wanted.package}/{quote(name)}")
                listing = replace(debian.listing_of(wanted, page.text), at=self._clock())
                await self._shelf.keep(key, listing)
        return key, listing

    def _answer_kept(self, kept: "Kept", digest: Digest | None, package: EgressPackage) -> PackageAnswer:
        assert digest is not None
        package = replace(package, digest=digest.text, source="cache")
        parts = parts_of(kept, digest, lambda: self._cache.drop(digest))
        return PackageAnswer(HTTPStatus.OK, _headers_of(digest), kept.size, parts, package, lambda: os.close(kept.file))

    def _start(self, box: object, place: str, registry: Registry, key: str, name: str, file: ListedFile) -> "Download":
        download = Download(self._cache.draft(file.digest))

        async def pin(digest: Digest) -> None:
            """The registry has published no digest that holds; from now on this one does."""
            async with self._keeping:
                listing = await self._shelf.recall(key)
                if listing is not None and name in listing.files:
                    await self._shelf.keep(key, listing.pin(name, digest))

        async def fetch() -> None:
            page = read_page(file.url, page_of(registry, "/"))
            async with self._fetcher.get(
                box, page, registry, self._credentials.get(registry), {"accept": "*/*"}
            ) as reply:
                await download.take(reply)
            digest = self._cache.finish(download.draft)
            if digest != file.digest:
                await pin(digest)
            download.digest = digest

        self._downloads[place] = download
        download.start(
            fetch(), lambda: self._downloads.pop(place, None) if self._downloads.get(place) is download else None
        )
        return download


async def _bytes(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def _headers_of(digest: Digest | None) -> tuple[tuple[str, str], ...]:
    kind = ("content-type", "application/octet-stream")
    return (kind,) if digest is None else (kind, ("etag", f'"{digest.value[:32]}"'), ("cache-control", _FOREVER))


def _read_path(kind: PackageKind, path: str) -> Wanted | None:
    if kind is PackageKind.DEBIAN:
        return debian.read_path(path)
    return npm.read_path(path) if kind is PackageKind.NPM else python.read_path(path)


def _read_answer(registry: Registry, wanted: Wanted, reply: Reply, data: bytes) -> Listing:
    if registry.kind is PackageKind.NPM:
        return npm.read_answer(data, reply.page.text, wanted, registry.address)
    if registry.kind is PackageKind.DEBIAN:
        return debian.read_answer(data, wanted)
    return python.read_answer(data, reply.headers.get("content-type", ""), reply.page.text, wanted)


def _require_found(registry: Registry, wanted: Wanted, reply: Reply) -> None:
    if reply.status in ABSENT:
        reason = f"`{registry.name}` has no package `{wanted.package}`, or does not show it"
        raise PackageRefused(404, "NOT_FOUND", reason)
    if reply.status != HTTPStatus.OK:
        raise RegistryFailed(f"it answered {reply.status}")


def _unreachable(registry: Registry, failure: Exception) -> PackageRefused:
    return PackageRefused(424, "REGISTRY_UNREACHABLE", f"`{registry.name}` cannot be reached: {failure}")


def _refusal(registry: Registry, name: str, failure: Exception) -> PackageRefused:
    if isinstance(failure, PackageRefused):
        return failure
    if isinstance(failure, DigestWrong):
        return PackageRefused(
            403, "PACKAGE_CHANGED", f"`{name}` is not what it was: {failure}", rule_id="packages:digest"
        )
    if isinstance(failure, OSError):
        reason = f"the package cache cannot be written: {(failure.strerror or 'fault').lower()}"
        return PackageRefused(424, "CACHE_FAILED", reason)
    return _unreachable(registry, failure)


async def _once(tasks: dict[str, "asyncio.Task[T]"], key: str, work: Callable[[], Coroutine[None, None, T]]) -> T:
    """What *work* gives, done once for all who want it now. It goes on if they leave: the next one will want it."""
    task = tasks.get(key)
    if task is None:
        task = tasks[key] = asyncio.get_running_loop().create_task(work())

        def forget(done: "asyncio.Task[T]") -> None:
            del tasks[key]
            if not done.cancelled():
                done.exception()  # whoever waits sees it

        task.add_done_callback(forget)
    return await asyncio.shield(task)
