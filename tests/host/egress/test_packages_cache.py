"""What is kept of packages is whole and right, or not there, whoever was killed while it was written."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldframe.host import confine, landlock
from coldframe.host.egress.packages.cache import (
    CacheUsage,
    Digest,
    DigestWrong,
    PackageCache,
    check_file,
    measure_cache,
    open_cache,
    purge_cache,
    strongest,
)
from tests.host.forked import in_child

DATA = b"bytes of a file" * 1000
SHA256 = Digest("sha256", hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packages"


@pytest.fixture
def cache(folder: Path) -> Iterator[PackageCache]:
    made = PackageCache(open_cache(str(folder), None), most_bytes=100_000)
    yield made
    made.close()


def keep(cache: PackageCache, data: bytes, published: Digest | None = None) -> Digest:
    draft = cache.draft(published)
    try:
        draft.write(data[:100])
        draft.write(data[100:])
        return cache.finish(draft)
    finally:
        draft.drop()


def read(cache: PackageCache, digest: Digest) -> bytes | None:
    file = cache.open(digest)
    if file is None:
        return None
    with open(file, "rb") as source:
        return source.read()


def all_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_known_by_the_digest_that_was_published(cache: PackageCache) -> None:
    assert keep(cache, DATA, SHA256) == SHA256
    assert read(cache, SHA256) == DATA
    assert read(cache, Digest("sha256", "0" * 64)) is None


def test_other_bytes_are_refused_and_nothing_is_left(cache: PackageCache, folder: Path) -> None:
    with pytest.raises(DigestWrong, match="as published"):
        keep(cache, DATA + b"x", SHA256)
    assert read(cache, SHA256) is None and all_below(folder) == ["files", "said"]


@pytest.mark.parametrize("algorithm", ["sha1", "md5"])
def test_a_weak_digest_is_checked_and_no_file_is_known_by_it(cache: PackageCache, algorithm: str) -> None:
    weak = Digest(algorithm, hashlib.new(algorithm, DATA, usedforsecurity=False).hexdigest())
    assert keep(cache, DATA, weak) == SHA256
    assert read(cache, weak) is None
    with pytest.raises(DigestWrong):
        keep(cache, DATA + b"x", weak)


def test_without_a_published_digest_the_bytes_tell_it(cache: PackageCache) -> None:
    assert keep(cache, DATA) == SHA256


def test_what_is_being_written_is_not_there_and_is_swept_at_the_next_start(cache: PackageCache, folder: Path) -> None:
    draft = cache.draft(SHA256)
    draft.write(DATA)
    assert read(cache, SHA256) is None
    directory = os.open(folder, os.O_RDONLY)
    assert measure_cache(directory) == purge_cache(directory) == CacheUsage(0, 0, 0)
    os.close(directory)
    assert len(all_below(folder)) == 3  # and now it is killed
    (folder / "said" / "new-1").touch()
    (folder / "files" / "unrelated").touch()
    other = PackageCache(open_cache(str(folder), None))
    assert all_below(folder) == ["files", "files/unrelated", "said"]
    assert read(other, SHA256) is None
    other.close()
    os.close(draft.file)


@pytest.mark.skipif(landlock.version() < 1, reason="the kernel has no Landlock")
def test_a_process_that_gave_up_all_other_files_finishes_what_it_writes_also_by_the_first_landlock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 1)  # which refuses renames from one folder to another

    def child() -> list[object]:
        directory = open_cache(str(folder), None)
        confine.set_no_new_privs()
        landlock.restrict([], [directory])
        cache = PackageCache(directory)
        cache.keep("a key", b"said")
        return [keep(cache, DATA, SHA256), read(cache, SHA256), cache.recall("a key")]

    assert in_child(child) == [SHA256, DATA, b"said"]


def test_what_is_being_written_makes_no_room_for_others(cache: PackageCache) -> None:
    draft = cache.draft(None)
    draft.write(b"x")
    for number in range(10):
        keep(cache, bytes([number]) * 30_000)
    assert cache.finish(draft) == Digest("sha256", hashlib.sha256(b"x").hexdigest())
    draft.drop()


def test_a_listing_is_recalled_whole_or_not_at_all(cache: PackageCache, folder: Path) -> None:
    assert cache.recall("a key") is None
    cache.keep("a key", b"first")
    cache.keep("a key", b"second\nline")
    assert cache.recall("a key") == b"second\nline"
    (path,) = (folder / "said").iterdir()
    path.write_bytes(path.read_bytes()[:-1])  # as after a power failure
    assert cache.recall("a key") is None
    path.write_bytes(b"")
    assert cache.recall("a key") is None


def test_a_damaged_file_is_found_by_its_digest(cache: PackageCache, folder: Path) -> None:
    keep(cache, DATA, SHA256)
    (path,) = (folder / "files").iterdir()
    path.write_bytes(DATA[:-1])
    file = cache.open(SHA256)
    assert file is not None and not check_file(file, SHA256)
    os.close(file)
    cache.drop(SHA256)
    cache.drop(SHA256)
    assert cache.open(SHA256) is None


def test_room_is_made_by_what_was_not_used_the_longest(cache: PackageCache) -> None:
    parts = [bytes([number]) * 30_000 for number in range(4)]
    kept = [keep(cache, data) for data in parts[:3]]
    assert read(cache, kept[0]) == parts[0]  # used since
    kept.append(keep(cache, parts[3]))
    assert [read(cache, digest) is not None for digest in kept] == [True, False, True, True]


def test_a_purge_leaves_nothing_and_tells_what_it_was(cache: PackageCache, folder: Path) -> None:
    keep(cache, DATA, SHA256)
    cache.keep("a key", b"said")
    directory = os.open(folder, os.O_RDONLY)
    usage = purge_cache(directory)
    assert usage == CacheUsage(1, 1, len(DATA) + 4 + 65)
    assert measure_cache(directory) == CacheUsage(0, 0, 0)
    os.close(directory)
    assert keep(cache, DATA, SHA256) == SHA256


def test_a_purge_follows_no_link_that_somebody_put_there(cache: PackageCache, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (folder / "said").rmdir()
    (folder / "said").symlink_to(tmp_path / "elsewhere")
    directory = os.open(folder, os.O_RDONLY)
    with pytest.raises(OSError):
        purge_cache(directory)
    os.close(directory)
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_the_directory_is_for_its_owner_alone_and_no_link(tmp_path: Path) -> None:
    os.close(open_cache(str(tmp_path / "one"), None))
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "one")
    with pytest.raises(OSError):
        open_cache(str(tmp_path / "link"), None)


def test_the_strongest_digest_that_can_be_read_counts() -> None:
    assert strongest({"md5": "0" * 32, "sha256": "AB" * 32}) == Digest("sha256", "ab" * 32)
    assert strongest({"sha512": "0" * 64, "sha1": "1" * 40}) == Digest("sha1", "1" * 40)
    assert strongest({"sha256": "../" + "0" * 61, "crc": "0"}) is None


def test_the_command_line_tells_what_is_kept_and_removes_it(cache: PackageCache, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "packages").rename(tmp_path / "host" / "packages")
    keep(cache, DATA, SHA256)

    def ask(what: str) -> dict[str, object]:
        line = [sys.executable, "-m", "coldframe.cli", "--data-dir", str(tmp_path), "--json", "network", "cache", what]
        done = subprocess.run(line, capture_output=True, timeout=60, check=True)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    usage = {"path": str(tmp_path / "host" / "packages"), "files": 1, "packages": 0, "bytes": len(DATA)}
    assert ask("show") == ask("purge") == usage
    assert ask("show") == {**usage, "files": 0, "bytes": 0}
