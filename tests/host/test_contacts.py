"""A box without network is refused at once, its loopback works, and every attempt outward is recorded."""

import errno
import os
import select
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.contract.command import Contact
from coldframe.guest import contacts
from coldframe.guest.refusals import Refusals
from coldframe.host import confine, routes
from tests.host.forked import in_child

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace without a user namespace")


def enter_network() -> Refusals:
    confine.unshare("net")
    routes.capture_everything()
    seen = Refusals(contacts.open_capture(), contacts.parse_packet, "network:none")
    confine.drop_all_capabilities()
    return seen


def query(name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def read_all(log: contacts.ContactLog, seen: Refusals) -> None:
    while select.select([seen], [], [], 0.05)[0]:
        log.take(seen)


@as_root
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "203.0.113.9"), (socket.AF_INET6, "2001:db8::1")])
def test_a_connection_outward_is_refused_and_recorded_once(family: int, address: str) -> None:
    def child() -> tuple[int, list[dict[str, object]]]:
        refusals, log = enter_network(), contacts.ContactLog()
        with socket.socket(family, socket.SOCK_STREAM) as client:
            code = client.connect_ex((address, 443))
        read_all(log, refusals)
        return code, log.contacts()

    code, seen = in_child(child)
    assert code == errno.ECONNREFUSED  # by the kernel itself: not a time-out of anybody
    (contact,) = [Contact.model_validate(entry) for entry in seen]
    assert (contact.protocol, contact.address, contact.port, contact.attempts) == ("tcp", address, 443, 1)
    assert contact.verdict == "refused"


@as_root
def test_a_look_up_fails_fast_and_its_name_is_recorded() -> None:
    def child() -> tuple[int | None, list[dict[str, object]]]:
        refusals, log = enter_network(), contacts.ContactLog()
        code = None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(2)
            client.connect(("198.18.0.1", 53))
            client.send(query("Example.com"))
            try:
                client.recv(100)
            except OSError as error:
                code = error.errno
        read_all(log, refusals)
        return code, log.contacts()

    code, seen = in_child(child)
    assert code == errno.ECONNREFUSED
    assert [(entry["protocol"], entry["port"], entry["name"]) for entry in seen] == [("udp", 53, "example.com")]


@as_root
def test_servers_on_loopback_work_and_are_no_contacts() -> None:
    def child() -> tuple[list[bytes], list[dict[str, object]]]:
        refusals, log = enter_network(), contacts.ContactLog()
        heard = []
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.create_server((address, 0), family=family) as server:
                with socket.create_connection(server.getsockname()[:2]) as client:
                    served, _ = server.accept()
                    client.sendall(b"hello")
                    heard.append(served.recv(10))
                    served.close()
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.sendto(b"x", (address, 9))
        read_all(log, refusals)
        return heard, log.contacts()

    assert in_child(child) == ([b"hello", b"hello"], [])


@as_root
def test_broadcast_and_multicast_are_seen() -> None:
    def child() -> list[dict[str, object]]:
        refusals, log = enter_network(), contacts.ContactLog()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            for address in ("255.255.255.255", "224.0.0.251"):
                try:
                    client.sendto(b"x", (address, 5353))
                except OSError as error:
                    return [{"address": f"{address} {error}"}]
        read_all(log, refusals)
        return log.contacts()

    assert [entry["address"] for entry in in_child(child)] == ["255.255.255.255", "224.0.0.251"]


@as_root
def test_a_flood_is_bounded_and_nothing_of_it_is_hidden() -> None:
    def child() -> tuple[int, int, int]:
        refusals, log = enter_network(), contacts.ContactLog()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for index in range(3000):
                client.sendto(b"x" * 1000, (f"203.0.{index // 250}.{index % 250 + 1}", 9))
        log.take(refusals)
        first = sum(int(entry["attempts"]) for entry in log.contacts()) - log.dropped
        read_all(log, refusals)
        return first, log.dropped, sum(int(entry["attempts"]) for entry in log.contacts())

    first, dropped, counted = in_child(child)
    assert first <= contacts.BATCH
    assert dropped > 0
    assert counted == 3000


def test_more_distinct_contacts_than_the_cap_are_counted_as_other() -> None:
    log = contacts.ContactLog()
    for index in range(contacts.MAX_CONTACTS + 7):
        log.record([contacts.Attempt("tcp", "203.0.113.9", index, None)])
    log.record([contacts.Attempt("tcp", "203.0.113.9", 0, None)])
    entries = log.contacts()
    assert len(entries) == contacts.MAX_CONTACTS + 1
    assert entries[0]["attempts"] == 2
    assert (entries[-1]["protocol"], entries[-1]["attempts"]) == ("other", 7)


@given(st.binary(max_size=200))
def test_no_packet_makes_the_parser_raise(data: bytes) -> None:
    for start in (b"", b"\x45" + bytes(8) + b"\x11", b"\x60" + bytes(5) + b"\x11", b"\x60" + bytes(5) + b"\x2b"):
        contacts.parse_packet(start + data)


@given(st.binary(max_size=300))
def test_no_look_up_makes_the_parser_raise_or_gives_unprintable_names(data: bytes) -> None:
    packet = (
        b"\x45" + bytes(8) + b"\x11" + bytes(6) + bytes([203, 0, 113, 9]) + struct.pack("!HHHH", 9, 53, 0, 0) + data
    )
    attempt = contacts.parse_packet(packet)
    assert attempt is not None and attempt.port == 53
    assert attempt.name is None or (attempt.name.isascii() and attempt.name.isprintable())
