"""What was judged is dialled, and no way of writing an address of this machine leads back to it."""

import asyncio
import errno
import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, ip_address

import pytest

from coldframe.contract.policy import Outcome
from coldframe.host.egress import dial as dialling
from coldframe.host.egress.dial import DialDenied, DialFailed, Prepared, dial
from coldframe.host.egress.resolver import MOST_ADDRESSES
from coldframe.policy.addresses import Address, AddressKind
from coldframe.policy.network import NetworkVerdict, judge_dialled

ALLOWED = NetworkVerdict(Outcome.ALLOW, "rule", "")
PUBLIC = ip_address("93.184.215.14")


def test_of_thousands_of_addresses_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Address] = []

    def judge(verdict: NetworkVerdict, address: Address, *, own: Collection[Address] = ()) -> AddressKind | None:
        judged.append(address)
        return judge_dialled(verdict, address, own=own)

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


def test_what_was_prepared_is_used_for_its_verdict_alone_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps() -> None:
        inside = ALLOWED._replace(within=((IPv4Network("10.0.0.0/8"),),))
        private = ip_address("10.1.2.3")
        with pytest.raises(DialDenied):
            Prepared(ALLOWED, "inner.example.com", [private])
        prepared = Prepared(inside, "inner.example.com", [private])
        made = prepared.socket
        assert made is not None and prepared.take(ALLOWED) is None and made.fileno() == -1
        assert prepared.take(inside) is None  # it is gone
        prepared = Prepared(inside, "inner.example.com", [private])
        taken = prepared.take(inside)
        assert taken is not None and taken[0] == [private]
        prepared.close()  # which is not for what was taken
        assert taken[1].fileno() > 0
        taken[1].close()
        monkeypatch.setattr(dialling, "PREPARED_S", -1.0)
        assert Prepared(inside, "inner.example.com", [private]).take(inside) is None

    asyncio.run(steps())


@pytest.mark.parametrize("is_there", [True, False])
def test_who_is_near_is_connected_at_once_or_refuses(is_there: bool) -> None:
    async def steps() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            if not is_there:
                server.close()
            connecting = dialling.connect(ip_address("127.0.0.1"), port)
            if is_there:
                with await connecting as connection:
                    assert connection.getpeername() == ("127.0.0.1", port) and connection.gettimeout() == 0
            else:
                with pytest.raises(ConnectionRefusedError):
                    await connecting

    asyncio.run(steps())
