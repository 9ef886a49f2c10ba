"""Real boxes with a way out, between a machine (or its daemon) and the small world of `egress/world.py`."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from coldframe.contract.errors import HostUnreachable
from coldframe.contract.network import NetworkAccess, NetworkAnswer, NetworkPage, NetworkQuestion, NetworkRecord
from coldframe.contract.policy import Label, Role
from coldframe.contract.ports import Host
from coldframe.contract.sandbox import SandboxSpec
from coldframe.host import confine
from coldframe.host.machine import Machine
from coldframe.host.outfit import HOST_BUNDLES
from coldframe.host.remote import RemoteHost
from coldframe.host.removal import remove_tree
from tests.host.egress.brokered import names_of_the_world
from tests.host.egress.world import SITE, SSH, World, in_world
from tests.host.machines import Outcome, processes_below, run, until
from tests.installation import CHECKOUT

WEB = f"{{id: web, to: {SITE}, ports: [443, 8443]}}"
READ = f"{{id: read, to: {SITE}, ports: [8443], methods: [GET, HEAD], paths: [/v1]}}"
PLAIN = f"{{id: plain, to: {SSH}, scheme: tcp, mode: raw, ports: [22, 9000, 9001]}}"
AGENT = NetworkAccess(asked=None, role=Role.AGENT, taint=Label.PUBLIC)


def rules(*rules: str, use: str = "{'*': own}") -> str:
    lines = [
        "version: 1",
        "network:",
        "  profiles:",
        "    own:",
        "      rules:",
        *(f"        - {rule}" for rule in rules),
    ]
    return "\n".join([*lines, f"  use: {use}", ""])


def _without_look_ups(page: NetworkPage) -> NetworkPage:
    return page.model_copy(update={"records": tuple(one for one in page.records if one.event != "looked-up")})


@dataclass
class Networked:
    """One host in the world."""

    host: Host
    world: World
    folder: str
    daemons: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    async def box(self, name: str = "box", access: NetworkAccess | None = AGENT, *, agent: str = "agent") -> None:
        await self.host.create(name, SandboxSpec(agent_id=agent), session_id=f"session-{name}", network=access)

    async def run(self, shell: str, name: str = "box", *, patience_s: float = 40.0) -> Outcome:
        return await run(await self.host.box(name), shell, timeout_s=patience_s - 5, patience_s=patience_s)

    async def page(self, name: str = "box") -> NetworkPage:
        """Without the names that were looked up on the way."""
        return _without_look_ups(await self.host.network_records(name, limit=100_000))

    async def contacts_until(self, event: str, count: int, name: str = "box") -> NetworkPage:
        """All records but names that were looked up, once so many are of this kind: what a program sees may be before what
        is on record. There is no gap in them."""
        records: list[NetworkRecord] = []

        async def is_there() -> bool:
            page = await self.host.network_records(name, after_seq=len(records), limit=100_000)
            records.extend(page.records)
            return sum(one.event == event for one in records) >= count

        await until(is_there, f"{count} records `{event}`", timeout_s=30)
        assert [one.seq for one in records] == list(range(1, len(records) + 1))
        return _without_look_ups(NetworkPage(records=tuple(records), more=False))

    # -- a daemon that can be killed -----------------------------------------------------------

    async def start_daemon(self) -> None:
        """In a process of its own. Whoever answers first is waited for."""
        read = self._spawn_daemon()
        with open(read, "rb") as pipe:
            told = await asyncio.to_thread(pipe.read, 1)
        assert told == b".", self.log()

    def _spawn_daemon(self) -> int:
        read, write = os.pipe()
        program = (
            "import asyncio, os, signal\nfrom coldframe.host.daemon import serve\n"
            # what a shell starts in the background ignores it, and so would this
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"asyncio.run(serve({self.folder!r}, ready=lambda: os.write({write}, b'.')))"
        )
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(CHECKOUT)}
        with open(os.path.join(self.folder, "daemon.log"), "ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    [sys.executable, "-c", program], env=environment, stdout=log, stderr=log, pass_fds=[write]
                )
            )
        os.close(write)
        return read

    def kill_daemon(self) -> None:
        self.daemons[-1].kill()
        self.daemons[-1].wait()

    def log(self) -> str:
        with open(os.path.join(self.folder, "daemon.log"), encoding="utf-8", errors="replace") as source:
            return source.read()


def on_a_networked_machine(
    steps: Callable[[Networked], Awaitable[None]], *, who: str = "root", patience_s: float | None = None
) -> None:
    """*steps* with a machine in this process, whose boxes end with it."""

    async def whole(world: World) -> None:
        with _folder() as folder:
            machine = Machine(folder, embedded=True)
            try:
                await steps(Networked(machine, world, folder))
            finally:
                await machine.sweep(keep_boxes=set(), keep_sessions=set())
                await machine.close()
            await _see_nothing_left(folder)

    in_world(who, lambda world: _with_host_files(world, whole), patience_s=patience_s)


def with_a_networked_daemon(
    steps: Callable[[Networked], Awaitable[None]], *, who: str = "root", patience_s: float | None = None
) -> None:
    """*steps* with a daemon in a process of its own, reached as a server reaches it."""

    async def whole(world: World) -> None:
        with _folder() as folder:
            made = Networked(RemoteHost(folder), world, folder)
            await made.start_daemon()
            try:
                await steps(made)
                await made.host.sweep(keep_boxes=set(), keep_sessions=set())
            finally:
                await made.host.close()
                made.daemons[-1].send_signal(signal.SIGINT)
                await asyncio.to_thread(made.daemons[-1].wait)
            await _see_nothing_left(folder)

    in_world(who, lambda world: _with_host_files(world, whole), patience_s=patience_s)


@asynccontextmanager
async def answering(
    host: Host, answer: Callable[[NetworkQuestion], Awaitable[NetworkAnswer]]
) -> AsyncIterator[list[NetworkQuestion]]:
    """Somebody who reads the events of *host* meanwhile; the questions that were asked."""
    asked: list[NetworkQuestion] = []
    answers: set[asyncio.Task[None]] = set()

    async def reply(question: NetworkQuestion) -> None:
        with suppress(HostUnreachable):
            await host.answer(question.question_id, await answer(question))

    async def read() -> None:
        async for event in host.network_events():
            if isinstance(event, NetworkQuestion):
                asked.append(event)
                answers.add(asyncio.ensure_future(reply(event)))

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)  # it is a reader from its first step on
    try:
        yield asked
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError, HostUnreachable):
            await reading
        await asyncio.gather(*answers)


@contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="cf-networked-", dir="/tmp")
    os.chmod(folder, 0o711)
    try:
        yield folder
    finally:
        remove_tree(folder)


async def _see_nothing_left(folder: str) -> None:
    async def is_gone() -> bool:
        return not await asyncio.to_thread(processes_below, folder)

    await until(is_gone, "every process of the box is gone", timeout_s=30)


async def _with_host_files(world: World, steps: Callable[[World], Awaitable[None]]) -> None:
    """The host knows the names of the world, and trusts its authority."""
    bundle = next(path for path in HOST_BUNDLES if os.path.exists(path))
    with names_of_the_world(), tempfile.NamedTemporaryFile("wb", prefix="cf-roots-", dir="/tmp") as file:
        for path in (bundle, world.certificates.authority):
            with open(path, "rb") as source:
                shutil.copyfileobj(source, file)
        file.flush()
        os.chmod(file.name, 0o644)
        confine.bind(file.name, os.path.realpath(bundle))
        await steps(world)
