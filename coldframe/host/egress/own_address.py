"""Gives a box one IPv4 address besides loopback, which it has for itself.

Without one, `getaddrinfo` finds nothing for a program that asks for IPv4 under AI_ADDRCONFIG, since loopback does not
count there; and a program that learns its own address as the source towards some other, as cluster software does, would
be told that other one, on which its servers could never be reached. It is the address of the name server that the
settings of a box name, so nothing else loses it. IPv6 has `::1` as its source, and needs none.
"""

import os
import socket
import struct

from coldframe.host.confine import ConfineError

_NEWADDR, _NEWROUTE, _NLMSG_ERROR = 20, 24, 2
_REQUEST, _ACK, _CREATE, _REPLACE = 0x1, 0x4, 0x400, 0x100
_IFA_LOCAL, _RTA_OIF, _RTA_PREFSRC = 2, 4, 7
_LOCAL_TABLE, _STATIC, _HOST_SCOPE, _GLOBAL_SCOPE, _LOCAL = 255, 4, 254, 0, 2


def give(address: str) -> None:
    """Put *address* on `lo`, and make it the source of all that goes to other addresses than loopback.

    Needs CAP_NET_ADMIN, and the routes of `host/routes.py`. Raises ConfineError.
    """
    binary = socket.inet_aton(address)
    index = socket.if_nametoindex("lo")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as netlink:
        netlink.settimeout(5)
        netlink.bind((0, 0))
        body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, _GLOBAL_SCOPE, index)
        _ask(netlink, _NEWADDR, body + struct.pack("=HH4s", 8, _IFA_LOCAL, binary))
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL, 0)
        source = struct.pack("=HH4s", 8, _RTA_PREFSRC, binary)
        _ask(netlink, _NEWROUTE, body + struct.pack("=HHI", 8, _RTA_OIF, index) + source)


def _ask(netlink: socket.socket, kind: int, body: bytes) -> None:
    step = "give the box an address of its own"
    flags = _REQUEST | _ACK | _CREATE | _REPLACE
    netlink.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    try:
        _, answered, _, _, _, code = struct.unpack_from("=IHHIIi", netlink.recv(4096))
    except (TimeoutError, struct.error):
        raise ConfineError(step, "the kernel did not answer") from None
    if answered != _NLMSG_ERROR or code:
        raise ConfineError(step, os.strerror(-code) if code < 0 else "unexpected answer")
