"""An answered look-up is on record before its answer, equal ones once in a while with their number, and none without."""

import asyncio
import socket
import struct
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from coldframe.host.egress import box_way
from coldframe.host.egress.arrivals import Arrivals
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import EgressContact, EgressLookup, EgressRequest, Journal, JournalLost, SecretAnswer
from coldframe.host.egress.look_ups import AGAIN_S, MOST_KINDS, LookUps, describe
from coldframe.host.egress.names import NamePool, answer_query, fail
from coldframe.policy.document import read_document
from coldframe.policy.network_section import load_network
from tests.host.egress.brokered import ORIGIN, section
from tests.host.egress.captured import dns_question

A = EgressLookup("A", "address")
AAAA = EgressLookup("AAAA", "address")


class Told:
    def __init__(self) -> None:
        self.now = 100.0
        self.contacts: list[EgressContact] = []
        self.lost = False
        self.answer = asyncio.Event()
        self.answer.set()
        self.look_ups = LookUps(
            self._tell, lambda: self.now, lambda one: replace(one, id=f"{one.id}-rest", source=None)
        )

    async def _tell(self, one: EgressContact) -> None:
        self.contacts.append(one)
        await self.answer.wait()
        if self.lost:
            raise JournalLost("the disk is full")

    async def ask(self, name: str, lookup: EgressLookup = A) -> None:
        if not self.look_ups.is_on_record(name, lookup):
            number = str(len(self.contacts))
            one = EgressContact(number, "sb-1", "udp", "", 53, datetime.now(UTC), name=name, lookup=lookup)
            await self.look_ups.put_on_record(one)


def test_equal_look_ups_are_told_once_and_after_a_while_again_with_their_number() -> None:
    async def steps() -> None:
        told = Told()
        for _ in range(100):
            await told.ask("a.example")
        await told.ask("a.example", AAAA)
        await told.ask("b.example")
        assert [(one.name, one.lookup, one.times) for one in told.contacts] == [
            ("a.example", A, 1),
            ("a.example", AAAA, 1),
            ("b.example", A, 1),
        ]
        told.now += AGAIN_S
        await told.ask("a.example")
        assert told.contacts[-1].times == 100

    asyncio.run(steps())


def test_who_asks_the_same_meanwhile_waits_for_the_same_record() -> None:
    async def steps() -> None:
        told = Told()
        told.answer.clear()
        asking = [asyncio.ensure_future(told.ask("a.example")) for _ in range(3)]
        done, _ = await asyncio.wait(asking, timeout=0)
        assert not done
        told.answer.set()
        await asyncio.gather(*asking)
        assert len(told.contacts) == 1

    asyncio.run(steps())


def test_what_could_not_be_put_on_record_is_not_answered_and_is_tried_again() -> None:
    async def steps() -> None:
        told = Told()
        told.lost = True
        for _ in range(2):
            with pytest.raises(JournalLost):
                await told.ask("a.example")
        assert len(told.contacts) == 2

    asyncio.run(steps())


def test_a_program_that_asks_for_ever_new_names_does_not_fill_the_memory() -> None:
    async def steps() -> None:
        told = Told()
        for number in range(MOST_KINDS + 1):
            await told.ask(f"{number}.example")
        await told.ask("0.example")
        assert len(told.contacts) == MOST_KINDS + 2

    asyncio.run(steps())


def test_what_was_counted_is_told_when_its_name_makes_room_and_when_the_box_is_shut() -> None:
    async def steps() -> None:
        told = Told()
        for _ in range(3):
            await told.ask("first.example")
        for number in range(MOST_KINDS):
            await told.ask(f"{number}.example")
        await told.ask("7.example")
        await asyncio.sleep(0)
        rest = [(one.id, one.name, one.times) for one in told.contacts if one.id.endswith("-rest")]
        assert rest == [("0-rest", "first.example", 2)]
        await told.look_ups.tell_rest()
        assert [(one.name, one.times) for one in told.contacts[-1:]] == [("7.example", 1)]
        assert sum(one.times for one in told.contacts) == 3 + MOST_KINDS + 1

    asyncio.run(steps())


def test_what_was_counted_outlives_a_record_that_could_not_be_written() -> None:
    async def steps() -> None:
        told = Told()
        for _ in range(5):
            await told.ask("a.example")
        told.now += AGAIN_S
        told.lost = True
        with pytest.raises(JournalLost):
            await told.ask("a.example")
        told.lost = False
        await told.ask("a.example")
        assert told.contacts[-1].times == 5
        await told.look_ups.tell_rest()
        assert len(told.contacts) == 3

    asyncio.run(steps())


def test_of_questions_that_wait_for_the_record_no_more_are_held_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box_way, "MOST_REPLIES", 2)
    asked: list[str | None] = []
    answer = asyncio.Event()

    async def looked_up(contact: EgressContact) -> None:
        asked.append(contact.name)
        await answer.wait()

    async def nothing(_: EgressContact, __: EgressRequest | None) -> None:
        return

    async def secret(*_: object) -> SecretAnswer:
        return SecretAnswer()

    async def steps() -> None:
        journal = Journal(nothing, nothing, secret, lambda _: None, looked_up=looked_up)
        rules = load_network(read_document(section("{id: all, to: '*.example.com', ports: [443]}")))
        broker = Broker(rules, journal)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as program:
            resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            resolver.bind(("127.0.0.1", 0))
            program.connect(resolver.getsockname())
            for name in "abcd":
                program.send(dns_question(f"{name}.example.com"))
            broker.open(ORIGIN, Arrivals("nftables", "", (), (), (resolver,), ()))
            program.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(30):
                while len(asked) < 2:  # noqa: ASYNC110 - nobody tells when it comes true
                    await asyncio.sleep(0)
                answer.set()
                for _ in range(2):
                    assert await loop.sock_recv(program, 512)
                program.send(dns_question("d.example.com"))
                assert await loop.sock_recv(program, 512)
            await broker.close()
        assert asked == ["a.example.com", "b.example.com", "d.example.com"]

    asyncio.run(steps())


def test_a_look_up_is_described_and_a_reply_can_be_turned_into_a_failure() -> None:
    pool = NamePool()
    found = answer_query(dns_question("api.example.com"), pool, lambda _: True)
    assert describe(found) == A
    assert describe(answer_query(dns_question("api.example.com"), pool, lambda _: False)).answer == "no-name"
    odd = dns_question("api.example.com")[:-4] + struct.pack("!HH", 4711, 1)
    assert describe(answer_query(odd, pool, lambda _: True)) == EgressLookup("TYPE4711", "no-data")
    assert found.reply is not None
    failed = fail(found.reply)
    _, flags, questions, answers, _, _ = struct.unpack_from("!HHHHHH", failed)
    assert (flags & 0xF, questions, answers) == (2, 1, 0)
    assert failed[12:] == dns_question("api.example.com")[12:]
