"""Whether an IP address may be dialled for a sandbox, and what kind of address it is if not.

A name that a rule allows may resolve to anything, so the address is judged too, just before it is dialled, and the one
that was judged is dialled. Own tables, since `ipaddress.is_global` calls multicast, site-local, tunnels and most of
the unassigned space of IPv6 global. IPv6 is the other way round here: only 2000::/3 less its exceptions is public.

An address may carry another. Mapped addresses and the well-known NAT64 prefix are judged by what they carry, since the
kernel or the translator goes there. What is not public in any case: IPv4-compatible, 6to4 and Teredo, which nobody
serves from any more, and NAT64 prefixes of a local network, where the place of the carried bits depends on that network.
"""

import re
from collections.abc import Collection
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressKind(StrEnum):
    """What an address is for."""

    PUBLIC = "public"
    PRIVATE = "private"
    UNIQUE_LOCAL = "unique-local"
    SHARED = "shared"
    """100.64.0.0/10, between a provider and its customers; also used by overlay networks."""
    METADATA = "metadata"
    """Where a cloud hands its instances their secrets."""
    OWN = "own"
    """An address of this machine."""
    LOOPBACK = "loopback"
    UNSPECIFIED = "unspecified"
    THIS_NETWORK = "this-network"
    LINK_LOCAL = "link-local"
    SITE_LOCAL = "site-local"
    MULTICAST = "multicast"
    BROADCAST = "broadcast"
    BENCHMARK = "benchmark"
    DOCUMENTATION = "documentation"
    PROTOCOL = "protocol"
    """Set aside for protocols: 192.0.0.0/24, 2001::/23."""
    TUNNEL = "tunnel"
    """6to4, Teredo, IPv4-compatible and ISATAP, whatever they carry, and the relays of 6to4."""
    TRANSLATION = "translation"
    """NAT64 within a local network."""
    RESERVED = "reserved"


OPENABLE = frozenset({AddressKind.PRIVATE, AddressKind.UNIQUE_LOCAL, AddressKind.SHARED})
"""Kinds that a rule may open by naming the range. All others that are not public cannot be opened."""


class AddressVerdict(NamedTuple):
    """What an address is, and what would be dialled."""

    kind: AddressKind
    dialled: Address
    """The address itself; of a mapped one the IPv4 address, as the kernel would."""
    carried: tuple[Address, ...] = ()
    """Addresses found within it."""

    @property
    def is_public(self) -> bool:
        return self.kind is AddressKind.PUBLIC


_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # nearly everybody
        "169.254.170.2",  # containers of Amazon
        "169.254.170.23",
        "169.254.0.23",  # Tencent
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure, within the public range
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",  # Amazon
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
        "fe80::a9fe:a9fe",  # OpenStack
    )
)
_IPV4: tuple[tuple[IPv4Network, AddressKind], ...] = tuple(
    (IPv4Network(text), kind)
    for text, kind in (
        ("0.0.0.0/32", AddressKind.UNSPECIFIED),
        ("0.0.0.0/8", AddressKind.THIS_NETWORK),
        ("10.0.0.0/8", AddressKind.PRIVATE),
        ("100.64.0.0/10", AddressKind.SHARED),
        ("127.0.0.0/8", AddressKind.LOOPBACK),
        ("169.254.0.0/16", AddressKind.LINK_LOCAL),
        ("172.16.0.0/12", AddressKind.PRIVATE),
        ("192.0.0.0/24", AddressKind.PROTOCOL),
        ("192.0.2.0/24", AddressKind.DOCUMENTATION),
        ("192.88.99.0/24", AddressKind.TUNNEL),
        ("192.168.0.0/16", AddressKind.PRIVATE),
        ("198.18.0.0/15", AddressKind.BENCHMARK),
        ("198.51.100.0/24", AddressKind.DOCUMENTATION),
        ("203.0.113.0/24", AddressKind.DOCUMENTATION),
        ("224.0.0.0/4", AddressKind.MULTICAST),
        ("255.255.255.255/32", AddressKind.BROADCAST),
        ("240.0.0.0/4", AddressKind.RESERVED),
    )
)
_IPV6: tuple[tuple[IPv6Network, AddressKind], ...] = tuple(
    (IPv6Network(text), kind)
    for text, kind in (
        ("::/128", AddressKind.UNSPECIFIED),
        ("::1/128", AddressKind.LOOPBACK),
        ("::/96", AddressKind.TUNNEL),
        ("64:ff9b:1::/48", AddressKind.TRANSLATION),
        ("2001::/32", AddressKind.TUNNEL),
        ("2001:2::/48", AddressKind.BENCHMARK),
        ("2001::/23", AddressKind.PROTOCOL),
        ("2001:db8::/32", AddressKind.DOCUMENTATION),
        ("2002::/16", AddressKind.TUNNEL),
        ("3ffe::/16", AddressKind.RESERVED),  # the first test network, given back
        ("3fff::/20", AddressKind.DOCUMENTATION),
        ("2000::/3", AddressKind.PUBLIC),
        ("fc00::/7", AddressKind.UNIQUE_LOCAL),
        ("fe80::/10", AddressKind.LINK_LOCAL),
        ("fec0::/10", AddressKind.SITE_LOCAL),
        ("ff00::/8", AddressKind.MULTICAST),
    )
)
"""In this order: the first that holds an address says what it is. IPv6 that none holds is reserved."""
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)


def judge_address(address: Address, *, own: Collection[Address] = ()) -> AddressVerdict:
    """What an address is. `own` are the addresses of this machine, which are refused even where they are public."""
    if isinstance(address, IPv4Address):
        return AddressVerdict(_kind_of_ipv4(address, own), address)
    plain = IPv6Address(int(address))  # without a scope, which no comparison may depend on
    mapped = plain.ipv4_mapped
    if mapped is not None:
        return AddressVerdict(_kind_of_ipv4(mapped, own), mapped, (mapped,))
    if plain in _NAT64:
        inner = _low_half(plain)
        return AddressVerdict(_kind_of_ipv4(inner, own), address, (inner,))
    carried = _carried(plain)
    if carried:
        kinds = [kind for kind in (_kind_of_ipv4(each, own) for each in carried) if kind is not AddressKind.PUBLIC]
        return AddressVerdict(kinds[0] if kinds else AddressKind.TUNNEL, address, carried)
    if plain in _METADATA:
        return AddressVerdict(AddressKind.METADATA, address)
    if plain in own:
        return AddressVerdict(AddressKind.OWN, address)
    kind = next((kind for network, kind in _IPV6 if plain in network), AddressKind.RESERVED)
    if kind is AddressKind.PUBLIC and isinstance(address, IPv6Address) and address.scope_id is not None:
        kind = AddressKind.LINK_LOCAL  # a scope is a way around the routing table
    return AddressVerdict(kind, address)


def read_address(text: str) -> Address | None:
    """The address that a text is in the usual form: four decimal parts, or IPv6 without scope and brackets."""
    if "%" in text or "/" in text:
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None


def looks_like_address(text: str) -> bool:
    """Whether some program could take a text for an address: `127.1`, `0x7f.1`, `2130706433`, `[::1]`, also in good form.

    As browsers do it: a text whose last part is a number, decimal, octal or hexadecimal. No name ends so.
    """
    if ":" in text or "[" in text or "%" in text:
        return True
    return _NUMBER.fullmatch(text.removesuffix(".").rpartition(".")[2]) is not None


def refused_in(network: Network) -> AddressKind | None:
    """A kind within a range that no rule can open; None if the whole range is public or can be opened."""
    if isinstance(network, IPv4Network):
        kinds = [kind for part, kind in _IPV4 if part.overlaps(network)]
    else:
        # Only what lies wholly in one part can be told; a wider range always reaches into what is reserved.
        around = next((kind for part, kind in _IPV6 if network.subnet_of(part)), AddressKind.RESERVED)
        kinds = [around, *(kind for part, kind in _IPV6 if part.overlaps(network) and part.subnet_of(network))]
    if any(each in network for each in _METADATA if each.version == network.version):
        kinds.append(AddressKind.METADATA)
    return next((kind for kind in kinds if kind is not AddressKind.PUBLIC and kind not in OPENABLE), None)


def _kind_of_ipv4(address: IPv4Address, own: Collection[Address]) -> AddressKind:
    if address in _METADATA:
        return AddressKind.METADATA
    if address in own:
        return AddressKind.OWN
    return next((kind for network, kind in _IPV4 if address in network), AddressKind.PUBLIC)


def _carried(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """Addresses within one that is a tunnel in any case."""
    if address in _COMPATIBLE and int(address) > 1:
        return (_low_half(address),)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return (_low_half(address),)
    return ()


def _low_half(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
