"""A wire between two network namespaces, and addresses and routes on its ends: what `ip` would do, without that program."""

import os
import socket
import struct
from ipaddress import ip_address

_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 20, 24
_CREATE = 0x1 | 0x4 | 0x400
_NAME, _LINK_INFO, _NET_NS_PID, _KIND, _DATA, _PEER = 3, 18, 19, 1, 2, 1
_NO_DETECTION = 0x02
"""An IPv6 address may be used at once: there is nobody who could have it too."""
_OUT, _GATEWAY, _MAIN = 4, 5, 254
_UNICAST, _LOCAL, _HOST_SCOPE = 1, 2, 254


def make_wire(near_pid: int) -> None:
    """In the far namespace: one end here, the other one where *near_pid* is."""
    link = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    peer = link + _attribute(_NAME, b"near\0") + _attribute(_NET_NS_PID, struct.pack("=I", near_pid))
    info = _attribute(_KIND, b"veth\0") + _attribute(_DATA, _attribute(_PEER, peer))
    _netlink(_NEW_LINK, link + _attribute(_NAME, b"far\0") + _attribute(_LINK_INFO, info))


def bring_up(name: str, addresses: dict[str, int], *gateways: str) -> None:
    """Addresses with the bits of their networks; all other traffic of a gateway's family goes to it."""
    index = socket.if_nametoindex(name)
    _netlink(_NEW_LINK, struct.pack("=BxHiII", 0, 0, index, 1, 1))
    for address, bits in addresses.items():
        binary = ip_address(address).packed
        head = struct.pack("=BBBBI", _family(binary), bits, _NO_DETECTION if len(binary) == 16 else 0, 0, index)
        _netlink(_NEW_ADDRESS, head + _attribute(2, binary) + _attribute(1, binary))
    for gateway in gateways:
        binary = ip_address(gateway).packed
        _default_route(_family(binary), _UNICAST, 0, _attribute(_GATEWAY, binary))


def take_everything() -> None:
    """Every address that has no nearer route is this namespace's own: whoever is spoken to, it is here."""
    out = _attribute(_OUT, struct.pack("=I", socket.if_nametoindex("lo")))
    for family in (socket.AF_INET, socket.AF_INET6):
        _default_route(family, _LOCAL, _HOST_SCOPE, out)


def _default_route(family: int, kind: int, scope: int, more: bytes) -> None:
    _netlink(_NEW_ROUTE, struct.pack("=BBBBBBBBI", family, 0, 0, 0, _MAIN, 4, scope, kind, 0) + more)


def _family(binary: bytes) -> int:
    return socket.AF_INET if len(binary) == 4 else socket.AF_INET6


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _netlink(kind: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asking:
        asking.send(struct.pack("=IHHII", 16 + len(body), kind, _CREATE, 1, 0) + body)
        (code,) = struct.unpack_from("=i", asking.recv(4096), 16)
        if code:
            raise OSError(-code, os.strerror(-code))
