"""Nobody's slow name server stops another box, and no way of writing an address of this machine leads back to it."""

import asyncio
import errno
import socket
from ipaddress import IPv4Address, ip_address

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress import dial as dialling
from coldframe.host.egress.dial import MOST_ADDRESSES, MOST_QUESTIONS_OF_BOX, DialDenied, DialFailed, Resolver, dial
from coldframe.policy.addresses import Address, AddressKind
from coldframe.policy.network import NetworkVerdict, judge_dialled

ALLOWED = NetworkVerdict(Outcome.ALLOW, "rule", "")
PUBLIC = ip_address("93.184.215.14")


class NameServer:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, asyncio.Future[list[Address]]] = {}

    async def resolve(self, name: str) -> list[Address]:
        self.asked.append(name)
        self._answers[name] = asyncio.get_running_loop().create_future()
        return await self._answers[name]

    def answer(self, name: str) -> None:
        self._answers[name].set_result([PUBLIC])


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_box_asks_few_questions_at_once_and_equal_ones_once() -> None:
    async def steps() -> None:
        server = NameServer()
        resolver = Resolver(server.resolve)
        names = [f"n{number}" for number in range(MOST_QUESTIONS_OF_BOX + 2)]
        waiting = [asyncio.create_task(resolver(name)) for name in names for _ in range(50)]
        await turns()
        assert server.asked == names[:MOST_QUESTIONS_OF_BOX]
        for place, name in enumerate(names):
            server.answer(name)
            await turns()
            assert len(server.asked) == min(len(names), MOST_QUESTIONS_OF_BOX + place + 1)
        assert await asyncio.gather(*waiting) == [[PUBLIC]] * len(waiting)
        assert server.asked == names

    asyncio.run(steps())


def test_a_question_that_nobody_waits_for_is_not_asked_and_one_that_was_asked_still_counts() -> None:
    async def steps() -> None:
        server = NameServer()
        resolver = Resolver(server.resolve)
        first = [asyncio.create_task(resolver(f"slow{number}")) for number in range(MOST_QUESTIONS_OF_BOX)]
        await turns()
        left = asyncio.create_task(resolver("left"))
        await turns()
        for one in (*first, left):
            one.cancel()
        await asyncio.gather(*first, left, return_exceptions=True)
        last = asyncio.create_task(resolver("last"))
        await turns()
        assert len(server.asked) == MOST_QUESTIONS_OF_BOX  # their threads are not back
        server.answer("slow0")
        await _answer_soon(server, "last")
        assert await last == [PUBLIC]
        assert "left" not in server.asked

    asyncio.run(steps())


async def _answer_soon(server: NameServer, name: str) -> None:
    while name not in server.asked:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    server.answer(name)


def test_a_question_whose_last_asker_left_can_be_asked_again_at_once() -> None:
    async def steps() -> None:
        server = NameServer()
        resolver = Resolver(server.resolve)
        slow = [asyncio.create_task(resolver(f"slow{number}")) for number in range(MOST_QUESTIONS_OF_BOX)]
        await turns()
        left = asyncio.create_task(resolver("name"))
        await turns()
        left.cancel()
        again = asyncio.create_task(resolver("name"))
        await turns()
        for number in range(MOST_QUESTIONS_OF_BOX):
            server.answer(f"slow{number}")
        await _answer_soon(server, "name")
        assert await again == [PUBLIC]
        await asyncio.gather(*slow)

    asyncio.run(steps())


def test_a_failure_is_that_of_all_who_asked() -> None:
    async def steps() -> None:
        async def resolve(name: str) -> list[Address]:
            await asyncio.sleep(0)
            raise OSError(socket.EAI_NONAME, "no such name")

        resolver = Resolver(resolve)
        found = await asyncio.gather(resolver("a"), resolver("a"), return_exceptions=True)
        assert [type(one) for one in found] == [OSError, OSError]

    asyncio.run(steps())


def test_of_thousands_of_addresses_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Address] = []

    def judge(verdict: NetworkVerdict, address: Address) -> AddressKind | None:
        judged.append(address)
        return judge_dialled(verdict, address)

    monkeypatch.setattr(dialling, "judge_dialled", judge)

    async def resolve(name: str) -> list[Address]:
        return [IPv4Address("10.0.0.0") + number for number in range(4000)]

    with pytest.raises(DialDenied):
        asyncio.run(dial(ALLOWED, "many.example.com", 443, resolve=resolve))
    assert len(judged) == MOST_ADDRESSES


@pytest.mark.parametrize("text", ["93.184.215.14", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e"])
def test_an_address_of_this_machine_is_one_in_every_spelling(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "is_own", lambda address: address == PUBLIC)
    with pytest.raises(DialDenied, match="is own"):
        asyncio.run(dial(ALLOWED, ip_address(text), 443))


def test_if_the_kernel_does_not_tell_whose_address_it_is_nothing_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OSError, match="too many open files"):
        dialling.is_own(PUBLIC)


def test_without_an_end_of_its_own_dialling_ends_by_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "DIAL_S", 0.01)

    async def resolve(name: str) -> list[Address]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    with pytest.raises(DialFailed, match="no address answered"):
        asyncio.run(dial(ALLOWED, "slow.example.com", 443, resolve=resolve))
