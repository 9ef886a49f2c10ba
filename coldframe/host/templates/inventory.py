"""What is installed in a system, read from its files by ourselves: nothing of it is started, no link in it is followed.

apt's packages are those that dpkg has on record, pip's those of which Python finds metadata, npm's those below the global
folders. A system was made by programs of others, so that all of this is their word.
"""

import json
import re
import stat
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from itertools import chain, islice

from coldframe.contract.errors import DependencyMissing
from coldframe.contract.template import Manager, Package
from coldframe.contract.versions import nearest
from coldframe.host.layers.merged import MergedView, Place
from coldframe.host.templates.debian import MOST_STATUS, installed_of

MOST_PACKAGES = 20_000
MOST_DESCRIPTION = 4 * 1024 * 1024
"""Bytes of the metadata of one package."""
MOST_READ = 512 * 1024 * 1024
"""Of all of them."""
_PYTHONS = (b"usr/local/lib", b"usr/lib")
"""Where Python looks first comes first."""
_PYTHON = re.compile(rb"python3(\.[0-9]+)?")
_NODES = (b"usr/local/lib/node_modules", b"usr/lib/node_modules")
_METADATA = re.compile(rb"(.+)\.(dist|egg)-info")
_LEVELS = 24
"""Of packages of npm within one another."""


def installed_in(directories: Sequence[str]) -> tuple[Package, ...]:
    """Of a system made of these layers, the highest first; by manager and name."""
    with MergedView(directories) as view:
        metadata = _Metadata(view)
        found = list(islice(chain(_of_apt(view), _of_pip(view, metadata), _of_npm(view, metadata)), MOST_PACKAGES))
    unique = {(one.manager, one.name, one.version, one.architecture): one for one in found}
    return tuple(unique[key] for key in sorted(unique))


def refuse_differences(found: Sequence[Package], locked: Sequence[Package], base: Sequence[Package]) -> None:
    """Of the managers that *locked* speaks of. What *base*, upon which it was built, had already may be there beside it.

    Raises DependencyMissing unless just that is installed, in just these versions.
    """
    wanted, there, before = (_versions(packages) for packages in (locked, found, base))
    managers = {manager for manager, _ in wanted}
    for manager, name in sorted(wanted):
        versions, others = wanted[manager, name], there.get((manager, name), set())
        if gone := sorted(versions - others):
            instead = sorted(others - versions)
            raise missing(manager, name, gone[0], instead, found=instead[0] if instead else None)
    for manager, name in sorted(there):
        beyond = there[manager, name] - wanted.get((manager, name), set()) - before.get((manager, name), set())
        if manager in managers and beyond:
            raise DependencyMissing(
                f"`{name}` {sorted(beyond)[0]} of {manager} was installed, and the lock does not name it",
                hint="build with the lock that the build of the same recipe has left, upon the same base",
                manager=manager,
                package=name,
                nearest=[],
            )


def _versions(packages: Sequence[Package]) -> dict[tuple[Manager, str], set[str]]:
    found: dict[tuple[Manager, str], set[str]] = {}
    for one in packages:
        name = plain_name(one.name) if one.manager == "pip" else one.name
        found.setdefault((one.manager, name), set()).add(one.version)
    return found


def plain_name(name: str) -> str:
    """By which Python's packages are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(
    manager: Manager, name: str, version: str, there_are: Sequence[str], *, found: str | None = None
) -> DependencyMissing:
    """What to raise for a version that is not to be had; *found* is what came in its place."""
    close = nearest(version, there_are)
    told = f"; the nearest are {', '.join(close)}" if close else ""
    instead = "" if found is None else f", {found} would be installed"
    return DependencyMissing(
        f"`{name}` {version} of {manager} is not to be had{instead}{told}",
        manager=manager,
        package=name,
        version=version,
        nearest=list(close),
    )


class _Metadata:
    """What packages say of themselves, of MOST_PACKAGES files and MOST_READ bytes at most: a system may hold any number."""

    def __init__(self, view: MergedView) -> None:
        self._view = view
        self._files, self._bytes = MOST_PACKAGES, MOST_READ

    def read(self, path: bytes) -> str:
        """Nothing once it is too much."""
        if self._files <= 0 or self._bytes <= 0:
            return ""
        text = _read(self._view, path, MOST_DESCRIPTION)
        self._files -= 1
        self._bytes -= len(text)
        return text


def _of_apt(view: MergedView) -> Iterator[Package]:
    text = _read(view, b"var/lib/dpkg/status", MOST_STATUS)
    for name, version, architecture in installed_of(text):
        if name and version:
            yield Package(manager="apt", name=name[:300], version=version[:300], architecture=architecture[:32])


def _of_pip(view: MergedView, metadata: _Metadata) -> Iterator[Package]:
    seen: set[str] = set()
    for library in _PYTHONS:
        for python in _children(view, library):
            if not _PYTHON.fullmatch(_name(python)):
                continue
            for packages in (b"site-packages", b"dist-packages"):
                for place in _children(view, python.path + b"/" + packages):
                    found = _METADATA.fullmatch(_name(place))
                    if found is None:
                        continue
                    file = b"METADATA" if found[2] == b"dist" else b"PKG-INFO"
                    path = place.path + b"/" + file if place.is_directory else place.path
                    told = HeaderParser().parsestr(metadata.read(path).split("\n\n", 1)[0])
                    name, version = str(told.get("Name", "")).strip(), str(told.get("Version", "")).strip()
                    name = plain_name(name)
                    if name and version and name not in seen:
                        seen.add(name)
                        yield Package(manager="pip", name=name[:300], version=version[:300])


def _of_npm(view: MergedView, metadata: _Metadata) -> Iterator[Package]:
    ahead = [(path, 0) for path in _NODES]
    while ahead:
        folder, level = ahead.pop()
        for place in _children(view, folder):
            if _name(place).startswith(b"@"):
                ahead.append((place.path, level))
                continue
            text = metadata.read(place.path + b"/package.json")
            if not text:
                continue
            try:
                told = json.loads(text)
                name, version = str(told["name"]), str(told["version"])
                (name + version).encode()  # halves of characters, which JSON can say, can be told to nobody
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if name and version:
                yield Package(manager="npm", name=name[:300], version=version[:300])
            if level < _LEVELS:
                ahead.append((place.path + b"/node_modules", level + 1))


def _name(place: Place) -> bytes:
    return place.path.rpartition(b"/")[2]


def _children(view: MergedView, path: bytes) -> list[Place]:
    place = at(view, path)
    return view.children(place) if place is not None and place.is_directory else []


def at(view: MergedView, path: bytes) -> Place | None:
    """What is there under a name, no link on the way followed."""
    place: Place | None = view.top()
    for name in path.split(b"/"):
        if place is None or not place.is_directory:
            return None
        place = view.below(place, name)
    return place


def _read(view: MergedView, path: bytes, most_bytes: int) -> str:
    """Of a file; nothing if there is none, or it is too large."""
    place = at(view, path)
    if place is None or not stat.S_ISREG(place.status.st_mode) or place.status.st_size > most_bytes:
        return ""
    with open(view.open_file(place), encoding="utf-8", errors="replace") as source:
        return source.read(most_bytes)
