"""Nobody's slow name server stops another box."""

import asyncio
import socket
from ipaddress import ip_address

from coldframe.host.egress.resolver import MOST_QUESTIONS_OF_BOX, Resolver, Turns
from coldframe.policy.addresses import Address

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
        resolver = Resolver(server.resolve, Turns())
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
        resolver = Resolver(server.resolve, Turns())
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
        resolver = Resolver(server.resolve, Turns())
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

        resolver = Resolver(resolve, Turns())
        found = await asyncio.gather(resolver("a"), resolver("a"), return_exceptions=True)
        assert [type(one) for one in found] == [OSError, OSError]

    asyncio.run(steps())


def test_however_many_boxes_wait_for_slow_servers_another_one_has_its_answer() -> None:
    async def steps() -> None:
        server = NameServer()
        questions = Turns(most_shared=6)
        slow = [Resolver(server.resolve, questions) for _ in range(20)]
        waiting = [
            asyncio.create_task(one(f"slow{number}-{box}")) for box, one in enumerate(slow) for number in range(40)
        ]
        await turns()
        assert len(server.asked) == 20 + 6
        other = Resolver(server.resolve, questions)
        for number in range(3):
            answer = asyncio.create_task(other(f"fast{number}"))
            await turns()
            server.answer(f"fast{number}")
            assert await answer == [PUBLIC]
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(steps())


def test_boxes_share_what_is_left_in_turns() -> None:
    async def steps() -> None:
        questions = Turns(most_shared=1)
        order: list[str] = []

        async def ask(box: str) -> None:
            await questions.take(box)
            order.append(box)

        tasks = [asyncio.create_task(ask(box)) for box in ("a", "a", "a", "a", "b", "b", "b")]
        await turns()
        assert order == ["a", "a", "b"]
        tasks[3].cancel()  # which waits
        await turns()
        for box in ("a", "b", "b", "a", "b"):  # whose question is over
            questions.give(box)
            await turns()
        assert order[3:] == ["a", "b", "b"]
        for box in ("a", "b"):
            await questions.take(box)
            questions.give(box)

    asyncio.run(steps())
