"""The rules of a box's network namespace, told to the kernel over raw netlink: no `nft` program is needed.

Every connection is turned to one place, every look-up to another, and what cannot be turned is refused to its
sender at once and logged. Three chains, each for IPv4 and IPv6 together:

- `own` (filter, output, before connections are tracked): what the box sends to itself, loopback and its own address, is
  not tracked, but for look-ups and what the gate and the resolver reply. It costs less so, and cannot fill the table.
- `divert` (nat, output): TCP and UDP to port 53 → the resolver on loopback, whatever name server a program asks, one on
  loopback included; what else goes to the box itself → left alone; all other TCP → the gate.
- `refuse` (filter, output; what it has no rule for is dropped): diverted flows pass, and so do what goes to the box
  itself and the kernel's own "unreachable". A program that calls the gate's port by itself is reset, as if nobody were
  there. A TCP segment that begins nothing and belongs to no diverted flow is dropped: it is repeated. All else is
  logged and refused.

Refused on the way out and not on arrival: the sender is told by the call itself (EPERM), also where it would never
hear of an ICMP answer, from an unconnected socket or about a multicast address; one that does not look gets the ICMP
answer with its next call. Hence the log: such a packet never crosses `lo`, so a packet socket cannot see it. What it
would see there besides, such as the resolver's replies, the log does not have.

Table owner flags are not used: the rules are to outlive the socket that made them, and go with the namespace. Whoever
has no CAP_NET_ADMIN over it cannot change them, and removing them would open nothing.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator

from coldframe.host.confine import ConfineError

GATE_PORT = 1023
RESOLVER_PORT = 53
"""Both below 1024: a box has no right to listen there, so it neither loses a port nor takes one of these."""
LOG_GROUP = 1
LOGGED_BYTES = 512
"""As much of a refused packet as is logged: headers, and the longest name."""

_NETLINK_NETFILTER, _SOL_NETLINK, _NETLINK_NO_ENOBUFS = 12, 270, 5
_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_NLMSG_ERROR = 2
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NFTABLES, _ULOG = 10 << 8, 4 << 8
_NEWTABLE, _NEWCHAIN, _NEWRULE = _NFTABLES | 0, _NFTABLES | 3, _NFTABLES | 6
_ULOG_CONFIG = _ULOG | 1
_SET_DEFAULT_TIMEOUTS = 8 << 8 | 3
_INET, _IPV4, _IPV6 = 1, 2, 10
_ICMP, _TCP, _UDP, _ICMP6 = 1, 6, 17, 58
_NESTED = 0x8000
_REGISTER = 1
_NETWORK, _TRANSPORT = 1, 2
"""Where an offset into the packet counts from."""
_NFPROTO, _L4PROTO = 15, 16
_DROP, _ACCEPT, _RETURN = 0, 1, 0xFFFFFFFB
_DST_NAT = struct.pack("=I", 1 << 5)
"""Status of a connection whose destination was changed."""
_SYN = b"\x02"
TABLE = "coldframe"
TIMEOUTS_S = {1: 10, 5: 432_000, 6: 5, 7: 2, 8: 2}
"""How long the kernel knows a connection without a packet, where its own idea does not fit one that never leaves the
machine. Half closed (5): as long as an open one, since a program may have said all and wait for an answer; the kernel's
60 s would cut it off. Not yet answered (1), and what follows the end of both sides (6 to 8): seconds instead of minutes, since
nothing is under way, and each costs 0.4 KiB of memory that counts against no box."""


class NotOffered(Exception):
    """The kernel refused the rules as a whole and has none of them; the text is its reason."""


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("!I", value))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _nest(kind: int, *parts: bytes) -> bytes:
    return _attribute(kind | _NESTED, b"".join(parts))


def _expression(name: str, *parts: bytes) -> bytes:
    return _nest(1, _text(1, name), _nest(2, *parts))


def _meta(key: int) -> bytes:
    return _expression("meta", _number(1, _REGISTER), _number(2, key))


def _bytes_at(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", _number(1, _REGISTER), _number(2, base), _number(3, offset), _number(4, length))


def _equal(value: bytes) -> bytes:
    return _expression("cmp", _number(1, _REGISTER), _number(2, 0), _nest(3, _attribute(1, value)))


def _unequal(value: bytes) -> bytes:
    return _expression("cmp", _number(1, _REGISTER), _number(2, 1), _nest(3, _attribute(1, value)))


def _masked(mask: bytes) -> bytes:
    zero = _nest(5, _attribute(1, bytes(len(mask))))
    ends = _number(1, _REGISTER), _number(2, _REGISTER)
    return _expression("bitwise", *ends, _number(3, len(mask)), _nest(4, _attribute(1, mask)), zero)


def _verdict(code: int) -> bytes:
    return _expression("immediate", _number(1, 0), _nest(2, _nest(2, _number(1, code))))


def _redirect(port: int) -> bytes:
    value = _nest(2, _attribute(1, struct.pack("!H", port)))
    return _expression("immediate", _number(1, _REGISTER), value) + _expression("redir", _number(1, _REGISTER))


def _reset() -> bytes:
    return _expression("reject", _number(1, 1))


def _unreachable() -> bytes:
    """Port unreachable, in the words of either family."""
    return _expression("reject", _number(1, 2), _attribute(2, b"\x01"))


def _log() -> bytes:
    group = _attribute(1, struct.pack("!H", LOG_GROUP))
    return _expression("log", group, _number(3, LOGGED_BYTES), _attribute(4, struct.pack("!H", 1)))


def _protocol(number: int) -> bytes:
    return _meta(_L4PROTO) + _equal(bytes([number]))


def _from_port(port: int) -> bytes:
    return _bytes_at(_TRANSPORT, 0, 2) + _equal(struct.pack("!H", port))


def _to_port(port: int) -> bytes:
    return _bytes_at(_TRANSPORT, 2, 2) + _equal(struct.pack("!H", port))


def _of_type(kind: int) -> bytes:
    return _bytes_at(_TRANSPORT, 0, 1) + _equal(bytes([kind]))


def rules(own_address: str) -> Iterator[tuple[str, bytes]]:
    """(chain, expressions), in order."""
    ipv4, ipv6 = (_meta(_NFPROTO) + _equal(bytes([family])) for family in (_IPV4, _IPV6))
    itself = (
        ipv4 + _bytes_at(_NETWORK, 16, 1) + _equal(b"\x7f"),
        ipv4 + _bytes_at(_NETWORK, 16, 4) + _equal(socket.inet_aton(own_address)),
        ipv6 + _bytes_at(_NETWORK, 24, 16) + _equal(bytes(15) + b"\x01"),
    )
    neither = _meta(_L4PROTO) + _unequal(bytes([_TCP])) + _unequal(bytes([_UDP]))
    for tracked in (neither, _from_port(GATE_PORT), _from_port(RESOLVER_PORT), _to_port(53)):
        yield "own", tracked + _verdict(_RETURN)
    for destination in itself:
        yield "own", destination + _expression("notrack")
    for protocol in (_TCP, _UDP):
        yield "divert", _protocol(protocol) + _to_port(53) + _redirect(RESOLVER_PORT)
    for destination in itself:
        yield "divert", destination + _verdict(_RETURN)
    yield "divert", _protocol(_TCP) + _redirect(GATE_PORT)
    status = _expression("ct", _number(1, _REGISTER), _number(2, 2))
    yield "refuse", status + _masked(_DST_NAT) + _unequal(bytes(4)) + _verdict(_ACCEPT)
    yield "refuse", _protocol(_TCP) + _to_port(GATE_PORT) + _reset()
    for destination in itself:
        yield "refuse", destination + _verdict(_ACCEPT)
    yield "refuse", _protocol(_ICMP) + _of_type(3) + _verdict(_ACCEPT)
    yield "refuse", _protocol(_ICMP6) + _of_type(1) + _verdict(_ACCEPT)
    begins_nothing = _bytes_at(_TRANSPORT, 13, 1) + _masked(_SYN) + _equal(b"\0")
    yield "refuse", _protocol(_TCP) + begins_nothing + _verdict(_DROP)
    yield "refuse", _log() + _unreachable()


def _chain(name: str, kind: str, priority: int, policy: int) -> bytes:
    output = 3
    hook = _nest(4, _number(1, output), _attribute(2, struct.pack("!i", priority)))
    return _text(1, TABLE) + _text(3, name) + hook + _number(5, policy) + _text(7, kind)


def _message(kind: int, flags: int, number: int, family: int, resource: int, body: bytes = b"") -> bytes:
    length = 20 + len(body)
    return struct.pack("=IHHIIBBH", length, kind, flags, number, 0, family, 0, socket.htons(resource)) + body


def batch(own_address: str) -> tuple[bytes, int]:
    """What the kernel is told, all or nothing, and how many of its messages it answers. They are numbered from 1 on."""
    bodies = [
        (_NEWTABLE, _text(1, TABLE)),
        (_NEWCHAIN, _chain("own", "filter", -300, _ACCEPT)),
        (_NEWCHAIN, _chain("divert", "nat", -100, _ACCEPT)),
        (_NEWCHAIN, _chain("refuse", "filter", 0, _DROP)),
    ]
    for chain, expressions in rules(own_address):
        bodies.append((_NEWRULE, _text(1, TABLE) + _text(2, chain) + _nest(4, expressions)))
    flags = _REQUEST | _ACK | _CREATE | _APPEND
    parts = [_message(kind, flags, number, _INET, 0, body) for number, (kind, body) in enumerate(bodies, 1)]
    begin, end = (_message(kind, _REQUEST, 0, 0, _NFTABLES >> 8) for kind in (_BATCH_BEGIN, _BATCH_END))
    return b"".join((begin, *parts, end)), len(parts)


def install(own_address: str) -> None:
    """Put the rules into this network namespace. Needs CAP_NET_ADMIN over it.

    *own_address*: an IPv4 address that the box has for itself, besides loopback.

    Raises:
        NotOffered: the kernel has none of them now.
        ConfineError: its answer leaves that open.
    """
    with _open() as netlink:
        _tell(netlink, *batch(own_address))


def set_timeouts() -> bool:
    """Put `TIMEOUTS_S` in force in this network namespace; False for a kernel that keeps its own. Raises ConfineError."""
    times = b"".join(_number(kind, seconds) for kind, seconds in TIMEOUTS_S.items())
    body = _attribute(2, struct.pack("!H", socket.AF_INET)) + _attribute(3, bytes([_TCP])) + _nest(4, times)
    try:
        with _open() as netlink:
            _tell(netlink, _message(_SET_DEFAULT_TIMEOUTS, _REQUEST | _ACK, 1, 0, 0, body), 1)
    except NotOffered:
        return False
    return True


def open_log() -> socket.socket:
    """The socket on which refused packets arrive, one to a message (see `guest/refusals.py`).

    Non-blocking, close-on-exec. Needs CAP_NET_ADMIN; reading it later needs no right. Raises as `install`.
    """
    netlink = _open()
    try:
        bind = _attribute(1, b"\x01")
        copies = _attribute(2, struct.pack("!IBx", LOGGED_BYTES, 2))
        # A message to a packet, in as little memory as holds it, so that many fit into the socket's buffer.
        at_once = _number(5, 1) + _number(3, 2 * LOGGED_BYTES)
        request = b"".join(
            _message(_ULOG_CONFIG, _REQUEST | _ACK, number, 0, LOG_GROUP, body)
            for number, body in enumerate((bind, copies + at_once), 1)
        )
        _tell(netlink, request, 2)
        # What does not fit into the buffer is counted all the same; without this, one loss would stop all that follows.
        netlink.setsockopt(_SOL_NETLINK, _NETLINK_NO_ENOBUFS, 1)
    except BaseException:
        netlink.close()
        raise
    return netlink


def _open() -> socket.socket:
    try:
        netlink = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER
        )
    except OSError as error:
        raise NotOffered(f"no netfilter socket: {error.strerror}") from error
    try:
        netlink.bind((0, 0))
    except OSError as error:
        netlink.close()
        raise NotOffered(f"no netfilter socket: {error.strerror}") from error
    return netlink


def _tell(netlink: socket.socket, request: bytes, expected: int) -> None:
    """The kernel works while it is told, so that all answers are there afterwards."""
    step = "set the rules of the network"
    good = 0
    try:
        netlink.send(request)
        while good < expected:
            answers = netlink.recv(65536)
            for code in _codes(answers):
                if code:
                    raise NotOffered(os.strerror(-code))
                good += 1
    except BlockingIOError:
        raise ConfineError(step, "the kernel did not answer") from None
    except (OSError, struct.error) as error:
        raise ConfineError(step, str(error)) from error


def _codes(answers: bytes) -> Iterator[int]:
    place = 0
    while place < len(answers):
        length, kind, _, _, _, code = struct.unpack_from("=IHHIIi", answers, place)
        if kind != _NLMSG_ERROR or length < 20 or code > 0:
            raise OSError(errno.EPROTO, "unexpected answer")
        yield code
        place += (length + 3) & ~3
