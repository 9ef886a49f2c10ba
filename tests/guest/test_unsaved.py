"""Held here: what no commit has is found in any repository that Git makes, and a hostile one runs nothing and hides nothing."""

import hashlib
import os
import struct
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from coldframe.contract.files import FindUnsaved, UnsavedAnswer
from coldframe.guest import unsaved
from coldframe.guest.git_ignore import Rules
from tests.guest.workspace import Workspace, unprivileged

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(place: Path, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments],
        cwd=place,
        env=ENVIRONMENT,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def begun(place: Path, *options: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "-q", *options)
    for name in ("a", "b", "sub/c", "sub/deep/d"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{name}\n" * 50)
    os.symlink("a", place / "link")
    git(place, "add", ".")
    git(place, "commit", "-qm", "first")
    return place


def found(workspace: Workspace) -> set[tuple[str, str]]:
    answer = workspace.ask(FindUnsaved())
    assert isinstance(answer, UnsavedAnswer)
    assert answer.looked_everywhere and answer.complete
    return {(one.path, one.change) for one in answer.files}


def as_git_tells(place: Path) -> set[str]:
    told = git(place, "status", "--porcelain", "-uall", "-z", "--no-renames").split("\0")
    return {line[3:] for line in told if line}


@pytest.mark.req("T3.42")
def test_every_kind_of_change_is_told_and_a_commit_ends_it(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    assert found(workspace) == set()
    (place / "a").write_text("b" * len((place / "a").read_bytes()))
    (place / "sub/c").unlink()
    (place / "b").chmod(0o755)
    (place / "new").write_text("x")
    (place / "added").write_text("x")
    git(place, "add", "added")
    (place / "link").unlink()
    os.symlink("b", place / "link")
    (place / ".gitignore").write_text("*.o\n/out/\n!keep.o\n")
    (place / "x.o").write_text("left out")
    (place / "sub/keep.o").write_text("not left out")
    (place / "out").mkdir()
    (place / "out/file").write_text("left out")
    listed = found(workspace)
    assert listed == {
        ("repo/.gitignore", "untracked"),
        ("repo/a", "modified"),
        ("repo/added", "staged"),
        ("repo/b", "modified"),
        ("repo/link", "modified"),
        ("repo/new", "untracked"),
        ("repo/sub/c", "deleted"),
        ("repo/sub/keep.o", "untracked"),
    }
    assert {path.removeprefix("repo/") for path, _ in listed} == as_git_tells(place)
    git(place, "add", "-A")
    assert {path for path, change in found(workspace) if change != "staged"} == set()
    git(place, "commit", "-qm", "second")
    assert found(workspace) == set()


def test_an_empty_file_called_git_is_no_repository_and_hides_nothing(workspace: Workspace) -> None:
    """uv puts one into its cache."""
    place = begun(workspace.path / "repo")
    for cache in (workspace.path / "cache", place / "cache"):
        cache.mkdir()
        (cache / ".git").touch()
        (cache / "kept").write_text("x")
    assert found(workspace) == {(f"repo/{name}", "untracked") for name in as_git_tells(place)}


def test_a_change_that_hides_its_time_and_size_is_found(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    before = (place / "a").stat()
    (place / "a").write_text("x" * before.st_size)
    os.utime(place / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    git(place, "update-index", "--assume-unchanged", "b")
    (place / "b").write_text("x")
    assert found(workspace) == {("repo/a", "modified"), ("repo/b", "modified")}


@pytest.mark.parametrize("form", ["packed", "version 4", "untracked cache", "sha256", "unborn", "detached", "merge"])
def test_repositories_are_read_in_the_forms_that_git_keeps_them(workspace: Workspace, form: str) -> None:
    place = begun(workspace.path / "repo", *(["--object-format=sha256"] if form == "sha256" else []))
    if form == "packed":
        for number in range(20):
            (place / "a").write_text(f"line {number}\n" * 300)
            git(place, "commit", "-qam", f"{number}")
        git(place, "gc", "-q", "--aggressive")
        git(place, "pack-refs", "--all")
    elif form == "version 4":
        git(place, "update-index", "--index-version", "4")
    elif form == "untracked cache":
        git(place, "update-index", "--untracked-cache")
    elif form == "detached":
        git(place, "checkout", "-q", "--detach")
    elif form == "unborn":
        git(place, "checkout", "-q", "--orphan", "other")
        assert {change for _, change in found(workspace)} == {"staged"}
        return
    elif form == "merge":
        git(place, "checkout", "-qb", "other")
        (place / "a").write_text("other")
        git(place, "commit", "-qam", "other")
        git(place, "checkout", "-q", "-")
        (place / "a").write_text("mine")
        git(place, "commit", "-qam", "mine")
        subprocess.run(["git", "merge", "-q", "other"], cwd=place, env=ENVIRONMENT, check=False, capture_output=True)
        assert found(workspace) == {("repo/a", "staged")}
        return
    assert found(workspace) == set()
    (place / "sub/c").write_text("x")
    git(place, "add", "sub/c")
    assert found(workspace) == {("repo/sub/c", "staged")}


def test_worktrees_submodules_and_nested_repositories_are_looked_at_each(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    other = begun(workspace.path / "other")
    git(place, "submodule", "--quiet", "add", str(other), "module")
    git(place, "commit", "-qm", "with a module")
    begun(place / "sub" / "nested")
    git(place, "worktree", "add", "-q", str(workspace.path / "tree"))
    for file in (place / "module/.git", workspace.path / "tree/.git"):
        # As Git would write it inside, where the workspace is at /home/user.
        file.write_text(file.read_text().replace(str(workspace.path), "/home/user"))
    assert found(workspace) == set()
    for changed in ("repo/module/a", "repo/sub/nested/a", "tree/a"):
        (workspace.path / changed).write_text("x")
    assert found(workspace) == {
        ("repo/module/a", "modified"),
        ("repo/sub/nested/a", "modified"),
        ("tree/a", "modified"),
    }


@pytest.mark.req("T3.42")
def test_a_hostile_repository_runs_nothing_and_is_not_followed_out(workspace: Workspace, tmp_path: Path) -> None:
    place = begun(workspace.path / "repo")
    ran = tmp_path / "ran"
    evil = f"touch {ran}"
    for name in ("core.fsmonitor", "filter.evil.clean", "diff.external", "core.sshCommand", "core.pager"):
        git(place, "config", name, evil)
    git(place, "config", "core.worktree", str(tmp_path))
    git(place, "config", "core.excludesFile", "/dev/zero")
    (place / ".gitattributes").write_text("* filter=evil\n")
    hook = place / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{evil}\n")
    hook.chmod(0o755)
    (place / "a").write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    os.symlink(outside, place / "way")
    assert found(workspace) == {
        ("repo/.gitattributes", "untracked"),
        ("repo/a", "modified"),
        ("repo/way", "untracked"),
    }
    assert not ran.exists()


@pytest.mark.parametrize(
    "damage", ["index", "cut", "head", "link", "pointer", "pipe", "parts", "object", "path", "no head"]
)
def test_what_cannot_be_read_counts_as_not_saved(workspace: Workspace, damage: str, tmp_path: Path) -> None:
    place = begun(workspace.path / "repo")
    folder = place / ".git"
    index = (folder / "index").read_bytes()
    if damage == "index":
        (folder / "index").write_bytes(index[:40] + b"\xff" + index[41:])
    elif damage == "cut":
        (folder / "index").write_bytes(index[: len(index) // 2])
    elif damage == "head":
        (folder / "HEAD").write_text("ref: ../../../etc/passwd\n")
    elif damage == "no head":
        (folder / "HEAD").unlink()
    elif damage == "link":
        folder.rename(workspace.path / "elsewhere")
        os.symlink("../elsewhere", folder)
    elif damage == "pointer":
        folder.rename(tmp_path / "moved")
        folder.write_text(f"gitdir: {tmp_path / 'moved'}\n")
    elif damage == "pipe":
        (folder / "index").unlink()
        os.mkfifo(folder / "index")
    elif damage == "parts":
        git(place, "update-index", "--split-index")
    elif damage == "object":
        (place / "new").write_text("x")
        git(place, "add", "new")
        for one in (folder / "objects").glob("??/*"):
            one.chmod(0o600)
            one.write_bytes(b"nothing")
    else:
        (folder / "index").write_bytes(b"DIRC" + b"\0\0\0\2" + b"\xff" * 4 + index[12:])
    answer = workspace.ask(FindUnsaved())
    assert [(one.path, one.change) for one in answer.files][:1] == [("repo/.git", "unreadable")]
    assert answer.repositories[0].reason


def kept_object(folder: Path, kind: bytes, content: bytes) -> bytes:
    """Its id; it is written as Git writes them, whatever is in it."""
    whole = b"%s %d\0%s" % (kind, len(content), content)
    name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    (folder / "objects" / name[:2]).mkdir(exist_ok=True)
    (folder / "objects" / name[:2] / name[2:]).write_bytes(zlib.compress(whole))
    return bytes.fromhex(name)


def pack_of_delta(folder: Path, name: str, object_id: bytes, base: bytes, delta: bytes) -> None:
    """A pack with one object, that stands on another."""
    size, head = len(delta), bytearray([0x70 | len(delta) & 15])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    content = b"PACK" + struct.pack(">II", 2, 1) + bytes(head) + base + zlib.compress(delta) + bytes(20)
    fan = b"".join(struct.pack(">I", n >= object_id[0]) for n in range(256))
    index = b"\xfftOc" + struct.pack(">I", 2) + fan + object_id + bytes(4) + struct.pack(">I", 12) + bytes(40)
    (folder / f"objects/pack/{name}.pack").write_bytes(content)
    (folder / f"objects/pack/{name}.idx").write_bytes(index)


@pytest.mark.parametrize("bomb", ["modes", "a delta on itself", "packs on each other", "paths of the index"])
def test_a_repository_made_to_take_memory_is_told_as_unreadable(workspace: Workspace, bomb: str) -> None:
    folder = begun(workspace.path / "repo") / ".git"
    first, second = bytes([1] * 20), bytes([2] * 20)
    commit = first
    if bomb == "modes":
        tree = kept_object(folder, b"tree", b"100999 name\0" + bytes(20))
        commit = kept_object(folder, b"commit", b"tree %s\n" % tree.hex().encode())
    elif bomb == "a delta on itself":
        pack_of_delta(folder, "one", first, first, bytes(40 << 20))
    elif bomb == "packs on each other":
        pack_of_delta(folder, "one", first, second, b"x")
        pack_of_delta(folder, "two", second, first, b"x")
    else:
        entry = bytes(40) + first + bytes(2)
        start = b"/".join([b"a" * 200] * 19)
        entries = entry + b"\0" + start + b"\0" + (entry + b"\x01" + b"b\0") * 40_000
        index = b"DIRC" + struct.pack(">II", 4, 40_001) + entries
        (folder / "index").write_bytes(index + hashlib.sha1(index, usedforsecurity=False).digest())
    (folder / "HEAD").write_text(commit.hex())
    answer = workspace.ask(FindUnsaved())
    assert answer.looked_everywhere
    assert [(one.path, one.change) for one in answer.files] == [("repo/.git", "unreadable")]


def test_a_repository_for_which_there_is_no_memory_is_told_as_unreadable_and_the_others_are_looked_at(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("large", "small"):
        (workspace.path / name).mkdir()
        git(workspace.path / name, "init", "-q")
        (workspace.path / name / "new").write_text("x")
    read = unsaved.Search._compare

    def compare(search: unsaved.Search, repository: unsaved.Repository) -> None:
        if repository.top == b"large":
            raise MemoryError
        read(search, repository)

    monkeypatch.setattr(unsaved.Search, "_compare", compare)
    found = workspace.ask(FindUnsaved())
    assert {one.path: one.change for one in found.files} == {"large/.git": "unreadable", "small/new": "untracked"}
    assert [one.reason for one in found.repositories if one.path == "large"] == ["it takes too much memory to read"]


def test_trees_that_hold_one_another_end_with_the_time(workspace: Workspace) -> None:
    folder = begun(workspace.path / "repo") / ".git"
    below = kept_object(folder, b"tree", b"100644 name\0" + bytes(20))
    for _ in range(20):
        below = kept_object(folder, b"tree", b"".join(b"40000 %d\0%s" % (n, below) for n in range(100)))
    commit = kept_object(folder, b"commit", b"tree %s\n" % below.hex().encode())
    (folder / "HEAD").write_text(commit.hex())
    started = time.monotonic()
    assert not workspace.ask(FindUnsaved(budget_s=0.3)).looked_everywhere
    assert time.monotonic() - started < 3


def test_what_is_shut_to_whoever_looks_counts_as_not_looked_at(workspace: Workspace) -> None:
    begun(workspace.path / "repo")
    assert workspace.ask(FindUnsaved()).looked_everywhere
    shut = workspace.path / "shut"
    begun(shut / "repo")
    shut.chmod(0)
    assert not unprivileged(workspace.path, lambda: workspace.ask(FindUnsaved())).looked_everywhere
    shut.chmod(0o700)


def test_only_the_first_are_named_and_all_are_counted_and_time_is_bounded(workspace: Workspace) -> None:
    place = begun(workspace.path / "repo")
    for number in range(50):
        (place / f"new{number}").write_text("x")
    answer = workspace.ask(FindUnsaved(most=10))
    assert (len(answer.files), answer.total, answer.complete) == (10, 50, False)
    late = workspace.ask(FindUnsaved(budget_s=1e-9))
    assert not late.looked_everywhere


def test_patterns_mean_what_they_mean_to_git(workspace: Workspace) -> None:
    patterns = (
        "*.o",
        "/top",
        "folder/",
        "a/*/z",
        "a/**/y",
        "**/deep",
        "under/**",
        "!kept.o",
        "\\#name",
        "x[0-9]",
        "y[!a]",
        "?q",
        "**",
        "[z]*b",
    )
    paths = (
        *("m.o", "d/m.o", "top", "d/top", "folder/x", "d/folder/x", "folder2", "a/b/z", "a/b/c/z", "a/y", "a/b/c/y"),
        *("deep", "d/deep", "under/x", "under/d/x", "d/under/x", "kept.o", "d/kept.o", "#name", "x1", "xa", "ya", "yb"),
        *("aq", "q", "aaq", "zzzb", "zb", "d/zab", "za"),
    )  # fmt: skip
    git(workspace.path, "init", "-q")
    for pattern in patterns:
        for path in paths:
            rules = Rules().below(b"", f"{pattern}\n".encode())
            parts = path.split("/")
            ours = any(
                rules.leave_out("/".join(parts[:n]).encode(), is_folder=n < len(parts))
                for n in range(1, len(parts) + 1)
            )
            (workspace.path / ".gitignore").write_text(f"{pattern}\n")
            theirs = subprocess.run(
                ["git", "check-ignore", "-q", "--no-index", path],
                cwd=workspace.path, env=ENVIRONMENT, check=False,
            )  # fmt: skip
            assert ours is (theirs.returncode == 0), (pattern, path)


def test_a_pattern_made_to_take_long_does_not(workspace: Workspace) -> None:
    rules = Rules().below(b"", b"*a" * 200 + b"b\n" + b"**/x/" * 200 + b"y\n")
    assert not rules.leave_out(b"/".join([b"a" * 200] * 100), is_folder=False)
