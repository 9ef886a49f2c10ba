"""Makes every address of a box's network namespace its own, over raw netlink and without the `ip` program.

The namespace has only `lo`. With `local default dev lo` each destination, IPv4 and IPv6, is this very
machine; where nothing listens the kernel refuses at once (reset, or port unreachable), instead of a
program hanging or being told that there is no network, and every attempt crosses `lo`, where it is seen
(`guest/contacts.py`). Nothing can leave: there is no other interface.

A side effect to know: a server inside that listens on all addresses also answers on any other address.

A box with a way out gets one IPv4 address of its own besides. Without one, `getaddrinfo` finds nothing for a program
that asks for IPv4 under AI_ADDRCONFIG, since loopback does not count there; and a program that learns its own address as
the source towards some other, as cluster software does, would be told that other one, on which its servers could never
be reached. It is the address of the name server that the settings of a box name, so nothing else loses it. IPv6 has
`::1` as its source, and needs none.
"""

import errno
import os
import socket
import struct

from coldframe.host.confine import ConfineError

_RTM_NEWLINK, _RTM_NEWADDR, _RTM_NEWROUTE, _NLMSG_ERROR = 16, 20, 24, 2
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_CREATE, _NLM_F_REPLACE = 0x1, 0x4, 0x400, 0x100
_IFF_UP = 1
_RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, _RTA_OIF, _RTA_PREFSRC = 255, 4, 254, 2, 4, 7
_RT_SCOPE_GLOBAL, _IFA_LOCAL = 0, 2


def capture_everything() -> None:
    """Bring `lo` up and add both default routes. Needs CAP_NET_ADMIN over this network namespace.

    Raises ConfineError. A kernel without IPv6 is fine: then there is nothing to capture there.
    """
    index = socket.if_nametoindex("lo")
    with _netlink() as netlink:
        _ask(netlink, "bring `lo` up", _RTM_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, index, _IFF_UP, _IFF_UP))
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _local_default(family, index)
            missing_is_fine = family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6")
            try:
                _ask(netlink, "make every address local", _RTM_NEWROUTE, _NLM_F_CREATE | _NLM_F_REPLACE, body)
            except ConfineError:
                if not missing_is_fine:
                    raise


def give_address(address: str) -> None:
    """Put an IPv4 address on `lo`, and make it the source of all that goes to other addresses than loopback.

    After `capture_everything`, with the same right. Raises ConfineError.
    """
    step, flags = "give the box an address of its own", _NLM_F_CREATE | _NLM_F_REPLACE
    binary, index = socket.inet_aton(address), socket.if_nametoindex("lo")
    with _netlink() as netlink:
        body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, _RT_SCOPE_GLOBAL, index)
        _ask(netlink, step, _RTM_NEWADDR, flags, body + struct.pack("=HH4s", 8, _IFA_LOCAL, binary))
        source = struct.pack("=HH4s", 8, _RTA_PREFSRC, binary)
        _ask(netlink, step, _RTM_NEWROUTE, flags, _local_default(socket.AF_INET, index) + source)


def _local_default(family: int, index: int) -> bytes:
    """A default route by which every address is this machine's own."""
    header = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, 0)
    return header + struct.pack("=HHI", 8, _RTA_OIF, index)


def _netlink() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    netlink.settimeout(5)
    netlink.bind((0, 0))
    return netlink


def _ask(netlink: socket.socket, step: str, kind: int, flags: int, body: bytes) -> None:
    length = 16 + len(body)
    netlink.send(struct.pack("=IHHII", length, kind, flags | _NLM_F_REQUEST | _NLM_F_ACK, 1, 0) + body)
    try:
        answer = netlink.recv(4096)
    except TimeoutError:
        raise ConfineError(step, "the kernel did not answer") from None
    _, answered, _, _, _, code = struct.unpack_from("=IHHIIi", answer)
    if answered != _NLMSG_ERROR or (code and code != -errno.EEXIST):
        raise ConfineError(step, os.strerror(-code) if code < 0 else "unexpected answer")
