"""What the kernel refused is read from its log, whatever a box has put into its packets."""

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from coldframe.guest import refusals
from coldframe.guest.contacts import BATCH, Attempt


def packet(target: str, *, protocol: int = 17, ports: tuple[int, int] = (40_000, 443), rest: bytes = b"") -> bytes:
    source = socket.inet_aton("198.18.0.1")
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, protocol, 0, source, socket.inet_aton(target))
    return head + struct.pack("!HHHH", *ports, 8, 0) + rest


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(*attributes: bytes, kind: int = 4 << 8) -> bytes:
    body = b"\x02\0\0\x01" + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_a_refused_packet_is_told_with_what_it_wanted_to_reach() -> None:
    told = message(attribute(1, b"\x08\0\x03\0"), attribute(11, bytes(4)), attribute(9, packet("203.0.113.9")))
    assert refusals.logged_attempt(told) == Attempt("udp", "203.0.113.9", 443, None)


def test_a_message_about_something_else_is_none() -> None:
    assert refusals.logged_attempt(message(attribute(9, packet("203.0.113.9")), kind=3)) is None
    assert refusals.logged_attempt(message(attribute(1, b"\x08\0\x03\0"))) is None
    assert refusals.logged_attempt(message(struct.pack("=HH", 0, 9))) is None
    assert refusals.logged_attempt(b"") is None


@given(st.binary(max_size=300))
def test_no_message_makes_the_reader_raise(data: bytes) -> None:
    refusals.logged_attempt(data)
    refusals.logged_attempt(message(data))
    refusals.logged_attempt(message(attribute(9, data)))
    refusals.Served(frozenset({443}), "198.18.0.1").attempt(data)


def test_what_is_served_is_no_refusal() -> None:
    served = refusals.Served(frozenset({443}), "198.18.0.1")
    assert served.attempt(packet("203.0.113.9", protocol=6)) is None
    assert served.attempt(packet("198.18.0.1", ports=(53, 40_000))) is None
    assert served.attempt(packet("203.0.113.9", protocol=6, ports=(40_000, 444))) == ("tcp", "203.0.113.9", 444, None)
    assert served.attempt(packet("203.0.113.9")) == ("udp", "203.0.113.9", 443, None)  # of another protocol


def test_a_reader_takes_a_bounded_number_at_once_and_skips_what_it_cannot_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    seen = refusals.Refusals(ours, refusals.logged_attempt)
    sent = 0
    with theirs:
        try:
            while sent < BATCH + 5:
                theirs.send(message(attribute(9, packet("203.0.113.9"))) if sent % 2 else b"damaged")
                sent += 1
        except BlockingIOError:
            pass  # a short queue
        first, more = seen.read_ready()
        second, still_more = seen.read_ready()
    assert len(first) == min(sent, BATCH) // 2 and more == (sent >= BATCH)
    assert len(first) + len(second) == sent // 2 and not still_more
    seen.close()
