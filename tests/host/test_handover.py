"""What one keeper of a sandbox has left is the next one's, also where that is another user, and nothing else becomes his."""

import os
from pathlib import Path

import pytest

from coldframe.guest.spawn import ReadyPipes
from coldframe.host.claims import NAME, Claims, read_claim
from coldframe.host.construction import hand_over

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


def test_claims_of_a_keeper_of_before_hold_for_nobody(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"c1 cmd_00000000000000000000\n".ljust(2 * 128, b"\0"))
    (tmp_path / NAME).chmod(0o400)
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    Claims(held).write("c0", "cmd_11111111111111111111")
    os.close(held)
    assert read_claim(str(tmp_path), "c0") == "cmd_11111111111111111111"
    assert read_claim(str(tmp_path), "c1") is None


@needs_root
def test_files_go_to_the_next_user_and_nothing_that_leads_elsewhere(tmp_path: Path) -> None:
    for name in ("record", "two", "other"):
        (tmp_path / name).write_text(name)
    outside = tmp_path.with_name("outside")
    outside.write_text("canary")
    (tmp_path / "link").symlink_to(outside)
    os.link(tmp_path / "two", tmp_path.with_name("second"))
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "record", tmp_path / "two", outside):
        os.chown(path, 4001, 4001)
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    hand_over(directory, 4001, (4002, 4003))
    os.close(directory)
    owners = {
        path.name: path.stat().st_uid for path in (tmp_path / "record", tmp_path / "two", tmp_path / "other", outside)
    }
    assert owners == {"record": 4002, "two": 4001, "other": 0, "outside": 4001}
    tmp_path.with_name("second").unlink()
    outside.unlink()


def test_a_child_that_is_no_command_keeps_no_pipe_of_the_next_one(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pipes = ReadyPipes()
    pipes.prepare()
    taken = pipes.take()
    pipes.prepare()
    pipes.close()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    os.close(taken.read)
    os.close(taken.write)
