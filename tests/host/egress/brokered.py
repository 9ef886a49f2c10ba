"""A broker in a process of its own, as the host daemon has it, between a captured box and a small world."""

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coldframe.contract.policy import Label, Role
from coldframe.host import confine
from coldframe.host.egress.life import Reach
from coldframe.host.egress.lineage import Line, Lineage
from coldframe.host.egress.link import BrokerLink
from coldframe.host.egress.proxy import Proxies
from coldframe.policy.network import Origin
from tests.host import boxes
from tests.host.egress.captured import Running
from tests.host.egress.world import ADDRESSES, RESOLVER, SSH, T, World, in_world

ORIGIN = Origin("sb-1", "agent-7", Role.AGENT, None, Label.PUBLIC)
PLAIN = f"{{id: plain, to: {SSH}, scheme: tcp, mode: raw, ports: [22, 9000, 9001]}}"
INSIDE = {**RESOLVER, "/etc/hosts": "127.0.0.1 localhost\n"}


def section(*rules: str) -> str:
    lines = ["profiles:", "  own:", "    base: none", "    rules:", *(f"      - {rule}" for rule in rules)]
    return "\n".join([*lines, "use: {'*': own}", ""])


@dataclass
class Brokered:
    world: World
    link: BrokerLink
    lineage: Lineage
    restart: asyncio.Event
    """While it is cleared, a broker that has ended is not started again."""
    gone: asyncio.Event
    """Set when a broker has ended."""

    def start(self, function: Callable[[], T]) -> Running[T]:
        return self.world.box.start(function, files=INSIDE)

    async def inside(self, function: Callable[[], T]) -> T:
        return await self.world.inside(function, files=INSIDE)

    def lines(self) -> list[Line]:
        """Without the names that were looked up on the way."""
        return [line for line in self.all_lines() if line.event != "looked-up"]

    def all_lines(self) -> list[Line]:
        lines: list[Line] = []
        more = True
        while more:
            page = self.lineage.read(ORIGIN.sandbox_id, len(lines), limit=1_000_000)
            lines += page.lines
            more = page.more
        return lines

    async def lines_until(self, event: str, count: int) -> list[Line]:
        """All lines, once so many are of this kind. What a box sees may be before what is on record."""
        await until(lambda: sum(line.event == event for line in self.lines()) >= count)
        return self.lines()


async def until(condition: Callable[[], object]) -> None:
    """Under the deadline of whoever awaits it."""
    while not condition():  # noqa: ASYNC110 - nobody tells when it comes true
        await asyncio.sleep(0.005)


def with_link(
    steps: Callable[[Brokered], Awaitable[None]],
    *,
    rules: tuple[str, ...] = (PLAIN,),
    who: str = "root",
    reach: Callable[[list[Brokered]], Reach] | None = None,
    proxies: Proxies | None = None,
) -> None:
    """*reach* is made for the world that it is to act on, which is in the list by the time that it is called."""

    async def whole(world: World) -> None:
        restart, gone = asyncio.Event(), asyncio.Event()
        restart.set()

        async def pause(_: float) -> None:
            gone.set()
            await restart.wait()

        with tempfile.TemporaryDirectory(prefix="cf-lineage-", dir="/tmp") as folder, names_of_the_world():
            lineage = Lineage(folder)
            made: list[Brokered] = []
            link = BrokerLink(lineage, user=boxes.NOBODY, proxies=proxies, reach=reach and reach(made), pause=pause)
            made.append(Brokered(world, link, lineage, restart, gone))
            link.start()
            try:
                await until(lambda: link.pid)
                await link.use_rules(section(*rules))
                await link.open(ORIGIN, world.box.arrivals)
                await steps(made[0])
            finally:
                await link.close()
                lineage.close_all()
        assert link.pid is None

    in_world(who, whole)


@contextmanager
def names_of_the_world() -> Iterator[None]:
    """The names of the world for the resolver of the host: with a dot at their ends, as they are asked for."""
    with tempfile.NamedTemporaryFile("w", prefix="cf-hosts-", dir="/tmp") as file:
        file.write("127.0.0.1 localhost\n")
        file.writelines(f"{text} {name}.\n" for name, texts in ADDRESSES.items() for text in texts)
        file.flush()
        os.chmod(file.name, 0o644)
        confine.unshare("mnt")
        confine.mount(None, "/", None, confine.MS_REC | confine.MS_PRIVATE)
        confine.bind(file.name, "/etc/hosts")
        yield


# -- programs of the box ---------------------------------------------------------------------------


def send_all(data: bytes, port: int = 9000, *, name: str = SSH) -> bytes:
    """What came back until the end."""
    with socket.create_connection((name, port), timeout=30) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return rest_of(client)


def rest_of(client: socket.socket) -> bytes:
    heard = b""
    while part := client.recv(65536):
        heard += part
    return heard


def code_of(step: Callable[[], object]) -> str | None:
    try:
        step()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return None


def refused() -> str | None:
    """How an attempt is refused; None if it is not. Half a close may find the connection gone, and tells it differently."""

    def knock() -> None:
        # At one of its addresses alone: of a box that is shut meanwhile, nobody answers at the other one.
        family, kind, _, _, address = socket.getaddrinfo(SSH, 9000, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as client:
            client.settimeout(30)
            client.connect(address)
            client.sendall(b"x")
            client.recv(1)

    return code_of(knock)
