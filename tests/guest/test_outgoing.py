"""What waits to be sent comes out in order, whoever reads how slowly, and leaves no descriptor behind."""

import os
import resource
import socket
from pathlib import Path

import pytest

from coldframe.guest.frames import LONG_BYTES
from coldframe.guest.outgoing import Outgoing
from tests.host.forked import in_child


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def stored(tmp_path: Path) -> int:
    (tmp_path / "stored").write_bytes(bytes(range(256)) * 8192)
    return os.open(tmp_path / "stored", os.O_RDONLY)


def test_bytes_and_pieces_of_files_come_in_the_order_in_which_they_were_added(stored: int) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    before, out = files_open(), Outgoing()
    long = b"l" * (3 * LONG_BYTES)
    for part in (b"a", b"b", long, b"c"):
        out.add(part)
    out.add_piece(b"", stored, 5, 1_500_000)
    out.add(b"end")
    os.close(stored)  # whoever follows a command is told its end before all of it is sent
    wanted = b"ab" + long + b"c" + (bytes(range(256)) * 8192)[5:1_500_005] + b"end"
    assert len(out) == len(wanted)
    came = b""
    while len(came) < len(wanted):
        out.send(here)
        came += there.recv(50_001)
        assert len(out) >= len(wanted) - len(came) - 10_000_000
    assert came == wanted and not len(out) and files_open() == before - 1
    here.close(), there.close()


def test_what_is_not_to_be_sent_any_more_holds_nothing_open(stored: int) -> None:
    before, out = files_open(), Outgoing()
    out.add_piece(b"", stored, 0, 100)
    out.clear()
    assert not len(out) and files_open() == before
    os.close(stored)


def test_a_file_that_became_shorter_ends_the_connection_and_hangs_nobody(stored: int, tmp_path: Path) -> None:
    here, there = socket.socketpair()
    out = Outgoing()
    out.add_piece(b"", stored, 0, 200_000)
    os.truncate(tmp_path / "stored", 1000)
    with pytest.raises(OSError, match="shorter"):
        out.send(here)
    out.clear()
    os.close(stored)
    here.close(), there.close()


def test_where_no_descriptor_is_left_neither_head_nor_piece_is_added(stored: int) -> None:
    def without() -> str:
        out = Outgoing()
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        return f"{out.add_piece(b'head', stored, 0, 100)} {len(out)}"

    assert in_child(without) == "False 0"
    os.close(stored)
