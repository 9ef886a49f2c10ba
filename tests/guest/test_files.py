"""Promise: file tools move bytes unchanged, replace atomically, keep what is not theirs, and say by code what is wrong."""

import errno
import hashlib
import multiprocessing.connection
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.files import (
    READ_CAP_BYTES,
    Edit,
    EditFile,
    ListDirectory,
    MakeDirectory,
    ReadFile,
    RemovePath,
    WriteFile,
)
from coldframe.guest import facts, files, paths
from coldframe.guest.edits import apply_edits
from coldframe.guest.facts import failure_of as failure_of_error
from coldframe.guest.facts import time_of
from tests.guest.workspace import Workspace, failure_of, unprivileged

# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.req("T1.30")
@pytest.mark.parametrize(
    "content", [b"", b"\xef\xbb\xbfBOM\r\nCRLF\r\n", b"Error: no such file", bytes(range(256)) * 10]
)
def test_a_file_is_read_byte_for_byte(workspace: Workspace, content: bytes) -> None:
    (workspace.path / "f").write_bytes(content)
    os.chmod(workspace.path / "f", 0o640)
    answer = workspace.read("f")
    assert answer.content == content
    assert (answer.path, answer.total_bytes, answer.complete, answer.mode) == ("f", len(content), True, 0o640)


def test_a_range_is_read_without_the_rest(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"0123456789")
    for offset, length, expected in (
        (2, 3, b"234"),
        (8, 100, b"89"),
        (10, 1, b""),
        (99, None, b""),
        (7, None, b"789"),
        (0, 0, b""),
    ):
        answer = workspace.read("f", offset=offset, length=length)
        assert (answer.content, answer.total_bytes, answer.complete) == (expected, 10, False)
    assert workspace.read("f", length=10).complete


def test_what_is_larger_than_an_answer_is_read_by_range(workspace: Workspace) -> None:
    with open(workspace.path / "big", "wb") as big:
        big.truncate(READ_CAP_BYTES + 10)
    failure = failure_of(lambda: workspace.read("big"))
    assert (failure.code, failure.facts["size"], failure.facts["limit"]) == (
        "TOO_LARGE",
        READ_CAP_BYTES + 10,
        READ_CAP_BYTES,
    )
    assert workspace.code_of(ReadFile(path="big", length=READ_CAP_BYTES + 1)) == "TOO_LARGE"
    assert len(workspace.read("big", offset=READ_CAP_BYTES).content) == 10
    assert files.READ_CAP_BYTES == READ_CAP_BYTES


@pytest.mark.req("T1.30")
def test_what_cannot_be_read_has_its_own_code(workspace: Workspace) -> None:
    (workspace.path / "dir").mkdir()
    (workspace.path / "file").write_bytes(b"x")
    assert workspace.code_of(ReadFile(path="nothing")) == "FILE_NOT_FOUND"
    assert workspace.code_of(ReadFile(path="dir")) == "IS_A_DIRECTORY"
    assert workspace.code_of(ReadFile(path="")) == "IS_A_DIRECTORY"
    assert workspace.code_of(ReadFile(path="file/x")) == "NOT_A_DIRECTORY"
    os.chmod(workspace.path / "file", 0)
    assert unprivileged(workspace.path, lambda: workspace.code_of(ReadFile(path="file"))) == "PERMISSION_DENIED"


def test_special_files_are_refused_at_once_and_left_alone(workspace: Workspace) -> None:
    os.mkfifo(workspace.path / "fifo")
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(workspace.path)
    try:
        server.bind("socket")
    finally:
        os.chdir(here)
    os.symlink("fifo", workspace.path / "link")
    for path in ("fifo", "socket", "link"):  # who opens one waits for ever
        assert workspace.code_of(ReadFile(path=path)) == "NOT_A_REGULAR_FILE"
        assert workspace.code_of(WriteFile(path=path, content=b"x")) == "NOT_A_REGULAR_FILE"
        assert workspace.code_of(EditFile(path=path, edits=(Edit(old="a", new="b"),))) == "NOT_A_REGULAR_FILE"
    with pytest.raises(OSError) as nobody_reads:  # a reader that had come and gone would have let this through
        os.open(workspace.path / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    assert nobody_reads.value.errno == errno.ENXIO
    server.close()


def test_a_file_of_the_kernel_that_claims_no_size_is_not_drained() -> None:
    proc = Workspace(Path("/proc/self"))
    assert proc.read("environ").content == b""
    proc.close()


# -- versions --------------------------------------------------------------------------------------


def test_a_stale_version_is_a_conflict_that_gives_the_present_one(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"1")
    token = workspace.read("f").version
    assert workspace.read("f", if_version=token).content == b"1"
    present = workspace.edit("f", ("1", "22")).version
    assert workspace.list().entries[0].version == workspace.read("f").version == present != token
    for request in (
        ReadFile(path="f", if_version=token),
        WriteFile(path="f", content=b"x", if_version=token),
        EditFile(path="f", edits=(Edit(old="22", new="x"),), if_version=token),
    ):
        failure = workspace.refusal(request)
        assert (failure.code, failure.facts["version"]) == ("CONFLICT", present)
    assert (workspace.path / "f").read_bytes() == b"22"
    workspace.write("f", b"3", if_version=present)
    os.unlink(workspace.path / "f")
    assert failure_of(lambda: workspace.write("f", b"x", if_version=present)).facts["version"] is None
    assert workspace.names() == set()


def test_a_change_during_an_upload_is_a_conflict_too(workspace: Workspace) -> None:
    version = workspace.write("f", b"1").version
    writer = workspace.writer("f", if_version=version)
    writer.write(b"mine")
    (workspace.path / "f").write_bytes(b"theirs")
    assert failure_of(writer.commit).code == "CONFLICT"
    assert (workspace.path / "f").read_bytes() == b"theirs"
    assert workspace.names() == {"f"}


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.req("T1.29")
@pytest.mark.parametrize("content", [b"", "ünï€".encode(), bytes(range(256)), b"a\\tb\\\\n\\0 %s -n -e", b"no newline"])
def test_what_is_written_is_what_was_sent(workspace: Workspace, content: bytes) -> None:
    answer = workspace.write("new/deep/f", content)
    assert (workspace.path / "new/deep/f").read_bytes() == content
    assert (answer.path, answer.bytes_written, answer.created) == ("new/deep/f", len(content), True)
    assert (answer.sha256, answer.sha256_before) == (hashlib.sha256(content).hexdigest(), None)
    again = workspace.write("new/deep/f", b"other")
    assert (again.created, again.sha256_before) == (False, answer.sha256)


@pytest.mark.req("T1.11")
def test_parents_are_made_with_the_usual_modes(workspace: Workspace) -> None:
    before = os.umask(0o077)
    try:
        workspace.write("a/b/f", b"x")
        workspace.ask(MakeDirectory(path="c/d"))
    finally:
        os.umask(before)
    for path, mode in (("a", 0o755), ("a/b", 0o755), ("a/b/f", 0o644), ("c/d", 0o755)):
        assert stat.S_IMODE(os.stat(workspace.path / path).st_mode) == mode
    workspace.write("a/b/f", b"x", mode=0o600)
    assert stat.S_IMODE(os.stat(workspace.path / "a/b/f").st_mode) == 0o600


@pytest.mark.req("T1.21")
def test_mode_and_link_of_a_replaced_file_stay(workspace: Workspace) -> None:
    (workspace.path / "bin").mkdir()
    (workspace.path / "bin" / "run").write_bytes(b"1")
    os.chmod(workspace.path / "bin" / "run", 0o751)
    os.symlink("bin/run", workspace.path / "link")
    if os.getuid() == 0:
        os.chown(workspace.path / "bin" / "run", 1234, 1235)
    workspace.write("link", b"2")
    workspace.edit("link", ("2", "3"))
    status = os.stat(workspace.path / "bin" / "run")
    assert (workspace.path / "bin" / "run").read_bytes() == b"3"
    assert stat.S_IMODE(status.st_mode) == 0o751
    assert os.getuid() != 0 or (status.st_uid, status.st_gid) == (1234, 1235)
    assert os.readlink(workspace.path / "link") == "bin/run"


def test_a_link_to_nothing_yet_is_kept_and_filled(workspace: Workspace) -> None:
    os.symlink("later/f", workspace.path / "link")
    workspace.write("link", b"x")
    assert (workspace.path / "later" / "f").read_bytes() == b"x"
    assert (workspace.path / "link").is_symlink()


def test_another_name_of_a_replaced_file_keeps_the_old_content(workspace: Workspace) -> None:
    (workspace.path / "a").write_bytes(b"old")
    os.link(workspace.path / "a", workspace.path / "b")
    workspace.write("a", b"new")
    assert (workspace.path / "b").read_bytes() == b"old"


def test_create_only_never_replaces(workspace: Workspace) -> None:
    workspace.write("f", b"1", create_only=True)
    assert workspace.code_of(WriteFile(path="f", content=b"2", create_only=True)) == "CONFLICT"
    writer = workspace.writer("g", create_only=True)
    writer.write(b"mine")
    (workspace.path / "g").write_bytes(b"theirs")
    assert failure_of(writer.commit).code == "CONFLICT"
    assert ((workspace.path / "f").read_bytes(), (workspace.path / "g").read_bytes()) == (b"1", b"theirs")
    assert workspace.names() == {"f", "g"}


def test_the_kernel_itself_refuses_to_replace_for_create_only(workspace: Workspace) -> None:
    (workspace.path / "a").write_bytes(b"a")
    (workspace.path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        paths.rename_new(workspace.root, b"a", workspace.root, b"b")
    paths.rename_new(workspace.root, b"a", workspace.root, b"c")
    assert workspace.names() == {"b", "c"}


def test_what_cannot_be_written_has_its_own_code_and_leaves_nothing(workspace: Workspace) -> None:
    (workspace.path / "dir").mkdir()
    (workspace.path / "frozen").mkdir()
    (workspace.path / "file").write_bytes(b"x")
    before = workspace.names()
    for path in ("", "dir", "new/"):
        assert workspace.code_of(WriteFile(path=path, content=b"x")) == "IS_A_DIRECTORY"
    assert workspace.code_of(WriteFile(path="file/x", content=b"x")) == "NOT_A_DIRECTORY"
    os.chmod(workspace.path / "file", 0o444)
    os.chmod(workspace.path / "frozen", 0o555)
    for path in ("file", "frozen/x", "frozen/y/z"):
        request = WriteFile(path=path, content=b"x")
        assert unprivileged(workspace.path, partial(workspace.code_of, request)) == "PERMISSION_DENIED"
    assert workspace.names() == before


def test_an_upload_of_many_pieces_appears_at_once_and_whole(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"old")
    writer = workspace.writer("f")
    for _ in range(100):
        writer.write(b"x" * 10_000)
        assert (workspace.path / "f").read_bytes() == b"old"
    assert files.temporary_names() <= {name.encode() for name in workspace.names()}
    answer = writer.commit()
    assert (answer["bytes_written"], answer["sha256"]) == (1_000_000, hashlib.sha256(b"x" * 1_000_000).hexdigest())
    assert (workspace.path / "f").read_bytes() == b"x" * 1_000_000
    assert workspace.names() == {"f"}
    assert files.temporary_names() == frozenset()
    assert failure_of(writer.commit).code == failure_of(lambda: writer.write(b"x")).code == "WRONG_STATE"


def test_an_aborted_upload_leaves_no_trace(workspace: Workspace) -> None:
    (workspace.path / "here").mkdir()
    writer = workspace.writer("here/new/deep/f")
    writer.write(b"x")
    writer.abort()
    writer.abort()
    assert workspace.names() == {"here"}
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        workspace.writer("g").abort()
        workspace.write("here/f", b"x")
        assert workspace.code_of(WriteFile(path="here", content=b"")) == "IS_A_DIRECTORY"
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.req("T1.11")
def test_a_write_killed_in_the_middle_leaves_the_old_file(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"old")
    ready, tell = multiprocessing.connection.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        writer = workspace.writer("f")
        while True:
            writer.write(b"x" * (1 << 20))
            tell.send(b"")
    for _ in range(20):
        assert ready.poll(10)
        ready.recv()
    os.kill(child, 9)
    os.waitpid(child, 0)
    ready.close()
    tell.close()
    assert (workspace.path / "f").read_bytes() == b"old"
    left = workspace.names() - {"f"}
    assert len(left) == 1
    assert left.pop().startswith(files.TEMPORARY_PREFIX.decode())


def test_a_file_that_grows_past_the_limit_is_a_limit_and_leaves_the_old_one(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"old")

    def write() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        failure = failure_of(lambda: workspace.write("f", b"x" * 20_000))
        return f"{failure.code} {failure.facts['kind']}"

    assert unprivileged(workspace.path, write) == "LIMIT_DISK disk"
    assert (workspace.path / "f").read_bytes() == b"old"
    assert workspace.names() == {"f"}


IN_A_NAMESPACE = """
import os, sys
from pathlib import Path
from coldframe.contract.files import *
from tests.guest.workspace import Workspace
workspace = Workspace(Path(sys.argv[1]))
print(workspace.code_of(WriteFile(path=".exec_history", content=b"x")))
print(workspace.code_of(WriteFile(path="history/f", content=b"x")))
print(workspace.code_of(WriteFile(path="history/f", content=b"x", create_only=True)))
print(workspace.code_of(EditFile(path=".exec_history", edits=(Edit(old="record", new="x"),))))
print(workspace.code_of(RemovePath(path=".exec_history")))
print(workspace.code_of(RemovePath(path="history", recursive=True)))
print(workspace.code_of(MakeDirectory(path="history/new")))
print(workspace.code_of(WriteFile(path="small/f", content=b"x" * (2 << 20))))
print(sorted(workspace.names()))
workspace.remove("small/g")
workspace.remove("", contents_only=True) if len(sys.argv) > 2 else None
"""


def test_mounts_inside_the_workspace_hold(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(b"record")
    (tmp_path / "records").mkdir()
    (workspace.path / ".exec_history").touch()
    (workspace.path / "history").mkdir()
    (workspace.path / "small").mkdir()
    script = (
        'mount --bind "$1/record" "$2/.exec_history" && mount -o remount,bind,ro "$2/.exec_history" &&'
        'mount --bind "$1/records" "$2/history" && mount -o remount,bind,ro "$2/history" &&'
        'mount -t tmpfs -o size=1m none "$2/small" && touch "$2/small/g" || exit 77; exec "$3" -c "$4" "$2"'
    )
    arguments = [str(tmp_path), str(workspace.path), sys.executable, IN_A_NAMESPACE]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, timeout=60
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace can be had here")
    assert done.stderr == ""
    told = done.stdout.split("\n")
    assert told[:7] == ["READ_ONLY"] * 7
    assert told[7] == "LIMIT_DISK"
    assert told[8] == "['.exec_history', 'history', 'small', 'small/g']"
    assert (tmp_path / "record").read_bytes() == b"record"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "LIMIT_DISK"),
        (errno.EDQUOT, "LIMIT_DISK"),
        (errno.EROFS, "READ_ONLY"),
        (errno.EBUSY, "READ_ONLY"),
        (errno.EXDEV, "OUTSIDE_WORKSPACE"),
        (errno.ENOSYS, "ISOLATION_UNAVAILABLE"),
        (errno.EIO, "INTERNAL"),
    ],
)
def test_errors_of_the_kernel_have_codes(number: int, code: str) -> None:
    assert failure_of_error(OSError(number, os.strerror(number)), b"f").code == code


# -- editing ---------------------------------------------------------------------------------------


@pytest.mark.req("T1.31")
def test_an_edit_answers_what_the_file_then_holds(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"one\r\ntwo\r\n\xff")
    answer = workspace.edit("f", ("one\ntwo", "1\n2"), ("1", "uno"))
    assert answer.content == (workspace.path / "f").read_bytes() == b"uno\r\n2\r\n\xff"
    assert (answer.replacements, answer.bytes_written) == (2, len(answer.content))
    assert answer.sha256 == hashlib.sha256(answer.content).hexdigest()
    assert answer.sha256_before == hashlib.sha256(b"one\r\ntwo\r\n\xff").hexdigest()


@pytest.mark.req("T1.31")
def test_a_refused_edit_leaves_the_file_untouched(workspace: Workspace) -> None:
    (workspace.path / "f").write_bytes(b"a a b")
    before = os.stat(workspace.path / "f")
    for edits, code in (
        ((("b", "c"), ("a", "x")), "EDIT_NOT_UNIQUE"),
        ((("b", "c"), ("z", "x")), "EDIT_NOT_FOUND"),
        ((("", "c"),), "INVALID_ARGUMENT"),
    ):
        assert failure_of(partial(workspace.edit, "f", *edits)).code == code
    after = os.stat(workspace.path / "f")
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert workspace.code_of(EditFile(path="nothing", edits=(Edit(old="a", new="b"),))) == "FILE_NOT_FOUND"
    assert workspace.names() == {"f"}


def test_an_edit_meets_a_concurrent_change_with_one_more_try(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.path / "f").write_bytes(b"mine=old\n")
    kept = apply_edits
    disturbances = [b"mine=old\ntheirs\n"]

    def disturbed(content: bytes, edits: list[dict[str, Any]], path: str) -> tuple[bytes, int]:
        if disturbances:
            (workspace.path / "f").write_bytes(disturbances.pop(0))
        return kept(content, edits, path)

    monkeypatch.setattr(files, "apply_edits", disturbed)
    workspace.edit("f", ("mine=old", "mine=new"))
    assert (workspace.path / "f").read_bytes() == b"mine=new\ntheirs\n"
    (workspace.path / "f").write_bytes(b"mine=old\n")
    disturbances += [b"mine=old\ntheirs again\n", b"mine=old\nand again\n"]
    assert failure_of(lambda: workspace.edit("f", ("mine=old", "mine=new"))).code == "CONFLICT"
    assert (workspace.path / "f").read_bytes() == b"mine=old\nand again\n"


# -- listing ---------------------------------------------------------------------------------------


def corpus(workspace: Workspace) -> None:
    (workspace.path / "ok" / "deep").mkdir(parents=True)
    (workspace.path / "ok" / "f").write_bytes(b"12345")
    (workspace.path / "ok" / "deep" / "g").write_bytes(b"")
    (workspace.path / "ok.txt").write_bytes(b"1")
    os.symlink("nowhere", workspace.path / "dead")
    os.symlink("..", workspace.path / "ok" / "loop")
    os.mkfifo(workspace.path / "fifo")


@pytest.mark.req("T1.33", "T1.34")
def test_a_recursive_listing_equals_find_and_stat(workspace: Workspace) -> None:
    corpus(workspace)
    answer = workspace.list(recursive=True)
    found = subprocess.run(
        ["find", ".", "-mindepth", "1", "-printf", "%P|%s|%m|%y|%l\\n"],
        cwd=workspace.path,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    kinds = {"file": "f", "directory": "d", "symlink": "l", "fifo": "p"}
    listed = [f"{e.path}|{e.size}|{e.mode:o}|{kinds[e.kind]}|{e.target or ''}" for e in answer.entries]
    assert sorted(listed) == sorted(found)
    assert [e.path for e in answer.entries] == sorted(e.path for e in answer.entries)
    assert answer.complete
    status = os.stat(workspace.path / "ok" / "f")
    entry = next(e for e in answer.entries if e.path == "ok/f")
    assert entry.name == "f" and abs(entry.modified_at.timestamp() - status.st_mtime) < 0.00001
    assert [e.path for e in workspace.list("ok").entries] == ["ok/deep", "ok/f", "ok/loop"]


@pytest.mark.req("T1.34")
def test_limits_of_a_listing_are_told(workspace: Workspace) -> None:
    corpus(workspace)
    shallow = workspace.list(recursive=True, max_depth=1)
    assert {e.path for e in shallow.entries} == {"dead", "fifo", "ok", "ok.txt"}
    assert (shallow.complete, shallow.truncated_because) == (False, "max_depth")
    assert workspace.list(recursive=True, max_depth=3).complete
    few = workspace.list(recursive=True, max_entries=5)
    assert len(few.entries) == 5
    assert {e.path for e in shallow.entries} < {e.path for e in few.entries}  # the top comes first
    assert (few.complete, few.truncated_because) == (False, "max_entries")
    assert workspace.list(recursive=True, max_entries=8).complete


def test_one_unreadable_directory_does_not_spoil_a_listing(workspace: Workspace) -> None:
    corpus(workspace)
    (workspace.path / "no").mkdir()
    os.chmod(workspace.path / "no", 0)
    answer = unprivileged(workspace.path, lambda: workspace.list(recursive=True).model_dump())
    assert {"dead", "no", "ok", "ok/f"} <= {e["path"] for e in answer["entries"]}
    assert answer["errors"] == (("no", "permission denied"),)


def test_what_is_no_directory_cannot_be_listed(workspace: Workspace) -> None:
    (workspace.path / "f").touch()
    assert workspace.code_of(ListDirectory(path="f")) == "NOT_A_DIRECTORY"
    assert workspace.code_of(ListDirectory(path="nothing")) == "FILE_NOT_FOUND"
    assert workspace.code_of(MakeDirectory(path="f")) == "NOT_A_DIRECTORY"


def test_any_time_a_file_claims_can_be_told(workspace: Workspace) -> None:
    (workspace.path / "f").touch()
    os.utime(workspace.path / "f", (2**33, 2**33))
    assert workspace.list().entries[0].modified_at.year == 2242
    assert time_of(-1) == "1969-12-31T23:59:59.999999Z"
    assert time_of(10**30).startswith("9999-12-31T23:59:59")
    assert time_of(facts.EARLIEST_S * 10**9 - 1).startswith("0001-01-01T00:00:00")


# -- removing --------------------------------------------------------------------------------------


def make_deep(workspace: Workspace, levels: int) -> None:
    here = os.open(workspace.path, os.O_PATH)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_a_tree_of_three_thousand_levels_is_listed_searched_and_removed(workspace: Workspace) -> None:
    make_deep(workspace, 3000)
    assert len(workspace.list(recursive=True).entries) == 3001
    assert workspace.search("x").files_searched == 1
    workspace.remove("d", recursive=True)
    assert os.listdir(workspace.path) == []


@pytest.mark.parametrize("has_call", [True, False])
def test_directories_without_rights_are_removed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, has_call: bool
) -> None:
    if not has_call:
        monkeypatch.setattr(paths, "_SYS_FCHMODAT2", 100_000)
    (workspace.path / "a" / "b").mkdir(parents=True)
    (workspace.path / "a" / "b" / "f").touch()
    os.chmod(workspace.path / "a" / "b", 0)
    os.chmod(workspace.path / "a", 0o500)
    unprivileged(workspace.path, lambda: workspace.remove("a", recursive=True))
    assert os.listdir(workspace.path) == []


def test_removing_says_what_is_wrong(workspace: Workspace) -> None:
    (workspace.path / "d" / "e").mkdir(parents=True)
    assert workspace.code_of(RemovePath(path="nothing")) == "FILE_NOT_FOUND"
    assert workspace.code_of(RemovePath(path="d")) == "IS_A_DIRECTORY"
    assert workspace.code_of(RemovePath(path="", recursive=True)) == "INVALID_ARGUMENT"
    assert workspace.names() == {"d", "d/e"}


def test_emptying_keeps_the_directory_and_the_history(workspace: Workspace) -> None:
    corpus(workspace)
    (workspace.path / ".exec_history").touch()
    workspace.remove("ok", contents_only=True)
    assert workspace.names() == {"ok", "ok.txt", "dead", "fifo", ".exec_history"}
    workspace.remove("", contents_only=True)
    assert workspace.names() == {".exec_history"}


def test_a_directory_moved_while_it_is_removed_ends_the_removal(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The climb back through `..` must not go on in whatever directory the tree was moved to."""
    (workspace.path / "a" / "b" / "c").mkdir(parents=True)
    (workspace.path / "other").mkdir()
    (workspace.path / "other" / "kept").touch()
    kept_open = os.open

    def open_after_move(path: object, flags: int, *rest: object, **more: object) -> int:
        if path == b"..":
            shutil.move(workspace.path / "a" / "b", workspace.path / "other" / "b")
            monkeypatch.setattr(os, "open", kept_open)
        return kept_open(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_after_move)
    failure = failure_of(lambda: workspace.remove("a", recursive=True))
    assert failure.code == "CONFLICT"
    assert "other/kept" in workspace.names()


def test_a_file_that_is_written_on_byte_by_byte_holds_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was cut short after it was opened: its reader would wait for as many bytes as it had, one after the other."""
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    read, calls = os.pread, []

    def slowly(file: int, length: int, offset: int) -> bytes:
        calls.append(offset)
        return read(file, min(length, 1), offset)

    monkeypatch.setattr("coldframe.guest.files.os.pread", slowly)
    held = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        assert len(files.read_range(held, 0, 100_000)) == len(calls) < 100
    finally:
        os.close(held)
