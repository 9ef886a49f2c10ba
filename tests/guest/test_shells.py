"""A box may put whatever it likes where a shell session is written: the keeper goes on, and looks nowhere else."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.guest import shells
from coldframe.guest.shells import BODY, MOST_BYTES, WHOLE, Shells

KEPT = BODY + b"x=1\n" + WHOLE


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(shells, "PLACE", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def run(held: Shells, command_id: str, *, act: Callable[[Path], object]) -> tuple[bytes, bool]:
    """What a command of the session reads, and whether what it left, by `act` in its directory, is kept."""
    entered = held.enter({"shell_session": "build", "shell": "true"}, command_id)
    read = (Path(entered.directory) / "in").read_bytes()
    act(Path(entered.directory))
    return read, bool(held.leave(entered)["kept"])


def a_directory(folder: Path) -> None:
    (folder / "out").unlink()
    (folder / "out").mkdir()


def a_fifo(folder: Path) -> None:
    (folder / "out").unlink()
    os.mkfifo(folder / "out")


def a_link(folder: Path) -> None:
    (folder / "out").unlink()
    (folder / "secret").write_bytes(KEPT)
    (folder / "out").symlink_to(folder / "secret")


def too_large(folder: Path) -> None:
    with (folder / "out").open("r+b") as file:
        file.truncate(MOST_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(KEPT)


@pytest.mark.parametrize("hostile", [a_directory, a_fifo, a_link, too_large, shutil.rmtree])
def test_what_is_no_session_is_not_kept_and_the_next_command_finds_what_was_there(
    hostile: Callable[[Path], object],
) -> None:
    held = Shells()
    assert run(held, "cmd_1", act=lambda folder: (folder / "out").write_bytes(KEPT))[1]
    assert not run(held, "cmd_2", act=hostile)[1]
    read, kept = run(held, "cmd_3", act=lambda folder: (folder / "out").write_bytes(BODY + b"\xff\0x=1\n" + WHOLE))
    assert b"x=1\n" in read
    assert kept
    assert b"\xff\0x=1\n" in run(held, "cmd_4", act=lambda _: None)[0]


def test_a_directory_that_is_another_one_now_is_left_alone(place: Path) -> None:
    held = Shells()
    other = place / "other"
    other.mkdir()
    for name in ("in", "out"):
        (other / name).write_bytes(KEPT)

    def replace(folder: Path) -> None:
        folder.rename(place / "away")
        folder.symlink_to(other)

    assert not run(held, "cmd_1", act=replace)[1]
    assert sorted(os.listdir(other)) == ["in", "out"]


def test_nothing_is_written_where_a_link_took_the_place_of_the_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place / "other"
    other.mkdir()
    monkeypatch.setattr(os, "mkdir", lambda path, _: os.symlink(other, path))
    held = Shells()
    with pytest.raises(OSError):
        held.enter({"shell_session": "build", "shell": "true"}, "cmd_1")
    assert os.listdir(other) == []
    assert held.listing() == []
