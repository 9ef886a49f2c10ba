"""Makes every address of a box's network namespace its own, over raw netlink and without the `ip` program.

The namespace has only `lo`. With `local default dev lo` each destination, IPv4 and IPv6, is this very
machine; where nothing listens the kernel refuses at once (reset, or port unreachable), instead of a
program hanging or being told that there is no network, and every attempt crosses `lo`, where it is seen
(`guest/contacts.py`). Nothing can leave: there is no other interface.

A side effect to know: a server inside that listens on all addresses also answers on any other address.
"""

import errno
import os
import socket
import struct

from coldframe.host.confine import ConfineError

_RTM_NEWLINK, _RTM_NEWROUTE, _NLMSG_ERROR = 16, 24, 2
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_CREATE, _NLM_F_REPLACE = 0x1, 0x4, 0x400, 0x100
_IFF_UP = 1
_RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, _RTA_OIF = 255, 4, 254, 2, 4


def capture_everything() -> None:
    """Bring `lo` up and add both default routes. Needs CAP_NET_ADMIN over this network namespace.

    Raises ConfineError. A kernel without IPv6 is fine: then there is nothing to capture there.
    """
    index = socket.if_nametoindex("lo")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as netlink:
        netlink.settimeout(5)
        netlink.bind((0, 0))
        _ask(netlink, "bring `lo` up", _RTM_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, index, _IFF_UP, _IFF_UP))
        for family in (socket.AF_INET, socket.AF_INET6):
            header = struct.pack(
                "=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, 0
            )
            body = header + struct.pack("=HHI", 8, _RTA_OIF, index)
            missing_is_fine = family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6")
            try:
                _ask(netlink, "make every address local", _RTM_NEWROUTE, _NLM_F_CREATE | _NLM_F_REPLACE, body)
            except ConfineError:
                if not missing_is_fine:
                    raise


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
