"""Packages on disk: files by their digest, and what registries said of packages, each whole or not there.

    files/ALGORITHM-DIGEST   the bytes of a file as its registry published it
    said/KEY                 what a registry said of one package, behind the digest of it
    …/new-…                  what is being written; swept at the start

Everything happens below one open directory, which belongs to the broker's user: it has no other right to files. What is
written appears by a rename, so whoever is killed in the middle leaves nothing that is served; by one within a folder,
since the first version of Landlock refuses all others. A power failure may leave less than was written, so nothing is
believed without its digest. What was not used the longest makes room.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

FOLDER = "packages"
"""Below `<data>/host/`."""
MOST_BYTES = 4 << 30
"""Of all files and records together."""
MOST_FILE_BYTES = 2 << 30
"""Of one file: the largest wheels take more than 800 MiB."""
KEPT_SHARE = 0.9
"""Of MOST_BYTES, once room has to be made."""
STRENGTH = ("sha512", "sha384", "sha256", "sha1", "md5")
"""The kinds of digests that registries publish, strongest first."""
WEAK = ("sha1", "md5")
"""Two files may be made that have the same one. It is checked, and no file is known by it."""

_LENGTHS = {"sha512": 128, "sha384": 96, "sha256": 64, "sha1": 40, "md5": 32}
_DIGEST = re.compile(r"([a-z0-9]{1,16}):([0-9a-f]{1,256})")
_FILES, _SAID, _NEW = "files", "said", "new-"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_BLOCK_BYTES = 1 << 20


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class Digest(NamedTuple):
    """What a file's bytes add up to, in lower-case hexadecimal digits."""

    algorithm: str
    value: str

    @property
    def text(self) -> str:
        return f"{self.algorithm}:{self.value}"

    def hash(self) -> _Hash:
        return hashlib.new(self.algorithm, usedforsecurity=False)


_UNKNOWN = Digest("sha256", "")


class DigestWrong(Exception):
    """The bytes are not those that were published."""

    def __init__(self, expected: Digest, found: str) -> None:
        super().__init__(f"its {expected.algorithm} is {found[:16]}… and not {expected.value[:16]}… as published")


class Stamp(NamedTuple):
    """Of one file that is kept: another one in its place has another one."""

    number: int
    mtime_ns: int
    size: int


class CacheUsage(NamedTuple):
    """What the cache holds."""

    files: int
    packages: int
    bytes: int


def read_hashes(told: Mapping[str, object]) -> dict[str, str]:
    """Of published digests, by kind, those that can be read, strongest first."""
    found = {}
    for algorithm in STRENGTH:
        value = told.get(algorithm)
        if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]+", value) and len(value) == _LENGTHS[algorithm]:
            found[algorithm] = value.lower()
    return found


def strongest(hashes: Mapping[str, str]) -> Digest | None:
    """The strongest of published digests; None if there is none that can be read."""
    return next((Digest(*one) for one in read_hashes(hashes).items()), None)


def open_cache(path: str, user: int | None) -> int:
    """The directory as a descriptor, made if it is not there. *user*: whose it is, if this process is root.

    Raises OSError.
    """
    os.makedirs(path, 0o700, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if user is not None and os.geteuid() == 0:
            os.fchown(directory, user, user)
        os.fchmod(directory, 0o700)
    except OSError:
        os.close(directory)
        raise
    return directory


def kept_files(path: str, digests: Iterable[str]) -> set[str]:
    """Of these, as `sha256:…`, the ones whose file is kept. Empty if nothing is. Raises OSError."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return set()
    try:
        return {
            one for one in digests if (match := _DIGEST.fullmatch(one)) and _is_kept(directory, Digest(*match.groups()))
        }
    finally:
        os.close(directory)


def _is_kept(directory: int, digest: Digest) -> bool:
    try:
        os.stat(_file_name(digest), dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def measure_cache(directory: int) -> CacheUsage:
    """What is below an open directory, by looking. Raises OSError."""
    found = list(_entries(directory))
    files = sum(folder == _FILES for folder, *_ in found)
    return CacheUsage(files, len(found) - files, sum(size for _, _, size, _ in found))


def purge_cache(directory: int) -> CacheUsage:
    """Remove all that is kept below an open directory, and return what it was. What is being sent goes on being sent."""
    usage = measure_cache(directory)
    for folder in (_FILES, _SAID):
        with _opened(directory, folder) as inner:  # by which a link put in its place leads nowhere
            for name in os.listdir(inner) if inner is not None else ():
                if name.startswith(_NEW):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=inner)
    return usage


class Draft:
    """A file that is being fetched; others may read what is there."""

    def __init__(self, directory: int, folder: str, published: Digest | None, take: Callable[[int], None]) -> None:
        """In the *folder* where it ends. Without *published* it becomes whatever comes. *take* is told of each byte, and
        raises OSError if there is no room for it; it is given all of them back at the end. Raises OSError."""
        self._directory = directory
        self._name = f"{folder}/{_NEW}{secrets.token_hex(12)}"
        self.file = os.open(self._name, _MAKE, 0o600, dir_fd=directory)
        self.size = 0
        self._published = published
        self._take = take
        is_weak = published is None or published.algorithm in WEAK
        self._hashes = [one.hash() for one in (published, _UNKNOWN if is_weak else None) if one is not None]

    def write(self, data: bytes) -> None:
        """Raises OSError; it is of no use any more then."""
        self._take(len(data))
        self.size += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self.file, view) :]
        for one in self._hashes:
            one.update(data)

    def finish(self) -> Digest:
        """Make it a file of the cache, known by the digest that is returned. Raises DigestWrong and OSError."""
        published, found = self._published, [one.hexdigest() for one in self._hashes]
        if published is not None and found[0] != published.value:
            raise DigestWrong(published, found[0])
        is_known = published is not None and published.algorithm not in WEAK
        digest = published if published is not None and is_known else Digest("sha256", found[-1])
        self.move(_file_name(digest))
        return digest

    def move(self, name: str) -> None:
        """Give it its *name* in its folder at once, in place of what has it now. Raises OSError."""
        os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._name = ""

    def drop(self) -> None:
        """What was not finished is gone; the descriptor is closed."""
        if self._name:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
            self._name = ""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
            self._take(-self.size)


class PackageCache:
    """Owns the descriptor of the directory. One process at a time."""

    def __init__(self, directory: int, *, most_bytes: int = MOST_BYTES) -> None:
        """At most half of the room there is, if that is less than *most_bytes*. Raises OSError."""
        self._directory = directory
        for folder in (_FILES, _SAID):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=directory)
            with _opened(directory, folder) as inner:
                for name in os.listdir(inner) if inner is not None else ():
                    if name.startswith(_NEW):
                        os.unlink(name, dir_fd=inner)
        self._bytes = measure_cache(directory).bytes
        room = os.fstatvfs(directory)
        self._most_bytes = min(most_bytes, (room.f_bavail * room.f_frsize + self._bytes) // 2)
        self._lock = threading.Lock()  # listings are written beside the event loop
        self._drafted = 0
        """Bytes of what is being fetched, beside what is kept."""
        self._used: dict[str, int] = {}
        """When each was used last; of what is not here, when it was written. The broker may change no times of files."""

    def close(self) -> None:
        os.close(self._directory)

    # -- files ---------------------------------------------------------------------------------

    def open(self, digest: Digest) -> int | None:
        """A descriptor of the file for reading; None if it is not there. What it holds is to be checked while it is read."""
        try:
            file = os.open(_file_name(digest), _READ, dir_fd=self._directory)
        except FileNotFoundError:
            return None
        self._used[_file_name(digest)] = time.time_ns()
        return file

    def draft(self, published: Digest | None) -> Draft:
        """Raises OSError."""
        return Draft(self._directory, _FILES, published, self._take)

    def finish(self, draft: Draft) -> Digest:
        """Raises DigestWrong and OSError."""
        digest = draft.finish()
        self._add(draft.size)
        return digest

    def drop(self, digest: Digest) -> None:
        """Its bytes are not what they should be."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_file_name(digest), dir_fd=self._directory)

    # -- what registries said ------------------------------------------------------------------

    def recall(self, key: str) -> bytes | None:
        """What was kept under *key*, if all of it is there."""
        try:
            file = os.open(_said_name(key), _READ, dir_fd=self._directory)
        except FileNotFoundError:
            return None
        with open(file, "rb") as source:
            told, _, data = source.read().partition(b"\n")
        return data if told == hashlib.sha256(data).hexdigest().encode() else None

    def stamp(self, key: str) -> Stamp | None:
        """What changes with what is kept under *key*; None if there is nothing."""
        try:
            status = os.stat(_said_name(key), dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        self._used[_said_name(key)] = time.time_ns()
        return Stamp(status.st_ino, status.st_mtime_ns, status.st_size)

    def keep(self, key: str, data: bytes) -> None:
        """Raises OSError."""
        draft = Draft(self._directory, _SAID, None, self._take)
        try:
            draft.write(hashlib.sha256(data).hexdigest().encode() + b"\n")
            draft.write(data)
            draft.move(_said_name(key))
        finally:
            draft.drop()
        self._add(draft.size)

    def _take(self, size: int) -> None:
        with self._lock:
            if size > 0 and self._drafted + size > self._most_bytes:
                raise OSError(errno.ENOSPC, "no room for what is being fetched")
            self._drafted += size

    def _add(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            if self._bytes > self._most_bytes:
                self._make_room()

    def _make_room(self) -> None:
        """By looking again: others may have purged, and what was replaced was counted twice."""
        found = sorted(_entries(self._directory), key=lambda entry: self._used.get(f"{entry[0]}/{entry[1]}", entry[3]))
        self._bytes = sum(size for _, _, size, _ in found)
        there = {f"{folder}/{name}" for folder, name, *_ in found}
        self._used = {name: at for name, at in self._used.items() if name in there}
        if self._bytes <= self._most_bytes:
            return
        for folder, name, size, _ in found:
            if self._bytes <= self._most_bytes * KEPT_SHARE:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}", dir_fd=self._directory)
            self._used.pop(f"{folder}/{name}", None)
            self._bytes -= size


def check_file(file: int, digest: Digest) -> bool:
    """Whether an open file holds what it should. Raises OSError."""
    found, place = digest.hash(), 0
    while block := os.pread(file, _BLOCK_BYTES, place):
        found.update(block)
        place += len(block)
    return found.hexdigest() == digest.value


def _file_name(digest: Digest) -> str:
    return f"{_FILES}/{digest.algorithm}-{digest.value}"


def _said_name(key: str) -> str:
    return f"{_SAID}/{hashlib.sha256(key.encode()).hexdigest()}"


def _entries(directory: int) -> Iterator[tuple[str, str, int, int]]:
    """Folder, name, bytes and time (ns) of all that is kept; what is being written is not. Raises OSError."""
    for folder in (_FILES, _SAID):
        with _opened(directory, folder) as inner:
            if inner is None:
                continue
            with os.scandir(inner) as entries:
                for entry in entries:
                    if entry.name.startswith(_NEW):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield folder, entry.name, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _opened(directory: int, folder: str) -> Iterator[int | None]:
    """None if it is not there. Raises OSError, also for a link."""
    try:
        inner = os.open(folder, _READ | os.O_DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        yield None
        return
    try:
        yield inner
    finally:
        os.close(inner)
