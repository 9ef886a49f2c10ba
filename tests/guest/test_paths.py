"""Promise: no path leads out of the workspace, whatever links say and however they change; paths that stay inside work."""

import ctypes
import errno
import mmap
import os
import struct
import time
from pathlib import Path

import pytest

from coldframe.contract.files import (
    Edit,
    EditFile,
    ListDirectory,
    MakeDirectory,
    ReadFile,
    RemovePath,
    SearchFiles,
    WriteFile,
)
from coldframe.guest import paths
from coldframe.guest.paths import open_beneath
from coldframe.guest.verbs import Failure
from tests.guest.workspace import Workspace

SECRET = b"SECRET of another agent"


@pytest.fixture(autouse=True)
def other(tmp_path: Path) -> Path:
    """The place that no path may reach, beside the workspace."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret.txt").write_bytes(SECRET)
    return tmp_path / "other"


def outside_paths(workspace: Workspace) -> list[str]:
    os.symlink("../other/secret.txt", workspace.path / "file-link")
    os.symlink("../other", workspace.path / "directory-link")
    os.symlink(workspace.path.parent / "other", workspace.path / "absolute-link")
    os.symlink("..", workspace.path / "up")
    os.symlink("../other/not-there", workspace.path / "dangling")
    os.symlink("up/other", workspace.path / "chain")
    os.symlink("/proc/self/environ", workspace.path / "environ")
    os.symlink("/proc/self/root", workspace.path / "root")
    os.symlink("/dev/zero", workspace.path / "zero")
    (workspace.path / "inner").mkdir()
    os.symlink("../../other", workspace.path / "inner" / "deep")
    return [
        "../other/secret.txt",
        "inner/../../other/secret.txt",
        "..",
        "/etc/passwd",
        "/home/user/../other/secret.txt",
        "/home/userx/secret.txt",
        "/home/other",
        str(workspace.path.parent / "other" / "secret.txt"),
        "file-link",
        "directory-link/secret.txt",
        "absolute-link/secret.txt",
        "up/other/secret.txt",
        "dangling",
        "chain/secret.txt",
        "environ",
        "root/etc/passwd",
        "zero",
        "inner/deep/secret.txt",
        "inner/deep/new/file",
        "/proc/self/root/etc/passwd",
        "/dev/null",
    ]


@pytest.mark.req("T1.48", "T1.92")
def test_no_tool_reads_or_writes_through_a_path_that_leaves(workspace: Workspace) -> None:
    other = workspace.path.parent / "other"
    for path in outside_paths(workspace):
        for request in (
            ReadFile(path=path),
            WriteFile(path=path, content=b"x"),
            WriteFile(path=path, content=b"x", create_only=True),
            EditFile(path=path, edits=(Edit(old="SECRET", new="x"),)),
            ListDirectory(path=path),
            SearchFiles(pattern="SECRET", path=path),
            MakeDirectory(path=path),
        ):
            failure = workspace.refusal(request)
            if not (isinstance(request, WriteFile) and request.create_only and failure.code == "CONFLICT"):
                assert failure.code == "OUTSIDE_WORKSPACE", (path, request, failure)
            assert "SECRET" not in failure.message
    assert [found.name for found in other.iterdir()] == ["secret.txt"]
    assert (other / "secret.txt").read_bytes() == SECRET


@pytest.mark.req("T1.92")
def test_removing_takes_the_link_and_never_what_it_names(workspace: Workspace) -> None:
    outside_paths(workspace)
    for link in ("file-link", "directory-link", "absolute-link", "up"):
        workspace.remove(link, recursive=True)
        assert not os.path.lexists(workspace.path / link)
    assert workspace.code_of(RemovePath(path="chain/secret.txt")) == "FILE_NOT_FOUND"  # `up` is gone
    assert workspace.code_of(RemovePath(path="inner/deep/secret.txt", recursive=True)) == "OUTSIDE_WORKSPACE"
    workspace.remove("", contents_only=True)
    assert workspace.names() == set()
    assert (workspace.path.parent / "other" / "secret.txt").read_bytes() == SECRET


def test_magic_links_are_refused(workspace: Workspace) -> None:
    proc = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    try:
        for path in (b"cwd", b"exe", b"root/etc"):
            with pytest.raises(Failure) as refused:
                open_beneath(proc, path, os.O_PATH)
            assert refused.value.code == "OUTSIDE_WORKSPACE"
    finally:
        os.close(proc)


def test_links_that_stay_inside_work_for_every_tool(workspace: Workspace) -> None:
    (workspace.path / "real" / "src").mkdir(parents=True)
    (workspace.path / "real" / "src" / "f.txt").write_text("body\n")
    os.symlink("real", workspace.path / "lnk")
    os.symlink("../real/src/f.txt", workspace.path / "real" / "up.txt")
    os.symlink("/home/user/real/src", workspace.path / "absolute")
    os.symlink("absolute/f.txt", workspace.path / "two-steps")
    assert workspace.read("lnk/src/f.txt").content == b"body\n"
    assert workspace.read("lnk/up.txt").content == b"body\n"
    assert workspace.read("absolute/f.txt").content == b"body\n"
    assert workspace.write("lnk/src/n.txt", b"new").path == "lnk/src/n.txt"
    assert (workspace.path / "real" / "src" / "n.txt").read_bytes() == b"new"
    workspace.write("absolute/deeper/m.txt", b"new")
    assert (workspace.path / "real" / "src" / "deeper" / "m.txt").read_bytes() == b"new"
    workspace.edit("two-steps", ("body", "BODY"))
    assert (workspace.path / "real" / "src" / "f.txt").read_bytes() == b"BODY\n"
    assert {entry.path for entry in workspace.list("absolute").entries} == {
        "absolute/f.txt",
        "absolute/n.txt",
        "absolute/deeper",
    }
    assert [match.path for match in workspace.search("BODY", path="lnk").matches] == ["lnk/src/f.txt"]


def test_paths_are_normalised_and_absolute_ones_taken_below_the_mount(workspace: Workspace) -> None:
    for path in (
        "a/b.txt",
        "./a//b.txt",
        "/home/user/a/b.txt",
        "/home/user//a/./b.txt",
        "a/../a/b.txt",
        "x/../a/b.txt",
    ):
        (workspace.path / "x").mkdir(exist_ok=True)
        (workspace.path / "a").mkdir(exist_ok=True)
        assert workspace.write(path, b"1").path == "a/b.txt", path
    assert workspace.list("/home/user").path == ""


def test_dot_dot_behind_a_link_is_refused_rather_than_guessed(workspace: Workspace) -> None:
    (workspace.path / "real" / "src").mkdir(parents=True)
    (workspace.path / "f").write_text("top")
    (workspace.path / "real" / "f").write_text("real")
    os.symlink("real/src", workspace.path / "lnk")
    assert workspace.code_of(ReadFile(path="lnk/../f")) == "INVALID_ARGUMENT"
    assert workspace.read("real/src/../f").content == b"real"
    assert workspace.code_of(ReadFile(path="nothing/../f")) == "FILE_NOT_FOUND"


def test_malformed_names_are_invalid_arguments(workspace: Workspace) -> None:
    for path in ("a\0b", "x" * 256, "/".join(["d"] * 3000), "\ud800"):
        for request in (
            ReadFile(path=path),
            WriteFile(path=path, content=b""),
            ListDirectory(path=path),
            MakeDirectory(path=path),
        ):
            assert workspace.code_of(request) == "INVALID_ARGUMENT", path[:20]
    assert workspace.names() == set()


def test_names_that_look_like_options_or_hold_any_byte_are_just_names(workspace: Workspace) -> None:
    for path in ("-n", "--help", "a b", "new\nline", "$(x)", "`x`", "caf\udce9", "ünï/côdé", "*", "back\\slash", "~"):
        workspace.write(path, b"x")
        assert workspace.read(path).content == b"x"
        assert path in {entry.path for entry in workspace.list(recursive=True).entries}
    assert os.path.exists(bytes(workspace.path) + b"/caf\xe9")


def test_loops_of_links_end_at_once(workspace: Workspace) -> None:
    os.symlink("b", workspace.path / "a")
    os.symlink("a", workspace.path / "b")
    for request in (ReadFile(path="a"), WriteFile(path="a", content=b""), ReadFile(path="b/c")):
        assert workspace.code_of(request) == "INVALID_ARGUMENT"


def test_without_openat2_every_path_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.write("f", b"x")
    monkeypatch.setattr(paths, "_SYS_OPENAT2", 100_000)  # a call that no kernel has
    for request in (ReadFile(path="f"), WriteFile(path="f", content=b"y"), ListDirectory(path="")):
        assert workspace.code_of(request) == "ISOLATION_UNAVAILABLE"
    assert (workspace.path / "f").read_bytes() == b"x"


def test_a_look_up_that_keeps_being_disturbed_ends_as_a_conflict(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    class Disturbed:
        def syscall(self, *arguments: object) -> int:
            tried.append(arguments)
            return -1

    monkeypatch.setattr(paths, "_libc", Disturbed())
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EAGAIN)
    assert workspace.code_of(ReadFile(path="f")) == "CONFLICT"
    assert 1 < len(tried) <= paths.MOST_RETRIES


def swap_for_ever(workspace: Path, other: Path, count: mmap.mmap) -> None:
    """The attacker: `p` is by turns a directory and a link to another agent's; `f` a file and a link to its secret."""
    exchange = 2
    here = -100
    renameat2 = ctypes.CDLL(None).renameat2
    names = [os.fsencode(workspace / name) for name in ("p", "out", "f", "out-file", "q", "out-relative")]
    os.symlink(other, names[1])
    os.symlink(other / "secret.txt", names[3])
    os.symlink("../other", names[5])
    while True:
        for one, two in ((0, 1), (2, 3), (4, 5)):
            renameat2(here, names[one], here, names[two], exchange)
        struct.pack_into("Q", count, 0, struct.unpack_from("Q", count)[0] + 3)


@pytest.mark.req("T1.93")
def test_swapping_directory_and_link_during_calls_lets_nothing_out(workspace: Workspace) -> None:
    other = workspace.path.parent / "other"
    for name in ("p", "q"):
        (workspace.path / name).mkdir()
        (workspace.path / name / "secret.txt").write_bytes(b"mine")
    (workspace.path / "f").write_bytes(b"mine")
    swaps = mmap.mmap(-1, 8)
    attacker = os.fork()
    if attacker == 0:
        try:
            swap_for_ever(workspace.path, other, swaps)
        finally:
            os._exit(1)
    outcomes: dict[str, int] = {}
    calls = 0
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            calls += 1
            for request in (
                ReadFile(path="p/secret.txt"),
                ReadFile(path="q/secret.txt"),
                ReadFile(path="f"),
                EditFile(path="f", edits=(Edit(old="mine", new="mine"), Edit(old="mine", new="mine"))),
                EditFile(path="f", edits=(Edit(old="SECRET", new="x"),)),
                ListDirectory(path="q"),
                MakeDirectory(path="q/made"),
                WriteFile(path="q/secret.txt", content=b"mine"),
                WriteFile(path="p/secret.txt", content=b"mine"),
                WriteFile(path="f", content=b"mine"),
                WriteFile(path=f"p/new/{calls % 10}", content=b"mine"),
                SearchFiles(pattern="SECRET"),
                SearchFiles(pattern="SECRET", path="p"),
                RemovePath(path="p/new", recursive=True),
                RemovePath(path="q", contents_only=True),
            ):
                try:
                    answer = workspace.ask(request)
                    outcome = "done"
                    assert SECRET not in getattr(answer, "content", b"")
                    assert not getattr(answer, "matches", ())
                except Failure as failure:
                    outcome = failure.code
                    assert "SECRET" not in failure.message
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
    finally:
        os.kill(attacker, 9)
        os.waitpid(attacker, 0)
    assert [found.name for found in other.iterdir()] == ["secret.txt"]
    assert (other / "secret.txt").read_bytes() == SECRET
    assert outcomes["done"] > 100 < outcomes["OUTSIDE_WORKSPACE"]
    assert struct.unpack_from("Q", swaps)[0] > 1000
    assert set(outcomes) <= {
        "done",
        "OUTSIDE_WORKSPACE",
        "FILE_NOT_FOUND",
        "CONFLICT",
        "NOT_A_DIRECTORY",
        "IS_A_DIRECTORY",
        "NOT_A_REGULAR_FILE",
        "EDIT_NOT_FOUND",
    }, outcomes
