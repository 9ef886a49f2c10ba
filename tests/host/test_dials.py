"""A connection to a port of a box comes from inside it: to whatever address its server has, and never to the machine's own."""

import array
import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from coldframe.contract.errors import (
    ColdframeError,
    GuestLost,
    InvalidArgument,
    PreviewNotListening,
    PreviewUnhealthy,
)
from coldframe.contract.ports import Box
from coldframe.guest.frames import encode
from coldframe.host.dials import connect_inside
from coldframe.host.link import SOCKET_NAME
from coldframe.host.machine import Machine
from tests.host.forked import wait_until
from tests.host.machines import as_root_and_ordinary, needs_bubblewrap, new_box, on_a_machine, run, until

SERVER = """
import os, socket, sys
family, address, port, queue = (int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
one = socket.socket(family)
if family == socket.AF_INET6:
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
one.bind((address, port))
one.listen(queue)
if os.fork():
    os._exit(0)
for file in range(3):
    os.close(file)
while queue:
    peer, _ = one.accept()
    peer.sendall(address.encode())
    peer.close()
import signal
signal.pause()
"""


async def serve(box: Box, address: str, port: int, *, queue: int = 16) -> None:
    """Listens when this returns."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    outcome = await run(box, f"exec python3 - {int(family)} {address} {port} {queue} <<'END'\n{SERVER}\nEND")
    assert outcome.result.exit_code == 0, outcome.stderr


def sockets_of(pid: int) -> int:
    found = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return found


async def said(one: socket.socket) -> str:
    with one:
        return (await asyncio.get_running_loop().sock_recv(one, 100)).decode()


def on_a_box(steps: Callable[[Machine, Box], Awaitable[None]], who: str = "root") -> None:
    async def whole(machine: Machine) -> None:
        await steps(machine, await new_box(machine))

    on_a_machine(whole, who=who)


@needs_bubblewrap
@as_root_and_ordinary
@pytest.mark.req("T4.43")
def test_a_server_is_reached_on_either_family_and_on_every_address(who: str) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        life = await machine.life("box")
        for port, address in enumerate(("127.0.0.1", "::1", "0.0.0.0", "::"), 8100):
            await serve(box, address, port)
            assert await said(await life.connect(port)) == address

    on_a_box(steps, who)


@needs_bubblewrap
@pytest.mark.req("T4.43")
def test_a_privileged_port_and_the_highest_can_be_reached() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        life = await machine.life("box")
        await serve(box, "127.0.0.1", 65535)
        assert await said(await life.connect(65535)) == "127.0.0.1"

    on_a_box(steps)


@needs_bubblewrap
@as_root_and_ordinary
def test_a_port_where_only_the_machine_listens_is_refused_and_nobody_there_is_asked(who: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]

        async def steps(machine: Machine, box: Box) -> None:
            with pytest.raises(PreviewNotListening) as caught:
                await (await machine.life("box")).connect(port)
            assert caught.value.facts["port"] == port

        on_a_box(steps, who)
        ours.settimeout(0)
        with pytest.raises(BlockingIOError):
            ours.accept()


@needs_bubblewrap
@pytest.mark.parametrize("port", [0, -1, 65536, 1 << 40, "80", None, True, 80.0])
def test_what_is_no_port_is_refused(port: object) -> None:
    async def steps(machine: Machine, box: Box) -> None:
        with pytest.raises(InvalidArgument):
            await (await machine.life("box")).connect(port)  # type: ignore[arg-type]
        assert (await run(box, "echo alive")).stdout == "alive\n"

    on_a_box(steps)


@needs_bubblewrap
def test_a_server_whose_queue_is_full_is_told_as_such_and_delays_nobody_else() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        life = await machine.life("box")
        await serve(box, "127.0.0.1", 8100, queue=0)
        held = [await life.connect(8100)]  # a queue of 0 has room for one
        try:
            full = asyncio.ensure_future(life.connect(8100))
            assert (await run(box, "echo meanwhile")).stdout == "meanwhile\n"
            assert not full.done()
            with pytest.raises(PreviewUnhealthy):
                await full
        finally:
            for one in held:
                one.close()

    on_a_box(steps)


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: nobody else sees what a keeper holds open")
def test_whoever_asks_and_goes_away_leaves_nothing_in_the_keeper() -> None:
    async def steps(machine: Machine, box: Box) -> None:
        life = await machine.life("box")
        await serve(box, "127.0.0.1", 8100, queue=0)
        mark = machine._marks.read("box")
        assert mark is not None
        with await life.connect(8100):
            before = sockets_of(mark.pid)
            for _ in range(20):
                asked = asyncio.ensure_future(life.connect(8100))
                done, _ = await asyncio.wait([asked], timeout=0.02)
                assert not done
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked
            assert (await run(box, "echo alive")).stdout == "alive\n"

            async def as_before() -> bool:
                return sockets_of(mark.pid) <= before + 1  # what serves the command above

            await until(as_before, "the attempts are gone")

    on_a_box(steps)


# A keeper is not believed.


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[Callable[[bytes, list[int]], str]]:
    """Stands where a keeper would; gives what it is told to whoever connects."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(tmp_path, os.O_PATH)
    listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
    os.close(folder)
    listener.listen()
    threads: list[threading.Thread] = []

    def give(answer: bytes, files: list[int]) -> str:
        def once() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
                peer.sendmsg([answer], ancillary)

        threads.append(threading.Thread(target=once))
        threads[-1].start()
        return str(tmp_path)

    yield give
    for thread in threads:
        thread.join(10)
    listener.close()


OK = encode({"answer": {"ok": True}})


@pytest.mark.parametrize("answer", [b"", b"\xff" * 100, OK[:5], encode({"no": 1}), OK])
def test_an_answer_without_a_descriptor_or_that_is_none_is_not_taken(
    answer: bytes, liar: Callable[[bytes, list[int]], str]
) -> None:
    with pytest.raises(GuestLost):
        asyncio.run(connect_inside(liar(answer or b"\0", []), 80))


def test_a_descriptor_of_another_kind_or_of_another_place_is_not_taken(
    liar: Callable[[bytes, list[int]], str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, open("/dev/null") as file:
        port = other.getsockname()[1]
        a, b = socket.socketpair()
        with a, b, socket.create_connection(("127.0.0.1", port)) as elsewhere, socket.socket() as loose:
            before = len(os.listdir("/proc/self/fd"))
            for wrong in ([file.fileno()], [a.fileno()], [elsewhere.fileno()], [loose.fileno()]):
                with pytest.raises(ColdframeError) as caught:
                    asyncio.run(connect_inside(liar(OK, wrong), port + 1 if port < 65535 else 1))
                assert isinstance(caught.value, GuestLost)
            wait_until(
                lambda: len(os.listdir("/proc/self/fd")) == before
            )  # the other side closes its end in its thread


def test_more_than_one_descriptor_is_refused_before_the_answer_is_whole(tmp_path: Path) -> None:
    """Else a keeper could send one with each byte, until there are none left."""

    async def steps() -> None:
        folder = os.open(tmp_path, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as listener, open("/dev/null") as file:
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
            os.close(folder)
            listener.listen()
            listener.setblocking(False)
            asked = asyncio.ensure_future(connect_inside(str(tmp_path), 80))
            peer, _ = await asyncio.get_running_loop().sock_accept(listener)
            with peer:
                for byte in OK[:2]:
                    socket.send_fds(peer, [bytes([byte])], [file.fileno()])
                with pytest.raises(GuestLost, match="malformed"):
                    await asked

    asyncio.run(steps())
