"""Files anywhere in the box: what a command of the same user could do there, and nothing that it could not."""

import pytest

from coldframe.client.sync import SyncSandbox
from coldframe.contract.errors import (
    ColdframeError,
    Conflict,
    FileMissing,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotInProfile,
    NotRegular,
    PermissionDenied,
    ReadOnly,
)

SECRET_PLACES = ("/proc/1/environ", "/proc/1/mem", "/proc/self/environ", "/proc/self/mem", "/proc/self/root/etc/passwd")
"""Where the keeper, or a child of it, would find itself."""


def shell(sandbox: SyncSandbox, line: str) -> str:
    done = sandbox.run_command(line)
    assert done.exit_code == 0, done.stderr
    return done.stdout or ""


@pytest.mark.req("T1.29", "T1.78")
def test_a_file_outside_the_workspace_is_the_one_that_commands_see(sandbox: SyncSandbox) -> None:
    written = sandbox.files.write("/tmp/deep/a.txt", "grün\n", metadata={"author": "mira"})
    assert (written.path, written.created, written.bytes_written) == ("/tmp/deep/a.txt", True, 6)
    assert shell(sandbox, "cat /tmp/deep/a.txt") == "grün\n"
    entry = sandbox.files.stat("/tmp/deep/a.txt")
    seen = shell(sandbox, "stat -c '%a %u %g %s %U %G' /tmp/deep/a.txt").split()
    assert [f"{entry.mode:o}", entry.uid, entry.gid, entry.size] == [seen[0], *map(int, seen[1:4])]
    assert [entry.owner, entry.group] == seen[4:]
    assert entry.metadata == {"author": "mira"}
    assert sandbox.files.read("/tmp/deep/a.txt").content == "grün\n"
    assert sandbox.files.read("/tmp/deep/a.txt", offset=1, length=1).data == b"r"
    sandbox.files.write("/tmp/deep/a.txt", "again")
    assert sandbox.files.stat("/tmp/deep/a.txt").metadata == {}, "what was noted of another content stayed"


@pytest.mark.req("T1.29")
def test_paths_of_the_workspace_are_the_same_by_either_name(sandbox: SyncSandbox) -> None:
    sandbox.write_file("notes/a.txt", "one")
    for name in ("notes/a.txt", "/home/user/notes/a.txt", "/home/user/./notes//a.txt", "../user/notes/a.txt"):
        assert sandbox.files.read(name).content == "one"
        assert sandbox.files.stat(name).path == "/home/user/notes/a.txt"
    assert sandbox.files.write("/home/user/notes/b.txt", "two").path == "notes/b.txt"
    assert [one.name for one in sandbox.files.list("notes").entries] == ["a.txt", "b.txt"]


def test_a_link_is_told_with_where_it_leads(sandbox: SyncSandbox) -> None:
    shell(sandbox, "mkdir -p d && echo x > d/file && ln -s d/file l && ln -s /nowhere broken && ln -s circle circle")
    link = sandbox.files.stat("l")
    assert (link.type, link.target, link.leads_to, link.leads_to_type) == (
        "symlink",
        "d/file",
        "/home/user/d/file",
        "file",
    )
    for name in ("broken", "circle"):
        assert sandbox.files.stat(name).leads_to_type is None
    assert sandbox.files.read("l").content == "x\n"


@pytest.mark.req("T1.29")
def test_directories_are_listed_by_levels_anywhere(sandbox: SyncSandbox) -> None:
    shell(sandbox, "mkdir -p /tmp/t/one/two/three && touch /tmp/t/file")
    names = [one.path for one in sandbox.files.list("/tmp/t", depth=2).entries]
    assert names == ["/tmp/t/file", "/tmp/t/one", "/tmp/t/one/two"]
    assert {"/etc", "/home", "/tmp", "/usr"} <= {one.path for one in sandbox.files.list("/").entries}
    with pytest.raises(NotDirectory):
        sandbox.files.list("/tmp/t/file")
    with pytest.raises(FileMissing):
        sandbox.files.list("/tmp/none")


def test_directories_are_made_things_are_moved_and_removed(sandbox: SyncSandbox) -> None:
    made = sandbox.files.make_directory("a/b/c")
    assert (made.created, made.entry.path, made.entry.type) == (True, "/home/user/a/b/c", "directory")
    assert not sandbox.files.make_directory("a/b/c").created
    sandbox.files.write("a/b/c/f", "x", metadata={"stage": "draft"})
    assert sandbox.files.move("a/b/c/f", "new/place/f").metadata == {"stage": "draft"}
    moved = sandbox.files.move("new/place/f", "/tmp/elsewhere/f")
    assert (moved.path, moved.metadata) == ("/tmp/elsewhere/f", {"stage": "draft"})
    with pytest.raises(FileMissing):
        sandbox.files.move("new/place/f", "x")
    assert "new/x" not in shell(sandbox, "find . -path ./.exec_history -prune -o -print")
    sandbox.files.write("one", "1")
    with pytest.raises(Conflict):
        sandbox.files.move("one", "/tmp/elsewhere/f", replace=False)
    with pytest.raises(IsDirectory):
        sandbox.files.remove("a")
    sandbox.files.remove("a", recursive=True)
    with pytest.raises(FileMissing):
        sandbox.files.remove("a")
    assert shell(sandbox, "ls -d a 2>&1 || true").endswith("No such file or directory\n")


@pytest.mark.req("T1.29")
def test_what_a_command_may_not_do_no_file_call_may(sandbox: SyncSandbox) -> None:
    for path in ("/usr/x", "/etc/x", "/x"):
        with pytest.raises((ReadOnly, PermissionDenied)):
            sandbox.files.write(path, "x")
        with pytest.raises((ReadOnly, PermissionDenied)):
            sandbox.files.make_directory(path)
    with pytest.raises((ReadOnly, PermissionDenied)):
        sandbox.files.remove("/usr/bin/env")
    for path in ("/", "/.."):
        with pytest.raises(ColdframeError):
            sandbox.files.remove(path, recursive=True)
    with pytest.raises(NotInProfile):
        sandbox.files.write("/root/x", "x", user="root")
    assert shell(sandbox, "echo alive") == "alive\n"


@pytest.mark.req("T1.29")
@pytest.mark.parametrize("path", SECRET_PLACES)
def test_nothing_of_the_machine_is_found_by_way_of_the_process_that_serves(sandbox: SyncSandbox, path: str) -> None:
    for name, target in (("straight", path), ("linked", path), ("by_parts", "/proc")):
        shell(sandbox, f"ln -sfn {target} {name}")
    inner = "by_parts" + path.removeprefix("/proc")
    for place in (path, "linked", inner):
        with pytest.raises((NotRegular, FileMissing, PermissionDenied, Conflict, InvalidArgument)):
            sandbox.files.read(place)
        with pytest.raises((NotRegular, FileMissing, PermissionDenied, Conflict, InvalidArgument, NotDirectory)):
            sandbox.files.list(place)
        with pytest.raises((NotRegular, FileMissing, PermissionDenied, Conflict, InvalidArgument, ReadOnly)):
            sandbox.files.write(place, "x")
        with pytest.raises(
            (NotRegular, FileMissing, PermissionDenied, Conflict, InvalidArgument, ReadOnly, NotDirectory)
        ):
            sandbox.files.watch(place)


def test_a_reader_is_not_led_astray_by_what_is_no_file(sandbox: SyncSandbox) -> None:
    shell(sandbox, "mkfifo /tmp/pipe")
    for path in ("/tmp/pipe", "/dev/null", "/dev/zero", "/dev/stdin", "/dev/fd/0", "/dev/tty"):
        with pytest.raises((NotRegular, FileMissing, Conflict, InvalidArgument)):
            sandbox.files.read(path)


def test_a_watch_tells_what_happens_in_order(sandbox: SyncSandbox) -> None:
    sandbox.files.make_directory("d")
    sandbox.files.write("d/old", "1")
    watch = sandbox.files.watch("d", with_info=True)
    assert watch.read().events == ()
    sandbox.files.write("d/old", "2")
    sandbox.files.write("d/new", "3")
    told = watch.read(wait_s=5).events
    assert [(one.kind, one.name) for one in told] == [
        ("write", "old"),
        ("create", "new"),
        ("chmod", "new"),
        ("write", "new"),
    ]
    assert told[0].info is not None
    assert told[0].info.path == "/home/user/d/old"
    shell(sandbox, "mv d/new d/other; rm d/old; chmod 600 d/other; mkdir d/sub; echo x > d/sub/unseen")
    told = watch.read(wait_s=5).events
    assert [(one.kind, one.name) for one in told] == [
        ("rename", "new"),
        ("create", "other"),
        ("remove", "old"),
        ("chmod", "other"),
        ("create", "sub"),
    ]
    watch.end()
    with pytest.raises(ColdframeError):
        watch.read()


def test_a_watch_of_a_whole_tree_sees_new_directories_and_what_was_put_there_at_once(sandbox: SyncSandbox) -> None:
    sandbox.files.make_directory("d")
    watch = sandbox.files.watch("d", recursive=True)
    shell(sandbox, "mkdir -p d/a/b/c && for n in 1 2 3; do echo $n > d/a/b/c/$n; done")
    seen: set[tuple[str, str]] = set()
    wanted = {("create", name) for name in ("a", "a/b", "a/b/c", "a/b/c/1", "a/b/c/2", "a/b/c/3")}
    for _ in range(20):
        seen |= {(one.kind, one.name) for one in watch.read(wait_s=1).events}
        if wanted <= seen:
            break
    assert wanted <= seen
    shell(sandbox, "mv d/a d/z && echo more > d/z/b/c/1")
    for _ in range(20):
        seen |= {(one.kind, one.name) for one in watch.read(wait_s=1).events}
        if ("write", "z/b/c/1") in seen:
            break
    assert {("rename", "a"), ("create", "z"), ("write", "z/b/c/1")} <= seen
    watch.end()


def test_a_flood_of_events_is_told_as_one_that_was_cut(sandbox: SyncSandbox) -> None:
    sandbox.files.make_directory("d")
    watch = sandbox.files.watch("d")
    shell(sandbox, "cd d && for i in $(seq 7000); do : > $i; done; rm -f *")
    found = watch.read(wait_s=5)
    assert found.overflowed
    assert len(found.events) <= 10_000
    assert not watch.read().overflowed, "it was told once"


def test_a_watch_follows_events_as_a_stream_until_the_directory_is_gone(sandbox: SyncSandbox) -> None:
    sandbox.files.make_directory("d")
    watch = sandbox.files.watch("d")
    job = sandbox.start("for i in 1 2 3; do touch d/$i; sleep 0.1; done; rm -r d")
    told = [(one.kind, one.name) for one in watch.events()]
    assert {("create", "1"), ("create", "2"), ("create", "3")} <= set(told)
    assert told[-1] == ("remove", "")
    job.wait()


def test_only_a_directory_is_watched(sandbox: SyncSandbox) -> None:
    sandbox.files.write("f", "x")
    with pytest.raises(NotDirectory):
        sandbox.files.watch("f")
    with pytest.raises(FileMissing):
        sandbox.files.watch("none")


def test_a_command_begins_in_any_directory_that_its_user_may_enter(sandbox: SyncSandbox) -> None:
    done = sandbox.call("run_anywhere", {"command": "pwd", "cwd": "/tmp"})
    assert done.tool == "run_command"
    assert done.value["stdout"] == "/tmp\n"
    gone = sandbox.call("run_anywhere", {"command": "pwd", "cwd": "/nowhere"})
    assert (gone.value["ended"], gone.value["exit_code"]) == ("not_started", 127)
