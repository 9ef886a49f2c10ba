"""Files anywhere below a root: whatever stands there, each question is answered as it is or refused by its code."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract import paths as contract
from coldframe.contract.files import Request
from coldframe.guest import box_paths
from coldframe.guest.paths import PROC, BoxRoot, kind_of_system, open_beneath
from coldframe.guest.verbs import VERBS, Failure
from coldframe.host.box import answer_model, parse_answer
from tests.guest.workspace import NOBODY, failure_of, noted_or_skip, unprivileged


class Tree:
    """A box whose root is a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = BoxRoot(os.open(path, os.O_PATH | os.O_DIRECTORY))

    def ask(self, request: Request[Any]) -> Any:
        sent = request.model_dump(mode="python", exclude={"verb", "user", "content"})
        answer, body = VERBS[request.verb].function(self.root, sent, getattr(request, "content", b""))
        return parse_answer(answer_model(type(request)), answer, body)

    def code(self, request: Request[Any]) -> str:
        return failure_of(lambda: self.ask(request)).code


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    here = os.getcwd()
    made = Tree(tmp_path)
    yield made
    os.close(made.root)
    os.chdir(here)  # a keeper's own is the root of its box


def test_absolute_links_begin_at_the_root_of_the_box(tree: Tree) -> None:
    (tree.path / "etc").mkdir()
    (tree.path / "etc" / "name").write_text("inside")
    (tree.path / "link").symlink_to("/etc/name")
    (tree.path / "up").symlink_to("../../../../../../etc/hostname")
    assert tree.ask(contract.ReadPath(path="/link")).content == b"inside"
    assert tree.ask(contract.StatPath(path="/link")).leads_to == "/etc/name"
    assert tree.code(contract.ReadPath(path="/up")) == "OUTSIDE_WORKSPACE"
    failure = failure_of(lambda: tree.ask(contract.ReadPath(path="/etc/none")))
    assert (failure.code, failure.facts["path"], "`/etc/none`" in failure.message) == (
        "FILE_NOT_FOUND",
        "/etc/none",
        True,
    )


def test_nothing_of_proc_is_opened_below_a_root_of_a_box() -> None:
    root = BoxRoot(os.open("/", os.O_PATH | os.O_DIRECTORY))
    try:
        for name in (b"proc", b"proc/self/environ", b"proc/self", b"proc/self/fd", b"dev/fd", b"dev/../proc/version"):
            with pytest.raises((Failure, OSError)) as refused:
                os.close(open_beneath(root, name, os.O_RDONLY))
            assert not isinstance(refused.value, Failure) or refused.value.code == "NOT_A_REGULAR_FILE"
        workspace = int(os.open("/proc", os.O_PATH | os.O_DIRECTORY))
        assert kind_of_system(workspace) == PROC
        os.close(workspace)
    finally:
        os.close(root)


@pytest.mark.parametrize(
    "table",
    [
        b"root:x:0:0\nuser:x:1000:1000\nuser2:x:1000:1000\n",
        b"no numbers\n::::\n\xff\xfe:x:1000:\nuser:x:1000:1000\n",
        b"x:" * 400_000,
        None,
    ],
    ids=["plain", "broken", "huge", "no file"],
)
def test_names_of_users_are_read_from_whatever_the_box_has(tree: Tree, table: bytes | None) -> None:
    (tree.path / "etc").mkdir()
    if table is None:
        os.mkfifo(tree.path / "etc" / "passwd")  # to be read from by nobody
    else:
        (tree.path / "etc" / "passwd").write_bytes(table)
    users = box_paths.Users(tree.root)
    found = users.owner(1000)
    assert found in ("user", "1000", "\udcff\udcfe")
    assert users.owner(4_000_000_000) == "4000000000"


def test_what_is_noted_of_a_file_goes_along_and_away(tree: Tree) -> None:
    noted = {"author": "mira", "ö": "ü", "empty": ""}
    try:
        tree.ask(contract.WritePath(path="/a", content=b"1", metadata=noted))
    except Failure as failure:
        pytest.skip(f"this file system keeps no notes: {failure.message}")
    assert tree.ask(contract.StatPath(path="/a")).metadata == noted
    os.setxattr(tree.path / "a", "user.other", b"not ours")
    assert tree.ask(contract.MovePath(path="/a", target="/d/b")).info.metadata == noted
    assert tree.ask(contract.ListPath(path="/d")).entries[0].metadata == noted
    tree.ask(contract.WritePath(path="/d/b", content=b"2"))
    assert tree.ask(contract.StatPath(path="/d/b")).metadata == {}
    for wrong, code in (
        ({"": "x"}, "INVALID_ARGUMENT"),
        ({"a" * 300: "x"}, "INVALID_ARGUMENT"),
        ({"a\0b": "x"}, "INVALID_ARGUMENT"),
        ({"a": "x" * 20_000}, "TOO_LARGE"),
    ):
        assert tree.code(contract.WritePath(path="/c", content=b"", metadata=wrong)) == code
        assert not (tree.path / "c").exists()


def test_no_more_is_told_of_notes_than_an_answer_holds(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b", "c", "d", "\udcff", "\ue000"]
    for name in names:
        (tree.path / name).touch()
        noted_or_skip(tree.path / name, {"n": b"x" * 1000})
    (tree.path / "large").touch()
    noted_or_skip(tree.path / "large", {str(number): b"x" * 1500 for number in range(2)})
    monkeypatch.setattr(box_paths, "MOST_METADATA_BYTES", 2000)
    assert [len(one) for one in tree.ask(contract.StatPath(path="/large")).metadata.values()] == [1500]
    monkeypatch.setattr(box_paths, "MOST_NOTES_BYTES", 1500)
    cut = tree.ask(contract.ListPath(path="/", recursive=True))
    assert (len(cut.entries), cut.truncated_because, cut.next_after) == (2, "max_entries", None)
    found, after = [], None
    while after is not None or not found:
        page = tree.ask(contract.ListPath(path="/", after=after))
        assert len(page.entries) <= 2
        found += [one.name for one in page.entries]
        after = page.next_after
    assert sorted(found) == sorted([*names, "large"]), "pages leave something out, or tell it twice"


def test_a_move_that_replaces_nothing_is_refused_by_the_kernel_itself(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_paths, "_is_there", lambda *_: False)  # what is there comes between the look and the move
    (tree.path / "f").write_text("x")
    (tree.path / "g").write_text("y")
    assert tree.code(contract.MovePath(path="/f", target="/g", replace=False)) == "CONFLICT"
    assert ((tree.path / "f").read_text(), (tree.path / "g").read_text()) == ("x", "y")


def test_a_move_leaves_everything_as_it_was_where_it_cannot_be(tree: Tree) -> None:
    (tree.path / "d" / "below").mkdir(parents=True)
    (tree.path / "f").write_text("x")
    assert tree.code(contract.MovePath(path="/d", target="/d/below/d")) == "INVALID_ARGUMENT"
    assert tree.code(contract.MovePath(path="/none", target="/new/place/x")) == "FILE_NOT_FOUND"
    assert tree.code(contract.MovePath(path="/f", target="/f/x")) == "NOT_A_DIRECTORY"
    assert tree.code(contract.MovePath(path="/", target="/x")) == "INVALID_ARGUMENT"
    assert tree.code(contract.MovePath(path="/f", target="/d", replace=False)) == "CONFLICT"
    assert sorted(one.name for one in tree.path.rglob("*")) == ["below", "d", "f"]


def test_every_kind_of_file_is_told_and_none_of_them_blocks(tree: Tree) -> None:
    os.mkfifo(tree.path / "pipe")
    (tree.path / "odd\udcff\n").write_text("x")
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(tree.path)
        made.bind("socket")
        os.chdir(here)
        kinds = {one.name: one.kind for one in tree.ask(contract.ListPath(path="/")).entries}
    assert kinds == {"pipe": "fifo", "odd\udcff\n": "file", "socket": "socket"}
    assert tree.code(contract.ReadPath(path="/pipe")) == "NOT_A_REGULAR_FILE"
    assert tree.code(contract.WritePath(path="/pipe", content=b"x")) == "NOT_A_REGULAR_FILE"
    assert tree.ask(contract.ReadPath(path="/odd\udcff\n")).content == b"x"


def test_whoever_asks_has_no_more_rights_than_the_process_that_answers(tmp_path: Path) -> None:
    own, closed = tmp_path / "own", tmp_path / "closed"
    own.mkdir()
    os.chmod(tmp_path, 0o755)
    closed.mkdir(mode=0o700)
    (closed / "secret").write_text("x")
    (tmp_path / "theirs").write_text("x")
    os.chmod(tmp_path / "theirs", 0o600)
    if os.getuid() == 0:
        for one in (closed, tmp_path / "theirs"):
            os.chown(one, NOBODY + 1, NOBODY + 1)
    else:
        os.chmod(closed, 0)
        os.chmod(tmp_path / "theirs", 0)

    tree = Tree(tmp_path)

    def codes() -> list[str]:
        return [
            tree.code(contract.ReadPath(path="/closed/secret")),
            tree.code(contract.StatPath(path="/closed/secret")),
            tree.code(contract.ListPath(path="/closed")),
            tree.code(contract.WritePath(path="/closed/new", content=b"x")),
            tree.code(contract.ReadPath(path="/theirs")),
        ]

    try:
        assert unprivileged(own, codes) == ["PERMISSION_DENIED"] * 5
    finally:
        os.close(tree.root)
        os.chmod(closed, 0o700)
