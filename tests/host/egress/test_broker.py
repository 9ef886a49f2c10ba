"""A box reaches what the rules name, by the name it asked for, and nothing else; each attempt is on record before its end."""

import asyncio
import errno
import hashlib
import os
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import ip_address

import pytest

from coldframe.contract.policy import Label, Outcome, Role
from coldframe.host.egress import resolver
from coldframe.host.egress.broker import Broker
from coldframe.host.egress.contact import (
    EgressContact,
    EgressRequest,
    HandleUse,
    Journal,
    JournalLost,
    SecretAnswer,
)
from coldframe.policy.addresses import Address
from coldframe.policy.document import read_document
from coldframe.policy.network import Origin
from coldframe.policy.network_rules import NetworkRules
from coldframe.policy.network_section import load_network
from tests.host.egress.hellos import encrypted, message, named, records
from tests.host.egress.world import BANNER, INNER, OTHER, RESOLVER, SITE, SSH, UNKNOWN, World, in_world
from tests.host.machines import as_root_and_ordinary

ORIGIN = Origin("sb-1", "agent-7", Role.AGENT, None, Label.PUBLIC)
RULES = (
    f"{{id: site, to: {SITE}, ports: [443, 444]}}",
    f"{{id: plain, to: {SSH}, scheme: tcp, mode: raw, ports: [22, 9000, 9001]}}",
    f"{{id: inner, to: {INNER}, scheme: tcp, mode: raw, ports: [9000]}}",
)


def network(*rules: str) -> NetworkRules:
    lines = ["profiles:", "  own:", "    base: none", "    rules:", *(f"      - {rule}" for rule in rules)]
    return load_network(read_document("\n".join([*lines, "use: {'*': own}", ""])))


class Log:
    """What the journal was told, in its order."""

    def __init__(self) -> None:
        self.begun: list[EgressContact] = []
        self.requests: list[EgressRequest] = []
        self.ended: list[EgressContact] = []
        self.lost = False
        self._told = asyncio.Event()

    def journal(self) -> Journal:
        async def begin(contact: EgressContact, one: EgressRequest | None) -> None:
            if self.lost:
                raise JournalLost("the disk is full")
            self.begun.append(replace(contact))
            if one is not None:
                await request(contact, one)

        async def request(contact: EgressContact, one: EgressRequest) -> None:
            if self.lost:
                raise JournalLost("the disk is full")
            self.requests.append(one)

        async def secret(contact: EgressContact, one: EgressRequest, use: HandleUse) -> SecretAnswer:
            return SecretAnswer(refusal="nobody here has any secrets")

        def end(contact: EgressContact) -> None:
            self.ended.append(contact)
            self._told.set()

        return Journal(begin, request, secret, end)

    async def of(self, count: int) -> list[EgressContact]:
        """The contacts that have ended, once there are so many. Who is denied may try the other family as well."""
        while len(self.ended) < count:
            self._told.clear()
            await self._told.wait()
        return self.ended


def with_broker(steps: Callable[[World, Broker, Log], object], *rules: str, who: str = "root") -> None:
    async def whole(world: World) -> None:
        log = Log()
        broker = Broker(network(*(rules or RULES)), log.journal(), resolve=world.resolve)
        broker.open(ORIGIN, world.box.arrivals)
        try:
            await steps(world, broker, log)  # type: ignore[misc]
        finally:
            await broker.close()

    in_world(who, whole)


# -- programs of the box ---------------------------------------------------------------------------


def code_of(step: Callable[[], object]) -> str | None:
    try:
        step()
    except ssl.SSLError:
        return "no TLS"
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ENOTCONN):  # a reset that came before the call
            return "ECONNRESET"
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return None


def fetch(world: World, name: str, *, port: int = 443, address: str | None = None) -> str:
    context = ssl.create_default_context(cafile=world.certificates.authority)
    with socket.create_connection((address or name, port), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname=name) as client:
            client.sendall(f"GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            heard = b""
            while part := client.recv(4096):
                heard += part
    return heard.rpartition(b"\r\n\r\n")[2].decode()


def send_all(name: str, port: int, data: bytes) -> bytes:
    with socket.create_connection((name, port), timeout=30) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        heard = b""
        while part := client.recv(65536):
            heard += part
    return heard


# -- what is allowed -------------------------------------------------------------------------------


@as_root_and_ordinary
def test_a_name_that_a_rule_allows_is_reached_and_both_ends_of_it_are_on_record(who: str) -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: fetch(world, SITE)) == "answer to GET /x HTTP/1.1"
        (contact,) = await log.of(1)
        (begun,) = log.begun
        assert begun.id == contact.id and begun.ended is None and begun.dialled is None
        assert (contact.sandbox_id, contact.name, contact.port, contact.dialled) == ("sb-1", SITE, 443, "93.184.215.14")
        assert (contact.scheme, contact.mode, contact.outcome) == ("https", "sni", Outcome.ALLOW)
        assert (contact.rule_id, contact.ended) == ("site", "closed")
        assert contact.sent_bytes > 300 and contact.received_bytes > 500
        assert contact.ended_at is not None and contact.ended_at >= contact.began_at

    with_broker(steps, who=who)


def test_a_server_that_asks_for_a_second_hello_is_reached() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: fetch(world, SITE, port=444)) == "answer to GET /x HTTP/1.1"
        assert (await log.of(1))[0].ended == "closed"

    with_broker(steps)


def test_a_server_that_speaks_first_is_reached_where_a_rule_says_raw() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: send_all(SSH, 22, b"hello")) == BANNER + b"helloend"
        contact = (await log.of(1))[0]
        assert (contact.mode, contact.rule_id, contact.ended) == ("raw", "plain", "closed")
        assert (contact.sent_bytes, contact.received_bytes) == (5, len(BANNER) + 8)

    with_broker(steps)


def test_every_byte_arrives_both_ways_and_the_end_of_one_way_is_passed_on() -> None:
    data = os.urandom(1 << 20) * 48

    async def steps(world: World, broker: Broker, log: Log) -> None:
        def echo() -> str:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                pid = os.fork()
                if pid == 0:
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                    os._exit(0)
                digest = hashlib.sha256()
                while part := client.recv(1 << 18):
                    digest.update(part)
                os.waitpid(pid, 0)
            return digest.hexdigest()

        assert await world.inside(echo) == hashlib.sha256(data + b"end").hexdigest()
        contact = (await log.of(1))[0]
        assert (contact.sent_bytes, contact.received_bytes) == (len(data), len(data) + 3)

    with_broker(steps)


def test_a_connection_that_breaks_outside_breaks_inside() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: code_of(lambda: send_all(SSH, 9001, b"x"))) == "ECONNRESET"
        assert (await log.of(1))[0].ended not in (None, "closed", "denied")

    with_broker(steps)


# -- what is not -----------------------------------------------------------------------------------


def test_a_name_of_no_rule_does_not_exist_and_the_question_is_on_record() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        def look_up() -> str | None:
            return code_of(lambda: socket.getaddrinfo(UNKNOWN, 443))

        assert await world.inside(look_up) == "gaierror"
        assert {(one.protocol, one.port, one.name) for one in log.ended} == {("udp", 53, UNKNOWN)}
        assert {(one.outcome, one.rule_id) for one in log.ended} == {(Outcome.DENY, "network:default")}
        assert log.begun == []

    with_broker(steps)


@as_root_and_ordinary
def test_nothing_is_reached_by_an_address(who: str) -> None:
    wanted = ("93.184.215.14", "169.254.169.254", "10.0.0.1", "198.18.1.9")

    async def steps(world: World, broker: Broker, log: Log) -> None:
        for address in wanted:
            assert await world.inside(partial(code_of, partial(send_all, address, 9000, b"x"))) == "ECONNRESET", address
        ended = await log.of(len(wanted))
        assert [one.address for one in ended] == list(wanted)
        assert {one.outcome for one in ended} == {Outcome.DENY}
        assert (log.begun, ended[-1].rule_id) == ([], "network:name")

    with_broker(steps, who=who)


def test_a_handshake_for_another_name_than_was_asked_for_goes_nowhere() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        def other() -> str | None:
            address = socket.getaddrinfo(SITE, 443, type=socket.SOCK_STREAM)[0][4][0]
            return code_of(lambda: fetch(world, OTHER, address=str(address)))

        assert await world.inside(other) == "ECONNRESET"
        contact = (await log.of(1))[0]
        assert (contact.name, contact.outcome, contact.rule_id) == (SITE, Outcome.DENY, "network:sni")
        assert OTHER in contact.reason and contact.dialled is None and log.begun == []

    with_broker(steps)


@pytest.mark.parametrize("extension", [encrypted(), encrypted(1), (0xFFCE, b"whatever")])
def test_an_encrypted_hello_goes_nowhere_though_it_shows_the_right_name(extension: tuple[int, bytes]) -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        hello = records(message([named(SITE), extension]))
        assert await world.inside(lambda: code_of(lambda: send_all(SITE, 443, hello))) == "ECONNRESET"
        contact = (await log.of(1))[0]
        assert (contact.outcome, contact.rule_id, contact.dialled) == (Outcome.DENY, "network:sni", None)
        assert "encrypted hello" in contact.reason and log.begun == []

    with_broker(steps)


def test_what_is_no_tls_goes_nowhere_under_a_rule_for_it() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: code_of(lambda: send_all(SITE, 443, b"\x05anything"))) == "ECONNRESET"
        assert (
            await world.inside(lambda: code_of(lambda: send_all(SITE, 443, b"GET / HTTP/1.1\r\n\r\n"))) == "ECONNRESET"
        )
        assert await world.inside(lambda: code_of(lambda: send_all(SITE, 22, b"x"))) == "ECONNRESET"
        assert {one.outcome for one in await log.of(3)} == {Outcome.DENY}
        assert log.begun == []

    with_broker(steps)


def test_a_name_that_resolves_to_an_inner_address_is_denied_whatever_rule_names_it() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: code_of(lambda: send_all(INNER, 9000, b"x"))) == "ECONNRESET"
        contact = (await log.of(1))[0]
        assert (contact.outcome, contact.rule_id, contact.dialled) == (Outcome.DENY, "floor:address", None)
        assert contact.reason == f"`{INNER}` is at 169.254.169.254, which is metadata"

    with_broker(steps)


@pytest.mark.req("T1.100")
def test_the_address_of_a_name_is_judged_when_it_is_dialled_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It resolves to something else each time; what was judged is what is dialled."""
    monkeypatch.setattr(resolver, "KEEP_S", 0)

    async def steps(world: World, broker: Broker, log: Log) -> None:
        answer: list[str] = []

        async def resolve(name: str) -> list[Address]:
            return [ip_address(text) for text in answer]

        broker.resolve = resolve
        answer[:] = ["93.184.215.16"]
        assert await world.inside(lambda: send_all(SSH, 9000, b"x")) == b"xend"
        answer[:] = ["127.0.0.1"]
        assert await world.inside(lambda: code_of(lambda: send_all(SSH, 9000, b"x"))) == "ECONNRESET"
        answer[:] = ["93.184.216.1", "93.184.215.16"]
        assert await world.inside(lambda: send_all(SSH, 9000, b"x")) == b"xend"
        ended = await log.of(3)
        assert [ended[place].dialled for place in (0, 1, -1)] == ["93.184.215.16", None, "93.184.215.16"]

    with_broker(steps)


def test_without_a_record_nothing_is_dialled() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        log.lost = True
        assert await world.inside(lambda: code_of(lambda: send_all(SSH, 9000, b"x"))) == "ECONNRESET"
        contact = (await log.of(1))[0]
        assert (contact.rule_id, contact.dialled) == ("network:journal", None)

    with_broker(steps)


def test_where_a_person_has_to_decide_nothing_is_dialled_until_then() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        for name, port in ((SSH, 9000), (SITE, 443)):
            assert await world.inside(partial(code_of, partial(send_all, name, port, b"x"))) == "ECONNRESET"
        assert {(one.rule_id, one.outcome, one.dialled) for one in await log.of(2)} == {
            ("raw", Outcome.DENY, None),
            ("site", Outcome.DENY, None),
        }
        assert all("a person has to decide" in one.reason for one in log.ended) and log.begun == []

    raw = f"{{id: raw, to: {SSH}, scheme: tcp, mode: raw, ports: [9000], then: ask}}"
    with_broker(steps, raw, f"{{id: site, to: {SITE}, scheme: tcp, mode: raw, ports: [443], then: ask}}")


# -- changes while it runs -------------------------------------------------------------------------


def test_a_rule_that_is_taken_away_ends_what_it_allowed_and_leaves_the_rest() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        reading, writing = os.pipe()

        def hold() -> tuple[str | None, bytes]:
            with (
                socket.create_connection((SSH, 9000), timeout=30) as doomed,
                socket.create_connection((SSH, 22)) as kept,
            ):
                kept.recv(len(BANNER), socket.MSG_WAITALL)
                doomed.sendall(b"a")
                doomed.recv(1)
                os.write(writing, b"x")
                code = code_of(lambda: doomed.recv(1))
                kept.sendall(b"b")
                return code, kept.recv(1)

        running = world.box.start(hold, files={"/etc/resolv.conf": "nameserver 198.18.0.1\n"})
        await asyncio.to_thread(os.read, reading, 1)
        broker.use_rules(network(f"{{id: plain, to: {SSH}, scheme: tcp, mode: raw, ports: [22]}}"))
        assert await asyncio.to_thread(running.result) == ("ECONNRESET", b"b")
        first, second = sorted(await log.of(2), key=lambda one: one.port, reverse=True)
        assert (first.port, first.ended, first.rule_id) == (9000, "ended by a change of the rules", "network:default")
        assert (second.port, second.outcome) == (22, Outcome.ALLOW)
        os.close(reading)
        os.close(writing)

    with_broker(steps)


def test_a_session_that_is_labelled_higher_than_a_destination_may_not_send_there_any_more() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        assert await world.inside(lambda: send_all(SSH, 9000, b"x")) == b"xend"
        broker.raise_taint("sb-1", Label.CONFIDENTIAL)
        assert await world.inside(lambda: code_of(lambda: send_all(SSH, 9000, b"x"))) == "ECONNRESET"
        assert [one.rule_id for one in (await log.of(2))[:2]] == ["plain", "floor:write-down"]

    with_broker(steps)


def test_a_connection_ends_when_what_comes_from_there_is_labelled_higher() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        reading, writing = os.pipe()

        def hold() -> str | None:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                client.sendall(b"a")
                client.recv(1)
                os.write(writing, b"x")
                return code_of(lambda: client.recv(1))

        running = world.box.start(hold, files=RESOLVER)
        await asyncio.to_thread(os.read, reading, 1)
        broker.use_rules(network(*RULES))  # the same, so it stays
        broker.use_rules(network(RULES[1].replace("id: plain", "id: secret, label: CONFIDENTIAL")))
        assert await asyncio.to_thread(running.result) == "ECONNRESET"
        (contact,) = await log.of(1)
        assert (contact.outcome, contact.rule_id) == (Outcome.DENY, "secret")
        assert contact.reason == "what comes from there was PUBLIC, and is CONFIDENTIAL now"
        os.close(reading)
        os.close(writing)

    with_broker(steps)


# -- what nobody foresaw ---------------------------------------------------------------------------


def test_a_fault_in_one_connection_is_on_record_and_the_next_one_is_served() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))

        async def resolve(name: str) -> list[Address]:
            raise ValueError("nobody foresaw this")

        broker.resolve = resolve
        assert await world.inside(lambda: code_of(lambda: send_all(SSH, 9000, b"x"))) == "ECONNRESET"
        contact = (await log.of(1))[0]
        assert (contact.ended, contact.dialled) == ("fault", None) and contact.ended_at is not None
        assert "ValueError('nobody foresaw this')" in told
        broker.resolve = world.resolve
        assert await world.inside(lambda: send_all(SSH, 9000, b"x")) == b"xend"

    with_broker(steps)


def test_a_program_that_leaves_before_it_is_connected_is_not_waited_for() -> None:
    async def steps(world: World, broker: Broker, log: Log) -> None:
        asked = asyncio.Event()

        async def resolve(name: str) -> list[Address]:
            asked.set()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        reading, writing = os.pipe()

        def leave() -> None:
            with socket.create_connection((SSH, 9000), timeout=30) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os.read(reading, 1)

        broker.resolve = resolve
        running = world.box.start(leave, files=RESOLVER)
        await asked.wait()
        os.write(writing, b"x")
        await asyncio.to_thread(running.result)
        assert (await log.of(1))[0].ended == "the program left before it was connected"
        os.close(reading)
        os.close(writing)

    with_broker(steps)


# -- many ------------------------------------------------------------------------------------------


def test_many_connections_at_once_are_all_served_and_leave_no_descriptor() -> None:
    count = 200

    async def steps(world: World, broker: Broker, log: Log) -> None:
        def together() -> int:
            clients = [socket.create_connection((SSH, 9000), timeout=30) for _ in range(count)]
            for number, client in enumerate(clients):
                client.sendall(b"%03d" % number)
            whole = [client.recv(3, socket.MSG_WAITALL) == b"%03d" % number for number, client in enumerate(clients)]
            for client in clients:
                client.close()
            return sum(whole)

        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            assert await world.inside(together) == count
        assert {one.ended for one in await log.of(2 * count)} == {"closed"}
        assert len(os.listdir("/proc/self/fd")) <= before + 40  # idle pipes

    with_broker(steps)
