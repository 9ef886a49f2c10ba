"""Promise: declared outputs are found as patterns say, with the digest of their bytes, and nothing outside is."""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from coldframe.contract.files import FindOutputs
from coldframe.contract.outputs import OutputsAnswer, Patterns
from coldframe.guest import outputs
from coldframe.guest.trees import entry_names
from tests.guest.workspace import Workspace, unprivileged


def find(workspace: Workspace, *patterns: str, most: int = 1000) -> OutputsAnswer:
    answer = workspace.ask(FindOutputs(patterns=patterns, most=most))
    assert isinstance(answer, OutputsAnswer)
    return answer


def paths(answer: OutputsAnswer) -> list[str]:
    return [one.path for one in answer.found]


@pytest.fixture
def tree(workspace: Workspace) -> Workspace:
    for name in ("chart.png", "report/a.html", "report/b.html", "report/deep/c.html", "report/.d.html", ".git/e.html"):
        (workspace.path / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace.path / name).write_bytes(name.encode())
    return workspace


def test_patterns_mean_what_a_shell_takes_them_for(tree: Workspace) -> None:
    assert paths(find(tree, "chart.png")) == ["chart.png"]
    assert paths(find(tree, "report/*.html")) == ["report/a.html", "report/b.html"]
    assert paths(find(tree, "report/.*")) == ["report/.d.html"]
    assert paths(find(tree, "*/?.html", "r[ae]port/deep/*")) == ["report/a.html", "report/b.html", "report/deep/c.html"]
    assert paths(find(tree, "**/*.html")) == ["report/a.html", "report/b.html", "report/deep/c.html"]
    assert paths(find(tree, "**")) == ["chart.png", "report/a.html", "report/b.html", "report/deep/c.html"]
    assert find(tree, "none.txt", "report/*.csv", "chart.png").missing == ("none.txt", "report/*.csv")


def test_each_is_told_with_size_digest_and_type(workspace: Workspace) -> None:
    contents = {
        "a.png": (b"\x89PNG\r\n\x1a\n rest", "image/png"),
        "lies.png": (b"no picture", "text/plain"),
        "b.html": (b"<p>", "text/html"),
        "c.csv": ("é,1\n".encode(), "text/csv"),
        "d.bin": (b"\x00\x01", "application/octet-stream"),
        "e.html": (b"\xff\xfe<p>", "application/octet-stream"),
        "f.pdf": (b"%PDF-1.7", "application/pdf"),
        "g": (b"", "text/plain"),
        "h.md": ("é".encode() * 3000, "text/markdown"),
    }
    for name, (content, _) in contents.items():
        (workspace.path / name).write_bytes(content)
    for one in find(workspace, "*").found:
        content, kind = contents[one.path]
        assert (one.bytes, one.sha256, one.type) == (len(content), hashlib.sha256(content).hexdigest(), kind), one.path


@pytest.mark.parametrize(
    ("target", "how"),
    [("/etc/passwd", "file"), ("../outside", "file"), ("/etc", "directory"), ("../", "directory"), ("loop", "loop")],
)
def test_a_link_that_leads_out_is_told_and_not_followed(tmp_path: Path, target: str, how: str) -> None:
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work")
    try:
        if how == "loop":
            os.symlink("loop", workspace.path / "loop")
        else:
            os.symlink(target, workspace.path / "out")
        pattern = {"file": "out", "directory": "out/*", "loop": "loop"}[how]
        answer = find(workspace, pattern)
        assert (answer.found, answer.missing) == ((), (pattern,))
        assert [(one.path, one.reason) for one in answer.refused] == [(pattern.partition("/")[0], "link_outside")]
    finally:
        workspace.close()


def test_a_link_to_a_file_inside_is_that_file(tree: Workspace) -> None:
    os.symlink("report/a.html", tree.path / "newest.html")
    os.symlink("/home/user/report", tree.path / "reports")
    assert find(tree, "newest.html").found[0].sha256 == hashlib.sha256(b"report/a.html").hexdigest()
    assert paths(find(tree, "reports/b.html")) == ["reports/b.html"]
    os.symlink(".", tree.path / "again")
    assert paths(find(tree, "**/a.html")) == ["report/a.html"]


def test_what_is_no_file_or_cannot_be_read_is_told(tree: Workspace) -> None:
    os.mkfifo(tree.path / "pipe")
    os.symlink("nothing", tree.path / "dead")
    (tree.path / "closed").write_text("x")
    (tree.path / "closed").chmod(0)
    answer = unprivileged(tree.path, lambda: find(tree, "pipe", "dead", "report", "closed"))
    reasons = {one.path: one.reason for one in answer.refused}
    assert reasons == {"pipe": "no_file", "dead": "no_file", "report": "no_file", "closed": "unreadable"}
    assert answer.missing == ("pipe", "dead", "report", "closed")


def test_what_lies_where_nobody_may_look_or_too_deep_leaves_the_answer_incomplete(tree: Workspace) -> None:
    (tree.path / "closed").mkdir(mode=0)
    assert not unprivileged(tree.path, lambda: find(tree, "**/x")).complete
    (tree.path / "closed").rmdir()
    assert find(tree, "**/x").complete
    deep = os.open(tree.path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=deep)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    assert not find(tree, "**/x").complete


def test_what_is_too_much_is_said_to_be_not_all(tree: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = find(tree, "**", most=2)
    assert (len(answer.found), answer.complete) == (2, False)
    monkeypatch.setattr(outputs, "MOST_VISITED", 2)
    assert not find(tree, "**").complete


def test_a_pattern_that_leads_to_each_place_in_many_ways_comes_to_an_end(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        (workspace.path / f"{number}").mkdir()
    looks = 0

    def counting(held: int) -> list[bytes]:
        nonlocal looks
        looks += 1
        return entry_names(held)

    monkeypatch.setattr(outputs, "MOST_VISITED", 300)
    monkeypatch.setattr(outputs, "entry_names", counting)
    assert not find(workspace, "**/" * 100 + "x").complete
    assert looks <= 300


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../b", "a//b", "", ".", "a/**b", "a\nb", "x" * 600])
def test_a_pattern_that_leaves_the_workspace_is_none(pattern: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Patterns).validate_python((pattern,))


def part(name: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int = 3, height: int = 2, *, depth: int = 8, pixels: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    data = pixels or zlib.compress((b"\0" + b"abc" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"tEXt", b"a\0b") + part(b"IDAT", data) + part(b"IEND")


@pytest.mark.req("T3.19")
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_a_picture_is_told_with_its_size_in_whatever_pieces_it_is_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(outputs, "CHUNK_BYTES", piece_bytes)
    (workspace.path / "chart.png").write_bytes(png(640, 480, pixels=b"never unpacked"))
    (one,) = find(workspace, "*.png").found
    assert (one.type, one.width, one.height) == ("image/png", 640, 480)
    assert one.sha256 == hashlib.sha256(png(640, 480, pixels=b"never unpacked")).hexdigest()


@pytest.mark.req("T3.19")
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[:30],
        lambda whole: whole + b"behind the end",
        lambda whole: whole.replace(b"IDAT", b"IDAX"),
        lambda whole: whole[:50] + bytes([whole[50] ^ 1]) + whole[51:],
        lambda whole: whole.replace(part(b"tEXt", b"a\0b"), whole[8:33]),
        lambda whole: whole[:8] + part(b"tEXt", b"first") + whole[8:],
        lambda whole: whole[:8] + b"\xff\xff\xff\xffIHDR" + whole[16:],
        lambda whole: whole[:8] + part(b"IHDR", b"short") + whole[33:],
        lambda whole: whole[:33] + part(b"IEND"),
        lambda whole: png(0, 2, pixels=b"x"),
        lambda whole: png(2**32 - 1, 2, pixels=b"x"),
        lambda whole: png(depth=3),
        lambda whole: b"GIF89a" + whole,
        lambda whole: b"",
    ],
)
def test_a_picture_that_is_not_whole_has_no_size(workspace: Workspace, damage: Callable[[bytes], bytes]) -> None:
    damaged = damage(png())
    assert damaged != png()
    (workspace.path / "chart.png").write_bytes(damaged)
    (one,) = find(workspace, "*.png").found
    assert (one.width, one.height, one.bytes) == (None, None, len(damaged))
