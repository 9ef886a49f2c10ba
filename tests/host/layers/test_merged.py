"""A stack of layers is read without mounting it, and looks just as the kernel shows it; nothing leads out of it."""

import os
import random
import stat
from pathlib import Path

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    FileMissing,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotRegular,
    OutsideWorkspace,
    TooLarge,
)
from coldframe.host.layers.copies import copy_branch
from coldframe.host.layers.merged import MergedView
from coldframe.host.layers.store import LayerStore
from coldframe.host.removal import remove_tree
from tests.host.layers.trees import at_work, disturb, look, look_through, require_overlay


@pytest.mark.parametrize("seed", range(6))
def test_every_layer_on_layer_looks_as_the_kernel_shows_it(tmp_path: Path, seed: int) -> None:
    require_overlay(tmp_path)
    chance = random.Random(seed)
    store = LayerStore(str(tmp_path / "store"))
    stack = store.create()
    for _ in range(5):
        with at_work(store, stack.id, tmp_path / "merged") as place:
            disturb(place, chance)
            expected = look(place)
        with store.view(stack.id) as view:
            assert look_through(view) == expected, f"seed {seed}"
        snapshot = store.take_snapshot(stack.id)
        with store.view(snapshot.id) as view:
            assert look_through(view) == expected, f"seed {seed}"
    store.close()


@pytest.fixture
def view(tmp_path: Path) -> "MergedView":
    """Two layers: what is above hides, covers and adds to what is below."""
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    for folder in (lower / "kept", lower / "hidden", lower / "gone", upper / "hidden", upper / "kept"):
        folder.mkdir(parents=True)
    (lower / "kept" / "below").write_text("below\nneedle here\n")
    (lower / "hidden" / "below").write_text("never seen needle")
    (lower / "gone" / "below").write_text("never seen needle")
    (upper / "kept" / "above").write_text("above")
    os.mknod(upper / "gone", 0o20000, 0)
    os.setxattr(upper / "hidden", "user.overlay.opaque", b"y")
    (upper / "out").symlink_to("/etc")
    (upper / "up").symlink_to("../../../etc/passwd")
    (upper / "home").symlink_to("/home/user/kept")
    (upper / "loop").symlink_to("loop")
    (upper / "across").symlink_to("kept/below")
    os.mkfifo(upper / "pipe")
    return MergedView([str(upper), str(lower)])


def test_what_is_above_covers_hides_and_takes_away(view: MergedView) -> None:
    with view:
        assert [place.path for place in view.list("kept")] == [b"kept/above", b"kept/below"]
        assert view.list("hidden") == []
        with pytest.raises(FileMissing):
            view.find("gone/below")
        assert [(match.path, match.line) for match in view.search(b"needle")] == [(b"kept/below", 2)]


def test_links_are_followed_across_layers_and_never_out(view: MergedView) -> None:
    with view:
        assert view.read("across") == b"below\nneedle here\n"
        assert view.read("home/above", offset=2, length=2) == b"ov"
        assert view.read("/home/user/home/../kept/above") == b"above"
        assert view.find("out", follow=False).path == b"out"
        for path in ("out/passwd", "out", "up", "..", "kept/../../x", "/etc/passwd", "/home/users"):
            with pytest.raises(OutsideWorkspace):
                view.find(path)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("loop", InvalidArgument),
        ("nul\0", InvalidArgument),
        ("\ud800", InvalidArgument),
        ("kept", IsDirectory),
        ("pipe", NotRegular),
        ("kept/above/more", NotDirectory),
        ("nothing", FileMissing),
        ("x" * 300, FileMissing),
    ],
)
def test_what_cannot_be_read_is_a_named_error(view: MergedView, path: str, error: type[ColdframeError]) -> None:
    with view, pytest.raises(error):
        view.read(path)


def test_a_file_of_the_upper_layer_ends_a_directory_of_the_lower(tmp_path: Path) -> None:
    for name in ("one/a/b", "two", "three/a/c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "two" / "a").write_text("a file")
    with MergedView([str(tmp_path / name) for name in ("one", "two", "three")]) as view:
        assert [place.path for place in view.walk()] == [b"a", b"a/b"]


def test_a_tree_deeper_than_any_recursion_is_walked_and_copied(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "copy").mkdir()
    bottom = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(1050):
        os.mkdir("d", dir_fd=bottom)
        deeper = os.open("d", os.O_RDONLY, dir_fd=bottom)
        os.close(bottom)
        bottom = deeper
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=bottom))
    os.close(bottom)
    try:
        with MergedView([str(tmp_path / "deep")]) as view:
            places = list(view.walk())
            copy_branch(view.branches[0], str(tmp_path / "copy"))
        with MergedView([str(tmp_path / "copy")]) as view:
            assert [place.path for place in view.walk()] == [place.path for place in places]
        assert len(places) == 1051
        assert places[-1].path.endswith(b"/d/end")
    finally:  # too deep for whoever clears up behind pytest
        remove_tree(str(tmp_path / "deep"))
        remove_tree(str(tmp_path / "copy"))


def test_deeper_than_any_bound_is_refused_by_name(view: MergedView) -> None:
    with view, pytest.raises(TooLarge):
        view.branches[0].directory(b"d/" * 10_000 + b"d")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_what_an_agent_closed_to_itself_is_read_and_stays_closed(tmp_path: Path) -> None:
    folder = tmp_path / "layer" / "closed"
    folder.mkdir(parents=True)
    (folder / "file").write_text("secret")
    (folder / "file").chmod(0)
    folder.chmod(0)
    try:
        with MergedView([str(tmp_path / "layer")]) as view:
            assert [oct(place.status.st_mode & 0o7777) for place in view.walk()] == ["0o0", "0o0"]
            assert view.read("closed/file") == b"secret"
        assert folder.stat().st_mode & 0o7777 == 0
    finally:
        folder.chmod(0o700)
    assert (folder / "file").stat().st_mode & 0o7777 == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_directories_closed_to_their_owner_cost_no_descriptors_and_are_not_left_open(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    chain = layer.joinpath(*"a" * 40)
    chain.mkdir(parents=True)
    (chain / "end").write_text("deep")
    beside = [layer / f"beside-{number}" for number in range(100)]
    for folder in beside:
        folder.mkdir()
        (folder / "file").write_text("wide")
    closed = [*beside, *(chain, *chain.parents)[:41]]
    for folder in closed:
        folder.chmod(0)
    try:
        before = len(os.listdir("/proc/self/fd"))
        with MergedView([str(layer)]) as view:
            names = [place.path for place in view.walk()]
            assert len(os.listdir("/proc/self/fd")) < before + 40
            assert {stat.S_IMODE(place.status.st_mode) for place in (view.top(), *view.list(""))} == {0}
            assert (len(names), len(set(names))) == (241, 241)
            assert view.read("/".join("a" * 40) + "/end") == b"deep"
            assert view.read("beside-7/file") == b"wide"
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        for folder in (*reversed(closed[100:]), *beside):
            assert stat.S_IMODE(folder.stat().st_mode) == 0
            folder.chmod(0o700)
