"""A link to a broker that the test plays."""

import asyncio
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress import life as life_file
from coldframe.host.egress import messages
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.channel import receive
from coldframe.host.egress.contact import EgressContact, EgressLookup, EgressRequest, HandleUse
from coldframe.host.egress.life import Reach, Secrets
from coldframe.host.egress.lineage import Lineage
from coldframe.host.egress.link import BrokerLink
from coldframe.host.egress.messages import (
    Acknowledge,
    Answered,
    Done,
    Event,
)
from tests.host import boxes
from tests.host.egress.brokered import (
    ORIGIN,
    until,
)

NOTHING = Arrivals("nftables", "", (), (), (), ())


class Talk(NamedTuple):
    """A link whose broker is the test."""

    link: BrokerLink
    lineage: "Slow"
    end: socket.socket
    gone: asyncio.Event

    async def hear(self) -> messages.Command:
        """The next command; who has a number was obeyed."""
        while True:
            heard = await asyncio.to_thread(receive, self.end)
            assert heard is not None
            message, files = heard
            for file in files:
                os.close(file)
            if message.startswith(b'{"mechanism"'):
                continue
            command = messages.read_command(message)
            if not isinstance(command, Acknowledge | Answered):
                self.say(Done(command.number))
            if isinstance(command, messages.Ping):
                continue
            return command

    def say(self, event: Event) -> None:
        self.end.send(messages._EVENTS.dump_json(event))


class Slow(Lineage):
    """Reads a record when it is let, after the first one."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.let = threading.Event()
        self.let.set()
        self.reading = threading.Event()

    def open(self, sandbox_id: str) -> bool:
        self.reading.set()
        assert self.let.wait(30)
        return super().open(sandbox_id)


def with_talk(
    steps: Callable[[Talk], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    reach: Reach | None = None,
    secrets: Secrets | None = None,
) -> None:
    ends: list[socket.socket] = []

    def start(theirs: socket.socket, user: int, errors: int, packages: int | None) -> "subprocess.Popen[bytes]":
        ends.append(theirs.dup())
        ends[-1].settimeout(30)
        return subprocess.Popen(["/bin/sleep", "1000"])

    async def whole() -> None:
        gone = asyncio.Event()

        async def pause(_: float) -> None:
            gone.set()
            await asyncio.Event().wait()

        with tempfile.TemporaryDirectory() as folder:
            lineage = Slow(folder)
            link = BrokerLink(lineage, user=boxes.NOBODY, reach=reach, secrets=secrets, pause=pause)
            await link.open(ORIGIN, NOTHING)
            link.start()
            await until(lambda: ends)
            talk = Talk(link, lineage, ends[0], gone)
            assert [type(await talk.hear()) for _ in range(2)] == [messages.UseRules, messages.OpenBox]
            try:
                async with asyncio.timeout(30):
                    await steps(talk)
            finally:
                ends[0].close()
                await link.close()
                lineage.close_all()

    monkeypatch.setattr(life_file, "_start", start)
    asyncio.run(whole())


def contact(**changes: object) -> EgressContact:
    made = EgressContact("c-1", ORIGIN.sandbox_id, "tcp", "198.18.1.0", 443, datetime.now(UTC), outcome=Outcome.ALLOW)
    return replace(made, **changes)  # type: ignore[arg-type]


def ended(**changes: object) -> EgressContact:
    return contact(**{"ended": "closed", "ended_at": datetime.now(UTC), **changes})


TARGET = ("198.18.1.0", 443)
LOOKUP = EgressLookup("A", "address")
REQUEST = EgressRequest("GET", "/", Outcome.ALLOW, "r", datetime.now(UTC))
USE = HandleUse("cfh_1", "authorization: Bearer {secret}", is_verified=True)
