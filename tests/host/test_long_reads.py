"""A long range of a file is read from the file itself, which the keeper opens; neither keeper nor file is believed."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldframe.contract.errors import Conflict, FileMissing, GuestLost
from coldframe.contract.files import ReadFile, WriteFile
from coldframe.contract.ports import Box
from coldframe.guest.frames import Reader, encode
from coldframe.host.box import LINK_RANGE_BYTES, KeeperBox
from coldframe.host.link import SOCKET_NAME
from coldframe.host.machine import Machine
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine

LONG = LINK_RANGE_BYTES + 1
CONTENT = bytes(range(251)) * 20_000
ANSWER: dict[str, Any] = {
    "path": "f",
    "offset": 0,
    "total_bytes": LONG,
    "version": "v",
    "mode": 420,
    "place": 0,
    "length": LONG,
}
Serve = Callable[[list[tuple[bytes, int | None]]], KeeperBox]


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Serve]:
    """Stands where a keeper would: answers one question on each connection with what it is told, and a descriptor."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(tmp_path, os.O_PATH)
    listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
    os.close(folder)
    listener.listen()
    threads: list[threading.Thread] = []

    def serve(answers: list[tuple[bytes, int | None]]) -> KeeperBox:
        def each() -> None:
            for answer, file in answers:
                peer, _ = listener.accept()
                with peer:
                    reader = Reader()
                    while not reader.feed(peer.recv(100_000)):
                        pass
                    if file is None:
                        peer.sendall(answer)
                    else:
                        socket.send_fds(peer, [answer], [file])

        threads.append(threading.Thread(target=each))
        threads[-1].start()
        return KeeperBox("sb_1", str(tmp_path))

    yield serve
    for thread in threads:
        thread.join(10)
    listener.close()


def ask(box: KeeperBox) -> Any:
    async def steps() -> Any:
        try:
            return await box.ask(ReadFile(path="f", length=LONG))
        finally:
            box.close()

    return asyncio.run(steps())


@needs_bubblewrap
@as_root_and_ordinary
@pytest.mark.req("T4.17")
def test_long_and_short_ranges_give_the_same_bytes_and_facts(who: str) -> None:
    async def steps(machine: Machine) -> None:
        box: Box = await new_box(machine)
        written = await box.ask(WriteFile(path="deep/f", content=CONTENT))
        for offset in (0, 7, 1_000_000, len(CONTENT) - 3, len(CONTENT), 2 * len(CONTENT)):
            short = await box.ask(ReadFile(path="deep/f", offset=offset, length=LINK_RANGE_BYTES))
            long = await box.ask(ReadFile(path="deep/f", offset=offset, length=2 * len(CONTENT)))
            assert long.content == CONTENT[offset:] and long.content.startswith(short.content)
            assert long.complete == (offset == 0)
            assert (long.path, long.offset, long.total_bytes) == ("deep/f", offset, len(CONTENT))
            assert (long.version, long.mode) == (short.version, short.mode) == (written.version, short.mode)
        with pytest.raises(FileMissing):
            await box.ask(ReadFile(path="none", length=LONG))
        with pytest.raises(Conflict):
            await box.ask(ReadFile(path="deep/f", length=LONG, if_version="another"))

    on_a_machine(steps, who=who)


def test_a_file_that_becomes_shorter_is_told_and_nobody_waits(keeper: Serve, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    with open(tmp_path / "f", "rb") as file, pytest.raises(Conflict, match="shorter"):
        ask(keeper([(encode({"answer": ANSWER}), file.fileno())]))


@pytest.mark.parametrize("wrong", [{"length": "1"}, {"length": 1 << 40}, {"place": -1}, {"place": None}, {"path": 7}])
def test_what_a_keeper_says_of_a_file_is_checked(keeper: Serve, tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    with open(tmp_path / "f", "rb") as file, pytest.raises(GuestLost):
        ask(keeper([(encode({"answer": {**ANSWER, **wrong}}), file.fileno())]))


def test_what_is_no_file_is_not_read(keeper: Serve) -> None:
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(GuestLost, match="no file"):
        ask(keeper([(encode({"answer": ANSWER}), read)]))
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the other side closes its end in its thread
    os.close(read), os.close(write)


def test_a_keeper_of_before_there_was_this_is_asked_as_before(keeper: Serve) -> None:
    unknown = encode({"error": {"code": "INVALID_ARGUMENT", "message": "unknown operation `open`", "facts": {}}})
    old = {**{name: ANSWER[name] for name in ("path", "offset", "total_bytes", "version", "mode")}, "complete": False}
    found = ask(keeper([(unknown, None), (encode({"answer": old}, b"x" * LONG), None)]))
    assert found.content == b"x" * LONG
